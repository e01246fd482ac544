# SPDX-License-Identifier: GPL-2.0-only
"""Small files of results, one of each kind, to test the report with."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from lab.measure import live
from lab.results.files import write_records
from lab.results.jsonl import Measurement, write
from tests.unit import migration_data, tracking_data

MIB = 1 << 20
# Names of files, in the order of the report.
NAMES = tuple(
    f"20260101T000000Z-{what}.jsonl"
    for what in ("vmx-bochs", "live", "tracking", "migrate", "cost", "lock", "crossover", "native")
)
BENCH, LIVE, TRACKING, MIGRATE, COST, LOCK, CROSSOVER, NATIVE = NAMES

# The keys of a dirty memory time.
DIMENSIONS: dict[str, Any] = {
    "machine": "vmx-bochs",
    "kernel": "series",
    "kernel_version": "6.12.117-series",
    "ept": True,
    "tdp_mmu": False,
    "vcpus": 2,
    "bytes_per_vcpu": 2 * MIB,
    "backing": "anonymous_hugetlb_2mb",
    "write_percent": 100,
    "initially_all_set": True,
    "eager": False,
    "phase": "dirty",
    "iteration": 2,
    "seconds": 0.1,
}


def measurement(**values: Any) -> Measurement:
    """A dirty memory time, with other VALUES for some keys."""
    return Measurement(**(DIMENSIONS | values))


def bench(version: str = "6.12.117", slower: float = 1) -> Iterator[Measurement]:
    """Figures of N, Y and the ungated baseline: two numbers of vCPUs, both modes, two mixes."""
    kernels = (("series", False), ("series", True), ("peer", True))
    phases = (("dirty", 2), ("clear", 1), ("clear", 2), ("get", 1), ("enable", None))
    for ept, mix, n, (kernel, eager) in product((True, False), (100, 20), (2, 4), kernels):
        for place, (phase, iteration) in enumerate(phases):
            yield measurement(
                ept=ept,
                write_percent=mix,
                vcpus=n,
                kernel=kernel,
                kernel_version=f"{version}-{kernel}",
                eager=eager,
                phase=phase,
                iteration=iteration,
                seconds=(n * 0.02 * slower if not eager else 0.001) * (place + 1),
            )


def crossover() -> Iterator[Measurement]:
    """Two modes with both ways of logging, over three mixes. GET, or dirty, has the costs.

    Also figures with idle memory: 1 ms for each page table with Dirty bits.
    """
    modes = ((False, True), (True, False))
    for (ept, pml), mix, dirty_bits in product(modes, (0, 10, 100), ("off", "on")):
        seconds = {"dirty": 0.001, "get": 0.0005, "clear": 0.0001 * mix / 100}
        if dirty_bits == "off":
            seconds |= {"dirty": 0.001 + 0.2 * mix / 100, "get": 0.0}
        for phase, time in seconds.items():
            mode = {"ept": ept, "pml": pml, "write_percent": mix, "dirty_bits": dirty_bits}
            yield measurement(**mode, vcpus=8, eager=True, phase=phase, seconds=time)
    for (ept, pml), dirty_bits, idle in product(modes, ("off", "on"), (1, 7)):
        mode = {"ept": ept, "pml": pml, "dirty_bits": dirty_bits, "idle": idle, "vcpus": idle + 1}
        time = idle * 0.001 if dirty_bits == "on" else 0.0
        yield measurement(**mode, eager=True, phase="get", iteration=5, seconds=time)


def live_text(eager: bool, ept: bool = True) -> str:
    """A file as dirty_log_live_perf_test -j writes it, with three phases and four windows."""
    common: dict[str, Any] = {
        "eager": eager,
        "tdp_mmu": False,
        "ept": ept,
        "vcpus": 4,
        "bytes_per_vcpu": 16 * MIB,
        "backing": "anonymous_hugetlb_2mb",
        "write_percent": 100,
        "readers": 1,
        "window_us": 10000,
        "tsc_khz": 50000,
    }
    lines: list[dict[str, Any]] = []
    for kind in ("writer", "reader"):
        for place, phase in enumerate(("baseline", "enable", "logging")):
            stats: dict[str, Any] = {"phase": phase, "iteration": 1 if phase == "logging" else None}
            stats |= {"begin_us": place * 10000.0, "seconds": 0.01, "longest_us": 80.0 + place}
            stats["histogram"] = [[15, 900], [4095, 90], [40000, 1 + place]]
            stats["accesses_per_second"] = 400_000.0 - 90_000 * place
            lines.append({"record": "kind", **common, "kind": kind, **stats})
        lines.append({"record": "dip", **common, "kind": kind, "course": "logging", "lowest": 1})
    lines.append({"record": "vcpu", **common, "kind": "writer", "vcpu": 1})
    for window in range(4):
        counts = {"writer_accesses": 4000 - 900 * window, "reader_accesses": 200}
        where = {"phase": "enable", "iteration": None, "begin_us": window * 10000}
        lines.append({"record": "window", **common, **where, "window": window, **counts})
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def live_records() -> Iterator[dict[str, Any]]:
    """A live file with N, Y and the ungated baseline, only with EPT."""
    for kernel, eager in (("series", False), ("series", True), ("peer", True)):
        origin = {"machine": "vmx-bochs", "kernel": kernel, "kernel_version": f"6.12-{kernel}"}
        yield from live.condense(live_text(eager), origin)


def cost_records() -> Iterator[dict[str, Any]]:
    for ept, (vcpus, mib) in product((True, False), ((1, 32), (1, 128), (1, 4), (2, 4))):
        run = {"machine": "vmx-bochs", "ept": ept, "vcpus": vcpus, "mib_per_vcpu": mib}
        pages = vcpus * mib // 2
        held = {"pages": pages, "held_ns": 80000 * pages, "longest_ns": 90000}
        yield run | held | {"instructions": 4000}


def lock_records() -> Iterator[dict[str, Any]]:
    for ept, mix, n, eager in product((True, False), (100, 20), (2, 4), (False, True)):
        run = {"ept": ept, "vcpus": n, "cpus": n + 1, "write_percent": mix, "eager": eager}
        times = {"seconds": 0.11, "untraced_seconds": 0.1, "vcpu_seconds": 0.2}
        waits = {"waits": 100, "wait_seconds": 0.01 if eager else 0.15}
        yield DIMENSIONS | run | times | waits | {"longest_wait_seconds": 0.001}


def native_records() -> Iterator[dict[str, Any]]:
    times = {"limit": 1000.0, "series": 1500.0, "unpatched": 4500.0}
    like: dict[str, Any] = {"machine": "native", "cpu": "x", "kernel_version": "6.12.1"}
    like |= {"phase": "split", "write_percent": 100, "lowest_ns": 900.0, "highest_ns": 5000.0}
    for cold, gib, code in product((False, True), (1, 16), times):
        yield like | {"cold": cold, "gib": gib, "code": code, "ns_per_2mib": times[code]}


def write_all(directory: Path) -> list[Path]:
    write(directory / BENCH, bench())
    write(directory / CROSSOVER, crossover())
    write_records(directory / LIVE, live_records())
    write_records(directory / TRACKING, tracking_data.records())
    write_records(directory / MIGRATE, migration_data.records())
    write_records(directory / COST, cost_records())
    write_records(directory / LOCK, lock_records())
    write_records(directory / NATIVE, native_records())
    return [directory / name for name in NAMES]
