# SPDX-License-Identifier: GPL-2.0-only
"""What tests ask about processes that are not their own children."""

import time
from collections.abc import Callable

import psutil


def until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Wait for CONDITION; returns whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def is_gone(pid: int) -> bool:
    """Whether a process has ended, waited for by its parent or not."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
