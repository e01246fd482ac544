# SPDX-License-Identifier: GPL-2.0-only
"""Two runs of one job give the same bytes, whatever else the host does.

That holds for vmx-bochs, and for svm-qemu where it counts instructions.

The output of the job depends on random numbers, counters of interrupts and of scheduling, and the
times at which three competing CPUs are done. Beside one of the runs, all CPUs of the host are busy.
The job is short, so it misses differences that need minutes to show; `make test WHAT=long` has one
that counts fifteen times as far.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from lab import machines
from lab.build.kernel import Kernel
from lab.core.paths import ROOT
from lab.machines import Job, Result, Sharing

LAST_WORD = "reboot: Power down"
# $1: how far to count.
TELLTALE = """
head -c 32 /dev/urandom | sha256sum
most=$1
count() { i=0; while [ $i -lt $most ]; do i=$((i+1)); done; echo $1 $(cat /proc/uptime); }
count a & count b & count c & wait
cat /proc/interrupts /proc/stat /proc/vmstat >$LAB_OUT/counters
"""


@contextmanager
def busy_host() -> Iterator[None]:
    """As many processes that only spin as there are CPUs."""
    with ExitStack() as stack:
        for _ in range(psutil.cpu_count() or 1):
            spin = stack.enter_context(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
            stack.callback(spin.kill)
        yield


def said(result: Result) -> list[str]:
    """The kernel's log. Its last word may be lost: a machine ends with its report."""
    return [line for line in result.kernel_log.splitlines() if not line.endswith(LAST_WORD)]


@pytest.mark.once
@pytest.mark.parametrize("most", [200, pytest.param(3000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["vmx-bochs", "svm-qemu"])
def test_two_runs_are_identical(kernel: Callable[[str, str], Kernel], name: str, most: int) -> None:
    machine = machines.get(name)
    job = Job(
        kernel=kernel("series", "kvm").image,
        command=("sh", "-c", TELLTALE, "sh", str(most)),
        cpus=3,
        cmdline=("printk.time=1",),
        sharing=Sharing.COUNTED,
    )

    with busy_host():
        one = machine.run(job)
    two = machine.run(job)
    assert one.status == two.status == 0
    assert (one.output, one.files, said(one)) == (two.output, two.files, said(two))
    assert b"a " in one.output and "counters" in one.files


def test_no_program_depends_on_where_it_was_built(selftests: Callable[[str], Path]) -> None:
    """Figures depend on every byte: those of another clone would not be those of the reference."""
    here = str(ROOT).encode()
    programs = [file for file in selftests("series").rglob("*") if file.is_file()]
    assert programs
    assert not [file for file in programs if here in file.read_bytes()]
