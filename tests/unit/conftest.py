# SPDX-License-Identifier: GPL-2.0-only
"""What no unit test may depend on."""

import shutil

import pytest


@pytest.fixture(autouse=True)
def room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of a few files needs no 4 GiB: the disk of this machine has room."""
    usage = shutil.disk_usage("/")._replace(free=1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
