# SPDX-License-Identifier: GPL-2.0-only
"""lab.results: what counts as a measurement, and files that are complete or absent.

What is compared, what counts as moved, and the exit status; where Dirty bits become cheaper than
write protection.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.core.paths import ROOT
from lab.measure import crossover, plan
from lab.page import figures
from lab.results import compare, files, jsonl, tradeoff
from lab.results.jsonl import Measurement
from lab.results.tradeoff import Tradeoff
from tests.rows import for_each_row
from tests.unit.calls import lab, refusal, refused
from tests.unit.files import leave_free
from tests.unit.report_data import DIMENSIONS, bench, measurement

GOOD: dict[str, Any] = DIMENSIONS | {
    "vcpus": 8,
    "bytes_per_vcpu": 4194304,
    "write_percent": 20,
    "seconds": 0.184512345,
}


def line(**changes: Any) -> str:
    return json.dumps(GOOD | changes)


def test_reads_a_line_and_back_to_the_nanosecond_what_is_written() -> None:
    assert jsonl.parse(line()) == Measurement(**GOOD)
    # Whole seconds are a time; keys that came later are ignored.
    assert jsonl.parse(line(seconds=3)) == Measurement(**(GOOD | {"seconds": 3}))
    assert jsonl.parse(line(stall_ns=[1, 2])) == Measurement(**GOOD)
    for seconds in (0.0, 0.000000001, 0.184512345, 123.999999999):
        found = jsonl.parse(line(seconds=seconds))
        assert jsonl.parse(jsonl.to_line(found)) == found
    written = jsonl.to_line(Measurement(**GOOD))
    assert written.endswith('"seconds": 0.184512345}\n')
    # As split-bench.sh writes it.
    assert list(json.loads(written)) == [*list(GOOD)[:-1], "dirty_bits", "seconds"]


LATER = {"cycle": 3, "dirty_bits": "on", "pml": False, "idle": 7, "pattern": "clean"}
LATER |= {"tracked": True, "read_first": True, "cpus": 9, "overcommitted": False}
LATER |= {"pinned": True, "pages_2m": 32}
LATER |= {"page_tables": -1, "logged": 7, "pf_taken": 8}
LATER |= {"source": "0123", "commit": "4567"}
# Those of them that name what was measured.
LATER_DIMENSIONS = ("cycle", "dirty_bits", "pml", "idle", "pattern", "tracked", "read_first")
# GET clears the log of a VM that is tracked.
CLEARS = {"initially_all_set": False}


def test_keys_that_came_after_the_first_results() -> None:
    """A line without them is as it was: dirty_bits is off, pml is said only where off."""
    assert set(LATER) == jsonl.LATER
    found = jsonl.parse(line(**LATER, **CLEARS))
    assert (found.cpus, found.overcommitted, found.pinned) == (9, False, True)
    assert list(json.loads(jsonl.to_line(found))) == [*list(GOOD)[:-1], *LATER, "seconds"]
    assert jsonl.parse(line(cpus=9)).pinned is None
    assert found.key != jsonl.parse(line()).key
    rest = {name: value for name, value in LATER.items() if name not in LATER_DIMENSIONS}
    assert jsonl.parse(line(**rest)).key == jsonl.parse(line()).key
    old, new = jsonl.parse(line()), jsonl.parse(line(dirty_bits="off", pml=True))
    assert old == new
    assert (old.dirty_bits, old.pml) == ("off", True)
    others = {"dirty_bits": "auto", "pml": False, "idle": 7, "pattern": "regions"}
    others |= {"tracked": True, "read_first": True, "cycle": 2}
    for name, value in others.items():
        other = jsonl.parse(line(**{name: value}, **CLEARS))
        assert other.key != jsonl.parse(line(**CLEARS)).key
        assert json.loads(jsonl.to_line(other))[name] == value
    unsaid = {"cycle", "pml", "idle", "pattern", "tracked", "read_first"}
    unsaid |= {"pages_2m", "page_tables", "logged", "pf_taken"}
    assert not unsaid & set(json.loads(jsonl.to_line(old)))


@for_each_row(
    "text, said",
    (line(ept=1), "Expected `bool`, got `int` - at `$.ept`"),
    (line(vcpus=0), "Expected `int` >= 1 - at `$.vcpus`"),
    (line(bytes_per_vcpu=0), "Expected `int` >= 1 - at `$.bytes_per_vcpu`"),
    (line(write_percent=101), "Expected `int` <= 100 - at `$.write_percent`"),
    (line(write_percent=-1), "Expected `int` >= 0 - at `$.write_percent`"),
    (line(kernel="mine"), "matching regex '^(series|peer|base)\\\\Z' - at `$.kernel`"),
    (line(phase="lunch"), "|disable)\\\\Z' - at `$.phase`"),
    (line(iteration=None), "'iteration' cannot be None in phase 'dirty'"),
    (line(iteration=0), "Expected `int` >= 1 - at `$.iteration`"),
    (line(phase="enable"), "'iteration' cannot be 2 in phase 'enable'"),
    (line(seconds=-0.1), "Expected `float` >= 0.0 - at `$.seconds`"),
    (line(seconds=float("nan")), "Expected `float` >= 0.0 - at `$.seconds`"),
    (line(seconds=float("inf")), "Expected `float` <= 1.7976931348623157e+308"),
    (line(ept=False, tdp_mmu=True), "'tdp_mmu' cannot be True without 'ept'"),
    (line(dirty_bits="perhaps"), "regex '^(off|on|auto)\\\\Z' - at `$.dirty_bits`"),
    (line(ept=False, pml=False), "'pml' cannot be False without 'ept'"),
    (line(cpus=0), "Expected `int` >= 1 - at `$.cpus`"),
    (line(pattern="stripes"), "regex '^(pages|regions|clean)\\\\Z' - at `$.pattern`"),
    (line(pages_2m=-1), "Expected `int` >= 0 - at `$.pages_2m`"),
    (line(tracked=True), "'tracked' cannot be True with 'initially_all_set'"),
    (line(logged=-1), "Expected `int` >= 0 - at `$.logged`"),
    (line(cycle=0), "Expected `int` >= 1 - at `$.cycle`"),
    (
        line(cycle=2, phase="populate", iteration=None),
        "'cycle' cannot be 2 in phase 'populate'",
    ),
    ("", "is not JSON"),
    ("[1]", "Expected `object`, got `array`"),
    (line()[:-1] + ', "vcpus": 8}', "has a key twice"),
)
def test_lines_that_are_no_measurement(text: str, said: str) -> None:
    assert said in refused(jsonl.parse, text)


@for_each_row(
    "text, said",
    (f"{line()}\nnonsense\n", "x.jsonl, line 2: is not JSON"),
    (line(), "x.jsonl: its last line is incomplete"),  # even if it is JSON
    (f"{line()}\n{line(seconds=1)}\n", "x.jsonl, line 2: repeats the measurement"),
)
def test_errors_name_file_and_line(text: str, said: str) -> None:
    assert refused(jsonl.parse_all, text, "x.jsonl").startswith(said)
    # Another dimension is another measurement.
    assert len(jsonl.parse_all(f"{line()}\n{line(eager=True)}\n", "x.jsonl")) == 2


def test_latest_points_at_the_newest_run(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(name)
        files.name_latest(tmp_path / name)
    assert (tmp_path / "latest.jsonl").readlink() == Path("b.jsonl")
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "b.jsonl", "latest.jsonl"}


def test_a_file_of_results_ends_as_one_and_needs_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = files.FREE_MIB << 20
    leave_free(monkeypatch, need)
    assert files.output_file(None, "x").name.endswith("Z-x.jsonl")
    leave_free(monkeypatch, need - 1)
    said = refused(files.output_file, None, "x")
    assert said == f"no space left in {tmp_path}/results: {files.FREE_MIB} MiB are needed"


def test_the_documentation_names_every_key_and_phase_and_its_example_is_one() -> None:
    text = (ROOT / "docs" / "results-format.md").read_text()
    for name in [*GOOD, *LATER, *jsonl.PHASES]:
        assert f"| `{name}` |" in text
    example = next(row for row in text.splitlines() if row.startswith("    {"))
    assert list(json.loads(example)) == [*list(GOOD)[:-1], *LATER, "seconds"]
    assert jsonl.parse(example).dirty_bits == "on"
    assert jsonl.to_line(jsonl.parse(example)) == f"{example.strip()}\n"


def file_of(directory: Path, name: str, found: Sequence[Measurement]) -> str:
    file = directory / name
    file.write_text("".join(map(jsonl.to_line, found)))
    return str(file)


def scaled(found: Sequence[Measurement], factor: float, **only: object) -> list[Measurement]:
    """FOUND, those with the values of ONLY taking FACTOR as long."""
    return [
        replace(one, seconds=one.seconds * factor)
        if all(getattr(one, name) == value for name, value in only.items())
        else one
        for one in found
    ]


def test_what_moved_is_named_most_first(tmp_path: Path) -> None:
    found = list(bench())
    a = file_of(tmp_path, "a.jsonl", found)
    said = lab("compare", a, a, "--brief")
    assert not (tmp_path / "compare").exists()
    assert "120 figures, none moved" in said.err and said.out == "none of 120 figures moved\n"
    worse = scaled(found, 2, phase="clear", iteration=1, kernel="peer", vcpus=4, ept=True)
    worse = scaled(worse, 1.1, phase="dirty", eager=False, vcpus=2, ept=False, write_percent=20)
    b = file_of(tmp_path, "b.jsonl", worse)
    said = lab("compare", a, b, status=1)
    assert (tmp_path / "compare" / "index.html").exists()
    first, _, last = (line for line in said.out.splitlines() if line.startswith("moved: "))
    assert "peer, ept=Y, 4 vCPUs" in first and "(+100.00%)" in first
    assert "ept=N, 2 vCPUs x 2 MiB, 20% writes, N: dirty 2: 40.0 ms -> 44.0 ms" in last
    assert "3 of 120 figures moved" in said.err
    assert said.out.startswith("3 of 120 figures moved: 3 got slower (up to 2.00x)\n")


def test_both_sides_stand_beside_each_other() -> None:
    key = measurement(phase="dirty", iteration=2).key
    pairs = [
        compare.Pair(key, 0.004, 0.006, moved=True),
        compare.Pair(key, 0.004, 0.0041, moved=False),
        compare.Pair(key, 0.004, 0.003, moved=False, judged=False),
    ]
    a, b = (compare.Side(f, {}, frozenset(v)) for f, v in (("x", {"7.3", "7.3-z"}), ("y", {"7.3"})))
    table = compare.table_of(compare.Comparison(pairs), a, b)
    assert (table.title, table.columns) == ("What both measured", ("ms", "A", "B", "B - A", ""))
    assert table.notes == ["A: x, 7.3, 7.3-z", "B: y, 7.3"]
    assert [row[1:] for row in table.rows] == [
        ("4.00", "6.00", "+50.00%", "moved"),
        ("4.00", "4.10", "+2.50%", ""),
        ("4.00", "3.00", "-25.00%", "?"),
    ]
    assert {row[0] for row in table.rows} == {compare.label(key)}
    assert table.strong == {0}


@for_each_row(
    "phase, iteration, before, after, moved",
    ("dirty", 2, 0.230, 0.238, False),
    ("dirty", 2, 0.230, 0.240, True),
    ("dirty", 2, 0.230, 0.220, True),
    # One tick of the timer is nothing in what is long, and pays for nothing.
    ("dirty", 1, 0.013, 0.017, False),
    ("dirty", 2, 0.013, 0.017, True),
    ("disable", None, 0.066, 0.072, False),
    ("populate", None, 0.012, 0.017, False),
    # Just at the limit.
    ("populate", None, 0.0, 0.008, False),
    # What is short is compared with itself, not with a tick.
    ("dirty", 1, 0.00058, 0.00063, False),
    ("dirty", 1, 0.001, 0.005, True),
    ("enable", None, 0.00034, 0.00041, False),
    ("enable", None, 0.0003, 0.0043, True),
    ("clear", 2, 0.00019, 0.00024, False),
    ("get", 1, 0.000014, 0.000018, False),
    ("get", 1, 0.000014, 0.000028, True),
    ("clear", 1, 0.0025, 0.00254, False),
    ("clear", 1, 0.00119, 0.00114, False),
    ("clear", 1, 0.00119, 0.0013, True),
    ("clear", 1, 0.0055, 0.0277, True),
)
def test_a_lockstep_figure_moves_beyond_the_limit_of_its_phase(
    phase: str, iteration: int | None, before: float, after: float, moved: bool
) -> None:
    one = measurement(phase=phase, iteration=iteration, seconds=before)
    sides = [compare.Side(n, {one.key: [t]}, frozenset()) for n, t in (("a", before), ("b", after))]
    assert [pair.moved for pair in compare.compare(*sides).pairs] == [moved]


@for_each_row(
    "phase, iterations, factor",
    ("enable", [None], 1.35),
    ("disable", [None], 1.35),
    ("clear", [1, 2, 3], 1.35),
    ("dirty", [1, 2, 3], 1.35),
    ("get", [1, 2, 3], 1.35),
    ("populate", [None], 2),
)
@pytest.mark.parametrize("base", [base.name for base in (ROOT / figures.REFERENCE).iterdir()])
def test_each_figure_of_the_reference_moves_if_it_grows_by_a_third(
    base: str, phase: str, iterations: list[int | None], factor: float
) -> None:
    kept = compare.load([ROOT / figures.REFERENCE / base / "bench.jsonl"])
    grown = {
        key: [one * factor for one in found]
        for key, found in kept.times.items()
        if key.phase == phase and key.iteration in iterations
    }
    found = compare.compare(kept, replace(kept, times=grown))
    assert found.pairs and found.moved == sorted(found.pairs, key=lambda p: p.change, reverse=True)


def test_only_the_same_dimensions_are_compared(tmp_path: Path) -> None:
    found = list(bench())
    a = file_of(tmp_path, "a.jsonl", [one for one in found if one.vcpus == 2])
    b = file_of(tmp_path, "b.jsonl", scaled(found, 3, vcpus=4))
    said = lab("compare", a, b, "--brief").err
    assert "only in B: 60 measurements (series, ept=Y, 4 vCPUs x 2 MiB, 100% writes, N;" in said
    assert "60 figures, none moved" in said
    # The first three VMs that only one side has.
    keys = [measurement(vcpus=n, phase=p).key for n in (1, 2, 3, 4) for p in ("dirty", "get")]
    (three,), (four,) = (compare.notes(compare.Comparison([], {"A": keys[:n]})) for n in (6, 8))
    shown = "; ".join(f"series, ept=Y, {n} vCPUs x 2 MiB, 100% writes, N" for n in (1, 2, 3))
    assert three == f"only in A: 6 measurements ({shown})"
    assert four == f"only in A: 8 measurements ({shown}; ...)"


def test_other_ways_of_logging_are_other_dimensions(tmp_path: Path) -> None:
    one = measurement(eager=True)
    both = [one, replace(one, dirty_bits="on"), replace(one, pml=False)]
    a = file_of(tmp_path, "a.jsonl", [one])
    b = file_of(tmp_path, "b.jsonl", [both[0], *scaled(both[1:], 3)])
    c = file_of(tmp_path, "c.jsonl", both)
    # An older line has neither key.
    text = (tmp_path / "a.jsonl").read_text()
    assert ' "dirty_bits": "off",' in text
    (tmp_path / "a.jsonl").write_text(text.replace(' "dirty_bits": "off",', ""))
    assert "ept=Y, dirty_bits=on, 2 vCPUs" in lab("compare", a, b, "--brief").err
    said = lab("compare", c, b, "--brief", status=1).out
    for words in ("series, ept=Y, dirty_bits=on, 2", "series, ept=Y, pml=N, 2"):
        assert f"moved: {words} vCPUs x 2 MiB, 100% writes, Y: dirty 2: " in said


def test_cycles_are_compared_each_with_itself(tmp_path: Path) -> None:
    found = [measurement(eager=True), measurement(eager=True, cycle=3)]
    a = file_of(tmp_path, "a.jsonl", found)
    b = file_of(tmp_path, "b.jsonl", [found[0], *scaled(found[1:], 3)])
    said = lab("compare", a, b, "--brief", status=1)
    assert "moved: series, ept=Y, 2 vCPUs x 2 MiB, 100% writes, Y: dirty 2, cycle 3: " in said.out
    assert "dirty 2: " not in said.out
    first = file_of(tmp_path, "first.jsonl", found[:1])
    assert "only in B: 1 measurements" in lab("compare", first, b, "--brief").err


def test_wall_clock_differences_count_beyond_the_spread(tmp_path: Path) -> None:
    a, again, close, far = (
        file_of(tmp_path, f"{seconds}.jsonl", [measurement(machine="host", seconds=seconds)])
        for seconds in (1.0, 1.2, 1.25, 1.6)
    )
    lab("compare", a, close, "--again-a", again, "--again-b", close)
    lab("compare", a, far, "--again-a", again, "--again-b", far, status=1)
    assert "1 of 1 are not judged" in lab("compare", a, far).err
    # Repeated lines are a spread as well.
    ones = [measurement(machine="host", seconds=s) for s in (1.0, 1.3)]
    a = file_of(tmp_path, "a.jsonl", ones)
    b = file_of(tmp_path, "b.jsonl", [replace(one, seconds=one.seconds + 0.2) for one in ones])
    c = file_of(tmp_path, "c.jsonl", [replace(one, seconds=one.seconds + 0.4) for one in ones])
    lab("compare", a, b)
    lab("compare", a, c, status=1)
    # One side alone has no spread, and a difference of just the spread is none.
    key = ones[0].key
    for before, after, found in (
        ([1.0, 1.5], [1.5, 2.0], (True, False)),
        ([1.0, 1.5], [1.5, 2.25], (True, False)),
        ([1.0, 1.5], [2.0, 2.25], (True, True)),
        ([1.0, 1.5], [9.0], (False, False)),
        ([1.0], [8.0, 9.0], (False, False)),
    ):
        sides = [compare.Side("x", {key: times}, frozenset()) for times in (before, after)]
        (pair,) = compare.compare(*sides).pairs
        assert (pair.judged, pair.moved) == found
        assert (pair.before, pair.after) == (statistics.median(before), statistics.median(after))


def test_machines_and_kernels_are_never_mixed(tmp_path: Path) -> None:
    a = file_of(tmp_path, "a.jsonl", [measurement()])
    b = file_of(tmp_path, "b.jsonl", [measurement(machine="svm-qemu")])
    assert "svm-qemu and vmx-bochs" in refusal("compare", a, b)
    found = list(bench())
    other = [replace(one, kernel_version="7.3.4") for one in scaled(found, 2)]
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "both.jsonl")]
    for file, measured in zip(files, (found, other, found + other), strict=True):
        file_of(tmp_path, file.name, measured)
    assert compare.load(files[:1]).versions != compare.load(files[1:2]).versions
    for mixed in (files[:2], files[2:]):
        assert "and 7.3.4 are never mixed" in refused(compare.load, mixed)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    a = file_of(tmp_path, "a.jsonl", [measurement()])
    other = file_of(tmp_path, "b.jsonl", [measurement(vcpus=4)])
    (tmp_path / "half.jsonl").write_text('{"machine"')
    (tmp_path / "bad.jsonl").write_text("{}\n")
    for words, said in (
        ((a, other), "have no measurement in common"),
        ((a, str(tmp_path / "none.jsonl")), "none.jsonl: cannot be read"),
        ((a, str(tmp_path / "half.jsonl")), "half.jsonl: is empty, or its last line is incomplete"),
        ((a, str(tmp_path / "bad.jsonl")), "bad.jsonl, line 1: Object missing required"),
    ):
        assert said in refusal("compare", *words)


def test_a_time_that_was_nothing_is_no_division() -> None:
    one = measurement(phase="get", iteration=1, seconds=0)
    sides = [compare.Side(n, {one.key: [t]}, frozenset()) for n, t in (("a", 0.0), ("b", 1.0))]
    found = compare.compare(*sides)
    assert found.moved[0].change == float("inf")
    assert replace(found.moved[0], after=0.0).change == 1.0
    assert compare.moves(found)
    other = replace(sides[1], times={replace(one.key, vcpus=3): [1.0]})
    assert "no measurement in common" in refused(compare.compare, sides[0], other)


MIB = 1 << 20


def measured(off: dict[int, float], on: dict[int, float]) -> list[Measurement]:
    """Rounds that take so many seconds: half of it dirty, a quarter GET, a quarter CLEAR."""
    shares = {"dirty": 0.5, "get": 0.25, "clear": 0.25}
    vm = {"ept": False, "eager": True, "vcpus": 8}
    return [
        measurement(**vm, **mode, phase=phase, seconds=total * share)
        for dirty_bits, rounds in (("off", off), ("on", on))
        for mix, total in rounds.items()
        for mode in [{"write_percent": mix, "dirty_bits": dirty_bits}]
        for phase, share in shares.items()
    ]


def found(off: dict[int, float], on: dict[int, float]) -> list[Tradeoff]:
    return tradeoff.find({one.key: one.seconds for one in measured(off, on)})


FLAT = dict.fromkeys((0, 1, 100), 2.0)


def test_later_cycles_have_no_crossing() -> None:
    rounds = measured({0: 1.0, 1: 1.0, 100: 3.0}, FLAT)
    again = [replace(one, cycle=2, seconds=9.0) for one in rounds]
    (mode,) = tradeoff.find({one.key: one.seconds for one in [*again, *rounds]})
    assert mode.like.cycle == 1
    assert mode.crossing() == pytest.approx(50.5)


@for_each_row(
    "off, on, crossing",
    ({0: 1.0, 1: 5.0, 100: 300.0}, FLAT, 0.25),
    ({0: 1.0, 1: 1.0, 100: 3.0}, FLAT, 50.5),
    ({0: 3.0, 1: 3.0, 100: 3.0}, FLAT, 0.0),
    ({0: 1.0, 1: 1.0, 100: 1.0}, FLAT, None),
    # Cheaper and dearer again: from the last one on.
    ({0: 3.0, 1: 1.0, 100: 3.0}, FLAT, 50.5),
)
def test_the_crossing_lies_between_what_was_measured(
    off: dict[int, float], on: dict[int, float], crossing: float | None
) -> None:
    (mode,) = found(off, on)
    assert mode.crossing() == pytest.approx(crossing)


def test_processor_time_counts_every_vcpu() -> None:
    (mode,) = found({0: 1.0, 1: 1.0, 100: 3.0}, FLAT)
    # 8 vCPUs: 4.5 times the sum that passes, as half of that is dirty.
    assert mode.protected[-1].busy(8) == pytest.approx(3.0 * 4.5)
    assert mode.crossing(8) == mode.crossing()
    mode = replace(mode, bits=[replace(one, get=one.get + 2) for one in mode.bits])
    assert mode.crossing() is None
    assert mode.crossing(8) == pytest.approx(1 + 99 * 6.5 / 9)


def test_a_round_is_the_sum_of_its_phases_in_order() -> None:
    (mode,) = found({100: 4.0, 0: 1.0, 20: 2.0}, {0: 2.0, 20: 2.0, 100: 2.0})
    assert [one.write_percent for one in mode.protected] == [0, 20, 100]
    last = mode.protected[-1]
    assert (last.dirty, last.get, last.clear, last.total) == (2.0, 1.0, 1.0, 4.0)
    phases = [(key.phase, key.iteration) for key in last.keys]
    assert phases == [("dirty", 2), ("get", 2), ("clear", 2)]
    # 8 vCPUs x 2 MiB.
    assert mode.pages == 4096


def test_idle_memory_costs_what_it_adds_to_the_last_get() -> None:
    used = measured({0: 1.0, 1: 5.0, 100: 300.0}, {0: 1.5, 1: 1.75, 100: 2.0})
    get = replace(used[0], phase="get")
    idle = [
        replace(one, iteration=iteration, idle=n, seconds=2 + n * each * iteration / 5)
        for dirty_bits, each in (("off", 0.25), ("on", 0.5))
        for n in (1, 3)
        for one in [replace(get, dirty_bits=dirty_bits, vcpus=n + 1)]
        for iteration in (5, 4)
    ]
    # In between, and in an earlier GET only: neither counts.
    idle += [replace(one, idle=2, vcpus=3, seconds=99.0) for one in idle if one.idle == 1]
    idle += [replace(one, idle=9, vcpus=10) for one in idle if one.iteration == 4]
    (mode,) = tradeoff.find({one.key: one.seconds for one in used + idle})
    assert mode.idle == pytest.approx((0.25, 0.5))
    # What is written takes 2 s; a GiB has 504 tables more than 8 vCPUs x 2 MiB.
    assert mode.seconds(True, 1 << 30) == pytest.approx(2 + 504 * 0.5)
    # A part of a table is none.
    assert mode.seconds(False, (1 << 30) + tradeoff.PAGE) == pytest.approx(300 + 504 * 0.25)
    gain, looking = 298 / 4096, 0.25 / 512
    assert mode.crossing_idle() == pytest.approx(100 * looking / (looking + gain))
    assert tradeoff.find({one.key: one.seconds for one in used})[0].crossing_idle() is None
    # Where Dirty bits are dearer even if everything is written.
    assert replace(mode, bits=mode.protected, protected=mode.bits).crossing_idle() is None


def test_only_what_was_measured_both_ways_counts() -> None:
    assert found({0: 1.0, 100: 2.0}, {0: 1.0, 100: 2.0}) == []
    (mode,) = found({0: 1.0, 1: 1.0, 2: 1.0, 100: 2.0}, {0: 1.0, 2: 1.0, 100: 2.0})
    assert [one.write_percent for one in mode.bits] == [0, 2, 100]
    whole = measured(FLAT, FLAT)
    for spoilt in (
        [replace(one, kernel="peer") for one in whole],
        [replace(one, eager=False) for one in whole],
        [one for one in whole if one.phase != "get"],
        [one for one in whole if one.dirty_bits == "on"],
    ):
        assert tradeoff.find({one.key: one.seconds for one in spoilt}) == []


def test_modes_are_told_apart_and_those_of_different_vms_are_not_mixed() -> None:
    one = measured(FLAT, FLAT)
    other = [replace(m, ept=True, pml=False) for m in one]
    likes = [mode.like for mode in tradeoff.find({m.key: m.seconds for m in one + other})]
    assert [(like.ept, like.pml) for like in likes] == [(False, True), (True, False)]
    small = [replace(m, vcpus=2) for m in one]
    everything = tradeoff.find({m.key: m.seconds for m in small + one + other})
    assert len(everything) == 3
    chosen = [(mode.like.vcpus, mode.like.ept) for mode in tradeoff.of_one_vm(everything)]
    assert chosen == [(8, False), (8, True)]
    assert tradeoff.of_one_vm(everything[:1]) == everything[:1]
    assert tradeoff.of_one_vm([]) == []


def test_the_cpus_own_log_is_the_other_way_where_there_is_one() -> None:
    """A VM with EPT that logs by Dirty bits does without PML, so its keys say so."""
    both = [replace(m, ept=True, pml=m.dirty_bits == "off") for m in measured(FLAT, FLAT)]
    (mode,) = tradeoff.find({m.key: m.seconds for m in both})
    assert mode.like.pml
    assert {key.pml for one in mode.protected for key in one.keys} == {True}
    assert {key.pml for one in mode.bits for key in one.keys} == {False}


def test_every_mode_that_is_measured_logs_by_dirty_bits() -> None:
    boots = crossover.boots()
    modes = ("ept=N", "ept=Y, pml=N", "ept=Y, tdp_mmu=Y, pml=N", "ept=Y, tdp_mmu=Y")
    parts = ("", ", idle memory")
    assert [boot.label for boot in boots] == [f"series, {m}{p}" for p in parts for m in modes]
    # By PML, and by nothing else.
    values = 2 * [("off", "on"), ("off", "on"), ("off", "on"), ()]
    assert [boot.matrix.dirty_bits for boot in boots] == values
    assert (boots[1].parameters["kvm_intel.ept"], boots[1].parameters["kvm_intel.pml"]) == (
        "1",
        "0",
    )
    assert {0, 100} <= set(crossover.MATRIX.writes)
    for matrix in (crossover.MATRIX, crossover.IDLE):
        plan.check_matrix(matrix)


def test_what_was_measured_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = measured({0: 1.0, 1: 5.0, 100: 300.0}, FLAT)
    monkeypatch.setattr(crossover, "measure_into", lambda file: jsonl.write(file, rounds))
    file = tmp_path / "x-crossover.jsonl"
    said = lab("crossover", "--output", str(file))
    assert "from 0.25% on" in said.out and "| ept=N |   100% |" in said.out
    assert str(file) in said.err
    # A dry run measures nothing.
    monkeypatch.setattr(crossover, "measure_into", None)
    assert "--dirty-bits=off on" in lab("crossover", "--dry-run").out
    file = tmp_path / "old-crossover.jsonl"
    file.write_text("precious")
    assert "results are never overwritten" in refusal("crossover", "--output", str(file))
