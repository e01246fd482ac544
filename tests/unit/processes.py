# SPDX-License-Identifier: GPL-2.0-only
"""Helpers to start programs, and to check processes that are no children of the test."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil

from lab.core import process

# Signals that are ignored in programs started by nohup, or by a shell without job control; possibly
# also in this test run. A signal that is ignored when a program starts stays ignored: shells cannot
# trap it, and Python does not change it.
OFTEN_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def default_signals() -> None:
    """Reset signals as for a program that a terminal starts. For preexec_fn."""
    for number in OFTEN_IGNORED:
        signal.signal(number, signal.SIG_DFL)


def ignored_signals() -> None:
    """Ignore the signals that are ignored if no terminal starts a program. For preexec_fn."""
    for number in OFTEN_IGNORED:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def started(
    command: Sequence[object], preexec_fn: Callable[[], None] = default_signals, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a session of its own, which ends completely when the `with` ends."""
    with subprocess.Popen(
        [str(word) for word in command], preexec_fn=preexec_fn, start_new_session=True, **options
    ) as running:
        try:
            yield running
        finally:
            process.end(process.family(running.pid), grace_s=0)


def until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Wait until CONDITION is true. Returns whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def is_gone(pid: int) -> bool:
    """Whether a process has ended, even if its parent has not waited for it."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
