# SPDX-License-Identifier: GPL-2.0-only
"""kvm-eager-split on a made-up host, by dash, which is what Debian has for /bin/sh."""

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lab.submit.modules import PARTS, TOOL
from tests.rows import for_each_row
from tests.unit.files import called, program, write

RELEASE = "6.12.1+deb12-cloud-amd64"
VERSION = "6.12.1-1+eagersplit1"
# Each script finds the host's root in $H. `next` there: the version of what modprobe loads.
# `refused`: kinds of module that the kernel does not take.
FAKES = {
    "uname": f"echo {RELEASE}",
    "id": "echo 0",
    "modinfo": 'case "$*" in *depends*) echo irqbypass ;; *) cat "$H/next" ;; esac',
    "load": """
    grep -qs "$1" "$H/refused" && exit 1
    mkdir -p "$H/sys/module/kvm/parameters" "$H/sys/module/$2"
    [ "$1" = stock ] && exit
    echo $VERSION >"$H/sys/module/kvm/version"
    echo Y >"$H/sys/module/kvm/parameters/eager_page_split"
    """,
    "modprobe": """
    [ "$1" = -c ] || echo "modprobe $*" >>"$H/calls"
    [ ! -e "$H/hangup" ] || for s in HUP INT QUIT TERM; do kill -$s $PPID; done
    case $1 in
    -c) echo "options kvm_amd npt=0" ;;
    -r) ! grep -qsx "$2" "$H/stuck" && rm -r "$H/sys/module/$2" ;;
    kvm_*) if [ -s "$H/next" ]; then load series "$1"; else load stock "$1"; fi ;;
    esac
    """,
    "insmod": """
    echo "insmod ${1##*/} $2" >>"$H/calls"
    case ${1##*/} in *amd*) module=kvm_amd ;; *) module=kvm ;; esac
    [ ! -d "$H/sys/module/$module" ] && load stock $module
    """,
    "mokutil": 'echo "$3 is already enrolled"',
}

# KVM's, and their modes.
STATISTICS = {
    "eager_split_done": 0o644,
    "halt_wait_hist": 0o644,
    "max_mmu_rmap_size": 0o644,
    "mmu_rmaps_stat": 0o644,
    "pages_2m": 0o444,
}


class Host:
    """A host with an AMD processor, the package for its kernel and modules built, none loaded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FAKES.items():
            text = text.replace("$VERSION", VERSION)
            program(root / "bin" / name, f"#!/bin/dash\n{text}\n")
        script = (PARTS / TOOL).read_text().replace("@VERSION@", VERSION)
        self.script = program(root / TOOL, script)
        self.write("proc/cpuinfo", "flags : fpu svm\n")
        self.write(f"usr/src/kvm-eager-split-{VERSION}/proved", f"kernel {RELEASE} 0\n")
        modules = f"lib/modules/{RELEASE}"
        self.write(f"{modules}/build/.config", "")
        for module in ("kvm", "kvm-amd", "kvm-intel"):
            self.write(f"{modules}/kernel/arch/x86/kvm/{module}.ko.xz", "")
        self.write("next", f"{VERSION}\n")

    def write(self, name: str, text: str) -> Path:
        return write(self.root / name, text)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        root = self.root
        return called(root, "dash", self.script, *words, H=root, KVM_EAGER_SPLIT_ROOT=root)

    def load(self, kind: str) -> None:
        called(self.root, "load", kind, "kvm_amd", H=self.root)

    def status(self, expected: int) -> dict[str, str]:
        done = self.run("status", "--json")
        assert (done.returncode, done.stderr) == (expected, "")
        said = json.loads(done.stdout)
        plain = self.run("status").stdout.splitlines()
        assert [line.partition(":")[0].lower().replace(" ", "_") for line in plain] == list(said)
        return dict(said)

    @property
    def calls(self) -> list[str]:
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_status(host: Host) -> None:
    said = host.status(3)
    assert said["eager_split"] == "not active: no KVM is loaded"
    host.load("series")
    (host.root / "sys/module/kvm_amd").rmdir()
    assert host.status(3)["eager_split"] == "not active: no KVM is loaded"
    shutil.rmtree(host.root / "sys/module/kvm")
    host.load("stock")
    said = host.status(3)
    assert said["eager_split"] == "NOT ACTIVE: the kernel's own KVM is loaded"
    assert (said["after_reload"], said["next"]) == ("series", "kvm-eager-split reload")
    host.load("series")
    said = host.status(0)
    assert (said["eager_split"], said["version"]) == ("active", VERSION)
    assert (said["parameters"], said["secure_boot"]) == ("eager_page_split=Y", "off")
    assert (said["vms"], said["held_by"]) == ("", "")
    assert said["cve-2026-46113"] == said["cve-2026-53359"] == "guard present"
    assert said["next"] == "nothing to do"
    host.write("sys/module/kvm/parameters/eager_page_split", "N\n")
    assert host.status(0)["eager_split"] == "not active: eager_page_split=N"
    host.write("next", "6.12.1-1+eagersplit2\n")
    assert host.status(0)["next"] == "kvm-eager-split reload"


def test_status_by_cron(host: Host) -> None:
    """Whose PATH has no sbin."""
    host.load("series")
    (host.root / "sbin").mkdir()
    (host.root / "bin/modinfo").rename(host.root / "sbin/modinfo")
    root, words = host.root, ("dash", host.script, "status")
    done = called(root, *words, H=root, KVM_EAGER_SPLIT_ROOT=root, PATH=f"{root}/bin:/bin")
    assert done.returncode == 0


def test_whatever_a_file_has(host: Host) -> None:
    host.load("series")
    host.write("sys/module/kvm/version", 'a+eagersplit\n"b\tc\\"\n')
    assert host.status(0)["version"] == 'a+eagersplit?"b?c?"'


def test_a_build_that_failed_is_said_loudly(host: Host) -> None:
    host.load("series")
    host.write("next", "")
    assert host.status(4)["after_reload"] == "STOCK: the modules were not built"
    head = "DKMS make.log for kvm-eager-split-1 for kernel {} (x86_64)\n"
    text = head.format("6.12.0") + "kvm-eager-split: not this kernel's\n"
    log = host.write(f"var/lib/dkms/kvm-eager-split/{VERSION}/build/make.log", text)
    assert host.status(4)["after_reload"] == "STOCK: the modules were not built"
    log.write_text(head.format(RELEASE) + "make: error\n")
    assert host.status(4)["after_reload"] == f"STOCK: the build failed, see {log}"
    log.write_text(head.format(RELEASE) + "kvm-eager-split: there is a reason\n")
    assert host.status(4)["after_reload"] == "STOCK: there is a reason"
    (host.root / f"lib/modules/{RELEASE}/build/.config").unlink()
    assert "apt install linux-headers-6.12.1" in host.status(4)["after_reload"]
    host.write(f"usr/src/kvm-eager-split-{VERSION}/proved", "kernel 6.12.10 0\n")
    reason = f"the package is for other kernels than {RELEASE}"
    assert host.status(4)["after_reload"] == f"STOCK: {reason}"
    done = host.run("reload")
    assert (done.returncode, host.calls) == (4, [])
    assert done.stderr == f"kvm-eager-split: nothing was changed: {reason}\n"


def test_secure_boot(host: Host) -> None:
    host.load("stock")
    asked = {"module/module/parameters/sig_enforce": "Y", "kernel/security/lockdown": "[integrity]"}
    for name, text in asked.items():
        file = host.write(f"sys/{name}", f"{text}\n")
        assert host.status(3)["secure_boot"] == "on, modules NOT signed"
        file.unlink()
    host.write("sys/firmware/efi/efivars/SecureBoot-8be4", "\x06\0\0\0\x01")

    def said() -> tuple[str, str]:
        told = host.status(3)
        return told["secure_boot"], told["next"].partition(",")[0]

    assert said() == ("on, modules NOT signed", "apt install openssl mokutil")
    host.write("var/lib/dkms/mok.pub", "")
    assert said() == ("on, key enrolled", "kvm-eager-split reload")
    program(host.root / "bin/mokutil", "#!/bin/sh\necho is not enrolled\n")
    assert said() == ("on, key NOT enrolled", "mokutil --import /var/lib/dkms/mok.pub")
    (host.root / "bin/mokutil").unlink()
    if not shutil.which("mokutil"):
        assert said() == ("on, NOT known whether the key is enrolled", "apt install mokutil")


def test_reload_and_back(host: Host) -> None:
    host.load("stock")
    assert host.run("reload").returncode == 0
    assert host.calls == ["modprobe -r kvm_amd", "modprobe -r kvm", "modprobe kvm_amd"]
    assert host.status(0)["loaded"] == "series"
    (host.root / "calls").unlink()
    assert host.run("reload", "--stock").stderr == "kvm-eager-split: loaded: stock\n"
    assert host.calls[2:] == [
        "modprobe irqbypass",
        "insmod kvm.ko.xz ",
        "modprobe irqbypass",
        "insmod kvm-amd.ko.xz npt=0",
    ]
    assert host.status(3)["loaded"] == "stock"


@for_each_row(
    "before, file, text, said, after",
    ("stock", "refused", "series", "load series, see dmesg; loaded again: stock", "stock"),
    ("series", "refused", "stock", "load stock, see dmesg; loaded again: series", "series"),
    ("series", "stuck", "kvm_amd", "load stock, see dmesg; loaded again: series", "series"),
    ("older", "refused", "series", "NOR series, see dmesg; loaded: stock", "stock"),
    ("stock", "refused", "stock series", "NOR stock, see dmesg; loaded: none", "none"),
    ("stock", "stuck", "kvm", "load series, see dmesg; loaded again: stock", "stock"),
)
def test_what_was_loaded_comes_back(
    host: Host, before: str, file: str, text: str, said: str, after: str
) -> None:
    host.load(before)
    if before == "older":
        host.write("sys/module/kvm/version", "6.12.1-1+eagersplit0\n")
    host.write(file, text)
    done = host.run("reload", *(["--stock"] if before == "series" else []))
    assert done.returncode == 1
    assert said in done.stderr
    assert json.loads(host.run("status", "--json").stdout)["loaded"] == after


def test_vms_keep_the_modules(host: Host) -> None:
    host.load("stock")
    # A name that neither JSON nor a terminal could have as it is.
    (host.root / "proc/123/fd").mkdir(parents=True)
    (host.root / "proc/123/comm").write_bytes(b'\x1b[2J"\\tq\n\xff\n')
    (host.root / "proc/123/fd/7").symlink_to("anon_inode:kvm-vm")
    name = '123 (?[2J"?tq??)'

    def kept(why: str) -> None:
        assert host.status(3)["next"] == f"end or migrate: {why}; then kvm-eager-split reload"
        done = host.run("reload")
        assert (done.returncode, host.calls) == (5, [])
        assert done.stderr == f"kvm-eager-split: nothing was changed: {why}\n"

    kept(f"VMs run in {name}")
    assert host.status(3)["vms"] == name
    (host.root / "proc/123/comm").unlink()
    assert host.status(3)["vms"] == ""
    shutil.rmtree(host.root / "proc/123")
    host.write("sys/module/kvm/holders/kvmgt/x", "")
    host.write("sys/module/kvm/refcnt", "1\n")
    kept("KVM is used by kvmgt")
    host.write("sys/module/kvm/refcnt", "2\n")
    kept("KVM is used by kvmgt tracing?")
    # Of another user, or of another container.
    host.write("sys/module/kvm_amd/refcnt", "2\n")
    kept("VMs run in what cannot be seen (2 uses)")
    program(host.root / "bin/id", "#!/bin/sh\necho 1000\n")
    done = host.run("reload")
    assert (done.returncode, host.calls) == (2, [])
    assert done.stderr == "kvm-eager-split: nothing was changed: only root can\n"


def test_a_reload_is_alone_and_is_not_interrupted(host: Host) -> None:
    host.load("stock")
    with host.script.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = host.run("reload")
    assert (done.returncode, host.calls) == (5, [])
    assert "another reload runs" in done.stderr
    host.write("hangup", "")
    assert host.run("reload").returncode == 0
    assert host.status(0)["loaded"] == "series"


def test_metrics(host: Host) -> None:
    """A checker takes them, with KVM's statistics of each VM under QEMU's name for it."""
    host.load("series")
    cmdline = 'qemu-x\0-name\0debug-threads=on,guest=a"b\\n,process=x\0'
    vms = {"12-7": cmdline, "345-11": "crosvm\0"}
    for number, (vm, cmdline) in enumerate(vms.items()):
        host.write(f"proc/{vm.partition('-')[0]}/cmdline", cmdline)
        host.write(f"proc/{vm.partition('-')[0]}/comm", "worker\n")
        for name, mode in STATISTICS.items():
            host.write(f"sys/kernel/debug/kvm/{vm}/{name}", f"{number + 5}\n").chmod(mode)
        host.write(f"sys/kernel/debug/kvm/{vm}/vcpu0/pid", "1\n")
        host.write(
            f"sys/kernel/debug/kvm/{vm}/dirty_log_hist",
            f"0 0 2\n511 {number} 1\n1023 {1 << 32} 0\n",
        )
    host.write("sys/kernel/debug/kvm/99-1/pages_2m", "1\n")
    done = host.run("metrics")
    assert (done.returncode, done.stderr) == (0, "")
    # Of OpenMetrics, those that a node exporter takes. A histogram without a sum it would give on
    # with neither its sum nor its count.
    known = ("counter", "gauge")
    assert all(line.endswith(known) for line in done.stdout.splitlines() if " TYPE " in line)
    families = text_string_to_metric_families(done.stdout)
    status, loaded, *of_vms, hold, wait = families
    assert [sample.value for sample in status.samples] == [0]
    assert loaded.samples[0].labels == {"kvm": "series", "version": VERSION}
    types = [(family.name.removeprefix("kvm_vm_"), family.type) for family in of_vms]
    gauges = [("max_mmu_rmap_size", "gauge"), ("pages_2m", "gauge")]
    assert types == [("eager_split_done", "counter"), *gauges]
    for family in of_vms:
        found = {(one.labels["vm"], one.labels["name"]): one.value for one in family.samples}
        assert found == {("12-7", 'a"b?n'): 5, ("345-11", "worker"): 6}
    assert (hold.name, hold.type) == ("kvm_vm_dirty_log_holds", "counter")
    assert (wait.name, wait.type) == ("kvm_vm_dirty_log_waits", "counter")
    assert {sample.name for sample in hold.samples} == {"kvm_vm_dirty_log_holds_total"}
    buckets = [(one.labels["le"], one.value) for one in hold.samples]
    limits = ("0.000000000", "0.000000511", "+Inf")
    assert buckets == [
        *zip(limits, (0, 0, 1 << 32), strict=True),
        *zip(limits, (0, 1, (1 << 32) + 1), strict=True),
    ]
    assert [one.value for one in wait.samples] == [2, 3, 3, 2, 3, 3]


def test_what_metrics_lack_is_said(host: Host) -> None:
    host.load("series")
    host.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    no_statistics, no_counters = host.run("metrics").stderr.splitlines()
    assert no_statistics.endswith("sys/kernel/debug/kvm cannot be read")
    assert no_counters == "kvm-eager-split: no counters: the kernel is locked down"
    host.write("sys/kernel/debug/kvm/x", "")
    host.write("sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
    assert host.run("metrics").stderr == ""


@pytest.mark.parametrize("words", [[], ["reload", "--json"], ["status", "x"], ["a", "b", "c"]])
def test_wrong_usage(host: Host, words: list[str]) -> None:
    done = host.run(*words)
    assert (done.returncode, done.stdout, host.calls) == (2, "", [])
    assert done.stderr.startswith("usage: ")
    assert host.run("--help").stdout == done.stderr
