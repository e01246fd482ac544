# SPDX-License-Identifier: GPL-2.0-only
"""KVM selftests inside the emulated machines, on the kernel with the series.

A case fails if the test fails or skips, or if the kernel complains in its log. What fails on the
unpatched kernel as well is listed in UPSTREAM_FAILS, and is run there to prove it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lab.build.kernel import Kernel
from lab.machines import Job, Result
from lab.machines.complaints import complaints

from .boots import Boots, Outcome, make_job
from .matrix import Case, cases

# (test, mode) -> why it can't pass with or without the series.
UPSTREAM_FAILS: dict[tuple[str, str], str] = {}

# Seconds: the first case of a boot waits for all of them.
MOST_S = 7200


@pytest.fixture(scope="session")
def boots(
    request: pytest.FixtureRequest,
    kernel: Callable[[str, str], Kernel],
    selftests: Callable[[str], Path],
) -> Callable[[str], Boots]:
    """boots(kind): the boots of a kind of kernel, for the cases of this session."""
    functions = (item for item in request.session.items if isinstance(item, pytest.Function))
    params = (item.callspec.params for item in functions if item.function is test_selftest)
    wanted = [case for each in params if isinstance(case := each["case"], Case)]
    known: dict[str, Boots] = {}

    def made(kind: str) -> Boots:
        def job(together: Sequence[Case], note: Callable[[str], None]) -> Job:
            image = kernel(kind, together[0].config).image
            return make_job(together, image, selftests("series"), note)

        # What is run on the unpatched kernel is for one case at a time.
        return known.setdefault(kind, Boots(wanted if kind == "series" else [], job))

    return made


def assert_silent(result: Outcome | Result) -> None:
    found = complaints(result.kernel_log)
    assert not found, "the kernel complains:\n" + "\n".join(found)


@pytest.mark.timeout(MOST_S)
@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.id)
def test_selftest(case: Case, boots: Callable[[str], Boots]) -> None:
    expected = UPSTREAM_FAILS.get((case.test.name, case.mode.name))
    found = boots("series").outcome(case)
    assert_silent(found)
    if expected is None:
        assert found.status == 0, f"exit status {found.status}\n{found.output}"
        return
    unpatched = boots("base").outcome(case)
    assert unpatched.status != 0, f"passes on the unpatched kernel: {expected} is no longer true"
    assert found.status == unpatched.status, f"exit status {found.status}\n{found.output}"
