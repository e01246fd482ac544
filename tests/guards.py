# SPDX-License-Identifier: GPL-2.0-only
"""Limits of a test run: of its memory and time, and on processes that it leaves running."""

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
# The memory of a worker, and of each program that a unit test starts.
MOST_MEMORY = 2 * GIB
# If a test is out of time, but the exception does not end it (it may be caught, or cleaning up may
# hang), the whole worker ends this much later, seconds.
LAST_RESORT_S = 60
# How long remaining programs have to end after SIGTERM, seconds.
GRACE_S = 2.0


def limit_memory() -> None:
    """Make allocations beyond the limit fail, so that only the test fails that needs them."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MOST_MEMORY if hard == resource.RLIM_INFINITY else min(MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


@contextmanager
def more_memory() -> Iterator[None]:
    """Lift the limit for a while: emulators and compilers would inherit it, and may need more."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def end_without_exception(item: pytest.Item, seconds: float) -> None:
    """Set a timer that ends this process LAST_RESORT_S after SECONDS, and prints all stacks."""
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(seconds + LAST_RESORT_S, file=stderr, exit=True)


class Ending:
    """Lets SIGTERM and SIGHUP end a test run as Ctrl-C does, with its workers and all they started.

    A signal that was ignored when the run was started stays ignored.
    """

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._ending = False
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        # A second signal must not interrupt the end.
        if self._ending:
            return
        self._ending = True
        self._session.shouldstop = f"told to end by {signal.Signals(number).name}"
        # These are the workers; or, in a worker, the programs that its test waits for.
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                child.terminate()
        faulthandler.dump_traceback_later(LAST_RESORT_S, exit=True)
        raise KeyboardInterrupt


def end_what_is_left() -> None:
    """End all programs that tests have started and that are still running."""
    process.end(psutil.Process().children(recursive=True), GRACE_S)
