# SPDX-License-Identifier: GPL-2.0-only
"""Parts of the reference that a run of `lab reference` has measured before another part failed.

They lie in build/reference-BASE until a later run has all parts that it wants. Each line names the
code that it has measured (lab.results.origin), so a later run knows which parts it can take over.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lab.core.errors import LabError, WorkFailed
from lab.core.locks import locked
from lab.core.paths import BUILD, Layout
from lab.results import origin, sources

PLACE = BUILD


def source_in(file: Path) -> str:
    """The source that all lines of FILE have measured, see origin.source_in().

    LabError: it cannot be read as results.
    """
    return origin.source_in(line.record for line in sources.load(file).lines)


@dataclass(frozen=True)
class Kept:
    """The parts that are kept in DIRECTORY, which LAYOUT's base has for itself."""

    directory: Path
    layout: Layout

    @property
    def scratch(self) -> Path:
        """Where parts are measured; what is here may be incomplete, or have missed a goal."""
        return self.directory / "new"

    def file(self, part: str) -> Path:
        return self.directory / f"{part}.jsonl"

    def has(self, part: str) -> bool:
        """Whether PART is kept, and has measured the code as it is now."""
        with suppress(LabError):
            return source_in(self.file(part)) == origin.source_of(part, self.layout)
        return False

    def older(self, parts: Iterable[str]) -> list[str]:
        """Those of PARTS that are kept, and have measured other code."""
        return [part for part in parts if self.file(part).exists() and not self.has(part)]

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Make an empty `scratch` for as long as the `with` lasts; another run waits."""
        with locked(self.directory.with_name(f".{self.directory.name}.lock")):
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch.mkdir(parents=True)
            try:
                yield
            finally:
                shutil.rmtree(self.scratch, ignore_errors=True)
                with suppress(OSError):
                    self.directory.rmdir()

    def keep(self, part: str) -> None:
        """Keep PART, which was measured into `scratch`.

        WorkFailed: its lines do not name the code that they have measured, or not all the same.
        """
        fresh = self.scratch / self.file(part).name
        if source_in(fresh) == origin.UNKNOWN:
            raise WorkFailed("its lines do not name one state of the code")
        fresh.replace(self.file(part))

    def drop(self, parts: Iterable[str]) -> None:
        for part in parts:
            self.file(part).unlink(missing_ok=True)


def of(layout: Layout) -> Kept:
    """The parts that are kept of a base."""
    return Kept(PLACE / f"reference-{layout.version}", layout)
