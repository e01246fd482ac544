# SPDX-License-Identifier: GPL-2.0-only
"""The bpftrace tools tell what happened: their counts against KVM's statistics and arithmetic.

bpftrace starts the workload itself and ends with it, so that all of a run is seen and nothing else.
What a tool said is printed below the command, for its example.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.build.kernel import Kernel
from lab.build.selftests import LIVE_TEST, OBJECTS, PERF_TEST
from lab.core.paths import LAYOUT, ROOT
from lab.machines import Job
from lab.machines.initramfs import OUT
from lab.machines.paging import Mode

from .test_selftests import run_silent

NOT_BUILT = "no bpftrace tool was run: no kernel bpf, or no bpftrace; see `make test WHAT=bpf`"
MACHINE = "svm-qemu"
BPFTRACE = Path("/usr/bin/bpftrace")
TOOLS = ROOT / "tools" / "bpftrace"
# What bpftrace includes if the kernel has no BTF; made for the selftests.
HEADERS = ("asm", "asm-generic", "linux/types.h", "linux/posix_types.h", "linux/stddef.h")
PAGING = {"npt": Mode(True), "shadow": Mode(False), "tdp": Mode(True, True)}
VCPUS = 2
# Huge pages of each vCPU in PHASES.
HUGE = 4
PAGES = HUGE * 512
BACKING = ("-s", "anonymous_hugetlb_2mb", "-v", str(VCPUS))
# vCPUs pause while memory is split: all counts are known beforehand.
PHASES = (PERF_TEST, *BACKING, "-b", f"{2 * HUGE}M", "-i", "2", "-w", "100")
# vCPUs run on while all of memory is split; one of them only reads what is not mapped yet, so
# that each of its reads needs mmu_lock.
LIVE = (LIVE_TEST, *BACKING, "-b", "32M", "-D", "100", "-R", "1", "-F", "-g")
STATISTICS = "statistics.json"
# What changes while other processors run it is what QEMU stumbles over, see kvm.config: no
# kprobe becomes a jump.
SCRIPT = """
set -e
echo 0 > /proc/sys/debug/kprobes-optimization
echo 64 > /proc/sys/vm/nr_hugepages
echo "$1" > /sys/module/kvm/parameters/eager_page_split
/tools/bpftrace -o "$LAB_OUT/said" -c "/tools/$2" /tools/tool.bt
"""


@pytest.fixture(scope="session")
def image(optional_kernel: Callable[..., Kernel]) -> Path:
    return optional_kernel("bpf", NOT_BUILT, BPFTRACE).image


@dataclass(frozen=True)
class Seen:
    """counts: by map, then key, which is "" of a scalar. statistics: how KVM's changed, in all."""

    counts: Mapping[str, Mapping[str, int]]
    statistics: Mapping[str, int]


def _counts(text: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name, key, count in re.findall(
        r"^(@\w+)(?:\[(.+)\])?: (?:count )?(\d+)", text, re.MULTILINE
    ):
        found.setdefault(name, {})[key] = int(count)
    return found


def _statistics(text: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for line in text.splitlines():
        for name, change in json.loads(line).get("kvm_stats", {}).items():
            total[name] = total.get(name, 0) + change
    return total


Trace = Callable[[str, bool, str, tuple[str, ...]], Seen]


@pytest.fixture
def trace(image: Path, selftests: Callable[[str], Path]) -> Trace:
    """trace(tool, eager, paging, workload): one run of a tool."""

    def traced(tool: str, eager: bool, paging: str, workload: tuple[str, ...]) -> Seen:
        setting, command = "NY"[eager], shlex.join(workload)
        recorded = f"{command} --stats -j {OUT}/{STATISTICS}"
        include = LAYOUT.linux / OBJECTS / "usr" / "include"
        job = Job(
            kernel=image,
            command=("sh", "-c", SCRIPT, "bpf", setting, recorded),
            parameters=PAGING[paging].parameters(MACHINE),
            cpus=3,
            # LLVM comes along, once in the archive and once unpacked.
            memory_mib=2048,
            files={
                "/tools/bpftrace": BPFTRACE,
                f"/tools/{workload[0]}": selftests("series") / workload[0],
                "/tools/tool.bt": TOOLS / f"{tool}.bt",
                **{f"/usr/include/{name}": include / name for name in HEADERS},
            },
            timeout_s=120,
        )
        result = run_silent(MACHINE, job)
        said = result.files["said"].decode(errors="replace")
        print(f"# eager_page_split={setting}\n# bpftrace -c '{command}' {tool}.bt\n{said}")
        assert not re.search(r"Lost \d+ events", said + result.text)
        return Seen(_counts(said), _statistics(result.files[STATISTICS].decode()))

    return traced


def by_vcpu(counts: Mapping[str, int]) -> dict[str, int]:
    """Without the process, which comes first in a key."""
    return {key.split(", ", 1)[1]: value for key, value in counts.items()}


@pytest.mark.parametrize("paging", ["npt", "shadow"])
def test_splitlat_sees_what_was_split(trace: Trace, paging: str) -> None:
    seen = trace("splitlat", True, paging, PHASES)
    batches = seen.counts["@batches"]
    assert seen.counts["@pages"][""] == seen.statistics["eager_split_done"] == VCPUS * HUGE
    assert set(seen.counts["@ranges"]) == {"all"}
    assert batches["done"] == seen.counts["@ranges"]["all"]
    assert sum(batches.values()) == seen.counts["@held_us"][""]


@pytest.mark.parametrize("paging", ["npt", "shadow", "tdp"])
def test_wpfaults_of_eager_splitting(trace: Trace, paging: str) -> None:
    seen = trace("wpfaults", True, paging, PHASES)
    found = by_vcpu(seen.counts["@write_protected"])
    assert found == {f"{vcpu}, 4K": PAGES for vcpu in range(VCPUS)}
    assert "@not_mapped" not in seen.counts


@pytest.mark.parametrize("paging", ["npt", "shadow", "tdp"])
def test_wpfaults_of_lazy_splitting(trace: Trace, paging: str) -> None:
    seen = trace("wpfaults", False, paging, PHASES)
    found = by_vcpu(seen.counts["@write_protected"])
    # The first write to a huge page maps all of its 4 KiB pages, write-protected but for its own.
    assert found == {
        f"{vcpu}, {size}": count
        for vcpu in range(VCPUS)
        for size, count in (("2M", HUGE), ("4K", PAGES - HUGE))
    }
    assert "@not_mapped" not in seen.counts


@pytest.mark.parametrize("eager", [False, True], ids=["N", "Y"])
def test_mmulock_sees_every_fault(trace: Trace, eager: bool) -> None:
    seen = trace("mmulock", eager, "npt", PHASES)
    holds, waits = seen.counts["@holds"], seen.counts.get("@waits", {})
    faults = seen.statistics["pf_taken"] - seen.statistics["pf_fast"]
    # And whenever a vCPU makes or loses its root.
    assert faults <= holds["write, vCPU"] <= faults + 16 * VCPUS
    assert ("write, splitter" in holds) == eager
    assert holds["write, VM ioctl"] > 0
    assert all(count <= holds[who] for who, count in waits.items())


@pytest.mark.parametrize(
    ("tool", "eager", "found"),
    [("mmulock", False, "@waits"), ("mmulock", True, "@waits"), ("splitlat", True, "@pages")],
)
def test_while_vcpus_run(trace: Trace, tool: str, eager: bool, found: str) -> None:
    """As in the examples of these tools."""
    assert any(trace(tool, eager, "npt", LIVE).counts[found].values())
