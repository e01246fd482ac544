# SPDX-License-Identifier: GPL-2.0-only
"""Do the tests find bugs? Each mutant of tests/mutants is found, by the test that its patch names.

One kernel has all of them, see lab/build/mutants.py. A case is one boot: the named test passes with
what only lets the mutant show (the control), and then it has to fail, on the same kernel, with the
mutant itself. What is expected is said by the patch: what the test says, what the kernel says, or
both. It is not enough that anything else goes wrong, a machine that crashes included.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab import machines
from lab.build import mutants
from lab.build.kernel import Kernel
from lab.build.mutants import Mutant
from lab.core.paths import LAYOUT
from lab.machines import MachineFailed
from lab.machines.job import COMPLAINT, complaints
from lab.machines.parameters import NAME

from .boots import make_job
from .matrix import MEMORY_FOR_1G, Case, Mode, Selftest

SKIPPED = 4
# Enough for every test; the pages are fresh for each run.
HUGE_2M = 80
# Of each run; it only ends what hangs. With WARNINGs on a busy machine a minute was too little.
TIMEOUT_S = 180


class Outcome:
    """What one run of the test left behind."""

    def __init__(self, files: dict[str, bytes], case: Case) -> None:
        self.output = files[f"{case.id}.output"].decode(errors="replace")
        self.log = files[f"{case.id}.log"].decode(errors="replace")
        self.status = int(files[f"{case.id}.status"])

    def __str__(self) -> str:
        return "\n".join([f"exit status {self.status}", self.output, *complaints(self.log)])


def cases_of(mutant: Mutant) -> list[Case]:
    """Control and mutant."""
    check = mutant.check
    parameters = dict(word.split("=", 1) for word in check.words if NAME.match(word))
    cmdline = tuple(word for word in check.words if not NAME.match(word))
    test = Selftest(
        name="control",
        argv=(check.program, *check.arguments),
        memory_mib=MEMORY_FOR_1G if "hugepagesz=1G" in cmdline else 1024,
        huge_2m=HUGE_2M,
        cmdline=cmdline,
        settings=(("mutant", f"-{mutant.number}"),),
        timeout_s=TIMEOUT_S,
    )
    switched_on = replace(test, name="mutant", settings=(("mutant", str(mutant.number)),))
    mode = Mode(mutant.name, check.machine, parameters)
    eager = "N" if parameters.get("kvm.eager_page_split") == "0" else "Y"
    return [Case(one, mode, eager) for one in (test, switched_on)]


def run(mutant: Mutant, kernel: Kernel, selftests: Path) -> tuple[Outcome, Outcome]:
    """Control and mutant."""
    progress: list[str] = []
    control, found = cases = cases_of(mutant)
    job = make_job(cases, kernel.image, selftests, progress.append)
    try:
        result = machines.get(mutant.check.machine).run(job)
    except MachineFailed as failure:
        running = progress[-1] if progress else "boot"
        pytest.fail(f"{failure}, during: {running}\n{failure.kernel_log[-2000:]}")
    return Outcome(result.files, control), Outcome(result.files, found)


def assert_found(pattern: re.Pattern[str] | None, text: str, where: str, all_of: Outcome) -> None:
    if pattern and not pattern.search(text):
        pytest.fail(f"{where} does not have {pattern.pattern!r}; seen instead: {all_of}")


MUTANTS = mutants.load(LAYOUT).mutants


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.number:02}-{mutant.name}")
def test_mutant_is_caught(
    mutant: Mutant, kernel: Callable[[str, str], Kernel], selftests: Callable[[str], Path]
) -> None:
    control, found = run(mutant, kernel("mutants", "kvm"), selftests("series"))
    assert control.status == 0, f"without the mutant: {control}"
    assert not COMPLAINT.search(control.log), f"without the mutant, the kernel complains: {control}"
    check = mutant.check
    survived = found.status == 0 and not COMPLAINT.search(found.log)
    assert not survived, f"no test noticed: {found}"
    assert found.status != SKIPPED, f"skipped with the mutant: {found}"
    assert_found(check.kernel_log, found.log, "the kernel's log", found)
    if check.output:
        assert found.status != 0, f"the kernel complains, but {check.program} passes: {found}"
        assert_found(check.output, found.output, "the test's output", found)
