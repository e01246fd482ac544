# SPDX-License-Identifier: GPL-2.0-only
"""svm-qemu with a Debian root file system on a disk, as an installed kernel finds it."""

from pathlib import Path

from lab.machines import initramfs
from lab.machines.job import Job
from lab.machines.qemu import INITRAMFS, SvmQemu

GUEST = Path(__file__).parent / "guest"
# Inside the root file system -> what make_root() of lab.submit.packages puts there.
INSTALLED = {"/lab/init": GUEST / "disk-init", "/lab/guest-init": initramfs.INIT}
PAYLOAD = "payload"
SECTOR = 512


class SvmQemuDisk(SvmQemu):
    """The machine for installed packages. disk: holds INSTALLED, and stays as it is."""

    # KVM is a module here, and is loaded by the command: the job can't have parameters.
    def __init__(self, disk: Path, initrd: Path) -> None:
        self._disk = disk
        self._initrd = initrd

    def cmdline(self, job: Job) -> list[str]:
        return [*super().cmdline(job), "root=/dev/vda", "rw", "init=/lab/init"]

    def argv(self, job: Job, cmdline: str) -> list[str]:
        words = [
            str(self._initrd) if word == INITRAMFS else word for word in super().argv(job, cmdline)
        ]
        return [
            *words,
            *("-drive", f"file={self._disk},if=virtio,format=raw,snapshot=on"),
            *("-drive", f"file={PAYLOAD},if=virtio,format=raw,readonly=on"),
        ]

    def prepare(self, job: Job, cmdline: str, image: bytes, directory: Path) -> None:
        data = initramfs.payload(job, self.name, self.levels)
        (directory / PAYLOAD).write_bytes(data + bytes(-len(data) % SECTOR))
