# SPDX-License-Identifier: GPL-2.0-only
"""What tests ask about processes that are not their own children, and how they start some."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil

from lab.core import process

# Ignored in whatever nohup or a shell without job control has started, this test run included.
# What is ignored when a program starts stays so: no shell can trap it, Python leaves it alone.
OFTEN_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def default_signals() -> None:
    """Let signals do what they do to a program that a terminal starts; for preexec_fn."""
    for number in OFTEN_IGNORED:
        signal.signal(number, signal.SIG_DFL)


def ignored_signals() -> None:
    """Ignore what is ignored where no terminal starts a program; for preexec_fn."""
    for number in OFTEN_IGNORED:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def started(
    command: Sequence[object], preexec_fn: Callable[[], None] = default_signals, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own; nothing of it is left when the `with` ends."""
    with subprocess.Popen(
        [str(word) for word in command], preexec_fn=preexec_fn, start_new_session=True, **options
    ) as running:
        try:
            yield running
        finally:
            process.end(process.family(running.pid), grace_s=0)


def until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Wait for CONDITION; returns whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def is_gone(pid: int) -> bool:
    """Whether a process has ended, waited for by its parent or not."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
