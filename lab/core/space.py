# SPDX-License-Identifier: GPL-2.0-only
"""Free space on the disk: checked before work begins, and when something has failed."""

import shutil
from pathlib import Path

from lab.core.errors import LabError

GIB = 2**30
# With less free space than this, take a failure for that of a full disk.
FULL_BELOW = 16 * 2**20


def need(directory: Path, gib: float, what: str) -> None:
    """LabError unless DIRECTORY, which exists, has GIB GiB of free space for WHAT."""
    free = shutil.disk_usage(directory).free / GIB
    if free < gib:
        raise LabError(f"{what} needs about {gib:g} GiB in {directory}, {free:.1f} GiB are free")


def complain_if_full(directory: Path) -> None:
    """LabError if the disk of DIRECTORY, which exists, is full, so that a writer failed."""
    if shutil.disk_usage(directory).free < FULL_BELOW:
        raise LabError(f"no space left in {directory}; make room and run it again")
