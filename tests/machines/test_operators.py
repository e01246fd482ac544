# SPDX-License-Identifier: GPL-2.0-only
"""What an operator does on a host that has the package of modules, and what goes wrong there.

The host is a real Debian with its own kernel, booted on svm-qemu; all commands are root's.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lab.submit.modules_proof import Installed

from .operators import HAS_STOCK, SAME_FOR_ALL, Row, check_told, run_all

pytestmark = [*SAME_FOR_ALL]

TEST = "/selftests/dirty_log_perf_test"
KVM = "/sys/module/kvm/parameters"
POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
BENCH = f"split-bench.sh --test {TEST} --vcpus 1 --writes 100 --bytes 8M --quiet"
# kill_amid: kills a benchmark and the test that it has started, while it has changed all three
# settings. vm_begins, vm_ends: a VM that stands still meanwhile.
FUNCTIONS = f"""
kill_amid() {{
    setsid {BENCH} --eager N --dirty-bits on &
    until [ "$(cat {KVM}/dirty_bits)" = on ]; do kill -0 $! || return; sleep 0.1; done
    kill -KILL -$!
    ! wait $!
    # The test that it has started holds the lock until it has ended, too.
    flock /run/split-bench.lock true
}}
vm_begins() {{
    {TEST} -s anonymous -v 1 -b 8M >/dev/null &
    until set -- /sys/kernel/debug/kvm/*-*; [ -e "$1" ]; do kill -0 $! || return; done
    kill -STOP $!
}}
vm_ends() {{ kill -KILL $!; ! wait $!; }}
"""
HAS_SERIES = "modprobe kvm_amd\nmount -t tmpfs -o mode=755 none /run"


@pytest.fixture
def programs(selftests: Callable[[str], Path]) -> Mapping[str, Path]:
    """The selftest that makes VMs, for the machine."""
    return {TEST: selftests("series") / Path(TEST).name}


SETTINGS = f"cat {POOL} {KVM}/dirty_bits {KVM}/eager_page_split"
LEFT = (
    " killed: hugepages-2048kB/nr_hugepages=5, was 0; dirty_bits=on, was auto;"
    " eager_page_split=N, was Y\n"
)
KILLED: tuple[Row, ...] = (
    (SETTINGS, 0, "0\nauto\nY\n"),
    ("kill_amid", 0, ""),
    (SETTINGS, 0, "5\non\nN\n"),
    ("kvm-eager-split status", 6, LEFT),
    ("kvm-eager-split status --json", 6, '"next": "kvm-eager-split restore"'),
    ("kvm-eager-split metrics", 0, "\nkvm_eager_split_left_behind 3\n"),
    ("kvm-eager-split metrics", 0, "\nkvm_eager_split_loaded_but_lazy 1\n"),
    ("kvm-eager-split restore", 0, f"restored {KVM}/eager_page_split: Y, not N, which split-bench"),
    (SETTINGS, 0, "0\nauto\nY\n"),
    ("kvm-eager-split status", 0, "eager split:  active\n"),
    ("kill_amid", 0, ""),
    # The next benchmark restores them, too, and so does a reload.
    (f"{BENCH} --verify only", 0, f"restored {POOL}: 0, not 5, which split-bench (process "),
    (SETTINGS, 0, "0\nauto\nY\n"),
    ("kill_amid", 0, ""),
    ("kvm-eager-split reload", 0, f"restored {KVM}/dirty_bits: auto, not on, which split-bench"),
    (SETTINGS, 0, "0\nauto\nY\n"),
    ("ls /run/kvm-eager-split.journal", 2, "No such file"),
)


def test_a_benchmark_that_is_killed(installed: Installed, programs: Mapping[str, Path]) -> None:
    rows = (line for line, _, _ in KILLED)
    told = run_all(rows, installed, f"{HAS_SERIES}\n{FUNCTIONS}", files=programs)
    check_told(told, KILLED)


# The machine has 1 GiB.
TOO_MUCH: tuple[Row, ...] = (
    (f"{BENCH} --vcpus 2 --bytes 512M", 2, "too little memory: wanted 1098 MiB, a reserve of 72 "),
    (SETTINGS, 0, "0\nauto\nY\n"),
    ("ls /run/kvm-eager-split.journal", 2, "No such file"),
)


def test_huge_pages_that_do_not_fit(installed: Installed, programs: Mapping[str, Path]) -> None:
    rows = (line for line, _, _ in TOO_MUCH)
    check_told(run_all(rows, installed, HAS_SERIES, files=programs), TOO_MUCH)


HAS = "AMD, NPT with Dirty bits, no PML; this host is a VM\n"
DOCTOR: tuple[Row, ...] = (
    ("kvm-eager-split doctor", 3, HAS),
    ("kvm-eager-split doctor --json", 3, '"eager_split": "NOT ACTIVE: the kernel\'s own KVM'),
    ("kvm-eager-split reload", 0, "loaded: series"),
    ("vm_begins", 0, ""),
    ("kvm-eager-split doctor", 0, "(dirty_log_perf_) 4k="),
    ("kvm-eager-split doctor --json", 0, '"paging": "two-dimensional, TDP MMU, guests can nest"'),
    (f"echo N >{KVM}/eager_page_split", 0, ""),
    ("kvm-eager-split doctor", 6, "not active: eager_page_split=N; after reload: series\n"),
    ("kvm-eager-split doctor --json", 6, '"eager_split": "not active: eager_page_split=N; after'),
    ("vm_ends", 0, ""),
    ("modprobe -r kvm_amd && modprobe kvm_amd npt=0", 0, ""),
    ("kvm-eager-split doctor", 0, "paging:       shadow paging, guests can nest\n"),
    # Of a kernel for which there is no package.
    ("sed -i 's/^kernel /&9/' /usr/src/kvm-eager-split-*/proved", 0, ""),
    ("kvm-eager-split doctor", 0, "picked:       none, as "),
    ("kvm-eager-split reload --stock", 0, "loaded: stock"),
    ("modprobe -r kvm_amd kvm; ls /dev/kvm", 2, ""),
    ("kvm-eager-split doctor", 3, "not active: no KVM is loaded; after reload: series\n"),
)
NAMES = {
    *("kernel", "picked", "processor", "paging", "secure_boot", "parameters", "eager_split", "vms"),
    *("dirty_log", "changes"),
}


def test_doctor(installed: Installed, programs: Mapping[str, Path]) -> None:
    rows = (line for line, _, _ in DOCTOR)
    told = run_all(rows, installed, f"{HAS_STOCK}\n{FUNCTIONS}", files=programs)
    check_told(told, DOCTOR)
    for line, said, _ in told:
        if line == "kvm-eager-split doctor":
            names = [each.partition(":")[0].lower() for each in said.splitlines()]
            assert {name.replace(" ", "_") for name in names} == NAMES and len(names) == 10
        elif line.endswith("--json"):
            assert json.loads(said).keys() == NAMES
