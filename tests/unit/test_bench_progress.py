# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.progress: how long the rest will take."""

import io

import pytest
from rich.console import Console

from lab.core import steps
from lab.core.steps import duration
from lab.machines.paging import Mode
from lab.measure import progress
from lab.measure.plan import BOOT_S, Boot, Matrix
from lab.measure.progress import Watch
from tests.rows import for_each_row

BOOT = Boot("vmx-bochs", "series", Mode(True), Matrix())
LINE = "4 vCPUs, 20% writes, initially-all-set, eager_page_split=N"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(boots: int, parallel: int) -> tuple[Watch, Clock]:
    clock = Clock()
    return Watch([BOOT] * boots, parallel, clock), clock


def started() -> tuple[Watch, Clock]:
    watched, clock = watch(1, 1)
    watched.start(0)
    return watched, clock


def test_at_first_the_estimate_counts() -> None:
    assert watch(2, 2)[0].left_s() == pytest.approx(BOOT.estimate_s)
    assert watch(4, 2)[0].left_s() == pytest.approx(2 * BOOT.estimate_s)
    assert watch(1, 2)[0].left_s() == pytest.approx(BOOT.estimate_s)


@pytest.mark.parametrize("slowness", [1, 3])
def test_what_is_left_takes_as_long_as_what_is_done(slowness: int) -> None:
    watched, clock = started()
    clock.now = slowness * (BOOT_S["vmx-bochs"] + BOOT.runs_s / 2)
    watched.line(0, f"50% 6/12 {LINE}\n")
    assert watched.left_s() == pytest.approx(slowness * BOOT.runs_s / 2)


def test_a_boot_that_hangs_does_not_look_done() -> None:
    watched, clock = started()
    clock.now = 100 * BOOT.estimate_s
    assert watched.left_s() > 0.9 * BOOT.runs_s


def test_nothing_is_left_at_the_end() -> None:
    watched, clock = watch(2, 2)
    for index in range(2):
        watched.start(index)
        clock.now += 10
        watched.end(index)
    assert watched.left_s() == 0
    assert {task.percentage for task in watched.tasks} == {100}


def state(watched: Watch) -> tuple[float, str]:
    (task,) = watched.tasks
    return task.completed, task.fields["text"]


def test_lines_of_others_are_ignored() -> None:
    watched, _ = watch(1, 1)
    watched.line(0, "hello")
    assert state(watched) == (0, "waiting")
    watched.line(0, f"37% 5/12 {LINE}")
    assert state(watched) == (BOOT.boot_s + 0.37 * BOOT.runs_s, f"5/12 {LINE}")
    # What is measured after the matrix is no way back.
    watched, _ = started()
    for line in ("100% 12/12 done", f"0% 1/2 {LINE}"):
        watched.line(0, line)
    assert state(watched) == (BOOT.estimate_s, f"1/2 {LINE}")


@for_each_row("seconds, wanted", (0.0, "5 s"), (41.0, "40 s"), (89.0, "90 s"), (200.0, "3 min"))
def test_duration(seconds: float, wanted: str) -> None:
    assert duration(seconds) == wanted


def shown_on(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120)
    monkeypatch.setattr(progress, "console", console)
    monkeypatch.setattr(steps, "say", lambda line: console.print(line, highlight=False))
    watched, clock = watch(2, 2)
    with watched.bars:
        watched.start(0)
        watched.line(0, f"37% 5/12 {LINE}")
        for _ in range(45):
            clock.now += 1
            watched.tick()
    return stream.getvalue()


def test_plain_lines_come_now_and_then_or_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown_on(monkeypatch, terminal=False).splitlines()
    assert len(lines) == 2
    assert all("left; series, ept=Y: 5/12 4 vCPUs, 20% writes" in line for line in lines)
    said = shown_on(monkeypatch, terminal=True)
    assert "5/12 4 vCPUs" in said
    assert "time left" in said
