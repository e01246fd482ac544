# SPDX-License-Identifier: GPL-2.0-only
"""A thousand VMs that log dirty pages come and go, and kmemleak finds nothing left of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.build.kernel import Kernel
from lab.machines import Job

from .test_selftests import run_silent

CONFIG = "leaks"
NOT_BUILT = "no leak was looked for: there is no kernel leaks; `make test WHAT=leaks` builds it"
VMS = 250
# Each MMU, and each way of logging: (parameters, dirty_bits).
MODES = [
    ({"kvm_amd.npt": "0", "kvm.tdp_mmu": "0"}, "off"),
    ({"kvm_amd.npt": "0", "kvm.tdp_mmu": "0"}, "on"),
    ({"kvm_amd.npt": "1", "kvm.tdp_mmu": "0"}, "off"),
    ({"kvm_amd.npt": "1", "kvm.tdp_mmu": "1"}, "on"),
]
# What was allocated in the last five seconds is not suspected yet, and a second look spares
# what only moved during the first one. The file is empty if nothing was found.
SCRIPT = """
set -eo pipefail
echo Y >/sys/module/kvm/parameters/eager_page_split
echo "$2" >/sys/module/kvm/parameters/dirty_bits
echo 4 >/proc/sys/vm/nr_hugepages
/test/dirty_log_perf_test -s anonymous_hugetlb_2mb -b 4M -i 2 --runs "$1" | tail -n 3
sleep 6
echo scan >/sys/kernel/debug/kmemleak
echo scan >/sys/kernel/debug/kmemleak
cp /sys/kernel/debug/kmemleak "$LAB_OUT/leaks"
"""


@pytest.mark.parametrize(("parameters", "dirty_bits"), MODES, ids=str)
def test_nothing_is_left_of_vms(
    optional_kernel: Callable[..., Kernel],
    selftests: Callable[[str], Path],
    parameters: dict[str, str],
    dirty_bits: str,
) -> None:
    job = Job(
        kernel=optional_kernel(CONFIG, NOT_BUILT).image,
        command=("sh", "-c", SCRIPT, "leaks", str(VMS), dirty_bits),
        parameters=parameters,
        files={"/test/dirty_log_perf_test": selftests("series") / "dirty_log_perf_test"},
        timeout_s=900,
    )
    assert run_silent("svm-qemu", job).files["leaks"].decode() == ""
