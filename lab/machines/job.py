# SPDX-License-Identifier: GPL-2.0-only
"""A job for a machine, its result, and how a machine can fail."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol

from lab.core.errors import WorkFailed

# How much of a failed command's output is shown, characters.
TAIL = 2000

# Lines of a kernel's log that match this report that something is wrong.
COMPLAINT = re.compile(r"WARNING:|BUG:|INFO: .*(?:lock|task|rcu|key)|KASAN|Oops|Call Trace")

Reason = Literal["machine crashed", "emulator crashed", "boot timed out", "command timed out"]


class Sharing(Enum):
    """How the CPUs of a machine share those of the host.

    THREADS: each CPU has a thread of its own.
    TURNS: all CPUs take turns in one thread. This is several times as fast if machines share cores,
        since no CPU waits for another one that the host does not run. But CPUs change places at few
        points, so few races happen.
    COUNTED: as TURNS, and the machine's time is the number of executed instructions, 2 ns each.
        Time in which all CPUs are idle is skipped. The same job then does exactly the same each
        time. It is slow: the host needs some ten seconds for a second of the machine.
    """

    THREADS = ""
    TURNS = "turns"
    COUNTED = "counted"


@dataclass(frozen=True)
class Job:
    """One command for one boot of a machine.

    kernel: a bzImage; `host` runs its own kernel and ignores it.
    command: run with / as its directory; busybox applets are on PATH.
    parameters: module parameters, "kvm.tdp_mmu": "0". `host` verifies them instead of setting them.
    files: absolute path inside the machine -> host file or directory. Shared libraries
        that dynamic programs among them need come along by themselves.
    timeout_s: seconds of the host's clock, boot included. While an emulator waits for a CPU, as
        other programs have them all, this clock stands still.
    silent_s: seconds, likewise, in which an emulated machine reports nothing, neither that it is up
        nor progress.
    on_progress: called with each line that the command appends to $LAB_PROGRESS, while it runs.
    cmdline: further words for the kernel command line.
    busybox: for a kernel that cannot run the host's.
    sharing: how the CPUs of svm-qemu run. The other machines have no choice.
    """

    kernel: Path
    command: tuple[str, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)
    cpus: int = 2
    memory_mib: int = 1024
    files: Mapping[str, Path] = field(default_factory=dict)
    timeout_s: float = 300
    silent_s: float = math.inf
    on_progress: Callable[[str], None] | None = None
    cmdline: tuple[str, ...] = ()
    busybox: Path | None = None
    sharing: Sharing = Sharing.THREADS

    @property
    def shape(self) -> str:
        """The machine that it needs, in a few words, for lines that say what would be run."""
        parameters = " ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{self.cpus} CPUs, {self.memory_mib} MiB {parameters}"


@dataclass(frozen=True)
class Result:
    """A complete run.

    status: the command's exit status, 128+n after signal n.
    output: its standard output and error.
    files: regular files it left below $LAB_OUT, by relative path.
    kernel_log: the console, then the kernel's own buffer; a message can be in both. From
        vmx-bochs only notices and worse come back.
    seconds: by the host's clock, boot included.
    """

    status: int
    output: bytes
    files: dict[str, bytes]
    kernel_log: str
    seconds: float

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace")

    def check(self, what: str) -> None:
        """WorkFailed: the command failed. The message has WHAT and the end of its output."""
        if self.status:
            raise WorkFailed(f"{what}: exit status {self.status}:\n{self.text[-TAIL:]}")


class MachineFailed(Exception):
    """The machine crashed or timed out before the report of its run was complete.

    reason: "machine crashed": it ended or started again by itself; "emulator crashed": a
        signal ended the emulator, which is not the machine's doing; "boot timed out": it
        never came up; "command timed out": it did.
    kernel_log: what its console had shown by then.
    exit_code: of a command that ends by it.
    """

    exit_code = 3

    def __init__(self, reason: Reason, detail: str, kernel_log: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.kernel_log = kernel_log
        # Tracebacks and test reports show notes with the exception.
        self.add_note(kernel_log[-TAIL:])


class Machine(Protocol):
    """Something that runs jobs, one at a time.

    lockstep: simulated time, the same in every run of the same job.
    """

    @property
    def name(self) -> str: ...
    @property
    def max_cpus(self) -> int: ...
    @property
    def lockstep(self) -> bool: ...

    def run(self, job: Job) -> Result:
        """Run job to its end and leave nothing behind.

        Raises LabError when the job cannot be run as asked for and MachineFailed when
        the machine crashed or timed out. A command that fails raises nothing here, but in
        Result.check().
        """
        ...

    def describe(self, job: Job) -> str:
        """Say in a few lines what run(job) would start. Raises LabError like run()."""
        ...


def complaints(kernel_log: str) -> list[str]:
    return [line for line in kernel_log.splitlines() if COMPLAINT.search(line)]
