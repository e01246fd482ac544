# SPDX-License-Identifier: GPL-2.0-only
"""What tests need that build kernels and boot them."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

from lab.build.kernel import Kernel
from lab.machines import Job
from tests import guards

from .boots import Boots, BootsOf, CasesOf, make_job
from .matrix import Case


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """The bound of a worker's memory is none of the machines that it boots."""
    with guards.more_memory():
        return (yield)


@pytest.fixture(scope="session")
def boots_of(
    request: pytest.FixtureRequest,
    kernel: Callable[[str, str], Kernel],
    selftests: Callable[[str], Path],
) -> BootsOf:
    """boots_of(kind, tree, test, cases): boots for CASES(parameters) of all of TEST in this run.

    tree: the kind of kernel whose selftests run on that of KIND.
    """
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]

    def made(kind: str, tree: str, test: Callable[..., None], cases: CasesOf) -> Boots:
        def job(together: Sequence[Case], note: Callable[[str], None]) -> Job:
            image = kernel(kind, together[0].config).image
            return make_job(together, image, selftests(tree), note)

        asked = (item.callspec.params for item in items if item.function is test)
        return Boots((case for params in asked for case in cases(params)), job)

    return made
