# SPDX-License-Identifier: GPL-2.0-only
"""`lab tracking`: what logging costs a guest whose memory is logged from the start.

Runs dirty_log_perf_test on the lockstep machine. What is measured is in docs/measuring.md: "Memory
that is logged from the start"; what is kept of it, in docs/results-format.md.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lab import machines
from lab.build import kernel, selftests
from lab.build.selftests import PERF_TEST
from lab.core.errors import WorkFailed
from lab.core.steps import say, step
from lab.machines import Job
from lab.machines.paging import Mode
from lab.measure import plan
from lab.measure.options import words
from lab.measure.plan import MACHINE, MEMORY_MIB, SPARE_MIB
from lab.page import command as page
from lab.results import notation, origin, tracking
from lab.results.files import output_file, output_option, write_records
from lab.results.notation import OFF, ON

CONFIG = "kvm"
INSIDE = "/tracking"
# Seconds of the host, on two cores, for the runs of one setting: measured with two runs of each
# load but the snapshots (65 and 120), and estimated for what LOADS adds to them.
SETTING_S = {"series": 80, "base": 140}
# Transparent huge pages, because the host clears those of different vCPUs at the same time. Two
# HugeTLB pages are cleared one after the other if they share one of the few mutexes of
# hugetlb_fault(), and whether they do depends on the address of the mapping's inode. Reads get huge
# pages of their own, as without use_zero_page.
SCRIPT = """
set -e
uname -r > "$LAB_OUT/version"
echo 0 > /sys/kernel/mm/transparent_hugepage/use_zero_page
run() {
    "$TEST" -s anonymous_thp $2 -j "$LAB_OUT/$1.json" > "$LAB_OUT/log" 2>&1 ||
        { cat "$LAB_OUT/log"; exit 1; }
}
"""
KEPT = ("phase", "memory")
Record = Mapping[str, Any]


# Without it vCPUs take page faults for the guest's code and page tables while populating. If two of
# them take one for the same page, PML logs that page, too: docs/measuring.md, "The three machines".
# And populating includes the first KVM_RUN, which waits for a new kernel thread.
EVERYWHERE = ("--warm-up",)


@dataclass(frozen=True)
class Load:
    """One run of the test. options: those that are not the same in all runs.

    times: how often it is run, see shortest().
    """

    name: str
    vcpus: int
    mib_per_vcpu: int
    options: tuple[str, ...]
    times: int = 2

    @property
    def mib(self) -> int:
        return self.vcpus * self.mib_per_vcpu

    def arguments(self) -> str:
        size = ("-v", str(self.vcpus), "-b", f"{self.mib_per_vcpu}M")
        return shlex.join([*size, *EVERYWHERE, *self.options])

    def runs(self, setting: "Setting") -> list[str]:
        """What to call each of its runs with a setting."""
        return [f"{setting.name}.{self.name}.{number}" for number in range(self.times)]


# As sandboxes do it: KVM_GET_DIRTY_LOG returns the log and clears it.
TRACKED = ("--tracked", "-g")
READ_FIRST = ("--read-first", "-w", "100")
REGIONS = ("--read-first", "--pattern", "regions")
# A pass that only reads takes a millisecond, in which a tick is 4%, and the bound for it is 1.02.
LOADS = (
    Load(tracking.PLAIN_WRITES, 8, 4, ("-w", "100", "-i", "2")),
    Load(tracking.PLAIN_READS, 8, 4, (*READ_FIRST, "-i", "2"), times=4),
    Load(tracking.WRITES, 8, 4, (*TRACKED, "-w", "100", "-i", "2")),
    Load(tracking.READS, 8, 4, (*TRACKED, *READ_FIRST, "-i", "3"), times=4),
    Load(tracking.SNAPSHOTS, 2, 64, (*TRACKED, *REGIONS, "-w", "2", "-i", "4"), times=1),
)


@dataclass(frozen=True)
class Setting:
    """Values of eager_page_split and of dirty_bits. dirty_bits: empty if there is no such one."""

    eager: str
    dirty_bits: str

    @property
    def name(self) -> str:
        return f"{self.eager}-{self.dirty_bits or 'none'}"

    @property
    def commands(self) -> str:
        lines = [f"echo {self.eager} > /sys/module/kvm/parameters/eager_page_split"]
        if self.dirty_bits:
            lines.append(f"echo {self.dirty_bits} > /sys/module/kvm/parameters/dirty_bits")
        return "\n".join(lines)


@dataclass(frozen=True)
class TrackingBoot:
    """A boot, and the settings that are measured in it, each with all LOADS."""

    kernel: str
    mode: Mode
    settings: tuple[Setting, ...]

    @property
    def label(self) -> str:
        return f"{self.kernel}, {notation.mode_of(MACHINE, self.mode)}"

    @property
    def seconds(self) -> int:
        return SETTING_S[self.kernel] * len(self.settings)


def boots(kernels: Sequence[str], modes: Sequence[str]) -> list[TrackingBoot]:
    """A boot for each mode and kernel. The unpatched one splits lazily and has no Dirty bits."""
    found = []
    for mode in (plan.MODES[name] for name in modes):
        for kind in kernels:
            ways = (OFF,) if plan.logs_by_itself(MACHINE, mode) else (OFF, ON)
            settings = [Setting(eager, dirty_bits) for dirty_bits in ways for eager in "NY"]
            alone = (Setting("N", ""),)
            found.append(TrackingBoot(kind, mode, alone if kind == "base" else tuple(settings)))
    return found


def script(boot: TrackingBoot) -> str:
    lines = [SCRIPT]
    for setting in boot.settings:
        lines.append(setting.commands)
        for load in LOADS:
            arguments = shlex.quote(load.arguments())
            lines += [f"run {run} {arguments}" for run in load.runs(setting)]
    # Untimed, and once all is measured: what was written is in the log.
    for setting in boot.settings:
        lines.append(setting.commands)
        checked = Load("verified", 2, 4, ("-V", *TRACKED, *READ_FIRST, "-i", "3"))
        lines.append(f"run verified {shlex.quote(checked.arguments())}")
    return "\n".join(lines)


def job_of(boot: TrackingBoot, image: Path, test: Path) -> Job:
    """One CPU for each vCPU and one for the test's main thread."""
    most = max(load.mib for load in LOADS)
    values = f"TEST={INSIDE}/{PERF_TEST}\n"
    return Job(
        kernel=image,
        command=("sh", "-c", f"{values}{script(boot)}"),
        parameters=boot.mode.parameters(MACHINE, boot.kernel),
        cpus=max(load.vcpus for load in LOADS) + 1,
        memory_mib=max(MEMORY_MIB, most + SPARE_MIB),
        files={f"{INSIDE}/{PERF_TEST}": test},
        timeout_s=plan.PATIENCE * boot.seconds,
    )


def collect(boot: TrackingBoot, files: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """The records of a boot. WorkFailed: a run's file is missing, or not what was asked for."""
    try:
        version = files["version"].decode().strip()
        for setting in boot.settings:
            common = {
                "machine": MACHINE,
                "kernel": boot.kernel,
                "kernel_version": version,
                "pml": boot.mode.pml,
                "dirty_bits": setting.dirty_bits or OFF,
            }
            for load in LOADS:
                runs = []
                for run in load.runs(setting):
                    text = files[f"{run}.json"].decode()
                    records = [json.loads(line) for line in text.splitlines()]
                    _check(boot, setting, records)
                    runs.append([one for one in records if one["record"] in KEPT])
                for one in shortest(runs):
                    yield {"record": one["record"], "load": load.name, **common, **one}
    except KeyError as error:
        raise WorkFailed(f"{boot.label}: no file, or no key {error}") from error
    except ValueError as error:
        raise WorkFailed(f"{boot.label}: unusable results: {error}") from error


def shortest(runs: Sequence[Sequence[Record]]) -> Iterator[Record]:
    """For each phase of a load that was run several times the shortest time.

    A tick of the timer, which comes at another moment in each run, can only lengthen a time. Of
    counts that goals are about the worst one is kept. ValueError: the runs have other phases.
    """
    for alike in zip(*runs, strict=True):
        if len({(one["record"], one.get("phase"), one.get("iteration")) for one in alike}) > 1:
            raise ValueError("runs of the same load differ")
        if alike[0]["record"] == "memory":
            yield min(alike, key=lambda one: one["pages_2m"])
            continue
        kept = min(alike, key=lambda one: one["seconds"])
        logged = [one["logged"] for one in alike if "logged" in one]
        yield {**kept, "logged": max(logged)} if logged else kept


def _check(boot: TrackingBoot, setting: Setting, records: Sequence[Mapping[str, Any]]) -> None:
    wanted = (boot.mode.ept, boot.mode.tdp_mmu, setting.eager == "Y")
    if {(one["ept"], one["tdp_mmu"], one["eager"]) for one in records} != {wanted}:
        raise WorkFailed(f"{boot.label}: a parameter did not take effect")


def measure(every: Sequence[TrackingBoot]) -> list[dict[str, Any]]:
    """Build what is needed, run all boots, and return the records in the order of the plan."""
    images = {kind: kernel.build(kind, CONFIG).image for kind in {boot.kernel for boot in every}}
    test = selftests.build("series") / PERF_TEST
    of = origin.measured("tracking")
    machine = machines.get(MACHINE)
    found: list[dict[str, Any]] = []
    for number, boot in enumerate(every, 1):
        with step(f"Tracking, {number} of {len(every)}: {boot.label}", f"{boot.seconds} s"):
            result = machine.run(job_of(boot, images[boot.kernel], test))
        result.check(boot.label)
        found += (one | of for one in collect(boot, result.files))
    return found


KERNELS = ("base", "series")


@click.command()
@click.option("--modes", callback=words, help=f"Paging modes: '{' '.join(plan.MODES)}'.")
@click.option(
    "--kernel", "kernels", type=click.Choice(["all", *KERNELS]), default="all", show_default=True
)
@output_option
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
def command(
    modes: tuple[str, ...] | None, kernels: str, output: Path | None, dry_run: bool
) -> None:
    """Measure a guest that is logged from the start, on the lockstep machine.

    How long the guest takes to populate its memory and to read it again, compared with a guest
    that is not logged; how long the first write takes, compared with the first write after a CLEAR
    with eager_page_split=N; how many pages are reported that were only read; and how many huge
    pages map the guest. Simulated time. Exit status 1: a goal is missed.
    """
    chosen = plan.check_modes(MACHINE, modes) or plan.modes_of(MACHINE)
    every = boots(KERNELS if kernels == "all" else (kernels,), chosen)
    if dry_run:
        for boot in every:
            job = job_of(boot, Path("bzImage"), Path(PERF_TEST))
            click.echo(f"{boot.label}: {job.shape}")
            click.echo("\n".join(f"  {line}" for line in script(boot).splitlines() if line))
        return
    file = output_file(output, "tracking")
    say(f"tracking: {len(every)} boots of {MACHINE}, simulated time")
    records = measure(every)
    write_records(file, records)
    page.present("tracking", tracking.tables(records), file, draw=output is None)
    if missed := tracking.missed(records):
        raise WorkFailed("\n".join(("goals are missed:", *missed)))
