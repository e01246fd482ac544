# SPDX-License-Identifier: GPL-2.0-only
"""A live migration by QEMU inside svm-qemu: it completes, and no write is lost.

Whether the figures are good is not judged: the times of this machine mean nothing. It takes a
minute and checks what `make bench WHAT=migrate` checks of its own runs, so `make test` leaves it
out: make test WHAT=migration
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab import machines
from lab.build.kernel import Kernel
from lab.measure.migration import command, load
from lab.measure.migration.load import Load

from .test_selftests import run_silent

LOAD = Load(vcpus=2, mib_per_vcpu=4, rate=50, reads=63, writes=1)


@pytest.mark.migration
@pytest.mark.parametrize("npt", [True, False])
def test_migration(kernel: Callable[[str, str], Kernel], tmp_path: Path, npt: bool) -> None:
    machine = machines.get("svm-qemu")
    (boot,) = command.migration_boots(machine, "series", [npt], LOAD, 128)
    image = kernel("series", command.CONFIG).image
    job = command.migration_job(machine, boot, image, load.build(LOAD, tmp_path))
    # Among other things: the copy of the guest has found every write in all of its memory.
    found = list(command.collect(boot, run_silent(machine.name, job).files))
    migrations = [one for one in found if one["record"] == "migration"]
    assert [one["eager"] for one in migrations] == [False, True, True]
    assert [one["dirty_harvest"] for one in migrations] == ["off", "off", "on"]
    when = ("kvm_stats_before", "kvm_stats_after")
    counts = [[one[stats]["eager_split_done"] for stats in when] for one in migrations]
    split = [after - before for before, after in counts]
    assert split[0] == 0
    assert min(split[1:]) >= LOAD.vcpus * LOAD.mib_per_vcpu // 2
