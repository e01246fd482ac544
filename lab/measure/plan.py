# SPDX-License-Identifier: GPL-2.0-only
"""What `make bench` runs: a matrix, spread over boots of a machine."""

import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from lab.build.selftests import PERF_TEST
from lab.core.errors import LabError
from lab.core.paths import ROOT
from lab.machines import Job, Machine
from lab.machines.bochs import VmxBochs
from lab.machines.paging import Mode
from lab.results import jsonl, notation
from lab.results.jsonl import Key
from lab.results.notation import MIB, OFF
from lab.results.tables import BASE_VCPUS

SCRIPT = ROOT / "scripts" / "split-bench.sh"
# The directory of script and test inside the machine, and the file that comes back.
INSIDE = "/bench"
OUTPUT = "results.jsonl"

# The machine with simulated time, the size of huge pages, and the memory of a machine.
MACHINE = VmxBochs.name
HUGE_MIB = 2
MEMORY_MIB = 1024
# Memory for the kernel, the initramfs and the selftest, in addition to that of the guest.
SPARE_MIB = 512

# Seconds of the host, measured on two cores: for a boot, and for each vCPU of a run. They are for
# the first announcement only. Later the remaining time is corrected by the speed so far.
BOOT_S = {"vmx-bochs": 14.0, "svm-qemu": 2.0, "host": 0.0}
VCPU_S = {"vmx-bochs": 0.7, "svm-qemu": 0.5, "host": 0.5}
# A machine that takes this many times as long as estimated has hung.
PATIENCE = 20


class Run(NamedTuple):
    """One run of the test. eager, dirty_bits: values of eager_page_split and dirty_bits.

    dirty_bits: empty to leave the parameter as the kernel has it.
    """

    vcpus: int
    write_percent: int
    initially_all_set: bool
    eager: str
    backing: str
    dirty_bits: str


@dataclass(frozen=True)
class Matrix:
    """The measurements of a boot, as values of the options of split-bench.sh."""

    vcpus: tuple[int, ...] = (2, 4, 8)
    writes: tuple[int, ...] = (100, 20)
    eager: tuple[str, ...] = ("N", "Y")
    init_set: str = "yes"
    bytes_per_vcpu: str = "4M"
    backing: tuple[str, ...] = ("anonymous_hugetlb_2mb",)
    iterations: int = 3
    # Values of dirty_bits. None: leave it as the kernel has it, which may lack the parameter.
    dirty_bits: tuple[str, ...] = ()
    # The number of vCPUs that access memory after all of it is populated; None: all.
    busy: int | None = None
    # Which accesses are writes, one of jsonl.PATTERNS.
    pattern: str = jsonl.PATTERNS[0]
    # How often logging is enabled and disabled in each VM.
    cycles: int = 1

    @property
    def size(self) -> int:
        """Bytes of memory of each vCPU. The matrix must have passed check_matrix()."""
        units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
        text = self.bytes_per_vcpu.upper()
        return int(text.rstrip("KMG")) * units.get(text[-1], 1)

    @property
    def inits(self) -> tuple[bool, ...]:
        return {"yes": (True,), "no": (False,), "both": (True, False)}[self.init_set]

    @property
    def runs(self) -> list[Run]:
        """All runs, in the order in which split-bench.sh makes them."""
        dirty_bits = self.dirty_bits or ("",)
        values = (self.vcpus, self.writes, self.inits, self.eager, self.backing, dirty_bits)
        return [Run(*value) for value in product(*values)]

    @property
    def weight(self) -> int:
        """How long all runs take: the vCPUs of each run in each cycle, and 2 for starting it."""
        return sum(run.vcpus * self.cycles + 2 for run in self.runs)

    def arguments(self) -> list[str]:
        return [
            f"--vcpus={' '.join(map(str, self.vcpus))}",
            f"--writes={' '.join(map(str, self.writes))}",
            f"--eager={' '.join(self.eager)}",
            f"--init-set={self.init_set}",
            f"--bytes={self.bytes_per_vcpu}",
            f"--backing={' '.join(self.backing)}",
            f"--iterations={self.iterations}",
            *([f"--dirty-bits={' '.join(self.dirty_bits)}"] if self.dirty_bits else []),
            *([f"--busy={self.busy}"] if self.busy else []),
            *([f"--pattern={self.pattern}"] if self.pattern != jsonl.PATTERNS[0] else []),
            *([f"--cycles={self.cycles}"] if self.cycles != 1 else []),
        ]

    def parts(self) -> "Iterator[tuple[str, Matrix]]":
        """The parts of the matrix to measure in boots of their own, each with a name.

        There is a part for each backing and log mode, and also for each write percentage if boots
        would take long otherwise: an interrupted measurement loses a whole boot.
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


# Split a boot further if its runs have a larger weight.
MOST_WEIGHT = 400

# The presets of split-bench.sh, with two differences in FULL. It has no second backing, which would
# double its hours. And it has dirty_bits, which the script must not expect of every kernel.
QUICK = Matrix(vcpus=(2, 8), iterations=2)
FULL = Matrix(
    vcpus=(2, 4, 8, 14, 16, 32, 64),
    writes=(100, 80, 50, 20, 5, 0),
    init_set="both",
    dirty_bits=("off", "on"),
)

# Paging modes by the names that the option --modes takes.
MODES = {
    "ept1": Mode(True),
    "ept0": Mode(False),
    "tdp": Mode(True, True),
    "ept1-nopml": Mode(True, pml=False),
    "tdp-nopml": Mode(True, True, pml=False),
}
# A third write percentage in the TDP MMU, whose goals for enabling need a median of three runs.
THIRD_MIX = 5
# The runs that count huge pages and page tables. 20% of 40 regions are one for each of 8 vCPUs.
MEMORY = Matrix(
    vcpus=(BASE_VCPUS,),
    writes=(100, 20, 0),
    bytes_per_vcpu="10M",
    iterations=QUICK.iterations,
    pattern=notation.REGIONS,
)
# The runs that repeat enabling, writing and disabling in one VM. Other runs have the first cycle of
# smaller VMs.
CYCLES = replace(MEMORY, writes=(100,), pattern=jsonl.PATTERNS[0], cycles=3)
# The modes of these runs. With shadow paging Dirty bits log: write protection would take minutes,
# and splits the same.
COUNTED = ("ept1", "ept0", "tdp")
# The modes that the default measures with all numbers of vCPUs.
SCALING = (MODES["ept1"], MODES["ept0"])


def modes_of(machine: str) -> tuple[str, ...]:
    """The modes that a machine can boot in. Only Intel's processors have PML to switch off."""
    return tuple(name for name, mode in MODES.items() if mode.pml or machine == VmxBochs.name)


def logs_by_itself(machine: str, mode: Mode) -> bool:
    """Whether the CPU logs dirty pages itself (PML), so that dirty_bits changes nothing."""
    return machine == VmxBochs.name and mode.ept and mode.pml


@dataclass(frozen=True)
class Boot:
    """A boot of a machine.

    mode: None for the host, whose mode is not changed.
    part: a name to distinguish it from other boots of the same kernel and mode, empty if there is
        none.
    also: further matrices to measure afterwards. They have no run of the first one.
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
        """Runs with -V after all measurements, which verify the result and are not timed.

        There is a run for each combination of settings that changes what KVM does. It has the
        largest write percentage, and two vCPUs: more of them would only take longer.
        """
        vcpus = min(2, *(vcpus for matrix in self.matrices for vcpus in matrix.vcpus))
        writes = max(writes for matrix in self.matrices for writes in matrix.writes)
        found: list[Matrix] = []
        done: set[tuple[str, int, Run]] = set()
        for each in self.matrices:
            matrix = replace(each, vcpus=(vcpus,), writes=(writes,))
            runs = {(matrix.pattern, matrix.cycles, run) for run in matrix.runs}
            if not done.issuperset(runs):
                found.append(matrix)
                done.update(runs)
        return tuple(found)

    @property
    def label(self) -> str:
        mode = [notation.mode_of(self.machine, self.mode)] if self.mode else []
        return ", ".join([self.kernel, *mode, *([self.part] if self.part else [])])

    @property
    def parameters(self) -> dict[str, str]:
        return self.mode.parameters(self.machine, self.kernel) if self.mode else {}

    @property
    def _slowness(self) -> float:
        """A lockstep machine executes its CPUs in turn. BOOT_S and VCPU_S are those with nine."""
        if self.machine != VmxBochs.name:
            return 1.0
        return (1 + min(max(self.matrix.vcpus) + 1, VmxBochs.max_cpus)) / 10

    @property
    def boot_s(self) -> float:
        return BOOT_S[self.machine] * self._slowness

    @property
    def runs_s(self) -> float:
        """The estimate for all runs, without the boot."""
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
    """What to measure of another KERNEL for comparison with the series; None for nothing.

    In the TDP MMU the unpatched kernel splits eagerly, too, and not only for nested guests. So
    there it takes the place of the ungated baseline.
    """
    compared = {"base": "NY" if mode.tdp_mmu else "N", "peer": "" if mode.tdp_mmu else "Y"}
    eager = tuple(value for value in matrix.eager if value in compared[kernel])
    if not eager or (matrix.dirty_bits and OFF not in matrix.dirty_bits):
        return None
    fitting = [vcpus for vcpus in matrix.vcpus if vcpus <= BASE_VCPUS]
    vcpus = (max(fitting, default=min(matrix.vcpus)),)
    return replace(matrix, eager=eager, vcpus=matrix.vcpus if kernel == "peer" else vcpus)


def _fitting(machine: str, kernel: str, mode: Mode, matrix: Matrix) -> Matrix | None:
    """The matrix without values of dirty_bits if it has no effect in this boot.

    None if nothing is left to measure, since the matrix does not include dirty_bits=off.
    """
    if kernel == "series" and not logs_by_itself(machine, mode):
        return matrix
    return replace(matrix, dirty_bits=()) if OFF in (matrix.dirty_bits or (OFF,)) else None


def _logging(mode: Mode, matrix: Matrix) -> Matrix:
    """MEMORY or CYCLES for a mode of COUNTED."""
    return matrix if mode.ept else replace(matrix, dirty_bits=("on",))


def _alone(matrix: Matrix, part: str) -> list[Boot]:
    modes = [MODES[name] for name in COUNTED]
    return [Boot(MACHINE, "series", mode, _logging(mode, matrix), part=part) for mode in modes]


def memory_boots() -> list[Boot]:
    """The boots that measure nothing but MEMORY."""
    return _alone(MEMORY, "memory")


def cycles_boots() -> list[Boot]:
    """The boots that measure nothing but CYCLES."""
    return _alone(CYCLES, "cycles")


def _quick(boot: Boot) -> Boot:
    """The boot with more runs: without initially-all-set, with dirty_bits=on, MEMORY and CYCLES.

    With dirty_bits=on and shadow paging, there also are runs with clean entries in the guest's
    page tables. Additional runs have the largest number of vCPUs only, and so do all runs in modes
    that are not SCALING.
    """
    if boot.kernel == "peer" or not boot.mode:
        return boot
    most = replace(boot.matrix, vcpus=(max(boot.matrix.vcpus),))
    also = [replace(most, writes=(max(most.writes),), init_set="no")]
    if boot.mode.tdp_mmu:
        writes = (*most.writes, THIRD_MIX)
        also = [replace(most, writes=(THIRD_MIX,)), replace(most, writes=writes, init_set="no")]
    if boot.kernel == "series" and not logs_by_itself(boot.machine, boot.mode):
        # N costs as much with other mixes and log modes, so there is one run of it.
        more = [replace(one, eager=("Y",)) for one in also]
        also += [replace(one, dirty_bits=("on",)) for one in (most, *more)]
    if boot.kernel == "series" and not boot.mode.ept:
        writes = (max(most.writes),)
        also.append(replace(most, writes=writes, dirty_bits=("on",), pattern=notation.CLEAN))
    if boot.kernel == "series" and boot.mode in (MODES[name] for name in COUNTED):
        also += [_logging(boot.mode, MEMORY), _logging(boot.mode, CYCLES)]
    matrix = boot.matrix if boot.mode in SCALING else most
    return replace(boot, matrix=matrix, also=tuple(also))


def quick(boots: Sequence[Boot]) -> list[Boot]:
    """The boots of QUICK, changed to those that are the default.

    In the shadow MMU without PML, only the first kernel is measured.
    """
    first, alone = boots[0].kernel, MODES["ept1-nopml"]
    return [_quick(boot) for boot in boots if boot.kernel == first or boot.mode != alone]


def bench_boots(
    machine: str, kernels: str, matrix: Matrix, modes: Sequence[str] = tuple(MODES)
) -> list[Boot]:
    """The boots for one invocation.

    kernels: a kind of kernel; or "all" for the series, and for comparison the ungated baseline with
        Y and the base with N.
    modes: keys of MODES. The machine `host` has one kernel and one mode only.

    If the CPU logs dirty pages itself, dirty_bits is not set.
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
    """LabError: split-bench.sh refuses the options of the matrix."""
    command = ["sh", str(SCRIPT), "--dry-run", "--test=/bin/true", *matrix.arguments()]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    if judged.returncode:
        raise LabError(without_name(judged.stderr))


def check_modes(machine: str, modes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The value of --modes, if it is given.

    LabError: a mode that MACHINE does not have, a mode twice, none, or a machine without choice.
    """
    if modes is None:
        return None
    if machine == "host":
        raise LabError("--modes: cannot be used with host, whose KVM was loaded in one paging mode")
    known = modes_of(machine)
    unknown = [word for word in modes if word not in known]
    if unknown:
        raise LabError(f"--modes: {unknown[0]!r} is not one of {', '.join(known)}")
    if not modes or len(set(modes)) < len(modes):
        raise LabError("--modes: the list is empty, or names a mode twice")
    return modes


def check_dirty_bits(
    machine: str, kernels: str, modes: Sequence[str], values: Sequence[str]
) -> None:
    """LabError: --dirty-bits is given for kernels or modes in which dirty_bits has no effect."""
    if not values:
        raise LabError("--dirty-bits: the list is empty")
    if machine == "host":
        return
    if kernels in ("peer", "base"):
        raise LabError(
            f"--dirty-bits: the kernel {kernels} has no dirty_bits, only the series does"
        )
    if all(logs_by_itself(machine, MODES[name]) for name in modes):
        useful = [n for n in modes_of(machine) if not logs_by_itself(machine, MODES[n])]
        raise LabError(
            f"--dirty-bits: has no effect with --modes '{' '.join(modes)}', where the CPU logs by"
            f" itself (PML); it does with {', '.join(useful)}"
        )


def without_name(line: str) -> str:
    return line.strip().removeprefix("split-bench: ")


def cpus_for(machine: Machine, vcpus: Iterable[int]) -> int:
    """The CPUs of the machine: one for each vCPU and one for the test's main thread, if it can.

    split-bench.sh marks runs with more vCPUs than that as overcommitted.
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
    guest_mib = max(max(matrix.vcpus) * matrix.size for matrix in boot.matrices) // MIB
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
    """All measurements that a boot has to make. Settings that it leaves open are those of SEEN."""
    return {
        replace(
            seen,
            machine=boot.machine,
            kernel=boot.kernel,
            vcpus=run.vcpus,
            bytes_per_vcpu=matrix.size,
            backing=run.backing,
            write_percent=run.write_percent,
            initially_all_set=run.initially_all_set,
            eager=run.eager == "Y",
            phase=phase,
            iteration=iteration,
            cycle=cycle,
            dirty_bits=run.dirty_bits or seen.dirty_bits,
            idle=run.vcpus - matrix.busy if matrix.busy else 0,
            pattern=matrix.pattern,
        )
        for matrix in boot.matrices
        for run in matrix.runs
        for cycle in range(1, matrix.cycles + 1)
        for phase, repeated in jsonl.PHASES.items()
        if run.initially_all_set or phase != "clear"
        if cycle == 1 or phase != "populate"
        for iteration in ([*range(1, matrix.iterations + 1)] if repeated else [None])
    }
