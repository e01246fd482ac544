# SPDX-License-Identifier: GPL-2.0-only
"""`make check`: is the series as it is saved fit to be mailed?"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryFile

import click
from rich.console import Console
from rich.table import Table

from lab.build import kernel, selftests
from lab.core import process
from lab.core.errors import WorkFailed
from lab.core.git import Repo
from lab.core.locks import locked
from lab.core.paths import BASE_VARIABLE, LAYOUT, Layout
from lab.core.steps import say, step
from lab.series import files, save, topics, tree
from lab.series.files import Series
from lab.series.source import current_source

OBJECTS = "obj-check"
KVM = "arch/x86/kvm/"
# Where kbuild puts what it compiles for the target KVM.
KVM_OBJECTS = (KVM, "virt/kvm/")
# New files lie below paths that MAINTAINERS covers by directory, which checkpatch
# does not look up; and the package has no history to look Fixes: up in.
CHECKPATCH_IGNORES = "FILE_PATH_CHANGES,UNKNOWN_COMMIT_ID"
# Of mails that are not signed off yet.
UNSIGNED = f"{CHECKPATCH_IGNORES},MISSING_SIGN_OFF"
# What of the kernel's documentation is built, below Documentation/: all that the series edits but
# kernel-parameters.txt, which is shown as it is.
BOOK = "virt/kvm"
SCRIPT_DIRECTORIES = (".ci", "dkms", "lab", "scripts", "tests", "tools")

# Where the Python is that has the modules of spdxcheck.py, which checkpatch.pl runs, and of sphinx.
DEBIAN_BIN = "/usr/bin"

_SPHINX = re.compile(r"^(?:\S*/)?(Documentation/\S+?):(?:\d+:)? ([A-Z]+: .*)$", re.MULTILINE)
_COCCI = re.compile(r"^(?:\./)?(\S+\.[ch]):[\d:-]+ (.*)$", re.MULTILINE)
_DIAGNOSTIC = re.compile(r"^(?:\.\./)*([\w./+-]+):\d+(?::\d+)?: (warning|error): (.*)$")


@dataclass(frozen=True)
class CheckResult:
    """What one check found. problems: a line each, none when it passed."""

    detail: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """What is checked: the series of the repository, as commits of build/linux.

    fragments: the configuration that the mails are compiled with.
    """

    layout: Layout
    loaded: Series
    commits: tuple[str, ...]
    fragments: tuple[Path, ...]

    @classmethod
    def load(cls, layout: Layout, fragments: Iterable[Path]) -> "Subject":
        loaded = files.load(layout)
        commits = tree.series_commits(layout, Repo(layout.linux), loaded)
        return cls(layout, loaded, tuple(commits), tuple(fragments))

    @property
    def tip(self) -> str:
        return self.commits[-1] if self.commits else tree.BASE_TAG

    @cached_property
    def repo(self) -> Repo:
        return Repo(self.layout.linux)

    @property
    def log(self) -> Path:
        return self.layout.log / "check.log"

    def at(self, commit: str) -> Path:
        """The work tree for checks, at a commit."""
        return tree.work_tree(self.layout, self.layout.check, commit)


def round_trip(subject: Subject) -> CheckResult:
    """Tree -> save changes nothing, and every whole file belongs to a mail."""
    old = save.present(subject.layout)
    new = save.made_of(subject.layout, subject.repo, subject.tip, old)
    written, removed = save.differences(old, new)
    problems = [f"{path}: save would write it differently" for path in written]
    problems += [f"{path}: save would remove it" for path in removed]
    if subject.layout.is_newest:
        orphans = files.orphans(subject.layout, subject.loaded)
        problems += [f"{path}: no mail adds or replaces it" for path in orphans]
    return CheckResult(f"{len(old)} files", tuple(problems))


def diagnostics(output: str) -> set[tuple[str, str]]:
    """The compiler's warnings and errors as (file, text); line numbers shift, so not those."""
    matches = map(_DIAGNOSTIC.match, output.splitlines())
    return {(match[1], f"{match[2]}: {match[3]}") for match in matches if match}


def _make(subject: Subject, source: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run kbuild for the checks."""
    command = kernel.make_command(OBJECTS, *words)
    return _run_logged(subject, command, source, kernel.build_environment())


def _compile_base(subject: Subject) -> set[tuple[str, str]]:
    """Compile KVM without the series from scratch; returns all of its warnings."""
    source = subject.at(tree.BASE_TAG)
    kernel.configure(source, OBJECTS, subject.fragments, subject.log)
    for directory in KVM_OBJECTS:
        for built in (source / OBJECTS / directory).rglob("*.o"):
            built.unlink()
    done = _make(subject, source, "W=1", KVM)
    if done.returncode != 0:
        raise WorkFailed(f"KVM does not compile without the series; see {subject.log}")
    return diagnostics(done.stderr)


def _link_topics(subject: Subject) -> list[str]:
    """Build the kernel at the end of each topic: nothing in it may be for a later one only."""
    if not subject.layout.is_newest or not (subject.layout.root / topics.FILE).exists():
        return []
    problems = []
    found = topics.read(subject.layout)
    slices = topics.slices(found, subject.loaded.subjects, subject.commits)
    for topic, commits in zip(found, slices, strict=True):
        if _make(subject, subject.at(commits[-1]), "vmlinux").returncode != 0:
            problems.append(f"topic {topic.name}: the kernel does not build; see {subject.log}")
    return problems


def in_topics(subject: Subject) -> CheckResult:
    """Every mail belongs to one topic, and topics are slices of the series."""
    found = topics.read(subject.layout)
    problems = topics.problems(found, files.load(subject.layout.newest).subjects)
    return CheckResult(f"{len(found)} topics", tuple(problems))


def _compile_mail(subject: Subject, commit: str, known: set[tuple[str, str]]) -> list[str]:
    """Compile what a mail changes; returns its problems and adds to KNOWN what it warns of."""
    title, source = subject.repo.text("log", "-1", "--format=%s", commit), subject.at(commit)
    done = _make(subject, source, "W=1", KVM)
    found = diagnostics(done.stderr) - known
    known |= found
    problems = [f'"{title}": {path}: {text}' for path, text in sorted(found)]
    if done.returncode != 0 and not found:
        problems.append(f'"{title}" does not compile; see {subject.log}')
    touched = subject.repo.lines("diff-tree", "-r", "--name-only", f"{commit}^", commit)
    if any(path.startswith(f"{selftests.SELFTESTS}/") for path in touched):
        try:
            selftests.compile_in(source, subject.log)
        except WorkFailed as error:
            problems.append(f'"{title}": {error}')
    return problems


def compiles(subject: Subject) -> CheckResult:
    """Every mail compiles on those before it, with no warning that base has not.

    Where a topic ends, all of the kernel builds.
    """
    known = _compile_base(subject)
    in_base = len(known)
    problems = [one for commit in subject.commits for one in _compile_mail(subject, commit, known)]
    problems += _link_topics(subject)
    detail = f"{len(subject.commits)} mails, W=1 ({in_base} warnings in base)"
    return CheckResult(detail, tuple(problems))


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
    done = _make(subject, source, "C=2", *[path.removesuffix(".c") + ".o" for path in sources])
    found = sorted(diagnostics(done.stderr))
    problems = [f"{path}: {text}" for path, text in found if path in ours]
    if done.returncode != 0 and not problems:
        problems.append(f"sparse or the compiler failed; see {subject.log}")
    return CheckResult(f"{len(sources)} files", tuple(problems))


def _coccicheck(subject: Subject, source: Path, patch: str) -> Counter[str]:
    """How often coccicheck said what, each as "file: text"; line numbers shift, so none of them."""
    # With an absolute path, as newer kernels run it in the directory that they look at.
    said: Counter[str] = Counter()
    for directory in KVM_OBJECTS:
        words = ("MODE=report", f"COCCI={source / patch}", f"M={directory}")
        done = _run_logged(subject, ("make", "-s", "coccicheck", *words), source)
        if done.returncode != 0:
            raise WorkFailed(f"coccicheck could not run {patch}; see {subject.log}")
        for file, text in _COCCI.findall(done.stdout):
            # It depends on the base whether names of files are below the directory.
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
    # Debian's spatch can run all that report but those in OCaml, which want a compiler of that, of
    # 400 MiB, for one driver and for what sparse says too.
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
    """Build the documentation of KVM; returns what sphinx says, which it says of new pages only."""
    source = subject.at(commit)
    output = source / OBJECTS / "Documentation/output"
    shutil.rmtree(output, ignore_errors=True)
    command = kernel.make_command(OBJECTS, "htmldocs", f"SPHINXDIRS={BOOK}")
    done = _run_logged(subject, command, source, debians_python())
    # Without sphinx the kernel's Makefile skips the target, and is content.
    if done.returncode != 0 or not (output / BOOK / "index.html").is_file():
        raise WorkFailed(f"the documentation of KVM could not be built; see {subject.log}")
    # Line numbers shift.
    return Counter(f"{file}: {text}" for file, text in _SPHINX.findall(done.stderr))


def docs(subject: Subject) -> CheckResult:
    """sphinx has no more to say about the documentation of KVM than without the series."""
    before = _build_docs(subject, tree.BASE_TAG)
    new = _build_docs(subject, subject.tip) - before
    detail = f"Documentation/{BOOK} ({before.total()} warnings in base)"
    return CheckResult(detail, tuple(sorted(new)))


def run(
    command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """env: the user's own without one. What ends this ends all that the command has started."""
    text = partial(TemporaryFile, "w+", errors="replace")
    with text() as out, text() as err:
        status = process.run(command, cwd, out, stderr=err, env=env)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


def _run_logged(
    subject: Subject, command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """As run(); the log has it all."""
    done = run(command, cwd, env)
    with subject.log.open("a") as log:
        print("+", *command, done.stdout, done.stderr, sep="\n", file=log)
    return done


def debians_python() -> dict[str, str]:
    """Environment in which python3 is the one that has the modules of Debian's packages."""
    return os.environ | {"PATH": f"{DEBIAN_BIN}:{os.environ['PATH']}"}


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


CHECKS: dict[str, tuple[Callable[[Subject], CheckResult], str]] = {
    "round-trip": (round_trip, "5 s"),
    "topics": (in_topics, "1 s"),
    "compile": (compiles, "10 min, 3 min the next time"),
    "checkpatch": (checkpatch, "5 s"),
    "sparse": (sparse, "10 s"),
    "coccicheck": (coccicheck, "10 min"),
    "docs": (docs, "30 s"),
    "scripts": (scripts, "10 s"),
}
# Mails are for the newest base; on the others it has to apply and to build.
ON_EACH = ("round-trip", "compile")


def run_checks(subject: Subject, names: Iterable[str]) -> dict[str, CheckResult]:
    """Run checks by their names in CHECKS, each to its end whatever it finds."""
    subject.log.parent.mkdir(parents=True, exist_ok=True)
    subject.log.unlink(missing_ok=True)
    verdicts = {}
    with locked(tree.lock(subject.layout.check)):
        for name in names:
            function, estimate = CHECKS[name]
            with step(f"Checking: {name}", estimate):
                verdicts[name] = function(subject)
    return verdicts


def show(verdicts: dict[str, CheckResult], console: Console) -> None:
    table = Table("check", "result", "of what")
    for name, verdict in verdicts.items():
        table.add_row(name, "FAILED" if verdict.problems else "passed", verdict.detail)
    console.print(table)
    for name, verdict in verdicts.items():
        for problem in verdict.problems:
            console.print(f"{name}: {problem}", markup=False, soft_wrap=True)


def bases_to_check(names: Sequence[str]) -> list[Layout]:
    """The base that was chosen; else what the checks want, the newest first.

    That is all whose source can be had, or the newest for what is checked only there.
    """
    if os.environ.get(BASE_VARIABLE) or set(names) == {"scripts"}:
        return [LAYOUT.of(LAYOUT.version)]
    if names and not set(names) & set(ON_EACH):
        return [LAYOUT.newest]
    found = {LAYOUT.version, *tree.available(LAYOUT)}
    return [LAYOUT.of(version) for version in LAYOUT.versions if version in found]


def subject_of(layout: Layout, whose: str = "what is checked is") -> Subject:
    """The series as it is saved, on a base whose tree is made if there is none.

    whose: says what is made of it, where the tree holds something else.
    """
    if not layout.linux.exists():
        tree.make(layout, current_source(layout))
    if reason := tree.unsaved(layout.linux):
        say(f"{layout.linux} holds {reason}: {whose} the series as it is saved")
    return Subject.load(layout, kernel.fragments_of("kvm", layout))


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(CHECKS)), help="Just this one.")
def command(only: tuple[str, ...]) -> None:
    """Check that the saved series is fit to be mailed, and builds on every base."""
    layouts = bases_to_check(only)
    verdicts = {}
    for layout in layouts:
        everything = layout.is_newest or len(layouts) == 1
        chosen = [name for name in only or CHECKS if everything or name in ON_EACH]
        found = run_checks(subject_of(layout), chosen)
        there = f" ({layout.version})" if len(layouts) > 1 else ""
        verdicts.update({name + there: verdict for name, verdict in found.items()})
    show(verdicts, Console(highlight=False))
    failed = [name for name, verdict in verdicts.items() if verdict.problems]
    if failed:
        raise WorkFailed(f"failed: {', '.join(failed)}")
