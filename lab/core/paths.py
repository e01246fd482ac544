# SPDX-License-Identifier: GPL-2.0-only
"""Where things lie. Everything that the lab makes is below BUILD."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """One checkout of this repository; tests make small ones of their own."""

    root: Path

    @property
    def pin(self) -> Path:
        return self.root / "base.pin"

    @property
    def series(self) -> Path:
        return self.root / "series"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def linux(self) -> Path:
        """The kernel tree to work in: commit `base`, then one commit per mail."""
        return self.build / "linux"

    @property
    def base(self) -> Path:
        """A second work tree of `linux`, at commit `base`."""
        return self.build / "base"

    @property
    def peer(self) -> Path:
        """A work tree of `linux`, at `base` with the edits of lab.build.ungated."""
        return self.build / "peer"

    @property
    def mutants(self) -> Path:
        """A work tree of `linux`, at the series with the patches of tests/mutants."""
        return self.build / "mutants"

    @property
    def mutant_patches(self) -> Path:
        return self.root / "tests" / "mutants"

    def tree_of(self, kind: str) -> Path:
        """Where the sources of a kind of kernel are, one of lab.build.kernel.KINDS."""
        return {
            "series": self.linux,
            "base": self.base,
            "peer": self.peer,
            "mutants": self.mutants,
        }[kind]

    @property
    def check(self) -> Path:
        """Another one, in which `make check` builds every mail."""
        return self.build / "check"

    @property
    def log(self) -> Path:
        return self.build / "log"

    @property
    def mail(self) -> Path:
        """The series as it would be sent, made by `make mail`."""
        return self.build / "mail"

    @property
    def checked_mail(self) -> Path:
        """The mails that `make check` shows to checkpatch.pl."""
        return self.build / "check-mail"


ROOT = Path(__file__).resolve().parents[2]
LAYOUT = Layout(ROOT)
LAB = ROOT / "lab"
CONFIG = LAB / "config"
BASE_PIN = LAYOUT.pin
SERIES = LAYOUT.series
BUILD = LAYOUT.build
LINUX = LAYOUT.linux
BASE = LAYOUT.base
LOG = LAYOUT.log
MAIL = LAYOUT.mail
RESULTS = BUILD / "results"
PARTIAL = RESULTS / "partial"
