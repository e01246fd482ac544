# SPDX-License-Identifier: GPL-2.0-only
"""How tables and messages write figures, settings and paging modes."""

from lab.machines.paging import Mode
from lab.results.jsonl import DIRTY_BITS, PATTERNS, Key

# Notes on the clock that measured a time.
LOCKSTEP = (
    "simulated time: work, faults and waiting for locks count; caches, TLBs and the time"
    " an interrupt takes are not modelled"
)
WALL_CLOCK = "wall-clock time of an emulator or a shared host: for orientation, varies by run"

OFF, ON, *_ = DIRTY_BITS
PAGES, REGIONS, CLEAN = PATTERNS
# A figure that was not measured.
NOTHING = "-"
MIB = 1 << 20


def _precision(value: float) -> int:
    # Not 10 and 1: 9.998 with two decimals would be 10.00.
    return 1 if value >= 9.995 else 2 if value >= 0.9995 else 3


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds, with about three digits."""
    if seconds is None:
        return NOTHING
    return f"{seconds * 1000:.{_precision(seconds * 1000)}f}"


def ratio(over: float | None, under: float | None) -> str:
    """OVER/UNDER with about three digits."""
    if over is None or not under:
        return NOTHING
    value = over / under
    return f"{value:.0f}" if value >= 100 else f"{value:.{_precision(value)}f}"


def percent(now: float | None, before: float | None) -> str:
    """By how many percent NOW exceeds BEFORE, with a sign."""
    if now is None or not before:
        return NOTHING
    return f"{100 * (now / before - 1):+.2f}%"


def letter(flag: bool) -> str:
    return "Y" if flag else "N"


def size(count: int) -> str:
    return f"{count // MIB} MiB" if count % MIB == 0 else f"{count // 1024} KiB"


def writes(write_percent: int) -> str:
    return "all writes" if write_percent == 100 else f"{write_percent}% writes"


def paging(machine: str, ept: bool) -> str:
    """The paging mode, with the name that it has on the processors of a machine."""
    return f"{'npt' if machine == 'svm-qemu' else 'ept'}={letter(ept)}"


def mode_of(machine: str, mode: Mode | Key) -> str:
    """The paging mode, with tdp_mmu and pml if they are not as usual."""
    tdp_mmu = ", tdp_mmu=Y" if mode.tdp_mmu else ""
    return f"{paging(machine, mode.ept)}{tdp_mmu}{'' if mode.pml else ', pml=N'}"


def paging_of(key: Key) -> str:
    return mode_of(key.machine, key)


def dirty_bits_of(key: Key) -> str:
    """dirty_bits, unless it is off."""
    return "" if key.dirty_bits == OFF else f", dirty_bits={key.dirty_bits}"


def pattern_of(key: Key) -> str:
    """Which accesses are writes, if it matters and is not as usual."""
    mixed = 0 < key.write_percent < 100
    said = {REGIONS: " by regions of 2 MiB" if mixed else "", CLEAN: ", clean gPTEs"}
    return said.get(key.pattern, "")


def started_of(key: Key) -> str:
    """Whether logging is enabled before or after memory is populated, if it is not as usual."""
    tracked = ", logged from the start" if key.tracked else ""
    return f"{tracked}{', populated by reads' if key.read_first else ''}"


def cycle_of(key: Key) -> str:
    """How often logging was enabled, if it was more than once."""
    return "" if key.cycle == 1 else f", cycle {key.cycle}"


def load_label(key: Key) -> str:
    """How dirty pages are logged, and what vCPUs write."""
    init = "" if key.initially_all_set or key.tracked else ", without initially-all-set"
    mix = f"{writes(key.write_percent)}{pattern_of(key)}"
    return f"{paging_of(key)}{dirty_bits_of(key)}, {mix}{init}{started_of(key)}{cycle_of(key)}"


def vm_label(key: Key) -> str:
    return f"{load_label(key)}, {key.vcpus} vCPUs x {size(key.bytes_per_vcpu)}"
