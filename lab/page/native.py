# SPDX-License-Identifier: GPL-2.0-only
"""Page tables in real caches: the lines of `lab native`, as a table, verdicts and a picture."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product, starmap
from typing import Any, NamedTuple

from lab.page import pictures
from lab.page.model import Block, Grid, Missing, Part, Picture
from lab.page.pictures import Panel, Point, Style
from lab.results.notation import NOTHING, ratio
from lab.results.sources import Source
from lab.results.table import Table

TITLE, MEMORY = "Page tables in real caches", "GiB of guest memory"
# Goals are for guests with at least this much memory, whose page tables fit into no cache.
GOALS_FROM_GIB = 16


class Goal(NamedTuple):
    """A bound for the time of code ONE, in units of the time of code OTHER.

    worst: max if it is an upper bound, min if it is a lower one.
    """

    one: str
    other: str
    bound: float
    worst: Callable[..., float]

    def verdict(self, ratios: Sequence[float]) -> str:
        """What RATIOS, one or more, are at worst, and whether the goal is met."""
        worst = self.worst(ratios)
        met = "met" if self.worst(worst, self.bound) == self.bound else "MISSED"
        limit = "most" if self.worst is max else "least"
        said = f"{self.one} takes {worst:.2f} times as long as {self.other}"
        return f"{said}; goal: at {limit} {self.bound:g}, {met}"


GOALS = (Goal("series", "limit", 1.6, max), Goal("unpatched", "series", 4.0, min))
BESIDE = ("lowest_ns", "highest_ns", "misses_per_2mib", "instructions_per_2mib")
CODES = ("limit", "stores", "series", "plain", "unpatched")
STYLES = {
    "limit": replace(pictures.UNGATED, label="limit: memset, or reading", colour="ink"),
    "unpatched": replace(pictures.LAZY, label="unpatched: page by page"),
    "series": replace(pictures.EAGER, label="series"),
}
WHAT_IS_WHAT = (
    "limit: memset of page table and rmap heads (split), or reading both; stores: 8 bytes each",
    "plain: the series without unrolled loops; from, to, misses, instructions: of the series",
)
Record = Mapping[str, Any]
Codes = Mapping[str, Record]


class Case(NamedTuple):
    """What was done, such as "split, cold", for a guest with how much memory."""

    what: str
    gib: int


Cases = Mapping[Case, Codes]


def _case(one: Record) -> Case:
    mix = "" if one["write_percent"] == 100 else f", {one['write_percent']}% dirty"
    return Case(f"{one['phase']}{mix}, {'cold' if one['cold'] else 'warm'}", one["gib"])


def _cases(found: Iterable[Record]) -> Cases:
    made: dict[Case, dict[str, Record]] = {}
    for one in found:
        made.setdefault(_case(one), {})[one["code"]] = one
    return made


def _ratio(codes: Codes, one: str, other: str) -> float | None:
    known = {one, other} <= codes.keys()
    return codes[one]["ns_per_2mib"] / codes[other]["ns_per_2mib"] if known else None


def verdicts(found: Cases) -> Iterator[str]:
    """A line for each phase and goal of which a case with GOALS_FROM_GIB or more was measured."""
    large = {case: codes for case, codes in found.items() if case.gib >= GOALS_FROM_GIB}
    phases = dict.fromkeys(case.what.split(",")[0] for case in large)
    for phase, goal in product(phases, GOALS):
        mine = [codes for case, codes in large.items() if case.what.startswith(phase)]
        measured = (_ratio(codes, goal.one, goal.other) for codes in mine)
        if ratios := [ratio for ratio in measured if ratio is not None]:
            yield f"{phase}: {goal.verdict(ratios)}"


def _row(case: Case, codes: Codes) -> tuple[str, ...]:
    series = codes["series"]
    times = [codes[code]["ns_per_2mib"] if code in codes else None for code in CODES]
    shown = [*times, *map(series.get, BESIDE)]
    figures = (NOTHING if value is None else f"{value:,.0f}" for value in shown)
    goals = (ratio(_ratio(codes, goal.one, goal.other), 1) for goal in GOALS)
    return (case.what, str(case.gib), *figures, *goals)


def table(found: Sequence[Record]) -> Table:
    """A row for each thing done with each amount of memory."""
    goals = (f"{goal.one}/{goal.other}" for goal in GOALS)
    columns = ("what", "GiB", *CODES, "from", "to", "misses", "instructions", *goals)
    cases = _cases(found)
    machine = f"ns per 2 MiB on {found[0]['cpu']}, processor time, medians of the passes"
    notes = [machine, *WHAT_IS_WHAT, f"from {GOALS_FROM_GIB} GiB on:", *verdicts(cases)]
    return Table(TITLE, columns, [*starmap(_row, cases.items())], notes, labels=2)


CLOSER = "The closer a line lies to that of the limit, the less is left to be gained"
READS_TITLE = "Reads of memory that is mapped by 2 MiB and by 4 KiB pages"
WHAT_READS_ARE = (
    "dependent: each read needs the result of the one before; user space without a guest, whose TLB"
    " misses take longer, as two page tables are walked"
)


def _reads(found: Iterable[Record]) -> dict[tuple[str, int], dict[str, Record]]:
    """By kind of reads and GiB: the records by size of pages."""
    made: dict[tuple[str, int], dict[str, Record]] = {}
    for one in found:
        made.setdefault((one["reads"], one["gib"]), {})[one["page"]] = one
    return made


def reads_table(found: Sequence[Record]) -> Table:
    """A row for each kind of reads and amount of memory."""
    shown = Table(READS_TITLE, ("reads", "GiB", "2 MiB", "4 KiB", "4 KiB / 2 MiB"), labels=2)
    for (kind, gib), pages in _reads(found).items():
        times = [pages[page]["ns_per_read"] if page in pages else None for page in ("2M", "4K")]
        cells = (NOTHING if ns is None else f"{ns:.1f}" for ns in times)
        shown.add(kind, str(gib), *cells, ratio(times[1], times[0]))
    shown.notes += [f"ns per read on {found[0]['cpu']}, medians of the passes", WHAT_READS_ARE]
    return shown


def _reads_block(source: Source) -> list[Block]:
    lines = [line for line in source.lines if "reads" in line.record]
    if not lines:
        return []
    groups = _reads(line.record for line in lines)
    origins = [
        tuple(line for line in lines if (line.record["reads"], line.record["gib"]) == group)
        for group in groups
    ]
    return [Grid(reads_table([line.record for line in lines]), origins)]


def _blocks(source: Source) -> list[Block]:
    lines = [line for line in source.lines if "code" in line.record]
    found = [line.record for line in lines]
    shown = table(found)
    origins = [tuple(o for o in lines if _case(o.record) == case) for case in _cases(found)]
    said = f"native ({found[0]['cpu']}, processor time), kernel {found[0]['kernel_version']}"
    reading = ". ".join([CLOSER, *verdicts(_cases(found))]) + "."
    # Curves over memory, with warm caches and then with cold ones.
    curves: dict[str, dict[Style, list[Point]]] = {}
    for line in sorted(lines, key=lambda line: (line.record["cold"], line.record["gib"])):
        one = line.record
        if style := STYLES.get(one["code"]):
            mine = curves.setdefault(_case(one).what, {})
            mine.setdefault(style, []).append(Point(one["gib"], one["ns_per_2mib"], (line,)))
    panels = [Panel(what, MEMORY, each) for what, each in curves.items()]
    within = pictures.limits(panels)
    charts = [pictures.curve(panel, "ns per 2 MiB", "ns", within=within) for panel in panels]
    picture = Picture("native", TITLE, charts, said, reading, source.name)
    return [picture, Grid(shown, origins), *_reads_block(source)]


MISSING = Missing("how the series' loops fare in real caches", "make bench WHAT=native")
PART = Part("native", TITLE, ("native",), _blocks, MISSING)
