# SPDX-License-Identifier: GPL-2.0-only
"""The package of modules in Debian's own kernels: the series, the kernel's own KVM, and back.

Nothing is built for this but the modules, by dkms, in root file systems that mmdebstrap makes.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lab import machines
from lab.core.locks import locked
from lab.core.paths import BUILD, LAYOUT, ROOT
from lab.machines import Job, Result
from lab.measure.migration import command, load
from lab.measure.migration.timeline import parse_stats
from lab.series.pin import read_pin
from lab.submit import modules, modules_proof
from lab.submit.modules_proof import VENDORS, Installed
from tests.builds import building

from .boots import Spent
from .operators import HAS_STOCK, PATCHED, Install, check_told, run_all
from .test_migration import LOAD
from .test_selftests import run_silent

PERF = "dirty_log_perf_test -V -s anonymous_hugetlb_2mb -v 1 -b 8M -i 2"
SERIES = (
    PERF,
    "x86/eager_split_modes_test -m long -m pae -m nonpaging",
    "x86/dirty_bits_test -q $dirty_bits",
)
STOCK = ("dirty_log_test -M clear-log -i 3 -I 10 -b 8M",)
# The slow one has a few events less.
DIRTY_BITS = {"svm-qemu": "-m nothing -m readonly -m root", "vmx-bochs": "-g L1 -m nothing"}
EACH_S = 120
FUNCTIONS = f"""
vendor=$1 dirty_bits=$2 parameter=$3
export PATH=/sbin:/bin
state() {{ kvm-eager-split status --json >"$LAB_OUT/$1"; echo $? >"$LAB_OUT/$1.status"; }}
run() {{ echo "$@"; timeout -s KILL {EACH_S} "/selftests/$@" || echo "FAILED ($?): $*"; }}
echo 64 >/proc/sys/vm/nr_hugepages"""
# Instead of `modprobe $vendor`.
LOOK = f"""
state nothing
modprobe kvm || exit
insmod /lib/modules/*/kernel/arch/x86/kvm/"$(echo $vendor | tr _ -)".ko* && exit 1
modprobe $vendor || exit
state booted
/selftests/{PERF} &
until set -- /sys/kernel/debug/kvm/*-*; [ -e "$1" ] || ! kill -0 $!; do :; done
kill -STOP $!
kvm-eager-split metrics >"$LAB_OUT/metrics"
grep . /sys/kernel/debug/kvm/* >"$LAB_OUT/kvm_stat" 2>/dev/null
kvm-eager-split reload --stock
echo "with a VM: $?"
kill -KILL $!
wait"""

# Installing the package takes three minutes, and most of these tests one or two. So `make test` has
# one kernel and one machine; `make test WHAT=modules` has all of them, for all bases.
pytestmark = pytest.mark.once
LATER = pytest.mark.long
DEBIAN = read_pin(LAYOUT).debian
FIRST, *OTHERS = DEBIAN
# Kernel, machine, two-dimensional paging.
ON_HOSTS = [
    pytest.param(suite, "amd64", "svm-qemu", tdp, marks=[LATER] if tdp or suite != FIRST else [])
    for suite in DEBIAN
    for tdp in (False, True)
]
IN_CLOUDS = [
    pytest.param(FIRST, "cloud-amd64", machine, tdp, marks=LATER)
    for machine in VENDORS
    for tdp in (False, True)
]


def state(result: Result, name: str) -> tuple[dict[str, str], int]:
    """What `status` says, and its exit status."""
    return json.loads(result.files[name]), int(result.files[f"{name}.status"])


def check_metrics(result: Result) -> None:
    """Of a VM that has just been made, by a process with the name of a selftest."""
    text = result.files["metrics"].decode()
    found = {one.name: one for one in text_string_to_metric_families(text)}
    (split,) = found["kvm_vm_eager_split_done"].samples
    assert (split.name, split.value) == ("kvm_vm_eager_split_done_total", 0)
    assert split.labels["name"] == "dirty_log_perf_"
    assert found["kvm_vm_pages_4k"].type == "gauge"
    assert found["kvm_eager_split_loaded_info"].samples[0].labels["kvm"] == "series"
    # kvm_stat takes all of these for numbers.
    lines = result.files["kvm_stat"].decode().splitlines()
    sums = {name.rpartition("/")[2]: int(value) for name, value in (o.split(":") for o in lines)}
    assert {"eager_split_done", "dirty_bits", "pf_taken"} <= set(sums)


def check_states(result: Result) -> None:
    said, status = state(result, "nothing")
    assert (said["loaded"], status) == ("none", 3)
    for name in ("booted", "again"):
        said, status = state(result, name)
        assert (said["eager_split"], said["loaded"], status) == ("active", "series", 0)
        assert "eager_page_split=Y dirty_bits=" in said["parameters"]
    said, status = state(result, "stock")
    assert (said["loaded"], said["after_reload"], status) == ("stock", "series", 3)
    assert "dirty_bits" not in said["parameters"]


@pytest.mark.parametrize("suite, flavour, name, tdp", ON_HOSTS + IN_CLOUDS)
def test_debians_kernel(
    suite: str,
    flavour: str,
    name: str,
    tdp: bool,
    install: Install,
    selftests: Callable[[str], Path],
) -> None:
    installed, (vendor, parameter) = install(suite, flavour), VENDORS[name]
    programs = [test.split()[0] for test in (*SERIES, *STOCK)]
    # What the tool says is the same everywhere, and takes minutes on vmx-bochs.
    look = name == "svm-qemu"
    lines = [
        FUNCTIONS,
        LOOK if look else "modprobe $vendor || exit",
        *(f"run {test}" for test in SERIES),
        "kvm-eager-split reload --stock || exit",
        'echo "mode: $(cat /sys/module/$vendor/parameters/$parameter)"',
        *(["state stock"] if look else []),
        *(f"run {test}" for test in STOCK),
        *(["kvm-eager-split reload || exit", "state again"] if look else []),
    ]
    job = Job(
        kernel=installed.kernel,
        command=("sh", "-c", "\n".join(lines), "sh", vendor, DIRTY_BITS[name], parameter),
        files=installed.files(vendor)
        | {f"/selftests/{program}": selftests("series") / program for program in programs},
        # Without PML there are Dirty bits to test. What the kernel warns of are its mitigations.
        cmdline=(f"{vendor}.{parameter}={tdp:d}", "kvm_intel.pml=0", "mitigations=off"),
        timeout_s=EACH_S * 6,
        sharing=PATCHED,
    )
    # What the CPU lacks that QEMU emulates.
    lacks = ["L2-noAD: no nested EPT", *([] if tdp else ["L2-noTDP: no nested NPT or EPT"])]
    result = run_silent(name, job, "|".join(lacks) if look else "")
    assert "FAILED" not in result.text, result.text
    assert "kvm: loading out-of-tree module" in result.kernel_log
    loaded = re.findall(r"loaded: (\w+)$", result.text, re.MULTILINE)
    assert loaded == (["stock", "series"] if look else ["stock"])
    assert re.findall(r"^mode: (.*)$", result.text, re.MULTILINE) == ["NY"[tdp]]
    if look:
        # The kernel's own, while kvm was that of the series.
        assert f"{vendor}: Unknown symbol kvm_x86_vendor_init (" in result.kernel_log
        process = r"\d+ \(dirty_log_perf_ of user \w+\)"
        busy = rf"nothing was changed: VMs run in {process}\nwith a VM: 5\n"
        assert re.search(busy, result.text), result.text
        check_states(result)
        check_metrics(result)


# If nothing else runs, a third of a second is enough for the restored guest to read all its memory.
AFTER_S = 4
ONE_VCPU = replace(LOAD, vcpus=1)
# N is not the default with shadow paging.
AS_ASKED = "{ [ $2 = N ] && echo off || echo on; } >/sys/module/kvm/parameters/dirty_bits"
RELOAD, STOCK_BACK = "kvm-eager-split reload", "kvm-eager-split reload --stock"
# Kernel whose KVM logs what the guest writes -> what loads that KVM, and what loads the other one.
MIGRATIONS = {"series": (RELOAD, STOCK_BACK), "base": (STOCK_BACK, f"{RELOAD} && {AS_ASKED}")}


def check_way_back(setting: str, files: Mapping[str, bytes]) -> int | None:
    """Pages were sent that were written meanwhile, and all memory was read after it.

    Returns the statistic that says whether they were found by Dirty bits.
    """
    lines = files[f"{setting}.back.qmp"].decode().splitlines()
    (answer,) = (one for one in map(json.loads, lines) if one.get("id") == "query-migrate")
    ram = answer["return"]["ram"]
    assert ram["dirty-sync-count"] >= 2
    assert ram["normal"] + ram["duplicate"] > ram["total"] // load.PAGE
    there, back = (load.parse(files[f"{setting}.{end}"]) for end in ("there", "restored"))
    for first, last in zip(there.vcpus, back.vcpus, strict=True):
        assert last.reads - first.reads >= there.pages
        assert last.writes > first.writes > 0
    stats = parse_stats(files[f"{setting}.back.stats"].decode())
    return stats["before"].get("dirty_bits")


@LATER
@pytest.mark.parametrize("suite", DEBIAN)
@pytest.mark.parametrize("tdp", [True, False])
def test_a_guest_moves_between_the_two(
    tdp: bool, suite: str, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved while it writes, by the one KVM, restored by the other, and the same back again.

    Every write is there: the guest looks for it at each access, in both places.
    """
    machine, installed = machines.get("svm-qemu"), install(suite, "amd64")
    usual = replace(command.DEFAULTS[machine.name], after_s=AFTER_S)
    monkeypatch.setitem(command.DEFAULTS, machine.name, usual)
    image, boots, lines = load.build(ONE_VCPU, tmp_path), [], ["export PATH=/sbin:/bin"]
    for kind, swaps in MIGRATIONS.items():
        (boot,) = command.migration_boots(machine, kind, [tdp], ONE_VCPU, 128)
        job = command.migration_job(machine, boot, installed.kernel, image)
        swap = shlex.quote("case $1 in source) {} ;; *) {} ;; esac".format(*swaps))
        own = f'mkdir "$LAB_OUT/{kind}"; LAB_OUT=$LAB_OUT/{kind} MIGRATE_KVM={swap}'
        lines += ["modprobe kvm_amd", f"{own} {shlex.join(job.command)} || exit"]
        boots.append(boot)
    job = replace(
        job,
        command=("sh", "-c", "\n".join(lines)),
        files={**job.files, **installed.files("kvm_amd")},
        parameters={},
        sharing=PATCHED,
        cmdline=(*job.cmdline, f"kvm_amd.npt={tdp:d}", "mitigations=off"),
    )
    result = run_silent(machine.name, job)
    loaded = ["series", "stock", "series"] * 3 + ["stock", "series", "stock"] * 2
    assert re.findall(r"loaded: (\w+)$", result.text, re.MULTILINE) == loaded
    by_dirty_bits, brought_back = [], []
    for boot in boots:
        own = f"{boot.kernel}/"
        files = {name.removeprefix(own): text for name, text in result.files.items() if own in name}
        # Among other things: the restored guest has found every write in all of its memory.
        found = [one for one in command.collect(boot, files) if one["record"] == "migration"]
        by_dirty_bits += [one["kvm_stats_before"].get("dirty_bits") for one in found]
        brought_back += [check_way_back(setting, files) for setting in boot.settings]
    assert by_dirty_bits == [0, 0, 1, None, None]
    assert brought_back == [None, None, None, 0, 1]


# As the package of a node exporter has it, for the timer.
EXPORTER = """
useradd --system --home-dir /var/lib/prometheus prometheus
mkdir -p /var/lib/prometheus/node-exporter
chown -hR prometheus: /var/lib/prometheus"""


@LATER
def test_the_page_for_operators(installed: Installed) -> None:
    """Every command of the page, in order; the first was run when the package was installed."""
    first, *rest = modules_proof.commands(modules_proof.PAGE.read_text())
    assert first.startswith("apt-get install")
    told = run_all(rest, installed, f"{HAS_STOCK}\n{EXPORTER}")
    assert [command for command, _, _ in told] == rest
    shown = [(status, said) for line, said, status in told if line == "kvm-eager-split status"]
    assert [status for status, _ in shown] == ["3", "0"]
    assert "NOT ACTIVE" in shown[0][1]
    assert shown[1][1].startswith("eager split:  active\n")
    assert {status for line, _, status in told if line != "kvm-eager-split status"} == {"0"}
    (tainted,) = (int(said) for line, said, _ in told if line.endswith("/tainted"))
    assert tainted & 12288 == 12288
    before, after = (said for line, said, _ in told if line.startswith("modinfo -n"))
    assert "/updates/dkms/" in before
    assert "/kernel/arch/x86/kvm/" in after


SCRIPTS = "/var/lib/dpkg/info/kvm-eager-split-dkms"
# What is done, its exit status, and what it says.
UNHAPPY = (
    ("dkms uninstall kvm-eager-split/$(dkms status | sed 's|.*/||;s|,.*||')", 0, ""),
    ("kvm-eager-split status --json", 4, "STOCK: the modules are built, not installed"),
    ("kvm-eager-split reload", 4, "nothing was changed: the modules are built, not installed"),
    ("kvm-eager-split install", 0, "installed for "),
    ("rm -r /var/lib/dkms/kvm-eager-split", 0, ""),
    ("kvm-eager-split status --json", 3, '"after_reload": "series"'),
    ("kvm-eager-split reload", 0, "loaded: series"),
    (f"{SCRIPTS}.prerm remove", 0, "while no VM runs: modprobe -r kvm_amd && modprobe kvm_amd\n"),
    ("modprobe -r kvm_amd && modprobe kvm_amd", 0, ""),
    ("modinfo -n kvm", 0, "/kernel/arch/x86/kvm/kvm.ko"),
    ("kvm-eager-split status --json", 4, "STOCK: the modules were not built"),
    ("sed -i 's/^kernel .* /&9/' /usr/src/kvm-eager-split-*/proved", 0, ""),
    (f"{SCRIPTS}.postinst abort-remove", 0, "NOT INSTALLED for"),
    ("modinfo -n kvm", 0, "/kernel/arch/x86/kvm/kvm.ko"),
    ("kvm-eager-split status --json", 4, "STOCK: linux-image-"),
    ("kvm-eager-split reload", 4, "nothing was changed: linux-image-"),
    ("kvm-eager-split reload --stock", 0, "loaded: stock"),
    ("kvm-eager-split metrics", 0, "kvm_eager_split_status 4\n"),
)


@LATER
def test_what_fails_leaves_the_kernels_own(installed: Installed) -> None:
    """The removal of what dkms no longer knows, taken back, and a build that is refused."""
    told = run_all((line for line, _, _ in UNHAPPY), installed)
    check_told(told, UNHAPPY)
    for line, said, _ in told:
        if line.endswith("--json"):
            assert json.loads(said)["loaded"] == "stock"


REFUSED = "the kernel refuses the modules: key NOT trusted without Secure Boot"
# The kernel takes signed modules only. These are signed by dkms's key, of which it does not know.
ENFORCED = (
    ("modprobe kvm_amd", 1, "Key was rejected by service"),
    ("kvm-eager-split status --json", 4, f'"after_reload": "NONE: {REFUSED}"'),
    ("kvm-eager-split reload", 4, f"nothing was changed: {REFUSED}"),
    ("kvm-eager-split install", 4, REFUSED),
    ("modinfo -n kvm", 0, "/kernel/arch/x86/kvm/kvm.ko"),
    ("modprobe kvm_amd", 0, ""),
    (f"{SCRIPTS}.postinst triggered", 0, "NOT INSTALLED for"),
    ("modinfo -n kvm", 0, "/kernel/arch/x86/kvm/kvm.ko"),
    ("kvm-eager-split status --json", 4, f'"after_reload": "STOCK: {REFUSED}"'),
    ("kvm-eager-split status", 4, "switch Secure Boot on, which is off"),
    ("kvm-eager-split reload", 4, f"nothing was changed: {REFUSED}"),
)


@LATER
def test_a_kernel_that_wants_signatures(installed: Installed) -> None:
    rows = (line for line, _, _ in ENFORCED)
    told = run_all(rows, installed, ":", "module.sig_enforce=1")
    check_told(told, ENFORCED)
    # None of the series is ever loaded.
    loaded = [json.loads(said)["version"] for line, said, _ in told if line.endswith("--json")]
    assert loaded == ["", ""]


@LATER
def test_a_kernel_comes_that_nothing_is_built_for() -> None:
    """Its package is installed all the same, what was built for the other one is gone."""
    with building(), locked(BUILD / "installed.lock"):
        release, text = modules_proof.come_again(FIRST, "amd64")
    assert "kvm-eager-split: NOT INSTALLED for" in text
    assert f"linux-image-{release} " in text
    status, state, kvm, *known = text[text.index("\nexit status") + 1 :].splitlines()
    assert (status, state) == ("exit status 0", "install ok installed")
    assert "/kernel/arch/x86/kvm/" in kvm
    assert [line.partition(",")[0].partition("/")[0] for line in known] == ["kvm-eager-split"]
    assert known[0].endswith(": added")


@LATER
@pytest.mark.parametrize("suite", DEBIAN)
def test_every_flavour_builds(suite: str) -> None:
    """Of those that the package refuses, rt-amd64 of 6.12 has another source."""
    with building(), locked(BUILD / "installed.lock"):
        text = modules_proof.build(suite)
    rows = [line.split()[:3] for line in text.splitlines()]
    built = {(release, file.partition(".")[0], magic) for release, file, magic in rows}
    wanted = {
        (release, module, release)
        for release in DEBIAN[suite].kernels
        for module in ("kvm", "kvm-intel", "kvm-amd")
    }
    refused = tuple(DEBIAN[suite].refused)
    assert {one for one in wanted if not one[0].endswith(refused)} <= built <= wanted, text


@LATER
def test_make_dkms(tmp_path: Path) -> None:
    """In a clean clone, which has no tree of the kernel."""
    clone = tmp_path / "clone"
    subprocess.run(("git", "clone", "-q", "--shared", ROOT, clone), check=True)
    # What the Makefile calls once there is a venv.
    command, env = (sys.executable, "-m", "lab", "dkms"), os.environ | {"LAB_BASE": LAYOUT.version}
    begin = Spent.so_far()
    subprocess.run(command, cwd=clone, env=env, check=True)
    spent = Spent.so_far() - begin
    (deb,) = clone.glob(f"build/dkms/{modules.PACKAGE}_*.deb")
    size = deb.stat().st_size
    print(f"make dkms: {spent.wall:.0f} s, {spent.cpu:.0f} s of processor time, {size} bytes")
    # Beside other tests it takes longer by the clock.
    assert spent.cpu <= 120
    assert size <= 200 * 1024
