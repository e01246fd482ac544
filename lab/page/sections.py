# SPDX-License-Identifier: GPL-2.0-only
"""What the report says: one function for each section, in SECTIONS.

A function takes the files that there are, by kind, and returns a Section; for what was not
measured a Missing with the command that would. To add a section, write such a function and
name it in SECTIONS; for a new kind of file, name that in sources.KINDS as well.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.core.errors import LabError
from lab.machines.bochs import IPS
from lab.page import migration, pictures, quoted
from lab.page.model import Block, Grid, Missing, Picture, Section
from lab.page.pictures import HARVESTED, PROTECTED, Panel, Points, Style, Timeline
from lab.results import bounds, tables, tradeoff
from lab.results.jsonl import Key, Measurement
from lab.results.sources import Line, Source, Sources
from lab.results.tables import FIRST_CLEAR, Row, Table
from lab.results.tradeoff import Tradeoff

SIMULATED = ("vmx-bochs",)
MIB = 1 << 20
# Instructions under mmu_lock that a split of 2 MiB may take.
COST_LIMIT = 5000
STALL_PHASES = ("enable", "enabled", "get", "clear", "logging")


@dataclass(frozen=True)
class Family:
    """What the panels of one picture have in common: a Key but for mode, mix and vCPUs.

    What is measured without PML is a family of its own.
    """

    key: Key

    @classmethod
    def of(cls, key: Key) -> "Family":
        key = replace(key, kernel="", ept=False, tdp_mmu=False, eager=False, vcpus=0)
        key = replace(key, dirty_harvest=tables.OFF)
        return cls(replace(key, write_percent=0, phase="", iteration=None))


def _clock(machine: str) -> str:
    return "simulated time" if machine in SIMULATED else "wall-clock time"


def _versions(records: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(record["kernel_version"] for record in records))


def _grid(source: Source, table: Table) -> Grid:
    origins = [source.at(keys) for keys in table.origins]
    strong = frozenset(table.strong)
    return Grid(table.title, table.columns, table.rows, origins, table.notes, strong)


def _styles(key: Key) -> dict[Style, Key]:
    """The ungated baseline first: its markers are to lie below."""
    lazy, eager, ungated, bits = tables.Beside.keys(key)
    return {
        pictures.UNGATED: ungated,
        pictures.LAZY: lazy,
        pictures.EAGER: eager,
        pictures.BITS: bits,
    }


def _without_parameters(keys: Iterable[Key]) -> list[Key]:
    """As if what can be changed at run time had not been."""
    return [replace(key, eager=False, dirty_harvest=tables.OFF) for key in keys]


def _panel(source: Source, like: Key, row: Row) -> tuple[Panel, list[Key]]:
    """Times of ROW over the vCPUs for the machine, mode and mix of LIKE, and where from."""
    at = replace(like, phase=row.phase, iteration=row.iteration, kernel="series")
    found = _without_parameters(source.measured)
    counts = sorted({key.vcpus for key in found if replace(key, vcpus=0) == at})
    drawn: dict[Style, Points] = {}
    used: list[Key] = []
    for style in _styles(at):
        keys = [_styles(replace(at, vcpus=n))[style] for n in counts]
        keys = [key for key in keys if key in source.measured]
        if keys:
            drawn[style] = [(key.vcpus, source.measured[key][0].seconds * 1e3) for key in keys]
            used += keys
    mode = tables.paging_of(like)
    mix = _mix(like.write_percent)
    over = ("N/Y", pictures.LAZY)
    if row is FIRST_CLEAR:
        over = (tables.RATIO_OF_UNGATED, pictures.UNGATED)
    return Panel(f"{mode}, {mix}{_gain(drawn, *over)}", "vCPUs", drawn), used


def _gain(drawn: dict[Style, Points], name: str, style: Style) -> str:
    """How many times longer STYLE takes than Y where there are most vCPUs."""
    if not {style, pictures.EAGER} <= drawn.keys():
        return ""
    other, eager = dict(drawn[style]), dict(drawn[pictures.EAGER])
    most = max(other.keys() & eager.keys(), default=0)
    return f": {name} = {tables.ratio(other[most], eager[most])} at {most:g} vCPUs" if most else ""


def _dimensions(source: Source, used: Sequence[Key]) -> str:
    """What a picture's measurements have in common, and who measured them."""
    key = used[0]
    versions = _versions(line.record for line in source.at(used))
    init = "" if key.initially_all_set else "without "
    return (
        f"{key.machine} ({_clock(key.machine)}), kernels {versions}, tdp_mmu=N,"
        f" {tables.size(key.bytes_per_vcpu)} per vCPU, {key.backing}, {init}initially-all-set"
    )


WHAT_BITS_DO = (
    " With Dirty bits no write is a fault at all, so that curve is the time without logging."
)


def _over_vcpus(source: Source, family: Family, row: Row, name: str, mixes: list[int]) -> Block:
    """A picture with a row of panels for each paging mode and a column for each of MIXES."""
    drawn: list[list[Panel]] = []
    used: list[Key] = []
    for ept in (True, False) if family.key.pml else (True,):
        panels = []
        for mix in mixes:
            like = replace(family.key, ept=ept, write_percent=mix)
            panel, keys = _panel(source, like, row)
            panels.append(panel)
            used += keys
        if all(panel.curves for panel in panels):
            drawn.append(panels)
    label = f"{row.label} over vCPUs"
    unit = "simulated ms" if family.key.machine in SIMULATED else "ms"
    if row is FIRST_CLEAR:
        drawn = [[panel for panels in drawn for panel in panels]]
        reading = (
            "This is where eager splitting does its work (once per migration), so Y lies above N;"
            " the further Y lies below the ungated baseline's squares, the cheaper a split is."
        )
    else:
        reading = (
            "The line of N climbs with the number of vCPUs because each fault waits for the"
            " exclusive lock; where Y is flat and far below it, running vCPUs do not pay for"
            " splitting. Each step of the left axis is a factor of ten."
        )
        if any(pictures.BITS in panel.curves for panels in drawn for panel in panels):
            reading += WHAT_BITS_DO
    return Picture(
        name,
        label,
        pictures.curves(name, drawn, f"{row.label}, {unit}"),
        _dimensions(source, used),
        reading,
        source.at(used),
    )


def _families(source: Source) -> dict[Family, list[int]]:
    """What can be drawn over vCPUs, with its write percentages: those of EPT off and on."""
    found: dict[Family, list[int]] = {}
    for key in source.measured:
        if key.kernel == "series" and not key.tdp_mmu:
            mixes = found.setdefault(Family.of(key), [])
            if key.write_percent not in mixes:
                mixes.append(key.write_percent)
    return found


def _family_blocks(source: Source, family: Family, mixes: list[int], number: int) -> list[Block]:
    ends = f"-{number}" if number else ""
    row = tables.headline(family.key.initially_all_set)
    found: list[Block] = [_over_vcpus(source, family, row, f"dirty{ends}", mixes[:3])]
    if family.key.initially_all_set:
        found.append(_over_vcpus(source, family, FIRST_CLEAR, f"clear{ends}", mixes[:1]))
    return found


def bench_pictures(sources: Sources) -> Section:
    """Dirty time and first CLEAR over vCPUs, N against Y against the ungated baseline."""
    section = Section("vcpus", "Over the number of vCPUs", [])
    source = sources.get("bench")
    if source is None:
        section.blocks.append(Missing("tables and pictures of N beside Y", "make bench"))
        return section
    for number, (family, mixes) in enumerate(_families(source).items()):
        section.blocks.extend(_family_blocks(source, family, mixes, number))
    if not section.blocks:
        command = "make bench ARGS='--kernel series'"
        section.blocks.append(Missing("figures of the series with tdp_mmu=N", command))
    return section


def verdicts(sources: Sources) -> Section:
    """Whether the series reaches what it is judged by."""
    section = Section("verdicts", "Goals and bounds", [])
    source = sources.get("bench")
    if source is not None:
        found = source.measurements
        judged = (bounds.table(found), tables.goals_table(found))
        section.blocks.extend(_grid(source, table) for table in judged if table)
    if not section.blocks:
        section.blocks.append(Missing("the cases that have goals", "make bench"))
    return section


def _mails_for(source: Source, table: Table) -> list[Grid]:
    key = next(key for keys in table.origins for key in keys if key in source.measured)
    if key.tdp_mmu:
        return []
    return quoted.tables(key.ept, key.write_percent, key.initially_all_set)


def bench_tables(sources: Sources) -> Section:
    """Every table of `make bench`, the mails' beside it."""
    section = Section("tables", "Tables, the mails' beside ours", [])
    source = sources.get("bench")
    if source is None:
        section.blocks.append(Missing("the tables", "make bench"))
        return section
    note = "figures are milliseconds; " + _clock(source.measurements[0].machine)
    for table in tables.main_tables(source.measurements):
        grid = _grid(source, table)
        section.blocks.append(replace(grid, notes=[*grid.notes, note]))
        section.blocks.extend(_mails_for(source, table))
    base = tables.base_table(source.measurements)
    if base is not None:
        section.blocks.append(_grid(source, base))
    return section


@dataclass(frozen=True)
class LiveRun:
    """The lines of one run in a live file."""

    timeline: Line
    kinds: list[Line]
    dips: list[Line]

    @property
    def style(self) -> Style:
        record = self.timeline.record
        if record["kernel"] == "peer":
            return pictures.UNGATED
        return pictures.EAGER if record["eager"] else pictures.LAZY

    def phases(self, kind: str) -> list[Line]:
        return [line for line in self.kinds if line.record["kind"] == kind]


def _runs(source: Source, ept: bool) -> list[LiveRun]:
    """N, Y, and the ungated baseline, as far as they are there."""
    found = []
    for timeline in source.of("timeline"):
        me = _same_run(timeline)
        parts = [[o for o in source.of(name) if _same_run(o) == me] for name in ("kind", "dip")]
        if timeline.record["ept"] == ept:
            found.append(LiveRun(timeline, *parts))
    order = (pictures.LAZY, pictures.EAGER, pictures.UNGATED)
    return sorted(found, key=lambda run: order.index(run.style))


def _same_run(line: Line) -> tuple[Any, ...]:
    return tuple(line.record[name] for name in ("machine", "kernel", "ept", "tdp_mmu", "eager"))


def _timeline(run: LiveRun) -> Timeline:
    record = run.timeline.record
    phases = [
        (p["phase"], p["begin_us"], p["begin_us"] + p["seconds"] * 1e6)
        for p in (line.record for line in run.phases("writer"))
    ]
    return Timeline(
        run.style.label,
        run.style,
        record["window_us"],
        # The last window ends before its time.
        record["writer_accesses"][:-1],
        record["reader_accesses"][:-1],
        phases,
    )


def _exceeding(run: LiveRun, kind: str) -> Points:
    """Latency in seconds -> share of accesses that took as long or longer, while logging was on.

    Latencies are the upper ends of the histogram's buckets, so at most an eighth too long.
    """
    ticks: dict[int, int] = {}
    for line in run.phases(kind):
        if line.record["phase"] in STALL_PHASES:
            for end, count in line.record["histogram"]:
                ticks[end] = ticks.get(end, 0) + count
    left = total = sum(ticks.values())
    points = []
    for end, count in sorted(ticks.items()):
        points.append((end / 1e3 / run.timeline.record["tsc_khz"], left / total))
        left -= count
    return points


def _live_dimensions(runs: Sequence[LiveRun]) -> str:
    record = runs[0].timeline.record
    readers = record["readers"]
    return (
        f"{record['machine']} ({_clock(record['machine'])}), kernels"
        f" {_versions(run.timeline.record for run in runs)},"
        f" {tables.paging(record['machine'], record['ept'])}, tdp_mmu=N,"
        f" {record['vcpus'] - readers} writers ({record['write_percent']}% writes) and"
        f" {readers} reader, {tables.size(record['bytes_per_vcpu'])} per vCPU,"
        f" {record['backing']}"
    )


def _timeline_picture(runs: Sequence[LiveRun], mode: str) -> Picture:
    name = f"timeline-{mode}"
    origins = [run.timeline for run in runs] + [o for run in runs for o in run.phases("writer")]
    return Picture(
        name,
        f"Throughput while logging comes and goes, {mode.replace('ept', 'ept=')}",
        pictures.timelines(name, [_timeline(run) for run in runs]),
        _live_dimensions(runs),
        "Left of the first line, where logging is enabled, is full speed; the deeper a curve falls"
        " after a CLEAR and the longer it stays down, the worse is the cliff that a guest falls off"
        " when its migration starts.",
        tuple(origins),
    )


def _stall_picture(runs: Sequence[LiveRun], mode: str) -> Picture:
    name = f"stalls-{mode}"
    panels = []
    for kind, title in (("writer", "writers"), ("reader", "reader of unmapped pages")):
        # The ungated baseline first, since it is drawn wider.
        below = sorted(runs, key=lambda run: run.style is not pictures.UNGATED)
        drawn = {run.style: _exceeding(run, kind) for run in below}
        label = "time that an access takes, simulated"
        panels.append(Panel(title, label, {s: p for s, p in drawn.items() if p}))
    origins = [o for run in runs for o in run.kinds if o.record["phase"] in STALL_PHASES]
    return Picture(
        name,
        f"How long accesses stall while logging is on, {mode.replace('ept', 'ept=')}",
        pictures.stalls(name, panels),
        _live_dimensions(runs),
        "At a height of 0.001 is what one access in a thousand took or exceeded, so further left"
        " and down is better; the marker at a curve's end is the longest stall (to within an"
        " eighth).",
        tuple(origins),
    )


def _longest_table(runs: Sequence[LiveRun], mode: str) -> Grid:
    """The longest stall in each phase of the host's actions, by kind of vCPU."""
    columns = tuple(run.style.label for run in runs)
    rows: list[tuple[str, ...]] = []
    origins: list[tuple[Line, ...]] = []
    for kind in ("writer", "reader"):
        by_phase: dict[tuple[str, int | None], list[Line]] = {}
        for run in runs:
            for line in run.phases(kind):
                if line.record["phase"] != "populate":
                    at = line.record["phase"], line.record["iteration"]
                    by_phase.setdefault(at, []).append(line)
        for (phase, iteration), lines in by_phase.items():
            longest = (f"{line.record['longest_us'] / 1e3:.3f}" for line in lines)
            rows.append((f"{kind}, {phase} {iteration or ''}".strip(), *longest))
            origins.append(tuple(lines))
    title = f"Longest stall of any access, ms, {mode.replace('ept', 'ept=')}"
    notes = ["an access counts in the phase in which it began", tables.LOCKSTEP]
    return Grid(title, ("", *columns), rows, origins, notes)


def _live_blocks(source: Source, ept: bool) -> list[Block]:
    runs = _runs(source, ept)
    if not runs:
        return []
    mode = f"ept{'Y' if ept else 'N'}"
    return [
        _timeline_picture(runs, mode),
        _stall_picture(runs, mode),
        _longest_table(runs, mode),
    ]


def live(sources: Sources) -> Section:
    """Timelines and stalls."""
    section = Section("live", "What running vCPUs feel", [])
    source = sources.get("live")
    if source is not None:
        section.blocks.extend(_live_blocks(source, True) + _live_blocks(source, False))
    if not section.blocks:
        section.blocks.append(Missing("timelines and stalls", "make bench WHAT=live"))
    return section


def _cost_panel(title: str, label: str, over: str, records: Sequence[Any]) -> Panel:
    """Instructions over the value that is called OVER, with EPT and with shadow paging."""
    drawn: dict[Style, Points] = {}
    for style, ept in ((pictures.EPT, True), (pictures.SHADOW, False)):
        own = [one for one in records if one["ept"] == ept]
        if own:
            drawn[style] = sorted((one[over], one["instructions"]) for one in own)
    return Panel(title, label, drawn)


def _cost_panels(records: Sequence[Any]) -> list[Panel]:
    """Over the memory of one vCPU, and over vCPUs with the commonest memory each."""
    sizes = [one["mib_per_vcpu"] for one in records]
    common = max(sizes, key=lambda size: (sizes.count(size), -size))
    single = [one for one in records if one["vcpus"] == 1]
    many = [one for one in records if one["mib_per_vcpu"] == common]
    return [
        _cost_panel("one vCPU", "MiB", "mib_per_vcpu", single),
        _cost_panel(f"{common} MiB per vCPU", "vCPUs", "vcpus", many),
    ]


def cost_picture(records: Sequence[Any]) -> str:
    """The picture of what one split costs, as SVG; RECORDS are the lines of `lab cost`."""
    return pictures.costs("cost", _cost_panels(records), "instructions per 2 MiB", COST_LIMIT)


def cost(sources: Sources) -> Section:
    """Instructions under the lock for one split."""
    section = Section("cost", "What one split costs", [])
    source = sources.get("cost")
    if source is None:
        section.blocks.append(Missing("the cost of one split", "make bench WHAT=cost"))
        return section
    records = [line.record for line in source.lines]
    machine = records[0]["machine"]
    section.blocks.append(
        Picture(
            "cost",
            "Instructions under mmu_lock for each huge page split",
            cost_picture(records),
            f"{machine} ({_clock(machine)}: {IPS // 1_000_000} instructions are a microsecond),"
            " kernel series, eager_page_split=Y, tdp_mmu=N, anonymous_hugetlb_2mb,"
            " without initially-all-set",
            "A flat line means that a split costs the same however much memory and however many"
            " vCPUs there are; it is to stay below the dotted line.",
            source.lines,
        )
    )
    columns = ("mode", "vCPUs", "MiB", "huge pages", "instructions per page", "longest hold, ms")
    rows = [
        (
            tables.paging(one["machine"], one["ept"]),
            str(one["vcpus"]),
            str(one["vcpus"] * one["mib_per_vcpu"]),
            str(one["pages"]),
            str(one["instructions"]),
            f"{one['longest_ns'] / 1e6:.2f}",
        )
        for one in records
    ]
    notes = ["no thread waits for the lock in these runs, so it is not given up", tables.LOCKSTEP]
    origins = [(line,) for line in source.lines]
    section.blocks.append(Grid("Cost of a split of 2 MiB", columns, rows, origins, notes))
    return section


def _mix(write_percent: int) -> str:
    return "all writes" if write_percent == 100 else f"{write_percent}% writes"


def _lock_panels(records: Sequence[Any]) -> list[list[Panel]]:
    """The share that waits over vCPUs: a row for each mode, a column for each mix."""
    found: list[list[Panel]] = []
    for ept in (True, False):
        row = []
        for mix in dict.fromkeys(one["write_percent"] for one in records):
            drawn: dict[Style, Points] = {}
            for style, eager in ((pictures.LAZY, False), (pictures.EAGER, True)):
                wanted = (ept, mix, eager)
                own = [o for o in records if (o["ept"], o["write_percent"], o["eager"]) == wanted]
                if own:
                    drawn[style] = sorted((one["vcpus"], _waiting(one)) for one in own)
            row.append(Panel(f"ept={'Y' if ept else 'N'}, {_mix(mix)}", "vCPUs", drawn))
        if all(panel.curves for panel in row):
            found.append(row)
    return found


def _waiting(record: Any) -> float:
    """Percent of the vCPUs' processor time that they wait for the lock."""
    return 100 * float(record["wait_seconds"]) / float(record["vcpu_seconds"])


def _lock_row(one: Any) -> tuple[str, ...]:
    return (
        f"{tables.paging(one['machine'], one['ept'])}, {_mix(one['write_percent'])}",
        str(one["vcpus"]),
        str(one["cpus"]),
        "Y" if one["eager"] else "N",
        f"{_waiting(one):.1f}%",
        str(one["waits"]),
        f"{one['longest_wait_seconds'] * 1e3:.3f}",
        tables.milliseconds(one["untraced_seconds"]),
        tables.milliseconds(one["seconds"]),
    )


def _lock_dimensions(one: Any) -> str:
    return (
        f"{one['machine']} ({_clock(one['machine'])}), kernel {one['kernel']}, tdp_mmu=N,"
        f" {tables.size(one['bytes_per_vcpu'])} per vCPU, {one['backing']}, initially-all-set,"
        f" {one['phase']} {one['iteration']}"
    )


def lock(sources: Sources) -> Section:
    """How much of their time vCPUs wait for the lock."""
    section = Section("lock", "Who waits for mmu_lock", [])
    source = sources.get("lock")
    if source is None:
        section.blocks.append(Missing("the lock profile", "make bench WHAT=lock"))
        return section
    records = [line.record for line in source.lines]
    label = "% of vCPU time spent waiting"
    if panels := _lock_panels(records):
        drawn = pictures.curves("lock", panels, label, whole=100)
        reading = (
            "The higher the line, the more of what vCPUs do is waiting for each other: N comes"
            " close to all of it with many vCPUs, Y is to stay low wherever pages are split"
            " ahead and written without a fault."
        )
        title = "Time that vCPUs wait for mmu_lock while they dirty memory"
        dimensions = _lock_dimensions(records[0])
        section.blocks.append(Picture("lock", title, drawn, dimensions, reading, source.lines))
    columns = ("mode", "vCPUs", "CPUs", "eager", "waiting", "waits", "longest, ms", "dirty, ms")
    rows = [_lock_row(one) for one in records]
    notes = [
        "dirty: the phase without tracing, and with it; all else was measured with tracing",
        *([tables.LOCKSTEP] if records[0]["machine"] in SIMULATED else []),
    ]
    origins = [(line,) for line in source.lines]
    section.blocks.append(Grid("Lock profile", (*columns, "traced, ms"), rows, origins, notes))
    return section


# What has both ways of logging over write percentages, the first that there is.
TRADEOFF_SOURCES = ("crossover", "bench")
GIB = 1 << 30
SIZES_GIB = (1, 4, 16, 64, 256, 1024)
COMPUTED = "computed, not measured: the time per page of the measured VM, times the pages"
ROUND_COLUMNS = ("dirty", "GET", "CLEAR", "sum")
WHAT_IS_A_ROUND = (
    "a round: all vCPUs go through their memory once, GET, CLEAR; the second one is shown,"
    " eager_page_split=Y"
)


WHAT_IS_CHEAPER = (
    "D cheaper: by the time that passes; by CPU time: of all vCPUs and the thread that asks"
)


def tradeoff_tables(measurements: Iterable[Measurement]) -> list[Table]:
    """A round with write protection beside one with Dirty bits, and what a page costs."""
    times = {one.key: one.seconds for one in measurements}
    found = tradeoff.of_one_vm(tradeoff.find(times))
    return [_round_table(found), _page_table(found)] if found else []


def _round_table(found: Sequence[Tradeoff]) -> Table:
    both = (*ROUND_COLUMNS, *(f"D: {name}" for name in ROUND_COLUMNS))
    columns = ("mode", "writes", *both, "wp/D")
    table = Table("A round with write protection, and with Dirty bits (D)", columns)
    table.notes += [WHAT_IS_A_ROUND, f"milliseconds; {_vm(found[0].like)}"]
    for mode in found:
        for one, other in mode.pairs:
            times = [t for o in (one, other) for t in (o.dirty, o.get, o.clear, o.total)]
            cells = (*map(tables.milliseconds, times), tables.ratio(one.total, other.total))
            label = tables.paging_of(mode.like)
            table.rows.append((label, f"{one.write_percent}%", *cells))
            table.origins.append((*one.keys, *other.keys))
    return table


def _page_table(found: Sequence[Tradeoff]) -> Table:
    """What the thread that asks for the log pays, and vCPUs, per page of 4 KiB."""
    unit = "instructions" if found[0].like.machine in SIMULATED else "ns"
    scale = IPS if unit == "instructions" else 1e9
    phases = ROUND_COLUMNS[:-1]
    both = (*phases, *(f"D: {name}" for name in phases))
    columns = ("mode", "writes", *both, "D cheaper", "by CPU time")
    table = Table(f"The same per page that there is, {unit}", columns)
    table.notes += [WHAT_IS_CHEAPER, f"all vCPUs at once; {_vm(found[0].like)}"]
    for mode in found:
        for one, other in (mode.pairs[0], mode.pairs[-1]):
            times = [t for o in (one, other) for t in (o.dirty, o.get, o.clear)]
            cells = (f"{seconds * scale / mode.pages:.1f}" for seconds in times)
            label = tables.paging_of(mode.like)
            cheaper = (_crossing(mode.crossing()), _crossing(mode.crossing(mode.like.vcpus)))
            table.rows.append((label, f"{one.write_percent}%", *cells, *cheaper))
            table.origins.append((*one.keys, *other.keys))
    return table


def _crossing(percent: float | None) -> str:
    """From which write percentage on Dirty bits are cheaper."""
    if percent is None:
        return "never"
    return "always" if percent == 0 else f"from {percent:.2g}% on"


def _vm(like: Key) -> str:
    return f"{like.vcpus} vCPUs x {tables.size(like.bytes_per_vcpu)}, {like.backing}"


def _tradeoff_dimensions(source: Source, found: Sequence[Tradeoff]) -> str:
    like = found[0].like
    versions = _versions(line.record for line in source.at(found[0].protected[0].keys))
    return (
        f"{like.machine} ({_clock(like.machine)}), kernel {versions}, {_vm(like)},"
        " initially-all-set, eager_page_split=Y, second round"
    )


def _tradeoff_picture(source: Source, found: Sequence[Tradeoff]) -> Picture:
    """A round over the write percentage, a panel for each mode."""
    panels = []
    for mode in found:
        drawn: dict[Style, Points] = {}
        for style, rounds in ((PROTECTED, mode.protected), (HARVESTED, mode.bits)):
            drawn[style] = [(one.write_percent, one.total * 1e3) for one in rounds]
        title = f"{tables.paging_of(mode.like)}\nDirty bits cheaper {_crossing(mode.crossing())}"
        panels.append(Panel(title, "% of pages written", drawn, x_zero=True))
    simulated = found[0].like.machine in SIMULATED
    return Picture(
        "crossover",
        "A round of dirty logging over what is written",
        pictures.curves(
            "crossover", [panels], f"dirty + GET + CLEAR, {'simulated ' if simulated else ''}ms"
        ),
        _tradeoff_dimensions(source, found),
        "Left of where the curves cross so little is written that a few faults are cheaper than a"
        " look at all pages; right of it the gap is what faults cost, which vCPUs pay.",
        source.at(key for mode in found for pair in mode.pairs for one in pair for key in one.keys),
    )


def _memory_picture(source: Source, found: Sequence[Tradeoff]) -> Picture:
    """A round over the VM's memory, little and all of it written: computed."""
    panels = []
    used: list[Key] = []
    for mode in found:
        little = next(i for i, one in enumerate(mode.protected) if one.write_percent > 0)
        drawn: dict[Style, Points] = {}
        for index, hollow in ((-1, False), (little, True)):
            for style, rounds in ((PROTECTED, mode.protected), (HARVESTED, mode.bits)):
                one = rounds[index]
                label = f"{style.label}, {_mix(one.write_percent)}"
                like = replace(style, label=label, hollow=hollow)
                drawn[like] = [(gib, mode.seconds(one, gib * GIB)) for gib in SIZES_GIB]
                used += one.keys
        panels.append(Panel(tables.paging_of(mode.like), "GiB of memory", drawn))
    simulated = "simulated " if found[0].like.machine in SIMULATED else ""
    return Picture(
        "crossover-memory",
        "The same over memory, computed",
        pictures.curves("crossover-memory", [panels], f"dirty + GET + CLEAR, {simulated}s"),
        f"{COMPUTED}. {_tradeoff_dimensions(source, found)}",
        "Both grow with memory alike, so the share that is written decides, not the size: where the"
        " hollow markers are close to each other, Dirty bits and faults cost the same.",
        source.at(used),
    )


def dirty_bits(sources: Sources) -> Section:
    """What it costs to log by Dirty bits, against write protection."""
    section = Section("dirty-bits", "Dirty bits against write protection", [])
    for kind in TRADEOFF_SOURCES:
        source = sources.get(kind)
        found = tradeoff.of_one_vm(tradeoff.find(source.times)) if source else []
        if source and found:
            section.blocks.append(_tradeoff_picture(source, found))
            section.blocks.append(_memory_picture(source, found))
            compared = tradeoff_tables(source.measurements)
            section.blocks.extend(_grid(source, table) for table in compared)
            return section
    section.blocks.append(
        Missing("dirty_harvest=on beside off, over writes", "make bench WHAT=crossover")
    )
    return section


SECTIONS: tuple[Callable[[Sources], Section], ...] = (
    verdicts,
    bench_pictures,
    bench_tables,
    dirty_bits,
    live,
    migration.section,
    cost,
    lock,
)


def build(sources: Sources) -> list[Section]:
    """Every section, in order. LabError: a line that lacks what its kind of file has."""
    found = []
    for section in SECTIONS:
        try:
            found.append(section(sources))
        except (KeyError, TypeError) as error:
            names = ", ".join(source.name for source in sources.values())
            what = f"{section.__name__}: {names}: a line is not as docs/results-format.md says"
            raise LabError(f"{what}: {error!r}") from error
    return found
