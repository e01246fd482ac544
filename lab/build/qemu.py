# SPDX-License-Identifier: GPL-2.0-only
"""`lab qemu`: build Debian's QEMU with qemu/*.patch, which add options for dirty logging."""

from pathlib import Path

import click

from lab.build.kernel import build_environment
from lab.core import workspace
from lab.core.locks import locked
from lab.core.paths import BUILD, LOG, ROOT
from lab.core.steps import run_logged, say, step
from lab.series import archive
from lab.series.pin import Pin
from lab.series.source import find

PROGRAM = BUILD / "qemu/qemu-system-x86_64"
# The sha256 of the .dsc file, which has those of all other files of the source package.
PROVED = "6b6bd27b947ec89e40a1d6b26d9c9f3c698ca691da13163e0483f6061bbb20b3"
PIN = Pin("src:qemu", "", {"1:7.2+dfsg-7+deb12u18": PROVED}, suite="bookworm")
# The arguments are the patches. Machines use MICROVM, which does not link without I440FX.
SCRIPT = r"""
for file; do patch --batch --fuzz=0 -p1 -i "$file"; done
printf 'CONFIG_%s=y\n' MICROVM I440FX ISA_DEBUG >configs/devices/x86_64-softmmu/lab.mak
./configure --target-list=x86_64-softmmu --with-devices-x86_64=lab --disable-debug-info \
    --without-default-features --without-default-devices --enable-kvm --disable-tcg
ninja -C build qemu-system-x86_64
"""


def make() -> Path:
    """Build the program, or bring it up to date.

    SourceMissing: its source cannot be had. LabError: the source is older than the proved one.
    """
    patches = sorted((ROOT / "qemu").glob("*.patch"))
    made_of = repr((PIN, SCRIPT, [file.read_text() for file in patches]))
    stamp, log = PROGRAM.with_name("made-of"), LOG / "qemu.log"
    with locked(BUILD / ".qemu-lock"):
        if stamp.exists() and stamp.read_text() == made_of:
            return PROGRAM
        with workspace.fresh() as work, step("Building QEMU", "8 min, less with a warm ccache"):
            dsc = archive.fetch(PIN.package, PIN.suite, work, log)
            version = dsc.read_text().partition("\nVersion: ")[2].partition("\n")[0]
            if not find(PIN, version, dsc).proved:
                say(
                    f"qemu: {version} is newer than {PIN.newest}:"
                    " it is used if qemu/*.patch applies"
                )
            source = next(work.glob("*/debian")).parent
            words = ("sh", "-ec", SCRIPT, "sh", *map(str, patches))
            # Find Debian's Python and meson, not those of the virtual environment.
            env = {"PATH": "/usr/bin:/bin", "CC": "ccache gcc", "CCACHE_BASEDIR": str(work)}
            run_logged("Building QEMU", words, log, source, build_environment() | env)
            PROGRAM.parent.mkdir(exist_ok=True)
            (source / "build" / PROGRAM.name).replace(PROGRAM)
            stamp.write_text(made_of)
    return PROGRAM


@click.command()
def command() -> None:
    """Build QEMU in build/qemu, from Debian's source package with qemu/*.patch applied."""
    say(f"qemu: {make()}")
