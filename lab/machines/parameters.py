# SPDX-License-Identifier: GPL-2.0-only
"""Module parameters: their names, and whether a machine has the values asked for."""

import re
from collections.abc import Mapping

from lab.core.errors import LabError

NAME = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
WORD = re.compile(r"[!-~]+")
TRUE = {"1", "Y", "y"}
FALSE = {"0", "N", "n"}

# The value that init reports for a parameter that can be written, but not read.
UNREADABLE = "?"


def sysfs_name(parameter: str) -> str:
    """Return a parameter's name as sysfs has it: kvm-intel.ept is kvm_intel.ept."""
    return parameter.replace("-", "_")


def same_value(wanted: str, found: str) -> bool:
    """Whether FOUND, as sysfs has it, is the value WANTED: 1 and Y are the same."""
    return any({wanted, found} <= equal for equal in (TRUE, FALSE, {wanted}))


def check_names(parameters: Mapping[str, str]) -> None:
    """Raise LabError for a name or a value that cannot stand on a kernel command line."""
    for name, value in parameters.items():
        if not NAME.fullmatch(name):
            raise LabError(f"{name}: a parameter is MODULE.NAME, as in kvm.tdp_mmu")
        if not WORD.fullmatch(value):
            raise LabError(f"{name}={value}: a parameter's value is one word")


def check_value(machine: str, name: str, wanted: str, found: str | None) -> None:
    """Compare what a job asked for with what a booted machine has; raise LabError.

    found: None when there is no such parameter. A machine may answer N to a wanted Y: KVM
    turns off what the processor or another parameter does not allow, such as kvm.tdp_mmu
    with npt=0. What was in force is for the command to record.
    """
    if found is None:
        raise LabError(f"{name}: {machine}'s kernel has no such module parameter")
    turned_off = wanted in TRUE and found in FALSE
    if not (same_value(wanted, found) or turned_off or found == UNREADABLE):
        raise LabError(
            f"{name}={wanted}: {machine}'s kernel did not accept the value, and has {found}"
        )
