# SPDX-License-Identifier: GPL-2.0-only
"""The summary of a test run: printed at its end, and written to build/results/*-tests.json.

pytest itself, or its first process if there are several, registers a Summary (tests/conftest.py).
The file is only written if `make test` started the run.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from lab.core import complete
from lab.core.errors import LabError
from lab.core.paths import LAYOUT
from lab.results import files

# The environment variable in which make says when it began, in seconds since 1970.
BEGAN = "LAB_BEGAN"
# Likewise, for workers, too, or when pytest began: what was built since is up to date.
SINCE = "LAB_TESTS_SINCE"
LONGEST = 10
# A test's properties with the time of its own cases, where several share a boot; see
# tests/machines/conftest.py.
WALL, CPU = "seconds", "emulator_cpu_seconds"
# The stages in which tests run. Before them are "build", which is all that make does before pytest,
# and "collect", in which pytest and its workers start and find the tests.
STAGES = ("unit", "machines", "mutants")


@dataclass
class Record:
    """What one test did.

    outcome: as in pytest's last line. reason: why it was skipped, or fails as expected. seconds: by
    the host's clock, without waiting for other cases of its boot. cpu_seconds: of the emulator.
    """

    id: str
    stage: str
    outcome: str = "passed"
    reason: str = ""
    seconds: float = 0
    cpu_seconds: float | None = None


@dataclass(eq=False)
class Summary:
    """Collects the reports of all tests. began: when pytest began, in seconds since 1970.

    Not compared by its fields: pytest keeps its plugins in sets.
    """

    began: float = field(default_factory=time.time)
    tests: dict[str, Record] = field(default_factory=dict)
    # By stage, when each phase of a test began and ended.
    spans: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        stage = stage_of(report)
        test = self.tests.setdefault(report.nodeid, Record(report.nodeid, stage))
        self.spans.setdefault(stage, []).append((report.start, report.stop))
        known: dict[str, Any] = dict(report.user_properties)
        test.cpu_seconds = known.get(CPU, test.cpu_seconds)
        test.seconds = known[WALL] if WALL in known else test.seconds + report.duration
        if (outcome := outcome_of(report)) != "passed":
            test.outcome, test.reason = outcome, reason_of(report)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        if not self.tests:
            return
        began = os.environ.get(BEGAN)
        done = self.as_json(time.time(), float(began) if began else None, int(exitstatus))
        terminalreporter.section("what this run did")
        for line in lines(done):
            terminalreporter.write_line(line)
        if began:
            terminalreporter.write_line(written(done))

    def as_json(self, now: float, make_began: float | None, exit_status: int) -> dict[str, Any]:
        """What the file says: docs/results-format.md has the keys."""
        tests = sorted(self.tests.values(), key=lambda test: -test.seconds)
        first = min(begin for spans in self.spans.values() for begin, _ in spans)
        stages = {"build": self.began - make_began} if make_began is not None else {}
        stages |= {"collect": first - self.began}
        stages |= {stage: covered(self.spans[stage]) for stage in STAGES if stage in self.spans}
        skipped = Counter(test.reason for test in tests if test.outcome == "skipped")
        return {
            "base": LAYOUT.version,
            "exit_status": exit_status,
            "seconds": round(now - (self.began if make_began is None else make_began), 1),
            "stages": {stage: round(seconds, 1) for stage, seconds in stages.items()},
            "outcomes": dict(Counter(test.outcome for test in tests).most_common()),
            "skipped": dict(skipped.most_common()),
            "longest": [test.id for test in tests[:LONGEST]],
            "tests": [asdict(test) for test in tests],
        }


def stage_of(report: pytest.TestReport) -> str:
    if report.nodeid.startswith("tests/unit/"):
        return "unit"
    return "mutants" if "mutants" in report.keywords else "machines"


def outcome_of(report: pytest.TestReport) -> str:
    """In pytest's words, which has no word of its own for a fixture that fails."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed and report.when != "call":
        return "error"
    return report.outcome


def reason_of(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail).removeprefix("reason: ")
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return ""


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """For how long at least one of SPANS lasted: tests of two workers overlap."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def lines(done: dict[str, Any]) -> Iterator[str]:
    """A summary for people."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in done["outcomes"].items())
    yield f"Linux {done['base']}, {done['seconds']:.0f} s: {outcomes}"
    if done["skipped"]:
        yield "skipped:"
        for reason, count in done["skipped"].items():
            yield f"{count:8}  {reason}"
    yield "wall clock by stage (stages overlap, as workers run tests at the same time):"
    for stage, seconds in done["stages"].items():
        yield f"{seconds:8.1f} s  {stage}"
    yield "longest tests, by the host's clock, and the processor time of their emulators:"
    for test in done["tests"][:LONGEST]:
        cpu = "" if test["cpu_seconds"] is None else f"{test['cpu_seconds']:.1f} s"
        yield f"{test['seconds']:8.1f} s {cpu:>9}  {test['id']}"


def written(done: dict[str, Any]) -> str:
    """Write the file. Returns a line that names it, or says why there is none."""
    try:
        file = files.output_file(None, "tests", "json")
        with complete.file(file) as stream:
            json.dump(done, stream, indent=1)
    except (LabError, OSError) as error:
        return f"this summary was not written: {error}"
    return f"the same as JSON: {file}"
