# SPDX-License-Identifier: GPL-2.0-only
"""Page tables in real caches: the lines of `lab native`, as a table, verdicts and a picture."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product, starmap
from operator import itemgetter
from typing import Any

from lab.page import pictures
from lab.page.model import Block, Grid, Missing, Part, Picture
from lab.page.pictures import Panel, Style
from lab.results.sources import Source
from lab.results.tables import NOTHING, Table, ratio

TITLE, MEMORY = "Page tables in real caches", "GiB of guest memory"
# From this much guest memory on no cache holds its tables, and these are to hold.
GOALS_FROM_GIB = 16
# How long the one takes in units of the other, what that is to be, and which is the worst.
GOALS: tuple[tuple[str, str, float, Callable[..., float]], ...] = (
    ("series", "limit", 1.6, max),
    ("unpatched", "series", 4.0, min),
)
BESIDE = ("lowest_ns", "highest_ns", "misses_per_2mib", "instructions_per_2mib")
CODES = ("limit", "stores", "series", "plain", "unpatched")
STYLES = {
    "limit": replace(pictures.UNGATED, label="memset, or reading"),
    "unpatched": replace(pictures.LAZY, label="unpatched, page by page"),
    "series": replace(pictures.EAGER, label="series"),
}
WHAT_IS_WHAT = (
    "limit: memset of page table and rmap heads (split), or reading both; stores: 8 bytes each",
    "plain: the series without unrolled loops; from, to, misses, instructions: of the series",
)
Record = Mapping[str, Any]
Codes = Mapping[str, Record]
# By what is done and how much memory there is.
Cases = Mapping[tuple[str, int], Codes]


def _case(one: Record) -> tuple[str, int]:
    mix = "" if one["write_percent"] == 100 else f", {one['write_percent']}% dirty"
    return f"{one['phase']}{mix}, {'cold' if one['cold'] else 'warm'}", one["gib"]


def _cases(found: Iterable[Record]) -> Cases:
    made: dict[tuple[str, int], dict[str, Record]] = {}
    for one in found:
        made.setdefault(_case(one), {})[one["code"]] = one
    return made


def _ratio(codes: Codes, one: str, other: str) -> float | None:
    known = {one, other} <= codes.keys()
    return codes[one]["ns_per_2mib"] / codes[other]["ns_per_2mib"] if known else None


def verdicts(found: Cases) -> Iterator[str]:
    """Each goal with the worst case from GOALS_FROM_GIB on, where there is any."""
    large = [(where, codes) for (where, gib), codes in found.items() if gib >= GOALS_FROM_GIB]
    phases = dict.fromkeys(where.split(",")[0] for where, _ in large)
    for phase, (one, other, bound, worst) in product(phases, GOALS):
        mine = (_ratio(codes, one, other) for where, codes in large if where.startswith(phase))
        if ratios := [one_of for one_of in mine if one_of is not None]:
            said = f"{phase}: {one} takes {worst(ratios):.2f} times as long as {other}"
            met = "met" if worst(*ratios, bound) == bound else "MISSED"
            yield f"{said}; goal: at {'most' if worst is max else 'least'} {bound:g}, {met}"


def _row(case: tuple[str, int], codes: Codes) -> tuple[str, ...]:
    series = codes["series"]
    times = [codes[code]["ns_per_2mib"] if code in codes else None for code in CODES]
    shown = [*times, *map(series.get, BESIDE)]
    figures = (NOTHING if value is None else f"{value:,.0f}" for value in shown)
    return (case[0], str(case[1]), *figures, *(ratio(_ratio(codes, *g[:2]), 1) for g in GOALS))


def table(found: Sequence[Record]) -> Table:
    """A row for each thing done with each amount of memory."""
    goals = (f"{one}/{other}" for one, other, *_ in GOALS)
    columns = ("what", "GiB", *CODES, "from", "to", "misses", "instructions", *goals)
    cases = _cases(found)
    machine = f"ns per 2 MiB on {found[0]['cpu']}, processor time, medians of the passes"
    notes = [machine, *WHAT_IS_WHAT, f"from {GOALS_FROM_GIB} GiB on:", *verdicts(cases)]
    return Table(TITLE, columns, [*starmap(_row, cases.items())], notes)


def _blocks(source: Source) -> list[Block]:
    found = [line.record for line in source.lines]
    shown = table(found)
    origins = [tuple(o for o in source.lines if _case(o.record) == case) for case in _cases(found)]
    said = f"native ({found[0]['cpu']}, processor time), kernel {found[0]['kernel_version']}"
    reading = "The closer a line lies to that of the limit, the less is left to be gained."
    # Over memory: warm above cold.
    panels: dict[bool, dict[str, dict[Style, list[tuple[float, float]]]]] = {}
    for one in sorted(found, key=itemgetter("gib")):
        if style := STYLES.get(one["code"]):
            curves = panels.setdefault(one["cold"], {}).setdefault(_case(one)[0], {})
            curves.setdefault(style, []).append((one["gib"], one["ns_per_2mib"]))
    rows = [[Panel(where, MEMORY, c) for where, c in row.items()] for row in panels.values()]
    svg = pictures.curves("native", rows, "ns per 2 MiB")
    return [Picture("native", TITLE, svg, said, reading, source.name), Grid(shown, origins)]


MISSING = Missing("how the series' loops fare in real caches", "make bench WHAT=native")
PART = Part("native", TITLE, ("native",), _blocks, MISSING)
