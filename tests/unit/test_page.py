# SPDX-License-Identifier: GPL-2.0-only
"""lab.page: the report, from small made-up results to both pages."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lab import cli
from lab.core.paths import ROOT
from lab.page import (
    answers,
    command,
    dirty_bits,
    live,
    migration,
    model,
    pictures,
    render,
    sections,
)
from lab.page.model import Grid, Missing, Picture
from lab.page.pictures import BITS, Chart, Panel, Point
from lab.results import files, jsonl, sources
from lab.results.sources import Line, Source
from lab.results.table import Table
from tests.rows import for_each_row
from tests.unit import report_data as data
from tests.unit.calls import refused


def ids_of(page: str) -> list[str]:
    """All ids. No tag is left open, nothing is loaded, no id is there twice, links lead to one."""
    # Scripts are not XML, and have text that looks like tags.
    page = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    elements = list(ElementTree.fromstring(page).iter())
    found = [(one.tag, k.rpartition("}")[2], v) for one in elements for k, v in one.items()]
    ids = [value for _, name, value in found if name == "id"]
    assert len(set(ids)) == len(ids)
    assert {f"#{one}" for one in ids} >= {value for _, name, value in found if name == "href"}
    assert not {"src", "srcset"} & {name for _, name, _ in found}
    assert not {"script", "link", "iframe"} & {one.tag.rpartition("}")[2] for one in elements}
    return ids


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of one file of every kind."""
    directory = tmp_path_factory.mktemp("report")
    command.write(data.write_all(directory / "in"), directory / "out")
    return directory / "out"


def test_every_picture_is_there_and_has_its_sentence(made: Path) -> None:
    text = (made / render.MARKDOWN).read_text()
    names = re.findall(r"!\[.*\]\((.*)\.svg\)", text)
    wanted = {
        "slowdown",
        "calls",
        "calls-by-mode",
        "dirty",
        "clear",
        "timeline-eptY",
        "stalls-eptY",
    }
    wanted |= {"migration-eptY", "lock", "crossover", "crossover-memory", "native"}
    assert {re.sub(r"-\d+$", "", name) for name in names} == wanted
    for name in names:
        drawn = ElementTree.parse(made / f"{name}.svg").getroot()
        # Viewers of Markdown may be dark.
        assert drawn[0].get("fill") == pictures.PAPER and drawn[0].get("width") == "100%"
    assert {file.stem for file in made.glob("*.svg")} == {*names}
    readings = re.findall(
        r"<figcaption>\s*<h3>.*</h3>\s*<p>(.*)</p>", (made / render.HTML).read_text()
    )
    assert len(readings) == len(wanted) and all(one.endswith(".") for one in readings)
    # No memory was counted, and there was one cycle.
    assert text.count("Not measured") == 2
    assert re.search(rf"### {re.escape(answers.MEMORY)}\n+> Not measured", text)


def test_figures_name_the_lines_that_they_come_from(made: Path) -> None:
    text = (made / render.MARKDOWN).read_text()
    row = next(one for one in text.splitlines() if one.startswith("| **dirty, iteration 2** | 4"))
    head = next(line for line in text.splitlines() if line.startswith("| ms | vCPUs | N "))
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    shown = [float(cells[name]) for name in ("N", "Y", "ungated")]
    numbers = [int(n) for n in re.findall(r"#L(\d+)\)", row)]
    lines = (made / data.BENCH).read_text().splitlines()
    records = [json.loads(lines[n - 1]) for n in numbers]
    assert [record["seconds"] * 1e3 for record in records] == pytest.approx(shown)
    kernels = [(r["kernel"], r["eager"]) for r in records]
    assert kernels == [("series", False), ("series", True), ("peer", True)]
    page = (made / render.HTML).read_text()
    # The files are numbered, the bench's is the first.
    assert {f"L0-{number}" for number in numbers} <= {*ids_of(page)}
    # And it needs nothing else.
    assert not re.search(r"<script src|@import", page)


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "to_svg", lambda _: '<svg height="1" width="1"/>')
    monkeypatch.setattr(pictures, "script", lambda: "")


@pytest.mark.usefixtures("without_pictures")
def test_every_row_with_figures_of_ours_has_an_origin(tmp_path: Path) -> None:
    found = sources.load_bases(data.write_all(tmp_path))
    grids = [b for s in sections.build(found) for b in s.blocks if isinstance(b, Grid)]
    assert len(grids) > 5
    for grid in grids:
        assert len(grid.origins) == len(grid.table.rows)
        assert all(grid.origins)


@pytest.mark.usefixtures("without_pictures")
def test_what_pictures_show_has_a_place_that_the_figures_determine(tmp_path: Path) -> None:
    found = sources.load_bases(data.write_all(tmp_path))
    shown = [b for s in sections.build(found) for b in s.blocks if isinstance(b, Picture)]
    charts = [chart for picture in shown for chart in picture.charts]
    assert len(charts) > 20
    for spec in (chart.spec for chart in charts):
        for layer in spec["layer"]:
            values = layer.get("data", spec["data"])["values"]
            for place, encoding in layer["encoding"].items():
                if place in ("x", "y"):
                    assert {*encoding} & {"field", "datum", "value"}, (spec, place)
                for one in encoding if isinstance(encoding, list) else [encoding]:
                    name = one.get("field")
                    assert place != "tooltip" or one["title"]
                    assert not (name and values) or any(name in value for value in values)


def test_the_same_results_give_the_same_bytes(made: Path, tmp_path: Path) -> None:
    command.write(data.write_all(tmp_path / "in"), tmp_path / "out")
    one, two = ({f.name: f.read_bytes() for f in d.iterdir()} for d in (made, tmp_path / "out"))
    assert one == two
    assert not re.search(rb"\b20\d\d-\d\d-\d\d", one["slowdown.svg"])


def test_what_is_missing_is_named_with_its_command() -> None:
    found = {b.command for s in sections.build({}) for b in s.blocks if isinstance(b, Missing)}
    assert {"make bench", *(f"make bench WHAT={w}" for w in ("cost", "live", "crossover"))} <= found
    assert all(isinstance(b, Missing) for s in sections.build({}) for b in s.blocks)
    assert "Not measured yet" in render.pages({}, sections.build({}))[render.HTML]


def test_the_share_that_took_longer_falls_from_all(tmp_path: Path) -> None:
    runs = live.runs(sources.load_all(data.write_all(tmp_path))["live"], True)
    points = live._exceeding(runs[0], "writer")
    # Two phases count: 1800 short, 180 longer, 5 longest ones.
    assert [p.y for p in points] == pytest.approx([1, 185 / 1985, 5 / 1985])
    assert [p.x for p in points] == pytest.approx([0.3e-6, 81.9e-6, 800e-6])


def test_the_longest_stall_of_a_phase_is_told_in_milliseconds(tmp_path: Path) -> None:
    runs = live.runs(sources.load_all(data.write_all(tmp_path))["live"], True)
    table = live._longest_table(runs).table
    assert table.columns[0] == "" and len(table.columns) == 4
    kinds = ("writer", "reader")
    phases = (
        ("before logging", "0.080"),
        ("while it is enabled", "0.081"),
        ("logging, after CLEAR 1", "0.082"),
    )
    wanted = [(f"{k}, {phase}", *[longest] * 3) for k in kinds for phase, longest in phases]
    assert table.rows == wanted
    assert table.notes[0] == "an access counts in the phase in which it began"


def test_the_tables_behind_timelines_and_stalls(tmp_path: Path) -> None:
    blocks = live.PART.section(sources.load_all(data.write_all(tmp_path))).blocks
    timeline, stalls = (block for block in blocks if isinstance(block, Picture))
    first = timeline.charts[0]
    assert [(one.what, one.at, one.value) for one in first.data] == [
        ("N: on the first write", "before logging", "400 per ms"),
        ("N: on the first write", "while it is enabled", "310 per ms"),
        ("N: on the first write", "logging, after CLEAR 1", "220 per ms"),
    ]
    # One access in a hundred takes 4,095 ticks of 20 ns or more. There are only 1,985.
    shown = [(one.at, one.value) for one in stalls.charts[0].data[:2]]
    assert shown == [("one in 100", "0.0819 ms or more"), ("the longest", "0.082 ms")]
    for chart in (*timeline.charts, *stalls.charts):
        assert chart.data and all(datum.lines for datum in chart.data)


Drawn = dict[str, list[Panel]]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Label of the axis -> the panels, in place of the charts themselves."""
    drawn: Drawn = {}

    def curve(panel: Panel, label: str, *_: object, **__: object) -> Chart:
        drawn.setdefault(label.rpartition(", ")[0], []).append(panel)
        return Chart(panel.title, {})

    monkeypatch.setattr(pictures, "curve", curve)
    return drawn


def over_vcpus(file: Path) -> model.Section:
    (part,) = (part for part in sections.PARTS if part.anchor == "vcpus")
    return part.section(sources.load_all([file]))


def test_dirty_bits_are_a_curve_where_they_were_measured(tmp_path: Path, drawn: Drawn) -> None:
    found = list(data.bench())
    shadow = [one for one in found if one.eager and one.kernel == "series" and not one.ept]
    bits = [replace(one, dirty_bits="on", seconds=0.0005) for one in shadow]
    lone = [replace(one, ept=True, pml=False, dirty_bits="on") for one in shadow]
    jsonl.write(tmp_path / data.BENCH, [*found, *bits, *lone])
    section = over_vcpus(tmp_path / data.BENCH)
    *panels, one, other = drawn["first writes"]
    with_bits = {p.title.partition(":")[0] for p in panels if BITS in p.curves}
    assert with_bits == {"shadow paging, all writes", "shadow paging, 20% writes"}
    (points,) = {tuple((q.x, q.y) for q in p.curves[BITS]) for p in panels if BITS in p.curves}
    assert points == ((2, 0.5), (4, 0.5))
    # Without PML is another picture.
    titles = [f"EPT without PML, {mix} writes" for mix in ("all", "20%")]
    assert [one.title, other.title] == titles
    assert set(one.curves) == set(other.curves) == {BITS}
    readings = [block.reading for block in section.blocks if isinstance(block, Picture)]
    assert (
        readings[0]
        == "From 2 to 4 vCPUs, EPT, all writes: ungated, Y: 1 ms; N: 40 to 80 ms; Y: 1 ms."
    )


def test_a_single_number_of_vcpus_is_named() -> None:
    found = {pictures.LAZY: [Point(8, 232.0)], pictures.EAGER: [Point(2, 2.0), Point(8, 2.6)]}
    said = sections._growth(Panel("EPT, all writes", "vCPUs", found))
    only = "unpatched: 232 ms with 8 vCPUs, the only number"
    assert said == f"From 2 to 8 vCPUs, EPT, all writes: {only}; Y: 2 to 2.6 ms."


def test_bars_stand_below_each_other_with_gaps_between_groups() -> None:
    bar, gap = pictures.BAR, pictures.GAP
    rows = pictures._rows(["a", "a", "b", "c"])
    assert rows.bars == [bar / 2, bar * 1.5, bar * 2.5 + gap, bar * 3.5 + 2 * gap]
    assert rows.groups == {"a": bar, "b": bar * 2.5 + gap, "c": bar * 3.5 + 2 * gap}
    assert (rows.counts, rows.height) == ({"a": 2, "b": 1, "c": 1}, 4 * bar + 3 * gap)


def test_an_axis_is_marked_at_its_ends() -> None:
    assert pictures._log_ticks(1, 100) == pictures._log_ticks(0.5, 200) == [1, 10, 100]


def test_the_gain_is_that_of_the_most_vcpus_that_both_have() -> None:
    found: dict[pictures.Style, pictures.Points]
    found = {pictures.LAZY: [Point(2, 9.0), Point(8, 6.0)], pictures.EAGER: [Point(8, 2.0)]}
    said = f": {pictures.LAZY.short} takes 3.00 times as long as Y with 8 vCPUs"
    assert sections._gain(found, pictures.LAZY) == said
    assert sections._gain(found, pictures.FIRST_WRITE) == ""
    assert sections._gain(found | {pictures.EAGER: [Point(4, 2.0)]}, pictures.LAZY) == ""


def test_the_share_of_waiting_is_said_as_it_was_measured(tmp_path: Path) -> None:
    source = sources.load_all(data.write_all(tmp_path))["lock"]
    picture = sections._lock(source)[0]
    assert isinstance(picture, Picture)
    most = "N at most 75% with 2 vCPUs and Y at most 5% with 2 vCPUs"
    assert f"EPT, all writes: {most}; EPT, 20% writes: {most}" in picture.reading
    lines = source.lines[:1]
    ours: dict[str, Any] = {"machine": "svm-qemu", "tdp_mmu": True, "write_percent": 20}
    for pml, name in ((True, "NPT, TDP MMU"), (False, "NPT, TDP MMU without PML")):
        one = replace(lines[0], record={**lines[0].record, **ours, "pml": pml})
        panel = sections._lock_panel([one])
        assert (panel.title, panel.x_label, panel.mode) == (f"{name}, 20% writes", "vCPUs", name)


def test_a_migration_is_said_in_figures(tmp_path: Path) -> None:
    source = sources.load_all(data.write_all(tmp_path))["migrate"]
    picture = migration.PART.section({"migrate": source}).blocks[0]
    assert isinstance(picture, Picture) and picture.title == "Migration, vmx-bochs (series), EPT"
    assert "25 ms while it is migrated, 1 ms before (N: on the first write)" in picture.reading
    assert [[one.value for one in chart.data] for chart in picture.charts[:2]] == [
        ["2,000 requests a second", "1,933 requests a second"],
        ["longest request 1 ms", "longest request 25 ms"],
    ]


def test_the_legend_ends_with_what_is_behind_the_curves(tmp_path: Path) -> None:
    blocks = live.PART.section(sources.load_all(data.write_all(tmp_path))).blocks
    timeline = next(block for block in blocks if isinstance(block, Picture))
    assert len(timeline.styles) == 4 and timeline.styles[-1] == pictures.HOST


def test_the_tdp_mmu_is_drawn_beside_the_unpatched_kernel(tmp_path: Path, drawn: Drawn) -> None:
    tdp = [replace(one, tdp_mmu=True) for one in data.bench() if one.ept]
    base = [replace(one, kernel="base") if one.kernel == "peer" else one for one in tdp]
    without = (one for one in base if one.phase != "clear")
    first = [replace(m, initially_all_set=False, iteration=m.iteration and 1) for m in without]
    jsonl.write(tmp_path / data.BENCH, [*data.bench(), *base, *first])
    over_vcpus(tmp_path / data.BENCH)
    title = "EPT, TDP MMU, all writes: unpatched, Y takes 1.00 times as long as Y with 4 vCPUs"
    assert [panel.title for panel in drawn["first CLEAR"]][2:] == [title]
    assert [panel.title for panel in drawn["enabling"]] == [title]
    (panel,) = drawn["enabling"]
    assert set(panel.curves) == {pictures.UNPATCHED, pictures.FIRST_WRITE, pictures.EAGER}
    # Enabling is the last of the phases.
    assert panel.curves[pictures.FIRST_WRITE][1][:2] == pytest.approx((4, 400))
    assert len(drawn["first writes"]) == 8


def test_the_crossover_is_drawn_and_said(tmp_path: Path, drawn: Drawn) -> None:
    data.write_all(tmp_path)
    section = dirty_bits.PART.section(sources.load_all([tmp_path / data.CROSSOVER]))
    modes = ("shadow paging", "EPT without PML")
    titles = [f"{mode}: Dirty bits cheaper from 0.25% on" for mode in modes]
    memories, crossover = drawn["dirty + GET + CLEAR"][:2], drawn["dirty + GET + CLEAR"][2:]
    assert [panel.title for panel in crossover] == titles
    points = crossover[0].curves[pictures.BY_DIRTY_BITS]
    assert [p.x for p in points] == [0, 10, 100]
    assert [p.y for p in points] == pytest.approx([1.5, 1.51, 1.6])
    (memory, measured) = [block for block in section.blocks if isinstance(block, Picture)][::-1]
    assert memory.dimensions.startswith("computed, not measured: ")
    assert {"eager_page_split=Y", "second round"} <= {*measured.dimensions.split(", ")}
    # 8 vCPUs x 2 MiB take 1.6 ms, and each page table beside them a millisecond.
    panel = memories[0]
    (least, *_, most) = panel.curves[pictures.BY_DIRTY_BITS]
    assert (least.x, most.x) == (1, 1024)
    assert (least.y, most.y) == pytest.approx((0.0016 + 0.504, 0.0016 + 524.280))
    assert [p.y for p in panel.curves[pictures.PROTECTED]] == pytest.approx([0.2011] * 6)
    assert panel.title.endswith("from 3.9% on, the rest idle")


@pytest.mark.usefixtures("drawn")
def test_the_crossover_may_be_in_a_bench(tmp_path: Path) -> None:
    file = tmp_path / data.BENCH
    jsonl.write(file, data.crossover())
    section = dirty_bits.PART.section(sources.load_all([file]))
    names = [block.name for block in section.blocks if isinstance(block, Picture)]
    assert names == ["crossover", "crossover-memory"]
    jsonl.write(file, data.bench())
    assert isinstance(dirty_bits.PART.section(sources.load_all([file])).blocks[0], Missing)


def test_cells_cannot_break_out() -> None:
    line = Line("a b.jsonl", 1, "{}", {})
    used = {"bench": Source("bench", line.file, b"", (line,))}
    table = Table("T", ("a", "b"), [("x|y<b>", "14*"), ("dirty_bits=on", "*")])
    pages = render.pages(used, [model.Section("s", "S", [Grid(table, [(line,), (line,)])])])
    assert "x\\|y&lt;b>" in pages[render.MARKDOWN]
    cells = re.findall(
        r"<t[dh](?: class| scope=.row)[^>]*>(.*?)</t[dh]>|<td>(.*?)</td>", pages[render.HTML]
    )
    link = '<a href="#L0-1">1</a>'
    shown = ["".join(cell).strip() for cell in cells]
    assert shown == ["x|y&lt;b&gt;", "14*", link, "dirty_bits=on", "*", link]


def test_neighbouring_lines_are_a_range() -> None:
    lines = [Line(name, n, "", {}) for name, n in (("b", 7), ("a", 3), ("a", 1), ("a", 2))]
    assert [(r.file, r.text) for r in model.ranges(lines)] == [("a", "1-3"), ("b", "7")]


def test_inlined_pictures_have_ids_of_their_own() -> None:
    svg = '<?xml?>\n<svg height="1pt" viewBox="0 0 1 1" width="2pt">'
    svg += '<g id="a" transform="translate(1.2345,2)"/><use href="#a" clip-path="url(#a)"/>'
    svg += "<text>0.0155 ms</text></svg>"
    inlined = render.inline(svg, "p")
    assert 'id="p-a"' in inlined and 'href="#p-a"' in inlined and "url(#p-a)" in inlined
    assert "width=" not in inlined and "<?xml" not in inlined
    # Places lose decimals, figures do not.
    assert "translate(1.23,2)" in inlined and "0.0155 ms" in inlined


@for_each_row(
    "text, complaint",
    ("", "is empty, or its last line is incomplete"),
    ('{"machine": 1', "is empty, or its last line is incomplete"),
    ("nonsense\n", "line 1: is not JSON"),
    ("[1]\n", "line 1: is not a JSON object"),
    ('{"dirty_harvest": "on"}\n', "line 1: 'dirty_harvest' is now 'dirty_bits': sed"),
    ('{"a": 1}\n', "line 1: Object missing required field `machine`"),
    ('{"phase": "teleport"}\n', "has no measurement"),
    ('{"phase": "dirty"}\n', "line 1: Object missing required field `machine`"),
)
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(text)
    assert re.search(f"x.jsonl.*{complaint}", refused(sources.load, file))
    assert cli.main(["report", str(file), "--output", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_a_line_that_lacks_something_is_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "x-live.jsonl"
    file.write_text('{"record": "timeline", "machine": "vmx-bochs"}\n')
    assert "x-live.jsonl" in refused(sections.build, sources.load_bases([file]))


def test_the_newest_of_each_kind_and_of_each_base_is_taken(tmp_path: Path) -> None:
    data.write_all(tmp_path)
    (tmp_path / "latest.jsonl").symlink_to(data.BENCH)
    newer = tmp_path / "20260202T000000Z-cost.jsonl"
    newer.write_bytes((tmp_path / data.COST).read_bytes())
    found = sources.newest(tmp_path)
    names = [newer.name if name == data.COST else name for name in data.NAMES]
    assert [file.resolve().name for file in found] == names
    kinds = [kind for kind in files.KINDS if kind not in ("memory", "cycles", "yield")]
    assert [files.kind_of(file) for file in found] == kinds
    assert sources.newest(tmp_path / "nowhere") == []
    # The page about the format says what becomes of each kind.
    page = (ROOT / "docs" / "results-format.md").read_text()
    said = page.partition("## What the report and compare take")[2].partition("\n## ")[0]
    named = {*re.findall(r"`\*-(\w+)\.jsonl`", said)}
    assert named == {*files.KINDS} - {"bench"}
    for name in ("20260101T000000Z-vmx-bochs-7.jsonl", "20260202T000000Z-vmx-bochs.jsonl"):
        jsonl.write(tmp_path / name, data.bench("7.3.4"))
    names = [file.resolve().name for file in sources.newest(tmp_path)]
    assert names[:3] == ["20260202T000000Z-vmx-bochs.jsonl", data.BENCH, data.LIVE]


def test_a_file_of_two_bases_is_refused_and_so_are_two_of_a_kind(tmp_path: Path) -> None:
    file = tmp_path / data.LIVE
    lines = [{"record": "dip", "kernel_version": version} for version in ("6.12.1", "7.3.4-peer")]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "6.12 and 7.3 are never mixed" in refused(sources.load, file)
    data.write_all(tmp_path)
    jsonl.write(tmp_path / "bench.jsonl", data.bench("7.3.4"))
    both = [tmp_path / "bench.jsonl", tmp_path / data.LIVE]
    assert [list(mine) for mine in sources.load_bases(both).values()] == [["bench"], ["live"]]
    assert "7.3 and 6.12 are never mixed" in refused(sources.load_all, both)
    assert "both of live" in refused(sources.load_all, [tmp_path / data.LIVE] * 2)


def test_what_other_bases_have_of_the_same(tmp_path: Path) -> None:
    names = ("a.jsonl", "b.jsonl", "c.jsonl", "d-cost.jsonl", "e.jsonl")
    other, same, mine, _, broken = candidates = [tmp_path / name for name in names]
    jsonl.write(other, [replace(one, vcpus=32) for one in data.bench()])
    jsonl.write(same, data.bench())
    jsonl.write(mine, data.bench("7.3.4"))
    candidates[3].write_bytes(same.read_bytes())
    broken.write_text("nonsense\n")
    found = sources.beside(list(data.bench("7.3.3")), candidates)
    assert {base: one.name for base, one in found.items()} == {"6.12": "b.jsonl"}


@pytest.mark.usefixtures("without_pictures")
def test_a_report_of_two_bases(tmp_path: Path) -> None:
    files = data.write_all(tmp_path / "6.12")
    kept = files[0].rename(tmp_path / "6.12" / "bench.jsonl")
    jsonl.write(tmp_path / "7.3" / "bench.jsonl", data.bench("7.3.4", slower=2))
    command.write([kept, *files[1:], tmp_path / "7.3" / "bench.jsonl"], tmp_path / "out")
    ids = ids_of((tmp_path / "out" / render.HTML).read_text())
    assert ids[0] == "answers-7.3" and {"figure-dirty-7.3", "figure-dirty-6.12"} <= {*ids}
    text = (tmp_path / "out" / render.MARKDOWN).read_text()
    (row,) = re.findall(r"\| .*ept=Y, all writes, 4 vCPUs x 2 MiB: dirty.*\|", text)
    assert row.split(" | ")[1:9] == ["160.0", "1.00", "1.00", "160", "80.0", "1.00", "1.00", "80.0"]
    assert "7.3-bench.jsonl#L" in row and "6.12-bench.jsonl#L" in row
    assert "`make bench BASE=7.3 WHAT=live`" in text and "BASE=6.12 WHAT" not in text
    assert "### Linux 7.3: vmx-bochs" in text and "### Linux 6.12: vmx-bochs" in text


def test_a_directory_with_other_things_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    file = data.write_all(tmp_path / "in")[0]
    assert cli.main(["report", str(file), "--output", str(tmp_path)]) == 2
    assert (tmp_path / "thesis.tex").exists()


def test_after_a_measurement_a_bad_file_is_only_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "results"
    found.mkdir()
    (found / "1-live.jsonl").write_text("nonsense\n")
    command.refresh(found)
    assert "not drawn" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()
    (found / "1-live.jsonl").unlink()
    command.refresh(found)
    assert (tmp_path / "report" / render.HTML).exists()


def test_what_tables_have_in_common_is_said_once() -> None:
    tables = [Table(name, ("x",), [("1",)], ["of both", f"of {name}"]) for name in "ab"]
    section = model.Section("s", "S", [Grid(table, []) for table in tables])
    for text in render.pages({}, [section]).values():
        assert [text.count(f"{note}<") for note in ("of both", "of a", "of b")] == [1, 1, 1]
    assert tables[1].notes == ["of both", "of b"]
