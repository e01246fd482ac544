# SPDX-License-Identifier: GPL-2.0-only
"""dirty_log_perf_test writes as much as it was asked to, and says so; upstream's writes everything.

After the first CLEAR, with eager splitting and without PML, the first write to each page takes a
fast page fault and nothing else does. So the kernel's tracepoint counts the pages written in the
second iteration, whatever the test says about itself.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.build.kernel import Kernel
from lab.machines import Job

from .test_selftests import run_silent

pytestmark = pytest.mark.once

PAGES = 8192
ASKED = 20
# The same options for both.
OPTIONS = ("-s", "anonymous_hugetlb_2mb", "-v", "1", "-b", f"{PAGES // 256}M", "-w", str(ASKED))

SCRIPT = """
set -e
cd /sys/kernel/tracing
echo 8192 > buffer_size_kb
echo 1 > events/kvmmmu/fast_page_fault/enable
echo Y > /sys/module/kvm/parameters/eager_page_split
echo 20 > /proc/sys/vm/nr_hugepages
"$@"
grep -c "fixed 1" trace > "$LAB_OUT/faults" || :
[ ! -e /perf.json ] || cp /perf.json "$LAB_OUT"
"""

Run = Callable[..., dict[str, bytes]]


@pytest.fixture
def run(kernel: Callable[[str, str], Kernel], selftests: Callable[[str], Path]) -> Run:
    """run(kind, *options): runs the test of that kernel tree, on our kernel; returns the files."""

    def run(kind: str, *options: str) -> dict[str, bytes]:
        job = Job(
            kernel=kernel("series", "kvm").image,
            command=("sh", "-c", SCRIPT, "sh", "/test", *OPTIONS, *options),
            parameters={"kvm_amd.npt": "1", "kvm.tdp_mmu": "0"},
            cpus=2,
            files={"/test": selftests(kind) / "dirty_log_perf_test"},
            timeout_s=120,
        )
        return run_silent("svm-qemu", job).files

    return run


def test_ours_writes_the_share_asked_for(run: Run) -> None:
    files = run("series", "--json", "/perf.json")
    lines = [json.loads(line) for line in files["perf.json"].decode().splitlines()]
    dirty = [line for line in lines if line["phase"] == "dirty"]
    assert [line["iteration"] for line in dirty] == [1, 2]
    for line in dirty:
        assert line["reads"] + line["writes"] == PAGES
        assert line["achieved_write_percent"] == pytest.approx(ASKED, abs=1)
    assert dirty[1]["writes"] == int(files["faults"]) == dirty[1]["kvm_stats"]["pf_fast"]


def test_upstreams_writes_everything(run: Run) -> None:
    assert int(run("base")["faults"]) == PAGES
