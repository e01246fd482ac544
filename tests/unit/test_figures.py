# SPDX-License-Identifier: GPL-2.0-only
"""The figures of the pages: tables, the picture and sentences are those of docs/reference."""

import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from lab.core.paths import ROOT
from lab.page import claims, cliff, figures, query
from lab.page.figures import Grid
from lab.results import jsonl
from lab.results.sources import Sources
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.report_data import measurement

MOST_KIB = 50
PICTURES = ("svg", "png", "jpg", "gif")

RECORDS = [
    measurement(vcpus=8, seconds=0.1154),
    measurement(vcpus=8, eager=True, seconds=0.00134),
    measurement(vcpus=8, kernel="peer", eager=True, seconds=0.00133),
]
SPECIFICATION = """
base = "6.12"
[table.a]
rows_are = "ms"
common = "bench phase=dirty"
columns = [
    { name = "N", of = "eager=false" },
    { name = "N / Y", of = "eager=false / eager=true" },
    { name = "rest", of = "eager=true / eager=false", as = "rest", not = ["none"] },
]
rows = [{ name = "all", of = "vcpus=8" }, { name = "none", of = "vcpus=8" }]

[[claim."docs/*.md"]]
says = "takes [115] ms instead of [1.3]"
of = ["bench eager=false", "bench eager=true"]
"""
TABLE = """\
| Linux 6.12: ms | N | N / Y | rest |
|---|---:|---:|---:|
| all | 115.4 | 86.1 | 98.8% |
| none | 115.4 | 86.1 | - |
"""
RST = """\

==============  =====  =====  =====
Linux 6.12: ms  N      N / Y  rest
==============  =====  =====  =====
all             115.4  86.1   98.8%
none            115.4  86.1   -
==============  =====  =====  =====

"""


def kept(root: Path = ROOT) -> Sources:
    """The reference that is asked by what names no base."""
    return figures.chosen({}, figures.specification(root), figures.reference(root))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a page of each kind."""
    (tmp_path / figures.REFERENCE / "6.12").mkdir(parents=True)
    (tmp_path / "Documentation" / "x").mkdir(parents=True)
    jsonl.write(tmp_path / figures.REFERENCE / "6.12" / "bench.jsonl", RECORDS)
    (tmp_path / figures.SPECIFICATION).write_text(SPECIFICATION)
    page = "It takes 115 ms\ninstead of 1.3.\n\n<!-- figures: a -->\n<!-- end -->\n\nEnd.\n"
    (tmp_path / "docs" / "a.md").write_text(page)
    text = "Text.\n\n.. figures: a\n\nold\n\n.. end figures\n\nEnd.\n"
    (tmp_path / "Documentation" / "x" / "a.rst").write_text(text)
    monkeypatch.setattr(cliff, "draw", lambda _: "<svg/>\n")
    return tmp_path


def test_the_committed_pages_have_every_table_with_the_figures_of_the_reference() -> None:
    """If not: make reference ARGS=--pages."""
    assert [str(page.relative_to(ROOT)) for page in figures.stale()] == []
    assert claims.wrong() == []
    text = "".join(page.read_text() for page in figures.pages(ROOT))
    tables = figures.specification()["table"]
    assert [name for name in tables if f"figures: {name}" not in text] == []


@pytest.mark.parametrize("name", ["README.md", "Documentation/virt/kvm/x86/eager-page-split.rst"])
def test_no_table_has_figures_of_its_own(name: str) -> None:
    page = ROOT / name
    begin, _, end = figures.MARKERS[page.suffix]
    made = f"^{re.escape(begin)}.*?^{re.escape(end)}"
    typed = re.sub(made, "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    rows = [line for line in typed.splitlines() if line.startswith("|") or "  " in line.strip()]
    assert [row for row in rows if re.search(r"(\| *|  +)[\d,]*\.\d+( |$)", row)] == []


def test_the_picture_depends_on_the_figures_only() -> None:
    drawn = cliff.draw(kept())
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9}):
        assert cliff.draw(kept()) == drawn


def test_few_small_pictures_are_committed() -> None:
    found = [
        file
        for directory in (ROOT, ROOT / "docs", ROOT / "Documentation")
        for suffix in PICTURES
        for file in (directory.glob if directory == ROOT else directory.rglob)(f"*.{suffix}")
    ]
    assert found == [ROOT / cliff.PICTURE]
    assert found[0].stat().st_size <= MOST_KIB << 10


def test_tables_are_made_and_a_figure_that_is_edited_is_noticed(root: Path) -> None:
    changed = figures.refresh(root)
    assert {page.name for page in changed} == {"a.md", "a.rst", cliff.PICTURE.name}
    page = (root / "docs" / "a.md").read_text()
    assert page.endswith(f"\n\n<!-- figures: a -->\n{TABLE}<!-- end -->\n\nEnd.\n")
    text = (root / "Documentation" / "x" / "a.rst").read_text()
    assert text == f"Text.\n\n.. figures: a\n{RST}.. end figures\n\nEnd.\n"
    assert figures.refresh(root) == []
    edited = root / "docs" / "a.md"
    edited.write_text(page.replace("| 115.4 |", "| 115.5 |", 1))
    assert list(figures.stale(root)) == [edited]
    assert Grid(("a", "b"), []).markdown() == "| a | b |\n|---|---:|\n"


def test_a_table_may_have_every_base_that_was_measured(root: Path) -> None:
    file = root / figures.SPECIFICATION
    file.write_text(SPECIFICATION.replace("[table.a]", '[table.a]\nbase = "each"'))
    page = root / "docs" / "a.md"
    figures.refresh(root)
    assert "| ms | 6.12 N | 6.12 N / Y | 6.12 rest |\n" in page.read_text()
    newer = [replace(one, kernel_version="7.3.4") for one in RECORDS]
    newer[0] = replace(newer[0], seconds=2 * newer[0].seconds)
    jsonl.write(root / figures.REFERENCE / "7.3" / "bench.jsonl", newer)
    assert {file.name for file in figures.refresh(root)} == {"a.md", "a.rst"}
    assert "| ms | 7.3 N | 7.3 N / Y | 7.3 rest | 6.12 N | 6.12 N / Y |" in page.read_text()
    assert "| all | 230.8 | 172 | 99.4% | 115.4 | 86.1 | 98.8% |\n" in page.read_text()
    # Sentences are about the base that is named, and so are tables without "each".
    assert claims.wrong(root) == []
    file.write_text(file.read_text().replace('base = "6.12"', 'base = "7.3"'))
    (line,) = claims.wrong(root)
    assert "says 115 where the reference has 230.8" in line


def test_a_base_without_a_reference(root: Path) -> None:
    file = root / figures.SPECIFICATION
    file.write_text(SPECIFICATION.replace('base = "6.12"', 'base = "7.3"'))
    assert "has nothing of 7.3: run `make reference BASE=7.3`" in refused(figures.stale, root)
    file.write_text(SPECIFICATION.replace('base = "6.12"', ""))
    assert "names no base" in refused(figures.stale, root)
    (root / figures.REFERENCE / "6.12").rename(root / figures.REFERENCE / "7.3")
    assert "docs/reference/7.3/bench.jsonl is of another base" in refused(figures.reference, root)


@for_each_row(
    "text, said",
    ("<!-- figures: b -->\n<!-- end -->\n", "b: no such table"),
    ("<!-- figures: a -->\n", "has no '<!-- end -->'"),
    ("<!-- figures: a -->\n<!-- figures: a -->\n<!-- end -->\n", "its end is missing"),
)
def test_bad_markers(root: Path, text: str, said: str) -> None:
    (root / "docs" / "b.md").write_text(text)
    line = refused(figures.stale, root)
    assert line.startswith("docs/b.md: ") and said in line


@for_each_row(
    "text, said",
    ("bench eager=false vcpus=2", "has 0 lines of bench eager=False vcpus=2"),
    ("bench vcpus=8", "has 2 lines of bench"),
    ("lock vcpus=8", "has no lock.jsonl"),
    ("bench vcpus", "vcpus is not key=value"),
    ("bench eager=false value=backing", "backing is 'anonymous_hugetlb_2mb', not a number"),
)
def test_questions_without_an_answer(root: Path, text: str, said: str) -> None:
    assert said in refused(query.number, text, kept(root))


def test_questions(root: Path) -> None:
    asked = ("kernel=peer", "eager=false / bench eager=true", "eager=false value=vcpus")
    answers = [query.number(f"bench {text}", kept(root)) for text in asked]
    assert answers == pytest.approx([1.33, 86.119, 8], 1e-4)


def test_the_crossing_is_that_of_the_report() -> None:
    found = kept()
    assert query.number("crossing ept=false", found) == pytest.approx(1.1, abs=0.05)
    assert query.number("crossing ept=false by=cpu", found) < 1
    assert "no crossing" in refused(query.number, "crossing ept=false tdp_mmu=true", found)


def test_a_wrong_figure_in_a_sentence_is_noticed(root: Path) -> None:
    assert claims.wrong(root) == []
    page = root / "docs" / "a.md"
    page.write_text(page.read_text().replace("115 ms", "116 ms"))
    assert "docs/a.md: no longer says" in refused(claims.wrong, root)
    file = root / figures.SPECIFICATION
    file.write_text(SPECIFICATION.replace("[115]", "[116]"))
    (line,) = claims.wrong(root)
    assert line.startswith("docs/a.md: says 116 where the reference has 115.4: ")


def test_rounding() -> None:
    figures = ("2.35", "2.0", "290", "4,700")
    for values, agreed in (((2.3549, 2.04, 294.9, 4742), True), ((2.356, 2.06, 296, 4751), False)):
        assert [*map(claims.agrees, figures, values)] == [agreed] * len(figures)
    assert claims.agrees("0.015", 0.0155)


def test_how_figures_are_written() -> None:
    written = {name: style(0.0) for name, style in figures.STYLES.items() if name != "ratio"}
    assert written == {"ms": "0", "count": "0", "percent": "0%", "share": "0", "rest": "100.0%"}
    assert [figures.STYLES["percent"](x) for x in (0.012, 1.07, 12.6)] == ["0.012%", "1.1%", "13%"]
    assert figures.STYLES["share"](0.764) == "76.4%"
    assert figures.STYLES["count"](16377) == "16,377"
