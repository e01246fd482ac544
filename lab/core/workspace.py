# SPDX-License-Identifier: GPL-2.0-only
"""Temporary directories that do not outlive the run that they were made for.

They are removed when their `with` ends. If SIGKILL ended the run, the next run removes them.
"""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lab.core.locks import locked
from lab.core.paths import BUILD

TEMPORARY = BUILD / "tmp"
PREFIX = "machine-"
LOCK = ".lock"


def _remove_abandoned() -> None:
    """Remove the directories of runs that were killed. Those of living runs hold their locks."""
    for left in TEMPORARY.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (left / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def fresh() -> Iterator[Path]:
    """Give a directory of its own below build/tmp, for as long as the `with` lasts."""
    with contextlib.ExitStack() as stack:
        # A new directory has no lock for a moment: another run must not take it for abandoned.
        with locked(TEMPORARY / LOCK, aloud=False):
            _remove_abandoned()
            directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=TEMPORARY))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            stack.enter_context(locked(directory / LOCK))
        yield directory
