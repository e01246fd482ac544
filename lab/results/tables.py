# SPDX-License-Identifier: GPL-2.0-only
"""Tables of results: N beside Y beside their ratio, as in the mails about eager splitting.

A table is about one machine, paging mode, write mix and kernel. Tables of the series also have
columns of the ungated baseline.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import NamedTuple

from lab.results import notation
from lab.results.jsonl import DIRTY_BITS, Key, Measurement
from lab.results.table import Table

# vCPUs of the VM that goals are for, and with which kernels are compared.
BASE_VCPUS = 8

Times = dict[Key, float]


@dataclass(frozen=True)
class Row:
    """What a row of times shows: one phase in one iteration, or in the one it has."""

    label: str
    phase: str
    iteration: int | None = None


FIRST_CLEAR = Row("first CLEAR", "clear", 1)
# The whole cost of splitting, in CLEAR and in page faults. No phase that is measured: times_of()
# adds two phases up.
SPLITTING = Row("CLEAR + dirty", "splitting")
SECOND_CLEAR = Row("second CLEAR", "clear", 2)
SECOND_GET = Row("second GET", "get", 2)
ENABLING, DISABLING = Row("enabling", "enable"), Row("disabling", "disable")

# By which share of the smaller one figures differ that are the same code at other addresses.
NOISE = 0.04
# By how many percent the dirty times of N may exceed those of the unpatched kernel: a goal below
# the noise would be missed by chance.
BASE_LIMIT = 100 * NOISE
UNGATED, UNPATCHED = "ungated", "unpatched"
# By tdp_mmu: the kernel whose Y stands beside that of the series, and the title of its column. In
# the TDP MMU splitting is not restricted to nested guests, so the unpatched kernel serves as the
# baseline.
BASELINE = {False: ("peer", UNGATED), True: ("base", UNPATCHED)}
# Explanations of the column U, by its title.
WHAT_IS_U = {
    UNGATED: "ungated (U), the baseline: the unpatched kernel without what keeps its eager"
    " splitting to nested guests; eager_page_split=Y",
    UNPATCHED: "unpatched (U): the unpatched kernel with eager_page_split=Y, which in the TDP MMU"
    " splits eagerly, too",
}
BITS = "D bits"
# Columns with ratios: numerator and denominator.
RATIOS = {"base/Y": ("base", "Y"), "N/Y": ("N", "Y"), "Y/D": ("Y", BITS), "U/Y": ("U", "Y")}
# The side that a derived column is about: without figures of that, the column is left out.
OF_SIDE = {
    "base/Y": "base",
    "N/Y": "N",
    "N:1": "N",
    "Y:1": "Y",
    "Y/D": BITS,
    "D:1": BITS,
    "U/Y": "U",
}
WHAT_ARE_BITS = (
    "D bits: eager_page_split=Y and dirty_bits=on, so 4 KiB pages stay writable and GET looks"
    " for the Dirty bits that CPUs set"
)
TICKS = "enabling and disabling wait for grace periods, so they move by ticks of the timer"


def headline(initially_all_set: bool) -> Row:
    """The dirty time that is the first to pay for splitting.

    With initially-all-set nothing is write-protected before the first CLEAR.
    """
    iteration = 2 if initially_all_set else 1
    return Row(f"dirty, iteration {iteration}", "dirty", iteration)


# The phases that SPLITTING is the sum of, with initially-all-set.
SUMMANDS = (FIRST_CLEAR, headline(True))


def whole_of(key: Key) -> Key:
    """The sum of SUMMANDS that belongs to the run of KEY."""
    return replace(key, phase=SPLITTING.phase, iteration=SPLITTING.iteration)


def summands(key: Key) -> tuple[Key, ...]:
    """The measurements that a time of times_of() is the sum of; KEY itself if it was measured."""
    if key.phase != SPLITTING.phase:
        return (key,)
    return tuple(replace(key, phase=row.phase, iteration=row.iteration) for row in SUMMANDS)


def measured_keys(keys: Iterable[Key]) -> Iterator[Key]:
    """KEYS, those of sums replaced by their summands."""
    return chain.from_iterable(map(summands, keys))


def times_of(measurements: Iterable[Measurement]) -> Times:
    """Seconds by key, also of SPLITTING where both of its summands were measured."""
    times = {one.key: one.seconds for one in measurements}
    first_clear = (FIRST_CLEAR.phase, FIRST_CLEAR.iteration)
    wholes = [
        whole_of(key)
        for key in times
        if key.initially_all_set and (key.phase, key.iteration) == first_clear
    ]
    parts = {whole: summands(whole) for whole in wholes}
    return times | {
        whole: sum(times[key] for key in keys)
        for whole, keys in parts.items()
        if times.keys() >= {*keys}
    }


def shown_rows(initially_all_set: bool) -> list[Row]:
    clears = [FIRST_CLEAR, SPLITTING, SECOND_CLEAR]
    return [
        headline(initially_all_set),
        *(clears if initially_all_set else []),
        Row("first GET", "get", 1),
        *(SECOND_GET, ENABLING, DISABLING),
        # The dirty time of the iteration without splitting.
        headline(not initially_all_set),
    ]


def _title(key: Key) -> str:
    init = "initially-all-set" if key.initially_all_set else "without initially-all-set"
    mode = f"{notation.paging(key.machine, key.ept)}, tdp_mmu={notation.letter(key.tdp_mmu)}"
    pml = "" if key.pml else ", pml=N"
    memory = f"{notation.size(key.bytes_per_vcpu)} per vCPU, {key.backing}"
    return (
        f"{key.machine} ({key.kernel}), {mode}{pml}{notation.dirty_bits_of(key)}, "
        f"{notation.writes(key.write_percent)}{notation.pattern_of(key)}, {init}, {memory}"
    )


def _group(key: Key) -> Key:
    """The part of KEY that all figures of a table have in common."""
    return replace(key, vcpus=0, eager=False, phase="", iteration=None)


# Which iteration pays for splitting, and why, by initially-all-set.
REASON = {
    True: "iteration 2 is the first that pays for splitting: only CLEAR write-protects",
    False: "iteration 1 is the first that pays for splitting: enabling write-protects everything",
}


def sides(key: Key) -> dict[str, Key]:
    """The measurements that stand side by side with KEY, by the headings of their columns.

    N and Y. For the series also Y of the ungated baseline, or of the unpatched kernel in the TDP
    MMU (see BASELINE), and Y with dirty_bits=on.
    """
    lazy, eager = (replace(key, eager=value) for value in (False, True))
    found = {"N": lazy, "Y": eager}
    if key.kernel == "series":
        found["U"] = replace(eager, kernel=BASELINE[key.tdp_mmu][0])
        if key.dirty_bits == notation.OFF:
            found[BITS] = replace(eager, dirty_bits=notation.ON)
    return found


def measured_of(keys: Mapping[str, Key], times: Times) -> dict[str, float]:
    """The times of those KEYS that were measured."""
    return {name: times[key] for name, key in keys.items() if key in times}


def cells(at: Mapping[str, float], unit: float | None = None) -> dict[str, str]:
    """Seconds AT the sides as milliseconds, as ratios, and in units of UNIT, by headings."""
    shown = {name: notation.milliseconds(at.get(name)) for name in ("base", "N", "Y", BITS, "U")}
    ratios = {
        name: notation.ratio(at.get(over), at.get(under)) for name, (over, under) in RATIOS.items()
    }
    return (
        shown
        | ratios
        | {f"{name[0]}:1": notation.ratio(at.get(name), unit) for name in ("N", "Y", BITS)}
    )


def filled(rows: Iterable[Mapping[str, str]], *names: str) -> list[str]:
    """The NAMES of columns to show: those of N and Y, and others if they have a figure."""
    seen = {name for row in rows for name, cell in row.items() if cell != notation.NOTHING}
    return [name for name in names if OF_SIDE.get(name, name) in seen | {"N", "Y"}]


def _table_of(group: Key, counts: Iterable[int], times: Times, crowded: Collection[int]) -> Table:
    """counts: numbers of vCPUs. crowded: those that were overcommitted."""
    lines: list[tuple[Row, Key, dict[str, str]]] = []
    for row, vcpus in product(shown_rows(group.initially_all_set), counts):
        key = replace(group, vcpus=vcpus, phase=row.phase, iteration=row.iteration)
        at = measured_of(sides(key), times)
        if at.keys() - {"U"}:
            unit = unlogged(key, times) if row.phase == "dirty" else None
            lines.append((row, key, cells(at, unit)))
    names = filled(
        [shown for *_, shown in lines], "N", "Y", BITS, "U", *RATIOS, "N:1", "Y:1", "D:1"
    )
    ungated = BASELINE[group.tdp_mmu][1]
    columns = (ungated if name == "U" else name for name in names)
    table = Table(_title(group), ("ms", "vCPUs", *columns), labels=2)
    table.notes.append(REASON[group.initially_all_set])
    for row, key, shown in lines:
        label = (row.label, f"{key.vcpus}{'*' if key.vcpus in crowded else ''}")
        strong = row == headline(group.initially_all_set)
        figures = (shown[name] for name in names)
        origins = measured_keys(sides(key).values())
        table.add(*label, *figures, strong=strong, origins=origins)
    table.notes += [WHAT_IS_U[ungated]] if "U" in names else []
    table.notes += [WHAT_ARE_BITS] if BITS in names else []
    table.notes += [WHAT_IS_THE_UNIT, *([OVERCOMMITTED] if crowded else [])]
    return table


WHAT_IS_THE_UNIT = (
    "N:1, Y:1: in units of the time without dirty logging, that of iteration 1 with"
    " initially-all-set, the shortest one of a row: nothing is write-protected yet"
)
OVERCOMMITTED = "*: overcommitted: fewer CPUs than vCPUs and the test need, so times hold waits"


def first_cycles(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Those of the first cycle of a VM: only cycles_table() and a goal are about later ones."""
    return [one for one in measurements if one.cycle == 1]


def unlogged(key: Key, times: Times) -> float | None:
    """The dirty time that KEY would have without dirty logging, None if not measured."""
    first = replace(key, phase="dirty", iteration=1, initially_all_set=True)
    modes = product((False, True), DIRTY_BITS)
    found = (times.get(replace(first, eager=e, dirty_bits=value)) for e, value in modes)
    return min((seconds for seconds in found if seconds is not None), default=None)


def main_tables(measurements: Iterable[Measurement]) -> list[Table]:
    """One table per paging mode and write mix, in the order of the results.

    Those of the series, the ungated baseline and dirty_bits=on beside them; without the series
    one for every kernel. Those of memory_table(), and later cycles, are left out.
    """
    found = [one for one in first_cycles(measurements) if one.pattern != notation.REGIONS]
    times = times_of(found)
    groups: dict[Key, list[Key]] = {}
    for key in times:
        groups.setdefault(_group(key), []).append(key)
    series = [group for group in groups if group.kernel == "series"]
    tables = []
    for group in series or groups:
        # Its figures are a column of another group's table.
        beside = (
            group.dirty_bits == notation.ON and replace(group, dirty_bits=notation.OFF) in groups
        )
        if beside and all(key.eager for key in groups[group]):
            continue
        crowded = {m.vcpus for m in found if m.overcommitted and _group(m.key) == group}
        counts = {
            key.vcpus
            for side in sides(group).values()
            for key in groups.get(replace(side, eager=False), ())
        }
        tables.append(_table_of(group, sorted(counts), times, crowded))
    return tables


# The columns of memory_table() for each value of eager_page_split.
MEMORY_COLUMNS = ("first CLEAR", "dirty", "both", "2 MiB pages", "page tables")
WHAT_IS_MEMORY = (
    "2 MiB pages: by how many the VM is still mapped before logging is disabled; page tables: pages"
    " of 4 KiB that were added for page tables since the memory was populated"
)


def _memory_cells(key: Key, times: Times, counts: Mapping[Key, Measurement]) -> list[str]:
    """MEMORY_COLUMNS for the runs of KEY, whose phase is that of counts."""
    whole = whole_of(key)
    count = counts.get(key)
    memory = (count.pages_2m, count.page_tables) if count else (None, None)
    return [
        *map(notation.milliseconds, map(times.get, (*summands(whole), whole))),
        *(notation.NOTHING if one is None else str(one) for one in memory),
    ]


def memory_table(measurements: Iterable[Measurement]) -> Table | None:
    """What splitting costs in time and in memory, N beside Y; None if memory was not counted."""
    found = first_cycles(measurements)
    times = times_of(found)
    counts = {one.key: one for one in found if one.pages_2m is not None}
    wanted = list(dict.fromkeys(replace(key, eager=False) for key in counts))
    if not wanted:
        return None
    columns = [f"{column}, {side}" for column in MEMORY_COLUMNS for side in "NY"]
    columns.insert(2 * len(SUMMANDS) + 2, "N/Y")
    table = Table("The whole cost of splitting, ms, and what it leaves", ("", *columns))
    for lazy in wanted:
        eager = replace(lazy, eager=True)
        sides = (_memory_cells(key, times, counts) for key in (lazy, eager))
        cells = [cell for pair in zip(*sides, strict=True) for cell in pair]
        wholes = [whole_of(key) for key in (lazy, eager)]
        cells.insert(2 * len(SUMMANDS) + 2, notation.ratio(*map(times.get, wholes)))
        origins = [lazy, eager, *measured_keys(wholes)]
        table.add(notation.vm_label(lazy), *cells, origins=origins)
    table.notes.append(WHAT_IS_MEMORY)
    return table


def cycle_rows(initially_all_set: bool) -> tuple[Row, ...]:
    """What would take longer in a later cycle if disabling did not restore huge pages."""
    return headline(initially_all_set), FIRST_CLEAR, ENABLING


def cycles_table(measurements: Iterable[Measurement]) -> Table | None:
    """Cycles of enabling, writing and disabling side by side; None if there is only one."""
    times = times_of(measurements)
    cycles = sorted({key.cycle for key in times})
    first = [key for key in times if key.cycle == 1 and replace(key, cycle=2) in times]
    columns = ("ms", *(f"cycle {cycle}" for cycle in cycles), f"{cycles[-1]} / 1")
    table = Table("Cycles of enabling, writing and disabling in one VM", columns)
    for key in first:
        row = _row_for(key)
        if row in (*cycle_rows(key.initially_all_set), DISABLING):
            keys = [replace(key, cycle=cycle) for cycle in cycles]
            shown = map(notation.milliseconds, map(times.get, keys))
            change = notation.ratio(times.get(keys[-1]), times[key])
            kernel = "" if key.kernel == "series" else f"{key.kernel}, "
            side = f"{kernel}{notation.vm_label(key)}, {notation.letter(key.eager)}: {row.label}"
            table.add(side, *shown, change, origins=keys)
    table.notes.append(TICKS)
    return table if table.rows else None


class BasePair(NamedTuple):
    """One figure of the unpatched kernel, and the same one of the series with N; seconds.

    key: of the unpatched kernel's measurement.
    """

    key: Key
    row: Row
    before: float
    now: float

    @property
    def keys(self) -> tuple[Key, Key]:
        """The measurements that are compared."""
        return self.key, replace(self.key, kernel="series")

    @property
    def growth(self) -> float:
        """By what share of the unpatched kernel's time the series takes longer; negative: less."""
        return self.now / self.before - 1


def base_pairs(times: Times) -> Iterator[BasePair]:
    """All figures that both the unpatched kernel and the series with N have."""
    for base, before in times.items():
        now = times.get(replace(base, kernel="series"))
        row = _row_for(base)
        if base.kernel == "base" and not base.eager and now is not None and row:
            yield BasePair(base, row, before, now)


def base_table(measurements: Iterable[Measurement]) -> Table | None:
    """eager_page_split=N of the series beside the unpatched kernel; None without the latter."""
    times = times_of(first_cycles(measurements))
    title = "eager_page_split=N beside the unpatched kernel"
    table = Table(title, ("ms", "base", "series, N", "difference"))
    for pair in base_pairs(times):
        label = f"{notation.vm_label(pair.key)}: {pair.row.label}"
        cells = (
            notation.milliseconds(pair.before),
            notation.milliseconds(pair.now),
            notation.percent(pair.now, pair.before),
        )
        strong = pair.row == headline(pair.key.initially_all_set)
        table.add(label, *cells, strong=strong, origins=measured_keys(pair.keys))
    if not table.rows:
        return None
    table.notes += [f"N is to take at most {BASE_LIMIT:g}% longer in the rows in bold", TICKS]
    return table


def _shared_rows(of_base: Iterable[Times]) -> list[tuple[Key, Row]]:
    """Figures that show what splitting costs, if two bases have them: key with eager=False, row."""
    shared: dict[tuple[Key, Row], int] = {}
    for times in of_base:
        series = (key for key in times if key.kernel == "series")
        plain = dict.fromkeys(replace(key, eager=False, dirty_bits=notation.OFF) for key in series)
        for key in plain:
            row = _row_for(key)
            if row and row in (headline(key.initially_all_set), FIRST_CLEAR):
                shared[key, row] = shared.get((key, row), 0) + 1
    found = [one for one, bases in shared.items() if bases > 1]

    def is_clear(shared_row: tuple[Key, Row]) -> bool:
        _, row = shared_row
        return row == FIRST_CLEAR

    return sorted(found, key=is_clear)


def bases_table(of_base: Mapping[str, Iterable[Measurement]]) -> Table | None:
    """Figures that bases have in common, side by side; None if there are none."""
    of_bases = {
        base: {one.key: one.seconds for one in first_cycles(found)}
        for base, found in of_base.items()
    }
    shared = _shared_rows(of_bases.values())
    if not shared:
        return None
    keys = [{"base": replace(key, kernel="base")} | sides(key) for key, _ in shared]
    columns = [("ms", *(f"{notation.vm_label(key)}: {row.label}" for key, row in shared))]
    for base, times in of_bases.items():
        rows = [cells(measured_of(one, times)) for one in keys]
        names = filled(rows, "base", "N", "Y", BITS, "U", "N/Y")
        columns += [(f"{base} {name}", *(row[name] for row in rows)) for name in names]
    heading, *lines = zip(*columns, strict=True)
    strong = {i for i, (_, row) in enumerate(shared) if row != FIRST_CLEAR}
    title = "The bases, each with kernels of its own"
    origins = [tuple(one.values()) for one in keys]
    return Table(title, heading, lines, list(WHAT_IS_U.values()), strong, origins)


def _row_for(key: Key) -> Row | None:
    rows = shown_rows(key.initially_all_set)
    return next((r for r in rows if (r.phase, r.iteration) == (key.phase, key.iteration)), None)


def bench_tables(
    measurements: Sequence[Measurement],
    lockstep: bool,
    of_base: Mapping[str, Sequence[Measurement]] | None = None,
    verdicts: Table | None = None,
) -> list[Table]:
    """Every table of one machine's results, the verdicts last, where a terminal's user looks.

    of_base: these and what other bases have of the same, the newest first.
    """
    found = main_tables(measurements)
    tables = (base_table(measurements), memory_table(measurements), cycles_table(measurements))
    found += filter(None, (*tables, bases_table(of_base or {}), verdicts))
    for table in found:
        table.notes.append(notation.LOCKSTEP if lockstep else notation.WALL_CLOCK)
    return found
