# SPDX-License-Identifier: GPL-2.0-only
"""How far several boots are, and how long the rest will take."""

import re
import time
from collections.abc import Callable, Sequence

from lab.core.steps import duration
from lab.measure.plan import Boot

PROGRESS_LINE = re.compile(r"(\d+)% (.*)")


class Watch:
    """How many of the estimated seconds of each boot are done. The threads of machines update it.

    first_s: the estimate for all boots, as long as nothing is done.
    """

    def __init__(
        self, boots: Sequence[Boot], first_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._boots, self._first_s, self._clock = boots, first_s, clock
        self.total_s = sum(boot.estimate_s for boot in boots)
        self._begun = clock()
        self._done = [0.0] * len(boots)
        # The last words of the boots that are running.
        self._said: dict[int, str] = {}

    def start(self, index: int) -> None:
        self._said[index] = "booting"

    def end(self, index: int) -> None:
        self._done[index] = self._boots[index].estimate_s
        del self._said[index]

    def line(self, index: int, line: str) -> None:
        """Take a line that split-bench.sh wrote to LAB_PROGRESS.

        If a boot measures more than its matrix, the script begins with 0% again: ignore that.
        """
        if match := PROGRESS_LINE.fullmatch(line.strip()):
            boot = self._boots[index]
            done = boot.boot_s + boot.runs_s * int(match[1]) / 100
            self._done[index] = max(self._done[index], done)
            self._said[index] = match[2]

    def left_s(self) -> float:
        """The seconds that are left, if the estimate stays as wrong as it has been so far."""
        done = sum(self._done)
        return (self._clock() - self._begun) * (self.total_s / done - 1) if done else self._first_s

    def now(self) -> tuple[float, str]:
        """See lab.core.steps.bar()."""
        running = dict(self._said)
        what = "; ".join(f"{self._boots[index].label}: {said}" for index, said in running.items())
        return sum(self._done), f"about {duration(self.left_s())} left; {what}"
