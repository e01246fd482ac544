# SPDX-License-Identifier: GPL-2.0-only
"""The guest of `make bench WHAT=migrate`: its image for QEMU's -bios, and the notes that it writes.

guest/load.c defines the layout of the notes, struct results.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.core.errors import LabError, WorkFailed
from lab.core.steps import run_logged

GUEST = Path(__file__).parent / "guest"
SOURCES = (GUEST / "start.S", GUEST / "load.c")
SCRIPT = GUEST / "load.lds.S"
FLAGS = (
    *("-m64", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-pic", "-fno-pie"),
    *("-mno-red-zone", "-mgeneral-regs-only", "-fno-stack-protector", "-fcf-protection=none"),
    *("-fno-asynchronous-unwind-tables", "-nostdlib", "-static", "-no-pie"),
    *("-Wl,--build-id=none", "-Wl,--no-warn-rwx-segments"),
)

MIB = 1 << 20
PAGE = 4096
# MEMORY in load.h: memory for page tables, the image and the notes.
BELOW_MIB = 4
# The limits of the guest's mapping by 2 MiB pages, and of the address space below devices.
MOST_MIB = 2048
# The end of the stacks and notes of all vCPUs.
MOST_VCPUS = 16

MAGIC = 0x3174736F676D6967
HEADER = struct.Struct("<Q4I3Q3II8xQQ8x")
VCPU = struct.Struct("<3Q")
WINDOW = np.dtype(
    [("accesses", "<u4"), ("requests", "<u4"), ("longest_stall", "<u8"), ("longest_request", "<u8")]
)


@dataclass(frozen=True)
class Load:
    """The work of the guest. rate: requests per second of a vCPU. reads, writes: pages of each."""

    vcpus: int
    mib_per_vcpu: int
    rate: int
    reads: int
    writes: int

    @property
    def pages(self) -> int:
        """The number of pages of each vCPU, which is a power of two."""
        return self.mib_per_vcpu * MIB // PAGE

    @property
    def mib(self) -> int:
        return BELOW_MIB + self.vcpus * self.mib_per_vcpu

    def check(self) -> None:
        """LabError: a load that the guest cannot be built for."""
        if not 1 <= self.vcpus <= MOST_VCPUS:
            raise LabError(f"--vcpus: {self.vcpus} is not between 1 and {MOST_VCPUS}")
        if self.mib_per_vcpu < 2 or self.mib_per_vcpu & (self.mib_per_vcpu - 1):
            raise LabError(f"--mib: {self.mib_per_vcpu} is not a power of two, 2 or more")
        if self.mib > MOST_MIB:
            raise LabError(
                f"--mib: a guest of {self.mib} MiB is too large, {MOST_MIB} is the limit"
            )


def build(load: Load, directory: Path) -> Path:
    """Build the image for LOAD below DIRECTORY. WorkFailed: it does not compile or link."""
    load.check()
    directory.mkdir(parents=True, exist_ok=True)
    script, program, image = (directory / f"load.{end}" for end in ("lds", "elf", "bin"))
    names = ("vcpus", "pages", "rate", "reads", "writes")
    definitions = [f"-D{name.upper()}={getattr(load, name)}" for name in names]
    sections = ("-j", ".text", "-j", ".reset")
    for command in (
        ("gcc", "-E", "-P", "-x", "c", *definitions, str(SCRIPT), "-o", str(script)),
        ("gcc", *FLAGS, *definitions, "-T", str(script), *map(str, SOURCES), "-o", str(program)),
        ("objcopy", "-O", "binary", *sections, str(program), str(image)),
    ):
        run_logged("building the migrated guest", command, directory / "load.log", directory)
    return image


@dataclass(frozen=True)
class Vcpu:
    """The notes of a vCPU. wrong: accesses that did not find the value that was written last.

    windows: of type WINDOW, the accesses that began in each; the longest ones in ticks.
    """

    reads: int
    writes: int
    wrong: int
    windows: NDArray[Any]


@dataclass(frozen=True)
class Notes:
    """The notes of a guest. start: when the first window began, seconds of the host's clock."""

    start: float
    window_us: int
    tsc_khz: int
    pages: int
    vcpus: list[Vcpu]

    @property
    def wrong(self) -> int:
        return sum(vcpu.wrong for vcpu in self.vcpus)


def vcpu_size(windows: int) -> int:
    """The size of a vCPU's notes, in whole pages. A page with the header comes before all notes."""
    return -(-(VCPU.size + windows * WINDOW.itemsize) // PAGE) * PAGE


def _vcpu(data: bytes, offset: int, count: int) -> Vcpu:
    reads, writes, wrong = VCPU.unpack_from(data, offset)
    windows = np.frombuffer(data, WINDOW, count, offset + VCPU.size)
    # Leave out windows that have not begun. And leave out the last one that there is memory for:
    # it also has everything that came later.
    begun = np.flatnonzero(windows["longest_stall"][:-1])
    return Vcpu(reads, writes, wrong, windows[: begun[-1] + 1 if len(begun) else 0])


def parse(data: bytes) -> Notes:
    """Read the notes of a guest. WorkFailed: these are none, or the guest did not begin to work."""
    if len(data) < HEADER.size:
        raise WorkFailed("the guest's notes are missing")
    magic, vcpus, pages, windows, window_us, start, *clock = HEADER.unpack_from(data)
    then, khz, _, seconds, ns, _, _, since = clock
    if magic != MAGIC or not start or not khz:
        raise WorkFailed("the guest did not get to work, or its notes are damaged")
    size = vcpu_size(windows)
    if len(data) < PAGE + vcpus * size:
        raise WorkFailed("the guest's notes are incomplete")
    found = [_vcpu(data, at, windows) for at in range(PAGE, PAGE + vcpus * size, size)]
    # Convert the guest's TSC to the host's clock.
    begun = seconds + (ns + since) / 1e9 + (start - then) / khz / 1e3
    return Notes(begun, window_us, khz, pages, found)
