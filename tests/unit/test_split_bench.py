# SPDX-License-Identifier: GPL-2.0-only
"""scripts/split-bench.sh on a made-up host: a directory for /, a script for the test.

Every case runs under dash and under busybox ash, the latter with busybox's
applets alone. What no made-up host can show (that KVM obeys) is shown by the
runs inside the machines.
"""

import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.fake_kvm_host import FAKE_TEST, NOBODY, SCRIPT, Host, furnish, set_cpus
from tests.unit.processes import default_signals, started

# Of a run of two iterations: populate, enable, disable; dirty, get, clear of each.
RECORDS = 3 + 3 * 2
# Two runs.
PART = ("--vcpus", "2", "--writes", "20")


@pytest.fixture(scope="session")
def applets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        subprocess.run(["busybox", "--install", "-s", directory], check=True)
        yield Path(directory)


@pytest.fixture(params=["dash", "busybox"])
def host(request: pytest.FixtureRequest, applets: Path) -> Iterator[Host]:
    # Not tmp_path, which other users cannot enter: one case runs as nobody.
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        busybox = request.param == "busybox"
        host = Host(root, [str(applets / "sh")] if busybox else ["dash"])
        path = str(applets) if busybox else os.environ["PATH"]
        host.environment = {"PATH": path, "SPLIT_BENCH_ROOT": directory, "TMPDIR": f"{root}/tmp"}
        furnish(host)
        yield host


def refusal(host: Host, *arguments: str, **options: object) -> str:
    """The one line of a refusal, after the proof that it changed nothing."""
    before = host.settings()
    done = host.run(*arguments, **options)
    assert (done.returncode, done.stdout) == (2, "")
    assert host.settings() == before
    assert host.calls() == []
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("split-bench: ")
    return lines[0]


def records(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


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


def test_pool_holds_the_largest_guest_while_a_test_runs(host: Host) -> None:
    seen = host.root / "seen"
    fake = host.root / "fake_test"
    fake.write_text(FAKE_TEST.replace("clear=1\n", f"clear=1\ncat {host.pool()} >>{seen}\n", 1))
    assert host.run("--vcpus", "2 8", "--writes", "100").returncode == 0
    assert seen.read_text().split() == ["17"] * 4


def test_pages_promised_to_others_are_not_counted_as_free(host: Host) -> None:
    host.pool().write_text("20\n")
    (host.pool().parent / "resv_hugepages").write_text("10\n")
    seen = host.root / "seen"
    (host.root / "fake_test").write_text(
        FAKE_TEST.replace("clear=1\n", f"clear=1\ncat {host.pool()} >>{seen}\n", 1)
    )
    assert host.run("--vcpus", "8", "--writes", "100", "--eager", "N").returncode == 0
    assert seen.read_text().split() == ["27"]
    assert host.pool().read_text() == "20\n"


def test_a_pool_that_suffices_is_left_alone(host: Host) -> None:
    host.pool().write_text("100\n")
    stamp = host.pool().stat().st_mtime_ns
    assert host.run("--vcpus", "2").returncode == 0
    assert host.pool().stat().st_mtime_ns == stamp


def test_gigabyte_pages_use_their_own_pool(host: Host) -> None:
    seen = host.root / "seen"
    (host.root / "fake_test").write_text(
        FAKE_TEST.replace("clear=1\n", f"clear=1\ncat {host.pool('1048576kB')} >>{seen}\n", 1)
    )
    done = host.run("--backing", "anonymous_hugetlb_1gb", "--bytes", "1G", "--vcpus", "2")
    assert done.returncode == 0
    assert set(seen.read_text().split()) == {"2"}
    assert host.pool("1048576kB").read_text() == "0\n"


def seen_pools(host: Host) -> Path:
    """Makes the test note both pools, those of 2 MiB and of 1 GiB pages."""
    seen = host.root / "calls.pools"
    note = f"echo $(cat {host.pool()} {host.pool('1048576kB')}) >>{seen}\n"
    (host.root / "fake_test").write_text(FAKE_TEST.replace("clear=1\n", f"clear=1\n{note}", 1))
    return seen


def test_each_backing_has_its_memory_while_it_is_measured(host: Host) -> None:
    seen = seen_pools(host)
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
    free = host.pool("1048576kB").parent / "free_hugepages"
    free.unlink()
    free.write_text("0\n")
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


def needed() -> list[str]:
    """The commands that the script's header lists."""
    text = " ".join(line.lstrip("# ") for line in SCRIPT.read_text().splitlines()[:60])
    return text.partition("and the commands ")[2].partition(" (busybox")[0].split(", ")


@pytest.mark.parametrize("host", ["dash"], indirect=True)
def test_the_header_lists_the_commands_that_are_needed(host: Host, tmp_path: Path) -> None:
    path = host.environment["PATH"]
    for name in needed():
        (tmp_path / name).symlink_to(shutil.which(name, path=path) or "missing")
    host.shell = [shutil.which("dash") or ""]
    host.environment["PATH"] = str(tmp_path)
    (host.root / "sys/kernel/debug/kvm").mkdir(parents=True)
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
    host.write("sys/module/kvm_intel/parameters/ept", f"{ept}\n")
    host.write("sys/module/kvm_amd/parameters/npt", f"{npt}\n")
    host.write("sys/module/kvm/parameters/tdp_mmu", f"{tdp_mmu}\n")
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
        while chunk := read_some(control):
            said += chunk
    os.close(control)
    assert process.returncode == 0
    return said.decode()


def read_some(control: int) -> bytes:
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


# ---- what is refused ---------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--vcpus", "2 x"], "--vcpus: 'x' is not a whole number from 1 to 1024"),
        (["--vcpus", "0"], "'0' is not a whole number"),
        (["--vcpus", "08"], "'08' is not a whole number"),
        (["--vcpus", "-2"], "'-2' is not a whole number"),
        (["--vcpus", "99999999999999999999"], "is not a whole number"),
        (["--vcpus", "2 2"], "'2' is given twice"),
        (["--vcpus", " "], "--vcpus: the list is empty"),
        (["--vcpus"], "--vcpus is unknown or lacks its value"),
        (["--writes", "101"], "--writes: '101' is not a whole number from 0 to 100"),
        (["--writes=50%"], "'50%' is not a whole number"),
        (["--eager", "N maybe"], "--eager: 'maybe' is none of N, Y"),
        (["--eager", ""], "--eager: the list is empty"),
        (["--harvest", "off maybe"], "--harvest: 'maybe' is none of off, on, auto"),
        (["--harvest", "on,on"], "--harvest: 'on' is given twice"),
        (["--harvest="], "--harvest: the list is empty"),
        (["--iterations", "1"], "--iterations: '1' is not a whole number from 2 to 1000"),
        (["--bytes", "4X"], "'4X' is not a size"),
        (["--bytes", "M"], "'M' is not a size"),
        (["--bytes", "9999G"], "'9999G' is more than 1024G"),
        (["--bytes", "6000"], "'6000' is not a multiple of 4K"),
        (["--bytes", "1M", "--vcpus", "3"], "3 vCPUs x 1M is not a whole number of 2 MiB pages"),
        (["--backing", "floppy"], "--backing: 'floppy' is unknown"),
        (["--backing", "shmem shmem"], "--backing: 'shmem' is given twice"),
        (["--backing", ""], "--backing: the list is empty"),
        (["--resume", "none.jsonl"], "there is no file 'none.jsonl'; begin with --output"),
        (["--resume", "a", "--output", "b"], "results go to 'a', so --output 'b' cannot be"),
        (["--init-set", "perhaps"], "'perhaps' is none of yes, no, both"),
        (["--init-set", "yes, no"], "'yes, no' is none of yes, no, both"),
        (["--init-set", ""], "--init-set: '' is none of yes, no, both"),
        (["--kernel", "mine"], "'mine' is none of series, peer, base"),
        (["--machine", 'a"b'], "is not a name of letters"),
        (["--speed", "9"], "unknown option --speed"),
        (["--test", "/nowhere/test"], "'/nowhere/test' is not an executable file"),
        (["--output", "/nowhere/x.jsonl"], "there is no directory '/nowhere'"),
        (["extra"], "unexpected argument 'extra'"),
    ],
)
def test_bad_input(host: Host, arguments: list[str], said: str) -> None:
    assert said in refusal(host, *arguments)


def test_output_is_a_file_or_new(host: Host) -> None:
    # Not /dev/null: a script that forgets to look would replace the real one.
    os.mkfifo(host.root / "fifo")
    assert "is not a regular file" in refusal(host, "--output", f"{host.root}/fifo")
    assert "is a directory" in refusal(host, "--output", f"{host.root}/run")


def test_half_a_line_is_not_appended_to(host: Host) -> None:
    output = host.write("out.jsonl", '{"half": ')
    assert "ends in half a line" in refusal(host, "--output", str(output))


def without_kvm(host: Host) -> None:
    (host.root / "dev/kvm").unlink()


def without_parameter(host: Host) -> None:
    host.eager.unlink()


def without_vendor(host: Host) -> None:
    (host.root / "sys/module/kvm_intel/parameters/ept").unlink()


def with_a_vm_in_debugfs(host: Host) -> None:
    (host.root / "sys/kernel/debug/kvm/123-11").mkdir(parents=True)
    (host.root / "sys/kernel/debug/kvm/blocking").touch()


def with_a_vm_descriptor(host: Host) -> None:
    (host.root / "proc/123/fd").mkdir(parents=True)
    (host.root / "proc/123/fd/10").symlink_to("anon_inode:kvm-vcpu:0")
    (host.root / "proc/123/fd/11").symlink_to("anon_inode:kvm-vm")


def with_little_memory(host: Host) -> None:
    free = host.pool().parent / "free_hugepages"
    free.unlink()
    free.write_text("5\n")


def without_a_pool(host: Host) -> None:
    shutil.rmtree(host.pool().parent)


def with_another_bench(host: Host) -> None:
    host.write("run/split-bench.pid", f"{os.getpid()}\n")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without_kvm, "no /dev/kvm"),
        (without_parameter, "no parameter eager_page_split"),
        (without_vendor, "no /sys/module/kvm_intel/parameters/ept"),
        (with_a_vm_in_debugfs, "1 other VM(s) run here"),
        (with_a_vm_descriptor, "1 other VM(s) run here"),
        (with_little_memory, "wanted 34 MiB in 2 MiB pages, had 10 MiB"),
        (without_a_pool, "no HugeTLB pool of 2 MiB pages"),
        (with_another_bench, "another split-bench.sh runs already (process "),
    ],
)
def test_unsuitable_host(host: Host, spoil: Callable[[Host], None], said: str) -> None:
    spoil(host)
    assert said in refusal(host)


def test_a_kernel_that_cannot_log_by_dirty_bits(host: Host) -> None:
    host.harvest.unlink()
    line = refusal(host, "--harvest", "off on")
    assert "--harvest: no parameter dirty_harvest in /sys/module/kvm/parameters: " in line


def test_too_little_memory_without_huge_pages(host: Host) -> None:
    line = refusal(host, "--backing", "anonymous", "--bytes", "128M")
    assert "wanted 1024 MiB, had 1024 MiB" in line


def test_thp_switched_off(host: Host) -> None:
    host.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    assert "transparent huge pages are off" in refusal(host, "--backing", "anonymous_thp")


def test_not_root(host: Host) -> None:
    # A copy: the repository may lie where other users cannot enter.
    host.script = Path(shutil.copy(SCRIPT, host.root))
    if os.geteuid() == 0:
        line = refusal(host, user=NOBODY, group=NOBODY, extra_groups=[])
    else:
        host.eager.chmod(0o444)
        line = refusal(host)
    assert "not root" in line


def test_no_space_at_the_output(host: Host) -> None:
    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    output = host.root / "out.jsonl"
    line = refusal(host, "--output", str(output), preexec_fn=limit_files)
    assert "no room for" in line
    assert not output.exists()


def test_others_ok(host: Host) -> None:
    with_a_vm_in_debugfs(host)
    assert host.run("--vcpus", "2", "--others-ok").returncode == 0


def test_a_lock_left_by_a_dead_process_is_taken_over(host: Host) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    lock = host.write("run/split-bench.pid", f"{dead.pid}\n")
    assert host.run("--vcpus", "2").returncode == 0
    assert not lock.exists()


# ---- interruption ------------------------------------------------------------


def wait_for(file: Path) -> str:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if file.exists() and (text := file.read_text()).endswith("\n"):
            return text
        time.sleep(0.02)
    raise AssertionError(f"{file} did not appear")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("mode", ["hang", "stubborn"])
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
)
def test_interrupted_run_restores_all_and_ends_the_test(
    host: Host, mode: str, number: signal.Signals, status: int
) -> None:
    host.mode(mode)
    host.pool().write_text("3\n")
    before = host.settings()
    matrix = ["--vcpus", "2", "--eager", "N", "--harvest", "on"]
    command = host.command(*matrix, "--output", f"{host.root}/out.jsonl")
    with started(command, env=host.environment, stderr=subprocess.PIPE) as process:
        child = int(wait_for(host.root / "pid"))
        assert host.eager.read_text() == "N\n"
        assert host.harvest.read_text() == "on\n"
        assert host.pool().read_text() == "5\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=10)
    assert process.returncode == status
    assert host.settings() == before
    assert not is_alive(child)
    assert said == b"split-bench: interrupted; the settings of this host are as before\n"


def test_control_c_on_a_terminal(host: Host) -> None:
    """The whole foreground group gets SIGINT, as the test's own process does."""
    host.mode("hang")
    before = host.settings()
    command = host.command("--vcpus", "2")
    with started(command, env=host.environment, stderr=subprocess.DEVNULL) as process:
        child = int(wait_for(host.root / "pid"))
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=10) == 130
    assert host.settings() == before
    assert not is_alive(child)


def test_reader_that_goes_away(host: Host) -> None:
    """As in `split-bench.sh | head -1`: the tables meet a closed pipe."""
    before = host.settings()
    read, write = os.pipe()
    process = subprocess.Popen(
        host.command("--vcpus", "2"),
        env=host.environment,
        stdout=write,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL),
    )
    os.close(write)
    os.close(read)
    assert process.wait(timeout=20) != 0
    assert host.settings() == before


def test_setting_that_cannot_be_restored_is_told(host: Host) -> None:
    fake = host.root / "fake_test"
    fake.write_text(FAKE_TEST + f"\nrm {host.pool()}; mkdir {host.pool()}\n")
    done = host.run("--vcpus", "2", "--writes", "20", "--eager", "N")
    assert done.returncode == 1
    assert f"could not restore {host.pool()}; by hand: echo 0 > {host.pool()}" in done.stderr
    assert host.eager.read_text() == "Y\n"


# Stands for each command of the script: sends a signal before the AT-th of them all.
MOMENT = """#!/bin/dash
echo >>"{notes}/moments"
read -r pid <"{notes}/pid"
[ "$AT" -eq 0 ] || [ "$(/bin/busybox wc -c <"{notes}/moments")" -ne "$AT" ] ||
	kill -s "$SIGNAL" -- "$TO$pid"
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

    def count(self) -> int:
        return len((self.notes / "moments").read_text())

    def run(self, *arguments: str, at: int = 0, number: str = "INT", group: bool = False) -> int:
        """Exit status of the script, interrupted at a moment or, with 0, not at all."""
        for name in ("moments", "calls"):
            (self.notes / name).unlink(missing_ok=True)
            (self.host.root / name).unlink(missing_ok=True)
        words = {"AT": str(at), "SIGNAL": number, "TO": "-" if group else ""}
        path = f"{self.notes}/bin:{self.host.environment['PATH']}"
        starter = ["/bin/dash", "-c", f'echo $$ >"{self.notes}/pid"; exec "$@"', "dash"]
        matrix = ["--vcpus", "2", "--writes", "20", "--iterations", "2", "--quiet", *arguments]
        matrix += ["--eager", "Y", "--harvest", "off on"]
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
    (tmp_path / "bin").mkdir()
    for name in set(needed()) - {"date"}:  # its calls vary with the time that a run takes
        command = shutil.which(name, path=host.environment["PATH"])
        wrapper = tmp_path / "bin" / name
        wrapper.write_text(MOMENT.format(notes=tmp_path, command=command))
        wrapper.chmod(0o755)
    # Where the shell runs its commands itself, those of the test are what can interrupt.
    fake = FAKE_TEST.replace("clear=1\n", "clear=1\n" + 4 * "cat </dev/null\n", 1)
    (host.root / "fake_test").write_text(fake)
    return Moments(host, tmp_path)


def keys(file: Path) -> list[str]:
    return sorted(
        str({key: value for key, value in record.items() if key != "seconds"})
        for record in records(file)
    )


SIGNALS = [("INT", True, 130), ("TERM", False, 143), ("HUP", False, 129)]
# No multiple of three, so that each signal meets each part of the script.
STEP = 5
# busybox's shell runs its applets itself; there it is the commands of the test that interrupt.
BUSYBOX_STEP = 1


def test_interrupted_anywhere_restores_the_host_and_resumes(moments: Moments) -> None:
    host = moments.host
    host.pool().write_text("3\n")
    before = host.settings()
    assert moments.run("--output", str(moments.output)) == 0
    last, wanted = moments.count(), keys(moments.output)
    assert len(wanted) == 2 * 9
    found = set()
    is_dash = host.shell == ["dash"]
    for at in range(1, last + 1, STEP if is_dash else BUSYBOX_STEP):
        number, group, status = SIGNALS[at % 3]
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


# Ends the script as it looks whether the pool has grown, and tells that it had.
GROWN = """#!/bin/dash
read -r pages <"{pool}"
case $*:$pages in
*/free_hugepages:5)
	echo "$pages" >"{notes}/grown"
	read -r pid <"{notes}/pid"
	kill -s TERM "$pid"
	;;
esac
exec /bin/busybox cat "$@"
"""


@pytest.mark.parametrize("host", ["dash"], indirect=True)
def test_interrupted_while_the_pool_grows(moments: Moments) -> None:
    host = moments.host
    before = host.settings()
    cat = moments.notes / "bin/cat"
    cat.write_text(GROWN.format(pool=host.pool(), notes=moments.notes))
    assert moments.run("--output", str(moments.output)) == 143
    assert (moments.notes / "grown").read_text() == "5\n"
    assert host.calls() == []
    assert host.settings() == before


# ---- resuming ----------------------------------------------------------------


# Shell -> what partly() found; where the host lies is not in it.
interrupted: dict[str, str] = {}


def partly(host: Host) -> Path:
    """The output of a matrix of 2 x 2 x 2 runs that was interrupted after three."""
    output = host.root / "out.jsonl"
    (shell,) = host.shell
    if shell not in interrupted:
        assert host.run(*PART, "--output", str(output)).returncode == 0
        arguments = ["--vcpus", "4", "--writes", "20", "--eager", "N", "--output", str(output)]
        assert host.run(*arguments).returncode == 0
        (host.root / "calls").unlink()
        interrupted[shell] = output.read_text()
    output.write_text(interrupted[shell])
    return output


def test_resume_runs_what_is_missing_and_prints_all(host: Host) -> None:
    output = partly(host)
    matrix = ["--vcpus", "2 4", "--writes", "20 100", "--resume", str(output)]
    shown = host.run(*matrix, "--dry-run").stdout
    assert "5 runs:" in shown
    done = host.run(*matrix)
    assert (done.returncode, done.stderr) == (
        0,
        "split-bench: 5 of 8 runs are still to be measured\n",
    )
    assert host.calls()[0].startswith("Y -s anonymous_hugetlb_2mb -b 4194304 -v 4 -w 20")
    assert len(host.calls()) == 5
    other = host.root / "other.jsonl"
    assert host.run(*matrix[:-2], "--output", str(other)).returncode == 0
    assert keys(output) == keys(other)
    assert done.stdout == host.run(*matrix[:-2]).stdout
    (host.root / "calls").unlink()
    again = host.run(*matrix)
    assert (again.returncode, again.stdout, host.calls()) == (0, done.stdout, [])


def test_resume_of_an_empty_file_begins(host: Host) -> None:
    output = host.write("out.jsonl", "")
    assert host.run(*PART, "--resume", str(output)).returncode == 0
    assert len(records(output)) == 2 * RECORDS


def test_resume_with_dirty_harvest_repeats_nothing(host: Host) -> None:
    """What was measured before the option, or the key, came is off."""
    output = partly(host)
    edit(host, ' "dirty_harvest": "off",', "")
    matrix = ["--vcpus", "2 4", "--writes", "20", "--harvest", "off on", "--resume", str(output)]
    done = host.run(*matrix)
    assert done.returncode == 0
    assert [call.partition(" ")[0] for call in host.calls()] == [
        "N,on",
        "Y,on",
        "N,on",
        "Y",
        "Y,on",
    ]
    (host.root / "calls").unlink()
    again = host.run(*matrix)
    assert (again.returncode, again.stdout, host.calls()) == (0, done.stdout, [])


def test_another_kernel_may_be_in_front(host: Host) -> None:
    output = partly(host)
    assert host.run(*PART, "--kernel", "peer", "--output", str(output)).returncode == 0
    done = host.run("--vcpus", "2 4", "--writes", "20", "--kernel", "peer", "--resume", str(output))
    assert (done.returncode, len(host.calls())) == (0, 4)
    assert len(set(keys(output))) == len(records(output)) == 7 * RECORDS


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        (
            lambda host: None,
            ["--machine", "other"],
            "was interrupted on machine host, this is other",
        ),
        (lambda host: None, ["--kernel", "base"], "was interrupted on kernel series, this is base"),
        (lambda host: None, ["--iterations", "3"], "holds runs with other --iterations or pinning"),
        (lambda host: None, ["--no-pin"], "holds runs with other --iterations or pinning"),
        (
            lambda host: host.write("sys/module/kvm_intel/parameters/ept", "N\n"),
            [],
            "was interrupted on ept true, this is false",
        ),
        (
            lambda host: host.write("sys/module/kvm/parameters/tdp_mmu", "Y\n"),
            [],
            "was interrupted on tdp_mmu false, this is true",
        ),
        (
            lambda host: host.write("sys/module/kvm_intel/parameters/pml", "N\n"),
            [],
            "was interrupted on pml true, this is false",
        ),
        (lambda host: set_cpus(host, 8), [], "was interrupted on usable CPUs: 9, this is 8"),
        (
            lambda host: edit(host, os.uname().release, "5.0"),
            [],
            f"was interrupted on Linux 5.0, this is {os.uname().release}",
        ),
        (lambda host: edit(host, '"phase"', '"phrase"'), [], "line 1 of "),
        (lambda host: edit(host, "0.080500000}", "0.0805"), [], "is no result of this script"),
    ],
)
def test_resume_is_refused(
    host: Host, change: Callable[[Host], object], arguments: list[str], said: str
) -> None:
    output = partly(host)
    change(host)
    assert said in refusal(host, *PART, "--resume", str(output), *arguments)


def edit(host: Host, old: str, new: str) -> None:
    file = host.root / "out.jsonl"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
