# SPDX-License-Identifier: GPL-2.0-only
"""What a machine refuses before it starts anything, each with one line that says what is right.

And what a command that failed is told as.
"""

import dataclasses
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab import machines
from lab.core import process
from lab.core.paths import KINDS, LAYOUT
from lab.machines import emulated, parameters
from lab.machines.job import TAIL, Job, Result, complaints
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refusal, refused
from tests.unit.files import leave_free

JOB = Job(kernel=Path(__file__), command=("true",), memory_mib=256)


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test that gets as far as starting an emulator; do not ask for installed packages."""
    monkeypatch.setattr(process, "child", Mock(side_effect=AssertionError("a process was started")))
    monkeypatch.setattr(emulated.EmulatedMachine, "_check_packages", lambda _: None)


def test_unknown_machine_names_the_right_ones() -> None:
    wanted = "there is no machine 'svm', only: svm-qemu vmx-bochs host"
    assert refused(machines.get, "svm") == wanted


@for_each_row(
    "machine, change, why",
    ("svm-qemu", {"cpus": 9}, "1 to 8"),
    ("vmx-bochs", {"cpus": 16}, "1 to 15"),
    ("vmx-bochs", {"cpus": 0}, "1 to 15"),
    ("svm-qemu", {"memory_mib": 255}, "needs 256 or more"),
    ("svm-qemu", {"memory_mib": 1 << 30}, "this host has"),
    ("vmx-bochs", {"memory_mib": 8193}, "can have 8192"),
    ("svm-qemu", {"parameters": {"tdp_mmu": "0"}}, "MODULE.NAME"),
    ("svm-qemu", {"parameters": {"kvm.tdp_mmu": "0 1"}}, "one word"),
    ("svm-qemu", {"parameters": {"kvm_intel.ept": "0"}}, "changes nothing on svm-qemu"),
    ("vmx-bochs", {"parameters": {"kvm-amd.npt": "0"}}, "changes nothing on vmx-bochs"),
    ("svm-qemu", {"cmdline": ("a b",)}, "not a single word"),
    ("svm-qemu", {"cmdline": ("x" * 2047,)}, "2047 fit"),
    ("svm-qemu", {"command": ()}, "no command"),
    ("svm-qemu", {"kernel": Path("/nonexistent")}, "no such kernel"),
    ("svm-qemu", {"files": {"/x": Path("/nonexistent")}}, "no such file"),
)
def test_bad_job_is_refused(machine: str, change: dict[str, object], why: str) -> None:
    job = dataclasses.replace(JOB, **change)  # type: ignore[arg-type]
    assert why in refused(machines.get(machine).run, job)


def test_full_disk_is_refused_and_missing_package_named(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_free(monkeypatch, 1 << 20)
    assert "no space left" in refused(machines.get("svm-qemu").run, JOB)
    monkeypatch.undo()
    monkeypatch.setattr(machines.qemu.SvmQemu, "needs", {Path("/nonexistent"): "qemu-system-x86"})
    assert "apt-get install qemu-system-x86" in refused(machines.get("svm-qemu").describe, JOB)


@for_each_row(
    "wanted, found, good",
    ("0", "N", True),
    ("1", "Y", True),
    ("y", "Y", True),
    ("60", "60", True),
    ("1", "N", True),  # turned off by another parameter
    ("1", "?", True),  # may not be read
    ("0", "Y", False),
    ("maybe", "Y", False),
    ("60", "61", False),
    ("60", "N", False),
    ("0", None, False),
)
def test_value_inside_the_machine(wanted: str, found: str | None, good: bool) -> None:
    given = ("svm-qemu", "kvm.x", wanted, found)
    if good:
        parameters.check_value(*given)
    else:
        assert "kvm.x" in refused(parameters.check_value, *given)


def test_a_command_that_failed_is_told_by_the_end_of_its_output() -> None:
    Result(0, b"", {}, "", 1.0).check("a boot")
    result = Result(139, b"begin " + b"x" * TAIL + b" why \xff\n", {}, "", 1.0)
    assert failed(result.check, "a boot") == f"a boot: exit status 139:\n{result.text[-TAIL:]}"
    assert result.text.endswith(" why \ufffd\n")


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CPU: 1 PID: 88 at arch/x86/kvm/mmu/mmu.c:1234 f+0x1/0x2 [kvm]",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [test:88]",
        "INFO: task kworker/0:1:12 blocked for more than 120 seconds.",
        "INFO: lockdep is turned off.",
        "rcu: INFO: rcu_preempt self-detected stall on CPU",
        "INFO: trying to register non-static key.",
        "KASAN: null-ptr-deref in range [0x0000000000000008-0x000000000000000f]",
        "Oops: general protection fault, probably for non-canonical address 0x5: 0000 [#1] SMP",
        "Call Trace:",
    ],
)
def test_each_kind_of_complaint_is_found_in_a_kernels_log(line: str) -> None:
    quiet = (
        "[    1.000000] INFO: NMI handler (f) took too long to run: 1.9 msecs\nLockdep: 8192 keys"
    )
    assert complaints(quiet) == []
    assert complaints(f"{quiet}\n[    2.000000] {line}\n{quiet}") == [f"[    2.000000] {line}"]


@pytest.mark.parametrize("kind", KINDS)
def test_dry_run_says_what_would_start(kind: str) -> None:
    words = ("-k", kind, "-p", "kvm.tdp_mmu=0", "--cpus", "3", "--dry-run", "--", "echo", "a b")
    shown = lab("run", "svm-qemu", *words).out
    image = LAYOUT.tree_of(kind) / "obj-kvm/arch/x86/boot/bzImage"
    kernel = f"kernel:         {image}\n"
    for said in ("svm-qemu, 3 CPUs, 1024 MiB", kernel, "kvm.tdp_mmu=0", "echo 'a b'"):
        assert said in shown


@pytest.mark.parametrize("option", [["-p", "kvm.tdp_mmu"], ["--file", "=x"], ["-c", "nosuch"]])
def test_bad_option_is_refused(option: list[str]) -> None:
    refusal("run", "svm-qemu", *option, "--dry-run", "--", "true")
