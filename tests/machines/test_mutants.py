# SPDX-License-Identifier: GPL-2.0-only
"""Do the tests find bugs? Each mutant of tests/mutants is found, by the test that its patch names.

docs/developing.md, "Mutants", says how. The test has to fail as the patch says: other failures do
not count, not even a crash of the machine.
"""

import re
from collections.abc import Callable

import pytest

from lab.build import mutants
from lab.build.kernel import Kernel
from lab.build.mutants import Mutant
from lab.core.paths import LAYOUT

from .boots import MOST_S, Boots, BootsOf, Outcome, Spent
from .matrix import mutant_cases, mutant_id

SKIPPED = 4
# What all mutants have whose patch names no other configuration.
CONFIG = "kvm"
NOT_BUILT = "a mutant was not looked for: `make test WHAT=limit` builds the kernel that it needs"
MUTANTS = mutants.load(LAYOUT).mutants


@pytest.fixture
def boots(boots_of: BootsOf) -> Boots:
    """The boots for the mutants of this test run."""
    return boots_of("mutants", "series", lambda params: mutant_cases(params["mutant"]))


def assert_found(pattern: re.Pattern[str] | None, text: str, where: str, all_of: Outcome) -> None:
    if pattern and not pattern.search(text):
        pytest.fail(f"{where} does not have {pattern.pattern!r}; seen instead: {all_of}")


@pytest.mark.mutants
@pytest.mark.timeout(MOST_S)
@pytest.mark.parametrize("mutant", MUTANTS, ids=mutant_id)
def test_mutant_is_caught(
    mutant: Mutant,
    boots: Boots,
    cost: Callable[[Spent], None],
    optional_kernel: Callable[..., Kernel],
) -> None:
    if mutant.check.config != CONFIG:
        optional_kernel(mutant.check.config, NOT_BUILT, kind="mutants")
    control, found = boots.control_and(mutant_cases(mutant))
    cost(control.spent + found.spent)
    assert control.fine, f"without the mutant: {control}"
    check = mutant.check
    assert not found.fine, f"no test noticed: {found}"
    assert found.status != SKIPPED, f"skipped with the mutant: {found}"
    assert_found(check.kernel_log, found.kernel_log, "the kernel's log", found)
    if check.output:
        assert found.status != 0, f"the kernel complains, but {check.program} passes: {found}"
        assert_found(check.output, found.output, "the test's output", found)
