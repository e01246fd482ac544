# SPDX-License-Identifier: GPL-2.0-only
"""Let several threads work, each with a machine of its own."""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from threading import Event, Lock
from typing import Any, TypeVar

import psutil

from lab.core import process, signals

PARALLEL = 2
GRACE_S = 0.5
TICK_S = 0.5

Item = TypeVar("Item")


def at_once() -> int:
    """How many machines run at a time: as many as there are CPUs, and PARALLEL at most."""
    return min(PARALLEL, psutil.cpu_count() or 1)


def end_machines(futures: Iterable[Future[Any]], grace_s: float) -> None:
    """End all machines, and so the threads of FUTURES that wait for them.

    A thread cannot be ended from outside, but its machine can. Try again until all threads are
    done, because a thread may just be starting a machine.
    grace_s: how many seconds a machine has to restore settings before it is killed.
    """
    futures = list(futures)
    for future in futures:
        future.cancel()
    while not all(future.done() for future in futures):
        process.end(psutil.Process().children(recursive=True), grace_s)
        wait(futures, timeout=TICK_S)


def for_each(
    items: Iterable[Item],
    work: Callable[[Item], None],
    tick: Callable[[], None] = lambda: None,
    threads: int | None = None,
    grace_s: float = GRACE_S,
) -> None:
    """Call WORK for each item, in several threads: THREADS of them, by default at_once().

    The next item is requested when a thread is free, by one thread at a time. After the first
    failure, or Ctrl-C, no further work begins, and end_machines() ends what is running. Meanwhile
    tick() is called every TICK_S seconds, or more often.
    """
    left, turn, stopped = iter(items), Lock(), Event()
    threads = threads or at_once()

    def take() -> None:
        while not stopped.is_set():
            with turn:
                item = list(islice(left, 1))
            if not item:
                return
            work(*item)

    with signals.ends_by_exception(), ThreadPoolExecutor(threads) as pool:
        futures: list[Future[None]] = []
        try:
            # If a signal raised an exception between two calls, no one would end the first thread.
            with signals.signals_wait():
                futures += [pool.submit(take) for _ in range(threads)]
            running = set(futures)
            while running:
                # One that is done would end each wait at once.
                done, running = wait(running, timeout=TICK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                tick()
        except BaseException:
            stopped.set()
            end_machines(futures, grace_s)
            raise
