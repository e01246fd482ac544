# SPDX-License-Identifier: GPL-2.0-only
"""The section on logging by Dirty bits against write protection, over what is written."""

from collections.abc import Iterable, Sequence

from lab.machines.bochs import IPS
from lab.page import dimensions, pictures
from lab.page.compared import mode_name
from lab.page.model import Block, Missing, Part, Picture, grid
from lab.page.pictures import BY_DIRTY_BITS, PROTECTED, Panel, Point
from lab.results import notation, tradeoff
from lab.results.jsonl import Key, Measurement
from lab.results.sources import Source
from lab.results.table import Table
from lab.results.tradeoff import Tradeoff

GIB = 1 << 30
SIZES_GIB = (1, 4, 16, 64, 256, 1024)
COMPUTED = (
    "computed, not measured: a round of the measured VM, all written, and the time that GET takes"
    " for an idle page table, times the other memory's"
)
ROUND_COLUMNS = ("dirty", "GET", "CLEAR", "sum")
WHAT_IS_A_ROUND = (
    "a round: all vCPUs go through their memory once, GET, CLEAR; the second one is shown,"
    " eager_page_split=Y"
)

WHAT_IS_CHEAPER = "D cheaper: by elapsed time; by CPU time: of all vCPUs and the thread that asks"


def tradeoff_tables(measurements: Iterable[Measurement]) -> list[Table]:
    """Tables of rounds with write protection beside Dirty bits, and of the cost of a page."""
    found = tradeoff.of_one_vm(tradeoff.find({one.key: one.seconds for one in measurements}))
    if not found:
        return []
    idle = [mode for mode in found if mode.idle]
    return [_round_table(found), _page_table(found), *([_idle_table(idle)] if idle else [])]


def _round_table(found: Sequence[Tradeoff]) -> Table:
    both = (*ROUND_COLUMNS, *(f"D: {name}" for name in ROUND_COLUMNS))
    columns = ("mode", "writes", *both, "wp/D")
    table = Table("A round with write protection, and with Dirty bits (D)", columns, labels=2)
    table.notes += [WHAT_IS_A_ROUND, f"milliseconds; {_vm(found[0].like)}"]
    for mode in found:
        for one, other in mode.pairs:
            times = [t for o in (one, other) for t in (o.dirty, o.get, o.clear, o.total)]
            cells = (*map(notation.milliseconds, times), notation.ratio(one.total, other.total))
            label = (notation.paging_of(mode.like), f"{one.write_percent}%")
            table.add(*label, *cells, origins=one.keys + other.keys)
    return table


def _page_table(found: Sequence[Tradeoff]) -> Table:
    """The time that the thread that reads the log, and vCPUs, spend for a page of 4 KiB."""
    unit = "instructions" if found[0].like.machine in dimensions.SIMULATED else "ns"
    scale = IPS if unit == "instructions" else 1e9
    phases = ROUND_COLUMNS[:-1]
    both = (*phases, *(f"D: {name}" for name in phases))
    columns = ("mode", "writes", *both, "D cheaper", "by CPU time")
    table = Table(f"The same per page that there is, {unit}", columns, labels=2)
    table.notes += [WHAT_IS_CHEAPER, f"all vCPUs at once; {_vm(found[0].like)}"]
    for mode in found:
        for one, other in (mode.pairs[0], mode.pairs[-1]):
            times = [t for o in (one, other) for t in (o.dirty, o.get, o.clear)]
            cells = (f"{seconds * scale / mode.pages:.1f}" for seconds in times)
            label = (notation.paging_of(mode.like), f"{one.write_percent}%")
            cheaper = (_crossing(mode.crossing()), _crossing(mode.crossing(mode.like.vcpus)))
            table.add(*label, *cells, *cheaper, origins=one.keys + other.keys)
    return table


def _idle_table(found: Sequence[Tradeoff]) -> Table:
    columns = ("mode", "GET, us", "D: GET, us", "D cheaper")
    table = Table("An idle page table of 2 MiB, and where it pays if other memory is idle", columns)
    table.notes.append(f"D cheaper: by elapsed time, of all memory, the rest idle; {COMPUTED}")
    for mode in found:
        times = (f"{seconds * 1e6:.3g}" for seconds in mode.idle or ())
        keys = mode.protected[-1].keys + mode.bits[-1].keys
        cells = (*times, _crossing(mode.crossing_idle()))
        table.add(notation.paging_of(mode.like), *cells, origins=keys)
    return table


def _name(mode: Tradeoff) -> str:
    return mode_name(mode.like.machine, mode.like.mode)


def _crossing(percent: float | None) -> str:
    """A table of the write percentages from which on Dirty bits are cheaper."""
    if percent is None:
        return "never"
    return "always" if percent == 0 else f"from {percent:.2g}% on"


def _vm(like: Key) -> str:
    return f"{like.vcpus} vCPUs x {notation.size(like.bytes_per_vcpu)}, {like.backing}"


def _dimensions(source: Source, found: Sequence[Tradeoff]) -> str:
    records = [line.record for mode in found for line in source.at(mode.protected[0].keys)]
    return dimensions.of(records, "eager_page_split=Y", "second round")


def _tradeoff_picture(source: Source, found: Sequence[Tradeoff]) -> Picture:
    """A picture of a round's time over the write percentage, with a panel for each mode."""
    panels = []
    for mode in found:
        sides = {PROTECTED: mode.protected, BY_DIRTY_BITS: mode.bits}
        drawn = {
            style: [Point(o.write_percent, o.total * 1e3, source.at(o.keys)) for o in rounds]
            for style, rounds in sides.items()
        }
        name = _name(mode)
        title = f"{name}: Dirty bits cheaper {_crossing(mode.crossing())}"
        panels.append(Panel(title, "% of pages written", drawn, x_zero=True, mode=name))
    within = pictures.limits(panels)
    simulated = dimensions.simulated(found[0].like.machine)
    return Picture(
        "crossover",
        "A round of dirty logging over what is written",
        [pictures.curve(p, f"dirty + GET + CLEAR, {simulated}ms", within=within) for p in panels],
        _dimensions(source, found),
        "Left of where the curves cross so little is written that a few faults are cheaper than a"
        " look at all pages; right of it the gap is what faults cost, which vCPUs pay.",
        source.name,
    )


def _memory_picture(source: Source, found: Sequence[Tradeoff]) -> Picture:
    """A picture of a round's computed time over the memory of a VM that is mostly idle."""
    panels = []
    for mode in found:
        sizes = [(gib, gib * GIB) for gib in SIZES_GIB]
        drawn = {
            style: [Point(gib, mode.seconds(bits, size)) for gib, size in sizes]
            for style, bits in ((PROTECTED, False), (BY_DIRTY_BITS, True))
        }
        share = _crossing(mode.crossing_idle())
        title = f"{_name(mode)}: Dirty bits cheaper {share}, the rest idle"
        panels.append(Panel(title, "GiB of memory", drawn, mode=_name(mode)))
    within = pictures.limits(panels)
    simulated = dimensions.simulated(found[0].like.machine)
    return Picture(
        "crossover-memory",
        "The same over memory that is idle, computed",
        [
            pictures.curve(p, f"dirty + GET + CLEAR, {simulated}s", "s", within=within)
            for p in panels
        ],
        f"{COMPUTED}. {_dimensions(source, found)}",
        "What is written stays the same, and the memory beside it grows: with write protection it"
        " costs nothing but its part of the log, with Dirty bits a look at each page table.",
        source.name,
    )


def _blocks(source: Source) -> list[Block]:
    found = tradeoff.of_one_vm(tradeoff.find(source.times))
    if not found:
        return []
    shown = [grid(table, source) for table in tradeoff_tables(source.measurements)]
    idle = [mode for mode in found if mode.idle]
    memory = [_memory_picture(source, idle)] if idle else []
    return [_tradeoff_picture(source, found), *memory, *shown]


NONE = Missing("dirty_bits=on beside off, over writes", "make bench WHAT=crossover")
TITLE = "Dirty bits against write protection"
PART = Part("dirty-bits", TITLE, ("crossover", "bench"), _blocks, NONE)
