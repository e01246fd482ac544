# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.tracking: what is run, what is kept, and which goals are missed."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.machines.paging import Mode
from lab.measure import tracking as measure
from lab.page import sections
from lab.results import sources, tracking
from lab.results.files import write_records
from lab.results.notation import MIB
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refusal

SERIES = measure.TrackingBoot("series", Mode(False), (measure.Setting("N", "on"),))
# Seconds of each load to populate, and in iterations 1 and 2, of a series that reaches all goals.
TIMES = {
    tracking.PLAIN_WRITES: (0.030, 0.001, 0.030),
    tracking.PLAIN_READS: (0.030, 0.001, 0.003),
    tracking.WRITES: (0.031, 0.001, 0.001),
    tracking.READS: (0.031, 0.001, 0.0031),
    tracking.SNAPSHOTS: (0.060, 0.002, 0.002),
}


WITH_Y = b'{"record": "phase", "ept": false, "tdp_mmu": false, "eager": true}\n'


def run_text(load: str, wrong: Mapping[str, Any]) -> str:
    """A file as dirty_log_perf_test -j writes it. WRONG: what is not as in TIMES, or as usual."""
    common = {"ept": False, "tdp_mmu": False, "eager": False} | {
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


def files(**wrong: Any) -> dict[str, bytes]:
    """What a boot of SERIES brings back."""
    found = {f"N-on.{load}.json": run_text(load, wrong).encode() for load in TIMES}
    return {"version": b"6.12.117-series\n", **found}


def records(**wrong: Any) -> Iterator[dict[str, Any]]:
    yield from measure.collect(SERIES, files(**wrong))


def test_a_series_that_reaches_all_goals_misses_none() -> None:
    assert tracking.missed([*records()]) == []


@for_each_row(
    "wrong, said",
    ({tracking.WRITES: (0.036, 0, 0)}, "populating by writes takes 1.20 times"),
    ({tracking.READS: (0.036, 0.001, 0.003)}, "populating by reads takes 1.20 times"),
    ({tracking.READS: (0.031, 0.00103, 0.003)}, "reading again takes 1.03 times"),
    ({tracking.READS: (0.031, 0.001, 0.0037)}, "the first write takes 1.23 times"),
    ({"huge": 15}, "15 of 16 huge pages are left"),
    ({"logged": 1}, "1 pages are reported that were only read"),
)
def test_each_goal_that_is_missed_is_named(wrong: dict[str, Any], said: str) -> None:
    (line,) = tracking.missed([*records(**wrong)])
    assert line.startswith(f"ept=N tdp_mmu=N, Dirty bits: N: {said}")


def test_the_tables_have_a_row_for_each_way_and_a_report_has_them(tmp_path: Path) -> None:
    found = [*records()]
    start, snapshots = tracking.tables(found)
    times = ("31.0", "1.03", "31.0", "1.03"), ("1.00", "1.00", "3.10", "1.03")
    label = "ept=N tdp_mmu=N, Dirty bits: N"
    assert start.rows == [(label, *times[0], "16 of 16", "0", *times[1])]
    assert snapshots.rows == [(label, "0.100", "2.00", "7", "512", "512", "15", "4")]
    file = tmp_path / "a-tracking.jsonl"
    write_records(file, found)
    parts = sections.build(sources.load_bases([file]))
    assert any("logged from the start" in section.title for section in parts)


def test_what_was_not_measured_is_said_to_be_missing() -> None:
    found = [one for one in records() if one["load"] == tracking.WRITES]
    start, _ = tracking.tables(found)
    assert start.rows[0][2:5] == ("-", "-", "-")


@for_each_row(
    "change, said",
    ({"version": None}, "no file, or no key 'version'"),
    ({"N-on.reads.json": None}, "no file, or no key 'N-on.reads.json'"),
    ({"N-on.reads.json": b"half"}, "unusable results"),
    ({"N-on.reads.json": b'{"record": "phase"}\n'}, "no key 'ept'"),
    ({"N-on.reads.json": WITH_Y}, "a parameter did not take effect"),
)
def test_what_is_no_run_is_no_result(change: dict[str, bytes | None], said: str) -> None:
    found = {name: data for name, data in (files() | change).items() if data is not None}
    assert said in failed(list, measure.collect(SERIES, found))


def test_each_setting_of_a_boot_is_measured_by_each_load_and_then_verified() -> None:
    (base, series) = measure.boots(measure.KERNELS, ("ept0",))
    assert [setting.name for setting in base.settings] == ["N-none"]
    assert [setting.name for setting in series.settings] == ["N-off", "Y-off", "N-on", "Y-on"]
    script = measure.script(series)
    assert script.count("\nrun ") == len(series.settings) * (len(measure.LOADS) + 1)
    assert script.index("-V") > script.index("run Y-on.snapshots")
    # With PML, Dirty bits change nothing.
    (series,) = measure.boots(("series",), ("ept1",))
    assert [setting.name for setting in series.settings] == ["N-off", "Y-off"]


def test_a_dry_run_says_what_would_be_run_and_a_wrong_mode_is_refused() -> None:
    said = lab("tracking", "--dry-run", "--modes", "tdp").out
    assert said.count("tdp_mmu=Y: 9 CPUs") == 2
    assert "--tracked -g --read-first" in said
    assert "'ept2' is none of" in refusal("tracking", "--modes", "ept2")
