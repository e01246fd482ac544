# SPDX-License-Identifier: GPL-2.0-only
"""Reading series/, backport/ and the whole files: everything that a tree is made from."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lab.core.errors import LabError
from lab.core.paths import Layout
from lab.series.mail import Mail, NamedMail, edits, format_mail, parse, slug
from lab.series.pin import SAME_PATHS, PathMap, path_map

# Top-level directories of the kernel in which the repository keeps whole files.
WHOLE_FILES = ("Documentation", "arch", "include", "kernel", "lib", "mm", "tools", "virt")
# A directory below these that is no part of the kernel.
OURS = "tools/bpftrace/"
# Directories of backport/VERSION: mails that come before the series; mails that replace some of
# those of the series; mails that come after it.
BEFORE, SAME, AFTER = "prereq", "series", "post"


@dataclass(frozen=True)
class WholeFile:
    """A file of ours. mode: git's, "100644" or "100755"."""

    mode: str
    content: bytes


@dataclass(frozen=True)
class Series:
    """Everything that the repository adds to the source of a base: its mails, in order.

    paths: translates paths of the newest base, as the repository has them, to those of this base.
    """

    mails: tuple[NamedMail, ...]
    paths: PathMap = SAME_PATHS

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(mail.subject for _, mail in self.mails)

    @property
    def whole(self) -> tuple[str, ...]:
        return tuple(path for _, mail in self.mails for path in mail.whole)

    def read_whole(self, root: Path, path: str) -> WholeFile:
        """Call read_whole() for a path of this base."""
        return read_whole(root, self.paths.back(path))


def read_text(path: Path) -> str:
    """The text of a file. Bytes that are no UTF-8 survive when it is written again."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def read_whole(root: Path, path: str) -> WholeFile:
    """A whole file of the repository. LabError: it is missing."""
    file = root / path
    try:
        content = file.read_bytes()
    except FileNotFoundError as error:
        raise LabError(f"{path} is missing: series/ says that the repository has it") from error
    return WholeFile("100755" if os.access(file, os.X_OK) else "100644", content)


def _check_owners(series: Series) -> None:
    owner: dict[str, str] = {}
    for name, mail in series.mails:
        for path in mail.whole:
            if path in owner:
                raise LabError(
                    f"{name}: {path} belongs to {owner[path]} already: a later mail changes a"
                    " whole file by a diff"
                )
            owner[path] = name


def _growing(mails: Iterable[NamedMail]) -> Iterator[NamedMail]:
    """The same mails, which know what in their diffs changes whole files of earlier mails."""
    ours: set[str] = set()
    for name, mail in mails:
        grown = tuple(path for path in edits(mail.diff) if path in ours)
        yield NamedMail(name, replace(mail, grows=grown))
        ours.update(mail.whole)


def read_mails(layout: Layout, directory: Path) -> list[NamedMail]:
    """The mails of a directory of the repository, in the order of the file names."""
    files = sorted(directory.glob("*.patch"))
    named = ((file.relative_to(layout.root).as_posix(), file) for file in files)
    return [NamedMail(name, parse(name, read_text(file))) for name, file in named]


def title(layout: Layout, name: str, mail: Mail) -> str:
    """What a message calls a mail that does not apply.

    For an older base it also names the file that could replace the mail there.
    """
    own = (layout.backport / SAME / f"{slug(mail)}.patch").relative_to(layout.root)
    common = not layout.is_newest and name.startswith("series/")
    return f"{name} (or {own} in its place)" if common else name


def completed(mail: Mail, common: Mail) -> Mail:
    """MAIL, of an older base, with what it leaves to COMMON, the mail of series/ that it replaces.

    That is the changelog, unless it has one of its own, and likewise the whole files. What COMMON
    does to whole files of earlier mails is the same on all bases.
    """
    if mail.message == mail.subject:
        mail = replace(mail, message=common.message)
    parts = edits(common.diff)
    diff = mail.diff + "".join(parts[path] for path in common.grows)
    mail = replace(mail, diff=diff, grows=common.grows)
    return mail if mail.whole else replace(mail, adds=common.adds, replaces=common.replaces)


def shortened(mail: Mail, common: Mail) -> Mail:
    """MAIL without the parts that completed() takes from COMMON."""
    kept = (part for path, part in edits(mail.diff).items() if path not in common.grows)
    mail = replace(mail, diff="".join(kept), grows=())
    if mail.message == common.message:
        mail = replace(mail, message=mail.subject)
    if (set(mail.adds), set(mail.replaces)) == (set(common.adds), set(common.replaces)):
        mail = replace(mail, adds=(), replaces=())
    return mail


def differing(layout: Layout, common: Mapping[str, Mail]) -> dict[str, NamedMail]:
    """The mails that an older base has instead of some of COMMON; both by slug()."""
    found = {slug(one.mail): one for one in read_mails(layout, layout.backport / SAME)}
    for unknown in found.keys() - common.keys():
        raise LabError(f"{found[unknown].name}: series/ has no mail of this subject")
    return {
        key: NamedMail(one.name, completed(one.mail, common[key])) for key, one in found.items()
    }


def load(layout: Layout) -> Series:
    """The mails of a base: those of series/, for an older base with what backport/ changes."""
    common = list(_growing(read_mails(layout, layout.series)))
    if layout.is_newest:
        series = Series(tuple(common))
    else:
        paths = path_map(layout)
        before, after = (read_mails(layout, layout.backport / name) for name in (BEFORE, AFTER))
        moved = [NamedMail(one.name, paths.mail(one.mail)) for one in common]
        own = differing(layout, {slug(one.mail): one.mail for one in moved})
        middle = [own.get(slug(one.mail), one) for one in moved]
        series = Series((*before, *middle, *after), paths)
    _check_owners(series)
    return series


def fingerprint(layout: Layout, series: Series) -> str:
    """A digest of everything that the repository puts into the tree."""
    digest = hashlib.sha256()
    for pair in sorted(series.paths.directories.items()):
        digest.update(repr(pair).encode())
    for name, mail in series.mails:
        # Digest the complete mail, not its file: a mail of an older base may take its changelog
        # from series/.
        content = format_mail(mail).encode("utf-8", "surrogateescape")
        digest.update(f"{name.removeprefix('series/')} {len(content)}\n".encode() + content)
    for path in series.whole:
        whole = series.read_whole(layout.root, path)
        digest.update(f"{path} {whole.mode} {len(whole.content)}\n".encode() + whole.content)
    return digest.hexdigest()


def orphans(layout: Layout, series: Series) -> list[str]:
    """Files at kernel paths of the repository that no mail adds or replaces."""
    present = (
        file.relative_to(layout.root).as_posix()
        for directory in WHOLE_FILES
        for file in sorted((layout.root / directory).rglob("*"))
        if file.is_file()
    )
    return [path for path in present if path not in series.whole and not path.startswith(OURS)]
