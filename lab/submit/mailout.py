# SPDX-License-Identifier: GPL-2.0-only
"""`make mail`: the series as it would be sent, in build/mail. Nothing is sent.

Each mail is proved to apply with `git am` on the packaged source, and all of them together to
make the tree that the series makes. The figures of the cover letter come from results, by the
functions that `make bench` prints its tables with; its text has none.
"""

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import click

from lab import machines
from lab.core.errors import LabError, WorkFailed
from lab.core.git import IDENTITY, GitFailed, Repo, signature
from lab.core.locks import locked
from lab.core.paths import LAYOUT, ROOT, Layout
from lab.core.steps import say, step
from lab.page import figures
from lab.results import jsonl, tables
from lab.results.jsonl import Measurement
from lab.results.tables import Table
from lab.series import tree
from lab.series.source import current_source
from lab.submit import check
from lab.submit.check import Subject

TEMPLATE = Path("docs") / "cover-letter.txt"
# The line of the template in whose place the tables come.
TABLES = "{tables}"
PLACES = ("*** SUBJECT HERE ***", "*** BLURB HERE ***")
WIDTH = 75

# Where the repository has whole files that can change a figure.
KERNEL_CODE = ("arch", "include", "virt")

# What of the matrix a cover letter shows; `make report` shows everything.
WRITES = (100, 20)
ROWS = {tables.headline(True).label, tables.FIRST_CLEAR.label, tables.SECOND_CLEAR.label}
COLUMNS = ("vCPUs", "N", "Y", tables.BITS, tables.UNGATED, "N/Y")

EMULATED = {name for name in machines.NAMES if name != "host"}

MAINTAINERS = ("--no-git", "--no-git-fallback", "--no-rolestats")


@dataclass(frozen=True)
class Cover:
    """What the cover letter says. body: with the tables, without the list of mails."""

    subject: str
    body: str


def choose_results(given: Path | None, layout: Layout = LAYOUT) -> Path:
    """The results that the figures are taken from: given, or the committed reference.

    That of the newest base that has one. Not those that were measured last: a trial with other
    vCPUs is not what is sent. LabError: there is no reference.
    """
    if given:
        return given
    kept = (layout.root / figures.REFERENCE / base / "bench.jsonl" for base in layout.versions)
    file = next((file for file in kept if file.is_file()), None)
    if not file:
        raise LabError(
            "no reference for the cover letter: run `make reference`, or name a file: --results"
        )
    if file.parent.name != layout.newest.version:
        command = f"make reference BASE={layout.newest.version}"
        say(f"figures are of Linux {file.parent.name}: `{command}` measures the newest")
    return file


def _committed_at(*paths: str) -> float:
    """When one of these paths of the repository was changed last; 0 if that is not known."""
    with suppress(GitFailed):
        return float(Repo(ROOT).text("log", "-1", "--format=%ct", "--", *paths) or 0)
    return 0


def is_stale(file: Path) -> bool:
    """Whether the kernel's part of the repository changed after FILE was measured.

    A result is as old as its file, or as the commit that has it: a clone's files are new.
    """
    measured = _committed_at(str(file.resolve())) or file.stat().st_mtime
    return measured < _committed_at("series", *KERNEL_CODE)


def load_results(file: Path) -> list[Measurement]:
    """LabError: FILE cannot be read, or is not what `make bench` writes."""
    try:
        return jsonl.parse_all(file.read_text(), file.name)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise LabError(f"{file}: cannot be read: {reason}") from error


def _is_shown(one: Measurement) -> bool:
    return one.initially_all_set and one.write_percent in WRITES


def _narrow(table: Table) -> Table:
    """The rows and columns of a table that fit a mail."""
    kept = [i for i, name in enumerate(table.columns) if i == 0 or name in COLUMNS]
    columns = tuple(table.columns[i] for i in kept)
    rows = [tuple(row[i] for i in kept) for row in table.rows if row[0] in ROWS]
    return replace(table, columns=columns, rows=rows, strong=set(), origins=[])


def _only_strong(table: Table) -> Table:
    rows = [row for i, row in enumerate(table.rows) if i in table.strong]
    return replace(table, rows=rows, strong=set(), origins=[])


def plain(table: Table) -> str:
    """The table as text for people who read mail in a terminal."""
    grid = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in grid) for i in range(len(table.columns))]
    lines = []
    for row in grid:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  " + "  ".join([row[0].ljust(widths[0]), *rest]))
    return "\n".join([*textwrap.wrap(f"{table.title}:", WIDTH), "", *lines])


def _clock(machine: str) -> str:
    if machine not in EMULATED:
        return "wall-clock time of a real machine"
    return tables.LOCKSTEP if machines.get(machine).lockstep else tables.WALL_CLOCK


def _common_notes(measurements: Sequence[Measurement]) -> list[str]:
    """What has to be known of the figures: whose clock they are by, and of which kernel."""
    clocks = {one.machine: _clock(one.machine) for one in measurements}
    versions = sorted({one.kernel_version for one in measurements})
    notes = [f"{machine}: {clock}." for machine, clock in clocks.items()]
    if EMULATED.issuperset(clocks):
        notes.append("Nothing of this was measured on real hardware.")
    if any(one.kernel == "peer" for one in measurements):
        notes.append(f"{tables.WHAT_IS_UNGATED}.")
    if any(one.dirty_harvest == tables.ON for one in measurements):
        notes.append(f"{tables.WHAT_ARE_BITS}.")
    return [*notes, f"Kernels: {', '.join(versions)}. Times are in milliseconds."]


def tables_text(measurements: Iterable[Measurement], name: str) -> str:
    """The tables of a cover letter. LabError: NAME has no figures that belong there."""
    shown = [one for one in measurements if _is_shown(one)]
    found = [table for table in map(_narrow, tables.main_tables(shown)) if table.rows]
    if not any(one.kernel == "series" for one in shown) or not found:
        raise LabError(
            f"{name}: has no figures of the series with initially-all-set and 100% or 20% writes"
            " for the cover letter; run `make bench`"
        )
    if base := tables.base_table(shown):
        found.append(_only_strong(base))
    why = found[0].notes[0]
    notes = [f"{why[:1].upper()}{why[1:]}.", *_common_notes(shown)]
    notes = [textwrap.fill(note, WIDTH, break_on_hyphens=False) for note in notes]
    return "\n\n".join([*notes, *map(plain, found)])


def read_cover(root: Path, figures: str) -> Cover:
    """The cover letter of the repository at ROOT with the tables FIGURES in it.

    LabError: the template is missing, or has no subject or no place for the tables.
    """
    file = root / TEMPLATE
    try:
        first, _, body = file.read_text().partition("\n")
    except FileNotFoundError as error:
        raise LabError(f"{TEMPLATE} is missing: it has the text of the cover letter") from error
    subject = first.removeprefix("Subject: ")
    if subject in ("", first):
        raise LabError(f"{TEMPLATE}:1: expected 'Subject: ' and the subject of the cover letter")
    if body.splitlines().count(TABLES) != 1:
        raise LabError(f"{TEMPLATE}: expected exactly one line '{TABLES}'")
    return Cover(subject, body.strip("\n").replace(TABLES, figures))


def _fill_cover(file: Path, cover: Cover) -> None:
    text = file.read_text()
    for place, value in zip(PLACES, (cover.subject, cover.body), strict=True):
        if place not in text:
            raise WorkFailed(f"{file}: git's cover letter has no line '{place}'")
        text = text.replace(place, value, 1)
    file.write_text(text)


def write_mails(subject: Subject, directory: Path, cover: Cover, version: int = 1) -> list[Path]:
    """Write cover letter and mails into the empty DIRECTORY; returns them in order.

    The same input gives the same bytes: dates and the author of the cover letter are those of
    the mails.
    """
    _, first = subject.loaded.mails[0]
    author = signature(*(first.author or IDENTITY), 0)
    env = {
        **author,
        "GIT_COMMITTER_NAME": author["GIT_AUTHOR_NAME"],
        "GIT_COMMITTER_EMAIL": author["GIT_AUTHOR_EMAIL"],
    }
    subject.repo.run(
        "format-patch",
        "-q",
        "--numbered",
        "--cover-letter",
        "--no-signature",
        *([f"--reroll-count={version}"] if version > 1 else []),
        "-o",
        str(directory),
        f"{tree.BASE_TAG}..{subject.tip}",
        env=env,
    )
    mails = sorted(directory.glob("*.patch"))
    _fill_cover(mails[0], cover)
    return mails


def prove_am(subject: Subject, mails: Sequence[Path]) -> list[str]:
    """Apply MAILS with `git am` on the packaged source; returns what is wrong with them.

    The caller holds the lock of the work tree for checks, which is where that happens.
    """
    repo = Repo(subject.at(tree.BASE_TAG), signature(*IDENTITY, 0))
    # What an attempt that was interrupted, or failed, has left.
    with suppress(GitFailed):
        repo.run("am", "--quit")
    try:
        repo.run("am", "-q", *map(str, mails))
    except GitFailed as error:
        return [f"git am: {line}" for line in error.output.splitlines()[:3]]
    if repo.tree_of("HEAD") != repo.tree_of(subject.tip):
        return ["git am: the mails do not make the tree of the series"]
    return []


def maintainers(subject: Subject, mails: Sequence[Path]) -> list[str]:
    """Whom get_maintainer.pl names for MAILS. WorkFailed: it does not work."""
    command = ("perl", "scripts/get_maintainer.pl", *MAINTAINERS, *map(str, mails))
    done = check.run(command, subject.at(subject.tip))
    if done.returncode != 0:
        reason = (done.stderr.splitlines() or ["no reason given"])[0]
        raise WorkFailed(f"get_maintainer.pl failed: {reason}")
    return list(dict.fromkeys(done.stdout.splitlines()))


def make(subject: Subject, cover: Cover, version: int = 1) -> tuple[list[Path], list[str]]:
    """Make build/mail anew; returns the mails, the cover letter first, and the maintainers.

    LabError: there is no mail to send. WorkFailed: a mail is not fit to be sent; build/mail is
    as it was then, and the mails are in build/mail.new to be looked at.
    """
    if not subject.commits:
        raise LabError("series/ has no mail to send")
    directory = subject.layout.mail
    fresh = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    with locked(tree.lock(subject.layout.check)):
        _, *mails = written = write_mails(subject, fresh, cover, version)
        with step(f"Checking {len(mails)} mails: git am, checkpatch", "1 min, 3 on a busy machine"):
            problems = prove_am(subject, mails) + check.checkpatch_problems(subject, mails)
        if problems:
            say("\n".join(problems))
            raise WorkFailed(f"not fit to be sent, see above; the mails are in {fresh}")
        people = maintainers(subject, mails)
    shutil.rmtree(directory, ignore_errors=True)
    fresh.rename(directory)
    return [directory / one.name for one in written], people


@click.command()
@click.option(
    "--results",
    "given",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Results of `make bench` for the cover letter, instead of the reference.",
)
@click.option("-v", "--version", type=click.IntRange(1), default=1, help="Which [PATCH vN] it is.")
@click.option("--dry-run", is_flag=True, help="Print the cover letter's text and write nothing.")
def command(given: Path | None, version: int, dry_run: bool) -> None:
    """Write the series as mails into build/mail, with a cover letter; send nothing.

    Mails are for the newest base.
    The text of the cover letter is docs/cover-letter.txt, its tables are those of the
    committed reference, or of the results given. Prints whom get_maintainer.pl names.
    """
    file = choose_results(given)
    cover = read_cover(ROOT, tables_text(load_results(file), file.name))
    if is_stale(file):
        what = "make bench" if given else "make reference"
        say(f"{file.name} is older than the series: `{what}` has figures of what is sent")
    if dry_run:
        click.echo(f"Subject: {cover.subject}\n\n{cover.body}")
        return
    layout = LAYOUT.newest
    if not layout.linux.exists():
        tree.make(layout, current_source(layout))
    if reason := tree.unsaved(layout.linux):
        say(f"{layout.linux} holds {reason}: the mails are those of the series as it is saved")
    mails, people = make(Subject.load(layout, ()), cover, version)
    say(f"figures: {file.resolve()}")
    say(f"{mails[0].parent}: {len(mails) - 1} mails and {mails[0].name}; nothing was sent")
    click.echo("\n".join(people))
