# SPDX-License-Identifier: GPL-2.0-only
"""Page tables and rmap heads of a guest whose memory itself isn't there, and passes over them."""

import os
import struct
import time
from collections.abc import Iterator, Mapping
from ctypes import CDLL, c_ulong, c_void_p
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.core.errors import WorkFailed

PER_TABLE, TABLES_PER_GIB = 512, 512
# The size of huge pages; and of memory to displace everything else from caches, several times as
# large as those of a CPU.
ALIGN, BYTES_BESIDE = 2 << 20, 256 << 20
# Bits of SPTEs, as kernel.h defines them.
WRITABLE, DIRTY, HUGE = 1 << 1, 1 << 6, 1 << 7
SMALL = 1 | WRITABLE | 1 << 5 | DIRTY | 1 << 9 | 1 << 10 | 1 << 11
# The phases to measure, and the percentages of dirty pages. A code without such a function is left
# out.
PHASES = (("split", 100), ("clear", 100), ("collect", 100), ("collect", 20))
# Tables that are checked at once. The dirty pages of each block are the same.
BLOCK = 4096
# Hardware events, as linux/perf_event.h defines them.
EVENTS = {"misses": 3, "instructions": 1}
PERF_EVENT_OPEN = 298

Libraries = Mapping[str, Any]
# Figures of a pass: "ns" of processor time, and counters of those EVENTS that the processor has.
Counts = dict[str, int]


class Case(NamedTuple):
    """What a pass does.

    phase: the function that is called. write_percent: the share of dirty pages. cold: whether
    caches are flushed before. code: the side whose function it is.
    """

    phase: str
    write_percent: int
    cold: bool
    code: str


def _words(*shape: int) -> NDArray[np.uint64]:
    """Zeroes in huge pages, like the kernel's memory. From 4 MiB on numpy requests huge pages."""
    size = int(np.prod(shape))
    found = np.empty(size + 2 * ALIGN // 8, np.uint64)
    found[:] = 0
    start = -found.ctypes.data % ALIGN // 8
    return found[start : start + size].reshape(shape)


class Guest:
    """Row i of each array is for the 2 MiB from gfn 512 * i on; arena and pages are by place."""

    def __init__(self, gib: int, libraries: Libraries) -> None:
        self.nr = nr = gib * TABLES_PER_GIB
        self.libraries = libraries
        self.arena, self.heads, self.log = (_words(nr, n) for n in (PER_TABLE, PER_TABLE, 8))
        self.sps, self.huge, self.pages = _words(nr, 24), _words(nr), _words(nr, 8)
        # Whether 2 MiB may have 4 KiB SPTEs: a bool for each, which a split sets.
        self.small = _words(-(-nr // 8))
        random = np.random.default_rng(gib)
        self.places = random.permutation(nr)
        self.chance = random.integers(100, size=(min(nr, BLOCK), PER_TABLE))
        numbers = np.arange(nr, dtype=np.uint64)
        # Level, gfn, table: see struct kvm_mmu_page.
        self.sps[:, 0], self.sps[:, 1] = 1, PER_TABLE * numbers
        self.sps[:, 2] = self.arena.ctypes.data + self.places * self.arena.strides[0]
        self.pages[self.places, 0] = self.sps.ctypes.data + numbers * self.sps.strides[0]
        self.huge[:] = self.sps[:, 1] << 12 | SMALL | HUGE
        arrays = (self.log, self.heads, self.sps, self.huge, self.arena, self.pages, self.small)
        addresses = (c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        for library in libraries.values():
            library.set_up(c_ulong(nr * PER_TABLE), addresses)

    def prepare(self, phase: str, percent: int) -> None:
        for array in (self.log, self.arena, self.heads, self.small):
            array[:] = 0
        if phase != "split":
            self.libraries["series"].split(self.nr)
        keep = np.where(self.chance < percent, ~np.uint64(0), ~np.uint64(DIRTY))
        for start in range(0, self.nr if percent < 100 else 0, BLOCK):
            self.arena[start : start + BLOCK] &= keep[: self.nr - start]

    def check(self, phase: str, code: str) -> None:
        """WorkFailed: a page is not in the state in which CODE should have left it."""
        for start in range(0, self.nr, BLOCK):
            block = slice(start, start + BLOCK)
            sptes = self.arena[self.places[block]]
            entries = np.arange(PER_TABLE, dtype=np.uint64)
            want = (self.sps[block, 1, None] + entries) << 12 | SMALL
            if phase == "clear":
                want &= ~np.uint64(WRITABLE)
            right = sptes | DIRTY == want
            right &= self.heads[block] == self.sps[block, 2, None] + 8 * entries
            if phase == "collect":
                logged = np.unpackbits(self.log[block].view(np.uint8), axis=1, bitorder="little")
                right &= logged == (sptes & DIRTY != 0)
            if not right.all():
                page = start * PER_TABLE + int(right.argmin())
                raise WorkFailed(f"native: {phase} by {code}: page {page} is wrong")


def _counters() -> dict[str, int]:
    """Files that count the events of this thread in user space, as far as there are any."""
    attributes = (struct.pack("IIQ24xQ16x", 0, 64, event, 1 << 5) for event in EVENTS.values())
    files = (CDLL(None).syscall(PERF_EVENT_OPEN, one, 0, -1, -1, 0) for one in attributes)
    return {name: file for name, file in zip(EVENTS, files, strict=True) if file >= 0}


def _count(counters: Mapping[str, int]) -> Counts:
    counts = {name: int.from_bytes(os.read(c, 8), "little") for name, c in counters.items()}
    return {**counts, "ns": time.thread_time_ns()}


def passes(libraries: Libraries, gib: int, repeats: int) -> Iterator[tuple[Case, Counts]]:
    """Run each case REPEATS times. WorkFailed: a pass has not done its work."""
    guest, others, counters = Guest(gib, libraries), _words(BYTES_BESIDE // 8), _counters()
    for repeat, cold, (phase, percent) in product(range(repeats), (False, True), PHASES):
        codes = [code for code in libraries if hasattr(libraries[code], phase)]
        # Change the order, so that no code always comes after the same other one.
        for code in codes[repeat % len(codes) :] + codes[: repeat % len(codes)]:
            guest.prepare(phase, percent)
            if cold:
                others[:] = repeat
            before = _count(counters)
            getattr(libraries[code], phase)(guest.nr)
            counts = {name: n - before[name] for name, n in _count(counters).items()}
            if repeat == 0 and code not in ("limit", "stores"):
                guest.check(phase, code)
            yield Case(phase, percent, cold, code), counts
