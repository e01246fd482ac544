# SPDX-License-Identifier: GPL-2.0-only
"""Debian packages of a kernel with the series, and the proof that they work: docs/packages.md."""

import lzma
import shutil
from dataclasses import dataclass
from pathlib import Path

import click

from lab.build import kernel, selftests
from lab.build.selftests import PERF_TEST
from lab.core import parallel, process, space
from lab.core.errors import LabError, WorkFailed
from lab.core.locks import locked
from lab.core.paths import BUILD, CONFIG, DEFAULT_BASE, LAYOUT, Layout
from lab.core.steps import bar, run_logged, say, step
from lab.machines import Job, disk
from lab.machines.disk import SvmQemuDisk
from lab.series import tree
from lab.series.source import current_source

# Debian's configurations, as the package linux-config-VERSION has them.
DEBIANS = "/usr/src/linux-config-{}/config.amd64_none_cloud-amd64.xz"
FRAGMENT = CONFIG / "deb.config"
SUITE = "bookworm"
LOCALVERSION = "-eagersplit"
# On two cores with an empty ccache. And the disk space for objects, packages and root file system.
ESTIMATE = "an hour"
PROVE_ESTIMATE = "3 min"
NEEDED_GIB = 8

INSIDE = f"/test/{PERF_TEST}"
# With -V the test itself verifies the pages in the log, and the sizes of pages.
PROOF = f"""
set -e
export PATH=/bin:/sbin
uname -r
dpkg-query -W -f '${{Package}} ${{Version}}: ${{db:Status-Status}}\\n' 'linux-image-*'
modprobe kvm_amd npt=0
echo 4 >/proc/sys/vm/nr_hugepages
for eager in N Y; do
	echo $eager >/sys/module/kvm/parameters/eager_page_split
	echo "eager_page_split=$(cat /sys/module/kvm/parameters/eager_page_split)," \
		"npt=$(cat /sys/module/kvm_amd/parameters/npt)"
	{INSIDE} -V -s anonymous_hugetlb_2mb -b 4M -v 1 -i 2
done
"""


@dataclass(frozen=True)
class Packages:
    """Built packages. release: as uname -r prints it. image: the kernel's package. files: all."""

    release: str
    image: Path
    files: tuple[Path, ...]


def directory_of(layout: Layout) -> Path:
    """The directory in which the packages of a base are made."""
    return layout.work / "deb"


def debians(version: str) -> Path:
    """Debian's configuration for a base, or for the default base if that is not installed."""
    own = Path(DEBIANS.format(version))
    if version == DEFAULT_BASE or own.exists():
        return own
    say(
        f"deb: there is no {own}: the configuration is that of {DEFAULT_BASE}, newer options have"
        " their defaults"
    )
    return Path(DEBIANS.format(DEFAULT_BASE))


def read_config(file: Path) -> bytes:
    """Return a .config, unpacked if its name ends in .xz. LabError: there is none."""
    try:
        data = file.read_bytes()
        text = lzma.decompress(data) if file.suffix == ".xz" else data
    except (OSError, lzma.LZMAError) as error:
        raise LabError(f"{file}: is not a kernel configuration: {error}") from error
    if b"CONFIG_KVM" not in text:
        raise LabError(f"{file}: is not the .config of a kernel with KVM")
    return text


def command_of(objects: Path) -> tuple[str, ...]:
    """The kbuild command, which writes packages to the parent directory of OBJECTS.

    Their version is that of the source, with a suffix that makes it newer.
    """
    return kernel.make_command(
        str(objects),
        f"LOCALVERSION={LOCALVERSION}",
        f"KDEB_PKGVERSION={current_source(LAYOUT).version}+eagersplit",
        f"KDEB_CHANGELOG_DIST={SUITE}",
        "bindeb-pkg",
    )


def compiled(log: Path) -> int:
    """The number of files that were compiled or assembled, by kbuild's output in LOG."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return sum(line.startswith(("  CC ", "  AS ")) for line in lines)


def found(directory: Path, release: str) -> Packages:
    """The packages that bindeb-pkg has made. WorkFailed: there is no kernel image among them."""
    files = tuple(sorted(directory.glob("*.deb")))
    image = next((f for f in files if f.name.startswith(f"linux-image-{release}_")), None)
    if not image:
        raise WorkFailed(f"{directory}: there is no package of linux-image-{release}")
    return Packages(release, image, files)


def build(config: bytes, directory: Path) -> Packages:
    """Make the packages in DIRECTORY. WorkFailed: it does not compile."""
    linux = kernel.source_tree("series")
    objects, log = directory / "objects", LAYOUT.log / "deb.log"
    log.unlink(missing_ok=True)
    what = "Building Debian packages"
    env = kernel.build_environment() | {"DEB_BUILD_OPTIONS": "terse"}
    with locked(tree.lock(linux)), step(what, f"{ESTIMATE}, less with a warm ccache"):
        kernel.configure(linux, str(objects), [FRAGMENT], log, first=config)
        for old in directory.glob("*.deb"):
            old.unlink()
        words = (what, command_of(objects), log, linux, env)
        with bar("deb", None, lambda: (0, f"{compiled(log)} files compiled so far")) as tick:
            parallel.for_each([words], lambda w: run_logged(*w), tick, grace_s=process.GRACE_S)
    return found(directory, (objects / "include/config/kernel.release").read_text().strip())


def root_command(packages: Packages, directory: Path) -> tuple[str, ...]:
    """mmdebstrap's command line, for DIRECTORY/root.ext2 and the kernel's files beside it."""
    image = packages.image
    boot = [f"/boot/{name}-{packages.release}" for name in ("vmlinuz", "initrd.img")]
    hooks = [
        f"copy-in {image} /root",
        f'chroot "$1" dpkg -i /root/{image.name}',
        f"copy-out {' '.join(boot)} {directory}",
    ]
    return disk.root_command(directory, hooks, SUITE)


def make_root(packages: Packages, directory: Path) -> SvmQemuDisk:
    """Install the kernel into a new root file system, and return the machine that has it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    log = LAYOUT.log / "deb-root.log"
    log.unlink(missing_ok=True)
    with step("Installing the package into a Debian root file system", PROVE_ESTIMATE):
        run_logged("mmdebstrap", root_command(packages, directory), log, directory)
    return SvmQemuDisk(directory / "root.ext2", directory / f"initrd.img-{packages.release}")


def prove(packages: Packages, directory: Path) -> str:
    """Boot the installed kernel, split pages in it, and return the output of that.

    WorkFailed: a step fails.
    """
    machine = make_root(packages, directory)
    job = Job(
        kernel=directory / f"vmlinuz-{packages.release}",
        command=("sh", "-c", PROOF),
        files={INSIDE: selftests.build("series") / PERF_TEST},
        timeout_s=600,
    )
    with step("Booting the installed kernel on svm-qemu", "1 min"):
        result = machine.run(job)
    result.check("the installed kernel")
    if packages.release not in result.text.splitlines()[:1]:
        raise WorkFailed(f"the kernel that booted is not {packages.release}:\n{result.text}")
    return result.text


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The kernel's .config, instead of Debian's for clouds. Debug information is disabled, and"
    " Debian's keys are left out.",
)
@click.option(
    "--prove/--no-prove",
    "proving",
    default=True,
    help="Install and boot the packages, or only build them.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and build nothing.")
def command(config: Path | None, proving: bool, dry_run: bool) -> None:
    """Build installable Debian packages of the kernel with the series.

    The packages are written to build/deb, or to build/VERSION/deb for another base than the default
    one. With Debian's configuration for clouds the build takes an hour on two cores, and 8 GiB of
    disk. The image is then installed into a new Debian root file system, which is booted on
    svm-qemu.
    """
    config = config or debians(LAYOUT.version)
    text, directory = read_config(config), directory_of(LAYOUT)
    if dry_run:
        click.echo(f"configuration: {config}, {FRAGMENT}")
        click.echo(f"build:         {' '.join(command_of(directory / 'objects'))}")
        click.echo(f"packages:      {directory}/*.deb, about {ESTIMATE}, {NEEDED_GIB} GiB of disk")
        click.echo(f"proof:         {f'boot on svm-qemu, {PROVE_ESTIMATE}' if proving else 'none'}")
        return
    if not (directory / "objects/vmlinux").exists():
        space.need(BUILD, NEEDED_GIB, "building Debian packages")
    say(f"deb: {ESTIMATE} on two cores when nothing is built, and {NEEDED_GIB} GiB of disk")
    packages = build(text, directory)
    for file in packages.files:
        say(f"deb: {file}")
    if proving:
        try:
            click.echo(prove(packages, directory / "proof"))
        finally:
            # Remove the root file system, keep the packages.
            shutil.rmtree(directory / "proof", ignore_errors=True)
