# SPDX-License-Identifier: GPL-2.0-only
"""Boots that measure also verify: their scripts, with a directory for / and a fake of the test."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.build.selftests import LIVE_TEST, PERF_TEST
from lab.machines import Job
from lab.machines.paging import Mode
from lab.measure import cost, live, lockprofile
from lab.measure.cost import Point
from tests.unit.files import program, write
from tests.unit.test_live import BOOT
from tests.unit.test_lockprofile import RUN

# Of tracefs, what a script writes to or reads.
EVENTS = (
    *("lock/contention_begin", "lock/contention_end", "kvm/kvm_userspace_exit"),
    *("sched/sched_switch", "kvmmmu/kvm_eager_split_begin", "kvmmmu/kvm_eager_split_end"),
)
IMAGE, PROGRAM = Path("bzImage"), Path("test")
MEASURED: tuple[tuple[Job, str, int], ...] = (
    (live.live_job(BOOT, IMAGE, PROGRAM), f"{live.INSIDE}/{LIVE_TEST}", 2),
    (
        cost.cost_job(True, [Point(1, 4), Point(2, 8)], IMAGE, PROGRAM),
        f"{cost.INSIDE}/{PERF_TEST}",
        2,
    ),
    (
        lockprofile.trace_job(Mode(True), [RUN], 2, 3, IMAGE, PROGRAM),
        f"{lockprofile.INSIDE}/{PERF_TEST}",
        2,
    ),
)


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("job, inside, timed", MEASURED, ids=["live", "cost", "lockprofile"])
def test_what_is_measured_is_verified_afterwards(
    tmp_path: Path, job: Job, inside: str, timed: int, wrong: bool
) -> None:
    """The script of a boot, with a directory for /, and a test whose verdict may be bad."""
    for name in ("kernel/tracing/trace", "kernel/tracing/per_cpu/cpu0/stats"):
        write(tmp_path / "sys" / name, "")
    for event in EVENTS:
        write(tmp_path / "sys/kernel/tracing/events" / event / "enable", "")
    for name in ("sys/module/kvm/parameters/x", "proc/sys/vm/x", "sys/kernel/tracing/options/x"):
        write(tmp_path / name, "")
    (tmp_path / "out").mkdir()
    text = f"""#!/bin/sh
echo "$*" >>{tmp_path}/calls
case " $* " in *" -V "*) {"echo wrong; exit 1" if wrong else ":"} ;; esac
"""
    test = program(tmp_path / "test", text)
    script = re.sub(r"(?<!\w)/(?=(sys|proc)/)", f"{tmp_path}/", job.command[2])
    script = script.replace(inside, str(test))
    done = subprocess.run(
        (shutil.which("dash") or "sh", "-c", script, *job.command[3:]),
        env={
            "LAB_OUT": f"{tmp_path}/out",
            "LAB_PROGRESS": f"{tmp_path}/progress",
            "PATH": os.environ["PATH"],
        },
        capture_output=True,
        text=True,
        check=False,
    )
    calls = (tmp_path / "calls").read_text().splitlines()
    verified = [call for call in calls if "-V" in call.split()]
    assert (len(calls) - len(verified), calls[-len(verified) :]) == (timed, verified)
    assert (done.returncode, "wrong" in done.stdout) == ((1, True) if wrong else (0, False))
