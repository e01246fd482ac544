# SPDX-License-Identifier: GPL-2.0-only
"""How far several boots are, and how long the rest will take; bars, clocks and locks are rich's."""

import re
import time
from collections.abc import Callable, Sequence

from rich.progress import BarColumn, Progress, Task, TextColumn

from lab.core.steps import console, duration, now_and_then
from lab.measure.plan import Boot

PROGRESS_LINE = re.compile(r"(\d+)% (.*)")


class Watch:
    """Bars on a terminal, a line now and then elsewhere. bars: to be entered while boots run.

    A boot's task counts the seconds that were estimated for it. Machines' threads write.
    """

    def __init__(
        self, boots: Sequence[Boot], parallel: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        plain = not console.is_terminal
        self.bars = Progress(
            *columns, console=console, get_time=clock, transient=True, disable=plain
        )
        self.boots, self.parallel = boots, parallel
        add = self.bars.add_task
        self._ids = [add(b.label, start=False, total=b.estimate_s, text="waiting") for b in boots]
        self._left = add("time left", total=None, text="")
        self._say = now_and_then(self._text, clock=clock)

    @property
    def tasks(self) -> list[Task]:
        return self.bars.tasks[: len(self.boots)]

    def start(self, index: int) -> None:
        self.bars.start_task(self._ids[index])
        self.bars.update(self._ids[index], text="booting")

    def end(self, index: int) -> None:
        self.bars.update(self._ids[index], completed=self.boots[index].estimate_s, text="done")
        self.bars.stop_task(self._ids[index])

    def line(self, index: int, line: str) -> None:
        """Take a line that split-bench.sh wrote to LAB_PROGRESS.

        What a boot measures after its matrix begins with 0% again, which is no way back.
        """
        if match := PROGRESS_LINE.fullmatch(line.strip()):
            boot, seen = self.boots[index], self.tasks[index].completed
            done = boot.boot_s + boot.runs_s * int(match[1]) / 100
            self.bars.update(self._ids[index], completed=max(seen, done), text=match[2])

    def left_s(self) -> float:
        """Seconds until all is done: the estimate, at the speed seen so far."""
        spent = [task.elapsed or 0.0 for task in self.tasks]
        done = [
            max(task.completed, min(seconds, boot.boot_s))
            for task, seconds, boot in zip(self.tasks, spent, self.boots, strict=True)
        ]
        speed = sum(spent) / sum(done) if sum(done) > 0 else 1.0
        left = [boot.estimate_s - part for boot, part in zip(self.boots, done, strict=True)]
        return speed * max(sum(left) / self.parallel, max(left))

    def _text(self) -> str:
        running = (task for task in self.tasks if task.started and not task.finished)
        what = "; ".join(f"{task.description}: {task.fields['text']}" for task in running)
        return f"bench: about {duration(self.left_s())} left; {what}"

    def tick(self) -> None:
        """To be called again and again."""
        if self.bars.disable:
            self._say()
        else:
            self.bars.update(self._left, text=f"about {duration(self.left_s())}")
