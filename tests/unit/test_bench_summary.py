# SPDX-License-Identifier: GPL-2.0-only
"""The end of `make bench`: the summary, and tables that fit the terminal."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.page import command, compared, summary
from lab.results import goals, jsonl, sources, tables
from lab.results.files import write_records
from lab.results.jsonl import Measurement
from lab.results.sources import Source
from lab.results.table import Table
from tests.rows import for_each_row
from tests.unit import quick_data
from tests.unit import report_data as data

FILE = Path("build/results/20260101T000000Z-vmx-bochs.jsonl")
PAGE = Path("build/report/index.html")


def summed_up(found: Iterable[Measurement], live: Source | None = None) -> str:
    """The summary, which has room for the line of an error below it."""
    lines = summary.lines([*found], FILE, PAGE, live)
    assert len(lines) <= 14 and max(map(len, lines)) <= 80
    assert lines[-2:] == [f"Report: {PAGE}", f"Results: {FILE}"]
    return "\n".join(lines)


@pytest.fixture
def live(tmp_path: Path) -> Source:
    write_records(tmp_path / data.LIVE, data.live_records())
    return sources.load(tmp_path / data.LIVE)


def test_a_plain_run_is_summed_up(live: Source) -> None:
    said = summed_up(quick_data.measurements(), live)
    for words in ("Linux 6.12, 8 vCPUs x 4 MiB, simulated time", "shadow paging", "EPT, TDP MMU"):
        assert words in said
    # 232 ms in the unpatched kernel with EPT, 2.6 ms with Y.
    (lazy,) = [line for line in said.splitlines() if line.startswith("  unpatched")]
    (eager,) = [line for line in said.splitlines() if line.startswith("  Y: ")]
    assert "232.0" in lazy and "2.60 (89x)" in eager
    assert "first CLEAR, ms (unpatched / N / Y)" in said and "2.72/0.960/4.80" in said
    assert "Longest stall of a vCPU in the live run, ms: N 0.082, Y 0.082" in said
    assert "Goals: " in said and "missed, see the report: " in said


def test_goals_that_are_missed_are_named_as_far_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [one for one in quick_data.measurements() if not one.tdp_mmu]
    monkeypatch.setattr(goals, "missed", lambda _: [])
    assert "Goals: all " in summed_up(found)
    many = [
        goals.Missed(f"goal {n} {'x' * 90}: at most 1", ("N 3", f"N/Y 1.0{n}")) for n in range(40)
    ]
    monkeypatch.setattr(goals, "missed", lambda _: many)
    said = summed_up(found)
    assert "Goals: 40 of " in said
    (first,) = (line for line in said.splitlines() if line.startswith("  goal 0 xx"))
    assert first.endswith("x ... N/Y 1.00") and len(first) == summary.WIDTH


@for_each_row(
    "changes, wanted, unwanted",
    # One run only: nothing to be faster than.
    ({"kernel": "series", "eager": False}, "N: splits on first", "(x: as fast"),
    ({"initially_all_set": False}, "enabling of the log", "first CLEAR"),
    ({"machine": "host"}, "wall-clock time of this host", "vmx-bochs ("),
    ({"machine": "svm-qemu"}, "NPT", "EPT"),
    ({"machine": "epyc"}, "wall-clock time of epyc", "vmx-bochs ("),
    ({"dirty_bits": "auto"}, "N: splits on first write", "Dirty bits"),
    ({"phase": "populate", "iteration": None}, "nothing to sum up", "Writing"),
)
def test_results_of_other_kinds(changes: dict[str, Any], wanted: str, unwanted: str) -> None:
    found = [one for one in quick_data.measurements() if not one.tdp_mmu and one.pml]
    kept = {"kernel", "initially_all_set", "phase"} & changes.keys()
    found = [one for one in found if all(getattr(one, name) == changes[name] for name in kept)]
    changed = {name: value for name, value in changes.items() if name not in kept - {"eager"}}
    said = summed_up({m.key: m for m in (replace(o, **changed) for o in found)}.values())
    assert wanted in said and unwanted not in said
    judged = changes.get("machine", "vmx-bochs") == "vmx-bochs"
    assert ("Goals: they are for simulated time only." in said) != judged


def test_the_vm_to_show_first_is_that_of_the_goals() -> None:
    found = [*quick_data.measurements(), replace(next(data.bench()), vcpus=64)]
    first, *others = compared.all_vms(found)
    assert (first.vm.vcpus, first.vm.write_percent, first.vm.initially_all_set) == (8, 100, True)
    assert {one.vm.vcpus for one in others} == {2, 8, 64}
    assert first.modes == [*compared.MODES]


def test_the_live_run_beside_it_is_of_the_same_base_and_machine(tmp_path: Path) -> None:
    write_records(tmp_path / data.LIVE, data.live_records())
    jsonl.write(tmp_path / data.BENCH, data.bench())
    of = list(data.bench())
    found = command._live_beside(of, tmp_path / data.BENCH)
    assert found and found.name == data.LIVE
    for other in (list(data.bench("7.3.4")), [replace(of[0], machine="host")]):
        assert command._live_beside(other, tmp_path / data.BENCH) is None


@pytest.mark.parametrize("width", [50, 80, 100, 170])
def test_tables_fit_the_terminal(width: int) -> None:
    found = [*quick_data.measurements()]
    shown = tables.bench_tables(found, True, verdicts=goals.table(found))
    for table in shown:
        lines = table.fitted(width).splitlines()
        assert max(map(len, lines)) <= width


def test_columns_without_room_follow_below_with_their_labels() -> None:
    table = Table("T", ("ms", "vCPUs", "first", "second"), labels=2, notes=["of both"])
    table.add("a label that is too long for it", "8", "11.1", "22.2")
    widest = max(map(len, table.markdown().splitlines()))
    assert table.fitted(80) == table.fitted(widest) == table.markdown()
    assert table.fitted(36).splitlines() == [
        "### T",
        "(of both)",
        "",
        "ms                    vCPUs  first",
        "a label that is too       8   11.1",
        "long for it",
        "",
        "ms                    vCPUs  second",
        "a label that is too       8    22.2",
        "long for it",
    ]
