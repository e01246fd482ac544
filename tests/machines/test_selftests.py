# SPDX-License-Identifier: GPL-2.0-only
"""KVM selftests inside the emulated machines, on the kernel with the series.

A case fails if the test fails or skips, if it skips a part that skips.py does not expect, or if the
kernel complains in its log.
"""

from collections.abc import Callable

import pytest
from _pytest.mark import ParameterSet

from lab import machines
from lab.machines import Job, Result
from lab.machines.job import complaints

from .boots import MOST_S, Boots, BootsOf, Outcome, Spent
from .matrix import Case, cases, is_for_default_base, long_cases, quick_cases
from .skips import others, unexpected


def marked(case: Case) -> ParameterSet:
    """A case of `make test` with its markers."""
    marks = [pytest.mark.quick] * (case.id in QUICK)
    return pytest.param(case, marks=marks + [pytest.mark.once] * is_for_default_base(case))


QUICK = {case.id for case in quick_cases()}
CASES = [
    *map(marked, cases()),
    *(pytest.param(case, marks=pytest.mark.long) for case in long_cases()),
]


@pytest.fixture
def boots(boots_of: BootsOf) -> Boots:
    """The boots for the cases of this test run."""
    return boots_of("series", "series", lambda params: [params["case"]])


def assert_silent(result: Outcome | Result) -> None:
    found = complaints(result.kernel_log)
    assert not found, "the kernel complains:\n" + "\n".join(found)


def run_silent(machine: str, job: Job, skipped: str = "") -> Result:
    """The result of a job that succeeds, and of which the kernel does not complain.

    skipped: what a selftest in it may skip, see others().
    """
    result = machines.get(machine).run(job)
    assert result.status == 0, result.text
    assert_silent(result)
    assert not others(result.text, skipped)
    return result


@pytest.mark.timeout(MOST_S)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_selftest(case: Case, boots: Boots, cost: Callable[[Spent], None]) -> None:
    found = boots.outcome(case)
    cost(found.spent)
    assert_silent(found)
    assert found.status == 0, f"exit status {found.status}\n{found.output}"
    assert not [*unexpected(case, found.output)]
