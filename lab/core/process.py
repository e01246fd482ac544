# SPDX-License-Identifier: GPL-2.0-only
"""Processes that do not outlive the run that they were started for.

A child is ended when its `with` ends: normally, or by an exception, into which
lab.core.signals.ends_by_exception() turns SIGTERM and SIGHUP. If SIGKILL ends this process, the
kernel ends the child.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from lab.core.errors import LabError
from lab.core.signals import ENDING_SIGNALS, ends_by_exception, handled, signals_wait

# setpriv requests SIGKILL for when the parent dies. If the parent has died before that, start
# nothing: the process number of the parent is another one then.
UNLESS_ORPHANED = '[ "$PPID" = "$0" ] && exec "$@"'
# Where a child writes its output.
MESSAGES = "messages"

# How often processes are asked whether they have ended, seconds.
POLL_S = 0.02
# How long a process may take to die of SIGKILL, seconds.
KILLED_S = 5.0
# How long run() lets a program end by itself: make removes unfinished files then. Seconds.
GRACE_S = 10.0


def family(leader: int) -> list[psutil.Process]:
    """Return all living processes of a session, and all descendants of its leader.

    leader: its process number. The leader itself may have ended: the kernel does not reuse the
    number of a session that still has members.
    """
    members = set()
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader:
                members.add(process)
    with contextlib.suppress(psutil.NoSuchProcess):
        members.update(psutil.Process(leader).children(recursive=True))
    return sorted(members, key=lambda process: process.pid)


def waited_s(pid: int, proc: Path = Path("/proc")) -> float:
    """Return how long a process had work for a CPU but none to do it, in seconds.

    Of the thread for which that is longest: a program that waits for all of its threads is as late.
    0 if the process has ended, or the kernel doesn't count it (sched-stats.rst, the second field of
    schedstat, in nanoseconds).
    """
    waited = [0.0]
    for file in proc.glob(f"{pid}/task/*/schedstat"):
        with contextlib.suppress(OSError, IndexError):
            waited.append(int(file.read_text().split()[1]) / 1e9)
    return max(waited)


def _signal_all(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        # psutil compares start times, so it does not signal another process with the same number.
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied:
            # The machine `host` starts its commands with sudo.
            argv = ["sudo", "-n", "kill", "-s", number.name.removeprefix("SIG"), str(process.pid)]
            subprocess.run(argv, capture_output=True, check=False)


def _lives(process: psutil.Process) -> bool:
    """Whether a process has not ended.

    Zombies have ended: in a container their new parent may never wait for them.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _alive_after(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until processes have ended, for SECONDS at most. Returns those that are still alive."""
    deadline = time.monotonic() + seconds
    while (alive := list(filter(_lives, processes))) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return alive


def end(processes: Sequence[psutil.Process], grace_s: float) -> None:
    """End processes: SIGTERM, and SIGKILL for those still there grace_s seconds later."""
    _signal_all(processes, signal.SIGTERM)
    alive = _alive_after(processes, grace_s)
    _signal_all(alive, signal.SIGKILL)
    _alive_after(alive, KILLED_S)


def _end_all_of(leader: subprocess.Popen[bytes], grace_s: float) -> None:
    # Ignore further signals that would end this run: it is ending.
    with handled(dict.fromkeys(ENDING_SIGNALS, signal.SIG_IGN)):
        end(family(leader.pid), grace_s)
        leader.wait()


@contextlib.contextmanager
def child(
    argv: Sequence[str],
    directory: Path,
    *,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    env: Mapping[str, str] | None = None,
    grace_s: float = 0.5,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own. It and everything it started end when `with` ends.

    argv: the program and its arguments.
    directory: where it runs. Its output goes to the file MESSAGES there.
    stdout, stderr: open files to write its output to instead. Without STDERR both go to STDOUT.
    env: its environment; by default that of this process.
    grace_s: how many seconds it has to end by itself after SIGTERM.
    """
    command = ["setpriv", "--pdeathsig", "KILL", "--"]
    command += ["sh", "-c", UNLESS_ORPHANED, str(os.getpid()), *argv]
    with contextlib.ExitStack() as stack:
        # If a signal raised an exception inside Popen(), nothing would end the child.
        with signals_wait(), contextlib.ExitStack() as files:
            try:
                started = subprocess.Popen(
                    command,
                    cwd=directory,
                    env=env,
                    # Bochs waits a millisecond for input whenever its processors are idle, half of
                    # its time altogether. At the end of a file it does not wait.
                    stdin=subprocess.DEVNULL,
                    stdout=stdout or files.enter_context((directory / MESSAGES).open("wb")),
                    stderr=stderr or subprocess.STDOUT,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise LabError(f"{error.filename}: not installed; run `make setup`") from error
            stack.callback(_end_all_of, started, grace_s)
        yield started


def run(
    argv: Sequence[str],
    directory: Path,
    stdout: IO[Any],
    *,
    stderr: IO[Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a program to its end, and return its exit code, or -n if signal n ended it. See child().

    Ctrl-C, SIGTERM and SIGHUP first end the program and everything it started, then this process.
    """
    with (
        ends_by_exception(),
        child(argv, directory, stdout=stdout, stderr=stderr, env=env, grace_s=GRACE_S) as started,
    ):
        return started.wait()
