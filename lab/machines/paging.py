# SPDX-License-Identifier: GPL-2.0-only
"""How KVM maps guests, and the module parameters that choose it."""

from dataclasses import dataclass

# Vendor parameter that turns two-dimensional paging off; `host` cannot change its own.
TDP = {"vmx-bochs": "kvm_intel.ept", "svm-qemu": "kvm_amd.npt", "host": None}
PML = "kvm_intel.pml"
# Only the series has it.
HARVEST = "kvm.dirty_harvest"


@dataclass(frozen=True)
class Mode:
    """A paging mode. tdp_mmu: only with ept, which stands for npt as well.

    pml: False where Intel's EPT is to do without.
    """

    ept: bool
    tdp_mmu: bool = False
    pml: bool = True

    def parameters(self, machine: str, kernel: str = "series") -> dict[str, str]:
        """What to boot KERNEL on MACHINE with; nothing for one that cannot choose.

        The series' kernel write-protects pages where the CPU doesn't log by itself, as others do.
        """
        vendor = TDP[machine]
        if vendor is None:
            return {}
        found = {
            "kvm.tdp_mmu": str(int(self.tdp_mmu)),
            vendor: str(int(self.ept)),
            **({HARVEST: "off"} if kernel == "series" else {}),
        }
        return found if self.pml else found | {PML: "0"}
