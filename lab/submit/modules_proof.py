# SPDX-License-Identifier: GPL-2.0-only
"""Root file systems of Debian in which the package of modules is installed, or built.

mmdebstrap makes them, of the release that has the kernel, so dkms builds as it does on a host.
"""

import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

from lab.build import kernel
from lab.core import space
from lab.core.paths import LAYOUT, ROOT, Layout
from lab.core.steps import run_logged, step
from lab.machines import disk
from lab.machines.disk import INSTALLED, SvmQemuDisk
from lab.series import archive
from lab.series.pin import Debian, read_pin
from lab.submit import modules

PAGE = ROOT / "docs" / "operators.md"
NEEDED_GIB = 3
# Programs that the tool of the package needs, and busybox does not have.
PROGRAMS = ("/sbin/modprobe", "/sbin/insmod", "/sbin/modinfo", "/usr/bin/find", "/usr/bin/flock")
# For each machine, KVM's vendor module and its parameter for two-dimensional paging.
VENDORS = {"svm-qemu": ("kvm_amd", "npt"), "vmx-bochs": ("kvm_intel", "ept")}
# Once the package is installed: the kernel comes again, and is said to be of another source, for
# which nothing is built. What is said, and what is left.
ANOTHER_KERNEL = "another-kernel"
COME_AGAIN = f"""
cd /root
# With the package that has its files.
files=$(dpkg-query -S "*/lib/modules/$1/kernel" | sed 's/[,:].*//')
sed -i 's/^kernel .* /&9/' /usr/src/{modules.TOOL}-*/proved
{{
    apt-get install -y --reinstall --no-install-recommends "linux-image-$1" $files
    echo "exit status $?"
    dpkg-query -W -f '${{Status}}\\n' "linux-image-$1"
    modinfo -k "$1" -n kvm
    dkms status
}} >{ANOTHER_KERNEL} 2>&1
cat {ANOTHER_KERNEL}
"""

# The modules are built for each release that is named. Headers are unpacked, as their packages
# depend on the kernels. Releases that the package refuses are built as well, without the refusal.
BUILT = "built"
BUILD_ALL = f"""
export DEBIAN_FRONTEND=noninteractive
cd /root
version=$(dkms status | sed 's|.*/||; s|[,:].*||')
for release; do
    needed=$(apt-cache depends "linux-headers-$release" | sed -n 's/^ *Depends: //p' |
        grep -E '^(linux-headers-.*-common.*|linux-kbuild-.*|gcc-.*)$')
    apt-get install -y --no-install-recommends $needed
    apt-get download "linux-headers-$release"
    dpkg-deb --fsys-tarfile linux-headers-"$release"_*.deb | tar -xC / --keep-directory-symlink
    sed -i "/^refused $release /d" /usr/src/{modules.TOOL}-*/proved
    dkms build -m {modules.TOOL} -v "$version" -k "$release"
    for file in /var/lib/dkms/{modules.TOOL}/"$version/$release"/x86_64/module/*; do
        modinfo -F vermagic "$file" | sed "s|^|$release ${{file##*/}} |"
    done >>{BUILT}
    dkms unbuild -m {modules.TOOL} -v "$version" -k "$release"
done
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
        return self.booted_by(self.directory / f"initrd.img-{self.release}")

    def booted_by(self, initrd: Path) -> SvmQemuDisk:
        """The machine with another initramfs than that of the root."""
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


# An initramfs with what the disk needs: with all drivers, that of amd64 takes the emulated machine
# minutes to look into. Written before initramfs-tools comes, which keeps both files.
_SMALL = (
    'mkdir -p "$1/etc/initramfs-tools/conf.d"',
    'echo MODULES=list >"$1/etc/initramfs-tools/conf.d/lab"',
    'printf "virtio_pci\\nvirtio_blk\\next4\\n" >"$1/etc/initramfs-tools/modules"',
)
SMALL_INITRAMFS = f"--essential-hook={'; '.join(_SMALL)}"
# Where the user's ccache is in a root, while the package is installed.
CCACHE = "/ccache"
LEFT_OUT = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "locale")]


def commands(page: str, part: str = "") -> list[str]:
    """The commands that a page of the documentation names, in order.

    Blanks begin a line that belongs to the command before it. part: the word after `sh` at the
    beginning of the blocks.
    """
    begin = f"```sh {part}".strip()
    blocks = re.findall(rf"^{begin}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in re.split(r"\n(?!\s|\Z)", block.rstrip("\n"))]


def _sources(suite: str) -> tuple[str, ...]:
    """mmdebstrap's words for the release and its archive; of its own it knows where updates are.

    SourceMissing: the machine's own apt names no archive of Debian.
    """
    own, codename = archive.codename(), suite.partition("-")[0]
    if suite == own:
        return (own,)
    wanted = dict.fromkeys((*archive.places(codename), *archive.places(suite)))
    words = f"[signed-by={archive.KEYRING}]"
    return (codename, *(f"deb {words} {mirror} {one} main" for mirror, one in wanted))


def _image(suite: str, release: str) -> str:
    """The package of the kernel, as mmdebstrap's --include takes it."""
    # What it depends on is to come from there, too, as with apt-get's -t on a host.
    return f"linux-image-{release}/{suite}" if "-" in suite else f"linux-image-{release}"


def install_line() -> str:
    """The command that installs the package, as the page has it."""
    (line,) = (each for each in commands(PAGE.read_text()) if f"./{modules.PACKAGE}" in each)
    return line


def debian_command(
    suite: str, release: str, hooks: Iterable[str], directory: Path
) -> tuple[str, ...]:
    """mmdebstrap's command line for DIRECTORY/root.ext2, with this kernel.

    hooks: the shell's words for what comes afterwards, with $1 for the root.
    """
    words = (*_sources(suite), *LEFT_OUT, SMALL_INITRAMFS)
    return disk.root_command(directory, hooks, *words, include=f",{_image(suite, release)}")


def _ccache() -> Path:
    """The directory of the user's ccache."""
    words = ("ccache", "--get-config", "cache_dir")
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    directory = Path(done.stdout.strip())
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def with_ccache(place: str = CCACHE) -> str:
    """The shell's words after which Debian's headers have compilers use the ccache in PLACE.

    Each file's name has the version of the package, the same in all roots: ccache knows what was
    compiled in another one. A user whom the root doesn't know, as with subordinate ids, may write
    nothing there, and goes without.
    """
    env = {"DEBIAN_KERNEL_USE_CCACHE": "1", "CCACHE_DIR": place} | kernel.FASTER
    words = " ".join(f"{name}={value}" for name, value in env.items())
    install = "apt-get install -y --no-install-recommends ccache"
    return f"{install}; if [ -w {place} ]; then export {words}; fi"


def _installing(release: str, deb: Path) -> list[str]:
    """Hooks that install the package in the root."""
    # The host's kernel is another one.
    uname = f'f=/usr/local/bin/uname; printf "#!/bin/sh\\necho {release}\\n" >$f; chmod 755 $f'
    script = f"{uname}; cd /root; {with_ccache()}; {install_line()}; rm $f"
    # The mount ends with this shell, whatever happens: nobody removes what is there with the root.
    mounted = f'mount --bind "$2" "$1{CCACHE}"; chroot "$1" sh -ec {shlex.quote(script)}'
    cache_dir = shlex.quote(str(_ccache()))
    return [
        f"copy-in {deb} /root",
        f'mkdir "$1{CCACHE}"',
        f'unshare --mount sh -ec {shlex.quote(mounted)} sh "$1" {cache_dir}',
        f'rmdir "$1{CCACHE}"',
    ]


def root_command(suite: str, release: str, deb: Path, directory: Path) -> tuple[str, ...]:
    """mmdebstrap's command line, for DIRECTORY/root.ext2 and the other files beside it."""
    boot = [f"/boot/{name}-{release}" for name in ("vmlinuz", "initrd.img")]
    hooks = [
        *_installing(release, deb),
        f"mkdir -p {directory}/lib/modules",
        f"copy-out {' '.join(boot)} /usr/sbin/{modules.TOOL} {directory}",
        f"copy-out /lib/modules/{release} {directory}/lib/modules",
    ]
    return debian_command(suite, release, hooks, directory)


def null_command(suite: str, hooks: Iterable[str], *words: str) -> tuple[str, ...]:
    """mmdebstrap's command line for a root file system that it removes once the hooks have run.

    words: mmdebstrap's.
    """
    codename, *places = _sources(suite)
    return (
        *("mmdebstrap", "--variant=minbase", "--format=null", *disk.APT, *LEFT_OUT, *words),
        *(f"--customize-hook={hook}" for hook in hooks),
        *(codename, "/dev/null", *places),
    )


def again_command(suite: str, release: str, deb: Path, directory: Path) -> tuple[str, ...]:
    """mmdebstrap's command line for DIRECTORY/another-kernel, see COME_AGAIN."""
    hooks = [
        *_installing(release, deb),
        f'chroot "$1" sh -uc {shlex.quote(COME_AGAIN)} sh {release}',
        f"copy-out /root/{ANOTHER_KERNEL} {directory}",
    ]
    include = f"--include={_image(suite, release)}"
    return null_command(suite, hooks, SMALL_INITRAMFS, include)


def builds_command(
    suite: str, debian: Debian, package: str, deb: Path, directory: Path
) -> tuple[str, ...]:
    """mmdebstrap's command line for DIRECTORY/built: modules for all flavours of a suite."""
    source = f"{package}={debian.source}"
    line = f"apt-get install -y --no-install-recommends /root/{deb.name} {source} kmod"
    words = " ".join(debian.kernels)
    hooks = (
        f"copy-in {deb} /root",
        f'chroot "$1" sh -ec {shlex.quote(line)}',
        f'chroot "$1" sh -uc {shlex.quote(BUILD_ALL)} sh {words}',
        f"copy-out /root/{BUILT} {directory}",
    )
    return null_command(suite, hooks)


@cache
def contents(layout: Layout) -> modules.Contents:
    """What is proved, laid out once: it takes a minute. The version is the same at each commit."""
    return replace(modules.contents(layout), date=0)


def fingerprint(what: modules.Contents) -> str:
    """A digest of all input, except the version of the package."""
    parts = (*modules.SOURCES, *modules.CONTROL, modules.TOOL)
    files = [*map(Path, (__file__, disk.__file__)), *INSTALLED.values()]
    texts = [file.read_bytes() for file in (*files, *(modules.PARTS / name for name in parts))]
    known = [what.proved.partition("\n")[2].encode(), install_line().encode()]
    patches = [part.patch for part in what.parts]
    return hashlib.sha256(b"\0".join(known + patches + texts)).hexdigest()


def run(command: tuple[str, ...], what: str, expected: str, log: Path, directory: Path) -> None:
    log.unlink(missing_ok=True)
    with step(what, expected):
        run_logged("mmdebstrap", command, log, directory)


def empty(directory: Path) -> None:
    """Make room for a root file system, without what is left of another one."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    space.need(directory, NEEDED_GIB, "a Debian root file system")


def once(directory: Path, wanted: str, make: Callable[[], None]) -> None:
    """Call make() for an empty directory, unless that was done there for the same input.

    wanted: a digest of the input.
    """
    stamp = directory / "stamp"
    if not stamp.exists() or stamp.read_text() != wanted:
        empty(directory)
        make()
        stamp.write_text(wanted)


def install(suite: str, flavour: str, layout: Layout = LAYOUT) -> Installed:
    """Install the package into a new root file system, unless that was done with the same one.

    The kernel is that of the layout's base in this suite. LabError: what modules.make() raises.
    WorkFailed: it is not installed.
    """
    what, release = contents(layout), f"{read_pin(layout).debian[suite].release}-{flavour}"
    directory = modules.directory_of(layout) / "installed" / release

    def make() -> None:
        command = root_command(suite, release, modules.make(layout, what), directory)
        name = f"Installing the modules into Debian with {release}"
        run(command, name, "3 min", layout.log / f"dkms-{release}.log", directory)

    once(directory, fingerprint(what), make)
    return Installed(release, directory)


def come_again(suite: str, flavour: str, layout: Layout = LAYOUT) -> tuple[str, str]:
    """The release of a kernel, and what is said when it comes again, of another source.

    Raises what install() raises.
    """
    release = f"{read_pin(layout).debian[suite].release}-{flavour}"
    directory = modules.directory_of(layout) / "again"
    empty(directory)
    command = again_command(suite, release, modules.make(layout, contents(layout)), directory)
    name = f"Installing {release} again, of another source"
    run(command, name, "4 min", layout.log / f"dkms-again-{release}.log", directory)
    return release, (directory / ANOTHER_KERNEL).read_text()


def build(suite: str, layout: Layout = LAYOUT) -> str:
    """Build the modules for all flavours of a suite: a line of release, file, vermagic for each.

    Raises what install() raises.
    """
    pin = read_pin(layout)
    debian, directory = pin.debian[suite], modules.directory_of(layout) / f"built-{suite}"
    empty(directory)
    deb = modules.make(layout, contents(layout))
    command = builds_command(suite, debian, pin.package, deb, directory)
    name = f"Building the modules for all flavours of {debian.release}"
    run(command, name, "6 min", layout.log / f"dkms-built-{suite}.log", directory)
    return (directory / BUILT).read_text()
