# SPDX-License-Identifier: GPL-2.0-only
"""`lab compare A B`: what moved between two files of results, in words and as a page.

What is compared, and which difference counts, is in docs/measuring.md: "Comparing two results".
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from lab.core.errors import WorkFailed
from lab.core.steps import say
from lab.page import dimensions, pictures, render
from lab.page.compared import mode_name
from lab.page.model import Block, Grid, Picture, Section
from lab.page.pictures import Chart, Movement
from lab.page.summary import path
from lab.results import compare, files, notation, sources
from lab.results.compare import Comparison, Pair, Side
from lab.results.jsonl import Key
from lab.results.notation import OFF
from lab.results.sources import Line, Source

# How many movements are named, and drawn each way: the page has a table of all.
NAMED = 10
DRAWN = 15
TITLE = "What moved between two results"


def in_words(found: Comparison) -> str:
    """How many figures moved, which way, and by how much at most."""
    total = len(found.pairs)
    if not found.moved:
        return f"none of {total} figures moved"
    slower = [pair for pair in found.moved if pair.after > pair.before]
    faster = [pair for pair in found.moved if pair.after < pair.before]
    said = [
        f"{len(pairs)} got {word} (up to {pairs[0].change:.2f}x)"
        for pairs, word in ((slower, "slower"), (faster, "faster"))
        if pairs
    ]
    return f"{len(found.moved)} of {total} figures moved: {', '.join(said)}"


def _origins(pairs: Sequence[Pair], of: Sequence[Source]) -> list[tuple[Line, ...]]:
    return [tuple(line for source in of for line in source.at([pair.key])) for pair in pairs]


def _plain(key: Key) -> str:
    """A measurement in words of the report, for those who do not know the test."""
    way = {"kernel": key.kernel, "eager": key.eager, "dirty_bits": key.dirty_bits}
    name = pictures.style_of(way).short
    if key.kernel == "series" and way["dirty_bits"] != OFF:
        name = f"{'Y' if key.eager else 'N'}, dirty_bits={key.dirty_bits}"
    vcpus = f"{key.vcpus} vCPU{'' if key.vcpus == 1 else 's'}"
    init = "" if key.initially_all_set else ", without initially-all-set"
    guest = f"{vcpus} x {notation.size(key.bytes_per_vcpu)}"
    mode = mode_name(key.machine, key.mode)
    return f"{name}, {mode}, {guest}, {notation.writes(key.write_percent)}{init}: {_phase(key)}"


PHASES = {"populate": "populating", "enable": "enabling", "disable": "disabling", "dirty": "writes"}


def _phase(key: Key) -> str:
    name = PHASES.get(key.phase, key.phase.upper())
    return name if key.iteration is None else f"{name} of round {key.iteration}"


def _movements(found: Comparison, of: Sequence[Source], *, longer: bool) -> Chart | None:
    """A chart of those figures that moved most one way."""
    pairs = [pair for pair in found.moved if (pair.after > pair.before) == longer]
    shown = pairs[:DRAWN]
    moved = [
        Movement(_plain(pair.key), pair.before * 1e3, pair.after * 1e3, lines)
        for pair, lines in zip(shown, _origins(shown, of), strict=True)
    ]
    most = f", the first {DRAWN} of {len(pairs)}" if len(pairs) > DRAWN else ""
    way = "Takes longer" if longer else "Takes less"
    return pictures.movements(f"{way} in B than in A{most}", moved) if moved else None


def _picture(found: Comparison, of: Sequence[Source]) -> Picture:
    both = [_movements(found, of, longer=longer) for longer in (True, False)]
    charts = [chart for chart in both if chart]
    lines = [line.record for chart in charts for datum in chart.data for line in datum.lines]
    most = found.moved[0]
    reading = f"{_plain(most.key)} moved most: {most.change:.2f}x."
    name = f"{of[0].name} and {of[1].name}"
    return Picture("moved", "What moved", charts, dimensions.of(lines), reading, name)


def sections(found: Comparison, a: Side, b: Side, of: Sequence[Source]) -> list[Section]:
    """What moved, with a picture and a table; and, folded, a table of all that both measured."""
    every = compare.table_of(found, a, b)
    blocks: list[Block] = []
    if found.moved:
        rows = compare.table_of(replace(found, pairs=found.moved), a, b)
        rows = replace(rows, columns=rows.columns[:-1], rows=[row[:-1] for row in rows.rows])
        rows.title, rows.strong = "What moved, the largest factor first", set()
        # Without a figure to divide by there is nothing to draw.
        if all(pair.before > 0 and pair.after > 0 for pair in found.moved):
            blocks.append(_picture(found, of))
        blocks.append(Grid(rows, _origins(found.moved, of), folded=False))
    blocks.append(Grid(every, _origins(found.pairs, of)))
    said = in_words(found)
    intro = f"{'; '.join([f'{said[0].upper()}{said[1:]}', *compare.notes(found)])}."
    names = (path(Path(side.name)) for side in (a, b))
    title = "{} (A) and {} (B)".format(*names)
    return [Section("compared", title, blocks, intro)]


def write(found: Comparison, a: Side, b: Side, given: Sequence[Path], directory: Path) -> Path:
    """Make the page in DIRECTORY. given: the two files; what repeats them is not named by line."""
    of = [sources.load(file, f"{side}-{file.name}") for side, file in zip("AB", given, strict=True)]
    every = {source.name: source for source in of}
    made = render.files(every, sections(found, a, b, of), TITLE)
    render.replace_directory(directory, made)
    return directory / render.HTML


def _named(found: Comparison) -> Iterator[str]:
    lines = compare.moves(found)
    yield from (f"moved: {line}" for line in lines[:NAMED])
    if more := len(lines) - NAMED if len(lines) > NAMED else 0:
        yield f"and {more} more"


_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
@click.option(
    "--again-a", multiple=True, type=_FILE, help="Another run of the code of A; can be repeated."
)
@click.option(
    "--again-b", multiple=True, type=_FILE, help="Another run of the code of B; can be repeated."
)
@click.option("--brief", is_flag=True, help="Print only what changed, and draw no page.")
@click.option("--tables", "every", is_flag=True, help="Print the table of all figures, too.")
def command(
    a: Path,
    b: Path,
    again_a: tuple[Path, ...],
    again_b: tuple[Path, ...],
    brief: bool,
    every: bool,
) -> None:
    """Print which figures changed from results A to results B of `make bench`, and draw them.

    build/compare/index.html shows all figures side by side.

    Exit status: 0: nothing changed. 1: a figure changed. 2: wrong input, e.g. results of two
    machines.
    """
    before, after = compare.load([a, *again_a]), compare.load([b, *again_b])
    found = compare.compare(before, after)
    if every:
        compare.table_of(found, before, after).show()
    click.echo(in_words(found))
    for line in _named(found):
        click.echo(line)
    for line in compare.notes(found):
        say(f"compare: {line}")
    if not brief:
        page = write(found, before, after, (a, b), files.beside("compare"))
        say(f"compare: all figures, and a picture of what moved: {page}")
    if found.moved:
        raise WorkFailed(compare.summary(found))
    say(f"compare: {compare.summary(found)}")
