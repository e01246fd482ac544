# SPDX-License-Identifier: GPL-2.0-only
"""The records of a migration, from the notes of the guest and the events of QEMU.

There are three phases: "before" the migration; "precopy", in which memory is sent while the guest
works; and "blackout", in which it is stopped. See docs/migration.md, "How to read it".
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.core.errors import WorkFailed
from lab.measure.migration.load import WINDOW, Load, Notes

# The first window to count: by then all vCPUs have begun to work, and have settled.
SETTLED = 5
# How many windows the stop of the guest may be away from QEMU's event. QEMU reports it when all
# vCPUs have stopped, and the clocks of guest and host may differ a little.
NEAR = 3
BACKING = "anonymous_hugetlb_2mb"


@dataclass(frozen=True)
class Events:
    """The events of QEMU. begin, stop, resume, end: times by the host's clock, seconds.

    passes: the times at which passes over the memory began. answer: the answer to query-migrate.
    """

    begin: float
    passes: list[float]
    stop: float
    end: float
    resume: float
    answer: Mapping[str, Any]


def _time(event: Mapping[str, Any]) -> float:
    stamp = event["timestamp"]
    return float(stamp["seconds"] + stamp["microseconds"] / 1e6)


def parse_events(text: str) -> Events:
    """Read the log of QEMU's monitor. WorkFailed: an event or an answer is missing."""
    try:
        lines = [o for o in map(json.loads, text.splitlines()) if isinstance(o, dict)]
        events = [one for one in lines if "event" in one]
        answer = next(o["return"] for o in lines if o.get("id") == "query-migrate")
        status = {o["data"]["status"]: _time(o) for o in events if o["event"] == "MIGRATION"}
        first = {one["event"]: _time(one) for one in reversed(events)}
        passes = [_time(one) for one in events if one["event"] == "MIGRATION_PASS"]
        begin, end = status["setup"], status["completed"]
        return Events(begin, passes, first["STOP"], end, first["RESUME"], answer)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise WorkFailed(
            f"QEMU's monitor did not report a complete migration: {error!r}"
        ) from error


def parse_stats(text: str) -> dict[str, dict[str, int]]:
    """KVM's statistics by name, "before" and "after" the migration."""
    found: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        when, name, value = line.split()
        found.setdefault(when, {})[name] = int(value)
    return found


@dataclass(frozen=True)
class Migration:
    """A migration.

    source, restored: the notes of the guest that continued, and of the copy restored from the file.
    by_dirty_bits: whether its pages should have been logged by Dirty bits.
    """

    load: Load
    events: Events
    source: Notes
    restored: Notes
    stats: Mapping[str, Mapping[str, int]]
    by_dirty_bits: bool = False

    def window_at(self, time: float) -> int:
        return int((time - self.source.start) * 1e6 // self.source.window_us)

    @property
    def first(self) -> int:
        return self.window_at(self.events.begin)

    @property
    def stop(self) -> int:
        return self.window_at(self.events.stop)

    def checked(self, vcpu: int) -> int:
        """The least number of reads by each vCPU of the restored guest."""
        before = int(self.source.vcpus[vcpu].windows["accesses"][: self.stop + 1].sum())
        copy = self.restored.vcpus[vcpu]
        share = self.load.reads / (self.load.reads + self.load.writes)
        return int((copy.reads + copy.writes - before) * share)

    def check(self) -> None:
        """WorkFailed: the migration was not as it should be, so its figures would mislead."""
        self._check_guests()
        self._check_clocks()
        self._check_settings()

    def _check_guests(self) -> None:
        """WorkFailed: another guest ran, or its memory was not restored as it was."""
        notes = (self.source, self.restored)
        if any((len(n.vcpus), n.pages) != (self.load.vcpus, self.load.pages) for n in notes):
            raise WorkFailed("the guest that ran is not the guest that was requested")
        lost = {"in the source": self.source.wrong, "after restoring": self.restored.wrong}
        for where, wrong in lost.items():
            if wrong:
                raise WorkFailed(f"{wrong} accesses found a page without its last write, {where}")
        behind = [n for n in range(self.load.vcpus) if self.checked(n) < self.load.pages]
        if behind:
            raise WorkFailed(f"vCPU {behind[0]} of the restored guest did not see all its memory")

    def _check_clocks(self) -> None:
        """WorkFailed: the notes do not cover the migration."""
        if not SETTLED < self.first < self.stop - NEAR:
            raise WorkFailed("the clocks of guest and host do not agree, or nothing was measured")
        noted = min(len(vcpu.windows) for vcpu in self.source.vcpus)
        if noted <= self.stop + NEAR:
            raise WorkFailed(
                f"the guest was stopped in window {self.stop}, but noted only {noted}: the"
                " migration took too long (run nothing beside it), or the clocks of guest and"
                " host do not agree"
            )

    def _check_settings(self) -> None:
        """WorkFailed: KVM did not log as it should have, or did not map huge pages."""
        if bool(self.stats["before"].get("dirty_bits")) != self.by_dirty_bits:
            raise WorkFailed(f"dirty_bits did not take effect: it was to be {self.by_dirty_bits}")
        huge = self.stats["before"].get("pages_2m", 0)
        if huge < self.load.vcpus * self.load.mib_per_vcpu // 2:
            raise WorkFailed(f"{huge} huge pages were mapped before the migration: not all were")


def _windows(migration: Migration, first: int, last: int) -> dict[str, NDArray[Any]]:
    """The windows from FIRST to before LAST, of all vCPUs together: sums, longest in microseconds.

    Leaves out accesses that end after LAST. Windows that a vCPU has not noted were empty.
    """
    us, khz = migration.source.window_us, migration.source.tsc_khz
    each = np.zeros((len(migration.source.vcpus), last - first), WINDOW)
    for mine, vcpu in zip(each, migration.source.vcpus, strict=True):
        part = vcpu.windows[first:last]
        mine[: len(part)] = part
    found = {name: each[name].sum(axis=0) for name in ("accesses", "requests")}
    left_us = (last - first - 1 - np.arange(last - first)) * us
    for name in ("longest_stall", "longest_request"):
        longest_us = each[name] / khz * 1e3
        found[name] = np.where(longest_us <= left_us, longest_us, 0.0).max(axis=0).round(1)
    return found


def _phase(migration: Migration, name: str, first: int, last: int) -> dict[str, Any]:
    """The record of a phase in which the guest works: windows from FIRST to before LAST."""
    us = migration.source.window_us
    found = _windows(migration, first, last)
    requests, seconds = found["longest_request"], (last - first) * us / 1e6
    return {
        "record": "phase",
        "phase": name,
        "begin_us": first * us,
        "seconds": seconds,
        "requests": int(found["requests"].sum()),
        "requests_per_second": round(float(found["requests"].sum()) / seconds, 1),
        "accesses_per_second": round(float(found["accesses"].sum()) / seconds, 1),
        "lowest_per_window": int(found["requests"].min()),
        "longest_stall_us": float(found["longest_stall"].max()),
        "longest_request_us": float(requests.max()),
        "longest_request_at_us": (first + int(requests.argmax())) * us,
    }


def _blackout(migration: Migration) -> dict[str, Any]:
    """The record of the stop of the guest: the longest stall of any vCPU that began there."""
    us = migration.source.window_us
    near = slice(migration.stop - NEAR, migration.stop + NEAR + 1)
    ticks = max(int(vcpu.windows["longest_stall"][near].max()) for vcpu in migration.source.vcpus)
    return {
        "record": "phase",
        "phase": "blackout",
        "begin_us": migration.stop * us,
        "seconds": migration.events.resume - migration.events.stop,
        "longest_stall_us": round(ticks / migration.source.tsc_khz * 1e3, 1),
    }


def _migration(migration: Migration) -> dict[str, Any]:
    events, answer = migration.events, migration.events.answer
    us = migration.source.start
    return {
        "record": "migration",
        "seconds": round(events.end - events.begin, 6),
        "downtime_seconds": answer["downtime"] / 1e3,
        "passes": answer["ram"]["dirty-sync-count"],
        "sent_bytes": answer["ram"]["transferred"],
        "begin_us": round((events.begin - us) * 1e6),
        "pass_us": [round((each - us) * 1e6) for each in events.passes],
        "stop_us": round((events.stop - us) * 1e6),
        "resume_us": round((events.resume - us) * 1e6),
        "restored_reads": [migration.checked(n) for n in range(migration.load.vcpus)],
        "wrong_pages": migration.source.wrong + migration.restored.wrong,
        "kvm_stats_before": dict(migration.stats["before"]),
        "kvm_stats_after": dict(migration.stats["after"]),
    }


def _timeline(migration: Migration) -> dict[str, Any]:
    """The timeline: all windows before the stop of the guest, of all vCPUs together."""
    found = _windows(migration, 0, migration.stop)
    return {
        "record": "timeline",
        "requests": found["requests"].tolist(),
        "longest_request_us": found["longest_request"].tolist(),
        "longest_stall_us": found["longest_stall"].tolist(),
    }


def records(migration: Migration) -> Iterator[dict[str, Any]]:
    """The records of a migration. Raises what Migration.check() raises."""
    migration.check()
    load = migration.load
    dimensions = {
        "vcpus": load.vcpus,
        "bytes_per_vcpu": load.mib_per_vcpu << 20,
        "backing": BACKING,
        "rate": load.rate,
        "reads": load.reads,
        "writes": load.writes,
        "window_us": migration.source.window_us,
        "tsc_khz": migration.source.tsc_khz,
    }
    found = [
        _migration(migration),
        _phase(migration, "before", SETTLED, migration.first),
        _phase(migration, "precopy", migration.first, migration.stop - NEAR),
        _blackout(migration),
        _timeline(migration),
    ]
    for one in found:
        yield {"record": one["record"]} | dimensions | one
