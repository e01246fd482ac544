# SPDX-License-Identifier: GPL-2.0-only
"""A kernel that is wrong on purpose: the series with all of tests/mutants in it.

How one kernel has them all, and the format of a patch, is in docs/developing.md: "Mutants".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.core.errors import LabError
from lab.core.git import Repo
from lab.core.paths import Layout
from lab.series.apply import commit_mails
from lab.series.files import WholeFile, completed, read_text
from lab.series.mail import Mail, NamedMail, parse
from lab.series.pin import path_map

KEYS = ("Reverts", "Caught-by", "Machine", "Config", "Control", "Output", "Kernel-log")
FILE_NAME = re.compile(r"(\d\d|[1-9]\d\d)-([a-z0-9-]+)\.patch")
OR_CONTROL, OWN = "kvm_mutant_or_control(", "own"
SWITCH = re.compile(r"^\+.*\bkvm_mutant(?:_or_control)?\((\d+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Check:
    """The selftest that has to catch a mutant, and how that shows.

    program, arguments: the selftest. machine: the name of the machine it runs in. words: module
    parameters of the machine, and words of its kernel command line. config: the configuration of
    the kernel. output, kernel_log: what has to appear in the output of the test and in the kernel's
    log; None if nothing has to.
    """

    program: str
    arguments: tuple[str, ...]
    machine: str
    words: tuple[str, ...]
    config: str
    output: re.Pattern[str] | None
    kernel_log: re.Pattern[str] | None


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    number: of the switch. path: as messages name the patch. reverts: the subject of the mail that
    it undoes, which fixes a bug of the kernel; empty if it undoes none. has_own_control: no other
    mutant can have the same control, since it is not the series as it is, or as what this mutant
    leaves behind would make the control of others fail.
    """

    number: int
    name: str
    path: str
    mail: Mail
    check: Check
    reverts: str
    has_own_control: bool


@dataclass(frozen=True)
class Mutants:
    """All of tests/mutants that a base has.

    switch: the patch 00. left_out: why it has no mutant that undoes a mail, by the mail's subject.
    """

    switch: NamedMail
    mutants: tuple[Mutant, ...]
    left_out: Mapping[str, str]


def _trailers(path: str, mail: Mail) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in mail.message.split("\n\n")[-1].splitlines():
        key, _, value = line.partition(": ")
        if key not in KEYS or not value.strip():
            raise LabError(f"{path}: {line!r}: expected one of {', '.join(KEYS)} and a value")
        if key in found:
            raise LabError(f"{path}: more than one {key}:")
        found[key] = value.strip()
    return found


def _pattern(path: str, key: str, text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text, re.MULTILINE) if text else None
    except re.error as error:
        raise LabError(f"{path}: {key}: {text!r} is no regular expression: {error}") from error


def _check(path: str, given: Mapping[str, str]) -> Check:
    for key in ("Caught-by", "Machine"):
        if key not in given:
            raise LabError(f"{path}: the changelog has no {key}:")
    output = _pattern(path, "Output", given.get("Output"))
    kernel_log = _pattern(path, "Kernel-log", given.get("Kernel-log"))
    if not output and not kernel_log:
        raise LabError(f"{path}: needs Output: or Kernel-log:, by which the mistake is seen")
    program, *arguments = given["Caught-by"].split()
    machine, *words = given["Machine"].split()
    config = given.get("Config", "kvm")
    return Check(program, tuple(arguments), machine, tuple(words), config, output, kernel_log)


def _parse(layout: Layout, file: Path) -> NamedMail:
    """A patch, called by its path. LabError: it is no patch, or has more than a diff."""
    path = file.relative_to(layout.root).as_posix()
    if not FILE_NAME.fullmatch(file.name):
        raise LabError(f"{path}: a mutant is called NN-name.patch or NNN-name.patch")
    mail = parse(path, read_text(file))
    if mail.whole or mail.deletes or mail.removes:
        raise LabError(f"{path}: a mutant must be a diff, without Adds: and the like")
    if not mail.diff and layout.mutant_patches in file.parents:
        raise LabError(f"{path}: has no diff")
    return NamedMail(path, mail)


def _reason(path: str, text: str, mail: Mail, reverts: str) -> str:
    """Why a base leaves a mutant out. LabError: it undoes a mail, and no reason is given."""
    reason = parse(path, text).message.partition("\n\n")[2].strip() if text else ""
    if reverts and not reason:
        raise LabError(
            f"{path}: leaves out {mail.subject!r}, which reverts a fix: the changelog has to say"
            " why the bug cannot show in this kernel"
        )
    return reason


def number_of(name: str) -> int:
    """The number at the beginning of a patch's file name."""
    return int(name.partition("-")[0])


def _leaves_out(layout: Layout, file: Path) -> bool:
    """Whether a patch of an older base only says that there is no such mutant: it has no diff."""
    return not file.stat().st_size or not _parse(layout, file).mail.diff


def _left_out(layout: Layout, file: Path, found: dict[str, NamedMail]) -> dict[str, str]:
    """Take the mutant that FILE leaves out from FOUND. Returns its part of Mutants.left_out."""
    path = file.relative_to(layout.root).as_posix()
    if file.name not in found:
        raise LabError(f"{path}: has no diff, and there is no such mutant to leave out")
    undone = found.pop(file.name)
    reverts = _trailers(*undone).get("Reverts", "")
    reason = _reason(path, read_text(file), undone.mail, reverts)
    return {reverts: reason} if reverts else {}


def _order(file_name: str) -> tuple[int, str]:
    return number_of(file_name), file_name


def _read(layout: Layout) -> tuple[dict[str, NamedMail], dict[str, str]]:
    """All patches by file name, in order, and Mutants.left_out.

    A patch of backport/VERSION/mutants replaces the one with its name, and has the changelog of
    that if it has none of its own. If it has no diff, that mutant is left out: the code that it
    breaks does not exist in this base. LabError: a file that is not such a patch.
    """
    paths = path_map(layout)
    common = sorted(layout.mutant_patches.glob("*.patch"))
    found = {file.name: _parse(layout, file) for file in common}
    left_out: dict[str, str] = {}
    if not layout.is_newest:
        found = {key: NamedMail(one.name, paths.mail(one.mail)) for key, one in found.items()}
    for file in (layout.backport / "mutants").glob("*.patch"):
        if _leaves_out(layout, file):
            left_out |= _left_out(layout, file, found)
        else:
            own = _parse(layout, file)
            replaced = found.get(file.name, own)
            found[file.name] = NamedMail(own.name, completed(own.mail, replaced.mail))
    return {name: found[name] for name in sorted(found, key=_order)}, left_out


def load(layout: Layout) -> Mutants:
    """Read tests/mutants. LabError: a patch that is not as docs/developing.md says."""
    switches: list[NamedMail] = []
    mutants: dict[int, Mutant] = {}
    found, left_out = _read(layout)
    for name, patch in found.items():
        path, mail = patch
        number, words = number_of(name), name.partition("-")[2].removesuffix(".patch")
        if number == 0:
            switches.append(patch)
            continue
        if number in mutants:
            raise LabError(f"{path}: {mutants[number].path} has the number {number:02d} already")
        used = {int(word) for word in SWITCH.findall(mail.diff)}
        if used != {number}:
            numbers = ", ".join(map(str, sorted(used))) or "none"
            raise LabError(f"{path}: the patch must use kvm_mutant({number}), and uses {numbers}")
        given = _trailers(path, mail)
        check, reverts = _check(path, given), given.get("Reverts", "")
        if (control := given.get("Control", OWN)) != OWN:
            raise LabError(f"{path}: Control: {control}: there is only {OWN}")
        own = "Control" in given or OR_CONTROL in mail.diff
        mutants[number] = Mutant(number, words, path, mail, check, reverts, own)
    if len(switches) != 1:
        raise LabError(f"{layout.mutant_patches}: needs one patch 00, has {len(switches)}")
    return Mutants(switches[0], tuple(mutants.values()), left_out)


def no_whole_file(path: str) -> WholeFile:
    raise AssertionError(path)


def commit(repo: Repo, all_of_them: Mutants) -> str:
    """The id of a commit on top of the series that holds all mutants.

    The same input gives the same id; no ref, index or work tree changes. LabError: a hunk does
    not apply.
    """
    mails = [all_of_them.switch, *((each.path, each.mail) for each in all_of_them.mutants)]
    return commit_mails(repo, repo.text("rev-parse", "HEAD"), mails, no_whole_file)
