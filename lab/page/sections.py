# SPDX-License-Identifier: GPL-2.0-only
"""What the report says: one entry in PARTS for each section; the larger have a module.

To add a section, name it there with a function that makes its blocks of a file of results; for a
new kind of file, name that in files.KINDS as well.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from lab.core.errors import LabError
from lab.machines.bochs import IPS
from lab.machines.paging import Mode
from lab.page import (
    answers,
    compared,
    dimensions,
    dirty_bits,
    live,
    migration,
    native,
    phases,
    pictures,
    tracking,
)
from lab.page.compared import mode_name
from lab.page.model import Block, Grid, Missing, Part, Picture, Section, grid
from lab.page.pictures import Panel, Point, Points, Style
from lab.results import goals, notation, tables
from lab.results.jsonl import Key
from lab.results.sources import Bases, Line, Source, Sources
from lab.results.table import Table
from lab.results.tables import ENABLING, FIRST_CLEAR, Row

# The call in which eager splitting does its work.
SPLITTING = (FIRST_CLEAR, ENABLING)
Made = TypeVar("Made")
# How many instructions a split of 2 MiB may take with mmu_lock held.
COST_LIMIT = 5000


def _family(key: Key) -> Key:
    """What the panels of a picture have in common: KEY without paging mode, write mix and vCPUs.

    Measurements without PML are a family of their own.
    """
    key = replace(key, kernel="", ept=False, tdp_mmu=False, eager=False, vcpus=0)
    return replace(key, dirty_bits=notation.OFF, write_percent=0, phase="", iteration=None)


def _styles(key: Key) -> dict[Style, Key]:
    """The measurements to draw, by style. The baseline comes first, so that others cover it."""
    lazy, eager, ungated, bits = tables.sides(key).values()
    below = pictures.BASELINE[ungated.kernel]
    found = {below: ungated, pictures.FIRST_WRITE: lazy, pictures.EAGER: eager}
    return {pictures.LAZY: replace(lazy, kernel="base"), **found, pictures.BITS: bits}


def _near(key: Key) -> tuple[object, ...]:
    """Some of what a panel's measurements have in common."""
    return key.phase, key.iteration, key.kernel, key.ept, key.tdp_mmu, key.write_percent


def _panel(source: Source, like: Key, row: Row) -> tuple[Panel, list[Key]]:
    """A panel: times of ROW over vCPUs, in the mode and mix of LIKE; and their measurements."""
    at = replace(like, phase=row.phase, iteration=row.iteration, kernel="series")
    # Of thousands of measurements look closely at these only.
    near = [key for key in source.measured if _near(key) == _near(at)]
    # Ignore settings that can be changed at run time.
    usual: dict[str, Any] = {"eager": False, "dirty_bits": notation.OFF, "vcpus": 0}
    counts = sorted({key.vcpus for key in near if replace(key, **usual) == at})
    drawn: dict[Style, Points] = {}
    used: list[Key] = []
    for style in _styles(at):
        keys = [_styles(replace(at, vcpus=n))[style] for n in counts]
        keys = [key for key in keys if key in source.measured]
        if keys:
            drawn[style] = [
                Point(key.vcpus, source.measured[key].measurement.seconds * 1e3, source.at([key]))
                for key in keys
            ]
            used += keys
    mode = mode_name(like.machine, like.mode)
    mix = notation.writes(like.write_percent)
    over = pictures.LAZY if pictures.LAZY in drawn else pictures.FIRST_WRITE
    if row in SPLITTING:
        over = pictures.BASELINE[tables.sides(at)["U"].kernel]
    title = f"{mode}, {mix}{_gain(drawn, over)}"
    return Panel(title, "vCPUs", drawn, mode=mode), used


def _gain(drawn: dict[Style, Points], style: Style) -> str:
    """How many times as long as Y STYLE takes with the largest number of vCPUs."""
    if not {style, pictures.EAGER} <= drawn.keys():
        return ""
    other, eager = ({p.x: p.y for p in drawn[one]} for one in (style, pictures.EAGER))
    most = max(other.keys() & eager.keys(), default=0)
    times = notation.ratio(other[most], eager[most]) if most else ""
    return f": {style.short} takes {times} times as long as Y with {most:g} vCPUs" if most else ""


def _growth(panel: Panel) -> str:
    """How each curve grows from the fewest vCPUs to the most."""
    said = []
    for style, points in panel.curves.items():
        first, last = min(points), max(points)
        times = " to ".join(dict.fromkeys(f"{pictures.number(p.y)}" for p in (first, last)))
        alone = f" with {first.x:g} vCPUs, the only number" if len(points) == 1 else ""
        said.append(f"{style.short}: {times} ms{alone}")
    counts = sorted({point.x for points in panel.curves.values() for point in points})
    load = panel.title.partition(":")[0]
    return f"From {counts[0]:g} to {counts[-1]:g} vCPUs, {load}: {'; '.join(said)}."


def _has_several(panel: Panel) -> bool:
    """Whether a panel has different numbers of vCPUs. Tables have what was measured with one."""
    return len({point.x for points in panel.curves.values() for point in points}) > 1


def _over_vcpus(
    source: Source, family: Key, row: Row, name: str, mixes: list[int]
) -> Picture | None:
    """A chart for each paging mode and each of MIXES; None if there is only one number of vCPUs."""
    drawn: list[Panel] = []
    used: list[Key] = []
    for ept, tdp_mmu in ((True, False), (False, False), (True, True)):
        for mix in mixes:
            like = replace(family, ept=ept, tdp_mmu=tdp_mmu, write_percent=mix)
            panel, keys = _panel(source, like, row)
            if _has_several(panel):
                drawn.append(panel)
                used += keys
    if not drawn:
        return None
    said = row.label if row in SPLITTING else phases.FIRST_WRITES
    label = f"{said[0].upper()}{said[1:]} over vCPUs"
    unit = f"{dimensions.simulated(family.machine)}ms"
    within = pictures.limits(drawn)
    return Picture(
        name,
        label,
        [pictures.curve(panel, f"{said}, {unit}", within=within) for panel in drawn],
        dimensions.of([line.record for line in source.at(used)]),
        _growth(drawn[0]),
        source.name,
    )


def _families(source: Source) -> dict[Key, list[int]]:
    """The families to draw over vCPUs, and the write percentages that all of their modes have."""
    found: dict[Key, list[int]] = {}
    for key in source.measured:
        if key.kernel == "series" and key.pattern == notation.PAGES and key.cycle == 1:
            mixes = found.setdefault(_family(key), [])
            if key.write_percent not in mixes:
                mixes.append(key.write_percent)
    return found


def _bench_pictures(source: Source) -> list[Block]:
    """Pictures of dirty time and first CLEAR over vCPUs: N, Y and the ungated baseline."""
    found: list[Picture | None] = []
    for number, (family, mixes) in enumerate(_families(source).items()):
        ends = f"-{number}" if number else ""
        row = tables.headline(family.initially_all_set)
        found.append(_over_vcpus(source, family, row, f"dirty{ends}", mixes[:3]))
        name, splits = ("clear", FIRST_CLEAR) if family.initially_all_set else ("enable", ENABLING)
        found.append(_over_vcpus(source, family, splits, f"{name}{ends}", mixes[:1]))
    return [picture for picture in found if picture]


def _calls(source: Source) -> list[Block]:
    """What the calls of the migrating thread take, a chart for each paging mode."""
    found = compared.first(source.measurements)
    charts = [answers.calls_chart(source, found, mode) for mode in found.modes] if found else []
    shown = [chart for chart in charts if chart]
    if not shown or not found:
        return []
    lines = [line.record for chart in shown for datum in chart.data for line in datum.lines]
    said = dimensions.of(lines, f"{found.written} written")
    return [Picture("calls-by-mode", CALLS, shown, said, WHAT_CALLS_ARE, source.name)]


def _better_and_worse(source: Source) -> list[Block]:
    return [*phases.blocks(source), *_calls(source)]


def _verdicts(source: Source) -> list[Block]:
    judged = goals.table(source.measurements)
    return [grid(judged, source)] if judged else []


def _bench_tables(source: Source) -> list[Block]:
    """All tables of `make bench`."""
    blocks: list[Block] = []
    note = "figures are milliseconds; " + dimensions.clock(source.measurements[0].machine)
    for table in tables.main_tables(source.measurements):
        table.notes.append(note)
        blocks.append(grid(table, source))
    others = (tables.memory_table(source.measurements), tables.base_table(source.measurements))
    return [*blocks, *(grid(table, source) for table in others if table)]


def _cycles(source: Source) -> list[Block]:
    """Cycles side by side. The goal is among all goals, unless the file has nothing else."""
    table = tables.cycles_table(source.measurements)
    if not table:
        return []
    clock = dimensions.clock(source.measurements[0].machine)
    table.notes.append(f"figures are milliseconds; {clock}")
    return [grid(table, source), *(_verdicts(source) if source.kind == "cycles" else [])]


def cost_table(records: Iterable[Any]) -> Table:
    """A row for each line of `lab cost`."""
    columns = ("mode", "vCPUs", "MiB", "huge pages", "instructions per page", "longest hold, ms")
    notes = ["no thread waits for the lock in these runs, so it is not dropped", notation.LOCKSTEP]
    table = Table("Cost of a split of 2 MiB", columns, notes=notes, labels=3)
    for one in records:
        mode = mode_name(one["machine"], Mode(one["ept"]))
        mib = one["vcpus"] * one["mib_per_vcpu"]
        counts = (one["vcpus"], mib, one["pages"], one["instructions"])
        table.add(mode, *map(str, counts), f"{one['longest_ns'] / 1e6:.2f}")
    return table


def _cost(source: Source) -> list[Block]:
    records = [line.record for line in source.lines]
    shown = cost_table(records)
    said = dimensions.of(
        records,
        f"{IPS // 1_000_000} instructions are a microsecond",
        *("eager_page_split=Y", "tdp_mmu=N", "anonymous_hugetlb_2mb"),
        "without initially-all-set",
    )
    shown.notes.append(f"{said}; to stay below {COST_LIMIT} however much memory and many vCPUs")
    return [Grid(shown, [(line,) for line in source.lines], folded=False)]


class LockRun(NamedTuple):
    """What a line of `lab lockprofile` is about, except for the number of vCPUs."""

    mode: str
    write_percent: int
    eager: bool


def _lock_run(record: Any) -> LockRun:
    return LockRun(dimensions.mode(record), record["write_percent"], record["eager"])


def _lock_panel(lines: Sequence[Line]) -> Panel:
    """The share of time that waits over vCPUs, N and Y. LINES are of one paging mode and mix."""
    drawn: dict[Style, Points] = {}
    for style, eager in ((pictures.FIRST_WRITE, False), (pictures.EAGER, True)):
        mine = [line for line in lines if line.record["eager"] == eager]
        mine.sort(key=lambda line: int(line.record["vcpus"]))
        if mine:
            drawn[style] = [Point(o.record["vcpus"], _waiting(o.record), (o,)) for o in mine]
    one = lines[0].record
    name = mode_name(one["machine"], Mode(one["ept"], one["tdp_mmu"], one.get("pml", True)))
    title = f"{name}, {notation.writes(one['write_percent'])}"
    return Panel(title, "vCPUs", drawn, mode=name)


def _lock_panels(lines: Sequence[Line]) -> list[Panel]:
    """A panel for each mode and each mix that were measured."""
    groups: dict[LockRun, list[Line]] = {}
    for line in lines:
        groups.setdefault(_lock_run(line.record)._replace(eager=False), []).append(line)
    return [_lock_panel(mine) for mine in groups.values()]


def _waiting(record: Any) -> float:
    return 100 * float(record["wait_seconds"]) / float(record["vcpu_seconds"])


def _by_times(one: Any, records: Iterable[Any]) -> str:
    """The share of the phase, without tracing, that a single vCPU does not need.

    The machine has no caches, so in that time vCPUs wait for each other, for whatever reason. This
    only holds if each page is written, and each vCPU has a CPU: else vCPUs have different work.
    """
    same = (other for other in records if _lock_run(other) == _lock_run(one))
    alone = [other for other in same if other["vcpus"] == 1]
    if not alone or one["write_percent"] != 100 or one["vcpus"] >= one["cpus"]:
        return notation.NOTHING
    return f"{100 * (1 - alone[0]['untraced_seconds'] / one['untraced_seconds']):.1f}%"


def lock_table(records: Sequence[Any]) -> Table:
    """A row for each line of `lab lockprofile`."""
    columns = ("mode", "vCPUs", "CPUs", "eager", "waiting", "by times", "waits", "longest, ms")
    notes = [
        "waiting: share of the vCPUs' processor time that they wait for mmu_lock, in the dirty"
        " phase that is the first to pay for splitting",
        "by times, to compare with: share of the phase that a single vCPU does without",
        "dirty: the phase without tracing, and with it; all but by times was measured with tracing",
        notation.LOCKSTEP,
    ]
    table = Table("Lock profile", (*columns, "dirty, ms", "traced, ms"), notes=notes, labels=4)
    for one in records:
        mode = f"{dimensions.mode(one)}, {notation.writes(one['write_percent'])}"
        run = (mode, str(one["vcpus"]), str(one["cpus"]), "Y" if one["eager"] else "N")
        waits = (f"{_waiting(one):.1f}%", _by_times(one, records), str(one["waits"]))
        longest = f"{one['longest_wait_seconds'] * 1e3:.3f}"
        times = map(notation.milliseconds, (one["untraced_seconds"], one["seconds"]))
        table.add(*run, *waits, longest, *times)
    return table


def _waits_said(panels: Sequence[Panel]) -> str:
    """The largest share of waiting of each curve, in each paging mode and mix."""
    said = []
    for panel in panels:
        most = [
            f"{style.short} at most {pictures.number(worst.y)}% with {worst.x:g} vCPUs"
            for style, points in panel.curves.items()
            for worst in [max(points, key=lambda point: point.y)]
        ]
        said.append(f"{panel.title}: {live.joined(most)}")
    return f"The share of the vCPUs' time that is waiting for the lock. {'; '.join(said)}."


def _lock(source: Source) -> list[Block]:
    records = [line.record for line in source.lines]
    label = "% of vCPU time spent waiting"
    blocks: list[Block] = []
    if panels := _lock_panels(source.lines):
        drawn = [pictures.curve(panel, label, "%", whole=100) for panel in panels]
        title = "Time that vCPUs wait for mmu_lock while they dirty memory"
        said = dimensions.of(records, f"{records[0]['phase']} {records[0]['iteration']}")
        blocks.append(Picture("lock", title, drawn, said, _waits_said(panels), source.name))
    return [*blocks, Grid(lock_table(records), [(line,) for line in source.lines])]


BENCH = ("bench",)
CALLS = "Calls of the thread that migrates the guest"
WHAT_CALLS_ARE = (
    "With Y the first CLEAR, or enabling, takes longer, as it splits huge pages. All later calls"
    " are to be no slower than in the unpatched kernel."
)
OVER_VCPUS = (
    "The time of the unpatched kernel's writes grows with the number of vCPUs because each page"
    " fault waits for an exclusive lock. With N there is one fault for each huge page that is"
    " written. With Y, and with Dirty bits, there is none, so their curves are the time without"
    " logging. In the first CLEAR, or in enabling, Y splits (once per migration): the further it"
    " lies below the ungated baseline, the cheaper a split is."
)
NO_PICTURES = Missing("N beside Y with several numbers of vCPUs")
NO_COST = Missing("the cost of one split", "make bench WHAT=cost")
NO_PROFILE = Missing("the lock profile", "make bench WHAT=lock")
PARTS = (
    Part(
        *("phases", "What got better, and what got worse", BENCH, _better_and_worse),
        Missing("how long each phase takes"),
    ),
    Part("vcpus", "Over the number of vCPUs", BENCH, _bench_pictures, NO_PICTURES, OVER_VCPUS),
    dirty_bits.PART,
    live.PART,
    tracking.PART,
    migration.PART,
    Part("cost", "What one split costs", ("cost",), _cost, NO_COST),
    Part("lock", "Who waits for mmu_lock", ("lock",), _lock, NO_PROFILE),
    native.PART,
)
# The parts of the appendix: all tables, folded.
APPENDIX = (
    Part("verdicts", "All goals", BENCH, _verdicts, Missing("the cases that have goals")),
    Part("tables", "All tables of make bench", BENCH, _bench_tables, Missing("the tables")),
    Part(
        *("cycles", "Logging enabled again and again", (*BENCH, "cycles"), _cycles),
        Missing("what enabling, writing and disabling cost in later cycles"),
    ),
)


def _named(block: Block, base: str, *, titled: bool = True) -> Block:
    """The block with the name of its base, in its title as well if that is TITLED."""
    if isinstance(block, Picture):
        title = f"Linux {base}: {block.title}" if titled else block.title
        return replace(block, name=f"{block.name}-{base}", title=title)
    if isinstance(block, Missing):
        command = block.command.replace("make bench", f"make bench BASE={base}")
        return replace(block, what=f"{block.what}, of Linux {base}", command=command)
    table = replace(block.table, title=f"Linux {base}: {block.table.title}")
    return replace(block, table=table)


def _checked(what: str, sources: Sources, make: Callable[[], Made]) -> Made:
    """What MAKE makes of SOURCES. LabError: a line lacks a key that its kind of file has."""
    try:
        return make()
    except (KeyError, TypeError) as error:
        names = ", ".join(source.name for source in sources.values())
        said = f"{what}: {names}: a line is not as docs/results-format.md says"
        raise LabError(f"{said}: {error!r}") from error


def _section(part: Part, sources: Sources) -> Section:
    return _checked(part.anchor, sources, lambda: part.section(sources))


def _answers(base: str, sources: Sources, *, alone: bool) -> Section:
    """The first screen, of one base."""
    blocks = _checked("answers", sources, lambda: answers.of(sources))
    # Each base has pictures of these names.
    shown = blocks if alone else [_named(block, base, titled=False) for block in blocks]
    title = f"In short: Linux {base}" if base else "In short"
    return Section(f"answers-{base}", title, shown, first=True)


def _sections(parts: Iterable[Part], bases: Bases) -> Iterator[Section]:
    for part in parts:
        made = {base: _section(part, of) for base, of in (bases or {"": {}}).items()}
        blocks = [
            _named(block, base) if len(made) > 1 else block
            for base, section in made.items()
            for block in section.blocks
        ]
        yield Section(part.anchor, part.title, blocks, part.intro)


def build(bases: Bases) -> list[Section]:
    """All sections, in order. Each shows one base after the other.

    No figure is computed from two bases. Only one table shows them side by side. Raises what
    _section() raises.
    """
    alone = len(bases) < 2
    given = bases or {"": {}}
    found = [_answers(base, of, alone=alone) for base, of in given.items()]
    found += _sections(PARTS, bases)
    measured = {base: of["bench"] for base, of in bases.items() if "bench" in of}
    if table := tables.bases_table({base: one.measurements for base, one in measured.items()}):
        shown = grid(table, *measured.values())
        found.append(Section("bases", "Bases side by side", [shown]))
    return [*found, *_sections(APPENDIX, bases)]
