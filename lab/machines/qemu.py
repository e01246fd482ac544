# SPDX-License-Identifier: GPL-2.0-only
"""svm-qemu: AMD's SVM with nested paging, by QEMU's translator.

Boots in a second and runs everything, so it is where tests run. Its times mean little:
a VM exit costs tens of microseconds, and vCPUs compete for the host's CPUs.
"""

from pathlib import Path
from types import MappingProxyType

from lab.machines.emulated import COMMON_CMDLINE, CONSOLE, REPORT, EmulatedMachine
from lab.machines.initramfs import BUSYBOX
from lab.machines.job import Job, Sharing

QEMU = Path("/usr/bin/qemu-system-x86_64")
INITRAMFS = "initramfs"
# More address bits than page tables of four levels map. With 52, KVM would have no reserved bit
# left to mark SPTEs of MMIO with.
PHYS_BITS = 51
# If a kernel sees a hypervisor, its spinlocks are not fair: of two CPUs, one might never get a
# lock.
FAIR = ("-global", "EPYC-x86_64-cpu.hypervisor=off")
# Time and random numbers repeat: an instruction takes 2^1 ns, and the seed is fixed.
COUNTED = ("-icount", "shift=1,sleep=off", "-rtc", "base=2026-01-01,clock=vm", "-seed", "1", *FAIR)


class SvmQemu(EmulatedMachine):
    """The machine for tests."""

    name = "svm-qemu"
    max_cpus = 8
    lockstep = False
    most_memory_mib = None
    needs = MappingProxyType({QEMU: "qemu-system-x86", BUSYBOX: "busybox-static"})
    foreign = "kvm_intel"
    levels = "0-7"

    def cmdline(self, job: Job) -> list[str]:
        return ["console=ttyS0", *COMMON_CMDLINE]

    def argv(self, job: Job, cmdline: str) -> list[str]:
        return [
            str(QEMU),
            *("-accel", f"tcg,thread={'multi' if job.sharing is Sharing.THREADS else 'single'}"),
            *(COUNTED if job.sharing is Sharing.COUNTED else ()),
            *("-cpu", f"EPYC,+svm,+npt,phys-bits={PHYS_BITS}"),
            *("-smp", str(job.cpus), "-m", f"{job.memory_mib}M"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-serial", f"file:{CONSOLE}", "-serial", f"file:{REPORT}"),
            *("-kernel", str(job.kernel.resolve()), "-initrd", INITRAMFS, "-append", cmdline),
        ]

    def prepare(self, job: Job, cmdline: str, image: bytes, directory: Path) -> None:
        (directory / INITRAMFS).write_bytes(image)
