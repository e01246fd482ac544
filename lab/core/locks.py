# SPDX-License-Identifier: GPL-2.0-only
"""Locks between commands that run at the same time.

The package filelock would not save code, and it polls. flock() waits in the kernel.
"""

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, aloud: bool = True) -> Iterator[None]:
    """Hold the lock file PATH for as long as the `with` lasts. Creates the file if it is missing.

    aloud: print a line if another process holds the lock, so that this one has to wait. The kernel
    releases the lock when the process ends, however it ends. Not recursive: a second call in one
    process waits for ever.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if aloud:
                print(f"lab: waiting for another command that holds {path}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
