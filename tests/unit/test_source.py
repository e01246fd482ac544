# SPDX-License-Identifier: GPL-2.0-only
"""Pins, and the source that they give: installed, fetched by an apt that is faked, or given.

lab.build.qemu, which is made of such a source, and what qemu/*.patch has of the series.
"""

import platform
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lab.build import qemu
from lab.core.paths import DEFAULT_BASE, ROOT, Layout
from lab.series import archive, source, tree
from lab.series.archive import SourceMissing
from lab.series.pin import Pin, read_pin
from tests.rows import for_each_row
from tests.unit import files
from tests.unit.calls import lab, refused
from tests.unit.fake_kernel import BASE_FILES, write_tarball
from tests.unit.files import program

Capture = pytest.CaptureFixture[str]
SHA256 = "41cf6794ba4200b839c53531555f0f3998df4cbb01a4d5cb0b94e3ca5e23947d"
NEWER = "7.3.2-1"
DEB822 = """\
Types: deb
# http://snapshot.example.org/archive/debian/20250520T000000Z
URIs: http://mirror.example.org/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.example.org/debian-security
Suites: bookworm-security
Components: main
"""
ONE_LINE = """\
# deb http://snapshot.example.org/archive/debian bookworm main
deb http://mirror.example.org/debian bookworm main
"""


@pytest.fixture
def pin(tmp_path: Path) -> Pin:
    tarball = tmp_path / "tarball"
    tarball.write_bytes(b"source")
    return Pin("linux-source-6.12", str(tarball), {"6.12.1-1": SHA256})


def test_proved_source(pin: Pin) -> None:
    found = source.find(pin, "6.12.1-1")
    assert (found.proved, found.package) == (True, "linux-source-6.12")
    assert not source.find(pin, "6.12.2-1").proved
    assert "older than 6.12.1-1" in refused(source.find, pin, "6.12.0-1")
    Path(pin.tarball).write_bytes(b"changed")
    assert "--reinstall linux-source" in refused(source.find, pin, "6.12.1-1")
    Path(pin.tarball).unlink()
    assert "is missing" in refused(source.find, pin, "6.12.1-1")


@for_each_row(
    "text, said",
    ("package", "base/6.12.pin: "),
    ('package = "a"\ntarball = "b"\n', "`proved`"),
    ('package = "a"\ntarball = "b"\n[proved]\n', "names no version"),
    ('package = "a"\ntarball = "b"\nsweet = "c"\n[proved]\n"1" = "0"\n', "`sweet`"),
    ('package = "a"\ntarball = "b"\n[proved]\n"1" = "0"\n[paths]\na = "b"\n', "older bases"),
)
def test_wrong_pin(tmp_path: Path, text: str, said: str) -> None:
    layout = Layout(tmp_path)
    files.write(layout.pin, text)
    assert said in refused(read_pin, layout)


def test_the_pins_of_this_repository() -> None:
    here = Layout(ROOT)
    assert DEFAULT_BASE in here.versions
    for version in here.versions:
        assert read_pin(here.of(version)).package == f"linux-source-{version}"


def test_versions_are_no_words(tmp_path: Path) -> None:
    layout = Layout(tmp_path, "7.9")
    layout.pin.parent.mkdir()
    for version in ("7.9", "7.10", "6.12"):
        layout.of(version).pin.touch()
    assert layout.versions == ("7.10", "7.9", "6.12")
    assert [layout.of(version).is_newest for version in layout.versions] == [True, False, False]
    assert layout.work == tmp_path / "build/7.9"
    assert refused(read_pin, layout.of("7.11")).endswith("no base '7.11', only: 7.10 7.9 6.12")
    assert layout.of(DEFAULT_BASE).linux == tmp_path / "build/linux"


@pytest.mark.parametrize(("name", "text"), [("a.sources", DEB822), ("a.list", ONE_LINE)])
def test_mirrors_of_the_machine(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    options = ("-o", f"Dir::Etc::sourceparts={tmp_path}", "-o", "Dir::Etc::sourcelist=/dev/null")
    assert archive.mirrors("bookworm", options) == ["http://mirror.example.org/debian"]
    assert archive.mirrors("trixie", options) == []


APT = """#!/bin/sh
case "$*" in
*--print-uris*) echo "'http://m/debian/dists/$CODENAME/InRelease' x 0" ;;
*" update "*) echo "$SAID" && [ -z "$SAID" ] ;;
*) touch linux.deb ;;
esac
"""


@for_each_row(
    "answer, said",
    ("", "linux.deb"),
    ("E: Unable to locate package", r"s of http://m/debian gives no linux, or not any longer"),
    ("The following signatures couldn't be verified", "is signed by none of"),
)
def test_apt_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, said: str) -> None:
    program(tmp_path / "apt-get", APT)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SAID", answer)
    monkeypatch.setenv("CODENAME", platform.freedesktop_os_release()["VERSION_CODENAME"])
    monkeypatch.setattr(archive, "KEYRING", tmp_path)
    given = ("linux", "s", tmp_path, tmp_path / "log/apt", "i386")
    assert "is missing: apt-get install debian-archive" in refused(archive.fetch, *given)
    monkeypatch.setattr(archive, "KEYRING", tmp_path / "apt-get")
    try:
        found = archive.fetch(*given).name
    except SourceMissing as error:
        found = str(error)
    assert re.search(said, found)
    assert f"signed-by={tmp_path}/apt-get target" in (tmp_path / "sources.list").read_text()
    assert " APT::Architecture=i386 " in (tmp_path / "log/apt").read_text()


def tarball_of(tmp_path: Path, sublevel: int, patchlevel: int = 3) -> Path:
    directory = tmp_path / f"{patchlevel}.{sublevel}"
    directory.mkdir()
    head = f"# SPDX\nVERSION = 7\nPATCHLEVEL = {patchlevel}\nSUBLEVEL = {sublevel}\n"
    return write_tarball(directory / "linux.tar.xz", {**BASE_FILES, "Makefile": head})


class Archive:
    """What stands for apt and dpkg-deb: it holds one version of the package, or none."""

    def __init__(self, tarball: Path) -> None:
        self.tarball = tarball
        self.version = "7.3.1-1"
        self.gone = False
        self.fetched = 0

    def fetch(self, package: str, suite: str, root: Path, log: Path) -> Path:
        if self.gone:
            raise SourceMissing(f"{suite} gives no {package}")
        self.fetched += 1
        for name in ("lists", "cache"):
            (root / name).mkdir()
        (root / "x.deb").touch()
        (root / "sources.list").touch()
        return root / "x.deb"

    def unpack(self, deb: Path, target: Path) -> str:
        (target / "usr/src").mkdir(parents=True)
        shutil.copy(self.tarball, target / "usr/src")
        return self.version


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    made = Archive(tarball_of(tmp_path, 1))
    monkeypatch.setattr(archive, "fetch", made.fetch)
    monkeypatch.setattr(archive, "unpack", made.unpack)
    return made


@pytest.fixture
def layout(tmp_path: Path, debian: Archive) -> Layout:
    made = Layout(tmp_path / "repository", "7.3")
    write_pin(made, source._checksum(debian.tarball))
    return made


def write_pin(layout: Layout, sha256: str, version: str = "7.3.1-1") -> None:
    head = 'package = "linux-source-7.3"\nsuite = "backports"\ntarball = "/usr/src/linux.tar.xz"\n'
    files.write(layout.pin, f'{head}[proved]\n"{version}" = "{sha256}"\n')


def test_fetched_once_and_kept(layout: Layout, debian: Archive, capsys: Capture) -> None:
    for _ in range(2):
        found = source.current_source(layout)
        assert (found.version, found.proved) == ("7.3.1-1", True)
    assert debian.fetched == 1
    assert sorted(file.name for file in layout.source.iterdir()) == ["linux.tar.xz", "source.json"]
    # A newer one is said aloud, an older one fetched anew.
    write_pin(layout, source._checksum(debian.tarball), NEWER)
    debian.version = "7.3.3-1"
    assert not source.current_source(layout).proved
    assert f"is 7.3.3-1, not {NEWER}, which 7.3.pin proves" in capsys.readouterr().err
    assert debian.fetched == 2


def test_another_checksum_than_the_pins_is_not_kept(layout: Layout, debian: Archive) -> None:
    write_pin(layout, "00")
    assert "the pin expects 00 for" in refused(source.current_source, layout)
    assert list(layout.work.glob("source*")) == []
    (layout.root / "base/6.12.pin").touch()
    assert "the pin expects" in refused(tree.available, layout.of("6.12"))


def test_gone_from_the_archive(layout: Layout, debian: Archive, capsys: Capture) -> None:
    debian.gone = True
    assert "BASE=7.3 SOURCE=FILE" in refused(source.current_source, layout)
    (layout.root / "base/6.12.pin").touch()
    assert tree.available(layout.of("6.12")) == []
    assert "SKIPPED: all of Linux 7.3: " in capsys.readouterr().err
    debian.gone = False
    assert tree.available(layout.of("6.12")) == ["7.3"]


def test_a_tarball_from_elsewhere_is_kept(layout: Layout, debian: Archive, tmp_path: Path) -> None:
    given = tarball_of(tmp_path, 7)
    for one in (given, None):
        found = source.current_source(layout, one)
        assert (found.version, found.proved, found.package) == ("7.3.7", False, "linux.tar.xz")
    given.unlink()
    assert source.current_source(layout).tarball.is_file()
    found = source.current_source(layout, debian.tarball)
    assert (found.version, found.proved, debian.fetched) == ("7.3.1-1", True, 0)


@for_each_row(
    "make, said",
    (lambda path: tarball_of(path, 7, patchlevel=4), "is Linux 7.4.7, expected Linux 7.3"),
    (lambda path: path / "none", "there is no file"),
    (lambda path: ROOT / "Makefile", "cannot be read as a tarball"),
    (lambda path: write_tarball(path / "a.tar.xz", {"README": "text"}), "is not a kernel source"),
)
def test_a_tarball_that_is_none_of_this_kernel(
    layout: Layout, tmp_path: Path, make: Callable[[Path], Path], said: str
) -> None:
    assert said in refused(source.current_source, layout, make(tmp_path))
    assert not layout.source.exists()


def test_qemu_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = qemu.PIN.newest

    def fetch(package: str, suite: str, root: Path, log: Path) -> Path:
        files.write(root / "qemu-7.2/debian/control", "")
        return files.write(root / "qemu.dsc", f"Source: qemu\nVersion: {version}\nBinary: no\n")

    def run(what: str, words: Sequence[str], log: Path, cwd: Path, env: object) -> None:
        assert words[-1].endswith(".patch")
        files.write(cwd / "build/program", version)

    monkeypatch.setattr(archive, "fetch", fetch)
    monkeypatch.setattr(qemu, "run_logged", run)
    monkeypatch.setattr(qemu, "PROGRAM", tmp_path / "qemu/program")
    assert "the pin expects" in lab("qemu", status=2).err
    version += "+1"
    assert "is newer than" in lab("qemu").err
    assert qemu.PROGRAM.exists() and "Building" not in lab("qemu").err


def test_definitions_of_the_patch_for_qemu_are_those_of_the_series() -> None:
    """All of them, without arm64's names for the same."""
    (patch,) = (ROOT / "qemu").glob("*.patch")
    mails = (ROOT / "series").glob("*-let-user-space-choose-*.patch")
    theirs, ours = (
        re.findall(r"^\+#define KVM_(?:CAP|X86)_(?!ARM_).*", text, re.MULTILINE)
        for text in (patch.read_text(), "".join(mail.read_text() for mail in mails))
    )
    assert ours and sorted(theirs) == sorted(ours)
