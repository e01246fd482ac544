# SPDX-License-Identifier: GPL-2.0-only
"""make dkms ARGS=--newest: a newer kernel of Debian is tried, and added to the pin if it passes."""

import hashlib
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lab.core.errors import LabError, WorkFailed
from lab.core.git import Repo
from lab.core.paths import Layout
from lab.series import archive
from lab.series.archive import SourceMissing
from lab.series.pin import Debian, read_pin
from lab.submit import modules, newest
from tests.rows import for_each_row
from tests.unit import fake_kernel
from tests.unit.calls import failed, refusal, refused
from tests.unit.fake_kernel import FakeKernel, write_tarball
from tests.unit.files import write

from .test_modules import CONFIG, HEADER, MAIL, MMU, SOURCE

PIN = """\
package = "linux-source"
tarball = "/usr/src/linux-source.tar.xz"

[proved]
"6.12.1-1" = "SHA"

[debian.bookworm]
source = "6.12.1-1"
sha256 = "SHA"
release = "6.12.1+deb12"

[debian.bookworm.flavours]
amd64 = "0"
rt-amd64 = "1"

[debian.bookworm.refused]
rt-amd64 = "amd64 = not this"

[debian.trixie]
source = "6.12.1-2"
sha256 = "2"
release = "6.12.1+deb13"
flavours = { amd64 = "3" }
"""
# As in base/: each flavour has a line.
PIN = PIN.replace('flavours = { amd64 = "3" }\n', '\n[debian.trixie.flavours]\namd64 = "3"\n')
FILES = fake_kernel.BASE_FILES | SOURCE | {modules.MMU: MMU}
# A fix beside what the series changes.
MOVED = {"virt/kvm/kvm_main.c": "int kvm;\nint fixed;\n"}


class Debians:
    """What the archive has: for each suite the versions of the source, and the files of one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.versions_of: dict[str, list[str]] = {}
        self.files = FILES
        self.missing = ""
        self.suite = ""

    @contextmanager
    def opened(self, _: Layout, suite: str) -> Iterator["Debians"]:
        self.suite = suite
        yield self

    def versions(self, _: str) -> list[str]:
        return self.versions_of.get(self.suite, [])

    def unpacked(self, package: str, version: str, target: Path) -> None:
        assert version in self.versions("")
        if package == self.missing:
            raise SourceMissing(f"there is no {package}")
        if package.startswith("linux-headers-"):
            write(target / f"usr/src/{package}/.config", f"{CONFIG}# {package}\n")
        else:
            (target / "usr/src").mkdir(parents=True)
            write_tarball(self.root / "new" / "linux-source.tar.xz", self.files).rename(
                target / "usr/src/linux-source.tar.xz"
            )


class Trial:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / "new").mkdir()
        kernel = FakeKernel.make(root, FILES)
        self.layout = kernel.layout
        kernel.put("base/6.12.pin", PIN.replace("SHA", kernel.source.sha256))
        kernel.put("series/0001-kvm-split.patch", MAIL)
        kernel.put("Documentation/kvm.rst", "struct split;\n")
        repo = Repo(self.layout.root)
        repo.run("init", "-q")
        repo.run("-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "--allow-empty", "-mx")
        self.source = replace(kernel.source, version="6.12.1-1")
        monkeypatch.setattr(modules, "current_source", lambda _: self.source)
        self.debians = Debians(root)
        monkeypatch.setattr(newest, "_archive", self.debians.opened)
        self.tested: list[str] = []
        self.passes = True
        monkeypatch.setattr(newest, "_test", self.test)

    def test(self, one: newest.Candidate, pins: Path) -> None:
        self.tested.append(f"{one.suite} {(pins / '6.12.pin').read_text().count(one.source)}")
        if not self.passes:
            raise WorkFailed("does not pass")

    @property
    def pin(self) -> str:
        return (self.layout.root / "base/6.12.pin").read_text()


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    return Trial(tmp_path, monkeypatch)


@for_each_row(
    "suite, versions, proved",
    ("trixie", ["6.12.2-1", "6.12.1-2"], 1),
    # Of this one is the lab's own source.
    ("bookworm", ["6.12.2-1~deb12u1"], 2),
)
def test_a_newer_kernel_that_passes(
    trial: Trial, suite: str, versions: list[str], proved: int
) -> None:
    before = trial.pin
    trial.debians.versions_of = {"bookworm": ["6.12.1-1"], "trixie": ["6.12.1-2"]} | {
        suite: versions
    }
    trial.debians.files = FILES | MOVED
    newest.run(trial.layout)
    assert trial.tested == [f"{suite} {proved}"]
    assert trial.pin == before
    newest.add(trial.layout)
    pin, old = read_pin(trial.layout), Debian("", "", "", {})
    debian = pin.debian[suite]
    assert debian.source == versions[0]
    assert debian.release == {"trixie": "6.12.2+deb13", "bookworm": "6.12.2+deb12"}[suite]
    names = {one: f"linux-headers-{debian.release}-{one}" for one in debian.flavours}
    configs = {one: f"{CONFIG}# {name}\n".encode() for one, name in names.items()}
    assert debian.flavours == {k: hashlib.sha256(v).hexdigest() for k, v in configs.items()}
    assert debian.sha256 not in ("", "2", old.sha256)
    assert (len(pin.proved), list(pin.proved.values())[-1] == debian.sha256) == (
        proved,
        suite == "bookworm",
    )
    # Nothing else has changed.
    same = [line for line in before.splitlines() if line in trial.pin.splitlines()]
    values = 3 + len(debian.flavours)
    assert len(same) == len(before.splitlines()) - values
    assert "there" not in trial.pin and 'rt-amd64 = "amd64 = not this"' in trial.pin
    assert "no kernel has passed" in refused(newest.add, trial.layout)


def test_two_suites_with_newer_kernels(trial: Trial) -> None:
    trial.debians.versions_of = {"bookworm": ["6.12.2-1~deb12u1"], "trixie": ["6.12.2-1"]}
    newest.run(trial.layout)
    assert [one.split()[0] for one in trial.tested] == ["bookworm", "trixie"]
    newest.add(trial.layout)
    sources = {name: one.source for name, one in read_pin(trial.layout).debian.items()}
    assert sources == {"bookworm": "6.12.2-1~deb12u1", "trixie": "6.12.2-1"}


def test_nothing_newer(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    """An older one neither, and a suite that has none is named."""
    trial.debians.versions_of = {"bookworm": ["6.12.0-9"]}
    newest.run(trial.layout)
    said = capsys.readouterr().err
    assert "bookworm has nothing newer than the pin of 6.12" in said
    assert "trixie of 6.12 was not tested: trixie has no linux-source" in said
    assert (trial.tested, "ARGS=--add" in said) == ([], False)
    assert "no kernel has passed" in refused(newest.add, trial.layout)


def _change(files: dict[str, str]) -> Callable[[Trial], None]:
    def change(trial: Trial) -> None:
        trial.debians.files = FILES | files

    return change


def _fail(trial: Trial) -> None:
    trial.passes = False


@for_each_row(
    "prepare, said, tested",
    (_change({HEADER: "struct kvm_other;\n"}), "does not apply", False),
    (_change({modules.MMU: "int none;\n"}), "no guard against CVE-", False),
    (_fail, "does not pass", True),
)
def test_what_does_not_pass(
    trial: Trial,
    prepare: Callable[[Trial], None],
    said: str,
    tested: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trial.debians.versions_of = {"trixie": ["6.12.2-1"], "bookworm": ["6.12.1-1"]}
    prepare(trial)
    assert failed(newest.run, trial.layout) == "dkms: 1 of 1 newer kernels do not pass"
    assert said in capsys.readouterr().err
    assert bool(trial.tested) == tested
    assert "no kernel has passed" in refused(newest.add, trial.layout)


def test_another_patch_is_needed(trial: Trial, tmp_path: Path) -> None:
    """The package has one for each base: all of its sources have to give the same by it."""
    pin = read_pin(trial.layout)
    one = newest.Candidate(trial.layout, "trixie", pin.debian["trixie"], "6.12.2-1")
    (part,) = modules.contents(trial.layout).parts
    newest.check_patch(one, trial.source, part.patch, tmp_path)
    other = part.patch.replace(b"+struct split;", b"+struct other;")
    said = refused(newest.check_patch, one, trial.source, other, tmp_path)
    assert said.endswith(f"the series needs another patch than 6.12.1-2: {HEADER}")


def test_packages_that_are_missing(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    """As when Debian names kernels in another way."""
    trial.debians.versions_of = {"trixie": ["6.12.2-1"], "bookworm": ["6.12.1-1"]}
    trial.debians.missing = "linux-headers-6.12.2+deb13-amd64"
    newest.run(trial.layout)
    assert "there is no linux-headers-6.12.2+deb13-amd64" in capsys.readouterr().err
    assert not trial.tested


def test_a_pin_that_has_changed(trial: Trial) -> None:
    trial.debians.versions_of = {"trixie": ["6.12.2-1"], "bookworm": ["6.12.1-1"]}
    newest.run(trial.layout)
    write(trial.layout.root / "base/6.12.pin", f"# changed\n{trial.pin}")
    assert "has changed since kernels were tested" in refused(newest.add, trial.layout)
    assert trial.pin.startswith("# changed\n")


def test_which_tests_are_run(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    calls: list[tuple[str, ...]] = []

    class Done:
        returncode = 1

    def run(command: tuple[str, ...], env: dict[str, str], **_: object) -> type[Done]:
        assert env["LAB_PINS"] == "/pins"
        calls.append(command)
        return Done

    monkeypatch.setattr(subprocess, "run", run)
    for suite in ("bookworm", "trixie"):
        debian = read_pin(trial.layout).debian[suite]
        one = newest.Candidate(trial.layout, suite, debian, "6.12.2-1")
        assert "6.12.2-1 of " in failed(newest._test, one, Path("/pins"))
    begin = ("make", "test", "WHAT=modules", "BASE=6.12")
    assert calls == [(*begin, "ARGS=-k 'not (trixie)'"), (*begin, "ARGS=-k 'trixie'")]


def test_one_after_the_other() -> None:
    assert "use --newest first" in refusal("dkms", "--newest", "--add")


def test_versions_are_sorted_as_dpkg_does() -> None:
    assert archive.is_newer("6.12.117-1", "6.12.117-1~deb12u1")
    assert not archive.is_newer("6.12.9-1", "6.12.117-1")


def test_where_a_suite_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"bookworm": ["http://a/debian"], "bookworm-security": ["http://a/security"]}
    monkeypatch.setattr(archive, "codename", lambda: "bookworm")
    monkeypatch.setattr(archive, "mirrors", lambda name: known.get(name, []))
    security = ("http://a/security", "trixie-security")
    assert archive.places("trixie") == [("http://a/debian", "trixie"), security]
    backports = [("http://a/debian", "trixie-backports")]
    assert archive.places("trixie-backports") == backports
    known.clear()
    with pytest.raises(LabError, match="name no archive of Debian"):
        archive.places("trixie")
