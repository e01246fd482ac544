# SPDX-License-Identifier: GPL-2.0-only
"""The package of modules from its installation to the way back, in a root file system of Debian.

lifecycle.sh runs in a chroot, where dkms builds as fast as on this host.
"""

import hashlib
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from lab.core.paths import LAYOUT, Layout
from lab.series.pin import read_pin
from lab.submit import modules, modules_proof
from lab.submit.modules_proof import Installed

SCRIPT = Path(__file__).with_name("lifecycle.sh")
RESULTS = ("moments", "told", "initrd-with-kvm", "initrd-without-kvm")
# What the newer package differs by.
LATER_S = 60


@dataclass(frozen=True)
class Step:
    """What a step has printed, its exit status, which KVM boots would have loaded meanwhile.

    kvm: one after the other. image: the KVM in the initramfs at its end.
    """

    name: str
    said: str
    status: int
    kvm: list[str]
    image: str


@dataclass(frozen=True)
class Lifecycle:
    """old, new: versions of the package. installed: has the old one again."""

    old: str
    new: str
    installed: Installed

    @property
    def steps(self) -> list[Step]:
        told = (self.installed.directory / "told").read_text()
        moments = (self.installed.directory / "moments").read_text().splitlines()
        seen: dict[str, list[str]] = {}
        images: dict[str, str] = {}
        for line in moments:
            step, moment, kvm = line.split("; ", 2)
            if moment == "image":
                images[step] = kvm
            elif seen.setdefault(step, [kvm])[-1] != kvm:
                seen[step].append(kvm)
        found = re.findall(r"^# (.*)\n((?:.*\n)*?)\? (\d+)$", told, re.MULTILINE)
        return [Step(n, said, int(status), seen[n], images[n]) for n, said, status in found]


def root_command(suite: str, release: str, debs: list[Path], directory: Path) -> tuple[str, ...]:
    """mmdebstrap's command line, for DIRECTORY/root.ext2 and the other files beside it."""
    line = shlex.quote(modules_proof.install_line())
    results = " ".join(f"/root/{name}" for name in RESULTS)
    hooks = [
        'mkdir "$1/root/old" "$1/root/new"',
        *(f"copy-in {deb} /root/{deb.parent.name}" for deb in debs),
        f'cp {SCRIPT} "$1/root/"',
        f'chroot "$1" sh -c \'cd /root && exec sh {SCRIPT.name} "$@"\' sh {release} {line}',
        f"copy-out /boot/vmlinuz-{release} {results} {directory}",
    ]
    return modules_proof.debian_command(suite, release, hooks, directory)


def version(directory: Path) -> str:
    """The version of the package in a directory, which is part of its name."""
    (deb,) = directory.glob("*.deb")
    return deb.name.split("_")[1]


def run(suite: str, flavour: str, layout: Layout = LAYOUT) -> Lifecycle:
    """Do all that lifecycle.sh does, unless that was done with the same package.

    Raises what modules_proof.install() raises.
    """
    what = modules_proof.contents(layout)
    release = f"{read_pin(layout).debian[suite].release}-{flavour}"
    directory = modules.directory_of(layout) / "lifecycle" / release
    both = {"old": what, "new": replace(what, date=what.date + LATER_S)}
    files = b"\0".join(file.read_bytes() for file in (SCRIPT, Path(__file__)))
    wanted = f"{modules_proof.fingerprint(what)} {hashlib.sha256(files).hexdigest()}"

    def make() -> None:
        log = layout.log / f"dkms-lifecycle-{release}.log"
        debs = [modules.pack(each, directory / name, log) for name, each in both.items()]
        command = root_command(suite, release, debs, directory)
        name = f"Upgrading the modules in Debian with {release}"
        modules_proof.run(command, name, "10 min", log, directory)

    modules_proof.once(directory, wanted, make)
    old, new = (version(directory / name) for name in both)
    return Lifecycle(old, new, Installed(release, directory))
