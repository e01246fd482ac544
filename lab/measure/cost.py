# SPDX-License-Identifier: GPL-2.0-only
"""`lab cost`: what the split of one huge page costs while mmu_lock is held.

The kernel's tracepoints kvm_eager_split_begin and kvm_eager_split_end show it; see
docs/design.md: "The cost of a split".
Logging is enabled without initially-all-set, so all memory is split at once.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from lab import machines
from lab.build import kernel, selftests
from lab.build.selftests import PERF_TEST
from lab.core.errors import LabError, WorkFailed
from lab.core.steps import step
from lab.machines import Job
from lab.machines.bochs import IPS
from lab.machines.paging import Mode
from lab.measure.options import numbers
from lab.measure.plan import HUGE_MIB, MACHINE, MEMORY_MIB, SPARE_MIB
from lab.page import command as page
from lab.page import sections
from lab.results import notation, origin
from lab.results.files import output_file, output_option, write_records

INSIDE = "/cost"
# Memory of each vCPU in runs that vary the number of vCPUs.
PER_VCPU_MIB = 32
SCRIPT = r"""
set -e
cd /sys/kernel/tracing
echo x86-tsc > trace_clock
echo 1 > events/kvmmmu/kvm_eager_split_begin/enable
echo 1 > events/kvmmmu/kvm_eager_split_end/enable
echo Y > /sys/module/kvm/parameters/eager_page_split
echo "$1" > /proc/sys/vm/nr_hugepages
shift
while [ $# -gt 0 ]; do
    echo > trace
    "$TEST" -s anonymous_hugetlb_2mb -g -i 2 -w 0 -v "$1" -b "$2M" > "$LAB_OUT/log" 2>&1 ||
        { cat "$LAB_OUT/log"; exit 1; }
    echo "point $1 $2"
    sed -n 's/.* \([0-9]*\): kvm_eager_split_\(begin\|end\): /\2 \1 /p' trace
    : "${vcpus:=$1}" "${size:=$2}"
    shift 2
done
# Untimed, and once all is measured: what was written is in the log, and all is split.
"$TEST" -V -s anonymous_hugetlb_2mb -g -i 2 -v "$vcpus" -b "${size}M" > "$LAB_OUT/log" 2>&1 ||
    { cat "$LAB_OUT/log"; exit 1; }
"""
POINT = re.compile(r"point (\d+) (\d+)")
BEGIN = re.compile(r"begin (\d+) .*")
END = re.compile(r"end (\d+) pages (\d+) error -?\d+")


@dataclass(frozen=True)
class Point:
    """A run: the number of vCPUs, and the memory of each."""

    vcpus: int
    mib_per_vcpu: int

    @property
    def mib(self) -> int:
        return self.vcpus * self.mib_per_vcpu


class Hold(NamedTuple):
    """One hold of mmu_lock: huge pages split in it, and instructions since the first was found."""

    pages: int
    instructions: int


def points(sizes: Sequence[int], vcpus: Sequence[int]) -> list[Point]:
    """One vCPU with each size in MiB, and each number of vCPUs with the same memory each."""
    wanted = [Point(1, size) for size in sizes] + [Point(n, PER_VCPU_MIB) for n in vcpus]
    return list(dict.fromkeys(wanted))


def check(wanted: Iterable[Point], cpus: int) -> None:
    """LabError: a run that the machine can't do."""
    for point in wanted:
        if point.mib_per_vcpu < HUGE_MIB or point.mib_per_vcpu % HUGE_MIB:
            raise LabError(f"--sizes: {point.mib_per_vcpu} MiB is not a multiple of {HUGE_MIB}")
        if not 1 <= point.vcpus < cpus:
            raise LabError(f"--vcpus: {point.vcpus} is not between 1 and {cpus - 1}")


def cost_job(ept: bool, wanted: Sequence[Point], image: Path, test: Path) -> Job:
    """One boot for all runs of one paging mode."""
    mib = max(point.mib for point in wanted)
    words = [str(mib // HUGE_MIB)]
    for point in wanted:
        words += [str(point.vcpus), str(point.mib_per_vcpu)]
    program = f"{INSIDE}/{PERF_TEST}"
    return Job(
        kernel=image,
        command=("sh", "-c", f"TEST={shlex.quote(program)}\n{SCRIPT}", "cost", *words),
        parameters=Mode(ept).parameters(MACHINE),
        cpus=1 + max(point.vcpus for point in wanted),
        memory_mib=max(MEMORY_MIB, mib + SPARE_MIB),
        files={program: test},
        timeout_s=1800,
    )


def _ns(instructions: int) -> int:
    return instructions * 10**9 // IPS


def parse(text: str, ept: bool, release: str) -> Iterator[dict[str, Any]]:
    """A line of the results for each run, from the output of a boot of the kernel RELEASE.

    instructions: per huge page, including holds in which the stock of pages was empty. WorkFailed:
    a run did not split all of its huge pages, or there is no run.
    """
    point = begun = None
    holds: dict[Point, list[Hold]] = {}
    for line in text.splitlines():
        if match := POINT.fullmatch(line):
            point = Point(int(match[1]), int(match[2]))
            holds[point] = []
        elif match := BEGIN.fullmatch(line):
            begun = int(match[1])
        elif (match := END.fullmatch(line)) and point and begun:
            holds[point].append(Hold(int(match[2]), int(match[1]) - begun))
            begun = None
    if not holds:
        raise WorkFailed(f"nothing was measured:\n{text[-2000:]}")
    for point, found in holds.items():
        pages = sum(hold.pages for hold in found)
        if pages != point.mib // HUGE_MIB:
            raise WorkFailed(f"{point}: {pages} huge pages were split")
        held = [hold.instructions for hold in found]
        one = {"machine": MACHINE, "ept": ept} | asdict(point)
        one |= {"pages": pages, "held_ns": _ns(sum(held)), "longest_ns": _ns(max(held))}
        yield one | {"kernel_version": release, "instructions": round(sum(held) / pages)}


@click.command()
@click.option(
    "--sizes", callback=numbers, default="32 128 512 4096", help="Memory of a single vCPU, MiB."
)
@click.option(
    "--vcpus", callback=numbers, default="1 2 4 8 14", help=f"vCPUs, {PER_VCPU_MIB} MiB each."
)
@output_option
def command(sizes: tuple[int, ...], vcpus: tuple[int, ...], output: Path | None) -> None:
    """Measure for how long splitting a huge page holds mmu_lock, over memory and vCPUs.

    Print a table, write JSON lines, and draw the report. The machine is always vmx-bochs, whose
    time is the number of instructions.
    """
    machine = machines.get(MACHINE)
    wanted = points(sizes, vcpus)
    check(wanted, machine.max_cpus)
    file = output_file(output, "cost")
    built, test = kernel.build("series", "kvm"), selftests.build("series") / PERF_TEST
    of = origin.measured("cost")
    records: list[dict[str, Any]] = []
    for ept in (True, False):
        mode = notation.paging(MACHINE, ept)
        with step(f"Splitting with {mode}, {len(wanted)} runs", "10 min"):
            result = machine.run(cost_job(ept, wanted, built.image, test))
        result.check(mode)
        records += (one | of for one in parse(result.text, ept, built.release))
    write_records(file, records)
    page.present("cost", [sections.cost_table(records)], file, draw=output is None)
