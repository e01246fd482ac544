# SPDX-License-Identifier: GPL-2.0-only
"""What `make check` checks and `make mail` sends, and how both run the tools of the kernel."""

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryFile

from lab.build import kernel
from lab.core import process
from lab.core.git import Repo
from lab.core.paths import Layout
from lab.core.steps import say
from lab.series import files, tree
from lab.series.files import Series
from lab.series.source import current_source

OBJECTS = "obj-check"
KVM = "arch/x86/kvm/"
# Where kbuild puts what it compiles for the target KVM.
KVM_OBJECTS = (KVM, "virt/kvm/")
# The Python of Debian has the modules of spdxcheck.py, which checkpatch.pl runs, and of sphinx.
DEBIAN_BIN = "/usr/bin"


@dataclass(frozen=True)
class CheckResult:
    """What one check found. problems: a line each, none when it passed."""

    detail: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """The series of the repository, as commits of build/linux.

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


def subject_of(layout: Layout, whose: str = "what is checked is") -> Subject:
    """The series as it is saved in the repository. Makes the tree of its base if there is none.

    whose: for the message that the tree holds unsaved changes: what is done with the saved series.
    """
    if not layout.linux.exists():
        tree.make(layout, current_source(layout))
    if reason := tree.unsaved(layout.linux):
        say(f"{layout.linux} holds {reason}: {whose} the series as it is saved")
    return Subject.load(layout, kernel.fragments_of("kvm", layout))


def run(
    command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run COMMAND in CWD and return its output. env: if None, the environment of this process.

    A signal that ends this process also ends everything that the command has started.
    """
    text = partial(TemporaryFile, "w+", errors="replace")
    with text() as out, text() as err:
        status = process.run(command, cwd, out, stderr=err, env=env)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


def run_logged(
    subject: Subject, command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same as run(), with the command and its output appended to the log of SUBJECT."""
    done = run(command, cwd, env)
    with subject.log.open("a") as log:
        print("+", *command, done.stdout, done.stderr, sep="\n", file=log)
    return done


def debians_python() -> dict[str, str]:
    """An environment in which python3 is Debian's, which has the modules of Debian's packages."""
    return os.environ | {"PATH": f"{DEBIAN_BIN}:{os.environ['PATH']}"}


def make(subject: Subject, source: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run kbuild for the checks."""
    command = kernel.make_command(OBJECTS, *words)
    return run_logged(subject, command, source, kernel.build_environment())
