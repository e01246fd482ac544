# SPDX-License-Identifier: GPL-2.0-only
"""What builds take, or waiting for another worker's, which is not the time of the test that asks.

Whichever test comes first would pay for what all of them use.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_spent = 0.0


@contextmanager
def building() -> Iterator[None]:
    """Until its end something is built. These do not nest."""
    global _spent
    begin = time.monotonic()
    try:
        yield
    finally:
        _spent += time.monotonic() - begin


def take() -> float:
    """How many seconds builds have taken since this was asked the last time."""
    global _spent
    spent, _spent = _spent, 0.0
    return spent
