# SPDX-License-Identifier: GPL-2.0-only
"""The section on memory that is logged from the start, of `make bench WHAT=tracking`."""

from lab.page.model import Block, Grid, Missing, Part
from lab.results import tracking
from lab.results.sources import Source


def _blocks(source: Source) -> list[Block]:
    records = [line.record for line in source.lines]
    origins = [
        tuple(line for line in source.lines if tracking.way_of(line.record) == way)
        for way in tracking.ways(records)
    ]
    return [Grid(table, origins, folded=False) for table in tracking.tables(records)]


NONE = Missing("memory that is logged from the start", "make bench WHAT=tracking")
TITLE = "Memory that is logged from the start"
INTRO = (
    "VMMs that take snapshots all the time enable logging before a guest has accessed anything, and"
    " never disable it."
)
PART = Part("tracking", TITLE, ("tracking",), _blocks, NONE, INTRO)
