# SPDX-License-Identifier: GPL-2.0-only
"""A table: its data, and how it is printed."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import click

from lab.results.jsonl import Key


@dataclass
class Table:
    """A table. title, notes: lines above it. strong: indices of the rows to look at first.

    origins: for each row the keys of the measurements that its figures come from.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    strong: set[int] = field(default_factory=set)
    origins: list[tuple[Key, ...]] = field(default_factory=list)

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

    def show(self) -> None:
        """Print the table. A terminal that is too narrow breaks lines; no figure is cut."""
        click.echo(self.markdown())
