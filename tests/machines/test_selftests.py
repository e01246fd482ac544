# SPDX-License-Identifier: GPL-2.0-only
"""KVM selftests inside the emulated machines, on the kernel with the series.

A case fails if the test fails or skips, or if the kernel complains in its log. What fails on the
unpatched kernel as well is listed in UPSTREAM_FAILS, and is run there to prove it.
"""

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import machines
from lab.kernel import Kernel
from lab.machines import Job, Machine, MachineLost, Result

from .matrix import Case, cases

# How often a machine may get lost before it counts against the test, plus one.
TRIES = 3

COMPLAINT = re.compile(
    r"WARNING:|BUG:|INFO: .*(?:lock|task|rcu)|KASAN|possible .* detected|Oops|Call Trace"
)

# (test, mode) -> why it can't pass with or without the series.
UPSTREAM_FAILS: dict[tuple[str, str], str] = {}

# Sets what the case asks for, then becomes the test: its exit status is the machine's.
SCRIPT = """
set -e
echo "$1" > /sys/module/kvm/parameters/eager_page_split
echo "$2" > /proc/sys/vm/nr_hugepages
[ "$(cat /proc/sys/vm/nr_hugepages)" -ge "$2" ] || { echo "no $2 huge pages"; exit 99; }
shift 2
while [ "$1" != -- ]; do echo "${1#*=}" > "/sys/module/kvm/parameters/${1%%=*}"; shift; done
shift
cd /selftests
exec "./$@"
"""


def job(case: Case, kernel: Kernel, selftests: Path) -> Job:
    test = case.test
    settings = (f"{name}={value}" for name, value in test.settings)
    program = test.argv[0]
    arguments = (case.eager, str(test.huge_2m), *settings, "--", *test.argv)
    return Job(
        kernel=kernel.image,
        command=("sh", "-c", SCRIPT, "sh", *arguments),
        parameters=case.mode.parameters,
        cpus=3,
        memory_mib=test.memory_mib,
        files={f"/selftests/{program}": selftests / program},
        timeout_s=test.timeout_s,
        cmdline=test.cmdline,
    )


def assert_silent(result: Result) -> None:
    complaints = [line for line in result.kernel_log.splitlines() if COMPLAINT.search(line)]
    assert not complaints, "the kernel complains:\n" + "\n".join(complaints)


def run(machine: Machine, job: Job, tries: int) -> Result:
    """Run job; a machine that is lost is started again, and said, as it is no verdict on the test.

    The emulated hosts get lost about once in a hundred boots; a test that loses its machine
    every time fails.
    """
    for _ in range(tries - 1):
        try:
            return machine.run(job)
        except MachineLost as lost:
            warnings.warn(f"{lost}; the console ended:\n{lost.kernel_log[-3000:]}", stacklevel=2)
    return machine.run(job)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.id)
def test_selftest(
    case: Case,
    kernel: Callable[[str, str], Kernel],
    selftests: Callable[[str], Path],
) -> None:
    expected = UPSTREAM_FAILS.get((case.test.name, case.mode.name))
    machine = machines.get(case.mode.machine)
    # What the debug kernel dies of is what it is there to find.
    tries = 1 if case.config == "debug" else TRIES
    result = run(machine, job(case, kernel("series", case.config), selftests("series")), tries)
    output = result.output.decode(errors="replace")
    assert_silent(result)
    if expected is None:
        assert result.status == 0, f"exit status {result.status}\n{output}"
        return
    unpatched = run(machine, job(case, kernel("base", case.config), selftests("series")), tries)
    assert unpatched.status != 0, f"passes on the unpatched kernel: {expected} is no longer true"
    assert result.status == unpatched.status, f"exit status {result.status}\n{output}"
