# SPDX-License-Identifier: GPL-2.0-only
"""The lockstep figures are still those of docs/reference, of the base that is tested.

Repeats a job of the reference (docs/measuring.md: "The reference") with two vCPUs for each way to
map memory and to log its pages, and compares figures like `lab compare`. `make reference` notices
changes in the figures of the other jobs.

Phases that wait for other threads, e.g. for a grace period, now and then take some ticks of the
kernel's timer more, depending on when the tick falls. Any change of the kernel's size shifts that,
and the lockstep machine then repeats it. So what moved is measured again with the ticks at other
moments, and counts if it has moved there, too. `make reference` measures these jobs twice as well.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab import machines
from lab.build.kernel import Kernel
from lab.build.selftests import PERF_TEST
from lab.core.paths import LAYOUT
from lab.machines.job import Job
from lab.measure import bench, plan, reference
from lab.page import older
from lab.results import compare, goals, sources
from lab.results.compare import Comparison, Side
from lab.results.jsonl import Measurement
from lab.results.notation import OFF

# A tick may have lengthened the others in an older reference, which was measured once.
FIRST = next(iter(reference.POINTS))


def check_that_it_compares(point: str, kept: Path) -> None:
    """Skip if the reference is known to be older than the code and does not serve for POINT."""
    boot, command = reference.point(point), f"make reference BASE={LAYOUT.version}"
    if not kept.exists():
        pytest.skip(f"no figures of {LAYOUT.version} yet: {command}")
    is_older = f"{LAYOUT.version}/bench" in older.listed()
    like = (boot.mode, boot.matrix.dirty_bits or (OFF,), boot.matrix.vcpus)
    found = (one.key for one in sources.load(kept).measurements if one.kernel == boot.kernel)
    there = any((key.mode, (key.dirty_bits,), (key.vcpus,)) == like for key in found)
    assert there or is_older, f"{kept} has nothing of {boot.label}"
    if is_older and (point != FIRST or not there):
        pytest.skip(f"the reference is older than this measurement: {command}")


@pytest.mark.parametrize("point", reference.POINTS)
def test_the_figures_are_those_of_the_reference(
    point: str, kernel: Callable[[str, str], Kernel], selftests: Callable[[str], Path]
) -> None:
    kept, boot = reference.directory() / "bench.jsonl", reference.point(point)
    check_that_it_compares(point, kept)
    machine = machines.get(boot.machine)
    test = selftests("series") / PERF_TEST
    job = plan.bench_job(machine, boot, kernel("series", bench.CONFIG).image, test)

    def measured_and_compared(job: Job) -> tuple[list[Measurement], Comparison]:
        measured = list(bench.checked(boot, machine.run(job)))
        now = Side("this run", {one.key: [one.seconds] for one in measured}, frozenset())
        found = compare.compare(compare.load([kept]), now)
        assert len(found.pairs) == len(measured)
        return measured, found

    # Of two boots the reference has the shorter times, so either may be the first one here.
    measured, found = measured_and_compared(bench.later_ticks(job))
    moved = found.moved
    if moved:
        again = {pair.key for pair in measured_and_compared(job)[1].moved}
        moved = [pair for pair in moved if pair.key in again]
    assert not moved, "\n".join(
        [
            f"{len(moved)} of {len(found.pairs)} figures moved against {kept} in both boots:",
            *compare.moves(replace(found, pairs=moved)),
            f"If that is meant: make reference BASE={LAYOUT.version}, look at it, and commit it.",
        ]
    )
    # Beside the unpatched kernel, as that was when the reference was measured.
    base = [one for one in sources.load(kept).measurements if one.kernel == "base"]
    both = [*measured, *base]
    assert goals.all_judged(both)
    assert not [*map(str, goals.missed(both))]
