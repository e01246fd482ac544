# SPDX-License-Identifier: GPL-2.0-only
"""The parts of a page, which is rendered as HTML and as Markdown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lab.results.sources import Line, Source, Sources
from lab.results.table import Table


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
    """A kind of section, which shows results of the first of KINDS for which there is something.

    blocks: makes the blocks of the section from a file of results, perhaps none. missing: what to
    show if there is nothing else.
    """

    anchor: str
    title: str
    kinds: tuple[str, ...]
    blocks: Callable[[Source], list[Block]]
    missing: Missing

    def section(self, sources: Sources) -> Section:
        """The section with its results, or else with the command that would measure them."""
        shown = (self.blocks(sources[kind]) for kind in self.kinds if kind in sources)
        return Section(self.anchor, self.title, next(filter(None, shown), [self.missing]))


def lines_of(sections: Iterable[Section]) -> list[Line]:
    """All lines that rows of tables come from, each once, in the order of files and numbers."""
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
    """The ranges that LINES make, in the order of files and numbers."""
    found: list[Range] = []
    for file, number in sorted({(line.file, line.number) for line in lines}):
        last = found[-1] if found else None
        if last and last.file == file and last.last == number - 1:
            found[-1] = replace(last, last=number)
        else:
            found.append(Range(file, number, number))
    return found
