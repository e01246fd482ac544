# SPDX-License-Identifier: GPL-2.0-only
"""Write the commits of build/linux back to series/, the whole files and base/VERSION.sums."""

from collections.abc import Mapping
from pathlib import Path

import click

from lab.core.errors import LabError
from lab.core.git import Repo
from lab.core.locks import locked
from lab.core.paths import LAYOUT, Layout
from lab.core.steps import say
from lab.series import backport, files, sums, tree
from lab.series.extract import Extractor, line_of
from lab.series.files import WholeFile
from lab.series.mail import file_name, format_mail

Files = Mapping[str, WholeFile]


def present(layout: Layout) -> dict[str, WholeFile]:
    """The files of the repository that `make save` may write for a base.

    For the newest base those are series/ and the whole files, for another one its backport/VERSION.
    """
    loaded = files.load(layout)
    paths = [name for name, _ in loaded.mails]
    if layout.is_newest:
        paths += loaded.whole
    else:
        paths = [name for name in paths if (layout.root / name).is_relative_to(layout.backport)]
    return {path: files.read_whole(layout.root, path) for path in paths}


def made_of(layout: Layout, repo: Repo, head: str, old: Files) -> dict[str, WholeFile]:
    """The same files, made of the commits of base..HEAD. LabError: a commit cannot be kept."""
    if not layout.is_newest:
        return backport.made_of(layout, repo, head)
    extractor = Extractor(repo, tree.BASE_TAG, old.__contains__)
    made: dict[str, WholeFile] = {}
    for number, commit in enumerate(line_of(repo, tree.BASE_TAG, head), 1):
        extract = extractor.extract(commit)
        text = format_mail(extract.mail).encode("utf-8", "surrogateescape")
        made[f"series/{file_name(extract.mail, number)}"] = WholeFile("100644", text)
        # If a later mail changes a whole file, the last one wins.
        made.update(extract.files)
    return made


def _write_all(root: Path, made: Files) -> None:
    """Write all files, then rename all of them, so that a full disk leaves the old ones."""
    staged = {path: root / f"{path}.lab-new" for path in made}
    try:
        for path, file in made.items():
            staged[path].parent.mkdir(parents=True, exist_ok=True)
            staged[path].write_bytes(file.content)
            staged[path].chmod(int(file.mode, 8) & 0o777)
        for path, new in staged.items():
            new.rename(root / path)
    finally:
        for new in staged.values():
            new.unlink(missing_ok=True)


def _remove(root: Path, path: str) -> None:
    """Remove a file below ROOT, and directories that are empty then."""
    (root / path).unlink()
    for directory in (root / path).parents:
        if directory == root or any(directory.iterdir()):
            return
        directory.rmdir()


def differences(old: Files, new: Files) -> tuple[list[str], list[str]]:
    """Paths to write and paths to remove on the way from OLD to NEW."""
    written = [path for path, file in new.items() if old.get(path) != file]
    return written, [path for path in old if path not in new]


def save(layout: Layout, *, overwrite: bool = False) -> list[str]:
    """Bring the repository in step with build/linux; returns what changed, a line each.

    overwrite: even where the repository has changed since the tree was made.
    LabError, and nothing changes: uncommitted or unfinished work, a commit that
    the repository cannot keep, or a repository that has changed.
    """
    if not layout.linux.exists():
        raise LabError(f"there is no {layout.linux} yet: run `make tree`")
    with locked(tree.lock(layout.linux)):
        repo = Repo(layout.linux)
        state = tree.read_state(layout.linux)
        if reason := tree.uncommitted(repo):
            raise LabError(f"{layout.linux} has {reason}: commit first")
        if not overwrite and files.fingerprint(layout, files.load(layout)) != state.inputs:
            raise LabError(
                "series/ or a whole file has changed since build/linux was made of it; keep that"
                " with make tree ARGS=--discard, or replace it with make save ARGS=--overwrite"
            )
        old = present(layout)
        head = repo.text("rev-parse", "HEAD")
        new = made_of(layout, repo, head, old)
        written, removed = differences(old, new)
        _write_all(layout.root, {path: new[path] for path in written})
        for path in removed:
            _remove(layout.root, path)
        series = files.load(layout)
        inputs = files.fingerprint(layout, series)
        tree.write_state(layout.linux, tree.State(head, inputs, state.sha256))
        if tree.has_sums(layout, state.sha256):
            made = sums.of_tree(layout, repo, series, tree.BASE_TAG, head)
            written += sums.write(layout, made)
        return [f"wrote {path}" for path in written] + [f"removed {path}" for path in removed]


@click.command()
@click.option(
    "--overwrite",
    is_flag=True,
    help="Overwrite files that have changed in the repository meanwhile.",
)
def command(overwrite: bool) -> None:
    """Write the commits of build/linux back to series/, the whole files and base/VERSION.sums.

    For an older base, only files in backport/VERSION and base/VERSION.sums are written.
    """
    for line in save(LAYOUT, overwrite=overwrite) or ["nothing to save"]:
        say(line)
