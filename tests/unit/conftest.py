# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures that isolate all unit tests, and fixtures that several of them use."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lab.core import signals, workspace
from lab.core.paths import BASE_VARIABLE, LAYOUT, Layout
from lab.measure import kept
from lab.results import files, origin
from tests.summary import BEGAN, SINCE
from tests.unit.fake_kernel import FakeKernel
from tests.unit.fake_kvm_host import Host, furnish
from tests.unit.files import leave_free
from tests.unit.processes import OFTEN_IGNORED

MEASURED = origin.measured
# What a file system in memory has to have free, if tests are to write there.
LEAST_BYTES = 1 << 30


@pytest.fixture(scope="session")
def quick_directory() -> Iterator[Path]:
    """Where tests write: in memory, if possible, as a disk needs a millisecond to remove a file."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        memory = Path(tempfile.gettempdir())
    has = os.statvfs(memory)
    # Containers have little there, and nothing is to be executed.
    suits = not has.f_flag & os.ST_NOEXEC and has.f_bavail * has.f_frsize >= LEAST_BYTES
    with tempfile.TemporaryDirectory(dir=memory if suits else None, prefix="lab-tests-") as made:
        # One case runs as nobody.
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def tmp_path(
    quick_directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Path]:
    """As pytest's own, but gone with the test. What a test leaves that fails is copied to there."""
    failed = request.session.testsfailed
    with tempfile.TemporaryDirectory(dir=quick_directory, ignore_cleanup_errors=True) as made:
        yield Path(made)
        if request.session.testsfailed > failed:
            kept = tmp_path_factory.mktemp("failed")
            subprocess.run(["cp", "-a", f"{made}/.", str(kept)], check=False)
            print(f"{made} is kept as {kept}")


@pytest.fixture(autouse=True)
def room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the disk has enough room: the kernels of tests are small."""
    leave_free(monkeypatch, 1 << 40)


@pytest.fixture(autouse=True)
def without_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the environment of the make that runs the tests: its base, and when it began."""
    monkeypatch.delenv(BASE_VARIABLE, raising=False)
    monkeypatch.delenv(BEGAN, raising=False)
    monkeypatch.delenv(SINCE, raising=False)


@cache
def own_state(kind: str) -> dict[str, str]:
    return MEASURED(kind)


@pytest.fixture(autouse=True)
def state_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember the state of this repository, which takes a second to find and does not change."""

    def measured(kind: str, layout: Layout = LAYOUT) -> dict[str, str]:
        return dict(own_state(kind)) if layout is LAYOUT else MEASURED(kind, layout)

    monkeypatch.setattr(origin, "measured", measured)


@pytest.fixture(autouse=True)
def own_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep workspaces and results of a test apart from those of other runs."""
    monkeypatch.setattr(workspace, "TEMPORARY", tmp_path / "tmp")
    monkeypatch.setattr(files, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(kept, "PLACE", tmp_path / "build")


@pytest.fixture
def terminal_signals() -> Iterator[None]:
    """Handle signals as if a terminal had started this process: nohup ignores some."""
    handlers: dict[signal.Signals, signals.Handler]
    handlers = dict.fromkeys((*OFTEN_IGNORED, signal.SIGTERM), signal.SIG_DFL)
    with signals.handled(handlers | {signal.SIGINT: signal.default_int_handler}):
        yield


@pytest.fixture
def fake(tmp_path: Path) -> FakeKernel:
    """A small kernel whose tree has been made."""
    return FakeKernel.with_tree(tmp_path)


@pytest.fixture(scope="session")
def applets(quick_directory: Path) -> Iterator[Path]:
    """A directory with busybox's commands, and flock, which Debian's busybox lacks."""
    with tempfile.TemporaryDirectory(dir=quick_directory) as directory:
        Path(directory).chmod(0o755)
        subprocess.run(["busybox", "--install", "-s", directory], check=True)
        (Path(directory) / "flock").symlink_to(shutil.which("flock") or "missing")
        yield Path(directory)


@pytest.fixture(params=["dash", "busybox"])
def host(request: pytest.FixtureRequest, applets: Path, quick_directory: Path) -> Iterator[Host]:
    """A fake host for split-bench.sh: with dash, and with busybox's shell and commands only."""
    # Do not use tmp_path, which other users cannot enter: one case runs as nobody.
    with tempfile.TemporaryDirectory(dir=quick_directory) as directory:
        root = Path(directory)
        root.chmod(0o755)
        busybox = request.param == "busybox"
        host = Host(root, [str(applets / "sh")] if busybox else ["dash"])
        path = str(applets) if busybox else os.environ["PATH"]
        host.environment = {"PATH": path, "SPLIT_BENCH_ROOT": directory, "TMPDIR": f"{root}/tmp"}
        furnish(host)
        yield host
