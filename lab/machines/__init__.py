# SPDX-License-Identifier: GPL-2.0-only
"""The machines that run a command: svm-qemu and vmx-bochs boot a kernel, host is this computer."""

from lab.core.lookup import named
from lab.machines.bochs import VmxBochs
from lab.machines.host import Host
from lab.machines.job import Job, Machine, MachineFailed, Result, Sharing
from lab.machines.qemu import SvmQemu

__all__ = ["NAMES", "Job", "Machine", "MachineFailed", "Result", "Sharing", "get"]

_MACHINES: dict[str, type[SvmQemu] | type[VmxBochs] | type[Host]] = {
    "svm-qemu": SvmQemu,
    "vmx-bochs": VmxBochs,
    "host": Host,
}
NAMES = tuple(_MACHINES)


def get(name: str) -> Machine:
    """Return the machine of this name. LabError: there is none."""
    return named(_MACHINES, name, "machine")()
