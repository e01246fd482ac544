# SPDX-License-Identifier: GPL-2.0-only
"""scripts/split-bench.sh on a made-up host: a directory for /, a script for the test.

Every case runs under dash and under busybox ash, the latter with busybox's applets alone. What no
made-up host can show (that KVM obeys) is shown by the runs inside the machines. Interrupted, it
restores the host, and can be resumed.
"""

import json
import os
import pty
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.results import jsonl
from tests.rows import for_each_row
from tests.unit.fake_kvm_host import FAKE_TEST, NOBODY, SCRIPT, Host, set_cpus
from tests.unit.files import program, with_a_second_signal
from tests.unit.processes import default_signals, is_gone, started, until
from tests.unit.report_data import DIMENSIONS

Record = dict[str, object]
Change = Callable[[Host], object]
Said = subprocess.CompletedProcess[str]

# Of a run of two iterations: populate, enable, disable; dirty, get, clear of each.
RECORDS = 3 + 3 * 2
RELEASE = os.uname().release
# Two runs.
PART = ("--vcpus", "2", "--writes", "20")


def refusal(host: Host, *arguments: str, **options: object) -> str:
    """The one line of a refusal, after the proof that it changed nothing."""
    before = host.settings()
    done = host.run(*arguments, **options)
    assert (done.returncode, done.stdout) == (2, "")
    assert (host.settings(), host.calls()) == (before, [])
    (line,) = done.stderr.splitlines()
    assert line.startswith("split-bench: ")
    return line


def measured(host: Host, *arguments: str, status: int = 0) -> tuple[Said, list[Record]]:
    """What a run with an output says and, if it is there, what the output then holds."""
    done = host.run(*arguments, "--output", str(host.output))
    assert done.returncode == status, done.stderr
    return done, records(host.output) if host.output.exists() else []


def records(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def keys(file: Path) -> list[str]:
    return sorted(str({**record, "seconds": None}) for record in records(file))


def needed() -> list[str]:
    """The commands that the script's header lists."""
    header = SCRIPT.read_text().partition("\n\n")[0]
    text = " ".join(line.lstrip("# ") for line in header.splitlines())
    return text.partition("and the commands ")[2].partition(" (busybox")[0].split(", ")


# ---- what is run -------------------------------------------------------------


@for_each_row(
    "options, flags, values",
    # What dirty_bits is stays without the option.
    (("--vcpus", "2,4", "--init-set", "both"), ("", " -g"), (",auto",)),
    (("--vcpus", "2 4", "--dirty-bits", "off,on auto"), ("",), ("", ",on", ",auto")),
)
def test_runs_n_beside_y_for_each_combination(
    host: Host, options: tuple[str, ...], flags: tuple[str, ...], values: tuple[str, ...]
) -> None:
    host.dirty_bits.write_text("auto\n")
    before = host.settings()
    done = host.run("--writes", "100 20", *options)
    assert (done.returncode, done.stderr) == (0, "")
    memory = "-s anonymous_hugetlb_2mb -b 4194304"
    assert host.calls() == [
        f"{eager}{value} {memory} -v {vcpus} -w {writes} -i 2{flag} -c {pcpus}"
        for flag in flags
        for writes in (100, 20)
        for vcpus, pcpus in ((2, "1,2,0"), (4, "1,2,3,4,0"))
        for eager in "NY"
        for value in values
    ]
    assert host.settings() == before


def test_settings_of_each_vm(host: Host) -> None:
    before = host.settings()
    options = ("--vcpus", "2", "--writes", "100", "--per-vm")
    done = host.run(*options, "--dirty-bits", "off,on auto")
    assert (done.returncode, done.stderr) == (0, "")
    run = "-s anonymous_hugetlb_2mb -b 4194304 -v 2 -w 100 -i 2 -c 1,2,0"
    asked = [
        f"{run} --chunk={chunk}{bits}"
        for chunk in ("0", "1G")
        for bits in (" --dirty-bits=off", " --dirty-bits=on", "")
    ]
    assert host.calls() == [f"Y,auto {words}" for words in asked]
    assert [row[3] for row in table(done.stdout)] == ["dirty_bits", "off", "on", "auto"]
    host.run(*options)
    assert host.calls()[6:] == [f"Y {words}" for words in asked[2::3]]
    assert host.settings() == before


@pytest.mark.parametrize("value", ["on", None])
def test_dirty_bits_is_left_alone_and_recorded(host: Host, value: str | None) -> None:
    """A kernel without it is off."""

    def stamp() -> int | None:
        return host.dirty_bits.stat().st_mtime_ns if host.dirty_bits.exists() else None

    host.dirty_bits.unlink()
    if value:
        host.dirty_bits.write_text(f"{value}\n")
    before = stamp()
    done, found = measured(host, "--vcpus", "2")
    assert (done.stderr, stamp()) == ("", before)
    assert {r["dirty_bits"] for r in found} == {value or "off"}
    assert [row[3] for row in table(done.stdout)] == ["dirty_bits", *2 * [value or "off"]]


def seen_pools(host: Host, *sizes: str) -> Path:
    """Makes the test note the pools of these sizes, a line each time that it runs."""
    seen = host.root / "calls.pools"
    pools = " ".join(str(host.pool(size)) for size in sizes)
    note = f"echo $(cat {pools}) >>{seen}\n"
    (host.root / "fake_test").write_text(FAKE_TEST.replace("clear=1\n", f"clear=1\n{note}", 1))
    return seen


@for_each_row(
    "size, pages, promised, arguments, wanted",
    # It holds the largest guest.
    ("2048kB", 0, 0, "--vcpus=2,8", ["17"] * 4),
    # Pages promised to others are not counted as free.
    ("2048kB", 20, 10, "--vcpus=8 --eager=N", ["27"]),
    ("1048576kB", 0, 0, "--backing=anonymous_hugetlb_1gb --bytes=1G --vcpus=2", ["2"] * 2),
    # It suffices, and is left alone.
    ("2048kB", 100, 0, "--vcpus=2", ["100"] * 2),
)
def test_the_pool_while_a_test_runs(
    host: Host, size: str, pages: int, promised: int, arguments: str, wanted: list[str]
) -> None:
    host.pool(size).write_text(f"{pages}\n")
    (host.pool(size).parent / "resv_hugepages").write_text(f"{promised}\n")
    seen, stamp = seen_pools(host, size), host.pool(size).stat().st_mtime_ns
    assert host.run("--writes", "100", *arguments.split()).returncode == 0
    assert (seen.read_text().split(), host.pool(size).read_text()) == (wanted, f"{pages}\n")
    assert (host.pool(size).stat().st_mtime_ns == stamp) == (wanted[0] == str(pages))


@for_each_row(
    "available, status",
    # 17 pages of 2 MiB, and the reserve.
    (34 + 64, 0),
    (34 + 63, 2),
)
def test_the_pool_leaves_memory_to_the_host(host: Host, available: int, status: int) -> None:
    host.write("proc/meminfo", f"MemAvailable: {available * 1024} kB\nHugepagesize: 2048 kB\n")
    if status:
        said = refusal(host, "--vcpus", "8")
        assert "too little memory: wanted 98 MiB, a reserve of 64 MiB included, had 97 MiB" in said
    else:
        assert host.run("--vcpus", "8").returncode == 0
    # Pages that are there already are no new ones.
    host.pool().write_text("17\n")
    assert host.run("--vcpus", "8").returncode == 0


def test_surplus_pages_of_others_do_not_become_permanent(host: Host) -> None:
    host.pool().write_text("33\n")
    host.write(str((host.pool().parent / "surplus_hugepages").relative_to(host.root)), "30\n")
    # All are in use.
    host.write(str((host.pool().parent / "resv_hugepages").relative_to(host.root)), "33\n")
    seen = seen_pools(host, "2048kB")
    # The kernel makes 30 permanent, and allocates 17.
    assert host.run("--vcpus", "8", "--eager", "N", "--writes", "100").returncode == 0
    assert (seen.read_text().split(), host.pool().read_text()) == (["50"], "3\n")


def test_each_backing_has_its_memory_while_it_is_measured(host: Host) -> None:
    seen = seen_pools(host, "2048kB", "1048576kB")
    backings = "anonymous_hugetlb_2mb anonymous_hugetlb_1gb anonymous"
    sizes = ["--bytes", "1G", "--vcpus", "1", "--writes", "100", "--eager", "N"]
    host.write("proc/meminfo", "MemAvailable: 4194304 kB\n")
    host.pool().write_text("3\n")
    before = host.settings()
    assert host.run("--backing", backings, *sizes).returncode == 0
    called = [call.split() for call in host.calls()]
    assert [(call[0], call[2]) for call in called] == [("N", one) for one in backings.split()]
    assert seen.read_text().splitlines() == ["513 0", "3 1", "3 0"]
    assert host.settings() == before


def test_presets(host: Host) -> None:
    host.environment["vcpus_list"] = "7"  # a name of the script's own
    quick = host.run("--dry-run").stdout
    assert quick == host.run("--quick", "--dry-run").stdout
    assert "8 runs:" in quick
    full = host.run("--full", "--dry-run").stdout
    assert "336 runs:" in full
    assert "-s anonymous_thp -b 4194304 -v 64 -w 0 -i 3 -g\n" in full
    assert "48 runs:" in host.run("--vcpus", "2 64", "--full", "--init-set=yes", "--dry-run").stdout


# A VM that is logged later, and one that is tracked, for each way to populate it.
LOADS = ("", " -g --tracked", " --read-first", " -g --tracked --read-first")
TRACKED = ("--tracked", "--vcpus", "2", "--writes", "100")


def test_tracked_vms_beside_those_that_are_logged_later(host: Host) -> None:
    before = host.settings()
    done = host.run("--tracked", "--vcpus", "2 4", "--writes", "100 1")
    assert (done.returncode, done.stderr, host.settings()) == (0, "", before)
    assert host.calls() == [
        f"{eager} -s {HUGE} -b 4194304 -v {vcpus} -w {writes} -i 3{load} -c {pcpus}"
        for writes in (100, 1)
        for vcpus, pcpus in ((2, "1,2,0"), (4, "1,2,3,4,0"))
        for eager in "NY"
        for load in LOADS
    ]


@for_each_row(
    "options, runs, first, last",
    (
        "",
        32,
        "-s anonymous_hugetlb_2mb -b 4194304 -v 2 -w 100 -i 3 -c 1,2,0\n",
        "-w 1 -i 3 -g --tracked",
    ),
    (
        "--full --eager N",
        140,
        "-v 2 -w 100 -i 3 -c 1,2,0\n",
        "-v 64 -w 1 -i 3 -g --tracked --read-first\n",
    ),
    ("--populate reads", 16, " -i 3 --read-first", " --tracked --read-first"),
    (
        "--populate=writes --backing=anonymous,anonymous_thp --eager=Y --pattern=regions",
        16,
        "-s anonymous -b 4194304 -v 2 -w 100 -i 3 -c 1,2,0 --pattern=regions\n",
        "-s anonymous_thp -b 4194304 -v 8 -w 1 -i 3 -g --tracked -c 1,2,3,4,5,6,7,8,0 --pattern",
    ),
    (
        "--per-vm --eager N --dirty-bits on --iterations 7 --busy 1",
        16,
        "eager_page_split=Y dirty_bits=auto ",
        "-i 7 -g --tracked --read-first -c 1,2,3,4,5,6,7,8,0 --idle=7 --chunk=0 --dirty-bits=on\n",
    ),
)
def test_a_plan_of_tracked_vms(host: Host, options: str, runs: int, first: str, last: str) -> None:
    done = host.run("--tracked", "--dry-run", *options.split())
    heading, *shown = done.stdout.splitlines(keepends=True)
    assert (done.returncode, done.stderr, heading) == (0, "", f"{runs} runs:\n")
    assert first in shown[0]
    assert last in shown[runs - 1]


@pytest.mark.parametrize("host", ["dash"], indirect=True)
def test_the_header_lists_the_commands_that_are_needed(host: Host, tmp_path: Path) -> None:
    path = host.environment["PATH"]
    for name in needed():
        (tmp_path / name).symlink_to(shutil.which(name, path=path) or "missing")
    host.shell = [shutil.which("dash") or ""]
    host.environment["PATH"] = str(tmp_path)
    output = host.root / "out.jsonl"
    for option in ("--output", "--resume"):
        done = host.run(*PART, "--backing", "anonymous_hugetlb", option, str(output))
        assert (done.returncode, "not found" in done.stderr) == (0, False)


# ---- what is verified --------------------------------------------------------


def verified(host: Host) -> list[str]:
    """The calls with -V, which come first, without it."""
    calls = [call for call in host.calls() if " -V " in call]
    assert calls == host.calls()[: len(calls)]
    return [call.replace(" -V", "") for call in calls]


def test_whatever_changes_what_kvm_does_is_verified_before_it_is_measured(host: Host) -> None:
    before = host.settings()
    words = ["--vcpus", "8 2 4", "--writes", "20 100 50", "--eager", "N Y"]
    words += ["--init-set", "both", "--dirty-bits", "off on"]
    for verify, times in (("first", 1), ("only", 0)):
        host.verify = verify
        done = host.run(*words)
        assert (done.returncode, done.stderr, bool(done.stdout)) == (0, "", bool(times))
        assert verified(host) == [
            f"{value} -s anonymous_hugetlb_2mb -b 4194304 -v 2 -w 100 -i 2{flag} -c 1,2,0"
            for flag in ("", " -g")
            for value in ("N", "N,on", "Y", "Y,on")
        ]
        assert len(host.calls()) == 8 + 9 * 8 * times
        (host.root / "calls").unlink()
        assert host.settings() == before


def test_what_is_wrong_is_not_measured(host: Host) -> None:
    host.verify = "first"
    host.mode("wrong")
    for words in ((), ("--keep-going",)):
        done, found = measured(host, "--vcpus", "2 8", "--writes", "100", *words, status=1)
        first, *_, last = done.stderr.splitlines()
        assert "2 vCPUs, 100% writes, initially-all-set, eager_page_split=N: wrong, or not" in first
        assert "gfn 0x40 is not in the dirty log" in first
        assert "nothing was measured" in last
        assert (done.stdout, found, host.output.exists()) == ("", [], False)
        assert len(host.calls()) == len(verified(host))
    assert host.eager.read_text() == "Y\n"
    # Only the verdict was wrong.
    host.verify = "no"
    assert host.run("--vcpus", "2").returncode == 0


def test_tracked_vms_are_verified_in_the_unpatched_kernel_too(host: Host) -> None:
    """Nothing is to be split in them."""
    host.verify = "only"
    assert host.run(*TRACKED, "--kernel", "base").returncode == 0
    memory = f"-s {HUGE} -b 4194304 -v 2 -w 100 -i 3"
    assert verified(host) == [
        *(f"N {memory}{load} -c 1,2,0" for load in LOADS),
        *(f"Y {memory}{load} -c 1,2,0" for load in LOADS if "--tracked" in load),
    ]


@for_each_row(
    "kernel, tdp_mmu, wanted",
    ("base", "N", "N"),
    ("base", "Y", "NY"),
    ("series", "N", "NY"),
)
def test_the_unpatched_shadow_mmu_is_not_to_split(
    host: Host, kernel: str, tdp_mmu: str, wanted: str
) -> None:
    host.verify = "only"
    host.set("kvm.tdp_mmu", tdp_mmu)
    assert host.run("--vcpus", "2", "--kernel", kernel).returncode == 0
    assert [call[0] for call in verified(host)] == list(wanted)


def test_nothing_to_verify_is_no_success(host: Host) -> None:
    host.verify = "only"
    done = host.run("--vcpus", "2", "--kernel", "base", "--eager", "Y")
    said = "split-bench: nothing was verified: no run is left, or this kernel splits nothing\n"
    assert (done.returncode, done.stderr, host.calls()) == (1, said, [])


def test_a_matrix_that_is_complete_is_not_verified_again(host: Host) -> None:
    host.verify = "first"
    measured(host, "--vcpus", "2")
    (host.root / "calls").unlink()
    assert host.run("--vcpus", "2", "--resume", str(host.output)).returncode == 0
    assert host.calls() == []
    assert host.run("--vcpus", "2 8", "--resume", str(host.output)).returncode == 0
    assert (len(verified(host)), len(host.calls())) == (2, 2 + 4)


def test_a_plan_says_what_is_verified(host: Host) -> None:
    host.verify = "first"
    first, *lines = host.run("--dry-run", "--vcpus", "2 8").stdout.splitlines()
    assert (first, lines[2]) == ("verified, untimed:", "8 runs:")
    assert [line.partition(" -c ")[0].rpartition("/")[2] for line in lines[:2]] == [
        "fake_test -V -s anonymous_hugetlb_2mb -b 4194304 -v 2 -w 100 -i 2"
    ] * 2


# ---- pinning -----------------------------------------------------------------


def pins(host: Host, *arguments: str) -> list[str]:
    """What follows -c, for each run, an empty string without."""
    assert host.run("--writes", "100", "--eager", "Y", *arguments).returncode == 0
    return [call.partition(" -c ")[2] for call in host.calls()]


def test_pins_to_cpus_that_are_on_and_may_be_used(host: Host) -> None:
    host.write("proc/self/status", "Cpus_allowed_list:\t2-5,8,10-1023\n")
    host.write("sys/devices/system/cpu/online", "0-3,5-11\n")
    # 2, 3, 5, 8, 10 and 11
    wanted = ["3,5,8,2", "3,5,8,10,11,2", ""]
    assert pins(host, "--vcpus", "3 5 6") == wanted
    assert pins(host, "--vcpus", "2", "--no-pin") == [*wanted, ""]


def test_pins_to_one_thread_of_each_core_first(host: Host) -> None:
    set_cpus(host, 8)
    for cpu in range(8):
        siblings = f"{cpu % 4},{cpu % 4 + 4}\n"
        host.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    host.write("sys/devices/system/cpu/online", "0,2-7\n")  # 5 alone has the second core
    assert pins(host, "--vcpus", "3 4") == ["2,3,5,0", "2,3,5,4,0"]


# ---- what is recorded --------------------------------------------------------


def test_json_lines_hold_every_time_with_its_dimensions(host: Host) -> None:
    labels = ["--machine", "vmx-bochs", "--kernel", "base"]
    _, found = measured(host, *PART, "--eager", "Y", "--iterations", "2", *labels)
    assert found[2] == DIMENSIONS | {
        "kernel": "base",
        "kernel_version": RELEASE,
        "bytes_per_vcpu": 4194304,
        "write_percent": 20,
        "eager": True,
        "iteration": 1,
        "dirty_bits": "off",
        "cpus": 9,
        "overcommitted": False,
        "pinned": True,
        "seconds": 0.00210000001,
    }
    each = [(phase, i) for i in (1, 2) for phase in ("dirty", "get", "clear")]
    wanted = [("populate", None), ("enable", None), *each, ("disable", None)]
    assert [(r["phase"], r["iteration"]) for r in found] == wanted


def test_lines_of_tracked_vms_say_what_was_logged_and_mapped(host: Host) -> None:
    """The others are as without --tracked, but for how they were populated."""
    _, found = measured(host, *TRACKED, "--eager", "Y")
    of: dict[tuple[object, object], list[Record]] = {}
    for one in found:
        of.setdefault((one.get("tracked"), one.get("read_first")), []).append(one)
    assert [*of] == [(None, None), (True, None), (None, True), (True, True)]
    assert [len(mine) for mine in of.values()] == [3 + 3 * 3, 3 + 2 * 3] * 2
    for mine in (of[True, None], of[True, True]):
        each = [(phase, i) for i in (1, 2, 3) for phase in ("dirty", "get")]
        wanted = [("enable", None), ("populate", None), *each, ("disable", None)]
        assert [(one["phase"], one["iteration"]) for one in mine] == wanted
        assert {one["initially_all_set"] for one in mine} == {False}
        assert {one["pf_taken"] for one in mine} == {3}
        for one in mine:
            counts = {key: one[key] for key in ("pages_2m", "page_tables") if key in one}
            mapped = one["phase"] in ("populate", "dirty")
            assert counts == ({"pages_2m": 32, "page_tables": 8} if mapped else {})
            assert one.get("logged") == (6 if one["phase"] == "get" else None)
    for mine in (of[None, None], of[None, True]):
        assert {one["initially_all_set"] for one in mine} == {True}
        assert not {"pf_taken", "logged", "pages_2m", "page_tables"} & set().union(*mine)
    # As the lab writes these lines.
    for text in host.output.read_text().splitlines():
        assert list(json.loads(jsonl.to_line(jsonl.parse(text)))) == list(json.loads(text))


def test_lines_of_later_cycles_say_which(host: Host) -> None:
    cycles = ("--cycles", "3", "--iterations", "2", "--eager", "Y")
    done, found = measured(host, *PART, *cycles, "--init-set", "both", "--pattern", "regions")
    assert all(" --pattern=regions --cycles=3" in call for call in host.calls())
    for init, phases in ((True, ("dirty", "get", "clear")), (False, ("dirty", "get"))):
        mine = [one for one in found if one["initially_all_set"] == init]
        each = [("enable", None), *((phase, i) for i in (1, 2) for phase in phases)]
        once = [*each, ("disable", None)]
        later = [(*one, cycle) for cycle in (None, 2, 3) for one in once]
        wanted = [("populate", None, None), *later]
        assert [(one["phase"], one["iteration"], one.get("cycle")) for one in mine] == wanted
        # Memory is counted in each of them.
        counted = [one.get("cycle") for one in mine if "pages_2m" in one]
        assert counted == [None, 2, 3]
    for text in host.output.read_text().splitlines():
        assert list(json.loads(jsonl.to_line(jsonl.parse(text)))) == list(json.loads(text))
    rows = table(done.stdout)
    assert [row[5:8] for row in rows[:4]] == [
        ["cycle", "dirty N", "dirty Y"],
        *([cycle, "-", dirty] for cycle, dirty in (("1", "2.20"), ("2", "10002"), ("3", "110002"))),
    ]
    assert "Cycle: enabling, all iterations and disabling, once more" in done.stdout
    # One is the default.
    (host.root / "calls").unlink()
    done = host.run(*PART, "--cycles", "1")
    assert not any("--cycles" in call for call in host.calls())
    assert "ycle" not in done.stdout


def test_cycles_are_resumed_and_not_taken_for_others(host: Host) -> None:
    matrix = [*PART, "--cycles", "2", "--init-set", "both"]
    measured(host, *matrix, "--eager", "N")
    (host.root / "calls").unlink()
    done = host.run(*matrix, "--resume", str(host.output))
    assert done.stderr == "split-bench: 2 of 4 runs are still to be measured\n"
    assert [call[0] for call in host.calls()] == ["Y", "Y"]
    (host.root / "calls").unlink()
    again = host.run(*matrix, "--resume", str(host.output))
    assert (again.returncode, again.stdout, host.calls()) == (0, done.stdout, [])
    assert done.stdout == host.run(*matrix).stdout
    (host.root / "calls").unlink()
    for cycles in ("1", "3"):
        said = refusal(host, *matrix, "--cycles", cycles, "--resume", str(host.output))
        assert "contains runs with other --iterations, --cycles or pinning" in said
    # As many lines as these have: 4 cycles of 2 iterations, or one of 10.
    host.output.unlink()
    measured(host, *PART, "--iterations", "10")
    lines, options = len(records(host.output)), ("--iterations", "2", "--cycles", "4")
    (host.root / "calls").unlink()
    assert "other --iterations, --cycles" in refusal(
        host, *PART, *options, "--resume", str(host.output)
    )
    host.output.unlink()
    assert len(measured(host, *PART, *options)[1]) == lines


def test_a_plan_of_cycles(host: Host) -> None:
    host.verify = "first"
    said = host.run(*PART, "--cycles", "3", "--dry-run").stdout
    assert "fake_test -V -s anonymous_hugetlb_2mb -b 4194304 -v 2 -w 20 -i 2" in said
    assert said.count(" --cycles=3\n") == 2 + 2


def test_there_has_to_be_room_for_all_cycles(host: Host) -> None:
    words = (*PART, "--cycles", "1000", "--output", str(host.output))
    said = refusal(host, *words, preexec_fn=limit_files(4096))
    # 2 runs, each of one line and 1000 times 8.
    assert f"no room for {2 * (1 + 1000 * 8) * 550 // 1024 + 1} KiB" in said


def test_progress_counts_cycles(host: Host) -> None:
    host.environment["LAB_PROGRESS"] = str(host.root / "progress")
    host.run("--vcpus", "2 8", "--writes", "20", "--eager", "N", "--cycles", "3")
    # Shares of 3 x 2 + 2 and 3 x 8 + 2.
    said = (host.root / "progress").read_text().splitlines()
    assert [line.split("%")[0] for line in said] == ["0", "23", "100"]


MODE = ("kvm_intel.ept", "kvm_amd.npt", "kvm.tdp_mmu")


@for_each_row(
    "flags, mode, pml, wanted",
    ("vmx", "YNY", "Y", (True, True, None)),
    ("vmx", "YNN", "Y", (True, False, None)),
    ("vmx", "NYY", "Y", (False, False, None)),
    ("svm", "N1Y", "Y", (True, True, None)),
    ("svm", "Y0N", "Y", (False, False, None)),
    # Where a CPU with EPT does not log by itself.
    ("vmx", "YNY", "N", (True, True, False)),
    ("vmx", "YNN", "N", (True, False, False)),
    ("vmx", "YNN", None, (True, False, None)),
    ("vmx", "NNN", "N", (False, False, None)),
    ("svm", "YNN", "N", (False, False, None)),
)
def test_records_the_paging_mode_of_this_cpu(
    host: Host, flags: str, mode: str, pml: str | None, wanted: tuple[bool, bool, bool | None]
) -> None:
    host.write("proc/cpuinfo", f"processor : 0\nflags : fpu {flags}\n")
    for name, value in zip((*MODE, "kvm_intel.pml"), (*mode, f"{pml}"), strict=True):
        host.set(name, value)
    if pml is None:
        (host.root / "sys/module/kvm_intel/parameters/pml").unlink()
    _, found = measured(host, *PART, "--dirty-bits", "on")
    assert {(r["ept"], r["tdp_mmu"], r.get("pml")) for r in found} == {wanted}


def test_appends_to_what_is_there_and_keeps_its_owner(host: Host) -> None:
    host.write("out.jsonl", '{"old": 1}\n').chmod(0o640)
    if os.geteuid() == 0:
        os.chown(host.output, NOBODY, NOBODY)
    before = host.output.stat()
    _, found = measured(host, "--vcpus", "2")
    assert (found[0], len(found)) == ({"old": 1}, 1 + 4 * RECORDS)
    after = host.output.stat()
    kept = ("st_mode", "st_uid", "st_gid")
    assert [getattr(before, one) for one in kept] == [getattr(after, one) for one in kept]
    # As for any new file, if there is none.
    host.output.unlink()
    measured(host, *PART)
    assert host.output.stat().st_mode & 0o777 == 0o644


# By one who owns the directory, once the benchmark runs.
LINK = "rm -f {out}; ln -s {secret} {out}"
GUESS = "ln -sf {secret} {out}.tmp.$PPID"


@for_each_row("attack", GUESS, f"{GUESS}; {LINK}", LINK)
def test_results_overwrite_no_other_file_and_show_none(host: Host, attack: str) -> None:
    secret = host.write("secret", "root's own\n")
    secret.chmod(0o600)
    host.write("out.jsonl", "")
    steps = attack.format(out=host.output, secret=secret)
    (host.root / "fake_test").write_text(FAKE_TEST + f"\n{steps}\n")
    done = host.run(*PART, "--output", str(host.output))
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("root's own\n", 0o600)
    assert done.returncode == (1 if LINK in attack else 0)
    if done.returncode:
        assert "is another file there?" in done.stderr
    else:
        assert len(records(host.output)) == 2 * RECORDS
    left = {"out.jsonl", f"out.jsonl.tmp.{os.getpid()}"}
    assert {file.name for file in host.root.glob("*jsonl*") if not file.is_symlink()} <= left
    assert not [*host.root.glob(".split-bench*")]


@pytest.mark.parametrize("host", ["dash"], indirect=True)
def test_results_that_were_exchanged_are_a_failure(host: Host) -> None:
    """By who owns the directory, after they were written and before they are renamed."""
    mv = 'for new; do [ "${new##*/.split-bench}" = "$new" ] || { rm "$new"; echo >"$new"; }; done'
    program(host.root / "bin/mv", f'#!/bin/dash\n{mv}\nexec /bin/mv "$@"\n')
    host.environment["PATH"] = f"{host.root}/bin:{host.environment['PATH']}"
    done = host.run(*PART, "--output", str(host.output))
    assert (done.returncode, "or is another file there?" in done.stderr) == (1, True)


@pytest.mark.parametrize("host", ["dash"], indirect=True)
def test_a_directory_that_takes_the_name_of_a_new_file_stays(host: Host) -> None:
    """A recursive removal would follow links that are exchanged meanwhile, busybox's at least."""
    name = f"{host.root}/${{word##*/}}"
    steps = f'case $word in */.split-bench.*) mkdir "{name}"; : >"{name}/file" ;; esac'
    mv = f'/bin/mv "$@"; for word; do {steps}; done'
    program(host.root / "bin/mv", f"#!/bin/dash\n{mv}\n")
    host.environment["PATH"] = f"{host.root}/bin:{host.environment['PATH']}"
    assert host.run(*PART, "--output", str(host.output)).returncode == 0
    assert len([*host.root.glob(".split-bench.*/file")]) == 2


@for_each_row("option", "--output", "--resume")
def test_a_link_is_refused(host: Host, option: str) -> None:
    for target in (host.write("data.jsonl", ""), host.root / "nothing", host.root / "run"):
        host.output.unlink(missing_ok=True)
        host.output.symlink_to(target)
        assert "is a symbolic link; name the file itself" in refusal(host, option, str(host.output))


@pytest.mark.parametrize(("words", "calls", "whole"), [((), 2, 1), (("--keep-going",), 4, 3)])
def test_a_failed_run_leaves_whole_runs_only(
    host: Host, words: tuple[str, ...], calls: int, whole: int
) -> None:
    host.mode("fail-second")
    done, found = measured(host, "--vcpus", "2 4", "--writes", "100", *words, status=1)
    assert "2 vCPUs, 100% writes, initially-all-set, eager_page_split=Y" in done.stderr
    assert ("status 254" in done.stderr, len(host.calls())) == (True, calls)
    runs = [(2, False), (4, False), (4, True)][:whole]
    assert ({(r["vcpus"], r["eager"]) for r in found}, len(found)) == (set(runs), whole * RECORDS)
    assert (host.eager.read_text(), host.pool().read_text()) == ("Y\n", "0\n")


@for_each_row(
    "mode, said",
    ("fail", "==== Test Assertion Failure ==== lib/x.c:1: ret == 0"),
    ("short", "not those of 2 iterations"),
)
def test_a_failure_is_told_in_one_line(host: Host, mode: str, said: str) -> None:
    host.mode(mode)
    done, _ = measured(host, "--vcpus", "2", status=1)
    assert done.stdout == "" and not host.output.exists()
    (line,) = done.stderr.splitlines()
    assert said in line


def test_a_cycle_that_is_missing_makes_a_run_fail(host: Host) -> None:
    host.mode("short-cycle")
    done, _ = measured(host, *PART, "--cycles", "2", status=1)
    assert "the test's times are not those of 2 iterations in each of 2 cycles" in done.stderr
    assert not host.output.exists()


def test_output_that_fails_midway_keeps_what_was_there(host: Host) -> None:
    before = "x" * 20000 + "\n"
    host.output.write_text(before)
    # The name is a directory's when the first run is done.
    kept = host.root / "kept"
    steps = f"mv {host.output} {kept}; mkdir {host.output}"
    (host.root / "fake_test").write_text(f"{FAKE_TEST}\n{steps}\n")
    done = host.run("--vcpus", "2", "--output", str(host.output))
    assert (done.returncode, kept.read_text(), [*host.output.iterdir()]) == (1, before, [])
    assert "could not write" in done.stderr


# ---- what is printed ---------------------------------------------------------


def table(output: str) -> list[list[str]]:
    """The cells of a table, its heading first; every line of it is as wide as the others."""
    lines = [line for line in output.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert set("".join(cells.pop(1))) == {"-", ":"}
    return cells


HUGE = "anonymous_hugetlb_2mb"


def test_table_holds_n_y_and_their_ratio(host: Host) -> None:
    done = host.run("--vcpus", "2 8", "--writes", "20")
    names = "backing,set,writes,dirty_bits,vCPUs,dirty N,dirty Y,N/Y,split N,split Y,log N,log Y"
    assert table(done.stdout) == [
        names.split(","),
        [HUGE, "yes", "20", "off", "2", "220", "2.20", "100", "4.00", "4.00", "4.00", "4.00"],
        [HUGE, "yes", "20", "off", "8", "820", "8.20", "100", "4.00", "4.00", "4.00", "4.00"],
    ]
    caption = f"host, Linux {RELEASE} (series), ept=Y, tdp_mmu=N, 4M per vCPU; milliseconds"
    assert done.stdout.splitlines()[1] == caption
    assert "with initially-all-set (set) the first CLEAR" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_table_of_tracked_vms(host: Host) -> None:
    done = host.run(*TRACKED)
    names = "backing,by,writes,dirty_bits,vCPUs,eager,populate,/plain,1st,/plain,2nd,/CLEAR,faults"
    assert table(done.stdout) == [
        [*names.split(","), "last", "GET", "2 MiB", "logged"],
        *(
            [HUGE, by, "100", "off", "2", eager, "24.7", "2.00", *times, "3.00", "32", "6"]
            for eager, by, times in (
                ("N", "writes", ("1210", "5.76", "1220", "-", "3", "1230")),
                ("N", "reads", ("1210", "5.76", "1220", "5.55", "3", "1230")),
                ("Y", "writes", ("1002", "477", "1002", "-", "3", "1002")),
                ("Y", "reads", ("1002", "477", "1002", "4.56", "3", "1002")),
            )
        ),
    ]
    assert "with eager_page_split=N. By writes, all write." in done.stdout
    # Without N there is nothing to compare with.
    rows = table(host.run(*TRACKED, "--eager", "Y", "--populate", "reads").stdout)[1:]
    assert [(row[1], row[5], row[11]) for row in rows] == [("reads", "Y", "-")]


def test_one_table_has_the_whole_matrix(host: Host) -> None:
    matrix = ["--vcpus", "2 4", "--writes", "100 20", "--init-set", "both"]
    rows = table(host.run(*matrix, "--backing", f"{HUGE} shmem").stdout)[1:]
    assert [row[:5] for row in rows] == [
        [backing, init, writes, "off", vcpus]
        for backing in (HUGE, "shmem")
        for init in ("yes", "no")
        for writes in ("100", "20")
        for vcpus in ("2", "4")
    ]


@for_each_row(
    "words, rows",
    # One value of eager has no ratio.
    (("--eager", "N"), ["off 2 220 - - 4.00 - 4.00 -"]),
    # Iteration 1, enabling and the second GET.
    (("--init-set", "no"), ["off 2 210 2.10 100 0.123 0.123 2.00 2.00"]),
    (
        ("--dirty-bits", "off on"),
        ["off 2 220 2.20 100 4.00 4.00 4.00 4.00", "on 2 22.0 0.220 100 4.00 4.00 4.00 4.00"],
    ),
)
def test_a_row_has_what_was_measured(host: Host, words: tuple[str, str], rows: list[str]) -> None:
    shown = table(host.run("--vcpus", "2", "--writes", "20", *words).stdout)
    assert [row[3:] for row in shown[1:]] == [row.split() for row in rows]


@pytest.mark.parametrize(("vcpus", "said"), [("8", False), ("9", True)])
def test_says_when_vcpus_share_cpus(host: Host, vcpus: str, said: bool) -> None:
    done = host.run("--vcpus", vcpus, "--writes", "20")
    assert ("\n*: overcommitted, 9 CPUs for the vCPUs and the test" in done.stdout) is said
    assert table(done.stdout)[1][4] == (f"{vcpus}*" if said else vcpus)
    (call, *_) = host.calls()
    assert ("-c" in call) is not said


def test_numbers_are_read_with_points(host: Host) -> None:
    """Where a locale has commas, mawk would take 0.5 for 0: a table of zeros."""
    seen = 'echo "$LC_ALL" >>"$here/progress"'
    (host.root / "fake_test").write_text(f"{FAKE_TEST}\n{seen}\n")
    host.environment["LC_ALL"] = "de_DE.UTF-8"
    assert host.run(*PART).returncode == 0
    assert (host.root / "progress").read_text().split() == ["C", "C"]


def on_terminal(host: Host, *arguments: str) -> str:
    """Everything that the script writes to a terminal."""
    control, terminal = pty.openpty()
    environment = host.environment | {"TERM": "xterm"}
    command = host.command(*arguments)
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with subprocess.Popen(command, env=environment, **streams) as process:  # type: ignore[call-overload]
        os.close(terminal)
        said = b""
        # How Linux reports that a terminal's other end is closed.
        with suppress(OSError):
            while chunk := os.read(control, 65536):
                said += chunk
    os.close(control)
    assert process.returncode == 0
    return said.decode()


def test_progress_on_a_terminal(host: Host) -> None:
    said = on_terminal(host, "--vcpus", "2 4", "--writes", "20")
    assert "split-bench:   0% 1/4 2 vCPUs, 20% writes" in said
    assert "split-bench:  70% 4/4 4 vCPUs, 20% writes" in said and "s left" in said
    quiet = on_terminal(host, "--vcpus", "2", "--quiet")
    assert "split-bench:" not in quiet and "| dirty N | dirty Y |" in quiet


def test_lab_progress_gets_every_run_and_lab_machine_is_the_label(host: Host) -> None:
    file = host.root / "progress"
    host.environment["LAB_PROGRESS"] = str(file)
    assert host.run("--vcpus", "2 4", "--writes", "20", "--quiet").stderr == ""
    assert file.read_text().splitlines() == [
        "0% 1/4 2 vCPUs, 20% writes, initially-all-set, eager_page_split=N",
        "20% 2/4 2 vCPUs, 20% writes, initially-all-set, eager_page_split=Y",
        "40% 3/4 4 vCPUs, 20% writes, initially-all-set, eager_page_split=N",
        "70% 4/4 4 vCPUs, 20% writes, initially-all-set, eager_page_split=Y",
        "100% 4/4 done",
    ]
    host.environment["LAB_MACHINE"] = "svm-qemu"
    assert {r["machine"] for r in measured(host, "--vcpus", "2")[1]} == {"svm-qemu"}


def test_progress_says_which_vms_are_tracked(host: Host) -> None:
    file = host.root / "progress"
    host.environment["LAB_PROGRESS"] = str(file)
    assert host.run(*TRACKED, "--eager", "N").returncode == 0
    assert file.read_text().splitlines() == [
        "0% 1/4 2 vCPUs, 100% writes, not tracked, populated by writes, eager_page_split=N",
        "25% 2/4 2 vCPUs, 100% writes, tracked, populated by writes, eager_page_split=N",
        "50% 3/4 2 vCPUs, 100% writes, not tracked, populated by reads, eager_page_split=N",
        "75% 4/4 2 vCPUs, 100% writes, tracked, populated by reads, eager_page_split=N",
        "100% 4/4 done",
    ]
    said = on_terminal(host, *TRACKED, "--eager", "N")
    assert "75% 4/4 2 vCPUs, 100% writes, tracked" in said and "s left" in said


def test_help_states_arguments_and_exit_codes(host: Host) -> None:
    done = host.run("--help")
    for word in ("--vcpus", "--eager", "--others-ok", '"2 8"', "130", "milliseconds"):
        assert word in done.stdout
    usage = "Usage: split-bench.sh [OPTION]...\n"
    assert (done.returncode, done.stdout.startswith(usage)) == (0, True)
    assert "#" not in done.stdout and "set -u" not in done.stdout


def test_dry_run_shows_the_runs_and_touches_nothing(host: Host) -> None:
    (host.root / "dev/kvm").unlink()
    before = host.settings()
    done = host.run("--vcpus", "2 8", "--writes", "20", "--dry-run", "--output", "x.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert (host.settings(), host.calls()) == (before, [])
    fake = host.root / "fake_test"
    words = f"{fake} -s anonymous_hugetlb_2mb -b 4194304 -v 8 -w 20 -i 2 -c 1,2,3,4,5,6,7,8,0"
    assert f"eager_page_split=Y {words}" in done.stdout.splitlines()
    assert "17 pages of 2 MiB" in done.stdout
    both = host.run("--vcpus", "8", "--writes", "20", "--dirty-bits", "off on", "--dry-run").stdout
    assert "4 runs:" in both
    assert f"eager_page_split=Y dirty_bits=on {words}" in both.splitlines()


# ---- what is refused, and changes nothing --------------------------------------

KVM, EPT = "sys/module/kvm/parameters", "sys/module/kvm_intel/parameters/ept"
PAGES = "2 MiB pages (anonymous_hugetlb"


@for_each_row(
    "arguments, said",
    (["--vcpus", "2 x"], "--vcpus: 'x' is not a whole number from 1 to 1024"),
    *((["--vcpus", bad], f"'{bad}' is not a whole number") for bad in ("0", "08", "-2", "9" * 20)),
    (["--vcpus", "2 2"], "'2' is given twice"),
    (["--vcpus", " "], "--vcpus: the list is empty"),
    (["--vcpus"], "--vcpus is unknown, or has no value"),
    (["--writes", "101"], "--writes: '101' is not a whole number from 0 to 100"),
    (["--writes=50%"], "'50%' is not a whole number"),
    (["--eager", "N maybe"], "--eager: 'maybe' is not one of N, Y"),
    (["--dirty-bits", "off maybe"], "--dirty-bits: 'maybe' is not one of off, on, auto"),
    (["--dirty-bits="], "--dirty-bits: the list is empty"),
    (["--pattern", "stripes"], "--pattern: 'stripes' is not one of pages, regions, clean"),
    (
        ["--pattern=clean", "--backing=anonymous"],
        "'anonymous' is not HugeTLB memory, which --pattern",
    ),
    (
        ["--pattern=regions", "--bytes=1M", "--backing=anonymous"],
        "'1M' is not a whole number of re",
    ),
    (["--tracked", "--init-set", "no"], "--init-set: with --tracked the log is empty at first"),
    (["--tracked", "--pattern=clean"], "--pattern: clean cannot be used with --tracked"),
    (["--tracked", "--iterations", "2"], "'2' is not a whole number from 3 to 1000"),
    (
        ["--tracked", "--backing=anonymous"],
        "'anonymous' is not HugeTLB memory, which --populate reads",
    ),
    (
        ["--tracked", "--backing=shmem", "--populate=writes,reads"],
        "'shmem' is not HugeTLB memory, which",
    ),
    (["--tracked", "--populate", "reads reads"], "--populate: 'reads' is given twice"),
    (["--tracked", "--populate", "guess"], "--populate: 'guess' is not one of writes, reads"),
    (["--tracked", "--populate="], "--populate: the list is empty"),
    (["--populate", "reads"], "--populate: can be used only with --tracked"),
    (["--tracked=yes"], "unknown option --tracked"),
    (["--cycles", "0"], "--cycles: '0' is not a whole number from 1 to 1000"),
    (["--cycles=2", "--tracked"], "--cycles: cannot be used with --tracked or --pattern clean"),
    (["--cycles=2", "--pattern=clean"], "--cycles: cannot be used with --tracked or"),
    (["--busy", "3", "--vcpus", "4 2"], "--busy: '3' is not a whole number from 1 to 2"),
    (["--iterations", "1"], "--iterations: '1' is not a whole number from 2 to 1000"),
    *((["--bytes", bad], f"'{bad}' is not a size") for bad in ("4X", "M")),
    (["--bytes", "9999G"], "'9999G' is more than 1024G"),
    (["--bytes", "6000"], "'6000' is not a multiple of 4K"),
    (["--bytes", "3M"], f"'3M' is not a whole number of {PAGES}_2mb); 4M"),
    (["--bytes=1G", "--backing=anonymous_thp", "--bytes=5M"], "(anonymous_thp); 6M would"),
    (["--bytes=3M", "--backing=anonymous anonymous_hugetlb_1gb"], "pages (anonymous_huge"),
    (["--backing", "floppy"], "--backing: 'floppy' is unknown"),
    (["--resume", "none.jsonl"], "there is no file 'none.jsonl'; begin with --output"),
    (["--resume", "a", "--output", "b"], "--output must not name another one, 'b'"),
    (["--init-set", "perhaps"], "'perhaps' is not one of yes, no, both"),
    (["--kernel", "mine"], "'mine' is not one of series, peer, base"),
    (["--mode", "npt"], "'npt' is not one of ept1, ept0, tdp, ept1-nopml, tdp-nopml"),
    (["--machine", 'a"b'], "is not a name of letters"),
    (["--speed", "9"], "unknown option --speed"),
    (["--test", "/nowhere/test"], "'/nowhere/test' is not an executable file"),
    (["--output", "/nowhere/x.jsonl"], "there is no directory '/nowhere'"),
    (["--output", "run"], "is a directory"),
    (
        ["--backing", "anonymous", "--bytes", "512M"],
        "wanted 4192 MiB, a reserve of 96 MiB included, had 4096 MiB",
    ),
    (["extra"], "unexpected argument 'extra'"),
)
def test_bad_input(host: Host, arguments: list[str], said: str) -> None:
    assert said in refusal(host, *arguments)


def with_a_vm(host: Host, *more: int) -> None:
    for process in (123, *more):
        files = host.root / f"proc/{process}/fd"
        files.mkdir(parents=True)
        (files / "10").symlink_to("anon_inode:kvm-vcpu:0")
        (files / "11").symlink_to("anon_inode:kvm-vm")


def without(path: str) -> Change:
    return lambda host: (host.root / path).unlink()


def having(path: str, text: str) -> Change:
    return lambda host: host.write(path, text)


NO_THP = having("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
NO_DIRTY_BITS = f"--dirty-bits: no parameter dirty_bits in /{KVM}: "
TWO_POOLS = "--backing=anonymous_hugetlb_2mb,anonymous_hugetlb_1gb --bytes=1G --vcpus=1"


@for_each_row(
    "spoil, arguments, said",
    (without("dev/kvm"), "", "no /dev/kvm"),
    (without(f"{KVM}/eager_page_split"), "", "no parameter eager_page_split"),
    (without(f"{KVM}/dirty_bits"), "--dirty-bits=off,on", NO_DIRTY_BITS),
    (without(EPT), "", f"no /{EPT}"),
    (with_a_vm, "", "1 other VM(s) run here"),
    (lambda host: with_a_vm(host, 99), "", "2 other VM(s) run here"),
    (lambda host: host.free(5), "", "wanted 34 MiB in 2 MiB pages, had 10 MiB"),
    (lambda host: host.free(0, "1048576kB"), TWO_POOLS, "1024 MiB in 1024 MiB pages, had 0 MiB"),
    (lambda host: shutil.rmtree(host.pool().parent), "", "no HugeTLB pool of 2 MiB pages"),
    (NO_THP, "--backing=anonymous_thp", "transparent huge pages are off"),
    # Not /dev/null: a script that forgets to look would replace the real one.
    (lambda host: os.mkfifo(host.root / "fifo"), "--output=fifo", "is not a regular file"),
    (having("out.jsonl", '{"half": '), "--output=out.jsonl", "does not end with a newline"),
)
def test_unsuitable_host(host: Host, spoil: Change, arguments: str, said: str) -> None:
    spoil(host)
    assert said in refusal(host, *arguments.split())


@for_each_row("style", "literal", "c", "shell-always")
def test_no_vm_is_overlooked(host: Host, style: str) -> None:
    """Whatever ls quotes, and with more processes than one command takes."""
    host.environment["QUOTING_STYLE"] = style
    for process in range(600):
        (host.root / f"proc/{10**240 + process}/fd").mkdir(parents=True)
    with_a_vm(host)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 18, 1 << 18))

    assert "1 other VM(s) run here" in refusal(host, preexec_fn=limit)


def test_a_file_is_no_vm(host: Host) -> None:
    """Nobody keeps root from measuring by a file of such a name."""
    files = host.root / "proc/123/fd"
    files.mkdir(parents=True)
    (files / "3").symlink_to("/tmp/anon_inode:kvm-vm")
    (files / "4").symlink_to("/tmp/5 -> anon_inode:kvm-vm")
    assert host.run(*PART).returncode == 0


def test_not_root(host: Host) -> None:
    # A copy: the repository may lie where other users cannot enter.
    host.script = Path(shutil.copy(SCRIPT, host.root))
    if os.geteuid() == 0:
        line = refusal(host, user=NOBODY, group=NOBODY, extra_groups=[])
    else:
        host.eager.chmod(0o444)
        line = refusal(host)
    assert "not root" in line


def limit_files(size: int) -> Callable[[], None]:
    """For preexec_fn: the disk is full once a file has this size."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_no_space_at_the_output(host: Host) -> None:
    output = host.root / "out.jsonl"
    assert "no room for" in refusal(host, "--output", str(output), preexec_fn=limit_files(4096))
    assert not output.exists()


def test_no_space_for_the_table(host: Host) -> None:
    """A table that lacks a run is not printed by a success."""
    done = host.run(*PART, preexec_fn=limit_files(6000))
    said = f"split-bench: could not keep results for the table in {host.root}/run/split-bench: "
    assert done.returncode == 1 and said in done.stderr
    settings = (host.eager.read_text(), host.pool().read_text(), host.journal.exists())
    assert settings == ("Y\n", "0\n", False)


def test_others_are_ok(host: Host) -> None:
    with_a_vm(host)
    assert host.run("--vcpus", "2", "--others-ok").returncode == 0


@for_each_row("verify, runs", ("no", 1), ("first", 0))
def test_a_vm_that_starts_meanwhile(host: Host, verify: str, runs: int) -> None:
    """Its run is discarded, nothing more is measured, and the host is as before, at once."""
    host.verify = verify
    before = host.settings()
    vm = host.root / "proc/123/fd"
    # During the second run, or the second one that is verified.
    came = f"mkdir -p {vm}; ln -sf anon_inode:kvm-vm {vm}/9"
    came = f'[ "$(grep -c . "$here/calls")" -ne 2 ] || {{ {came}; }}'
    (host.root / "fake_test").write_text(FAKE_TEST + f"\n{came}\n")
    before["fake_test"] = (host.root / "fake_test").read_text()
    words = ("--vcpus", "2 4", "--writes", "20", "--dirty-bits", "on", "--keep-going")
    done, found = measured(host, *words, status=1)
    line = done.stderr.splitlines()[0]
    assert "1 other VM(s) started meanwhile: the run '2 vCPUs, 20% writes" in line
    assert "eager_page_split=Y, dirty_bits=on' is discarded" in line
    assert "; a VM keeps the dirty_bits that it started with; continue later by --resume" in line
    assert (len(found), len(host.calls())) == (runs * RECORDS, 2)
    host.output.unlink(missing_ok=True)
    (host.root / "calls").unlink()
    assert host.settings() == before
    # Before the next one, if it has started since.
    assert "1 other VM(s) run here" in refusal(host, *words)
    done = host.run(*words, "--others-ok")
    assert done.returncode == 0


@for_each_row("words", "--vcpus=2", "--help", "--dry-run")
def test_output_that_fails_is_a_failure(host: Host, words: str) -> None:
    before = host.settings()
    with Path("/dev/full").open("w") as full:
        command = host.command(words)
        done = subprocess.run(
            command, env=host.environment, stdout=full, stderr=subprocess.PIPE, check=False
        )
    said = b"split-bench: could not write to standard output\n"
    assert (done.returncode, done.stderr, host.settings()) == (1, said, before)


def test_a_directory_for_locks_that_cannot_be_written(host: Host) -> None:
    (host.root / "run/split-bench.lock").mkdir()
    said = refusal(host, "--vcpus", "2")
    assert said.endswith("/run cannot be written: is it mounted read-only?")


@for_each_row(
    "flags, values, mode",
    # kvm_intel.ept, kvm_amd.npt, kvm.tdp_mmu, kvm_intel.pml
    ("vmx", "YNNY", "ept1"),
    ("vmx", "NYYN", "ept0"),
    ("vmx", "YNYY", "tdp"),
    ("vmx", "YNNN", "ept1-nopml"),
    ("vmx", "YNYN", "tdp-nopml"),
    ("svm", "NYNN", "ept1"),
    ("svm", "YNYN", "ept0"),
    ("svm", "NYYN", "tdp"),
)
def test_only_the_paging_mode_that_is_asked_for(
    host: Host, flags: str, values: str, mode: str
) -> None:
    """As after a modprobe that failed, and left KVM as it was."""
    host.write("proc/cpuinfo", f"processor : 0\nflags : fpu {flags}\n")
    for name, value in zip((*MODE, "kvm_intel.pml"), values, strict=True):
        host.set(name, value)
    for other in ("ept1", "ept0", "tdp", "ept1-nopml", "tdp-nopml"):
        if other != mode:
            said = f"--mode: KVM was loaded as {mode}, not as {other}: "
            assert said in refusal(host, *PART, "--mode", other)
    assert host.run(*PART, "--mode", mode).returncode == 0


# ---- one at a time, and what a killed one leaves -------------------------------


@contextmanager
def hanging(host: Host, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A benchmark whose test does not end."""
    host.mode("hang")
    pid = host.root / "pid"
    pid.unlink(missing_ok=True)
    command = host.command("--vcpus", "2", "--eager", "N", *arguments)
    with started(command, env=host.environment, stderr=subprocess.PIPE) as process:
        assert until(lambda: pid.exists() and pid.read_text().endswith("\n"), 20)
        yield process
        os.kill(int(pid.read_text()), signal.SIGKILL)
        assert until(lambda: is_gone(int(pid.read_text())))
    host.mode("ok")


def test_one_benchmark_at_a_time(host: Host) -> None:
    """Whatever process ids say, and even if a test outlives the benchmark that started it."""
    with hanging(host) as process:
        (line,) = host.run("--vcpus", "2").stderr.splitlines()
        assert "another split-bench.sh, or a test that it has started, is running: " in line
        assert f": split-bench (process {process.pid}) (" in line
        process.kill()
        process.wait()
        again = host.run("--vcpus", "2")
        assert (again.returncode, len(host.calls())) == (2, 1)
    # The number of a process that is alive is no lock.
    host.write("run/split-bench.pid", f"{os.getpid()}\n")
    assert host.run("--vcpus", "2").returncode == 0


SYS_KVM = "/sys/module/kvm/parameters"
POOL_2M = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"


def test_a_killed_benchmark_leaves_a_journal_from_which_the_next_restores(host: Host) -> None:
    host.pool().write_text("3\n")
    before = host.settings()
    with hanging(host, "--dirty-bits", "on", "--output", str(host.output)) as process:
        assert host.journal.read_text().splitlines() == [
            f"by split-bench {process.pid}",
            f"{POOL_2M} 3 5",
            f"{SYS_KVM}/eager_page_split Y N",
            f"{SYS_KVM}/dirty_bits off on",
        ]
        process.kill()
    changed = (host.eager.read_text(), host.dirty_bits.read_text(), host.pool().read_text())
    assert changed == ("N\n", "on\n", "5\n")
    done, found = measured(host, "--vcpus", "2")
    left = f"which split-bench (process {process.pid}) left when it was killed"
    assert done.stderr.splitlines() == [
        f"split-bench: restored {file}: {was}, not {now}, {left}"
        for file, was, now in (
            (POOL_2M, "3", "5"),
            (f"{SYS_KVM}/dirty_bits", "off", "on"),
            (f"{SYS_KVM}/eager_page_split", "Y", "N"),
        )
    ]
    assert {r["dirty_bits"] for r in found} == {"off"}
    host.output.unlink()
    assert host.settings() == before | {"mode": "ok\n"}


@for_each_row(
    "pool, eager, restored",
    # Set by somebody else since the benchmark was killed.
    ("100", "Y", ["100", "Y"]),
    ("2", "Y", ["2", "Y"]),
    # The kernel found fewer pages than were wanted.
    ("4", "N", ["3", "Y"]),
)
def test_only_values_of_the_benchmark_are_restored(
    host: Host, pool: str, eager: str, restored: list[str]
) -> None:
    journal = f"by split-bench 7\n{POOL_2M} 3 5\n{SYS_KVM}/eager_page_split Y N\n"
    # Neither half a line nor another file.
    host.write("etc/shadow", "on\n")
    host.journal.write_text(f"{journal}/etc/shadow off on\n{SYS_KVM}/../../x off on\n{POOL_2M} 0")
    host.pool().write_text(f"{pool}\n")
    host.eager.write_text(f"{eager}\n")
    assert host.run(*PART).returncode == 0
    assert [host.pool().read_text().strip(), host.eager.read_text().strip()] == restored
    assert ((host.root / "etc/shadow").read_text(), host.journal.exists()) == ("on\n", False)


def test_everybody_may_read_the_journal(host: Host) -> None:
    """Monitoring is not root, and root's umask may be 077."""
    seen = 'stat -c %a "$here"/run/kvm-eager-split.journal >>"$here/progress"'
    (host.root / "fake_test").write_text(f"{FAKE_TEST}\n{seen}\n")
    assert host.run(*PART, "--output=out.jsonl", preexec_fn=lambda: os.umask(0o77)).returncode == 0
    assert (host.root / "progress").read_text().split() == ["644"] * 2
    assert host.output.stat().st_mode & 0o777 == 0o600


def test_a_pool_that_somebody_else_has_changed_meanwhile(host: Host) -> None:
    """As a VMM that starts next: its pages are not taken away."""
    pool = host.pool()
    (host.root / "fake_test").write_text(f"{FAKE_TEST}\necho 500 >{pool}\n")
    done = host.run(*PART)
    said = f"split-bench: {pool} is 500, which somebody else has set meanwhile, so it stays; "
    assert (done.returncode, done.stderr) == (0, f"{said}it was 0\n")
    assert (pool.read_text(), host.journal.exists()) == ("500\n", False)


def test_no_setting_is_changed_that_cannot_be_noted(host: Host) -> None:
    said = refusal(host, *PART, preexec_fn=limit_files(0))
    assert f"could not write {host.journal}, so nr_hugepages is not changed" in said


def test_a_plan_restores_nothing(host: Host) -> None:
    host.journal.write_text(f"by split-bench 7\n{SYS_KVM}/eager_page_split Y N\n")
    before = host.settings()
    assert host.run(*PART, "--dry-run").returncode == 0
    assert host.settings() == before


# ---- interruption ------------------------------------------------------------


@pytest.mark.parametrize("mode", ["hang", "stubborn"])
# With Ctrl-C on a terminal the whole foreground group gets it, so the test's own process does.
@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "INT of the group"])
def test_interrupted_run_restores_all(host: Host, mode: str, name: str) -> None:
    number = signal.Signals[f"SIG{name.split()[0]}"]
    host.mode(mode)
    host.pool().write_text("3\n")
    before = host.settings()
    matrix = ["--vcpus", "2", "--eager", "N", "--dirty-bits", "on"]
    command = host.command(*matrix, "--output", f"{host.root}/out.jsonl")
    pid = host.root / "pid"
    with started(command, env=host.environment, stderr=subprocess.PIPE) as process:
        assert until(lambda: pid.exists() and pid.read_text().endswith("\n"), 20)
        set_to = (host.eager.read_text(), host.dirty_bits.read_text(), host.pool().read_text())
        assert set_to == ("N\n", "on\n", "5\n")
        os.kill(-process.pid if "group" in name else process.pid, number)
        _, said = process.communicate(timeout=10)
        assert is_gone(int(pid.read_text()))
    assert (process.returncode, host.settings()) == (128 + number, before)
    assert said == b"split-bench: interrupted; the settings of this host are as before\n"


def as_it_opens(host: Host, hook: str) -> None:
    """Let the script run HOOK just before it opens its results."""
    opens = '[ -f "$directory/$output_name" ] && exec 6<'
    begin, found, rest = SCRIPT.read_text().partition(opens)
    assert found
    text = f"{begin}{opens.replace('&& exec', f'&& {{ {hook}; }} && exec')}{rest}"
    host.script = program(host.root / "script", text)


def test_a_link_that_takes_the_place_of_the_output(host: Host) -> None:
    """The owner of the directory has put it there just as the script was to open the file."""
    secret = host.write("secret", "x\n")
    host.output.write_text("")
    as_it_opens(host, f'ln -sf {secret} "$output"')
    done = host.run(*PART, f"--output={host.output}")
    said = f"split-bench: --output: another file has taken the place of '{host.output}'\n"
    assert (done.returncode, done.stderr, host.calls()) == (2, said, [])
    assert secret.read_text() == "x\n"


@for_each_row("at_the_start", True, False)
def test_a_signal_while_the_results_are_a_fifo(host: Host, at_the_start: bool) -> None:
    """The owner of the directory has put it there just as the script was to open the file."""
    swap, swapped = host.root / "run/swap", host.root / "run/swapped"
    hook = f'[ ! -e {swap} ] || {{ rm "$output"; mkfifo "$output"; : >{swapped}; }}'
    as_it_opens(host, hook)
    host.output.write_text("")
    # It appends to results.
    assert host.run(*PART, f"--output={host.output}").returncode == 0
    if at_the_start:
        swap.touch()
    else:
        (host.root / "fake_test").write_text(f"{FAKE_TEST}\n: >{swap}\n")
    command = host.command(*PART, "--eager=N", f"--output={host.output}")
    with started(command, env=host.environment, stderr=subprocess.PIPE) as process:
        assert until(swapped.exists, 20)
        assert host.eager.read_text() == ("Y\n" if at_the_start else "N\n")
        process.terminate()
        _, said = process.communicate(timeout=10)
    assert process.returncode == 143
    assert said == b"split-bench: interrupted; the settings of this host are as before\n"
    settings = (host.eager.read_text(), host.pool().read_text(), host.journal.exists())
    assert settings == ("Y\n", "0\n", False)
    assert not [*host.root.glob(".split-bench*")]


def test_an_interrupted_run_of_a_tracked_vm_restores_all(host: Host) -> None:
    host.pool().write_text("3\n")
    fake = FAKE_TEST.replace(
        "verify=0\n", "verify=0\ncase $* in *--tracked*) mode=hang ;; esac\n", 1
    )
    (host.root / "fake_test").write_text(fake)
    before, pid = host.settings(), host.root / "pid"
    command = host.command(*TRACKED, "--eager=N", "--dirty-bits=on", f"--output={host.output}")
    with started(command, env=host.environment, stderr=subprocess.PIPE) as process:
        assert until(lambda: pid.exists() and pid.read_text().endswith("\n"), 20)
        assert (host.eager.read_text(), host.pool().read_text()) == ("N\n", "5\n")
        process.terminate()
        process.communicate(timeout=10)
        assert is_gone(int(pid.read_text()))
    assert process.returncode == 143
    # The run of the VM that is logged later was whole.
    assert len(records(host.output)) == 3 + 3 * 3
    host.output.unlink()
    assert host.settings() == before


def test_a_signal_as_it_begins_to_restore(host: Host) -> None:
    """As of a terminal that closes after Ctrl-C."""
    host.script = with_a_second_signal(SCRIPT, host.root / "script")
    before = host.settings()
    assert host.run(*PART, preexec_fn=default_signals).returncode == 129
    assert host.settings() == before


def test_reader_that_goes_away(host: Host) -> None:
    """As in `split-bench.sh | head -1`: the tables meet a closed pipe."""
    before = host.settings()
    read, write = os.pipe()
    os.close(read)
    command = host.command("--vcpus", "2")
    with started(command, env=host.environment, stdout=write, stderr=subprocess.DEVNULL) as process:
        assert process.wait(timeout=20) != 0
    os.close(write)
    assert host.settings() == before


@for_each_row(
    "file_of, was, words, said",
    (Host.pool, "0", "--eager=N", ""),
    # Nor does the kernel take the next value.
    (
        lambda it: it.dirty_bits,
        "off",
        "--dirty-bits=off,on",
        "dirty_bits did not take the value on",
    ),
)
def test_setting_that_cannot_be_restored_is_told(
    host: Host, file_of: Callable[[Host], Path], was: str, words: str, said: str
) -> None:
    file = file_of(host)
    (host.root / "fake_test").write_text(FAKE_TEST + f"\nrm {file}; mkdir {file}\n")
    done = host.run(*PART, words)
    assert (done.returncode, host.eager.read_text()) == (1, "Y\n")
    assert f"split-bench: {said}" in done.stderr
    assert f"could not restore {file}; by hand: echo {was} > {file}" in done.stderr


# Stands for each command of the script: sends a signal before the AT-th of them all. Notes the
# last word that it is given, and counts by dots, which the shell can do itself.
MOMENT = """#!/bin/dash
echo "${{*##*[!a-z_]}}" >>"{notes}/moments"
printf . >>"{notes}/dots"
read -r dots <"{notes}/dots"
[ "${{#dots}}" -ne "$AT" ] || {{ read -r pid <"{notes}/pid"; kill -s "$SIGNAL" -- "$TO$pid"; }}
exec {command} "$@"
"""


@dataclass
class Moments:
    """A host whose script can be interrupted before any command that it runs.

    Everything about a run but the host's settings is in `notes`, outside of the host.
    """

    host: Host
    notes: Path

    @property
    def output(self) -> Path:
        return self.notes / "out.jsonl"

    def run(
        self, *arguments: str, at: int | None = None, number: str = "INT", group: bool = False
    ) -> int:
        """Exit status of the script, interrupted at a moment, or not at all and, with 0, noted."""
        for name in ("moments", "dots", "calls"):
            (self.notes / name).unlink(missing_ok=True)
            (self.host.root / name).unlink(missing_ok=True)
        words = {"AT": str(at), "SIGNAL": number, "TO": "-" if group else ""}
        path = self.host.environment["PATH"]
        if at is not None:
            path = f"{self.notes}/bin:{path}"
        starter = ["/bin/dash", "-c", f'echo $$ >"{self.notes}/pid"; exec "$@"', "dash"]
        matrix = ["--vcpus", "2", "--writes", "20", "--iterations", "2", "--quiet", *arguments]
        matrix += ["--eager", "Y", "--dirty-bits", "off on"]
        return subprocess.run(
            [*starter, *self.host.command(*matrix)],
            env=self.host.environment | words | {"PATH": path},
            capture_output=True,
            timeout=60,
            start_new_session=True,
            preexec_fn=default_signals,
            check=False,
        ).returncode


@pytest.fixture
def moments(host: Host, tmp_path: Path) -> Moments:
    for name in set(needed()) - {"date"}:  # its calls vary with the time that a run takes
        command = shutil.which(name, path=host.environment["PATH"])
        program(tmp_path / "bin" / name, MOMENT.format(notes=tmp_path, command=command))
    # Where the shell runs its commands itself, those of the test are what can interrupt.
    fake = FAKE_TEST.replace("clear=1\n", "clear=1\n" + 4 * "cat </dev/null\n", 1)
    (host.root / "fake_test").write_text(fake)
    return Moments(host, tmp_path)


def test_interrupted_anywhere_restores_the_host_and_resumes(moments: Moments) -> None:
    host = moments.host
    host.pool().write_text("3\n")
    before = host.settings()
    assert moments.run("--output", str(moments.output), at=0) == 0
    seen, wanted = (moments.notes / "moments").read_text().splitlines(), keys(moments.output)
    assert len(wanted) == 2 * 9
    found = set()
    signals = [("INT", True, 130), ("TERM", False, 143), ("HUP", False, 129)]
    # No multiple of three, so that each signal meets each part of the script. busybox's shell runs
    # its applets itself; there it is the commands of the test that interrupt.
    is_dash = host.shell == ["dash"]
    chosen = set(range(1, len(seen) + 1, 5 if is_dash else 1))
    # And as it looks whether the pool has grown, which it has.
    chosen |= {at for at, word in enumerate(seen, 1) if word == "free_hugepages"}
    for at in sorted(chosen):
        number, group, status = signals[at % 3]
        moments.output.unlink(missing_ok=True)
        ended = moments.run("--output", str(moments.output), at=at, number=number, group=group)
        assert host.settings() == before, at
        whole = len(keys(moments.output)) if moments.output.exists() else 0
        # Until it is ready to restore nothing is to be restored; what restores is not interrupted.
        early, late = ended < 0 and host.calls() == [], ended == 0 and whole == len(wanted)
        assert ended == status or early or late, at
        found.add(whole)
        option = "--resume" if moments.output.exists() else "--output"
        assert moments.run(option, str(moments.output)) == 0
        assert len(host.calls()) == 2 - whole // 9, at
        assert keys(moments.output) == wanted, at
    assert found == ({0, 9, 18} if is_dash else {0, 9})


# ---- resuming ----------------------------------------------------------------


def partly(host: Host) -> Path:
    """The output of a matrix of 2 x 2 x 2 runs that was interrupted after three."""
    measured(host, *PART)
    measured(host, "--vcpus", "4", "--writes", "20", "--eager", "N")
    (host.root / "calls").unlink()
    return host.output


def test_resume_runs_what_is_missing_or_begins_and_prints_all(host: Host) -> None:
    output = partly(host)
    matrix = ["--vcpus", "2 4", "--writes", "20 100", "--resume", str(output)]
    assert "5 runs:" in host.run(*matrix, "--dry-run").stdout
    done = host.run(*matrix)
    said = "split-bench: 5 of 8 runs are still to be measured\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert host.calls()[0].startswith("Y -s anonymous_hugetlb_2mb -b 4194304 -v 4 -w 20")
    assert len(host.calls()) == 5
    other = host.root / "other.jsonl"
    assert host.run(*matrix[:-2], "--output", str(other)).returncode == 0
    assert keys(output) == keys(other)
    assert done.stdout == host.run(*matrix[:-2]).stdout
    (host.root / "calls").unlink()
    again = host.run(*matrix)
    assert (again.returncode, again.stdout, host.calls()) == (0, done.stdout, [])
    # With an empty file it begins.
    output.write_text("")
    assert host.run(*PART, "--resume", str(output)).returncode == 0
    assert len(records(output)) == 2 * RECORDS


def test_tracked_runs_are_resumed_and_not_taken_for_others(host: Host) -> None:
    matrix = [*TRACKED, "--eager", "N Y", "--iterations", "3"]
    usual = ["--vcpus", "2", "--writes", "100", "--init-set", "both", "--iterations", "3"]
    measured(host, *matrix, "--eager", "N", "--populate", "reads")
    (host.root / "calls").unlink()
    done = host.run(*matrix, "--resume", str(host.output))
    assert (done.returncode, len(host.calls())) == (0, 8 - 2)
    assert not [call for call in host.calls() if call.startswith("N") and "--read-first" in call]
    # A VM that is logged later, and populated by writes, is one without --tracked.
    (host.root / "calls").unlink()
    shown = host.run(*usual[:4], "--iterations", "3", "--resume", str(host.output))
    assert (host.calls(), [row[1] for row in table(shown.stdout)[1:]]) == ([], ["yes"])
    shown = host.run(*usual, "--resume", str(host.output))
    assert (shown.returncode, [call[0] for call in host.calls()]) == (0, ["N", "Y"])
    assert all(" -g" in call and "--tracked" not in call for call in host.calls())
    assert shown.stdout == host.run(*usual).stdout
    (host.root / "calls").unlink()
    again = host.run(*matrix, "--resume", str(host.output))
    assert (again.returncode, host.calls()) == (0, [])
    # Rows have the order in which they were measured.
    rows = [sorted(table(said.stdout)) for said in (again, host.run(*matrix))]
    assert rows[0] == rows[1]


def test_idle_vcpus_are_told_and_recorded_and_not_taken_for_others(host: Host) -> None:
    output = partly(host)
    matrix = ["--vcpus", "2 4", "--writes", "20", "--eager", "Y", "--busy", "1"]
    for repeated in (False, True):
        assert host.run(*matrix, "--resume", str(output)).returncode == 0
        tests = [call for call in host.calls() if "--idle" in call]
        assert [call.partition("--idle=")[2].split()[0] for call in tests] == ["1", "3"], repeated
    found = records(output)[-2 * RECORDS :]
    assert {(one["vcpus"], one["idle"]) for one in found} == {(2, 1), (4, 3)}


@for_each_row(
    "tables, counted", ("8", {"pages_2m": 32, "page_tables": 8}), ("null", {"pages_2m": 32})
)
def test_patterns_are_told_and_recorded_and_memory_is_counted(
    host: Host, tables: str, counted: dict[str, int]
) -> None:
    host.write("page_tables", f"{tables}\n")
    output = partly(host)
    host.write("calls", "")
    for pattern in ("regions", "clean"):
        for repeated in (False, True):
            done = host.run(*PART, "--pattern", pattern, "--resume", str(output))
            assert (done.returncode, repeated) == (0, bool(not host.calls()))
            assert all(f" --pattern={pattern}" in call for call in host.calls())
            host.write("calls", "")
    found = [one for one in records(output) if "pattern" in one]
    assert [one["pattern"] for one in found] == [
        *["regions"] * 2 * RECORDS,
        *["clean"] * 2 * RECORDS,
    ]
    keys = ("pages_2m", "page_tables")
    memory = [{key: one[key] for key in keys if key in one} for one in found]
    wanted = [one["phase"] == "disable" and one["pattern"] == "regions" for one in found]
    assert memory == [counted if one else {} for one in wanted]


def test_resume_with_dirty_bits_repeats_nothing(host: Host) -> None:
    """What was measured before the option, or the key, came is off."""
    output = partly(host)
    edit(host, ' "dirty_bits": "off",', "")
    matrix = ["--vcpus", "2 4", "--writes", "20", "--dirty-bits", "off on", "--resume", str(output)]
    done = host.run(*matrix)
    assert done.returncode == 0
    values = [call.partition(" ")[0] for call in host.calls()]
    assert values == ["N,on", "Y,on", "N,on", "Y", "Y,on"]
    (host.root / "calls").unlink()
    again = host.run(*matrix)
    assert (again.returncode, again.stdout, host.calls()) == (0, done.stdout, [])


def test_another_kernel_may_be_in_front(host: Host) -> None:
    output = partly(host)
    measured(host, *PART, "--kernel", "peer")
    done = host.run("--vcpus", "2 4", "--writes", "20", "--kernel", "peer", "--resume", str(output))
    assert (done.returncode, len(host.calls())) == (0, 4)
    assert len(set(keys(output))) == len(records(output)) == 7 * RECORDS


@for_each_row(
    "change, arguments, said",
    (lambda host: None, ["--machine", "mine"], "was interrupted on machine host, this is mine"),
    (lambda host: None, ["--kernel", "base"], "was interrupted on kernel series, this is base"),
    (
        lambda host: None,
        ["--iterations", "3"],
        "contains runs with other --iterations, --cycles or pinning",
    ),
    (
        lambda host: None,
        ["--no-pin"],
        "contains runs with other --iterations, --cycles or pinning",
    ),
    (lambda host: host.set("kvm_intel.ept", "N"), [], "on ept true, this is false"),
    (lambda host: host.set("kvm.tdp_mmu", "Y"), [], "tdp_mmu false, this is true"),
    (lambda host: host.set("kvm_intel.pml", "N"), [], "on pml true, this is false"),
    (lambda host: set_cpus(host, 8), [], "was interrupted on usable CPUs: 9, this is 8"),
    (lambda host: edit(host, RELEASE, "5"), [], f"was interrupted on Linux 5, this is {RELEASE}"),
    (lambda host: edit(host, '"phase"', '"phrase"'), [], ": line 1 is not a result"),
    (
        lambda host: edit(host, '"dirty_bits"', '"dirty_harvest"'),
        [],
        "has the old name dirty_harvest of dirty_bits",
    ),
    (lambda host: edit(host, '"host"', '"\x1b[2J"'), [], ": line 1 is not a result"),
    (lambda host: edit(host, "0.080500000}", "0.0805"), [], "is not a result of this script"),
)
def test_resume_is_refused(host: Host, change: Change, arguments: list[str], said: str) -> None:
    output = partly(host)
    change(host)
    assert said in refusal(host, *PART, "--resume", str(output), *arguments)


def edit(host: Host, old: str, new: str) -> None:
    assert old in host.output.read_text()
    host.output.write_text(host.output.read_text().replace(old, new))
