# SPDX-License-Identifier: GPL-2.0-only
"""`make bench`: eager_page_split=N beside =Y, measured by real kernels that run real guests.

What it runs, and beside what, is in docs/measuring.md: "The matrix".
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lab import machines
from lab.build import kernel, selftests
from lab.build.selftests import PERF_TEST
from lab.core import parallel
from lab.core.errors import LabError, WorkFailed
from lab.core.paths import LOG, ROOT
from lab.core.steps import bar, duration, say
from lab.machines import Job, Machine, MachineFailed, Result
from lab.measure import plan
from lab.measure.options import numbers, words
from lab.measure.plan import Boot
from lab.measure.progress import Watch
from lab.page import command as page
from lab.page import figures
from lab.results import files, goals, jsonl, notation, origin, sources, tables
from lab.results.jsonl import Key, Measurement

CONFIG = "kvm"
# Memory that moves the timer's ticks, see later_ticks().
TICK_SHIFT_MIB = 16
# Seconds to end a machine with. split-bench.sh on `host` has to restore settings; emulators do not.
GRACE_S = {"host": 10.0}


class MachineFailedError(LabError):
    """A machine crashed or timed out, which says nothing about the kernel's figures."""

    exit_code = 3


def _save_log(boot: Boot, text: str) -> Path:
    words = re.findall(r"\w+", boot.label)
    log = LOG / f"bench-{'-'.join([boot.machine, *words])}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)
    return log


def checked(boot: Boot, result: Result) -> list[Measurement]:
    """The measurements of a boot.

    LabError: split-bench.sh refused its options. WorkFailed: a run failed; or the results are not
    those of the plan, for example because a module parameter did not take effect.
    """
    said = result.output.decode(errors="replace").strip()
    if result.status == 2:
        raise LabError(f"{boot.label}: {plan.without_name(said)}")
    if result.status != 0:
        say(said)
        log = _save_log(boot, result.kernel_log)
        raise WorkFailed(f"{boot.label}: a test run failed (see above; kernel log: {log})")
    try:
        text = result.files[plan.OUTPUT].decode()
        found = jsonl.parse_all(text, boot.label)
    except (KeyError, UnicodeDecodeError, LabError) as error:
        raise WorkFailed(f"{boot.label}: unusable results: {error}") from error
    _check_complete(boot, found)
    return found


def _check_complete(boot: Boot, found: list[Measurement]) -> None:
    if not found:
        raise WorkFailed(f"{boot.label}: no results")
    seen = found[0]
    if boot.mode and boot.mode.ept != seen.ept:
        mode = notation.paging(boot.machine, seen.ept)
        raise WorkFailed(
            f"{boot.label}: the results are of another paging mode than requested: {mode}"
        )
    like = seen.key
    if boot.mode:
        wanted = boot.mode
        like = replace(like, tdp_mmu=wanted.tdp_mmu, pml=wanted.pml, dirty_bits=notation.OFF)
    differing = plan.expected_keys(boot, like) ^ {one.key for one in found}
    if differing:
        count = f"{len(differing)} measurements are missing or were not asked for"
        raise WorkFailed(f"{boot.label}: {count}, such as {min(differing, key=str)}")


def run_boot(
    machine: Machine, boot: Boot, job: Job, on_progress: Callable[[str], None]
) -> list[Measurement]:
    """Run a boot and return its measurements.

    Raises what checked() raises. MachineFailedError: the machine crashed or timed out. It has the
    reason, and says where the console is kept.
    """
    try:
        return checked(boot, machine.run(replace(job, on_progress=on_progress)))
    except MachineFailed as failure:
        log = _save_log(boot, failure.kernel_log)
        raise MachineFailedError(f"{boot.label}: {failure}; its console: {log}") from failure


def run_plan(machine: Machine, jobs: Sequence[tuple[Boot, Job]]) -> list[Measurement]:
    """Run all boots, as many at a time as the machine allows; the results have the jobs' order.

    The first that fails, or Ctrl-C, ends the others. Raises what run_boot() raises.
    """
    boots = [boot for boot, _ in jobs]
    watch = Watch(boots, estimate_s(machine, boots))
    results: dict[int, list[Measurement]] = {}

    def one(index: int) -> None:
        boot, job = jobs[index]
        watch.start(index)
        results[index] = run_boot(machine, boot, job, lambda line: watch.line(index, line))
        watch.end(index)

    grace_s = GRACE_S.get(machine.name, parallel.GRACE_S)
    with bar("bench", watch.total_s, watch.now) as tick:
        parallel.for_each(range(len(jobs)), one, tick, parallel_on(machine), grace_s)
    return [one for index in range(len(jobs)) for one in results[index]]


def estimate_s(machine: Machine, boots: Sequence[Boot]) -> float:
    estimates = [boot.estimate_s for boot in boots]
    return max(sum(estimates) / parallel_on(machine), *estimates)


def _runs(boots: Iterable[Boot]) -> int:
    return sum(len(matrix.runs) for boot in boots for matrix in boot.matrices)


def announce(
    machine: Machine, boots: Sequence[Boot], what: str = "eager_page_split=N beside =Y"
) -> None:
    kind = "simulated time" if machine.lockstep else "wall-clock time, for orientation only"
    say(f"bench: build what has changed, then measure {what}:")
    say(
        f"bench: {_runs(boots)} test runs in {len(boots)} boots of {machine.name} ({kind}),"
        f" about {duration(estimate_s(machine, boots))} when all is built"
    )


def show_plan(machine: Machine, boots: Sequence[Boot]) -> None:
    for boot in boots:
        job = plan.bench_job(machine, boot, Path("bzImage"), Path(PERF_TEST))
        click.echo(f"{boot.label}: {machine.name}, {job.shape}")
        click.echo(f"  {job.command[-1]}")


def parallel_on(machine: Machine) -> int:
    """How many boots may run at a time.

    Lockstep machines are single-threaded, and nothing around them changes their figures.
    """
    return parallel.at_once() if machine.lockstep else 1


def later_ticks(job: Job) -> Job:
    """The same job with the timer's ticks at other moments: more memory takes longer to boot."""
    return replace(job, memory_mib=job.memory_mib + TICK_SHIFT_MIB)


def shortest(found: Iterable[Measurement]) -> list[Measurement]:
    """For each key the measurement with the shortest time, in the order of the first ones."""
    kept: dict[Key, Measurement] = {}
    for one in found:
        if one.key not in kept or one.seconds < kept[one.key].seconds:
            kept[one.key] = one
    return [*kept.values()]


def measure_into(
    file: Path, machine: Machine, boots: Sequence[Boot], again: Sequence[Boot] = ()
) -> list[Measurement]:
    """Build, measure, and keep the results in FILE, complete or not at all.

    again: those of the boots that are measured once more, with the timer's ticks at other moments.
        Of each figure the shorter time is kept, since a tick can only lengthen it.
    """
    kinds = dict.fromkeys(boot.kernel for boot in boots if boot.machine != "host")
    images = {kind: kernel.build(kind, CONFIG).image for kind in kinds}
    # The test of the series measures all kernels.
    test = selftests.build("series") / PERF_TEST
    # `host` has no image: its kernel is running.
    jobs = [(b, plan.bench_job(machine, b, images.get(b.kernel, Path()), test)) for b in boots]
    jobs += [(boot, later_ticks(job)) for boot, job in jobs if boot in again]
    # `host` measures a kernel that the lab may know nothing about.
    of: dict[str, Any] = {} if machine.name == "host" else origin.measured("bench")
    results = run_plan(machine, jobs)
    found = [replace(one, **of) for one in (shortest(results) if again else results)]
    jsonl.write(file, found)
    return found


def show_tables(found: Sequence[Measurement], machine: Machine) -> None:
    """Print all tables of FOUND."""
    # Also show the newest results of other bases, kept or committed, that measured the same.
    committed = sorted((ROOT / figures.REFERENCE).glob("*/*.jsonl"))
    others = sources.beside(found, [*files.kept(), *committed])
    bases = {base: other.measurements for base, other in others.items()}
    bases |= {sources.base_of(one.kernel_version): list(found) for one in found[:1]}
    shown = (found, machine.lockstep, sources.newest_first(bases), goals.table(found))
    for table in tables.bench_tables(*shown):
        table.show()


def show(
    found: Sequence[Measurement], file: Path, machine: Machine, *, latest: bool, every: bool = False
) -> None:
    """Sum up the results in FILE, and draw them if they are the latest. every: all tables, too.

    WorkFailed: they miss a goal, in simulated time. The results are kept.
    """
    if latest:
        files.name_latest(file)
    if every:
        show_tables(found, machine)
    page.sum_up(found, file, draw=latest)
    if machine.lockstep and (count := len([*goals.missed(found)])):
        raise WorkFailed(f"goals are missed: {count}")


@click.command()
@click.option("--machine", "name", default="vmx-bochs", help=", ".join(machines.NAMES))
@click.option("--quick", "preset", flag_value="quick", default="quick", help="A small matrix.")
@click.option(
    "--full",
    "preset",
    flag_value="full",
    help="A large matrix, which takes hours: more numbers of vCPUs and write percentages, with and"
    " without initially-all-set, with dirty_bits off and on.",
)
@click.option("--vcpus", callback=numbers, help="Numbers of vCPUs, e.g. '2 4 8'.")
@click.option("--writes", callback=numbers, help="Write percentages, e.g. '100 20'.")
@click.option("--eager", callback=words, help="Values of eager_page_split: 'N Y'.")
@click.option(
    "--dirty-bits",
    callback=words,
    help="Values of dirty_bits: off, on, auto. Only for the series, in modes without PML."
    " Default: off, with --full 'off on'.",
)
@click.option("--init-set", help="Use KVM_DIRTY_LOG_INITIALLY_SET: yes, no or both.")
@click.option("--bytes", "bytes_per_vcpu", help="Memory of each vCPU, e.g. 4M.")
@click.option("--backing", callback=words, help="Memory of the guest, e.g. anonymous_hugetlb_2mb.")
@click.option("--iterations", type=int, help="Rounds of dirtying, GET and CLEAR in a run.")
@click.option(
    "--cycles", type=int, help="How often to enable logging, run all rounds, and disable it."
)
@click.option(
    "--kernel",
    "kernels",
    type=click.Choice(["all", *jsonl.KERNELS]),
    default="all",
    help="all: the series with N and Y, the unpatched kernel (base) with N, and the ungated"
    " baseline (peer) with Y. With tdp_mmu=Y: the series and the unpatched kernel, each with N and"
    " Y.",
)
@files.output_option
@click.option(
    "--modes",
    callback=words,
    help="Paging modes: 'ept1 ept0 tdp ept1-nopml tdp-nopml'. ept1: ept=Y tdp_mmu=N; ept0: ept=N;"
    " tdp: ept=Y tdp_mmu=Y; npt=... on AMD; -nopml: pml=N. Default: all.",
)
@click.option("--tables", "every", is_flag=True, help="Print all tables before the summary.")
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
def bench(
    name: str,
    preset: str,
    kernels: str,
    output: Path | None,
    modes: tuple[str, ...] | None,
    dry_run: bool,
    every: bool,
    **chosen: Any,
) -> None:
    """Measure dirty logging with eager_page_split=N and =Y, and print a summary.

    The report and the file of results contain all figures.

    Exit status: 0: measured. 1: a run failed, or simulated times miss a goal. 2: wrong input. 3: a
    machine crashed or timed out. 130: interrupted.
    """
    given = {k: v for k, v in chosen.items() if v is not None}
    if name == "host":
        # The kernel of the host may not have dirty_bits.
        given.setdefault("dirty_bits", ())
    matrix = replace(plan.FULL if preset == "full" else plan.QUICK, **given)
    machine = machines.get(name)
    plan.check_matrix(matrix)
    chosen_modes = plan.check_modes(name, modes) or plan.modes_of(name)
    if chosen["dirty_bits"] is not None:
        plan.check_dirty_bits(name, kernels, chosen_modes, matrix.dirty_bits)
    boots = plan.bench_boots(name, kernels, matrix, chosen_modes)
    if matrix == plan.QUICK and machine.lockstep:
        boots = plan.quick(boots)
    if dry_run:
        show_plan(machine, boots)
        return
    file = files.output_file(output, name)
    announce(machine, boots)
    found = measure_into(file, machine, boots)
    show(found, file, machine, latest=output is None, every=every)
