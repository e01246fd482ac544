# SPDX-License-Identifier: GPL-2.0-only
"""What sections say about a figure: whose clock it is by, which kernels, what was written."""

from collections.abc import Iterable
from typing import Any

SIMULATED = ("vmx-bochs",)


def clock(machine: str) -> str:
    return "simulated time" if machine in SIMULATED else "wall-clock time"


def versions(records: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(record["kernel_version"] for record in records))


def mix(write_percent: int) -> str:
    return "all writes" if write_percent == 100 else f"{write_percent}% writes"
