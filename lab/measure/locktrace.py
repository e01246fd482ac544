# SPDX-License-Identifier: GPL-2.0-only
"""Who waited for mmu_lock, read from the text of a kernel trace.

docs/measuring.md, "Who waits", says which events the trace has, how waits for mmu_lock are told
from others, and how a pass of the test is found.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LINE = re.compile(r"-(\d+) +\[\d+\] \S+ +(\d+): (\w+): (.*)")
BEGIN = re.compile(r"(?:0x)?([0-9a-f]+) \(flags=([A-Z|]+)\)")
END = re.compile(r"(?:0x)?([0-9a-f]+) \(ret=-?\d+\)")
SWITCH = re.compile(r"prev_comm=.* prev_pid=(\d+) .* ==> next_comm=.* next_pid=(\d+) .*")
# This does not match "restart": the selftests complete I/O instructions so, without entering the
# guest.
EXIT = "reason KVM_EXIT_"
LOST = re.compile(r"^(overrun|commit overrun|dropped events): (\d+)$", re.MULTILINE)

RWLOCK = ("SPIN|READ", "SPIN|WRITE")
PAGE = 4096
# Areas of x86-64 with four levels of page tables and without randomisation, as in lab/config.
VMALLOC = range(0xFFFFC90000000000, 0xFFFFE90000000000)
KMALLOC = range(0xFFFF888000000000, 0xFFFFC88000000000)
HEADER = "arch/x86/include/asm/kvm_host.h"

Span = tuple[int, int]
Areas = tuple[range, ...]


class TraceError(Exception):
    """The trace is not complete, or is not what this module knows how to read."""


@dataclass
class Wait:
    """lock: the address of an rwlock. end: None while the thread waits."""

    lock: int
    begin: int
    end: int | None = None


@dataclass
class Thread:
    """What one thread did. exits: its returns from KVM_RUN. on_cpu: when it had a processor.

    running_since: None while it has none.
    """

    exits: list[int] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    on_cpu: list[Span] = field(default_factory=list)
    running_since: int | None = None

    def on(self, now: int) -> None:
        if self.running_since is None:
            self.running_since = now

    def off(self, now: int) -> None:
        if self.running_since is not None:
            self.on_cpu.append((self.running_since, now))
        self.running_since = None

    def pending(self, lock: int) -> Wait | None:
        return next((w for w in reversed(self.waits) if w.end is None and w.lock == lock), None)


@dataclass
class Waiting:
    """Totals of all vCPUs in a pass, in ticks; longest: the longest wait of any of them."""

    running: int = 0
    waited: int = 0
    waits: int = 0
    longest: int = 0


def check_complete(stats: str) -> None:
    """TraceError: events were lost. STATS: per_cpu/cpu*/stats of all processors."""
    found = LOST.findall(stats)
    if not found:
        raise TraceError("the trace's statistics did not come back")
    lost = sum(int(count) for _, count in found)
    if lost:
        raise TraceError(f"{lost} events were lost: the trace buffer is too small")


def areas_of(linux: Path) -> Areas:
    """The areas in which the kernel of a source tree allocates struct kvm."""
    either = "kvzalloc(kvm_x86_ops.vm_size" in (linux / HEADER).read_text()
    return (VMALLOC, KMALLOC) if either else (VMALLOC,)


def _fields(pattern: re.Pattern[str], event: str, rest: str) -> tuple[str, ...]:
    if match := pattern.fullmatch(rest):
        return match.groups()
    raise TraceError(f"not a {event}: {rest!r}")


def _begin(thread: Thread, now: int, address: str, flags: str) -> None:
    lock = int(address, 16)
    if flags not in RWLOCK:
        return
    # Only the beginning is traced of waits for locks that cannot be mmu_lock.
    if lock % PAGE == 0 and thread.pending(lock):
        raise TraceError(f"a thread waits twice for the lock at {lock:#x}")
    thread.waits.append(Wait(lock, now))


def threads(text: str) -> dict[int, Thread]:
    """Every thread in the trace, by its id. TraceError: a line that can't be."""
    found: dict[int, Thread] = defaultdict(Thread)
    for pid, now, event, rest in _events(text):
        if event == "contention_begin":
            _begin(found[pid], now, *_fields(BEGIN, event, rest))
        elif event == "contention_end":
            (address,) = _fields(END, event, rest)
            # Only the end is traced of waits for mutexes and the like.
            if wait := found[pid].pending(int(address, 16)):
                wait.end = now
        elif event == "kvm_userspace_exit" and rest.startswith(EXIT):
            found[pid].exits.append(now)
        elif event == "sched_switch":
            before, after = _fields(SWITCH, event, rest)
            found[int(before)].off(now)
            found[int(after)].on(now)
    return dict(found)


def _events(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Thread, stamp, event and the rest of each line."""
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        match = LINE.search(line)
        if not match:
            raise TraceError(f"not a line of a trace stamped by x86-tsc: {line!r:.120}")
        yield int(match[1]), int(match[2]), match[3], match[4].rstrip()


def _vcpu_threads(found: dict[int, Thread], vcpus: int, passes: int) -> list[Thread]:
    """The threads of vCPUs: those that left KVM_RUN. TraceError: not once in each pass."""
    runners = [thread for thread in found.values() if thread.exits]
    if len(runners) != vcpus:
        raise TraceError(f"{len(runners)} threads ran a vCPU instead of {vcpus}")
    for exits in {len(thread.exits) for thread in runners} - {passes}:
        raise TraceError(f"a vCPU left KVM_RUN {exits} times instead of once in {passes} passes")
    return runners


def _add(total: Waiting, thread: Thread, start: int, end: int, areas: Areas) -> set[int]:
    """Add what a thread did from START to END to TOTAL. Returns the locks that it waited for."""
    waits = [wait for wait in thread.waits if start <= wait.begin < end]
    spans = [*thread.on_cpu]
    if thread.running_since is not None:
        spans.append((thread.running_since, end))
    running = sum(max(0, min(off, end) - max(on, start)) for on, off in spans)
    waited = 0
    for wait in waits:
        if wait.lock % PAGE or not any(wait.lock in area for area in areas):
            raise TraceError(f"a vCPU waited for an rwlock at {wait.lock:#x}, no mmu_lock")
        if wait.end is None or not wait.begin <= wait.end <= end:
            raise TraceError(f"a wait for {wait.lock:#x} does not end within its pass")
        waited += wait.end - wait.begin
        total.longest = max(total.longest, wait.end - wait.begin)
    if waited > running:
        raise TraceError("a vCPU waited for longer than it had a processor")
    total.running += running
    total.waited += waited
    total.waits += len(waits)
    return {wait.lock for wait in waits}


def waiting_in_pass(text: str, vcpus: int, last: int, ticks: int, areas: Areas) -> Waiting:
    """How vCPUs waited for mmu_lock in the last pass, which is number LAST and took TICKS.

    TraceError: the trace does not have all of it, or more than one rwlock was waited for.
    """
    runners = _vcpu_threads(threads(text), vcpus, last)
    start = max(thread.exits[-1] for thread in runners) - ticks
    total = Waiting()
    locks: set[int] = set()
    for thread in runners:
        locks |= _add(total, thread, start, thread.exits[-1], areas)
    if len(locks) > 1:
        raise TraceError(f"vCPUs waited for {len(locks)} rwlocks instead of mmu_lock alone")
    if not total.running:
        raise TraceError("no vCPU had a processor in the pass")
    return total
