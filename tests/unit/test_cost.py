# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.cost: what is run, and the figures that are made of holds of mmu_lock."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.build import kernel, selftests
from lab.build.kernel import Kernel
from lab.machines import Result
from lab.machines.bochs import VmxBochs
from lab.measure import cost, live, lockprofile
from lab.measure.cost import Point
from lab.measure.native import command
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refusal, refused

RELEASE = "7.3.4-series"
OUTPUT = """point 1 32
begin 1000 as_id 0 slot 10 gfns 1000-2000
end 3000 pages 0 error -11
begin 5000 as_id 0 slot 10 gfns 1000-2000
end 77000 pages 16 error 0
point 2 4
begin 80000 as_id 0 slot 10 gfns 1000-2000
end 84600 pages 1 error -11
begin 90000 as_id 0 slot 10 gfns 1000-2000
end 103500 pages 3 error 0
"""


def test_costs_are_instructions_per_huge_page() -> None:
    # Every size with one vCPU, and every number of vCPUs.
    assert cost.points((4, 32), (1, 2)) == [Point(1, 4), Point(1, 32), Point(2, 32)]
    first, second = cost.parse(OUTPUT, True, RELEASE)
    wanted = ("vmx-bochs", True, 1, 32, 16, 1480000, 1440000, RELEASE, 1480 * 50 / 16)
    assert tuple(first.values()) == wanted
    assert (second["pages"], second["longest_ns"]) == (4, 270000)


def test_a_run_that_did_not_split_everything_is_no_result() -> None:
    more = cost.parse(OUTPUT.replace("pages 16", "pages 17"), True, RELEASE)
    assert "17 huge pages" in failed(list, more)
    nothing = cost.parse("begin 1 x\nend 2 pages 16 error 0\n", True, RELEASE)
    assert "nothing was measured" in failed(list, nothing)


@for_each_row(
    "check, words, said",
    *((cost.check, ([Point(1, mib)], 15), f"--sizes: {mib} MiB is not a mu") for mib in (3, 0)),
    *((cost.check, ([Point(n, 4)], 15), f"--vcpus: {n} is not between 1 and 14") for n in (15, 0)),
    *((live.check, (mib,), f"--mib: {mib} is not a multiple of 2") for mib in (0, 3, -2, 4096)),
    (lockprofile.check, ((0,), (100,), 2), "--vcpus: 0 is not between 1 and 64"),
    (lockprofile.check, ((2, 2), (100,), 2), "--vcpus: a number is given twice"),
    (lockprofile.check, ((), (100,), 2), "--vcpus: the list is empty"),
    (lockprofile.check, ((2,), (101,), 2), "--writes: 101 is not between 0 and 100"),
    (lockprofile.check, ((2,), (100,), 3), "--mib: 3 is not a multiple of 2"),
    *((command.check, words, "each number must be 1 or more") for words in (([0], 1), ([1], 0))),
)
def test_what_cannot_be_measured_is_refused(
    check: Callable[..., None], words: tuple[object, ...], said: str
) -> None:
    assert said in refused(check, *words)


def test_the_most_that_can_be_measured() -> None:
    cost.check([Point(14, 4), Point(1, 32)], 15)
    assert "100000000 GiB take" in refusal("native", "--sizes", "100000000")


def test_one_boot_has_memory_and_processors_for_all_runs() -> None:
    job = cost.cost_job(False, [Point(1, 4096), Point(8, 4)], Path("bzImage"), Path("test"))
    assert (job.command[-5:], job.cpus) == (("2048", "1", "4096", "8", "4"), 9)
    assert job.memory_mib > 4096
    assert job.parameters["kvm_intel.ept"] == "0"


def test_costs_are_kept_and_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VmxBochs, "run", lambda *_: Result(0, OUTPUT.encode(), {}, "", 1.0))
    monkeypatch.setattr(kernel, "build", lambda *_: Kernel("series", "kvm", tmp_path, RELEASE))
    monkeypatch.setattr(selftests, "build", lambda _: tmp_path)
    said = lab("cost", "--output", str(tmp_path / "a-cost.jsonl"))
    assert "| shadow paging |     1 |  32 |         16 |                  4625 |" in said.out
    records = [json.loads(line) for line in (tmp_path / "a-cost.jsonl").read_text().splitlines()]
    assert [one["instructions"] for one in records] == [4625, 4525, 4625, 4525]
    assert {one["kernel_version"] for one in records} == {RELEASE}
