# SPDX-License-Identifier: GPL-2.0-only
"""Tables of paging modes over phases: what got better and what got worse, and goals as marks."""

from collections.abc import Iterator, Mapping, Sequence

from lab.machines.paging import Mode
from lab.page import compared, dimensions
from lab.page.compared import Compared, Way, factor, mode_name
from lab.page.model import Block, Grid
from lab.results import goals, notation, tables
from lab.results.goals import Verdict
from lab.results.jsonl import Key
from lab.results.sources import Line, Source
from lab.results.table import Table
from lab.results.tables import Row

MET, MISSED = "\N{CHECK MARK}", "\N{BALLOT X}"
FIRST_WRITES = "first writes"
NO_BREAK = "\N{NO-BREAK SPACE}"
ARROW = f"{NO_BREAK}\N{RIGHTWARDS ARROW}{NO_BREAK}"
Verdicts = Mapping[Key, Sequence[Verdict]]
HOW_TO_READ = (
    "milliseconds: in the unpatched kernel, then with the series, and how many times faster or"
    f" slower that is; differences of up to {100 * tables.NOISE:g}% count as none; {MET} a goal"
    f" that is met, {MISSED} one that is missed, and by how much"
)


def _verdicts(source: Source) -> Verdicts:
    """The verdicts on goals, by the figure that has to reach them. They are for simulated time."""
    found: dict[Key, list[Verdict]] = {}
    if source.measurements[0].machine not in dimensions.SIMULATED:
        return found
    for one in goals.all_judged(source.measurements):
        if one.verdict not in found.setdefault(one.key, []):
            found[one.key].append(one.verdict)
    return found


def _mark(verdict: Verdict) -> str:
    if verdict.reached:
        return MET
    percent = 100 * verdict.excess
    return f"{MISSED} {verdict.bound}, missed by {percent:.{0 if percent >= 10 else 1}f}%"


def change(before: float, now: float) -> str:
    """How many times faster or slower; empty if it is neither."""
    low, high = sorted((before, now))
    if not low or high / low <= 1 + tables.NOISE:
        return ""
    value = high / low
    said = factor(value) if value >= 1.95 else f"{value:.2f}x"
    return f"{said} {'faster' if now < before else 'slower'}"


def _cell(found: Compared, mode: Mode, way: Way, row: Row, verdicts: Verdicts) -> str:
    """A time beside that of the unpatched kernel, if there is one, with the marks of its goals."""
    key = found.key(mode, way, row)
    if key is None:
        return notation.NOTHING
    now, before = found.times[key], found.seconds(mode, compared.LAZY, row)
    said = notation.milliseconds(now)
    if before is not None:
        changed = change(before, now)
        arrow = f"{notation.milliseconds(before)}{ARROW}{said}"
        said = f"{arrow}\n{changed}" if changed else f"{said}\nas before"
    marks = [_mark(verdict) for verdict in verdicts.get(key, ())]
    met = [mark for mark in marks if mark == MET][:1]
    # What is missed has a line of its own.
    return "\n".join([NO_BREAK.join([said, *met]), *(mark for mark in marks if mark != MET)])


def _title(row: Row, found: Compared) -> str:
    """The title of a column, for readers who do not know the test."""
    if row == found.headline:
        return FIRST_WRITES
    if row.phase == "dirty":
        return "writes before" if found.vm.initially_all_set else "later writes"
    return row.label.replace("dirty", "writes")


def _lines(found: Compared, source: Source, mode: Mode, way: Way, row: Row) -> Iterator[Line]:
    keys = (found.key(mode, one, row) for one in (compared.LAZY, way))
    yield from source.at(tables.measured_keys(key for key in keys if key))


def _grid(source: Source, vms: Sequence[Compared], way: Way, verdicts: Verdicts) -> Grid | None:
    """A row for each load and paging mode of one VM that WAY was measured in."""
    rows = tables.shown_rows(vms[0].vm.initially_all_set)
    shown = [row for row in rows if any(vm.ways(row, [way]) for vm in vms)]
    columns = ("paging, written", *(_title(row, vms[0]) for row in shown))
    table = Table(f"{way.name}, {vms[0].guest}", columns)
    origins: list[tuple[Line, ...]] = []
    names: list[str] = []
    for mode in compared.MODES:
        for vm in vms:
            if not any(vm.key(mode, way, row) for row in shown):
                continue
            name = mode_name(vm.vm.machine, mode)
            cells = (_cell(vm, mode, way, row, verdicts) for row in shown)
            table.add(f"{name}, {vm.written}", *cells)
            of = (line for row in shown for line in _lines(vm, source, mode, way, row))
            origins.append(tuple(dict.fromkeys(of)))
            names.append(name)
    clock = dimensions.clock(vms[0].vm.machine)
    table.notes.append(f"{HOW_TO_READ}; {clock}")
    return Grid(table, origins, folded=False, modes=names) if table.rows else None


def blocks(source: Source) -> list[Block]:
    """A table for each way, of the VM to show first; and of that without initially-all-set."""
    all_vms, verdicts = compared.all_vms(source.measurements), _verdicts(source)
    found: list[Block] = []
    for init in (True, False):
        mine = [vm for vm in all_vms if vm.vm.initially_all_set == init]
        if not mine:
            continue
        first = (mine[0].vm.vcpus, mine[0].vm.bytes_per_vcpu)
        vms = [vm for vm in mine if (vm.vm.vcpus, vm.vm.bytes_per_vcpu) == first]
        for way in (compared.FIRST_WRITE, compared.EAGER, compared.BITS, compared.BITS_LAZY):
            if shown := _grid(source, vms, way, verdicts):
                if not init:
                    shown.table.title += ", without initially-all-set"
                found.append(shown)
    return found
