# SPDX-License-Identifier: GPL-2.0-only
"""What hosts do that the smallest kernel can't: memory cgroups, and memory that moves.

VMs near the limit of their memory cgroup: who lives with lazy splitting lives with eager. And VMs
whose memory the host moves between NUMA nodes, swaps out, compacts, merges or poisons. Only the
kernel of the configuration host can do that.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.build.kernel import Kernel
from lab.machines import Job, Sharing

from .matrix import DISTINCT_MODES, Mode
from .test_selftests import run_silent

CONFIG = "host"
NOT_BUILT = (
    "nothing was done as on hosts: there is no kernel host; `make test WHAT=limit` builds it"
)
TEST = "x86/eager_split_limit_test"
# With so little memory a VM does not live without eager splitting, either.
TOO_LITTLE = r"(enable|clear), \d+ \+ \d+ KiB of room: too little without as well"
# The guest's huge pages are one of the host's.
SCRIPT = "echo 1 >/proc/sys/vm/nr_hugepages && exec /test"
MOVED = "x86/dirty_log_host_test"
NODES = ("numa=fake=2",)
SWAP_SCRIPT = """
set -e
echo 64M >/sys/block/zram0/disksize
mkswap /dev/zram0 >/dev/null
swapon /dev/zram0
echo "$1" >/sys/module/kvm/parameters/eager_page_split
shift
exec /test "$@"
"""
# Parts of the test, and how the CPUs share those of the host. With a thread for each CPU, merging
# pages crashes the guest or the machine's kernel, whether that kernel is patched or not.
PARTS = {
    "move": Sharing.THREADS,
    "swap": Sharing.THREADS,
    "compact": Sharing.THREADS,
    "merge": Sharing.TURNS,
    "poison": Sharing.THREADS,
}


@pytest.mark.parametrize("mode", DISTINCT_MODES, ids=lambda mode: mode.name)
def test_vms_live_near_their_limit(
    optional_kernel: Callable[..., Kernel], selftests: Callable[[str], Path], mode: Mode
) -> None:
    job = Job(
        kernel=optional_kernel(CONFIG, NOT_BUILT).image,
        command=("sh", "-c", SCRIPT),
        parameters=mode.parameters,
        cpus=3,
        files={"/test": selftests("series") / TEST},
        timeout_s=600,
    )
    run_silent(mode.machine, job, TOO_LITTLE)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("dirty_bits", "eager"), [("off", "N"), ("off", "Y"), ("on", "Y")])
@pytest.mark.parametrize("mode", DISTINCT_MODES, ids=lambda mode: mode.name)
def test_memory_that_the_host_moves_or_takes(
    optional_kernel: Callable[..., Kernel],
    selftests: Callable[[str], Path],
    mode: Mode,
    dirty_bits: str,
    eager: str,
    part: str,
) -> None:
    job = Job(
        kernel=optional_kernel(CONFIG, NOT_BUILT).image,
        command=("sh", "-c", SWAP_SCRIPT, "host", eager, "-m", part),
        parameters={**mode.parameters, "kvm.dirty_bits": dirty_bits},
        cmdline=NODES,
        cpus=3,
        files={"/test": selftests("series") / MOVED},
        timeout_s=600,
        sharing=PARTS[part],
    )
    run_silent(mode.machine, job)
