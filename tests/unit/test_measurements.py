# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.cost, live, native, lockprofile and locktrace: what is run, and what comes of it.

The traces are small and made up, and it is said what is wrong with bad ones.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lab.build import kernel, selftests
from lab.build.kernel import Kernel
from lab.build.selftests import LIVE_TEST, PERF_TEST
from lab.machines import Job, Result
from lab.machines.bochs import VmxBochs
from lab.machines.paging import Mode
from lab.measure import cost, live, lockprofile, locktrace, plan
from lab.measure.cost import Point
from lab.measure.lockprofile import TracedRun
from lab.measure.locktrace import TraceError, Waiting
from lab.measure.native import code, command, guest
from lab.measure.native.guest import Case, Counts
from lab.page import native, sections
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refusal, refused
from tests.unit.files import program, write
from tests.unit.report_data import live_text

RELEASE = "7.3.4-series"
OUTPUT = """point 1 32
hold pages 0 ns 40000 why alloc
hold pages 16 ns 1440000 why done
point 2 4
hold pages 1 ns 92000 why yield
hold pages 3 ns 270000 why done
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
    nothing = cost.parse("hold pages 16 ns 1 why done\n", True, RELEASE)
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
    *((command.check, words, "from 1 on are wanted") for words in (([0], 1), ([1], 0))),
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
    said = lab("cost", "--output", str(tmp_path / "a.jsonl"))
    assert "| ept=N |     1 |  32 |         16 |                  4625 |" in said.out
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [one["instructions"] for one in records] == [4625, 4525, 4625, 4525]
    assert {one["kernel_version"] for one in records} == {RELEASE}


BOOT = live.LiveBoot("series", False, ("N", "Y"), live.USUAL)
ORIGIN = {"machine": "vmx-bochs", "kernel": "series", "kernel_version": "6.12"}


def test_lazy_and_eager_share_a_boot_and_the_ungated_baseline_has_its_own() -> None:
    plan = live.live_boots([True, False], live.USUAL)
    kernels = (("series", ("N", "Y")), ("peer", ("Y",)))
    wanted = [(kernel, ept, eager) for ept in (True, False) for kernel, eager in kernels]
    assert [(boot.kernel, boot.ept, boot.eager) for boot in plan] == wanted
    # A CPU for each vCPU, and one for main().
    job = live.live_job(BOOT, Path("bz"), Path("test"))
    assert job.cpus == live.USUAL.vcpus + 1
    assert job.command[-3:] == (str(live.USUAL.vcpus * 8), "N", "Y")
    assert job.parameters["kvm.dirty_harvest"] == "off"


def test_windows_become_one_line_and_single_vcpus_are_dropped() -> None:
    found = list(live.condense(live_text(True), ORIGIN))
    kinds = ["kind", "kind", "kind", "dip"]
    assert [one["record"] for one in found] == ["timeline", *kinds, *kinds]
    timeline = found[0]
    assert timeline["writer_accesses"] == [4000, 3100, 2200, 1300]
    assert timeline["reader_accesses"] == [200] * 4
    assert "window" not in timeline and timeline["window_us"] == 10000
    assert all(one["kernel"] == "series" and one["machine"] == "vmx-bochs" for one in found)


@for_each_row(
    "text",
    *("", "half", "[]\n", '{"record": "kind"}\n'),
    live_text(True).replace('"window": 2,', '"window": 3,'),
)
def test_what_is_no_run_is_no_result(text: str) -> None:
    failed(list, live.condense(text, ORIGIN))


def test_a_parameter_that_did_not_take_effect_is_found() -> None:
    boot = replace(BOOT, ept=True)
    files = {"version": b"6.12\n", "N.json": live_text(False).encode()}
    assert "no file 'Y.json'" in failed(list, live.collect(boot, files))
    for wrong in (live_text(False), live_text(True, ept=False)):
        said = failed(list, live.collect(boot, files | {"Y.json": wrong.encode()}))
        assert "did not take effect" in said
    files["Y.json"] = live_text(True).encode()
    assert "did not take effect" in failed(list, live.collect(replace(boot, tdp_mmu=True), files))
    good = list(live.collect(boot, files))
    assert [one["eager"] for one in good if one["record"] == "timeline"] == [False, True]
    assert good[0]["kernel_version"] == "6.12"


def test_the_contended_load_is_measured_with_and_without_the_series() -> None:
    plan = live.contended_boots()
    expected = [("base", False), ("series", False), ("series", True)]
    assert [(boot.kernel, boot.harvest) for boot in plan] == expected
    by_dirty_bits = live.live_job(plan[2], Path("bz"), Path("test")).parameters
    assert (by_dirty_bits["kvm_intel.pml"], by_dirty_bits["kvm.dirty_harvest"]) == ("0", "on")
    job = live.live_job(plan[0], Path("bz"), Path("test"))
    assert (job.cpus, job.parameters["kvm.tdp_mmu"]) == (15, "1")
    assert job.memory_mib > 14 * 74 + 13 * live.FRESH_MIB
    assert "--contended: its load" in refusal("live", "--contended", "--mib", "8")


def test_a_dry_run_says_what_would_run() -> None:
    said = lab("live", "--dry-run", "--ept", "Y", "--mib", "2").out
    assert "series, ept=Y: 5 CPUs" in said and "-R 1 -F" in said and "ept=N" not in said


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


LOCK = 0xFFFFC90000123000
OTHER_LOCK = LOCK + 4096
STATS = """entries: 12
overrun: 0
commit overrun: 0
bytes: 480
dropped events: 0
read events: 0
"""


def line(pid: int, now: int, event: str, rest: str) -> str:
    return f"{f'dirty_log_perf_-{pid}':>20}      [001] ..... {now:12d}: {event}: {rest}\n"


def begin(pid: int, now: int, lock: int = LOCK, flags: str = "SPIN|WRITE") -> str:
    return line(pid, now, "contention_begin", f"{lock:016x} (flags={flags})")


def end(pid: int, now: int, lock: int = LOCK) -> str:
    return line(pid, now, "contention_end", f"{lock:016x} (ret=0)")


def leave(pid: int, now: int) -> str:
    return line(pid, now, "kvm_userspace_exit", "reason KVM_EXIT_IO (2)")


def switch(before: int, after: int, now: int) -> str:
    rest = f"prev_comm=dirty_log_perf_ prev_pid={before} prev_prio=120 prev_state=R ==>"
    return line(
        before, now, "sched_switch", f"{rest} next_comm=swapper/1 next_pid={after} next_prio=120"
    )


# Two vCPUs. The last pass begins at 1000; 11 ends at 1900, 12 at 2000. Each waits before it, too.
TRACE = [
    "# tracer: nop\n#\n",
    switch(0, 11, 10),
    switch(0, 12, 20),
    leave(11, 100),
    line(11, 101, "kvm_userspace_exit", "reason restart (4)"),
    begin(12, 110),
    end(12, 190),
    leave(12, 200),
    leave(11, 900),
    leave(12, 910),
    begin(11, 1100),
    begin(12, 1110),
    end(11, 1200),
    end(12, 1410, LOCK + 4),
    end(12, 1410),
    begin(12, 1500, flags="SPIN|READ"),
    end(12, 1505),
    leave(11, 1900),
    leave(12, 2000),
]

VMALLOC = (locktrace.VMALLOC,)
TRACED = lockprofile.Origin("7.3.4-series", VMALLOC)


def waiting(lines: list[str], areas: locktrace.Areas = VMALLOC) -> Waiting:
    return locktrace.waiting_in_pass("".join(lines), 2, 3, 1000, areas)


def without(wanted: str) -> list[str]:
    assert wanted in TRACE
    return [each for each in TRACE if each != wanted]


def with_more(*lines: str) -> list[str]:
    """In the last pass."""
    return [*TRACE[:-2], *lines, *TRACE[-2:]]


WAITED = Waiting(running=900 + 1000, waited=405, waits=3, longest=300)
OTHER_KINDS = ("SPIN", "MUTEX", "MUTEX|SPIN", "PERCPU|READ", "RT|WRITE", "READ")


@for_each_row(
    "lines, wanted",
    (TRACE, WAITED),
    # A vCPU without a processor takes no time.
    (with_more(switch(11, 12, 1600), switch(12, 11, 1750)), replace(WAITED, running=750 + 750)),
    ([each for each in TRACE if "contention" not in each], Waiting(running=1900)),
    *(
        (with_more(begin(11, 1300, OTHER_LOCK, kind), end(11, 1400, OTHER_LOCK)), WAITED)
        for kind in OTHER_KINDS
    ),
    # Another rwlock, outside of the pass.
    ([*TRACE, *(begin(11, 2010 + n, 0xFFFFFFFF81805080) for n in range(2))], WAITED),
    # An end alone is what a mutex at such an address leaves.
    (without(begin(11, 1100)), replace(WAITED, waited=305, waits=2)),
)
def test_waits_of_the_last_pass_are_added_up(lines: list[str], wanted: Waiting) -> None:
    assert waiting(lines) == wanted


def moved_to(lock: int) -> list[str]:
    return [each.replace(f"{LOCK:016x}", f"{lock:016x}") for each in TRACE]


def test_where_the_lock_is_depends_on_the_kernel(tmp_path: Path) -> None:
    moved = moved_to(0xFFFF888001234000)
    header = tmp_path / locktrace.HEADER
    header.parent.mkdir(parents=True)
    header.write_text("return __vmalloc(kvm_x86_ops.vm_size, GFP_KERNEL_ACCOUNT | __GFP_ZERO);")
    assert locktrace.areas_of(tmp_path) == VMALLOC
    header.write_text("return kvzalloc(kvm_x86_ops.vm_size, GFP_KERNEL_ACCOUNT);")
    areas = locktrace.areas_of(tmp_path)
    assert waiting(moved, areas) == waiting(TRACE, areas) == waiting(TRACE)
    with pytest.raises(TraceError, match="no mmu_lock"):
        waiting(moved_to(0xFFFF888001234008), areas)


@for_each_row(
    "lines, said",
    (with_more(begin(11, 1300, OTHER_LOCK), end(11, 1400, OTHER_LOCK)), "2 rwlocks"),
    (without(end(11, 1200)), "does not end"),
    (with_more(begin(11, 1800), begin(11, 1810)), "waits twice"),
    ([*TRACE[:10], switch(11, 0, 1000), *TRACE[10:]], "longer than it had a processor"),
    ([each for each in TRACE if "-11 " not in each], "1 threads ran a vCPU instead of 2"),
    (without(leave(11, 900)), "2 times instead of once in 3 passes"),
    ([*TRACE, " dirty-11 [000] ..... 12.345678: contention_end: 0 (ret=0)\n"], "not a line"),
    ([each for each in TRACE if "exit" in each], "no vCPU had"),
    *((moved_to(at), "no mmu_lock") for at in (LOCK + 8, 0xFFFFFFFF82001000, 0xFFFF888001234000)),
)
def test_a_trace_that_cannot_be_of_such_a_run_is_refused(lines: list[str], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        waiting(lines)


@pytest.mark.parametrize("kind", ["overrun", "commit overrun", "dropped events"])
def test_lost_events_are_no_result(kind: str) -> None:
    locktrace.check_complete(STATS * 2)
    with pytest.raises(TraceError, match="7 events were lost"):
        locktrace.check_complete(STATS + STATS.replace(f"\n{kind}: 0", f"\n{kind}: 7"))
    with pytest.raises(TraceError, match="did not come back"):
        locktrace.check_complete("")


RUN = TracedRun(2, 100, False)
FILES = {
    "2-100-N.untraced": b"Iteration 2 dirty memory time: 0.000018000s\n",
    "2-100-N.traced": b"Iteration 1 dirty memory time: 0.1s\n"
    b"Iteration 2 dirty memory time: 0.000020000s\n",
    "2-100-N.stats": STATS.encode(),
    "2-100-N.trace.gz": gzip.compress("".join(TRACE).encode()),
}

Record = dict[str, Any]


def one(files: Mapping[str, bytes] = FILES) -> Record:
    return lockprofile.profile(Mode(True), RUN, 2, 3, files, TRACED)


def test_a_run_in_seconds() -> None:
    keys = ("seconds", "untraced_seconds", "vcpu_seconds", "wait_seconds")
    assert tuple(map(one().get, keys)) == pytest.approx((20e-6, 18e-6, 1900 / 50e6, 405 / 50e6))


@pytest.mark.parametrize("name", FILES)
def test_a_run_that_is_not_complete_is_no_result(name: str) -> None:
    others = {n: text for n, text in FILES.items() if n != name}
    assert f"no {name.split('.', 1)[1]} came back" in failed(one, others)
    failed(one, FILES | {name: b"\n"})


def alone() -> Record:
    return one() | {"vcpus": 1, "untraced_seconds": one()["untraced_seconds"] / 4}


def rows(*profiles: Record) -> list[tuple[str, ...]]:
    table = sections.lock_table(profiles)
    assert {len(row) for row in table.rows} == {len(table.columns)}
    return table.rows


def test_a_row_for_each_run() -> None:
    eager = one() | {"eager": True, "waits": 0, "wait_seconds": 0.0}
    found = rows(one(), eager, one() | {"ept": False, "vcpus": 32})
    assert found[0][:7] == ("ept=Y, all writes", "2", "3", "N", "21.3%", "-", "3")
    assert found[1][3:7] == ("Y", "0.0%", "-", "0")
    assert found[2][:5] == ("ept=N, all writes", "32", "3", "N", "21.3%")
    # One vCPU says what the others do without.
    found = rows(alone(), one(), one() | {"vcpus": 3})
    assert [row[5] for row in found] == ["0.0%", "75.0%", "-"]
    some = [each | {"write_percent": 20} for each in (alone(), one())]
    assert [row[5] for row in rows(*some)] == ["-", "-"]


def test_modes_are_told_apart() -> None:
    tdp = lockprofile.profile(Mode(True, True, pml=False), RUN, 2, 3, FILES, TRACED)
    assert (one()["ept"], one()["tdp_mmu"], one().get("pml", "-")) == (True, False, "-")
    assert tdp["pml"] is False
    found = rows(alone(), one(), tdp, tdp | {"pml": True})
    modes = [row[0].removesuffix(", all writes") for row in found[1:]]
    assert modes == ["ept=Y", "ept=Y, tdp_mmu=Y, pml=N", "ept=Y, tdp_mmu=Y"]
    # What a single vCPU needs in another mode says nothing.
    assert [row[5] for row in found[1:]] == ["75.0%", "-", "-"]


def test_a_dry_run_names_each_mode() -> None:
    words = ("--modes", " ".join(plan.MODES), "--vcpus", "1 64", "--writes", "100")
    said = lab("lockprofile", "--dry-run", *words).out
    boots = re.findall(r"^vmx-bochs, 15 CPUs, (\d+) MiB (.*)$", said, re.MULTILINE)
    assert len({parameters for _, parameters in boots}) == len(boots) == len(plan.MODES)
    assert said.count("  -v 64 -w 100 -b 2M, eager_page_split=Y") == len(boots)
    refusal("lockprofile", "--dry-run", "--modes", "ept2")


def test_every_vcpu_has_a_processor_if_the_machine_can() -> None:
    for words, cpus in ((("2 8",), 9), (("2 32",), 15), (("8", "--cpus", "4"), 4)):
        said = lab("lockprofile", "--dry-run", "--vcpus", *words).out
        assert said.startswith(f"vmx-bochs, {cpus} CPUs, ")
    for wanted in ("0", "16"):
        said = refusal("lockprofile", "--dry-run", "--cpus", wanted)
        assert f"'--cpus': {wanted} is not in the range 1<=x<=15" in said


def test_one_boot_has_memory_and_processors_for_all_traced_runs() -> None:
    runs = [RUN, TracedRun(32, 20, True)]
    job = lockprofile.trace_job(Mode(False), runs, 2, 15, Path("bzImage"), Path("test"))
    assert job.command[-9:] == ("32", "2M", "2", "2", "100", "N", "32", "20", "Y")
    assert (job.cpus, job.parameters["kvm_intel.ept"]) == (15, "0")


# Of tracefs, what a script writes to or reads.
EVENTS = (
    *("lock/contention_begin", "lock/contention_end", "kvm/kvm_userspace_exit"),
    *("sched/sched_switch", "kvm_eager_split/kvm_eager_split_hold"),
)
IMAGE, PROGRAM = Path("bzImage"), Path("test")
MEASURED: tuple[tuple[Job, str, int], ...] = (
    (live.live_job(BOOT, IMAGE, PROGRAM), f"{live.INSIDE}/{LIVE_TEST}", 2),
    (
        cost.cost_job(True, [Point(1, 4), Point(2, 8)], IMAGE, PROGRAM),
        f"{cost.INSIDE}/{PERF_TEST}",
        2,
    ),
    (
        lockprofile.trace_job(Mode(True), [RUN], 2, 3, IMAGE, PROGRAM),
        f"{lockprofile.INSIDE}/{PERF_TEST}",
        2,
    ),
)


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("job, inside, timed", MEASURED, ids=["live", "cost", "lockprofile"])
def test_what_is_measured_is_verified_afterwards(
    tmp_path: Path, job: Job, inside: str, timed: int, wrong: bool
) -> None:
    """The script of a boot, with a directory for /, and a test whose verdict may be bad."""
    for name in ("kernel/tracing/trace", "kernel/tracing/per_cpu/cpu0/stats"):
        write(tmp_path / "sys" / name, "")
    for event in EVENTS:
        write(tmp_path / "sys/kernel/tracing/events" / event / "enable", "")
    for name in ("sys/module/kvm/parameters/x", "proc/sys/vm/x", "sys/kernel/tracing/options/x"):
        write(tmp_path / name, "")
    (tmp_path / "out").mkdir()
    text = f"""#!/bin/sh
echo "$*" >>{tmp_path}/calls
case " $* " in *" -V "*) {"echo wrong; exit 1" if wrong else ":"} ;; esac
"""
    test = program(tmp_path / "test", text)
    script = re.sub(r"(?<!\w)/(?=(sys|proc)/)", f"{tmp_path}/", job.command[2])
    script = script.replace(inside, str(test))
    done = subprocess.run(
        (shutil.which("dash") or "sh", "-c", script, *job.command[3:]),
        env={
            "LAB_OUT": f"{tmp_path}/out",
            "LAB_PROGRESS": f"{tmp_path}/progress",
            "PATH": os.environ["PATH"],
        },
        capture_output=True,
        text=True,
        check=False,
    )
    calls = (tmp_path / "calls").read_text().splitlines()
    verified = [call for call in calls if "-V" in call.split()]
    assert (len(calls) - len(verified), calls[-len(verified) :]) == (timed, verified)
    assert (done.returncode, "wrong" in done.stdout) == ((1, True) if wrong else (0, False))
