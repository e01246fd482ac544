# SPDX-License-Identifier: GPL-2.0-only
"""Where things lie. Everything that the lab makes is below BUILD."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

# The base that commands are for if no other one is chosen.
DEFAULT_BASE = "6.12"
# The environment variable that chooses a base, for this process and for all that it starts. The
# option --base sets it.
BASE_VARIABLE = "LAB_BASE"
# Names a directory with other pins than those of the repository, for `make dkms ARGS=--newest`.
PINS_VARIABLE = "LAB_PINS"


def numbers(version: str) -> tuple[int, ...]:
    """A key to sort versions by: 7.10 comes after 7.9."""
    return tuple(map(int, re.findall(r"\d+", version)))


@dataclass(frozen=True)
class Layout:
    """One checkout of this repository, as one base sees it; tests make small ones of their own.

    only: version of that base; empty for the one that is chosen when a path is asked for.
    """

    root: Path
    only: str = ""

    @property
    def version(self) -> str:
        return self.only or os.environ.get(BASE_VARIABLE) or DEFAULT_BASE

    @property
    def pins(self) -> Path:
        """The directory of all pins."""
        return Path(os.environ.get(PINS_VARIABLE) or self.root / "base")

    @property
    def versions(self) -> tuple[str, ...]:
        """All bases that there are, the newest first."""
        found = (file.stem for file in self.pins.glob("*.pin"))
        return tuple(sorted(found, key=numbers, reverse=True)) or (self.version,)

    @property
    def is_newest(self) -> bool:
        """Whether this is the newest base, for which the series and the whole files are written."""
        return self.version == self.versions[0]

    def of(self, version: str) -> "Layout":
        return replace(self, only=version)

    @property
    def newest(self) -> "Layout":
        return self.of(self.versions[0])

    @property
    def pin(self) -> Path:
        return self.pins / f"{self.version}.pin"

    @property
    def sums(self) -> Path:
        """Checksums of the files of the kernel that the series edits, see lab.series.sums."""
        return self.root / "base" / f"{self.version}.sums"

    @property
    def series(self) -> Path:
        return self.root / "series"

    @property
    def backport(self) -> Path:
        """Patches of this base that replace, or come in addition to, those for the newest base."""
        return self.root / "backport" / self.version

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def work(self) -> Path:
        """Where everything lies that is built of this base."""
        return self.build if self.version == DEFAULT_BASE else self.build / self.version

    @property
    def source(self) -> Path:
        """Where a kernel source is kept that was fetched or given by the user."""
        return self.work / "source"

    @property
    def linux(self) -> Path:
        """The kernel tree to work in: commit `base`, then one commit per mail."""
        return self.work / "linux"

    @property
    def mutant_patches(self) -> Path:
        return self.root / "tests" / "mutants"

    def tree_of(self, kind: str) -> Path:
        """Where the sources of a kind of kernel are: `linux`, or a work tree of it."""
        return self.linux if kind == "series" else self.work / kind

    @property
    def check(self) -> Path:
        """Another work tree of `linux`, in which `make check` builds every mail."""
        return self.work / "check"

    @property
    def log(self) -> Path:
        return self.work / "log"

    @property
    def mail(self) -> Path:
        """The series as it would be sent, made by `make mail`."""
        return self.build / "mail"


# Kinds of kernels:
# series: the packaged kernel with the series;
# base: without the series, commit `base`;
# peer: base with the edits of lab.build.ungated;
# mutants: the series with the patches of tests/mutants;
# topic: the series up to the last mail of a topic, see lab.series.topics.
KINDS = ("series", "base", "peer", "mutants", "topic")
ROOT = Path(__file__).resolve().parents[2]
LAYOUT = Layout(ROOT)
LAB = ROOT / "lab"
CONFIG = LAB / "config"
BUILD = LAYOUT.build
LOG = BUILD / "log"
RESULTS = BUILD / "results"
