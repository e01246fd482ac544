# SPDX-License-Identifier: GPL-2.0-only
"""lab.core.parallel: each item once, and the first failure ends the rest."""

import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from lab.core import parallel
from lab.core.errors import WorkFailed
from tests.rows import for_each_row
from tests.unit.calls import failed


def test_each_item_once() -> None:
    seen: list[int] = []
    parallel.for_each(range(20), seen.append)
    assert sorted(seen) == list(range(20))
    # An error of the work is not the end of the items.
    with pytest.raises(IndexError):
        parallel.for_each(range(2), Mock(side_effect=IndexError))


def test_a_failure_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: 1)
    seen: list[int] = []

    def work(item: int) -> None:
        if item == 2:
            raise WorkFailed("two")
        seen.append(item)

    assert "two" in failed(parallel.for_each, range(20), work)
    assert seen == [0, 1]


@pytest.mark.usefixtures("terminal_signals")
@for_each_row("number, error", (signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit))
def test_a_signal_while_threads_start_ends_them(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, error: type[BaseException]
) -> None:
    ended = threading.Event()
    monkeypatch.setattr("lab.core.process.end", lambda processes, grace_s: ended.set())
    seen: list[bool] = []

    class Signalled(ThreadPoolExecutor):
        """The signal comes when a thread runs, and before anything else knows of it."""

        def submit(self, *arguments: Any, **words: Any) -> Future[Any]:
            future = super().submit(*arguments, **words)
            signal.raise_signal(number)
            return future

    monkeypatch.setattr(parallel, "ThreadPoolExecutor", Signalled)
    with pytest.raises(error):
        parallel.for_each(range(2), lambda item: seen.append(ended.wait(5)), threads=2)
    assert seen and all(seen)
