# SPDX-License-Identifier: GPL-2.0-only
"""`make dkms`: a Debian package from which dkms builds KVM with the series for Debian's own kernel.

The package contains the changes of the series to KVM, but not KVM itself: dkms/prepare takes that
from Debian's source package on the machine where the modules are built.
"""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from lab.core import space
from lab.core.errors import LabError, WorkFailed
from lab.core.git import Identity, Repo, configured_identity
from lab.core.paths import LAYOUT, ROOT, Layout
from lab.core.steps import run_logged, say
from lab.series import tree
from lab.series.pin import Pin, read_pin
from lab.series.source import KernelSource, current_source

PARTS = ROOT / "dkms"
TOOL = "kvm-eager-split"
PACKAGE = f"{TOOL}-dkms"
# The directories that KVM is built from. Changes of the series to others do not matter for modules.
DIRECTORIES = ("arch/x86/kvm", "arch/x86/include", "virt", "include")
SOURCES = ("dkms.conf", "Kbuild", "prepare", "guards")
CONTROL = ("control", "triggers", "preinst", "postinst", "prerm")
MMU = "arch/x86/kvm/mmu/mmu.c"
# The package's maintainer, if git's configuration names nobody.
NOBODY = Identity("nobody", "nobody@localhost")
PART_GIB = 0.5
MOST_BYTES = 200 * 1024


@dataclass(frozen=True)
class Contents:
    """The parts of a package. date: of the package, seconds. patch: the result of difference()."""

    source: KernelSource
    pin: Pin
    date: int
    maintainer: str
    patch: bytes

    @property
    def version(self) -> str:
        date = time.strftime("%Y%m%d.%H%M", time.gmtime(self.date))
        return f"{self.source.version}+eagersplit{date}"

    def filled(self, template: str) -> str:
        values = {
            "VERSION": self.version,
            "SYMBOL": re.sub(r"\W", "_", self.version),
            "MAINTAINER": self.maintainer,
            "SOURCE": self.source.package,
            "SOURCE_VERSION": self.source.version,
            "KERNELS": " ".join(self.pin.kernels),
        }
        for name, value in values.items():
            template = template.replace(f"@{name}@", value)
        return template

    @property
    def proved(self) -> str:
        """The file from which dkms/prepare reads which kernels it is for."""
        source = self.source
        lines = [
            f"version {self.version}",
            f"source {source.package} {source.version} {self.pin.tarball} {source.sha256}",
            *(f"kernel {release} {sha256}" for release, sha256 in self.pin.kernels.items()),
        ]
        return "".join(f"{line}\n" for line in lines)


def directory_of(layout: Layout) -> Path:
    """The directory in which the package of a base is made."""
    return layout.work / "dkms"


def check_source(layout: Layout, pin: Pin, source: KernelSource) -> None:
    """LabError: the source is not the newest proved one, or the pin has no Debian kernel of it."""
    if not source.proved or source.version != pin.newest:
        raise LabError(
            f"{source.package} is {source.version}: modules are only for kernels of {pin.newest},"
            f" as {layout.pin.name} has it"
        )
    if not pin.kernels:
        raise LabError(f"{layout.pin}: [kernels] names no kernel that modules could be for")


def check_guards(repo: Repo) -> None:
    """LabError: the base lacks a fix that dkms/guards looks for."""
    text = repo.run("show", f"{tree.BASE_TAG}:{MMU}")
    command = ("sh", PARTS / "guards", "/dev/stdin")
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    if done.returncode:
        raise LabError(f"{MMU} of the base: {done.stderr.decode().strip()}")


def difference(repo: Repo, tip: str) -> bytes:
    """The changes of the series to KVM, as a diff."""
    words = ("diff", "--no-color", "--no-ext-diff", "--no-renames", "--full-index")
    return repo.run(*words, tree.BASE_TAG, tip, "--", *DIRECTORIES)


@contextmanager
def _tree(layout: Layout, source: KernelSource) -> Iterator[tuple[Repo, str]]:
    """Give a tree with the series, and its last commit: build/linux if it is there.

    Otherwise make a temporary tree with only those files that KVM needs.
    """
    if layout.linux.exists():
        tree.make(layout, source)
        yield Repo(layout.linux), "HEAD"
        return
    part = directory_of(layout) / "linux"
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        space.need(part.parent, PART_GIB, "the sources of KVM")
        yield Repo(part), tree.lay_out(layout, source, part)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def contents(layout: Layout) -> Contents:
    """The contents of the package. LabError: what check_source() and check_guards() raise."""
    pin, source = read_pin(layout), current_source(layout)
    check_source(layout, pin, source)
    with _tree(layout, source) as (repo, tip):
        check_guards(repo)
        patch = difference(repo, tip)
    date = int(Repo(layout.root).text("log", "-1", "--format=%ct"))
    maintainer = configured_identity(layout.root) or NOBODY
    return Contents(source, pin, date, str(maintainer), patch)


def lay_out(what: Contents, root: Path) -> None:
    """Write the files of the package below ROOT."""
    shutil.rmtree(root, ignore_errors=True)
    sources = root / "usr/src" / f"{TOOL}-{what.version}"
    parts = {sources: SOURCES, root / "DEBIAN": CONTROL, root / "usr/sbin": (TOOL,)}
    for directory, names in parts.items():
        directory.mkdir(parents=True)
        for name in names:
            (directory / name).write_text(what.filled((PARTS / name).read_text()))
            executable = (PARTS / name).stat().st_mode & 0o100
            (directory / name).chmod(0o755 if executable else 0o644)
    (sources / "kvm.patch").write_bytes(what.patch)
    (sources / "proved").write_text(what.proved)


def make(layout: Layout) -> Path:
    """Make the package. The same input gives the same bytes. LabError: what contents() raises."""
    what, directory = contents(layout), directory_of(layout)
    lay_out(what, directory / "root")
    for old in directory.glob("*.deb"):
        old.unlink()
    deb = directory / f"{PACKAGE}_{what.version}_amd64.deb"
    command = ("dpkg-deb", "--root-owner-group", "-Zxz", "-b", str(directory / "root"), str(deb))
    env = {"SOURCE_DATE_EPOCH": str(what.date), "PATH": "/usr/bin:/bin"}
    run_logged("dpkg-deb", command, layout.log / "dkms.log", directory, env)
    if deb.stat().st_size > MOST_BYTES:
        raise WorkFailed(f"{deb} has {deb.stat().st_size} bytes, more than {MOST_BYTES}")
    return deb


@click.command()
def command() -> None:
    """Make the package kvm-eager-split-dkms: KVM with the series, as modules for Debian's kernel.

    It is in build/dkms, or in build/VERSION/dkms of another base than the default. No
    kernel is built: that is dkms's work, where the package is installed.
    """
    say(f"dkms: {make(LAYOUT)}")
