# SPDX-License-Identifier: GPL-2.0-only
"""What no unit test may depend on, and what some need."""

import shutil
from collections.abc import Iterator

import pytest

from tests.unit.processes import signals_of_a_terminal


@pytest.fixture(autouse=True)
def room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of a few files needs no 4 GiB: the disk of this machine has room."""
    usage = shutil.disk_usage("/")._replace(free=1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.fixture
def terminal_signals() -> Iterator[None]:
    """Signals of this process are those of one that a terminal has started; nohup ignores some."""
    with signals_of_a_terminal():
        yield
