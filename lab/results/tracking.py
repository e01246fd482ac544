# SPDX-License-Identifier: GPL-2.0-only
"""Tables and goals of `lab tracking`: what logging costs a guest that is logged from the start."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from lab.machines.paging import Mode
from lab.results import notation
from lab.results.goals import Verdict
from lab.results.jsonl import Key, Measurement
from lab.results.notation import MIB, NOTHING, ON, milliseconds, ratio
from lab.results.table import Table

Record = Mapping[str, Any]

# The loads: values of the key "load".
PLAIN_WRITES, PLAIN_READS = "writes-not-logged", "reads-not-logged"
WRITES, READS, SNAPSHOTS = "writes", "reads", "snapshots"
# Iterations: memory that was populated by reads is read again, then written for the first time.
READ_AGAIN, FIRST_WRITE = 1, 2
# The iteration of SNAPSHOTS that is shown: the second one that writes, as those that follow it.
STEADY = 3

# Times, in units of the same without logging; for the first write, in units of the first write
# after a CLEAR with eager_page_split=N, which splits huge pages as well. With write protection KVM
# notices a write only by a page fault, so each 4 KiB page that is written takes one: populating by
# writes has no goal then, since no kernel that logs so can come close to the time without logging.
MOST_POPULATE, MOST_READ_AGAIN, MOST_FIRST_WRITE = 1.15, 1.02, 1.2

WRITE_PROTECTION = "write protection"
NO_GOAL = "populating by writes, no goal: each page that is written faults"


class Way(NamedTuple):
    """A kernel and its settings, by which loads are measured."""

    mode: Mode
    dirty_bits: str
    kernel: str
    eager: bool

    @property
    def logs_by(self) -> str:
        if self.dirty_bits == ON:
            return "Dirty bits"
        return "PML" if self.mode.ept and self.mode.pml else WRITE_PROTECTION

    @property
    def each_page_faults(self) -> bool:
        """Whether each 4 KiB page that is written takes a page fault, whatever the kernel does."""
        return self.logs_by == WRITE_PROTECTION

    def label(self, machine: str) -> str:
        paging = notation.paging(machine, self.mode.ept)
        mmu = f"{paging} tdp_mmu={notation.letter(self.mode.tdp_mmu)}"
        kernel = "unpatched" if self.kernel == "base" else notation.letter(self.eager)
        return f"{mmu}, {self.logs_by}: {kernel}"


def way_of(record: Record) -> Way:
    mode = Mode(record["ept"], record["tdp_mmu"], record["pml"])
    return Way(mode, record["dirty_bits"], record["kernel"], record["eager"])


@dataclass(frozen=True)
class Measured:
    """All records of a way."""

    way: Way
    records: Sequence[Record]

    def _find(self, record: str, load: str, phase: str, iteration: int | None) -> Record:
        """The record, or an empty one."""
        wanted = (record, load, phase, iteration)
        keys = ("record", "load", "phase", "iteration")
        fitting = (one for one in self.records if tuple(map(one.get, keys)) == wanted)
        return next(fitting, {})

    def seconds(self, load: str, phase: str, iteration: int | None = None) -> float | None:
        return self._find("phase", load, phase, iteration).get("seconds")

    def logged(self, load: str, iteration: int) -> int | None:
        """The pages that a GET returned."""
        return self._find("phase", load, "get", iteration).get("logged")

    def faults(self, load: str, iteration: int) -> int | None:
        stats = self._find("phase", load, "dirty", iteration).get("kvm_stats", {})
        found: int | None = stats.get("pf_taken")
        return found

    def written(self, load: str, iteration: int) -> int | None:
        return self._find("phase", load, "dirty", iteration).get("writes")

    def memory(self, load: str, phase: str, iteration: int | None = None) -> Record:
        return self._find("memory", load, phase, iteration)

    @cached_property
    def huge_pages(self) -> int:
        """How many there would be without logging: all memory is HugeTLB."""
        found = self._find("phase", READS, "populate", None)
        return int(found.get("vcpus", 0) * found.get("bytes_per_vcpu", 0) // (2 * MIB))


def _ways(records: Iterable[Record]) -> list[Measured]:
    found: dict[Way, list[Record]] = {}
    for one in records:
        found.setdefault(way_of(one), []).append(one)
    return [Measured(way, of) for way, of in found.items()]


def _lazily(one: Measured, every: Sequence[Measured]) -> float | None:
    """The time of the first write after a CLEAR, by the same mode with eager_page_split=N."""
    like = one.way._replace(kernel="series", eager=False)
    fitting = (other for other in every if other.way == like)
    return next((o.seconds(PLAIN_READS, "dirty", FIRST_WRITE) for o in fitting), None)


def _size(records: Sequence[Record], load: str) -> str:
    found = next((one for one in records if one["load"] == load), None)
    return f"{found['vcpus']} vCPUs x {notation.size(found['bytes_per_vcpu'])}" if found else ""


TITLE = "Memory that is logged from the start"
COLUMNS = (
    "",
    "populate by writes",
    "/not logged",
    "by reads",
    "/not logged",
    "huge pages",
    "reported",
    "read again",
    "/not logged",
    "first write",
    "/N after CLEAR",
    "goals",
)


def _goals(one: Measured, every: Sequence[Measured]) -> str:
    """Which goals are missed, and which do not apply. The unpatched kernel has none."""
    if one.way.kernel != "series":
        return NOTHING
    wrong = [str(verdict) for verdict in _verdicts(one, every) if not verdict.reached]
    said = wrong or ["reached"]
    return "; ".join([*said, NO_GOAL] if one.way.each_page_faults else said)


def _without_goal(every: Sequence[Measured]) -> Iterator[str]:
    """What to say about the ratios of the series that have no goal, with the figures."""
    mine = [one for one in every if one.way.kernel == "series" and one.way.each_page_faults]
    times = [
        (one.seconds(WRITES, "populate"), one.seconds(PLAIN_WRITES, "populate")) for one in mine
    ]
    ratios = sorted(now / plain for now, plain in times if now and plain)
    if ratios:
        shown = " to ".join(dict.fromkeys(ratio(one, 1) for one in (ratios[0], ratios[-1])))
        yield (
            "no goal: by write protection KVM notices a write only by a page fault, one for each 4"
            " KiB page that is written, so populating by writes takes"
            f" {shown} times as long as without logging, in the series as well; PML and Dirty bits"
            " need no such faults"
        )


def _start_table(records: Sequence[Record], every: Sequence[Measured]) -> Table:
    table = Table(
        f"{TITLE}, {_size(records, READS)}, ms",
        COLUMNS,
        notes=[
            "huge pages: 2 MiB pages that map the guest once it has read all of its memory;"
            " reported: pages in the log by then, though none was written",
            "/not logged: beside the same without logging; /N after CLEAR: beside the first write"
            " after a CLEAR with eager_page_split=N, which also splits huge pages",
            *_without_goal(every),
            notation.LOCKSTEP,
        ],
    )
    for one in every:
        machine = str(one.records[0]["machine"])
        writes, reads = (one.seconds(load, "populate") for load in (WRITES, READS))
        again, first = (one.seconds(READS, "dirty", i) for i in (READ_AGAIN, FIRST_WRITE))
        huge = one.memory(READS, "populate").get("pages_2m", NOTHING)
        logged = one.logged(READS, READ_AGAIN)
        table.add(
            one.way.label(machine),
            milliseconds(writes),
            ratio(writes, one.seconds(PLAIN_WRITES, "populate")),
            milliseconds(reads),
            ratio(reads, one.seconds(PLAIN_READS, "populate")),
            f"{huge} of {one.huge_pages}",
            NOTHING if logged is None else str(logged),
            milliseconds(again),
            ratio(again, one.seconds(PLAIN_READS, "dirty", READ_AGAIN)),
            milliseconds(first),
            ratio(first, _lazily(one, every)),
            _goals(one, every),
            strong=one.way.kernel == "series",
        )
    return table


def _snapshot_table(records: Sequence[Record], every: Sequence[Measured]) -> Table:
    table = Table(
        f"A snapshot loop, {_size(records, SNAPSHOTS)}: all was read, then one huge page is"
        " written again and again",
        ("", "GET, ms", "pass, ms", "page faults", "written", "reported", "huge pages", "tables"),
        notes=[
            "the second round that writes; GET clears the log; pass: the one huge page is written,"
            " the others are read; tables: page tables added since just before populating",
            notation.LOCKSTEP,
        ],
    )
    for one in every:
        memory = one.memory(SNAPSHOTS, "dirty", STEADY)
        counts = (
            one.faults(SNAPSHOTS, STEADY),
            one.written(SNAPSHOTS, STEADY),
            one.logged(SNAPSHOTS, STEADY),
            memory.get("pages_2m"),
            memory.get("page_tables"),
        )
        table.add(
            one.way.label(str(one.records[0]["machine"])),
            milliseconds(one.seconds(SNAPSHOTS, "get", STEADY)),
            milliseconds(one.seconds(SNAPSHOTS, "dirty", STEADY)),
            *(NOTHING if count is None else str(count) for count in counts),
            strong=one.way.kernel == "series",
        )
    return table


def ways(records: Iterable[Record]) -> list[Way]:
    """What was measured, in the order of the rows of both tables."""
    return [one.way for one in _ways(records)]


def tables(records: Sequence[Record]) -> list[Table]:
    """What `lab tracking` prints."""
    every = _ways(records)
    return [_start_table(records, every), _snapshot_table(records, every)]


MEASURED_COLUMNS = (
    *("", "populate", "/not logged", "iteration 1", "/not logged", "iteration 2"),
    *("/N after CLEAR", "page faults", "last", "GET", "huge pages", "in the log"),
)
WHAT_IS_MEASURED = (
    "populate: all memory is accessed for the first time; huge pages: 2 MiB pages that map it then",
    "iteration 1: populated by reads, all memory is read again, otherwise the writes begin; in the"
    " log: pages that are reported then; iteration 2: the first writes after reads; last: the last"
    " iteration; GET: the call after it, which clears the log",
    "/not logged: in units of the same time of a VM that is logged later; /N after CLEAR: in units"
    " of the first writes after a CLEAR in such a VM with eager_page_split=N",
)


def _at(key: Key, phase: str, iteration: int | None = None) -> Key:
    return replace(key, phase=phase, iteration=iteration)


def _like(key: Key) -> Key:
    """The same VM and phase, if logging is enabled after memory is populated."""
    return replace(key, tracked=False, initially_all_set=True)


def _count(found: Measurement | None, key: str) -> str:
    count = getattr(found, key, None)
    return NOTHING if count is None else str(count)


def measured_table(found: Sequence[Measurement]) -> Table:
    """A row for each tracked VM that `split-bench.sh --tracked` has measured."""
    of = {one.key: one for one in found}
    last: dict[Key, int] = {}
    for key in of:
        if key.tracked:
            vm = _at(key, "")
            last[vm] = max(last.get(vm, 0), key.iteration or 0)
    times = {key: one.seconds for key, one in of.items()}
    table = Table(TITLE, MEASURED_COLUMNS, notes=[*WHAT_IS_MEASURED])
    for vm, end in last.items():
        populate, get = _at(vm, "populate"), _at(vm, "get", 1)
        first, second, steady = (_at(vm, "dirty", i) for i in (READ_AGAIN, FIRST_WRITE, end))
        read, lazy = _at(vm, "get", end), replace(_like(second), eager=False)
        tracked = (populate, first, second, steady, get, read)
        table.add(
            f"{notation.vm_label(vm)}, {vm.kernel}, {notation.letter(vm.eager)}",
            milliseconds(times.get(populate)),
            ratio(times.get(populate), times.get(_like(populate))),
            milliseconds(times.get(first)),
            ratio(times.get(first), times.get(_like(first))),
            milliseconds(times.get(second)),
            ratio(times.get(second), times.get(lazy)) if vm.read_first else NOTHING,
            _count(of.get(second), "pf_taken"),
            milliseconds(times.get(steady)),
            milliseconds(times.get(read)),
            _count(of.get(populate), "pages_2m"),
            _count(of.get(get), "logged"),
            strong=vm.kernel == "series",
            origins=(*tracked, _like(populate), _like(first), lazy),
        )
    return table


NOT_LOGGED, AFTER_CLEAR = "as without logging", "as the first write after a CLEAR with N"


def _at_most(
    what: str, now: float | None, before: float | None, most: float, like: str = NOT_LOGGED
) -> Verdict | None:
    """A verdict on the time NOW, which is to be at most MOST times BEFORE, the time of LIKE."""
    if now is None or not before:
        return None
    reached = now <= most * before
    return Verdict(
        f"{what} takes {now / before:.2f} times as long {like}, at most {most:g}", reached
    )


def _verdicts(one: Measured, every: Sequence[Measured]) -> Iterator[Verdict]:
    """How the goals that ONE can reach, and that were measured, are met."""
    return filter(None, _all_verdicts(one, every))


def _all_verdicts(one: Measured, every: Sequence[Measured]) -> Iterator[Verdict | None]:
    """The same, with None for what was not measured."""
    for load, plain in ((WRITES, PLAIN_WRITES), (READS, PLAIN_READS)):
        if load == WRITES and one.way.each_page_faults:
            continue
        times = (one.seconds(load, "populate"), one.seconds(plain, "populate"))
        yield _at_most(f"populating by {load}", *times, MOST_POPULATE)
    again, plain_again = (one.seconds(of, "dirty", READ_AGAIN) for of in (READS, PLAIN_READS))
    yield _at_most("reading again", again, plain_again, MOST_READ_AGAIN)
    first = one.seconds(READS, "dirty", FIRST_WRITE)
    lazily = _lazily(one, every)
    yield _at_most("the first write", first, lazily, MOST_FIRST_WRITE, AFTER_CLEAR)
    huge = one.memory(READS, "populate").get("pages_2m", 0)
    yield Verdict(f"{huge} of {one.huge_pages} huge pages are left", huge == one.huge_pages)
    logged = one.logged(READS, READ_AGAIN)
    yield Verdict(f"{logged} pages are reported that were only read", logged == 0)


def missed(records: Sequence[Record]) -> list[str]:
    """The goals that the series misses, a line each."""
    every = _ways(records)
    return [
        f"{one.way.label(str(one.records[0]['machine']))}: {verdict}"
        for one in every
        if one.way.kernel == "series"
        for verdict in _verdicts(one, every)
        if not verdict.reached
    ]
