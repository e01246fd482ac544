# SPDX-License-Identifier: GPL-2.0-only
"""A table: its data, and how it is printed."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import click

from lab.results.jsonl import Key

# Labels of rows have at least as much room, characters, however narrow the terminal is.
MIN_LABEL = 20


@dataclass
class Table:
    """A table. title, notes: lines above it. strong: indices of the rows to look at first.

    origins: for each row the keys of the measurements that its figures come from.
    labels: how many columns say what a row is about.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    strong: set[int] = field(default_factory=set)
    origins: list[tuple[Key, ...]] = field(default_factory=list)
    labels: int = 1

    def add(self, *cells: str, strong: bool = False, origins: Iterable[Key] = ()) -> None:
        """Append a row."""
        self.strong |= {len(self.rows)} if strong else set()
        self.rows.append(cells)
        self.origins.append((*origins,))

    def aligned(self) -> list[list[str]]:
        """Heading and rows, each column of one width: labels to the left, figures to the right."""
        grid = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        return [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in grid]

    def markdown(self) -> str:
        """The table as Markdown, aligned so that it can also be read as it is."""
        rows = [
            (f"**{first}**" if index in self.strong else first, *rest)
            for index, (first, *rest) in enumerate(self.rows)
        ]
        heading, *rest = replace(self, rows=rows).aligned()
        rule = "|".join(
            "-" * (len(cell) + 1) + (":" if i else "-") for i, cell in enumerate(heading)
        )
        lines = [f"| {' | '.join(row)} |" for row in (heading, *rest)]
        notes = [f"({note})" for note in self.notes]
        return "\n".join([f"### {self.title}", *notes, "", lines[0], f"|{rule}|", *lines[1:], ""])

    def fitted(self, width: int) -> str:
        """The table in lines of at most WIDTH characters, if WIDTH is a reasonable one.

        Columns that have no room beside each other follow below, each time with the labels.
        """
        if max(map(len, self.markdown().splitlines())) <= width:
            return self.markdown()
        said = [f"### {self.title}", *(f"({note})" for note in self.notes)]
        heading = [wrapped for line in said for wrapped in textwrap.wrap(line, width)]
        labels = range(self.labels)
        blocks: list[list[int]] = [[]]
        for index in range(self.labels, len(self.columns)):
            if blocks[-1] and self._block_width([*labels, *blocks[-1], index], width) > width:
                blocks.append([])
            blocks[-1].append(index)
        shown = (self._block([*labels, *indices], width) for indices in blocks)
        return "\n".join([*heading, "", "\n\n".join(shown), ""])

    def _widths(self, indices: Sequence[int], width: int) -> list[int]:
        """The widths of columns in lines of WIDTH. Wider cells wrap."""
        grid = [self.columns, *self.rows]
        widths = [max(len(row[index]) for row in grid) for index in indices]
        first = min(widths[0], max(MIN_LABEL, width // 2))
        most = max(1, width - first - 2)
        return [first, *(min(each, most) for each in widths[1:])]

    def _block_width(self, indices: Sequence[int], width: int) -> int:
        return sum(self._widths(indices, width)) + 2 * (len(indices) - 1)

    def _block(self, indices: Sequence[int], width: int) -> str:
        """The columns INDICES of all rows as text."""
        widths = self._widths(indices, width)
        lines = []
        for row in (self.columns, *self.rows):
            cells = (row[index] for index in indices)
            wrapped = map(textwrap.wrap, cells, widths)
            for label, *rest in zip_longest(*wrapped, fillvalue=""):
                shown = [label.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]
                lines.append("  ".join(shown).rstrip())
        return "\n".join(lines)

    def show(self) -> None:
        """Print the table: on a terminal as wide as that, elsewhere as Markdown."""
        width = shutil.get_terminal_size().columns
        click.echo(self.fitted(width) if sys.stdout.isatty() else self.markdown())
