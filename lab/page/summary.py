# SPDX-License-Identifier: GPL-2.0-only
"""The end of `make bench`: what was compared, on what, and what came out.

At most LINES lines of WIDTH characters, for readers who know neither KVM nor this project.
"""

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lab.machines.paging import Mode
from lab.page import compared, dimensions, live, pictures
from lab.page.compared import MAIN_WAYS, Compared, Way, factor, factors, mode_name
from lab.results import goals, notation
from lab.results.jsonl import Measurement
from lab.results.sources import Source, base_of
from lab.results.tables import Row

# Another line may follow: that goals are missed.
LINES, WIDTH = 14, 80
LABEL, COLUMN = 26, 18
SHORT = {
    pictures.LAZY: "unpatched",
    pictures.FIRST_WRITE: "N",
    pictures.EAGER: "Y",
    pictures.BITS: "Dirty bits",
}
NOTHING_TO_COMPARE = (
    "No writes were measured that pay for splitting, so there is nothing to sum up;"
    " the tables have what was measured."
)


def path(file: Path) -> str:
    """FILE, relative to the current directory if that is shorter."""
    return min(str(file), os.path.relpath(file), key=len)


def _fit(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4].rstrip()} ..."


def _columns(found: Compared) -> list[Mode]:
    """The paging modes to show: with PML, or all if there is no other."""
    usual = [mode for mode in found.modes if mode.pml]
    return usual or found.modes[:3]


def _row(label: str, cells: Iterable[str], count: int) -> str:
    width = min((WIDTH - LABEL) // count, COLUMN)
    return f"{label:<{LABEL}}{''.join(f'{cell:>{width}}' for cell in cells)}".rstrip()


def _cell(seconds: float | None, faster: float | None) -> str:
    """A time, and how many times faster it is."""
    shown = f"({factor(faster)})" if faster is not None else ""
    return f"{notation.milliseconds(seconds)} {shown:<7}"


def _block(found: Compared, row: Row, modes: Sequence[Mode]) -> Iterator[str]:
    """A line for each way, with a cell for each mode."""
    by_mode = [_times(found, mode, row) for mode in modes]
    faster = [dict(factors(times)) for times in by_mode]
    for way in found.ways(row, MAIN_WAYS):
        cells = [
            _cell(times.get(way), gain.get(way))
            for times, gain in zip(by_mode, faster, strict=True)
        ]
        yield _row(f"  {way.name}", cells, len(modes))


def _times(found: Compared, mode: Mode, row: Row) -> Mapping[Way, float]:
    """The times of ROW by way."""
    times = ((way, found.seconds(mode, way, row)) for way in MAIN_WAYS)
    return {way: seconds for way, seconds in times if seconds is not None}


def _call(found: Compared, modes: Sequence[Mode]) -> Iterator[str]:
    """What the first CLEAR, or enabling, takes: before, and with N and Y."""
    ways = found.ways(found.splitting, MAIN_WAYS[:3])
    if not ways:
        return
    cells = []
    for mode in modes:
        times = [found.seconds(mode, way, found.splitting) for way in ways]
        cells.append(f"{'/'.join(map(notation.milliseconds, times))} ")
    names = " / ".join(SHORT[way.style] for way in ways)
    call = found.splitting.label.replace("enabling", "enabling of the log")
    yield f"The thread that migrates it: {call}, ms ({names}):"
    yield _row("", cells, len(modes))


def _what(found: Compared) -> str:
    base = " and ".join(dict.fromkeys(map(base_of, found.versions)))
    return f"Linux {base}, {found.guest}, {compared.clock(found.vm.machine)}"


def _stall(source: Source) -> Iterator[str]:
    """The longest stall of a vCPU in a live run, by way."""
    stalls = live.longest_stalls(source)
    shown = (
        f"{SHORT[style]} {notation.milliseconds(seconds)}"
        for style, seconds in stalls.items()
        if style in SHORT
    )
    if said := ", ".join(shown):
        yield f"Longest stall of a vCPU in the live run, ms: {said}"


def _missed(missed: goals.Missed) -> str:
    """If the line is too long, it keeps its start and the last figure."""
    line = f"  {missed}"
    if len(line) <= WIDTH:
        return line
    last = f" ... {missed.figures[-1]}"
    return f"  {missed.goal}"[: WIDTH - len(last)].rstrip() + last


def _goals(measurements: Sequence[Measurement], room: int) -> list[str]:
    """How many goals are reached, and those that are not, as far as there is ROOM for lines."""
    if {one.machine for one in measurements}.isdisjoint(dimensions.SIMULATED):
        return ["Goals: they are for simulated time only."]
    judged = goals.table(measurements)
    if not judged:
        return ["Goals: none is for what was measured."]
    missed, count = [*goals.missed(measurements)], len(judged.rows)
    if not missed:
        return [f"Goals: all {count} are reached."]
    heading = f"Goals: {len(missed)} of {count} are missed, see the report"
    if room <= 1:
        return [f"{heading}: {missed[0]}"]
    return [f"{heading}:", *map(_missed, missed)][:room]


def _comparison(found: Compared) -> Iterator[str]:
    modes = _columns(found)
    yield _what(found)
    written = {100: "Writing all", 0: "Reading all"}.get(found.vm.write_percent)
    written = written or f"Writing {found.written}"
    yield f"{written} of the guest's memory once when dirty logging has begun, ms:"
    ways = found.ways(found.headline, MAIN_WAYS)
    against = f"  (x: as fast as {SHORT[ways[0].style]})" if ways[1:] else ""
    titles = [f"{mode_name(found.vm.machine, mode)} " for mode in modes]
    yield _row(against, titles, len(modes))
    unlogged = [_cell(found.unlogged(mode), None) for mode in modes]
    yield _row("  without logging", unlogged, len(modes))
    yield from _block(found, found.headline, modes)
    yield from _call(found, modes)


def lines(
    measurements: Sequence[Measurement],
    file: Path,
    report: Path | None = None,
    live_run: Source | None = None,
) -> list[str]:
    """The summary of MEASUREMENTS, which are in FILE. report: the page, if it was drawn."""
    found = compared.first(measurements)
    said = [*(_comparison(found) if found else textwrap.wrap(NOTHING_TO_COMPARE, WIDTH))]
    said += _stall(live_run) if live_run else ()
    # Paths are not cut.
    ends = [*([f"Report: {path(report)}"] if report else []), f"Results: {path(file)}"]
    said += _goals(measurements, LINES - len(said) - len(ends))
    return [*map(_fit, said), *ends]
