# SPDX-License-Identifier: GPL-2.0-only
"""vmx-bochs: Intel's VMX with EPT and PML, all CPUs in lockstep, by Bochs.

Time is simulated: 50 million instructions are a second, whatever the host does. Two runs of one job
give the same bytes, so one run is a measurement. Therefore everything that the machine can see is
fixed: the start of its clock, the dates of the boot medium, the bytes of the image. RDRAND cannot
be fixed, so the kernel is told not to use it, and programs must not use it either.

In this emulator an interrupt does not end the run of a VMX guest that has interrupts disabled: a
guest that never exits keeps its CPU.
"""

import os
import subprocess
from pathlib import Path
from types import MappingProxyType

from lab.core.errors import LabError
from lab.machines.emulated import COMMON_CMDLINE, CONSOLE, REPORT, EmulatedMachine
from lab.machines.initramfs import BUSYBOX
from lab.machines.job import Job

BOCHS = Path("/usr/bin/bochs")
BIOS = Path("/usr/share/bochs/BIOS-bochs-latest")
VGA_BIOS = Path("/usr/share/vgabios/vgabios.bin")
XORRISO = Path("/usr/bin/xorriso")
ISOLINUX = Path("/usr/lib/ISOLINUX/isolinux.bin")
LDLINUX = Path("/usr/lib/syslinux/modules/bios/ldlinux.c32")

# For the display "term", the only one that works without a screen; this lets it work without a
# terminal as well.
TERMINAL = ("TERM=vt100", "LINES=25", "COLUMNS=80")

MEDIUM = "boot.iso"
CONFIGURATION = "bochsrc"
DEBUGGER_COMMANDS = "debugger"

# Bochs keeps memory of the guest beyond this in a file.
MOST_HOST_MEMORY_MIB = 2048

# Memory below the hole for PCI devices, and the size of that hole, which ends at 4 GiB.
BELOW_HOLE_MIB = 3072
HOLE_MIB = 1024

IPS = 50_000_000
# 2000-01-01, for the machine's clock and the medium's dates alike.
EPOCH = 946684800

CMDLINE = (
    # Without a speed the port has 9600 baud, in simulated time.
    "console=ttyS0,115200",
    # After a panic the kernel restarts the machine by a triple fault, which ends the emulator.
    "reboot=t",
    "norandmaps",
    # Tickless CPUs that are all halted lose their timers here.
    "nohz=off",
    "highres=off",
    # CPUID claims 3.5 GHz; delays would take 70 times the instructions until it is measured.
    f"tsc_early_khz={IPS // 1000}",
    "cpu_init_udelay=0",
    # The CPUID of this model contradicts itself about XSAVE and HT. The kernel would notice, print
    # two WARNs, and not use them.
    "noxsave",
    # Bochs seeds RDRAND with the second at which it starts. With it the kernel's random numbers,
    # and so its hash tables and timing, differ between runs.
    "clearcpuid=ht,rdrand,rdseed",
)


def _installed_mib(job: Job) -> int:
    """The memory to install, including the part that the hole below 4 GiB hides, if any."""
    return job.memory_mib + (HOLE_MIB if job.memory_mib > BELOW_HOLE_MIB else 0)


def _configuration(job: Job) -> str:
    # panic: end at once, do not ask. realtime=0: the display's timing by simulated time too.
    # nohpet: its timers are those that the second serial port needs beside 15 CPUs.
    return f"""\
cpu: count={job.cpus}, ips={IPS}, model=corei7_skylake_x, reset_on_triple_fault=0
memory: guest={_installed_mib(job)}, host={min(_installed_mib(job), MOST_HOST_MEMORY_MIB)}
romimage: file={BIOS}, options=fastboot
vgaromimage: file={VGA_BIOS}
vga: extension=none, update_freq=1, realtime=0
display_library: term
pci: enabled=1, chipset=i440fx, advopts=nohpet
clock: sync=none, time0={EPOCH}
boot: cdrom
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path={MEDIUM}, status=inserted
com1: enabled=1, mode=file, dev={CONSOLE}
com2: enabled=1, mode=file, dev={REPORT}
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
speaker: enabled=0
log: log
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
"""


def _write_medium(job: Job, cmdline: str, image: bytes, directory: Path) -> None:
    """Make the boot medium. The same job gives the same bytes."""
    sources = {"isolinux.bin": ISOLINUX, "ldlinux.c32": LDLINUX, "kernel": job.kernel.resolve()}
    (directory / "initrd").write_bytes(image)
    menu = f"default job\nlabel job\nkernel kernel\ninitrd initrd\nappend {cmdline}\n"
    (directory / "isolinux.cfg").write_text(menu)
    sources.update({name: directory / name for name in ("initrd", "isolinux.cfg")})
    argv = [str(XORRISO), "-as", "mkisofs", "-quiet", "-o", MEDIUM, "-b", "isolinux.bin"]
    argv += ["-c", "boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table"]
    argv += ["--set_all_file_dates", f"={EPOCH}", "-graft-points"]
    argv += [f"{name}={path}" for name, path in sorted(sources.items())]
    made = subprocess.run(
        argv,
        cwd=directory,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        last = (made.stderr.strip().splitlines() or ["no message"])[-1]
        raise LabError(f"xorriso cannot make the boot medium: {last}")


class VmxBochs(EmulatedMachine):
    """The machine for measurements."""

    name = "vmx-bochs"
    max_cpus = 15  # Bochs runs out of timers with more
    lockstep = True
    most_memory_mib = 8192
    needs = MappingProxyType(
        {
            BOCHS: "bochs",
            Path("/usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_term_gui.so"): "bochs-term",
            BIOS: "bochsbios",
            VGA_BIOS: "vgabios",
            XORRISO: "xorriso",
            ISOLINUX: "isolinux",
            LDLINUX: "syslinux-common",
            BUSYBOX: "busybox-static",
        }
    )
    foreign = "kvm_amd"
    # Up to notices: sending the other messages of the boot takes a simulated second.
    levels = "0-5"

    def cmdline(self, job: Job) -> list[str]:
        # The BIOS does not report memory above 4 GiB to the kernel.
        above = job.memory_mib - BELOW_HOLE_MIB
        return [*CMDLINE, *COMMON_CMDLINE, *([f"memmap={above}M@4G"] if above > 0 else [])]

    def argv(self, job: Job, cmdline: str) -> list[str]:
        return ["env", *TERMINAL, str(BOCHS), "-q", "-f", CONFIGURATION, "-rc", DEBUGGER_COMMANDS]

    def prepare(self, job: Job, cmdline: str, image: bytes, directory: Path) -> None:
        _write_medium(job, cmdline, image, directory)
        (directory / CONFIGURATION).write_text(_configuration(job))
        (directory / DEBUGGER_COMMANDS).write_text("continue\nquit\n")
