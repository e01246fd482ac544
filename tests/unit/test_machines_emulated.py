# SPDX-License-Identifier: GPL-2.0-only
"""How a run ends, with a shell script that writes console and report in the emulator's place."""

import dataclasses
import shlex
from pathlib import Path

import psutil
import pytest

from lab.core import process
from lab.machines.emulated import EmulatedMachine
from lab.machines.job import Job, MachineFailed
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.test_machines_channel import RUN, archive_frames

UP = "echo booting >console; echo 'H 1' >>report;"
ENDLESS = "the command did not end within 1 s"
CRASHED, TIMED_OUT = "machine crashed", "command timed out"
STAY = "echo $$ >../pid.new; mv ../pid.new ../pid; sleep 1000"


class Scripted(EmulatedMachine):
    """A machine whose emulator is a shell script."""

    name = "scripted"
    max_cpus = 1
    lockstep = False
    most_memory_mib = None
    foreign = "kvm_other"
    levels = "0-7"

    def __init__(self, script: str) -> None:
        self.needs: dict[Path, str] = {}
        self._script = script

    def cmdline(self, job: Job) -> list[str]:
        return []

    def argv(self, job: Job, cmdline: str) -> list[str]:
        return ["sh", "-c", self._script]

    def prepare(self, job: Job, cmdline: str, image: bytes, directory: Path) -> None:
        (directory / "frames").write_bytes(archive_frames(RUN))


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(process, "TEMPORARY", tmp_path)
    return tmp_path


def job(**parameters: str) -> Job:
    return Job(
        kernel=Path(__file__),
        command=("true",),
        cpus=1,
        memory_mib=256,
        parameters={f"kvm.{name}": value for name, value in parameters.items()},
        timeout_s=20,
    )


def assert_nothing_is_left(place: Path) -> None:
    assert not list(place.glob("machine-*"))
    if (place / "pid").exists():
        assert not psutil.pid_exists(int((place / "pid").read_text()))


@pytest.mark.parametrize("end", ["", STAY, "printf '[  0.5] reb' >>console"])
def test_complete_report_is_enough(place: Path, end: str) -> None:
    result = Scripted(f"{UP} cat frames >>report; echo 'E 42' >>report; {end}").run(job())
    assert (result.status, result.output) == (42, b"hello\n")
    assert result.kernel_log == "booting\nup\n"
    assert result.seconds < 15
    assert_nothing_is_left(place)


@for_each_row(
    "script, reason, detail, log",
    ("echo Panic >console; exit 0", CRASHED, "ended before", "Panic\n"),
    (f"{UP} kill -KILL $$", "emulator crashed", "SIGKILL ended", "booting\n"),
    (f"{UP} cat frames >>report; printf 'E 4' >>report", CRASHED, "ended before", "booting\n"),
    (f"{UP} {UP} {STAY}", CRASHED, "a second time", "booting\n"),
    (f"echo waiting >console; {STAY}", "boot timed out", "did not come up", "waiting\n"),
    (STAY, "boot timed out", "did not come up within 1 s without a word", ""),
    (f"{UP} {STAY}", TIMED_OUT, f"{ENDLESS}\n", "booting\n"),
    (f"{UP} {STAY}", TIMED_OUT, f"{ENDLESS} without a word", "booting\n"),
    (f"{UP} echo A 0 >>report; {STAY}", TIMED_OUT, "the results did not arrive", "booting\n"),
)
def test_a_machine_that_fails(place: Path, script: str, reason: str, detail: str, log: str) -> None:
    silent = detail.endswith("without a word")
    work = dataclasses.replace(job(), silent_s=1 if silent else 20, timeout_s=20 if silent else 1)
    with pytest.raises(MachineFailed, match=detail) as failure:
        Scripted(script).run(work)
    assert failure.value.reason == reason
    assert failure.value.kernel_log == log
    assert failure.value.__notes__ == [log]
    assert_nothing_is_left(place)


@for_each_row(
    "frame, why",
    ("M kvm.tdp_mmuu", r"kvm.tdp-mmuu: scripted's kernel has no such module parameter"),
    ("M kvm.tdp_mmuu=Y", "did not take it and has Y"),
    ("X no space", "did not fit into 256 MiB: no space"),
    ("X ", "did not fit into 256 MiB"),
)
def test_what_the_machine_finds_wrong(place: Path, frame: str, why: str) -> None:
    script = f"{UP} echo {shlex.quote(frame)} >>report; {STAY}"
    assert why in refused(Scripted(script).run, job(**({"tdp-mmuu": "0"} if "M" in frame else {})))
    assert_nothing_is_left(place)


def test_progress_is_live_and_is_a_word() -> None:
    # Goes on only when the line has arrived.
    script = f"{UP} echo 'P one' >>report; until [ -e seen ]; do sleep 0.05; done; {UP}"
    seen: list[str] = []

    def on_progress(line: str) -> None:
        seen.append(line)
        next(process.TEMPORARY.glob("machine-*/report")).with_name("seen").touch()

    with pytest.raises(MachineFailed, match="a second time"):
        Scripted(script).run(dataclasses.replace(job(), on_progress=on_progress))
    assert seen == ["one"]
    script = f"{UP} for i in 1 2 3; do sleep 0.5; echo P $i >>report; done; {UP} {STAY}"
    with pytest.raises(MachineFailed, match="a second time"):
        Scripted(script).run(dataclasses.replace(job(), silent_s=1))
