# SPDX-License-Identifier: GPL-2.0-only
"""The section on live migration: what a guest felt while it was migrated."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.machines.paging import Mode
from lab.page import dimensions, pictures
from lab.page.compared import mode_name
from lab.page.model import Block, Grid, Missing, Part, Picture
from lab.page.pictures import Datum, Record, Style, Timeline
from lab.results import goals, notation
from lab.results.sources import Line, Source
from lab.results.table import Table

# How many times longer the longest request may be with N than with Y.
GOAL = 1.5
RATIOS = {pictures.BITS: "N/Dirty bits", pictures.ASKED: "N/as QEMU asks"}

# The records of one migration by their kind, or by the name of the phase that they are about.
MigrationRecords = Mapping[str, Record]


def _same(record: Record) -> tuple[Any, ...]:
    return tuple(record[key] for key in ("machine", "kernel", "ept", "tdp_mmu"))


def _migrations(found: Sequence[Record]) -> list[list[MigrationRecords]]:
    """The migrations of each machine, kernel and paging mode: N, then Y, then Dirty bits."""
    groups: dict[tuple[Any, ...], dict[tuple[bool, str], dict[str, Record]]] = {}
    for one in found:
        setting = (one["eager"], one.get("dirty_bits", notation.OFF))
        records = groups.setdefault(_same(one), {}).setdefault(setting, {})
        records[one.get("phase", one["record"])] = one
    return [[each[setting] for setting in sorted(each)] for each in groups.values()]


@dataclass(frozen=True)
class FigureRow:
    """A row of the table. Its figures are the values of KEY in the records OF, times SCALE.

    digits: decimals of the figures, in the unit that the label names.
    """

    label: str
    of: str
    key: str
    scale: float = 1
    digits: int = 2
    with_ratio: bool = True
    strong: bool = False

    def value(self, migration: MigrationRecords) -> float:
        if self.of == GROWTH:
            # By how much one of KVM's statistics grew during the migration.
            whole = migration["migration"]
            after, before = (whole[f"kvm_stats_{when}"] for when in ("after", "before"))
            return float(after.get(self.key, 0) - before.get(self.key, 0))
        value = float(migration[self.of][self.key]) * self.scale
        if self.key == LOWEST:
            # In percent of the average before the migration.
            window_s = migration["precopy"]["window_us"] / 1e6
            return 100 * value / float(migration["before"]["requests_per_second"] * window_s)
        return value


GROWTH, LOWEST = "growth", "lowest_per_window"
ROWS = (
    FigureRow("longest request before, ms", "before", "longest_request_us", 1e-3),
    FigureRow(
        *("longest request during precopy, ms", "precopy", "longest_request_us", 1e-3), strong=True
    ),
    FigureRow("longest stall before, ms", "before", "longest_stall_us", 1e-3, 3),
    FigureRow("longest stall during precopy, ms", "precopy", "longest_stall_us", 1e-3, 3),
    FigureRow("requests a second before", "before", "requests_per_second", 1, 0, False),
    FigureRow("requests a second during precopy", "precopy", "requests_per_second", 1, 0, False),
    FigureRow("lowest window, % of before", "precopy", LOWEST, 1, 0, False),
    FigureRow("page faults that KVM handled", GROWTH, "pf_taken", 1, 0),
    FigureRow("huge pages split ahead of writes", GROWTH, "eager_split_done", 1, 0, False),
    FigureRow("migration, ms", "migration", "seconds", 1e3, 0),
    FigureRow("passes over memory", "migration", "passes", 1, 0, False),
    FigureRow("downtime, QEMU's account, ms", "migration", "downtime_seconds", 1e3, 0),
    FigureRow("stopped, as the guest sees it, ms", "blackout", "longest_stall_us", 1e-3),
)


def _title(record: Record) -> str:
    mode = mode_name(record["machine"], Mode(record["ept"], record["tdp_mmu"]))
    return f"Migration, {record['machine']} ({record['kernel']}), {mode}"


def _table(migrations: Sequence[MigrationRecords]) -> Table:
    record = migrations[0]["migration"]
    styles = [pictures.style_of(migration["migration"]) for migration in migrations]
    table = Table(
        _title(record),
        ("", *(s.label for s in styles), *(RATIOS.get(style, "N/Y") for style in styles[1:])),
    )
    for row in ROWS:
        values = [row.value(migration) for migration in migrations]
        cells = [f"{value:.{row.digits}f}" for value in values]
        for value in values[1:]:
            cells.append(notation.ratio(values[0], value) if row.with_ratio else notation.NOTHING)
        table.add(row.label, *cells, strong=row.strong)
    simulated = record["machine"] in dimensions.SIMULATED
    table.notes.append(notation.LOCKSTEP if simulated else notation.WALL_CLOCK)
    for row in ROWS:
        if row.strong and simulated and len(migrations) > 1:
            lazy, eager = (row.value(migration) for migration in migrations[:2])
            what = f"{row.label.removesuffix(', ms')}: N is to be at most {GOAL:g} times Y"
            table.notes.append(str(goals.Verdict(what, lazy <= GOAL * eager)))
    return table


def migration_tables(found: Sequence[Record]) -> list[Table]:
    """One table for each machine, kernel and paging mode."""
    return [_table(migrations) for migrations in _migrations(found)]


# The keys of what charts show, in their order, and how the tables behind them show it.
CHARTED: Mapping[str, Callable[[float], str]] = {
    "requests_per_second": lambda rate: f"{pictures.number(rate)} requests a second",
    "longest_request_us": lambda us: f"longest request {pictures.number(us / 1e3)} ms",
}
WHEN = {"before": "before the migration", "precopy": "while it copies memory"}


WHAT_LINES_ARE = (
    "A dip of the requests served is what the guest cannot serve because its pages are being split"
    " under it. Lines are where the migration begins and where it stops the guest, dotted ones are"
    " its passes over the memory."
)


def _longest_said(migrations: Sequence[MigrationRecords]) -> str:
    """The longest request of each migration, before it and during it."""
    said = []
    for migration in migrations:
        before, during = (
            pictures.number(migration[name]["longest_request_us"] / 1e3) for name in WHEN
        )
        label = pictures.style_of(migration["migration"]).label
        said.append(f"{during} ms while it is migrated, {before} ms before ({label})")
    return f"The longest request of the guest takes {'; '.join(said)}."


def _data(
    style: Style, migration: MigrationRecords, lines: Iterable[Line], key: str
) -> list[Datum]:
    """The table behind a chart: its values before and during the migration."""
    of = {name: [line for line in lines if line.record is migration[name]] for name in WHEN}
    return [
        Datum(style.label, when, CHARTED[key](migration[name][key]), tuple(of[name]))
        for name, when in WHEN.items()
    ]


def _blocks(migrations: Sequence[MigrationRecords], lines: Sequence[Line]) -> list[Block]:
    record = migrations[0]["migration"]
    origins = tuple(line for line in lines if _same(line.record) == _same(record))
    paging = notation.paging(record["machine"], record["ept"]).replace("=", "")
    name = f"migration-{paging}{'-tdp' if record['tdp_mmu'] else ''}"
    simulated = record["machine"] in dimensions.SIMULATED
    drawn = [
        Timeline(pictures.style_of(m["migration"]), m["timeline"], [m["migration"]])
        for m in migrations
    ]
    unit = "simulated ms" if simulated else "ms"
    charts = [
        replace(chart, data=_data(one.style, migration, lines, key), columns=("", "when", "value"))
        for one, migration in zip(drawn, migrations, strict=True)
        for key, chart in zip(CHARTED, pictures.migration_charts(one, unit), strict=False)
    ]
    requests = f"{record['rate']} requests a second and vCPU, each reads {record['reads']} pages"
    said = dimensions.of([record], f"{requests} and writes {record['writes']}")
    reading = f"{_longest_said(migrations)} {WHAT_LINES_ARE}"
    picture = Picture(name, _title(record), charts, said, reading, lines[0].file)
    table = _table(migrations)
    return [picture, Grid(table, [origins] * len(table.rows))]


def _all_blocks(source: Source) -> list[Block]:
    found = _migrations([line.record for line in source.lines])
    return [block for migrations in found for block in _blocks(migrations, source.lines)]


NONE = Missing("a live migration", "make bench WHAT=migrate")
PART = Part("migration", "Live migration", ("migrate",), _all_blocks, NONE)
