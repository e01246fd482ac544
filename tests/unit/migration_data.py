# SPDX-License-Identifier: GPL-2.0-only
"""A small made-up migration, for the tests: two vCPUs, windows of 10 ms, 50 MHz."""

import json
from typing import Any

import numpy as np

from lab.measure.migration import command, load
from lab.measure.migration.load import Load
from lab.measure.migration.timeline import Migration, parse_events, parse_stats

REAL_WINDOWS = 4096
LOAD = Load(vcpus=2, mib_per_vcpu=2, rate=1000, reads=63, writes=1)
# The time at which the first window begins, by the host's clock.
START_S = 1000.25
KHZ = 50_000
TICKS_PER_MS = 50_000
STOP = 40


def _window(index: int, requests: int = 10) -> tuple[int, int, int, int]:
    """A window: accesses, requests, longest stall, longest request. Some of them are slow."""
    if index == 12:
        return 64, 1, 24 * TICKS_PER_MS, 25 * TICKS_PER_MS
    if index == STOP - 5:
        return 640, requests, 500, 75 * TICKS_PER_MS
    if index == STOP:
        return 320, requests // 2, 12 * TICKS_PER_MS, 12 * TICKS_PER_MS
    return 640, requests, 500, TICKS_PER_MS


def notes(total: int = 60, start: int = KHZ * 250, wrong: int = 0, spare: int = 4) -> bytes:
    """The notes of a guest that has noted TOTAL windows, and has memory for some more."""
    # kvm-clock began at 1000 s. The guest read it 0.2 s later, together with this TSC.
    clock = (KHZ * 200, KHZ, 2, 1000, 0, 0, 0, 200_000_000)
    sizes = (LOAD.vcpus, LOAD.pages, total + spare, 10_000)
    found = load.HEADER.pack(load.MAGIC, *sizes, start, *clock).ljust(load.PAGE, b"\0")
    for vcpu in range(LOAD.vcpus):
        windows = [_window(i) for i in range(total)]
        served = sum(window[1] for window in windows)
        noted = load.VCPU.pack(served * 63, served, 0 if vcpu else wrong)
        noted += np.array(windows, load.WINDOW).tobytes()
        found += noted.ljust(load.vcpu_size(total + spare), b"\0")
    return found


def _event(at: float, name: str, **values: Any) -> dict[str, Any]:
    stamp = {"seconds": int(at), "microseconds": round(at % 1 * 1e6)}
    return {"timestamp": stamp, "event": name, "data": values}


def qmp(start: float) -> str:
    """The log of QEMU's monitor for a migration 0.1 s after START."""
    ram = {"dirty-sync-count": 2, "transferred": 5_000_000}
    lines: list[dict[str, Any]] = [
        {"QMP": {"version": {}}},
        {"return": {}, "id": "qmp_capabilities"},
        _event(start + 0.1, "MIGRATION", status="setup"),
        _event(start + 0.101, "MIGRATION_PASS", **{"pass": 1}),
        _event(start + 0.102, "MIGRATION", status="active"),
        _event(start + 0.3, "MIGRATION_PASS", **{"pass": 2}),
        _event(start + 0.405, "STOP"),
        _event(start + 0.412, "MIGRATION", status="completed"),
        _event(start + 0.417, "RESUME"),
        {"return": {"status": "completed", "downtime": 7, "ram": ram}, "id": "query-migrate"},
        _event(start + 0.5, "STOP"),
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


QMP = qmp(START_S)
STATS = """\
before pages_2m 3
before pages_4k 9
before pf_taken 180
after pages_2m 0
after pages_4k 1024
after pf_taken 1000
"""


def migration(
    qmp: str = QMP, source: bytes | None = None, restored: bytes | None = None, stats: str = STATS
) -> Migration:
    """A migration that went well, with other attributes if they are given."""
    return Migration(
        LOAD,
        parse_events(qmp),
        load.parse(source or notes()),
        load.parse(restored or notes(total=80)),
        parse_stats(stats),
    )


def files(tdp: bool = True) -> dict[str, bytes]:
    """The files that come back from a boot with all settings."""
    host = f"version 6.12.1-series\ntdp {'Y' if tdp else 'N'}\ntdp_mmu N\nqemu QEMU 7.2\n"
    found = {"host": host.encode()}
    for setting in (*command.EAGER, command.BITS, command.ASKED):
        found[f"{setting}.qmp"] = QMP.encode()
        found[f"{setting}.source"] = notes()
        found[f"{setting}.restored"] = notes(total=80)
        found[f"{setting}.stats"] = STATS.encode()
    for setting in (command.BITS, command.ASKED):
        found[f"{setting}.stats"] += b"before dirty_bits 1\n"
    return found


def records() -> list[dict[str, Any]]:
    """The records of `lab migrate` for N and Y on vmx-bochs. Y has the figures of N before."""
    boot = command.MigrationBoot("vmx-bochs", "series", True, LOAD, 128)
    found = list(command.collect(boot, files()))
    for one in found:
        if one["eager"] and one.get("phase") == "precopy":
            one["longest_request_us"] = 1000.0
    return found
