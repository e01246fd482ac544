# SPDX-License-Identifier: GPL-2.0-only
"""The bpftrace tools tell what happened: their counts against KVM's statistics and arithmetic."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lab.build.kernel import Kernel
from lab.machines.initramfs import OUT
from lab.verify import bpf

from .test_selftests import run_silent

NOT_BUILT = "no bpftrace tool was run: no kernel bpf, or no bpftrace; see `make test WHAT=bpf`"
STATISTICS = "statistics.json"
VCPUS = 2
# Of bpf.PHASES, for each vCPU.
HUGE = 4
PAGES = HUGE * 512


@pytest.fixture(scope="session")
def image(optional_kernel: Callable[..., Kernel]) -> Path:
    return optional_kernel(bpf.CONFIG, NOT_BUILT, bpf.BPFTRACE).image


@dataclass(frozen=True)
class Seen:
    """maps: what the tool printed, a scalar below "". statistics: how KVM's changed, in all."""

    maps: Mapping[str, Mapping[str, Any]]
    statistics: Mapping[str, int]

    def counts(self, name: str) -> dict[str, int]:
        return {key: value["count"] for key, value in self.maps.get(name, {}).items()}


def _maps(text: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        record = json.loads(line) if line.strip() else {}
        if record.get("type") in ("map", "hist", "stats"):
            for name, value in record["data"].items():
                scalar = not isinstance(value, dict) or isinstance(value.get("count"), int)
                found[name] = {"": value} if scalar else value
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
        options = ("--stats", "-j", f"{OUT}/{STATISTICS}")
        run = bpf.ToolRun(tool, eager, (*workload, *options))
        job = bpf.bpf_job([run], paging, image, selftests("series"), "json")
        result = run_silent(bpf.MACHINE, replace(job, timeout_s=120))
        (output,) = bpf.collect([run], result.files)
        return Seen(_maps(output), _statistics(result.files[STATISTICS].decode()))

    return traced


def by_vcpu(counts: Mapping[str, int]) -> dict[str, int]:
    """Without the process, which comes first in a key."""
    return {key.split(",", 1)[1]: value for key, value in counts.items()}


@pytest.mark.parametrize("paging", ["npt", "shadow"])
def test_splitlat_sees_what_was_split(trace: Trace, paging: str) -> None:
    seen = trace("splitlat", True, paging, bpf.PHASES)
    batches = seen.maps["@batches"]
    assert seen.maps["@pages"][""] == seen.statistics["eager_split_done"] == VCPUS * HUGE
    assert seen.maps["@yields"][""] == seen.statistics["eager_split_yields"]
    assert batches.get("yield", 0) == seen.statistics["eager_split_yields"]
    assert set(seen.maps["@ranges"]) == {"all"}
    assert batches["done"] == seen.maps["@ranges"]["all"]
    assert sum(batches.values()) == seen.counts("@held_us")[""]


@pytest.mark.parametrize("paging", ["npt", "shadow", "tdp"])
def test_wpfaults_of_eager_splitting(trace: Trace, paging: str) -> None:
    seen = trace("wpfaults", True, paging, bpf.PHASES)
    assert by_vcpu(seen.maps["@write_protected"]) == {f"{vcpu},4K": PAGES for vcpu in range(VCPUS)}
    assert "@not_mapped" not in seen.maps


@pytest.mark.parametrize("paging", ["npt", "shadow", "tdp"])
def test_wpfaults_of_lazy_splitting(trace: Trace, paging: str) -> None:
    seen = trace("wpfaults", False, paging, bpf.PHASES)
    found = by_vcpu(seen.maps["@write_protected"])
    missing = by_vcpu(seen.maps.get("@not_mapped", {}))
    for vcpu in range(VCPUS):
        assert found[f"{vcpu},2M"] == HUGE
        # The TDP MMU fills the page table that takes a huge page's place, the shadow MMU does not.
        assert found.get(f"{vcpu},4K", 0) == (PAGES - HUGE if paging == "tdp" else 0)
        assert missing.get(str(vcpu), 0) == (0 if paging == "tdp" else PAGES - HUGE)


@pytest.mark.parametrize("eager", [False, True], ids=["N", "Y"])
def test_mmulock_sees_every_fault(trace: Trace, eager: bool) -> None:
    seen = trace("mmulock", eager, "npt", bpf.PHASES)
    holds, waits = seen.counts("@holds"), seen.counts("@waits")
    faults = seen.statistics["pf_taken"] - seen.statistics["pf_fast"]
    # And whenever a vCPU makes or loses its root.
    assert faults <= holds["write,vCPU"] <= faults + 16 * VCPUS
    assert ("write,splitter" in holds) == eager
    assert holds["write,VM ioctl"] > 0
    assert all(count <= holds[who] for who, count in waits.items())
