# SPDX-License-Identifier: GPL-2.0-only
"""What the report says first, and its tables of paging modes over phases."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.page import answers, comparison, glossary, native, phases, pictures, render, sections
from lab.page.model import Block, Grid, Missing, Picture
from lab.page.pictures import EAGER, LAZY, Bar, Panel, Point, Style
from lab.results import compare, jsonl, sources
from lab.results.files import write_records
from lab.results.jsonl import Measurement
from lab.results.sources import Source
from tests.rows import for_each_row
from tests.unit import quick_data
from tests.unit import report_data as data


def source_of(directory: Path, found: list[Measurement]) -> Source:
    jsonl.write(directory / data.BENCH, found)
    return sources.load(directory / data.BENCH)


@pytest.fixture
def bench(tmp_path: Path) -> Source:
    return source_of(tmp_path, [*quick_data.measurements()])


def readings(blocks: list[Block]) -> list[str]:
    return [block.reading for block in blocks if isinstance(block, Picture)]


def test_each_question_has_an_answer_with_its_figures(bench: Source) -> None:
    slower, pays, memory = readings(answers.of({"bench": bench}))
    assert "232.0 ms in the unpatched kernel, 3.50 ms with N (66x faster)" in slower
    assert "2.60 ms with Y (89x faster)" in slower and "Without logging it takes 2.60 ms" in slower
    assert "the first CLEAR takes 2.72 ms in the unpatched kernel, 0.960 ms with N" in pays
    (calls,) = (
        b for b in answers.of({"bench": bench}) if isinstance(b, Picture) and b.name == "calls"
    )
    assert calls.dimensions.endswith(", initially-all-set, all written")
    # 20% of 40 regions are 8, with a page table of 4 KiB each.
    assert "if 20% of the 2 MiB regions are written, N leaves" in memory
    assert "N leaves 32 of 40 huge pages and adds 32 KiB of page tables" in memory
    assert "Y leaves 0 of 40 huge pages and adds 160 KiB of page tables" in memory


def test_later_cycles_are_in_the_details_only(tmp_path: Path) -> None:
    found = [*quick_data.measurements()]
    first = [one for one in found if one.cycle == 1]
    later = [
        replace(one, cycle=cycle, seconds=one.seconds * 7)
        for cycle in (2, 3)
        for one in first
        if one.phase != "populate"
    ]
    made = []
    for each in (first, [*first, *later]):
        bases = {"6.12": {"bench": source_of(tmp_path, each)}}
        made.append({section.anchor: section for section in sections.build(bases)})
    alone, both = made
    assert {anchor for anchor in both if both[anchor] != alone[anchor]} == {"verdicts", "cycles"}
    (grid,) = (block for block in both["cycles"].blocks if isinstance(block, Grid))
    assert {row[-1] for row in grid.table.rows} == {"7.00"}
    # A file of the reference has nothing else, and the verdicts are beside it.
    file = tmp_path / "cycles.jsonl"
    jsonl.write(file, [one for one in found if one.bytes_per_vcpu == 10 << 20 and one.iteration])
    (section,) = (s for s in sections.build(sources.load_bases([file])) if s.anchor == "cycles")
    titles = [block.table.title for block in section.blocks if isinstance(block, Grid)]
    assert titles == [grid.table.title, "What the series is to reach"]


def test_a_live_run_answers_how_much_a_guest_slows_down(bench: Source, tmp_path: Path) -> None:
    write_records(tmp_path / data.LIVE, data.live_records())
    live = sources.load(tmp_path / data.LIVE)
    slower, *_ = readings(answers.of({"bench": bench, "live": live}))
    # 400 accesses per ms before logging, 310 and 220 in the windows while it is on.
    assert "fall at worst to 55% of their rate with N and to 55% of their rate with Y" in slower


def test_a_question_without_results_names_the_command() -> None:
    found = answers.of({})
    assert [block.title for block in found if isinstance(block, Missing)] == [
        answers.SLOWER,
        answers.PAYS,
        answers.MEMORY,
    ]


def cells(block: Block, label: str) -> dict[str, str]:
    assert isinstance(block, Grid)
    (row,) = (row for row in block.table.rows if row[0] == label)
    return dict(zip(block.table.columns, row, strict=True))


def test_better_and_worse_stand_in_one_row_with_marks_for_goals(tmp_path: Path) -> None:
    found = [
        replace(one, seconds=one.seconds * 3) if one.kernel == "series" and one.eager else one
        for one in quick_data.measurements()
    ]
    lazy, eager, *_ = phases.blocks(source_of(tmp_path, found))
    assert isinstance(lazy, Grid)
    assert lazy.table.notes[-1].endswith("; simulated time")
    row = cells(lazy, "EPT, all")
    space = "\N{NO-BREAK SPACE}"
    arrow = f"{space}\N{RIGHTWARDS ARROW}{space}"
    assert row["first writes"] == f"232.0{arrow}3.50\n66x faster{space}{phases.MET}"
    assert row["second GET"] == "0.015\nas before"
    worse = cells(eager, "EPT, all")["first CLEAR"]
    assert worse.startswith(f"2.72{arrow}14.4\n5.3x slower\n{phases.MISSED} at most 10 ms")
    assert worse.endswith("missed by 44%")
    assert isinstance(lazy, Grid) and all(lazy.origins) and "EPT, TDP MMU" in lazy.modes


def test_what_got_worse_is_red_even_if_it_meets_its_goal() -> None:
    space = "\N{NO-BREAK SPACE}"
    for ends in ("", f"{space}{phases.MET}", f"\n{phases.MISSED} at most 4 ms, missed by 20%"):
        assert render._tone(f"2.72 to 4.80\n1.76x slower{ends}") == "worse"
        assert render._tone(f"4.80 to 2.72\n1.76x faster{ends}") == ""


def test_times_of_a_host_have_no_goals(tmp_path: Path) -> None:
    found = [replace(one, machine="epyc") for one in quick_data.measurements()]
    for block in phases.blocks(source_of(tmp_path, found)):
        assert isinstance(block, Grid)
        text = " ".join(cell for row in block.table.rows for cell in row)
        assert phases.MET not in text and phases.MISSED not in text


@for_each_row(
    "before, now, said",
    (1.0, 0.5, "2.0x faster"),
    (1.0, 1.03, ""),
    (1.0, 1.5, "1.50x slower"),
    (20.0, 1.0, "20x faster"),
    (0.0, 1.0, ""),
)
def test_changes_in_words(before: float, now: float, said: str) -> None:
    assert phases.change(before, now) == said


def test_a_term_is_linked_once_and_not_within_a_word() -> None:
    linked: set[str] = set()
    text = glossary.link("With eager_page_split=N, N and CLEAR, then CLEAR.", linked)
    assert text.count("<a ") == 2 and "split=N, <a" in text
    assert glossary.link("CLEAR", linked) == "CLEAR"


def marks(panel: Panel) -> list[str]:
    spec = pictures.curve(panel, "ms").spec
    return [layer["mark"]["type"] for layer in spec["layer"]]


def test_curves_with_few_points_are_bars_with_numbers() -> None:
    few = {LAZY: [Point(2, 4.0), Point(8, 16.0)], EAGER: [Point(2, 1.0), Point(8, 1.0)]}
    assert marks(Panel("T", "vCPUs", few)) == ["bar", "text"]
    more = {style: [*points, Point(14, 30.0)] for style, points in few.items()}
    assert marks(Panel("T", "vCPUs", more)) == ["line", "point"]
    # Bars on a logarithmic axis cannot show nothing.
    nothing = {LAZY: [Point(2, 0.0), Point(8, 16.0)]}
    assert marks(Panel("T", "vCPUs", nothing)) == ["line", "point"]


Colour = NDArray[np.float64]


def of_colour(name: str, dark: bool) -> Colour:
    """A colour of the page as linear red, green and blue."""
    code = (pictures.DARK if dark else {}).get(name, pictures.COLOURS[name])
    found = np.array([int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear: Colour = np.where(found <= 0.04045, found / 12.92, ((found + 0.055) / 1.055) ** 2.4)
    return linear


def seen(colour: Colour) -> Colour:
    """What the eye makes of it: a place in CIELAB, where distances are differences."""
    xyz = np.array(XYZ) @ np.clip(colour, 0, 1) / np.array([0.9505, 1, 1.0888])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
# What people see who lack one of the three kinds of cones, as Machado, Oliveira and Fernandes have
# it (2009), in linear red, green and blue.
SEEN_BY = {
    "everybody": np.eye(3).tolist(),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
# A difference of 2.3 can just be seen.
LEAST_DIFFERENCE = 15


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("eyes", SEEN_BY)
def test_colours_can_be_told_apart(eyes: str, dark: bool) -> None:
    names = [name for name in pictures.COLOURS if name not in ("paper", "grid")]
    colours = {name: seen(np.array(SEEN_BY[eyes]) @ of_colour(name, dark)) for name in names}
    alike = {
        (one, other): float(np.linalg.norm(colours[one] - colours[other]))
        for one, other in combinations(names, 2)
    }
    assert min(alike.values()) > LEAST_DIFFERENCE, min(alike, key=lambda pair: alike[pair])


def test_a_colour_means_the_same_in_all_pictures() -> None:
    found = [one for module in (pictures, native) for one in vars(module).values()]
    styles = {*native.STYLES.values(), *(one for one in found if isinstance(one, Style))}
    # Ways to log with Y are Y's; the page of what moved has no other pictures.
    same = {"write protection": EAGER, "Dirty bits": pictures.BITS, "series": EAGER}
    same |= {"unpatched: page by page": LAZY}
    others = {pictures.LONGER, pictures.SHORTER}
    meant: dict[str, set[str]] = {}
    for style in styles - others:
        meaning = same.get(style.label, style).label
        meant.setdefault(style.colour, set()).add(meaning)
    assert {colour: names for colour, names in meant.items() if len(names) > 1} == {}
    assert {style.colour for style in styles} <= {*pictures.WORDS}


def test_the_table_behind_a_picture_has_all_of_its_figures() -> None:
    bars = [Bar("EPT", LAZY, 115.5), Bar("EPT", EAGER, 1.33)]
    chart = pictures.bars("T", bars, "ms", "ms", marks={"EPT": 0.6})
    assert [(one.what, one.value) for one in chart.data] == [
        (LAZY.label, "115.5 ms"),
        (EAGER.label, "1.33 ms"),
    ]
    assert "116" in chart.svg and chart.svg == pictures.to_svg(chart.spec)


def test_what_moved_is_called_by_all_that_it_differs_in() -> None:
    key = data.measurement(vcpus=2, phase="dirty", iteration=2, eager=True).key
    assert comparison._plain(key) == "Y, EPT, 2 vCPUs x 2 MiB, all writes: writes of round 2"
    base = "unpatched, EPT, 2 vCPUs x 2 MiB, all writes: enabling"
    enabling = replace(key, kernel="base", eager=False, phase="enable", iteration=None)
    assert comparison._plain(enabling) == base
    way = replace(key, ept=False, dirty_bits="on", initially_all_set=False, write_percent=20)
    assert comparison._plain(replace(way, vcpus=1, phase="get", iteration=1)) == (
        "Y, dirty_bits=on, shadow paging, 1 vCPU x 2 MiB, 20% writes, without initially-all-set:"
        " GET of round 1"
    )


def test_what_moved_comes_first_and_is_drawn(tmp_path: Path) -> None:
    found = list(data.bench())
    moved = [replace(one, seconds=one.seconds * 2) if one.vcpus == 2 else one for one in found]
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for file, measured in zip(files, (found, moved), strict=True):
        jsonl.write(file, measured)
    before, after = (compare.load([file]) for file in files)
    moves = compare.compare(before, after)
    of = [sources.load(file) for file in files]
    (section,) = comparison.sections(moves, before, after, of)
    picture, first, every = section.blocks
    assert "60 of 120 figures moved: 60 got slower (up to 2.00x)" in section.intro
    assert isinstance(picture, Picture)
    moved_most = "N, EPT, 2 vCPUs x 2 MiB, all writes: writes of round 2 moved most: 2.00x."
    assert picture.reading == moved_most
    (chart,) = picture.charts
    assert chart.title == "Takes longer in B than in A, the first 15 of 60"
    hovering = chart.spec["layer"][0]["encoding"]["tooltip"]
    titles = {"l": "what", "t": "from A to B", "from": "from"}
    assert {one["field"]: one["title"] for one in hovering} == titles
    assert isinstance(first, Grid) and not first.folded and len(first.table.rows) == 60
    assert isinstance(every, Grid) and every.folded and len(every.table.rows) == 120
    (same,) = comparison.sections(compare.compare(before, before), before, before, of)
    assert [type(block) for block in same.blocks] == [Grid]
    assert same.intro == "None of 120 figures moved."
