# SPDX-License-Identifier: GPL-2.0-only
"""What scripts/split-bench.sh refuses, and that it changes nothing then."""

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.fake_kvm_host import NOBODY, SCRIPT, Host
from tests.unit.split_bench import refusal

KVM = "sys/module/kvm/parameters"
HUGE = "2 MiB pages (anonymous_hugetlb"


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
        (["--bytes", "3M"], f"'3M' is not a whole number of {HUGE}_2mb); 4M"),
        (["--bytes", "1M", "--vcpus", "2"], "'1M' is not a whole number of 2 MiB pages"),
        (["--bytes=1G", "--backing=anonymous_thp", "--bytes=5M"], "(anonymous_thp); 6M would"),
        (
            ["--bytes", "3M", "--backing", "anonymous anonymous_hugetlb_1gb"],
            "pages (anonymous_huge",
        ),
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


def with_a_vm(host: Host) -> None:
    (host.root / "proc/123/fd").mkdir(parents=True)
    (host.root / "proc/123/fd/10").symlink_to("anon_inode:kvm-vcpu:0")
    (host.root / "proc/123/fd/11").symlink_to("anon_inode:kvm-vm")


def with_two_vms(host: Host) -> None:
    with_a_vm(host)
    (host.root / "proc/99/fd").mkdir(parents=True)
    (host.root / "proc/99/fd/3").symlink_to("anon_inode:kvm-vm")


def without(path: str) -> Callable[[Host], None]:
    return lambda host: (host.root / path).unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without("dev/kvm"), "no /dev/kvm"),
        (without(f"{KVM}/eager_page_split"), "no parameter eager_page_split"),
        (without("sys/module/kvm_intel/parameters/ept"), "no /sys/module/kvm_intel/parameters/ept"),
        (with_a_vm, "1 other VM(s) run here"),
        (with_two_vms, "2 other VM(s) run here"),
        (lambda host: host.free(5), "wanted 34 MiB in 2 MiB pages, had 10 MiB"),
        (lambda host: shutil.rmtree(host.pool().parent), "no HugeTLB pool of 2 MiB pages"),
        (
            lambda host: host.write("run/split-bench.pid", f"{os.getpid()}\n"),
            "another split-bench.sh runs already (process ",
        ),
    ],
)
def test_unsuitable_host(host: Host, spoil: Callable[[Host], object], said: str) -> None:
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
    with_a_vm(host)
    assert host.run("--vcpus", "2", "--others-ok").returncode == 0


def test_a_lock_left_by_a_dead_process_is_taken_over(host: Host) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    lock = host.write("run/split-bench.pid", f"{dead.pid}\n")
    assert host.run("--vcpus", "2").returncode == 0
    assert not lock.exists()
