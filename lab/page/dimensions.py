# SPDX-License-Identifier: GPL-2.0-only
"""What sections say about a figure: whose clock it is by, which kernels, in which mode."""

from collections.abc import Iterable
from typing import Any

from lab.machines.paging import Mode
from lab.results import tables

SIMULATED = ("vmx-bochs",)


def clock(machine: str) -> str:
    return "simulated time" if machine in SIMULATED else "wall-clock time"


def versions(records: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(record["kernel_version"] for record in records))


def simulated(machine: str) -> str:
    """What stands before a unit of time."""
    return "simulated " if machine in SIMULATED else ""


def mode(record: Any) -> str:
    of = Mode(record["ept"], record["tdp_mmu"], record.get("pml", True))
    return tables.mode_of(record["machine"], of)
