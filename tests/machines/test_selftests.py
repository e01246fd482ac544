# SPDX-License-Identifier: GPL-2.0-only
"""KVM selftests inside the emulated machines, on the kernel with the series.

A case fails if the test fails or skips, or if the kernel complains in its log. What fails on the
unpatched kernel as well is listed in UPSTREAM_FAILS, and is run there to prove it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab import machines
from lab.complaints import complaints
from lab.kernel import Kernel
from lab.machines import Job, Result

from .matrix import Case, cases

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
    found = complaints(result.kernel_log)
    assert not found, "the kernel complains:\n" + "\n".join(found)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.id)
def test_selftest(
    case: Case,
    kernel: Callable[[str, str], Kernel],
    selftests: Callable[[str], Path],
) -> None:
    expected = UPSTREAM_FAILS.get((case.test.name, case.mode.name))
    machine = machines.get(case.mode.machine)
    result = machine.run(job(case, kernel("series", case.config), selftests("series")))
    output = result.output.decode(errors="replace")
    assert_silent(result)
    if expected is None:
        assert result.status == 0, f"exit status {result.status}\n{output}"
        return
    unpatched = machine.run(job(case, kernel("base", case.config), selftests("series")))
    assert unpatched.status != 0, f"passes on the unpatched kernel: {expected} is no longer true"
    assert result.status == unpatched.status, f"exit status {result.status}\n{output}"
