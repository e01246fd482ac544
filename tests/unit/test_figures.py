# SPDX-License-Identifier: GPL-2.0-only
"""The figures of the pages: tables, the picture and sentences are those of docs/reference.

reference and bounds: the plan, the bounds, and what is kept of a measurement.
"""

import re
import shutil
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab.core.paths import BASE_VARIABLE, LAYOUT, ROOT
from lab.machines.paging import Mode
from lab.measure import reference
from lab.measure.kept import Kept
from lab.page import claims, cliff, figures, older, query, typed
from lab.page.figures import Grid
from lab.results import files, goals, jsonl, origin, sources
from lab.results.sources import Sources
from tests.machines.test_reference import FIRST, check_that_it_compares
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refusal, refused
from tests.unit.fake_kernel import FakeKernel
from tests.unit.report_data import measurement

PICTURES = (".svg", ".png", ".jpg", ".gif")

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


def kept(root: Path = ROOT) -> Sources:
    """The reference that is asked by what names no base."""
    return figures.chosen({}, figures.specification(root), figures.reference(root))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a page."""
    (tmp_path / figures.REFERENCE / "6.12").mkdir(parents=True)
    (tmp_path / "Documentation" / "x").mkdir(parents=True)
    jsonl.write(tmp_path / figures.REFERENCE / "6.12" / "bench.jsonl", RECORDS)
    (tmp_path / figures.SPECIFICATION).write_text(SPECIFICATION)
    page = "It takes 115 ms\ninstead of 1.3.\n\n<!-- figures: a -->\n<!-- end -->\n\nEnd.\n"
    (tmp_path / "docs" / "a.md").write_text(page)
    monkeypatch.setattr(cliff, "draw", lambda _: "<svg/>\n")
    return tmp_path


def test_the_committed_pages_have_every_table_with_the_figures_of_the_reference() -> None:
    """If not: make reference ARGS=--pages."""
    assert [str(page.relative_to(ROOT)) for page in figures.stale()] == []
    assert claims.wrong() == []
    text = "".join(page.read_text() for page in figures.pages(ROOT))
    tables = figures.specification()["table"]
    assert [name for name in tables if f"figures: {name}" not in text] == []


def test_the_documentation_of_the_kernel_has_no_figure_that_was_measured() -> None:
    """Nothing that an emulator measured belongs there: docs/settings.md has it."""
    spec = figures.specification()
    named = (page for kind in ("claim", "said", "unbound") for page in spec[kind])
    assert [page for page in named if page.startswith("Documentation/")] == []


def test_no_page_and_no_changelog_has_figures_of_its_own() -> None:
    """If it has: a claim, or else an entry of "given" in docs/figures.toml."""
    assert typed.typed() == []


@for_each_row(
    "page, text, figure",
    ("docs/a.md", "It took 0.5.", "0.5"),
    ("docs/a.md", "| row | 12.5 |", "12.5"),
    ("docs/a.md", "It takes 115 ms\nmore.", "115 ms"),
    ("docs/a.md", "It takes 3 instructions.", "3 instructions"),
    ("docs/a.md", "That is 20 times as fast, by 5%.", "20 times"),
    ("docs/a.md", "some 72,000 of them", "72,000"),
    ("CHANGELOG.md", "It waits 154 ms.", "154 ms"),
    ("Documentation/x/a.rst", "It waits 154us.", "154us"),
    ("series/0001-x.patch", "It waits 154 ms.\n---\n", "154 ms"),
)
def test_a_figure_of_its_own_is_noticed(root: Path, page: str, text: str, figure: str) -> None:
    figures.refresh(root)
    assert typed.typed(root) == []
    (root / page).parent.mkdir(exist_ok=True)
    before = (root / page).read_text() if (root / page).exists() else ""
    (root / page).write_text(f"{before}\n{text}\n")
    assert typed.typed(root)[0].startswith(f"{page}: '{figure}' is not bound to a figure of the")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Linux 6.12 and 7.3.",
            "`-t 1.5`",
            "```\ntook 1.5 ms\n```",
            "4 KiB, 64 gfns, v1.5",
            "It is 6.12.",
        ),
        "takes 115 ms\ninstead of 1.3",
    ],
)
def test_what_is_no_figure_or_bound(root: Path, text: str) -> None:
    (root / "docs/a.md").write_text(f"{text}\n")
    (root / "series").mkdir()
    (root / "series/0001-x.patch").write_text("Subject: a\n\nb\n---\n+took 1.5 ms\n")
    assert typed.typed(root) == []


@pytest.mark.parametrize("listed", typed.LISTS)
def test_figures_that_are_listed_have_to_be_there(root: Path, listed: str) -> None:
    (root / "docs/b.md").write_text("A limit is 4 ms.\n")
    specification = root / figures.SPECIFICATION
    specification.write_text(f"{SPECIFICATION}\n[{listed}]\n'docs/b.md' = ['limit is 4 ms']\n")
    assert typed.typed(root) == []
    # What stands right behind is seen.
    (root / "docs/b.md").write_text("A limit is 4 ms/8 ms.\n")
    specification.write_text(f"{SPECIFICATION}\n[{listed}]\n'docs/b.md' = ['limit is 4 ms/']\n")
    assert "'8 ms' is not bound" in typed.typed(root)[0]
    specification.write_text(f"{SPECIFICATION}\n[{listed}]\n'docs/b.md' = ['limit is 4 ms']\n")
    (root / "docs/b.md").write_text("A limit is 8 ms.\n")
    assert "docs/b.md: no longer says 'limit is 4 ms'" in refused(typed.typed, root)
    (root / "docs/b.md").unlink()
    assert f"{listed}: there is no docs/b.md" in refused(typed.typed, root)


def test_the_picture_depends_on_the_figures_only() -> None:
    assert cliff.draw(kept()) == cliff.draw(kept())


def test_every_committed_picture_is_made_by_a_command() -> None:
    places = ("*", "docs/**/*", "Documentation/**/*")
    files = (file for place in places for file in ROOT.glob(place))
    found = [file for file in files if file.suffix in PICTURES]
    assert found == [ROOT / cliff.PICTURE]


def test_tables_are_made_and_a_figure_that_is_edited_is_noticed(root: Path) -> None:
    assert {page.name for page in figures.refresh(root)} == {"a.md", cliff.PICTURE.name}
    page = (root / "docs" / "a.md").read_text()
    assert page.endswith(f"\n\n<!-- figures: a -->\n{TABLE}<!-- end -->\n\nEnd.\n")
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
    assert {file.name for file in figures.refresh(root)} == {"a.md"}
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
    assert "has no results of 7.3: run `make reference BASE=7.3`" in refused(figures.stale, root)
    file.write_text(SPECIFICATION.replace('base = "6.12"', ""))
    assert "has no `base`" in refused(figures.stale, root)
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


def test_a_cycle_that_is_not_named_is_the_first(tmp_path: Path) -> None:
    found = [measurement(seconds=0.003), measurement(cycle=3, seconds=0.004)]
    jsonl.write(tmp_path / "cycles.jsonl", found)
    of = sources.load_all([tmp_path / "cycles.jsonl"])
    answers = [query.number(f"cycles phase=dirty{more}", of) for more in ("", " cycle=3")]
    assert answers == pytest.approx([3.0, 4.0])


def test_the_cost_of_splitting_is_a_sum() -> None:
    like = "bench ept=true tdp_mmu=false vcpus=8 write_percent=100 eager=true"
    parts = [query.number(f"{like} {part}", kept()) for part in query.SUMMANDS]
    assert query.number(f"{like} phase=splitting", kept()) == pytest.approx(sum(parts))
    ratio = query.number(f"{like} phase=splitting / {like} phase=clear iteration=1", kept())
    assert ratio == pytest.approx(sum(parts) / parts[0])


def test_the_crossing_is_that_of_the_report() -> None:
    found = kept()
    assert query.number("crossing ept=false", found) == pytest.approx(1.11, abs=0.05)
    assert query.number("crossing ept=false by=cpu", found) < 1
    assert "no crossing" in refused(query.number, "crossing ept=false tdp_mmu=true", found)


def test_a_wrong_figure_in_a_sentence_is_noticed(root: Path) -> None:
    assert claims.wrong(root) == []
    page = root / "docs" / "a.md"
    page.write_text(page.read_text().replace("115 ms", "116 ms"))
    assert "docs/a.md: no longer says" in refused(claims.wrong, root)
    (root / figures.SPECIFICATION).write_text(SPECIFICATION.replace("[115]", "[116]"))
    (line,) = claims.wrong(root)
    assert line.startswith("docs/a.md: says 116 where the reference has 115.4: ")


def test_rounding() -> None:
    said = ("2.35", "2.0", "290", "4,700")
    for values, agreed in (((2.3549, 2.04, 294.9, 4742), True), ((2.356, 2.06, 296, 4751), False)):
        assert [*map(claims.agrees, said, values)] == [agreed] * len(said)
    assert claims.agrees("0.015", 0.0155)


def test_how_figures_are_written() -> None:
    written = {name: style(0.0) for name, style in figures.STYLES.items() if name != "ratio"}
    assert written == {"ms": "0", "count": "0", "percent": "0%", "share": "0", "rest": "100.0%"}
    assert [figures.STYLES["percent"](x) for x in (0.012, 1.07, 12.6)] == ["0.012%", "1.1%", "13%"]
    assert (figures.STYLES["share"](0.764), figures.STYLES["count"](16377)) == ("76.4%", "16,377")


def write(file: Path, gains: dict[int, float]) -> Path:
    """Results where the unpatched kernel takes GAINS times as long as Y, by vCPUs."""
    sides = [(n, *side) for n in gains for side in (("base", False), ("series", True))]
    found = [
        measurement(vcpus=n, kernel=kernel, eager=eager, seconds=0.001 * (1 if eager else gains[n]))
        for n, kernel, eager in sides
    ]
    jsonl.write(file, found)
    return file


GOOD = {2: 20.0, 4: 30.0, 8: 60.5, 14: 150.0}


def test_each_number_of_vcpus_has_its_own_boots() -> None:
    plan = reference.reference_boots()
    assert all(len(boot.matrix.vcpus) == 1 for boot in plan)
    points = [reference.point(name) for name in reference.POINTS]
    assert {b.matrix.vcpus for b in points} == {(2,)}
    series = {(b.mode, b.matrix.vcpus[0]) for b in plan if b.kernel == "series"}
    in_tdp_mmu = {(b.mode, 2) for b in points if b.mode and b.mode.tdp_mmu}
    assert len(points) == 4 and len(in_tdp_mmu) == 2
    compared = {(Mode(ept=True, tdp_mmu=True), 8)}
    assert len({*plan}) == len(plan) and {*points} <= {*plan} and in_tdp_mmu < series
    series -= in_tdp_mmu | compared
    assert series == {(Mode(ept), n) for ept in (True, False) for n in goals.RATIOS}
    for kernel, more in (("base", compared), ("peer", set())):
        assert series | more == {(b.mode, b.matrix.vcpus[0]) for b in plan if b.kernel == kernel}
    assert {b.matrix.size for b in plan} == {2 << 20}


def test_bounds_are_checked_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference.check_bounds(write(tmp_path / "good.jsonl", GOOD))
    cells = (
        "14 vCPUs x 2 MiB, dirty ms",
        "150.0",
        "-",
        "1.00",
        "150",
        "-",
        "at least 100x: reached",
    )
    assert re.search(r" *\| *".join(cells), capsys.readouterr().out)
    bad = write(tmp_path / "bad.jsonl", GOOD | {8: 59.0})
    said = "8 vCPUs x 2 MiB, dirty ms: at least 60x, missed: base 59.0, Y 1.00, base/Y 59.0"
    assert said in failed(reference.check_bounds, bad)
    few = write(tmp_path / "few.jsonl", {n: GOOD[n] for n in GOOD if n > 2})
    assert "2 vCPUs: base/Y was not measured" in failed(reference.check_bounds, few)
    # Any other goal counts, too.
    good = sources.load(tmp_path / "good.jsonl").measurements
    lazy = next(one for one in good if one.vcpus == 8 and one.kernel == "base")
    slow = replace(lazy, kernel="series", seconds=0.066)
    jsonl.write(tmp_path / "slow.jsonl", [*good, slow])
    said = "at worst +9.09%: at most 4% longer, missed: N 66.0"
    assert said in failed(reference.check_bounds, tmp_path / "slow.jsonl")


@pytest.mark.parametrize("base", [*figures.reference()])
def test_the_reference_reaches_all_goals_but_those_that_are_listed(base: str) -> None:
    parts = figures.reference()[base]
    listed = tomllib.loads((ROOT / "docs" / "missed.toml").read_text())
    # A part may not be measured yet.
    for part in {"bench", "cycles"} & parts.keys():
        known = listed.get(f"{base}/{part}", {})
        assert [*map(str, goals.missed(parts[part].measurements))] == [*known], part


@pytest.mark.parametrize("base", LAYOUT.versions)
def test_all_parts_of_each_base_are_measured(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BASE_VARIABLE, base)
    assert reference.directory(LAYOUT.of(base)).parts[-3:] == ("docs", "reference", base)
    (said,) = re.findall(r"^parts: (.*)$", lab("reference", "--dry-run").out, re.MULTILINE)
    every = {*files.KINDS} - {"native", "yield"}
    parts, _, about = said.partition(" of Linux ")
    assert {*parts.split()} == every
    assert re.fullmatch(rf"{base}, about \d+ min", about)


def test_a_failing_part_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference.COMMANDS, "live", "live")
    monkeypatch.setitem(reference.ARGUMENTS, "live", ("--mib", "3"))
    output = tmp_path / "reference"
    lab("reference", "--part", "live", "--output", str(output), status=1)
    assert not output.exists()
    said = lab("reference", "--dry-run", "--output", str(tmp_path / "x")).out
    assert "series, ept=Y, 14 vCPUs" in said
    assert not (tmp_path / "x").exists()


def test_what_is_not_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = reference.directory(LAYOUT.of("6.12"))
    files = sorted(given.glob("*.jsonl"))
    output = tmp_path / "reference"
    output.mkdir()
    for file in files:
        text = "" if file.stem == "live" else file.read_text()
        (output / file.name).write_text(text)
    monkeypatch.setattr(reference, "_measure", lambda _, file: shutil.copy(given / file.name, file))
    words = ("reference", "--part", "live", "--output", str(output))
    monkeypatch.setattr(origin, "source_in", lambda _: origin.UNKNOWN)
    assert "live: its lines do not name one state of the code" in lab(*words, status=1).err
    assert (output / "live.jsonl").read_text() == ""
    monkeypatch.setattr(origin, "source_in", lambda _: "a")
    lab(*words)
    now, committed = ({f.name: f.read_bytes() for f in d.iterdir()} for d in (output, given))
    assert now == committed


def test_unsaved_work_is_no_reference(
    fake: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "LAYOUT", fake.layout)
    monkeypatch.setattr(reference, "measure", None)
    reference.check_saved()
    (fake.layout.linux / "Makefile").write_text("VERSION = 7\n")
    said = refusal("reference", "--part", "live", "--output", str(tmp_path / "x"))
    assert "holds uncommitted changes (Makefile...): `make save` first" in said


def test_progress_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    progress = reference._Progress(("cost", "live"), lambda part: part == "live")
    progress.running.append("cost")
    passed, said = progress.now()
    assert passed < 5 and said == "about 20 min left; cost running"
    progress.begun -= 1000
    assert progress.now()[1] == "about 3 min left; cost running"
    progress.measure("live")
    assert (progress.done, progress.running) == (["live"], ["cost"])
    progress.measure("lock")
    said = capsys.readouterr().err
    assert "live is measured, 1 of 2 such parts" in said and "lock has failed, 2 of 2" in said


def test_estimates() -> None:
    found = {part: reference.estimate_s([part]) for part in reference.PARTS}
    assert all(60 < seconds < 1800 for seconds in found.values())
    assert found["lock"] == 1520 and reference.estimate_s([reference.NATIVE]) == 600
    both = reference.estimate_s(["lock", "live", "bench"])
    assert both == found["lock"] + found["bench"]
    assert reference.estimate_s(["lock", "cost"]) == 1520
    assert reference.estimate_s(["lock", "cost", "tracking"]) == (1520 + 1200 + 1640) / 2


def test_at_most_two_parts_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    both, running = threading.Barrier(2, timeout=10), threading.Semaphore(2)

    def measure(part: str, file: Path) -> None:
        assert running.acquire(blocking=False), "three at a time"
        started.append(part)
        both.wait()
        time.sleep(0.2)
        running.release()

    monkeypatch.setattr(reference, "_measure", measure)
    monkeypatch.setattr(Kept, "keep", Mock())
    reference._Run(Kept(tmp_path, LAYOUT)).measure_all(("live", "cost", "lock", "tracking"))
    assert [set(started[:2]), set(started[2:])] == [{"lock", "cost"}, {"tracking", "live"}]


def test_a_directory_with_other_things_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "report.md").touch()
    assert "holds report.md" in refused(reference.check_output, tmp_path)


def test_pages_only_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    refresh = Mock(return_value=[])
    monkeypatch.setattr(figures, "refresh", refresh)
    monkeypatch.setattr(claims, "wrong", lambda: ["a.md: says 1"])
    monkeypatch.setattr(reference, "measure", None)
    assert "a.md: says 1" in lab("reference", "--pages", status=1).err
    refresh.assert_called_once_with()
    for others in (["--part", "live"], ["--dry-run"], ["--output", "x"], ["--older"], ["--again"]):
        assert "goes with no other option" in refusal("reference", "--pages", *others)
    refresh.assert_called_once_with()


def test_older_only_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older, "record", lambda: {"6.12/live": "0123"})
    monkeypatch.setattr(figures, "refresh", None)
    said = "6.12/live is older than the code, and has measured 0123"
    assert said in lab("reference", "--older").err
    assert "goes with no other option" in refusal("reference", "--older", "--dry-run")


def test_a_point_without_figures_is_an_error_unless_they_are_known_to_be_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point, kept = "tdp-dirty_bits", tmp_path / "bench.jsonl"
    # Whatever is listed in the repository.
    monkeypatch.setattr(older, "listed", dict)
    with pytest.raises(pytest.skip.Exception, match="no figures of"):
        check_that_it_compares(point, kept)
    one = measurement(tdp_mmu=True, pml=False, dirty_bits="on")
    jsonl.write(kept, [one])
    check_that_it_compares(point, kept)
    # Those of another kernel, size, mode or way to log are others.
    others = ({"kernel": "base"}, {"vcpus": 4}, {"tdp_mmu": False}, {"dirty_bits": "off"})
    jsonl.write(kept, [replace(one, **values) for values in others])
    monkeypatch.setattr(older, "listed", lambda: {"6.12/bench": "0123"})
    with pytest.raises(pytest.skip.Exception, match="older than this measurement"):
        check_that_it_compares(point, kept)
    monkeypatch.setattr(older, "listed", lambda: {"7.3/bench": "0123"})
    with pytest.raises(AssertionError, match="has nothing of series, ept=Y, tdp_mmu=Y"):
        check_that_it_compares(point, kept)
    # An older one was measured once: only the first point is compared with it.
    monkeypatch.setattr(older, "listed", lambda: {"6.12/bench": "0123"})
    jsonl.write(kept, [one, measurement(vcpus=2)])
    with pytest.raises(pytest.skip.Exception, match="older than this measurement"):
        check_that_it_compares(point, kept)
    check_that_it_compares(FIRST, kept)
