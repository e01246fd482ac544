# SPDX-License-Identifier: GPL-2.0-only
"""`make dkms ARGS=--newest`: try Debian's next point releases, and add them to the pins.

A suite's newest kernel of the same base is tried with pins of its own, in build/newest: the series
has to apply to its source, with the same result as the patch that the package has; the modules
have to build for each flavour, and `make test WHAT=modules` has to pass with its kernel.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from lab.core import space
from lab.core.errors import LabError, WorkFailed
from lab.core.git import Repo
from lab.core.paths import BASE_VARIABLE, LAYOUT, PINS_VARIABLE, Layout
from lab.core.steps import say, step
from lab.series import tree
from lab.series.archive import Archive, SourceMissing, is_newer, places
from lab.series.pin import Debian, Pin, read_pin
from lab.series.source import KernelSource, sha256_of
from lab.submit import modules

NEEDED_GIB = 1.5


@dataclass(frozen=True)
class Candidate:
    """A suite's newest kernel, which its pin does not have. layout: of its base."""

    layout: Layout
    suite: str
    pinned: Debian
    source: str

    @property
    def name(self) -> str:
        return f"{read_pin(self.layout).package} {self.source} of {self.suite}"

    @property
    def release(self) -> str:
        """Of its kernels, as Debian names them: 6.12.1+deb13 is of 6.12.1-1."""
        point, _, _ = self.source.partition("-")
        return re.sub(r"^[^+]*", point, self.pinned.release)


def directory_of(layout: Layout) -> Path:
    """The directory in which point releases are tried."""
    return layout.build / "newest"


@contextmanager
def _archive(layout: Layout, suite: str) -> Iterator[Archive]:
    root = directory_of(layout) / "archive"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    try:
        opened = Archive(root, layout.log / "newest.log")
        opened.open(places(suite))
        yield opened
    finally:
        shutil.rmtree(root, ignore_errors=True)


def find(layout: Layout, suite: str, archive: Archive) -> Candidate | None:
    """The newest kernel of a suite, None if the pin has it. SourceMissing: it has none any more."""
    pin = read_pin(layout)
    found = archive.versions(pin.package)
    if not found:
        raise SourceMissing(f"{suite} has no {pin.package}")
    pinned = pin.debian[suite]
    # One that was withdrawn is not followed.
    return Candidate(layout, suite, pinned, found[0]) if is_newer(found[0], pinned.source) else None


def describe(one: Candidate, archive: Archive, directory: Path) -> tuple[Debian, Path]:
    """What a pin says of it, and the tarball of its source, in a directory.

    SourceMissing: the archive lacks one of its packages.
    """
    pin = read_pin(one.layout)
    archive.unpacked(pin.package, one.source, directory / "source")
    tarball = directory / "source" / pin.tarball.lstrip("/")
    flavours = {}
    for flavour in one.pinned.flavours:
        release, headers = f"{one.release}-{flavour}", directory / "headers"
        archive.unpacked(f"linux-headers-{release}", one.source, headers)
        flavours[flavour] = sha256_of(headers / f"usr/src/linux-headers-{release}/.config")
        shutil.rmtree(headers)
    refused = one.pinned.refused
    return Debian(one.source, sha256_of(tarball), one.release, flavours, refused), tarball


def check_patch(one: Candidate, source: KernelSource, patch: bytes, directory: Path) -> None:
    """Apply the series and the package's patch to a source.

    LabError: one of them does not apply, the results differ, or the source has a known hole.
    """
    place = directory / "linux"
    tip = tree.lay_out(one.layout, source, place)
    repo = Repo(place)
    modules.check_guards(repo)
    repo.run("checkout", "-q", "--detach", tree.BASE_TAG)
    command = ("patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-s")
    done = subprocess.run(command, cwd=place, input=patch, capture_output=True, check=False)
    if done.returncode:
        raise LabError(f"{one.name}: the patch of {one.pinned.source} does not apply")
    repo.run("add", "-A", "-f")
    differ = repo.lines("diff", "--cached", "--name-only", tip, "--", *modules.DIRECTORIES)
    if differ:
        raise LabError(
            f"{one.name}: the series needs another patch than {one.pinned.source}: {differ[0]}"
        )
    shutil.rmtree(place)


def _value(line: str, key: str, value: str) -> str:
    return re.sub(rf'^{re.escape(key)} = ".*"$', f'{key} = "{value}"', line)


def changed(text: str, suite: str, new: Debian, pin: Pin) -> str:
    """The text of a pin with another kernel for a suite.

    The lab's own source of the base moves on as well, if that was the suite's.
    """
    lines, section, old = [], "", pin.debian[suite]
    own = {"source": new.source, "sha256": new.sha256, "release": new.release}
    values = {f"debian.{suite}": own, f"debian.{suite}.flavours": new.flavours}
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        for key, value in values.get(section, {}).items():
            line = _value(line, key, value)
        lines.append(line)
        if (
            section == "proved"
            and line.startswith(f'"{old.source}" = ')
            and old.source == pin.newest
        ):
            lines.append(f'"{new.source}" = "{new.sha256}"')
    return "".join(f"{line}\n" for line in lines)


def _test(one: Candidate, pins: Path) -> None:
    """WorkFailed: the tests of modules do not pass with these pins."""
    # What is not of one suite is of the first one.
    first, *others = read_pin(one.layout).debian
    chosen = one.suite if one.suite != first else f"not ({' or '.join(others)})" if others else ""
    words = (f"BASE={one.layout.version}", f"ARGS=-k '{chosen}'" if chosen else "ARGS=")
    env = os.environ | {PINS_VARIABLE: str(pins)}
    env.pop(BASE_VARIABLE, None)
    command = ("make", "test", "WHAT=modules", *words)
    if subprocess.run(command, cwd=one.layout.root, env=env, check=False).returncode:
        raise WorkFailed(f"{one.name} does not pass: {' '.join(command)}")


def _try(one: Candidate, archive: Archive, patch: bytes) -> None:
    """Leave the pin of a candidate that passes in build/newest/passed."""
    top = directory_of(one.layout)
    directory, pins, passed = top / one.suite, top / "pins", top / "passed"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    space.need(directory, NEEDED_GIB, "a kernel source, and the series on it")
    pin = read_pin(one.layout)
    with step(f"Fetching {one.name}", "1 min"):
        new, tarball = describe(one, archive, directory)
    source = KernelSource(pin.package, new.source, tarball, new.sha256, True)
    check_patch(one, source, patch, directory)
    say(f"dkms: the series applies to {one.name}, with the same result")
    shutil.rmtree(directory)
    shutil.rmtree(pins, ignore_errors=True)
    shutil.copytree(one.layout.pins, pins)
    begun = passed / one.layout.pin.name
    text = (begun if begun.exists() else one.layout.pin).read_text()
    file = pins / one.layout.pin.name
    file.write_text(changed(text, one.suite, new, pin))
    _test(one, pins)
    passed.mkdir(exist_ok=True)
    shutil.copy2(file, passed)


def run(layout: Layout) -> None:
    """Try the newest kernel of each suite. WorkFailed: one of them does not pass."""
    top = directory_of(layout)
    shutil.rmtree(top, ignore_errors=True)
    found, failed = 0, []
    patches = {part.version: part.patch for part in modules.contents(layout).parts}
    for version in layout.versions:
        own = layout.of(version)
        for suite in read_pin(own).debian:
            try:
                with _archive(layout, suite) as archive:
                    one = find(own, suite, archive)
                    if one is None:
                        say(f"dkms: {suite} has nothing newer than the pin of {version}")
                        continue
                    found += 1
                    _try(one, archive, patches[version])
                    say(f"dkms: {one.name} passes")
            except SourceMissing as error:
                say(f"dkms: {suite} of {version} was not tested: {error}")
            except LabError as error:
                failed.append(str(error))
                say(f"dkms: {error}")
    if passed := sorted((top / "passed").glob("*.pin")):
        (top / "of").write_text(
            "".join(f"{file.stem} {sha256_of(layout.of(file.stem).pin)}\n" for file in passed)
        )
        say("dkms: run make dkms ARGS=--add to add the kernels that have passed to the pins")
    if failed:
        raise WorkFailed(f"dkms: {len(failed)} of {found} newer kernels do not pass")


def add(layout: Layout) -> None:
    """Put the pins that have passed into the repository. LabError: there are none."""
    top = directory_of(layout)
    if not (top / "of").exists():
        raise LabError("no kernel has passed yet: run make dkms ARGS=--newest")
    rows = [line.split() for line in (top / "of").read_text().splitlines()]
    for version, sha256 in rows:
        pin = layout.of(version).pin
        if sha256_of(pin) != sha256:
            raise LabError(
                f"{pin} has changed since kernels were tested: run make dkms ARGS=--newest"
            )
    for version, _ in rows:
        shutil.copy2(top / "passed" / f"{version}.pin", layout.of(version).pin)
        say(f"dkms: {layout.of(version).pin} has the newer kernels; commit it")
    shutil.rmtree(top)


@click.command()
@click.option("--newest", is_flag=True, help="Test the package with the newest kernels of Debian.")
@click.option(
    "--add", "adds", is_flag=True, help="Add the kernels that have passed --newest to base/."
)
def command(newest: bool, adds: bool) -> None:
    """Make the package kvm-eager-split-dkms: KVM with the series, as modules for Debian's kernels.

    The package is written to build/dkms, and is for the kernels of all bases. No kernel is built:
    dkms builds the modules on the hosts that install the package.

    --newest keeps no package. It tests each suite that has a newer point release than its pin in
    base/: the series has to apply to the source, and `make test WHAT=modules` has to pass with the
    kernels. That takes half an hour for each suite. --add then adds the kernels that have passed to
    the pins.
    """
    if newest and adds:
        raise click.UsageError("use --newest first, and then --add")
    if newest or adds:
        (run if newest else add)(LAYOUT)
        return
    say(f"dkms: {modules.make(LAYOUT, modules.contents(LAYOUT))}")
