# SPDX-License-Identifier: GPL-2.0-only
"""scripts/split-bench.sh that is interrupted restores the host, and can be resumed."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rows import for_each_row
from tests.unit.fake_kvm_host import FAKE_TEST, Host, set_cpus
from tests.unit.files import program
from tests.unit.processes import default_signals, is_gone, started, until
from tests.unit.split_bench import PART, RECORDS, keys, measured, needed, records, refusal

# ---- interruption ------------------------------------------------------------


@pytest.mark.parametrize("mode", ["hang", "stubborn"])
# With Ctrl-C on a terminal the whole foreground group gets it, so the test's own process does.
@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "INT of the group"])
def test_interrupted_run_restores_all(host: Host, mode: str, name: str) -> None:
    number = signal.Signals[f"SIG{name.split()[0]}"]
    host.mode(mode)
    host.pool().write_text("3\n")
    before = host.settings()
    matrix = ["--vcpus", "2", "--eager", "N", "--harvest", "on"]
    command = host.command(*matrix, "--output", f"{host.root}/out.jsonl")
    pid = host.root / "pid"
    with started(command, env=host.environment, stderr=subprocess.PIPE) as process:
        assert until(lambda: pid.exists() and pid.read_text().endswith("\n"), 20)
        assert host.eager.read_text() == "N\n"
        assert host.harvest.read_text() == "on\n"
        assert host.pool().read_text() == "5\n"
        os.kill(-process.pid if "group" in name else process.pid, number)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert host.settings() == before
    assert is_gone(int(pid.read_text()))
    assert said == b"split-bench: interrupted; the settings of this host are as before\n"


def test_reader_that_goes_away(host: Host) -> None:
    """As in `split-bench.sh | head -1`: the tables meet a closed pipe."""
    before = host.settings()
    read, write = os.pipe()
    os.close(read)
    command = host.command("--vcpus", "2")
    with started(command, env=host.environment, stdout=write, stderr=subprocess.DEVNULL) as process:
        assert process.wait(timeout=20) != 0
    os.close(write)
    assert host.settings() == before


def test_setting_that_cannot_be_restored_is_told(host: Host) -> None:
    fake = host.root / "fake_test"
    fake.write_text(FAKE_TEST + f"\nrm {host.pool()}; mkdir {host.pool()}\n")
    done = host.run("--vcpus", "2", "--writes", "20", "--eager", "N")
    assert done.returncode == 1
    assert f"could not restore {host.pool()}; by hand: echo 0 > {host.pool()}" in done.stderr
    assert host.eager.read_text() == "Y\n"


# Stands for each command of the script: sends a signal before the AT-th of them all.
MOMENT = """#!/bin/dash
echo >>"{notes}/moments"
read -r pid <"{notes}/pid"
[ "$AT" -eq 0 ] || [ "$(/bin/busybox wc -c <"{notes}/moments")" -ne "$AT" ] ||
	kill -s "$SIGNAL" -- "$TO$pid"
exec {command} "$@"
"""


@dataclass
class Moments:
    """A host whose script can be interrupted before any command that it runs.

    Everything about a run but the host's settings is in `notes`, outside of the host.
    """

    host: Host
    notes: Path

    @property
    def output(self) -> Path:
        return self.notes / "out.jsonl"

    def count(self) -> int:
        return len((self.notes / "moments").read_text())

    def run(self, *arguments: str, at: int = 0, number: str = "INT", group: bool = False) -> int:
        """Exit status of the script, interrupted at a moment or, with 0, not at all."""
        for name in ("moments", "calls"):
            (self.notes / name).unlink(missing_ok=True)
            (self.host.root / name).unlink(missing_ok=True)
        words = {"AT": str(at), "SIGNAL": number, "TO": "-" if group else ""}
        path = f"{self.notes}/bin:{self.host.environment['PATH']}"
        starter = ["/bin/dash", "-c", f'echo $$ >"{self.notes}/pid"; exec "$@"', "dash"]
        matrix = ["--vcpus", "2", "--writes", "20", "--iterations", "2", "--quiet", *arguments]
        matrix += ["--eager", "Y", "--harvest", "off on"]
        return subprocess.run(
            [*starter, *self.host.command(*matrix)],
            env=self.host.environment | words | {"PATH": path},
            capture_output=True,
            timeout=60,
            start_new_session=True,
            preexec_fn=default_signals,
            check=False,
        ).returncode


@pytest.fixture
def moments(host: Host, tmp_path: Path) -> Moments:
    for name in set(needed()) - {"date"}:  # its calls vary with the time that a run takes
        command = shutil.which(name, path=host.environment["PATH"])
        program(tmp_path / "bin" / name, MOMENT.format(notes=tmp_path, command=command))
    # Where the shell runs its commands itself, those of the test are what can interrupt.
    fake = FAKE_TEST.replace("clear=1\n", "clear=1\n" + 4 * "cat </dev/null\n", 1)
    (host.root / "fake_test").write_text(fake)
    return Moments(host, tmp_path)


SIGNALS = [("INT", True, 130), ("TERM", False, 143), ("HUP", False, 129)]
# No multiple of three, so that each signal meets each part of the script.
STEP = 5
# busybox's shell runs its applets itself; there it is the commands of the test that interrupt.
BUSYBOX_STEP = 1


def test_interrupted_anywhere_restores_the_host_and_resumes(moments: Moments) -> None:
    host = moments.host
    host.pool().write_text("3\n")
    before = host.settings()
    assert moments.run("--output", str(moments.output)) == 0
    last, wanted = moments.count(), keys(moments.output)
    assert len(wanted) == 2 * 9
    found = set()
    is_dash = host.shell == ["dash"]
    for at in range(1, last + 1, STEP if is_dash else BUSYBOX_STEP):
        number, group, status = SIGNALS[at % 3]
        moments.output.unlink(missing_ok=True)
        ended = moments.run("--output", str(moments.output), at=at, number=number, group=group)
        assert host.settings() == before, at
        whole = len(keys(moments.output)) if moments.output.exists() else 0
        # Until it is ready to restore nothing is to be restored; what restores is not interrupted.
        early, late = ended < 0 and host.calls() == [], ended == 0 and whole == len(wanted)
        assert ended == status or early or late, at
        found.add(whole)
        option = "--resume" if moments.output.exists() else "--output"
        assert moments.run(option, str(moments.output)) == 0
        assert len(host.calls()) == 2 - whole // 9, at
        assert keys(moments.output) == wanted, at
    assert found == ({0, 9, 18} if is_dash else {0, 9})


# Ends the script as it looks whether the pool has grown, and tells that it had.
GROWN = """#!/bin/dash
read -r pages <"{pool}"
case $*:$pages in
*/free_hugepages:5)
	echo "$pages" >"{notes}/grown"
	read -r pid <"{notes}/pid"
	kill -s TERM "$pid"
	;;
esac
exec /bin/busybox cat "$@"
"""


@pytest.mark.parametrize("host", ["dash"], indirect=True)
def test_interrupted_while_the_pool_grows(moments: Moments) -> None:
    host = moments.host
    before = host.settings()
    cat = moments.notes / "bin/cat"
    cat.write_text(GROWN.format(pool=host.pool(), notes=moments.notes))
    assert moments.run("--output", str(moments.output)) == 143
    assert (moments.notes / "grown").read_text() == "5\n"
    assert host.calls() == []
    assert host.settings() == before


# ---- resuming ----------------------------------------------------------------


# Shell -> what partly() found; where the host lies is not in it.
interrupted: dict[str, str] = {}


def partly(host: Host) -> Path:
    """The output of a matrix of 2 x 2 x 2 runs that was interrupted after three."""
    (shell,) = host.shell
    if shell not in interrupted:
        measured(host, *PART)
        measured(host, "--vcpus", "4", "--writes", "20", "--eager", "N")
        (host.root / "calls").unlink()
        interrupted[shell] = host.output.read_text()
    host.output.write_text(interrupted[shell])
    return host.output


def test_resume_runs_what_is_missing_and_prints_all(host: Host) -> None:
    output = partly(host)
    matrix = ["--vcpus", "2 4", "--writes", "20 100", "--resume", str(output)]
    shown = host.run(*matrix, "--dry-run").stdout
    assert "5 runs:" in shown
    done = host.run(*matrix)
    said = "split-bench: 5 of 8 runs are still to be measured\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert host.calls()[0].startswith("Y -s anonymous_hugetlb_2mb -b 4194304 -v 4 -w 20")
    assert len(host.calls()) == 5
    other = host.root / "other.jsonl"
    assert host.run(*matrix[:-2], "--output", str(other)).returncode == 0
    assert keys(output) == keys(other)
    assert done.stdout == host.run(*matrix[:-2]).stdout
    (host.root / "calls").unlink()
    again = host.run(*matrix)
    assert (again.returncode, again.stdout, host.calls()) == (0, done.stdout, [])


def test_resume_of_an_empty_file_begins(host: Host) -> None:
    output = host.write("out.jsonl", "")
    assert host.run(*PART, "--resume", str(output)).returncode == 0
    assert len(records(output)) == 2 * RECORDS


def test_resume_with_dirty_harvest_repeats_nothing(host: Host) -> None:
    """What was measured before the option, or the key, came is off."""
    output = partly(host)
    edit(host, ' "dirty_harvest": "off",', "")
    matrix = ["--vcpus", "2 4", "--writes", "20", "--harvest", "off on", "--resume", str(output)]
    done = host.run(*matrix)
    assert done.returncode == 0
    values = [call.partition(" ")[0] for call in host.calls()]
    assert values == ["N,on", "Y,on", "N,on", "Y", "Y,on"]
    (host.root / "calls").unlink()
    again = host.run(*matrix)
    assert (again.returncode, again.stdout, host.calls()) == (0, done.stdout, [])


def test_another_kernel_may_be_in_front(host: Host) -> None:
    output = partly(host)
    measured(host, *PART, "--kernel", "peer")
    done = host.run("--vcpus", "2 4", "--writes", "20", "--kernel", "peer", "--resume", str(output))
    assert (done.returncode, len(host.calls())) == (0, 4)
    assert len(set(keys(output))) == len(records(output)) == 7 * RECORDS


@for_each_row(
    "change, arguments, said",
    (lambda host: None, ["--machine", "mine"], "was interrupted on machine host, this is mine"),
    (lambda host: None, ["--kernel", "base"], "was interrupted on kernel series, this is base"),
    (lambda host: None, ["--iterations", "3"], "holds runs with other --iterations or pinning"),
    (lambda host: None, ["--no-pin"], "holds runs with other --iterations or pinning"),
    (lambda host: host.set("kvm_intel/parameters/ept", "N"), [], "on ept true, this is false"),
    (lambda host: host.set("kvm/parameters/tdp_mmu", "Y"), [], "tdp_mmu false, this is true"),
    (lambda host: host.set("kvm_intel/parameters/pml", "N"), [], "on pml true, this is false"),
    (lambda host: set_cpus(host, 8), [], "was interrupted on usable CPUs: 9, this is 8"),
    (
        lambda host: edit(host, os.uname().release, "5.0"),
        [],
        f"was interrupted on Linux 5.0, this is {os.uname().release}",
    ),
    (lambda host: edit(host, '"phase"', '"phrase"'), [], "line 1 of "),
    (lambda host: edit(host, "0.080500000}", "0.0805"), [], "is no result of this script"),
)
def test_resume_is_refused(
    host: Host, change: Callable[[Host], object], arguments: list[str], said: str
) -> None:
    output = partly(host)
    change(host)
    assert said in refusal(host, *PART, "--resume", str(output), *arguments)


def edit(host: Host, old: str, new: str) -> None:
    assert old in host.output.read_text()
    host.output.write_text(host.output.read_text().replace(old, new))
