# SPDX-License-Identifier: GPL-2.0-only
"""The section on live migration: what a guest felt while it was migrated."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.page import dimensions, pictures
from lab.page.model import Block, Grid, Missing, Part, Picture
from lab.page.pictures import MigrationTimeline, Style
from lab.results import tables
from lab.results.sources import Line, Source
from lab.results.tables import Table

# What the longest request with N is to be of that with Y, at least.
GOAL = 5
RATIOS = ("N/Y", "N/Dirty bits")
Record = Mapping[str, Any]


def _by_bits(record: Record) -> bool:
    """Whether pages were logged by Dirty bits; older lines don't say that they were not."""
    return bool(record.get("dirty_harvest", tables.OFF) != tables.OFF)


@dataclass(frozen=True)
class MigrationRecords:
    """The records of one migration, by name; phases by theirs."""

    records: Mapping[str, Record]

    @classmethod
    def of(cls, found: Iterable[Record]) -> "MigrationRecords":
        return cls({one.get("phase", one["record"]): one for one in found})

    @property
    def style(self) -> Style:
        one = self.records["migration"]
        if one["kernel"] == "peer":
            return pictures.UNGATED
        if _by_bits(one):
            return pictures.BITS
        return pictures.EAGER if one["eager"] else pictures.LAZY

    def at(self, name: str, key: str) -> float:
        return float(self.records[name][key])


def _same(record: Record) -> tuple[Any, ...]:
    return tuple(record[key] for key in ("machine", "kernel", "ept", "tdp_mmu"))


def _migrations(found: Sequence[Record]) -> list[list[MigrationRecords]]:
    """For each machine, kernel and paging mode its migrations: N, then Y, then Dirty bits."""
    groups: dict[tuple[Any, ...], dict[tuple[bool, bool], list[Record]]] = {}
    for one in found:
        setting = (one["eager"], _by_bits(one))
        groups.setdefault(_same(one), {}).setdefault(setting, []).append(one)
    return [
        [MigrationRecords.of(part) for _, part in sorted(each.items())] for each in groups.values()
    ]


@dataclass(frozen=True)
class FigureRow:
    """A row of the table. digits: decimals of a figure in the unit that the label says."""

    label: str
    value: Callable[[MigrationRecords], float]
    digits: int = 2
    with_ratio: bool = True
    strong: bool = False


def _dip(migration: MigrationRecords) -> float:
    """The lowest window, in percent of the average before."""
    window_s = migration.at("precopy", "window_us") / 1e6
    usual = migration.at("before", "requests_per_second") * window_s
    return 100 * migration.at("precopy", "lowest_per_window") / usual


def _during(name: str) -> Callable[[MigrationRecords], float]:
    """How much one of KVM's statistics grew from before the migration to after it."""

    def grown(migration: MigrationRecords) -> float:
        whole = migration.records["migration"]
        after, before = (whole[f"kvm_stats_{when}"] for when in ("after", "before"))
        return float(after.get(name, 0) - before.get(name, 0))

    return grown


ROWS = (
    FigureRow("longest request before, ms", lambda t: t.at("before", "longest_request_us") / 1e3),
    FigureRow(
        "longest request during precopy, ms",
        lambda t: t.at("precopy", "longest_request_us") / 1e3,
        strong=True,
    ),
    FigureRow("longest stall before, ms", lambda t: t.at("before", "longest_stall_us") / 1e3, 3),
    FigureRow(
        "longest stall during precopy, ms", lambda t: t.at("precopy", "longest_stall_us") / 1e3, 3
    ),
    FigureRow(
        "requests a second before", lambda t: t.at("before", "requests_per_second"), 0, False
    ),
    FigureRow(
        "requests a second during precopy",
        lambda t: t.at("precopy", "requests_per_second"),
        0,
        False,
    ),
    FigureRow("lowest window, % of before", _dip, 0, False),
    FigureRow("page faults that KVM handled", _during("pf_taken"), 0),
    FigureRow("huge pages split ahead of writes", _during("eager_split_done"), 0, False),
    FigureRow("migration, ms", lambda t: t.at("migration", "seconds") * 1e3, 0),
    FigureRow("passes over memory", lambda t: t.at("migration", "passes"), 0, False),
    FigureRow(
        "downtime, QEMU's account, ms", lambda t: t.at("migration", "downtime_seconds") * 1e3, 0
    ),
    FigureRow(
        "stopped, as the guest sees it, ms", lambda t: t.at("blackout", "longest_stall_us") / 1e3
    ),
)


def _mode(record: Record) -> str:
    tdp_mmu = ", tdp_mmu=Y" if record["tdp_mmu"] else ""
    return f"{tables.paging(record['machine'], record['ept'])}{tdp_mmu}"


def _title(record: Record) -> str:
    return f"Migration, {record['machine']} ({record['kernel']}), {_mode(record)}"


def _dimensions(record: Record) -> str:
    """What a picture's runs have in common."""
    return (
        f"{record['machine']} ({dimensions.clock(record['machine'])}), kernel"
        f" {record['kernel_version']}, {_mode(record)}, {record['qemu']}, {record['vcpus']} vCPUs,"
        f" {tables.size(record['bytes_per_vcpu'])} each, {record['backing']}, {record['rate']}"
        f" requests a second and vCPU, each reads {record['reads']} pages"
        f" and writes {record['writes']}"
    )


def _cells(row: FigureRow, migrations: Sequence[MigrationRecords]) -> tuple[str, ...]:
    values = [row.value(migration) for migration in migrations]
    cells = [f"{value:.{row.digits}f}" for value in values]
    for value in values[1:]:
        cells.append(tables.ratio(values[0], value) if row.with_ratio else tables.NOTHING)
    return (row.label, *cells)


def _verdict(migrations: Sequence[MigrationRecords]) -> str:
    row = next(row for row in ROWS if row.strong)
    lazy, eager = (row.value(migration) for migration in migrations[:2])
    said = "reached" if lazy >= GOAL * eager else "missed"
    return f"{row.label.removesuffix(', ms')}: N is to be at least {GOAL} times Y: {said}"


def _table(migrations: Sequence[MigrationRecords]) -> Table:
    record = migrations[0].records["migration"]
    table = Table(
        _title(record),
        ("", *(migration.style.label for migration in migrations), *RATIOS[: len(migrations) - 1]),
    )
    table.rows += [_cells(row, migrations) for row in ROWS]
    table.strong |= {i for i, row in enumerate(ROWS) if row.strong}
    simulated = record["machine"] in dimensions.SIMULATED
    table.notes.append(tables.LOCKSTEP if simulated else tables.WALL_CLOCK)
    if simulated and len(migrations) > 1:
        table.notes.append(_verdict(migrations))
    return table


def migration_tables(found: Sequence[Record]) -> list[Table]:
    """One table for each machine, kernel and paging mode."""
    return [_table(migrations) for migrations in _migrations(found)]


def _timeline(migration: MigrationRecords) -> MigrationTimeline:
    line, whole = migration.records["timeline"], migration.records["migration"]
    return MigrationTimeline(
        migration.style.label,
        migration.style,
        line["window_us"],
        line["requests"],
        line["longest_request_us"],
        whole["begin_us"],
        whole["pass_us"],
        whole["stop_us"],
    )


def _name(record: Record) -> str:
    paging = tables.paging(record["machine"], record["ept"]).replace("=", "")
    return f"migration-{paging}{'-tdp' if record['tdp_mmu'] else ''}"


def _draw(migrations: Sequence[MigrationRecords]) -> tuple[str, str]:
    record = migrations[0].records["migration"]
    name = _name(record)
    simulated = record["machine"] in dimensions.SIMULATED
    return name, pictures.migration_timelines(
        name, [_timeline(migration) for migration in migrations], simulated
    )


def drawings(found: Sequence[Record]) -> dict[str, str]:
    return dict(_draw(migrations) for migrations in _migrations(found))


def _blocks(migrations: Sequence[MigrationRecords], lines: Sequence[Line]) -> list[Block]:
    record = migrations[0].records["migration"]
    origins = tuple(line for line in lines if _same(line.record) == _same(record))
    name, svg = _draw(migrations)
    reading = (
        "Left: how many requests the guest serves; a dip after the migration begins is what it"
        " cannot serve because its pages are being split under it. Right: the longest request in"
        " each window; the lower, the less a guest notices of being migrated. Dotted lines are"
        " passes over the memory, the last line is where it is stopped."
    )
    picture = Picture(name, _title(record), svg, _dimensions(record), reading, lines[0].file)
    table = _table(migrations)
    each = [origins] * len(table.rows)
    strong = frozenset(table.strong)
    return [picture, Grid(table.title, table.columns, table.rows, each, table.notes, strong)]


def _all_blocks(source: Source) -> list[Block]:
    found = _migrations([line.record for line in source.lines])
    return [block for migrations in found for block in _blocks(migrations, source.lines)]


PART = Part(
    "migration",
    "Live migration",
    ("migrate",),
    _all_blocks,
    Missing("a live migration", "make bench WHAT=migrate"),
)
