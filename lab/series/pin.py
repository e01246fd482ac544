# SPDX-License-Identifier: GPL-2.0-only
"""base/VERSION.pin: where the source of a base comes from, and which paths differ there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from lab.core.errors import LabError
from lab.core.paths import Layout
from lab.series.mail import Mail, Removal

_HEADER = re.compile(r"^diff --git .*\n(?:(?!@@ |diff --git ).*\n)*", re.MULTILINE)
_PATH = re.compile(r"(?<= )([ab]/)(\S+)")


class Debian(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The kernels of one of Debian's suites, made of this base.

    source: the version of the source package. sha256: of its tarball. release: of the kernels,
    without the flavour. flavours: each with the sha256 of its configuration. refused: those that
    `make dkms` is not for, each with the reason.
    """

    source: str
    sha256: str
    release: str
    flavours: dict[str, str]
    refused: dict[str, str] = {}

    @property
    def kernels(self) -> dict[str, str]:
        """The release of each kernel -> sha256 of its configuration."""
        return {f"{self.release}-{name}": sha256 for name, sha256 in self.flavours.items()}


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One base. What each key says is in docs/developing.md: "Bases"."""

    package: str
    tarball: str
    proved: dict[str, str]
    suite: str = ""
    packages: tuple[str, ...] = ()
    paths: dict[str, str] = {}
    debian: dict[str, Debian] = {}

    @property
    def newest(self) -> str:
        return list(self.proved)[-1]


def read_pin(layout: Layout) -> Pin:
    """The pin of the layout's base. LabError: there is none, or not as Pin says."""
    file = layout.pin
    try:
        pin = msgspec.toml.decode(file.read_bytes(), type=Pin)
    except FileNotFoundError as error:
        bases = " ".join(layout.versions)
        raise LabError(f"there is no base {layout.version!r}, only: {bases}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LabError(f"{file}: {error}") from error
    if not pin.proved:
        raise LabError(f"{file}: [proved] names no version")
    if layout.is_newest and pin.paths:
        raise LabError(f"{file}: [paths] is for older bases; files lie as the newest has them")
    return pin


def _moved(path: str, directories: Mapping[str, str]) -> str:
    for old, new in directories.items():
        if path == old or path.startswith(f"{old}/"):
            return new + path[len(old) :]
    return path


@dataclass(frozen=True)
class PathMap:
    """Translates paths of the repository, which has those of the newest base, to a base's."""

    directories: Mapping[str, str]

    def there(self, path: str) -> str:
        return _moved(path, self.directories)

    def back(self, path: str) -> str:
        return _moved(path, {new: old for old, new in self.directories.items()})

    def _header(self, match: re.Match[str]) -> str:
        return _PATH.sub(lambda found: found[1] + self.there(found[2]), match[0])

    def mail(self, mail: Mail) -> Mail:
        """The mail as it is for the base. The text of a diff stays, only its paths change."""
        return replace(
            mail,
            removes=tuple(Removal(self.there(one.path), one.symbol) for one in mail.removes),
            deletes=tuple(map(self.there, mail.deletes)),
            diff=_HEADER.sub(self._header, mail.diff),
            adds=tuple(map(self.there, mail.adds)),
            replaces=tuple(map(self.there, mail.replaces)),
            grows=tuple(map(self.there, mail.grows)),
            from_newest=True,
        )


SAME_PATHS = PathMap({})


def path_map(layout: Layout) -> PathMap:
    """The path map of the layout's base. Raises what read_pin() raises."""
    return SAME_PATHS if layout.is_newest else PathMap(read_pin(layout).paths)
