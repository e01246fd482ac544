# SPDX-License-Identifier: GPL-2.0-only
"""A thin layer over git, which behaves the same whatever the user's configuration is."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from lab.core.errors import WorkFailed
from lab.core.space import complain_if_full

# Ignore the user's configuration, hooks and templates, so that the same input makes the same
# commits and the same text everywhere.
ISOLATED = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
EPOCH = 1_750_000_000


class Identity(NamedTuple):
    """Who makes or signs a commit."""

    name: str
    email: str

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"


# Of the lab itself.
IDENTITY = Identity("Kernel lab", "lab@localhost")


class GitFailed(WorkFailed):
    """git ended with an error; `output` is all that it said on stderr."""

    def __init__(self, command: str, output: str) -> None:
        self.output = output.strip()
        why = self.output.splitlines()[0] if self.output else "failed"
        super().__init__(f"git {command}: {why}")


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return inherited | ISOLATED | dict(extra)


def signature(name: str, email: str, number: int) -> dict[str, str]:
    """The environment for the NUMBERth commit. Dates are fixed, so that commit ids repeat."""
    date = f"@{EPOCH + 60 * number} +0000"
    author = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": date}
    ours = {"GIT_COMMITTER_NAME": IDENTITY.name, "GIT_COMMITTER_EMAIL": IDENTITY.email}
    return author | ours | {"GIT_COMMITTER_DATE": date}


def _configured(key: str, directory: Path) -> str:
    """A value of the user's configuration of git, empty if it is not set."""
    command = ("git", "config", key)
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def configured_identity(directory: Path) -> Identity | None:
    """The user's name and address, from git's configuration; None if one of them is not set."""
    found = Identity(_configured("user.name", directory), _configured("user.email", directory))
    return found if all(found) else None


@dataclass(frozen=True)
class Entry:
    """A file as a commit holds it. mode: git's, as in "100644"."""

    mode: str
    blob: str


@dataclass(frozen=True)
class Repo:
    """A git work tree. env: added to the environment of every call."""

    path: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        """Run git and return its stdout; raises GitFailed, LabError when the disk is full."""
        done = subprocess.run(
            ("git", "-c", "core.hooksPath=/dev/null", *words),
            cwd=self.path,
            env=_environment({**self.env, **(env or {})}),
            input=stdin,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            complain_if_full(self.path)
            raise GitFailed(words[0], done.stderr.decode(errors="replace"))
        return done.stdout

    def text(self, *words: str) -> str:
        """Run git and return its stdout as text, without the last newline."""
        return self.run(*words).decode(errors="surrogateescape").removesuffix("\n")

    def lines(self, *words: str) -> list[str]:
        return self.text(*words).splitlines()

    def tree_of(self, commit: str) -> str:
        return self.text("rev-parse", f"{commit}^{{tree}}")

    def entry(self, commit: str, path: str) -> Entry | None:
        """The file PATH of a commit or tree, None when it has none there."""
        listed = self.text("ls-tree", commit, "--", path)
        if not listed:
            return None
        mode, _, rest = listed.split(" ", 2)
        return Entry(mode, rest.split("\t")[0])

    def content(self, blob: str) -> bytes:
        return self.run("cat-file", "blob", blob)

    def contents(self, blobs: Sequence[str]) -> list[bytes]:
        """The content of each blob; one git reads all of them."""
        names = "".join(f"{blob}\n" for blob in blobs).encode()
        output = BytesIO(self.run("cat-file", "--batch", stdin=names))
        found = []
        for blob in blobs:
            name, *rest = output.readline().decode().split()
            if name != blob or rest[0] != "blob":
                raise GitFailed("cat-file", f"{blob}: {' '.join(rest)}")
            found.append(output.read(int(rest[1])))
            output.read(len("\n"))
        return found

    def store(self, content: bytes) -> str:
        return self.run("hash-object", "-w", "--stdin", stdin=content).decode().strip()

    @contextmanager
    def index_of(self, commit: str) -> Iterator["Repo"]:
        """Give this repository with a temporary index that has the files of COMMIT.

        The work tree and its own index do not change.
        """
        with tempfile.TemporaryDirectory(prefix="lab-index-") as directory:
            index = Repo(self.path, {**self.env, "GIT_INDEX_FILE": f"{directory}/index"})
            index.run("read-tree", commit)
            yield index

    def put(self, path: str, entry: Entry) -> None:
        """Set a file in the index."""
        self.run("update-index", "--add", "--cacheinfo", f"{entry.mode},{entry.blob},{path}")

    def drop(self, path: str) -> None:
        """Take a file out of the index."""
        self.run("update-index", "--force-remove", "--", path)
