# SPDX-License-Identifier: GPL-2.0-only
"""Eager page splitting on a 32-bit host with PAE, by a program of its own: pae_split_test.c."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from lab.build import programs32
from lab.build.kernel import Kernel
from lab.machines import Job
from tests.rows import for_each_row

from .test_selftests import run_silent

TEST = Path(__file__).parent / "pae" / "pae_split_test.c"
NOT_BUILT = "nothing was run on a 32-bit host: there is no kernel pae; see `make test WHAT=pae`"
HOW = ("", ", initially all set", ", not eager")
VARIANTS = tuple(f"{guest}{how}" for guest, how in product(("no paging", "PAE"), HOW))


@pytest.fixture(scope="session")
def image(optional_kernel: Callable[..., Kernel]) -> Path:
    return optional_kernel(programs32.CONFIG, NOT_BUILT, programs32.BUSYBOX).image


@pytest.mark.long
def test_program_is_32_bit_and_static() -> None:
    header = programs32.build(TEST).read_bytes()[:20]
    assert header[:5] == b"\x7fELF\x01"
    assert header[16] == 2  # ET_EXEC: no loader


def _name(value: str | dict[str, str]) -> str:
    return value if isinstance(value, str) else ",".join(map("=".join, value.items()))


@for_each_row(
    "machine, parameters, dirty_bits",
    *(("svm-qemu", {"kvm_amd.npt": npt}, by) for npt, by in product("01", ("off", "on"))),
    ("vmx-bochs", {"kvm_intel.ept": "0"}, "on"),
    ("vmx-bochs", {"kvm_intel.ept": "1", "kvm_intel.pml": "1"}, "off"),
    ("vmx-bochs", {"kvm_intel.ept": "1", "kvm_intel.pml": "0"}, "on"),
    ids=_name,
)
def test_splitting(image: Path, machine: str, parameters: dict[str, str], dirty_bits: str) -> None:
    job = Job(
        kernel=image,
        busybox=programs32.BUSYBOX,
        command=("/test", dirty_bits),
        parameters={**parameters, "kvm.dirty_bits": dirty_bits},
        files={"/test": programs32.build(TEST)},
        timeout_s=120,
    )
    assert run_silent(machine, job).text == "".join(f"ok {variant}\n" for variant in VARIANTS)
