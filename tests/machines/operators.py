# SPDX-License-Identifier: GPL-2.0-only
"""Commands that root enters on an emulated Debian host that has the package of modules."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from lab.core.paths import DEFAULT_BASE, LAYOUT
from lab.machines import Job, MachineFailed, Sharing
from lab.series.pin import read_pin
from lab.submit.modules_proof import Installed

Install = Callable[[str, str], Installed]
# Of the default base only: the package, and what is in it for an operator, is the same for all.
SAME_FOR_ALL = (
    pytest.mark.once,
    pytest.mark.long,
    pytest.mark.skipif(LAYOUT.version != DEFAULT_BASE, reason="the package is that of all bases"),
)
# Debian's. That of busybox prefers its own commands to those that a host has.
SHELL = "/bin/sh"
# What most hosts run.
SUITE = next(iter(read_pin(LAYOUT).debian))

# VMs that come and go, and modules, patch the kernel's code. QEMU 7.2 translates code while another
# CPU writes it: with a thread each CPUs run, now and then, an int3 that is gone, and the kernel
# panics. Without KVM a sysctl does it that has a static key, kernel.sched_schedstats.
PATCHED = Sharing.TURNS

# A host has the kernel's own KVM loaded when the package comes.
HAS_STOCK = "modprobe kvm_amd; kvm-eager-split reload --stock"

# For commands that run depmod, which reads all modules. With all of Debian's it takes the machine
# a minute and a half.
FEWER_MODULES = "(cd /lib/modules/*/kernel && rm -rf net sound drivers/[d-u]*)"

# Command, exit status, and part of the output.
Row = tuple[str, int, str]
Told = Sequence[tuple[str, str, str]]


def run_all(
    lines: Iterable[str],
    installed: Installed,
    before: str = HAS_STOCK,
    *cmdline: str,
    files: Mapping[str, Path] | None = None,
) -> Told:
    """(command, output, exit status) of each in the installed Debian."""
    commands = list(lines)
    told = [
        f"echo '# {i}' | tee -a $LAB_PROGRESS\n{line}\necho '?' $?"
        for i, line in enumerate(commands)
    ]
    script = "\n".join(("export PATH=/usr/sbin:/usr/bin:/sbin:/bin", before, *told))
    begun: list[str] = []
    job = Job(
        kernel=installed.kernel,
        command=(SHELL, "-c", script),
        timeout_s=600,
        sharing=PATCHED,
        cmdline=cmdline,
        files=files or {},
        on_progress=begun.append,
    )
    try:
        text = installed.machine.run(job).text
    except MachineFailed as error:
        last = [commands[int(each[2:])] for each in begun if re.fullmatch(r"# \d+", each)][-1:]
        error.add_note(f"the last command: {last}")
        raise
    found = re.findall(r"^# (\d+)\n((?:.*\n)*?)\? (\d+)$", text, re.MULTILINE)
    return [(commands[int(number)], said, status) for number, said, status in found]


def check_told(told: Told, rows: Sequence[Row]) -> None:
    """Each command has ended as its row says, and said what that has."""
    for (line, said, status), (command, expected, part) in zip(told, rows, strict=True):
        assert (line, int(status)) == (command, expected), said
        assert part in said, f"{line}: {said}"
