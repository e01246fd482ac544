# SPDX-License-Identifier: GPL-2.0-only
"""What an operator does on a host that has the package of modules, and what goes wrong there.

The host is a real Debian with its own kernel, booted on svm-qemu; all commands are root's.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

import pytest

from lab.submit.modules_proof import PAGE, Installed, commands

from .operators import FEWER_MODULES, HAS_STOCK, SAME_FOR_ALL, Row, check_told, run_all

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
    ("kvm-eager-split doctor", 0, "picked:       none: the package is not for "),
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


# The host that has built the package becomes one of the fleet, with an archive and without network.
BECOMES_ONE_OF_THE_FLEET = """\
mkdir /srv/archive && cd /srv/archive && cp /var/cache/kvm-eager-split/*.deb . &&
dpkg-scanpackages . >Packages &&
echo 'deb [trusted=yes] file:/srv/archive ./' >/etc/apt/sources.list &&
rm -f /etc/apt/sources.list.d/* &&
kvm-eager-split reload --stock &&
apt-get remove -y dkms kvm-eager-split-dkms"""
LEAVES = "kvm-eager-split reload --stock && dpkg -r kvm-eager-split-modules-$(uname -r)"
# A package of modules with another version, which is as long.
NEWER_COMES = """\
dpkg-deb -R kvm-*.deb new && rm kvm-*.deb && xz -d new/lib/modules/*/updates/dkms/* &&
find new -type f -exec sed -i s/eagersplit2/eagersplit3/g {} + &&
xz -0 --check=crc32 new/lib/modules/*/updates/dkms/* && dpkg-deb -Znone -b new kvm-3.deb &&
dpkg-scanpackages . >Packages"""
# Of a release that there is no package for.
ANOTHER_KERNEL = """\
mkdir -p /usr/local/sbin && PATH=/usr/local/sbin:$PATH &&
printf '#!/bin/sh\\necho 6.12.200+deb12-amd64\\n' >/usr/local/sbin/uname &&
chmod 755 /usr/local/sbin/uname"""
NO_PACKAGE = "apt-get -y install kvm-eager-split-modules-$(uname -r)"
THREE = ("status", "loaded_but_lazy", "left_behind")
NOTHING_YET = "".join(f"kvm_eager_split_{name} 0\n" for name in THREE)
# What is done before the commands of a block; the word of the block; the exit status of each of its
# commands, and what it says. The page has each such word.
RUNBOOK: tuple[tuple[tuple[Row, ...], str, tuple[tuple[int, str], ...]], ...] = (
    (
        ((FEWER_MODULES, 0, ""), ("cd /selftests", 0, "")),
        "first",
        (
            (3, "after reload: series"),
            (0, "loaded: series"),
            (0, "eager split:  active"),
            (0, ""),
            (0, "/var/cache/kvm-eager-split/"),
        ),
    ),
    (
        ((BECOMES_ONE_OF_THE_FLEET, 0, ""), ("modinfo -n kvm", 0, "kernel/arch/x86/kvm/")),
        "canary",
        ((0, "kvm-eager-split: installed for "), (3, "")),
    ),
    ((), "drained", ((0, "loaded: series"), (0, "eager split:  active"))),
    (
        (("kvm-eager-split doctor", 0, HAS), ("vm_begins", 0, "")),
        "guests",
        ((0, ""), (0, "")),
    ),
    (
        (("vm_ends", 0, ""), (LEAVES, 0, "loaded: stock")),
        "fleet",
        ((0, ""), (0, "kvm-eager-split: installed for "), (3, "")),
    ),
    (
        (
            ("kvm-eager-split reload", 0, "loaded: series"),
            ("vm_begins", 0, ""),
            (NEWER_COMES, 0, ""),
        ),
        "upgraded",
        ((0, ""), (0, "kvm-eager-split: installed for "), (0, "kvm-eager-split reload")),
    ),
    (
        ((ANOTHER_KERNEL, 0, ""), (NO_PACKAGE, 100, "Unable to locate package")),
        "update",
        ((4, "STOCK: the package is for other kernels than"),),
    ),
    (
        (("rm /usr/local/sbin/uname; hash -r", 0, ""),),
        "vms",
        ((0, ""), (6, "not active: eager_page_split=N"), (5, "nothing was changed: VMs run in")),
    ),
    (
        (("vm_ends", 0, ""),),
        "empty",
        ((0, "loaded: stock"), (0, ""), (0, "kernel/arch/x86/kvm/")),
    ),
)
AFTERWARDS: tuple[Row, ...] = (("ls /usr/sbin/kvm-eager-split", 2, "No such file"),)


def runbook(page: str) -> Iterator[Row]:
    """All that is done, and what has to come of it."""
    for before, part, ends in RUNBOOK:
        yield from before
        for command, (status, said) in zip(commands(page, part), ends, strict=True):
            assert said in page
            yield command, status, said
    yield from AFTERWARDS


def test_the_runbook(installed: Installed, programs: Mapping[str, Path]) -> None:
    """All of its commands, word by word, on a host of a fleet from the first to the last day."""
    page = PAGE.read_text()
    rows = list(runbook(page))
    words = re.findall(r"^```sh (\w+)$", page, re.MULTILINE)
    assert [word for word, _ in groupby(words)] == [part for _, part, _ in RUNBOOK]
    lines = (line for line, _, _ in rows)
    told = run_all(lines, installed, f"{HAS_STOCK}\n{FUNCTIONS}", files=programs)
    check_told(told, rows)
    three, one = (said for line, said, _ in told if line.startswith("kvm-eager-split metrics"))
    assert three == NOTHING_YET
    assert re.fullmatch(r'kvm_vm_eager_split_nomem_total\{.*name="dirty_log_perf_"\} 0\n', one)
