# SPDX-License-Identifier: GPL-2.0-only
"""The kernel source of a base: installed, fetched or given; and whether the pin has proved it."""

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path

from lab.core import complete, space
from lab.core.errors import LabError
from lab.core.paths import Layout
from lab.core.steps import say, step
from lab.series import archive
from lab.series.archive import SourceMissing, is_newer
from lab.series.pin import Pin, read_pin

# Free space for a fetched package and the tarball in it.
NEEDED_GIB = 0.5
_VERSION = re.compile(r"^VERSION = (\d+)\nPATCHLEVEL = (\d+)\nSUBLEVEL = (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class KernelSource:
    """A kernel source as it lies on this machine.

    sha256: of the tarball. proved: the pin names exactly this file.
    """

    package: str
    version: str
    tarball: Path
    sha256: str
    proved: bool


def installed_version(package: str) -> str:
    """Version of an installed Debian package. LabError: it is not installed."""
    query = ("dpkg-query", "-W", "-f", "${Version}", package)
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout:
        raise LabError(f"package {package} is not installed; make setup installs it")
    return done.stdout


def _is_outdated(pin: Pin, version: str) -> bool:
    return version not in pin.proved and is_newer(pin.newest, version)


def sha256_of(file: Path) -> str:
    """The checksum of a file, in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _checksum(tarball: Path) -> str:
    try:
        return sha256_of(tarball)
    except FileNotFoundError as error:
        raise LabError(f"{tarball} is missing; reinstall its package") from error


def find(pin: Pin, version: str, tarball: Path | None = None) -> KernelSource:
    """The package that the pin names, in the version that there is.

    tarball: unless it is where the package puts it. LabError: it is older than what was proved, or
    is not the file that was.
    """
    file = tarball or Path(pin.tarball)
    if _is_outdated(pin, version):
        raise LabError(
            f"{pin.package} {version} is older than {pin.newest}, which the series needs;"
            " apt-get update and install it again"
        )
    sha256 = _checksum(file)
    wanted = pin.proved.get(version)
    if wanted not in (None, sha256):
        again = f"apt-get install --reinstall {pin.package}"
        how = "remove build/*/source to fetch it again" if tarball else again
        raise LabError(f"{file} has sha256 {sha256}, the pin expects {wanted} for {version}; {how}")
    return KernelSource(pin.package, version, file, sha256, wanted is not None)


def _describe(directory: Path, version: str, tarball: Path, *, given: bool) -> None:
    content = {"version": version, "tarball": tarball.name, "given": given}
    (directory / "source.json").write_text(json.dumps(content) + "\n")


def _kept(layout: Layout, pin: Pin) -> KernelSource | None:
    """The source that was fetched or given before. None if there is none, or it is too old."""
    file = layout.source / "source.json"
    if not file.exists():
        return None
    known = json.loads(file.read_text())
    version, tarball = known["version"], layout.source / known["tarball"]
    if not known["given"]:
        return None if _is_outdated(pin, version) else find(pin, version, tarball)
    sha256 = _checksum(tarball)
    for proved, checksum in pin.proved.items():
        if checksum == sha256:
            return KernelSource(pin.package, proved, tarball, sha256, True)
    return KernelSource(tarball.name, version, tarball, sha256, False)


def _fetch(layout: Layout, pin: Pin) -> None:
    what = f"Fetching {pin.package} from {pin.suite}"
    with complete.directory(layout.source) as directory, step(what, "1 min"):
        space.need(directory, NEEDED_GIB, "a kernel source")
        try:
            deb = archive.fetch(pin.package, pin.suite, directory, layout.log / "source.log")
        except SourceMissing as error:
            raise SourceMissing(
                f"{error}; name a tarball of Linux {layout.version} from elsewhere, once:"
                f" make tree BASE={layout.version} SOURCE=FILE"
            ) from error
        version = archive.unpack(deb, directory / "package")
        tarball = directory / "package" / pin.tarball.lstrip("/")
        if not tarball.is_file():
            raise LabError(f"{deb.name} has no {pin.tarball}; correct {layout.pin}")
        kept = tarball.rename(directory / tarball.name)
        find(pin, version, kept)
        _describe(directory, version, kept, given=False)
        for file in (deb, directory / "sources.list"):
            file.unlink()
        for rest in ("package", "lists", "cache"):
            shutil.rmtree(directory / rest)


def _makefile_in(tarball: Path) -> str:
    """The Makefile in the top directory of a tarball, empty if there is none.

    LabError: it cannot be read as a tarball.
    """
    try:
        with tarfile.open(tarball, "r|*") as members:
            for member in members:
                if re.fullmatch(r"(\./)?[^/]+/Makefile", member.name):
                    content = members.extractfile(member)
                    return content.read().decode() if content else ""
    except (OSError, tarfile.TarError, LZMAError, EOFError, UnicodeDecodeError) as error:
        raise LabError(f"{tarball} cannot be read as a tarball: {error}") from error
    return ""


def _version_in(tarball: Path) -> str:
    """The version of a kernel source, empty if it is none. Raises what _makefile_in() raises."""
    match = _VERSION.search(_makefile_in(tarball))
    return ".".join(match.groups()) if match else ""


def _take(layout: Layout, tarball: Path) -> None:
    """Copy the tarball that the user gave. LabError: it is not a kernel source of this base."""
    if not tarball.is_file():
        raise LabError(f"SOURCE: there is no file {tarball}")
    with step(f"Reading {tarball}", "20 s"):
        version = _version_in(tarball)
    if not version.startswith(f"{layout.version}."):
        found = f"Linux {version}" if version else "not a kernel source"
        raise LabError(f"SOURCE: {tarball} is {found}, expected Linux {layout.version}")
    with complete.directory(layout.source) as directory:
        space.need(directory, NEEDED_GIB, "a kernel source")
        _describe(directory, version, Path(shutil.copy2(tarball, directory)), given=True)


def current_source(layout: Layout, given: Path | None = None) -> KernelSource:
    """The source of the layout's base: what was given or fetched, else the installed package.

    given: a tarball from elsewhere, which is kept and used from then on. A base with a suite is
    fetched if need be. LabError: what is there does not fit the pin. SourceMissing: there is none.
    """
    pin = read_pin(layout)
    if given:
        _take(layout, given)
    found = _kept(layout, pin)
    if found is None and pin.suite:
        _fetch(layout, pin)
        found = _kept(layout, pin)
    if found is None:
        found = find(pin, installed_version(pin.package))
    if not found.proved:
        say(
            f"{found.package} is {found.version}, not {pin.newest}, which {layout.pin.name} proves:"
            " it is used if the whole series applies; `make check` and `make test` show whether the"
            " series works with it"
        )
    return found
