# SPDX-License-Identifier: GPL-2.0-only
"""lab.build.qemu with an archive that is made up; what qemu/*.patch has of the series."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab.build import qemu
from lab.core.paths import ROOT
from lab.series import archive
from tests.unit.calls import lab
from tests.unit.files import write


def test_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = qemu.PIN.newest

    def fetch(package: str, suite: str, root: Path, log: Path) -> Path:
        write(root / "qemu-7.2/debian/control", "")
        return write(root / "qemu.dsc", f"Source: qemu\nVersion: {version}\nBinary: no\n")

    def run(what: str, words: Sequence[str], log: Path, cwd: Path, env: object) -> None:
        assert words[-1].endswith(".patch")
        write(cwd / "build/program", version)

    monkeypatch.setattr(archive, "fetch", fetch)
    monkeypatch.setattr(qemu, "run_logged", run)
    monkeypatch.setattr(qemu, "PROGRAM", tmp_path / "qemu/program")
    assert "the pin expects" in lab("qemu", status=2).err
    version += "+1"
    assert "is newer than" in lab("qemu").err
    assert qemu.PROGRAM.exists() and "Building" not in lab("qemu").err


def test_definitions_are_those_of_the_series() -> None:
    (mail,) = (ROOT / "series").glob("*-let-user-space-steer-dirty-*.patch")
    (patch,) = (ROOT / "qemu").glob("*.patch")
    defined = re.findall(r"^\+#define .*", patch.read_text(), re.MULTILINE)
    assert len(defined) == 20 and set(defined) <= set(mail.read_text().splitlines())
