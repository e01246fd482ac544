# SPDX-License-Identifier: GPL-2.0-only
"""What the series is to reach in `make bench`, each paging mode by itself, and whether it does.

BOUNDS, over the number of vCPUs, are those of docs/measuring.md: "The reference".
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from statistics import median

from lab.machines.paging import Mode
from lab.results import compare, tables
from lab.results.jsonl import Key, Measurement
from lab.results.tables import BASE_LIMIT, BASE_VCPUS, Row, Table, Times, headline

# A paging mode, and the value of dirty_harvest.
Way = tuple[Mode, str]


def way_of(key: Key) -> Way:
    return Mode(key.ept, key.tdp_mmu, key.pml), key.dirty_harvest


def _ways(tdp_mmu: bool) -> tuple[Way, Way, Way]:
    """With EPT: by PML, by write protection, by Dirty bits."""
    nopml = Mode(True, tdp_mmu, pml=False)
    return (Mode(True, tdp_mmu), tables.OFF), (nopml, tables.OFF), (nopml, tables.ON)


EPT, SHADOW = (Mode(True), tables.OFF), (Mode(False), tables.OFF)
IN_TDP_MMU = _ways(True)
EVERYWHERE = (*_ways(False), SHADOW, (Mode(False), tables.ON), *IN_TDP_MMU)
# eager_page_split=N in the TDP MMU: by how many percent a phase may take longer than unpatched.
LAZY_LIMIT = 2.0
# Two interrupts of the timer, which a phase may meet more often by chance.
INTERRUPTS_S = 100e-6


@dataclass(frozen=True)
class Goal:
    """For VCPUS with MIB each: N/Y is at least `ratio`, or Y takes at most `most_ms`."""

    way: Way
    row: Row
    write_percent: int = 100
    initially_all_set: bool = True
    ratio: float = 0
    most_ms: float = 0
    vcpus: int = BASE_VCPUS
    mib: int = 4

    def is_for(self, key: Key) -> bool:
        vm = (self.vcpus, self.mib * tables.MIB, self.write_percent, self.initially_all_set)
        own = (key.vcpus, key.bytes_per_vcpu, key.write_percent, key.initially_all_set)
        phase = (self.row.phase, self.row.iteration)
        return (self.way, vm, phase) == (way_of(key), own, (key.phase, key.iteration))

    def judge(self, lazy: float | None, eager: float) -> str | None:
        """The verdict, None if what it needs was not measured."""
        if not self.ratio:
            return f"at most {self.most_ms:g} ms: {verdict(eager * 1000 <= self.most_ms)}"
        if lazy is None:
            return None
        return f"at least {self.ratio:g}: {verdict(lazy >= self.ratio * eager)}"


# vCPUs -> N/Y at least.
RATIOS = {2: 20, 4: 30, 8: 60, 14: 100}
BOUNDS = tuple(Goal(EPT, headline(True), ratio=r, vcpus=n, mib=2) for n, r in RATIOS.items())

GOALS = (
    *BOUNDS,
    Goal(EPT, headline(True), ratio=60),
    Goal(SHADOW, headline(True), 20, ratio=5),
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

# A goal that was measured: its label, times by column, verdict, and the keys that it was judged by.
Judged = tuple[str, dict[str, float], str, tuple[Key, ...]]


def verdict(reached: bool) -> str:
    return "reached" if reached else "missed"


def _speed_goals(times: Times, goals: Iterable[Goal] = GOALS) -> Iterator[Judged]:
    """For each goal that was measured how it was met."""
    for goal in goals:
        for key, seconds in times.items():
            if key.kernel == "series" and key.eager and goal.is_for(key):
                sides = tables.sides(key)
                at = tables.measured_of(sides, times)
                what = "dirty" if key.phase == "dirty" else goal.row.label
                if said := goal.judge(at.get("N"), seconds):
                    label = (tables.vm_label if goal in BOUNDS else tables.load_label)(key)
                    yield f"{label}, {what} ms", at, said, (*sides.values(),)[:3]


def _base_goal(times: Times) -> Iterator[Judged]:
    """N beside the unpatched kernel in the shadow MMU, if measured: the worst dirty time."""
    pairs = [
        (key, before, now)
        for key, row, before, now in tables.base_pairs(times)
        if row == headline(key.initially_all_set) and not key.tdp_mmu
    ]
    if not pairs:
        return
    key, before, now = max(pairs, key=lambda pair: abs(pair[2] / pair[1] - 1))
    reached = abs(now / before - 1) * 100 <= BASE_LIMIT
    said = f"at most {BASE_LIMIT:g}% apart: {verdict(reached)}"
    label = f"N beside the unpatched kernel, at worst {tables.percent(now, before)}"
    yield label, {"N": now}, said, (key, replace(key, kernel="series"))


def _over(key: Key, before: float, now: float) -> float:
    """By what share N takes longer than it may, of what the unpatched kernel takes."""
    noise = min(compare.LIMITS_S[key.phase], INTERRUPTS_S)
    return (now - before - max(before * LAZY_LIMIT / 100, noise)) / before


def _lazy_goals(times: Times) -> Iterator[Judged]:
    """For each way of the TDP MMU the phase in which N is worst beside the unpatched kernel."""
    pairs = list(tables.base_pairs(times))
    for way in IN_TDP_MMU:
        mine = [pair for pair in pairs if way_of(pair[0]) == way]
        if not mine:
            continue
        key, row, before, now = max(mine, key=lambda pair: _over(pair[0], *pair[2:]))
        label = f"{tables.load_label(key)}: N beside the unpatched kernel, {row.label}"
        said = f"at most {LAZY_LIMIT:g}% longer: {verdict(_over(key, before, now) <= 0)}"
        label += f" {tables.percent(now, before)}"
        yield label, {"N": now}, said, (key, replace(key, kernel="series"))


def with_median_enabling(times: Times) -> Times:
    """Enabling, which waits for grace periods, is what it is at the median of all write mixes.

    It comes before the writes, so that runs of other mixes repeat it.
    """
    alike = defaultdict(list)
    enabling = [key for key in times if key.phase == tables.ENABLING.phase]
    for key in enabling:
        alike[replace(key, write_percent=0)].append(times[key])
    return times | {key: median(alike[replace(key, write_percent=0)]) for key in enabling}


def table(measurements: Iterable[Measurement]) -> Table | None:
    """All goals that were measured; None if none was."""
    times = with_median_enabling({one.key: one.seconds for one in measurements})
    verdicts = [*_speed_goals(times), *_base_goal(times), *_lazy_goals(times)]
    rows = [tables.cells(at) for _, at, *_ in verdicts]
    names = tables.filled(rows, "N", "Y", "U", "N/Y", "U/Y")
    found = Table("What the series is to reach", ("8 vCPUs x 4 MiB if not said", *names, "goal"))
    found.notes += tables.WHAT_IS_U.values() if "U" in names else []
    found.notes.append("enabling: the median of the runs that differ in what is written later")
    for (label, _, said, keys), row in zip(verdicts, rows, strict=True):
        found.add(label, *(row[name] for name in names), said, origins=keys)
    return found if found.rows else None


def missed(measurements: Iterable[Measurement]) -> Iterator[str]:
    """One line for each bound that is not reached, or that was not measured."""
    times = {one.key: one.seconds for one in measurements}
    for goal in BOUNDS:
        judged = next(_speed_goals(times, [goal]), None)
        if judged is None:
            yield f"{goal.vcpus} vCPUs: N/Y was not measured"
        elif not judged[2].endswith(verdict(True)):
            gain = tables.cells(judged[1])["N/Y"]
            yield f"{goal.vcpus} vCPUs: N/Y is {gain} instead of at least {goal.ratio:g}"
