# SPDX-License-Identifier: GPL-2.0-only
"""What sections say about figures: the clock that measured them, kernels, modes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.machines.paging import Mode
from lab.results import notation

SIMULATED = ("vmx-bochs",)


def clock(machine: str) -> str:
    return "simulated time" if machine in SIMULATED else "wall-clock time"


def simulated(machine: str) -> str:
    """The word that stands before a unit of time."""
    return "simulated " if machine in SIMULATED else ""


def mode(record: Any) -> str:
    of = Mode(record["ept"], record["tdp_mmu"], record.get("pml", True))
    return notation.mode_of(record["machine"], of)


# Keys that all lines of a figure may have in common, and the words for their values.
FACTS: Mapping[str, Callable[[Any], str]] = {
    "qemu": str,
    "vcpus": lambda count: f"{count} vCPUs",
    "bytes_per_vcpu": lambda count: f"{notation.size(count)} per vCPU",
    "backing": str,
    "initially_all_set": lambda on: f"{'' if on else 'without '}initially-all-set",
}


def of(records: Sequence[Any], *more: str) -> str:
    """The machine and kernels of RECORDS, everything that they have in common, and MORE."""
    machine = records[0]["machine"]
    found = [f"{machine} ({clock(machine)})"]
    # Old lines have no kernel_version, and lines of `lab cost` have no kernel.
    versions = [one.get("kernel_version", one.get("kernel", "series")) for one in records]
    found.append(f"kernels {', '.join(dict.fromkeys(versions))}")
    if all("tdp_mmu" in one for one in records) and len(modes := {*map(mode, records)}) == 1:
        found += modes
    for name, said in FACTS.items():
        values = {one.get(name) for one in records}
        found += map(said, values if len(values) == 1 and None not in values else ())
    return ", ".join([*found, *more])
