# SPDX-License-Identifier: GPL-2.0-only
"""build/linux: the packaged source and the series as a git tree to work in.

Work that exists only there is never overwritten. A file in its .git records
which commit and which input it was last in step with the repository; whatever
differs from that is unsaved.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from lab.core import complete, space
from lab.core.errors import LabError, WorkFailed
from lab.core.git import IDENTITY, Repo, signature
from lab.core.locks import locked
from lab.core.paths import DEFAULT_BASE, KINDS, LAYOUT, Layout
from lab.core.steps import run_logged, say, step
from lab.series import files, sums
from lab.series.apply import as_added, commit_mails
from lab.series.archive import SourceMissing
from lab.series.pin import read_pin
from lab.series.source import KernelSource, current_source

BRANCH = "series"
BASE_TAG = "refs/tags/base"
# Free space for the source with its git objects, and for the objects of a few kernels.
NEEDED_GIB = 4
# Free space for another copy of the source, without git objects.
WORK_TREE_GIB = 2

# Lines of .git/info/exclude: objects are built inside the work trees, see lab.build.kernel.
EXCLUDES = "/obj-*/\n"
# Prefer speed to safety: if a crash destroys the repository, it takes a minute to make it again.
SETTINGS = {"core.looseCompression": "1", "core.fsync": "none", "gc.auto": "0"}
# Most of a kernel: directories that the series does not change, and that KVM does not need.
BULK = (
    # Mails may change KVM of all architectures.
    *("arch/[!x]*/[!k]*", "drivers", "fs", "net", "rust", "samples", "sound"),
    *("Documentation/[!av]*", "tools/[!t]*", "tools/testing/selftests/[!k]*"),
)
IN_PROGRESS = ("rebase-merge", "rebase-apply", "MERGE_HEAD", "CHERRY_PICK_HEAD")


@dataclass(frozen=True)
class State:
    """The state in which build/linux and the repository last agreed.

    head: the commit. inputs: fingerprint of the repository. sha256: of the source.
    """

    head: str
    inputs: str
    sha256: str


def lock(work_tree: Path) -> Path:
    """The lock to hold while the files of a work tree are changed or compiled."""
    return work_tree.parent / f".{work_tree.name}-lock"


def _state_file(linux: Path) -> Path:
    return linux / ".git" / "lab-state"


def read_state(linux: Path) -> State:
    """The state that the lab recorded in a tree. LabError: the lab has not made this tree."""
    try:
        return State(**json.loads(_state_file(linux).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise LabError(
            f"{linux} was not made by `make tree`; move it away, and run `make tree`"
        ) from error


def write_state(linux: Path, state: State) -> None:
    with complete.file(_state_file(linux)) as stream:
        stream.write(json.dumps(asdict(state)) + "\n")


def uncommitted(repo: Repo) -> str | None:
    """Why the work tree is not clean, None when it is."""
    if any((repo.path / ".git" / name).exists() for name in IN_PROGRESS):
        return "a rebase, merge or cherry-pick in progress"
    changed = repo.lines("status", "--porcelain")
    return f"uncommitted changes ({changed[0][3:]}...)" if changed else None


def unsaved(linux: Path) -> str | None:
    """What a tree such as build/linux has that was not saved, in words; None if nothing."""
    repo = Repo(linux)
    if reason := uncommitted(repo):
        return reason
    if repo.text("rev-parse", "HEAD") != read_state(linux).head:
        return "commits that are not saved"
    return None


def _unpack(found: KernelSource, target: Path, log: Path, without: Sequence[str]) -> None:
    target.mkdir(parents=True)
    words = ("--strip-components=1", "--anchored", "--no-wildcards-match-slash")
    excluded = (f"--exclude=*/{each}" for each in without)
    command = ("tar", "-C", str(target), *words, *excluded, "-xf", str(found.tarball))
    try:
        run_logged("unpacking", command, log, target)
    except WorkFailed as error:
        raise LabError(
            f"{found.tarball} cannot be unpacked; run: apt-get install --reinstall {found.package}"
        ) from error
    if not (target / "Kbuild").is_file():
        raise LabError(f"{found.tarball} is not a kernel source; expected {found.package}")


def commit_series(layout: Layout, repo: Repo, mails: files.Series) -> str:
    """Put the repository's series on `base`, without moving a branch; returns the tip."""
    base = repo.text("rev-parse", BASE_TAG)
    named = ((files.title(layout, name, mail), mail) for name, mail in mails.mails)
    whole = as_added(repo, mails, lambda path: mails.read_whole(layout.root, path))
    return commit_mails(repo, base, named, whole)


def series_commits(layout: Layout, repo: Repo, mails: files.Series) -> list[str]:
    """The commits that commit_series() makes, one for each mail, in order."""
    tip = commit_series(layout, repo, mails)
    return repo.lines("rev-list", "--reverse", f"{BASE_TAG}..{tip}")


def lay_out(layout: Layout, found: KernelSource, place: Path, without: Sequence[str] = BULK) -> str:
    """Commit the base, without some files, and the series in PLACE. Returns the last commit."""
    shutil.rmtree(place, ignore_errors=True)
    repo = Repo(place)
    with step(f"Unpacking {found.package} {found.version}", "1 min"):
        _unpack(found, place, layout.log / "tree.log", without)
        repo.run("init", "-q", "-b", BRANCH, "--template=")
        for key, value in SETTINGS.items():
            repo.run("config", key, value)
        exclude = repo.path / ".git" / "info" / "exclude"
        exclude.parent.mkdir()
        exclude.write_text(EXCLUDES)
        repo.run("add", "-A", "-f")
        message = f"base\n\n{found.package} {found.version}\n"
        repo.run("commit", "-q", "-m", message, env=signature(*IDENTITY, 0))
        repo.run("update-ref", BASE_TAG, "HEAD")
    return commit_series(layout, repo, files.load(layout))


def _check_out(repo: Repo, head: str, discard: bool) -> None:
    """Move the branch, but write only files that differ: kbuild rebuilds by modification time."""
    if discard:
        for name in IN_PROGRESS:
            stale = repo.path / ".git" / name
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink(missing_ok=True)
        repo.run("clean", "-fdq")
    repo.run("checkout", "-q", *(["-f"] if discard else []), "-B", BRANCH, head)


def _create(layout: Layout, found: KernelSource, inputs: str) -> None:
    space.need(layout.work, NEEDED_GIB, "the kernel tree and its objects")
    with complete.directory(layout.linux) as fresh:
        head = lay_out(layout, found, fresh, without=())
        _check_out(Repo(fresh), head, discard=False)
        write_state(fresh, State(head, inputs, found.sha256))
    # The other work trees belong to the repository that was replaced.
    for stale in (*map(layout.tree_of, KINDS[1:]), layout.check):
        shutil.rmtree(stale, ignore_errors=True)


def make(layout: Layout, found: KernelSource, *, discard: bool = False) -> str:
    """Bring build/linux in step with the repository and say what was done.

    discard: give up what is unsaved in build/linux. Without it LabError, and
    nothing changes, when that would be overwritten; a tree whose input is
    unchanged stays as it is, unsaved work and all.
    LabError too: something does not apply, no space, a source that is none.
    """
    layout.work.mkdir(parents=True, exist_ok=True)
    with locked(lock(layout.linux)):
        mails = files.load(layout)
        inputs = files.fingerprint(layout, mails)
        count = f"{len(mails.mails)} mails on {found.package} {found.version}"
        if not layout.linux.exists():
            _create(layout, found, inputs)
            return f"{layout.linux}: {count}"
        state = read_state(layout.linux)
        if (state.inputs, state.sha256) == (inputs, found.sha256) and not discard:
            reason = unsaved(layout.linux)
            return f"{layout.linux}: {f'used as it is, with {reason}' if reason else 'up to date'}"
        if not discard and (reason := unsaved(layout.linux)):
            raise LabError(
                f"{layout.linux} holds {reason}, and the repository has changed: commit and"
                " `make save`, or discard it with make tree ARGS=--discard"
            )
        if state.sha256 != found.sha256:
            _create(layout, found, inputs)
        else:
            repo = Repo(layout.linux)
            head = commit_series(layout, repo, mails)
            _check_out(repo, head, discard)
            write_state(layout.linux, State(head, inputs, state.sha256))
        return f"{layout.linux}: {count}"


def has_sums(layout: Layout, sha256: str) -> bool:
    """Whether base/VERSION.sums is about trees of this source.

    It is about the newest one that the repository's pin proves. sha256: of the source.
    """
    pin = read_pin(layout)
    return layout.pins == layout.sums.parent and pin.proved[pin.newest] == sha256


def check_sums(layout: Layout, head: str = "") -> bool:
    """Compare base/VERSION.sums with what the series makes.

    head: the last commit of the series; if empty, that with which build/linux was last in step.
    False if the sums are not about trees of this source. LabError: they are not true.
    """
    state = read_state(layout.linux)
    if not has_sums(layout, state.sha256):
        return False
    repo, series = Repo(layout.linux), files.load(layout)
    sums.check(layout, sums.of_tree(layout, repo, series, BASE_TAG, head or state.head))
    return True


def work_tree(layout: Layout, path: Path, commit: str) -> Path:
    """Make PATH a further work tree of build/linux, with COMMIT checked out.

    The caller holds lock(path). What was edited there is lost; files that do
    not differ are not touched.
    """
    repo = Repo(layout.linux)
    link, ours = path / ".git", f"gitdir: {layout.linux}/.git/worktrees/"
    if not link.is_file() or not link.read_text().startswith(ours):
        shutil.rmtree(path, ignore_errors=True)
        space.need(layout.work, WORK_TREE_GIB, "another copy of the kernel tree")
        repo.run("worktree", "prune")
        repo.run("worktree", "add", "-q", "--detach", "--no-checkout", str(path), commit)
    repo = Repo(path)
    # A command that was killed may have left it, and nobody else is at work: lock(path) is held.
    (path / repo.text("rev-parse", "--git-path", "index.lock")).unlink(missing_ok=True)
    # Without this, -f writes every file with another modification time, even if its text is the
    # same.
    repo.run("update-index", "-q", "--refresh")
    repo.run("checkout", "-q", "-f", "--detach", commit)
    return path


def refuse_unsaved_bases(layout: Layout) -> None:
    """LabError: the tree of a base has unsaved work. Checks those of removed bases as well."""
    for linux in (layout.of(DEFAULT_BASE).linux, *sorted(layout.build.glob("*/linux"))):
        if not (linux / ".git").exists():
            continue
        if reason := unsaved(linux):
            raise LabError(f"{linux} contains {reason}: run `make save`, or remove it")


def available(layout: Layout) -> list[str]:
    """The other bases whose source can be had. Prints which bases are skipped."""
    found = []
    for version in layout.versions:
        try:
            if version != layout.version:
                current_source(layout.of(version))
                found.append(version)
        except SourceMissing as error:
            say(f"SKIPPED: all of Linux {version}: {error}")
    return found


@click.command()
@click.option("--discard", is_flag=True, help="Discard unsaved work in build/linux.")
@click.option(
    "--unsaved", "ask", is_flag=True, help="Only fail if any base has unsaved work; make nothing."
)
@click.option(
    "--source",
    "given",
    type=click.Path(path_type=Path),
    help="A tarball of the base's kernel. It is copied, and used from then on.",
)
@click.option(
    "--others", is_flag=True, help="Only print the other bases whose source is available."
)
def command(discard: bool, ask: bool, given: Path | None, others: bool) -> None:
    """Make or update build/linux: the packaged source, and one commit for each mail."""
    if ask:
        refuse_unsaved_bases(LAYOUT)
    elif others:
        click.echo("\n".join(available(LAYOUT)))
    else:
        say(make(LAYOUT, current_source(LAYOUT, given), discard=discard))
        if not check_sums(LAYOUT):
            say(f"{LAYOUT.sums.name} is of another source, so it was not compared with the tree")
