# SPDX-License-Identifier: GPL-2.0-only
"""lab/core/git.py, with a repository of its own."""

from pathlib import Path

import pytest

from lab.core.git import GitFailed, Repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path)
    made.run("init", "-q")
    return made


def test_many_contents_are_those_of_each(repo: Repo) -> None:
    texts = [b"one\n", b"", b"no newline", b"\n\n", b"\xff blob 3\nabc\n", b"one\n"]
    blobs = [repo.store(text) for text in texts]
    assert repo.contents(blobs) == texts == [repo.content(blob) for blob in blobs]
    assert repo.contents([]) == []


def test_what_is_no_blob_is_an_error(repo: Repo) -> None:
    there, nowhere = repo.store(b"one\n"), "1" * 40
    with pytest.raises(GitFailed, match=f"git cat-file: {nowhere}: missing"):
        repo.contents([there, nowhere])
    tree = repo.text("write-tree")
    with pytest.raises(GitFailed, match=f"git cat-file: {tree}: tree 0"):
        repo.contents([tree])
