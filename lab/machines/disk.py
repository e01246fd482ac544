# SPDX-License-Identifier: GPL-2.0-only
"""svm-qemu with a Debian root file system on a disk, as an installed kernel finds it."""

from collections.abc import Iterable
from pathlib import Path

from lab.machines import initramfs
from lab.machines.job import Job
from lab.machines.qemu import INITRAMFS, SvmQemu

GUEST = Path(__file__).parent / "guest"
# Inside the root file system -> what root_command() puts there.
INSTALLED = {"/lab/init": GUEST / "disk-init", "/lab/guest-init": initramfs.INIT}
PAYLOAD = "payload"
# mmdebstrap's words for apt and dpkg in any root file system.
APT = (
    # Processes that outlive apt-get for a moment would keep /dev/pts busy when it is unmounted.
    '--aptopt=Dpkg::Use-Pty "false"',
    # If a crash leaves it unfinished, it is made anew.
    "--dpkgopt=force-unsafe-io",
)
SECTOR = 512


def root_command(
    directory: Path, hooks: Iterable[str], suite: str, *words: str, include: str = ""
) -> tuple[str, ...]:
    """mmdebstrap's command line for DIRECTORY/root.ext2, which the machine can boot.

    hooks: the shell's words for what comes afterwards, with $1 for the root. words: mmdebstrap's.
    """
    both = [
        'mkdir -p "$1/lab"',
        *(f'cp {source} "$1{inside}"' for inside, source in INSTALLED.items()),
        'chmod 755 "$1/lab/init" "$1/lab/guest-init"',
        *hooks,
    ]
    return (
        "mmdebstrap",
        "--variant=minbase",
        "--format=ext2",
        *APT,
        f"--include=busybox-static,initramfs-tools,kmod{include}",
        *(f"--customize-hook={hook}" for hook in both),
        suite,
        str(directory / "root.ext2"),
        *words,
    )


class SvmQemuDisk(SvmQemu):
    """The machine for installed packages.

    disk: holds INSTALLED. A boot changes nothing there, unless `keeps`: then the next boot finds
    what this one has written, up to its last sync.
    """

    # KVM is a module here, and is loaded by the command: the job can't have parameters.
    def __init__(self, disk: Path, initrd: Path, *, keeps: bool = False) -> None:
        self._disk = disk
        self._initrd = initrd
        self._snapshot = "off" if keeps else "on"

    def cmdline(self, job: Job) -> list[str]:
        return [*super().cmdline(job), "root=/dev/vda", "rw", "init=/lab/init"]

    def argv(self, job: Job, cmdline: str) -> list[str]:
        words = [
            str(self._initrd) if word == INITRAMFS else word for word in super().argv(job, cmdline)
        ]
        return [
            *words,
            *("-drive", f"file={self._disk},if=virtio,format=raw,snapshot={self._snapshot}"),
            *("-drive", f"file={PAYLOAD},if=virtio,format=raw,readonly=on"),
        ]

    def prepare(self, job: Job, cmdline: str, image: bytes, directory: Path) -> None:
        data = initramfs.payload(job, self.name, self.levels)
        (directory / PAYLOAD).write_bytes(data + bytes(-len(data) % SECTOR))
