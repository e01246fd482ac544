# SPDX-License-Identifier: GPL-2.0-only
"""scripts/split-bench.sh on a made-up host: a directory for /, a script for the test.

Every case runs under dash and under busybox ash, the latter with busybox's
applets alone. What no made-up host can show (that KVM obeys) is shown by the
runs inside the machines.
"""

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.fake_kvm_host import FAKE_TEST, Host, set_cpus
from tests.unit.split_bench import PART, RECORDS, needed, records, refusal

# ---- what is run -------------------------------------------------------------


def test_runs_n_beside_y_for_each_combination(host: Host) -> None:
    done = host.run("--vcpus", "2,4", "--writes", "100 20", "--init-set", "both")
    assert (done.returncode, done.stderr) == (0, "")
    wanted = [
        f"{eager} -s anonymous_hugetlb_2mb -b 4194304 -v {vcpus} -w {writes} -i 2{flag} -c {pcpus}"
        for flag in ("", " -g")
        for writes in (100, 20)
        for vcpus, pcpus in ((2, "1,2,0"), (4, "1,2,3,4,0"))
        for eager in "NY"
    ]
    assert host.calls() == wanted


def test_each_run_is_measured_for_each_value_of_dirty_harvest(host: Host) -> None:
    host.harvest.write_text("auto\n")
    before = host.settings()
    done = host.run("--vcpus", "2 4", "--writes", "100", "--harvest", "off,on auto")
    assert (done.returncode, done.stderr) == (0, "")
    rest = "-s anonymous_hugetlb_2mb -b 4194304 -v {vcpus} -w 100 -i 2 -c {pcpus}"
    assert host.calls() == [
        f"{eager}{value} {rest.format(vcpus=vcpus, pcpus=pcpus)}"
        for vcpus, pcpus in ((2, "1,2,0"), (4, "1,2,3,4,0"))
        for eager in "NY"
        for value in ("", ",on", ",auto")
    ]
    assert host.settings() == before


def test_dirty_harvest_is_left_alone_and_recorded(host: Host) -> None:
    host.harvest.write_text("on\n")
    stamp = host.harvest.stat().st_mtime_ns
    output = host.root / "out.jsonl"
    done = host.run("--vcpus", "2", "--output", str(output))
    assert done.returncode == 0
    assert host.harvest.stat().st_mtime_ns == stamp
    assert {r["dirty_harvest"] for r in records(output)} == {"on"}
    assert [row[3] for row in table(done.stdout)] == ["harvest", "on", "on"]


def test_a_kernel_without_dirty_harvest_is_off(host: Host) -> None:
    host.harvest.unlink()
    output = host.root / "out.jsonl"
    done = host.run("--vcpus", "2", "--output", str(output))
    assert (done.returncode, done.stderr) == (0, "")
    assert {r["dirty_harvest"] for r in records(output)} == {"off"}
    assert [row[3] for row in table(done.stdout)] == ["harvest", "off", "off"]
    assert not host.harvest.exists()


def test_a_value_that_the_kernel_does_not_take_is_told(host: Host) -> None:
    before = host.settings()
    (host.root / "fake_test").write_text(FAKE_TEST + f"\nrm {host.harvest}; mkdir {host.harvest}\n")
    done = host.run("--vcpus", "2", "--writes", "20", "--harvest", "off on")
    assert done.returncode == 1
    assert "split-bench: dirty_harvest did not take the value on" in done.stderr
    assert f"could not restore {host.harvest}; by hand: echo off > {host.harvest}" in done.stderr
    assert host.eager.read_text() == before["sys/module/kvm/parameters/eager_page_split"]


def test_restores_the_host_after_a_good_run(host: Host) -> None:
    host.eager.write_text("Y\n")
    make = host.pool()
    make.write_text("3\n")
    before = host.settings()
    assert host.run("--vcpus", "2", "--eager", "N").returncode == 0
    assert host.calls()[0].startswith("N ")
    assert host.settings() == before


def seen_pools(host: Host, *sizes: str) -> Path:
    """Makes the test note the pools of these sizes, a line each time that it runs."""
    seen = host.root / "calls.pools"
    pools = " ".join(str(host.pool(size)) for size in sizes)
    note = f"echo $(cat {pools}) >>{seen}\n"
    (host.root / "fake_test").write_text(FAKE_TEST.replace("clear=1\n", f"clear=1\n{note}", 1))
    return seen


def test_pool_holds_the_largest_guest_while_a_test_runs(host: Host) -> None:
    seen = seen_pools(host, "2048kB")
    assert host.run("--vcpus", "2 8", "--writes", "100").returncode == 0
    assert seen.read_text().split() == ["17"] * 4


def test_pages_promised_to_others_are_not_counted_as_free(host: Host) -> None:
    host.pool().write_text("20\n")
    (host.pool().parent / "resv_hugepages").write_text("10\n")
    seen = seen_pools(host, "2048kB")
    assert host.run("--vcpus", "8", "--writes", "100", "--eager", "N").returncode == 0
    assert seen.read_text().split() == ["27"]
    assert host.pool().read_text() == "20\n"


def test_a_pool_that_suffices_is_left_alone(host: Host) -> None:
    host.pool().write_text("100\n")
    stamp = host.pool().stat().st_mtime_ns
    assert host.run("--vcpus", "2").returncode == 0
    assert host.pool().stat().st_mtime_ns == stamp


def test_gigabyte_pages_use_their_own_pool(host: Host) -> None:
    seen = seen_pools(host, "1048576kB")
    done = host.run("--backing", "anonymous_hugetlb_1gb", "--bytes", "1G", "--vcpus", "2")
    assert done.returncode == 0
    assert set(seen.read_text().split()) == {"2"}
    assert host.pool("1048576kB").read_text() == "0\n"


def test_each_backing_has_its_memory_while_it_is_measured(host: Host) -> None:
    seen = seen_pools(host, "2048kB", "1048576kB")
    backings = "anonymous_hugetlb_2mb anonymous_hugetlb_1gb anonymous"
    sizes = ["--bytes", "1G", "--vcpus", "1", "--writes", "100", "--eager", "N"]
    host.write("proc/meminfo", "MemAvailable: 4194304 kB\n")
    host.pool().write_text("3\n")
    assert host.run("--backing", backings, *sizes).returncode == 0
    assert [call.split()[2] for call in host.calls()] == backings.split()
    assert seen.read_text().splitlines() == ["513 0", "3 1", "3 0"]
    assert host.pool().read_text() == "3\n"
    assert host.pool("1048576kB").read_text() == "0\n"


def test_memory_for_every_backing_is_tried_beforehand(host: Host) -> None:
    host.free(0, "1048576kB")
    sizes = ["--bytes", "1G", "--vcpus", "1"]
    line = refusal(host, "--backing", "anonymous_hugetlb_2mb anonymous_hugetlb_1gb", *sizes)
    assert "wanted 1024 MiB in 1024 MiB pages, had 0 MiB" in line


def test_presets(host: Host) -> None:
    host.environment["vcpus_list"] = "7"  # a name of the script's own
    quick = host.run("--dry-run").stdout
    assert quick == host.run("--quick", "--dry-run").stdout
    assert "8 runs:" in quick
    full = host.run("--full", "--dry-run").stdout
    assert "336 runs:" in full
    assert "-s anonymous_thp -b 4194304 -v 64 -w 0 -i 3 -g\n" in full
    some = host.run("--vcpus", "2 64", "--full", "--init-set=yes", "--dry-run").stdout
    assert "48 runs:" in some


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
        assert done.returncode == 0
        assert "not found" not in done.stderr


# ---- pinning -----------------------------------------------------------------


def pins(host: Host, *arguments: str) -> list[str]:
    """What follows -c, for each run, an empty string without."""
    assert host.run("--writes", "100", "--eager", "Y", *arguments).returncode == 0
    return [call.partition(" -c ")[2] for call in host.calls()]


def test_no_pin(host: Host) -> None:
    assert pins(host, "--vcpus", "2", "--no-pin") == [""]


def test_pins_to_cpus_that_are_on_and_may_be_used(host: Host) -> None:
    host.write("proc/self/status", "Cpus_allowed_list:\t2-5,8,10-1023\n")
    host.write("sys/devices/system/cpu/online", "0-3,5-11\n")
    # 2, 3, 5, 8, 10 and 11
    assert pins(host, "--vcpus", "3 5 6") == ["3,5,8,2", "3,5,8,10,11,2", ""]


def test_pins_to_one_thread_of_each_core_first(host: Host) -> None:
    set_cpus(host, 8)
    for cpu in range(8):
        siblings = f"{cpu % 4},{cpu % 4 + 4}\n"
        host.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    host.write("sys/devices/system/cpu/online", "0,2-7\n")  # 5 alone has the second core
    assert pins(host, "--vcpus", "3 4") == ["2,3,5,0", "2,3,5,4,0"]


# ---- what is recorded --------------------------------------------------------


def test_json_lines_hold_every_time_with_its_dimensions(host: Host) -> None:
    output = host.root / "out.jsonl"
    arguments = ["--vcpus", "2", "--writes", "20", "--eager", "Y", "--iterations", "2"]
    labels = ["--machine", "vmx-bochs", "--kernel", "base"]
    assert host.run(*arguments, *labels, "--output", str(output)).returncode == 0
    found = records(output)
    assert found[2] == {
        "machine": "vmx-bochs",
        "kernel": "base",
        "kernel_version": os.uname().release,
        "ept": True,
        "tdp_mmu": False,
        "vcpus": 2,
        "bytes_per_vcpu": 4194304,
        "backing": "anonymous_hugetlb_2mb",
        "write_percent": 20,
        "initially_all_set": True,
        "eager": True,
        "phase": "dirty",
        "iteration": 1,
        "dirty_harvest": "off",
        "cpus": 9,
        "overcommitted": False,
        "pinned": True,
        "seconds": 0.00200000001,
    }
    assert [(r["phase"], r["iteration"]) for r in found] == [
        ("populate", None),
        ("enable", None),
        ("dirty", 1),
        ("get", 1),
        ("clear", 1),
        ("dirty", 2),
        ("get", 2),
        ("clear", 2),
        ("disable", None),
    ]


def test_without_initially_all_set_there_is_no_clear(host: Host) -> None:
    output = host.root / "out.jsonl"
    assert host.run("--init-set", "no", "--vcpus", "2", "--output", str(output)).returncode == 0
    found = records(output)
    assert {r["initially_all_set"] for r in found} == {False}
    assert "clear" not in {r["phase"] for r in found}
    assert len(found) == 2 * 2 * 7


@pytest.mark.parametrize(
    ("flags", "ept", "npt", "tdp_mmu", "wanted"),
    [
        ("vmx", "Y", "N", "Y", (True, True)),
        ("vmx", "Y", "N", "N", (True, False)),
        ("vmx", "N", "Y", "Y", (False, False)),
        ("svm", "N", "1", "Y", (True, True)),
        ("svm", "Y", "0", "N", (False, False)),
    ],
)
def test_records_the_paging_mode_of_this_cpu(
    host: Host, flags: str, ept: str, npt: str, tdp_mmu: str, wanted: tuple[bool, bool]
) -> None:
    host.write("proc/cpuinfo", f"processor : 0\nflags : fpu {flags}\n")
    host.set("kvm_intel/parameters/ept", ept)
    host.set("kvm_amd/parameters/npt", npt)
    host.set("kvm/parameters/tdp_mmu", tdp_mmu)
    output = host.root / "out.jsonl"
    assert host.run(*PART, "--output", str(output)).returncode == 0
    assert {(r["ept"], r["tdp_mmu"]) for r in records(output)} == {wanted}


@pytest.mark.parametrize(
    ("flags", "ept", "pml", "wanted"),
    [
        ("vmx", "Y", "Y", None),
        ("vmx", "Y", "N", False),
        ("vmx", "Y", None, None),
        ("vmx", "N", "N", None),
        ("svm", "Y", "N", None),
    ],
)
def test_records_where_a_cpu_with_ept_does_not_log_by_itself(
    host: Host, flags: str, ept: str, pml: str | None, wanted: bool | None
) -> None:
    host.write("proc/cpuinfo", f"processor : 0\nflags : fpu {flags}\n")
    host.write("sys/module/kvm_intel/parameters/ept", f"{ept}\n")
    file = host.write("sys/module/kvm_intel/parameters/pml", f"{pml}\n")
    if pml is None:
        file.unlink()
    output = host.root / "out.jsonl"
    done = host.run(*PART, "--harvest", "on", "--output", str(output))
    assert done.returncode == 0
    assert {r.get("pml") for r in records(output)} == {wanted}


def test_appends_to_what_is_there_and_keeps_a_link(host: Host) -> None:
    real = host.write("data.jsonl", '{"old": 1}\n')
    (host.root / "out.jsonl").symlink_to(real)
    done = host.run("--vcpus", "2", "--output", str(host.root / "out.jsonl"))
    assert done.returncode == 0
    assert (host.root / "out.jsonl").is_symlink()
    assert records(real)[0] == {"old": 1}
    assert len(records(real)) == 1 + 4 * RECORDS


def test_a_failed_run_leaves_whole_runs_only(host: Host) -> None:
    host.mode("fail-second")
    output = host.root / "out.jsonl"
    done = host.run("--vcpus", "2 4", "--writes", "100", "--output", str(output))
    assert done.returncode == 1
    assert "2 vCPUs, 100% writes, initially-all-set, eager_page_split=Y" in done.stderr
    assert "status 254" in done.stderr
    assert len(host.calls()) == 2
    assert {(r["vcpus"], r["eager"]) for r in records(output)} == {(2, False)}
    assert len(records(output)) == RECORDS
    assert host.eager.read_text() == "Y\n"
    assert host.pool().read_text() == "0\n"


def test_keep_going_measures_the_rest(host: Host) -> None:
    host.mode("fail-second")
    output = host.root / "out.jsonl"
    arguments = ["--vcpus", "2 4", "--writes", "100", "--output", str(output)]
    assert host.run(*arguments, "--keep-going").returncode == 1
    assert len(host.calls()) == 4
    assert len(records(output)) == 3 * RECORDS


def test_failure_shows_what_the_test_said(host: Host) -> None:
    host.mode("fail")
    done = host.run("--vcpus", "2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Test Assertion Failure" in done.stderr
    assert "lib/x.c:1: ret == 0" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_times_that_are_missing_are_a_failure(host: Host) -> None:
    host.mode("short")
    output = host.root / "out.jsonl"
    done = host.run("--vcpus", "2", "--output", str(output))
    assert done.returncode == 1
    assert "not those of 2 iterations" in done.stderr
    assert not output.exists()


def test_output_that_fails_midway_keeps_what_was_there(host: Host) -> None:
    output = host.write("out.jsonl", "x" * 20000 + "\n")
    before = output.read_text()
    fake = host.root / "fake_test"
    # The room is there at the start and gone when the first run is done.
    fake.write_text(FAKE_TEST + f"\nmkdir {output}.tmp.$PPID\n")
    done = host.run("--vcpus", "2", "--output", str(output))
    assert done.returncode == 1
    assert "could not write" in done.stderr
    assert output.read_text() == before


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
    names = "backing,set,writes,harvest,vCPUs,dirty N,dirty Y,N/Y,split N,split Y,log N,log Y"
    assert table(done.stdout) == [
        names.split(","),
        [HUGE, "yes", "20", "off", "2", "200", "2.00", "100", "4.00", "4.00", "4.00", "4.00"],
        [HUGE, "yes", "20", "off", "8", "800", "8.00", "100", "4.00", "4.00", "4.00", "4.00"],
    ]
    caption = done.stdout.splitlines()[1]
    assert caption == (
        f"host, Linux {os.uname().release} (series), ept=Y, tdp_mmu=N, 4M per vCPU; milliseconds"
    )
    assert "with initially-all-set (set) the first CLEAR" in done.stdout
    assert "\x1b" not in done.stdout


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


def test_without_initially_all_set_other_phases_pay(host: Host) -> None:
    """The fake gives each phase a time of its own: iteration 1, enabling, the second GET."""
    fake = FAKE_TEST.replace("phase get $i 0.000015000", "phase get $i 0.00$i")
    fake = fake.replace("phase dirty $i ${dirty}", "phase dirty $i $i.${dirty#0.}")
    (host.root / "fake_test").write_text(fake)
    for init, wanted in (
        ("yes", ["2200", "2002", "1.10", "4.00", "4.00", "4.00", "4.00"]),
        ("no", ["1200", "1002", "1.20", "0.123", "0.123", "2.00", "2.00"]),
    ):
        shown = host.run("--vcpus", "2", "--writes", "20", "--init-set", init).stdout
        assert table(shown)[1][5:] == wanted


def test_one_value_of_eager_has_no_ratio(host: Host) -> None:
    done = host.run("--vcpus", "2", "--writes", "20", "--eager", "N")
    assert table(done.stdout)[1][5:] == ["200", "-", "-", "4.00", "-", "4.00", "-"]


def test_a_table_has_rows_for_each_value_of_dirty_harvest(host: Host) -> None:
    done = host.run("--vcpus", "2", "--writes", "20", "--harvest", "off on")
    assert [row[3:8] for row in table(done.stdout)[1:]] == [
        ["off", "2", "200", "2.00", "100"],
        ["on", "2", "20.0", "0.200", "100"],
    ]


@pytest.mark.parametrize(("vcpus", "said"), [("8", False), ("9", True)])
def test_says_when_vcpus_share_cpus(host: Host, vcpus: str, said: bool) -> None:
    done = host.run("--vcpus", vcpus, "--writes", "20")
    assert ("\n*: overcommitted, 9 CPUs for the vCPUs and the test" in done.stdout) is said
    assert table(done.stdout)[1][4] == (f"{vcpus}*" if said else vcpus)
    (call, *_) = host.calls()
    assert ("-c" in call) is not said


def on_terminal(host: Host, *arguments: str) -> str:
    """Everything that the script writes to a terminal."""
    control, terminal = pty.openpty()
    environment = host.environment | {"TERM": "xterm"}
    command = host.command(*arguments)
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with subprocess.Popen(command, env=environment, **streams) as process:  # type: ignore[call-overload]
        os.close(terminal)
        said = b""
        while chunk := read_chunk(control):
            said += chunk
    os.close(control)
    assert process.returncode == 0
    return said.decode()


def read_chunk(control: int) -> bytes:
    try:
        return os.read(control, 65536)
    except OSError:  # how Linux reports that a terminal's other end is closed
        return b""


def test_progress_on_a_terminal(host: Host) -> None:
    said = on_terminal(host, "--vcpus", "2 4", "--writes", "20")
    assert "split-bench:   0% 1/4 2 vCPUs, 20% writes" in said
    assert "split-bench:  70% 4/4 4 vCPUs, 20% writes" in said
    assert "s left" in said


def test_quiet_on_a_terminal(host: Host) -> None:
    quiet = on_terminal(host, "--vcpus", "2", "--quiet")
    assert "split-bench:" not in quiet
    assert "| dirty N | dirty Y |" in quiet


def test_lab_progress_gets_every_run(host: Host) -> None:
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


def test_lab_machine_is_the_default_label(host: Host) -> None:
    host.environment["LAB_MACHINE"] = "svm-qemu"
    output = host.root / "out.jsonl"
    assert host.run("--vcpus", "2", "--output", str(output)).returncode == 0
    assert {r["machine"] for r in records(output)} == {"svm-qemu"}


def test_help_states_arguments_and_exit_codes(host: Host) -> None:
    done = host.run("--help")
    assert done.returncode == 0
    for word in ("--vcpus", "--eager", "--others-ok", '"2 8"', "130", "milliseconds"):
        assert word in done.stdout
    assert done.stdout.startswith("Usage: split-bench.sh [OPTION]...\n")
    assert "#" not in done.stdout and "set -u" not in done.stdout


def test_dry_run_shows_the_runs_and_touches_nothing(host: Host) -> None:
    (host.root / "dev/kvm").unlink()
    before = host.settings()
    done = host.run("--vcpus", "2 8", "--writes", "20", "--dry-run", "--output", "x.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert host.settings() == before
    assert host.calls() == []
    fake = host.root / "fake_test"
    words = f"{fake} -s anonymous_hugetlb_2mb -b 4194304 -v 8 -w 20 -i 2 -c 1,2,3,4,5,6,7,8,0"
    assert f"eager_page_split=Y {words}" in done.stdout.splitlines()
    assert "17 pages of 2 MiB" in done.stdout
    both = host.run("--vcpus", "8", "--writes", "20", "--harvest", "off on", "--dry-run").stdout
    assert "4 runs:" in both
    assert f"eager_page_split=Y dirty_harvest=on {words}" in both.splitlines()
