# SPDX-License-Identifier: GPL-2.0-only
"""The package of modules is installed, upgraded, taken back and removed on a real Debian.

A host has working modules at each moment, and each boot loads those that are to be loaded: by an
initramfs that has KVM, or by modprobe.
"""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lab.core.locks import locked
from lab.core.paths import BUILD
from lab.machines import Job
from lab.machines.disk import SvmQemuDisk
from lab.submit import lifecycle
from lab.submit.lifecycle import Lifecycle
from tests.builds import building

from .operators import FEWER_MODULES, PATCHED, SAME_FOR_ALL, SHELL, SUITE

# Three builds and a root file system: 26 minutes beside six other compilers on two cores.
MOST_S = 1800
pytestmark = [*SAME_FOR_ALL, pytest.mark.timeout(MOST_S)]

# Step, what it says, its exit status, the KVM that a boot would load meanwhile, and that of the
# initramfs at its end.
STEPS = (
    ("install", "kvm-eager-split: installed for ", 0, "stock OLD", "no KVM"),
    ("image with KVM", "", 0, "OLD", "OLD"),
    ("source moves on", "", 0, "OLD", "OLD"),
    ("no room to unpack", "No space left on device", 1, "OLD", "OLD"),
    ("no room to build", "a build needs 512 MiB in ", 0, "OLD", "OLD"),
    ("disk gets full", "no space left in /var/lib/dkms", 1, "OLD", "OLD"),
    ("killed", "", 137, "OLD", "OLD"),
    ("no room to install", "cannot be copied to /lib/modules/", 0, "OLD", "OLD"),
    ("upgrade", "contains KVM: running update-initramfs", 0, "OLD NEW", "NEW"),
    ("image without KVM", "", 0, "NEW", "no KVM"),
    ("back", "kvm-eager-split: installed for ", 0, "NEW OLD", "no KVM"),
)


@pytest.fixture(scope="module")
def life() -> Lifecycle:
    with building(), locked(BUILD / "installed.lock"):
        return lifecycle.run(SUITE, "amd64")


def test_working_modules_at_each_moment(life: Lifecycle) -> None:
    known = {life.old: "OLD", life.new: "NEW"}
    found = {step.name: step for step in life.steps}
    assert [*found] == [row[0] for row in STEPS]
    for name, said, status, kvm, image in STEPS:
        step = found[name]
        assert said in step.said
        seen = " ".join(known.get(each, each) for each in step.kvm)
        assert (name, step.status, seen) == (name, status, kvm)
        assert (name, known.get(step.image, step.image)) == (name, image)


# What a boot has loaded by itself. mmdebstrap gives all files that it has made the same time; on a
# host the image is newer than the modules.
BOOTED = """
touch /boot/initrd.img-*
cat /sys/module/kvm/version || echo 'no version'
kvm-eager-split status --json"""
# Removal while the series is loaded. The next boot finds the disk and the image as they are then.
REMOVED = f"""
{FEWER_MODULES}
apt-get remove -y kvm-eager-split-dkms || exit
cp /boot/initrd.img-* "$LAB_OUT/initrd"
sync"""
# After that boot: each ls fails, and two-dimensional paging is still there.
GONE = """
cd /sys/module/kvm && ls version
cd /lib/modules/* && ls updates/dkms/kvm*
ls /usr/sbin/kvm-eager-split /var/lib/dkms/kvm-eager-split
modprobe kvm_amd
cat /sys/module/kvm_amd/parameters/npt
modinfo -n kvm"""


def boot(life: Lifecycle, machine: SvmQemuDisk, *lines: str) -> tuple[str, dict[str, bytes]]:
    """What these lines print on an installed Debian, and the files that they leave."""
    script = "\n".join(("export PATH=/usr/sbin:/usr/bin:/sbin:/bin", *lines))
    job = Job(kernel=life.installed.kernel, command=(SHELL, "-c", script), timeout_s=600)
    result = machine.run(replace(job, sharing=PATCHED))
    return result.text, result.files


def said_by_status(text: str) -> dict[str, str]:
    (line,) = re.findall(r"^{.*}$", text, re.MULTILINE)
    return dict(json.loads(line))


def test_an_initramfs_without_kvm(life: Lifecycle) -> None:
    """Nothing is loaded until something asks for it, and that is the series."""
    initrd = life.installed.directory / "initrd-without-kvm"
    asked = "modprobe kvm_amd; kvm-eager-split status --json >$LAB_OUT/status"
    text, files = boot(life, life.installed.booted_by(initrd), BOOTED, asked)
    assert text.startswith("cat: /sys/module/kvm/version: No such file")
    assert said_by_status(text)["loaded"] == "none"
    said = json.loads(files["status"])
    assert (said["loaded"], said["version"], said["next"]) == ("series", life.old, "nothing to do")


def test_an_initramfs_with_kvm_until_the_removal(life: Lifecycle, tmp_path: Path) -> None:
    directory, disk = life.installed.directory, tmp_path / "root.ext2"
    subprocess.run(("cp", "--sparse=always", directory / "root.ext2", disk), check=True)
    machine = SvmQemuDisk(disk, directory / "initrd-with-kvm", keeps=True)
    text, files = boot(life, machine, BOOTED, REMOVED)
    assert text.startswith(f"{life.old}\n")
    said = said_by_status(text)
    assert {said["loaded"], said["after_reload"]} == {"series"}
    assert said["next"] == "nothing to do"
    assert "contains its modules: running update-initramfs\n" in text
    assert (
        "still loaded. Boot, or while no VM runs: modprobe -r kvm_amd && modprobe kvm_amd\n" in text
    )
    initrd = tmp_path / "initrd"
    initrd.write_bytes(files["initrd"])
    text, _ = boot(life, SvmQemuDisk(disk, initrd), "grep ^kvm /proc/modules", GONE)
    assert re.match(r"kvm_amd .*\nkvm ", text), text
    assert len(re.findall(r"^ls: .*No such file or directory$", text, re.MULTILINE)) == 4
    assert re.search(r"\nY\n/.*/kernel/arch/x86/kvm/kvm\.ko.*\n$", text), text
