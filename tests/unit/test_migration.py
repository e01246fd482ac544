# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.migration: the guest's image, its notes, QEMU's events, and what is made of them."""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import machines
from lab.measure.migration import command, load, timeline
from lab.measure.migration.load import Load
from lab.page import migration as shown
from lab.results import files
from tests.rows import for_each_row
from tests.unit import migration_data as data
from tests.unit.calls import failed, lab, refusal, refused


def test_the_image_is_a_bios_that_begins_at_its_first_byte(tmp_path: Path) -> None:
    image = load.build(data.LOAD, tmp_path).read_bytes()
    assert len(image) == 1 << 16
    opcode, distance = image[-16], int.from_bytes(image[-15:-13], "little")
    # A near jump counts from its end, and wraps around in real mode.
    assert opcode == 0xE9 and (0xFFF0 + 3 + distance) & 0xFFFF == 0
    load.build(replace(data.LOAD, vcpus=load.MOST_VCPUS, mib_per_vcpu=2), tmp_path)
    assert Load(4, 16, 500, 63, 1).mib == 68


def test_the_notes_are_where_the_script_has_them_and_have_the_layout_that_is_read(
    tmp_path: Path,
) -> None:
    load.build(data.LOAD, tmp_path)
    words = ["nm", "-S", str(tmp_path / "load.elf")]
    listing = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = {line.split()[-1]: line.split() for line in listing.splitlines()}
    size = load.PAGE + data.LOAD.vcpus * load.vcpu_size(data.REAL_WINDOWS)
    assert int(found["results"][0], 16) == 2 << 20
    assert f'\\"val\\": {2 << 20}' in command.SCRIPT.read_text()
    assert int(found["results"][1], 16) == size


@for_each_row(
    "change, word",
    ({"vcpus": 0}, "--vcpus"),
    ({"vcpus": load.MOST_VCPUS + 1}, "--vcpus"),
    ({"mib_per_vcpu": 1}, "--mib"),
    ({"mib_per_vcpu": 24}, "--mib"),
    ({"mib_per_vcpu": 2048}, "--mib"),
    ({"rate": 0}, "--rate"),
    ({"writes": 0}, "--writes"),
    ({"reads": -1}, "--reads"),
)
def test_a_load_that_cannot_be_built_is_refused(change: Mapping[str, int], word: str) -> None:
    data.LOAD.check()
    assert word in refused(replace(data.LOAD, **change).check)


def test_notes_are_read_with_the_clock_of_the_host() -> None:
    notes = load.parse(data.notes())
    assert notes.start == pytest.approx(data.START_S, abs=1e-6)
    assert (notes.window_us, notes.tsc_khz, notes.pages) == (10_000, 50_000, data.LOAD.pages)
    assert len(notes.vcpus) == 2 and notes.wrong == 0
    assert notes.vcpus[0].windows[0].tolist() == (640, 10, 500, 50_000)
    # A last window has what came later, and is left out.
    assert len(load.parse(data.notes(total=50, spare=0)).vcpus[0].windows) == 49


@for_each_row(
    "bad, said",
    (b"", "missing"),
    (b"x" * 4096, "damaged"),
    (data.notes(start=0), "did not get to work"),
    (data.notes()[:-100], "incomplete"),
)
def test_what_are_no_notes_is_refused(bad: bytes, said: str) -> None:
    assert said in failed(load.parse, bad)


def test_notes_may_be_full_when_all_is_in_them() -> None:
    full = data.migration(source=data.notes(spare=0), restored=data.notes(total=80, spare=0))
    assert list(timeline.records(full)) == list(timeline.records(data.migration()))


def test_events_are_read() -> None:
    events = timeline.parse_events(data.QMP)
    offset = data.START_S
    assert events.begin - offset == pytest.approx(0.1)
    assert events.stop - offset == pytest.approx(0.405)
    assert len(events.passes) == 2 and events.answer["downtime"] == 7


@pytest.mark.parametrize("word", ["STOP", "setup", "completed", "query-migrate"])
def test_a_missing_event_is_found(word: str) -> None:
    without = data.QMP.replace(f'"{word}"', '"else"')
    assert "did not say all" in failed(timeline.parse_events, without)


def test_phases_are_told_apart() -> None:
    found = {one.get("phase", one["record"]): one for one in timeline.records(data.migration())}
    assert list(found) == ["migration", "before", "precopy", "blackout", "timeline"]
    assert found["before"]["requests_per_second"] == 2000
    assert found["before"]["longest_request_us"] == 1000
    # Window 12 is the slow one; window 35 has a request that ends when the guest is stopped.
    assert found["precopy"]["longest_request_us"] == 25000
    assert found["precopy"]["longest_request_at_us"] == 120_000
    assert found["precopy"]["lowest_per_window"] == 2
    assert found["blackout"]["longest_stall_us"] == 12_000
    assert len(found["timeline"]["requests"]) == 40
    assert found["migration"]["downtime_seconds"] == 0.007


@for_each_row(
    "change, said",
    ({"restored": data.notes(total=80, wrong=1)}, "1 accesses .* after restoring"),
    ({"source": data.notes(wrong=2)}, "2 accesses .* in the source"),
    ({"restored": data.notes(total=41)}, "did not see all its memory"),
    ({"stats": "before pages_2m 1\nafter pages_2m 0\n"}, "1 huge pages"),
    ({"stats": f"{data.STATS}before dirty_harvest 1\n"}, "dirty_harvest did not take effect"),
    ({"qmp": data.qmp(data.START_S - 100)}, "clocks .* do not agree"),
    ({"qmp": data.qmp(data.START_S + 100)}, "noted only 60: .* took too long"),
    ({"source": data.notes(total=data.STOP + 4, spare=0)}, "noted only 43: .* took too long"),
)
def test_a_migration_that_went_wrong_is_no_result(change: dict[str, Any], said: str) -> None:
    assert re.search(said, failed(list, timeline.records(data.migration(**change))))


def test_a_boot_gives_both_and_verifies_its_mode() -> None:
    boot = command.MigrationBoot("svm-qemu", "series", True, data.LOAD, 128)
    found = list(command.collect(boot, data.files(tdp=True)))
    assert [one["eager"] for one in found] == [False] * 5 + [True] * 10
    assert [one["dirty_harvest"] for one in found] == ["off"] * 10 + ["on"] * 5
    assert {one["kernel_version"] for one in found} == {"6.12.1-series"}
    assert "did not take effect" in failed(list, command.collect(boot, data.files(tdp=False)))
    others = {name: text for name, text in data.files().items() if name != "Y.qmp"}
    assert "no file 'Y.qmp'" in failed(list, command.collect(boot, others))
    assert "no file 'host'" in failed(list, command.collect(boot, {}))


def test_a_machine_has_room_for_guest_stream_and_qemu() -> None:
    machine = machines.get("vmx-bochs")
    (boot,) = command.migration_boots(machine, "series", [False], data.LOAD, 128)
    job = command.migration_job(machine, boot, Path("bz"), Path("load"))
    assert job.parameters == {"kvm_intel.ept": "0", "kvm.tdp_mmu": "0"}
    assert job.cpus == data.LOAD.vcpus + command.MORE_CPUS
    assert job.memory_mib >= 3 * data.LOAD.mib + 512
    assert job.command[-3:] == ("N", "Y", "D")
    # The host is migrated on as it is.
    machine = machines.get("host")
    small = replace(data.LOAD, vcpus=1)
    (boot,) = command.migration_boots(machine, "series", [True, False], small, 128)
    assert boot.tdp is None and boot.parameters == {}


@for_each_row(
    "machine, kernel, tdp, settings",
    ("vmx-bochs", "series", True, "NY"),
    ("vmx-bochs", "series", False, "NYD"),
    ("svm-qemu", "series", True, "NYD"),
    ("svm-qemu", "base", True, "NY"),
    ("host", "series", None, "NY"),
)
def test_dirty_bits_are_tried_where_the_cpu_does_not_log_by_itself(
    machine: str, kernel: str, tdp: bool | None, settings: str
) -> None:
    boot = command.MigrationBoot(machine, kernel, tdp, data.LOAD, 128)
    assert "".join(boot.settings) == settings


def test_a_third_migration_has_columns_of_its_own() -> None:
    boot = command.MigrationBoot("svm-qemu", "series", False, data.LOAD, 128)
    (table,) = shown.migration_tables(list(command.collect(boot, data.files(tdp=False))))
    assert table.columns == ("", "N: lazy", "Y: eager", "Y, Dirty bits", "N/Y", "N/Dirty bits")
    assert {len(row) for row in table.rows} == {6}


@pytest.mark.parametrize("words", [["--vcpus", "9"], ["--vcpus", "0"], ["--bandwidth", "0"]])
def test_what_the_machine_cannot_do_is_refused(words: list[str]) -> None:
    refusal("migrate", "--dry-run", *words)


def test_a_dry_run_says_what_would_run() -> None:
    said = lab("migrate", "--dry-run", "--machine", "vmx-bochs", "--tdp", "Y").out
    assert "ept=Y: 7 CPUs" in said and "migrate.sh" in said and "ept=N" not in said


def test_the_table_judges_simulated_time_only() -> None:
    (table,) = shown.migration_tables(data.records())
    assert any("reached" in note for note in table.notes)
    assert table.columns[-1] == "N/Y"
    row = next(row for row in table.rows if row[0].startswith("longest request during"))
    assert row[1:] == ("25.00", "1.00", "25.0")
    slow = [{**one, "eager": True} for one in data.records() if not one["eager"]]
    (table,) = shown.migration_tables([*(o for o in data.records() if not o["eager"]), *slow])
    assert any("missed" in note for note in table.notes)
    (table,) = shown.migration_tables([{**one, "machine": "svm-qemu"} for one in data.records()])
    assert not any("reached" in note or "missed" in note for note in table.notes)


def test_results_are_written_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "measure", lambda *_: data.records())
    monkeypatch.setattr(command, "QEMU", "/bin/true")
    monkeypatch.setattr(files, "RESULTS", tmp_path / "results")
    assert "| longest request before, ms" in lab("migrate").out
    (file,) = files.kept()
    assert [json.loads(line) for line in file.read_text().splitlines()] == data.records()
    # And the report of the newest results is made.
    assert (tmp_path / "report" / "migration-eptY.svg").read_text().rstrip().endswith("</svg>")
