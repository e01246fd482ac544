# SPDX-License-Identifier: GPL-2.0-only
"""`lab reference`: measure what docs/reference has of a base, check it, refresh the pages.

docs/measuring.md, "The reference", says why each number of vCPUs has boots of its own.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from lab import machines
from lab.core import parallel
from lab.core.errors import LabError, WorkFailed
from lab.core.paths import BUILD, LAYOUT, LOG, ROOT, Layout
from lab.core.steps import run_logged, say, step
from lab.machines.paging import Mode
from lab.measure import bench, crossover, plan
from lab.measure.plan import MACHINE, Boot, Matrix
from lab.page import claims, figures, render, typed
from lab.results import goals, sources

VCPUS = tuple(goals.RATIOS)
WRITES = (100, 20)
PARTS = ("bench", "memory", "lock", "live", "yield", "cost", "crossover")
# The parts that an older base has, for comparison.
HEADLINE = ("bench",)
# The parts whose commands run two machines at a time.
BOTH_CORES = ("bench", "memory", "crossover")
COMMANDS = {"live": "live", "yield": "live", "cost": "cost", "lock": "lockprofile"}
# These commands get less to do than by default: more would take longer, and show nothing new.
ARGUMENTS = {"lock": ("--vcpus", "1 2 4 8 14 32", "--writes", "100"), "yield": ("--contended",)}
# The other parts run one machine at a time, so measure two parts at once on two cores.
PARALLEL = 2
GRACE_S = 1.0
ESTIMATE = "50 to 80 min"


def directory(layout: Layout = LAYOUT) -> Path:
    """The directory with the reference of a base."""
    return ROOT / figures.REFERENCE / layout.version


def boot(kernel: str, ept: bool, vcpus: int) -> Boot:
    """The boot that has the figures of KERNEL for a mode and a number of vCPUs."""
    eager = {"series": ("N", "Y"), "peer": ("Y",), "base": ("N",)}[kernel]
    matrix = Matrix(vcpus=(vcpus,), writes=WRITES, eager=eager, bytes_per_vcpu="2M")
    return Boot(MACHINE, kernel, Mode(ept), matrix, part=f"{vcpus} vCPUs")


def reference_boots() -> list[Boot]:
    """All boots, the long ones first, so that two at a time end together."""
    kinds = product(("base", "series", "peer"), reversed(VCPUS), (True, False))
    return [boot(kernel, ept, n) for kernel, n, ept in kinds]


def _measure(part: str, file: Path) -> None:
    """Run the command that measures PART into FILE; what it says goes to its log."""
    words = (COMMANDS[part], *ARGUMENTS.get(part, ()), "--output", str(file))
    log = LOG / f"reference-{part}.log"
    log.unlink(missing_ok=True)
    run_logged(f"`lab {COMMANDS[part]}`", (sys.executable, "-m", "lab", *words), log, ROOT)


def measure_others(files: Mapping[str, Path]) -> None:
    """Run the commands that measure the other parts, some at a time. WorkFailed: one failed."""
    parts = [part for part in PARTS if part in files]
    if parts:
        with step(f"Measuring {' and '.join(parts)}", ESTIMATE):
            parallel.for_each(
                parts, lambda part: _measure(part, files[part]), threads=PARALLEL, grace_s=GRACE_S
            )


def measure(parts: Sequence[str], target: Path) -> None:
    """Measure PARTS, and replace their files in TARGET when all of them are measured."""
    BUILD.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="reference-", dir=BUILD) as scratch:
        files = {part: Path(scratch, f"{part}.jsonl") for part in parts}
        if "bench" in files:
            machine, boots = machines.get(MACHINE), reference_boots()
            bench.announce(machine, boots)
            bench.measure_into(files["bench"], machine, boots)
        if "memory" in files:
            machine, boots = machines.get(MACHINE), plan.memory_boots()
            bench.announce(machine, boots, "the memory that splitting takes")
            bench.measure_into(files["memory"], machine, boots)
        if "crossover" in files:
            crossover.measure_into(files["crossover"])
        measure_others({p: file for p, file in files.items() if p not in BOTH_CORES})
        others = (file for file in target.glob("*.jsonl") if file.stem not in files)
        keep([*others, *files.values()], target)


def check_output(directory: Path) -> None:
    """LabError: a directory that holds something else, which replacing it would lose."""
    others = [file for file in directory.glob("*") if file.suffix != ".jsonl"]
    if others:
        raise LabError(f"--output: {directory} holds {others[0].name}; name another directory")


def keep(files: Iterable[Path], directory: Path) -> None:
    """Make DIRECTORY hold exactly FILES. LabError: one of them cannot be read as results."""
    found = sources.load_all(files)
    render.replace_directory(directory, {one.name: one.data for one in found.values()})


def refresh_pages() -> None:
    for page in figures.refresh():
        say(f"reference: {page.relative_to(ROOT)} has new figures")


def check_sentences() -> None:
    """WorkFailed: a sentence of a page, or of a mail, has a figure that the reference has not."""
    if wrong := [*claims.wrong(), *typed.typed()]:
        say("\n".join(wrong))
        raise WorkFailed("sentences have other figures than the reference, see above")


def check_bounds(file: Path) -> None:
    """Print the goals and how they are met. WorkFailed: a bound is missed."""
    found = sources.load(file).measurements
    if table := goals.table(found):
        table.show()
    if lines := [*goals.unmeasured(found), *goals.missed(found)]:
        raise WorkFailed(f"bounds are missed: {'; '.join(lines)}")


@click.command()
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    help="Measure this only, keep the other files; can be repeated. Default: all of the newest"
    f" base, {HEADLINE[0]} of an older one.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory, instead of docs/reference/BASE.",
)
@click.option("--pages", is_flag=True, help="Measure nothing: only put the figures into the pages.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured.")
def command(parts: tuple[str, ...], output: Path | None, pages: bool, dry_run: bool) -> None:
    """Measure the reference, check N/Y against its bounds, and put its figures into the pages.

    An hour to an hour and a half on two cores, most of it for the lock profile. Two runs of
    the same sources write the same bytes. Nothing is replaced before all is measured.
    """
    if pages:
        if parts or dry_run or output:
            raise LabError("--pages measures nothing, so it goes with no other option")
        refresh_pages()
        check_sentences()
        return
    target = output or directory()
    check_output(target)
    wanted = parts or (PARTS if LAYOUT.is_newest else HEADLINE)
    if dry_run:
        click.echo("\n".join(one.label for one in reference_boots()))
        click.echo(f"parts: {' '.join(wanted)}")
        return
    measure(wanted, target)
    say(f"reference: {target} is new")
    if not (target / "bench.jsonl").exists():
        raise LabError("the bounds were not checked: there is no bench.jsonl")
    if not output:
        refresh_pages()
    check_bounds(target / "bench.jsonl")
    if not output:
        check_sentences()
