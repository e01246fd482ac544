# SPDX-License-Identifier: GPL-2.0-only
"""`make bench`: eager_page_split=N beside =Y, measured by real kernels that run real guests.

One boot per paging mode (ept/npt is fixed when KVM loads); inside, split-bench.sh runs the
matrix. The unpatched kernel and the peer measure a part of it for comparison, with the same test
program.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console

from lab import kernel, machines, report, results, selftests
from lab.errors import LabError, WorkFailed
from lab.machines import Job, Machine, MachineLost, Result, process
from lab.paths import LOG, RESULTS
from lab.plan import (
    FULL,
    MIB,
    OUTPUT,
    QUICK,
    TEST,
    Boot,
    check_matrix,
    cpus_for,
    expected_keys,
    make_job,
    make_plan,
    without_name,
)
from lab.progress import Course, Watch, duration, shown
from lab.results import Measurement
from lab.steps import say

CONFIG = "kvm"
FREE_MIB = 4
TICK_S = 0.25
# An emulator has nothing to put in order; split-bench.sh on `host` restores its settings.
GRACE_S = {"host": 10.0}
GRACE_ELSE_S = 0.5


class MachineLostError(LabError):
    """A machine died or hung, which says nothing about the kernel's figures."""

    exit_code = 3


def _log_of(boot: Boot) -> Path:
    mode = {True: "-ept1", False: "-ept0", None: ""}[boot.ept]
    return LOG / f"bench-{boot.machine}-{boot.kernel}{mode}.log"


def _save_log(boot: Boot, text: str) -> Path:
    log = _log_of(boot)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)
    return log


def checked(boot: Boot, result: Result) -> list[Measurement]:
    """The measurements of a boot.

    LabError: split-bench.sh refused. WorkFailed: a run failed, or the results are not
    those of the plan, as when a module parameter did not take effect.
    """
    said = result.output.decode(errors="replace").strip()
    if result.status == 2:
        raise LabError(f"{boot.label}: {without_name(said)}")
    if result.status != 0:
        say(said)
        log = _save_log(boot, result.kernel_log)
        raise WorkFailed(f"{boot.label}: a test run failed (see above; kernel log: {log})")
    try:
        text = result.files[OUTPUT].decode()
        found = results.parse_all(text, boot.label)
    except (KeyError, UnicodeDecodeError, LabError) as error:
        raise WorkFailed(f"{boot.label}: unusable results: {error}") from error
    _check_complete(boot, found)
    return found


def _check_complete(boot: Boot, found: list[Measurement]) -> None:
    if not found:
        raise WorkFailed(f"{boot.label}: no results")
    seen = found[0]
    if boot.ept not in (None, seen.ept):
        mode = report.paging(boot.machine, seen.ept)
        raise WorkFailed(f"{boot.label}: asked for another paging mode, the results say {mode}")
    tdp_mmu = False if boot.parameters else seen.tdp_mmu
    differing = expected_keys(boot, seen.ept, tdp_mmu) ^ {one.key for one in found}
    if differing:
        count = f"{len(differing)} measurements are missing or were not asked for"
        raise WorkFailed(f"{boot.label}: {count}, such as {min(differing, key=str)}")


def run_boot(
    machine: Machine, boot: Boot, job: Job, on_progress: Callable[[str], None]
) -> list[Measurement]:
    """Run one boot and return its measurements. Raises what checked() raises, and

    MachineLostError: with the reason and where the console is kept.
    """
    try:
        return checked(boot, machine.run(replace(job, on_progress=on_progress)))
    except MachineLost as lost:
        log = _save_log(boot, lost.kernel_log)
        raise MachineLostError(f"{boot.label}: machine lost, {lost}; its console: {log}") from lost


@dataclass(frozen=True)
class Programs:
    """What goes into the machines: kernel kind -> image, and the test."""

    images: Mapping[str, Path]
    test: Path


def build_programs(plan: Sequence[Boot]) -> Programs:
    """Build what the plan needs; every kernel is measured by the series' own test."""
    kinds = dict.fromkeys(boot.kernel for boot in plan if boot.machine != "host")
    images = {kind: kernel.build(kind, CONFIG).image for kind in kinds}
    return Programs(images, selftests.build("series") / TEST)


def _stop(futures: Sequence[Future[list[Measurement]]], grace_s: float) -> None:
    """End every machine. A thread cannot be ended, but its machine can; again and again,
    because one may just be starting."""
    for future in futures:
        future.cancel()
    while not all(future.done() for future in futures):
        process.end(psutil.Process().children(recursive=True), grace_s)
        wait(futures, timeout=TICK_S)


def _first_error(futures: Sequence[Future[list[Measurement]]]) -> None:
    for future in futures:
        if future.done():
            future.result()


def run_plan(machine: Machine, jobs: Sequence[tuple[Boot, Job]], watch: Watch) -> list[Measurement]:
    """Run all boots, as many at a time as the watch says; the results have the jobs' order.

    The first that fails, or Ctrl-C, ends the others. Raises what run_boot() raises.
    """

    def one(index: int, boot: Boot, job: Job) -> list[Measurement]:
        watch.start(index)
        result = run_boot(machine, boot, job, lambda line: watch.line(index, line))
        watch.end(index)
        return result

    with process.ends_by_exception(), ThreadPoolExecutor(watch.parallel) as pool:
        futures = [pool.submit(one, i, boot, job) for i, (boot, job) in enumerate(jobs)]
        try:
            with shown(watch) as tick:
                while not all(future.done() for future in futures):
                    wait(futures, timeout=TICK_S, return_when=FIRST_EXCEPTION)
                    _first_error(futures)
                    tick()
        except BaseException:
            _stop(futures, GRACE_S.get(machine.name, GRACE_ELSE_S))
            raise
    return [found for future in futures for found in future.result()]


def _words(
    context: click.Context, option: click.Parameter, text: str | None
) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.replace(",", " ").split())


def numbers(
    context: click.Context, option: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    words = _words(context, option, text)
    try:
        return None if words is None else tuple(map(int, words))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers") from None


def announce(machine: Machine, plan: Sequence[Boot]) -> None:
    """Say what is going to happen and how long it takes."""
    estimates = [boot.estimate_s for boot in plan]
    seconds = max(sum(estimates) / parallel_on(machine), *estimates)
    runs = sum(len(boot.matrix.runs) for boot in plan)
    kind = "simulated time" if machine.lockstep else "wall-clock time, for orientation only"
    say("bench: build what has changed, then measure eager_page_split=N beside =Y:")
    say(
        f"bench: {runs} test runs in {len(plan)} boots of {machine.name} ({kind}),"
        f" about {duration(seconds)} when all is built"
    )


def show_plan(machine: Machine, plan: Sequence[Boot]) -> None:
    """Print what would be run."""
    for boot in plan:
        job = make_job(machine, boot, Path("bzImage"), Path(TEST))
        parameters = " ".join(f"{name}={value}" for name, value in job.parameters.items())
        click.echo(
            f"{boot.label}: {machine.name}, {job.cpus} CPUs, {job.memory_mib} MiB {parameters}"
        )
        click.echo(f"  {job.command[-1]}")


def output_file(output: Path | None, machine: str) -> Path:
    """Where the results go. LabError: they could not, which is better known beforehand."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    file = output or RESULTS / f"{stamp}-{machine}.jsonl"
    if output is None:
        RESULTS.mkdir(parents=True, exist_ok=True)
    if not file.parent.is_dir():
        raise LabError(f"--output: there is no directory {file.parent}")
    if file.exists():
        raise LabError(f"--output: {file} exists; results are never overwritten")
    if shutil.disk_usage(file.parent).free < FREE_MIB * MIB:
        raise LabError(f"no space left in {file.parent}: {FREE_MIB} MiB are needed")
    return file


def parallel_on(machine: Machine) -> int:
    """How many boots may run at a time.

    Lockstep machines are single-threaded, and nothing around them changes their figures.
    """
    return min(2, psutil.cpu_count() or 1) if machine.lockstep else 1


def measure(machine: Machine, plan: Sequence[Boot], programs: Programs) -> list[Measurement]:
    """Run the plan and return its results, in the order of the plan."""
    image = programs.images.get
    # `host` has no image: it runs the kernel it runs.
    jobs = [(b, make_job(machine, b, image(b.kernel, Path()), programs.test)) for b in plan]
    watch = Watch([Course(boot) for boot in plan], parallel_on(machine))
    return run_plan(machine, jobs, watch)


def finish(found: Sequence[Measurement], file: Path, machine: Machine, *, latest: bool) -> None:
    """Keep the results in FILE, complete or not at all, and print the tables."""
    results.write(file, found)
    if latest:
        results.name_latest(file)
    for table in report.tables(found, machine.lockstep):
        report.show(table, Console())
    say(f"bench: every figure is in {file}")


@click.command()
@click.option(
    "--machine", "name", default="vmx-bochs", show_default=True, help=", ".join(machines.NAMES)
)
@click.option(
    "--quick", "preset", flag_value="quick", default="quick", help="The small matrix (default)."
)
@click.option(
    "--full", "preset", flag_value="full", help="More vCPUs, write mixes, both log modes."
)
@click.option("--vcpus", callback=numbers, help="vCPU counts, as in '2 4 8'.")
@click.option("--writes", callback=numbers, help="Write percentages, as in '100 20'.")
@click.option("--eager", callback=_words, help="Values of eager_page_split: 'N Y'.")
@click.option("--init-set", help="Initially-all-set: yes, no or both.")
@click.option("--bytes", "bytes_per_vcpu", help="Memory of each vCPU, as in 4M.")
@click.option("--backing", help="Memory behind the guest, as in anonymous_hugetlb_2mb.")
@click.option("--iterations", type=int, help="Dirty, get and clear rounds of a run.")
@click.option(
    "--kernel",
    "kernels",
    type=click.Choice(["all", *results.KERNELS]),
    default="all",
    show_default=True,
    help="All: the series, beside it N of the unpatched kernel and Y of the peer.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Results, instead of build/results/."
)
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
def bench(
    name: str, preset: str, kernels: str, output: Path | None, dry_run: bool, **chosen: Any
) -> None:
    """Measure dirty logging with eager_page_split=N beside =Y and print the tables.

    Exit status: 0 measured, 1 a run failed, 2 bad input, 3 a machine got lost, 130 interrupted.
    """
    matrix = replace(
        FULL if preset == "full" else QUICK, **{k: v for k, v in chosen.items() if v is not None}
    )
    machine = machines.get(name)
    check_matrix(matrix)
    cpus_for(machine, matrix)
    plan = make_plan(name, kernels, matrix)
    if dry_run:
        show_plan(machine, plan)
        return
    file = output_file(output, name)
    announce(machine, plan)
    found = measure(machine, plan, build_programs(plan))
    finish(found, file, machine, latest=output is None)
