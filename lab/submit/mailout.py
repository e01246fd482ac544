# SPDX-License-Identifier: GPL-2.0-only
"""`make mail`: the series as it would be sent, in build/mail, by topics. Nothing is sent.

It proves that each mail applies with `git am` on the packaged source, and that the mails of each
topic make the same tree as the series up to there. The text of a cover letter, in docs/topics.toml,
has no figures. They come from results, by the functions with which `make bench` prints its tables.
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import click

from lab import machines
from lab.core import process
from lab.core.errors import LabError, WorkFailed
from lab.core.git import IDENTITY, GitFailed, Identity, Repo, configured_identity, signature
from lab.core.locks import locked
from lab.core.paths import BASE_VARIABLE, LAYOUT, ROOT, Layout
from lab.core.steps import say, step
from lab.page import figures
from lab.results import jsonl, notation, origin, sources, tables
from lab.results.jsonl import Measurement
from lab.results.table import Table
from lab.series import topics, tree
from lab.series.topics import Topic
from lab.submit import checkers
from lab.submit.subject import Subject, run, subject_of

# The line of a topic's text that the tables replace.
TABLES = "{tables}"
# A line of the cover letter if git's configuration names no sender.
NOT_SIGNED = "Not yet signed: the sender adds a Signed-off-by to each mail."
PLACES = ("*** SUBJECT HERE ***", "*** BLURB HERE ***")
WIDTH = 75
# The file with the tests of topics.
TESTS = "tests/machines/test_selftests.py"

# The part of the matrix that a cover letter shows; `make report` shows everything.
WRITES = (100, 20)
ROWS = {tables.headline(True).label, tables.FIRST_CLEAR.label, tables.SECOND_CLEAR.label}
COLUMNS = ("vCPUs", "N", "Y", tables.BITS, tables.UNGATED, "N/Y")

EMULATED = {name for name in machines.NAMES if name != "host"}

MAINTAINERS = ("--no-git", "--no-git-fallback", "--no-rolestats")


def choose_results(given: Path | None, layout: Layout = LAYOUT) -> Path:
    """The results to take figures from: GIVEN, or the reference of the newest base with one.

    Do not take the results that were measured last, which may be a trial with other settings.
    LabError: there is no reference.
    """
    if given:
        return given
    kept = (layout.root / figures.REFERENCE / base / "bench.jsonl" for base in layout.versions)
    file = next((file for file in kept if file.is_file()), None)
    if not file:
        raise LabError(
            "there is no reference for the cover letters: run `make reference`, or use --results"
        )
    if file.parent.name != layout.newest.version:
        command = f"make reference BASE={layout.newest.version}"
        say(f"figures are of Linux {file.parent.name}: `{command}` measures the newest")
    return file


def _narrow(table: Table) -> Table:
    """The rows and columns of a table that fit a mail."""
    kept = [i for i, name in enumerate(table.columns) if i == 0 or name in COLUMNS]
    columns = tuple(table.columns[i] for i in kept)
    rows = [tuple(row[i] for i in kept) for row in table.rows if row[0] in ROWS]
    return replace(table, columns=columns, rows=rows, strong=set(), origins=[])


def plain(table: Table) -> str:
    """The table as text for people who read mail in a terminal."""
    lines = ["  " + "  ".join(row) for row in table.aligned()]
    return "\n".join([*textwrap.wrap(f"{table.title}:", WIDTH), "", *lines])


def _common_notes(measurements: Sequence[Measurement]) -> list[str]:
    """Notes that all figures need: the clock that measured them, and the kernels."""
    clocks = dict.fromkeys((m.machine for m in measurements), "wall-clock time of a real machine")
    for name in EMULATED.intersection(clocks):
        clocks[name] = notation.LOCKSTEP if machines.get(name).lockstep else notation.WALL_CLOCK
    versions = sorted({one.kernel_version for one in measurements})
    notes = [f"{machine}: {clock}." for machine, clock in clocks.items()]
    if EMULATED.issuperset(clocks):
        notes.append("Nothing of this was measured on real hardware.")
    if any(one.kernel == "peer" for one in measurements):
        notes.append(f"{tables.WHAT_IS_U[tables.UNGATED]}.")
    if any(one.dirty_bits == notation.ON for one in measurements):
        notes.append(f"{tables.WHAT_ARE_BITS}.")
    return [*notes, f"Kernels: {', '.join(versions)}. Times are in milliseconds."]


def tables_text(measurements: Iterable[Measurement], name: str) -> str:
    """The tables of a cover letter. LabError: NAME has no figures that belong there."""
    shown = [m for m in measurements if m.initially_all_set and m.write_percent in WRITES]
    found = [table for table in map(_narrow, tables.main_tables(shown)) if table.rows]
    if not any(one.kernel == "series" for one in shown) or not found:
        raise LabError(
            f"{name}: has no figures of the series with initially-all-set and 100% or 20% writes"
            " for the cover letter; run `make bench`"
        )
    if base := tables.base_table(shown):
        rows = [row for i, row in enumerate(base.rows) if i in base.strong]
        found.append(replace(base, rows=rows, strong=set(), origins=[]))
    why = found[0].notes[0]
    notes = [f"{why[:1].upper()}{why[1:]}.", *_common_notes(shown)]
    notes = [textwrap.fill(note, WIDTH, break_on_hyphens=False) for note in notes]
    return "\n\n".join([*notes, *map(plain, found)])


def cover_of(topic: Topic, before: Sequence[Topic], figures: str, signed: bool) -> str:
    """The text of a topic's cover letter, above the list of mails.

    before: the topics that come before it. figures: the tables.
    """
    text = topic.text.strip("\n").replace(TABLES, figures)
    names = [f"  {one.subject}" for one in before]
    order = ["This comes after:", *names] if names else ["This comes after no other topic."]
    parts = ["\n".join(order), *([] if signed else [NOT_SIGNED]), text]
    return "\n\n".join(parts)


def signed_by(subject: Subject, sender: Identity) -> Subject:
    """The same mails with a Signed-off-by of SENDER, who is also the author of unsigned mails."""
    options = ("--if-exists", "addIfDifferent", "--trailer")
    made, commits = tree.BASE_TAG, []
    pairs = zip(subject.commits, subject.loaded.mails, strict=True)
    for number, (commit, (_, mail)) in enumerate(pairs, 1):
        text = f"{mail.message}\n".encode("utf-8", "surrogateescape")
        line = f"Signed-off-by: {sender}"
        message = subject.repo.run("interpret-trailers", *options, line, stdin=text)
        words = ("commit-tree", f"{commit}^{{tree}}", "-p", made, "-F", "-")
        env = signature(*(mail.author or sender), number)
        made = subject.repo.run(*words, stdin=message, env=env).decode().strip()
        commits.append(made)
    return replace(subject, commits=tuple(commits))


@dataclass(frozen=True)
class Parcel:
    """A topic's mails. name: of their directory. cover: see cover_of(). commits: one per mail."""

    name: str
    subject: str
    cover: str
    commits: tuple[str, ...]


def parcels(
    subject: Subject, found: Sequence[Topic], figures: str, *, signed: bool = True
) -> list[Parcel]:
    """All topics, in order. LabError: they do not fit the series."""
    slices = topics.slices(found, subject.loaded.subjects, subject.commits)
    covers = [cover_of(topic, found[:n], figures, signed) for n, topic in enumerate(found)]
    return [
        Parcel(f"{n:02}-{topic.name}", topic.subject, cover, commits)
        for n, (topic, cover, commits) in enumerate(zip(found, covers, slices, strict=True), 1)
    ]


def write_mails(subject: Subject, parcel: Parcel, directory: Path, version: int) -> list[Path]:
    """Write cover letter and mails of a topic into the new DIRECTORY; returns them in order.

    The same input gives the same bytes: dates and the author of the cover letter are those of
    the mails.
    """
    directory.mkdir(parents=True)
    first, last = parcel.commits[0], parcel.commits[-1]
    name, email = subject.repo.lines("log", "-1", "--format=%an%n%ae", first)
    options = ["-q", "--numbered", "--cover-letter", "--no-signature", "-o", str(directory)]
    options += [f"--reroll-count={version}"] if version > 1 else []
    env = signature(name, email, 0) | {"GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": email}
    subject.repo.run("format-patch", *options, f"{first}^..{last}", env=env)
    mails = sorted(directory.glob("*.patch"))
    text = mails[0].read_text()
    for place, value in zip(PLACES, (parcel.subject, parcel.cover), strict=True):
        if place not in text:
            raise WorkFailed(f"{mails[0]}: git's cover letter has no line '{place}'")
        text = text.replace(place, value, 1)
    mails[0].write_text(text)
    return mails


def prove_am(subject: Subject, made: Sequence[tuple[Parcel, Sequence[Path]]]) -> list[str]:
    """Apply all mails with `git am` on the packaged source, and return a line for each problem.

    It happens in the work tree for checks, whose lock the caller holds.
    """
    repo = Repo(subject.at(tree.BASE_TAG), signature(*IDENTITY, 0))
    # An earlier attempt may have failed, or was interrupted.
    with suppress(GitFailed):
        repo.run("am", "--quit")
    for parcel, mails in made:
        try:
            repo.run("am", "-q", *map(str, mails))
        except GitFailed as error:
            return [f"git am: {line}" for line in error.output.splitlines()[:3]]
        if repo.tree_of("HEAD") != repo.tree_of(parcel.commits[-1]):
            return [f"git am: {parcel.name}: the mails do not make the tree of the series"]
    return []


def maintainers(subject: Subject, mails: Sequence[Path]) -> list[str]:
    """The people whom get_maintainer.pl names for MAILS. WorkFailed: it fails."""
    command = ("perl", "scripts/get_maintainer.pl", *MAINTAINERS, *map(str, mails))
    done = run(command, subject.at(subject.tip))
    if done.returncode != 0:
        reason = (done.stderr.splitlines() or ["no reason given"])[0]
        raise WorkFailed(f"get_maintainer.pl failed: {reason}")
    return list(dict.fromkeys(done.stdout.splitlines()))


def make(
    subject: Subject, wanted: Sequence[Parcel], version: int = 1, *, signed: bool = True
) -> list[tuple[list[Path], list[str]]]:
    """Make build/mail anew; returns the mails of each topic, cover letter first, and maintainers.

    LabError: there is no mail to send. WorkFailed: a mail is not fit to be sent; build/mail is
    as it was then, and the mails are in build/mail.new to be looked at.
    """
    if not subject.commits:
        raise LabError("series/ has no mail to send")
    directory = subject.layout.mail
    fresh = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    with locked(tree.lock(subject.layout.check)):
        written = [write_mails(subject, one, fresh / one.name, version) for one in wanted]
        made = [(one, mails[1:]) for one, mails in zip(wanted, written, strict=True)]
        mails = [mail for _, parts in made for mail in parts]
        ignores = checkers.CHECKPATCH_IGNORES if signed else checkers.UNSIGNED
        with step(f"Checking {len(mails)} mails: git am, checkpatch", "1 min, 3 on a busy machine"):
            problems = prove_am(subject, made)
            problems += checkers.checkpatch_problems(subject, mails, ignores)
        if problems:
            say("\n".join(problems))
            raise WorkFailed(
                f"the mails cannot be sent as they are, see above; they are in {fresh}"
            )
        people = [maintainers(subject, parts) for _, parts in made]
    shutil.rmtree(directory, ignore_errors=True)
    fresh.rename(directory)
    moved = [[directory / file.relative_to(fresh) for file in parts] for parts in written]
    return list(zip(moved, people, strict=True))


@click.command()
@click.option(
    "--results",
    "given",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Results of `make bench` for the tables of the cover letters, instead of the reference.",
)
@click.option("-v", "--version", type=click.IntRange(1), default=1, help="The N of [PATCH vN].")
@click.option("--dry-run", is_flag=True, help="Print the cover letters, and write nothing.")
@click.option(
    "--test",
    "tested",
    metavar="TOPIC",
    help="Make no mails: build the kernel up to this topic and run the topic's tests.",
)
def command(given: Path | None, version: int, dry_run: bool, tested: str | None) -> int:
    """Write the series as mails to build/mail, in a directory for each topic; send nothing.

    The mails are for the newest base. docs/topics.toml contains the topics, the texts of the cover
    letters, and the tests. The sender, who signs off the mails, is git's user.name and user.email.
    The command prints the recipients that get_maintainer.pl names.
    """
    found = topics.read(LAYOUT)
    if tested is not None:
        # LAB_TOPIC makes the tests build kernel and selftests without mails of later topics.
        name = topics.topic_named(found, tested).name
        env = os.environ | {topics.VARIABLE: name, BASE_VARIABLE: LAYOUT.newest.version}
        words = ["-m", "pytest", "-n", "2", "--no-loadscope-reorder", "-m", "not long", TESTS]
        return process.run((sys.executable, *words), ROOT, sys.stdout, stderr=sys.stderr, env=env)
    file = choose_results(given)
    loaded = sources.load(file)
    results = jsonl.parse_all(loaded.data.decode(), file.name)
    figures = tables_text(results, file.name)
    measured = origin.source_in(line.record for line in loaded.lines)
    if measured != origin.source_of("bench", LAYOUT.of(loaded.base)):
        what = "make bench" if given else "make reference"
        say(f"{file.name} is older than the series: run `{what}` to measure what is sent")
    sender = configured_identity(ROOT)
    if not sender:
        say("git has no user.name and user.email: the mails are not signed off yet")
    if dry_run:
        for n, topic in enumerate(found):
            cover = cover_of(topic, found[:n], figures, bool(sender))
            click.echo(f"Subject: {topic.subject}\n\n{cover}\n")
        return 0
    subject = subject_of(LAYOUT.newest, "the mails are those of")
    subject = signed_by(subject, sender) if sender else subject
    wanted = parcels(subject, found, figures, signed=bool(sender))
    say(f"figures: {file.resolve()}")
    for mails, people in make(subject, wanted, version, signed=bool(sender)):
        say(f"{mails[0].parent}: {len(mails) - 1} mails and {mails[0].name}; nothing was sent")
        click.echo("\n".join([f"{mails[0].parent.name}:", *people]))
    return 0
