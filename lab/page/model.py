# SPDX-License-Identifier: GPL-2.0-only
"""What a page consists of, whether it becomes HTML or Markdown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from lab.results.sources import Line, Source, Sources
from lab.results.tables import Table


@dataclass(frozen=True)
class Grid:
    """A table. origins: for each row the lines that its figures come from."""

    table: Table
    origins: Sequence[tuple[Line, ...]]


def grid(table: Table, *sources: Source) -> Grid:
    """A table of what one or several files have measured."""
    return Grid(table, [tuple(o for s in sources for o in s.at(k)) for k in table.origins])


@dataclass(frozen=True)
class Picture:
    """A plot. name: of its file, without ending. svg: a complete document.

    dimensions: machine, kernel version, and what all that is drawn has in common.
    reading: one sentence on how to read it. file: of results, that it was drawn from.
    """

    name: str
    title: str
    svg: str
    dimensions: str
    reading: str
    file: str


@dataclass(frozen=True)
class Missing:
    """Something that was not measured. command: what would."""

    what: str
    command: str = "make bench"


Block = Grid | Picture | Missing


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading. anchor: its id."""

    anchor: str
    title: str
    blocks: list[Block]


@dataclass(frozen=True)
class Part:
    """A section that shows results: of the first of KINDS that has something to show.

    blocks: what a file of these kinds is shown as, perhaps nothing.
    """

    anchor: str
    title: str
    kinds: tuple[str, ...]
    blocks: Callable[[Source], list[Block]]
    missing: Missing

    def section(self, sources: Sources) -> Section:
        """What there is, or else what would measure it."""
        shown = (self.blocks(sources[kind]) for kind in self.kinds if kind in sources)
        return Section(self.anchor, self.title, next(filter(None, shown), [self.missing]))


def lines_of(sections: Iterable[Section]) -> list[Line]:
    """Every line that a row of a table comes from, once, by file and number."""
    found: set[Line] = set()
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Grid):
                found.update(line for lines in block.origins for line in lines)
    return sorted(found, key=lambda line: (line.file, line.number))


@dataclass(frozen=True)
class Range:
    """Neighbouring lines of one file."""

    file: str
    first: int
    last: int

    @property
    def text(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def ranges(lines: Iterable[Line]) -> list[Range]:
    """LINES as few words: neighbours put together, by file and number."""
    pairs = sorted({(line.file, line.number) for line in lines})
    found = []
    # Numbers less their place in the list are the same for neighbours.
    for _, run in groupby(enumerate(pairs), lambda item: (item[1][0], item[1][1] - item[0])):
        members = [pair for _, pair in run]
        found.append(Range(members[0][0], members[0][1], members[-1][1]))
    return found
