# SPDX-License-Identifier: GPL-2.0-only
"""The report of several bases: each section of one after that of another, by their names.

No figure is made of two of them; the first table has them side by side.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lab.page import sections
from lab.page.model import Block, Grid, Missing, Picture, Section, grid
from lab.results import tables
from lab.results.sources import Bases


def _named(block: Block, base: str) -> Block:
    """The block with the name of its base."""
    if isinstance(block, Picture):
        return replace(block, name=f"{block.name}-{base}", title=f"Linux {base}: {block.title}")
    if isinstance(block, Missing):
        command = block.command.replace("make bench", f"make bench BASE={base}")
        return Missing(f"{block.what} of Linux {base}", command)
    if isinstance(block, Grid):
        return replace(block, title=f"Linux {base}: {block.title}")
    return block


def _blocks(of_base: Iterable[tuple[str, Section]]) -> Iterator[Block]:
    """Those of the same section; what is quoted from elsewhere comes with the first base only."""
    for number, (base, section) in enumerate(of_base):
        for block in section.blocks:
            quoted = isinstance(block, Grid) and block.beside
            if not quoted:
                yield _named(block, base)
            elif number == 0:
                yield block


def sections_of(bases: Bases) -> list[Section]:
    """Every section. LabError: what lab.page.sections.build() raises."""
    if len(bases) < 2:
        return sections.build(next(iter(bases.values()), {}))
    made = {base: sections.build(sources) for base, sources in bases.items()}
    found = [
        Section(same[0].anchor, same[0].title, list(_blocks(zip(made, same, strict=True))))
        for same in zip(*made.values(), strict=True)
    ]
    measured = {base: of["bench"] for base, of in bases.items() if "bench" in of}
    table = tables.bases_table({base: one.measurements for base, one in measured.items()})
    if table:
        shown = grid(table, *measured.values())
        found.insert(0, Section("bases", "Bases side by side", [shown]))
    return found
