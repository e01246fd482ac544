# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.tracking: what is run, what is kept, and which goals are missed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.machines.paging import Mode
from lab.measure import tracking as measure
from lab.page import command, render, sections
from lab.page import tracking as tracking_page
from lab.page.model import Grid
from lab.results import compare, jsonl, notation, sources, tracking
from lab.results.files import write_records
from lab.results.jsonl import Measurement
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refusal, refused
from tests.unit.report_data import bench, measurement
from tests.unit.tracking_data import SERIES, files, records, series

WITH_N = b'{"record": "phase", "ept": false, "tdp_mmu": false, "eager": false}\n'
# Without the last record that is kept, and one that is not.
CUT = b"\n".join(files(SERIES)["N-on.reads.1.json"].splitlines()[:-2]) + b"\n"
WITH_Y = b'{"record": "phase", "ept": false, "tdp_mmu": false, "eager": true}\n'


def test_a_series_that_reaches_all_goals_misses_none() -> None:
    assert tracking.missed([*records()]) == []


@for_each_row(
    "wrong, said",
    ({tracking.WRITES: (0.036, 0, 0)}, "populating by writes takes 1.20 times as long as without"),
    (
        {tracking.READS: (0.036, 0.001, 0.003)},
        "populating by reads takes 1.20 times as long as without",
    ),
    ({tracking.READS: (0.031, 0.00103, 0.003)}, "reading again takes 1.03 times"),
    ({tracking.READS: (0.031, 0.001, 0.0037)}, "the first write takes 1.23 times"),
    ({"huge": 15}, "15 of 16 huge pages are left"),
    ({"logged": 1}, "1 pages are reported that were only read"),
)
def test_each_goal_that_is_missed_is_named(wrong: dict[str, Any], said: str) -> None:
    (line,) = tracking.missed([*records(**wrong)])
    assert line.startswith(f"ept=N tdp_mmu=N, Dirty bits: N: {said}")


def test_a_goal_that_is_missed_is_named_as_its_machine_calls_the_mode() -> None:
    found = [one | {"machine": "svm-qemu"} for one in records(logged=1)]
    (line,) = tracking.missed(found)
    assert line.startswith("npt=N tdp_mmu=N, Dirty bits: N: 1 pages are reported")


SLOW_WRITES: dict[str, Any] = {tracking.WRITES: (0.3, 0.001, 0.001)}
SLOW_READS: dict[str, Any] = {tracking.READS: (0.3, 0.001, 0.0031)}
NO_GOAL = "populating by writes, no goal: each page that is written faults"


@for_each_row(
    "mode, dirty_bits, has_goal",
    (Mode(True), "off", True),
    (Mode(True, True), "off", True),
    (Mode(True, pml=False), "on", True),
    (Mode(False), "on", True),
    (Mode(False), "off", False),
    (Mode(True, pml=False), "off", False),
    (Mode(True, True, pml=False), "off", False),
)
def test_populating_by_writes_has_a_goal_unless_each_page_faults(
    mode: Mode, dirty_bits: str, has_goal: bool
) -> None:
    found = [*records(series(mode, dirty_bits), **SLOW_WRITES)]
    said = "populating by writes takes 10.00 times as long as without logging, at most 1.15: missed"
    lines = [said] if has_goal else []
    assert [line.partition(": N: ")[2] for line in tracking.missed(found)] == lines
    # The ratio is shown in any case.
    table = tracking.tables(found)[0]
    (row,) = table.rows
    why = "so populating by writes takes 10.0 times as long as without logging, in the series"
    assert any(why in note for note in table.notes) == (not has_goal)
    assert (row[1:3], row[-1]) == (("300.0", "10.0"), said if has_goal else f"reached; {NO_GOAL}")


def test_all_other_goals_are_those_of_write_protection_too() -> None:
    found = [*records(series(Mode(False), "off"), **SLOW_WRITES, **SLOW_READS)]
    said = "populating by reads takes 10.00 times as long as without logging, at most 1.15: missed"
    assert tracking.missed(found) == [f"ept=N tdp_mmu=N, write protection: N: {said}"]
    assert tracking.tables(found)[0].rows[0][-1] == f"{said}; {NO_GOAL}"


def test_the_figures_that_have_no_goal_are_said() -> None:
    ways = (
        (Mode(False), "off", 0.3),
        (Mode(True, pml=False), "off", 0.066),
        (Mode(True), "off", 9),
    )
    found: list[dict[str, Any]] = []
    for mode, dirty_bits, seconds in ways:
        wrong = {tracking.WRITES: (seconds, 0.001, 0.001)}
        found += records(series(mode, dirty_bits), **wrong)
    found += (one | {"kernel": "base"} for one in records(series(Mode(True, True, False), "off")))
    (said,) = (note for note in tracking.tables(found)[0].notes if note.startswith("no goal: "))
    assert said == (
        "no goal: by write protection KVM notices a write only by a page fault, one for each 4 KiB"
        " page that is written, so populating by writes takes 2.20 to 10.0 times as long as without"
        " logging, in the series as well; PML and Dirty bits need no such faults"
    )


def test_the_unpatched_kernel_has_no_goals() -> None:
    base = [one | {"kernel": "base"} for one in records(**SLOW_WRITES)]
    assert tracking.tables(base)[0].rows[0][-1] == "-" and tracking.missed(base) == []


def test_the_tables_have_a_row_for_each_way_and_a_report_has_them(tmp_path: Path) -> None:
    found = [*records()]
    start, snapshots = tracking.tables(found)
    times = ("31.0", "1.03", "31.0", "1.03"), ("1.00", "1.00", "3.10", "1.03")
    label = "ept=N tdp_mmu=N, Dirty bits: N"
    assert start.rows == [(label, *times[0], "16 of 16", "0", *times[1], "reached")]
    assert snapshots.rows == [(label, "0.100", "2.00", "7", "512", "512", "15", "4")]
    file = tmp_path / "a-tracking.jsonl"
    write_records(file, found)
    parts = sections.build(sources.load_bases([file]))
    assert any("logged from the start" in section.title for section in parts)


def of_split_bench(**changes: Any) -> Iterator[Measurement]:
    """A VM that is logged later, with N, and one that is tracked, with Y; populated by reads."""
    for tracked in (False, True):
        vm: dict[str, Any] = {"tracked": tracked, "initially_all_set": not tracked}
        vm |= {"eager": tracked, "read_first": True, "machine": "epyc"} | changes
        slower = 3 if tracked else 1
        mapped = {"pages_2m": 16} if tracked else {}
        yield measurement(**vm, **mapped, phase="populate", iteration=None, seconds=0.03 * slower)
        for i in (1, 2, 3):
            faults = {"pf_taken": 7 + i} if tracked else {}
            yield measurement(**vm, **faults, iteration=i, seconds=0.01 * i * slower)
            logged = {"logged": 500 + i} if tracked else {}
            yield measurement(**vm, **logged, phase="get", iteration=i, seconds=0.001 * i)


def test_a_report_shows_what_split_bench_has_measured(tmp_path: Path) -> None:
    usual = [replace(one, machine="epyc") for one in bench()]
    jsonl.write(tmp_path / "x.jsonl", [*usual, *of_split_bench()])
    jsonl.write(tmp_path / "usual.jsonl", usual)
    jsonl.write(tmp_path / "only.jsonl", of_split_bench())
    for name in ("x", "only"):
        found = sources.load_all([tmp_path / f"{name}.jsonl"])
        assert [*found] == (["bench", "tracked"] if name == "x" else ["tracked"])
        (grid,) = tracking_page.PART.section(found).blocks
        assert isinstance(grid, Grid)
        (row,) = grid.table.rows
        assert row[0].endswith(
            ", logged from the start, populated by reads, 2 vCPUs x 2 MiB, series, Y"
        )
        # The VM that is logged later was measured with N only, so just the first write has a ratio.
        times = ("90.0", "-", "30.0", "-", "60.0", "3.00", "9", "90.0", "3.00")
        counts = ("16", "501")
        assert row[1:] == (*times, *counts)
        assert len(grid.origins[0]) == 7
        command.write([tmp_path / f"{name}.jsonl"], tmp_path / name)
        page = (tmp_path / name / render.MARKDOWN).read_text()
        assert "logged from the start, populated by reads" in page
        # Once in the list of files, though it has measurements of two kinds.
        assert page.count(f"\n| [{name}.jsonl]({name}.jsonl) | ") == 1
    # All other sections are as without these lines.
    with_them, without = (sources.load_all([tmp_path / f"{n}.jsonl"]) for n in ("x", "usual"))
    assert with_them["bench"].measurements == without["bench"].measurements
    # In any order.
    for measured in ([*of_split_bench(eager=False)], [*of_split_bench(eager=False)][::-1]):
        (row,) = tracking.measured_table(measured).rows
        assert row[1:] == ("90.0", "3.00", "30.0", "3.00", "60.0", "3.00", "9", *times[7:], *counts)


def test_tracked_vms_are_compared_with_tracked_ones(tmp_path: Path) -> None:
    for name, found in (("a", of_split_bench()), ("b", of_split_bench()), ("c", bench())):
        jsonl.write(tmp_path / f"{name}.jsonl", found)
    a, b, c = (compare.load([tmp_path / f"{name}.jsonl"]) for name in "abc")
    assert len(compare.compare(a, b).pairs) == 14
    labels = {notation.vm_label(pair.key) for pair in compare.compare(a, b).pairs}
    assert len(labels) == 2
    assert "different machines" in refused(compare.compare, a, c)


def test_what_was_not_measured_is_said_to_be_missing() -> None:
    found = [one for one in records() if one["load"] == tracking.WRITES]
    start, _ = tracking.tables(found)
    assert start.rows[0][2:5] == ("-", "-", "-")


@for_each_row(
    "change, said",
    ({"version": None}, "no file, or no key 'version'"),
    ({"N-on.reads.1.json": None}, "no file, or no key 'N-on.reads.1.json'"),
    ({"N-on.reads.1.json": b"half"}, "unusable results"),
    ({"N-on.reads.1.json": b'{"record": "phase"}\n'}, "no key 'ept'"),
    ({"N-on.reads.1.json": WITH_Y}, "a parameter did not take effect"),
    ({"N-on.reads.1.json": WITH_N}, "unusable results: runs of the same load differ"),
    ({"N-on.reads.1.json": CUT}, "unusable results: zip() argument 2 is shorter"),
)
def test_what_is_no_run_is_no_result(change: dict[str, bytes | None], said: str) -> None:
    found = {name: data for name, data in (files(SERIES) | change).items() if data is not None}
    assert said in failed(list, measure.collect(SERIES, found))


def test_of_two_runs_the_shorter_time_counts_and_the_worse_count() -> None:
    found = files(SERIES)
    other = files(SERIES, **{tracking.READS: (0.02, 0.002, 0.002)}, huge=15, logged=1)
    found["N-on.reads.1.json"] = other["N-on.reads.1.json"]
    for _ in range(2):
        reads = [one for one in measure.collect(SERIES, found) if one["load"] == tracking.READS]
        phases = [one for one in reads if one["record"] == "phase"]
        times = {(one["phase"], one["iteration"]): one["seconds"] for one in phases}
        kept = times["populate", None], times["dirty", 1], times["dirty", 2]
        assert kept == (0.02, 0.001, 0.002)
        assert next(one["pages_2m"] for one in reads if one["record"] == "memory") == 15
        assert next(one["logged"] for one in phases if one["phase"] == "get") == 1
        # In either order.
        names = ("N-on.reads.0.json", "N-on.reads.1.json")
        found |= dict(zip(names, (found[name] for name in reversed(names)), strict=True))


def test_each_setting_of_a_boot_is_measured_by_each_load_and_then_verified() -> None:
    (base, series) = measure.boots(measure.KERNELS, ("ept0",))
    assert [setting.name for setting in base.settings] == ["N-none"]
    assert [setting.name for setting in series.settings] == ["N-off", "Y-off", "N-on", "Y-on"]
    script = measure.script(series)
    # Loads that write first twice, those that read first four times, and one run that verifies.
    assert script.count("\nrun ") == len(series.settings) * (2 * 2 + 2 * 4 + 1 + 1)
    assert script.count(" --warm-up ") == script.count("\nrun ")
    assert "\nrun Y-on.reads.1 '-v 8 -b 4M --warm-up --tracked -g --read-first" in script
    assert script.index("-V") > script.index("run Y-on.snapshots")
    # With PML, Dirty bits change nothing.
    (series,) = measure.boots(("series",), ("ept1",))
    assert [setting.name for setting in series.settings] == ["N-off", "Y-off"]


def test_a_dry_run_says_what_would_be_run_and_a_wrong_mode_is_refused() -> None:
    said = lab("tracking", "--dry-run", "--modes", "tdp").out
    assert said.count("tdp_mmu=Y: 9 CPUs") == 2
    assert "--tracked -g --read-first" in said
    assert "'ept2' is not one of" in refusal("tracking", "--modes", "ept2")
