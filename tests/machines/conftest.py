# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures of tests that build kernels and boot them."""

import warnings
from collections.abc import Callable, Generator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

from lab.build.kernel import Kernel
from lab.core.locks import locked
from lab.core.paths import BUILD
from lab.machines import Job
from lab.series.archive import SourceMissing
from lab.submit import modules_proof
from lab.submit.modules_proof import Installed
from tests import builds, guards
from tests.builds import building
from tests.repeats import repetition
from tests.summary import CPU, WALL

from .boots import Boots, BootsOf, CasesOf, Spent, make_job
from .matrix import Case
from .operators import SUITE, Install


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Do not let the machines that a worker boots inherit the limit of its memory."""
    with guards.more_memory():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test lasts as long as its own cases, not as the boot that the first test waits for.

    Nor is what is built for it part of that.
    """
    report = yield
    report.duration = max(0.0, report.duration - builds.take())
    own = [value for name, value in item.user_properties if name == WALL]
    if call.when == "call" and own:
        report.duration = float(str(own[0]))
    return report


@pytest.fixture
def cost(record_property: Callable[[str, object], None]) -> Callable[[Spent], None]:
    """cost(spent): record the time that the cases of a test have taken."""

    def record(spent: Spent) -> None:
        record_property(WALL, round(spent.wall, 3))
        record_property(CPU, round(spent.cpu, 3))

    return record


@pytest.fixture(scope="session")
def known_boots() -> dict[tuple[object, ...], Boots]:
    """All boots of this run so far, for boots_of()."""
    return {}


@pytest.fixture
def boots_of(
    request: pytest.FixtureRequest,
    known_boots: dict[tuple[object, ...], Boots],
    kernel: Callable[[str, str], Kernel],
    selftests: Callable[[str], Path],
) -> BootsOf:
    """boots_of(kind, tree, cases): boots for CASES(parameters) of this test, all its parameters.

    tree: the kind of kernel whose selftests run on that of KIND. Tests with the same function share
    these boots, but not its repetitions (--count): each of them boots again.
    """
    this = request.node

    def is_same(item: pytest.Item) -> TypeGuard[pytest.Function]:
        return (
            isinstance(item, pytest.Function)
            and item.function is this.function
            and repetition(item) == repetition(this)
        )

    def made(kind: str, tree: str, cases: CasesOf) -> Boots:
        def job(together: Sequence[Case], note: Callable[[str], None]) -> Job:
            image = kernel(kind, together[0].config).image
            return make_job(together, image, selftests(tree), note)

        key = (this.function, repetition(this), kind, tree)
        if key not in known_boots:
            same = filter(is_same, request.session.items)
            wanted = [case for item in same for case in cases(item.callspec.params)]
            known_boots[key] = Boots(wanted, job)
        return known_boots[key]

    return made


@pytest.fixture(scope="session")
def install() -> Install:
    """install(suite, flavour): a Debian of this suite with this kernel and the package."""

    @cache
    def done(suite: str, flavour: str) -> Installed:
        try:
            # Not that of kernels, which the other worker may want meanwhile.
            with building(), locked(BUILD / "installed.lock"):
                return modules_proof.install(suite, flavour)
        except SourceMissing as error:
            warnings.warn(str(error), stacklevel=2)
            pytest.skip(str(error))

    return done


@pytest.fixture
def installed(install: Install) -> Installed:
    """What most hosts run."""
    return install(SUITE, "amd64")
