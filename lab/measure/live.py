# SPDX-License-Identifier: GPL-2.0-only
"""`lab live`: how long running vCPUs stall while logging is enabled and disabled, with N and Y.

Runs dirty_log_live_perf_test on the lockstep machine. What is measured, and what --contended is, is
in docs/measuring.md: "What running vCPUs feel"; what is kept of it, in docs/results-format.md.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from lab.machines.paging import DIRTY_BITS, Mode
from lab.measure.options import EITHER
from lab.measure.plan import HUGE_MIB, MACHINE, MEMORY_MIB, SPARE_MIB
from lab.page import command as page
from lab.page import live as pages
from lab.results import notation, origin, sources
from lab.results.files import output_file, output_option, write_records

CONFIG = "kvm"
INSIDE = "/live"
# What the test lets a reader read at most.
FRESH_MIB = 64
ITERATIONS = 2
SEED = 1
# Otherwise each CPU of the host, once a second, frees pages that it has kept since the boot
# (vmstat_update), which can take 1.3 ms in the middle of an access. How many pages a CPU has kept
# is chance, and differs between kernels.
QUIET = ("sysctl.vm.stat_interval=3600",)
# On two cores, for each run of a boot, boot included.
RUN_S = 50
CONTENDED_RUN_S = 240
SCRIPT = """
set -e
uname -r > "$LAB_OUT/version"
echo "$1" > /proc/sys/vm/nr_hugepages
shift
run() {
    echo "$eager" > /sys/module/kvm/parameters/eager_page_split
    "$@" > "$LAB_OUT/log" 2>&1 || { cat "$LAB_OUT/log"; exit 1; }
}
for eager; do
    run $TEST -j "$LAB_OUT/$eager.json"
done
# Untimed, and once all is measured: what was written is in the log, and what is to be split is.
for eager; do
    run $VERIFY
done
"""
# Keys of a window's line that differ from window to window.
OF_WINDOW = ("record", "phase", "iteration", "window", "begin_us")
COUNTS = ("writer_accesses", "reader_accesses")
KEPT = ("kind", "dip")


@dataclass(frozen=True)
class Load:
    """What vCPUs do. window_us, stretch_ms: the test's -W and -D."""

    vcpus: int
    readers: int
    mib_per_vcpu: int
    window_us: int
    stretch_ms: int

    @property
    def mib(self) -> int:
        return self.vcpus * self.mib_per_vcpu

    @property
    def verified(self) -> "Load":
        """The same vCPUs, with less memory and for a shorter time if it is long."""
        return replace(
            self,
            mib_per_vcpu=min(self.mib_per_vcpu, VERIFIED_MIB),
            stretch_ms=min(self.stretch_ms, VERIFIED_STRETCH_MS),
        )


# Of the verified runs, which measure nothing.
VERIFIED_MIB = 16
VERIFIED_STRETCH_MS = 100
USUAL = Load(vcpus=4, readers=1, mib_per_vcpu=16, window_us=10_000, stretch_ms=400)
CONTENDED = Load(vcpus=14, readers=13, mib_per_vcpu=74, window_us=5_000, stretch_ms=40)


@dataclass(frozen=True)
class LiveBoot:
    """Runs that share a boot. eager: the values of eager_page_split, in order.

    dirty_bits: dirty pages are logged by Dirty bits, without PML.
    """

    kernel: str
    ept: bool
    eager: tuple[str, ...]
    load: Load
    tdp_mmu: bool = False
    dirty_bits: bool = False

    @property
    def label(self) -> str:
        mmu = ", TDP MMU" if self.tdp_mmu else ""
        mmu += ", Dirty bits" if self.dirty_bits else ""
        return f"{self.kernel}, {notation.paging(MACHINE, self.ept)}{mmu}"

    @property
    def parameters(self) -> dict[str, str]:
        found = Mode(self.ept, self.tdp_mmu, pml=not self.dirty_bits).parameters(
            MACHINE, self.kernel
        )
        return found | ({DIRTY_BITS: "on"} if self.dirty_bits else {})


def live_boots(modes: Sequence[bool], load: Load) -> list[LiveBoot]:
    """The boots: for each value of ept the series, the ungated baseline, the unpatched kernel."""
    kernels = (("series", ("N", "Y")), ("peer", ("Y",)), ("base", ("N",)))
    return [LiveBoot(kind, ept, eager, load) for ept in modes for kind, eager in kernels]


def contended_boots() -> list[LiveBoot]:
    """The boots of --contended, by the TDP MMU: the unpatched kernel splits with no other."""
    found = [LiveBoot(kind, True, ("Y",), CONTENDED, tdp_mmu=True) for kind in ("base", "series")]
    return [*found, replace(found[-1], dirty_bits=True)]


def test_command(load: Load, *options: str) -> str:
    """How the test is called, but for the file that it writes."""
    words = [f"{INSIDE}/{LIVE_TEST}", *options, "-s", "anonymous_hugetlb_2mb", "-w", "100"]
    words += ["-v", str(load.vcpus), "-b", f"{load.mib_per_vcpu}M", "-R", str(load.readers), "-F"]
    words += ["-i", str(ITERATIONS), "-r", str(SEED)]
    words += ["-W", str(load.window_us), "-D", str(load.stretch_ms)]
    return shlex.join(words)


def live_job(boot: LiveBoot, image: Path, test: Path) -> Job:
    """One CPU for each vCPU and one for the test's main thread."""
    load = boot.load
    test_, verify = test_command(load), test_command(load.verified, "-V")
    script = f"TEST={shlex.quote(test_)} VERIFY={shlex.quote(verify)}\n{SCRIPT}"
    return Job(
        kernel=image,
        command=("sh", "-c", script, "live", str(load.mib // HUGE_MIB), *boot.eager),
        parameters=boot.parameters,
        cpus=load.vcpus + 1,
        memory_mib=max(MEMORY_MIB, load.mib + load.readers * FRESH_MIB + SPARE_MIB),
        files={f"{INSIDE}/{LIVE_TEST}": test},
        timeout_s=3600,
        cmdline=QUIET,
    )


def _timeline(windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All windows of a run as one record."""
    if [one["window"] for one in windows] != list(range(len(windows))):
        raise WorkFailed("the timeline has gaps")
    common = {k: v for k, v in windows[0].items() if k not in (*OF_WINDOW, *COUNTS)}
    series = {name: [one[name] for one in windows] for name in COUNTS}
    return {"record": "timeline", **common, **series}


def condense(text: str, common: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The records to keep of one run's JSON lines, with the keys of COMMON in front.

    WorkFailed: the test wrote something else.
    """
    try:
        records = [json.loads(line) for line in text.splitlines()]
        windows = [one for one in records if one["record"] == "window"]
        if not windows:
            raise WorkFailed("a run has no timeline")
        kept = [one for one in records if one["record"] in KEPT]
        for one in [_timeline(windows), *kept]:
            yield {"record": one["record"], **common} | one
    except (ValueError, KeyError, TypeError) as error:
        raise WorkFailed(f"unusable results: {error!r}") from error


def collect(boot: LiveBoot, files: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """The records of a boot. WorkFailed: a run's file is missing, or not what was asked for."""
    try:
        version = files["version"].decode().strip()
        common = {"machine": MACHINE, "kernel": boot.kernel, "kernel_version": version}
        common |= {"dirty_bits": "on"} if boot.dirty_bits else {}
        for eager in boot.eager:
            records = list(condense(files[f"{eager}.json"].decode(), common))
            seen = {(one["ept"], one["tdp_mmu"], one["eager"]) for one in records}
            if seen != {(boot.ept, boot.tdp_mmu, eager == "Y")}:
                raise WorkFailed(f"{boot.label}: a parameter did not take effect")
            yield from records
    except KeyError as error:
        raise WorkFailed(f"{boot.label}: no file {error}") from error


def check(mib_per_vcpu: int) -> None:
    """LabError: memory that the machine cannot give to the guest."""
    most = (VmxBochs.most_memory_mib - USUAL.readers * FRESH_MIB - SPARE_MIB) // USUAL.vcpus
    if mib_per_vcpu % HUGE_MIB or not HUGE_MIB <= mib_per_vcpu <= most:
        raise LabError(
            f"--mib: {mib_per_vcpu} is not a multiple of {HUGE_MIB} between {HUGE_MIB} and {most}"
        )


def measure(plan: Sequence[LiveBoot]) -> list[dict[str, Any]]:
    """Build what is needed, run all boots, and return the records in the order of the plan."""
    kinds = dict.fromkeys(boot.kernel for boot in plan)
    images = {kind: kernel.build(kind, CONFIG).image for kind in kinds}
    test = selftests.build("series") / LIVE_TEST
    of = origin.measured("live")
    machine = machines.get(MACHINE)
    found: list[dict[str, Any]] = []
    for number, boot in enumerate(plan, 1):
        job = live_job(boot, images[boot.kernel], test)
        run_s = CONTENDED_RUN_S if boot.load == CONTENDED else RUN_S
        with step(f"Live, {number} of {len(plan)}: {boot.label}", f"{run_s * len(boot.eager)} s"):
            result = machine.run(job)
        result.check(boot.label)
        found += (one | of for one in collect(boot, result.files))
    return found


@click.command()
@click.option("--ept", type=click.Choice([*EITHER]), default="both", help="N: shadow paging.")
@click.option("--mib", type=int, default=USUAL.mib_per_vcpu, help="Memory of each vCPU, MiB.")
@click.option(
    "--contended",
    is_flag=True,
    help="Clear the log of 1 GiB in the TDP MMU, while 13 vCPUs fault: in the unpatched kernel, and"
    " in the series, also with Dirty bits.",
)
@output_option
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
def command(ept: str, mib: int, contended: bool, output: Path | None, dry_run: bool) -> None:
    """Measure throughput and stalls of running vCPUs while logging is enabled and disabled.

    Write JSON lines, and draw the report. The machine is always vmx-bochs; times are simulated.
    """
    check(mib)
    load = replace(USUAL, mib_per_vcpu=mib)
    if contended and (ept, load) != ("both", USUAL):
        raise LabError("--contended: cannot be combined with --ept and --mib")
    plan = contended_boots() if contended else live_boots(EITHER[ept], load)
    if dry_run:
        for boot in plan:
            job = live_job(boot, Path("bzImage"), Path(LIVE_TEST))
            click.echo(f"{boot.label}: {job.shape}")
            click.echo(f"  eager_page_split={','.join(boot.eager)} {test_command(boot.load)}")
        return
    file = output_file(output, "yield" if contended else "live")
    what = f"{plan[0].load.vcpus} vCPUs x {plan[0].load.mib_per_vcpu} MiB"
    say(f"live: {what} in {len(plan)} boots of {MACHINE}, simulated time")
    write_records(file, measure(plan))
    shown = [] if contended else pages.terminal_tables(sources.load(file))
    page.present("live", shown, file, draw=output is None)
