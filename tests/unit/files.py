# SPDX-License-Identifier: GPL-2.0-only
"""Helpers to write files, run programs among them, and fake free space."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def write(file: Path, text: str, mode: int = 0o644) -> Path:
    """Write FILE, and create its directories."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def program(file: Path, text: str) -> Path:
    """Write an executable script."""
    return write(file, text, 0o755)


def called(
    root: Path, *words: object, cwd: Path | None = None, **env: object
) -> subprocess.CompletedProcess[str]:
    """Run a command whose PATH begins with ROOT/bin."""
    known = {"PATH": f"{root}/bin:{os.environ['PATH']}"} | {k: str(v) for k, v in env.items()}
    command = [str(word) for word in words]
    return subprocess.run(command, cwd=cwd, env=known, capture_output=True, text=True, check=False)


def with_a_second_signal(script: Path, to: Path) -> Path:
    """A copy that gets another signal just as it begins to restore, once."""
    again = '[ -n "${again-}" ] || { again=yes; kill -HUP $$; }'
    begin, restore, rest = script.read_text().partition("\nrestore() {\n")
    line, _, rest = rest.partition("\n")
    assert line.startswith("\tstatus=")
    return program(to, f"{begin}{restore}{line}\n{again}\n{rest}")


def leave_free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Pretend that all disks have SIZE bytes free. The path that is asked about has to exist."""
    usage = shutil.disk_usage("/")._replace(free=size)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage if Path(path).stat() else None)
