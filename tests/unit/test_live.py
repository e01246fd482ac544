# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.live: what is run, and what is kept of timelines."""

from dataclasses import replace
from pathlib import Path

from lab.measure import live
from lab.page import live as pages
from lab.results import sources
from lab.results.files import write_records
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refusal
from tests.unit.report_data import live_text

BOOT = live.LiveBoot("series", False, ("N", "Y"), live.USUAL)
ORIGIN = {"machine": "vmx-bochs", "kernel": "series", "kernel_version": "6.12"}


def test_n_and_y_share_a_boot_and_what_is_beside_them_has_its_own() -> None:
    plan = live.live_boots([True, False], live.USUAL)
    kernels = (("series", ("N", "Y")), ("peer", ("Y",)), ("base", ("N",)))
    wanted = [(kernel, ept, eager) for ept in (True, False) for kernel, eager in kernels]
    assert [(boot.kernel, boot.ept, boot.eager) for boot in plan] == wanted
    # A CPU for each vCPU, and one for main().
    job = live.live_job(BOOT, Path("bz"), Path("test"))
    assert "sysctl.vm.stat_interval=3600" in job.cmdline
    assert job.cpus == live.USUAL.vcpus + 1
    assert job.command[-3:] == (str(live.USUAL.vcpus * 8), "N", "Y")
    assert job.parameters["kvm.dirty_bits"] == "off"


def test_windows_become_one_line_and_single_vcpus_are_dropped() -> None:
    found = list(live.condense(live_text(True), ORIGIN))
    kinds = ["kind", "kind", "kind", "dip"]
    assert [one["record"] for one in found] == ["timeline", *kinds, *kinds]
    timeline = found[0]
    assert timeline["writer_accesses"] == [4000, 3100, 2200, 1300]
    assert timeline["reader_accesses"] == [200] * 4
    assert "window" not in timeline and timeline["window_us"] == 10000
    assert all(one["kernel"] == "series" and one["machine"] == "vmx-bochs" for one in found)


@for_each_row(
    "text, said",
    ("", "a run has no timeline"),
    ('{"record": "kind"}\n', "a run has no timeline"),
    ("half", "unusable results: JSONDecodeError"),
    ("[]\n", "unusable results: TypeError"),
    (live_text(True).replace('"window": 2,', '"window": 3,'), "the timeline has gaps"),
)
def test_what_is_no_run_is_no_result(text: str, said: str) -> None:
    assert said in failed(list, live.condense(text, ORIGIN))


@for_each_row("ratio, verdict", (1.09, "reached"), (1.11, "missed"))
def test_the_longest_stalls_of_n_stand_beside_those_of_y(
    tmp_path: Path, ratio: float, verdict: str
) -> None:
    records = [one for eager in (True, False) for one in live.condense(live_text(eager), ORIGIN)]
    for one in records:
        if one["record"] == "kind" and (one["kind"], one["phase"]) == ("writer", "logging"):
            one["longest_us"] = 9000.0 * (1 if one["eager"] else ratio)
    write_records(tmp_path / "a-live.jsonl", records)
    (table,) = pages.terminal_tables(sources.load(tmp_path / "a-live.jsonl"))
    (logging,) = [row for row in table.rows if row[0] == "writer, logging, after CLEAR 1"]
    assert logging[1:] == (f"{9 * ratio:.3f}", "9.000")
    (said,) = [note for note in table.notes if note.startswith("writer, longest stall")]
    assert said.endswith(f"; N at most 10% longer than Y: {verdict}")
    assert f"Y 9.00 ms, +{100 * ratio - 100:.2f}%" in said


def test_a_parameter_that_did_not_take_effect_is_found() -> None:
    boot = replace(BOOT, ept=True)
    files = {"version": b"6.12\n", "N.json": live_text(False).encode()}
    assert "no file 'Y.json'" in failed(list, live.collect(boot, files))
    for wrong in (live_text(False), live_text(True, ept=False)):
        said = failed(list, live.collect(boot, files | {"Y.json": wrong.encode()}))
        assert "did not take effect" in said
    files["Y.json"] = live_text(True).encode()
    assert "did not take effect" in failed(list, live.collect(replace(boot, tdp_mmu=True), files))
    good = list(live.collect(boot, files))
    assert [one["eager"] for one in good if one["record"] == "timeline"] == [False, True]
    assert good[0]["kernel_version"] == "6.12"


def test_results_whose_kind_their_name_hides_are_refused_before_measuring(tmp_path: Path) -> None:
    said = refusal("live", "--output", str(tmp_path / "mine.jsonl"))
    assert "mine.jsonl ends like results of another kind; end it in -live.jsonl" in said
    said = refusal("bench", "--output", str(tmp_path / "mine-live.jsonl"))
    assert "mine-live.jsonl ends like results of another kind; end it in -vmx-bochs.jsonl" in said
    assert not [*tmp_path.iterdir()]


def test_the_contended_load_is_measured_with_and_without_the_series() -> None:
    plan = live.contended_boots()
    expected = [("base", False), ("series", False), ("series", True)]
    assert [(boot.kernel, boot.dirty_bits) for boot in plan] == expected
    by_dirty_bits = live.live_job(plan[2], Path("bz"), Path("test")).parameters
    assert (by_dirty_bits["kvm_intel.pml"], by_dirty_bits["kvm.dirty_bits"]) == ("0", "on")
    job = live.live_job(plan[0], Path("bz"), Path("test"))
    assert (job.cpus, job.parameters["kvm.tdp_mmu"]) == (15, "1")
    assert job.memory_mib > 14 * 74 + 13 * live.FRESH_MIB
    assert "--contended: cannot be combined with --ept and --mib" in refusal(
        "live", "--contended", "--mib", "8"
    )


def test_a_dry_run_says_what_would_run() -> None:
    said = lab("live", "--dry-run", "--ept", "Y", "--mib", "2").out
    assert "series, ept=Y: 5 CPUs" in said and "-R 1 -F" in said and "ept=N" not in said
