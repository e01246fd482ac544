# SPDX-License-Identifier: GPL-2.0-only
"""Goals for the figures of `make bench`, by paging mode, and whether the series reaches them.

`make bench` fails if one of them is missed. docs/measuring.md, "The reference", lists BOUNDS, the
goals for different numbers of vCPUs. The unpatched kernel with N splits lazily, page by page. The
series with N splits on the first write to a huge page: it has goals of its own, and goals relative
to the unpatched kernel and to Y.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from operator import attrgetter
from statistics import median

from lab.machines.paging import Mode
from lab.results import compare, notation, tables
from lab.results.jsonl import Key, Measurement
from lab.results.notation import PAGES
from lab.results.table import Table
from lab.results.tables import BASE_LIMIT, BASE_VCPUS, BasePair, Row, Times, headline

# A paging mode, and the value of dirty_bits.
Way = tuple[Mode, str]


def way_of(key: Key) -> Way:
    return key.mode, key.dirty_bits


def _ways(tdp_mmu: bool) -> tuple[Way, Way, Way]:
    """The ways to log with EPT: by PML, by write protection, by Dirty bits."""
    nopml = Mode(True, tdp_mmu, pml=False)
    return (Mode(True, tdp_mmu), notation.OFF), (nopml, notation.OFF), (nopml, notation.ON)


EPT, SHADOW = (Mode(True), notation.OFF), (Mode(False), notation.OFF)
IN_TDP_MMU = _ways(True)
EVERYWHERE = (*_ways(False), SHADOW, (Mode(False), notation.ON), *IN_TDP_MMU)
# By how many percent a phase may take longer than in the unpatched kernel, with eager_page_split=N
# in the TDP MMU.
TDP_MMU_LIMIT = 2.0
# With Dirty bits: by how many percent the first writes may take longer with N if the guest's page
# table entries are clean than if they are dirty.
CLEAN_LIMIT = 10.0
# By how many percent the third cycle of logging in a VM may take longer than the first.
CYCLE_LIMIT = 5.0
LATER_CYCLE = 3
# Two interrupts of the timer more than in the other run may fall into a phase by chance, seconds.
INTERRUPTS_S = 100e-6


# The sides (_sides()) that a verdict depends on, or that stand beside them.
JUDGED_BY = ("base", "N", "Y", "U")
WHAT_IS_BASE = (
    "base: the unpatched kernel with eager_page_split=N; goals that are ratios are for base/Y"
)
# Values of Goal.eager: the eager_page_split of the series whose time is judged.
N, Y = False, True


@dataclass(frozen=True)
class Verdict:
    """Whether a bound is kept. excess: by which share it is exceeded, if it is."""

    bound: str
    reached: bool
    excess: float = 0

    def __str__(self) -> str:
        return f"{self.bound}: {'reached' if self.reached else 'missed'}"


@dataclass(frozen=True)
class Goal:
    """A goal for VCPUS vCPUs with MIB of memory each.

    If RATIO is not 0: the unpatched kernel, which splits lazily, takes at least RATIO times as long
    as Y. Otherwise: the series with eager_page_split=EAGER takes at most MOST_MS.
    """

    way: Way
    row: Row
    write_percent: int = 100
    initially_all_set: bool = True
    ratio: float = 0
    most_ms: float = 0
    vcpus: int = BASE_VCPUS
    mib: int = 4
    eager: bool = Y

    def is_for(self, key: Key) -> bool:
        vm = (self.vcpus, self.mib * notation.MIB, self.write_percent, self.initially_all_set)
        own = (key.vcpus, key.bytes_per_vcpu, key.write_percent, key.initially_all_set)
        phase = (self.row.phase, self.row.iteration)
        is_series = key.kernel == "series" and key.eager == self.eager and key.pattern == PAGES
        return is_series and (self.way, vm, phase) == (way_of(key), own, (key.phase, key.iteration))

    def judge(self, base: float | None, seconds: float) -> Verdict | None:
        """The verdict on SECONDS, None if what it needs was not measured.

        base: seconds of the unpatched kernel.
        """
        if not self.ratio:
            whose = "N: " if self.eager == N else ""
            bound, ms = f"{whose}at most {self.most_ms:g} ms", seconds * 1000
            return Verdict(bound, ms <= self.most_ms, ms / self.most_ms - 1)
        if base is None:
            return None
        reached = base >= self.ratio * seconds
        return Verdict(f"at least {self.ratio:g}x", reached, self.ratio * seconds / base - 1)


# The least ratio of the unpatched kernel's lazy splitting to eager splitting, by number of vCPUs.
RATIOS = {2: 20, 4: 30, 8: 60, 14: 100}
BOUNDS = tuple(Goal(EPT, headline(True), ratio=r, vcpus=n, mib=2) for n, r in RATIOS.items())
# The longest that the first writes may take with N, ms, by ways to log that need no fault for each
# 4 KiB page.
FIRST_WRITES = (
    *((EPT, 4.0), ((Mode(False), notation.ON), 3.0)),
    *((IN_TDP_MMU[0], 3.0), (IN_TDP_MMU[2], 1.3)),
)

GOALS = (
    *BOUNDS,
    Goal(EPT, headline(True), ratio=60),
    Goal(SHADOW, headline(True), 20, ratio=5),
    *(Goal(way, headline(True), most_ms=most, eager=N) for way, most in FIRST_WRITES),
    Goal(EPT, tables.FIRST_CLEAR, most_ms=1, eager=N),
    Goal(EPT, tables.FIRST_CLEAR, most_ms=10),
    Goal(SHADOW, tables.FIRST_CLEAR, most_ms=10),
    *(
        Goal(way, tables.FIRST_CLEAR, most_ms=most)
        for way, most in zip(IN_TDP_MMU, (4, 4, 2.5), strict=True)
    ),
    *(
        Goal(way, tables.SECOND_CLEAR, writes, most_ms=most)
        for way, (writes, most) in product(EVERYWHERE, ((100, 2), (20, 3.5)))
    ),
    *(
        Goal(way, row, initially_all_set=False, most_ms=ms)
        for (row, ms), way in product(((tables.ENABLING, 2), (tables.SECOND_GET, 2.5)), IN_TDP_MMU)
    ),
    *(Goal(way, tables.DISABLING, most_ms=4) for way in (EPT, *IN_TDP_MMU)),
    Goal(SHADOW, tables.DISABLING, most_ms=7),
)


@dataclass(frozen=True)
class Judged:
    """A goal that was measured.

    times: seconds by the headings of columns. verdict: of its bound. keys: of the measurements that
    it was judged by. key: of the figure that has to reach it, which may be a sum.
    """

    label: str
    times: Mapping[str, float]
    verdict: Verdict
    keys: tuple[Key, ...]
    key: Key


def _sides(key: Key) -> dict[str, Key]:
    """Those of tables.sides(), and N of the unpatched kernel, which splits lazily."""
    return tables.sides(key) | {"base": replace(key, kernel="base", eager=False)}


def _judged(goal: Goal, key: Key, times: Times) -> Judged | None:
    """How GOAL is met at KEY; None if what it needs was not measured."""
    sides = _sides(key)
    at = tables.measured_of(sides, times)
    verdict = goal.judge(at.get("base"), times[key])
    if not verdict:
        return None
    label = (notation.vm_label if goal in BOUNDS else notation.load_label)(key)
    what = "dirty" if key.phase == "dirty" else goal.row.label
    return Judged(f"{label}, {what} ms", at, verdict, tuple(sides[name] for name in JUDGED_BY), key)


def _speed_goals(times: Times, goals: Iterable[Goal] = GOALS) -> Iterator[Judged]:
    """For each goal that was measured how it is met."""
    for goal in goals:
        for key in filter(goal.is_for, times):
            if found := _judged(goal, key, times):
                yield found


def _shadow_mmu_goal(times: Times) -> Iterator[Judged]:
    """N beside the unpatched kernel in the shadow MMU: the dirty time that grew most, if any."""
    pairs = [
        pair
        for pair in tables.base_pairs(times)
        if pair.row == headline(pair.key.initially_all_set) and not pair.key.tdp_mmu
    ]
    if not pairs:
        return
    worst = max(pairs, key=attrgetter("growth"))
    bound, reached = f"at most {BASE_LIMIT:g}% longer", worst.growth * 100 <= BASE_LIMIT
    kept = Verdict(bound, reached, worst.growth - BASE_LIMIT / 100)
    change = notation.percent(worst.now, worst.before)
    label = f"N beside the unpatched kernel, at worst {change}"
    yield Judged(label, {"N": worst.now}, kept, worst.keys, worst.keys[1])


def _sum_goals(times: Times) -> Iterator[Judged]:
    """For each way to log: the first CLEAR plus the first writes, N beside Y, at the worst N/Y."""
    of_n = [
        key
        for key in times
        if key.kernel == "series" and not key.eager and key.phase == tables.SPLITTING.phase
    ]
    pairs = [(key, eager) for key in of_n if (eager := replace(key, eager=Y)) in times]
    for way in EVERYWHERE:
        mine = [pair for pair in pairs if way_of(pair[0]) == way]
        if not mine:
            continue
        key, eager = max(mine, key=lambda pair: times[pair[0]] / times[pair[1]])
        at = {"N": times[key], "Y": times[eager]}
        label = f"{notation.vm_label(key)}, {tables.SPLITTING.label} ms"
        excess = times[key] / times[eager] - 1
        kept = Verdict("N/Y at most 1", times[key] <= times[eager], excess)
        yield Judged(label, at, kept, (*tables.measured_keys((key, eager)),), key)


def _excess(pair: BasePair) -> float:
    """By how much N exceeds the time that it may take, as a share of the unpatched kernel's time.

    Negative if N keeps within it.
    """
    noise = min(compare.LIMITS_S[pair.key.phase], INTERRUPTS_S)
    allowed = pair.before + max(pair.before * TDP_MMU_LIMIT / 100, noise)
    return (pair.now - allowed) / pair.before


def _clean_goals(times: Times) -> Iterator[Judged]:
    """The first writes with N and Dirty bits, clean entries in the guest beside dirty ones."""
    row = headline(True)
    for key in times:
        mine = key.kernel == "series" and key.eager == N and key.initially_all_set
        bits = mine and key.dirty_bits == notation.ON and key.pattern == notation.CLEAN
        dirty = replace(key, pattern=PAGES)
        if bits and (key.phase, key.iteration) == (row.phase, row.iteration) and dirty in times:
            kept = times[key] <= times[dirty] * (1 + CLEAN_LIMIT / 100)
            bound = Verdict(f"N: at most {CLEAN_LIMIT:g}% longer than without", kept)
            change = notation.percent(times[key], times[dirty])
            label = f"{notation.load_label(key)}, dirty ms, {change}"
            yield Judged(label, {"N": times[key]}, bound, (key, dirty), key)


def _tdp_mmu_goals(times: Times) -> Iterator[Judged]:
    """For each way to log in the TDP MMU: N beside the unpatched kernel, in the worst phase."""
    pairs = [pair for pair in tables.base_pairs(times) if pair.row != tables.SPLITTING]
    for way in IN_TDP_MMU:
        mine = [pair for pair in pairs if way_of(pair.key) == way]
        if not mine:
            continue
        worst = max(mine, key=_excess)
        bound, excess = f"at most {TDP_MMU_LIMIT:g}% longer", _excess(worst)
        kept = Verdict(bound, excess <= 0, excess)
        change = f"{worst.row.label} {notation.percent(worst.now, worst.before)}"
        label = f"{notation.load_label(worst.key)}: N beside the unpatched kernel, {change}"
        yield Judged(label, {"N": worst.now}, kept, worst.keys, worst.keys[1])


def _cycle_goals(times: Times) -> Iterator[Judged]:
    """For each way to log: the third cycle beside the first, in the phase that grew most."""
    pairs: dict[Way, list[tuple[float, Row, Key, Key]]] = defaultdict(list)
    for key in times:
        later = replace(key, cycle=LATER_CYCLE)
        rows = {(row.phase, row.iteration): row for row in tables.cycle_rows(key.initially_all_set)}
        row = rows.get((key.phase, key.iteration))
        if row and key.kernel == "series" and key.cycle == 1 and times[key] and later in times:
            pairs[way_of(key)].append((times[later] / times[key] - 1, row, key, later))
    for mine in pairs.values():
        growth, row, key, later = max(mine, key=lambda pair: pair[0])
        bound, excess = f"at most {CYCLE_LIMIT:g}% longer", growth - CYCLE_LIMIT / 100
        kept = Verdict(bound, excess <= 0, excess)
        change = f"{row.label} {notation.percent(times[later], times[key])}"
        label = f"{notation.load_label(later)}: beside the first cycle, {change}"
        at = {notation.letter(key.eager): times[later]}
        yield Judged(label, at, kept, (later, key), later)


def with_median_enabling(times: Times) -> Times:
    """TIMES, with the time of enabling replaced by its median over all write percentages.

    Enabling waits for grace periods, so single values vary. It comes before the guest's writes, so
    runs that differ only in the write percentage repeat it.
    """
    alike = defaultdict(list)
    enabling = [key for key in times if key.phase == tables.ENABLING.phase]
    for key in enabling:
        alike[replace(key, write_percent=0)].append(times[key])
    return times | {key: median(alike[replace(key, write_percent=0)]) for key in enabling}


def all_judged(measurements: Iterable[Measurement]) -> list[Judged]:
    """All goals that were measured."""
    found = list(measurements)
    times = with_median_enabling(tables.times_of(tables.first_cycles(found)))
    of_n = (_sum_goals, _clean_goals, _shadow_mmu_goal, _tdp_mmu_goals)
    judged = [*_speed_goals(times), *chain.from_iterable(goals(times) for goals in of_n)]
    return [*judged, *_cycle_goals(tables.times_of(found))]


def table(measurements: Iterable[Measurement]) -> Table | None:
    """A table of all goals that were measured; None if none was."""
    judged = all_judged(measurements)
    rows = [tables.cells(one.times) for one in judged]
    names = tables.filled(rows, "base", "N", "Y", "U", "base/Y", "N/Y", "U/Y")
    found = Table("What the series is to reach", ("8 vCPUs x 4 MiB if not said", *names, "goal"))
    found.notes += [WHAT_IS_BASE] if "base" in names else []
    found.notes += tables.WHAT_IS_U.values() if "U" in names else []
    found.notes.append("enabling: the median of the runs that differ in what is written later")
    for one, row in zip(judged, rows, strict=True):
        shown = (row[name] for name in names)
        found.add(one.label, *shown, str(one.verdict), origins=one.keys)
    return found if found.rows else None


def unmeasured(measurements: Iterable[Measurement]) -> Iterator[str]:
    """One line for each of BOUNDS that was not measured."""
    times = {one.key: one.seconds for one in measurements}
    for goal in BOUNDS:
        if not any(_speed_goals(times, [goal])):
            yield f"{goal.vcpus} vCPUs: base/Y was not measured"


@dataclass(frozen=True)
class Missed:
    """A goal that is not reached, and the figures that it was judged by, e.g. "N 9.00"."""

    goal: str
    figures: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.goal}, missed: {', '.join(self.figures)}"


def missed(measurements: Iterable[Measurement]) -> Iterator[Missed]:
    """The goals that were measured and are not reached."""
    for judged in all_judged(measurements):
        if not judged.verdict.reached:
            shown = tables.cells(judged.times)
            kept = (f"{name} {cell}" for name, cell in shown.items() if cell != notation.NOTHING)
            yield Missed(f"{judged.label}: {judged.verdict.bound}", tuple(kept))
