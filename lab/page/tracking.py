# SPDX-License-Identifier: GPL-2.0-only
"""The section on memory that is logged from the start, of `make bench WHAT=tracking`."""

from dataclasses import replace

from lab.page import dimensions
from lab.page.model import Block, Grid, Missing, Part, grid
from lab.results import sources, tracking
from lab.results.sources import Source


def _measured(source: Source) -> list[Block]:
    """What `split-bench.sh --tracked` has measured."""
    found = source.measurements
    table = tracking.measured_table(found)
    table.notes.append(f"figures are milliseconds; {dimensions.clock(found[0].machine)}")
    return [replace(grid(table, source), folded=False)] if table.rows else []


def _blocks(source: Source) -> list[Block]:
    if source.kind == sources.TRACKED:
        return _measured(source)
    records = [line.record for line in source.lines]
    origins = [
        tuple(line for line in source.lines if tracking.way_of(line.record) == way)
        for way in tracking.ways(records)
    ]
    return [Grid(table, origins, folded=False) for table in tracking.tables(records)]


NONE = Missing("memory that is logged from the start", "make bench WHAT=tracking")
TITLE = tracking.TITLE
INTRO = (
    "VMMs that take snapshots all the time enable logging before a guest has accessed anything, and"
    " never disable it."
)
PART = Part("tracking", TITLE, ("tracking", sources.TRACKED), _blocks, NONE, INTRO)
