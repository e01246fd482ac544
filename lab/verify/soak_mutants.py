# SPDX-License-Identifier: GPL-2.0-only
"""`make soak ARGS=--mutants`: which mutants does the stress test find?

Each of tests/mutants is there from the boot on, in the paging mode that its patch names, and
the stress test has a minute to fail, or to make the kernel complain. `make test WHAT=mutants`
asks whether the test that a patch names finds the mutant; this asks what a test finds that was
not written for it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import click
from rich.console import Console

from lab import machines
from lab.build import kernel, mutants, selftests
from lab.build.mutants import Mutant
from lab.core.errors import WorkFailed
from lab.core.parallel import for_each
from lab.core.paths import LAYOUT
from lab.core.steps import say
from lab.machines import Job, Machine, MachineFailed, Result, Sharing
from lab.machines.complaints import complaints
from lab.results import tables
from lab.results.files import complete_or_absent
from lab.results.tables import Table
from lab.verify import soak
from lab.verify.soak import Kind

SECONDS = 60
UNNOTICED = "-"
LONGEST = 90


@dataclass(frozen=True)
class Trial:
    """One boot. number: of the mutant, 0 for none."""

    number: int
    name: str
    kind: Kind


@dataclass(frozen=True)
class TrialOutcome:
    """What came of a trial. by: what noticed, "-" if nothing did. what: how it was said."""

    number: int
    name: str
    mode: str
    by: str
    seconds: float
    what: str


def _kind(words: Sequence[str], harvest: str) -> Kind:
    """The paging mode that a mutant's patch asks for."""
    npt = "0" if "kvm_amd.npt=0" in words else "1"
    tdp_mmu = "1" if "kvm.tdp_mmu=1" in words else "0"
    sharing = Sharing.TURNS if npt == "1" else Sharing.THREADS
    name = f"npt{npt}" + ("-tdp_mmu" if tdp_mmu == "1" else "")
    return Kind(name, soak.STRESS, npt, tdp_mmu, "kvm", SECONDS, sharing, harvest)


def _trial(mutant: Mutant) -> Trial:
    harvest = "on" if mutant.name.startswith("harvest-") else soak.ANY
    return Trial(mutant.number, mutant.name, _kind(mutant.check.words, harvest))


def trials(found: Sequence[Mutant]) -> list[Trial]:
    """One without a mutant in each mode, then one for each mutant that svm-qemu can have."""
    planned = [_trial(each) for each in found if each.check.machine == soak.MACHINE]
    modes = {replace(each.kind, harvest=soak.ANY): None for each in planned}
    return [*(Trial(0, "none", kind) for kind in modes), *planned]


def mutant_job(trial: Trial, seed: int, image: Path, tests: Path) -> Job:
    """The boot of a trial."""
    job = soak.soak_job(trial.kind, seed, SECONDS, image, tests)
    switch = {"kvm.mutant": str(trial.number)}
    return replace(job, parameters={**job.parameters, **switch})


def _said(output: str) -> str:
    """The line with which the stress test failed."""
    lines = output.strip().splitlines()
    for before, line in pairwise(lines):
        if "to repeat: " in line:
            return before.strip()
    return lines[-1].strip() if lines else ""


def judge(result: Result) -> tuple[str, str]:
    """What noticed, and how it was said."""
    found = complaints(result.kernel_log)
    by = ["test"] if result.status not in (0, soak.SKIPPED) else []
    by += ["kernel"] if found else []
    if not by:
        return UNNOTICED, ""
    said = _said(result.output.decode(errors="replace")) if by[0] == "test" else found[0].strip()
    return ", ".join(by), said[:LONGEST]


def try_one(machine: Machine, trial: Trial, job: Job) -> TrialOutcome:
    """Boot once, and see what notices. That the machine crashes or times out counts, too."""
    try:
        result = machine.run(job)
    except MachineFailed as failure:
        found = complaints(failure.kernel_log)
        by, what = str(failure.reason), found[0] if found else str(failure)
        seconds = job.timeout_s
    else:
        (by, what), seconds = judge(result), result.seconds
    return TrialOutcome(trial.number, trial.name, trial.kind.name, by, round(seconds, 1), what)


def table_of(findings: Sequence[TrialOutcome]) -> Table:
    """What was found, by number."""
    columns = ("mutant", "mode", "found by", "s", "said")
    table = Table("Mutants and the stress test", columns, notes=[tables.WALL_CLOCK])
    for each in sorted(findings, key=lambda finding: finding.number):
        name = f"{each.number:02} {each.name}"
        table.rows.append((name, each.mode, each.by, f"{each.seconds:.0f}", each.what))
    return table


def save(findings: Sequence[TrialOutcome], seed: int, file: Path) -> None:
    """Keep everything as JSON."""
    content = {
        "machine": soak.MACHINE,
        "seed": seed,
        "seconds": SECONDS,
        "findings": [asdict(each) for each in findings],
    }
    with complete_or_absent(file) as stream:
        json.dump(content, stream, indent=1)
        stream.write("\n")


def _summarise(findings: Sequence[TrialOutcome], seed: int, file: Path) -> None:
    save(findings, seed, file)
    tables.show(table_of(findings), Console())
    tried = [each for each in findings if each.number]
    seen = sum(each.by != UNNOTICED for each in tried)
    counts = f"{seen} of {len(tried)} mutants were noticed within {SECONDS} s"
    say(f"soak: {counts}; all of it is in {file}")


def run_all(
    plan: Sequence[Trial],
    try_it: Callable[[Trial], TrialOutcome],
    findings: list[TrialOutcome],
) -> None:
    """Boot for each trial, two at a time, and add to the findings."""
    told = 0

    def work(trial: Trial) -> None:
        findings.append(try_it(trial))

    def tell() -> None:
        nonlocal told
        for each in findings[told:]:
            told += 1
            say(f"soak: {told} of {len(plan)}: {each.number:02} {each.name}: {each.by}")

    for_each(plan, work, tell)


def run(seed: int, file: Path, dry_run: bool) -> int:
    """What the command does. WorkFailed: something was noticed without any mutant."""
    plan = trials(mutants.load(LAYOUT).mutants)
    if dry_run:
        for trial in plan:
            click.echo(f"{trial.number:02} {trial.name}: {SECONDS} s, {trial.kind.name}")
        return 0
    image = kernel.build("mutants", "kvm").image
    tests = selftests.build("series")
    machine = machines.get(soak.MACHINE)
    say(f"soak: {len(plan)} boots of at most {SECONDS} s, two at a time, seed {seed:#x}")
    findings: list[TrialOutcome] = []
    try:
        run_all(
            plan,
            lambda trial: try_one(machine, trial, mutant_job(trial, seed, image, tests)),
            findings,
        )
    except KeyboardInterrupt:
        return soak.INTERRUPTED
    finally:
        _summarise(findings, seed, file)
    if any(each.by != UNNOTICED for each in findings if not each.number):
        raise WorkFailed("without a mutant something was noticed, too, see the table")
    return 0
