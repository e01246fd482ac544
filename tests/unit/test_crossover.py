# SPDX-License-Identifier: GPL-2.0-only
"""crossover and tradeoff: where Dirty bits become cheaper than write protection."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.measure import crossover, plan
from lab.results import jsonl, tradeoff
from lab.results.jsonl import Measurement
from lab.results.tradeoff import Tradeoff
from tests.rows import for_each_row
from tests.unit.calls import lab, refusal
from tests.unit.report_data import measurement

MIB = 1 << 20


def measured(off: dict[int, float], on: dict[int, float]) -> list[Measurement]:
    """Rounds that take so many seconds: half of it dirty, a quarter GET, a quarter CLEAR."""
    shares = {"dirty": 0.5, "get": 0.25, "clear": 0.25}
    vm = {"ept": False, "eager": True, "vcpus": 8}
    return [
        measurement(**vm, **mode, phase=phase, seconds=total * share)
        for harvest, rounds in (("off", off), ("on", on))
        for mix, total in rounds.items()
        for mode in [{"write_percent": mix, "dirty_harvest": harvest}]
        for phase, share in shares.items()
    ]


def found(off: dict[int, float], on: dict[int, float]) -> list[Tradeoff]:
    return tradeoff.find({one.key: one.seconds for one in measured(off, on)})


FLAT = dict.fromkeys((0, 1, 100), 2.0)


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
    dear = [replace(one, get=one.get + 2) for one in mode.bits]
    mode = replace(mode, bits=dear)
    assert mode.crossing() is None
    assert mode.crossing(8) == pytest.approx(1 + 99 * 6.5 / 9)


def test_a_round_is_the_sum_of_its_phases_in_order() -> None:
    (mode,) = found({100: 4.0, 0: 1.0, 20: 2.0}, {0: 2.0, 20: 2.0, 100: 2.0})
    assert [one.write_percent for one in mode.protected] == [0, 20, 100]
    last = mode.protected[-1]
    assert (last.dirty, last.get, last.clear, last.total) == (2.0, 1.0, 1.0, 4.0)
    phases = [(key.phase, key.iteration) for key in last.keys]
    assert phases == [("dirty", 2), ("get", 2), ("clear", 2)]
    # 8 vCPUs x 2 MiB; a GiB is 64 times that.
    assert mode.pages == 4096
    assert mode.seconds(last, 1 << 30) == pytest.approx(256.0)


def test_only_what_was_measured_both_ways_counts() -> None:
    assert found({0: 1.0, 100: 2.0}, {0: 1.0, 100: 2.0}) == []
    (mode,) = found({0: 1.0, 1: 1.0, 2: 1.0, 100: 2.0}, {0: 1.0, 2: 1.0, 100: 2.0})
    assert [one.write_percent for one in mode.bits] == [0, 2, 100]
    whole = measured(FLAT, FLAT)
    for spoilt in (
        [replace(one, kernel="peer") for one in whole],
        [replace(one, eager=False) for one in whole],
        [one for one in whole if one.phase != "get"],
        [one for one in whole if one.dirty_harvest == "on"],
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


def test_every_mode_that_is_measured_harvests() -> None:
    boots = crossover.boots()
    modes = ("ept=N", "ept=Y, pml=N", "ept=Y, tdp_mmu=Y, pml=N")
    assert [boot.label for boot in boots] == [f"series, {mode}" for mode in modes]
    assert {boot.matrix.harvest for boot in boots} == {("off", "on")}
    assert boots[1].parameters == {"kvm.tdp_mmu": "0", "kvm_intel.ept": "1", "kvm_intel.pml": "0"}
    assert {0, 100} <= set(crossover.MATRIX.writes)
    plan.check_matrix(crossover.MATRIX)


def test_what_was_measured_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = measured({0: 1.0, 1: 5.0, 100: 300.0}, FLAT)
    monkeypatch.setattr(crossover, "measure_into", lambda file, fresh: jsonl.write(file, rounds))
    file = tmp_path / "x-crossover.jsonl"
    said = lab("crossover", "--output", str(file))
    assert "from 0.25% on" in said.out
    assert "| ept=N |   100% |" in said.out
    assert str(file) in said.err
    # A dry run measures nothing.
    monkeypatch.setattr(crossover, "measure_into", None)
    assert "--harvest=off on" in lab("crossover", "--dry-run").out
    file = tmp_path / "old-crossover.jsonl"
    file.write_text("precious")
    assert "results are never overwritten" in refusal("crossover", "--output", str(file))
