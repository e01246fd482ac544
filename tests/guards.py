# SPDX-License-Identifier: GPL-2.0-only
"""What keeps a test run within bounds: of memory, of time, and in what it leaves running."""

import faulthandler
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from lab.core import process

GIB = 1 << 30
# Of a worker, and of each program that a unit test starts.
MOST_MEMORY = 2 * GIB
# Where no exception ends a test that is out of time, since something catches it, or since what
# cleans up waits in its turn, the worker ends this much later, seconds.
LAST_RESORT_S = 60
# How long the programs that are left have to end, seconds.
GRACE_S = 2.0


def limit_memory() -> None:
    """Let an allocation beyond the bound fail, so that the test fails that needs it."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MOST_MEMORY if hard == resource.RLIM_INFINITY else min(MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


@contextmanager
def more_memory() -> Iterator[None]:
    """Without the bound: emulators and compilers inherit it, and may need more."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def end_without_exception(item: pytest.Item, seconds: float) -> None:
    """End this process a while after a test's time is over, saying where each thread is."""
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(seconds + LAST_RESORT_S, file=stderr, exit=True)


class Ending:
    """SIGTERM and SIGHUP end a test run as Ctrl-C does, its workers and what they started.

    A signal that was ignored when the run was started stays so.
    """

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._ending = False
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        # Again would be in the way of what ends.
        if self._ending:
            return
        self._ending = True
        self._session.shouldstop = f"told to end by {signal.Signals(number).name}"
        # Workers; in a worker, what its test waits for.
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                child.terminate()
        faulthandler.dump_traceback_later(LAST_RESORT_S, exit=True)
        raise KeyboardInterrupt


def end_what_is_left() -> None:
    """No program that a test started outlives the run."""
    process.end(psutil.Process().children(recursive=True), GRACE_S)
