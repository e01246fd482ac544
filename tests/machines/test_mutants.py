# SPDX-License-Identifier: GPL-2.0-only
"""Do the tests find bugs? Each mutant of tests/mutants is found, by the test that its patch names.

One kernel has all of them, see lab/build/mutants.py. A case is one boot: the named test passes as
long as no mutant is on (the control), and then it has to fail, on the same kernel, with the mutant
switched on. What is expected is said by the patch: what the test says, what the kernel says, or
both. It is not enough that anything else goes wrong, a machine that crashes included.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import machines
from lab.build import mutants
from lab.build.kernel import Kernel
from lab.build.mutants import Mutant
from lab.core.paths import LAYOUT
from lab.machines import Job, MachineFailed
from lab.machines.complaints import COMPLAINT, complaints
from lab.machines.parameters import NAME

from .matrix import MEMORY_FOR_1G

SKIPPED = 4
# Enough for every test; the pages are fresh for each run.
HUGE_2M = 80
TIMEOUT_S = 120

# run WHAT NUMBER COMMAND...: with this mutant, and leave WHAT.{output,status,log}.
SCRIPT = """
cd /selftests
run() {
	echo "$1" >>"$LAB_PROGRESS"
	out=$LAB_OUT/$1
	echo "$2" >/sys/module/kvm/parameters/mutant
	shift 2
	echo 0 >/proc/sys/vm/nr_hugepages
	echo "$HUGE" >/proc/sys/vm/nr_hugepages
	echo 1 >/sys/kernel/debug/clear_warn_once
	dmesg -c >/dev/null
	"./$@" >"$out.output" 2>&1
	echo $? >"$out.status"
	dmesg -c >"$out.log"
}
HUGE=$1 number=$2
shift 2
run control 0 "$@"
run mutant "$number" "$@"
"""


class Outcome:
    """What one run of the test left behind."""

    def __init__(self, files: dict[str, bytes], which: str) -> None:
        self.output = files[f"{which}.output"].decode(errors="replace")
        self.log = files[f"{which}.log"].decode(errors="replace")
        self.status = int(files[f"{which}.status"])

    def __str__(self) -> str:
        return "\n".join([f"exit status {self.status}", self.output, *complaints(self.log)])


def job(mutant: Mutant, kernel: Kernel, selftests: Path, progress: list[str]) -> Job:
    check = mutant.check
    parameters = dict(word.split("=", 1) for word in check.words if NAME.match(word))
    cmdline = tuple(word for word in check.words if not NAME.match(word))
    arguments = (str(HUGE_2M), str(mutant.number), check.program, *check.arguments)
    return Job(
        kernel=kernel.image,
        command=("sh", "-c", SCRIPT, "sh", *arguments),
        parameters=parameters,
        cpus=3,
        memory_mib=MEMORY_FOR_1G if "hugepagesz=1G" in cmdline else 1024,
        files={f"/selftests/{check.program}": selftests / check.program},
        timeout_s=TIMEOUT_S,
        on_progress=progress.append,
        cmdline=cmdline,
    )


def run(mutant: Mutant, kernel: Kernel, selftests: Path) -> tuple[Outcome, Outcome]:
    """Control and mutant."""
    progress: list[str] = []
    try:
        result = machines.get(mutant.check.machine).run(job(mutant, kernel, selftests, progress))
    except MachineFailed as failure:
        running = progress[-1] if progress else "boot"
        pytest.fail(f"{failure}, during: {running}\n{failure.kernel_log[-2000:]}")
    return Outcome(result.files, "control"), Outcome(result.files, "mutant")


def assert_clean(outcome: Outcome) -> None:
    assert outcome.status == 0, f"without the mutant: {outcome}"
    assert not COMPLAINT.search(outcome.log), f"without the mutant, the kernel complains: {outcome}"


def assert_found(pattern: re.Pattern[str] | None, text: str, where: str, all_of: Outcome) -> None:
    if pattern and not pattern.search(text):
        pytest.fail(f"{where} does not have {pattern.pattern!r}; seen instead: {all_of}")


MUTANTS = mutants.load(LAYOUT).mutants


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.number:02}-{mutant.name}")
def test_mutant_is_caught(
    mutant: Mutant,
    kernel: Callable[[str, str], Kernel],
    selftests: Callable[[str], Path],
) -> None:
    control, found = run(mutant, kernel("mutants", "kvm"), selftests("series"))
    assert_clean(control)
    check = mutant.check
    survived = found.status == 0 and not COMPLAINT.search(found.log)
    assert not survived, f"no test noticed: {found}"
    assert found.status != SKIPPED, f"skipped with the mutant: {found}"
    assert_found(check.kernel_log, found.log, "the kernel's log", found)
    if check.output:
        assert found.status != 0, f"the kernel complains, but {check.program} passes: {found}"
        assert_found(check.output, found.output, "the test's output", found)
