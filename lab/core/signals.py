# SPDX-License-Identifier: GPL-2.0-only
"""Signals that end a run: turned into exceptions, or made to wait."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | signal.Handlers
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Give signals these handlers for as long as the `with` lasts.

    Only the main thread can; elsewhere the signals keep their meaning.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ends_by_exception() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, unless they have a handler already."""
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    with handled(dict.fromkeys(numbers, lambda number, _: sys.exit(128 + number))):
        yield


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the `with` ends; there they may raise an exception.

    A handler notes them. Blocking or ignoring them would not do: a child would inherit that.
    """
    came: list[int] = []
    numbers = [n for n in ENDING_SIGNALS if callable(signal.getsignal(n))]
    try:
        with handled(dict.fromkeys(numbers, lambda number, _: came.append(number))):
            yield
    finally:
        for late in came:
            signal.raise_signal(late)
