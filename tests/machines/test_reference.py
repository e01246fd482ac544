# SPDX-License-Identifier: GPL-2.0-only
"""The lockstep figures are still those of docs/reference, of the base that is tested.

Repeats one job of the reference (docs/measuring.md: "The reference"), and compares figures like
`lab compare`. `make reference` notices changes in the figures of the other jobs.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab import machines
from lab.build.kernel import Kernel
from lab.build.selftests import PERF_TEST
from lab.core.paths import LAYOUT
from lab.measure import bench, plan, reference
from lab.results import compare, goals, sources
from lab.results.compare import Side

VCPUS = 2


def test_the_figures_are_those_of_the_reference(
    kernel: Callable[[str, str], Kernel], selftests: Callable[[str], Path]
) -> None:
    kept = reference.directory() / "bench.jsonl"
    if not kept.exists():
        pytest.skip(f"no figures of {LAYOUT.version} yet: make reference BASE={LAYOUT.version}")
    boot = reference.boot("series", True, VCPUS)
    machine = machines.get(boot.machine)
    test = selftests("series") / PERF_TEST
    job = plan.bench_job(machine, boot, kernel("series", bench.CONFIG).image, test)
    measured = bench.checked(boot, machine.run(job))

    now = Side("this run", {one.key: [one.seconds] for one in measured}, frozenset())
    found = compare.compare(compare.load([kept]), now)
    assert len(found.pairs) == len(measured)
    assert not found.moved, "\n".join(
        [
            f"{compare.summary(found)} against {kept}:",
            *compare.moves(found),
            f"If that is meant: make reference BASE={LAYOUT.version}, look at it, and commit it.",
        ]
    )
    # Y beside the unpatched kernel, as that was when the reference was measured.
    base = [one for one in sources.load(kept).measurements if one.kernel == "base"]
    missed = [line for line in goals.missed([*measured, *base]) if line.startswith(f"{VCPUS} ")]
    assert not missed
