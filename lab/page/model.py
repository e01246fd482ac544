# SPDX-License-Identifier: GPL-2.0-only
"""The parts of a page, which is rendered as HTML and as Markdown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lab.page.pictures import HOST, Chart, Style
from lab.results.sources import Line, Source, Sources
from lab.results.table import Table


@dataclass(frozen=True)
class Grid:
    """A table. origins: for each row the lines that its figures come from.

    folded: it is not open when the page is. modes: for each row the paging mode that it is about,
    if rows are about one each.
    """

    table: Table
    origins: Sequence[tuple[Line, ...]]
    folded: bool = True
    modes: Sequence[str] = ()


def grid(table: Table, *sources: Source) -> Grid:
    """A table of what one or several files have measured."""
    return Grid(table, [tuple(o for s in sources for o in s.at(k)) for k in table.origins])


@dataclass(frozen=True)
class Picture:
    """Charts that belong together, with one legend. name: of their files, without ending.

    dimensions: machine, kernel version, and what all that is drawn has in common.
    reading: what it shows, in a sentence or two. file: of results, that it was drawn from.
    """

    name: str
    title: str
    charts: Sequence[Chart]
    dimensions: str
    reading: str
    file: str

    @property
    def styles(self) -> list[Style]:
        """Its legend: the curves, then what is behind them."""
        found = dict.fromkeys(style for chart in self.charts for style in chart.styles)
        return sorted(found, key=lambda style: style == HOST)

    @property
    def files(self) -> dict[str, Chart]:
        """The charts by the names of their files."""
        many = len(self.charts) > 1
        numbers = enumerate(self.charts, 1)
        return {f"{self.name}{f'-{n}' if many else ''}.svg": chart for n, chart in numbers}


@dataclass(frozen=True)
class Missing:
    """Something that was not measured. command: what would. title: a heading, if it needs one."""

    what: str
    command: str = "make bench"
    title: str = ""


Block = Grid | Picture | Missing


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading. anchor: its id. intro: a sentence below the heading.

    first: its pictures stand beside each other, on the first screen.
    """

    anchor: str
    title: str
    blocks: list[Block]
    intro: str = ""
    first: bool = False


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
    intro: str = ""

    def section(self, sources: Sources) -> Section:
        """The section with its results, or else with the command that would measure them."""
        shown = (self.blocks(sources[kind]) for kind in self.kinds if kind in sources)
        blocks: list[Block] = next(filter(None, shown), [self.missing])
        return Section(self.anchor, self.title, blocks, self.intro)


def lines_of(sections: Iterable[Section]) -> list[Line]:
    """All lines that rows of tables come from, each once, in the order of files and numbers."""
    found: set[Line] = set()
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Grid):
                found.update(line for lines in block.origins for line in lines)
            if isinstance(block, Picture):
                data = (datum for chart in block.charts for datum in chart.data)
                found.update(line for datum in data for line in datum.lines)
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
