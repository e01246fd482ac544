# SPDX-License-Identifier: GPL-2.0-only
"""KVM selftests inside the emulated machines, on the kernel with the series.

A case fails if the test fails or skips, or if the kernel complains in its log.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lab import machines
from lab.build.kernel import Kernel
from lab.machines import Job, Result
from lab.machines.job import complaints

from .boots import MOST_S, Boots, Outcome, asked_for, make_job
from .matrix import Case, cases


@pytest.fixture(scope="session")
def boots(
    request: pytest.FixtureRequest,
    kernel: Callable[[str, str], Kernel],
    selftests: Callable[[str], Path],
) -> Boots:
    """The boots for the cases of this session."""

    def job(together: Sequence[Case], note: Callable[[str], None]) -> Job:
        image = kernel("series", together[0].config).image
        return make_job(together, image, selftests("series"), note)

    return Boots((params["case"] for params in asked_for(request, test_selftest)), job)


def assert_silent(result: Outcome | Result) -> None:
    found = complaints(result.kernel_log)
    assert not found, "the kernel complains:\n" + "\n".join(found)


def run_silent(machine: str, job: Job) -> Result:
    """The result of a job that succeeds, and of which the kernel does not complain."""
    result = machines.get(machine).run(job)
    assert result.status == 0, result.text
    assert_silent(result)
    return result


@pytest.mark.timeout(MOST_S)
@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.id)
def test_selftest(case: Case, boots: Boots) -> None:
    found = boots.outcome(case)
    assert_silent(found)
    assert found.status == 0, f"exit status {found.status}\n{found.output}"
