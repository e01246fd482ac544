# SPDX-License-Identifier: GPL-2.0-only
"""What a huge page is worth: the time of a read in much memory, mapped by 2 MiB or 4 KiB pages.

This is user space on this machine, without a guest: no nested page tables are walked, with which a
TLB miss takes longer.
"""

from collections.abc import Iterator, Sequence
from ctypes import CDLL, c_double, c_int, c_long, c_uint64, c_ulong
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from lab.core.errors import WorkFailed
from lab.core.paths import LAYOUT
from lab.core.steps import duration, run_logged, say, step

SOURCE = Path(__file__).with_name("reads.c")
GIB = 1 << 30
# The sizes of pages, by whether they are huge.
PAGES = {True: "2M", False: "4K"}
# The kinds of reads, by whether each needs the result of the one before.
KINDS = {False: "random", True: "dependent"}
READS = 20_000_000
# Memory that is to stay free; and the time of a repetition, and of setting up a GiB.
SPARE = 2 * GIB
REPEAT_S, GIB_S = 2.5, 1.0
# At least this share of the memory has to be mapped as asked for.
SHARE = 0.95


def library() -> CDLL:
    """Compile and load reads.c. WorkFailed: that fails."""
    directory = LAYOUT.work / "native"
    directory.mkdir(parents=True, exist_ok=True)
    command = ("gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", "reads.so", str(SOURCE))
    run_logged("compiling reads.c", command, LAYOUT.log / "native.log", directory)
    found = CDLL(str(directory / "reads.so"))
    found.set_up_reads.argtypes = [c_ulong, c_int]
    found.huge_bytes.restype = c_long
    found.read_all.argtypes, found.read_all.restype = [c_ulong, c_int, c_uint64], c_double
    return found


def fitting(sizes: Sequence[int], free: int) -> list[int]:
    """Those of SIZES, in GiB, that this machine has the memory for; say which it has not."""
    small = [gib for gib in sizes if gib * GIB + SPARE <= free]
    if large := [str(gib) for gib in sizes if gib not in small]:
        say(f"native: no reads in {' and '.join(large)} GiB: {free // GIB} GiB are free")
    return small


def check_pages(huge: int, size: int, page: str) -> None:
    """WorkFailed: of SIZE bytes, HUGE are mapped by huge pages, and PAGE says other ones."""
    right = huge if page == PAGES[True] else size - huge
    if huge < 0 or right < SHARE * size:
        raise WorkFailed(
            f"native: {huge >> 20} of {size >> 20} MiB are mapped by huge pages, not all by {page}:"
            " see /sys/kernel/mm/transparent_hugepage/enabled"
        )


def passes(found: Any, gib: int, huge: bool, repeats: int) -> Iterator[tuple[str, float]]:
    """Kinds of reads, and ns per read. WorkFailed: there is no such memory."""
    if found.set_up_reads(gib * GIB, huge):
        raise WorkFailed(f"native: {gib} GiB by pages of {PAGES[huge]} cannot be had")
    try:
        check_pages(found.huge_bytes(), gib * GIB, PAGES[huge])
        for repeat, dependent in product(range(repeats), KINDS):
            yield KINDS[dependent], found.read_all(READS, dependent, repeat + 1) / READS
    finally:
        found.tear_down_reads()


def measure(sizes: Sequence[int], repeats: int, which: dict[str, Any]) -> list[dict[str, Any]]:
    """A record for each size, kind of reads and size of pages. WHICH: the machine.

    What memory cannot be had for, or only by other pages, is left out and said to be. WorkFailed:
    the code does not compile.
    """
    records: list[dict[str, Any]] = []
    sizes = fitting(sizes, psutil.virtual_memory().available)
    found = library() if sizes else None
    left = [2 * (gib * GIB_S + repeats * REPEAT_S) for gib in sizes]
    for number, gib in enumerate(sizes):
        with step(f"native: reads in {gib} GiB", f"{duration(sum(left[number:]))} for all"):
            for huge, page in PAGES.items():
                times: dict[str, list[float]] = {kind: [] for kind in KINDS.values()}
                try:
                    for kind, ns in passes(found, gib, huge, repeats):
                        times[kind].append(ns)
                except WorkFailed as error:
                    say(f"{error}; left out")
                    continue
                for kind, ns_of in times.items():
                    values = (median(ns_of), min(ns_of), max(ns_of))
                    names = ("ns_per_read", "lowest_ns", "highest_ns")
                    rounded = [round(value, 2) for value in values]
                    record = {"gib": gib, "reads": kind, "page": page, "passes": repeats}
                    records.append(which | record | dict(zip(names, rounded, strict=True)))
    return records
