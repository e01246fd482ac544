# SPDX-License-Identifier: GPL-2.0-only
"""reference and bounds: the plan, the bounds, and what is kept of a measurement."""

import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab.core.paths import LAYOUT, Layout
from lab.machines.paging import Mode
from lab.measure import reference
from lab.page import claims, figures
from lab.results import goals, jsonl
from tests.unit.calls import failed, lab, refusal, refused
from tests.unit.report_data import measurement


def write(file: Path, gains: dict[int, float]) -> Path:
    """Results with N/Y as GAINS say, by vCPUs."""
    both = [
        (n, eager, 0.001 * (1 if eager else gain)) for n, gain in gains.items() for eager in (0, 1)
    ]
    jsonl.write(file, [measurement(vcpus=n, eager=bool(e), seconds=s) for n, e, s in both])
    return file


GOOD = {2: 20.0, 4: 31.0, 8: 60.5, 14: 150.0}


def test_each_number_of_vcpus_has_its_own_boots() -> None:
    plan = reference.reference_boots()
    assert all(len(boot.matrix.vcpus) == 1 for boot in plan)
    series = {(b.mode, b.matrix.vcpus[0]) for b in plan if b.kernel == "series"}
    assert series == {(Mode(ept), n) for ept in (True, False) for n in goals.RATIOS}
    assert series == {(b.mode, b.matrix.vcpus[0]) for b in plan if b.kernel == "peer"}
    assert {b.matrix.size for b in plan} == {2 << 20}


def test_bounds_are_checked_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference.check_bounds(write(tmp_path / "good.jsonl", GOOD))
    row = r"14 vCPUs x 2 MiB, dirty ms \| *150.0 \| *1.00 \| *150 \| *at least 100: reached"
    assert re.search(row, capsys.readouterr().out)
    bad = write(tmp_path / "bad.jsonl", GOOD | {8: 59.0})
    assert "8 vCPUs: N/Y is 59.0 instead of at least 60" in failed(reference.check_bounds, bad)
    few = write(tmp_path / "few.jsonl", {n: GOOD[n] for n in GOOD if n > 2})
    assert "2 vCPUs: N/Y was not measured" in failed(reference.check_bounds, few)


def test_bounds_are_of_the_issue_and_for_what_they_were_set_for() -> None:
    both = [measurement(eager=eager) for eager in (False, True)]
    assert goals.table(both)
    for change in ({"pml": False}, {"dirty_harvest": "on"}, {"tdp_mmu": True}):
        assert goals.table([replace(one, **change) for one in both]) is None
    assert goals.RATIOS == {2: 20, 4: 30, 8: 60, 14: 100}


def test_of_an_older_base_only_the_headline_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base").mkdir()
    for base, parts in (("6.12", reference.PARTS), ("7.3", reference.PARTS), ("6.12", ["bench"])):
        (tmp_path / "base" / f"{base}.pin").touch()
        layout = Layout(tmp_path, base)
        monkeypatch.setattr(reference, "LAYOUT", layout)
        assert reference.directory(layout).parts[-3:] == ("docs", "reference", base)
        said = re.findall(r"^parts: (.*)$", lab("reference", "--dry-run").out, re.MULTILINE)
        assert said == [" ".join(parts)]


def test_a_failing_part_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference.COMMANDS, "live", "live")
    monkeypatch.setitem(reference.ARGUMENTS, "live", ("--mib", "3"))
    output = tmp_path / "reference"
    lab("reference", "--part", "live", "--output", str(output), status=1)
    assert not output.exists()
    said = lab("reference", "--dry-run", "--output", str(tmp_path / "x")).out
    assert "series, ept=Y, 14 vCPUs" in said
    assert not (tmp_path / "x").exists()


def test_what_is_not_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = reference.directory(LAYOUT.of("6.12"))
    files = [given / f"{part}.jsonl" for part in ("bench", "live", "native")]
    for file in files:
        (tmp_path / file.name).write_text("" if file.stem == "live" else file.read_text())
    monkeypatch.setattr(reference, "_measure", lambda _, file: shutil.copy(given / file.name, file))
    lab("reference", "--part", "live", "--output", str(tmp_path))
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == {
        f.name: f.read_text() for f in files
    }


def test_at_most_two_parts_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    both, running = threading.Barrier(2, timeout=10), threading.Semaphore(2)

    def measure(part: str, file: Path) -> None:
        assert running.acquire(blocking=False), "three at a time"
        started.append(part)
        both.wait()
        time.sleep(0.2)
        running.release()

    monkeypatch.setattr(reference, "_measure", measure)
    parts = ("live", "cost", "lock", "yield")
    reference.measure_others({part: tmp_path / part for part in parts})
    assert [set(started[:2]), set(started[2:])] == [{"lock", "live"}, {"yield", "cost"}]


def test_what_is_kept_is_the_results_and_nothing_else(tmp_path: Path) -> None:
    output = tmp_path / "reference"
    given = reference.directory(LAYOUT.of("6.12"))
    reference.keep(sorted(given.glob("*.jsonl")), output)
    kept, committed = ({f.name: f.read_bytes() for f in d.iterdir()} for d in (output, given))
    assert kept == committed
    (output / "report.md").touch()
    assert "holds report.md" in refused(reference.check_output, output)


def test_pages_only_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    refresh = Mock(return_value=[])
    monkeypatch.setattr(figures, "refresh", refresh)
    monkeypatch.setattr(claims, "wrong", lambda: ["a.md: says 1"])
    monkeypatch.setattr(reference, "measure_others", None)
    assert "a.md: says 1" in lab("reference", "--pages", status=1).err
    refresh.assert_called_once_with()
    for others in (["--part", "live"], ["--dry-run"], ["--output", "x"]):
        assert "goes with no other option" in refusal("reference", "--pages", *others)
    refresh.assert_called_once_with()
