# SPDX-License-Identifier: GPL-2.0-only
"""A package of another suite of Debian's archive, fetched without touching this machine's apt.

Apt is given lists, cache and sources of its own. It verifies signatures as it always does, with
Debian's keys, which those of Debian 12 since its point release 12.11 include for Debian 13.
"""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.core import process
from lab.core.errors import LabError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCE = "src:"  # of a source package, as Debian writes it
# What apt says if so.
UNVERIFIED = "signatures couldn't be verified"
_RELEASE = re.compile(r"^'(\S+)/dists/([^/']+)/InRelease' ", re.MULTILINE)


class SourceMissing(LabError):
    """The source of a base cannot be had; what has to be done is not the lab's to do."""


def mirrors(codename: str, options: Sequence[str] = ()) -> list[str]:
    """Where the machine's own sources, in whichever of apt's formats, have a release of Debian.

    options: for apt-get.
    """
    command = ("apt-get", *options, "update", "--print-uris")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _RELEASE.findall(done.stdout)
    return list(dict.fromkeys(uri for uri, suite in found if suite == codename))


def _options(root: Path, arch: str) -> list[str]:
    """What makes apt work below ROOT alone, for machines of that architecture."""
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
        # The user that apt would download as may not enter ROOT.
        "APT::Sandbox::User": "root",
        # Whatever the machine's own settings permit.
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


def codename() -> str:
    """The release of Debian that this machine has; empty if it has none."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def fetch(package: str, suite: str, root: Path, log: Path, arch: str = "amd64") -> Path:
    """The .deb, or of an unpacked SOURCE the .dsc, below ROOT. SourceMissing: it cannot be had."""
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
