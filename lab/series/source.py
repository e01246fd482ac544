# SPDX-License-Identifier: GPL-2.0-only
"""The packaged kernel source and the versions of it that were proved."""

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab.core.errors import LabError


@dataclass(frozen=True)
class KernelSource:
    """A kernel source as it lies on this machine.

    sha256: of the tarball. proved: base.pin names exactly this file.
    """

    package: str
    version: str
    tarball: Path
    sha256: str
    proved: bool


@dataclass(frozen=True)
class Pin:
    """What base.pin says. proved: version -> sha256 of the tarball."""

    package: str
    tarball: Path
    proved: dict[str, str]

    @property
    def newest(self) -> str:
        return list(self.proved)[-1]


def read_pin(path: Path) -> Pin:
    """Read base.pin. LabError: a line that is not one of its three kinds, or none of a kind."""
    single: dict[str, str] = {}
    proved: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match line.split("#")[0].split():
            case []:
                pass
            case ["package" | "tarball" as key, value]:
                single[key] = value
            case ["proved", version, sha256]:
                proved[version] = sha256
            case _:
                raise LabError(
                    f"{path}:{number}: expected 'package NAME', 'tarball PATH'"
                    " or 'proved VERSION SHA256'"
                )
    if len(single) != 2 or not proved:
        raise LabError(f"{path}: needs a package, a tarball and at least one proved version")
    return Pin(single["package"], Path(single["tarball"]), proved)


def installed_version(package: str) -> str:
    """Version of an installed Debian package. LabError: it is not installed."""
    query = ("dpkg-query", "-W", "-f", "${Version}", package)
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout:
        raise LabError(f"package {package} is not installed; make setup installs it")
    return done.stdout


def _older(version: str, than: str) -> bool:
    compare = ("dpkg", "--compare-versions", version, "lt", than)
    return subprocess.run(compare, check=False).returncode == 0


def _checksum(tarball: Path) -> str:
    try:
        with tarball.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise LabError(f"{tarball} is missing; reinstall its package") from error


def find(pin: Pin, version: str) -> KernelSource:
    """The source that the pin names, in the version that is installed.

    LabError: it is older than what was proved, or is not the file that was.
    """
    if version not in pin.proved and _older(version, pin.newest):
        raise LabError(
            f"{pin.package} {version} is older than {pin.newest}, which the series needs;"
            " apt-get update and install it again"
        )
    sha256 = _checksum(pin.tarball)
    expected = pin.proved.get(version)
    if expected not in (None, sha256):
        raise LabError(
            f"{pin.tarball} has sha256 {sha256}, base.pin expects {expected} for {version};"
            f" apt-get install --reinstall {pin.package}"
        )
    return KernelSource(pin.package, version, pin.tarball, sha256, expected is not None)
