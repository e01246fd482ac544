# SPDX-License-Identifier: GPL-2.0-only
"""make dkms, and its package on other hosts: sources are laid out, or refused with one line."""

import fcntl
import gzip
import hashlib
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.core.git import Repo
from lab.core.paths import ROOT, Layout
from lab.series.archive import is_newer
from lab.series.pin import Debian, Pin, read_pin
from lab.submit import lifecycle, modules, modules_proof
from lab.submit.modules import Part
from tests.rows import for_each_row
from tests.unit import fake_kernel
from tests.unit.calls import failed, refused
from tests.unit.fake_kernel import FakeKernel, write_tarball
from tests.unit.files import called, program, write

POINT = "6.12.1+deb12"
RELEASE = f"{POINT}-cloud-amd64"
REALTIME = f"{POINT}-rt-amd64"
VERSION = "6.12.1-1"
OURS = "7.3.1+6.12.1+eagersplit19700101.0000"
CONFIG = "CONFIG_KVM=m\nCONFIG_KVM_INTEL=m\nCONFIG_KVM_AMD=m\n"
TARBALL = "linux-source.tar.xz"
HEADER = "include/linux/kvm_host.h"
GUARD = "spte_to_child_sp(*sptep)->"
MMU = f"""\
static struct kvm_mmu_page *kvm_mmu_get_child_sp(struct kvm_vcpu *vcpu)
{{
\tif ({GUARD}gfn == gfn &&
\t    {GUARD}role.word == role.word)
\t\treturn ERR_PTR(-EEXIST);
}}
"""
OTHER = Debian("7.3.1-1", "1", "7.3.1+deb13", {"amd64": "1"})
SOURCE = {
    "arch/x86/kvm/Makefile": "obj-m += kvm.o\n",
    modules.MMU: MMU,
    "arch/x86/include/asm/kvm_host.h": "struct kvm_arch;\n",
    "virt/kvm/kvm_main.c": "int kvm;\n",
    HEADER: "struct kvm;\n",
}
PATCH = f"--- a/{HEADER}\n+++ b/{HEADER}\n@@ -1 +1,2 @@\n struct kvm;\n+struct split;\n"


class Place:
    """What dkms gives to `prepare`: the package's sources, headers and source of a kernel."""

    def __init__(self, root: Path) -> None:
        self.root, self.build, self.headers = root, root / "build", root / "headers"
        self.tarball, self.common = root / TARBALL, root / "common"
        write(self.headers / "Makefile", f"include {self.common}/Makefile\n")
        write(self.headers / ".config", CONFIG)
        for name in (HEADER, "arch/x86/include/asm/kvm_host.h"):
            write(self.common / name, SOURCE[name])
        program(root / "bin/dpkg-query", f"#!/bin/sh\necho {VERSION}\n")
        self.build.mkdir()
        self.pack(SOURCE)

    def change(self, name: str, text: str | None) -> None:
        if text is None:
            (self.root / name).rename(self.root / "gone")
        else:
            program(self.root / name, text)

    def pack(self, files: dict[str, str]) -> None:
        """Make the package for a source of these files."""
        write_tarball(self.tarball, files)
        sha256 = hashlib.sha256(self.tarball.read_bytes()).hexdigest()
        config = hashlib.sha256(CONFIG.encode()).hexdigest()
        flavours = {"cloud-amd64": config, "rt-amd64": config}
        debian = {
            "bookworm": Debian(VERSION, sha256, POINT, flavours, {"rt-amd64": "not tested"}),
            "trixie": Debian("6.12.1-2", "0", "6.12.1+deb13", {"amd64": "0"}),
        }
        pin = Pin("linux-source-6.12", str(self.tarball), {VERSION: sha256}, debian=debian)
        other = Pin("linux-source-7.3", "/no", {"7.3.1-1": "1"}, debian={"sid": OTHER})
        parts = (Part("6.12", pin, PATCH.encode()), Part("7.3", other, b"of another kernel\n"))
        self.what = modules.Contents(parts, 0, "A <a@example.org>")
        modules.lay_out(self.what, self.root / "package")
        (sources,) = (self.root / "package/usr/src").iterdir()
        for file in sources.iterdir():
            file.rename(self.build / file.name)

    def prepare(self) -> subprocess.CompletedProcess[str]:
        return called(self.root, "./prepare", RELEASE, self.headers, cwd=self.build)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("installed", [f"echo {VERSION}\n", "exit 1\n"])
def test_what_is_built(place: Place, installed: str) -> None:
    """Of a source that is that of the kernel, in a package or not."""
    place.change("bin/dpkg-query", installed)
    done = place.prepare()
    assert (done.returncode, done.stderr) == (0, "")
    assert (place.build / HEADER).read_text() == "struct kvm;\nstruct split;\n"
    kvm = place.build / "arch/x86/kvm"
    assert "include $(src)/Makefile" in (kvm / "Kbuild").read_text()
    version = f'MODULE_VERSION("{OURS}");'
    for module in ("kvm", "intel", "amd"):
        assert version in (kvm / f"version_{module}.c").read_text()


def test_modules_of_two_versions_do_not_fit(place: Place) -> None:
    """What kvm-amd asks kvm for is named by the version. A kernel's longest name has 55 letters."""
    kbuild = (place.build / "Kbuild").read_text()
    assert "-Dkvm_x86_vendor_init=kvm_init_7_3_1_6_12_1_eagersplit19700101_0000\n" in kbuild
    parts = []
    for version in Layout(ROOT).versions:
        pin = read_pin(Layout(ROOT, version))
        parts.append(Part(version, pin, b""))
        # Each base names the kernels of its newest point release, in all flavours. A suite may be
        # ahead of that of the lab's own source.
        point = pin.newest.partition("-")[0]
        for debian in pin.debian.values():
            own = debian.source.partition("-")[0]
            assert debian.release.startswith(f"{own}+deb")
            assert not is_newer(point, own)
            assert set(debian.flavours) == {"amd64", "cloud-amd64", "rt-amd64"}
            assert pin.proved.get(debian.source, debian.sha256) == debian.sha256
        assert pin.newest in {debian.source for debian in pin.debian.values()}
    filled = modules.Contents(tuple(reversed(parts)), 0, "").filled("kvm_init_@SYMBOL@")
    assert filled.isidentifier() and len(filled) <= 55


def test_what_the_package_needs_and_waits_for(place: Place) -> None:
    """What `prepare` and dkms call; kernels, headers and sources that come later."""
    control = (place.root / "package/DEBIAN/control").read_text()
    (depends,) = re.findall("^Depends: (.*)$", control, re.MULTILINE)
    source = f"linux-source-6.12 (>= {VERSION}) | linux-source-7.3 (>= 7.3.1-1)"
    assert depends.split(", ") == ["dkms", source, "openssl", "patch", "xz-utils"]
    triggers = (place.root / "package/DEBIAN/triggers").read_text().split("\n")
    directories = ("/lib/modules", "/usr/lib/modules", "/usr/src")
    assert triggers == [*(f"interest-noawait {each}" for each in directories), ""]
    # dkms's hook, which can fail the installation of a kernel, takes no module with this empty.
    config = (modules.PARTS / "dkms.conf").read_text()
    assert 'AUTOINSTALL=""\n' in config
    assert "BUILD_EXCLUSIVE" not in config


def test_manual_pages(place: Place) -> None:
    """Made of what --help says, so that nothing is said twice."""
    manual = place.root / "package/usr/share/man/man8"
    assert {file.name for file in manual.iterdir()} == {
        "kvm-eager-split.8.gz",
        "split-bench.sh.8.gz",
    }
    pages = {file.name: gzip.decompress(file.read_bytes()).decode() for file in manual.iterdir()}
    tool = pages["kvm-eager-split.8.gz"]
    assert f'"kvm-eager-split {OURS}"' in tool
    assert "kvm-eager-split \\- load and look after KVM" in tool
    for heading in (
        "SH NAME",
        "SH SYNOPSIS",
        "SH DESCRIPTION",
        'SS "Commands:"',
        'SS "Exit status:"',
    ):
        assert f"\n.{heading}\n" in tool
    for item in ("doctor [\\-\\-json]", "reload", "metrics", *map(str, range(7))):
        assert re.search(rf"^(\.TP\n)?{re.escape(item)}( |$)", tool, re.M), item
    bench = pages["split-bench.sh.8.gz"]
    assert ".TP\n\\fB\\-\\-resume\\fR FILE\n" in bench
    # The same input gives the same bytes.
    modules.manual_page.cache_clear()
    modules.lay_out(place.what, place.root / "again")
    for file in manual.iterdir():
        again = place.root / "again/usr/share/man/man8" / file.name
        assert again.read_bytes() == file.read_bytes()


def test_a_command_without_help_has_no_page(place: Place) -> None:
    script = program(place.root / "x", "#!/bin/sh\nexit 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(modules.COMMANDS, script, "nothing")
        said = failed(modules.manual_page, script, "1", 0)
    assert said.startswith(f"help2man made no page of {script}: ")


def test_a_package_that_is_too_large(place: Place) -> None:
    (place.root / "base").mkdir()
    noise = random.Random(1).randbytes(modules.MOST_BYTES)
    for patch in (b"", noise):
        made = replace(place.what, parts=(replace(place.what.parts[0], patch=patch),))
        layout = Layout(place.root, "6.12")
        if patch:
            assert f"bytes, more than {200 * 1024}" in failed(modules.make, layout, made)
        else:
            assert modules.make(layout, made).stat().st_size <= 200 * 1024


# A file that is another one, below Place.root or in the kernel's source, and what it has.
WHOSE = f", whose source is {VERSION}"
NO_ROLE = MMU.replace(f"{GUARD}role.word ==", "")
TWO_HOLES = f"has known vulnerabilities ({modules.MMU} has no guard against CVE-2026-46113 and CVE-"
REFUSALS = {
    "kernel": (
        "build/proved",
        "kernel 6.12.0 0\n",
        f"{RELEASE} is not a kernel that the package is",
    ),
    "refused": (
        "build/proved",
        f"kernel {RELEASE} 0 1\nrefused {RELEASE} not tested\n",
        f"{RELEASE} is refused (not tested)",
    ),
    "config": ("headers/.config", CONFIG + "X=y\n", f"the configuration of {RELEASE} in "),
    "built in": ("headers/.config", "CONFIG_KVM=y\n", f"built into {RELEASE} (CONFIG_KVM=y)"),
    "no headers": ("headers/.config", None, "there are no headers in"),
    "no source": (TARBALL, None, "apt install linux-source-6.12"),
    "built again": ("bin/dpkg-query", "echo 6.12.1-2\n", f"{RELEASE} 6.12.1-2 is made of another"),
    "other source": (TARBALL, "x", f"({VERSION}) is not the source {VERSION} of the kernel"),
    "little room": (
        "bin/df",
        "printf '%s\\n' h 'x 1 1 524287 1% /'",
        "512 MiB in {build}, and 511 ",
    ),
    "no room": ("bin/tar", "exit 2\n", f"{TARBALL} cannot be unpacked, is the disk full?"),
    "header": (f"common/{HEADER}", "x\n", f"its source (Files {{common}}/{HEADER} and"),
    "no header": ("common/arch", None, "its source (diff: {common}/arch/x86/include: No such file"),
    "gfn": (
        modules.MMU,
        MMU.replace(f"{GUARD}gfn == ", ""),
        f"{VERSION} has known vulnerabilities",
    ),
    "role": (modules.MMU, NO_ROLE, TWO_HOLES),
    "patch": (
        "build/kvm-6.12.patch",
        PATCH.replace("struct kvm", "struct a"),
        "series does not apply",
    ),
}


def test_the_source_that_is_picked(place: Place) -> None:
    """By the release of the kernel, of several sources and a patch for each base."""
    for release, config in (("6.12.1+deb13-amd64", "6.12.1-2"), ("7.3.1+deb13-amd64", "7.3.1-1")):
        proved = (place.build / "proved").read_text()
        sha256 = hashlib.sha256(CONFIG.encode()).hexdigest()
        own = re.sub(rf"^(kernel {re.escape(release)}) \S+", rf"\1 {sha256}", proved, flags=re.M)
        write(place.build / "proved", own)
        program(place.root / "bin/dpkg-query", f"#!/bin/sh\necho {config}\n")
        done = called(place.root, "./prepare", release, place.headers, cwd=place.build)
        assert done.returncode == 1
        kept = {"6.12.1-2": f"{place.tarball} (6.12.1-2) is not the source 6.12.1-2 of the kernel"}
        assert kept.get(config, "/no is missing: apt install linux-source-7.3\n") in done.stderr
    # What would be laid out of 7.3's, if its source were there.
    sha256 = hashlib.sha256(place.tarball.read_bytes()).hexdigest()
    write(place.build / "proved", own.replace("/no 1 ", f"{place.tarball} {sha256} "))
    done = called(place.root, "./prepare", release, place.headers, cwd=place.build)
    assert (done.returncode, "the series does not apply" in done.stderr) == (1, True)


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused(place: Place, name: str) -> None:
    file, text, said = REFUSALS[name]
    if file in SOURCE:
        place.pack(SOURCE | {file: str(text)})
    else:
        place.change(file, text)
    done = place.prepare()
    assert done.returncode == 1
    *more, line = done.stderr.splitlines()
    assert line.startswith("kvm-eager-split: ") and "in use" not in line
    assert not [each for each in more if "kvm-eager-split" in each]
    assert said.format(common=place.common, build=place.build) in line
    assert not (place.build / "arch/x86/kvm/Kbuild").exists()


NEWER = f"case $4 in *image*) echo {VERSION} ;; *) echo 6.12.2 ;; esac\n"


def test_a_source_that_is_newer_than_the_kernel(place: Place) -> None:
    """As after an upgrade of linux-source. One that fits is kept, or may lie beside it."""
    good, kept = place.tarball.read_bytes(), place.root / "kvm-eager-split"
    place.change("bin/dpkg-query", NEWER)
    place.tarball.write_bytes(b"newer")
    done = place.prepare()
    assert (done.returncode, kept.exists()) == (1, False)
    assert f"linux-source-6.12 6.12.2 is newer than the kernel{WHOSE}: put the " in done.stderr
    beside = place.root / "linux-source-6.12.1.tar.xz"
    beside.write_bytes(good)
    assert place.prepare().returncode == 0
    # From then on it is there by a second name.
    beside.unlink()
    (only,) = kept.iterdir()
    assert (only.name, only.read_bytes()) == (f"{hashlib.sha256(good).hexdigest()}.tar.xz", good)
    for file in place.build.glob("arch/x86/kvm/*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert place.prepare().returncode == 0
    assert (place.build / HEADER).read_text() == "struct kvm;\nstruct split;\n"
    # What only has its name is not taken.
    only.write_bytes(b"forged")
    assert "is newer than the kernel" in place.prepare().stderr


def test_modules_that_would_not_load(place: Place) -> None:
    """A symbol that the kernel's own kvm exports, and the one that was built no longer."""
    kvm = place.build / "arch/x86/kvm"
    kernels = ("arch/x86/kvm/kvm", "split"), ("arch/x86/kvm/kvm", "zap"), ("vmlinux", "kmalloc")
    lines = "".join(f"0x0\t{name}\t{module}\tX\t\n" for module, name in kernels)
    write(place.headers / "Module.symvers", lines)
    needed = ("split", "zap", "kmalloc", "kvm_init_1")
    program(place.root / "bin/nm", "".join(f"echo '     U {name}'\n" for name in needed))
    own = write(kvm / "Module.symvers", "0x0\tsplit\tkvm\tX\t\n0x0\tkvm_init_1\tkvm\tX\t\n")

    def said() -> tuple[int, str]:
        done = called(place.root, "./symbols", place.headers, cwd=place.build)
        return done.returncode, done.stderr

    for module in ("kvm-intel", "kvm-amd"):
        assert said() == (1, f"kvm-eager-split: there is no arch/x86/kvm/{module}.ko\n")
        write(kvm / f"{module}.ko", "")
    assert said() == (1, "kvm-eager-split: this kvm does not export zap\n")
    own.write_text(own.read_text() + "0x0\tzap\tkvm\tX\t\n")
    assert said() == (0, "")
    program(place.root / "bin/nm", "exit 1\n")
    assert said() == (1, "kvm-eager-split: nm cannot read the modules\n")
    assert 'modules && ./symbols $kernel_source_dir"\n' in (place.build / "dkms.conf").read_text()


MAIL = f"""\
Subject: KVM: split

Signed-off-by: A <a@example.org>
---
Adds: Documentation/kvm.rst

{fake_kernel.diff_of(HEADER)}\
@@ -1 +1,2 @@
 struct kvm;
+struct split;
"""
Make = Callable[..., modules.Contents]
PIN = f"""{fake_kernel.PIN}
[debian.bookworm]
source = "1.0"
sha256 = "SHA"
release = "{POINT}"
flavours = {{ cloud-amd64 = "0" }}
"""


@pytest.fixture
def contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """modules.contents() of a base with this pin and this MMU, with one mail on it."""

    def make(pin: str = PIN, mmu: str = MMU, whole: bool = True, **source: Any) -> modules.Contents:
        kernel = FakeKernel.make(tmp_path, fake_kernel.BASE_FILES | SOURCE | {modules.MMU: mmu})
        kernel.put("base/6.12.pin", pin.replace("SHA", kernel.source.sha256))
        kernel.put("series/0001-kvm-split.patch", MAIL)
        kernel.put("Documentation/kvm.rst", "struct split;\n")
        if whole:
            kernel.make_tree()
            kernel.write(HEADER, "struct kvm;\nstruct unsaved;\n", commit="work")
        root = Repo(kernel.layout.root)
        root.run("init", "-q")
        root.run("-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "--allow-empty", "-mx")
        monkeypatch.setattr(modules, "current_source", lambda _: replace(kernel.source, **source))
        return modules.contents(kernel.layout)

    return make


@pytest.mark.parametrize("whole", [True, False])
def test_the_difference_is_that_of_kvm(contents: Make, tmp_path: Path, whole: bool) -> None:
    """No tree is made for it, and what is there is used."""
    (part,) = contents(whole=whole).parts
    patch = part.patch.decode()
    assert patch.startswith(fake_kernel.diff_of(HEADER).partition("\n")[0])
    assert patch.endswith(f" struct kvm;\n+struct {'unsaved' if whole else 'split'};\n")
    trees = [each.parent.name for each in tmp_path.glob("repository/build/**/linux/Kbuild")]
    assert trees == (["linux"] if whole else [])


def test_what_is_installed_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page for operators says is part of what is proved."""
    fingerprint = modules_proof.fingerprint(place.what)
    assert modules_proof.fingerprint(replace(place.what, date=1)) == fingerprint
    assert modules_proof.fingerprint(replace(place.what, parts=())) != fingerprint
    page = modules_proof.PAGE.read_text()
    assert page.count("apt-get install -y ") == 1
    other = write(place.root / "page", page.replace("apt-get install -y ", "apt-get install "))
    monkeypatch.setattr(modules_proof, "PAGE", other)
    assert modules_proof.fingerprint(place.what) != fingerprint


@pytest.mark.parametrize("there", [True, False])
def test_compilers_use_ccache_where_it_can_write(tmp_path: Path, there: bool) -> None:
    place = tmp_path / "ccache"
    if there:
        place.mkdir()
    program(tmp_path / "bin/apt-get", 'echo "$@"\n')
    said = called(tmp_path, "sh", "-ec", f"{modules_proof.with_ccache(str(place))}; env").stdout
    assert said.startswith("install -y --no-install-recommends ccache\n")
    assert ("\nDEBIAN_KERNEL_USE_CCACHE=1\n" in said) == there
    assert (f"\nCCACHE_DIR={place}\n" in said) == there


def test_the_users_ccache_is_there_for_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What removes the root later does not find it there."""
    cache_dir, root = tmp_path / "the user's", tmp_path / "root"
    root.mkdir()
    program(tmp_path / "bin/ccache", f'#!/bin/sh\necho "{cache_dir}"\n')
    program(tmp_path / "bin/unshare", 'echo unshare "$1"\nshift\nexec "$@"\n')
    program(tmp_path / "bin/mount", '[ -d "$2" ] && [ -d "$3" ] && echo mount "$@"\n')
    program(tmp_path / "bin/chroot", 'echo chroot "$1" "$2" "$3"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    words = modules_proof.root_command("bookworm", RELEASE, tmp_path / "deb", tmp_path)
    hooks = [word.removeprefix("--customize-hook=") for word in words]
    first = next(i for i, hook in enumerate(hooks) if hook.startswith("mkdir") and "ccache" in hook)
    said = [called(tmp_path, "sh", "-ec", one, "-", root).stdout for one in hooks[first:][:3]]
    assert said == [
        "",
        f"unshare --mount\nmount --bind {cache_dir} {root}/ccache\nchroot {root} sh -ec\n",
        "",
    ]
    assert not [*root.iterdir()]


def test_a_root_is_made_once_for_the_same_input(tmp_path: Path) -> None:
    directory, made = tmp_path / "a/root", [1]

    def make() -> None:
        made.append(made[-1] + 1)
        # Nothing is left of another one.
        assert not [*directory.iterdir()]
        write(directory / "root.ext2", "")
        assert made[-1] != 3, "no room"

    modules_proof.once(directory, "x", make)
    modules_proof.once(directory, "x", make)
    assert made == [1, 2]
    # One that fails leaves none, even for the input before.
    with pytest.raises(AssertionError, match="no room"):
        modules_proof.once(directory, "y", make)
    modules_proof.once(directory, "x", make)
    assert made == [1, 2, 3, 4]


def test_the_version_of_a_package_is_that_of_its_file(tmp_path: Path) -> None:
    write(tmp_path / f"kvm-eager-split-dkms_{OURS}_amd64.deb", "")
    assert lifecycle.version(tmp_path) == OURS


@for_each_row(
    "wrong, said",
    ({"sha256": "1"}, "modules are only for kernels of 1.0, as 6.12.pin has it"),
    ({"version": "0.9"}, "linux-source is 0.9: modules are only for kernels of 1.0"),
    ({"pin": fake_kernel.PIN}, "names no kernel"),
    ({"mmu": MMU.replace("role.word ==", "")}, "no guard against CVE-2026-46113 and CVE-2026"),
)
def test_what_no_package_is_made_of(contents: Make, wrong: dict[str, Any], said: str) -> None:
    assert said in refused(contents, **wrong)


# What it is told to do fails. `known`: what it knows of modules.
DKMS = """#!/bin/sh
case $1 in
status) cat "$DPKG_ROOT/known" 2>/dev/null ;;
*) echo "$@" >>"$DPKG_ROOT/calls"; exit 1 ;;
esac
"""


class Installed:
    """What dpkg runs on a host that has the package."""

    def __init__(self, place: Place) -> None:
        self.place, self.root = place, place.root
        program(self.root / "bin/dkms", DKMS)
        program(self.root / "bin/id", "#!/bin/sh\necho 0\n")
        program(self.root / "bin/depmod", 'echo depmod "$@" >>"$DPKG_ROOT/calls"\n')
        (sources,) = (self.root / "package/usr/src").iterdir()
        write(self.root / f"usr/src/{sources.name}/proved", (place.build / "proved").read_text())
        (self.root / "usr/sbin").symlink_to(self.root / "package/usr/sbin")
        self.modules = self.root / "lib/modules" / RELEASE / "updates/dkms"

    def run(self, script: str, word: str) -> tuple[str, list[str]]:
        """What it says, and what it tells dkms and depmod to do."""
        calls = write(self.root / "calls", "")
        file = self.root / "package/DEBIAN" / script
        done = called(self.root, "sh", file, word, DPKG_ROOT=self.root)
        assert done.returncode == 0
        return done.stdout, calls.read_text().splitlines()


@pytest.fixture
def installed(place: Place) -> Installed:
    return Installed(place)


@for_each_row(
    "releases, word, refused",
    (["6.12.9+deb12-arm64", "6.1.0-30-rt-amd64"], "install", True),
    (["6.12.9+deb12-rt-amd64"], "upgrade", False),
    (["6.12.9+deb12-rt-amd64", "6.1.0-30-cloud-amd64"], "install", False),
    # Where an image is made.
    ([], "install", False),
)
def test_a_flavour_that_nothing_is_for(
    installed: Installed, releases: list[str], word: str, refused: bool
) -> None:
    """Before dpkg unpacks anything."""
    for release in releases:
        (installed.root / "lib/modules" / release / "kernel").mkdir(parents=True)
    file = installed.root / "package/DEBIAN/preinst"
    done = called(installed.root, "sh", file, word, DPKG_ROOT=installed.root)
    said = (
        f"kvm-eager-split: this package is for {RELEASE} 6.12.1+deb13-amd64 7.3.1+deb13-amd64, and"
    )
    assert not refused or done.stderr.endswith("; it refuses rt-amd64 (not tested)\n")
    assert (done.returncode, done.stderr.startswith(said)) == (int(refused), refused)


def test_a_build_that_fails_fails_nothing(installed: Installed) -> None:
    """What dpkg runs when a kernel comes that has no headers, or that it is not for."""
    root = installed.root
    for release in (RELEASE, REALTIME, "6.12.2-cloud-amd64"):
        (root / "lib/modules" / release / "kernel").mkdir(parents=True)
    said, _ = installed.run("postinst", "triggered")
    assert f"no headers of {RELEASE}: its own KVM stays in use: apt install" in said
    assert "6.12.2-cloud-amd64 is not a kernel that the package is for" in said
    assert f"{REALTIME} is refused (not tested): its own KVM stays in use\n" in said
    write(root / "lib/modules" / RELEASE / "build/.config", CONFIG)
    log = f"var/lib/dkms/kvm-eager-split/{OURS}/build/make.log"
    # Also if dpkg gives up what it has begun.
    ours = f"-m kvm-eager-split -v {OURS}"
    for word in ("triggered", "abort-remove", "abort-upgrade"):
        write(root / log, f"DKMS make.log for kernel {RELEASE} (x\nkvm-eager-split: it is newer\n")
        said, calls = installed.run("postinst", word)
        assert f"NOT INSTALLED for {RELEASE}: its own KVM stays in use\n" in said
        assert f"kvm-eager-split: nothing is installed for {RELEASE}: it is newer\n" in said
        assert calls == [f"add {ours}", f"build {ours} -k {RELEASE}"]


def test_a_kernel_that_is_built_again(installed: Installed) -> None:
    """The same release of another source: what is there goes, even if nothing takes its place."""
    write(installed.root / "lib/modules" / RELEASE / "build/.config", CONFIG)
    (installed.root / "lib/modules" / RELEASE / "kernel").mkdir()
    write(installed.root / "known", "installed\n")
    modinfo = program(installed.root / "bin/modinfo", f"#!/bin/sh\necho {OURS}\n")
    said, calls = installed.run("postinst", "triggered")
    assert (calls, f"installed for {RELEASE}" in said) == ([], True)
    modinfo.unlink()
    installed.place.change("bin/dpkg-query", "#!/bin/sh\necho 6.12.1-2\n")
    # Also if dkms knows nothing of it.
    for state in ("installed", "built", ""):
        write(installed.root / "known", f"{state}\n")
        write(installed.modules / "kvm.eagersplit.ko", "")
        # An installation that was killed is not completed.
        write(installed.modules / "eagersplit-kvm.eagersplit.ko.new", "")
        write(installed.modules / "eagersplit-list", f"{OURS}\nkvm.eagersplit.ko\n")
        said, calls = installed.run("postinst", "triggered")
        assert ("NOT INSTALLED" in said, [*installed.modules.iterdir()]) == (True, [])
        steps = [call.split()[0] for call in calls if call.split()[0] != "add"]
        assert steps == ["unbuild", "depmod", "build"]


@for_each_row("word", "upgrade", "failed-upgrade")
def test_an_upgrade_keeps_the_modules(installed: Installed, word: str) -> None:
    """dkms forgets them: without their source it would fail over any other package and kernel."""
    tree = installed.root / "var/lib/dkms/kvm-eager-split"
    write(tree / OURS / RELEASE / "x86_64/module/kvm.eagersplit.ko.xz", "")
    (tree / OURS / "source").symlink_to(installed.root / "usr/src")
    (tree / f"kernel-{RELEASE}-x86_64").symlink_to(f"{OURS}/{RELEASE}/x86_64")
    (tree / "kernel-6.13-x86_64").symlink_to("2+eagersplit/6.13/x86_64")
    names = ["kvm-amd.eagersplit.ko", "kvm.eagersplit.ko.xz"]
    for name in names:
        write(installed.modules / name, "")
    kept = write(installed.root / "usr/src/kvm-eager-split/0.tar.xz", "")
    _, calls = installed.run("prerm", word)
    assert (calls, sorted(file.name for file in installed.modules.iterdir())) == ([], names)
    assert [file.name for file in tree.iterdir()] == ["kernel-6.13-x86_64"]
    assert kept.exists()
    # Also if the other version is for other kernels.
    (installed.root / "lib/modules" / RELEASE / "kernel").mkdir()
    proved = next(installed.root.glob("usr/src/kvm-eager-split-*/proved"))
    proved.write_text(proved.read_text().replace("kernel 6.12.1", "kernel 6.12.9"))
    said, _ = installed.run("postinst", "configure")
    assert f"{RELEASE} is not a kernel that the package is for: modules of another version" in said
    assert sorted(file.name for file in installed.modules.iterdir()) == names
    # Copies of an installation that was killed go, too.
    write(installed.modules / "eagersplit-kvm.eagersplit.ko.new", "")
    installed.run("prerm", "remove")
    assert not kept.exists() and not [*installed.modules.iterdir()]


def test_an_initramfs_forgets_the_modules(installed: Installed) -> None:
    """That would be loaded at each boot after the package is gone."""
    root = installed.root
    program(root / "bin/lsinitramfs", '#!/bin/sh\ncat "$1"\n')
    program(root / "bin/update-initramfs", 'echo "image $*" >>"$DPKG_ROOT/calls"; exit 1\n')
    image = write(root / "boot/initrd.img-6.13", "usr/lib/updates/dkms/kvm-amd.eagersplit.ko.xz\n")
    write(root / "boot/initrd.img-6.14", "usr/lib/kernel/kvm-amd.ko.xz\n")
    assert "image" not in " ".join(installed.run("prerm", "upgrade")[1])
    said, calls = installed.run("prerm", "remove")
    assert calls[1:] == ["image -u -k 6.13"]
    assert f"{image} STILL HAS ITS MODULES. Run: update-initramfs -u -k 6.13\n" in said


# dkms, whose log has what `prepare` says.
PREPARES = f"""#!/bin/sh
[ $1 = build ] || exit 0
cd "$DPKG_ROOT/build"
log=$DPKG_ROOT/var/lib/dkms/kvm-eager-split/{OURS}/build
mkdir -p "$log"
echo "DKMS make.log for kernel {RELEASE} (x" >"$log/make.log"
./prepare {RELEASE} "$DPKG_ROOT/headers" 2>>"$log/make.log"
exit 10
"""


@for_each_row(
    "old, stays",
    (f"{VERSION}+eagersplit0", "modules of another version stay in use"),
    ("", "its own KVM stays in use"),
)
def test_a_build_that_is_refused_says_what_stays(
    installed: Installed, old: str, stays: str
) -> None:
    """Modules of an earlier version, or the kernel's own: once, by what knows which it is."""
    write(installed.root / "lib/modules" / RELEASE / "build/.config", CONFIG)
    (installed.root / "lib/modules" / RELEASE / "kernel").mkdir()
    program(installed.root / "bin/dkms", PREPARES)
    program(installed.root / "bin/modinfo", f"#!/bin/sh\necho {old}\n")
    installed.place.change(TARBALL, "x")
    said, _ = installed.run("postinst", "configure")
    assert f" is not the source {VERSION} of the kernel{f'; {old} stays' if old else ''}\n" in said
    assert said.count("in use") == 1
    assert f"NOT INSTALLED for {RELEASE}: {stays}\n" in said


def test_nothing_is_left(installed: Installed) -> None:
    """Even if dkms does not remove it, as a build that was killed. What others have built stays."""
    write(installed.root / f"var/lib/dkms/kvm-eager-split/{OURS}/{RELEASE}/x86_64/log/x", "")
    for name in ("kvm.eagersplit.ko.xz", "kvm-amd.eagersplit.ko", "nvidia.ko"):
        write(installed.modules / name, "")
    log = write(installed.root / f"var/log/kvm-eager-split-{RELEASE}.log", "")
    package = write(installed.root / "var/cache/kvm-eager-split/x.deb", "")
    _, (first, *rest) = installed.run("prerm", "remove")
    assert not log.exists()
    # It may be what apt is about to install, having removed this package for it.
    assert package.exists()
    installed.run("postrm", "remove")
    assert package.exists()
    installed.run("postrm", "purge")
    assert not package.parent.exists()
    assert not (installed.root / "var/lib/dkms/kvm-eager-split").exists()
    assert [file.name for file in installed.modules.iterdir()] == ["nvidia.ko"]
    assert first == f"remove -m kvm-eager-split -v {OURS} --all"
    assert set(rest) == {f"depmod {RELEASE}"}


def test_an_index_that_names_what_is_gone(installed: Installed) -> None:
    """As dkms or a removal that was killed has left it: the next boot would have no KVM."""
    kernel = installed.modules.parents[1]
    index = write(kernel / "modules.dep", "updates/dkms/kvm.eagersplit.ko.xz:\n")
    program(installed.root / "bin/depmod", f'echo depmod "$@" >>"$DPKG_ROOT/calls"; : >{index}\n')
    said, calls = installed.run("prerm", "remove")
    assert (said, calls[1:], index.read_text()) == ("", [f"depmod {RELEASE}"], "")
    # Without room.
    index.write_text("updates/dkms/kvm.eagersplit.ko.xz:\n")
    program(installed.root / "bin/depmod", "exit 1\n")
    said, _ = installed.run("prerm", "remove")
    assert (
        f"{index} STILL NAMES ITS MODULES, so a boot would have no KVM. Run: depmod {RELEASE}\n"
        in said
    )


def test_a_removal_says_what_it_waits_for(installed: Installed) -> None:
    lock = write(installed.root / "run/kvm-eager-split.lock", "")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        command = ("timeout", "3", "sh", installed.root / "package/DEBIAN/prerm", "remove")
        done = called(installed.root, *command, DPKG_ROOT=installed.root)
    said = f"kvm-eager-split: waiting for a reload or install, which holds {lock}\n"
    assert (done.returncode, done.stdout) == (124, said)
    lock.unlink()
    lock.mkdir()
    said, calls = installed.run("prerm", "remove")
    assert "run cannot be written: the modules are removed without a lock\n" in said
    assert calls[0].startswith("remove ")


@for_each_row(
    "word, vendor, file, said",
    ("remove", "kvm_amd", "version", True),
    ("remove", "kvm_intel", "version", True),
    ("remove", "kvm_amd", "refcnt", False),
    ("upgrade", "kvm_amd", "version", False),
)
def test_still_loaded(installed: Installed, word: str, vendor: str, file: str, said: bool) -> None:
    """Is said with what takes it away, which does not leave the host without KVM."""
    write(installed.root / "sys/module" / vendor / file, "")
    hint = f"Boot, or while no VM runs: modprobe -r {vendor} && modprobe {vendor}\n"
    told, _ = installed.run("prerm", word)
    assert told == (f"kvm-eager-split: still loaded. {hint}" if said else "")
