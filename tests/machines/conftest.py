# SPDX-License-Identifier: GPL-2.0-only
"""What tests need that build kernels and boot them."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

from lab.build.kernel import Kernel
from lab.machines import Job
from tests import guards

from .boots import Boots, BootsOf, CasesOf, Spent, make_job
from .matrix import Case

# Of a test's properties, what its cases cost of the boots that they share with others.
WALL, CPU = "seconds", "emulator_cpu_seconds"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """The bound of a worker's memory is none of the machines that it boots."""
    with guards.more_memory():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test lasts as long as its own cases, not as the boot that the first test waits for."""
    report = yield
    own = [value for name, value in item.user_properties if name == WALL]
    if call.when == "call" and own:
        report.duration = float(str(own[0]))
    return report


@pytest.fixture
def cost(record_property: Callable[[str, object], None]) -> Callable[[Spent], None]:
    """cost(spent): what the test's cases have cost, for reports of it."""

    def record(spent: Spent) -> None:
        record_property(WALL, round(spent.wall, 3))
        record_property(CPU, round(spent.cpu, 3))

    return record


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
