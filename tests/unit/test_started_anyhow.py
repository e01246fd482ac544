# SPDX-License-Identifier: GPL-2.0-only
"""The lab and its tests do the same however they were started: under nohup, in the background of a
shell without job control, by cron, without a terminal, with a closed standard input.

`bare` is all of that at once.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from lab.core.paths import ROOT
from tests.rows import for_each_row
from tests.unit.fake_kvm_host import Host
from tests.unit.processes import ignored_signals, is_gone, started, until

PR_SET_CHILD_SUBREAPER = 36
PATH = "/usr/bin:/bin"
INTERRUPTED = "tests/unit/test_split_bench.py::test_interrupted_run_restores_all"
# Those that send signals, to themselves and to what they start.
SENDERS = (
    "tests/unit/test_kernel.py::test_being_told_twice_changes_nothing",
    "tests/unit/test_machines_process.py",
    "tests/unit/test_soak.py::test_a_signal_ends_it_with_the_summary_so_far",
    "tests/unit/test_bench.py::test_what_ends_one_machine_ends_the_other",
    *(f"{INTERRUPTED}[{shell}-INT of the group-hang]" for shell in ("dash", "busybox")),
)
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--rootdir", ROOT)

Left = Callable[[], list[psutil.Process]]


def own_temporary(directory: Path) -> str:
    """Option: pytest is not to remove what earlier runs left, which takes its time."""
    return f"--basetemp={directory / 'basetemp'}"


@pytest.fixture
def left() -> Iterator[Left]:
    """left(): what runs that was started below this process, whatever its parent was."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

    def found() -> list[psutil.Process]:
        children = psutil.Process().children(recursive=True)
        return [child for child in children if not is_gone(child.pid)]

    before = found()
    try:
        yield lambda: [child for child in found() if child not in before]
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def bare() -> None:
    """For preexec_fn."""
    ignored_signals()
    os.close(0)


def bare_environment(**variables: object) -> dict[str, str]:
    """What cron gives, about."""
    return {"PATH": PATH} | {name: str(value) for name, value in variables.items()}


def run_bare(command: Sequence[object], **options: object) -> tuple[int, str]:
    """The exit status and the output of COMMAND, started bare."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": ROOT}
    with started(command, bare, **{"env": bare_environment()} | streams | options) as running:
        said, _ = running.communicate(timeout=300)
        return running.returncode, said.decode()


# ---- the tests ---------------------------------------------------------------


def verdicts(file: Path) -> dict[str, str]:
    """Test -> "passed", or what else."""
    cases = ElementTree.parse(file).iter("testcase")
    named = ((f"{case.get('classname')}::{case.get('name')}", case) for case in cases)
    return {name: next((child.tag for child in case), "passed") for name, case in named}


def test_tests_that_send_signals_have_the_same_verdicts(tmp_path: Path, left: Left) -> None:
    found: list[dict[str, str]] = []
    for preexec in (bare, None):
        file = tmp_path / f"{len(found)}.xml"
        options = [f"--junitxml={file}", own_temporary(tmp_path)]
        command = [sys.executable, "-m", "pytest", "-q", "-n2", *options, *SENDERS]
        env = bare_environment() if preexec else dict(os.environ)
        kind = {"preexec_fn": preexec} if preexec else {}
        with started(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, **kind) as running:
            running.wait(timeout=300)
        found.append(verdicts(file))
        assert until(lambda: not left(), seconds=60)
    assert found[0] == found[1]
    assert len(found[0]) > 25
    assert set(found[0].values()) == {"passed"}


SLEEPER = """
import subprocess, time
from pathlib import Path
import pytest

@pytest.mark.parametrize("nr", range(4))
def test_sleeper(nr):
    child = subprocess.Popen(["sleep", "1000"])
    Path(__file__).with_name(f"pid{nr}").write_text(f"{child.pid}\\n")
    time.sleep(1000)
"""


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_term_ends_a_test_run_and_what_it_started(tmp_path: Path, left: Left, workers: str) -> None:
    (tmp_path / "test_sleeper.py").write_text(SLEEPER)
    wanted = 1 if workers == "-n0" else 2
    command = [*PYTEST, workers, own_temporary(tmp_path), tmp_path]
    env = bare_environment()
    with started(command, bare, cwd=ROOT, env=env, stdout=subprocess.PIPE) as running:
        assert until(lambda: len(list(tmp_path.glob("pid*"))) == wanted, 60)
        running.send_signal(signal.SIGHUP)
        running.send_signal(signal.SIGINT)
        running.terminate()
        said, _ = running.communicate(timeout=30)
        assert running.returncode == pytest.ExitCode.INTERRUPTED, said
        assert left() == []
    assert len(list(tmp_path.glob("pid*"))) == wanted


GREEDY = """
def test_greedy():
    assert len(bytearray(3 << 30)) == 3 << 30

def test_modest():
    assert len(bytearray(1 << 20)) == 1 << 20
"""
# Neither an exception nor the end of its child ends it.
DEAF = """
import subprocess, time
from tests import guards

guards.LAST_RESORT_S = 1

def test_deaf():
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass
"""


@for_each_row(
    "text, options, wanted",
    (GREEDY, ("-n2",), ("MemoryError", "1 failed, 1 passed")),
    (DEAF, ("-n1", "--timeout", "1"), ("crashed while running", "test_bad.py")),
    ids=("that_takes_gigabytes", "that_nothing_ends"),
)
def test_a_test_fails(
    tmp_path: Path, text: str, options: tuple[str, ...], wanted: tuple[str, str]
) -> None:
    (tmp_path / "test_bad.py").write_text(text)
    status, said = run_bare([*PYTEST, *options, own_temporary(tmp_path), tmp_path])
    assert status == 1
    assert all(words in said for words in wanted)


# ---- the lab -----------------------------------------------------------------


def test_the_lab_answers_as_ever() -> None:
    status, said = run_bare([sys.executable, "-m", "lab", "soak", "--dry-run"])
    assert status == 0
    assert "stress-kvm-npt0" in said
    status, said = run_bare([sys.executable, "-m", "lab", "build", "nonsense"])
    assert (status, len(said.splitlines())) == (2, 1)


def test_no_file_of_the_lab_is_taken_for_standard_input() -> None:
    script = "import os, sys, lab.cli; sys.argv = ['lab']; lab.cli.main = lambda: 0\n" + (
        "try: import lab.__main__\nexcept SystemExit: print(os.readlink('/proc/self/fd/0'))"
    )
    assert run_bare([sys.executable, "-c", script]) == (0, "/dev/null\n")


# A command that does what it is given, in a directory.
COMMAND = """
import os, subprocess, sys, click
from pathlib import Path
from lab import cli
from lab.submit import subject

@click.command()
def command():
    os.chdir(sys.argv[1])
    {work}

cli.LazyGroup.get_command = lambda *_: command
sys.exit(cli.main(["check"]))
"""


@for_each_row(
    "work, least",
    # A checker of `lab check` that has programs of its own.
    ('subject.run(["sh", "-c", "sleep 1000 & sleep 1000 & touch up; wait"], Path())', 3),
    # What a command waits for that is no machine and no build.
    ('subprocess.run(["sh", "-c", "touch up; exec sleep 1000"])', 2),
)
def test_term_ends_what_a_command_awaits(tmp_path: Path, left: Left, work: str, least: int) -> None:
    """And all that it has started; no other signal does."""
    command = [sys.executable, "-c", COMMAND.format(work=work), tmp_path]

    def is_up() -> bool:
        return (tmp_path / "up").exists() and len(left()) >= least

    env = bare_environment(PYTHONPATH=ROOT)
    with started(command, bare, cwd=ROOT, env=env, stderr=subprocess.DEVNULL) as running:
        assert until(is_up)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            running.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(timeout=0.5)
        running.terminate()
        assert running.wait(timeout=30) == 128 + signal.SIGTERM
        assert left() == []


# ---- the benchmark's script --------------------------------------------------


def test_the_script_measures_the_same(host: Host) -> None:
    words = ("--vcpus", "2", "--writes", "20", "--output", str(host.output))
    status, said = run_bare(host.command(*words), env=host.environment)
    measured = host.output.read_text()
    host.output.unlink()
    assert (status, said) == (0, host.run(*words).stdout)
    assert measured == host.output.read_text()
