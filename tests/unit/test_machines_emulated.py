# SPDX-License-Identifier: GPL-2.0-only
"""Emulated machines, from what they boot from to how a run ends.

What they boot from is complete, and the same bytes for the same job. Reports are fed as bytes:
whole, in pieces, torn and false. In an emulator's place a shell script writes console and report.
"""

import base64
import dataclasses
import hashlib
import io
import os
import shlex
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from lab.core import process, workspace
from lab.machines import bochs, emulated, initramfs
from lab.machines.channel import Archive, Channel, ReportBroken, unpack
from lab.machines.emulated import EmulatedMachine
from lab.machines.job import Job, MachineFailed
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.files import leave_free, write

JOB = Job(kernel=Path("bzImage"), command=("sh", "-c", "echo 'a b' $LAB_OUT"))
DYNAMIC = Path("/bin/ls")


def unpacked(into: Path, **changes: Any) -> dict[str, Path]:
    """What JOB with CHANGES boots from, as the kernel unpacks it: one archive after the other."""
    trailer = b"TRAILER!!!\0\0\0\0"
    image = initramfs.build(dataclasses.replace(JOB, **changes), "svm-qemu")
    into.mkdir(exist_ok=True)
    for part in image.split(trailer)[:-1]:
        subprocess.run(
            ["cpio", "-idmu", "--quiet", "--no-preserve-owner"],
            input=part + trailer + bytes(512),
            cwd=into,
            check=True,
        )
    return {str(path.relative_to(into)): path for path in into.rglob("*")}


def test_job_is_inside(tmp_path: Path) -> None:
    files = unpacked(tmp_path)
    assert files["lab/command"].read_text() == "exec sh -c 'echo '\"'\"'a b'\"'\"' $LAB_OUT'\n"
    assert "export LAB_MACHINE=svm-qemu\n" in files["lab/environment"].read_text()
    assert os.access(files["init"], os.X_OK)
    assert files["bin/tar"].readlink() == Path("busybox")


def test_directories_come_with_modes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(source / "deep/run", "#!/bin/sh\n", 0o700)
    write(source / "data", "data")
    files = unpacked(tmp_path / "root", files={"/test/place": source})
    assert files["test/place/data"].read_text() == "data"
    assert files["test/place/data"].stat().st_mode & 0o777 == 0o644
    assert files["test/place/deep/run"].stat().st_mode & 0o777 == 0o755


def test_dynamic_program_brings_its_libraries_and_static_one_needs_none(tmp_path: Path) -> None:
    files = unpacked(tmp_path, files={"/ls": DYNAMIC})
    loaded = initramfs.libraries([DYNAMIC])
    assert any("libc.so" in library.name for library in loaded)
    assert any(library.name.startswith("ld-linux") for library in loaded)
    for library in loaded:
        assert files[str(library).lstrip("/")].read_bytes() == library.read_bytes()
    assert initramfs.libraries([initramfs.BUSYBOX]) == []


def test_program_that_ends_threads_brings_what_the_c_library_loads_then(tmp_path: Path) -> None:
    source = "#include <pthread.h>\nint main(void) { return pthread_cancel(pthread_self()); }\n"
    write(tmp_path / "test.c", source)
    subprocess.run(["gcc", "-o", tmp_path / "test", tmp_path / "test.c"], check=True)
    added = set(initramfs.libraries([tmp_path / "test"])) - set(initramfs.libraries([DYNAMIC]))
    assert [library.name for library in added if library.is_file()] == ["libgcc_s.so.1"]


def test_another_busybox(tmp_path: Path) -> None:
    files = unpacked(tmp_path / "root", busybox=write(tmp_path / "busybox", "another"))
    assert files["bin/busybox"].read_text() == "another"
    assert os.access(files["bin/busybox"], os.X_OK)


def two_copies(tmp_path: Path) -> list[Path]:
    """Make the same files in two places, at different times, with different umasks."""
    copies = []
    for number in (1, 2):
        copy = tmp_path / f"copy{number}"
        for name in ("b", "a") if number == 1 else ("a", "b"):
            write(copy / name, name, 0o640 if number == 1 else 0o644)
            os.utime(copy / name, (number * 1000, number * 1000))
        copies.append(copy)
    return copies


def test_same_job_gives_same_bytes(tmp_path: Path) -> None:
    jobs = (dataclasses.replace(JOB, files={"/t": copy}) for copy in two_copies(tmp_path))
    one, two = (initramfs.build(job, "vmx-bochs") for job in jobs)
    assert one == two


@pytest.mark.skipif(not shutil.which("xorriso"), reason="needs xorriso")
def test_same_job_gives_same_medium(tmp_path: Path) -> None:
    kernel = tmp_path / "bzImage"
    kernel.write_bytes(b"kernel" * 1000)
    job = dataclasses.replace(JOB, kernel=kernel)
    media: list[bytes] = []
    for place in two_copies(tmp_path):
        os.utime(kernel, (len(media), len(media)))
        bochs.VmxBochs().prepare(job, "quiet", b"image" * 1000, place)
        media.append((place / bochs.MEDIUM).read_bytes())
    assert media[0] == media[1]


@for_each_row(
    "path, source, why",
    ("relative", DYNAMIC, "absolute"),
    ("/a/../init", DYNAMIC, "absolute"),
    ("/", DYNAMIC, "absolute"),
    ("/init", DYNAMIC, "reserved"),
    ("/lab/back/x", DYNAMIC, "reserved"),
    ("/ok", Path("/nonexistent"), "no such file"),
)
def test_bad_file_is_refused(path: str, source: Path, why: str) -> None:
    assert why in refused(initramfs.check_files, {path: source})


def packed(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def archive_frames(data: bytes, digest: str | None = None) -> bytes:
    digest = digest or hashlib.sha256(data).hexdigest()
    return f"A {digest}\n".encode() + base64.encodebytes(data) + b".\n"


RUN = packed({"output": b"hello\n", "kernel-log": b"up\n", "out/a": b"1", "out/d/b": b"\0\xff"})
REPORT = b"H 1\nM kvm.tdp_mmu=N\nM kvm.nosuch\nP half  done\n" + archive_frames(RUN) + b"E 42\n"


@pytest.mark.parametrize("report", [REPORT, REPORT.replace(b"\n", b"\r\n")])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_complete_report_in_pieces(report: bytes, step: int) -> None:
    progress: list[str] = []
    channel = Channel(progress.append)
    for start in range(0, len(report), step):
        assert channel.status is None
        channel.feed(report[start : start + step])
    assert (channel.status, channel.parameters) == (42, {"kvm.tdp_mmu": "N", "kvm.nosuch": None})
    assert progress == ["half  done"]
    assert channel.archive
    assert (channel.archive.output, channel.archive.kernel_log) == (b"hello\n", "up\n")
    assert channel.archive.files == {"a": b"1", "d/b": b"\0\xff"}


def test_what_is_no_text_and_no_file_does_not_stop_a_report() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, kind in (("./out", tarfile.DIRTYPE), ("./out/link", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a"
            tar.addfile(info)
        log = b"bad \xff\n"
        for name, data in (("./out/a", b"1"), ("./kernel-log", log)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    progress: list[str] = []
    channel = Channel(progress.append)
    channel.feed(b"H 1\nP \xff\n" + archive_frames(stream.getvalue()) + b"E 0\n")
    assert channel.archive == Archive(b"", "bad \ufffd\n", {"a": b"1"})
    assert (channel.status, progress) == (0, ["\ufffd"])
    # Not even what each command leaves has to be there.
    assert unpack(packed({})) == Archive()


@pytest.mark.parametrize("missing", [1, len(b"E 42\n"), len(b".\nE 42\n"), 60])
def test_torn_report_is_never_complete(missing: int) -> None:
    channel = Channel()
    channel.feed(REPORT[:-missing])
    assert channel.up
    assert channel.status is None


@for_each_row(
    "report, why",
    (b"H 1\nH 1\n", "a second time"),
    (b"H 2\n", "protocol"),
    (b"P early\n", "out of place"),
    (b"H 1\n" + archive_frames(RUN, "0" * 64), "checksum"),
    (b"H 1\n" + archive_frames(b"no tar"), "unpacked"),
    (b"H 1\nA 0\n!!!!\n.\n", "base64"),
    (b"H 1\nE 0\n", "unknown frame"),  # without an archive
    (b"H 1\n" + archive_frames(RUN) + b"E x\n", "unknown frame"),
    (REPORT + b"P late\n", "out of place"),
)
def test_false_report_is_refused(report: bytes, why: str) -> None:
    with pytest.raises(ReportBroken, match=why):
        Channel().feed(report)


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


def job(**parameters: str) -> Job:
    return Job(
        kernel=Path(__file__),
        command=("true",),
        cpus=1,
        memory_mib=256,
        parameters={f"kvm.{name}": value for name, value in parameters.items()},
        timeout_s=20,
    )


def test_a_job_is_described(tmp_path: Path) -> None:
    described = dataclasses.replace(
        job(b="2", a="1"), cmdline=("quiet",), files={"/in": tmp_path}, command=("echo", "a b")
    )
    assert Scripted("exit 1").describe(described).splitlines() == [
        "machine:        scripted, 1 CPUs, 256 MiB",
        f"kernel:         {__file__}",
        "kernel command: kvm.a=1 kvm.b=2 quiet",
        f"file:           /in = {tmp_path}",
        "command:        echo 'a b'",
        "emulator:       sh -c 'exit 1'",
    ]


def test_a_command_line_is_as_long_as_the_kernel_takes() -> None:
    longest = dataclasses.replace(job(), cmdline=("x" * 2047,))
    assert f"kernel command: {'x' * 2047}\n" in Scripted("").describe(longest)
    longer = dataclasses.replace(job(), cmdline=("x" * 2048,))
    wanted = "kernel command line of 2048 characters: 2047 fit"
    assert refused(Scripted("").describe, longer) == wanted


MIB = 1 << 20


def test_the_host_keeps_memory_for_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, free in ((448, 256), (447, 255), (100, 0)):
        memory = psutil.virtual_memory()._replace(available=available * MIB)
        monkeypatch.setattr(psutil, "virtual_memory", lambda memory=memory: memory)
        if free == 256:
            Scripted("").describe(job())
        else:
            wanted = f"256 MiB: this host has {free} MiB to give now"
            assert refused(Scripted("").describe, job()) == wanted


def test_there_has_to_be_room_for_kernel_and_image_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tmp_path / "bzImage"
    kernel.write_bytes(bytes(3 * MIB))
    monkeypatch.setattr(initramfs, "build", lambda *_: bytes(2 * MIB))
    work = dataclasses.replace(job(), kernel=kernel)
    leave_free(monkeypatch, 74 * MIB - 1)
    wanted = f"no space left in {workspace.TEMPORARY}: 74 MiB are needed"
    assert refused(Scripted("").run, work) == wanted
    leave_free(monkeypatch, 74 * MIB)
    with pytest.raises(MachineFailed):
        Scripted("exit 1").run(work)


def assert_nothing_is_left() -> None:
    assert not list(workspace.TEMPORARY.glob("machine-*"))
    if (pid := workspace.TEMPORARY / "pid").exists():
        assert not psutil.pid_exists(int(pid.read_text()))


@pytest.mark.parametrize("end", ["", STAY, "printf '[  0.5] reb' >>console"])
def test_complete_report_is_enough(end: str) -> None:
    result = Scripted(f"{UP} cat frames >>report; echo 'E 42' >>report; {end}").run(job())
    assert (result.status, result.output) == (42, b"hello\n")
    assert result.kernel_log == "booting\nup\n"
    assert result.seconds < 15
    assert_nothing_is_left()


@for_each_row(
    "script, reason, detail, log",
    ("echo Panic >console; exit 0", CRASHED, "ended before", "Panic\n"),
    ("printf '1\\r\\n\\377\\n' >console; exit 3", CRASHED, "complete, exit code 3", "1\n\ufffd\n"),
    (f"{UP} kill -KILL $$", "emulator crashed", "SIGKILL ended", "booting\n"),
    (f"{UP} cat frames >>report; printf 'E 4' >>report", CRASHED, "ended before", "booting\n"),
    (f"{UP} {UP} {STAY}", CRASHED, "a second time", "booting\n"),
    (f"echo waiting >console; {STAY}", "boot timed out", "did not come up", "waiting\n"),
    (STAY, "boot timed out", "did not come up within 1 s without a word", ""),
    (f"{UP} {STAY}", TIMED_OUT, f"{ENDLESS}\n", "booting\n"),
    (f"{UP} {STAY}", TIMED_OUT, f"{ENDLESS} without a word", "booting\n"),
    (f"{UP} echo A 0 >>report; {STAY}", TIMED_OUT, "the results did not arrive", "booting\n"),
)
def test_a_machine_that_fails(script: str, reason: str, detail: str, log: str) -> None:
    silent = detail.endswith("without a word")
    work = dataclasses.replace(job(), silent_s=1 if silent else 20, timeout_s=20 if silent else 1)
    with pytest.raises(MachineFailed, match=detail) as failure:
        Scripted(script).run(work)
    assert (failure.value.reason, failure.value.kernel_log) == (reason, log)
    assert failure.value.__notes__ == [log]
    assert_nothing_is_left()


def test_time_without_a_cpu_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    began: dict[int, float] = {}

    def waited_s(pid: int) -> float:
        now = time.monotonic()
        return 0.75 * (now - began.setdefault(pid, now))

    monkeypatch.setattr(process, "waited_s", waited_s)
    late = f"{UP} sleep 2; cat frames >>report; echo 'E 0' >>report"
    assert Scripted(late).run(dataclasses.replace(job(), timeout_s=1, silent_s=1)).status == 0
    with pytest.raises(MachineFailed, match=ENDLESS):
        Scripted(f"{UP} {STAY}").run(dataclasses.replace(job(), timeout_s=1))
    assert time.monotonic() - max(began.values()) >= 4


def test_the_clock_does_not_count_again_what_an_emulator_has_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that has ended has waited for nothing."""
    waited = iter((0.0, 50.0, 0.0, 60.0))
    monkeypatch.setattr(process, "waited_s", lambda pid: next(waited))
    clock = emulated._Clock(1)
    assert [round(clock.now(), -1) for _ in range(4)] == [0, -50, -50, -60]


def test_the_thread_that_waited_longest_counts(tmp_path: Path) -> None:
    for thread, line in ("7", "5 2000000000 1\n"), ("8", "9 3500000000 1\n"), ("9", ""):
        write(tmp_path / "7/task" / thread / "schedstat", line)
    assert process.waited_s(7, tmp_path) == 3.5
    assert process.waited_s(8, tmp_path) == 0
    assert process.waited_s(os.getpid()) >= 0


@for_each_row(
    "frame, why",
    ("M kvm.tdp_mmuu", r"kvm.tdp-mmuu: scripted's kernel has no such module parameter"),
    ("M kvm.tdp_mmuu=Y", "did not accept the value, and has Y"),
    ("X tar: write error: no space", "did not fit into 256 MiB: tar: write error: no space"),
    ("X ", "did not fit into 256 MiB"),
)
def test_what_the_machine_finds_wrong(frame: str, why: str) -> None:
    script = f"{UP} echo {shlex.quote(frame)} >>report; {STAY}"
    assert why in refused(Scripted(script).run, job(**({"tdp-mmuu": "0"} if "M" in frame else {})))
    assert_nothing_is_left()


def test_progress_is_live_and_is_a_word() -> None:
    # Goes on only when the line has arrived.
    script = f"{UP} echo 'P one' >>report; until [ -e seen ]; do sleep 0.05; done; {UP}"
    seen: list[str] = []

    def on_progress(line: str) -> None:
        seen.append(line)
        next(workspace.TEMPORARY.glob("machine-*/report")).with_name("seen").touch()

    with pytest.raises(MachineFailed, match="a second time"):
        Scripted(script).run(dataclasses.replace(job(), on_progress=on_progress))
    assert seen == ["one"]
    script = f"{UP} for i in 1 2 3; do sleep 0.5; echo P $i >>report; done; {UP} {STAY}"
    with pytest.raises(MachineFailed, match="a second time"):
        Scripted(script).run(dataclasses.replace(job(), silent_s=1))
