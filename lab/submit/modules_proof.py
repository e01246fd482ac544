# SPDX-License-Identifier: GPL-2.0-only
"""A root file system with Debian's own kernel in which the package of modules is installed.

mmdebstrap makes it, of the release that has the kernel, so dkms builds in it as it does on a host.
"""

import hashlib
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from lab.core import space
from lab.core.paths import LAYOUT, ROOT, Layout
from lab.core.steps import run_logged, step
from lab.machines import disk
from lab.machines.disk import INSTALLED, SvmQemuDisk
from lab.series import archive
from lab.series.archive import SourceMissing
from lab.series.pin import read_pin
from lab.submit import modules

PAGE = ROOT / "docs" / "operators.md"
NEEDED_GIB = 3
# Programs that the tool of the package needs, and busybox does not have.
PROGRAMS = ("/sbin/modprobe", "/sbin/insmod", "/sbin/modinfo", "/usr/bin/find", "/usr/bin/flock")
# For each machine, KVM's vendor module and its parameter for two-dimensional paging.
VENDORS = {"svm-qemu": ("kvm_amd", "npt"), "vmx-bochs": ("kvm_intel", "ept")}
# Once the package is installed: the kernel comes again, and is said to be of another source, for
# which nothing is built. What is said, and what is left; then all is as before.
ANOTHER_KERNEL = "another-kernel"
COME_AGAIN = f"""
cd /root
# With the package that has its files.
files=$(dpkg-query -S "*/lib/modules/$1/kernel" | sed 's/[,:].*//')
proved=$(echo /usr/src/{modules.TOOL}-*/proved)
cp -a $proved /var/lib/dkms/{modules.TOOL} "/lib/modules/$1/updates" .
sed -i 's/^source [^ ]* /&9/' $proved
{{
    apt-get install -y --reinstall --no-install-recommends "linux-image-$1" $files
    echo "exit status $?"
    dpkg-query -W -f '${{Status}}\\n' "linux-image-$1"
    modinfo -k "$1" -n kvm
    dkms status
}} >{ANOTHER_KERNEL} 2>&1
cat {ANOTHER_KERNEL}
rm -rf /var/lib/dkms/{modules.TOOL} "/lib/modules/$1/updates"
mv {modules.TOOL} /var/lib/dkms/
mv updates "/lib/modules/$1/"
mv proved $proved
rm -f /var/log/{modules.TOOL}-*
depmod "$1"
"""


@dataclass(frozen=True)
class Installed:
    """A root file system with the package. release: of its kernel. directory: of all its files."""

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
        """Files for an initramfs: both kinds of KVM modules, programs to load them, the tool."""
        top = self.directory / "lib/modules" / self.release
        query = ("modprobe", "-d", self.directory, "-S", self.release, "--show-depends", vendor)
        shown = subprocess.run(query, check=True, capture_output=True, text=True).stdout
        wanted = [Path(line.split()[1]) for line in shown.splitlines() if line[:6] == "insmod"]
        # Also those of the other vendor: the tool checks all modules that dkms has installed.
        both = ((top / name).glob("*kvm*") for name in ("kernel/arch/x86/kvm", "updates/dkms"))
        own = list(chain.from_iterable(both))
        index = [file for file in top.glob("modules.*") if file.is_file()]
        modules_of = {f"/{file.relative_to(self.directory)}": file for file in wanted + own + index}
        programs = {f"/sbin/{Path(file).name}": Path(file) for file in PROGRAMS}
        # The shell of busybox prefers its own commands to those of kmod.
        shell = {"/bin/sh": Path("/bin/dash")}
        tool = {f"/sbin/{modules.TOOL}": self.directory / modules.TOOL}
        return modules_of | programs | shell | tool


def commands(page: str) -> list[str]:
    """The commands that a page of the documentation names, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def _sources(layout: Layout) -> tuple[str, ...]:
    """mmdebstrap's words for the release and its archive; of its own it knows where updates are."""
    own = archive.codename()
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
    """The command that installs the package, as the page has it."""
    (line,) = (each for each in commands(PAGE.read_text()) if f"./{modules.PACKAGE}" in each)
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
        f"copy-out {' '.join(boot)} /usr/sbin/{modules.TOOL} /root/{ANOTHER_KERNEL} {directory}",
        f"copy-out /lib/modules/{release} {directory}/lib/modules",
    ]
    left_out = (f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "locale"))
    return disk.root_command(directory, hooks, *_sources(layout), *left_out, include=image)


def _fingerprint(what: modules.Contents) -> str:
    """A digest of all input, except the version of the package, which changes with each commit."""
    parts = (*modules.SOURCES, *modules.CONTROL, modules.TOOL)
    files = [*map(Path, (__file__, disk.__file__)), *INSTALLED.values()]
    texts = [file.read_bytes() for file in (*files, *(modules.PARTS / name for name in parts))]
    known = [what.proved.partition("\n")[2].encode(), what.patch, install_line().encode()]
    return hashlib.sha256(b"\0".join(known + texts)).hexdigest()


def install(layout: Layout = LAYOUT) -> Installed:
    """Install the package into a new root file system, unless that was done with the same one.

    LabError: what modules.make() raises. WorkFailed: it is not installed.
    """
    what = modules.contents(layout)
    directory = modules.directory_of(layout) / "installed"
    (release, *_) = what.pin.kernels
    stamp, wanted = directory / "stamp", _fingerprint(what)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        space.need(directory, NEEDED_GIB, "a Debian root file system")
        command = root_command(layout, release, modules.make(layout), directory)
        log = layout.log / "dkms-root.log"
        log.unlink(missing_ok=True)
        with step("Installing the modules into a Debian root file system", "3 min"):
            run_logged("mmdebstrap", command, log, directory)
        stamp.write_text(wanted)
    return Installed(release, directory)
