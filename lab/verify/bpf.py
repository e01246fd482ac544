# SPDX-License-Identifier: GPL-2.0-only
"""`lab bpf`: try the bpftrace tools in an emulated machine, each with a workload.

bpftrace starts the workload itself and ends with it, so that all of a run is seen and nothing else.
One boot for all runs of one paging mode. What counts and times are worth is in docs/tools.md.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from lab import machines
from lab.build import kernel, selftests
from lab.build.selftests import LIVE_TEST, PERF_TEST
from lab.core.errors import LabError, WorkFailed
from lab.core.paths import LAYOUT, ROOT
from lab.core.steps import say, step
from lab.machines import Job
from lab.machines.paging import Mode

MACHINE = "svm-qemu"
CONFIG = "bpf"
BPFTRACE = Path("/usr/bin/bpftrace")
TOOLS = ROOT / "tools" / "bpftrace"
INSIDE = "/tools"
# What bpftrace includes if the kernel has no BTF; made for the selftests.
HEADERS = ("asm", "asm-generic", "linux/types.h", "linux/posix_types.h", "linux/stddef.h")
HUGE_PAGES = 64
CPUS = 3
# LLVM comes along, once in the archive and once unpacked.
MEMORY_MIB = 2048
# Host seconds, for the announcement.
BOOT_S = 10
RUN_S = 10

Format = Literal["text", "json"]

PAGING = {"npt": Mode(True), "shadow": Mode(False), "tdp": Mode(True, True)}

BACKING = ("-s", "anonymous_hugetlb_2mb")
# vCPUs pause while memory is split: all counts are known beforehand.
PHASES = (PERF_TEST, *BACKING, "-v", "2", "-b", "8M", "-i", "2", "-w", "100")
# vCPUs run on while all of memory is split; one of them only reads what is not mapped yet, so
# that each of its reads needs mmu_lock.
LIVE = (LIVE_TEST, *BACKING, "-v", "2", "-b", "32M", "-D", "100", "-R", "1", "-F", "-g")


@dataclass(frozen=True)
class ToolRun:
    """One run of a tool. workload: a selftest and its arguments.

    paging: the modes in which it has something to show.
    """

    tool: str
    eager: bool
    workload: tuple[str, ...]
    paging: tuple[str, ...] = tuple(PAGING)

    @property
    def setting(self) -> str:
        return "Y" if self.eager else "N"

    @property
    def name(self) -> str:
        return f"{self.tool}-{self.setting}"


# What each tool is tried with. splitlat has nothing to show of lazy splitting, nor of the TDP MMU.
RUNS = (
    ToolRun("mmulock", False, LIVE),
    ToolRun("mmulock", True, LIVE),
    ToolRun("splitlat", True, LIVE, ("npt", "shadow")),
    ToolRun("wpfaults", False, PHASES),
    ToolRun("wpfaults", True, PHASES),
)
NAMES = tuple(dict.fromkeys(run.tool for run in RUNS))

# As bpftrace says it, in text and in JSON.
LOST = re.compile(r"Lost \d+ events|lost_events")
# What changes while other processors run it is what QEMU stumbles over, see kvm.config: no
# kprobe becomes a jump.
SCRIPT = f"""
set -e
echo 0 > /proc/sys/debug/kprobes-optimization
echo {HUGE_PAGES} > /proc/sys/vm/nr_hugepages
format=$1
shift
while [ $# -gt 0 ]; do
    echo "$2" > /sys/module/kvm/parameters/eager_page_split
    {INSIDE}/bpftrace -f "$format" -o "$LAB_OUT/$1-$2.tool" \\
        -c "{INSIDE}/$3" "{INSIDE}/$1.bt" > "$LAB_OUT/$1-$2.said" 2>&1 ||
        {{ cat "$LAB_OUT/$1-$2.said"; exit 1; }}
    echo "$1, eager_page_split=$2" >> "$LAB_PROGRESS"
    shift 3
done
"""


def bpf_job(
    runs: Sequence[ToolRun], paging: str, image: Path, tests: Path, shape: Format = "text"
) -> Job:
    """One boot for RUNS. tests: where the selftests are. shape: of the output, bpftrace's -f."""
    include = LAYOUT.linux / selftests.OBJECTS / "usr" / "include"
    words = [word for run in runs for word in (run.tool, run.setting, shlex.join(run.workload))]
    return Job(
        kernel=image,
        command=("sh", "-c", SCRIPT, "bpf", shape, *words),
        parameters=PAGING[paging].parameters(MACHINE),
        cpus=CPUS,
        memory_mib=MEMORY_MIB,
        files={
            f"{INSIDE}/bpftrace": BPFTRACE,
            **{f"{INSIDE}/{run.workload[0]}": tests / run.workload[0] for run in runs},
            **{f"{INSIDE}/{run.tool}.bt": TOOLS / f"{run.tool}.bt" for run in runs},
            **{f"/usr/include/{name}": include / name for name in HEADERS},
        },
        timeout_s=10 * estimate_s(runs),
        on_progress=lambda line: say(f"bpf: {line}: done"),
    )


def estimate_s(runs: Sequence[ToolRun]) -> float:
    return BOOT_S + RUN_S * len(runs)


def collect(runs: Sequence[ToolRun], files: Mapping[str, bytes]) -> list[str]:
    """What the tool of each run said. WorkFailed: nothing came back, or bpftrace lost events."""
    found = []
    for run in runs:
        try:
            tool, said = (
                files[f"{run.name}.{kind}"].decode(errors="replace") for kind in ("tool", "said")
            )
        except KeyError as error:
            raise WorkFailed(f"{run.name}: no file {error} came back") from None
        if LOST.search(said + tool):
            raise WorkFailed(f"{run.name}: bpftrace lost events:\n{said}")
        found.append(tool)
    return found


def execute(job: Job, runs: Sequence[ToolRun]) -> list[str]:
    """Boot and run. WorkFailed: a tool failed, or its workload did."""
    result = machines.get(MACHINE).run(job)
    result.check(MACHINE)
    return collect(runs, result.files)


def choose(tools: Sequence[str], eager: str, paging: str) -> list[ToolRun]:
    """The runs of these tools, of all if there is none. LabError: nothing is left to run."""
    runs = [run for run in RUNS if run.tool in (tools or NAMES) and paging in run.paging]
    runs = [run for run in runs if eager in ("both", run.setting)]
    if not runs:
        what = f"eager_page_split={eager} and --paging {paging}"
        raise LabError(f"{' '.join(tools)} has nothing to show with {what}; try Y and npt")
    return runs


def _title(run: ToolRun) -> str:
    return (
        f"# eager_page_split={run.setting}\n"
        f"# bpftrace -c '{shlex.join(run.workload)}' {run.tool}.bt"
    )


def show(runs: Sequence[ToolRun], outputs: Sequence[str]) -> None:
    for run, output in zip(runs, outputs, strict=True):
        click.echo(f"{_title(run)}\n{output.rstrip()}\n")


@click.command()
@click.option(
    "--tool", "tools", type=click.Choice(NAMES), multiple=True, help="Only this, or these."
)
@click.option(
    "--paging",
    type=click.Choice([*PAGING]),
    default="npt",
    help="NPT or shadow paging by the shadow MMU, or the TDP MMU.",
)
@click.option(
    "--eager", type=click.Choice(["Y", "N", "both"]), default="both", help="eager_page_split."
)
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
def command(tools: tuple[str, ...], paging: str, eager: str, dry_run: bool) -> None:
    """Run the bpftrace tools of tools/bpftrace in an emulated machine and print what they say.

    Builds the kernel of configuration bpf, starts a selftest below each tool. What is
    counted is real, the times are an emulator's and tell nothing about hardware.
    """
    runs = choose(tools, eager, paging)
    if dry_run:
        click.echo(f"{MACHINE}, {bpf_job(runs, paging, Path('bzImage'), Path('stripped')).shape}")
        click.echo("\n".join(map(_title, runs)))
        return
    if not BPFTRACE.exists():
        raise LabError(
            f"no {BPFTRACE}: apt-get install bpftrace, or `make test WHAT=bpf`, which does that"
        )
    image, tests = kernel.build("series", CONFIG).image, selftests.build("series")
    with step(f"Tracing on {MACHINE}, {len(runs)} runs", f"{estimate_s(runs):.0f} s"):
        outputs = execute(bpf_job(runs, paging, image, tests), runs)
    show(runs, outputs)
