# SPDX-License-Identifier: GPL-2.0-only
"""make deb without a build: what it is given, what it would run, what it makes of results."""

import lzma
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab.core.paths import DEFAULT_BASE, Layout
from lab.machines import Job, Result
from lab.machines.disk import SECTOR, SvmQemuDisk
from lab.submit import packages
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refused

GIVEN = b"CONFIG_KVM=m\n"


@pytest.fixture
def built(tmp_path: Path) -> packages.Packages:
    for name in ("linux-image-6.12.1-eagersplit_1_amd64.deb", "linux-libc-dev_1_amd64.deb"):
        (tmp_path / name).touch()
    return packages.found(tmp_path, "6.12.1-eagersplit")


def test_a_configuration_may_be_packed(tmp_path: Path) -> None:
    (tmp_path / "config.xz").write_bytes(lzma.compress(GIVEN))
    (tmp_path / ".config").write_bytes(GIVEN)
    assert [packages.read_config(tmp_path / one) for one in ("config.xz", ".config")] == 2 * [GIVEN]


@for_each_row(
    "name, content, why",
    ("missing", None, "is not a kernel configuration"),
    ("broken.xz", GIVEN, "is not a kernel configuration"),
    ("other", b"CONFIG_SMP=y\n", "is not the .config of a kernel with KVM"),
)
def test_no_configuration(tmp_path: Path, name: str, content: bytes | None, why: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert why in refused(packages.read_config, tmp_path / name)


def test_dry_run_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "build", None)
    (tmp_path / "c").write_bytes(GIVEN)
    said = lab("deb", "--dry-run", "--no-prove", "--config", str(tmp_path / "c")).out
    for words in ("bindeb-pkg", f"configuration: {tmp_path}/c", "proof:         none"):
        assert words in said


def test_each_base_has_packages_and_a_configuration_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "DEBIANS", f"{tmp_path}/{{}}.config")
    default = tmp_path / f"{DEFAULT_BASE}.config"
    assert packages.debians(DEFAULT_BASE) == default
    assert not capsys.readouterr().err
    assert packages.debians("7.3") == default
    said = f"no {tmp_path}/7.3.config: the configuration is that of {DEFAULT_BASE}"
    assert said in capsys.readouterr().err
    (tmp_path / "7.3.config").touch()
    assert packages.debians("7.3") == tmp_path / "7.3.config"
    layout = Layout(tmp_path)
    found = [packages.directory_of(layout.of(version)) for version in (DEFAULT_BASE, "7.3")]
    assert found == [tmp_path / "build/deb", tmp_path / "build/7.3/deb"]


def test_progress_counts_what_was_compiled(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert packages.compiled(log) == 0
    log.write_text("  HOSTCC x\n  CC      a.o\n  AS      b.o\n  CC [M]  c.o\n  LD [M]  d.ko\n")
    assert packages.compiled(log) == 3


def test_the_image_is_installed_into_the_root(built: packages.Packages, tmp_path: Path) -> None:
    words = packages.root_command(built, tmp_path / "proof")
    hooks = [word.removeprefix("--customize-hook=") for word in words if "hook=" in word]
    assert hooks.index(f"copy-in {built.image} /root") < hooks.index(
        f'chroot "$1" dpkg -i /root/{built.image.name}'
    )
    assert words[-2:] == ("bookworm", str(tmp_path / "proof/root.ext2"))
    assert (built.image.name, len(built.files)) == ("linux-image-6.12.1-eagersplit_1_amd64.deb", 2)
    built.image.rename(tmp_path / "linux-image-6.12.1-other_1_amd64.deb")
    assert "no package of linux-image" in failed(packages.found, tmp_path, "6.12.1-eagersplit")


def test_the_second_disk_has_the_job_and_no_library(tmp_path: Path) -> None:
    machine = SvmQemuDisk(Path("/root.ext2"), Path("/initrd"))
    job = Job(kernel=Path("/vmlinuz"), command=("true",), files={"/test/ls": Path("/bin/ls")})
    machine.prepare(job, "", b"not this", tmp_path)
    data = (tmp_path / "payload").read_bytes()
    assert len(data) % SECTOR == 0
    listed = subprocess.run(["cpio", "-it", "--quiet"], input=data, capture_output=True, check=True)
    names = listed.stdout.decode().split()
    assert {"lab/command", "test/ls"} <= set(names)
    assert not [name for name in names if "lib" in name or name in ("init", "bin")]
    words = machine.argv(job, "")
    assert words[words.index("-initrd") + 1] == "/initrd"


def test_a_kernel_that_is_another_is_no_proof(
    built: packages.Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Mock(**{"run.return_value": Result(0, b"6.1.0-debian\n", {}, "", 1.0)})
    monkeypatch.setattr(packages, "make_root", lambda *_: other)
    monkeypatch.setattr("lab.build.selftests.build", lambda _: tmp_path)
    assert "is not 6.12.1-eagersplit:\n6.1.0-debian" in failed(packages.prove, built, tmp_path)
