# SPDX-License-Identifier: GPL-2.0-only
"""Which parts of a selftest may be skipped, and in which cases.

A selftest that skips everything ends with KSFT_SKIP, so its case fails. One that skips some of its
parts passes, and only its output says so: such lines are compared with EXPECTED, on all machines
and kernels.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lab.machines.paging import TDP

from .matrix import MEMORY_FOR_1G, Case

# KSFT's line, and that of print_skip() in tests of the kernel.
SKIP = re.compile(r"^.*# SKIP .*$|^.*, skipping test$", re.MULTILINE)
PART = re.compile(r"ok \d+ # SKIP (\S+): (.*)")


def has_tdp(case: Case) -> bool:
    """Whether guests' page tables are not shadowed: there is two-dimensional paging."""
    return case.mode.parameters.get(TDP[case.mode.machine] or "") == "1"


def has_tdp_mmu(case: Case) -> bool:
    return has_tdp(case) and case.mode.parameters.get("kvm.tdp_mmu") == "1"


def _no_tdp(case: Case) -> bool:
    return not has_tdp(case)


def _no_tdp_mmu(case: Case) -> bool:
    return not has_tdp_mmu(case)


def _no_1g_page(case: Case) -> bool:
    return case.test.memory_mib < MEMORY_FOR_1G


def _on_svm(case: Case) -> bool:
    return case.mode.machine == "svm-qemu"


def _no_tdp_on_svm(case: Case) -> bool:
    return _on_svm(case) and _no_tdp(case)


def _has_pml(case: Case) -> bool:
    parameters = case.mode.parameters
    off = {parameters.get(f"kvm_intel.{name}") for name in ("pml", "eptad")}
    return not _on_svm(case) and has_tdp(case) and "0" not in off


def _refuses_no_split(case: Case) -> bool:
    """Whether the kernel lacks kvm.prove_skip_split, by which a split can be refused."""
    return case.config != "debug"


@dataclass(frozen=True)
class MaySkip:
    """A reason to skip PARTS, a regular expression, in the cases WHERE it holds."""

    reason: str
    parts: str
    where: Callable[[Case], bool]

    def allows(self, case: Case, part: str, reason: str) -> bool:
        return (
            reason == self.reason
            and re.fullmatch(self.parts, part) is not None
            and self.where(case)
        )


OF_1G = "1g|1g-alias|1g-left|1g-moved|1g-unlinked|relink|links|many_links|filled"
EXPECTED = (
    MaySkip("too few huge pages are free", OF_1G, _no_1g_page),
    MaySkip("the guest's page tables are not shadowed", ".*", has_tdp),
    MaySkip("the guest's page tables are shadowed", ".*", _no_tdp),
    MaySkip("the TDP MMU is on, which has no rmaps", "split|moved", has_tdp_mmu),
    MaySkip("the TDP MMU has no quota", ".*", has_tdp_mmu),
    MaySkip("no TDP MMU", ".*", _no_tdp_mmu),
    MaySkip("the guest isn't mapped by the TDP MMU", ".*", _no_tdp_mmu),
    MaySkip("no page tables of the guest are shadowed", ".*", has_tdp),
    MaySkip("the kernel splits all huge pages", "logged-kept", _refuses_no_split),
    MaySkip("no nested EPT", "L2-noAD", _on_svm),
    MaySkip("no nested NPT or EPT", "L2-noTDP", _no_tdp_on_svm),
    MaySkip("SPTEs have no Dirty bits, or the CPU logs by itself (PML)", "off", _has_pml),
)


def unexpected(case: Case, output: str) -> Iterator[str]:
    """The lines of OUTPUT that say that something was skipped that may not be skipped in CASE."""
    for line in SKIP.findall(output):
        match = PART.fullmatch(line)
        if not match or not any(one.allows(case, match[1], match[2]) for one in EXPECTED):
            yield line


def others(output: str, expected: str) -> list[str]:
    """The lines of OUTPUT that say that something was skipped, but for those that are EXPECTED.

    expected: a regular expression for the whole line without its number; empty: nothing is.
    """
    lines = (line for line in SKIP.findall(output))
    said = ((line, re.sub(r"^ok \d+ # SKIP ", "", line)) for line in lines)
    return [line for line, what in said if not (expected and re.fullmatch(expected, what))]
