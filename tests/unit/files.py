# SPDX-License-Identifier: GPL-2.0-only
"""Files that tests make."""

from pathlib import Path


def write(file: Path, text: str, mode: int = 0o644) -> Path:
    """Write FILE, and make the directories that it lies in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def program(file: Path, text: str) -> Path:
    """The same for a script."""
    return write(file, text, 0o755)
