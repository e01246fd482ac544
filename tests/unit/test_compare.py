# SPDX-License-Identifier: GPL-2.0-only
"""lab.results.compare: what is compared, what counts as moved, and the exit status."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.results import compare, jsonl
from lab.results.jsonl import Measurement
from tests.rows import for_each_row
from tests.unit.calls import lab, refusal, refused
from tests.unit.report_data import bench, measurement


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
    said = lab("compare", a, a)
    assert "120 figures, none moved" in said.err
    assert "moved: " not in said.out
    worse = scaled(found, 2, phase="clear", iteration=1, kernel="peer", vcpus=4, ept=True)
    worse = scaled(worse, 1.1, phase="dirty", eager=False, vcpus=2, ept=False, write_percent=20)
    b = file_of(tmp_path, "b.jsonl", worse)
    said = lab("compare", a, b, "--brief", status=1)
    lines = [line for line in said.out.splitlines() if line.startswith("moved: ")]
    assert len(lines) == 3
    assert "peer, ept=Y, 4 vCPUs" in lines[0] and "(+100.00%)" in lines[0]
    assert "ept=N, 2 vCPUs x 2 MiB, 20% writes, N: dirty 2: 40.0 ms -> 44.0 ms" in lines[2]
    assert "3 of 120 figures moved" in said.err


@for_each_row(
    "phase, iteration, before, after, moved",
    ("dirty", 2, 0.230, 0.238, False),
    ("dirty", 2, 0.230, 0.240, True),
    ("dirty", 2, 0.230, 0.220, True),
    # One tick of the timer is nothing in what pays for nothing, but a lot in what does.
    ("dirty", 1, 0.001, 0.005, False),
    ("dirty", 2, 0.001, 0.005, True),
    ("enable", None, 0.0003, 0.0043, False),
    ("enable", None, 0.0003, 0.0123, True),
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


def test_only_the_same_dimensions_are_compared(tmp_path: Path) -> None:
    found = list(bench())
    a = file_of(tmp_path, "a.jsonl", [one for one in found if one.vcpus == 2])
    b = file_of(tmp_path, "b.jsonl", scaled(found, 3, vcpus=4))
    said = lab("compare", a, b, "--brief").err
    assert "only in B: 60 measurements (series, ept=Y, 4 vCPUs x 2 MiB, 100% writes, N;" in said
    assert "60 figures, none moved" in said


def test_other_ways_of_logging_are_other_dimensions(tmp_path: Path) -> None:
    one = measurement(eager=True)
    both = [one, replace(one, dirty_harvest="on"), replace(one, pml=False)]
    a = file_of(tmp_path, "a.jsonl", [one])
    b = file_of(tmp_path, "b.jsonl", [both[0], *scaled(both[1:], 3)])
    c = file_of(tmp_path, "c.jsonl", both)
    # An older line has neither key.
    text = (tmp_path / "a.jsonl").read_text()
    assert ' "dirty_harvest": "off",' in text
    (tmp_path / "a.jsonl").write_text(text.replace(' "dirty_harvest": "off",', ""))
    assert "ept=Y, dirty_harvest=on, 2 vCPUs" in lab("compare", a, b, "--brief").err
    said = lab("compare", c, b, "--brief", status=1).out
    for words in ("series, ept=Y, dirty_harvest=on, 2", "series, ept=Y, pml=N, 2"):
        assert f"moved: {words} vCPUs x 2 MiB, 100% writes, Y: dirty 2: " in said


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
        ((a, other), "nothing with the same dimensions"),
        ((a, str(tmp_path / "none.jsonl")), "none.jsonl: cannot be read"),
        ((a, str(tmp_path / "half.jsonl")), "half.jsonl: is empty or ends in half a line"),
        ((a, str(tmp_path / "bad.jsonl")), "bad.jsonl, line 1: Object missing required"),
    ):
        assert said in refusal("compare", *words)


def test_a_time_that_was_nothing_is_no_division() -> None:
    one = measurement(phase="get", iteration=1, seconds=0)
    sides = [compare.Side(n, {one.key: [t]}, frozenset()) for n, t in (("a", 0.0), ("b", 1.0))]
    found = compare.compare(*sides)
    assert found.moved[0].change == float("inf")
    assert compare.moves(found)
    other = replace(sides[1], times={replace(one.key, vcpus=3): [1.0]})
    assert "nothing with the same" in refused(compare.compare, sides[0], other)
