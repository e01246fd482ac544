# SPDX-License-Identifier: GPL-2.0-only
"""lab.verify.soak with a machine that is made up, and lab.verify.races with reports that are.

What is read of reports of data races, and whose they are.
"""

import _thread
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from lab import machines
from lab.build import kernel, selftests
from lab.build.kernel import Kernel
from lab.core import parallel
from lab.core.git import IDENTITY, Repo, signature
from lab.core.paths import LAYOUT, Layout
from lab.machines import Job, MachineFailed, Result, Sharing
from lab.machines.qemu import SvmQemu
from lab.verify import races, soak, soak_boots, soak_kinds, soak_summary
from lab.verify.races import Place
from lab.verify.soak_boots import Boot
from tests.rows import for_each_row
from tests.unit import calls
from tests.unit.calls import Said, failed

TITLE = "data-race in our_dirty_bits / mark_page_dirty_in_slot"
KNOWN = f"""\
booted
==================================================================
BUG: KCSAN: {TITLE}

read to 0xffff888004c1a000 of 8 bytes by task 88 on cpu 0:
 _find_next_bit+0x10/0x100
 our_dirty_bits+0x30/0x400
 kvm_vm_ioctl+0x50/0x400

read-write (marked) to 0xffff888004c1a000 of 8 bytes by interrupt on cpu 1:
 mark_page_dirty_in_slot+0x20/0x80
 our_fault+0x8/0x80

value changed: 0x0000000000000000 -> 0x0000000000000001

Reported by Kernel Concurrency Sanitizer on:
CPU: 1 UID: 0 PID: 90 Comm: test Tainted: G        W          6.12.0-series #1
Tainted: [W]=WARN
Hardware name: QEMU Standard PC (i440FX + PIIX, 1996), BIOS 1.16.2
==================================================================
done
"""
UNKNOWN = """\
==================================================================
BUG: KCSAN: data-race in upstream.constprop.0+0x40/0x80

race at unknown origin, with read to 0xffff888004c1b008 of 8 bytes by task 7 on cpu 0:
 upstream.constprop.0+0x40/0x80
 our_dirty_bits+0x30/0x400

value changed: 0x8000000000000001 -> 0x8000000000000041

Reported by Kernel Concurrency Sanitizer on:
CPU: 0 UID: 0 PID: 7 Comm: test Not tainted 6.12.0-series #1
==================================================================
"""

OUR_FILE = "arch/x86/kvm/mmu/our.c"
MMU = "arch/x86/kvm/mmu/mmu.c"
WRITTEN = {OUR_FILE: set(range(1, 100)), MMU: {50, 51}}
PLACES: dict[str, list[Place]] = {
    "_find_next_bit+0x10/0x100": [("lib/find_bit.c", 50)],
    "our_dirty_bits+0x30/0x400": [(OUR_FILE, 7)],
    "kvm_vm_ioctl+0x50/0x400": [("virt/kvm/kvm_main.c", 5)],
    "mark_page_dirty_in_slot+0x20/0x80": [("virt/kvm/kvm_main.c", 9)],
    "our_fault+0x8/0x80": [(MMU, 50)],
    "upstream.constprop.0+0x40/0x80": [(MMU, 60)],
}


def sort_out(log: str, **changed: list[Place]) -> tuple[list[str], list[str]]:
    by_name = {frame.split("+")[0]: frame for frame in PLACES}
    places = PLACES | {by_name[name]: there for name, there in changed.items()}
    verdict = races.sort_out(log, places, WRITTEN)
    return [r.title for r in verdict.series], [r.title for r in verdict.others]


def test_a_report_is_read() -> None:
    (known, unknown), rest = races.parse(KNOWN + UNKNOWN)
    assert known.title == TITLE
    assert known.sides == [
        ["_find_next_bit+0x10/0x100", "our_dirty_bits+0x30/0x400", "kvm_vm_ioctl+0x50/0x400"],
        ["mark_page_dirty_in_slot+0x20/0x80", "our_fault+0x8/0x80"],
    ]
    assert known.race == ("_find_next_bit+0x10/0x100", "mark_page_dirty_in_slot+0x20/0x80")
    assert unknown.sides == [["upstream.constprop.0+0x40/0x80", "our_dirty_bits+0x30/0x400"]]
    assert "KCSAN" not in rest
    assert [line for line in rest.splitlines() if "=" not in line] == ["booted", "done"]
    # What is in the log twice counts once.
    stamped = "".join(f"[   12.345678] {line}\n" for line in KNOWN.splitlines())
    end_only = "".join(KNOWN.splitlines(keepends=True)[7:])
    assert len(races.parse(KNOWN + end_only + stamped)[0]) == 1


def test_other_messages_between_the_lines_are_not_lost() -> None:
    lines = KNOWN.splitlines()
    lines[6:6] = ["WARNING: CPU: 1 PID: 3 at mm/slub.c:3 x+0x1/0x2", "Call Trace:"]
    (report,), rest = races.parse("\n".join(lines))
    assert report.sides == races.parse(KNOWN)[0][0].sides
    assert "WARNING: CPU: 1 PID: 3" in rest and "Call Trace:" in rest


def test_a_side_with_a_line_of_the_series_makes_it_ours() -> None:
    # The bitmap is looked through for the caller.
    assert sort_out(KNOWN) == ([TITLE], [])
    assert sort_out(KNOWN, our_dirty_bits=[(MMU, 52)]) == ([], [TITLE])
    assert sort_out(KNOWN, our_dirty_bits=[(MMU, 51)]) == ([TITLE], [])
    others: list[Place] = [(MMU, 52)]
    assert sort_out(KNOWN, our_dirty_bits=others, mark_page_dirty_in_slot=[(MMU, 51)])[0]
    assert sort_out(KNOWN, our_dirty_bits=others, mark_page_dirty_in_slot=others)[1]
    # Who calls KVM code of others is not at fault.
    assert sort_out(UNKNOWN) == ([], ["data-race in upstream.constprop.0+0x40/0x80"])
    # What is inlined counts.
    inlined: list[Place] = [("include/linux/list.h", 9), (OUR_FILE, 3), (MMU, 60)]
    assert sort_out(UNKNOWN, **{"upstream.constprop.0": inlined})[0]
    assert not sort_out(UNKNOWN, **{"upstream.constprop.0": [(MMU, 70), (MMU, 60)]})[0]


@for_each_row(
    "entry, ours",
    ("asm_sysvec_apic_timer_interrupt+0x1b/0x20", False),
    ("asm_common_interrupt+0x22/0x40", False),
    ("asm_exc_nmi+0xb3/0x130", False),
    ("asm_exc_page_fault+0x22/0x30", True),
)
def test_what_an_interrupt_comes_upon_is_not_at_fault(entry: str, ours: bool) -> None:
    frames = f"\n _find_next_bit+0x10/0x100\n {entry}\n"
    series, others = sort_out(UNKNOWN.replace("\n upstream.constprop.0+0x40/0x80\n", frames))
    assert (len(series), len(others)) == (int(ours), int(not ours))


@for_each_row("log", "BUG: KCSAN: assert: race in x\n", UNKNOWN.replace("upstream", "y"))
def test_what_is_not_understood_is_ours(log: str) -> None:
    places = {frame: there for frame, there in PLACES.items() if not frame.startswith("our")}
    verdict = races.sort_out(log, places, WRITTEN)
    assert (len(verdict.series), verdict.others) == (1, [])


def test_the_lines_of_the_series_are_those_that_base_does_not_have(tmp_path: Path) -> None:
    repo = Repo(tmp_path)
    repo.run("init", "-q")
    # What a user's configuration says of diffs does not count.
    repo.run("config", "diff.noprefix", "true")
    file = tmp_path / "mmu.c"
    file.write_text("".join(f"line {i}\n" for i in range(1, 21)))
    repo.run("add", ".")
    repo.run("commit", "-q", "-m", "base", env=signature(*IDENTITY, 0))
    repo.run("tag", "base")
    lines = file.read_text().splitlines(keepends=True)
    lines[4:5] = ["changed\n", "added\n"]
    del lines[10]
    file.write_text("".join(lines))
    (tmp_path / "new.c").write_text("1\n2\n3\n")
    repo.run("add", ".")
    repo.run("commit", "-q", "-m", "series", env=signature(*IDENTITY, 1))
    file.write_text(file.read_text() + "not committed\n")
    written = races.lines_of_series(repo)
    wanted = {"mmu.c": {5, 6, 21}, "new.c": {1, 2, 3}}
    assert {path: lines for path, lines in written.items() if lines} == wanted


SOURCE = """\
static inline __attribute__((always_inline)) int inner(volatile int *p)
{
	return *p;
}

__attribute__((noinline)) int outer(volatile int *p)
{
	return inner(p) + 1;
}

int main(void)
{
	int i = 0;

	return outer(&i);
}
"""


def test_frames_are_found_in_the_source(tmp_path: Path) -> None:
    objects = tmp_path / "obj-kcsan"
    image = objects / "arch/x86/boot/bzImage"
    (tmp_path / "arch").mkdir()
    objects.mkdir()
    (tmp_path / "arch/outer.c").write_text(SOURCE)
    command = ("gcc", "-O2", "-g", "-no-pie", "-o", "vmlinux", "../arch/outer.c")
    subprocess.run(command, cwd=objects, check=True)
    # An offset behind the first instruction, as that of a call's return address is.
    places = races.locate(["outer+0x1/0x20", "nowhere+0x1/0x20"], image)
    assert places == {"outer+0x1/0x20": [("arch/outer.c", 3), ("arch/outer.c", 8)]}
    assert races.locate(["nowhere+0x1/0x20"], image) == {}
    missing = failed(races.locate, ["outer+0x1/0x20"], tmp_path / "none/arch/x86/boot/bzImage")
    assert re.fullmatch("nm: nm: .*none/vmlinux.*: No such file", missing)


@for_each_row(
    "script, said",
    ("echo begin >&2; echo end >&2; exit 1", "sh: end"),
    ("exit 3", "sh: exit status 3"),
)
def test_a_program_that_fails_is_told_by_its_last_line(script: str, said: str) -> None:
    assert failed(races._output, "sh", "-c", script) == said


def test_places_are_read_as_addr2line_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a: directory"
    said = f"""\
0x000000000000010f
{source}/{OUR_FILE}:7 (discriminator 3)
../{MMU}:51
{source}/{MMU}:?
??:0
?:?
0x0000000000000200
"""
    symbols = "0100 T outer\n0200 T other\n"
    monkeypatch.setattr(races, "_output", Mock(side_effect=[symbols, said]))
    image = source / "obj-kcsan/arch/x86/boot/bzImage"
    places = races.locate(["outer+0x10/0x20", "other+0x1/0x2"], image)
    assert places == {"outer+0x10/0x20": [(OUR_FILE, 7), (MMU, 51)], "other+0x1/0x2": []}


def test_a_frame_is_where_the_call_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = "ffffffff81000100 T outer\nffffffff81000200 t twice\n0300 t twice\n U x\n"
    output = Mock(side_effect=[symbols, ""])
    monkeypatch.setattr(races, "_output", output)
    races.locate(["outer+0x10/0x20", "twice+0x1/0x2"], tmp_path / "obj-kcsan/arch/x86/boot/bzImage")
    assert [call.args[0] for call in output.call_args_list] == ["nm", "addr2line"]
    assert output.call_args.args[-3:] == ("0xffffffff8100010f", "0xffffffff81000200", "0x300")


COUNTS = (
    "seed=0x1 seeds=2 cycles=30 pages=50000 copied=9 operations=700 host_operations=4 get=10"
    " clear=10 init-set=9 ring=1 by_dirty_bits=14 merged=3 faults=5 faults_headers=3"
    " faults_descs=1 faults_pages=1"
)
STRESS_OUTPUT = f"# seed 0x1\n# summary: {COUNTS}\n"
FAULT_OUTPUT = """\
# enable           all        12 failures,   3 felt by the splitter, 0 by the ioctl
# clear            descs       4 failures,   3 felt by the splitter, 1 by the ioctl
"""
RACE_OUTPUT = "# unmap: 40 tries, 12 in between, 3 pauses, 0 back in place\n"
FUZZ_OUTPUT = "# summary: seed=0x1 steps=400 calls=700 refused=90\n"


def output_of(job: Job) -> str:
    text = " ".join(job.command)
    if "fuzz" in text:
        return FUZZ_OUTPUT
    if "stress" in text:
        return STRESS_OUTPUT
    return FAULT_OUTPUT if "fault" in text else RACE_OUTPUT


def passed(job: Job, nr: int) -> Result:
    """With what KVM says of its pauses, if the job asks for them."""
    asked = "kvm.prove_window_us" in job.parameters
    windows = {"windows": b"update %d\nset 0\n" % nr} if asked else {}
    return Result(0, output_of(job).encode(), windows, "quiet", 1.0)


@dataclass
class Clock:
    """Stands for the module time: a soak looks at it, and each boot moves it on."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class FakeMachine:
    """Ends each job at once with the output that its test would have.

    A soak of 0.02 minutes has 60 of them.
    """

    answer: Callable[[Job, int], Result] = passed
    # Each job names the soak that it is of, whose runs are many: not for an assertion to show.
    jobs: list[Job] = field(default_factory=list, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock)
    name: str = "svm-qemu"
    clock: Clock = field(default_factory=Clock)

    def run(self, job: Job) -> Result:
        with self.lock:
            self.jobs.append(job)
            nr = len(self.jobs)
            self.clock.now += 0.02
        return self.answer(job, nr)


Soak = Callable[..., Said]


@pytest.fixture
def run_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Soak:
    monkeypatch.setattr(soak_boots, "LOG", tmp_path / "build/log")
    monkeypatch.setattr(soak_kinds, "LEAST_S", 0.0)
    build = partial(Kernel, image=tmp_path / "bzImage", release="6.12")
    monkeypatch.setattr(kernel, "build", build)
    monkeypatch.setattr(selftests, "build", lambda kind: tmp_path)

    def run(machine: FakeMachine, *arguments: str, status: int = 0) -> Said:
        monkeypatch.setattr(machines, "get", lambda name: machine)
        for module in (soak, soak_summary):
            monkeypatch.setattr(module, "time", machine.clock)
        return calls.lab("soak", "--minutes", "0.02", *arguments, status=status)

    return run


def saved(tmp_path: Path) -> Any:
    """The file that the soak has left: a mapping, what its keys have in it not being typed."""
    (file,) = (tmp_path / "results").iterdir()
    return json.loads(file.read_text())


def test_all_kinds_run_with_own_seeds_and_are_summed_up(run_soak: Soak, tmp_path: Path) -> None:
    error = run_soak(FakeMachine(), "--seed", "0x10").err
    complaints = "0 complaints in the kernels' logs"
    for words in ("merged; each was met with", "faults_pages; each was met with", complaints):
        assert words in error
    assert "missed" not in error and "never" not in error
    content = saved(tmp_path)
    assert (content["machine"], content["kernel_version"]) == ("svm-qemu", "6.12")
    assert (content["seed"], content["dirty_bits"]) == (0x10, "any")
    assert content["goals_per_hour"] == soak_summary.GOALS
    runs = content["runs"]
    assert {run["kind"] for run in runs} == {kind.name for kind in soak_kinds.KINDS}
    seeds = sorted(run["seed"] for run in runs)
    assert seeds == [0x10 + i * soak_summary.SEED_STEP for i in range(len(runs))]
    totals = content["totals"]
    stress = sum(run["kind"].startswith("stress") for run in runs)
    faults = sum(run["kind"].startswith("fault") for run in runs)
    assert (totals["cycles"], totals["faults"]) == (30 * stress, 5 * stress + 16 * faults)
    assert totals["steps"] == 400 * sum(run["kind"].startswith("fuzz") for run in runs)
    races = sum(run["kind"].startswith("race") for run in runs)
    assert (totals["faults_headers"], totals["tries"]) == (3 * stress, 40 * races)
    assert (content["ended"], content["complaints"]) == ("nothing was found", 0)


def instead(old: str, new: str) -> Callable[[Job, int], Result]:
    """Results whose output has NEW in place of OLD."""

    def answer(job: Job, nr: int) -> Result:
        result = passed(job, nr)
        return replace(result, output=result.output.replace(old.encode(), new.encode()))

    return answer


# The goals for 0.02 minutes are 3,333 pages, 33 cycles and 3 failed allocations.
@for_each_row(
    "old, new, says",
    ("pages=50000", "pages=0", r"\b0 pages in 0\.\d min, goal [\d,]+: missed"),
    ("cycles=30", "cycles=0", r"0 cycles in 0\.\d min, goal \d+: missed"),
    ("ring=1", "ring=0", r"0 ring, .*; never: ring$"),
    ("descs=1 faults_pages=1", "descs=0 faults_pages=0", "never: faults_descs, faults_pages$"),
    ("40 tries", "0 tries", "^lab: .* 0 tries; never: tries$"),
)
def test_a_soak_that_did_too_little_fails(
    run_soak: Soak, tmp_path: Path, old: str, new: str, says: str
) -> None:
    error = run_soak(FakeMachine(instead(old, new)), status=1).err
    assert re.search(says, error, re.MULTILINE)
    assert "no boot failed, but goals were missed" in error.splitlines()[-1]
    assert saved(tmp_path)["ended"] == "nothing was found"


def test_goals_do_not_count_for_some_kinds_of_boots(run_soak: Soak) -> None:
    error = run_soak(FakeMachine(instead("ring=1", "ring=0")), "--only", "stress-kvm-npt0").err
    assert "never: ring" in error and "goals are not checked" in error


def example(source: str, words: str) -> str:
    """A line as a test prints it: the format in its SOURCE that has WORDS, with 7 for figures."""
    text = (LAYOUT.root / "tools/testing/selftests/kvm/x86" / source).read_text()
    (form,) = re.findall(rf'ksft_print_msg\("([^"]*{words}[^"]*)\\n"', text)
    return "# " + re.sub(r"%-?\d*l?[sud]", lambda one: "x" if "s" in one[0] else "7", form)


def test_counts_are_read_of_lines_as_the_tests_print_them() -> None:
    assert soak_kinds.TRIES(example("eager_split_race_test.c", "tries,")) == {"tries": 7}
    assert soak_kinds.FAILURES(example("eager_split_fault_test.c", "failures,")) == {"faults": 7}
    # In any line, and in as many as there are.
    assert soak_kinds.TRIES(f"# begin\n{RACE_OUTPUT * 2}") == {"tries": 80}
    for parse, what in ((soak_kinds.TRIES, "tries"), (soak_kinds.FAILURES, "faults")):
        with pytest.raises(ValueError, match=f"no line counts {what}"):
            parse("# something else\n")


@for_each_row(
    "name, words",
    ("fuzz-kvm-npt0", ("x86/dirty_log_fuzz_test", "-s", "0x7", "-n", "6000")),
    ("race-kvm-npt0", ("x86/eager_split_race_test", "-n", "40")),
    ("stress-kvm-npt0", ("x86/eager_split_stress_test", "-S", "0x7", "-t", "1", "-d", "any")),
)
def test_what_a_boot_runs(
    run_soak: Soak, tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    machine = FakeMachine()
    run_soak(machine, "--only", name, "--seed", "7")
    program, *arguments = words
    inside = f"/soak/{Path(program).name}"
    assert machine.jobs[0].files == {inside: tmp_path / program}
    assert machine.jobs[0].command[-len(words) :] == (inside, *arguments)


def test_kernels_that_can_pause_amid_updates_do_so(run_soak: Soak, tmp_path: Path) -> None:
    machine = FakeMachine()
    run_soak(machine, "--only", "stress-fault-npt0", "--only", "stress-kvm-npt0")
    paused = [job for job in machine.jobs if "kvm.prove_window_us" in job.parameters]
    assert 0 < len(paused) < len(machine.jobs)
    assert saved(tmp_path)["totals"]["pauses"] >= len(paused)


@for_each_row(
    "bad, says",
    (Result(254, b"FAIL: lost write\nto repeat: -S 0x1f -m all\n", {}, "", 1.0), "lost write"),
    (Result(0, STRESS_OUTPUT.encode(), {}, "WARNING: CPU: 1", 1.0), "the kernel complains"),
    (Result(4, b"", {}, "", 1.0), "exit status 4"),
    (Result(0, b"nothing\n", {}, "", 1.0), "unusable output"),
    (Result(0, STRESS_OUTPUT.encode(), {"windows": b"update 0\n"}, "", 1.0), "never paused"),
)
def test_the_first_failure_ends_it_and_says_how_to_repeat_it(
    run_soak: Soak, tmp_path: Path, bad: Result, says: str
) -> None:
    machine = FakeMachine(lambda job, nr: bad if nr == 3 else passed(job, nr))
    error = run_soak(machine, "--only", "stress-fault-npt0", "--seed", "7", status=1).err
    assert says in error
    seed = 0x1F if b"-S" in bad.output else 7 + 2 * soak_summary.SEED_STEP
    assert f"--only stress-fault-npt0 --seed {seed:#x}" in error
    log = tmp_path / f"build/log/soak-stress-fault-npt0-{seed:#x}.log"
    assert f"all of it: {log}\n" in error
    assert log.read_text() == f"{bad.text}\n--- kernel log\n{bad.kernel_log}"
    content = saved(tmp_path)
    assert (content["ended"], content["complaints"]) == ("failed", int("complains" in says))


def test_a_race_that_does_not_happen_is_none(run_soak: Soak) -> None:
    machine = FakeMachine(lambda job, nr: Result(4, b"SKIP\n", {}, "", 1.0))
    run_soak(machine, "--only", "race-kvm-npt1")


@pytest.mark.usefixtures("terminal_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_summary_so_far(
    run_soak: Soak, tmp_path: Path, number: signal.Signals
) -> None:
    def ending(job: Job, nr: int) -> Result:
        if nr == 4:
            os.kill(os.getpid(), number)
        return passed(job, nr)

    said = run_soak(FakeMachine(ending), "--minutes", "1000", status=128 + number)
    assert saved(tmp_path)["ended"] == "interrupted"
    assert "cycles" in said.out


@pytest.mark.usefixtures("terminal_signals")
def test_what_a_boot_has_counted_so_far_is_in_the_summary(
    run_soak: Soak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(parallel, "end_machines", lambda *_: ended.set())

    def interrupting(job: Job, nr: int) -> Result:
        assert job.on_progress
        job.on_progress(f"# so far: {COUNTS}")
        job.on_progress("# so far: seed=0x1 cycles=gar")
        job.on_progress("# so far: cycles=9")
        _thread.interrupt_main()
        assert ended.wait(10)
        raise MachineFailed("emulator crashed", "ended", "")

    run_soak(FakeMachine(interrupting), "--only", "stress-kvm-npt0", status=130)
    content = saved(tmp_path)
    assert content["totals"]["cycles"] in (30, 60)
    assert not any(run["finished"] for run in content["runs"])


def test_how_far_a_soak_is_in_one_line() -> None:
    state = soak_summary.Soak(soak_kinds.KINDS, 7, time.monotonic() + 3600, "6.12")
    boots = state.boots()
    first, second = next(boots), next(boots)
    state.so_far(first.seed, f"# so far: {COUNTS}")
    sums = "left; 30 cycles, 50,000 pages, 700 operations, 5 faults; now "
    assert state.text().startswith("about ")
    assert state.text().endswith(f"{sums}{first.kind.name}, {second.kind.name}")
    state.runs[first.seed] = replace(state.runs[first.seed], finished=True)
    assert state.text().endswith(f"{sums}{second.kind.name}")


@for_each_row(
    "arguments, says",
    (["--dirty-bits", "yes"], "'any', 'on', 'off', 'auto'"),
    (["--only", "nonsense"], "'stress-kvm-npt0', "),
    (["--minutes", "0"], "minutes"),
    (["--minutes", "nan"], "not a number"),
    (["--seed", "x"], "not a whole number"),
    (["--seed", "-1"], "not a whole number"),
    (["--seed", str(1 << 63)], "'9223372036854775808' is not a whole number from 0 to 2^63-1"),
    (["--output", "/nowhere/at/all.json"], "no directory"),
)
def test_bad_input_refused(run_soak: Soak, tmp_path: Path, arguments: list[str], says: str) -> None:
    machine = FakeMachine()
    (line,) = run_soak(machine, *arguments, status=2).err.splitlines()
    assert says in line
    assert not machine.jobs
    assert not (tmp_path / "results").exists()


@for_each_row(
    "name, thread, counted",
    ("stress-kvm-npt0", "multi", False),
    ("stress-kvm-npt0-turns", "single", False),
    ("stress-kvm-npt1-counted", "single", True),
)
def test_cpus_share_those_of_the_host_as_a_boot_says(
    run_soak: Soak, name: str, thread: str, *, counted: bool
) -> None:
    machine = FakeMachine()
    run_soak(machine, "--only", name)
    words = SvmQemu().argv(machine.jobs[0], "")
    assert (f"tcg,thread={thread}" in words, "-icount" in words) == (True, counted)


@for_each_row("name, seed", ("stress-kvm-npt0-turns", "0x1f"), ("stress-kvm-npt1-counted", "0x10"))
def test_what_is_repeatable_is_repeated_whole(run_soak: Soak, name: str, seed: str) -> None:
    failed = b"FAIL\n to repeat: -S 0x1f -m all\n"

    def first_fails(job: Job, nr: int) -> Result:
        result = passed(job, nr)
        return replace(result, status=1, output=failed) if "0x10" in job.command else result

    said = run_soak(FakeMachine(first_fails), "--seed", "0x10", "--only", name, status=1)
    assert f"--only {name} --seed {seed} " in said.err


def test_what_is_repeatable_is_never_cut_short(run_soak: Soak) -> None:
    machine = FakeMachine()
    run_soak(machine, "--minutes", "0.01", "--only", "stress-kvm-npt1-counted")
    (kind,) = soak_kinds.chosen(["stress-kvm-npt1-counted"])
    (job,) = machine.jobs[:1]
    assert job.command[-3] == str(kind.seconds // soak_boots.COUNTED_SLOWNESS)
    limit = kind.seconds * soak_boots.COUNTED_LIMIT + soak_boots.PATIENCE_S
    assert (job.timeout_s, job.cpus, job.memory_mib) == (limit, 2, 1024)


def test_dirty_bits_reaches_the_module_and_the_stress_test(
    run_soak: Soak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine(answer=lambda job, nr: replace(passed(job, nr), status=1))
    error = run_soak(machine, "--only", "stress-kvm-npt0", "--dirty-bits", "on", status=1).err
    command = machine.jobs[0].command
    assert (command[5], command[-2:]) == ("on", ("-d", "on"))
    assert "make soak ARGS='--only stress-kvm-npt0 --dirty-bits on" in error
    monkeypatch.setattr(soak_boots, "LAYOUT", Layout(tmp_path, "7.3"))
    assert soak_boots.replay(Boot(soak_kinds.KINDS[0], 1, 60)).startswith(
        "make soak BASE=7.3 ARGS='--only "
    )


@for_each_row("seconds, minutes", (20, 1), (60, 1), (61, 2), (240, 4))
def test_a_boot_is_repeated_for_whole_minutes(seconds: int, minutes: int) -> None:
    assert soak_boots.replay(Boot(soak_kinds.KINDS[0], 1, seconds)).endswith(
        f" --seed 0x1 --minutes {minutes}'"
    )


@for_each_row("seed", 0, (1 << 63) - 1)
def test_seeds_are_numbers_of_63_bits(run_soak: Soak, tmp_path: Path, seed: int) -> None:
    run_soak(FakeMachine(), "--only", "race-kvm-npt0", "--seed", str(seed))
    assert saved(tmp_path)["runs"][0]["seed"] == seed


def racing(log: str) -> Callable[[Job, int], Result]:
    counters = b"enabled: 1\nused_watchpoints: 0\nsetup_watchpoints: 700\n"
    return lambda job, nr: Result(0, output_of(job).encode(), {"kcsan": counters}, log, 1.0)


@pytest.fixture
def known_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(races, "locate", lambda frames, image: PLACES)
    monkeypatch.setattr(races, "lines_of_series", lambda repo: WRITTEN)


@pytest.mark.usefixtures("known_places")
def test_races_of_others_are_counted_and_kept(run_soak: Soak, tmp_path: Path) -> None:
    error = run_soak(FakeMachine(racing(UNKNOWN)), "--races").err
    assert "goal" not in error
    runs = saved(tmp_path)["runs"]
    assert {run["kind"] for run in runs} == {kind.name for kind in soak_kinds.RACES}
    counts = [(one["counts"]["races_of_others"], one["counts"]["watchpoints"]) for one in runs]
    assert set(counts) == {(1, 700)}
    assert f"soak: {700 * len(runs):,} memory accesses were watched" in error
    assert f"soak: {len(runs)} data races, each counted once per boot, without the series" in error
    kept = list((tmp_path / "build/log").glob("soak-*.races"))
    assert len(kept) == len(runs)
    assert "upstream.constprop.0+0x40/0x80  arch/x86/kvm/mmu/mmu.c:60" in kept[0].read_text()


KCSAN = ["--only", "stress-kcsan-npt0"]


@pytest.mark.usefixtures("known_places")
@for_each_row(
    "words, answer, says",
    (KCSAN, racing(KNOWN), "data race of the series: data-race in our_dirty_bits / mark_"),
    (KCSAN, racing(UNKNOWN + "WARNING: CPU: 1\n"), "the kernel complains: WARNING"),
    (KCSAN, racing(UNKNOWN.replace("\n our", "\nBUG: bad\n our")), "complains: BUG: bad"),
    # A kernel that looks for no race, and a machine that fails.
    (["--races"], passed, "watched no memory access"),
    ([], Mock(side_effect=MachineFailed("machine crashed", "no", "console")), "machine crashed"),
)
def test_a_race_of_the_series_is_a_failure_as_others_are(
    run_soak: Soak, words: list[str], answer: Callable[[Job, int], Result], says: str
) -> None:
    error = run_soak(FakeMachine(answer), *words, status=1).err
    assert says in error
    assert f"soak: {int(words is KCSAN)} complaints in the kernels' logs" in error


def test_a_soak_that_looks_for_no_race_has_watched_nothing(run_soak: Soak) -> None:
    error = run_soak(FakeMachine(), "--races", status=1).err
    assert "soak: 0 memory accesses were watched" in error and "soak: 0 data races, " in error


def test_races_are_looked_for_where_cpus_run_at_the_same_time() -> None:
    assert {kind.config for kind in soak_kinds.RACES} == {soak_kinds.RACES_CONFIG}
    shadow = [kind for kind in soak_kinds.RACES if kind.npt == "0"]
    assert {kind.program for kind in shadow} == {kind.program for kind in soak_kinds.RACES}
    assert all(kind.sharing is Sharing.THREADS for kind in shadow)
    assert [kind.name for kind in soak_kinds.chosen(["race-kvm-npt0"])] == ["race-kvm-npt0"]
