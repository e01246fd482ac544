# SPDX-License-Identifier: GPL-2.0-only
"""tests.summary: what a test run says at its end, and what it writes to build/results."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lab.core.paths import DEFAULT_BASE, ROOT
from lab.results import files
from tests import builds
from tests.rows import for_each_row
from tests.summary import BEGAN, CPU, WALL, Summary, covered, lines, written

UNIT, MACHINE = "tests/unit/test_a.py::test_a", "tests/machines/test_b.py::test_b"


def report(nodeid: str, when: Any = "call", **words: Any) -> pytest.TestReport:
    """What pytest reports of a phase of a test. WORDS: other attributes than those of a pass."""
    known = {"outcome": "passed", "longrepr": None, "start": 0.0, "stop": 1.0, "duration": 1.0}
    given = {**known, "keywords": {}, **words}
    wasxfail = given.pop("wasxfail", None)
    made = pytest.TestReport(nodeid, ("", 0, ""), when=when, **given)
    if wasxfail is not None:
        made.wasxfail = wasxfail
    return made


def summed(*reports: pytest.TestReport) -> dict[str, Any]:
    summary = Summary(began=100.0)
    for one in reports:
        summary.pytest_runtest_logreport(one)
    return summary.as_json(now=160.0, make_began=90.0, exit_status=1)


SKIPPED = ("a.py", 3, "Skipped: no kernel bpf")


@for_each_row(
    "reports, outcome, reason",
    ([{}], "passed", ""),
    ([{"outcome": "failed"}, {"when": "teardown"}], "failed", ""),
    ([{}, {"when": "teardown", "outcome": "failed"}], "error", ""),
    ([{"when": "setup", "outcome": "failed"}], "error", ""),
    ([{"when": "setup", "outcome": "skipped", "longrepr": SKIPPED}], "skipped", "no kernel bpf"),
    ([{"outcome": "skipped", "wasxfail": "reason: x"}], "xfailed", "x"),
    ([{"wasxfail": "y"}], "xpassed", "y"),
)
def test_outcomes(reports: list[dict[str, Any]], outcome: str, reason: str) -> None:
    done = summed(*(report(UNIT, **words) for words in reports))
    assert done["outcomes"] == {outcome: 1}
    (test,) = done["tests"]
    assert (test["outcome"], test["reason"]) == (outcome, reason)
    assert done["skipped"] == ({reason: 1} if outcome == "skipped" else {})


def test_a_case_has_its_own_time_not_that_of_its_boot() -> None:
    properties = [(WALL, 3.5), (CPU, 7.25)]
    done = summed(
        report(MACHINE, "setup", duration=40.0),
        report(MACHINE, duration=900.0, user_properties=properties),
        report(MACHINE, "teardown", duration=1.0, user_properties=properties),
        report(UNIT, "setup", duration=2.0),
        report(UNIT, duration=3.0),
    )
    found = [(test["id"], test["seconds"], test["cpu_seconds"]) for test in done["tests"]]
    assert found == [(UNIT, 5.0, None), (MACHINE, 3.5, 7.25)]
    assert done["longest"] == [UNIT, MACHINE]


def test_builds_are_told_once() -> None:
    builds.take()
    begin = time.monotonic()
    for _ in range(2):
        with contextlib.suppress(OSError), builds.building():
            time.sleep(0.01)
            raise OSError
    assert 0.02 <= builds.take() <= time.monotonic() - begin
    assert builds.take() == 0


def test_stages_are_told_apart_and_two_workers_are_not_added_up() -> None:
    done = summed(
        report(UNIT, start=105.0, stop=110.0),
        report(f"{UNIT}2", start=108.0, stop=117.0),
        report(MACHINE, start=117.0, stop=125.0),
        report(f"{MACHINE}2", start=130.0, stop=131.0),
        report(
            "tests/machines/test_mutants.py::x", start=131.0, stop=160.0, keywords={"mutants": 1}
        ),
    )
    stages = {"build": 10, "collect": 5, "unit": 12, "machines": 9, "mutants": 29}
    assert done["stages"] == stages
    assert (done["base"], done["seconds"], done["exit_status"]) == (DEFAULT_BASE, 70, 1)
    text = "\n".join(lines(done))
    for words in ("Linux 6.12, 70 s: 5 passed", "10.0 s  build", "29.0 s  mutants"):
        assert words in text


@for_each_row(
    "spans, seconds",
    ([], 0),
    ([(5, 6), (1, 2)], 2),
    ([(1, 4), (2, 3), (3, 6)], 5),
)
def test_what_spans_cover(spans: list[tuple[float, float]], seconds: float) -> None:
    assert covered(spans) == seconds


def test_a_file_that_cannot_be_written_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setattr(files, "RESULTS", tmp_path / "file" / "results")
    assert written({}).startswith("this summary was not written: ")


RUN = """
import pytest
from lab.results import files

files.RESULTS = files.Path(__file__).parent

def test_pass(): pass
@pytest.mark.parametrize("nr", range(2))
def test_skip(nr): pytest.skip("no reason")
"""


@for_each_row("workers, by_make", ("-n2", True), ("-n0", False))
def test_a_run_ends_with_it(tmp_path: Path, workers: str, by_make: bool) -> None:
    """Pytest's own last line stays the last one, and the file says the same."""
    (tmp_path / "conftest.py").write_text(RUN.partition("def ")[0])
    (tmp_path / "test_run.py").write_text(RUN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--rootdir", str(ROOT)]
    command += ["-o", f"cache_dir={tmp_path}/cache", f"--basetemp={tmp_path}/base", workers]
    env = os.environ | ({BEGAN: f"{time.time() - 5:.0f}"} if by_make else {})
    done = subprocess.run(
        [*command, tmp_path], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"1 passed, 2 skipped in ", done.stdout.splitlines()[-1])
    assert re.search(r"^Linux 6.12, \d+ s: 2 skipped, 1 passed$", done.stdout, re.MULTILINE)
    assert "       2  no reason\n" in done.stdout
    found = list(tmp_path.glob("*-tests.json"))
    assert len(found) == by_make
    for file in found:
        said = json.loads(file.read_text())
        assert said["outcomes"] == {"skipped": 2, "passed": 1}
        assert said["skipped"] == {"no reason": 2}
        assert said["stages"]["build"] >= 4
        assert {test["stage"] for test in said["tests"]} == {"machines"}


def test_pytest_can_leave_out_the_conftest_of_a_folder_without_workers() -> None:
    plugins = pytest.PytestPluginManager()
    summary, of_a_folder = Summary(), object()
    for plugin in (summary, of_a_folder):
        plugins.register(plugin)
    call = plugins.subset_hook_caller("pytest_runtest_logreport", remove_plugins=[of_a_folder])
    call(report=report(UNIT))
    assert list(summary.tests) == [UNIT]
