# SPDX-License-Identifier: GPL-2.0-only
"""Files and directories that are either complete or not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def file(path: Path) -> Iterator[IO[str]]:
    """Give a file to write. It gets its name if the `with` ends normally, or else is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("x") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()


@contextmanager
def directory(path: Path) -> Iterator[Path]:
    """Give a new directory to fill, which replaces PATH when the `with` ends.

    An exception leaves PATH as it was.
    """
    fresh, old = (path.with_name(f"{path.name}.{what}") for what in ("new", "old"))
    for rest in (fresh, old):
        shutil.rmtree(rest, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        if path.exists():
            path.rename(old)
        fresh.rename(path)
    finally:
        for rest in (fresh, old):
            shutil.rmtree(rest, ignore_errors=True)
