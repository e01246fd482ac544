# SPDX-License-Identifier: GPL-2.0-only
"""How tests/conftest.py gives tests to the workers of a test run."""

from types import SimpleNamespace

import pytest

from tests.conftest import BOOTING, BootScheduling

MACHINES = [f"tests/machines/test_machines.py::test_{nr}" for nr in range(8)]
UNIT = [f"tests/unit/test_links.py::test_{nr}" for nr in range(6)]


class Worker:
    """Ends tests one by one, as the scheduler gives them."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.waiting: list[int] = []
        self.did: list[str] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def run(tests: list[str], count: int) -> list[Worker]:
    """COUNT workers after a run of TESTS, in which they are equally fast."""
    options = {"tx": ["popen"] * count, "count": 1}
    config = SimpleNamespace(
        getvalue=options.get,
        getoption=options.get,
        option=SimpleNamespace(loadscopereorder=False),
    )
    scheduling = BootScheduling(config)
    workers = [Worker(f"gw{nr}") for nr in range(count)]
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, tests)
    scheduling.schedule()
    while any(worker.waiting for worker in workers):
        for worker in workers:
            if worker.waiting:
                index = worker.waiting.pop(0)
                worker.did.append(tests[index])
                scheduling.mark_test_complete(worker, index)
    assert scheduling.tests_finished
    return workers


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_all_of_them_run_once(count: int) -> None:
    tests = [*MACHINES, *UNIT]
    assert sorted(test for worker in run(tests, count) for test in worker.did) == sorted(tests)


def test_two_workers_boot_machines_and_a_third_does_not() -> None:
    *booting, other = run([*MACHINES, *UNIT], BOOTING + 1)
    assert len(booting) == BOOTING
    assert all(set(worker.did) & set(MACHINES) for worker in booting)
    assert other.did and set(other.did) <= set(UNIT)
    assert other.shutting_down


def test_a_worker_without_work_ends() -> None:
    *_, other = run(MACHINES, BOOTING + 1)
    assert (other.did, other.shutting_down) == ([], True)
