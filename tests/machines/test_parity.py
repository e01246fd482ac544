# SPDX-License-Identifier: GPL-2.0-only
"""The packaged KVM selftests have the same verdicts on the unpatched kernel and on the series."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from lab.machines import MachineFailed
from lab.machines.job import complaints

from .boots import MOST_S, UNFIT, BootsOf, Outcome
from .matrix import PACKAGED, Case

# Words for exit statuses. 137 is that of a process that SIGKILL ended, at the time limit.
VERDICTS = {0: "pass", 4: "skip", 137: "limit", UNFIT: "no machine"}
# Numbers, addresses and times, which differ between boots.
VARIES = re.compile(r"^\[[^]]*\] *|\b(?:0x)?[0-9a-f]*[0-9][0-9a-f]*\b")


def verdict(found: Outcome) -> tuple[str, set[str]]:
    """The verdict in a word, and the kernel's complaints without numbers that always differ."""
    said = {VARIES.sub("", line) for line in complaints(found.kernel_log)}
    return VERDICTS.get(found.status, "FAIL") + (", COMPLAINS" if said else ""), said


def outcome(run: Callable[[Case], Outcome], case: Case) -> Outcome:
    """The outcome of CASE, or one that says that its machine failed."""
    try:
        return run(case)
    except MachineFailed as failure:
        return Outcome(UNFIT, str(failure), failure.kernel_log)


def compare(case: Case, kernels: Sequence[Callable[[Case], Outcome]]) -> str:
    """The verdict on both KERNELS, the unpatched one and the series; fails if it still differs."""
    longer = replace(case.test, name=f"{case.test.name}-again", timeout_s=2 * case.test.timeout_s)
    for one in (case, replace(case, test=longer)):
        base, series = (outcome(run, one) for run in kernels)
        (before, _), (now, _) = verdict(base), verdict(series)
        if verdict(base) == verdict(series):
            assert base.status != UNFIT, f"no machine runs it: {base}"
            return now
    pytest.fail(f"{before} unpatched, {now} with the series\nunpatched: {base}\nseries: {series}")


@pytest.fixture
def kernels(boots_of: BootsOf) -> list[Callable[[Case], Outcome]]:
    return [
        boots_of(kind, "base", lambda params: [params["case"]]).outcome
        for kind in ("base", "series")
    ]


@pytest.mark.long
@pytest.mark.timeout(MOST_S)
@pytest.mark.parametrize("case", PACKAGED, ids=lambda case: case.id)
def test_same_verdict(case: Case, kernels: list[Callable[[Case], Outcome]]) -> None:
    found = compare(case, kernels)
    # Skipped, failed or at the time limit without the series, too: reported, and no failure.
    if found != "pass":
        (pytest.skip if found == "skip" else pytest.xfail)(f"{found} on both kernels")
