# SPDX-License-Identifier: GPL-2.0-only
"""Room on the disk: asked for beforehand, and looked at when something failed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.core.errors import LabError

GIB = 2**30
# Less than this is as good as nothing: some writer has just failed.
FULL_BELOW = 16 * 2**20


def need(directory: Path, gib: float, what: str) -> None:
    """LabError unless DIRECTORY, which exists, has that much room for WHAT."""
    free = shutil.disk_usage(directory).free / GIB
    if free < gib:
        raise LabError(f"{what} needs about {gib:g} GiB in {directory}, {free:.1f} GiB are free")


@contextmanager
def filling(directory: Path) -> Iterator[Path]:
    """A directory to fill that takes the place of DIRECTORY when it is complete."""
    fresh, old = (directory.with_name(f"{directory.name}.{what}") for what in ("new", "old"))
    for rest in (fresh, old):
        shutil.rmtree(rest, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        if directory.exists():
            directory.rename(old)
        fresh.rename(directory)
    finally:
        for rest in (fresh, old):
            shutil.rmtree(rest, ignore_errors=True)


def complain_if_full(directory: Path) -> None:
    """LabError if a failure in DIRECTORY, which exists, came from a full disk."""
    if shutil.disk_usage(directory).free < FULL_BELOW:
        raise LabError(f"no space left in {directory}; make room and run it again")
