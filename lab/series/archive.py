# SPDX-License-Identifier: GPL-2.0-only
"""Fetch a package of another suite of Debian's archive, without touching this machine's apt.

Apt gets lists, cache and sources of its own. It verifies signatures as always, with the keys of the
package debian-archive-keyring. Since Debian 12.11 these include the keys of Debian 13.
"""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from pathlib import Path

from lab.core import process
from lab.core.errors import LabError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Prefix of the name of a source package, as Debian writes it.
SOURCE = "src:"
# Part of apt's message if it cannot verify a signature.
UNVERIFIED = "signatures couldn't be verified"
_RELEASE = re.compile(r"^'(\S+)/dists/([^/']+)/InRelease' ", re.MULTILINE)


class SourceMissing(LabError):
    """The source of a base cannot be had. The message says what the user has to do."""


def mirrors(codename: str, options: Sequence[str] = ()) -> list[str]:
    """The URIs from which the machine's own apt gets a release of Debian.

    Asks apt itself, so it does not matter which format sources are in. options: of apt-get.
    """
    command = ("apt-get", *options, "update", "--print-uris")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _RELEASE.findall(done.stdout)
    return list(dict.fromkeys(uri for uri, suite in found if suite == codename))


def _options(root: Path, arch: str) -> list[str]:
    """Options with which apt reads and writes only below ROOT, for an architecture."""
    settings = {
        "Dir::State::lists": root / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": root / "cache",
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": arch,
        "APT::Architectures": arch,
        # Apt would download as a user of its own, who may be unable to enter ROOT.
        "APT::Sandbox::User": "root",
        # Even if the machine's own settings permit these.
        "Acquire::AllowInsecureRepositories": "false",
        "APT::Get::AllowUnauthenticated": "false",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _download(package: str, arch: str, suite: str, mirror: str, root: Path, log: Path) -> bool:
    for directory in ("lists/partial", "cache/archives/partial"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    source = package.startswith(SOURCE)
    kind, lists, word = ("deb-src Sources source" if source else "deb Packages download").split()
    option = f"signed-by={KEYRING} target={lists}"
    (root / "sources.list").write_text(f"{kind} [{option}] {mirror} {suite} main\n")
    for words in (("update", "--error-on=any"), (word, package.removeprefix(SOURCE))):
        command = ("apt-get", "-q", *_options(root, arch), *words)
        with log.open("a") as output:
            print("+", *command, file=output, flush=True)
            if process.run(command, root, output, env=os.environ | {"LC_ALL": "C"}) != 0:
                return False
    return True


def places(suite: str) -> list[tuple[str, str]]:
    """What a host of this suite has in its sources: the suite, and what is made for it.

    SourceMissing: this machine's own apt names no archive of Debian, from which it would be had.
    """
    own, release = codename(), suite.partition("-")[0]
    found = [(mirror, suite) for mirror in mirrors(own)[:1]]
    if not found:
        raise SourceMissing(f"apt's sources name no archive of Debian, which has {suite}")
    if suite == release:
        security = mirrors(f"{own}-security")[:1]
        found += [(mirror, f"{suite}-security") for mirror in security]
    return found


def codename() -> str:
    """The release of Debian that this machine has; empty if it has none."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def fetch(package: str, suite: str, root: Path, log: Path, arch: str = "amd64") -> Path:
    """Fetch a package below ROOT and return its .deb; or the .dsc of a source package, unpacked.

    SourceMissing: it cannot be had.
    """
    if not KEYRING.is_file():
        raise SourceMissing(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    own = mirrors(codename())
    if any(_download(package, arch, suite, mirror, root, log) for mirror in own):
        return next(root.glob("*.dsc" if package.startswith(SOURCE) else "*.deb"))
    where = ", ".join(own) or "no archive of Debian, as apt's sources name none,"
    if UNVERIFIED in log.read_text():
        raise SourceMissing(f"{suite} of {where} is signed by none of {KEYRING}; see {log}")
    raise SourceMissing(f"{suite} of {where} gives no {package}, or not any longer; see {log}")


def unpack(deb: Path, target: Path) -> str:
    """Unpack a package and return its version."""
    subprocess.run(("dpkg-deb", "-x", deb, target), check=True)
    query = ("dpkg-deb", "-f", deb, "Version")
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True)
class Archive:
    """Suites of Debian's archive, as an apt of its own below `root` reads them."""

    root: Path
    log: Path

    def open(self, places: Sequence[tuple[str, str]]) -> None:
        """Read the lists of these suites, each with its mirror. SourceMissing: apt cannot."""
        for directory in ("lists/partial", "cache/archives/partial"):
            (self.root / directory).mkdir(parents=True, exist_ok=True)
        words = f"deb [signed-by={KEYRING} target=Packages]"
        lines = (f"{words} {mirror} {suite} main\n" for mirror, suite in places)
        (self.root / "sources.list").write_text("".join(lines))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if not self._run("update", "--error-on=any"):
            suites = " ".join(suite for _, suite in places)
            raise SourceMissing(f"apt cannot read {suites}; see {self.log}")

    def _run(self, *words: str) -> bool:
        command = ("apt-get", "-q", *_options(self.root, "amd64"), *words)
        with self.log.open("a") as output:
            return process.run(command, self.root, output, env=os.environ | {"LC_ALL": "C"}) == 0

    def versions(self, package: str) -> list[str]:
        """The versions that there are, the newest first."""
        command = ("apt-cache", *_options(self.root, "amd64"), "madison", package)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows = (line.split("|") for line in done.stdout.splitlines())
        found = dict.fromkeys(row[1].strip() for row in rows)
        return sorted(found, key=cmp_to_key(_order))

    def unpacked(self, package: str, version: str, target: Path) -> None:
        """Download a package, and unpack it. SourceMissing: it cannot be had."""
        for old in self.root.glob("*.deb"):
            old.unlink()
        if not self._run("download", f"{package}={version}"):
            raise SourceMissing(f"there is no {package} {version}; see {self.log}")
        (deb,) = self.root.glob("*.deb")
        unpack(deb, target)
        deb.unlink()


def _order(one: str, other: str) -> int:
    """The order in which the newer one comes first."""
    return 1 if is_newer(other, one) else -1


def is_newer(one: str, other: str) -> bool:
    """Whether a version of a package is newer than another one."""
    command = ("dpkg", "--compare-versions", one, "gt", other)
    return subprocess.run(command, check=False).returncode == 0
