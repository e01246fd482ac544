# SPDX-License-Identifier: GPL-2.0-only
"""`make check`: is the series as it is saved fit to be mailed?"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from lab.core.errors import LabError, WorkFailed
from lab.core.locks import locked
from lab.core.paths import BASE_VARIABLE, LAYOUT, Layout
from lab.core.steps import step
from lab.series import files, save, topics, tree
from lab.submit import checkers, compiling, mutation
from lab.submit.subject import CheckResult, Subject, subject_of


class Check(NamedTuple):
    """run: the check. estimate: how long it takes, for people."""

    run: Callable[[Subject], CheckResult]
    estimate: str


def round_trip(subject: Subject) -> CheckResult:
    """Tree -> save changes nothing, and every whole file belongs to a mail. The sums are true."""
    old = save.present(subject.layout)
    new = save.made_of(subject.layout, subject.repo, subject.tip, old)
    written, removed = save.differences(old, new)
    problems = [f"{path}: save would write it differently" for path in written]
    problems += [f"{path}: save would remove it" for path in removed]
    if subject.layout.is_newest:
        orphans = files.orphans(subject.layout, subject.loaded)
        problems += [f"{path}: no mail adds or replaces it" for path in orphans]
    try:
        tree.check_sums(subject.layout, subject.tip)
    except LabError as error:
        problems.append(str(error))
    return CheckResult(f"{len(old)} files", tuple(problems))


def in_topics(subject: Subject) -> CheckResult:
    """Every mail belongs to one topic, and topics are slices of the series."""
    found = topics.read(subject.layout)
    problems = topics.problems(found, files.load(subject.layout.newest).subjects)
    return CheckResult(f"{len(found)} topics", tuple(problems))


CHECKS = {
    "round-trip": Check(round_trip, "5 s"),
    "topics": Check(in_topics, "1 s"),
    "compile": Check(compiling.compiles, "10 min, 3 min the next time"),
    "checkpatch": Check(checkers.checkpatch, "3 min"),
    "sparse": Check(checkers.sparse, "10 s"),
    "coccicheck": Check(checkers.coccicheck, "10 min"),
    "docs": Check(checkers.docs, "30 s"),
    "scripts": Check(checkers.scripts, "10 s"),
    "package": Check(checkers.package, "10 s, 2 min without the trees of all bases"),
    "mutation": Check(mutation.mutation, "5 min"),
}
# These do not depend on the series.
OF_THE_LAB = {"scripts", "mutation"}
# It tries mistakes for minutes, and runs only if it is asked for.
IF_ASKED = {"mutation"}
# Mails are sent for the newest base. On the others the series has to apply and to build.
ON_EACH = ("round-trip", "compile")


def run_checks(
    subject: Subject, names: Iterable[str], checks: Mapping[str, Check] = CHECKS
) -> dict[str, CheckResult]:
    """Run checks by their names, each to its end whatever it finds."""
    subject.log.parent.mkdir(parents=True, exist_ok=True)
    subject.log.unlink(missing_ok=True)
    verdicts = {}
    with locked(tree.lock(subject.layout.check)):
        for name in names:
            with step(f"Checking: {name}", checks[name].estimate):
                verdicts[name] = checks[name].run(subject)
    return verdicts


def show(verdicts: dict[str, CheckResult], console: Console) -> None:
    table = Table("check", "result", "of what")
    for name, verdict in verdicts.items():
        table.add_row(name, "FAILED" if verdict.problems else "passed", verdict.detail)
    console.print(table)
    for name, verdict in verdicts.items():
        for problem in verdict.problems:
            console.print(f"{name}: {problem}", markup=False, soft_wrap=True)


def bases_to_check(names: Sequence[str]) -> list[Layout]:
    """The bases to check, the newest first.

    If a base was chosen, it is the only one. Checks of ON_EACH are for all bases whose source is
    available, the others for the newest base only.
    """
    if os.environ.get(BASE_VARIABLE) or (names and OF_THE_LAB.issuperset(names)):
        return [LAYOUT.of(LAYOUT.version)]
    if names and not set(names) & set(ON_EACH):
        return [LAYOUT.newest]
    found = {LAYOUT.version, *tree.available(LAYOUT)}
    return [LAYOUT.of(version) for version in LAYOUT.versions if version in found]


@click.command()
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(CHECKS)),
    help="Run only this check; can be repeated. Default: all, but for mutation, which takes long.",
)
@click.option(
    "--mutants-of",
    "files",
    multiple=True,
    metavar="FILE",
    help="For --only mutation: try all mutants of this file, as in lab/results/goals.py, and not a "
    "sample of all files; can be repeated.",
)
def command(only: tuple[str, ...], files: tuple[str, ...]) -> None:
    """Check that the saved series can be mailed, and builds on every base."""
    if files and "mutation" not in only:
        raise LabError("--mutants-of needs --only mutation")
    of_files = Check(partial(mutation.mutation, of=files), "some minutes for each file")
    checks = CHECKS | ({"mutation": of_files} if files else {})
    wanted = only or [name for name in CHECKS if name not in IF_ASKED]
    layouts = bases_to_check(only)
    verdicts = {}
    for layout in layouts:
        everything = layout.is_newest or len(layouts) == 1
        chosen = [name for name in wanted if everything or name in ON_EACH]
        found = run_checks(subject_of(layout), chosen, checks)
        there = f" ({layout.version})" if len(layouts) > 1 else ""
        verdicts.update({name + there: verdict for name, verdict in found.items()})
    show(verdicts, Console(highlight=False))
    failed = [name for name, verdict in verdicts.items() if verdict.problems]
    if failed:
        raise WorkFailed(f"failed: {', '.join(failed)}")
