# SPDX-License-Identifier: GPL-2.0-only
"""The figures that come first: what a guest, and the thread that migrates it, pay for splitting.

The summary of `make bench` and the first screen of the report are made of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lab.machines.paging import Mode
from lab.page import dimensions, pictures
from lab.page.pictures import Style
from lab.results import notation, tables
from lab.results.jsonl import DIRTY_BITS, Key, Measurement
from lab.results.tables import Row, Times


@dataclass(frozen=True)
class Way:
    """A kernel and its settings. name: for readers who know neither. style: its colour.

    dirty_bits: the values of dirty_bits, the first that was measured. On a host it is recorded as
    it was set.
    """

    name: str
    style: Style
    kernel: str
    eager: bool
    dirty_bits: tuple[str, ...] = (notation.OFF, DIRTY_BITS[2])


LAZY = Way("unpatched, splits lazily", pictures.LAZY, "base", False)
UNPATCHED = Way("unpatched, splits eagerly", pictures.UNPATCHED, "base", True)
FIRST_WRITE = Way("N: splits on first write", pictures.FIRST_WRITE, "series", False)
EAGER = Way("Y: splits eagerly", pictures.EAGER, "series", True)
BITS = Way("Y, logs by Dirty bits", pictures.BITS, "series", True, (notation.ON,))
BITS_LAZY = Way("N, logs by Dirty bits", pictures.BITS_LAZY, "series", False, (notation.ON,))
UNGATED = Way("ungated baseline, Y", pictures.UNGATED, "peer", True)
WAYS = (LAZY, UNPATCHED, UNGATED, FIRST_WRITE, EAGER, BITS_LAZY, BITS)
# Those that say most: the summary and the first screen have no others.
MAIN_WAYS = (LAZY, FIRST_WRITE, EAGER, BITS)

# All paging modes, in the order in which they are shown.
MODES = tuple(
    Mode(ept, tdp_mmu, pml)
    for ept, tdp_mmu, pml in (
        (True, False, True),
        (False, False, True),
        (True, True, True),
        (True, False, False),
        (True, True, False),
    )
)


def mode_name(machine: str, mode: Mode) -> str:
    """The name of a paging mode, for readers who do not know KVM's parameters."""
    if not mode.ept:
        return "shadow paging"
    name = "NPT" if machine == "svm-qemu" else "EPT"
    return f"{name}{', TDP MMU' if mode.tdp_mmu else ''}{'' if mode.pml else ' without PML'}"


def clock(machine: str) -> str:
    """Where the times of MACHINE come from, and what they are worth."""
    if machine in dimensions.SIMULATED:
        return f"simulated time of {machine} (no caches, no TLBs)"
    if machine == "svm-qemu":
        return f"wall-clock time of the emulator {machine}, for orientation only"
    return f"wall-clock time of {'this host' if machine == 'host' else machine}"


def _vm(key: Key) -> Key:
    """KEY without what is compared within a VM: kernel, paging mode, settings and phase."""
    mode: dict[str, Any] = {"ept": False, "tdp_mmu": False, "pml": True}
    settings: dict[str, Any] = {"eager": False, "dirty_bits": notation.OFF}
    return replace(key, kernel="series", phase="", iteration=None, **mode, **settings)


@dataclass(frozen=True)
class Compared:
    """Results of one VM and load. vm: its key, as _vm() makes it. versions: of the kernels."""

    vm: Key
    times: Times
    versions: tuple[str, ...]

    @property
    def headline(self) -> Row:
        """The writes that are the first to pay for splitting."""
        return tables.headline(self.vm.initially_all_set)

    @property
    def splitting(self) -> Row:
        """The call in which eager splitting does its work."""
        return tables.FIRST_CLEAR if self.vm.initially_all_set else tables.ENABLING

    @cached_property
    def modes(self) -> list[Mode]:
        """The paging modes of which something was measured."""
        seen = {key.mode for key in self.times if _vm(key) == self.vm}
        return [mode for mode in MODES if mode in seen]

    def key(self, mode: Mode, way: Way, row: Row) -> Key | None:
        """What was measured of ROW; None if nothing was."""
        key = replace(
            self.vm,
            kernel=way.kernel,
            ept=mode.ept,
            tdp_mmu=mode.tdp_mmu,
            pml=mode.pml,
            eager=way.eager,
            phase=row.phase,
            iteration=row.iteration,
        )
        keys = (replace(key, dirty_bits=dirty_bits) for dirty_bits in way.dirty_bits)
        return next((one for one in keys if one in self.times), None)

    def seconds(self, mode: Mode, way: Way, row: Row) -> float | None:
        key = self.key(mode, way, row)
        return None if key is None else self.times[key]

    def unlogged(self, mode: Mode) -> float | None:
        """The time of the writes without dirty logging, the shortest that was measured."""
        for way in (FIRST_WRITE, EAGER, LAZY, UNPATCHED):
            if key := self.key(mode, way, self.headline):
                return tables.unlogged(key, self.times)
        return None

    def ways(self, row: Row, ways: Iterable[Way] = WAYS) -> list[Way]:
        """Those of WAYS of which ROW was measured in any mode."""
        return [w for w in ways if any(self.key(mode, w, row) for mode in self.modes)]

    @property
    def guest(self) -> str:
        """The VM in words."""
        vm = self.vm
        vcpu = "vCPU" if vm.vcpus == 1 else "vCPUs"
        return f"{vm.vcpus} {vcpu} x {notation.size(vm.bytes_per_vcpu)}"

    @property
    def written(self) -> str:
        percent = self.vm.write_percent
        return "all" if percent == 100 else "none" if percent == 0 else f"{percent}%"


def _usual(key: Key) -> bool:
    """Whether a measurement is of vCPUs that all write, page by page, in the first cycle."""
    return key.pattern == notation.PAGES and key.idle == 0 and key.cycle == 1


def _rank(vm: Key, count: int) -> tuple[bool, bool, int, int, int]:
    """An order of VMs: the last one is the one to show first."""
    is_usual = vm.vcpus == tables.BASE_VCPUS
    return (vm.initially_all_set, is_usual, vm.write_percent, vm.vcpus, count)


def all_vms(measurements: Iterable[Measurement]) -> list[Compared]:
    """The VMs and loads that were measured, the one to show first in front.

    VMs that were logged several times come last: their first cycle is there to compare the later
    ones with.
    """
    every = list(measurements)
    again = {replace(_vm(one.key), cycle=1) for one in every if one.key.cycle > 1}
    found = [one for one in every if _usual(one.key)]
    times = tables.times_of(found)
    versions = tuple(dict.fromkeys(one.kernel_version for one in found))
    counts: dict[Key, int] = {}
    for key in times:
        vm = _vm(key)
        row = tables.headline(vm.initially_all_set)
        if (key.phase, key.iteration) == (row.phase, row.iteration):
            counts[vm] = counts.get(vm, 0) + 1
    order = sorted(counts, key=lambda vm: (vm not in again, _rank(vm, counts[vm])), reverse=True)
    return [Compared(vm, times, versions) for vm in order]


def first(measurements: Iterable[Measurement]) -> Compared | None:
    """The VM and load to show first; None if no writes were measured that pay for splitting."""
    return next(iter(all_vms(measurements)), None)


def factors(times: Mapping[Way, float]) -> Iterator[tuple[Way, float | None]]:
    """For each way how many times faster it is than the first one; for that, None."""
    base: float | None = None
    for way, seconds in times.items():
        yield way, (base / seconds if base and seconds else None)
        base = seconds if base is None else base


def factor(value: float | None) -> str:
    """How many times faster, with two digits at most where that says enough."""
    if value is None:
        return ""
    return f"{value:.0f}x" if value >= 9.5 else f"{value:.1f}x"
