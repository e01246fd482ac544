# SPDX-License-Identifier: GPL-2.0-only
"""`lab lockprofile`: how much of their time vCPUs spend waiting for mmu_lock.

Method and limits are in docs/measuring.md. lab.measure.locktrace reads the waits of vCPU threads
out of the trace, which comes back compressed: the serial line takes a kilobyte a second. A vCPU
that loses its processor while others wait behind it in the queue makes them wait: that is what the
overcommitted runs are for.
"""

import gzip
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import click

from lab import machines
from lab.build import kernel, selftests
from lab.build.selftests import PERF_TEST
from lab.core.errors import LabError, WorkFailed
from lab.core.steps import duration, say, step
from lab.machines import Job
from lab.machines.bochs import IPS, VmxBochs
from lab.machines.paging import Mode
from lab.measure import locktrace
from lab.measure.options import numbers, words
from lab.measure.plan import HUGE_MIB, MACHINE, MEMORY_MIB, MODES, SPARE_MIB, check_modes, cpus_for
from lab.page import command as page
from lab.page import sections
from lab.results import notation, origin
from lab.results.files import output_file, output_option, write_records
from lab.results.notation import MIB

KERNEL = "series"
BACKING = "anonymous_hugetlb_2mb"
INSIDE = "/lockprofile"
MOST_VCPUS = 64
# The first that pays for splitting.
ITERATION = 2
# Host seconds for the announcement: to boot, and for one vCPU of one run, traced and not.
BOOT_S = 30
VCPU_S = 5
# No event may be lost, which is checked; per processor.
BUFFER_KIB = 4096
# Events of other locks would only cost time: 6 is LCB_F_READ|LCB_F_WRITE, and mmu_lock lies at
# the beginning of a page. What remains beside mmu_lock is told apart by lab.measure.locktrace.
SCRIPT = f"""
set -e
cd /sys/kernel/tracing
echo x86-tsc > trace_clock
echo {BUFFER_KIB} > buffer_size_kb
echo 0 > options/hash-ptr
echo 0 > options/record-cmd
echo 'flags & 6' > events/lock/contention_begin/filter
echo '!(lock_addr & 4095)' > events/lock/contention_end/filter
echo 'prev_comm ~ "dirty_log_perf*" || next_comm ~ "dirty_log_perf*"' \
    > events/sched/sched_switch/filter
echo {IPS} > "$LAB_OUT/speed"
echo "$1" > /proc/sys/vm/nr_hugepages
size=$2
verified=$3
shift 3

tracing() {{
    for event in lock/contention_begin lock/contention_end kvm/kvm_userspace_exit \
        sched/sched_switch; do
        echo "$1" > "events/$event/enable"
    done
}}

measure() {{
    "$TEST" -s {BACKING} -i {ITERATION} -v "$1" -w "$2" -b "$size" > "$LAB_OUT/$name.$4" 2>&1 ||
        {{ cat "$LAB_OUT/$name.$4"; exit 1; }}
}}

while [ $# -gt 0 ]; do
    name=$1-$2-$3
    echo "$3" > /sys/module/kvm/parameters/eager_page_split
    measure "$1" "$2" "$3" untraced
    echo > trace
    tracing 1
    measure "$1" "$2" "$3" traced
    tracing 0
    cat per_cpu/cpu*/stats > "$LAB_OUT/$name.stats"
    gzip < trace > "$LAB_OUT/$name.trace.gz"
    echo "$name" >> "$LAB_PROGRESS"
    shift 3
done

# Untimed, and once all is measured: what was written is in the log, and what is to be split is.
for eager in N Y; do
    echo "$eager" > /sys/module/kvm/parameters/eager_page_split
    "$TEST" -V -s {BACKING} -i {ITERATION} -v "$verified" -b "$size" > "$LAB_OUT/verified" 2>&1 ||
        {{ cat "$LAB_OUT/verified"; exit 1; }}
done
"""
DIRTY = re.compile(rf"^Iteration {ITERATION} dirty memory time: (\d+)\.(\d{{9}})s$", re.MULTILINE)


class Origin(NamedTuple):
    """The kernel that a trace is of. areas: where its mmu_lock can be."""

    release: str
    areas: locktrace.Areas


@dataclass(frozen=True)
class TracedRun:
    """One run of the test; the values are those of its options."""

    vcpus: int
    write_percent: int
    eager: bool

    @property
    def words(self) -> tuple[str, str, str]:
        return str(self.vcpus), str(self.write_percent), "Y" if self.eager else "N"

    @property
    def name(self) -> str:
        return "-".join(self.words)


def check(vcpus: Sequence[int], writes: Sequence[int], mib: int) -> None:
    """LabError: a run that the machine or the test can't do."""
    for name, found, low, high in (("--vcpus", vcpus, 1, MOST_VCPUS), ("--writes", writes, 0, 100)):
        if not found:
            raise LabError(f"{name}: the list is empty")
        if len(set(found)) != len(found):
            raise LabError(f"{name}: a number is given twice")
        for one in found:
            if not low <= one <= high:
                raise LabError(f"{name}: {one} is not between {low} and {high}")
    if mib < HUGE_MIB or mib % HUGE_MIB:
        raise LabError(f"--mib: {mib} is not a multiple of {HUGE_MIB}")


def trace_job(
    mode: Mode, runs: Sequence[TracedRun], mib: int, cpus: int, image: Path, test: Path
) -> Job:
    """One boot for all runs of one paging mode."""
    most = max(run.vcpus for run in runs)
    # The fewest that can be in each other's way.
    verified = min(most, 2)
    words = [word for run in runs for word in run.words]
    program = f"{INSIDE}/{PERF_TEST}"
    return Job(
        kernel=image,
        command=(
            *("sh", "-c", f"TEST={shlex.quote(program)}\n{SCRIPT}", "lockprofile"),
            *(str(most * mib // HUGE_MIB), f"{mib}M", str(verified), *words),
        ),
        parameters=mode.parameters(MACHINE),
        cpus=cpus,
        memory_mib=max(MEMORY_MIB, most * mib + SPARE_MIB + cpus * BUFFER_KIB // 1024),
        files={program: test},
        timeout_s=10 * estimate_s(runs),
    )


def estimate_s(runs: Sequence[TracedRun]) -> float:
    return BOOT_S + VCPU_S * sum(run.vcpus + 2 for run in runs)


def _dirty_ticks(text: str, what: str) -> int:
    match = DIRTY.search(text)
    if not match:
        raise WorkFailed(f"{what}: no time of iteration {ITERATION} in the test's output")
    return int(match[1] + match[2]) * IPS // 10**9


def profile(
    mode: Mode, run: TracedRun, mib: int, cpus: int, files: Mapping[str, bytes], traced: Origin
) -> dict[str, Any]:
    """What the files of one run say, as a line of the results: docs/results-format.md.

    pml is in it if it is off where ept is on. WorkFailed: they are incomplete, or contradict
    themselves.
    """

    def data(kind: str) -> bytes:
        try:
            return files[f"{run.name}.{kind}"]
        except KeyError:
            raise WorkFailed(f"{run.name}: the machine returned no {kind}") from None

    def text(kind: str) -> str:
        return data(kind).decode(errors="replace")

    try:
        locktrace.check_complete(text("stats"))
        ticks = _dirty_ticks(text("traced"), run.name)
        trace = gzip.decompress(data("trace.gz")).decode(errors="replace")
        waiting = locktrace.waiting_in_pass(trace, run.vcpus, ITERATION + 1, ticks, traced.areas)
    except (locktrace.TraceError, OSError, EOFError, zlib.error) as error:
        raise WorkFailed(f"{notation.mode_of(MACHINE, mode)}, {run.name}: {error}") from error
    found: dict[str, Any] = {"machine": MACHINE, "kernel": KERNEL, "kernel_version": traced.release}
    found |= {"ept": mode.ept, "tdp_mmu": mode.tdp_mmu} | ({} if mode.pml else {"pml": False})
    found |= {"vcpus": run.vcpus, "cpus": cpus, "bytes_per_vcpu": mib * MIB, "backing": BACKING}
    found |= {"write_percent": run.write_percent, "initially_all_set": True, "eager": run.eager}
    return found | {
        "phase": "dirty",
        "iteration": ITERATION,
        "seconds": ticks / IPS,
        "untraced_seconds": _dirty_ticks(text("untraced"), run.name) / IPS,
        "vcpu_seconds": waiting.running / IPS,
        "wait_seconds": waiting.waited / IPS,
        "waits": waiting.waits,
        "longest_wait_seconds": waiting.longest / IPS,
    }


def _done(total: int, numbers: Iterator[int], name: str) -> None:
    say(f"lockprofile: {name} done, {next(numbers)} of {total} runs in this boot")


@click.command()
@click.option(
    "--vcpus",
    callback=numbers,
    default="1 2 4 8 14 16 32",
    help="Numbers of vCPUs. More than 14 share 15 CPUs. The others are compared with 1 vCPU.",
)
@click.option("--writes", callback=numbers, default="100 20", help="Write percentages.")
@click.option(
    "--cpus",
    type=click.IntRange(1, VmxBochs.max_cpus),
    help="CPUs of the machine. Default: one more than vCPUs.",
)
@click.option("--mib", default=2, help="Memory of each vCPU, MiB.")
@click.option(
    "--modes", callback=words, default="ept1 ept0", help=f"Paging modes: {', '.join(MODES)}."
)
@output_option
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
def command(
    vcpus: tuple[int, ...],
    writes: tuple[int, ...],
    cpus: int | None,
    mib: int,
    modes: tuple[str, ...],
    output: Path | None,
    dry_run: bool,
) -> None:
    """Measure the share of time that vCPUs wait for mmu_lock, with eager_page_split=N and =Y.

    Print a table, write JSON lines, and draw the report. The machine is always vmx-bochs.
    """
    check(vcpus, writes, mib)
    machine = machines.get(MACHINE)
    chosen = [MODES[name] for name in check_modes(MACHINE, modes) or ()]
    cpus = cpus or cpus_for(machine, vcpus)
    runs = [TracedRun(*values) for values in product(vcpus, writes, (False, True))]
    if dry_run:
        for mode in chosen:
            job = trace_job(mode, runs, mib, cpus, Path("bzImage"), Path(PERF_TEST))
            click.echo(f"{MACHINE}, {job.shape}")
            for run in runs:
                number, percent, eager = run.words
                click.echo(f"  -v {number} -w {percent} -b {mib}M, eager_page_split={eager}")
        return
    file = output_file(output, "lock")
    built, test = kernel.build(KERNEL, "kvm"), selftests.build(KERNEL) / PERF_TEST
    traced = Origin(built.release, locktrace.areas_of(built.image.parents[4]))
    of = origin.measured("lock")
    records: list[dict[str, Any]] = []
    for mode in chosen:
        job = trace_job(mode, runs, mib, cpus, built.image, test)
        name = notation.mode_of(MACHINE, mode)
        with step(f"Tracing with {name}, {len(runs)} runs", duration(estimate_s(runs))):
            result = machine.run(replace(job, on_progress=partial(_done, len(runs), count(1))))
        result.check(name)
        found = (profile(mode, run, mib, cpus, result.files, traced) for run in runs)
        records += (one | of for one in found)
    write_records(file, records)
    page.present("lockprofile", [sections.lock_table(records)], file, draw=output is None)
