# SPDX-License-Identifier: GPL-2.0-only
"""What `make bench` runs: a matrix, spread over boots of a machine."""

import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from lab.build.selftests import PERF_TEST
from lab.core.errors import LabError
from lab.core.paths import ROOT
from lab.machines import Job, Machine
from lab.machines.bochs import VmxBochs
from lab.machines.paging import Mode
from lab.results import jsonl, tables
from lab.results.jsonl import Key
from lab.results.tables import BASE_VCPUS, MIB, OFF

SCRIPT = ROOT / "scripts" / "split-bench.sh"
# Where they are inside the machine, and what comes back.
INSIDE = "/bench"
OUTPUT = "results.jsonl"

# The machine with simulated time, and the pages behind its guests.
MACHINE = VmxBochs.name
HUGE_MIB = 2
MEMORY_MIB = 1024
# For the kernel, the initramfs and the selftest beside the guest's memory.
SPARE_MIB = 512

# Host seconds for the first announcement only, seen on two cores: to boot, and for one
# vCPU of one run. The time left is corrected by how fast the boots really get on.
BOOT_S = {"vmx-bochs": 14.0, "svm-qemu": 2.0, "host": 0.0}
VCPU_S = {"vmx-bochs": 0.7, "svm-qemu": 0.5, "host": 0.5}
# A machine that takes this many times as long as announced has hung.
PATIENCE = 20


# vCPUs, write percentage, initially-all-set, eager_page_split, backing, dirty_harvest.
Run = tuple[int, int, bool, str, str, str]


@dataclass(frozen=True)
class Matrix:
    """What one boot measures; the values are those of split-bench.sh's options."""

    vcpus: tuple[int, ...] = (2, 4, 8)
    writes: tuple[int, ...] = (100, 20)
    eager: tuple[str, ...] = ("N", "Y")
    init_set: str = "yes"
    bytes_per_vcpu: str = "4M"
    backing: tuple[str, ...] = ("anonymous_hugetlb_2mb",)
    iterations: int = 3
    # Of dirty_harvest; none: as the kernel has it, which may lack the parameter.
    harvest: tuple[str, ...] = ()
    # vCPUs that access memory once all of it is populated, if not all.
    busy: int | None = None

    @property
    def size(self) -> int:
        """Bytes of each vCPU. For a matrix that check_matrix() has passed."""
        units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
        text = self.bytes_per_vcpu.upper()
        return int(text.rstrip("KMG")) * units.get(text[-1], 1)

    @property
    def inits(self) -> tuple[bool, ...]:
        return {"yes": (True,), "no": (False,), "both": (True, False)}[self.init_set]

    @property
    def runs(self) -> list[Run]:
        """Every run; dirty_harvest is empty for what the kernel has."""
        harvest = self.harvest or ("",)
        values = (self.vcpus, self.writes, self.inits, self.eager, self.backing, harvest)
        return list(product(*values))

    @property
    def weight(self) -> int:
        """vCPUs of all runs, plus what starting each run costs in that unit."""
        return sum(vcpus + 2 for vcpus, *_ in self.runs)

    def arguments(self) -> list[str]:
        return [
            f"--vcpus={' '.join(map(str, self.vcpus))}",
            f"--writes={' '.join(map(str, self.writes))}",
            f"--eager={' '.join(self.eager)}",
            f"--init-set={self.init_set}",
            f"--bytes={self.bytes_per_vcpu}",
            f"--backing={' '.join(self.backing)}",
            f"--iterations={self.iterations}",
            *([f"--harvest={' '.join(self.harvest)}"] if self.harvest else []),
            *([f"--busy={self.busy}"] if self.busy else []),
        ]

    def parts(self) -> "Iterator[tuple[str, Matrix]]":
        """The boots that the matrix is spread over, each with what tells it from the others.

        One for each backing and log mode, and for each write percentage if a boot would take
        long otherwise: a boot is what an interrupted measurement loses.
        """
        long = self.weight > MOST_WEIGHT * len(self.backing) * len(self.inits)
        mixes = [(each,) for each in self.writes] if long else [self.writes]
        for backing, init, writes in product(self.backing, self.inits, mixes):
            words = [
                *([backing] if len(self.backing) > 1 else []),
                *(["initially-all-set" if init else "without"] if len(self.inits) > 1 else []),
                *([f"{writes[0]}% writes"] if len(mixes) > 1 else []),
            ]
            init_set = "yes" if init else "no"
            part = replace(self, backing=(backing,), init_set=init_set, writes=writes)
            yield ", ".join(words), part


# vCPUs of a boot's runs (see Matrix.weight) from which on it is split further.
MOST_WEIGHT = 400

# Those of split-bench.sh, but for its second backing in --full: that doubles the hours. And
# for dirty_harvest, which not every kernel has that the script may meet.
QUICK = Matrix(vcpus=(2, 8), iterations=2)
FULL = Matrix(
    vcpus=(2, 4, 8, 14, 16, 32, 64),
    writes=(100, 80, 50, 20, 5, 0),
    init_set="both",
    harvest=("off", "on"),
)

# By the names that --modes takes.
MODES = {
    "ept1": Mode(True),
    "ept0": Mode(False),
    "tdp": Mode(True, True),
    "ept1-nopml": Mode(True, pml=False),
    "tdp-nopml": Mode(True, True, pml=False),
}
# Of the writes, percent: goals for enabling in the TDP MMU are judged by three runs.
THIRD_MIX = 5
# Those that the default has with all of its vCPU counts.
SCALING = (MODES["ept1"], MODES["ept0"])


def modes_of(machine: str) -> tuple[str, ...]:
    """The modes that a machine can boot in: PML is Intel's."""
    return tuple(name for name, mode in MODES.items() if mode.pml or machine == VmxBochs.name)


def logs_by_itself(machine: str, mode: Mode) -> bool:
    """The CPU logs (PML), so dirty_harvest changes nothing."""
    return machine == VmxBochs.name and mode.ept and mode.pml


@dataclass(frozen=True)
class Boot:
    """One boot of a machine. mode: None to take the host as it is.

    part: what tells it from other boots of the same kernel and mode, empty if there are none.
    also: measured after the matrix, which has nothing of it.
    """

    machine: str
    kernel: str
    mode: Mode | None
    matrix: Matrix
    part: str = ""
    also: tuple[Matrix, ...] = ()

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return (self.matrix, *self.also)

    @property
    def verified(self) -> tuple[Matrix, ...]:
        """What is run with -V after all that is measured, untimed.

        Whatever changes what KVM does, once: with the most writes, and with two vCPUs, as their
        number changes nothing of it but for how long it is measured.
        """
        vcpus = min(2, *(vcpus for matrix in self.matrices for vcpus in matrix.vcpus))
        writes = max(writes for matrix in self.matrices for writes in matrix.writes)
        found: list[Matrix] = []
        done: set[Run] = set()
        for each in self.matrices:
            matrix = replace(each, vcpus=(vcpus,), writes=(writes,))
            if not done.issuperset(matrix.runs):
                found.append(matrix)
                done.update(matrix.runs)
        return tuple(found)

    @property
    def label(self) -> str:
        mode = [tables.mode_of(self.machine, self.mode)] if self.mode else []
        return ", ".join([self.kernel, *mode, *([self.part] if self.part else [])])

    @property
    def parameters(self) -> dict[str, str]:
        return self.mode.parameters(self.machine, self.kernel) if self.mode else {}

    @property
    def _slowness(self) -> float:
        """A lockstep machine executes its CPUs in turn; BOOT_S and VCPU_S are those with nine."""
        if self.machine != VmxBochs.name:
            return 1.0
        return (1 + min(max(self.matrix.vcpus) + 1, VmxBochs.max_cpus)) / 10

    @property
    def boot_s(self) -> float:
        return BOOT_S[self.machine] * self._slowness

    @property
    def runs_s(self) -> float:
        """The same for the runs, without the boot."""
        weight = sum(matrix.weight for matrix in self.matrices)
        return VCPU_S[self.machine] * self._slowness * weight

    @property
    def verified_s(self) -> float:
        """The same for what is verified."""
        weight = sum(matrix.weight for matrix in self.verified)
        return VCPU_S[self.machine] * self._slowness * weight

    @property
    def estimate_s(self) -> float:
        return self.boot_s + self.runs_s + self.verified_s


def _beside(kernel: str, mode: Mode, matrix: Matrix) -> Matrix | None:
    """What is measured of KERNEL beside the series: what the tables compare, no more.

    The TDP MMU splits eagerly in the unpatched kernel, too, and knows no gates.
    """
    compared = {"base": "NY" if mode.tdp_mmu else "N", "peer": "" if mode.tdp_mmu else "Y"}
    eager = tuple(value for value in matrix.eager if value in compared[kernel])
    if not eager or (matrix.harvest and OFF not in matrix.harvest):
        return None
    fitting = [vcpus for vcpus in matrix.vcpus if vcpus <= BASE_VCPUS]
    vcpus = (max(fitting, default=min(matrix.vcpus)),)
    return replace(matrix, eager=eager, vcpus=matrix.vcpus if kernel == "peer" else vcpus)


def _fitting(machine: str, kernel: str, mode: Mode, matrix: Matrix) -> Matrix | None:
    """The matrix without dirty_harvest where there is none, or where it changes nothing.

    None if nothing is left: then dirty_harvest was not to be off.
    """
    if kernel == "series" and not logs_by_itself(machine, mode):
        return matrix
    return replace(matrix, harvest=()) if OFF in (matrix.harvest or (OFF,)) else None


def _quick(boot: Boot) -> Boot:
    """The boot, measuring the other log mode and dirty_harvest=on as well.

    These, and what is not SCALING, where there are most vCPUs only.
    """
    if boot.kernel == "peer" or not boot.mode:
        return boot
    most = replace(boot.matrix, vcpus=(max(boot.matrix.vcpus),))
    also = [replace(most, writes=(max(most.writes),), init_set="no")]
    if boot.mode.tdp_mmu:
        writes = (*most.writes, THIRD_MIX)
        also = [replace(most, writes=(THIRD_MIX,)), replace(most, writes=writes, init_set="no")]
    if boot.kernel == "series" and not logs_by_itself(boot.machine, boot.mode):
        also += [replace(one, eager=("Y",), harvest=("on",)) for one in (most, *also)]
    matrix = boot.matrix if boot.mode in SCALING else most
    return replace(boot, matrix=matrix, also=tuple(also))


def quick(boots: Sequence[Boot]) -> list[Boot]:
    """What is measured of QUICK by default; without PML, nothing beside the shadow MMU."""
    first, alone = boots[0].kernel, MODES["ept1-nopml"]
    return [_quick(boot) for boot in boots if boot.kernel == first or boot.mode != alone]


def bench_boots(
    machine: str, kernels: str, matrix: Matrix, modes: Sequence[str] = tuple(MODES)
) -> list[Boot]:
    """The boots for one invocation.

    kernels: a kind of kernel, or "all" for the series with Y of the ungated baseline and N of the
    base beside it. modes: keys of MODES. `host` has one kernel and one mode only. dirty_harvest is
    left alone where the CPU logs by itself.
    """
    first = "series" if kernels == "all" else kernels
    if machine == "host":
        return [Boot(machine, first, None, matrix)]
    return [
        Boot(machine, kernel, mode, part, words)
        for kernel in ((first, "peer", "base") if kernels == "all" else (first,))
        for mode in (MODES[name] for name in modes)
        if (each := matrix if kernel == first else _beside(kernel, mode, matrix))
        if (fitting := _fitting(machine, kernel, mode, each))
        for words, part in fitting.parts()
    ]


def check_matrix(matrix: Matrix) -> None:
    """Let split-bench.sh judge its options. LabError: what it found wrong."""
    command = ["sh", str(SCRIPT), "--dry-run", "--test=/bin/true", *matrix.arguments()]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    if judged.returncode:
        raise LabError(without_name(judged.stderr))


def check_modes(machine: str, modes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The modes asked for, if any. LabError: not of MODES, twice, none, or not to be chosen."""
    if modes is None:
        return None
    if machine == "host":
        raise LabError("--modes: host takes the paging mode that its KVM was loaded with")
    known = modes_of(machine)
    unknown = [word for word in modes if word not in known]
    if unknown:
        raise LabError(f"--modes: {unknown[0]!r} is none of {', '.join(known)}")
    if not modes or len(set(modes)) < len(modes):
        raise LabError("--modes: the list is empty or has a mode twice")
    return modes


def check_harvest(machine: str, kernels: str, modes: Sequence[str], values: Sequence[str]) -> None:
    """LabError: dirty_harvest is asked for where there is none, or where it changes nothing."""
    if not values:
        raise LabError("--harvest: the list is empty")
    if machine == "host":
        return
    if kernels in ("peer", "base"):
        raise LabError(f"--harvest: the kernel {kernels} has no dirty_harvest, only the series has")
    if all(logs_by_itself(machine, MODES[name]) for name in modes):
        useful = [n for n in modes_of(machine) if not logs_by_itself(machine, MODES[n])]
        raise LabError(
            f"--harvest: changes nothing with --modes '{' '.join(modes)}', where the CPU logs by"
            f" itself (PML); it does with {', '.join(useful)}"
        )


def without_name(line: str) -> str:
    return line.strip().removeprefix("split-bench: ")


def cpus_for(machine: Machine, vcpus: Iterable[int]) -> int:
    """One CPU for each vCPU and one for the test's main thread, or all that there are.

    split-bench.sh marks the runs of more vCPUs as overcommitted.
    """
    return min(max(vcpus) + 1, machine.max_cpus)


def bench_job(machine: Machine, boot: Boot, image: Path, test: Path) -> Job:
    words = ["sh", f"{INSIDE}/split-bench.sh", "--quiet", f"--test={INSIDE}/{PERF_TEST}"]
    words += [f"--machine={machine.name}", f"--kernel={boot.kernel}"]
    measured = [
        f'{shlex.join([*words, "--verify=no", *matrix.arguments()])} --output="$LAB_OUT/{OUTPUT}"'
        for matrix in boot.matrices
    ]
    # Afterwards, so that nothing of it is in what was measured.
    *verified, last = (
        shlex.join([*words, "--verify=only", *matrix.arguments()]) for matrix in boot.verified
    )
    script = " && ".join([*measured, *verified, f"exec {last}"])
    guest_mib = max(boot.matrix.vcpus) * boot.matrix.size // MIB
    return Job(
        kernel=image,
        command=("sh", "-c", script),
        parameters=boot.parameters,
        cpus=cpus_for(machine, boot.matrix.vcpus),
        memory_mib=max(MEMORY_MIB, guest_mib + SPARE_MIB),
        files={f"{INSIDE}/split-bench.sh": SCRIPT, f"{INSIDE}/{PERF_TEST}": test},
        timeout_s=PATIENCE * boot.estimate_s,
    )


def expected_keys(boot: Boot, seen: Key) -> set[Key]:
    """What a boot is to deliver, in the mode that SEEN has for what was not asked for."""
    return {
        replace(
            seen,
            machine=boot.machine,
            kernel=boot.kernel,
            vcpus=vcpus,
            bytes_per_vcpu=matrix.size,
            backing=backing,
            write_percent=writes,
            initially_all_set=init,
            eager=eager == "Y",
            phase=phase,
            iteration=iteration,
            dirty_harvest=harvest or seen.dirty_harvest,
            idle=vcpus - matrix.busy if matrix.busy else 0,
        )
        for matrix in boot.matrices
        for vcpus, writes, init, eager, backing, harvest in matrix.runs
        for phase, repeated in jsonl.PHASES.items()
        if init or phase != "clear"
        for iteration in ([*range(1, matrix.iterations + 1)] if repeated else [None])
    }
