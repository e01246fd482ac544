# SPDX-License-Identifier: GPL-2.0-only
"""How far several boots are, and how long the rest will take."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from lab.core.steps import console, duration, now_and_then
from lab.measure.plan import Boot

PROGRESS_LINE = re.compile(r"(\d+)% (.*)")


@dataclass
class BootProgress:
    """How far one boot is. percent, text: as split-bench.sh says; started: monotonic."""

    boot: Boot
    percent: int = 0
    text: str = "waiting"
    started: float | None = None
    ended: float | None = None

    def done_s(self, now: float) -> float:
        """Estimated seconds of work that are done."""
        if self.ended is not None:
            return self.boot.estimate_s
        if self.started is None:
            return 0.0
        boot_s = self.boot.boot_s
        if self.percent == 0:
            return min(now - self.started, boot_s)
        return boot_s + self.boot.runs_s * self.percent / 100

    def spent_s(self, now: float) -> float:
        if self.started is None:
            return 0.0
        return (now if self.ended is None else self.ended) - self.started


@dataclass
class Watch:
    """The progress of all boots; the machines' threads write, the main thread reads."""

    boots: list[BootProgress]
    parallel: int
    clock: Callable[[], float] = time.monotonic
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, index: int) -> None:
        with self.lock:
            self.boots[index].started = self.clock()
            self.boots[index].text = "booting"

    def end(self, index: int) -> None:
        with self.lock:
            self.boots[index].ended = self.clock()
            self.boots[index].percent = 100
            self.boots[index].text = "done"

    def line(self, index: int, line: str) -> None:
        """Take a line that split-bench.sh wrote to LAB_PROGRESS.

        What a boot measures after its matrix begins with 0% again, which is no way back.
        """
        if match := PROGRESS_LINE.fullmatch(line.strip()):
            with self.lock:
                one = self.boots[index]
                one.percent = max(one.percent, int(match[1]))
                one.text = match[2]

    def left_s(self) -> float:
        """Seconds until all is done: the estimate, at the speed seen so far."""
        with self.lock:
            now = self.clock()
            done = [one.done_s(now) for one in self.boots]
            spent = sum(one.spent_s(now) for one in self.boots)
        speed = spent / sum(done) if sum(done) > 0 else 1.0
        left = [c.boot.estimate_s - part for c, part in zip(self.boots, done, strict=True)]
        return speed * max(sum(left) / self.parallel, max(left))


def _plain(watch: Watch) -> Iterator[Callable[[], None]]:
    def text() -> str:
        running = [c for c in watch.boots if c.started is not None and c.ended is None]
        what = "; ".join(f"{c.boot.label}: {c.text}" for c in running)
        return f"bench: about {duration(watch.left_s())} left; {what}"

    yield now_and_then(text, clock=watch.clock)


def _drawn(watch: Watch) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        tasks = [progress.add_task(c.boot.label, total=100, text=c.text) for c in watch.boots]
        left: TaskID = progress.add_task("time left", total=None, text="")

        def tick() -> None:
            for task, one in zip(tasks, watch.boots, strict=True):
                progress.update(task, completed=one.percent, text=one.text)
            progress.update(left, text=f"about {duration(watch.left_s())}")

        yield tick


@contextmanager
def shown(watch: Watch) -> Iterator[Callable[[], None]]:
    """Show the progress; the function given back is to be called again and again."""
    yield from (_drawn if console.is_terminal else _plain)(watch)
