# SPDX-License-Identifier: GPL-2.0-only
"""Repetitions of a test, as pytest-repeat makes them: `--count 20` runs each test twenty times.

pytest-repeat gives every test one more parameter, so "test[case]" becomes "test[case-1-20]" to
"test[case-20-20]".
"""

import re
from typing import NamedTuple

import pytest

PARAMETER = "__pytest_repeat_step_number"


class CaseName(NamedTuple):
    """What a test's name has in brackets.

    case: its own parameters. repetition: which one of how many, as in "1-20"; empty without
    --count.
    """

    case: str
    repetition: str = ""


def case_name(test: str, config: pytest.Config) -> CaseName:
    """Take the name of TEST, or its node id, apart."""
    inside = test.partition("[")[2].removesuffix("]")
    count = config.getoption("count")
    if count > 1 and (match := re.fullmatch(rf"(.*?)-?(\d+-{count})", inside)):
        return CaseName(match[1], match[2])
    return CaseName(inside)


def repetition(item: pytest.Function) -> int:
    """Which repetition of its test ITEM is, from 0."""
    number = item.callspec.params.get(PARAMETER, 0) if hasattr(item, "callspec") else 0
    assert isinstance(number, int)
    return number
