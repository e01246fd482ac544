# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.lockprofile and locktrace, with small traces that are made up, and bad ones."""

import gzip
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.machines.paging import Mode
from lab.measure import lockprofile, locktrace, plan
from lab.measure.lockprofile import TracedRun
from lab.measure.locktrace import TraceError, Waiting
from lab.page import sections
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refusal

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
    assert f"the machine returned no {name.split('.', 1)[1]}" in failed(one, others)
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
