# SPDX-License-Identifier: GPL-2.0-only
"""lab.verify.parity: which tests run where, how crashes are survived, what is the same.

lab.verify.bpf without a machine, and what every tool of tools/bpftrace has to have.
"""

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from lab.build import kernel
from lab.build.kernel import Kernel
from lab.core.paths import Layout
from lab.machines import Job, MachineFailed, Result
from lab.machines.qemu import SvmQemu
from lab.verify import bpf, parity
from lab.verify.parity import MODES, Setup
from tests.unit.calls import failed, lab, refusal, refused
from tests.unit.files import program

TESTS = ("a_test", "x86_64/b_test")
HERE = Layout(Path())
# What is found where both kernels do as they should.
FINE = dict.fromkeys(TESTS, ("pass", "pass", False))
FINE["(kernel log)"] = ("silent", "silent", False)


@dataclass
class Scripted:
    """A machine whose tests end as told: by kernel and test, None is a crash.

    statuses: (kernel, test) -> exit statuses of its runs, one after the other, the last again.
    log: what the kernel says in a boot. before: called as a boot begins.
    """

    statuses: dict[tuple[str, str], list[int | None]] = field(default_factory=dict)
    log: Callable[[Job], str] = lambda job: ""
    before: Callable[[Job], object] = lambda job: None
    name: str = "svm-qemu"
    lockstep: bool = True
    boots: list[tuple[str, ...]] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)

    def run(self, job: Job) -> Result:
        self.before(job)
        tests = job.command[5:]
        self.boots.append((job.kernel.name, *tests))
        self.limits.append(job.command[4])
        assert job.on_progress is not None
        for test in tests:
            left = self.statuses.get((job.kernel.name, test), [0])
            status = left.pop(0) if len(left) > 1 else left[0]
            job.on_progress(f"start {test}")
            if status is None:
                raise MachineFailed("machine crashed", "ended before its report", "Oops\n")
            job.on_progress(f"end {test} {status}")
        return Result(0, b"== a_test: 1\n", {}, self.log(job), 1.0)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes to this repository's logs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lab.verify.parity.LAYOUT", HERE)


def setup(machine: Scripted) -> Setup:
    images = {kind: Path(kind) for kind in parity.KERNELS}
    # Scripted has of a Machine what parity uses.
    return Setup(machine, images, Path("/t"), 40, HERE.log)  # type: ignore[arg-type]


def on_both(name: str, status: int | None) -> dict[tuple[str, str], list[int | None]]:
    return {(kind, name): [status] for kind in parity.KERNELS}


def verdicts(machine: Scripted) -> dict[str, tuple[str, str, bool]]:
    found = setup(machine).settled(MODES[2], TESTS)
    return {one.test: (str(one.base), str(one.series), one.repeated) for one in found}


def test_what_exit_statuses_mean() -> None:
    found = verdicts(Scripted(on_both("a_test", 4) | on_both("x86_64/b_test", 254)))
    wanted = {"a_test": ("skip", "skip", False), "x86_64/b_test": ("FAIL", "FAIL", False)}
    assert found == FINE | wanted
    assert verdicts(Scripted(on_both("a_test", 137)))["a_test"] == ("limit", "limit", False)


def test_a_difference_is_run_again_on_both_kernels() -> None:
    machine = Scripted({("series", "a_test"): [1, 0]})
    assert verdicts(machine)["a_test"] == ("pass", "pass", True)
    assert sorted(machine.boots[2:]) == [("base", "a_test"), ("series", "a_test")]
    assert machine.limits == ["40", "40", "80", "80"]


def test_a_difference_that_stays() -> None:
    found = setup(Scripted({("series", "a_test"): [1]})).settled(MODES[0], TESTS)
    assert [one.test for one in found if not one.same] == ["a_test"]
    table = parity.table_of(found)
    assert table.columns == ("test", "npt=1 tdp_mmu=1")
    assert (table.rows[0], table.strong) == (("a_test", "pass -> FAIL"), {0})


def test_goes_on_behind_a_test_that_kills_the_machine() -> None:
    machine = Scripted(on_both("a_test", None))
    crashed = {"a_test": "CRASHED", parity.LOG: "COMPLAINS"}
    assert verdicts(machine) == FINE | {one: (said, said, False) for one, said in crashed.items()}
    base = [boot for boot in machine.boots if boot[0] == "base"]
    assert base[:2] == [("base", *TESTS), ("base", "x86_64/b_test")]


def noisy(*logs: str) -> Scripted:
    """Its kernels' logs are those told, one after the other, the last again; none for base."""
    left = chain(logs, repeat(logs[-1]))
    return Scripted(log=lambda job: next(left) if job.kernel.name == "series" else "")


def test_a_kernel_that_complains_differs_from_one_that_does_not() -> None:
    found = verdicts(noisy("[ 1.0] WARNING: CPU: 0\nparity: a_test\n"))
    assert found == FINE | {parity.LOG: ("silent", "COMPLAINS", False)}
    # Nor is that forgotten when a test is run again.
    machine = noisy("BUG: bad\n", "")
    machine.statuses[("series", "a_test")] = [1, 0]
    wanted = {"a_test": ("pass", "pass", True), parity.LOG: ("silent", "COMPLAINS", False)}
    assert verdicts(machine) == FINE | wanted


def test_a_complaint_belongs_to_the_test_that_ran() -> None:
    log = "[ 1.0] parity: a_test\n[ 2.0] WARNING: at x86.c:7\n[ 2.1] parity: (kernel log)\n"
    # The other half of the log does not have the marks.
    found = verdicts(noisy(f"WARNING: at x86.c:7\n{log}"))
    assert found["a_test"] == ("pass", "pass, COMPLAINS", True)
    assert found[parity.LOG] == ("silent", "silent", False)
    assert verdicts(noisy(log, ""))["a_test"] == ("pass", "pass", True)


def test_a_complaint_about_something_else_differs() -> None:
    def found(where: str) -> parity.TestOnBoth:
        def log(job: Job) -> str:
            what = where if job.kernel.name == "series" else "at x86.c:12"
            return f"parity: a_test\n[ 1.{len(what)}] WARNING: CPU: 1 PID: {len(what)} {what}\n"

        return setup(Scripted(log=log)).settled(MODES[0], TESTS)[0]

    assert found("at x86.c:7").same
    assert not found("at mmu.c:7").same
    assert str(found("at mmu.c:7").series) == str(found("at mmu.c:7").base)


def test_logs_have_what_tests_and_kernels_said() -> None:
    machine = Scripted({("series", "a_test"): [None, 1]}, log=lambda job: "BUG: bad\nfine\n")
    assert verdicts(machine)["a_test"] == ("pass", "FAIL", True)
    name = "parity-svm-qemu-npt=0-tdp_mmu=0"
    crash = "== a_test: machine crashed: ended before its report\n(kernel log): Oops\n"
    said = "== a_test: 1\n(kernel log): BUG: bad\n"
    assert {file.name: file.read_text() for file in HERE.log.iterdir()} == {
        f"{name}-base.log": said,
        f"{name}-series.log": crash + said,
        f"{name}-base-again.log": said,
        f"{name}-series-again.log": said,
    }


def test_both_kernels_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(len(parity.KERNELS), timeout=10)
    monkeypatch.setattr("psutil.cpu_count", lambda: 2)
    machine = Scripted(before=lambda job: both.wait())
    assert verdicts(machine)["a_test"] == ("pass", "pass", False)
    # But for one at a time where the time is the host's.
    running = threading.Semaphore(1)

    def alone(job: Job) -> None:
        assert running.acquire(blocking=False), "two at a time"
        time.sleep(0.2)
        running.release()

    machine = Scripted(before=alone, lockstep=False)
    assert verdicts(machine)["a_test"] == ("pass", "pass", False)
    with pytest.raises(AssertionError, match="two at a time"):
        verdicts(Scripted(before=alone))


def test_how_far_it_is() -> None:
    states = {kind: parity.KernelProgress() for kind in parity.KERNELS}
    for state in states.values():
        for test in TESTS:
            state.line(f"start {test}")
            state.line(f"end {test} 0")
    states["series"].line("start c_test")
    assert parity.progress(3, states) == "parity: base 2 of 3, between tests; series 2 of 3, c_test"


def test_a_machine_that_runs_nothing() -> None:
    dead = Mock(side_effect=MachineFailed("boot timed out", "did not come up", ""))
    assert "failed between tests" in failed(verdicts, Scripted(before=dead))


def test_jobs_have_the_mode_the_programs_and_arguments_where_they_are_slow_without() -> None:
    job = parity.parity_job("vmx-bochs", MODES[1], Path("bzImage"), Path("/t"), 7, TESTS)
    assert job.parameters == {"kvm_intel.ept": "1", "kvm.tdp_mmu": "0"}
    assert job.files["/selftests/x86_64/b_test"] == Path("/t/x86_64/b_test")
    assert job.command[4:] == ("7", *TESTS)
    assert (job.silent_s, job.timeout_s) == (60 + 40 * 7, 3 * (60 + 40 * 7))
    assert parity.name_of(MODES[1], "vmx-bochs") == "ept=1 tdp_mmu=0"
    tests = ["demand_paging_test", "x86_64/b_test"]
    job = parity.parity_job("svm-qemu", MODES[0], Path("bzImage"), Path("/t"), 7, tests)
    assert job.command[5:] == ("demand_paging_test -b 16M -v 2", "x86_64/b_test")
    assert list(job.files) == [f"/selftests/{name}" for name in tests]


def test_inside_each_test_runs_with_its_arguments(tmp_path: Path) -> None:
    script = '#!/bin/sh\necho "$@" >args\nsleep 600 & echo $! >pid\nexit 4\n'
    program(tmp_path / "shout", script)
    (tmp_path / "vm").mkdir()
    script = parity.SCRIPT
    for inside in ("/tmp", parity.INSIDE, "/proc/sys"):
        script = script.replace(inside, str(tmp_path))
    script = script.replace("/dev/kmsg", str(tmp_path / "kmsg"))
    env = {"PATH": os.environ["PATH"], "LAB_PROGRESS": str(tmp_path / "progress")}
    subprocess.run(["sh", "-c", script, "parity", "7", "shout -b 16M"], env=env, check=True)
    assert (tmp_path / "args").read_text() == "-b 16M\n"
    assert (tmp_path / "kmsg").read_text() == "<4>parity: (kernel log)\n"
    assert (tmp_path / "progress").read_text() == "start shout\nend shout 4\n"
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "pid").read_text())).wait(5)


def test_an_unknown_test_is_refused(tmp_path: Path) -> None:
    program(tmp_path / "x86_64/b_test", "")
    assert parity.programs(tmp_path, (), "svm-qemu") == ["x86_64/b_test"]
    wanted = "no selftest 'c_test'; there are: x86_64/b_test"
    assert refused(parity.programs, tmp_path, ("c_test",), "svm-qemu") == wanted


def test_what_hangs_a_machine_runs_there_if_asked_for(tmp_path: Path) -> None:
    hangs = parity.HANGS["vmx-bochs"][0]
    for name in (hangs, "b_test"):
        (tmp_path / name).touch()
    assert parity.programs(tmp_path, (), "vmx-bochs") == ["b_test"]
    assert parity.left_out(tmp_path, (), "vmx-bochs") == [hangs]
    assert parity.programs(tmp_path, (hangs,), "vmx-bochs") == [hangs]
    assert parity.left_out(tmp_path, (hangs,), "vmx-bochs") == []
    assert parity.programs(tmp_path, (), "svm-qemu") == ["b_test", hangs]
    (tmp_path / hangs).unlink()
    assert parity.left_out(tmp_path, (), "vmx-bochs") == []


@pytest.mark.parametrize(("series", "status"), [([0], 0), ([1], 1)])
def test_the_exit_status_is_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, series: list[int | None], status: int
) -> None:
    machine = Scripted({("series", "a_test"): series})
    (tmp_path / "a_test").touch()
    kernels = {kind: Kernel(kind, "kvm", Path(kind), f"7.3.4-{kind}") for kind in parity.KERNELS}
    monkeypatch.setattr("lab.machines.get", lambda _: machine)
    monkeypatch.setattr("lab.build.kernel.build", lambda kind, _: kernels[kind])
    monkeypatch.setattr("lab.build.selftests.build", lambda _: tmp_path)
    output = tmp_path / "out.jsonl"
    said = lab("parity", "--output", str(output), status=status).err
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["kernel_version"] for line in lines] == ["7.3.4-series"] * 3 * 2
    log = HERE.log / "parity-svm-qemu-npt=1-tdp_mmu=0-series-again.log"
    assert (f" {log}\n" in said) == bool(status)
    for line in ("again a_test, base and", "parity: a_test: pass unpatched, FAIL with the series"):
        assert said.count(line) == (6 if line.startswith("again") else 3) * status


SCRIPTS = sorted(bpf.TOOLS.glob("*.bt"))
RUNS = bpf.choose(["wpfaults"], "both", "npt")
FILES = {
    "wpfaults-N.tool": b"@write_protected[1, 0, 2M]: 4\n",
    "wpfaults-N.said": b"Test iterations: 2\n",
    "wpfaults-Y.tool": b"@write_protected[1, 0, 4K]: 2048\n",
    "wpfaults-Y.said": b"",
}


def names(runs: list[bpf.ToolRun]) -> list[str]:
    return [run.name for run in runs]


def test_every_tool_can_be_chosen() -> None:
    assert {run.tool for run in bpf.choose([], "both", "npt")} == set(bpf.NAMES)
    assert names(RUNS) == ["wpfaults-N", "wpfaults-Y"]
    chosen = bpf.choose(["splitlat", "wpfaults"], "Y", "shadow")
    assert names(chosen) == ["splitlat-Y", "wpfaults-Y"]
    assert "splitlat-Y" not in names(bpf.choose([], "both", "tdp"))
    assert {script.stem for script in SCRIPTS} == set(bpf.NAMES)


@pytest.mark.parametrize(("eager", "paging"), [("N", "npt"), ("both", "tdp")])
def test_nothing_to_show(eager: str, paging: str) -> None:
    said = refused(bpf.choose, ["splitlat"], eager, paging)
    assert re.search("splitlat has nothing to show .* try Y and npt", said)


def test_dry_run_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "build", None)
    lines = lab("bpf", "--dry-run", "--tool", "wpfaults", "--paging", "shadow").out.splitlines()
    assert lines[0].endswith("kvm.tdp_mmu=0 kvm_amd.npt=0")
    assert lines[1::2] == ["# eager_page_split=N", "# eager_page_split=Y"]
    assert lines[2].endswith(" -i 2 -w 100' wpfaults.bt")


@pytest.mark.parametrize("words", [["--tool", "nonsense"], ["--paging", "ept"], ["more"]])
def test_bad_input(words: list[str]) -> None:
    refusal("bpf", *words)


def test_bpftrace_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bpf, "BPFTRACE", tmp_path / "bpftrace")
    line = refusal("bpf")
    assert line.endswith("apt-get install bpftrace, or `make test WHAT=bpf`, which does that")


def test_one_boot_for_all_runs() -> None:
    job = bpf.bpf_job(RUNS, "shadow", Path("bzImage"), Path("tests"), "json")
    assert (job.command[3:7], job.command[9]) == (("bpf", "json", "wpfaults", "N"), "Y")
    assert job.parameters == {"kvm_amd.npt": "0", "kvm.tdp_mmu": "0"}
    assert job.files["/tools/dirty_log_perf_test"] == Path("tests/dirty_log_perf_test")
    assert job.files["/tools/wpfaults.bt"] == bpf.TOOLS / "wpfaults.bt"
    assert "/tools/mmulock.bt" not in job.files


def test_what_the_runs_left_is_shown_below_what_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    bpf.show(RUNS, bpf.collect(RUNS, FILES))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# eager_page_split=N"
    assert lines[2] == "@write_protected[1, 0, 2M]: 4"
    assert lines[4] == "# eager_page_split=Y"


@pytest.mark.parametrize("name", FILES)
def test_a_run_that_left_nothing_or_lost_events_is_no_result(name: str) -> None:
    others = {n: text for n, text in FILES.items() if n != name}
    assert f"no file '{name}' came back" in failed(bpf.collect, RUNS, others)
    for said in (b"Lost 12 events\n", b'{"type": "lost_events", "data": 1}\n'):
        assert "lost events" in failed(bpf.collect, RUNS, FILES | {name: said})


def execute(monkeypatch: pytest.MonkeyPatch, run: Mock) -> list[str]:
    monkeypatch.setattr(SvmQemu, "run", run)
    return bpf.execute(bpf.bpf_job(RUNS, "npt", Path("bzImage"), Path("tests")), RUNS)


def test_a_tool_or_a_machine_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Mock(return_value=Result(1, b"no such probe", {}, "", 1.0))
    assert "svm-qemu: exit status 1:\nno such probe" in failed(execute, monkeypatch, bad)
    good = Mock(return_value=Result(0, b"", FILES, "", 1.0))
    assert execute(monkeypatch, good)[1] == FILES["wpfaults-Y.tool"].decode()
    with pytest.raises(MachineFailed):
        execute(monkeypatch, Mock(side_effect=MachineFailed("machine crashed", "why", "Oops")))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_tool_says_how_it_is_used_and_what_it_cannot_tell(script: Path) -> None:
    text = script.read_text()
    assert text.splitlines()[1] == "/* SPDX-License-Identifier: GPL-2.0-only */"
    assert f" * {script.name} - " in text
    assert f" * USAGE: bpftrace {script.name}" in text
    assert f" * {script.stem}_example.txt has output and explains it." in text
    assert " * Method." in text
    assert " * Limits." in text
    # It prints nothing but results, and the example shows them.
    example = script.with_name(f"{script.stem}_example.txt").read_text()
    shown = set(re.findall(r"^(@\w+)(?:\[.*\])?:", example, re.MULTILINE))
    # The maps that the script prints at its end.
    assert shown == set(re.findall(r"print\((@\w+)\)", text))
    assert set(re.findall(r"(@\w+)", text)) == set(re.findall(r"clear\((@\w+)\)", text))
