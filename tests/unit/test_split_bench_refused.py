# SPDX-License-Identifier: GPL-2.0-only
"""What scripts/split-bench.sh refuses, and that it changes nothing then."""

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.rows import for_each_row
from tests.unit.fake_kvm_host import NOBODY, SCRIPT, Host
from tests.unit.split_bench import refusal

KVM, EPT = "sys/module/kvm/parameters", "sys/module/kvm_intel/parameters/ept"
HUGE = "2 MiB pages (anonymous_hugetlb"


@for_each_row(
    "arguments, said",
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
    (["--bytes=3M", "--backing=anonymous anonymous_hugetlb_1gb"], "pages (anonymous_huge"),
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
    (["--output", "run"], "is a directory"),
    (["--backing", "anonymous", "--bytes", "128M"], "wanted 1024 MiB, had 1024 MiB"),
    (["extra"], "unexpected argument 'extra'"),
)
def test_bad_input(host: Host, arguments: list[str], said: str) -> None:
    assert said in refusal(host, *arguments)


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


def having(path: str, text: str) -> Callable[[Host], object]:
    return lambda host: host.write(path, text)


LOCKED = having("run/split-bench.pid", f"{os.getpid()}\n")
NO_THP = having("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
NO_HARVEST = f"--harvest: no parameter dirty_harvest in /{KVM}: "


@for_each_row(
    "spoil, arguments, said",
    (without("dev/kvm"), "", "no /dev/kvm"),
    (without(f"{KVM}/eager_page_split"), "", "no parameter eager_page_split"),
    (without(f"{KVM}/dirty_harvest"), "--harvest=off,on", NO_HARVEST),
    (without(EPT), "", f"no /{EPT}"),
    (with_a_vm, "", "1 other VM(s) run here"),
    (with_two_vms, "", "2 other VM(s) run here"),
    (lambda host: host.free(5), "", "wanted 34 MiB in 2 MiB pages, had 10 MiB"),
    (lambda host: shutil.rmtree(host.pool().parent), "", "no HugeTLB pool of 2 MiB pages"),
    (LOCKED, "", "another split-bench.sh runs already (process "),
    (NO_THP, "--backing=anonymous_thp", "transparent huge pages are off"),
    # Not /dev/null: a script that forgets to look would replace the real one.
    (lambda host: os.mkfifo(host.root / "fifo"), "--output=fifo", "is not a regular file"),
    (having("out.jsonl", '{"half": '), "--output=out.jsonl", "ends in half a line"),
)
def test_unsuitable_host(
    host: Host, spoil: Callable[[Host], object], arguments: str, said: str
) -> None:
    spoil(host)
    assert said in refusal(host, *arguments.split())


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
