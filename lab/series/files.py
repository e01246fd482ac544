# SPDX-License-Identifier: GPL-2.0-only
"""The repository's side: series/, the whole files, and what the tree is made from."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from lab.core.errors import LabError
from lab.core.paths import Layout
from lab.series.mail import Mail, parse

# Top-level directories of the kernel in which the repository keeps whole files.
WHOLE_FILES = ("Documentation", "arch", "include", "kernel", "lib", "mm", "tools", "virt")
# Below them, but no part of the kernel.
OURS = "tools/bpftrace/"


@dataclass(frozen=True)
class WholeFile:
    """A file of ours. mode: git's, "100644" or "100755"."""

    mode: str
    content: bytes


@dataclass(frozen=True)
class Series:
    """All that the repository adds to the source: file name and mail, in order."""

    mails: tuple[tuple[str, Mail], ...]

    @property
    def whole(self) -> tuple[str, ...]:
        return tuple(path for _, mail in self.mails for path in mail.whole)


def read_text(path: Path) -> str:
    """A file as text; bytes that are no UTF-8 survive a round trip."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def read_whole(root: Path, path: str) -> WholeFile:
    """A whole file of the repository. LabError: it is missing."""
    file = root / path
    try:
        content = file.read_bytes()
    except FileNotFoundError as error:
        raise LabError(f"{path} is missing: series/ says that the repository has it") from error
    return WholeFile("100755" if os.access(file, os.X_OK) else "100644", content)


def _check_owners(series: Series) -> None:
    owner: dict[str, str] = {}
    for name, mail in series.mails:
        for path in mail.whole:
            if path in owner:
                raise LabError(
                    f"series/{name}: {path} belongs to {owner[path]} already;"
                    " a whole file belongs to one mail"
                )
            owner[path] = name


def load(layout: Layout) -> Series:
    """Read series/ in the order of the file names; none is an empty series."""
    files = sorted(layout.series.glob("*.patch"))
    mails = ((file.name, parse(f"series/{file.name}", read_text(file))) for file in files)
    series = Series(tuple(mails))
    _check_owners(series)
    return series


def fingerprint(layout: Layout, series: Series) -> str:
    """A digest of all that the repository puts into the tree."""
    digest = hashlib.sha256()
    for name, _ in series.mails:
        content = (layout.series / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    for path in series.whole:
        whole = read_whole(layout.root, path)
        digest.update(f"{path} {whole.mode} {len(whole.content)}\n".encode() + whole.content)
    return digest.hexdigest()


def orphans(layout: Layout, series: Series) -> list[str]:
    """Files at kernel paths of the repository that no mail adds or replaces."""
    present = (
        file.relative_to(layout.root).as_posix()
        for directory in WHOLE_FILES
        for file in sorted((layout.root / directory).rglob("*"))
        if file.is_file()
    )
    return [path for path in present if path not in series.whole and not path.startswith(OURS)]
