# SPDX-License-Identifier: GPL-2.0-only
"""What checkers say: those of the kernel about the series, and others about our own scripts."""

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lab.build import kernel
from lab.core.errors import WorkFailed
from lab.series import tree
from lab.submit import modules
from lab.submit.compiling import diagnostics
from lab.submit.subject import (
    KVM_OBJECTS,
    OBJECTS,
    CheckResult,
    Subject,
    debians_python,
    make,
    run,
    run_logged,
)

# New files lie below paths that MAINTAINERS covers by directory, which checkpatch.pl does not look
# up. And the package has no history, in which commits of Fixes: tags could be looked up.
CHECKPATCH_IGNORES = "FILE_PATH_CHANGES,UNKNOWN_COMMIT_ID"
# For mails that are not signed off yet.
UNSIGNED = f"{CHECKPATCH_IGNORES},MISSING_SIGN_OFF"
# The part of Documentation/ that is built: it has all pages that the series edits, except
# kernel-parameters.txt, which no page renders.
BOOK = "virt/kvm"
SCRIPT_DIRECTORIES = (".ci", "dkms", "lab", "scripts", "tests", "tools")

_SPHINX = re.compile(r"^(?:\S*/)?(Documentation/\S+?):(?:\d+:)? ([A-Z]+: .*)$", re.MULTILINE)
_COCCI = re.compile(r"^(?:\./)?(\S+\.[ch]):[\d:-]+ (.*)$", re.MULTILINE)


def checkpatch_problems(
    subject: Subject, mails: Iterable[Path], ignores: str = UNSIGNED
) -> list[str]:
    """What checkpatch.pl --strict has to say about MAILS."""
    source = subject.at(subject.tip)
    options = ("--strict", "--terse", "--show-types", "--no-summary")
    problems: list[str] = []
    for mail in mails:
        command = ("perl", "scripts/checkpatch.pl", *options, f"--ignore={ignores}")
        done = run((*command, str(mail)), source, debians_python())
        said = done.stdout.splitlines() + done.stderr.splitlines()
        if done.returncode != 0:
            problems += said or [f"{mail.name}: checkpatch.pl failed"]
    return problems


def checkpatch(subject: Subject) -> CheckResult:
    """checkpatch.pl --strict has nothing to say about any mail."""
    directory = subject.layout.work / "check-mail"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    subject.repo.run("format-patch", "-q", "-o", str(directory), f"{tree.BASE_TAG}..{subject.tip}")
    mails = sorted(directory.glob("*.patch"))
    return CheckResult(f"{len(mails)} mails, --strict", tuple(checkpatch_problems(subject, mails)))


def sparse(subject: Subject) -> CheckResult:
    """sparse has nothing to say about our whole files of the kernel."""
    ours = [path for path in subject.loaded.whole if not path.startswith("tools/")]
    sources = [path for path in ours if path.endswith(".c")]
    if not sources:
        return CheckResult("no whole file in C")
    source = subject.at(subject.tip)
    kernel.configure(source, OBJECTS, subject.fragments, subject.log)
    done = make(subject, source, "C=2", *[path.removesuffix(".c") + ".o" for path in sources])
    found = sorted(diagnostics(done.stderr))
    problems = [f"{path}: {text}" for path, text in found if path in ours]
    if done.returncode != 0 and not problems:
        problems.append(f"sparse or the compiler failed; see {subject.log}")
    return CheckResult(f"{len(sources)} files", tuple(problems))


def _coccicheck(subject: Subject, source: Path, patch: str) -> Counter[str]:
    """How often coccicheck gives each message, as "file: text".

    Without line numbers: the series shifts those of code that it does not change.
    """
    # PATCH has an absolute path, since newer kernels run spatch in the directory that it checks.
    said: Counter[str] = Counter()
    for directory in KVM_OBJECTS:
        words = ("MODE=report", f"COCCI={source / patch}", f"M={directory}")
        done = run_logged(subject, ("make", "-s", "coccicheck", *words), source)
        if done.returncode != 0:
            raise WorkFailed(f"coccicheck could not run {patch}; see {subject.log}")
        for file, text in _COCCI.findall(done.stdout):
            # On some bases the names of files begin with that directory.
            file = file.removeprefix(directory)
            said[f"{directory}{file}: {re.sub(r'[0-9]+', 'N', text)}"] += 1
    return said


def coccicheck(subject: Subject) -> CheckResult:
    """coccicheck finds nothing in KVM that it does not find without the series.

    Not in the selftests: it proposes helpers of the kernel's that user space does not have.
    """
    source = subject.at(subject.tip)
    texts = {
        file.relative_to(source).as_posix(): file.read_text()
        for file in sorted(source.glob("scripts/coccinelle/**/*.cocci"))
    }
    report = re.compile(r"virtual\s+report")
    in_ocaml = {file: "ocaml" in text for file, text in texts.items() if report.search(text)}
    # Leave out those with code in OCaml. They need a compiler of 400 MiB, and check one driver, and
    # what sparse reports as well.
    can = [file for file, ocaml in in_ocaml.items() if not ocaml]
    said = {patch: _coccicheck(subject, source, patch) for patch in can}
    source = subject.at(tree.BASE_TAG)
    new: Counter[str] = Counter()
    for patch, messages in said.items():
        if messages:
            new += messages - _coccicheck(subject, source, patch)
    detail = f"{len(can)} semantic patches, {len(in_ocaml) - len(can)} in OCaml left out"
    return CheckResult(detail, tuple(sorted(new)))


def _build_docs(subject: Subject, commit: str) -> Counter[str]:
    """Build the documentation of KVM from scratch, and return the messages of sphinx.

    Sphinx gives messages only for pages that it reads, so remove what it built before.
    """
    source = subject.at(commit)
    output = source / OBJECTS / "Documentation/output"
    shutil.rmtree(output, ignore_errors=True)
    command = kernel.make_command(OBJECTS, "htmldocs", f"SPHINXDIRS={BOOK}")
    done = run_logged(subject, command, source, debians_python())
    # Without sphinx the kernel's Makefile skips the target, and succeeds.
    if done.returncode != 0 or not (output / BOOK / "index.html").is_file():
        raise WorkFailed(f"the documentation of KVM could not be built; see {subject.log}")
    # Without line numbers, as in _coccicheck().
    return Counter(f"{file}: {text}" for file, text in _SPHINX.findall(done.stderr))


def docs(subject: Subject) -> CheckResult:
    """sphinx has no more to say about the documentation of KVM than without the series."""
    before = _build_docs(subject, tree.BASE_TAG)
    new = _build_docs(subject, subject.tip) - before
    detail = f"Documentation/{BOOK} ({before.total()} warnings in base)"
    return CheckResult(detail, tuple(sorted(new)))


def package(subject: Subject) -> CheckResult:
    """lintian has nothing to say about the package of modules."""
    deb = modules.make(subject.layout, modules.contents(subject.layout))
    done = run(("lintian", "--allow-root", "--tag-display-limit", "0", str(deb)), deb.parent)
    said = (done.stdout + done.stderr).splitlines()
    if done.returncode and not said:
        said = [f"lintian failed, status {done.returncode}"]
    return CheckResult(f"{deb.name}, {deb.stat().st_size} bytes", tuple(said))


def _is_shell(file: Path) -> bool:
    """Told by suffix or first line."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        first = opened.readline(80)
    return file.suffix == ".sh" or re.match(rb"#!.*\b(ba|da)?sh\b", first) is not None


def scripts(subject: Subject) -> CheckResult:
    """ruff, mypy and shellcheck have nothing to say about our own scripts."""
    root = subject.layout.root
    shell = [
        file.relative_to(root).as_posix()
        for directory in SCRIPT_DIRECTORIES
        for file in sorted((root / directory).rglob("*"))
        if _is_shell(file)
    ]
    python = (sys.executable, "-m")
    commands = [
        (*python, "ruff", "check", "--output-format=concise", "."),
        (*python, "ruff", "format", "--check", "--output-format=concise", "."),
        (*python, "mypy"),
        *([("shellcheck", "-f", "gcc", *shell)] if shell else []),
    ]
    problems: list[str] = []
    for command in commands:
        done = run(command, root)
        if done.returncode != 0:
            problems += (done.stdout + done.stderr).splitlines()
    return CheckResult(f"ruff, mypy, shellcheck ({len(shell)} shell scripts)", tuple(problems))
