# SPDX-License-Identifier: GPL-2.0-only
"""`make dkms`: a Debian package from which dkms builds KVM with the series for Debian's own kernel.

It has the difference that the series makes to KVM, not KVM: dkms/prepare takes that from Debian's
source package on the machine that it is built on.

The proof is a root file system in which the package was installed, made by mmdebstrap, of the
release that has the kernel: dkms builds there as it does on a host.
"""

import hashlib
import platform
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import click

from lab.core import space
from lab.core.errors import LabError, WorkFailed
from lab.core.git import Repo, configured_identity
from lab.core.paths import LAYOUT, ROOT, Layout
from lab.core.steps import run_logged, say, step
from lab.machines import disk
from lab.machines.disk import INSTALLED, SvmQemuDisk
from lab.series import archive, tree
from lab.series.archive import SourceMissing
from lab.series.pin import Pin, read_pin
from lab.series.source import KernelSource, current_source

PARTS = ROOT / "dkms"
TOOL = "kvm-eager-split"
PACKAGE = f"{TOOL}-dkms"
# What KVM is built of; the series changes other directories as well, which no module needs.
DIRECTORIES = ("arch/x86/kvm", "arch/x86/include", "virt", "include")
SOURCES = ("dkms.conf", "Kbuild", "prepare", "guards")
CONTROL = ("control", "triggers", "postinst", "prerm")
MMU = "arch/x86/kvm/mmu/mmu.c"
PART_GIB = 0.5
MOST_BYTES = 200 * 1024


@dataclass(frozen=True)
class Contents:
    """What a package is made of. date: its own, in seconds. patch: what difference() gives."""

    source: KernelSource
    pin: Pin
    date: int
    maintainer: str
    patch: bytes

    @property
    def version(self) -> str:
        date = time.strftime("%Y%m%d.%H%M", time.gmtime(self.date))
        return f"{self.source.version}+eagersplit{date}"

    def filled(self, template: str) -> str:
        values = {
            "VERSION": self.version,
            "SYMBOL": re.sub(r"\W", "_", self.version),
            "MAINTAINER": self.maintainer,
            "SOURCE": self.source.package,
            "SOURCE_VERSION": self.source.version,
            "KERNELS": " ".join(self.pin.kernels),
        }
        for name, value in values.items():
            template = template.replace(f"@{name}@", value)
        return template

    @property
    def proved(self) -> str:
        """What dkms/prepare reads."""
        source = self.source
        lines = [
            f"version {self.version}",
            f"source {source.package} {source.version} {self.pin.tarball} {source.sha256}",
            *(f"kernel {release} {sha256}" for release, sha256 in self.pin.kernels.items()),
        ]
        return "".join(f"{line}\n" for line in lines)


def directory_of(layout: Layout) -> Path:
    """Where the package of a base is made."""
    return layout.work / "dkms"


def difference(repo: Repo, tip: str) -> bytes:
    """What the series changes of KVM."""
    words = ("diff", "--no-color", "--no-ext-diff", "--no-renames", "--full-index")
    return repo.run(*words, tree.BASE_TAG, tip, "--", *DIRECTORIES)


@contextmanager
def _tree(layout: Layout, source: KernelSource) -> Iterator[tuple[Repo, str]]:
    """build/linux and its tip, up to date; or for a moment what KVM needs of it."""
    if layout.linux.exists():
        tree.make(layout, source)
        yield Repo(layout.linux), "HEAD"
        return
    part = directory_of(layout) / "linux"
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        space.need(part.parent, PART_GIB, "the sources of KVM")
        yield Repo(part), tree.lay_out(layout, source, part)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def contents(layout: Layout) -> Contents:
    """LabError: no kernel of Debian's is known to be made of the source, or it has known holes."""
    pin, source = read_pin(layout), current_source(layout)
    if not source.proved or source.version != pin.newest:
        raise LabError(
            f"{source.package} is {source.version}: modules are only for kernels of {pin.newest},"
            f" as {layout.pin.name} has it"
        )
    if not pin.kernels:
        raise LabError(f"{layout.pin}: [kernels] names no kernel that modules could be for")
    with _tree(layout, source) as (repo, tip):
        text = repo.run("show", f"{tree.BASE_TAG}:{MMU}")
        command = ("sh", PARTS / "guards", "/dev/stdin")
        done = subprocess.run(command, input=text, capture_output=True, check=False)
        if done.returncode:
            raise LabError(f"{MMU} of the base: {done.stderr.decode().strip()}")
        patch = difference(repo, tip)
    date = int(Repo(layout.root).text("log", "-1", "--format=%ct"))
    name, address = configured_identity(layout.root) or ("nobody", "nobody@localhost")
    return Contents(source, pin, date, f"{name} <{address}>", patch)


def lay_out(what: Contents, root: Path) -> None:
    """The files of the package below ROOT."""
    shutil.rmtree(root, ignore_errors=True)
    sources = root / "usr/src" / f"{TOOL}-{what.version}"
    parts = {sources: SOURCES, root / "DEBIAN": CONTROL, root / "usr/sbin": (TOOL,)}
    for directory, names in parts.items():
        directory.mkdir(parents=True)
        for name in names:
            (directory / name).write_text(what.filled((PARTS / name).read_text()))
            executable = (PARTS / name).stat().st_mode & 0o100
            (directory / name).chmod(0o755 if executable else 0o644)
    (sources / "kvm.patch").write_bytes(what.patch)
    (sources / "proved").write_text(what.proved)


def make(layout: Layout) -> Path:
    """The package; of the same input the same. LabError: what contents() raises."""
    what, directory = contents(layout), directory_of(layout)
    lay_out(what, directory / "root")
    for old in directory.glob("*.deb"):
        old.unlink()
    deb = directory / f"{PACKAGE}_{what.version}_amd64.deb"
    command = ("dpkg-deb", "--root-owner-group", "-Zxz", "-b", str(directory / "root"), str(deb))
    env = {"SOURCE_DATE_EPOCH": str(what.date), "PATH": "/usr/bin:/bin"}
    run_logged("dpkg-deb", command, layout.log / "dkms.log", directory, env)
    if deb.stat().st_size > MOST_BYTES:
        raise WorkFailed(f"{deb} has {deb.stat().st_size} bytes, more than {MOST_BYTES}")
    return deb


@click.command()
def command() -> None:
    """Make the package kvm-eager-split-dkms: KVM with the series, as modules for Debian's kernel.

    It is in build/dkms, or in build/VERSION/dkms of another base than the default. No
    kernel is built: that is dkms's work, where the package is installed.
    """
    say(f"dkms: {make(LAYOUT)}")


PAGE = ROOT / "docs" / "operators.md"
NEEDED_GIB = 3
# What the tool needs and busybox lacks.
PROGRAMS = ("/sbin/modprobe", "/sbin/insmod", "/sbin/modinfo", "/usr/bin/find", "/usr/bin/flock")
# Machine -> its module, and the parameter for two-dimensional paging.
VENDORS = {"svm-qemu": ("kvm_amd", "npt"), "vmx-bochs": ("kvm_intel", "ept")}
# Once the package is installed: the kernel comes again, and is said to be of another source, for
# which nothing is built. What is said, and what is left; then all is as before.
ANOTHER_KERNEL = "another-kernel"
COME_AGAIN = f"""
cd /root
# With the package that has its files.
files=$(dpkg-query -S "*/lib/modules/$1/kernel" | sed 's/[,:].*//')
proved=$(echo /usr/src/{TOOL}-*/proved)
cp -a $proved /var/lib/dkms/{TOOL} "/lib/modules/$1/updates" .
sed -i 's/^source [^ ]* /&9/' $proved
{{
    apt-get install -y --reinstall --no-install-recommends "linux-image-$1" $files
    echo "exit status $?"
    dpkg-query -W -f '${{Status}}\\n' "linux-image-$1"
    modinfo -k "$1" -n kvm
    dkms status
}} >{ANOTHER_KERNEL} 2>&1
cat {ANOTHER_KERNEL}
rm -rf /var/lib/dkms/{TOOL} "/lib/modules/$1/updates"
mv {TOOL} /var/lib/dkms/
mv updates "/lib/modules/$1/"
mv proved $proved
rm -f /var/log/{TOOL}-*
depmod "$1"
"""


@dataclass(frozen=True)
class Installed:
    """A root file system with the package. release: of its kernel. directory: with all of it."""

    release: str
    directory: Path

    @property
    def kernel(self) -> Path:
        return self.directory / f"vmlinuz-{self.release}"

    @property
    def machine(self) -> SvmQemuDisk:
        initrd = self.directory / f"initrd.img-{self.release}"
        return SvmQemuDisk(self.directory / "root.ext2", initrd)

    def files(self, vendor: str) -> dict[str, Path]:
        """For an initramfs: KVM's modules of both kinds, what loads them, the package's tool."""
        top = self.directory / "lib/modules" / self.release
        query = ("modprobe", "-d", self.directory, "-S", self.release, "--show-depends", vendor)
        shown = subprocess.run(query, check=True, capture_output=True, text=True).stdout
        wanted = [Path(line.split()[1]) for line in shown.splitlines() if line[:6] == "insmod"]
        # Those of the other vendor, too: the tool wants all that dkms has put there.
        both = ((top / name).glob("*kvm*") for name in ("kernel/arch/x86/kvm", "updates/dkms"))
        own = list(chain.from_iterable(both))
        index = [file for file in top.glob("modules.*") if file.is_file()]
        modules_of = {f"/{file.relative_to(self.directory)}": file for file in wanted + own + index}
        programs = {f"/sbin/{Path(file).name}": Path(file) for file in PROGRAMS}
        # The shell of busybox prefers its own commands to those of kmod.
        shell = {"/bin/sh": Path("/bin/dash")}
        tool = {f"/sbin/{TOOL}": self.directory / TOOL}
        return modules_of | programs | shell | tool


def commands(page: str) -> list[str]:
    """The commands of a page, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def _sources(layout: Layout) -> tuple[str, ...]:
    """mmdebstrap's words for the release and its archive; of its own it knows where updates are."""
    own = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    suite = read_pin(layout).suite
    if not suite:
        return (own,)
    codename = suite.partition("-")[0]
    mirror = next(iter(archive.mirrors(own)), None)
    if mirror is None:
        raise SourceMissing(f"apt's sources name no archive of Debian, which has {suite}")
    words = f"[signed-by={archive.KEYRING}] {mirror}"
    return (codename, f"deb {words} {codename} main", f"deb {words} {suite} main")


def install_line() -> str:
    """The page's command that installs the package."""
    (line,) = (each for each in commands(PAGE.read_text()) if f"./{PACKAGE}" in each)
    return line


def root_command(layout: Layout, release: str, deb: Path, directory: Path) -> tuple[str, ...]:
    """mmdebstrap's command line, for DIRECTORY/root.ext2 and the other files beside it."""
    suite = read_pin(layout).suite
    # What it depends on is to come from there, too, as with apt-get's -t on a host.
    image = f",linux-image-{release}/{suite}" if suite else f",linux-image-{release}"
    boot = [f"/boot/{name}-{release}" for name in ("vmlinuz", "initrd.img")]
    # The host's kernel is another one.
    uname = f'f=/usr/local/bin/uname; printf "#!/bin/sh\\necho {release}\\n" >$f; chmod 755 $f'
    script = f"{uname}; cd /root; {install_line()}; rm $f"
    hooks = [
        f"copy-in {deb} /root",
        f'chroot "$1" sh -ec {shlex.quote(script)}',
        f'chroot "$1" sh -uc {shlex.quote(COME_AGAIN)} sh {release}',
        f"mkdir -p {directory}/lib/modules",
        f"copy-out {' '.join(boot)} /usr/sbin/{TOOL} /root/{ANOTHER_KERNEL} {directory}",
        f"copy-out /lib/modules/{release} {directory}/lib/modules",
    ]
    left_out = (f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "locale"))
    return disk.root_command(directory, hooks, *_sources(layout), *left_out, include=image)


def _fingerprint(what: Contents) -> str:
    """Of all that decides what is installed; not of the version, which each commit changes."""
    parts = (*SOURCES, *CONTROL, TOOL)
    files = [*map(Path, (__file__, disk.__file__)), *INSTALLED.values()]
    texts = [file.read_bytes() for file in (*files, *(PARTS / name for name in parts))]
    known = [what.proved.partition("\n")[2].encode(), what.patch, install_line().encode()]
    return hashlib.sha256(b"\0".join(known + texts)).hexdigest()


def install(layout: Layout = LAYOUT) -> Installed:
    """Install the package into a new root file system, unless that was done with the same one.

    LabError: what make() raises. WorkFailed: it is not installed.
    """
    what = contents(layout)
    directory = directory_of(layout) / "installed"
    (release, *_) = what.pin.kernels
    stamp, wanted = directory / "stamp", _fingerprint(what)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        space.need(directory, NEEDED_GIB, "a Debian root file system")
        command = root_command(layout, release, make(layout), directory)
        log = layout.log / "dkms-root.log"
        log.unlink(missing_ok=True)
        with step("Installing the modules into a Debian root file system", "3 min"):
            run_logged("mmdebstrap", command, log, directory)
        stamp.write_text(wanted)
    return Installed(release, directory)
