# SPDX-License-Identifier: GPL-2.0-only
"""The report of several bases: each section of one after that of another, by their names.

No figure is made of two of them; the first table has them side by side.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lab.page import sections
from lab.page.model import Block, Missing, Picture, Section, grid
from lab.results import tables
from lab.results.sources import Bases


def _named(block: Block, base: str, first: bool) -> Block:
    """The block with the name of its base; what is quoted beside it comes with the first only."""
    if isinstance(block, Picture):
        return replace(block, name=f"{block.name}-{base}", title=f"Linux {base}: {block.title}")
    if isinstance(block, Missing):
        command = block.command.replace("make bench", f"make bench BASE={base}")
        return Missing(f"{block.what} of Linux {base}", command)
    table = replace(block.table, title=f"Linux {base}: {block.table.title}")
    return replace(block, table=table, quoted=block.quoted if first else ())


def _blocks(of_base: Iterable[tuple[str, Section]]) -> Iterator[Block]:
    """Those of the same section."""
    for number, (base, section) in enumerate(of_base):
        yield from (_named(block, base, number == 0) for block in section.blocks)


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
