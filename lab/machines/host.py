# SPDX-License-Identifier: GPL-2.0-only
"""host: this computer's own KVM, for real hardware with a patched kernel.

Nothing is booted and no setting is changed: module parameters are only verified, and a
job that wants others ends with the command that would set them. The job's files stay
where they are: their paths inside a machine are replaced in the command's words.
"""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil

from lab.core import process, signals, workspace
from lab.core.errors import LabError
from lab.machines.job import Job, MachineFailed, Result
from lab.machines.parameters import check_names, same_value, sysfs_name

KVM = Path("/dev/kvm")
MODULES = Path("/sys/module")
POLL_S = 0.05
MIB = 1 << 20
SIGNALLED = 128
# How long a command has to restore settings of this computer after SIGTERM, seconds.
GRACE_S = 10


def _is_root() -> bool:
    return os.geteuid() == 0


def _privileged() -> list[str]:
    """Return the words to put before a command. All run as root, for huge pages and sysfs."""
    return [] if _is_root() else ["sudo", "-n"]


def _is_loaded_module(module: str) -> bool:
    """Tell a module that can be loaded again from one that is built in."""
    return (MODULES / module / "initstate").exists()


def _for_module(module: str, parameters: Mapping[str, str]) -> str:
    mine = [
        f"{name.split('.')[1]}={value}"
        for name, value in sorted(parameters.items())
        if sysfs_name(name).split(".")[0] == module
    ]
    return " ".join(["modprobe", module, *mine])


def _remedy(name: str, parameters: Mapping[str, str]) -> str:
    """Return the command, or the way, to give this host's modules a job's parameters."""
    module, parameter = sysfs_name(name).split(".")
    file = MODULES / module / "parameters" / parameter
    if file.stat().st_mode & 0o200:
        return f"run: echo {shlex.quote(parameters[name])} > {file}"
    if not _is_loaded_module(module):
        return f"boot with {name}={parameters[name]} on the kernel command line"
    vendors = sorted(path.name for path in MODULES.glob("kvm_*") if _is_loaded_module(path.name))
    unload = " ".join(["modprobe", "-r", *vendors, "kvm"])
    load = [_for_module(loaded, parameters) for loaded in ["kvm", *vendors]]
    return "run: " + " && ".join([unload, *load])


def _check_parameters(parameters: Mapping[str, str]) -> None:
    check_names(parameters)
    for name, wanted in parameters.items():
        module, parameter = sysfs_name(name).split(".")
        file = MODULES / module / "parameters" / parameter
        if not file.exists():
            raise LabError(f"{name}: this host's kernel has no such module parameter")
        try:
            found = file.read_text().strip()
        except PermissionError:
            continue  # write-only, nothing to compare
        if not same_value(wanted, found):
            raise LabError(
                f"{name} is {found} on this host, {wanted} is wanted; {_remedy(name, parameters)}"
            )


def _check_privileges() -> None:
    if _is_root():
        return
    try:
        allowed = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    except FileNotFoundError:
        raise LabError("host runs its commands as root: run as root, or install sudo") from None
    if allowed.returncode:
        raise LabError("host runs its commands as root: run as root, or run `sudo -v` first")


def here(command: tuple[str, ...], files: Mapping[str, Path]) -> list[str]:
    """Return a job's command with the paths of its files as they are on this host.

    A path counts where it stands as a whole or as the beginning of a longer one.
    """
    places = {path.rstrip("/"): str(source.resolve()) for path, source in files.items()}
    if not places:
        return list(command)
    longest_first = sorted(places, key=len, reverse=True)
    names = "|".join(re.escape(path) for path in longest_first)
    pattern = re.compile(rf"(?<![\w./-])(?:{names})(?![\w.-])")
    return [pattern.sub(lambda match: places[match[0]], word) for word in command]


def _kernel_messages() -> list[str]:
    shown = subprocess.run([*_privileged(), "dmesg"], capture_output=True, check=False)
    return shown.stdout.decode(errors="replace").splitlines()


def new_messages(before: list[str], after: list[str]) -> str:
    """Return the lines that after has beyond before; all of them if the buffer wrapped around."""
    if before and before[-1] in after:
        last = len(after) - 1 - after[::-1].index(before[-1])
        after = after[last + 1 :]
    return "".join(f"{line}\n" for line in after)


def _report(progress: IO[bytes], job: Job) -> None:
    """Pass on the complete lines that have been written since the last call."""
    while (line := progress.readline()).endswith(b"\n"):
        if job.on_progress:
            job.on_progress(line[:-1].decode(errors="replace"))
    progress.seek(-len(line), os.SEEK_CUR)


def _collect(out: Path) -> dict[str, bytes]:
    if not _is_root():
        # The command wrote its files as root. Make them the user's, so that they can be removed.
        owner = f"{os.getuid()}:{os.getgid()}"
        subprocess.run(["sudo", "-n", "chown", "-R", owner, str(out)], check=False)
    found = sorted(path for path in out.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


class Host:
    name = "host"
    lockstep = False

    @property
    def max_cpus(self) -> int:
        return os.cpu_count() or 1

    def run(self, job: Job) -> Result:
        self._check(job)
        started = time.monotonic()
        before = _kernel_messages()
        with signals.ends_by_exception(), workspace.fresh() as directory:
            (directory / "out").mkdir()
            status = self._follow(job, directory, before, started + job.timeout_s)
            return Result(
                status=status,
                output=(directory / process.MESSAGES).read_bytes(),
                files=_collect(directory / "out"),
                kernel_log=new_messages(before, _kernel_messages()),
                seconds=time.monotonic() - started,
            )

    def describe(self, job: Job) -> str:
        self._check(job)
        argv = [*_privileged(), *here(job.command, job.files)]
        return f"machine:        {self.name}\ncommand:        {shlex.join(argv)}"

    def _check(self, job: Job) -> None:
        if not KVM.exists():
            raise LabError(
                f"host needs {KVM}: load kvm_intel or kvm_amd, or use svm-qemu or vmx-bochs, "
                "which need no virtualization of this computer's"
            )
        if not 1 <= job.cpus <= self.max_cpus:
            raise LabError(f"{job.cpus} CPUs: this host has {self.max_cpus}")
        free = psutil.virtual_memory().available // MIB
        if job.memory_mib > free:
            raise LabError(f"{job.memory_mib} MiB: this host has {free} MiB to give now")
        for path, source in job.files.items():
            if not source.exists():
                raise LabError(f"{source}: no such file (wanted as {path} by the command)")
        if not job.command:
            raise LabError("no command to run")
        _check_parameters(job.parameters)
        _check_privileges()

    def _follow(self, job: Job, directory: Path, before: list[str], deadline: float) -> int:
        settings = [f"LAB_MACHINE={self.name}", f"LAB_OUT={directory}/out"]
        settings.append(f"LAB_PROGRESS={directory}/progress")
        # Set variables by env, since sudo does not pass them on.
        argv = [*_privileged(), "env", "-C", "/", *settings, *here(job.command, job.files)]
        (directory / "progress").touch()
        with (
            (directory / "progress").open("rb") as progress,
            process.child(argv, directory, grace_s=GRACE_S) as child,
        ):
            while (code := child.poll()) is None:
                _report(progress, job)
                if time.monotonic() >= deadline:
                    log = new_messages(before, _kernel_messages())
                    detail = f"host: the command did not end within {job.timeout_s:g} s"
                    raise MachineFailed("command timed out", detail, log)
                time.sleep(POLL_S)
            _report(progress, job)
        return SIGNALLED - code if code < 0 else code
