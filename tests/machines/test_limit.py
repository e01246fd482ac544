# SPDX-License-Identifier: GPL-2.0-only
"""VMs near the limit of their memory cgroup: who lives with lazy splitting lives with eager.

Only the kernel of the configuration host has memory cgroups.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.build.kernel import Kernel
from lab.machines import Job

from .matrix import DISTINCT_MODES, Mode
from .test_selftests import run_silent

CONFIG = "host"
NOT_BUILT = "no limit was met: there is no kernel host; `make test WHAT=limit` builds it"
TEST = "x86/eager_split_limit_test"
# With so little memory a VM does not live without eager splitting, either.
TOO_LITTLE = r"(enable|clear), \d+ \+ \d+ KiB of room: too little without as well"
# The guest's huge pages are one of the host's.
SCRIPT = "echo 1 >/proc/sys/vm/nr_hugepages && exec /test"


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
