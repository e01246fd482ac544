# SPDX-License-Identifier: GPL-2.0-only
"""Work that several threads do, each with a machine of its own."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

import psutil

from lab.machines import process

PARALLEL = 2
GRACE_S = 0.5
TICK_S = 0.5

Item = TypeVar("Item")


def _stop(futures: Iterable[Future[None]]) -> None:
    """End every machine, again and again, because one may just be starting."""
    futures = list(futures)
    while not all(future.done() for future in futures):
        process.end(psutil.Process().children(recursive=True), GRACE_S)
        wait(futures, timeout=TICK_S)


def in_parallel(
    work: Callable[[], None], stop: Callable[[], None], tick: Callable[[], None]
) -> None:
    """Let several threads do the work, as many as there are CPUs and PARALLEL at most.

    The first failure, or Ctrl-C, stops them all: stop() has to make work() return once its machine
    has ended. tick() is called now and then meanwhile.
    """
    parallel = min(PARALLEL, psutil.cpu_count() or 1)
    with process.ends_by_exception(), ThreadPoolExecutor(parallel) as pool:
        futures = [pool.submit(work) for _ in range(parallel)]
        try:
            while not all(future.done() for future in futures):
                done, _ = wait(futures, timeout=TICK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                tick()
        except BaseException:
            stop()
            _stop(futures)
            raise
        for future in futures:
            future.result()


def for_each(
    items: Iterable[Item], work: Callable[[Item], None], tick: Callable[[], None] = lambda: None
) -> None:
    """Do the work for each item, several at a time; see in_parallel()."""
    left = deque(items)

    def take() -> None:
        while True:
            try:
                item = left.popleft()
            except IndexError:
                return
            work(item)

    in_parallel(take, left.clear, tick)
