# SPDX-License-Identifier: GPL-2.0-only
"""Bounds of a test run, and what the tests inside machines boot, which no unit test uses."""

import faulthandler
import os
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

# xdist has no type annotations.
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from lab.build import kernel as kernels
from lab.build import mutants
from lab.build import selftests as tests_of_kvm
from lab.build.kernel import Kernel
from lab.core.locks import locked
from lab.core.paths import BUILD, LAYOUT
from lab.series import topics
from tests import guards
from tests.builds import building
from tests.machines.matrix import PACKAGED, cases, long_cases, mutant_cases, mutant_id
from tests.repeats import case_name
from tests.summary import BEGAN, SINCE, Summary

T = TypeVar("T")

BOOT_OF = {case.id: case.boot for case in (*cases(), *long_cases(), *PACKAGED)}
BOOT_OF |= {mutant_id(one): mutant_cases(one)[0].boot for one in mutants.load(LAYOUT).mutants}
# How the ids of tests begin that share something: several workers would each draw the report with
# all kinds of pictures.
ONE_WORKER = {"tests/unit/test_page.py::": "page"}


MACHINES = "tests/machines/"
# Workers that boot machines. If there is one more, it has what needs no machine, which often waits.
BOOTING = 2


def is_xdist_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _has_machines(tests: Iterable[str]) -> bool:
    return any(test.startswith(MACHINES) for test in tests)


class BootScheduling(LoadScopeScheduling):  # type: ignore[misc] # without types, as said
    """Gives all cases of a boot to the same worker, and the tests of ONE_WORKER that are alike.

    All other tests are given to workers one by one. Each repetition (--count) has its own boots.
    Of the workers, BOOTING have tests of machines.
    """

    def _first_for(self, node: object) -> str | None:
        """The first scope of work that is left and that the worker NODE may have."""
        every = self.nodes.index(node) < BOOTING
        work = self.workqueue.items()
        return next((name for name, unit in work if every or not _has_machines(unit)), None)

    def _assign_work_unit(self, node: Any) -> None:
        if (first := self._first_for(node)) is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        for begin, scope in ONE_WORKER.items():
            if nodeid.startswith(begin):
                return scope
        case, repetition = case_name(nodeid, self.config)
        return f"{BOOT_OF[case]} {repetition}" if case in BOOT_OF else nodeid


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """If a topic is tested, as by `make mail`, run only the cases that docs/topics.toml names."""
    if wanted := os.environ.get(topics.VARIABLE):
        patterns = topics.topic_named(topics.read(LAYOUT), wanted).tests
        names = {item: case_name(item.name, config).case for item in items}
        chosen = [i for i in items if any(fnmatchcase(names[i], p) for p in patterns)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def _kind(kind: str) -> str:
    """The kind of kernel to build. If a topic is tested, it takes the place of the series."""
    return "topic" if kind == "series" and os.environ.get(topics.VARIABLE) else kind


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BootScheduling:
    return BootScheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Limit the memory of this process, a test run or one of its workers. Sum up the run."""
    guards.limit_memory()
    os.environ.setdefault(SINCE, os.environ.get(BEGAN, f"{time.time()}"))
    if not is_xdist_worker(config):
        config.pluginmanager.register(Summary())


def pytest_sessionstart(session: pytest.Session) -> None:
    guards.Ending(session)


def pytest_unconfigure() -> None:
    guards.end_what_is_left()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Set a second timer beside that of pytest-timeout, for tests that its exception cannot end."""
    guards.end_without_exception(item, settings.timeout)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> None:
    """Cancel that timer: the test has ended in time."""
    faulthandler.cancel_dump_traceback_later()


def _once(make: Callable[..., T], made_since: Callable[..., T | None]) -> Callable[..., T]:
    """Remember the result of MAKE, or its exception: do not repeat a failed build for every test.

    The workers of a test run take turns, since two of them must not call MAKE at the same time.
    made_since: finds what another worker, or the make that runs the tests, has made already.
    """

    @cache
    def made(*arguments: str) -> Future[T]:
        future: Future[T] = Future()
        try:
            with building(), locked(BUILD / "tests.lock"):
                found = made_since(float(os.environ[SINCE]), *arguments)
                future.set_result(make(*arguments) if found is None else found)
        except Exception as error:
            future.set_exception(error)
        return future

    return lambda *arguments: made(*arguments).result()


@pytest.fixture(scope="session")
def kernel() -> Callable[[str, str], Kernel]:
    """kernel(kind, config): a kernel as lab.build.kernel.build() makes it, once for all tests."""
    return _once(
        lambda kind, config: kernels.build(_kind(kind), config),
        lambda since, kind, config: kernels.built_since(since, _kind(kind), config),
    )


@pytest.fixture(scope="session")
def optional_kernel(kernel: Callable[[str, str], Kernel]) -> Callable[..., Kernel]:
    """optional_kernel(config, why, *needed, kind="series"): one with a configuration of its own.

    `make test` has no time to build it. If it was built once, it is brought up to date. If not, or
    if one of the files NEEDED is missing, the test is skipped, with WHY as a warning.
    """

    def found(config: str, why: str, *needed: Path, kind: str = "series") -> Kernel:
        files = (kernels.image_in(LAYOUT.tree_of(kind), config), *needed)
        if not all(file.exists() for file in files):
            # A missing optional kernel is no failure.
            warnings.warn(why, stacklevel=2)
            pytest.skip(why)
        return kernel(kind, config)

    return found


@pytest.fixture(scope="session")
def selftests() -> Callable[[str], Path]:
    """selftests(kind): the directory that lab.build.selftests.build() makes, once for all tests."""
    return _once(
        lambda kind: tests_of_kvm.build(_kind(kind)),
        lambda since, kind: tests_of_kvm.built_since(since, _kind(kind)),
    )
