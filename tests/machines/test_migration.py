# SPDX-License-Identifier: GPL-2.0-only
"""A live migration by QEMU inside svm-qemu: it completes, and no write is lost.

Whether the figures are good is not judged: the times of this machine mean nothing. It takes a
minute and checks what `make bench WHAT=migrate` checks of its own runs, so `make test` leaves it
out: make test WHAT=migration
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab import machines
from lab.build.kernel import Kernel
from lab.build.qemu import PROGRAM
from lab.machines.qemu import QEMU
from lab.measure.migration import command, load
from lab.measure.migration.load import Load

from .test_selftests import run_silent

LOAD = Load(vcpus=2, mib_per_vcpu=4, rate=50, reads=63, writes=1)
# With dirty_bits=off, to begin with, KVM refuses Dirty bits; with auto it allows them.
START = f"{command.INSIDE}/qemu -M none -display none -monitor stdio -accel kvm,dirty-bits="
ALLOW = "echo auto >/sys/module/kvm/parameters/dirty_bits"
ASKS = f'{START}on || echo quit | {START}auto && "$0" "$@" && {ALLOW} && echo quit | {START}on'
SAID = [
    f"kvm: dirty-bits={value}: KVM_CAP_X86_DIRTY_BITS: Operation not permitted"
    " (parameter kvm.dirty_bits must not be off)"
    for value in ("on", "auto")
]
# make test WHAT=migration builds it before; pytest alone must not take minutes for that.
BUILT = pytest.mark.skipif(not PROGRAM.exists(), reason=f"no {PROGRAM}: make qemu builds it")


@pytest.mark.long
@pytest.mark.parametrize("npt", [True, False], ids=["npt1", "npt0"])
@pytest.mark.parametrize("qemu", [QEMU, pytest.param(PROGRAM, marks=BUILT)], ids=["debian", "asks"])
def test_migration(
    kernel: Callable[[str, str], Kernel], tmp_path: Path, npt: bool, qemu: Path
) -> None:
    machine = machines.get("svm-qemu")
    boot = replace(command.migration_boots(machine, "series", [npt], LOAD, 128)[0], qemu=qemu)
    image = kernel("series", command.CONFIG).image
    job = command.migration_job(machine, boot, image, load.build(LOAD, tmp_path))
    if asked := [True] * (qemu == PROGRAM):
        job = replace(job, command=("sh", "-c", ASKS, *job.command))
    result = run_silent(machine.name, job)
    assert re.findall("kvm: dirty-bits.*", result.text) == (SAID if asked else [])
    # Among other things: the copy of the guest has found every write in all of its memory.
    found = list(command.collect(boot, result.files))
    migrations = [one for one in found if one["record"] == "migration"]
    assert [one["eager"] for one in migrations] == [False, True, True, *asked]
    when = ("kvm_stats_before", "kvm_stats_after")
    assert [one[when[0]]["dirty_bits"] for one in migrations] == [0, 0, 1, *asked]
    counts = [[one[stats]["eager_split_done"] for stats in when] for one in migrations]
    split = [after - before for before, after in counts]
    assert split[0] == 0
    assert min(split[1:]) >= LOAD.vcpus * LOAD.mib_per_vcpu // 2
