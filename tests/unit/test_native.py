# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.native: the code that is compiled, and the figures of passes."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from lab.measure.native import code, command, guest
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
    monkeypatch.setattr(guest, "passes", passes)
    return found


def test_a_function_comes_with_what_it_names_but_stand_ins(tmp_path: Path) -> None:
    stand_ins = tmp_path / "stand-ins.h"
    stand_ins.write_text("#define known(x) 1\n")
    found = code.closure(["uses"], [KERNEL], stand_ins)
    order = ["static noinline int step(int x)", "#define TWICE", "static int uses"]
    assert order == sorted(order, key=found.index)
    assert not any(text in found for text in ("known(x) 1", "extern", "Not", "step(int x);"))
    assert "has no gone any more" in failed(code.closure, ["uses", "gone"], [KERNEL])


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
    times["series"] = 750
    said = lab("native", "--sizes", "16", "--output", str(tmp_path / "a.jsonl"))
    assert "unpatched takes 1.00 times as long as series; goal: at least 4, MISSED" in said.out
    assert "series takes 7.50 times as long as limit; goal: at most 1.6, MISSED" in said.out
