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
from .matrix import Case, mutant_cases, mutant_id, same_controls

SKIPPED = 4
# What all mutants have whose patch names no other configuration.
CONFIG = "kvm"
NOT_BUILT = "a mutant was not looked for: `make test WHAT=limit` builds the kernel that it needs"
MUTANTS = mutants.load(LAYOUT).mutants
SHARING = same_controls(MUTANTS)
# A kernel that is left unfit is so for tests behind it only, each of which has its control first.
ORDER = sorted(MUTANTS, key=lambda mutant: len(SHARING[mutant.number]) == 1)


def in_order(mutant: Mutant) -> tuple[Case, Case]:
    """A control that mutants share comes behind them.

    If it passes, none of them has left a kernel behind in which it would have failed, too.
    """
    control, itself = mutant_cases(mutant, SHARING[mutant.number])
    return (itself, control) if len(SHARING[mutant.number]) > 1 else (control, itself)


@pytest.fixture
def boots(boots_of: BootsOf) -> Boots:
    """The boots for the mutants of this test run."""
    return boots_of("mutants", "series", lambda params: in_order(params["mutant"]))


def assert_found(pattern: re.Pattern[str] | None, text: str, where: str, all_of: Outcome) -> None:
    if pattern and not pattern.search(text):
        pytest.fail(f"{where} does not have {pattern.pattern!r}; seen instead: {all_of}")


@pytest.mark.mutants
@pytest.mark.timeout(MOST_S)
@pytest.mark.parametrize("mutant", ORDER, ids=mutant_id)
def test_mutant_is_caught(
    mutant: Mutant,
    boots: Boots,
    cost: Callable[[Spent], None],
    optional_kernel: Callable[..., Kernel],
) -> None:
    if mutant.check.config != CONFIG:
        optional_kernel(mutant.check.config, NOT_BUILT, kind="mutants")
    shares = SHARING[mutant.number]
    control, found = boots.control_and(mutant_cases(mutant, shares))
    cost(found.spent + (control.spent if mutant == shares[0] else Spent()))
    assert control.fine, f"without the mutant: {control}"
    check = mutant.check
    assert not found.fine, f"no test noticed: {found}"
    assert found.status != SKIPPED, f"skipped with the mutant: {found}"
    assert_found(check.kernel_log, found.kernel_log, "the kernel's log", found)
    if check.output:
        assert found.status != 0, f"the kernel complains, but {check.program} passes: {found}"
        assert_found(check.output, found.output, "the test's output", found)
