# SPDX-License-Identifier: GPL-2.0-only
"""The first screen of the report: three questions, each with a picture and what it says."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab.machines.paging import Mode
from lab.page import compared, dimensions, live, pictures
from lab.page.compared import MAIN_WAYS, Compared, Way, factor, mode_name
from lab.page.model import Block, Missing, Picture
from lab.page.pictures import EAGER, FIRST_WRITE, LAZY, Bar, Chart, Style
from lab.results import notation, tables
from lab.results.jsonl import Measurement
from lab.results.sources import Source, Sources
from lab.results.tables import Row

SLOWER = "How much does a guest slow down when logging starts?"
PAYS = "What does the thread that migrates it pay?"
MEMORY = "What does it cost in huge pages and page tables?"
NO_WRITES = Missing("how much a guest slows down", title=SLOWER)
NO_CALLS = Missing("what CLEAR, GET, enabling and disabling take", title=PAYS)
NO_MEMORY = Missing(
    "how many huge pages are left, and how many page tables are added", title=MEMORY
)

# The calls of the thread that migrates a guest, in their order.
CALLS = (
    tables.ENABLING,
    Row("first GET", "get", 1),
    tables.FIRST_CLEAR,
    tables.SECOND_GET,
    tables.SECOND_CLEAR,
    tables.DISABLING,
)


def _ms(seconds: float | None) -> str:
    return f"{notation.milliseconds(seconds)} ms"


def _times(times: Mapping[Style, float]) -> str:
    """Times in a sentence, with how many times shorter than the first one they are."""
    said: list[str] = []
    base = next(iter(times.values()), 0.0)
    for style, seconds in times.items():
        faster = base / seconds if seconds else 0
        more = f" ({factor(faster)} faster)" if said and faster > 1 + tables.NOISE else ""
        said.append(f"{_ms(seconds)} {live.WITH[style]}{more}")
    return live.joined(said)


def _bars_at(
    source: Source, found: Compared, mode: Mode, row: Row, group: str, ways: Iterable[Way]
) -> Iterator[Bar]:
    """A bar for each of WAYS that ROW was measured in."""
    for way in ways:
        if key := found.key(mode, way, row):
            lines = source.at(tables.measured_keys((key,)))
            yield Bar(group, way.style, found.times[key] * 1e3, lines)


def _ways(mode: Mode) -> tuple[Way, ...]:
    """The ways to show in a paging mode. In the TDP MMU the unpatched kernel may split eagerly."""
    return MAIN_WAYS if not mode.tdp_mmu else (compared.LAZY, compared.UNPATCHED, *MAIN_WAYS[1:])


def _records(bars: Sequence[Bar]) -> list[Mapping[str, Any]]:
    return [line.record for bar in bars for line in bar.lines]


def _unit(found: Compared) -> str:
    return f"{dimensions.simulated(found.vm.machine)}ms"


def _writes(source: Source, found: Compared) -> Picture:
    """The time of the writes: a group of bars for each paging mode."""
    row, machine = found.headline, found.vm.machine
    usual = [mode for mode in found.modes if mode.pml] or found.modes
    names = {m: mode_name(machine, m).replace(", ", ",\n") for m in usual}
    bars = [
        bar
        for mode, name in names.items()
        for bar in _bars_at(source, found, mode, row, name, MAIN_WAYS)
    ]
    marks = {
        name: seconds * 1e3
        for mode, name in names.items()
        if (seconds := found.unlogged(mode)) is not None and any(b.group == name for b in bars)
    }
    title = "Going through the memory once; the line is the time without logging"
    chart = pictures.bars(title, bars, _unit(found), "ms", marks=marks)
    dims = dimensions.of(_records(bars), f"{found.written} written")
    return Picture("slowdown", SLOWER, [chart], dims, _writes_said(found), source.name)


def _writes_said(found: Compared) -> str:
    """What the writes take, in the first paging mode."""
    mode = found.modes[0]
    seconds = {way.style: found.seconds(mode, way, found.headline) for way in MAIN_WAYS[:3]}
    times = {style: one for style, one in seconds.items() if one is not None}
    name = mode_name(found.vm.machine, mode)
    without = found.unlogged(mode)
    before = f" Without logging it takes {_ms(without)}." if without is not None else ""
    written = f", {found.written} of it written," if found.vm.write_percent < 100 else ""
    return (
        f"With {name}, a guest goes through its memory once{written} in {_times(times)}, when"
        f" logging has begun.{before}"
    )


def _throughput(source: Source) -> Picture | None:
    """Throughput over time while logging comes and goes, before and with N and Y."""
    found = live.runs(source, True) or live.runs(source, False)
    shown = [run for run in found if run.style in (LAZY, FIRST_WRITE, EAGER)]
    if not shown:
        return None
    title = "Writes of a guest while the log is switched on, cleared twice, and switched off"
    chart = live.throughput(title, shown, "writer")
    dims, reading = live.dimensions_of(shown), live.dips_said(shown)
    return Picture("slowdown", SLOWER, [chart], dims, reading, source.name)


def calls_chart(source: Source, found: Compared, mode: Mode) -> Chart | None:
    """What each call takes in a paging mode: a group of bars for each call."""
    bars = [
        bar
        for call in CALLS
        for bar in _bars_at(source, found, mode, call, call.label, _ways(mode))
        if bar.value > 0
    ]
    if not bars:
        return None
    name = mode_name(found.vm.machine, mode)
    return pictures.bars(name, bars, _unit(found), "ms", mode=name)


def _calls(source: Source, found: Compared) -> Picture | None:
    mode = next(iter(found.modes))
    chart = calls_chart(source, found, mode)
    if not chart:
        return None
    said = []
    for call in (found.splitting, tables.SECOND_CLEAR):
        seconds = {way.style: found.seconds(mode, way, call) for way in MAIN_WAYS[:3]}
        if times := {style: one for style, one in seconds.items() if one is not None}:
            said.append(f"{call.label} takes {_times(times)}")
    reading = (
        f"With {mode_name(found.vm.machine, mode)}, the {'; the '.join(said)}." if said else ""
    )
    splits = "With Y huge pages are split in the first of them."
    records = [line.record for datum in chart.data for line in datum.lines]
    dims = dimensions.of(records, f"{found.written} written")
    chart = replace(chart, title="", mode="")
    return Picture("calls", PAYS, [chart], dims, f"{reading} {splits}".strip(), source.name)


def _counted(sources: Sources) -> tuple[Source, list[Measurement]] | None:
    """The measurements that counted memory, of one machine and paging mode."""
    for kind in ("bench", "memory"):
        if kind in sources:
            first = tables.first_cycles(sources[kind].measurements)
            found = [m for m in first if m.pages_2m is not None]
            if found:
                mode = found[0].mode
                return sources[kind], [m for m in found if m.mode == mode]
    return None


def _memory(sources: Sources) -> Picture | None:
    """Huge pages that are left, and page tables that were added, by what was written."""
    counted = _counted(sources)
    if not counted:
        return None
    source, found = counted
    found.sort(key=lambda one: (-one.write_percent, one.eager))
    kinds = {False: FIRST_WRITE, True: EAGER}
    left, added = [], []
    for one in found:
        lines = source.at([one.key])
        group = _regions(one.write_percent)
        left.append(Bar(group, kinds[one.eager], float(one.pages_2m or 0), lines))
        if one.page_tables is not None:
            added.append(Bar(group, kinds[one.eager], one.page_tables * 4.0, lines))
    whole = found[0].vcpus * found[0].bytes_per_vcpu / (2 << 20)
    by = ", by what is written"
    charts = [pictures.bars(f"Huge pages left{by}", left, "2 MiB pages", "pages", whole=whole)]
    if added:
        most = max(bar.value for bar in added) or 1
        charts.append(pictures.bars(f"Page tables added{by}", added, "KiB", "KiB", whole=most))
    name = mode_name(found[0].machine, found[0].mode)
    dims = dimensions.of(_records(left))
    return Picture(
        "memory", MEMORY, charts, dims, f"With {name}: {_memory_said(found, whole)}", source.name
    )


def _regions(percent: int) -> str:
    return {100: "all", 0: "nothing"}.get(percent, f"{percent}%")


def _memory_said(found: Sequence[Measurement], whole: float) -> str:
    """What is left where only a part is written, or else of the last mix."""
    part = [one for one in found if 0 < one.write_percent < 100] or found
    mine = [one for one in part if one.write_percent == part[0].write_percent]
    said = []
    for one in mine:
        added = f" and adds {one.page_tables * 4} KiB of page tables" if one.page_tables else ""
        letter = notation.letter(one.eager)
        said.append(f"{letter} leaves {one.pages_2m} of {whole:.0f} huge pages{added}")
    written = _regions(mine[0].write_percent)
    where = f"of the 2 MiB regions {'are' if written != 'nothing' else 'is'} written"
    return f"if {written} {where}, {'; '.join(said)}."


def of(sources: Sources) -> list[Block]:
    """The three answers of one base, or what would measure them."""
    bench = sources.get("bench")
    found = compared.first(bench.measurements) if bench else None
    slower = _throughput(sources["live"]) if "live" in sources else None
    if not slower and bench and found:
        slower = _writes(bench, found)
    calls = _calls(bench, found) if bench and found else None
    return [slower or NO_WRITES, calls or NO_CALLS, _memory(sources) or NO_MEMORY]
