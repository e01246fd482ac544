# SPDX-License-Identifier: GPL-2.0-only
"""Made-up results with all measurements of a plain `make bench`."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from lab.measure import plan
from lab.results import notation
from lab.results.jsonl import Key, Measurement

REGION = 2 << 20
# What plan.expected_keys() does not choose itself.
SEEN: dict[str, Any] = {
    "machine": "vmx-bochs",
    "vcpus": 1,
    "bytes_per_vcpu": REGION,
    "backing": "anonymous_hugetlb_2mb",
    "write_percent": 100,
    "initially_all_set": True,
    "eager": False,
    "phase": "dirty",
    "iteration": 1,
}


def _dirty(key: Key) -> float:
    """Seconds: of a fault for each page, of one for each region, or of none."""
    unlogged = 0.0013 * key.bytes_per_vcpu / REGION
    if key.iteration != (2 if key.initially_all_set else 1):
        return unlogged
    pages, written = key.vcpus * key.bytes_per_vcpu / 4096, key.write_percent / 100
    fault = pages * written * 28e-6
    if key.kernel == "base" and not key.eager:
        return unlogged + fault
    lazily = 0.0 if key.eager else 0.0009 * min(1, 8 * written)
    by_bits = key.dirty_bits == notation.ON or (key.ept and key.pml)
    return unlogged + lazily + (0 if by_bits else fault * (0.2 if key.ept else 0.9))


def _seconds(key: Key) -> float:
    regions = key.vcpus * key.bytes_per_vcpu / REGION
    match key.phase:
        case "dirty":
            return _dirty(key)
        case "clear" if key.iteration == 1 and not (key.kernel == "series" and key.eager):
            return {"series": 60e-6, "base": 170e-6, "peer": 4500e-6}[key.kernel] * regions
        case "clear" if key.iteration == 1:
            return 300e-6 * regions
        case "clear":
            return (0.06 if key.kernel == "series" else 1) * 1e-3 * regions
        case "get":
            return 800e-6 if key.dirty_bits == notation.ON else 15e-6
        case "enable":
            return 500e-6 if key.initially_all_set else 2500e-6
        case _:
            return 0.003 if key.kernel == "series" else 0.004


def _measured(key: Key, version: str) -> Measurement:
    memory: dict[str, Any] = {}
    if key.pattern == notation.REGIONS and key.phase == "disable":
        whole = key.vcpus * key.bytes_per_vcpu // REGION
        split = whole if key.eager else round(whole * key.write_percent / 100)
        memory = {"pages_2m": whole - split, "page_tables": split}
    values = asdict(key) | {"kernel_version": f"{version}-{key.kernel}", "cpus": 9}
    seconds = _seconds(key)
    return Measurement(**values, seconds=seconds, overcommitted=False, pinned=True, **memory)


def measurements(version: str = "6.12.117") -> Iterator[Measurement]:
    """What `make bench` measures on vmx-bochs, in the order of its boots."""
    for boot in plan.quick(plan.bench_boots("vmx-bochs", "all", plan.QUICK)):
        assert boot.mode
        seen = Key(**SEEN, kernel=boot.kernel, **asdict(boot.mode))
        for key in sorted(plan.expected_keys(boot, seen), key=str):
            yield _measured(key, version)
