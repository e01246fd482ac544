# SPDX-License-Identifier: GPL-2.0-only
"""The section on what running vCPUs feel: timelines and stalls, of `make bench WHAT=live`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lab.page import dimensions, pictures
from lab.page.model import Block, Grid, Missing, Part, Picture
from lab.page.pictures import Panel, Points, Style, Timeline
from lab.results import goals, notation
from lab.results.sources import Line, Source
from lab.results.table import Table

KINDS = ("writer", "reader")
# By how many percent stalls may be longer with N than with Y if N is to be no worse.
LIMIT_PERCENT = 10
STALL_PHASES = ("enable", "enabled", "get", "clear", "logging")


@dataclass(frozen=True)
class LiveRun:
    """The lines of one run in a live file."""

    timeline: Line
    kinds: list[Line]

    @property
    def style(self) -> Style:
        return pictures.style_of(self.timeline.record)

    def phases(self, kind: str) -> list[Line]:
        return [line for line in self.kinds if line.record["kind"] == kind]


def _runs(source: Source, ept: bool) -> list[LiveRun]:
    """The runs of the unpatched kernel, with N and Y, and of the ungated baseline, as measured."""
    found = []
    for timeline in source.of("timeline"):
        if timeline.record["ept"] == ept:
            kinds = [o for o in source.of("kind") if _same_run(o) == _same_run(timeline)]
            found.append(LiveRun(timeline, kinds))
    steps = (pictures.LAZY, pictures.FIRST_WRITE, pictures.EAGER)
    order = (*steps, pictures.BITS, pictures.UNGATED)
    return sorted(found, key=lambda run: order.index(run.style))


def _same_run(line: Line) -> tuple[Any, ...]:
    return tuple(line.record[name] for name in ("machine", "kernel", "ept", "tdp_mmu", "eager"))


def _exceeding(run: LiveRun, kind: str) -> Points:
    """For each latency in seconds, the share of accesses that took as long or longer.

    Only accesses while logging is on count. Latencies are the upper ends of the histogram's
    buckets, so they are at most an eighth too long.
    """
    ticks: dict[int, int] = {}
    for line in run.phases(kind):
        if line.record["phase"] in STALL_PHASES:
            for end, count in line.record["histogram"]:
                ticks[end] = ticks.get(end, 0) + count
    left = total = sum(ticks.values())
    points = []
    for end, count in sorted(ticks.items()):
        points.append((end / 1e3 / run.timeline.record["tsc_khz"], left / total))
        left -= count
    return points


def _dimensions(runs: Sequence[LiveRun]) -> str:
    records = [run.timeline.record for run in runs]
    writers, readers = records[0]["vcpus"] - records[0]["readers"], records[0]["readers"]
    mix = f"{records[0]['write_percent']}% writes"
    return dimensions.of(records, f"{writers} writers ({mix}) and {readers} reader")


def _timeline_picture(runs: Sequence[LiveRun], mode: str) -> Picture:
    name = f"timeline-{mode}"
    drawn = []
    for run in runs:
        host = [line.record for line in run.phases("writer")]
        drawn.append(Timeline(run.style, run.timeline.record, host))
    return Picture(
        name,
        f"Throughput while logging comes and goes, {mode.replace('ept', 'ept=')}",
        pictures.timelines(name, drawn),
        _dimensions(runs),
        "Left of the first line, where logging is enabled, is full speed; the deeper a curve falls"
        " after a CLEAR and the longer it stays down, the worse is the cliff that a guest falls off"
        " when its migration starts.",
        runs[0].timeline.file,
    )


def _stall_picture(runs: Sequence[LiveRun], mode: str) -> Picture:
    name = f"stalls-{mode}"
    panels = []
    for kind, title in (("writer", "writers"), ("reader", "reader of unmapped pages")):
        # Draw the ungated baseline first: its curve is wider, and others would lie below it.
        below = sorted(runs, key=lambda run: run.style is not pictures.UNGATED)
        drawn = {run.style: _exceeding(run, kind) for run in below}
        label = "time that an access takes, simulated"
        panels.append(Panel(title, label, {s: p for s, p in drawn.items() if p}))
    return Picture(
        name,
        f"How long accesses stall while logging is on, {mode.replace('ept', 'ept=')}",
        pictures.stalls(name, panels),
        _dimensions(runs),
        "At a height of 0.001 is what one access in a thousand took or exceeded, so further left"
        " and down is better; the marker at a curve's end is the longest stall (to within an"
        " eighth).",
        runs[0].timeline.file,
    )


def _by_phase(runs: Sequence[LiveRun], kind: str) -> dict[str, list[Line]]:
    """The lines of a kind of vCPUs, one for each run, by phase and iteration."""
    found: dict[str, list[Line]] = {}
    for line in (line for run in runs for line in run.phases(kind)):
        phase, iteration = line.record["phase"], line.record["iteration"]
        if phase != "populate":
            found.setdefault(f"{phase} {iteration or ''}".strip(), []).append(line)
    return found


def _longest_table(runs: Sequence[LiveRun], mode: str) -> Grid:
    """The longest stall in each phase of the host's actions, by kind of vCPU."""
    columns = tuple(run.style.label for run in runs)
    rows: list[tuple[str, ...]] = []
    origins: list[tuple[Line, ...]] = []
    for kind in KINDS:
        for phase, lines in _by_phase(runs, kind).items():
            longest = (f"{line.record['longest_us'] / 1e3:.3f}" for line in lines)
            rows.append((f"{kind}, {phase}", *longest))
            origins.append(tuple(lines))
    title = f"Longest stall of any access, ms, {mode.replace('ept', 'ept=')}"
    notes = ["an access counts in the phase in which it began", *_verdicts(runs), notation.LOCKSTEP]
    return Grid(Table(title, ("", *columns), rows, notes), origins)


def _longest_s(run: LiveRun, kind: str) -> float:
    """The longest stall while logging is on, seconds."""
    lines = (line.record for line in run.phases(kind) if line.record["phase"] in STALL_PHASES)
    return max((one["longest_us"] or 0) / 1e6 for one in lines)


def longest_stalls(source: Source) -> dict[Style, float]:
    """The longest stall of any vCPU while logging is on, seconds, by style of the run, with EPT.

    Without a run with EPT: with shadow paging.
    """
    runs = _runs(source, True) or _runs(source, False)
    return {run.style: max(_longest_s(run, kind) for kind in KINDS) for run in runs}


def _verdicts(runs: Sequence[LiveRun]) -> Iterator[str]:
    """How the longest stall with N compares with Y's, for each kind of vCPUs."""
    by_style = {run.style: run for run in runs}
    sides = [by_style.get(style) for style in (pictures.FIRST_WRITE, pictures.EAGER)]
    for kind in KINDS:
        lazy, eager = (_longest_s(run, kind) if run else None for run in sides)
        if lazy is not None and eager is not None:
            bound = f"N at most {LIMIT_PERCENT}% longer than Y"
            verdict = goals.Verdict(bound, lazy <= eager * (1 + LIMIT_PERCENT / 100))
            shown = (notation.milliseconds(lazy), notation.milliseconds(eager))
            change = notation.percent(lazy, eager)
            times = f"N {shown[0]} ms, Y {shown[1]} ms, {change}"
            yield f"{kind}, longest stall while logging is on: {times}; {verdict}"


def terminal_tables(source: Source) -> list[Table]:
    """The longest stalls in each paging mode, with verdicts on N beside Y."""
    modes = {"eptY": _runs(source, True), "eptN": _runs(source, False)}
    return [_longest_table(runs, mode).table for mode, runs in modes.items() if runs]


def _live_blocks(source: Source) -> list[Block]:
    blocks: list[Block] = []
    for mode, ept in (("eptY", True), ("eptN", False)):
        if runs := _runs(source, ept):
            blocks += [_timeline_picture(runs, mode), _stall_picture(runs, mode)]
            blocks.append(_longest_table(runs, mode))
    return blocks


NONE = Missing("timelines and stalls", "make bench WHAT=live")
PART = Part("live", "What running vCPUs feel", ("live",), _live_blocks, NONE)
