# SPDX-License-Identifier: GPL-2.0-only
"""What a boot of `lab tracking` brings back, with figures that reach all goals or miss one."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lab.machines.paging import Mode
from lab.measure import tracking as measure
from lab.results import tracking
from lab.results.notation import MIB

# Seconds of each load to populate, and in iterations 1 and 2, of a series that reaches all goals.
TIMES = {
    tracking.PLAIN_WRITES: (0.030, 0.001, 0.030),
    tracking.PLAIN_READS: (0.030, 0.001, 0.003),
    tracking.WRITES: (0.031, 0.001, 0.001),
    tracking.READS: (0.031, 0.001, 0.0031),
    tracking.SNAPSHOTS: (0.060, 0.002, 0.002),
}


def series(mode: Mode, dirty_bits: str) -> measure.TrackingBoot:
    """A boot of the series with N, and with these settings."""
    return measure.TrackingBoot("series", mode, (measure.Setting("N", dirty_bits),))


SERIES = series(Mode(False), "on")


def run_text(load: str, mode: Mode, wrong: Mapping[str, Any]) -> str:
    """A file as dirty_log_perf_test -j writes it. WRONG: what is not as in TIMES, or as usual."""
    common = {"ept": mode.ept, "tdp_mmu": mode.tdp_mmu, "eager": False} | {
        "vcpus": 8,
        "bytes_per_vcpu": 4 * MIB,
    }
    populate, first, second = wrong.get(load, TIMES[load])
    lines: list[dict[str, Any]] = [
        {"record": "phase", "phase": "populate", "iteration": None, "seconds": populate},
        {"record": "memory", "phase": "populate", "iteration": None}
        | {"pages_2m": wrong.get("huge", 16), "page_tables": 3},
    ]
    for iteration, seconds in enumerate((first, second, second), 1):
        where = {"iteration": iteration}
        lines.append(
            {"record": "phase", "phase": "dirty", "seconds": seconds, **where}
            | {"writes": 512, "kvm_stats": {"pf_taken": 7}}
        )
        logged = wrong.get("logged", 0) if iteration == 1 else 512
        lines.append(
            {"record": "phase", "phase": "get", "seconds": 1e-4, "logged": logged, **where}
        )
        lines.append(
            {"record": "memory", "phase": "dirty", "pages_2m": 15, "page_tables": 4} | where
        )
    lines.append({"record": "other"})
    return "".join(f"{json.dumps(common | line)}\n" for line in lines)


def files(boot: measure.TrackingBoot, **wrong: Any) -> dict[str, bytes]:
    """What a boot with a single setting brings back."""
    (setting,) = boot.settings
    found = {
        f"{run}.json": run_text(load.name, boot.mode, wrong).encode()
        for load in measure.LOADS
        for run in load.runs(setting)
    }
    return {"version": b"6.12.117-series\n", **found}


def records(boot: measure.TrackingBoot | None = None, **wrong: Any) -> Iterator[dict[str, Any]]:
    """The records of BOOT, or of SERIES."""
    yield from measure.collect(boot or SERIES, files(boot or SERIES, **wrong))
