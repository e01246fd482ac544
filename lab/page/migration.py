# SPDX-License-Identifier: GPL-2.0-only
"""The section on live migration: what a guest felt while it was migrated."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.page import pictures
from lab.page.model import Block, Grid, Missing, Picture, Section
from lab.page.pictures import Style, Voyage
from lab.results import tables
from lab.results.sources import Line, Source, Sources
from lab.results.tables import Table

SIMULATED = ("vmx-bochs",)
# What the longest request with N is to be of that with Y, at least.
GOAL = 5
RATIOS = ("N/Y", "N/Dirty bits")
Record = Mapping[str, Any]


def _by_bits(record: Record) -> bool:
    """Whether pages were logged by Dirty bits; older lines don't say that they were not."""
    return bool(record.get("dirty_harvest", tables.OFF) != tables.OFF)


@dataclass(frozen=True)
class Trip:
    """The records of one migration, by name; phases by theirs."""

    records: Mapping[str, Record]

    @classmethod
    def of(cls, found: Iterable[Record]) -> "Trip":
        return cls({one.get("phase", one["record"]): one for one in found})

    @property
    def style(self) -> Style:
        """How its curve looks."""
        one = self.records["migration"]
        if one["kernel"] == "peer":
            return pictures.PEER
        if _by_bits(one):
            return pictures.BITS
        return pictures.EAGER if one["eager"] else pictures.LAZY

    def at(self, name: str, key: str) -> float:
        """A figure."""
        return float(self.records[name][key])


def _same(record: Record) -> tuple[Any, ...]:
    return tuple(record[key] for key in ("machine", "kernel", "ept", "tdp_mmu"))


def _trips(found: Sequence[Record]) -> list[list[Trip]]:
    """For each machine, kernel and paging mode its migrations: N, then Y, then Dirty bits."""
    groups: dict[tuple[Any, ...], dict[tuple[bool, bool], list[Record]]] = {}
    for one in found:
        setting = (one["eager"], _by_bits(one))
        groups.setdefault(_same(one), {}).setdefault(setting, []).append(one)
    return [[Trip.of(part) for _, part in sorted(each.items())] for each in groups.values()]


@dataclass(frozen=True)
class Row:
    """A row of the table. digits: decimals of a figure in the unit that the label says."""

    label: str
    value: Callable[[Trip], float]
    digits: int = 2
    with_ratio: bool = True
    strong: bool = False


def _dip(trip: Trip) -> float:
    """The lowest window, in percent of the average before."""
    window_s = trip.at("precopy", "window_us") / 1e6
    usual = trip.at("before", "requests_per_second") * window_s
    return 100 * trip.at("precopy", "lowest_per_window") / usual


def _during(name: str) -> Callable[[Trip], float]:
    """How much one of KVM's statistics grew from before the migration to after it."""

    def grown(trip: Trip) -> float:
        whole = trip.records["migration"]
        after, before = (whole[f"kvm_stats_{when}"] for when in ("after", "before"))
        return float(after.get(name, 0) - before.get(name, 0))

    return grown


ROWS = (
    Row("longest request before, ms", lambda t: t.at("before", "longest_request_us") / 1e3),
    Row(
        "longest request during precopy, ms",
        lambda t: t.at("precopy", "longest_request_us") / 1e3,
        strong=True,
    ),
    Row("longest stall before, ms", lambda t: t.at("before", "longest_stall_us") / 1e3, 3),
    Row("longest stall during precopy, ms", lambda t: t.at("precopy", "longest_stall_us") / 1e3, 3),
    Row("requests a second before", lambda t: t.at("before", "requests_per_second"), 0, False),
    Row(
        "requests a second during precopy",
        lambda t: t.at("precopy", "requests_per_second"),
        0,
        False,
    ),
    Row("lowest window, % of before", _dip, 0, False),
    Row("page faults that KVM handled", _during("pf_taken"), 0),
    Row("huge pages split ahead of writes", _during("eager_split_done"), 0, False),
    Row("migration, ms", lambda t: t.at("migration", "seconds") * 1e3, 0),
    Row("passes over memory", lambda t: t.at("migration", "passes"), 0, False),
    Row("downtime, QEMU's account, ms", lambda t: t.at("migration", "downtime_seconds") * 1e3, 0),
    Row("stopped, as the guest sees it, ms", lambda t: t.at("blackout", "longest_stall_us") / 1e3),
)


def _mode(record: Record) -> str:
    tdp_mmu = ", tdp_mmu=Y" if record["tdp_mmu"] else ""
    return f"{tables.paging(record['machine'], record['ept'])}{tdp_mmu}"


def _title(record: Record) -> str:
    return f"Migration, {record['machine']} ({record['kernel']}), {_mode(record)}"


def _dimensions(record: Record) -> str:
    """What a picture's runs have in common."""
    clock = "simulated time" if record["machine"] in SIMULATED else "wall-clock time"
    return (
        f"{record['machine']} ({clock}), kernel {record['kernel_version']}, {_mode(record)},"
        f" {record['qemu']}, {record['vcpus']} vCPUs, {tables.size(record['bytes_per_vcpu'])}"
        f" each, {record['backing']}, {record['rate']} requests a second and vCPU, each reads"
        f" {record['reads']} pages and writes {record['writes']}"
    )


def _cells(row: Row, trips: Sequence[Trip]) -> tuple[str, ...]:
    values = [row.value(trip) for trip in trips]
    cells = [f"{value:.{row.digits}f}" for value in values]
    for value in values[1:]:
        cells.append(tables.ratio(values[0], value) if row.with_ratio else tables.NOTHING)
    return (row.label, *cells)


def _verdict(trips: Sequence[Trip]) -> str:
    row = next(row for row in ROWS if row.strong)
    lazy, eager = (row.value(trip) for trip in trips[:2])
    said = "reached" if lazy >= GOAL * eager else "missed"
    return f"{row.label.removesuffix(', ms')}: N is to be at least {GOAL} times Y: {said}"


def _table(trips: Sequence[Trip]) -> Table:
    record = trips[0].records["migration"]
    table = Table(
        _title(record), ("", *(trip.style.label for trip in trips), *RATIOS[: len(trips) - 1])
    )
    table.rows += [_cells(row, trips) for row in ROWS]
    table.strong |= {i for i, row in enumerate(ROWS) if row.strong}
    simulated = record["machine"] in SIMULATED
    table.notes.append(tables.LOCKSTEP if simulated else tables.WALL_CLOCK)
    if simulated and len(trips) > 1:
        table.notes.append(_verdict(trips))
    return table


def migration_tables(found: Sequence[Record]) -> list[Table]:
    """One table for each machine, kernel and paging mode."""
    return [_table(trips) for trips in _trips(found)]


def _voyage(trip: Trip) -> Voyage:
    line, whole = trip.records["timeline"], trip.records["migration"]
    return Voyage(
        trip.style.label,
        trip.style,
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


def _draw(trips: Sequence[Trip]) -> tuple[str, str]:
    record = trips[0].records["migration"]
    name = _name(record)
    simulated = record["machine"] in SIMULATED
    return name, pictures.voyages(name, [_voyage(trip) for trip in trips], simulated)


def drawings(found: Sequence[Record]) -> dict[str, str]:
    """The pictures: name -> SVG."""
    return dict(_draw(trips) for trips in _trips(found))


def _blocks(trips: Sequence[Trip], lines: Sequence[Line]) -> list[Block]:
    record = trips[0].records["migration"]
    origins = tuple(line for line in lines if _same(line.record) == _same(record))
    name, svg = _draw(trips)
    reading = (
        "Left: how many requests the guest serves; a dip after the migration begins is what it"
        " cannot serve because its pages are being split under it. Right: the longest request in"
        " each window; the lower, the less a guest notices of being migrated. Dotted lines are"
        " passes over the memory, the last line is where it is stopped."
    )
    picture = Picture(name, _title(record), svg, _dimensions(record), reading, origins)
    table = _table(trips)
    each = [origins] * len(table.rows)
    strong = frozenset(table.strong)
    return [picture, Grid(table.title, table.columns, table.rows, each, table.notes, strong)]


def _all_blocks(source: Source) -> list[Block]:
    found = _trips([line.record for line in source.lines])
    return [block for trips in found for block in _blocks(trips, source.lines)]


def section(sources: Sources) -> Section:
    """What a guest felt while it was migrated."""
    made = Section("migration", "Live migration", [])
    source = sources.get("migrate")
    made.blocks.extend(_all_blocks(source) if source else [])
    if not made.blocks:
        made.blocks.append(Missing("a live migration", "make migrate"))
    return made
