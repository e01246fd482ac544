# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.native: the code that is compiled, and the figures of passes."""

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from lab.measure.native import code, command, guest, reads
from lab.measure.native.guest import Case, Counts
from lab.page import native
from tests.unit.calls import failed, lab

KERNEL = """
/* Not uses(). */
#define TWICE(x) (2 * step(x))
extern int far;
static int step(int x);
static int uses(int x)
{
	return TWICE(x) + known(x) + far;
}

int step(int x)
{
	return x;
}
"""


@pytest.fixture
def times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How long each code is to take for 2 MiB, of a tree that says which kernel it is, ns."""
    found = {"limit": 100, "series": 150, "unpatched": 750}
    (tmp_path / "Makefile").write_text("VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\nNAME = x\n")

    def passes(_: object, gib: int, repeats: int) -> Iterator[tuple[Case, Counts]]:
        for name, factor in product(found, (1, 3, 2)[:repeats]):
            counts = {"ns": factor * found[name] * 512 * gib, "instructions": 512 * gib}
            yield Case("split", 100, True, name), counts

    monkeypatch.setattr(command, "source_tree", lambda _: tmp_path)
    monkeypatch.setattr(code, "build", lambda _: {})

    def reading(_: object, gib: int, huge: bool, repeats: int) -> Iterator[tuple[str, float]]:
        for kind, factor in product(("random", "dependent"), (1, 3, 2)[:repeats]):
            yield kind, factor * gib * (10 if huge else 25)

    monkeypatch.setattr(guest, "passes", passes)
    monkeypatch.setattr(reads, "passes", reading)
    monkeypatch.setattr(reads, "library", lambda: None)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Mock(available=9 << 30))
    return found


def test_a_function_comes_with_what_it_names_but_stand_ins(tmp_path: Path) -> None:
    stand_ins = tmp_path / "stand-ins.h"
    stand_ins.write_text("#define known(x) 1\n")
    found = code.closure(["uses"], [KERNEL], stand_ins)
    order = ["static noinline int step(int x)", "#define TWICE", "static int uses"]
    assert order == sorted(order, key=found.index)
    assert not any(text in found for text in ("known(x) 1", "extern", "Not", "step(int x);"))
    assert "has no gone any longer" in failed(code.closure, ["uses", "gone"], [KERNEL])


def test_figures_are_kept_drawn_and_judged(times: dict[str, int], tmp_path: Path) -> None:
    file = tmp_path / "a-native.jsonl"
    said = lab("native", "--sizes", "1 16", "--repeats", "3", "--output", str(file))
    assert "split: series takes 1.50 times as long as limit; goal: at most 1.6, met" in said.out
    assert "split: unpatched takes 5.00 times as long as series; goal: at least 4, met" in said.out
    first, second, *_ = map(json.loads, file.read_text().splitlines())
    assert (first["code"], first["ns_per_2mib"], first["machine"]) == ("limit", 200, "native")
    assert (second["lowest_ns"], second["highest_ns"], second["passes"]) == (150, 450, 3)
    assert (second.get("misses_per_2mib"), second["instructions_per_2mib"]) == (None, 1)
    assert second["kernel_version"] == "7.3.4"
    lab("report", "--output", str(tmp_path / "report"), str(file))
    assert native.PART.title in (tmp_path / "report" / "index.html").read_text()
    *_, last = map(json.loads, file.read_text().splitlines())
    assert (last["reads"], last["page"], last["gib"]) == ("dependent", "4K", 4)
    assert (last["ns_per_read"], last["lowest_ns"], last["highest_ns"]) == (200, 100, 300)
    assert (last["passes"], last["machine"], "kernel_version" in last) == (3, "native", False)
    assert re.search(r"\| dependent \| +4 \| +80\.0 \| +200\.0 \| +2\.50 \|", said.out)
    # One that is as large as the free memory is left out, and said to be.
    assert "no reads in 16 GiB: 9 GiB are free" in said.err
    assert native.READS_TITLE in (tmp_path / "report" / "index.html").read_text()
    # Columns without room beside each other come with both labels.
    read = [one for one in map(json.loads, file.read_text().splitlines()) if "reads" in one]
    assert "reads      GiB  4 KiB\n" in native.reads_table(read).fitted(24)
    times["series"] = 750
    said = lab("native", "--sizes", "16", "--output", str(tmp_path / "b-native.jsonl"))
    assert "unpatched takes 1.00 times as long as series; goal: at least 4, MISSED" in said.out
    assert "series takes 7.50 times as long as limit; goal: at most 1.6, MISSED" in said.out


def test_each_case_has_a_row_with_its_ratios() -> None:
    like = {"phase": "split", "write_percent": 100, "cold": False, "gib": 16, "cpu": "x"}
    like |= {"lowest_ns": 900.0, "highest_ns": 5000.0}
    times = {"limit": 1000.0, "series": 1500.0, "unpatched": 4500.0}
    table = native.table([like | {"code": c, "ns_per_2mib": ns} for c, ns in times.items()])
    (row,) = table.rows
    shown = dict(zip(table.columns, row, strict=True))
    ratios = {"series/limit": "1.50", "unpatched/series": "3.00"}
    measured = {"limit": "1,000", "series": "1,500", "unpatched": "4,500"}
    spread = {"from": "900", "to": "5,000"}
    wanted = measured | spread | ratios | {"GiB": "16"}
    assert {name: shown[name] for name in wanted} == wanted
    assert {shown[name] for name in {*shown} - {*wanted, "what"}} == {"-"}


def test_memory_of_other_pages_than_asked_for_is_no_result() -> None:
    reads.check_pages(100 << 20, 100 << 20, "2M")
    reads.check_pages(4 << 20, 100 << 20, "4K")
    for huge, page in ((90, "2M"), (10, "4K"), (-1, "2M")):
        said = failed(reads.check_pages, huge << 20, 100 << 20, page)
        assert f"not all by {page}" in said and "transparent_hugepage" in said
    lost = Mock(set_up_reads=Mock(return_value=-1))
    assert "4 GiB by pages of 2M" in failed(list, reads.passes(lost, 4, True, 1))


def test_what_is_not_mapped_as_asked_for_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Mock(set_up_reads=lambda *_: 0, huge_bytes=lambda: 0, read_all=lambda *_: 2e8)
    monkeypatch.setattr(reads, "library", lambda: small)
    found = reads.measure([1], 2, {"machine": "native"})
    assert [(one["page"], one["ns_per_read"]) for one in found] == [("4K", 10.0)] * 2
    assert "0 of 1024 MiB are mapped by huge pages" in capsys.readouterr().err
    assert small.tear_down_reads.call_count == 2


def test_reads_go_everywhere_and_wait_for_each_other() -> None:
    """In memory that is small enough for a test, mapped by small pages."""
    found = reads.library()
    found.set_up_reads(32 << 20, 0)
    try:
        assert found.huge_bytes() == 0
        assert all(found.read_all(1000, dependent, 1) > 0 for dependent in (0, 1))
    finally:
        found.tear_down_reads()
