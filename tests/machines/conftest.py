# SPDX-License-Identifier: GPL-2.0-only
"""What tests need that build kernels and boot them."""

from collections.abc import Generator

import pytest

from tests import guards


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """The bound of a worker's memory is none of the machines that it boots."""
    with guards.more_memory():
        return (yield)
