# SPDX-License-Identifier: GPL-2.0-only
"""The section on what running vCPUs feel: timelines and stalls, of `make bench WHAT=live`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.machines.paging import Mode
from lab.page import dimensions, pictures
from lab.page.compared import mode_name
from lab.page.model import Block, Grid, Missing, Part, Picture
from lab.page.pictures import Chart, Datum, Panel, Point, Points, Style, Timeline
from lab.results import goals, notation
from lab.results.sources import Line, Source
from lab.results.table import Table

KINDS = ("writer", "reader")
# By how many percent stalls may be longer with N than with Y if N is to be no worse.
LIMIT_PERCENT = 10
STALL_PHASES = ("enable", "enabled", "get", "clear", "logging")
# What readers call the phases; an iteration follows.
PHASES = {
    "baseline": "before logging",
    "enable": "while it is enabled",
    "enabled": "logging, before CLEAR",
    "get": "GET",
    "clear": "CLEAR",
    "logging": "logging, after CLEAR",
    "disable": "while it is disabled",
    "disabled": "after logging",
}
# Of how many accesses the table behind a picture of stalls names the longest one.
SHARES = (100, 1_000, 10_000, 100_000)


@dataclass(frozen=True)
class LiveRun:
    """The lines of one run in a live file."""

    timeline: Line
    kinds: list[Line]

    @property
    def style(self) -> Style:
        return pictures.style_of(self.timeline.record)

    @property
    def drawn(self) -> Timeline:
        """Its timeline, with what the host did meanwhile."""
        host = [line.record for line in self.phases("writer")]
        return Timeline(self.style, self.timeline.record, host)

    def phases(self, kind: str) -> list[Line]:
        return [line for line in self.kinds if line.record["kind"] == kind]


def runs(source: Source, ept: bool) -> list[LiveRun]:
    """The runs of the unpatched kernel, with N and Y, and of the ungated baseline, as measured."""
    found = []
    for timeline in source.of("timeline"):
        if timeline.record["ept"] == ept:
            kinds = [o for o in source.of("kind") if _same_run(o) == _same_run(timeline)]
            found.append(LiveRun(timeline, kinds))
    steps = (pictures.LAZY, pictures.FIRST_WRITE, pictures.EAGER)
    order = (*steps, pictures.BITS, pictures.UNGATED, pictures.UNPATCHED)
    return sorted(found, key=lambda run: order.index(run.style))


def _same_run(line: Line) -> tuple[Any, ...]:
    names = ("machine", "kernel", "ept", "tdp_mmu", "eager", "dirty_bits")
    return tuple(line.record.get(name) for name in names)


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
        points.append(Point(end / 1e3 / run.timeline.record["tsc_khz"], left / total))
        left -= count
    return points


def dimensions_of(runs: Sequence[LiveRun]) -> str:
    records = [run.timeline.record for run in runs]
    writers, readers = records[0]["vcpus"] - records[0]["readers"], records[0]["readers"]
    mix = f"{records[0]['write_percent']}% writes"
    return dimensions.of(records, f"{writers} writers ({mix}) and {readers} reader")


TITLES = {"writer": "writers", "reader": "reader of unmapped pages"}
STALL = "milliseconds that an access takes, simulated"


def _name(runs: Sequence[LiveRun]) -> str:
    """The paging mode of RUNS."""
    record = runs[0].timeline.record
    return mode_name(record["machine"], Mode(record["ept"], record["tdp_mmu"]))


# How a sentence says which run it is about.
WITH = {
    pictures.LAZY: "in the unpatched kernel",
    pictures.FIRST_WRITE: "with N",
    pictures.EAGER: "with Y",
    pictures.BITS: "with Dirty bits",
    pictures.UNGATED: "in the ungated baseline",
    pictures.UNPATCHED: "in the unpatched kernel with Y",
}


def joined(parts: Sequence[str]) -> str:
    """PARTS of a sentence: "a, b and c"."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


@dataclass(frozen=True)
class Dip:
    """How throughput falls while logging is on.

    lowest: as a share of the rate before. below_ms: how long it is below half of that.
    """

    lowest: float
    below_ms: float


def _dip(run: LiveRun) -> Dip | None:
    """The dip of the writers of a run. None if nothing is known of the time before logging."""
    begins = {line.record["phase"]: line.record["begin_us"] / 1e3 for line in run.phases("writer")}
    if "enable" not in begins:
        return None
    timeline = run.drawn
    begin = int(begins["enable"] / timeline.window_ms)
    end = int(begins.get("disable", timeline.end_ms) / timeline.window_ms)
    rates = timeline.rates("writer")
    before, during = rates[:begin], rates[begin:end]
    if not sum(before) or not during:
        return None
    usual = sum(before) / len(before)
    below = sum(rate < usual / 2 for rate in during) * timeline.window_ms
    return Dip(min(during) / usual, below)


def dips_said(found: Sequence[LiveRun]) -> str:
    """How far the writers of each run fall while logging is on."""
    said = []
    for run in found:
        if dip := _dip(run):
            below = f" (below half of it for {dip.below_ms:,.0f} ms)" if dip.below_ms else ""
            said.append(f"to {100 * dip.lowest:.2g}% of their rate{below} {WITH[run.style]}")
    if not said:
        return f"Accesses of vCPUs over time, with {_name(found)}."
    return f"With {_name(found)}, vCPUs that write without end fall at worst {joined(said)}."


def _stalls_said(found: Sequence[LiveRun]) -> str:
    """The longest stall of each kind of vCPU in each run."""
    said = []
    for kind, one in (("writer", "writer"), ("reader", "reader of unmapped pages")):
        of = (
            f"{notation.milliseconds(_longest_s(run, kind))} ms {WITH[run.style]}" for run in found
        )
        said.append(f"the longest stall of a {one} is {joined([*of])}")
    return f"While logging is on, {'; '.join(said)}."


def throughput(title: str, runs: Sequence[LiveRun], kind: str, mode: str = "") -> Chart:
    """Throughput over time, with its averages in each phase as the table behind it."""
    chart = pictures.throughput(title, [run.drawn for run in runs], kind, mode=mode)
    data = [
        Datum(run.style.label, _phase(line), f"{_per_ms(line)} per ms", (line,))
        for run in runs
        for line in run.phases(kind)
        if line.record["phase"] in PHASES
    ]
    return replace(chart, data=data, columns=("", "when", "accesses, average"))


def _phase(line: Line) -> str:
    name, iteration = line.record["phase"], line.record["iteration"]
    return f"{PHASES.get(name, name)} {iteration or ''}".strip()


def _per_ms(line: Line) -> str:
    return pictures.number(line.record["accesses_per_second"] / 1e3)


def _timeline_picture(runs: Sequence[LiveRun], mode: str) -> Picture:
    charts = [
        throughput(f"{run.style.label}; {title}", [run], kind, _name(runs))
        for kind, title in TITLES.items()
        for run in runs
    ]
    return Picture(
        f"timeline-{mode}",
        f"Throughput while logging comes and goes, {_name(runs)}",
        charts,
        dimensions_of(runs),
        dips_said(runs),
        runs[0].timeline.file,
    )


def _stall_picture(runs: Sequence[LiveRun], mode: str) -> Picture:
    name = f"stalls-{mode}"
    charts = []
    for kind, title in TITLES.items():
        # Draw the ungated baseline first: its curve is wider, and others would lie below it.
        below = sorted(runs, key=lambda run: run.style is not pictures.UNGATED)
        drawn = {run.style: _exceeding(run, kind) for run in below}
        curves = {style: points for style, points in drawn.items() if points}
        if curves:
            chart = pictures.stalls(Panel(title, STALL, curves, mode=_name(runs)))
            data = [datum for run in runs for datum in _quantiles(run, kind)]
            charts.append(replace(chart, data=data, columns=("", "of accesses", "takes")))
    return Picture(
        name,
        f"How long accesses stall while logging is on, {_name(runs)}",
        charts,
        dimensions_of(runs),
        _stalls_said(runs),
        runs[0].timeline.file,
    )


def _quantiles(run: LiveRun, kind: str) -> Iterator[Datum]:
    """What one access in SHARES takes or exceeds, and the longest stall."""
    lines = tuple(line for line in run.phases(kind) if line.record["phase"] in STALL_PHASES)
    points = _exceeding(run, kind)
    if points:
        for share in (share for share in SHARES if share * points[-1].y <= 1):
            exceeded = [point.x for point in points if share * point.y >= 1]
            shown = f"{pictures.number(exceeded[-1] * 1e3)} ms or more"
            yield Datum(run.style.label, f"one in {share:,}", shown, lines)
        yield Datum(run.style.label, "the longest", f"{_longest_s(run, kind) * 1e3:.3f} ms", lines)


def _by_phase(runs: Sequence[LiveRun], kind: str) -> dict[str, list[Line]]:
    """The lines of a kind of vCPUs, one for each run, by phase and iteration."""
    found: dict[str, list[Line]] = {}
    for line in (line for run in runs for line in run.phases(kind)):
        if line.record["phase"] != "populate":
            found.setdefault(_phase(line), []).append(line)
    return found


def _longest_table(runs: Sequence[LiveRun]) -> Grid:
    """The longest stall in each phase of the host's actions, by kind of vCPU."""
    columns = tuple(run.style.label for run in runs)
    rows: list[tuple[str, ...]] = []
    origins: list[tuple[Line, ...]] = []
    for kind in KINDS:
        for phase, lines in _by_phase(runs, kind).items():
            longest = (f"{line.record['longest_us'] / 1e3:.3f}" for line in lines)
            rows.append((f"{kind}, {phase}", *longest))
            origins.append(tuple(lines))
    title = f"Longest stall of any access, ms, {_name(runs)}"
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
    found = runs(source, True) or runs(source, False)
    return {run.style: max(_longest_s(run, kind) for kind in KINDS) for run in found}


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
    modes = [runs(source, ept) for ept in (True, False)]
    return [_longest_table(found).table for found in modes if found]


def _live_blocks(source: Source) -> list[Block]:
    blocks: list[Block] = []
    for mode, ept in (("eptY", True), ("eptN", False)):
        if found := runs(source, ept):
            blocks += [_timeline_picture(found, mode), _stall_picture(found, mode)]
            blocks.append(_longest_table(found))
    return blocks


NONE = Missing("timelines and stalls", "make bench WHAT=live")
INTRO = (
    "Throughput: left of the first band, where logging is enabled, is full speed. Stalls: at a"
    " height of 0.001 is what one access in a thousand took or exceeded, so further left and down"
    " is better; the end of a curve is the longest stall, to within an eighth."
)
PART = Part("live", "What running vCPUs feel", ("live",), _live_blocks, NONE, INTRO)
