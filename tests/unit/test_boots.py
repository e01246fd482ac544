# SPDX-License-Identifier: GPL-2.0-only
"""tests.machines.boots: who gets what of a boot that several cases share."""

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from lab import machines
from lab.build import mutants
from lab.build.selftests import SELFTESTS
from lab.core.paths import LAYOUT, ROOT
from lab.machines import Job, MachineFailed, Result
from tests.machines import test_parity as parity
from tests.machines.boots import (
    PARAMETERS,
    SCRIPT,
    Boots,
    Meter,
    Outcome,
    Spent,
    make_job,
    outcomes,
)
from tests.machines.matrix import (
    DISTINCT_MODES,
    HANGS,
    ONE_THREAD,
    SVM_MODES,
    VMX_MODES,
    Case,
    Selftest,
    cases,
    long_cases,
    mutant_cases,
    packaged_cases,
    quick_cases,
    same_controls,
    selftest,
)
from tests.machines.test_selftests import assert_silent
from tests.rows import for_each_row
from tests.unit.files import program

FIRST, SECOND, THIRD = (
    Case(Selftest(name, (name, "-v", "a b"), huge_2m=3, settings=settings), SVM_MODES[0], "Y")
    for name, settings in (("one", ()), ("two", (("nx_huge_pages", "1"),)), ("three", ()))
)
ALL = (FIRST, SECOND, THIRD)


def result(*cases: Case, logs: dict[str, str] | None = None, between: str = "") -> Result:
    files = {"between.log": between.encode()}
    for case in cases:
        files[f"{case.id}.status"] = b"0\n"
        files[f"{case.id}.output"] = case.test.name.encode()
        files[f"{case.id}.log"] = (logs or {}).get(case.test.name, "").encode()
    return Result(0, b"", files, "".join((logs or {}).values()) + between, 1.0)


class Fake:
    """A machine that crashes while BAD runs, and that complains of COMPLAINS after others."""

    def __init__(self, bad: Case | None = None) -> None:
        self.bad = bad
        self.complains: Case | None = None
        self.boots: list[list[Case]] = []

    def job(self, cases: Sequence[Case], note: Callable[[str], None]) -> Job:
        self.boots.append(list(cases))
        self.note = note
        return Job(kernel=Path("k"), command=("true",))

    def run(self, _job: Job) -> Result:
        for case in self.boots[-1]:
            self.note(case.id)
            if case == self.bad:
                raise MachineFailed("machine crashed", "it ended", "")
        complains = self.complains if self.boots[-1][0] != self.complains else None
        logs = {complains.test.name: "BUG: left behind\n"} if complains else None
        return result(*self.boots[-1], logs=logs)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(machines, "get", lambda _name: made)
    return made


def test_one_boot_is_enough_for_all_that_were_announced(fake: Fake) -> None:
    boots = Boots(ALL, fake.job)
    assert [boots.outcome(case).output for case in ALL] == ["one", "two", "three"]
    assert fake.boots == [list(ALL)]
    assert Boots((), fake.job).outcome(FIRST).output == "one"
    assert fake.boots == [list(ALL), [FIRST]]


def test_a_case_that_several_tests_want_runs_once_where_it_is_last(fake: Fake) -> None:
    boots = Boots((FIRST, SECOND, THIRD, SECOND), fake.job)
    assert boots.outcome(SECOND).output == "two"
    assert fake.boots == [[FIRST, THIRD, SECOND]]


def test_mutants_share_the_control_that_is_the_series_itself() -> None:
    all_of = mutants.load(LAYOUT).mutants
    sharing = same_controls(all_of)
    assert any(len(found) > 1 for found in sharing.values())
    for one in all_of:
        shares = sharing[one.number]
        assert one in shares
        assert len(shares) == 1 or not any(each.has_own_control for each in shares)
        control, itself = mutant_cases(one, shares)
        assert [mutant_cases(each, shares)[0] for each in shares] == [control] * len(shares)
        assert (control.boot, control.eager, control.test.argv) == (
            *(itself.boot, itself.eager, itself.test.argv),
        )
        *common, (name, number) = control.test.settings
        assert (common, name) == ([*itself.test.settings[:-1]], "mutant")
        assert -int(number) in {each.number for each in shares}


def test_a_machine_that_fails_is_the_fault_of_who_was_running(fake: Fake) -> None:
    fake.bad = SECOND
    boots = Boots(ALL, fake.job)
    assert boots.outcome(FIRST).status == 0
    with pytest.raises(MachineFailed):
        boots.outcome(SECOND)
    assert boots.outcome(THIRD).output == "three"
    assert fake.boots == [list(ALL), [FIRST, THIRD]]


def test_what_others_left_behind_is_no_fault_of_a_pair(fake: Fake) -> None:
    assert Boots(ALL, fake.job).control_and((FIRST, SECOND))[1].output == "two"
    fake.complains = SECOND
    _control, other = Boots(ALL, fake.job).control_and((FIRST, SECOND))
    assert not other.fine
    control, _other = Boots(ALL, fake.job).control_and((SECOND, THIRD))
    assert control.fine
    assert fake.boots == [list(ALL)] * 3 + [[SECOND, THIRD]]
    fake.bad = SECOND
    with pytest.raises(MachineFailed):
        Boots(ALL, fake.job).control_and((FIRST, SECOND))
    assert [FIRST, SECOND] in fake.boots


def test_whose_complaint_it_is() -> None:
    logs = {"two": "fine\nWARNING: two\n"}
    spent = dict.fromkeys((case.id for case in ALL), Spent())
    found = outcomes(ALL, result(*ALL, logs=logs), spent)
    assert "WARNING" not in found[FIRST.id].kernel_log + found[THIRD.id].kernel_log
    assert "WARNING: two" in found[SECOND.id].kernel_log
    assert_silent(found[FIRST.id])
    with pytest.raises(AssertionError, match="WARNING: two"):
        assert_silent(found[SECOND.id])
    found = outcomes(ALL, result(*ALL, logs=logs, between="BUG: at boot\n"), spent)
    assert all("BUG: at boot" in found[case.id].kernel_log for case in ALL)


def test_each_case_has_its_part_of_what_a_boot_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = (Spent(wall, 2 * wall) for wall in (10.0, 13.0, 20.0, 50.0))
    monkeypatch.setattr(Spent, "so_far", lambda: next(readings))
    meter = Meter()
    meter.boot()
    for name in ("one", "two"):
        meter.begin(name)
    assert meter.spent() == {"one": Spent(10, 20), "two": Spent(30, 60)}


def test_the_job_has_each_case_with_its_own() -> None:
    job = make_job(ALL, Path("k"), Path("t"), print)
    # Above what one case may take where the machine is slow, not all of them.
    assert (job.cpus, job.silent_s) == (3, 120 + 5 * 300)
    assert job.command[2].splitlines()[-4:] == [
        "save nx_huge_pages",
        f"run {FIRST.id} 300 Y off 3 -- one -v 'a b'",
        f"run {SECOND.id} 300 Y off 3 nx_huge_pages=1 -- two -v 'a b'",
        f"run {THIRD.id} 300 Y off 3 -- three -v 'a b'",
    ]


@for_each_row(
    "now, setting, status",
    ("update 3\nzap 4\n", "prove_window_us=9", 98),
    ("update 3\nzap 5\n", "prove_window_us=9", 0),
    ("update 3\nzap 4\n", "dirty_bits=on", 0),
    (None, "prove_window_us=9", 98),
)
def test_pauses_have_to_be_made(now: str | None, setting: str, status: int, tmp_path: Path) -> None:
    functions = SCRIPT[SCRIPT.index("pauses()") : SCRIPT.index("run()")]
    if now is not None:
        (tmp_path / "prove_windows").write_text(now)
    before = "7" if now else "0"
    script = f"{functions.replace(PARAMETERS, str(tmp_path))}\ncheck_pauses {before} {setting}"
    assert subprocess.run(["sh", "-c", script], check=False).returncode == status


def test_a_test_ends_with_its_children(tmp_path: Path) -> None:
    program(tmp_path / "shout", '#!/bin/sh\necho "$@"\nsleep 600 & echo $! >pid\nexit 4\n')
    script = SCRIPT[SCRIPT.index("run()") :].replace("/tmp/", f"{tmp_path}/")
    script = script.replace("/sys/kernel/debug/", f"{tmp_path}/")
    fakes = 'for name in prepare pauses check_pauses dmesg; do eval "$name() { :; }"; done'
    command = ("sh", "-c", f"{fakes}\n{script}\nrun name 7 Y 0 -- shout -b 16M")
    env = {"LAB_OUT": str(tmp_path), "LAB_PROGRESS": str(tmp_path / "progress")}
    subprocess.run(command, cwd=tmp_path, env=os.environ | env, check=True)
    assert (tmp_path / "name.output").read_text() == "-b 16M\n"
    assert (tmp_path / "name.status").read_text() == "4\n"
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "pid").read_text())).wait(5)


class Scripted:
    """A kernel on which cases end as told, one time after the other; None: the machine fails."""

    def __init__(self, *found: Outcome | None) -> None:
        self.found = list(found)
        self.limits: list[float] = []

    def outcome(self, case: Case) -> Outcome:
        self.limits.append(case.test.timeout_s)
        if (found := self.found.pop(0)) is None:
            raise MachineFailed("machine crashed", "it ended", "")
        return found


def ends(status: int, log: str = "") -> Outcome:
    return Outcome(status, "said", log)


def warns(text: str) -> Outcome:
    return ends(0, f"[ {len(text)}.0] WARNING: CPU: 1 PID: {len(text)} {text}\n")


@for_each_row(
    "base, series, said",
    ([ends(0)], [ends(0)], "pass"),
    ([ends(4)], [ends(4)], "skip"),
    ([ends(254)], [ends(1)], "FAIL"),
    ([ends(137)], [ends(137)], "limit"),
    ([ends(0), ends(0)], [ends(1), ends(0)], "pass"),
    ([ends(0), ends(4)], [None, ends(4)], "skip"),
    ([warns("at x86.c:12")], [warns("at x86.c:7")], "pass, COMPLAINS"),
)
def test_verdicts_are_the_same(
    base: list[Outcome | None], series: list[Outcome | None], said: str
) -> None:
    kernels = Scripted(*base), Scripted(*series)
    # Scripted has of Boots what is called.
    assert parity.compare(FIRST, [one.outcome for one in kernels]) == said
    assert kernels[0].limits == kernels[1].limits == [300, 600][: len(base)]


@for_each_row(
    "base, series, said",
    (ends(0), ends(1), "pass unpatched, FAIL with the series\n.*\nsaid"),
    (ends(0), None, "pass unpatched, no machine with the series\n.*machine crashed: it ended"),
    (ends(0), warns("at x86.c:7"), "pass, COMPLAINS with the series\n.*WARNING: CPU: 1"),
    (warns("at mmu.c:7"), warns("at x86.c:7"), "WARNING.* mmu.*WARNING.* x86"),
    (None, None, "no machine runs it: .*machine crashed"),
)
def test_a_difference_that_stays(base: Outcome | None, series: Outcome | None, said: str) -> None:
    kernels = Scripted(base, base), Scripted(series, series)
    with pytest.raises((AssertionError, pytest.fail.Exception), match=f"(?s){said}"):
        parity.compare(FIRST, [one.outcome for one in kernels])


def test_packaged_selftests_are_those_built_but_for_what_hangs_a_machine(tmp_path: Path) -> None:
    assert list(packaged_cases(tmp_path)) == []
    built = tmp_path / "obj-selftests/stripped"
    for name in (HANGS["vmx-bochs"][1], "dirty_log_test"):
        program(built / name, "")
    found = [(case.mode.machine, *case.test.argv) for case in packaged_cases(tmp_path)]
    small = ("dirty_log_test", "-i", "3", "-M", "clear-log")
    svm = [("svm-qemu", *small), ("svm-qemu", HANGS["vmx-bochs"][1])]
    assert found == 3 * svm + 3 * [("vmx-bochs", *small)]


def test_cases_of_a_boot_want_the_same_machine() -> None:
    found = {case.boot: case for case in cases()}
    for one in cases():
        same = found[one.boot]
        assert (one.mode, one.config, one.cpus) == (same.mode, same.config, same.cpus)
        for word in ("memory_mib", "cmdline"):
            assert getattr(one.test, word) == getattr(same.test, word)


def test_what_gets_one_cpu_starts_no_thread() -> None:
    for name in (name for name, parts in ONE_THREAD.items() if not parts):
        file = ROOT / SELFTESTS / f"{name}.c"
        # Others are the kernel's.
        text = file.read_text() if file.exists() else ""
        assert not re.search(r"start_thread|start_vcpu|pthread_create", text), name


@for_each_row(
    "words, cpus",
    ("fault_split_test", 1),
    ("fault_split_test -m times", 1),
    ("dirty_log_idle_test", 3),
    ("dirty_log_idle_test -m window -m many", 1),
    ("dirty_log_idle_test -m window -m link", 3),
    ("dirty_log_hold_test -m window", 3),
)
def test_bochs_has_one_cpu_where_more_would_be_idle(words: str, cpus: int) -> None:
    test = selftest(*f"x86/{words}".split())
    assert Case(test, VMX_MODES[0], "Y").cpus == cpus
    assert Case(test, SVM_MODES[0], "Y").cpus == 3


def test_quick_cases_are_among_all_and_have_each_paging_mode() -> None:
    quick, ordinary = list(quick_cases()), list(cases())
    assert {case.id for case in quick} <= {case.id for case in ordinary}
    assert {case.mode for case in quick} == {*DISTINCT_MODES, *VMX_MODES}
    assert not {case.id for case in long_cases()} & {case.id for case in ordinary}


def test_what_runs_in_the_shadow_mmu_runs_in_the_tdp_mmu_as_well() -> None:
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for case in cases():
        wanted = case.mode.parameters
        two_dimensional = "1" in (wanted.get("kvm_amd.npt"), wanted.get("kvm_intel.ept"))
        found[two_dimensional and wanted["kvm.tdp_mmu"] == "1"].add(case.test.name)
    # Tests of rmaps, of shadowed page tables and of what the shadow MMU's splitter needs; and, as
    # QEMU itself fails with NPT, the stress test on the debug kernel and random sequences with a
    # second thread.
    others = (
        r"eager_split_(tables|race|hostile|fault|quota|cancel|stress_test-)|dirty_log_hold|"
        r"memslot_alias|dirty_log_fuzz_test-thread"
    )
    assert not [name for name in found[False] - found[True] if not re.match(others, name)]
