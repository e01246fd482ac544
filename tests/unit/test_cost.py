# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.cost: what is run, and how what comes back is read."""

import json
from pathlib import Path

import pytest

from lab.build import kernel, selftests
from lab.build.kernel import Kernel
from lab.machines import Result
from lab.machines.bochs import VmxBochs
from lab.measure import cost
from lab.measure.cost import Point
from tests.unit.calls import failed, lab, refused

RELEASE = "7.3.4-series"
OUTPUT = """point 1 32
hold pages 0 ns 40000 why alloc
hold pages 16 ns 1440000 why done
point 2 4
hold pages 1 ns 92000 why yield
hold pages 3 ns 270000 why done
"""


def test_every_size_with_one_vcpu_and_every_number_of_vcpus() -> None:
    found = cost.points((4, 32), (1, 2))
    assert found == [Point(1, 4), Point(1, 32), Point(2, 32)]


def test_costs_are_instructions_per_huge_page() -> None:
    first, second = cost.parse(OUTPUT, True, RELEASE)
    wanted = ("vmx-bochs", True, 1, 32, 16, 1480000, 1440000, RELEASE, 1480 * 50 / 16)
    assert tuple(first.values()) == wanted
    assert (second["pages"], second["longest_ns"]) == (4, 270000)


def test_a_run_that_did_not_split_everything_is_no_result() -> None:
    more = cost.parse(OUTPUT.replace("pages 16", "pages 17"), True, RELEASE)
    assert "17 huge pages" in failed(list, more)
    nothing = cost.parse("hold pages 16 ns 1 why done\n", True, RELEASE)
    assert "nothing was measured" in failed(list, nothing)


@pytest.mark.parametrize("point", [Point(1, 3), Point(1, 0), Point(15, 4), Point(0, 4)])
def test_what_the_machine_cannot_do_is_refused(point: Point) -> None:
    cost.check([Point(14, 4), Point(1, 32)], 15)
    refused(cost.check, [point], 15)


def test_one_boot_has_memory_and_processors_for_all_runs() -> None:
    job = cost.cost_job(False, [Point(1, 4096), Point(8, 4)], Path("bzImage"), Path("test"))
    assert job.command[-5:] == ("2048", "1", "4096", "8", "4")
    assert job.cpus == 9
    assert job.memory_mib > 4096
    assert job.parameters["kvm_intel.ept"] == "0"


def test_what_was_measured_is_kept_and_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Result(0, OUTPUT.encode(), {}, "", 1.0)
    monkeypatch.setattr(VmxBochs, "run", lambda *_: result)
    monkeypatch.setattr(kernel, "build", lambda *_: Kernel("series", "kvm", tmp_path, RELEASE))
    monkeypatch.setattr(selftests, "build", lambda _: tmp_path)
    said = lab("cost", "--output", str(tmp_path / "a.jsonl"))
    assert "| ept=N |     1 |  32 |         16 |                  4625 |" in said.out
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [one["instructions"] for one in records] == [4625, 4525, 4625, 4525]
    assert {one["kernel_version"] for one in records} == {RELEASE}
