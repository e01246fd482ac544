# SPDX-License-Identifier: GPL-2.0-only
"""kvm-eager-split on a made-up host, by dash, which is what Debian has for /bin/sh."""

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lab.submit.modules import PARTS, TOOL
from tests.rows import for_each_row
from tests.unit.fake_kvm_host import NOBODY, SCRIPT
from tests.unit.files import called, program, write
from tests.unit.processes import started, until

RELEASE = "6.12.1+deb12-cloud-amd64"
VERSION = "6.12.1-1+eagersplit1"
MODULES = ("kvm", "kvm-amd", "kvm-intel")
# Of two bases, and of one that is refused.
PROVED = f"""\
version {VERSION}
maintainer A <a@example.org>
source 6.12.1-1~deb12u1 linux-source-6.12 /usr/src/linux-source-6.12.tar.xz 0 kvm-6.12.patch
kernel {RELEASE} 0 6.12.1-1~deb12u1
kernel 6.12.1+deb12-rt-amd64 0 6.12.1-1~deb12u1
refused 6.12.1+deb12-rt-amd64 it was never tested
source 7.3.1-1 linux-source-7.3 /usr/src/linux-source-7.3.tar.xz 0 kvm-7.3.patch
kernel 7.3.1+deb13-cloud-amd64 0 7.3.1-1
kernel 7.3.1+deb13-amd64 0 7.3.1-1
"""
UPDATES = f"/lib/modules/{RELEASE}/updates/dkms"
# Each script finds the host's root in $H. `next` there: the version of what modprobe loads.
# `refused`: kinds of module that the kernel does not take.
FAKES = {
    "uname": f"echo {RELEASE}",
    "id": "echo 0",
    # It is called so often that the shell itself reads.
    "modinfo": """
    say() { while IFS= read -r line || [ -n "$line" ]; do echo "$line"; done; }
    is_torn() { [ -e "$H/torn" ] && grep -qsx "$1" "$H/torn"; }
    case "$*" in
    *depends*) echo irqbypass ;;
    *sig_key*) say <"$H/sig_key" ;;
    *" /"*) [ -e "$5.torn" ] || say <"$H/module" ;;
    *) if is_torn "$5"; then say <"$H/instead"; else say <"$H/next"; fi ;;
    esac
    """,
    "depmod": 'echo "depmod $*" >>"$H/calls"; index "$1"',
    # What is in place is what modprobe finds, and depmod has found it before it writes its index.
    "index": """
    set -- "$H/lib/modules/$1/updates/dkms"
    cat "$1/kvm.eagersplit.ko.xz" "$1/kvm.eagersplit.ko" 2>/dev/null | head -n 1 >"$H/next"
    """,
    "dkms": """
    echo "dkms $*" >>"$H/calls"
    [ ! -e "$H/hangup" ] || for s in HUP INT QUIT; do kill -$s $PPID; done
    tree=$H/var/lib/dkms/kvm-eager-split/$VERSION
    case $1 in
    build)
        echo "$(nice) $(ionice)${TMPDIR+ TMPDIR}" >>"$H/nice"
        [ ! -e "$tree/$7/x86_64" ] || exit 3
        mkdir -p "$tree/build" "$tree/$7/x86_64/module"
        echo "DKMS make.log for kvm-eager-split-1 for kernel $7 (x86_64)" >"$tree/build/make.log"
        cat "$H/error" >>"$tree/build/make.log" 2>/dev/null && rm -r "$tree/$7" && exit 10
        cd "$tree/$7/x86_64/module"
        for m in kvm kvm-amd kvm-intel; do cat "$H/module" >$m.eagersplit.ko.xz; done
        ;;
    esac
    """,
    "load": """
    grep -qs "$1" "$H/refused" && exit 1
    mkdir -p "$H/sys/module/kvm/parameters" "$H/sys/module/$2"
    [ "$1" = stock ] && exit
    for module in kvm "$2"; do cat "$H/next" >"$H/sys/module/$module/version"; done
    echo Y >"$H/sys/module/kvm/parameters/eager_page_split"
    """,
    "modprobe": """
    [ "$1" = -c ] || echo "modprobe $*" >>"$H/calls"
    [ "$1" != -r ] || [ ! -e "$H/start" ] || mv "$H/start" "$H/proc/123"
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
    # An image is a list of what is in it.
    "lsinitramfs": 'cat "$1"',
    "update-initramfs": """
    echo "update-initramfs $*" >>"$H/calls"
    [ ! -e "$H/no_image" ] || exit 1
    (cd "$H/lib/modules/$3" && find updates kernel -name 'kvm*.ko*') >"$H/boot/initrd.img-$3"
    """,
    "mokutil": 'echo "$3 is already enrolled"',
}

# What the link of an open file is.
VM = "anon_inode:kvm-vm"
# KVM's, and their modes.
COUNTS = ("eager_split_done", "halt_wait_hist", "max_mmu_rmap_size", "mmu_rmaps_stat")
STATISTICS = dict.fromkeys(COUNTS, 0o644) | {"pages_2m": 0o444}
# What `status` shows.
NAMES = (
    *("eager split", "kernel", "loaded", "version", "picked", "after reload", "parameters"),
    *("changed by", "VMs", "held by", "Secure Boot", "CVE-2026-46113", "CVE-2026-53359", "next"),
)


class Host:
    """A host with an AMD processor, the package for its kernel and modules built, none loaded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FAKES.items():
            text = text.replace("$VERSION", VERSION).replace("$UPDATES", UPDATES)
            program(root / "bin" / name, f"#!/bin/dash\n{text}\n")
        self.script = program(root / TOOL, (PARTS / TOOL).read_text().replace("@VERSION@", VERSION))
        self.write("proc/cpuinfo", "flags : fpu svm\n")
        sources = f"usr/src/kvm-eager-split-{VERSION}"
        self.write(f"{sources}/proved", PROVED)
        program(root / sources / "room", (PARTS / "room").read_text())
        modules = f"lib/modules/{RELEASE}"
        self.write(f"{modules}/build/.config", "")
        self.write_all({f"{modules}/kernel/arch/x86/kvm/{each}.ko.xz": "" for each in MODULES})
        self.write_all(dict.fromkeys(("next", "module"), f"{VERSION}\n"))

    def build(self) -> None:
        self.write_all({f"{BUILT}/{each}.eagersplit.ko.xz": f"{VERSION}\n" for each in MODULES})

    def write(self, name: str, text: str) -> Path:
        return write(self.root / name, text)

    def write_all(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            self.write(name, text)

    @property
    def environment(self) -> dict[str, Any]:
        """Of what is started on it, beside PATH."""
        return dict.fromkeys(("H", "KVM_EAGER_SPLIT_ROOT"), str(self.root))

    def called(self, *words: object, **env: Any) -> subprocess.CompletedProcess[str]:
        return called(self.root, *words, **self.environment, **env)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.called("dash", self.script, *words, TMPDIR="/tmp")

    def does(self, *words: str) -> tuple[int, str]:
        """Its exit status, and what it says."""
        done = self.run(*words)
        return done.returncode, done.stderr.removeprefix("kvm-eager-split: ")

    def process(self, number: int, name: str, link: str, uid: int = 0) -> Path:
        """Its directory. link: what its open file 7 is."""
        directory = self.root / f"proc/{number}"
        self.write(f"proc/{number}/comm", f"{name}\n")
        self.write(f"proc/{number}/status", f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (directory / "fd").mkdir()
        (directory / "fd/7").symlink_to(link)
        return directory

    def load(self, kind: str) -> None:
        self.called("load", kind, "kvm_amd")

    def status(self, expected: int) -> dict[str, str]:
        done = self.run("status", "--json")
        assert (done.returncode, done.stderr) == (expected, "")
        said = dict(json.loads(done.stdout))
        assert [*said] == [name.lower().replace(" ", "_") for name in NAMES]
        return said

    @property
    def calls(self) -> list[str]:
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_status(host: Host) -> None:
    assert host.status(3)["eager_split"] == "not active: no KVM is loaded"
    host.load("series")
    shutil.rmtree(host.root / "sys/module/kvm_amd")
    assert host.status(3)["eager_split"] == "not active: no KVM is loaded"
    shutil.rmtree(host.root / "sys/module/kvm")
    host.load("stock")
    said = host.status(3)
    assert said["eager_split"] == "NOT ACTIVE: the kernel's own KVM is loaded"
    assert (said["after_reload"], said["next"]) == ("series", "kvm-eager-split reload")
    # Guards of the kernel's own KVM, if that is not what the package is for.
    proved = host.write(f"usr/src/kvm-eager-split-{VERSION}/proved", "kernel 6.12.10 0\n")
    said = host.status(3)
    assert said["cve-2026-46113"] == said["cve-2026-53359"] == "guard not known"
    proved.write_text(f"kernel {RELEASE} 0\n")
    host.load("series")
    said = host.status(0)
    assert (said["eager_split"], said["version"]) == ("active", VERSION)
    assert (said["parameters"], said["secure_boot"]) == ("eager_page_split=Y", "off")
    assert (said["vms"], said["held_by"]) == ("", "")
    assert said["cve-2026-46113"] == said["cve-2026-53359"] == "guard present"
    assert said["next"] == "nothing to do"
    host.write("sys/module/kvm/parameters/eager_page_split", "N\n")
    said = host.status(6)
    assert said["eager_split"] == "not active: eager_page_split=N"
    assert said["next"].startswith("echo Y >/sys/module/kvm/parameters/eager_page_split;")
    host.write("sys/module/kvm/parameters/eager_page_split", "Y\n")
    host.write("next", "6.12.1-1+eagersplit2\n")
    assert host.status(0)["next"] == "kvm-eager-split reload"
    host.write("sys/module/kvm/version", 'a+eagersplit\n"b\tc\\"\n')
    assert host.status(0)["version"] == 'a+eagersplit?"b?c?"'
    # By cron, whose PATH has no sbin.
    (host.root / "sbin").mkdir()
    (host.root / "bin/modinfo").rename(host.root / "sbin/modinfo")
    done = host.called("dash", host.script, "status", PATH=f"{host.root}/bin:/bin")
    assert done.returncode == 0


@for_each_row("kind, status", ("none", 3), ("stock", 3), ("series", 0))
def test_programs_are_told_what_people_are(host: Host, kind: str, status: int) -> None:
    if kind != "none":
        host.load(kind)
    shown = host.run("status")
    assert (shown.returncode, shown.stderr) == (status, "")
    lines = [line.partition(":") for line in shown.stdout.splitlines()]
    told = host.status(status)
    assert [name for name, _, _ in lines] == [*NAMES]
    assert [value.strip() for _, _, value in lines] == [one or "none" for one in told.values()]


@for_each_row(
    "release, picked, after, then",
    (RELEASE, "kvm-6.12.patch on linux-source-6.12 6.12.1-1~deb12u1", "not built", ""),
    ("7.3.1+deb13-amd64", "kvm-7.3.patch on linux-source-7.3 7.3.1-1", "not built", ""),
    (
        "6.12.1+deb12-rt-amd64",
        "none: the package refuses 6.12.1+deb12-rt-amd64: it was never tested",
        "STOCK: the package refuses 6.12.1+deb12-rt-amd64: it was never tested",
        "install the package for 6.12.1+deb12-rt-amd64, if there is one",
    ),
    # Of the releases of Debian that the package has, only the host's own.
    (
        "6.1.0-30-cloud-amd64",
        "none: the package is not for 6.1.0-30-cloud-amd64",
        "STOCK: the package is for other kernels than 6.1.0-30-cloud-amd64",
        f"boot one of {RELEASE}, or install the package for 6.1.0-30-cloud-amd64, if there is one",
    ),
)
def test_the_kernel_that_is_picked(
    host: Host, release: str, picked: str, after: str, then: str
) -> None:
    program(host.root / "bin/uname", f"#!/bin/dash\necho {release}\n")
    host.write("etc/os-release", 'NAME="Debian"\nVERSION_ID="12"\n')
    host.write(f"lib/modules/{release}/build/.config", "")
    host.write("next", "")
    host.load("stock")
    said = host.status(4)
    assert (said["picked"], after in said["after_reload"]) == (picked, True)
    assert not then or said["next"] == then


INTEL = "flags : fpu vmx\nvmx flags : ept ept_ad pml\n"
AHEAD = "KVM splits huge pages ahead of writes (with eager_page_split=N at the first write)"
ANYWAY = (
    "dirty logging takes less time;"
    " with eager_page_split=N the first write splits a huge page in one fault"
)


@for_each_row(
    "cpuinfo, parameters, processor, paging, changes",
    ("flags : fpu\n", {}, "neither VMX nor SVM, or firmware", "", ""),
    (
        *(INTEL, {}, "Intel, EPT with Dirty bits, PML"),
        *("two-dimensional, TDP MMU, guests can nest", ANYWAY),
    ),
    (
        *(INTEL, {"kvm_intel/pml": "N"}, "Intel, EPT with Dirty bits, PML switched off"),
        *("two-dimensional, TDP MMU, guests can nest", f"{ANYWAY}; try dirty_bits=on"),
    ),
    (
        *(INTEL.replace("ept_ad pml", ""), {"kvm/tdp_mmu": "N", "kvm_intel/nested": "N"}),
        *(
            "Intel, EPT without Dirty bits, no PML",
            "two-dimensional, shadow MMU (tdp_mmu=N), guests ca",
        ),
        f"{AHEAD}; try dirty_bits=on",
    ),
    (
        *("flags : svm npt hypervisor\n", {"kvm_amd/npt": "0", "kvm_amd/nested": "1"}),
        *("AMD, NPT with Dirty bits, no PML; this host is a VM", "shadow paging, guests can nest"),
        f"{AHEAD}; it logs by Dirty bits instead of write-protection faults",
    ),
    (
        *("flags : svm\n", {"kvm_amd/nested": "0"}, "AMD, no two-dimensional paging, no PML"),
        *("shadow paging, guests cannot nest", AHEAD),
    ),
)
def test_doctor_says_what_a_host_has(
    host: Host,
    cpuinfo: str,
    parameters: dict[str, str],
    processor: str,
    paging: str,
    changes: str,
) -> None:
    host.write("proc/cpuinfo", cpuinfo)
    for name, value in parameters.items():
        host.write(f"sys/module/{name.replace('/', '/parameters/')}", f"{value}\n")
    said = json.loads(host.run("doctor", "--json").stdout)
    assert said["processor"].startswith(processor)
    assert said["paging"].startswith(paging)
    assert (said["changes"].startswith(changes), bool(said["changes"])) == (True, bool(changes))


def test_doctor_looks_at_vms_and_changes_nothing(host: Host) -> None:
    host.load("series")
    vmms = ((7, "qemu-system-x86"), (8, "firecracker"), (9, "crosvm"), (95, "cloud-hyperviso"))
    for number, name in vmms:
        host.process(number, name, VM)
    host.write_all(
        {f"sys/kernel/debug/kvm/7-11/pages_{size}": f"{size[0]}\n" for size in ("4k", "2m", "1g")}
    )
    host.write("sys/kernel/debug/kvm/8-5/pages_2m", "1\n")
    host.write("sys/kernel/debug/kvm/9-5/pages_2m", "1\n")
    host.write("sys/kernel/debug/kvm/95-5/pages_2m", "1\n")
    before = {file: file.stat() for file in host.root.rglob("*") if not file.is_symlink()}
    done = host.run("doctor")
    lines = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert (done.returncode, done.stderr, len(lines)) == (0, "", 10)
    assert lines["kernel"].endswith(f"{RELEASE}, flavour cloud-amd64")
    assert lines["eager split"].strip() == "active; after reload: series"
    assert (
        lines["VMs"]
        .strip()
        .startswith(
            "7 (qemu-system-x86) 4k=4 2m=2 1g=1; 8 (firecracker) 4k=? 2m=1 1g=?; 9 (crosvm) "
        )
    )
    assert lines["dirty log"].strip() == (
        "7 (qemu-system-x86) manual protection, unless it uses a dirty ring;"
        # Nothing is mapped when it enables the log (docs/snapshots.md).
        " 8 (firecracker) no manual protection: it logs memslots from their creation or never, so"
        " nothing is split ahead of writes;"
        " 9 (crosvm) not known;"
        " 95 (cloud-hyperviso) no manual protection: with eager_page_split=Y, enabling the log"
        " splits all memory"
    )
    after = {file: file.stat() for file in host.root.rglob("*") if not file.is_symlink()}
    assert {file: (one.st_mtime_ns, one.st_size) for file, one in before.items()} == {
        file: (one.st_mtime_ns, one.st_size) for file, one in after.items()
    }
    # Users other than root do not see the statistics.
    shutil.rmtree(host.root / "sys/kernel/debug/kvm")
    said = json.loads(host.run("doctor", "--json").stdout)
    assert said["vms"] == f"not known: {host.root}/sys/kernel/debug/kvm cannot be read"


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
    assert host.status(4)["next"] == (
        "remove the reason given in 'after reload'; then kvm-eager-split install"
    )
    same = "6.12.2+deb12-cloud-amd64 6.1.0-30-cloud-amd64"
    releases = [*same.split(), "6.12.2+deb12-amd64"]
    proved = "".join(f"kernel {release} 0\n" for release in releases)
    host.write(f"usr/src/kvm-eager-split-{VERSION}/proved", proved)
    reason = f"the package is for other kernels than {RELEASE}"
    assert host.status(4)["after_reload"] == f"STOCK: {reason}"
    package = f"install the package for {RELEASE}, if there is one"
    assert host.status(4)["next"] == f"boot one of {same}, or {package}"
    # Never one of another flavour, which may not boot here.
    proved = f"kernel {releases[-1]} 0\n"
    host.write(f"usr/src/kvm-eager-split-{VERSION}/proved", proved)
    assert host.status(4)["next"] == package
    assert (host.does("reload"), host.calls) == ((4, f"nothing was changed: {reason}\n"), [])


ENFORCE, LOCKDOWN = "sys/module/module/parameters/sig_enforce", "sys/kernel/security/lockdown"
SECURE_BOOT = {"sys/firmware/efi/efivars/SecureBoot-8be4": "\x06\0\0\0\x01"}
SHIM = "sys/firmware/efi/efivars/MokSBStateRT-605d"
BUILT = f"var/lib/dkms/kvm-eager-split/{VERSION}/{RELEASE}/x86_64/module"
LINK = f"var/lib/dkms/kvm-eager-split/kernel-{RELEASE}-x86_64"
# What modinfo says, and the certificate that has it.
KEY, CERTIFICATE = "0A:BC:1D\n", b"\x03\x02\x0a\xbc\x1d\x7f"
UNSIGNED = "the kernel refuses the modules: modules NOT signed"


def sign(host: Host) -> None:
    host.write("sig_key", KEY)
    (host.root / "var/lib/dkms/mok.pub").write_bytes(CERTIFICATE)


@for_each_row(
    "files, refused",
    ({ENFORCE: "Y\n"}, True),
    ({LOCKDOWN: "none [integrity] confidentiality\n"}, True),
    ({LOCKDOWN: "none integrity [confidentiality]\n"}, True),
    (SECURE_BOOT, True),
    (SECURE_BOOT | {ENFORCE: "Y\n", SHIM: "\x06\0\0\0\x01"}, True),
    ({ENFORCE: "N\n"}, False),
    # Of the two the kernel itself decides: shim can have it ignore Secure Boot.
    (SECURE_BOOT | {LOCKDOWN: "[none] integrity confidentiality\n"}, False),
)
def test_only_what_the_kernel_takes(host: Host, files: dict[str, str], refused: bool) -> None:
    """A boot would find modules that it refuses, and the host would have no KVM."""
    host.load("stock")
    host.write_all({"next": "", **files})
    if refused:
        assert host.does("install") == (4, f"nothing is installed for {RELEASE}: {UNSIGNED}\n")
        assert host.status(4)["after_reload"] == f"STOCK: {UNSIGNED}"
        assert host.does("reload") == (4, f"nothing was changed: {UNSIGNED}\n")
        sign(host)
        if files != SECURE_BOOT:
            why = "the kernel refuses the modules: key NOT trusted without Secure Boot"
            assert host.does("install") == (4, f"nothing is installed for {RELEASE}: {why}\n")
            assert host.status(4)["next"].startswith("switch Secure Boot on, which is off in the")
        host.write_all({**SECURE_BOOT, SHIM: "\x06\0\0\0\0"})
    for _ in range(2):
        assert host.does("install") == (0, f"installed for {RELEASE}\n")
    ours = f"-m kvm-eager-split -v {VERSION} -k {RELEASE}"
    assert host.calls == [f"dkms build {ours}", f"depmod {RELEASE}"]
    # By which dkms knows it.
    assert (host.root / LINK).readlink() == Path(VERSION, RELEASE, "x86_64")
    assert host.status(3)["secure_boot"] == ("on, key enrolled" if refused else "off")
    assert host.does("reload") == (0, "loaded: series\n")


def test_what_is_installed_and_refused_is_taken_away(host: Host) -> None:
    """As when Secure Boot is switched on afterwards."""
    host.build()
    host.write(f"{UPDATES[1:]}/kvm.eagersplit.ko", "x")
    host.write(ENFORCE, "Y\n")
    said = host.status(4)
    assert said["after_reload"] == f"NONE: {UNSIGNED}"
    assert (
        said["next"]
        == "kvm-eager-split install, which removes modules that are refused or incomplete"
    )
    assert host.does("reload") == (4, f"nothing was changed: {UNSIGNED}\n")
    assert host.does("install")[0] == 4
    assert [call.split()[1] for call in host.calls] == ["uninstall", RELEASE]
    assert host.status(4)["after_reload"] == f"STOCK: {UNSIGNED}"
    assert host.status(4)["next"].startswith("kvm-eager-split reload --stock; apt install openssl")
    assert host.does("reload", "--stock") == (0, "loaded: stock\n")
    assert host.status(4)["next"].startswith("apt install openssl")


@for_each_row("torn", "kvm", "kvm_amd", "kvm_intel")
def test_what_is_not_whole_is_taken_away(host: Host, torn: str) -> None:
    """As after a full disk, which dkms does not see, and which it can have lost sight of."""
    file, dep = f"{UPDATES[1:]}/{torn}.eagersplit.ko", f"lib/modules/{RELEASE}/modules.dep"
    said = "the modules are incomplete, is the disk full?"
    host.build()
    for left in (file, dep):
        host.write_all({"next": "", "torn": torn, left: ".eagersplit.ko"})
        assert host.status(4)["after_reload"] == f"NONE: {said}"
        assert host.does("install") == (4, f"nothing is installed for {RELEASE}: {said}\n")
        assert host.calls[-1] == f"depmod {RELEASE}"
        assert not [*host.root.glob("lib/modules/*/updates/dkms/*")]
        (host.root / dep).unlink(missing_ok=True)
        assert host.status(4)["after_reload"] == "STOCK: the modules are built, not installed"
    (host.root / "torn").unlink()
    assert host.does("install")[0] == 0
    # Modules of two versions are not whole either.
    old = "6.12.1-1+eagersplit0\n"
    host.write_all({"torn": f"{torn}\n", "instead": old, file: "x"})
    assert host.status(4)["after_reload"] == f"NONE: {said}"


@for_each_row("left", f"{BUILT}/kvm-amd.eagersplit.ko.xz.torn", LINK)
def test_what_dkms_has_in_pieces_is_made_anew(host: Host, left: str) -> None:
    """A module that is torn where it was built; a link as of one that is installed."""
    host.build()
    host.write_all({"next": "", "hangup": "", left: ""})
    assert host.does("install") == (0, f"installed for {RELEASE}\n")


OLD = "6.12.1-1+eagersplit0"


def put(host: Host, version: str, suffix: str = "ko.xz") -> None:
    """Modules that are installed."""
    files = {f"{UPDATES[1:]}/{each}.eagersplit.{suffix}": f"{version}\n" for each in MODULES}
    host.write_all({**files, "next": f"{version}\n"})


def in_place(host: Host) -> dict[str, str]:
    files = (host.root / UPDATES[1:]).iterdir()
    return {file.name: file.read_text().strip() for file in files}


@for_each_row(
    "spoil, why",
    ({"error": "make: no\nkvm-eager-split: it is newer\n"}, "it is newer"),
    ({"bin/cp": "#!/bin/sh\nexit 1\n"}, "the modules are built, but cannot be copied to "),
    ({ENFORCE: "Y\n", "sig_key": KEY}, "the kernel refuses the modules: "),
)
def test_an_upgrade_that_fails_keeps_what_is_installed(
    host: Host, spoil: dict[str, str], why: str
) -> None:
    host.load("older")
    for module in ("kvm", "kvm_amd"):
        host.write(f"sys/module/{module}/version", f"{OLD}\n")
    put(host, OLD)
    (host.root / "var/log").mkdir(parents=True)
    before = in_place(host)
    for name, text in spoil.items():
        host.write(name, text).chmod(0o755)
    if ENFORCE in spoil:
        # Only what is installed is signed by the key that the kernel knows.
        (host.root / "var/lib/dkms").mkdir(parents=True)
        sign(host)
        host.write_all(SECURE_BOOT)
        modinfo = (host.root / "bin/modinfo").read_text()
        unsigned = 'case "$*" in *sig_key*" /"*) exit ;; esac'
        program(host.root / "bin/modinfo", modinfo.replace("\n", f"\n{unsigned}\n", 1))
    status, said = host.does("install")
    assert (status, in_place(host)) == (1, before)
    assert said.startswith(f"{VERSION} is not installed for {RELEASE}: {why}")
    assert said.endswith(f"; {OLD} stays\n")
    found = host.status(0)
    assert (found["version"], found["after_reload"]) == (OLD, "series")
    assert found["next"] == f"kvm-eager-split install, as {VERSION} is not installed"


def test_an_upgrade_replaces_only_whole_modules(host: Host) -> None:
    """However the earlier ones are compressed, and also if the build was killed once."""
    put(host, OLD, "ko")
    host.write(f"{BUILT}/kvm.eagersplit.ko.xz", "of a build that was killed")
    # A copy that was not finished, as on a full disk.
    host.write(f"{UPDATES[1:]}/eagersplit-kvm.eagersplit.ko.xz.new", "half")
    dkms = (host.root / "bin/dkms").read_text()
    look = f'cat "$H{UPDATES}"/kvm*.ko >>"$H/seen"'
    program(host.root / "bin/dkms", dkms.replace("\n", f"\n{look}\n", 1))
    assert host.does("install") == (0, f"installed for {RELEASE}\n")
    # While it was built, and at the end.
    assert (host.root / "seen").read_text().split() == [OLD] * 3
    assert in_place(host) == {f"{each}.eagersplit.ko.xz": VERSION for each in MODULES}
    assert host.calls[1:] == [f"depmod {RELEASE}"]


def test_ended_by_a_signal_while_modules_are_replaced(host: Host) -> None:
    """Of two versions none loads. dkms build may be ended."""
    put(host, OLD)
    host.build()
    mv = '/bin/mv "$@"; kill -TERM $PPID; echo >>"$H/moved"'
    program(host.root / "bin/mv", f"#!/bin/dash\n{mv}\n")
    assert host.does("install") == (0, f"installed for {RELEASE}\n")
    assert in_place(host) == {f"{each}.eagersplit.ko.xz": VERSION for each in MODULES}
    assert host.calls == [f"depmod {RELEASE}"]
    # While they are taken away, too.
    host.write("torn", "kvm\n")
    depmod = (host.root / "bin/depmod").read_text()
    program(host.root / "bin/depmod", depmod + "kill -TERM $PPID\n")
    program(host.root / "bin/cp", "#!/bin/sh\nexit 1\n")
    assert (host.does("install")[0], in_place(host)) == (4, {})


# What modinfo says of a module that modprobe would load, by the file that is there.
OF_FILES = """*) set -- "$H{updates}/$(echo "$5" | tr _ -)".eagersplit.ko*; cat "$1" 2>/dev/null"""


@for_each_row("word", "install", "reload", "restore")
@for_each_row("moved", 0, 1, 2, 3)
def test_killed_while_modules_are_replaced(host: Host, moved: int, word: str) -> None:
    """A boot loads nothing of a mixed set. `status` says so, and the next run completes it."""
    put(host, OLD)
    host.load("stock")
    host.build()
    modinfo = (host.root / "bin/modinfo").read_text()
    own = OF_FILES.format(updates=UPDATES)
    begin, _, _ = modinfo.partition("    *) if is_torn")
    program(host.root / "bin/modinfo", f"{begin}    {own} ;;\n    esac\n")
    # The list of what is to be renamed is renamed first.
    count = f"""#!/bin/dash
echo >>"$H/moved"
[ "$(grep -c "" "$H/moved")" -gt {moved + 1} ] || exec /bin/mv "$@"
kill -KILL $PPID
"""
    program(host.root / "bin/mv", count)
    if moved == 3:
        program(host.root / "bin/depmod", "#!/bin/dash\nkill -KILL $PPID\n")
    assert host.run("install").returncode == -9
    versions = [host.root / UPDATES[1:] / f"{each}.eagersplit.ko.xz" for each in MODULES]
    assert [file.read_text().strip() for file in versions].count(VERSION) == moved
    if moved in (1, 2):
        killed = "NONE: an installation was killed while it replaced the modules"
        assert host.status(4)["after_reload"] == killed
    said = host.status(4 if moved in (1, 2) else 3)
    completes = "kvm-eager-split install, which completes an installation that was killed"
    assert said["next"] == completes
    (host.root / "bin/mv").unlink()
    program(host.root / "bin/depmod", f"#!/bin/dash\n{FAKES['depmod']}\n")
    (host.root / "calls").unlink(missing_ok=True)
    assert host.run(word).returncode == 0
    assert in_place(host) == {f"{each}.eagersplit.ko.xz": VERSION for each in MODULES}
    assert (host.root / LINK).readlink() == Path(VERSION, RELEASE, "x86_64")
    # Nothing was taken away for that, and depmod has made the index.
    assert host.calls[0] == f"depmod {RELEASE}"
    assert not [call for call in host.calls if call.startswith("dkms")]
    assert host.status(0 if word == "reload" else 3)["next"] != completes


@for_each_row("umask", "027", "077")
def test_everybody_may_read_what_is_installed(host: Host, umask: str) -> None:
    """Or monitoring, which is not root, takes the kernel's own modules for the next."""
    host.write("next", "")
    command = ("dash", "-c", f'umask {umask}; exec dash "$@"', "dash", host.script)
    assert host.called(*command, "install").returncode == 0
    for file in (host.root / UPDATES[1:], *(host.root / UPDATES[1:]).iterdir()):
        assert file.stat().st_mode & 0o444 == 0o444, file
    done = host.called(*command, "build", "--deb")
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(("dpkg-deb", "-c", host.root / DEB), capture_output=True, check=True)
    modes = {line.split()[0] for line in listed.stdout.decode().splitlines()}
    assert modes == {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"}


IMAGE = f"boot/initrd.img-{RELEASE}"
STOCK_KVM = "usr/lib/modules/x/kernel/arch/x86/kvm/kvm-amd.ko.xz\n"
UPDATE = f"update-initramfs -u -k {RELEASE}"


def test_an_initramfs_with_kvm_gets_what_is_installed(host: Host) -> None:
    """Without, a boot would load its copies whatever modprobe finds."""
    host.load("series")
    host.write("next", "")
    host.write("etc/initramfs-tools/modules", "# passthrough\nkvm_amd\n")
    image = host.write(IMAGE, STOCK_KVM)
    host.write("no_image", "")
    status, said = host.does("install")
    assert (status, host.calls[-1]) == (1, UPDATE)
    assert f"{image} STILL HAS OTHER MODULES, which a boot would load. Run: {UPDATE}\n" in said
    found = host.status(4)
    assert found["after_reload"] == f"series, but a boot gives the modules that {image} has"
    assert found["next"].startswith(f"{UPDATE}; ")
    (host.root / "no_image").unlink()
    assert host.does("install")[0] == 0
    assert "updates/dkms/kvm.eagersplit.ko.xz" in image.read_text()
    assert (host.status(0)["after_reload"], host.calls.count(UPDATE)) == ("series", 2)
    # Once.
    assert host.does("install")[0] == 0
    assert host.calls.count(UPDATE) == 2
    # What is taken away is taken away there, too.
    host.write_all({"torn": "kvm\n", "bin/cp": "#!/bin/sh\nexit 1\n"})
    (host.root / "bin/cp").chmod(0o755)
    assert host.does("install")[0] == 4
    assert (host.calls[-1], "eagersplit" in image.read_text()) == (UPDATE, False)


def test_an_initramfs_of_a_clock_that_was_ahead(host: Host) -> None:
    """It is newer than what has just been installed."""
    host.write("next", "")
    image = host.write(IMAGE, STOCK_KVM)
    os.utime(image, (time.time() + 86400,) * 2)
    assert host.does("install")[0] == 0
    assert UPDATE in host.calls and "updates/dkms/kvm.eagersplit.ko.xz" in image.read_text()


def test_an_initramfs_without_kvm_is_left_alone(host: Host) -> None:
    host.write("next", "")
    host.write(IMAGE, "usr/lib/modules/x/kernel/fs/ext4/ext4.ko\n")
    assert host.does("install")[0] == 0
    assert UPDATE not in host.calls
    assert host.status(3)["after_reload"] == "series"


def test_secure_boot(host: Host) -> None:
    """Modules are signed if they are, whatever keys there are."""
    host.load("stock")
    host.write_all({"next": "", **SECURE_BOOT})
    assert host.status(4)["secure_boot"] == "on, nothing is built"
    host.build()
    mok = host.write("var/lib/dkms/mok.pub", "another")

    def told(boot: str, advice: str) -> None:
        said = host.status(4)
        advice += "; then kvm-eager-split install"
        assert (said["secure_boot"], said["next"]) == (f"on, {boot}", advice)

    anew = f"apt install openssl mokutil; dkms unbuild kvm-eager-split/{VERSION} -k {RELEASE}"
    told("modules NOT signed", anew)
    host.write("sig_key", KEY)
    told(f"modules NOT signed by {mok}", anew)
    sign(host)
    told("key enrolled", "remove the reason given in 'after reload'")
    host.write("etc/dkms/framework.conf", "mok_certificate=/x.der")
    host.write("etc/dkms/framework.conf.d/a.conf", "d=/\nexport mok_certificate=${d}own.der # ours")
    told(f"modules NOT signed by {host.root}/own.der", anew)
    mok = mok.rename(host.root / "own.der")
    told("key enrolled", "remove the reason given in 'after reload'")
    program(host.root / "bin/mokutil", "#!/bin/sh\necho is not enrolled\n")
    told("key NOT enrolled", f"mokutil --import {mok}, boot, confirm")
    assert (host.does("install")[0], host.calls) == (4, [])
    (host.root / "bin/mokutil").unlink()
    if not shutil.which("mokutil"):
        told("NOT known whether the key is enrolled", "apt install mokutil")


def test_install(host: Host) -> None:
    """A build that fails, what is said of it after another kernel's, and a kernel of choice."""
    host.write("next", "")
    (host.root / "var/log").mkdir(parents=True)
    host.write("error", "make: no\nkvm-eager-split: it is newer\n")
    assert host.does("install") == (4, f"nothing is installed for {RELEASE}: it is newer\n")
    assert host.status(4)["after_reload"] == "STOCK: it is newer"
    # Nothing else of it is left, and a full disk is named.
    tree = host.root / f"var/lib/dkms/kvm-eager-split/{VERSION}"
    assert [*tree.iterdir()] == []
    host.write("error", "ld: final link failed: No space left on device\n")
    why = f"no space left in {host.root}/var/lib/dkms"
    assert host.does("install") == (4, f"nothing is installed for {RELEASE}: {why}\n")
    assert [*tree.iterdir()] == []
    # Also if the log had no room for it.
    host.write("error", "cc: internal compiler error\n")
    program(host.root / "bin/df", "#!/bin/sh\nprintf '%s\\n' h 'x 1 1 16383 1% /'\n")
    assert host.does("install") == (4, f"nothing is installed for {RELEASE}: {why}\n")
    (host.root / "bin/df").unlink()
    # Guests have the processors and disks first, and root does not compile in TMPDIR.
    nice = (host.root / "nice").read_text().split()
    assert nice == ["19", "idle"] * 3
    (host.root / "error").unlink()
    host.write(f"{BUILT}/kvm.eagersplit.ko.xz", "of a build that was killed")
    assert host.does("install")[0] == 0
    assert not [*(host.root / "var/log").iterdir()]
    host.write(f"usr/src/kvm-eager-split-{VERSION}/proved", "kernel 6.13 0\n")
    host.write("next", "")
    assert host.does("install", "6.13") == (0, "installed for 6.13\n")
    host.write("next", "")
    other = "nothing is installed for 6.14: the package is for other kernels than 6.14\n"
    assert host.does("install", "6.14") == (4, other)
    program(host.root / "bin/id", "#!/bin/sh\necho 1000\n")
    assert (host.does("install")[0], len(host.calls)) == (2, 7)


@for_each_row("way", "2>/dev/full", "3<>$H/pipe 2>$H/pipe 3>&-")
@for_each_row("word", "install", "reload")
def test_what_is_done_is_done_if_nobody_listens(host: Host, word: str, way: str) -> None:
    command = f"mkfifo $H/pipe; exec {way}; exec dash {host.script} {word}"
    assert host.called("sh", "-c", command).returncode == 0


def test_reload_and_back(host: Host) -> None:
    host.load("stock")
    assert host.run("reload").returncode == 0
    assert host.calls == ["modprobe -r kvm_amd", "modprobe -r kvm", "modprobe kvm_amd"]
    assert host.status(0)["loaded"] == "series"
    (host.root / "calls").unlink()
    assert host.run("reload", "--stock").stderr == "kvm-eager-split: loaded: stock\n"
    needs = "modprobe irqbypass"
    assert host.calls[2:] == [needs, "insmod kvm.ko.xz ", needs, "insmod kvm-amd.ko.xz npt=0"]
    assert host.status(3)["loaded"] == "stock"


@for_each_row(
    "before, file, text, said, after",
    ("stock", "refused", "series", "load series, see dmesg; loaded again: stock", "stock"),
    ("series", "refused", "stock", "load stock, see dmesg; loaded again: series", "series"),
    (
        "older",
        "refused",
        "series",
        "and could not load series again, see dmesg; loaded: stock",
        "stock",
    ),
    (
        "stock",
        "refused",
        "stock series",
        "and could not load stock again, see dmesg; loaded: none",
        "none",
    ),
    ("stock", "stuck", "kvm", "load series, see dmesg; loaded again: stock", "stock"),
)
def test_what_was_loaded_comes_back(
    host: Host, before: str, file: str, text: str, said: str, after: str
) -> None:
    host.load(before)
    if before == "older":
        for module in ("kvm", "kvm_amd"):
            host.write(f"sys/module/{module}/version", "6.12.1-1+eagersplit0\n")
    host.write(file, text)
    done = host.run("reload", *(["--stock"] if before == "series" else []))
    assert (done.returncode, said in done.stderr) == (1, True)
    assert json.loads(host.run("status", "--json").stdout)["loaded"] == after


@for_each_row("words, before", (["reload"], "stock"), (["reload", "--stock"], "series"))
def test_a_vm_that_has_just_started(host: Host, words: list[str], before: str) -> None:
    """After reload has looked, and before it unloads the first module."""
    host.load(before)
    host.process(123, "qemu", VM).rename(host.root / "start")
    host.write("stuck", "kvm_amd\n")
    assert host.does(*words) == (5, "nothing was changed: VMs run in 123 (qemu of user root)\n")
    assert host.calls == ["modprobe -r kvm_amd"]


@for_each_row("module", "kvm_amd", "kvm")
def test_what_does_not_unload(host: Host, module: str) -> None:
    """Also if kvm is alone, and if it is not known why."""
    host.load("stock")
    host.write("stuck", f"{module}\n")
    if module == "kvm":
        shutil.rmtree(host.root / "sys/module/kvm_amd")
    assert host.does("reload") == (
        5,
        f"nothing was changed: {module} cannot be unloaded, see dmesg\n",
    )


@for_each_row("module", "kvm", "kvm_amd")
def test_a_reload_gives_the_version_that_is_installed(host: Host, module: str) -> None:
    """Not an older one that stayed in either place."""
    host.load("stock")
    file = f"$H/sys/module/{module}/version"
    text = (host.root / "bin/load").read_text() + f'\n    echo 6.12+eagersplit0 >"{file}"\n'
    program(host.root / "bin/load", text)
    assert host.does("reload")[0] == 1


def test_vms_keep_the_modules(host: Host) -> None:
    host.load("stock")
    # A name that neither JSON nor a terminal could have as it is.
    process = host.process(123, "", VM)
    (process / "comm").write_bytes(b'\x1b[2J"\\tq\n\xff\n')
    name = '123 (?[2J"?tq?? of user root)'

    def kept(why: str) -> None:
        assert host.status(3)["next"] == f"end or migrate: {why}; then kvm-eager-split reload"
        assert (host.does("reload"), host.calls) == ((5, f"nothing was changed: {why}\n"), [])

    kept(f"VMs run in {name}")
    assert host.status(3)["vms"] == name
    # Files with statistics are uses of kvm that are not named: the VM is.
    for file, kind in (("8", "vm"), ("9", "vcpu")):
        (process / "fd" / file).symlink_to(f"anon_inode:kvm-{kind}-stats")
    host.write("sys/module/kvm/refcnt", "2\n")
    kept(f"VMs run in {name}")
    host.write("sys/module/kvm/refcnt", "3\n")
    kept(f"VMs run in {name}; KVM is used by tracing?")
    host.write("sys/module/kvm/refcnt", "0\n")
    (host.root / "proc/123/comm").unlink()
    assert host.status(3)["vms"] == ""
    shutil.rmtree(host.root / "proc/123")
    host.write("sys/module/kvm/refcnt", "1\n")
    kept("KVM is used by tracing?")
    host.write("sys/module/kvm/holders/kvmgt/x", "")
    kept("KVM is used by kvmgt")
    host.write("sys/module/kvm/refcnt", "2\n")
    kept("KVM is used by kvmgt, tracing?")
    # Of another user, or of another container.
    host.write("sys/module/kvm_amd/refcnt", "2\n")
    shutil.rmtree(host.root / "sys/module/kvm/holders")
    host.write("sys/module/kvm/refcnt", "0\n")
    kept("VMs run in processes that cannot be seen (2 uses)")
    program(host.root / "bin/id", "#!/bin/sh\necho 1000\n")
    assert (host.does("reload"), host.calls) == (
        (2, "nothing was changed: run this command as root\n"),
        [],
    )


def test_who_has_dev_kvm_open_is_named(host: Host) -> None:
    """By it any user who may open it keeps the modules in place, also without a VM."""
    host.load("stock")
    host.process(55, "sleep", "/dev/kvm", 12345)
    # Of a user without a name; with a VM it counts as that only.
    alice = host.process(56, "cat", "/dev/kvm", NOBODY)
    opened = "55 (sleep of user 12345, /dev/kvm only), 56 (cat of user nobody, /dev/kvm only)"
    said = host.status(3)
    assert (said["vms"], said["held_by"]) == ("", opened)
    why = f"KVM is used by {opened}"
    assert said["next"] == f"end or migrate: {why}; then kvm-eager-split reload"
    assert host.does("reload") == (5, f"nothing was changed: {why}\n")
    (alice / "fd/8").symlink_to("anon_inode:kvm-vm")
    opened = "55 (sleep of user 12345, /dev/kvm only)"
    why = f"VMs run in 56 (cat of user nobody); KVM is used by {opened}"
    assert host.does("reload") == (5, f"nothing was changed: {why}\n")
    # doctor does not take it for a VM whose statistics it cannot read.
    shutil.rmtree(alice)
    assert json.loads(host.run("doctor", "--json").stdout)["vms"] == ""
    # The kernel counts uses: nobody keeps root from a reload by another file of that name.
    host.write("sys/module/kvm_amd/refcnt", "0\n")
    assert host.status(3)["held_by"] == ""
    assert host.does("reload") == (0, "loaded: series\n")


def waiters(lock: Path) -> list[list[str]]:
    """The commands that wait for a lock."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    inode = f":{lock.stat().st_ino}"
    found = []
    for line in lines:
        if line[1] == "->" and line[6].endswith(inode):
            # It may have got the lock meanwhile.
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(line[5])).cmdline())
    return found


def test_a_reload_is_alone_and_is_not_interrupted(host: Host) -> None:
    host.load("stock")
    lock = host.root / "run/kvm-eager-split.lock"
    assert host.does("reload")[0] == 0
    # No user can hold it.
    assert lock.stat().st_mode & 0o777 == 0o600
    (host.root / "calls").unlink()
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert host.does("reload") == (
            5,
            "nothing was changed: another reload or install is running\n",
        )
        # An installation waits.
        words = ("dash", host.script, "install")
        env = {"PATH": f"{host.root}/bin:{os.environ['PATH']}"} | host.environment
        wanted = f"kvm-eager-split: waiting for another reload or install, which holds {lock}\n"
        told = host.write("told", "")
        with told.open("w") as to, started(words, env=env, stderr=to) as process:
            assert until(lambda: told.read_text() == wanted)
            # However long it takes.
            assert until(lambda: waiters(lock) == [["flock", "9"]])
            assert (process.poll(), host.calls) == (None, [])
            fcntl.flock(file, fcntl.LOCK_UN)
            assert process.wait(timeout=20) == 0
    (host.root / "calls").unlink(missing_ok=True)
    host.write("hangup", "")
    assert host.run("reload").returncode == 0
    assert host.status(0)["loaded"] == "series"


@for_each_row(
    "words, name",
    ("-name web", "web"),
    ("-name web,process=x", "web"),
    ("--name process=x,guest=a=b,debug-threads=on", "a=b"),
    ("-name guest=a,,b", "a,b"),
    ("-name debug-threads=on", "worker"),
    ("-m 1G", "worker"),
)
def test_the_name_of_a_vm_is_qemus_or_the_process(host: Host, words: str, name: str) -> None:
    host.load("series")
    host.write("proc/12/cmdline", "\0".join(["qemu", *words.split(), ""]))
    host.write("proc/12/comm", "worker\n")
    host.write("sys/kernel/debug/kvm/12-7/pages_2m", "1\n").chmod(0o444)
    assert f'name="{name}"' in host.run("metrics").stdout


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
    host.write("sys/kernel/debug/kvm/99-1/pages_2m", "1\n")
    done = host.run("metrics")
    assert (done.returncode, done.stderr) == (0, "")
    # Of OpenMetrics, those that a node exporter takes.
    known = ("counter", "gauge")
    assert all(line.endswith(known) for line in done.stdout.splitlines() if " TYPE " in line)
    families = text_string_to_metric_families(done.stdout)
    status, loaded, parameter, lazy, left, *of_vms = families
    assert parameter.samples[0].labels == {"name": "eager_page_split", "value": "Y"}
    assert [family.samples[0].value for family in (lazy, left)] == [0, 0]
    assert [sample.value for sample in status.samples] == [0]
    assert loaded.samples[0].labels == {"kvm": "series", "version": VERSION}
    types = [(family.name.removeprefix("kvm_vm_"), family.type) for family in of_vms]
    gauges = [("max_mmu_rmap_size", "gauge"), ("pages_2m", "gauge")]
    assert types == [("eager_split_done", "counter"), *gauges]
    for family in of_vms:
        found = {(one.labels["vm"], one.labels["name"]): one.value for one in family.samples}
        assert found == {("12-7", 'a"b?n'): 5, ("345-11", "worker"): 6}
    # What they lack is said.
    shutil.rmtree(host.root / "sys/kernel/debug")
    host.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    no_statistics, no_counters = host.run("metrics").stderr.splitlines()
    assert no_statistics.endswith("sys/kernel/debug/kvm cannot be read")
    assert no_counters == "kvm-eager-split: no counters: the kernel is locked down"
    host.write("sys/kernel/debug/kvm/x", "")
    host.write("sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
    assert host.run("metrics").stderr == ""


PARAMETERS = "/sys/module/kvm/parameters"
POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
BENCHMARK = f"by split-bench 77\n{POOL} 3 17\n{PARAMETERS}/eager_page_split Y N\n"


def gauges(host: Host) -> dict[str, float]:
    """Of the tool itself, those without labels."""
    families = text_string_to_metric_families(host.run("metrics").stdout)
    samples = [sample for family in families for sample in family.samples if not sample.labels]
    return {sample.name.removeprefix("kvm_eager_split_"): sample.value for sample in samples}


def test_what_a_killed_benchmark_has_left(host: Host) -> None:
    """It is named, an alert fires, and it is restored from the journal."""
    host.load("series")
    assert gauges(host) == {"status": 0, "loaded_but_lazy": 0, "left_behind": 0}
    host.write_all({POOL[1:]: "17\n", f"{PARAMETERS[1:]}/eager_page_split": "N\n"})
    journal = host.write("run/kvm-eager-split.journal", BENCHMARK)
    said = host.status(6)
    changed = "hugepages-2048kB/nr_hugepages=17, was 3; eager_page_split=N, was Y"
    # No benchmark holds the lock.
    assert said["changed_by"] == f"split-bench (process 77) killed: {changed}"
    assert said["next"] == "kvm-eager-split restore"
    assert gauges(host) == {"status": 6, "loaded_but_lazy": 1, "left_behind": 2}
    done = host.run("restore")
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 2)
    assert f"restored {POOL}: 3, not 17, which split-bench (process 77) left" in done.stderr
    assert ((host.root / POOL[1:]).read_text(), journal.exists()) == ("3\n", False)
    assert (host.status(0)["eager_split"], host.status(0)["changed_by"]) == ("active", "")
    assert host.does("restore") == (0, "")
    # All was restored by hand.
    journal.write_text(BENCHMARK)
    assert host.status(0)["changed_by"] == ""
    # By a reload, too, before it takes away what the setting is of.
    host.write(POOL[1:], "17\n")
    changed = host.status(6)["changed_by"]
    assert changed.endswith(" killed: hugepages-2048kB/nr_hugepages=17, was 3")
    assert host.does("reload")[0] == 0
    assert ((host.root / POOL[1:]).read_text(), journal.exists()) == ("3\n", False)


def test_what_cannot_be_restored_stays_in_the_journal(host: Host) -> None:
    host.load("series")
    host.write("sys/module/kvm/parameters/eager_page_split", "N\n")
    journal = host.write("run/kvm-eager-split.journal", BENCHMARK)
    parameter = host.root / f"{PARAMETERS[1:]}/eager_page_split"
    # A reader gets the value, a writer an error.
    program(
        host.root / "bin/cat",
        f"#!/bin/sh\n[ $# = 0 ] || [ $1 != {parameter} ] || exec echo N\nexec /bin/cat $*\n",
    )
    parameter.unlink()
    parameter.mkdir()
    for word in ("restore", "reload"):
        said = f"could not restore {PARAMETERS}/eager_page_split; by hand: echo Y > {PARAMETERS}/"
        assert said in host.run(word).stderr
        assert (host.run(word).returncode, journal.read_text()) == (1, BENCHMARK)
    assert host.calls == []


def test_a_benchmark_that_runs(host: Host) -> None:
    """Nothing is restored or swapped below it."""
    host.load("series")
    host.write("sys/module/kvm/parameters/eager_page_split", "N\n")
    host.write("run/kvm-eager-split.journal", BENCHMARK)
    with host.write("run/split-bench.lock", "").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = host.status(6)
        assert said["changed_by"] == "split-bench (process 77) running: eager_page_split=N, was Y"
        assert said["next"] == "wait: split-bench (process 77) running"
        assert gauges(host)["left_behind"] == 0
        why = "a benchmark, or a test that it has started, is running: split-bench (process 77)"
        for words in (["reload"], ["reload", "--stock"], ["restore"]):
            assert host.does(*words) == (5, f"nothing was changed: {why}\n")
    assert host.calls == []


@for_each_row("before, after", ("series", "active"), ("stock", "NOT ACTIVE: the kernel's own KVM"))
def test_a_reload_that_was_killed(host: Host, before: str, after: str) -> None:
    """It has left nothing loaded, and says in the journal what was there."""
    host.load(before)
    journal = host.root / "run/kvm-eager-split.journal"
    modprobe = (host.root / "bin/modprobe").read_text()
    program(host.root / "bin/modprobe", f"{modprobe}\n[ $2 != kvm ] || kill -KILL $PPID\n")
    assert host.run("reload", *["--stock"][: before == "series"]).returncode == -9
    program(host.root / "bin/modprobe", modprobe)
    to = "stock" if before == "series" else "series"
    by, line = journal.read_text().splitlines()
    assert (by.rpartition(" ")[0], line) == ("by kvm-eager-split", f"modules {before} {to}")
    said = host.status(3)
    assert said["changed_by"].endswith(f" killed: a reload from {before} to {to}")
    assert said["next"] == "kvm-eager-split restore"
    assert host.does("restore") == (0, f"loaded: {before}\n")
    assert not journal.exists()
    assert host.run("status").stdout.partition(":")[2].strip().startswith(after)
    # Nothing is noted any more once a reload has ended, whatever came of it.
    host.write("refused", "series stock")
    assert (host.does("reload")[0], journal.exists()) == (1, False)


@for_each_row("words", "status", "status --json", "metrics", "--help")
def test_output_that_fails_is_a_failure(host: Host, words: str) -> None:
    host.load("series")
    done = host.called("sh", "-c", f"exec dash {host.script} {words} >/dev/full")
    said = "kvm-eager-split: could not write to standard output\n"
    assert (done.returncode, done.stderr.endswith(said)) == (1, True)


@for_each_row("word", "install", "reload", "restore")
def test_a_directory_for_locks_that_cannot_be_written(host: Host, word: str) -> None:
    host.load("stock")
    (host.root / "run/kvm-eager-split.lock").mkdir(parents=True)
    why = f"nothing was changed: {host.root}/run cannot be written, is it mounted read-only?\n"
    assert (host.does(word), host.calls) == ((1, why), [])


CACHE = "var/cache/kvm-eager-split"
DEB = f"{CACHE}/kvm-eager-split-modules-{RELEASE}_{VERSION}_amd64.deb"


@for_each_row("built, words", (False, []), (True, [RELEASE]))
def test_a_package_of_modules(host: Host, built: bool, words: list[str]) -> None:
    """Built on one host, for one kernel, and installed where neither dkms nor a compiler is."""
    if built:
        host.build()
    done = host.run("build", "--deb", *words)
    assert (done.returncode, done.stdout) == (0, f"{host.root}/{DEB}\n"), done.stderr
    assert [call.split()[1] for call in host.calls] == ([] if built else ["build"])
    # Nothing is installed.
    assert not (host.root / UPDATES.strip("/")).exists()
    assert [file.name for file in (host.root / CACHE).iterdir()] == [Path(DEB).name]
    subprocess.run(("dpkg-deb", "-R", host.root / DEB, host.root / "out"), check=True)
    out = host.root / "out"
    fields = dict(
        line.split(": ", 1)
        for line in (out / "DEBIAN/control").read_text().splitlines()
        if not line.startswith(" ")
    )
    assert fields["Package"] == f"kvm-eager-split-modules-{RELEASE}"
    assert fields["Version"] == VERSION
    assert fields["Depends"] == f"linux-image-{RELEASE} (= 6.12.1-1~deb12u1), kmod"
    assert fields["Conflicts"] == "kvm-eager-split-dkms"
    assert fields["Maintainer"] == "A <a@example.org>"
    files = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
    own = f"usr/lib/kvm-eager-split/{RELEASE}"
    scripts = {f"DEBIAN/{name}" for name in ("postinst", "prerm", "postrm")}
    assert files == {
        *(f"{UPDATES.strip('/')}/{module}.eagersplit.ko.xz" for module in MODULES),
        *(f"{own}/kvm-eager-split", f"{own}/proved", "DEBIAN/control"),
        *scripts,
    }
    proved = (out / own / "proved").read_text()
    assert proved.splitlines() == [f"version {VERSION}", *PROVED.splitlines()[2:4]]
    for script in scripts:
        assert f"release={RELEASE}\n" in (out / script).read_text()
        assert (out / script).stat().st_mode & 0o777 == 0o755
    subprocess.run(("shellcheck", *(out / script for script in scripts)), check=True)
    # There, the command knows its kernel without the sources.
    shutil.rmtree(host.root / "usr/src")
    host.write(f"{own}/proved", proved)
    host.load("series")
    assert host.status(0)["picked"] == "kvm-6.12.patch on linux-source-6.12 6.12.1-1~deb12u1"
    # Once more takes the place of the first.
    assert host.run("build", "--deb").returncode == 0


@for_each_row(
    "words, status, said",
    (["6.1.0-30-amd64"], 4, "no package was made: the package is for other kernels than 6.1.0-30-"),
    (["6.12.1+deb12-rt-amd64"], 4, "no package was made: the package refuses 6.12.1+deb12-rt-amd"),
    (["x"], 2, 'there is no command "build --deb x", see'),
    ([RELEASE, "x"], 2, f'there is no command "build --deb {RELEASE} x", see'),
)
def test_no_package_of_modules(host: Host, words: list[str], status: int, said: str) -> None:
    found, told = host.does("build", "--deb", *words)
    assert (found, told.startswith(said), host.calls) == (status, True, [])
    assert not (host.root / CACHE).exists()


def test_a_package_of_modules_that_fails(host: Host) -> None:
    """Of a build that failed; without room; by somebody who is not root."""
    host.write("error", "kvm-eager-split: there is a reason\n")
    why = f"no package was made for {RELEASE}: there is a reason\n"
    done = host.run("build", "--deb")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.endswith(f"kvm-eager-split: {why}")
    (host.root / "error").unlink()
    host.build()
    fail = program(host.root / "bin/dpkg-deb", "#!/bin/sh\nexit 2\n")
    cache = host.root / CACHE
    assert host.does("build", "--deb") == (
        1,
        f"no package was made in {cache}, is the disk full?\n",
    )
    assert [*cache.iterdir()] == []
    fail.unlink()
    program(host.root / "bin/id", "#!/bin/sh\necho 1000\n")
    assert host.does("build", "--deb")[0] == 2


def test_both_commands_have_the_same_journal() -> None:
    begin, end = "# ---- The journal.", "# ---- end of the journal"
    texts = [file.read_text().partition(begin)[2].partition(end) for file in (SCRIPT, PARTS / TOOL)]
    assert texts[0][:2] == texts[1][:2] and texts[0][1] == end


@for_each_row(
    "words",
    [],
    ["reload", "--json"],
    ["status", "x"],
    ["doctor", "--yaml"],
    ["doctor", "--json", "x"],
    ["a", "b", "c"],
)
def test_wrong_usage(host: Host, words: list[str]) -> None:
    why = f'there is no command "{" ".join(words)}"' if words else "no command is named"
    done = host.run(*words)
    assert (done.returncode, done.stdout, host.calls) == (2, "", [])
    assert done.stderr == f"kvm-eager-split: {why}, see kvm-eager-split --help\n"
    assert host.run("--help").stdout.startswith("Usage: kvm-eager-split COMMAND\n")
