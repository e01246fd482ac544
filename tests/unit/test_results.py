# SPDX-License-Identifier: GPL-2.0-only
"""lab.results.jsonl: what counts as a measurement, and files that are complete or absent."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from lab.core.paths import ROOT
from lab.results import files, jsonl
from lab.results.jsonl import Measurement
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.report_data import DIMENSIONS

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
    assert list(json.loads(written)) == [*list(GOOD)[:-1], "dirty_harvest", "seconds"]


LATER = {"dirty_harvest": "on", "pml": False, "cpus": 9, "overcommitted": False, "pinned": True}
# Those of them that name what was measured.
LATER_DIMENSIONS = ("dirty_harvest", "pml")


def test_keys_that_came_after_the_first_results() -> None:
    assert set(LATER) == jsonl.LATER
    found = jsonl.parse(line(**LATER))
    assert (found.cpus, found.overcommitted, found.pinned) == (9, False, True)
    assert list(json.loads(jsonl.to_line(found))) == [*list(GOOD)[:-1], *LATER, "seconds"]
    assert jsonl.parse(line(cpus=9)).pinned is None
    assert found.key != jsonl.parse(line()).key
    rest = {name: value for name, value in LATER.items() if name not in LATER_DIMENSIONS}
    assert jsonl.parse(line(**rest)).key == jsonl.parse(line()).key


def test_a_line_without_a_dimension_that_came_later_is_as_it_was() -> None:
    """dirty_harvest is off, and pml says something only where it's off."""
    old, new = jsonl.parse(line()), jsonl.parse(line(dirty_harvest="off", pml=True))
    assert old == new
    assert (old.dirty_harvest, old.pml) == ("off", True)
    for name, value in (("dirty_harvest", "auto"), ("pml", False)):
        other = jsonl.parse(line(**{name: value}))
        assert other.key != old.key
        assert json.loads(jsonl.to_line(other))[name] == value
    assert "pml" not in json.loads(jsonl.to_line(old))


def test_the_key_is_all_but_time_and_version() -> None:
    one = jsonl.parse(line())
    assert one.key == jsonl.parse(line(seconds=1, kernel_version="7.0")).key
    names = {field.name for field in fields(jsonl.Key)}
    assert set(GOOD) - names == {"seconds", "kernel_version"}
    assert names < set(GOOD) | set(LATER_DIMENSIONS)


@pytest.mark.parametrize("name", list(GOOD))
def test_no_key_may_be_missing(name: str) -> None:
    rest = {key: value for key, value in GOOD.items() if key != name}
    assert f"missing required field `{name}`" in refused(jsonl.parse, json.dumps(rest))


@for_each_row(
    "text, said",
    (line(ept=1), "Expected `bool`, got `int` - at `$.ept`"),
    (line(eager="Y"), "Expected `bool`, got `str` - at `$.eager`"),
    (line(vcpus=True), "Expected `int`, got `bool` - at `$.vcpus`"),
    (line(vcpus=8.0), "Expected `int`, got `float` - at `$.vcpus`"),
    (line(vcpus=0), "Expected `int` >= 1 - at `$.vcpus`"),
    (line(bytes_per_vcpu=0), "Expected `int` >= 1 - at `$.bytes_per_vcpu`"),
    (line(write_percent=101), "Expected `int` <= 100 - at `$.write_percent`"),
    (line(write_percent=-1), "Expected `int` >= 0 - at `$.write_percent`"),
    (line(kernel="mine"), "matching regex '^(series|peer|base)\\\\Z' - at `$.kernel`"),
    (line(machine=None), "Expected `str`, got `null` - at `$.machine`"),
    (line(phase="lunch"), "|disable)\\\\Z' - at `$.phase`"),
    (line(iteration=None), "'iteration' cannot be None in phase 'dirty'"),
    (line(iteration=0), "Expected `int` >= 1 - at `$.iteration`"),
    (line(iteration="2"), "Expected `int | null`, got `str` - at `$.iteration`"),
    (line(phase="enable"), "'iteration' cannot be 2 in phase 'enable'"),
    (line(phase="enable", iteration=0), "Expected `int` >= 1 - at `$.iteration`"),
    (line(phase="enable", iteration=-1), "Expected `int` >= 1 - at `$.iteration`"),
    (line(seconds="0.1"), "Expected `float`, got `str` - at `$.seconds`"),
    (line(seconds=False), "Expected `float`, got `bool` - at `$.seconds`"),
    (line(seconds=-0.1), "Expected `float` >= 0.0 - at `$.seconds`"),
    (line(seconds=float("nan")), "Expected `float` >= 0.0 - at `$.seconds`"),
    (line(seconds=float("inf")), "Expected `float` <= 1.7976931348623157e+308"),
    (line(ept=False, tdp_mmu=True), "'tdp_mmu' cannot be True without 'ept'"),
    (line(dirty_harvest="perhaps"), "regex '^(off|on|auto)\\\\Z' - at `$.dirty_harvest`"),
    (line(dirty_harvest=True), "Expected `str`, got `bool` - at `$.dirty_harvest`"),
    (line(dirty_harvest=None), "Expected `str`, got `null` - at `$.dirty_harvest`"),
    (line(pml="N"), "Expected `bool`, got `str` - at `$.pml`"),
    (line(ept=False, pml=False), "'pml' cannot be False without 'ept'"),
    (line(pinned=1), "Expected `bool | null`, got `int` - at `$.pinned`"),
    (line(cpus=0), "Expected `int` >= 1 - at `$.cpus`"),
    ("", "is not JSON"),
    ('{"machine": ', "is not JSON"),
    ("[1]", "Expected `object`, got `array`"),
    (line()[:-1] + ', "vcpus": 8}', "has a key twice"),
)
def test_lines_that_are_no_measurement(text: str, said: str) -> None:
    assert said in refused(jsonl.parse, text)


@for_each_row(
    "text, said",
    (f"{line()}\nnonsense\n", "x.jsonl, line 2: is not JSON"),
    (line(), "x.jsonl: ends in half a line"),  # even if it is JSON
    (f"{line()}\n{line(seconds=1)}\n", "x.jsonl, line 2: measures again"),
)
def test_errors_name_file_and_line(text: str, said: str) -> None:
    assert refused(jsonl.parse_all, text, "x.jsonl").startswith(said)
    # Another dimension is another measurement.
    assert len(jsonl.parse_all(f"{line()}\n{line(eager=True)}\n", "x.jsonl")) == 2


def test_a_written_file_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "run.jsonl"
    found = [jsonl.parse(line(vcpus=vcpus)) for vcpus in (2, 4)]
    jsonl.write(file, found)
    assert jsonl.parse_all(file.read_text(), "run") == found
    assert [path.name for path in file.parent.iterdir()] == ["run.jsonl"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Any:
        yield jsonl.parse(line())
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        jsonl.write(tmp_path / "run.jsonl", failing())
    assert list(tmp_path.iterdir()) == []


def test_latest_points_at_the_newest_run(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(name)
        files.name_latest(tmp_path / name)
    latest = tmp_path / "latest.jsonl"
    assert latest.readlink() == Path("b.jsonl")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a.jsonl", "b.jsonl", "latest.jsonl"]


def test_the_documentation_names_every_key_and_phase_and_its_example_is_one() -> None:
    text = (ROOT / "docs" / "results-format.md").read_text()
    for name in [*GOOD, *LATER, *jsonl.PHASES]:
        assert f"| `{name}` |" in text
    example = next(row for row in text.splitlines() if row.startswith("    {"))
    assert list(json.loads(example)) == [*list(GOOD)[:-1], *LATER, "seconds"]
    assert jsonl.parse(example).dirty_harvest == "on"
    assert jsonl.to_line(jsonl.parse(example)) == f"{example.strip()}\n"
