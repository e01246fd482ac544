# SPDX-License-Identifier: GPL-2.0-only
"""Nothing outlives a run: processes and directories, on every way out.

Of what is done in parallel each item is done once, and the first failure ends the rest.
"""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from lab.core import parallel, process, signals, workspace
from lab.core.errors import WorkFailed
from lab.core.paths import ROOT
from tests.rows import for_each_row
from tests.unit.calls import failed
from tests.unit.processes import is_gone, started, until

# Ignores SIGTERM, and has a child that left the session.
STUBBORN = "trap '' TERM; setsid sleep 1000 & echo $! > new; mv new pid; while :; do sleep 1; done"

# What a run does, for a test to end in its own way.
RUN = """
import sys
from pathlib import Path
from lab.core import process, signals, workspace
workspace.TEMPORARY = Path(sys.argv[1])
with signals.ends_by_exception(), workspace.fresh() as directory:
    with process.child(["sleep", "1000"], directory) as child:
        print(child.pid, directory, flush=True)
        child.wait()
"""


def test_child_ends_with_all_its_own(tmp_path: Path) -> None:
    command = ["sh", "-c", STUBBORN]
    with pytest.raises(RuntimeError), process.child(command, tmp_path, grace_s=0.1) as child:
        assert until((tmp_path / "pid").exists)
        grandchild = int((tmp_path / "pid").read_text())
        assert not is_gone(child.pid) and not is_gone(grandchild)
        raise RuntimeError
    assert is_gone(child.pid)
    assert is_gone(grandchild)


def test_child_left_behind_by_its_leader_ends(tmp_path: Path) -> None:
    with process.child(["sh", "-c", "sleep 1000 & echo $! > pid"], tmp_path) as child:
        assert until(lambda: child.poll() is not None)
        orphan = int((tmp_path / "pid").read_text())
        assert not is_gone(orphan)
    assert is_gone(orphan)


@pytest.mark.usefixtures("terminal_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_child_starts_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    started: list[int] = []

    class Signalled(subprocess.Popen[bytes]):
        """A signal comes when the child runs, and before any other code knows of it."""

        def __init__(self, *arguments: Any, **words: Any) -> None:
            super().__init__(*arguments, **words)
            started.append(self.pid)
            signal.raise_signal(number)

    monkeypatch.setattr(subprocess, "Popen", Signalled)
    with (
        pytest.raises((SystemExit, KeyboardInterrupt)),
        signals.ends_by_exception(),
        process.child(["sleep", "1000"], tmp_path),
    ):
        raise AssertionError("the signal was lost")
    assert is_gone(started[0])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_child_gets_time_to_restore_what_it_changed(tmp_path: Path) -> None:
    script = "trap 'sleep 0.3; echo restored > file; exit' TERM; echo > up; sleep 1000 & wait"
    with process.child(["sh", "-c", script], tmp_path, grace_s=5):
        assert until((tmp_path / "up").exists)
    assert (tmp_path / "file").read_text() == "restored\n"


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -SEGV $$", -signal.SIGSEGV)])
def test_program_run_to_its_end(tmp_path: Path, script: str, code: int) -> None:
    argv = ["sh", "-c", f'echo "$WORD"; pwd; echo complaint >&2; {script}']
    env = {"PATH": os.environ["PATH"], "WORD": "word"}
    with (tmp_path / "out").open("a") as out, (tmp_path / "err").open("a") as err:
        assert process.run(argv, tmp_path, out, env=env) == code
        assert process.run(argv, tmp_path, out, stderr=err, env=env) == code
    line = f"word\n{tmp_path}\n"
    assert (tmp_path / "out").read_text() == f"{line}complaint\n{line}"
    assert (tmp_path / "err").read_text() == "complaint\n"
    assert not (tmp_path / process.MESSAGES).exists()


def test_child_of_a_dead_parent_does_not_start() -> None:
    argv = ["sh", "-c", process.UNLESS_ORPHANED, "1234567", "echo", "started"]
    ended = subprocess.run(argv, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")


def test_workspaces_in_use_are_kept_and_others_go() -> None:
    with workspace.fresh() as one:
        abandoned = one.with_name("machine-abandoned")
        abandoned.mkdir()
        (abandoned / workspace.LOCK).touch()
        with workspace.fresh() as two:
            assert one.exists() and two.exists() and one != two
            assert not abandoned.exists()
    with pytest.raises(RuntimeError), workspace.fresh() as directory:
        (directory / "file").write_text("x")
        raise RuntimeError
    assert not list(workspace.TEMPORARY.glob("machine-*"))


@for_each_row(
    "number, code",
    (signal.SIGINT, -signal.SIGINT),
    (signal.SIGTERM, 128 + signal.SIGTERM),
    (signal.SIGHUP, 128 + signal.SIGHUP),
    (signal.SIGKILL, -signal.SIGKILL),
)
def test_run_ended_from_outside(number: signal.Signals, code: int) -> None:
    with started(
        [sys.executable, "-c", RUN, workspace.TEMPORARY],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as run:
        assert run.stdout
        pid, directory = run.stdout.readline().decode().split()
        assert not is_gone(int(pid))
        run.send_signal(number)
        assert run.wait(timeout=20) == code
    assert until(lambda: is_gone(int(pid)))
    if number == signal.SIGKILL:
        with workspace.fresh():
            pass  # the next run sweeps
    assert not Path(directory).exists()


def test_each_item_once() -> None:
    seen: list[int] = []
    parallel.for_each(range(20), seen.append)
    assert sorted(seen) == list(range(20))
    # An error of the work is not the end of the items.
    with pytest.raises(IndexError):
        parallel.for_each(range(2), Mock(side_effect=IndexError))


def test_a_failure_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: 1)
    seen: list[int] = []

    def work(item: int) -> None:
        if item == 2:
            raise WorkFailed("two")
        seen.append(item)

    assert "two" in failed(parallel.for_each, range(20), work)
    assert seen == [0, 1]


def test_a_thread_that_is_done_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end each wait at once: the lab would use a CPU that a machine needs."""
    one_is_done = threading.Event()
    done: set[Future[None]] = set()

    def waited(futures: set[Future[None]], **words: Any) -> Any:
        assert done.isdisjoint(futures)
        found = concurrent.futures.wait(futures, **words)
        done.update(found.done)
        if done:
            one_is_done.set()
        return found

    monkeypatch.setattr(parallel, "wait", waited)
    seen: list[bool] = []
    parallel.for_each(range(2), lambda n: seen.append(n == 0 or one_is_done.wait(20)), threads=2)
    assert (len(done), seen) == (2, [True, True])


@pytest.mark.usefixtures("terminal_signals")
@for_each_row("number, error", (signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit))
def test_a_signal_while_threads_start_ends_them(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, error: type[BaseException]
) -> None:
    ended = threading.Event()
    monkeypatch.setattr("lab.core.process.end", lambda processes, grace_s: ended.set())
    seen: list[bool] = []

    class Signalled(ThreadPoolExecutor):
        """The signal comes when a thread runs, and before anything else knows of it."""

        def submit(self, *arguments: Any, **words: Any) -> Future[Any]:
            future = super().submit(*arguments, **words)
            signal.raise_signal(number)
            return future

    monkeypatch.setattr(parallel, "ThreadPoolExecutor", Signalled)
    with pytest.raises(error):
        parallel.for_each(range(2), lambda item: seen.append(ended.wait(5)), threads=2)
    assert seen and all(seen)
