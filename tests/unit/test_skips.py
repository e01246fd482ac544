# SPDX-License-Identifier: GPL-2.0-only
"""tests.machines.skips: skipped parts of a selftest are noticed where they are not expected."""

from dataclasses import replace

import pytest

from lab.core.paths import ROOT
from tests.machines import matrix, skips
from tests.machines.matrix import Case
from tests.rows import for_each_row

SHADOW = Case(matrix.IDLE, matrix.SHADOW_MODES[-1], "Y")
TDP = Case(matrix.IDLE, matrix.TDP_MODE, "Y")
TDP_WITHOUT_ITS_MMU = Case(matrix.IDLE, matrix.SHADOW_MODES[0], "Y")
WITH_1G = Case(matrix.MODES_1G, matrix.TDP_MODE, "Y")
VMX = Case(matrix.DIRTY_BITS_PARAM, matrix.VMX_MODES[0], "Y")
VMX_SHADOW = Case(matrix.DIRTY_BITS_PARAM, matrix.VMX_MODES[2], "Y")
VMX_WITHOUT_PML = Case(matrix.DIRTY_BITS_PARAM, matrix.without("pml"), "Y")
DEBUG = replace(TDP, config="debug")
PML = "off: SPTEs have no Dirty bits, or the CPU logs by itself (PML)"


@for_each_row(
    "case, text, expected",
    (TDP, "many: too few huge pages are free", False),
    (TDP, "1g: too few huge pages are free", True),
    (WITH_1G, "1g: too few huge pages are free", False),
    (TDP, "age: the kernel has no /sys/kernel/mm/page_idle/bitmap", False),
    (SHADOW, "idle: the guest isn't mapped by the TDP MMU", True),
    (TDP_WITHOUT_ITS_MMU, "idle: the guest isn't mapped by the TDP MMU", True),
    (TDP, "idle: the guest isn't mapped by the TDP MMU", False),
    (SHADOW, "table: no page tables of the guest are shadowed", False),
    (TDP_WITHOUT_ITS_MMU, "table: no page tables of the guest are shadowed", True),
    (SHADOW, "L2-noTDP: no nested NPT or EPT", True),
    (TDP, "L2-noTDP: no nested NPT or EPT", False),
    (TDP, "L2: no nested SVM or VMX", False),
    (TDP, "off: SPTEs have no Dirty bits, or the CPU logs by itself (PML)", False),
    (TDP, "split: the TDP MMU is on, which has no rmaps", True),
    (SHADOW, "split: the TDP MMU is on, which has no rmaps", False),
    (VMX, PML, True),
    (VMX_WITHOUT_PML, PML, False),
    (VMX_SHADOW, PML, False),
    (TDP, PML, False),
    (SHADOW, "L2-noAD: no nested EPT", True),
    (VMX, "L2-noAD: no nested EPT", False),
    (VMX_SHADOW, "L2-noTDP: no nested NPT or EPT", False),
    (TDP, "logged-kept: the kernel splits all huge pages", True),
    (DEBUG, "logged-kept: the kernel splits all huge pages", False),
)
def test_what_is_skipped_is_compared_with_what_may_be(
    case: Case, text: str, *, expected: bool
) -> None:
    line = f"ok 3 # SKIP {text}"
    output = f"TAP version 13\n1..3\nok 2 fine: # SKIPPED nothing\n{line}\n# Totals: skip:1\n"
    assert [*skips.unexpected(case, output)] == ([] if expected else [line])


@pytest.mark.parametrize(
    "line", ["Log mode 'x' not supported, skipping test", "1..0 # SKIP no KVM"]
)
def test_lines_of_another_form_are_never_expected(line: str) -> None:
    assert [*skips.unexpected(TDP, f"a\n{line}\nb\n")] == [line]


@pytest.mark.parametrize("case", [VMX, replace(TDP, config="debug"), TDP])
def test_on_each_machine_and_kernel_only_what_is_listed_may_be_skipped(case: Case) -> None:
    line = "ok 1 # SKIP a: b"
    assert [*skips.unexpected(case, f"{line}\n")] == [line]


@for_each_row(
    "text, expected, left",
    ("ok 1 # SKIP clear, 4 + 0 KiB of room", r"clear, \d \+ \d KiB of room", 0),
    ("ok 1 # SKIP clear, 4 + 0 KiB of room", r"clear", 1),
    ("ok 1 # SKIP a: b", "", 1),
    ("Mode 'x' not supported, skipping test", "", 1),
    ("ok 1 a: b\n# Totals: skip:1", "", 0),
)
def test_what_other_tests_skip(text: str, expected: str, left: int) -> None:
    assert len(skips.others(f"TAP version 13\n{text}\n", expected)) == left


@pytest.mark.parametrize("reason", [one.reason for one in skips.EXPECTED])
def test_each_reason_is_one_that_a_selftest_gives(reason: str) -> None:
    programs = (ROOT / "tools/testing/selftests/kvm/x86").glob("*.[ch]")
    assert any(f'"{reason}"' in file.read_text() for file in programs)
