# SPDX-License-Identifier: GPL-2.0-only
"""Dirty bits against write protection: what a round of dirty logging costs, by what is written.

A round is what comes again and again while a guest is migrated: its vCPUs write, then the log is
read (GET), then cleared (CLEAR). The crossing says below which share of pages that are written
looking at all of them is dearer than the faults.

Taken is the second round, the first after a CLEAR: the sum of the three phases, though they are not
spent by the same threads; processor time counts that of vCPUs for each. What is computed for more
memory, all of it idle, is the time that GET takes for an idle page table, times these.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lab.results.jsonl import Key
from lab.results.notation import OFF, ON, PAGES
from lab.results.tables import BASE_VCPUS, Times

ROUND = 2
PHASES = ("dirty", "get", "clear")
PAGE = 4096
# What a page table maps.
TABLE = 512 * PAGE
# Fewer write percentages are no curve.
LEAST_POINTS = 3


@dataclass(frozen=True)
class Round:
    """One round of a VM, seconds. keys: of the measurements, in the order of PHASES."""

    write_percent: int
    dirty: float
    get: float
    clear: float
    keys: tuple[Key, ...]

    @property
    def total(self) -> float:
        return self.busy(1)

    def busy(self, vcpus: int) -> float:
        """Processor time, if VCPUS are busy for as long as the last one of them."""
        return vcpus * self.dirty + self.get + self.clear


class IdleTable(NamedTuple):
    """How long a GET takes for an idle page table, seconds: by write protection, by Dirty bits."""

    protected: float
    bits: float


@dataclass(frozen=True)
class Tradeoff:
    """A mode that was measured with write protection and with Dirty bits.

    like: what their keys have in common, but for dirty_bits. protected, bits: rounds with the
    same write percentages, ascending. idle: None if it was not measured.
    """

    like: Key
    protected: Sequence[Round]
    bits: Sequence[Round]
    idle: IdleTable | None = None

    @property
    def pages(self) -> int:
        return self.like.vcpus * self.like.bytes_per_vcpu // PAGE

    @property
    def pairs(self) -> list[tuple[Round, Round]]:
        return list(zip(self.protected, self.bits, strict=True))

    def crossing(self, vcpus: int = 1) -> float | None:
        """The write percentage from which on Dirty bits are cheaper, None if they never are.

        By time that passes, or by processor time of so many vCPUs and the thread that asks.
        Between two percentages that were measured both are taken for straight lines.
        """
        apart = [(a.write_percent, b.busy(vcpus) - a.busy(vcpus)) for a, b in self.pairs]
        dearer = [index for index, (_, difference) in enumerate(apart) if difference > 0]
        if not dearer:
            return float(apart[0][0])
        if dearer[-1] == len(apart) - 1:
            return None
        (low, above), (high, below) = apart[dearer[-1]], apart[dearer[-1] + 1]
        return low + (high - low) * above / (above - below)

    def seconds(self, bits: bool, size: int) -> float:
        """A round of a VM with SIZE bytes that writes to what the measured VM has. Computed."""
        assert self.idle
        if bits:
            busiest, idle_s = self.bits[-1], self.idle.bits
        else:
            busiest, idle_s = self.protected[-1], self.idle.protected
        return busiest.total + idle_s * (size // TABLE - self.pages * PAGE // TABLE)

    def crossing_idle(self) -> float | None:
        """As crossing(), by time that passes, of a VM whose other memory is idle. Computed."""
        if not self.idle:
            return None
        looking = (self.idle.bits - self.idle.protected) * PAGE / TABLE
        gain = (self.protected[-1].total - self.bits[-1].total) / self.pages
        return 100 * max(looking, 0) / (looking + gain) if looking + gain > 0 else None


def _rounds(like: Key, mixes: Iterable[int], times: Times) -> dict[int, Round]:
    """By write percentage, those of this VM of which all was measured."""
    found = {}
    for mix in sorted(mixes):
        one = replace(like, write_percent=mix, iteration=ROUND)
        keys = tuple(replace(one, phase=phase) for phase in PHASES)
        if all(key in times for key in keys):
            dirty, get, clear = (times[key] for key in keys)
            found[mix] = Round(mix, dirty, get, clear, keys)
    return found


def _side(like: Key, dirty_bits: str) -> Key:
    """What is measured with this value: a VM that logs by Dirty bits does without PML."""
    return replace(
        like, dirty_bits=dirty_bits, pml=like.pml and (dirty_bits == OFF or not like.ept)
    )


def _idle_table(like: Key, times: Times) -> IdleTable | None:
    """The difference between VMs that have different numbers of idle page tables, in the last GET.

    None unless there are two such VMs for both ways of logging.
    """
    found: list[float] = []
    idle = {key: seconds for key, seconds in times.items() if key.idle and key.phase == "get"}
    for value in (OFF, ON):
        gets = {}
        for key, seconds in idle.items():
            one = replace(key, write_percent=0, phase="", iteration=None, vcpus=1, bytes_per_vcpu=1)
            same = replace(_side(like, value), vcpus=1, bytes_per_vcpu=1, idle=key.idle)
            if one == same:
                gets[key.idle * key.bytes_per_vcpu // TABLE, key.iteration or 0] = seconds
        steady = max((iteration for _, iteration in gets), default=0)
        tables = sorted(tables for tables, iteration in gets if iteration == steady)
        if len(tables) < 2:
            return None
        least, most = tables[0], tables[-1]
        found.append((gets[most, steady] - gets[least, steady]) / (most - least))
    return IdleTable(*found)


def _vm(key: Key) -> tuple[str, int, int, str]:
    return key.machine, key.vcpus, key.bytes_per_vcpu, key.backing


def of_one_vm(found: Sequence[Tradeoff]) -> list[Tradeoff]:
    """Those that differ by their mode only: of the VM with BASE_VCPUS, or else of the first."""
    usual = [mode for mode in found if mode.like.vcpus == BASE_VCPUS]
    first = (usual or found)[:1]
    return [mode for mode in found for one in first if _vm(mode.like) == _vm(one.like)]


def find(times: Times) -> list[Tradeoff]:
    """Every mode of the series that was measured both ways, over enough write percentages.

    With PML, that is the other way.
    """
    mixes: dict[Key, set[int]] = {}
    for key in times:
        usual = key.pattern == PAGES and key.initially_all_set and not key.idle
        if key.kernel == "series" and key.eager and usual and key.cycle == 1:
            mode = replace(key, write_percent=0, phase="", iteration=None, dirty_bits=OFF)
            mixes.setdefault(mode, set()).add(key.write_percent)
    found = []
    for like, seen in mixes.items():
        protected, bits = (_rounds(_side(like, value), seen, times) for value in (OFF, ON))
        both = [mix for mix in protected if mix in bits]
        if len(both) >= LEAST_POINTS:
            sides = [protected[mix] for mix in both], [bits[mix] for mix in both]
            found.append(Tradeoff(like, *sides, _idle_table(like, times)))
    return found
