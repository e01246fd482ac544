# SPDX-License-Identifier: GPL-2.0-only
"""A package of another suite of Debian's archive, fetched without touching this machine's apt.

Apt is given lists, cache and sources of its own. It verifies signatures as it always does, with
Debian's keys, which those of Debian 12 since its point release 12.11 include for Debian 13.
"""

import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.core.errors import LabError, WorkFailed
from lab.core.steps import run_logged

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
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


def _options(root: Path) -> list[str]:
    """What makes apt work below ROOT alone."""
    settings = {
        "Dir::State::lists": root / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": root / "cache",
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        # The user that apt would download as may not enter ROOT.
        "APT::Sandbox::User": "root",
        # Whatever the machine's own settings permit.
        "Acquire::AllowInsecureRepositories": "false",
        "APT::Get::AllowUnauthenticated": "false",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _download(package: str, suite: str, mirror: str, root: Path, log: Path) -> Path:
    for directory in ("lists/partial", "cache/archives/partial"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    words = f"signed-by={KEYRING} target=Packages"
    (root / "sources.list").write_text(f"deb [{words}] {mirror} {suite} main\n")
    apt = ("apt-get", "-q", *_options(root))
    run_logged("apt-get update", (*apt, "update", "--error-on=any"), log, root)
    run_logged("apt-get download", (*apt, "download", package), log, root)
    (deb,) = root.glob("*.deb")
    return deb


def fetch(package: str, suite: str, root: Path, log: Path) -> Path:
    """The .deb of a package, below ROOT, which exists. SourceMissing: it cannot be had."""
    if not KEYRING.is_file():
        raise SourceMissing(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    own = mirrors(platform.freedesktop_os_release().get("VERSION_CODENAME", ""))
    for mirror in own:
        try:
            return _download(package, suite, mirror, root, log)
        except WorkFailed:
            continue
    where = ", ".join(own) or "no archive of Debian, as apt's sources name none"
    raise SourceMissing(f"{suite} of {where} gives no {package}, or not any longer (see {log})")


def unpack(deb: Path, target: Path) -> str:
    """Unpack a package and return its version."""
    subprocess.run(("dpkg-deb", "-x", deb, target), check=True)
    query = ("dpkg-deb", "-f", deb, "Version")
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
