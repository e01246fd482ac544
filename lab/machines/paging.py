# SPDX-License-Identifier: GPL-2.0-only
"""How KVM maps guests, and the module parameters that choose it."""

from dataclasses import dataclass

# The parameter of each vendor's module that switches two-dimensional paging off.
TDP = {"vmx-bochs": "kvm_intel.ept", "svm-qemu": "kvm_amd.npt", "host": None}
PML = "kvm_intel.pml"
# Only kernels with the series have this parameter.
DIRTY_BITS = "kvm.dirty_bits"


@dataclass(frozen=True)
class Mode:
    """A paging mode. ept: also stands for npt. tdp_mmu: can only be True with ept.

    pml: False to switch PML off, which only Intel's EPT has.
    """

    ept: bool
    tdp_mmu: bool = False
    pml: bool = True

    def parameters(self, machine: str, kernel: str = "series") -> dict[str, str]:
        """The module parameters to boot KERNEL on MACHINE with. `host` boots nothing: none.

        They include dirty_bits=off for the series, so that it write-protects pages like the
        other kernels if the CPU does not log by itself (PML).
        """
        vendor = TDP[machine]
        if vendor is None:
            return {}
        found = {
            "kvm.tdp_mmu": str(int(self.tdp_mmu)),
            vendor: str(int(self.ept)),
            **({DIRTY_BITS: "off"} if kernel == "series" else {}),
        }
        return found if self.pml else found | {PML: "0"}
