# SPDX-License-Identifier: GPL-2.0-only
"""`lab reference` with parts that fail: what is kept of the others, and taken over by a later run.

Its plan, its bounds and the pages are in test_figures.py.
"""

import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab.core.errors import WorkFailed
from lab.core.paths import LAYOUT
from lab.measure import kept, reference
from lab.results import jsonl, origin
from tests.unit.calls import lab
from tests.unit.report_data import measurement


class Measuring:
    """Measures parts as a file of one line, which says that it has measured SOURCE."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
        self.target = target
        self.source, self.fails = "a", {"lock"}
        self.measured: list[str] = []
        monkeypatch.setattr(reference, "_measure", self.measure)
        monkeypatch.setattr(reference, "check_bounds", Mock())
        monkeypatch.setattr(reference, "check_saved", Mock())
        monkeypatch.setattr(origin, "source_of", lambda *_: self.source)

    def measure(self, part: str, file: Path) -> None:
        self.measured.append(part)
        jsonl.write(file, [measurement(source=self.source, commit=str(len(self.measured)))])
        if part in self.fails:
            raise WorkFailed(f"goals of {part} are missed")

    def run(self, *words: str, status: int = 0) -> str:
        """Run the command, and return what it says; `measured` then has what this run measured."""
        self.measured.clear()
        parts = (word for part in ("lock", "bench", "live", "cost") for word in ("--part", part))
        return lab("reference", *parts, "--output", str(self.target), *words, status=status).err

    def kept(self) -> list[str]:
        return sorted(file.name for file in kept.of(LAYOUT).directory.glob("*"))


@pytest.fixture
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measuring:
    return Measuring(monkeypatch, tmp_path / "reference")


def test_a_part_that_fails_stops_no_other_one(measuring: Measuring) -> None:
    measuring.fails = {"lock", "bench"}
    said = measuring.run(status=1)
    # bench comes first, then two at a time.
    assert measuring.measured[0] == "bench" and sorted(measuring.measured[1:]) == sorted(
        ("lock", "cost", "live")
    )
    assert not measuring.target.exists()
    assert measuring.kept() == ["cost.jsonl", "live.jsonl"]
    (line,) = (line for line in said.splitlines() if line.startswith("lab: "))
    assert line.startswith(
        "lab: not measured, so nothing was replaced: lock: goals of lock are missed; bench: goals"
    )
    assert f"; live cost are kept in {kept.of(LAYOUT).directory}, and the next" in line


def test_the_next_run_takes_over_what_is_finished(measuring: Measuring) -> None:
    measuring.run(status=1)
    first = {name: (kept.of(LAYOUT).directory / name).read_bytes() for name in measuring.kept()}
    assert [*first] == ["bench.jsonl", "cost.jsonl", "live.jsonl"]
    measuring.fails = set()
    assert "taken over from an earlier run that failed: bench live cost; their" in measuring.run()
    assert measuring.measured == ["lock"]
    now = {file.name: file.read_bytes() for file in measuring.target.iterdir()}
    assert {name: now[name] for name in first} == first and [*{*now} - {*first}] == ["lock.jsonl"]
    # Nothing is left of it, so the next run measures everything.
    assert not kept.of(LAYOUT).directory.exists()
    assert "taken over" not in measuring.run()
    assert len(measuring.measured) == 4


def test_a_part_that_has_measured_other_code_is_not_taken_over(measuring: Measuring) -> None:
    measuring.run(status=1)
    measuring.source, measuring.fails = "b", set()
    said = measuring.run()
    assert "reference: live of an earlier run has measured other code, so not taken over" in said
    assert len(measuring.measured) == 4
    for file in measuring.target.iterdir():
        assert kept.source_in(file) == "b"


def test_what_is_kept_of_other_parts_stays(measuring: Measuring) -> None:
    measuring.run(status=1)
    measuring.fails = set()
    words = ("reference", "--part", "live", "--output", str(measuring.target))
    measuring.measured.clear()
    # Without bench, the goals cannot be checked.
    lab(*words, status=2)
    assert measuring.measured == []
    assert [file.name for file in measuring.target.iterdir()] == ["live.jsonl"]
    assert measuring.kept() == ["bench.jsonl", "cost.jsonl"]


def test_a_run_can_start_anew(measuring: Measuring) -> None:
    measuring.run(status=1)
    measuring.run("--again", status=1)
    assert len(measuring.measured) == 4
    # A part that fails now is not replaced by what an earlier run has kept.
    measuring.fails = {"live"}
    assert "live: goals of live are missed" in measuring.run("--again", status=1)
    assert measuring.kept() == ["bench.jsonl", "cost.jsonl", "lock.jsonl"]


def test_what_is_no_complete_part_is_not_taken_over(measuring: Measuring) -> None:
    measuring.run(status=1)
    store = kept.of(LAYOUT)
    store.file("live").write_text("")
    store.file("cost").write_text('{"half": ')
    # An earlier run that was killed while it measured.
    store.scratch.mkdir()
    shutil.copy(store.file("bench"), store.scratch / "lock.jsonl")
    measuring.fails = set()
    measuring.run()
    assert sorted(measuring.measured) == ["cost", "live", "lock"]
    assert not store.directory.exists()


def test_a_dry_run_shows_what_would_be_taken_over(measuring: Measuring) -> None:
    def dry_run(*words: str) -> str:
        return lab("reference", "--part", "live", "--part", "bench", "--dry-run", *words).out

    all_of_it = dry_run()
    assert "taken over" not in all_of_it and "series, ept=Y, 14 vCPUs" in all_of_it
    measuring.run(status=1)
    (first, second) = dry_run().splitlines()
    assert re.fullmatch(r"parts: live bench of Linux 6\.12, about 5 s", first)
    assert second == f"taken over from {kept.of(LAYOUT).directory}: live bench"
    assert dry_run("--again") == all_of_it
    assert measuring.kept() == ["bench.jsonl", "cost.jsonl", "live.jsonl"]
    measuring.source = "b"
    assert dry_run() == all_of_it


def test_each_base_keeps_its_own_parts() -> None:
    names = [kept.of(LAYOUT.of(base)).directory.name for base in ("6.12", "7.3")]
    assert names == ["reference-6.12", "reference-7.3"]
