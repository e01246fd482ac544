# SPDX-License-Identifier: GPL-2.0-only
"""The machines that run a command: svm-qemu and vmx-bochs boot a kernel, host is this computer."""

from lab.core.errors import LabError
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
    """Return the machine of this name. Raises LabError, naming the right ones, if there is none."""
    if name not in _MACHINES:
        raise LabError(f"{name}: no such machine; there are {', '.join(NAMES)}")
    return _MACHINES[name]()
