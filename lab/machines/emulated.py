# SPDX-License-Identifier: GPL-2.0-only
"""What the emulated machines have in common: check the job, boot, watch the report, end."""

import shlex
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil

from lab.core import process, signals, workspace
from lab.core.errors import LabError
from lab.machines import initramfs, parameters
from lab.machines.channel import Channel, ReportBroken
from lab.machines.job import Job, MachineFailed, Reason, Result

LEAST_MEMORY_MIB = 256
# Memory that an emulator needs in addition to that of the machine, and disk space that its files
# need in addition to the image.
SPARE_MEMORY_MIB = 192
SPARE_DISK_MIB = 64
MIB = 1 << 20

# The kernel's own limit is 2048 with the closing NUL.
LONGEST_CMDLINE = 2047

# How often the report is read, seconds of the host's clock.
POLL_S = 0.05

COMMON_CMDLINE = (
    # Warnings, and so every WARN, lockdep and KASAN report, show even when the machine dies.
    "loglevel=5",
    # A panic ends the machine at once: starting again is not allowed by either emulator.
    "panic=-1",
    "tsc=reliable",
    # A terminal device costs time to set up, and none of these 256 is used.
    "pty.legacy_count=0",
)

CONSOLE = "console"
REPORT = "report"


class EmulatedMachine(ABC):
    """A machine made by an emulator on this host.

    most_memory_mib: what the machine can have, None without a limit of its own.
    needs: file that must be there -> Debian package that holds it. foreign: KVM module for
    the other vendor's processors, whose parameters would change nothing here.
    levels: the range of log levels of the kernel's messages that come back.
    """

    name: str
    max_cpus: int
    lockstep: bool
    most_memory_mib: int | None
    needs: Mapping[Path, str]
    foreign: str
    levels: str

    @abstractmethod
    def cmdline(self, job: Job) -> list[str]:
        """Return the words that this machine's kernel needs, without those of the job."""

    @abstractmethod
    def argv(self, job: Job, cmdline: str) -> list[str]:
        """Return the emulator's command line. It runs in the directory that prepare() filled."""

    @abstractmethod
    def prepare(self, job: Job, cmdline: str, image: bytes, directory: Path) -> None:
        """Put into directory what argv() names; image is the initramfs."""

    def run(self, job: Job) -> Result:
        started = time.monotonic()
        cmdline = self._checked_cmdline(job)
        if not job.kernel.is_file():
            raise LabError(f"{job.kernel}: no such kernel image; build it first")
        with signals.ends_by_exception(), workspace.fresh() as directory:
            image = initramfs.build(job, self.name, self.levels)
            # Kernel and image are stored twice: as files, and inside a boot medium.
            wanted = 2 * (len(image) + job.kernel.stat().st_size) // MIB + SPARE_DISK_MIB
            if shutil.disk_usage(directory).free // MIB < wanted:
                raise LabError(f"no space left in {workspace.TEMPORARY}: {wanted} MiB are needed")
            self.prepare(job, cmdline, image, directory)
            argv = self.argv(job, cmdline)
            for name in (CONSOLE, REPORT):
                (directory / name).touch()
            with (
                process.child(argv, directory) as emulator,
                (directory / REPORT).open("rb") as report,
            ):
                watch = _Watch(self.name, job, directory, report)
                watch.until_complete(emulator)
            return watch.result(time.monotonic() - started)

    def describe(self, job: Job) -> str:
        cmdline = self._checked_cmdline(job)
        return "\n".join(
            [
                f"machine:        {self.name}, {job.cpus} CPUs, {job.memory_mib} MiB",
                f"kernel:         {job.kernel}",
                f"kernel command: {cmdline}",
                *(f"file:           {inside} = {file}" for inside, file in job.files.items()),
                f"command:        {shlex.join(job.command)}",
                f"emulator:       {shlex.join(self.argv(job, cmdline))}",
            ]
        )

    def _checked_cmdline(self, job: Job) -> str:
        self._check_job(job)
        chosen = [f"{name}={value}" for name, value in sorted(job.parameters.items())]
        line = " ".join([*self.cmdline(job), *chosen, *job.cmdline])
        if len(line) > LONGEST_CMDLINE:
            raise LabError(f"kernel command line of {len(line)} characters: {LONGEST_CMDLINE} fit")
        return line

    def _check_job(self, job: Job) -> None:
        self._check_packages()
        self._check_size(job)
        parameters.check_names(job.parameters)
        for name in job.parameters:
            if parameters.sysfs_name(name).startswith(f"{self.foreign}."):
                raise LabError(
                    f"{name}: changes nothing on {self.name}, which has no use for {self.foreign}"
                )
        for word in job.cmdline:
            if not parameters.WORD.fullmatch(word):
                raise LabError(f"{word!r}: is not a single word, as each --cmdline must be")
        if not job.command:
            raise LabError("no command to run")
        initramfs.check_files(job.files)

    def _check_packages(self) -> None:
        for file, package in self.needs.items():
            if not file.exists():
                raise LabError(f"{self.name} needs {file}: apt-get install {package}")

    def _check_size(self, job: Job) -> None:
        if not 1 <= job.cpus <= self.max_cpus:
            raise LabError(f"{job.cpus} CPUs: {self.name} can have 1 to {self.max_cpus}")
        if job.memory_mib < LEAST_MEMORY_MIB:
            raise LabError(f"{job.memory_mib} MiB: {self.name} needs {LEAST_MEMORY_MIB} or more")
        if self.most_memory_mib is not None and job.memory_mib > self.most_memory_mib:
            raise LabError(f"{job.memory_mib} MiB: {self.name} can have {self.most_memory_mib}")
        free = psutil.virtual_memory().available // MIB - SPARE_MEMORY_MIB
        if job.memory_mib > free:
            raise LabError(f"{job.memory_mib} MiB: this host has {max(free, 0)} MiB to give now")


class _Clock:
    """The host's clock, which stands still while a process waits for a CPU."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._started = time.monotonic()
        self._waited = 0.0

    def now(self) -> float:
        """Return seconds since it was made."""
        self._waited = max(self._waited, process.waited_s(self._pid))
        return time.monotonic() - self._started - self._waited


class _Watch:
    """Follows one run until its report, which grows meanwhile, is complete."""

    def __init__(self, machine: str, job: Job, directory: Path, report: IO[bytes]) -> None:
        self._machine = machine
        self._job = job
        self._directory = directory
        self._channel = Channel(job.on_progress)
        self._report = report

    def until_complete(self, emulator: subprocess.Popen[bytes]) -> None:
        """Wait for the last frame. Raises MachineFailed and LabError as Machine.run() does."""
        clock = _Clock(emulator.pid)
        heard = 0.0
        while True:
            # Poll first, then read: so everything is read that the emulator wrote before it ended.
            code = emulator.poll()
            if self._read():
                heard = clock.now()
            if self._channel.status is not None:
                return
            if code is not None:
                raise self._ended_early(code)
            if clock.now() >= self._job.timeout_s:
                raise self._failed(*self._out_of_time(self._job.timeout_s))
            if clock.now() >= heard + self._job.silent_s:
                raise self._failed(*self._out_of_time(self._job.silent_s, "without a word"))
            time.sleep(POLL_S)

    def result(self, seconds: float) -> Result:
        archive = self._channel.archive
        assert archive is not None and self._channel.status is not None
        # The machine is ended as soon as it has reported, possibly in the middle of a line.
        console = "".join(self._console().rpartition("\n")[:2])
        return Result(
            status=self._channel.status,
            output=archive.output,
            files=archive.files,
            kernel_log=console + archive.kernel_log,
            seconds=seconds,
        )

    def _read(self) -> bool:
        """Read what has been reported since. Returns whether that is anything."""
        data = self._report.read()
        try:
            self._channel.feed(data)
        except ReportBroken as error:
            raise self._failed("machine crashed", str(error)) from error
        for name, wanted in self._job.parameters.items():
            if (known := parameters.sysfs_name(name)) in self._channel.parameters:
                found = self._channel.parameters[known]
                parameters.check_value(self._machine, name, wanted, found)
        if self._channel.complaint is not None:
            raise LabError(
                f"{self._machine}: the command's results did not fit into "
                f"{self._job.memory_mib} MiB: {self._channel.complaint}"
            )
        return bool(data)

    def _out_of_time(self, seconds: float, how: str = "") -> tuple[Reason, str]:
        span = f"{seconds:g} s {how}".strip()
        if self._channel.is_receiving:
            return "command timed out", f"{self._machine}: the results did not arrive within {span}"
        if self._channel.up:
            return "command timed out", f"{self._machine}: the command did not end within {span}"
        return "boot timed out", f"{self._machine}: did not come up within {span}"

    def _ended_early(self, code: int) -> MachineFailed:
        """Distinguish a crash of the emulator from a machine that restarted or powered off."""
        early = "before the report was complete"
        if code < 0:
            name = signal.Signals(-code).name
            return self._failed("emulator crashed", f"{name} ended the emulator {early}")
        return self._failed("machine crashed", f"the emulator ended {early}, exit code {code}")

    def _failed(self, reason: Reason, detail: str) -> MachineFailed:
        return MachineFailed(reason, detail, self._console())

    def _console(self) -> str:
        return (self._directory / CONSOLE).read_text(errors="replace").replace("\r", "")
