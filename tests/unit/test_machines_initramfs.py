# SPDX-License-Identifier: GPL-2.0-only
"""What an emulated machine boots from: complete, and the same bytes for the same job."""

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.machines import bochs, initramfs
from lab.machines.job import Job
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.files import write

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
    busybox = write(tmp_path / "busybox", "another")
    files = unpacked(tmp_path / "root", busybox=busybox)
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
