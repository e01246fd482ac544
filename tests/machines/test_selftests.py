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

from .boots import Boots, Outcome, make_job
from .matrix import Case, cases

# Seconds: the first case of a boot waits for all of them.
MOST_S = 7200


@pytest.fixture(scope="session")
def boots(
    request: pytest.FixtureRequest,
    kernel: Callable[[str, str], Kernel],
    selftests: Callable[[str], Path],
) -> Boots:
    """The boots for the cases of this session."""
    functions = (item for item in request.session.items if isinstance(item, pytest.Function))
    params = (item.callspec.params for item in functions if item.function is test_selftest)
    wanted = [case for each in params if isinstance(case := each["case"], Case)]

    def job(together: Sequence[Case], note: Callable[[str], None]) -> Job:
        image = kernel("series", together[0].config).image
        return make_job(together, image, selftests("series"), note)

    return Boots(wanted, job)


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
