# SPDX-License-Identifier: GPL-2.0-only
"""`lab report`: draw what was measured."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import click

from lab.core.errors import LabError
from lab.core.paths import BUILD, RESULTS
from lab.core.steps import say
from lab.page import render, sections, summary
from lab.results import files, sources
from lab.results.jsonl import Measurement
from lab.results.sources import Source
from lab.results.table import Table

REPORT = BUILD / "report"


def write(files: Iterable[Path], directory: Path) -> None:
    """Make the report of FILES in DIRECTORY. LabError: a file that cannot be used."""
    found = sources.load_bases(files)
    # A file may have measurements of two kinds.
    every = {one.name: one for of in found.values() for one in of.values()}
    render.replace_directory(directory, render.files(every, sections.build(found)))


def refresh(results: Path) -> Path | None:
    """Make the report of the newest results, next to their directory, and return its page.

    Only print what fails: then there is no page.
    """
    directory = results.parent / REPORT.name
    try:
        write(sources.newest(results), directory)
    except LabError as error:
        say(f"report: not drawn: {error}")
        return None
    return directory / render.HTML


def present(what: str, shown: Iterable[Table], file: Path, *, draw: bool) -> None:
    """Print TABLES of the results in FILE, and where it is. draw: make the report, too."""
    for table in shown:
        table.show()
    say(f"{what}: every figure is in {file}")
    if draw and (page := refresh(file.parent)):
        say(f"report: {page}, and {render.MARKDOWN} beside it")


def sum_up(found: Sequence[Measurement], file: Path, *, draw: bool) -> None:
    """Print the summary of results in FILE. draw: make the report, too."""
    page = refresh(file.parent) if draw else None
    for line in summary.lines(found, file, page, _live_beside(found, file)):
        click.echo(line)


def _live_beside(found: Sequence[Measurement], file: Path) -> Source | None:
    """The newest live run of the same base and machine as FOUND, in the directory of FILE."""
    of = {(one.machine, sources.base_of(one.kernel_version)) for one in found}
    with suppress(LabError):
        for other in sources.newest(file.parent):
            if files.kind_of(other) == "live":
                source = sources.load(other)
                machines = {line.record.get("machine") for line in source.lines}
                if {(machine, source.base) for machine in machines} <= of:
                    return source
    return None


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=REPORT,
    help="Directory for the report.",
)
def command(files: tuple[Path, ...], output: Path) -> None:
    """Draw a report of FILES of results: an HTML page, and the same as Markdown.

    Without FILES the report shows the newest results of each kind and base in build/results. Each
    section shows the bases one after the other.

    The end of a file's name is its kind, e.g. NAME-live.jsonl or NAME-cost.jsonl. All other files
    are results of `make bench`. For results that are missing, the report names the command that
    measures them.
    """
    # Making the report would remove it.
    if output.exists() and not (output / render.MARKDOWN).exists():
        raise LabError(
            f"--output: {output} exists, and contains no report; choose another directory"
        )
    write(files or sources.newest(RESULTS), output)
    say(f"report: {output / render.HTML}, and {render.MARKDOWN} beside it")
