# SPDX-License-Identifier: GPL-2.0-only
"""Tests that run once for each row of a table."""

from collections.abc import Callable, Sequence

import pytest

Ids = Sequence[str] | Callable[..., str] | None


def for_each_row(names: str, *rows: object, ids: Ids = None) -> pytest.MarkDecorator:
    """Run a test once for each row, which has a value for each of NAMES, as in "text, said"."""
    if ids is None:
        # With ids=None pytest would keep the ids that it makes, and escape them once more if it
        # collects the tests again in the same process, as it does for mutmut.
        return pytest.mark.parametrize(names, rows)
    return pytest.mark.parametrize(names, rows, ids=ids)
