# SPDX-License-Identifier: GPL-2.0-only
"""`lab live`: what running vCPUs feel while logging comes and goes, lazily and eagerly split.

Runs dirty_log_live_perf_test on the lockstep machine: three vCPUs that write all of their
memory without end, and one that only reads pages KVM has not mapped, so that each of
its reads needs mmu_lock. eager_page_split=N and =Y of the series and =Y of the ungated one, with
EPT and with shadow paging. A run's timeline becomes one line; lines of single vCPUs are left out,
since those of their kind add them up.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lab import machines
from lab.build import kernel, selftests
from lab.build.selftests import LIVE_TEST
from lab.core.errors import LabError, WorkFailed
from lab.core.steps import say, step
from lab.machines import Job
from lab.machines.bochs import VmxBochs
from lab.machines.paging import TDP
from lab.measure.plan import MEMORY_MIB, SPARE_MIB
from lab.results import tables
from lab.results.files import complete_or_absent, output_file

MACHINE = "vmx-bochs"
CONFIG = "kvm"
INSIDE = "/live"
HUGE_MIB = 2
VCPUS = 4
READERS = 1
MIB_PER_VCPU = 16
WINDOW_US = 10_000
STRETCH_MS = 400
ITERATIONS = 2
SEED = 1
# On two cores, for each run of a boot, boot included.
RUN_S = 50
SCRIPT = """
set -e
uname -r > "$LAB_OUT/version"
echo "$1" > /proc/sys/vm/nr_hugepages
shift
for eager; do
    echo "$eager" > /sys/module/kvm/parameters/eager_page_split
    $TEST -j "$LAB_OUT/$eager.json" > "$LAB_OUT/log" 2>&1 || { cat "$LAB_OUT/log"; exit 1; }
done
"""
# Keys of a window's line that differ from window to window.
OF_WINDOW = ("record", "phase", "iteration", "window", "begin_us")
COUNTS = ("writer_accesses", "reader_accesses")
KEPT = ("kind", "dip")


@dataclass(frozen=True)
class LiveBoot:
    """Runs that share a boot. eager: the values of eager_page_split, in order."""

    kernel: str
    ept: bool
    eager: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.kernel}, {tables.paging(MACHINE, self.ept)}"


def live_boots(modes: Sequence[bool]) -> list[LiveBoot]:
    """The boots: for each value of ept the series lazily and eagerly, and the ungated baseline."""
    return [
        LiveBoot(kind, ept, eager)
        for ept in modes
        for kind, eager in (("series", ("N", "Y")), ("peer", ("Y",)))
    ]


def test_command(mib_per_vcpu: int) -> str:
    """How the test is called, but for the file that it writes."""
    words = [f"{INSIDE}/{LIVE_TEST}", "-s", "anonymous_hugetlb_2mb", "-w", "100"]
    words += ["-v", str(VCPUS), "-b", f"{mib_per_vcpu}M", "-R", str(READERS), "-F"]
    words += ["-i", str(ITERATIONS), "-r", str(SEED)]
    words += ["-W", str(WINDOW_US), "-D", str(STRETCH_MS)]
    return shlex.join(words)


def live_job(boot: LiveBoot, mib_per_vcpu: int, image: Path, test: Path) -> Job:
    """One CPU for each vCPU and one for the test's main thread."""
    mib = VCPUS * mib_per_vcpu
    vendor = TDP[MACHINE]
    assert vendor
    script = f"TEST={shlex.quote(test_command(mib_per_vcpu))}\n{SCRIPT}"
    return Job(
        kernel=image,
        command=("sh", "-c", script, "live", str(mib // HUGE_MIB), *boot.eager),
        parameters={vendor: str(int(boot.ept)), "kvm.tdp_mmu": "0"},
        cpus=VCPUS + 1,
        memory_mib=max(MEMORY_MIB, mib + SPARE_MIB),
        files={f"{INSIDE}/{LIVE_TEST}": test},
        timeout_s=1800,
    )


def _timeline(windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All windows of a run as one record."""
    if [one["window"] for one in windows] != list(range(len(windows))):
        raise WorkFailed("the timeline has gaps")
    common = {k: v for k, v in windows[0].items() if k not in (*OF_WINDOW, *COUNTS)}
    series = {name: [one[name] for one in windows] for name in COUNTS}
    return {"record": "timeline", **common, **series}


def condense(text: str, origin: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The records to keep of one run's JSON lines, with ORIGIN's keys in front.

    WorkFailed: the test wrote something else.
    """
    try:
        records = [json.loads(line) for line in text.splitlines()]
        windows = [one for one in records if one["record"] == "window"]
        if not windows:
            raise WorkFailed("a run without a timeline")
        kept = [one for one in records if one["record"] in KEPT]
        for one in [_timeline(windows), *kept]:
            yield {"record": one["record"], **origin} | one
    except (ValueError, KeyError, TypeError) as error:
        raise WorkFailed(f"unusable results: {error!r}") from error


def collect(boot: LiveBoot, files: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """The records of a boot. WorkFailed: a run's file is missing, or not what was asked for."""
    try:
        version = files["version"].decode().strip()
        for eager in boot.eager:
            origin = {"machine": MACHINE, "kernel": boot.kernel, "kernel_version": version}
            for record in condense(files[f"{eager}.json"].decode(), origin):
                if (record["ept"], record["eager"]) != (boot.ept, eager == "Y"):
                    raise WorkFailed(f"{boot.label}: a parameter did not take effect")
                yield record
    except KeyError as error:
        raise WorkFailed(f"{boot.label}: no file {error}") from error


def check(mib_per_vcpu: int) -> None:
    """LabError: memory that the machine cannot give to the guest."""
    most = (VmxBochs.most_memory_mib - SPARE_MIB) // VCPUS
    if mib_per_vcpu % HUGE_MIB or not HUGE_MIB <= mib_per_vcpu <= most:
        raise LabError(
            f"--mib: {mib_per_vcpu} is not a multiple of {HUGE_MIB} between {HUGE_MIB} and {most}"
        )


def show_plan(plan: Iterable[LiveBoot], mib_per_vcpu: int) -> None:
    """Print what would be run."""
    for boot in plan:
        job = live_job(boot, mib_per_vcpu, Path("bzImage"), Path(LIVE_TEST))
        parameters = " ".join(f"{name}={value}" for name, value in job.parameters.items())
        click.echo(f"{boot.label}: {job.cpus} CPUs, {job.memory_mib} MiB {parameters}")
        click.echo(f"  eager_page_split={','.join(boot.eager)} {test_command(mib_per_vcpu)}")


def measure(plan: Sequence[LiveBoot], mib_per_vcpu: int) -> list[dict[str, Any]]:
    """Build what is needed, run all boots, and return the records in the order of the plan."""
    kinds = dict.fromkeys(boot.kernel for boot in plan)
    images = {kind: kernel.build(kind, CONFIG).image for kind in kinds}
    test = selftests.build("series") / LIVE_TEST
    machine = machines.get(MACHINE)
    found: list[dict[str, Any]] = []
    for number, boot in enumerate(plan, 1):
        job = live_job(boot, mib_per_vcpu, images[boot.kernel], test)
        with step(f"Live, {number} of {len(plan)}: {boot.label}", f"{RUN_S * len(boot.eager)} s"):
            result = machine.run(job)
        result.check(boot.label)
        found += collect(boot, result.files)
    return found


@click.command()
@click.option(
    "--ept",
    type=click.Choice(["Y", "N", "both"]),
    default="both",
    show_default=True,
    help="EPT, shadow paging, or one after the other.",
)
@click.option(
    "--mib", "mib_per_vcpu", type=int, default=MIB_PER_VCPU, show_default=True, help="Per vCPU."
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Results, instead of build/results/."
)
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
def command(ept: str, mib_per_vcpu: int, output: Path | None, dry_run: bool) -> None:
    """Measure what running vCPUs feel: timelines and stalls, on the lockstep machine.

    Writes JSON lines, complete or not at all; `lab report` draws them. Simulated time.
    """
    check(mib_per_vcpu)
    plan = live_boots({"Y": [True], "N": [False], "both": [True, False]}[ept])
    if dry_run:
        show_plan(plan, mib_per_vcpu)
        return
    file = output_file(output, "live")
    memory = f"{VCPUS} vCPUs x {mib_per_vcpu} MiB"
    say(f"live: {memory} in {len(plan)} boots of {MACHINE}, simulated time")
    found = measure(plan, mib_per_vcpu)
    with complete_or_absent(file) as stream:
        stream.writelines(f"{json.dumps(record)}\n" for record in found)
    say(f"live: everything is in {file}; `make report` draws it")
