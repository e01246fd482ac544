# SPDX-License-Identifier: GPL-2.0-only
"""`lab reference`: measure what docs/reference has of a base, check it, refresh the pages.

docs/measuring.md, "The reference", says why each number of vCPUs has boots of its own.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import click

from lab import machines
from lab.core import parallel
from lab.core.errors import LabError, WorkFailed
from lab.core.paths import LAYOUT, LOG, ROOT, Layout
from lab.core.steps import bar, duration, run_logged, say
from lab.machines.paging import Mode
from lab.measure import bench, crossover, kept, plan
from lab.measure.kept import Kept
from lab.measure.plan import MACHINE, Boot, Matrix
from lab.page import claims, figures, labels, older, render, typed
from lab.results import goals, sources
from lab.results.tables import BASE_VCPUS
from lab.series import tree

VCPUS = tuple(goals.RATIOS)
WRITES = (100, 20)
# The parts whose commands run two machines at a time.
BOTH_CORES = ("bench", "memory", "cycles", "crossover")
# The other parts, the longest first, and the commands that measure them.
COMMANDS = {
    "lock": "lockprofile",
    "cost": "cost",
    "tracking": "tracking",
    "migrate": "migrate",
    "live": "live",
}
PARTS = (*BOTH_CORES, *COMMANDS)
# Depends on the machine at hand and on what else it does: measured only if asked for, and alone.
NATIVE = "native"
ARGUMENTS = {
    # Less than by default: more would take longer, and show nothing new.
    "lock": ("--vcpus", "1 2 4 8 14 32", "--writes", "100"),
    "migrate": ("--machine", MACHINE),
}
# Seconds that a part takes with a core of its own, as its command estimates them.
ESTIMATES_S = {
    "lock": 1520,
    "cost": 1200,
    "tracking": 1640,
    "migrate": 620,
    "live": 400,
    NATIVE: 600,
}
# These run one machine at a time, so measure two parts at once on two cores.
PARALLEL = 2
GRACE_S = 1.0


def directory(layout: Layout = LAYOUT) -> Path:
    """The directory with the reference of a base."""
    return ROOT / figures.REFERENCE / layout.version


def boot(kernel: str, ept: bool, vcpus: int) -> Boot:
    """The boot that has the figures of KERNEL for a mode and a number of vCPUs."""
    eager = {"series": ("N", "Y"), "peer": ("Y",), "base": ("N",)}[kernel]
    matrix = Matrix(vcpus=(vcpus,), writes=WRITES, eager=eager, bytes_per_vcpu="2M")
    return Boot(MACHINE, kernel, Mode(ept), matrix, part=f"{vcpus} vCPUs")


# One point for each way to map memory and to log its pages. `make test` measures them again.
POINTS: Mapping[str, tuple[Mode, tuple[str, ...]]] = {
    "ept1": (plan.MODES["ept1"], ()),
    "ept0": (plan.MODES["ept0"], ()),
    "tdp": (plan.MODES["tdp"], ()),
    "tdp-dirty_bits": (plan.MODES["tdp-nopml"], ("on",)),
}


def point(name: str) -> Boot:
    """The boot that has the figures of one of POINTS."""
    mode, dirty_bits = POINTS[name]
    one = boot("series", mode.ept, min(VCPUS))
    return replace(one, mode=mode, matrix=replace(one.matrix, dirty_bits=dirty_bits))


def points() -> list[Boot]:
    return [*map(point, POINTS)]


def tdp_mmu_boots() -> list[Boot]:
    """The unpatched kernel and the series in the TDP MMU, where both split lazily and eagerly."""
    series = boot("series", ept=True, vcpus=BASE_VCPUS)
    series = replace(series, mode=plan.MODES["tdp"])
    return [replace(series, kernel=kernel) for kernel in ("base", "series")]


def reference_boots() -> list[Boot]:
    """All boots, the long ones first, so that two at a time end together."""
    kinds = product(("base", "series", "peer"), reversed(VCPUS), (True, False))
    found = [boot(kernel, ept, n) for kernel, n, ept in kinds] + tdp_mmu_boots()
    return found + [one for one in points() if one not in found]


def _run_command(part: str, file: Path) -> None:
    """Run the command that measures PART into FILE; what it says goes to its log."""
    command = COMMANDS.get(part, part)
    words = (command, *ARGUMENTS.get(part, ()), "--output", str(file))
    log = LOG / f"reference-{part}.log"
    log.unlink(missing_ok=True)
    run_logged(f"`lab {command}`", (sys.executable, "-m", "lab", *words), log, ROOT)


def estimate_s(parts: Iterable[str]) -> float:
    """About how long PARTS take on two cores when all is built, seconds."""
    machine = machines.get(MACHINE)
    boots = {"bench": reference_boots, "memory": plan.memory_boots, "crossover": crossover.boots}
    boots |= {"cycles": plan.cycles_boots}
    wanted = set(parts)
    one_core = [ESTIMATES_S[part] for part in COMMANDS if part in wanted]
    together = max(sum(one_core) / PARALLEL, *one_core, 0)
    alone = ESTIMATES_S[NATIVE] if NATIVE in wanted else 0
    return together + alone + sum(bench.estimate_s(machine, boots[p]()) for p in wanted & {*boots})


class _Progress:
    """Which of some parts are measured, and about how long the rest takes."""

    def __init__(self, parts: Sequence[str], measure: Callable[[str], bool]) -> None:
        """MEASURE measures a part, and returns whether it has succeeded."""
        self.parts, self._measure, self.begun = parts, measure, time.monotonic()
        self.running: list[str] = []
        self.done: list[str] = []

    def measure(self, part: str) -> None:
        self.running.append(part)
        succeeded = self._measure(part)
        self.running.remove(part)
        self.done.append(part)
        what = "is measured" if succeeded else "has failed"
        say(f"reference: {part} {what}, {len(self.done)} of {len(self.parts)} such parts")

    def now(self) -> tuple[float, str]:
        """See lab.core.steps.bar()."""
        passed = time.monotonic() - self.begun
        left = max(estimate_s(self.parts) - passed, 0)
        return passed, f"about {duration(left)} left; {', '.join(self.running)} running"


class _Run:
    """The parts that a run measures. Each is kept as soon as it is measured, see lab.measure.kept.

    failed: part -> reason.
    """

    def __init__(self, store: Kept) -> None:
        self._store = store
        self.failed: dict[str, str] = {}

    def measure(self, part: str) -> bool:
        """Measure PART, and return whether that has succeeded."""
        try:
            _measure(part, self._store.scratch / f"{part}.jsonl")
            self._store.keep(part)
        except LabError as error:
            self.failed[part] = str(error)
        return part not in self.failed

    def measure_all(self, parts: Sequence[str]) -> None:
        """Measure PARTS, some of them at a time."""
        for part in BOTH_CORES:
            if part in parts and not self.measure(part):
                say(f"reference: {part} has failed: {self.failed[part]}")
        together = [part for part in COMMANDS if part in parts]
        for some in (together, [NATIVE] if NATIVE in parts else []):
            if some:
                say(f"reference: {' '.join(some)}, about {duration(estimate_s(some))}")
                progress = _Progress(some, self.measure)
                with bar("reference", estimate_s(some), progress.now) as tick:
                    parallel.for_each(some, progress.measure, tick, PARALLEL, GRACE_S)


def _measure(part: str, file: Path) -> None:
    """Measure PART into FILE. LabError: that failed."""
    machine = machines.get(MACHINE)
    if part == "bench":
        bench.announce(machine, boots := reference_boots())
        bench.measure_into(file, machine, boots, again=points())
    elif part == "memory":
        bench.announce(machine, boots := plan.memory_boots(), "the memory that splitting takes")
        bench.measure_into(file, machine, boots)
    elif part == "cycles":
        bench.announce(
            machine, boots := plan.cycles_boots(), "cycles of enabling, writing and disabling"
        )
        bench.measure_into(file, machine, boots)
    elif part == "crossover":
        crossover.measure_into(file)
    else:
        _run_command(part, file)


def measure(parts: Sequence[str], target: Path, store: Kept, *, again: bool = False) -> None:
    """Measure PARTS, and replace their files in TARGET when all of them are measured.

    Parts that STORE has are taken over, unless AGAIN. WorkFailed: some parts have failed; TARGET is
    as it was, and STORE has the others.
    """
    with store.measuring():
        if again:
            store.drop(parts)
        for part in store.older(parts):
            say(f"reference: {part} of an earlier run has measured other code, so not taken over")
        taken = [part for part in parts if store.has(part)]
        if taken:
            say(
                f"reference: taken over from an earlier run that failed: {' '.join(taken)}; their"
                " code has not changed since (--again measures them again)"
            )
        left = [part for part in parts if part not in taken]
        run = _Run(store)
        run.measure_all(left)
        if run.failed:
            raise WorkFailed(_what_failed(parts, run.failed, store))
        others = (file for file in target.glob("*.jsonl") if file.stem not in parts)
        replace_files([*others, *map(store.file, parts)], target)
        store.drop(parts)


def _what_failed(parts: Sequence[str], failed: Mapping[str, str], store: Kept) -> str:
    reasons = "; ".join(f"{part}: {failed[part]}" for part in parts if part in failed)
    what = f"not measured, so nothing was replaced: {reasons}"
    if finished := [part for part in parts if part not in failed]:
        what += (
            f"; {' '.join(finished)} are kept in {store.directory}, and the next `lab reference`"
            " takes them over"
        )
    return what


def check_saved() -> None:
    """LabError: build/linux has work that the repository does not have."""
    if LAYOUT.linux.exists() and (reason := tree.unsaved(LAYOUT.linux)):
        raise LabError(f"{LAYOUT.linux} holds {reason}: `make save` first")


def check_output(directory: Path) -> None:
    """LabError: a directory that holds something else, which replacing it would lose."""
    others = [file for file in directory.glob("*") if file.suffix != ".jsonl"]
    if others:
        raise LabError(f"--output: {directory} holds {others[0].name}; name another directory")


def replace_files(files: Iterable[Path], directory: Path) -> None:
    """Make DIRECTORY hold exactly FILES. LabError: one of them cannot be read as results."""
    found = sources.load_all(files)
    render.replace_directory(directory, {one.name: one.data for one in found.values()})


def refresh_pages() -> None:
    for page in figures.refresh():
        say(f"reference: {page.relative_to(ROOT)} has new figures")


def list_older() -> None:
    """Write docs/older.toml anew, and say what is in it."""
    for part, of in older.record().items():
        say(f"reference: {part} is older than the code, and has measured {of}")


def check_sentences() -> None:
    """WorkFailed: a sentence of a page, or of a mail, has a figure that the reference has not."""
    if wrong := [*claims.wrong(), *labels.wrong(), *typed.typed(), *older.wrong()]:
        say("\n".join(wrong))
        raise WorkFailed("sentences have other figures than the reference, see above")


def check_bounds(file: Path) -> None:
    """Print the goals and how they are met. WorkFailed: a bound is missed."""
    found = sources.load(file).measurements
    if table := goals.table(found):
        table.show()
    if lines := [*goals.unmeasured(found), *map(str, goals.missed(found))]:
        raise WorkFailed(f"bounds are missed: {'; '.join(lines)}")


@click.command()
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice((*PARTS, NATIVE)),
    help="Measure this only, keep the other files; can be repeated. Default: all, but for"
    f" {NATIVE}, whose figures depend on this machine.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory, instead of docs/reference/BASE.",
)
@click.option("--pages", is_flag=True, help="Measure nothing: only put the figures into the pages.")
@click.option(
    "--older",
    "older_only",
    is_flag=True,
    help=f"Measure nothing: only list in {older.FILE} which parts are older than the code.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Measure all parts, also those that an earlier run has measured before another part of it"
    " failed.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show what would be measured, and what would be taken over."
)
def command(
    parts: tuple[str, ...],
    output: Path | None,
    pages: bool,
    older_only: bool,
    again: bool,
    dry_run: bool,
) -> None:
    """Measure the reference, check N/Y against its bounds, and put its figures into the pages.

    About an hour on two cores. Two runs of the same sources write the same
    bytes. Nothing is replaced before all is measured.

    If a part fails, the others are measured nevertheless, and kept in
    build/reference-BASE. The next run takes over those whose kernel code and
    measuring programs have not changed since. A change of the lab's Python
    does not count: give --again after it, if it changes what is measured.
    """
    if pages or older_only:
        if parts or dry_run or output or again or (pages and older_only):
            name = "--pages" if pages else "--older"
            raise LabError(f"{name} measures nothing, so it goes with no other option")
        if older_only:
            list_older()
            return
        refresh_pages()
        check_sentences()
        return
    target = output or directory()
    check_output(target)
    wanted = tuple(dict.fromkeys(parts)) or PARTS
    store = kept.of(LAYOUT)
    taken = [] if again else [part for part in wanted if store.has(part)]
    left = [part for part in wanted if part not in taken]
    about = f"{' '.join(wanted)} of Linux {LAYOUT.version}, about {duration(estimate_s(left))}"
    if dry_run:
        if "bench" in left:
            click.echo("\n".join(one.label for one in reference_boots()))
        click.echo(f"parts: {about}")
        if taken:
            click.echo(f"taken over from {store.directory}: {' '.join(taken)}")
        return
    check_saved()
    say(f"reference: {about} on two cores when all is built")
    measure(wanted, target, store, again=again)
    say(f"reference: {target} is new")
    if not (target / "bench.jsonl").exists():
        raise LabError("the bounds were not checked: there is no bench.jsonl")
    if not output:
        refresh_pages()
        list_older()
    check_bounds(target / "bench.jsonl")
    if not output:
        check_sentences()
