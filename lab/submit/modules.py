# SPDX-License-Identifier: GPL-2.0-only
"""`make dkms`: a Debian package from which dkms builds KVM with the series for Debian's own kernel.

The package contains the changes of the series to KVM, but not KVM itself: dkms/prepare takes that
from Debian's source package on the machine where the modules are built.
"""

import gzip
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache
from pathlib import Path

from lab.core import space
from lab.core.errors import LabError, WorkFailed
from lab.core.git import Identity, Repo, configured_identity
from lab.core.paths import DEFAULT_BASE, ROOT, Layout, numbers
from lab.core.steps import run_logged, say
from lab.series import tree
from lab.series.archive import SourceMissing
from lab.series.pin import Debian, Pin, read_pin
from lab.series.source import KernelSource, current_source

PARTS = ROOT / "dkms"
TOOL = "kvm-eager-split"
PACKAGE = f"{TOOL}-dkms"
# The directories that KVM is built from. Changes of the series to others do not matter for modules.
DIRECTORIES = ("arch/x86/kvm", "arch/x86/include", "virt", "include")
SOURCES = ("dkms.conf", "Kbuild", "prepare", "guards", "symbols", "room")
CONTROL = ("control", "triggers", "preinst", "postinst", "prerm", "postrm")
# What a fleet puts into Prometheus and Grafana.
EXAMPLES = ("alerts.yml", "dashboard.json")
# Commands of the package -> what their manual pages call them, in section 8.
COMMANDS = {
    PARTS / TOOL: "load and look after KVM with eager page splitting",
    ROOT
    / "scripts"
    / "split-bench.sh": "measure dirty logging with and without eager page splitting",
}
MMU = "arch/x86/kvm/mmu/mmu.c"
# The package's maintainer, if git's configuration names nobody.
NOBODY = Identity("nobody", "nobody@localhost")
PART_GIB = 0.5
MOST_BYTES = 200 * 1024


@dataclass(frozen=True)
class Part:
    """One base in the package. patch: the result of difference()."""

    version: str
    pin: Pin
    patch: bytes

    @property
    def patch_name(self) -> str:
        return f"kvm-{self.version}.patch"

    @property
    def proved(self) -> Iterator[str]:
        """Lines of the file `proved`."""
        for debian in self.pin.debian.values():
            words = (debian.source, self.pin.package, self.pin.tarball, debian.sha256)
            yield f"source {' '.join(words)} {self.patch_name}"
            for release, sha256 in debian.kernels.items():
                yield f"kernel {release} {sha256} {debian.source}"
            for flavour, reason in debian.refused.items():
                yield f"refused {debian.release}-{flavour} {reason}"


@dataclass(frozen=True)
class Contents:
    """The parts of a package, the oldest base first. date: of the package, seconds."""

    parts: tuple[Part, ...]
    date: int
    maintainer: str

    @property
    def debians(self) -> list[Debian]:
        return [debian for part in self.parts for debian in part.pin.debian.values()]

    @property
    def kernels(self) -> list[str]:
        """The releases that the package is for, without those that it refuses."""
        return [
            f"{debian.release}-{flavour}"
            for debian in self.debians
            for flavour in debian.flavours
            if flavour not in debian.refused
        ]

    @property
    def refused(self) -> dict[str, str]:
        """Flavour -> reason."""
        return {name: reason for one in self.debians for name, reason in one.refused.items()}

    @property
    def version(self) -> str:
        """The point release of each base, the newest first, and the date."""
        date = time.strftime("%Y%m%d.%H%M", time.gmtime(self.date))
        points = [part.pin.newest.partition("-")[0] for part in reversed(self.parts)]
        return f"{'+'.join(points)}+eagersplit{date}"

    def filled(self, template: str) -> str:
        packages = (f"{part.pin.package} (>= {part.pin.newest})" for part in self.parts)
        lines = (
            " ".join(one for one in self.kernels if one.startswith(f"{debian.release}-"))
            for debian in self.debians
        )
        values = {
            "VERSION": self.version,
            "SYMBOL": re.sub(r"\W", "_", self.version),
            "MAINTAINER": self.maintainer,
            "SOURCES": " | ".join(packages),
            "KERNELS": " ".join(self.kernels),
            "KERNEL_LINES": "\n ".join(lines),
            "REFUSED": "; ".join(f"{name} ({why})" for name, why in self.refused.items()),
        }
        for name, value in values.items():
            template = template.replace(f"@{name}@", value)
        return template

    @property
    def proved(self) -> str:
        """The file from which dkms/prepare reads which kernels it is for."""
        lines = [
            f"version {self.version}",
            f"maintainer {self.maintainer}",
            *(line for part in self.parts for line in part.proved),
        ]
        return "".join(f"{line}\n" for line in lines)


def directory_of(layout: Layout) -> Path:
    """The directory in which the package is made."""
    return layout.build / "dkms"


def check_source(layout: Layout, pin: Pin, source: KernelSource) -> None:
    """LabError: the pin has no kernels of Debian of this source."""
    if not pin.debian:
        raise LabError(f"{layout.pin}: [debian] names no kernels that modules could be for")
    known = {(one.source, one.sha256) for one in pin.debian.values()}
    if (source.version, source.sha256) not in known:
        versions = " or ".join(one.source for one in pin.debian.values())
        raise LabError(
            f"{source.package} is {source.version}: modules are only for kernels of {versions},"
            f" as {layout.pin.name} has it"
        )


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
    part = directory_of(layout) / layout.version / "linux"
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        space.need(part.parent, PART_GIB, "the sources of KVM")
        yield Repo(part), tree.lay_out(layout, source, part)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _part(layout: Layout) -> Part:
    pin, source = read_pin(layout), current_source(layout)
    check_source(layout, pin, source)
    with _tree(layout, source) as (repo, tip):
        check_guards(repo)
        return Part(layout.version, pin, difference(repo, tip))


def _parts(layout: Layout) -> Iterator[Part]:
    for version in sorted(layout.versions, key=numbers):
        try:
            yield _part(layout.of(version))
        except SourceMissing as error:
            if version == DEFAULT_BASE:
                raise
            say(f"dkms: the package is for no kernel of {version}: {error}")


def contents(layout: Layout) -> Contents:
    """The contents of the package. A base whose source cannot be had is left out, and named.

    LabError: what check_source() and check_guards() raise.
    """
    parts = tuple(_parts(layout))
    date = int(Repo(layout.root).text("log", "-1", "--format=%ct"))
    maintainer = configured_identity(layout.root) or NOBODY
    return Contents(parts, date, str(maintainer))


@cache
def manual_page(script: Path, version: str, date: int) -> str:
    """The manual page of a command, from its --help by help2man. WorkFailed: there is none."""
    options = ("-N", "-s", "8", "--version-string", version, "-n", COMMANDS[script])
    env = os.environ | {"SOURCE_DATE_EPOCH": str(date), "LC_ALL": "C"}
    command = ("help2man", *options, str(script))
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkFailed(f"help2man made no page of {script}: {done.stderr.strip()}")
    return done.stdout


def _compressed(text: str) -> bytes:
    return gzip.compress(text.encode(), 9, mtime=0)


def _changelog(what: Contents) -> str:
    date = formatdate(what.date)
    entry = f"{PACKAGE} ({what.version}) unstable; urgency=medium"
    return f"{entry}\n\n  * See CHANGELOG.md of the series.\n\n -- {what.maintainer}  {date}\n"


def _put(what: Contents, file: Path, source: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(what.filled(source.read_text()))
    file.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def lay_out(what: Contents, root: Path) -> None:
    """Write the files of the package below ROOT."""
    shutil.rmtree(root, ignore_errors=True)
    sources, share = root / "usr/src" / f"{TOOL}-{what.version}", root / "usr/share"
    for directory, names in {sources: SOURCES, root / "DEBIAN": CONTROL}.items():
        for name in names:
            _put(what, directory / name, PARTS / name)
    _put(what, share / "doc" / PACKAGE / "copyright", PARTS / "copyright")
    _put(what, share / "lintian/overrides" / PACKAGE, PARTS / "lintian-overrides")
    for name in EXAMPLES:
        _put(what, share / "doc" / PACKAGE / "examples" / name, PARTS / "prometheus" / name)
    (share / "doc" / PACKAGE / "changelog.gz").write_bytes(_compressed(_changelog(what)))
    manual = share / "man/man8"
    manual.mkdir(parents=True)
    for script in COMMANDS:
        _put(what, root / "usr/sbin" / script.name, script)
        page = _compressed(manual_page(script, what.version, what.date))
        (manual / f"{script.name}.8.gz").write_bytes(page)
    for part in what.parts:
        (sources / part.patch_name).write_bytes(part.patch)
    (sources / "proved").write_text(what.proved)


def pack(what: Contents, directory: Path, log: Path) -> Path:
    """Make the package in a directory, in which older ones are removed.

    The same input gives the same bytes.
    """
    lay_out(what, directory / "root")
    for old in directory.glob("*.deb"):
        old.unlink()
    deb = directory / f"{PACKAGE}_{what.version}_amd64.deb"
    command = ("dpkg-deb", "--root-owner-group", "-Zxz", "-b", str(directory / "root"), str(deb))
    env = {"SOURCE_DATE_EPOCH": str(what.date), "PATH": "/usr/bin:/bin"}
    run_logged("dpkg-deb", command, log, directory, env)
    if deb.stat().st_size > MOST_BYTES:
        raise WorkFailed(f"{deb} has {deb.stat().st_size} bytes, more than {MOST_BYTES}")
    return deb


def make(layout: Layout, what: Contents) -> Path:
    """Make the package in the layout's directory. Raises what pack() raises."""
    return pack(what, directory_of(layout), layout.log / "dkms.log")
