# SPDX-License-Identifier: GPL-2.0-only
"""Static 32-bit programs for machines with a 32-bit kernel: Debian's busybox, and tests.

The host has no 32-bit libc. Tests use the kernel's nolibc, which consists of header files.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from lab.build.kernel import arch_of, build_environment, make_command, source_tree
from lab.core import complete
from lab.core.locks import locked
from lab.core.paths import BUILD, LAYOUT
from lab.core.steps import run_logged, step
from lab.series import archive, tree

CONFIG = "pae"
OBJECTS = f"obj-{CONFIG}"
BUSYBOX = BUILD / "i386" / "busybox"
NOLIBC = "tools/include/nolibc"
FLAGS = (
    *("-m32", "-static", "-no-pie", "-fno-pie", "-Os", "-s", "-Wall", "-Wextra", "-Werror"),
    *("-ffreestanding", "-nostdlib", "-fno-stack-protector"),
)


def busybox() -> Path:
    """Debian's static busybox for i386, fetched once. SourceMissing: it cannot be had."""
    with locked(tree.lock(BUSYBOX.parent)):
        if not BUSYBOX.exists():
            with (
                step("Fetching busybox for i386", "10 s"),
                complete.directory(BUSYBOX.parent) as fresh,
                TemporaryDirectory(dir=fresh) as directory,
            ):
                root, log = Path(directory), LAYOUT.log / "busybox32.log"
                deb = archive.fetch("busybox-static", archive.codename(), root, log, "i386")
                archive.unpack(deb, root)
                (root / "bin/busybox").rename(fresh / BUSYBOX.name)
    return BUSYBOX


def build(file: Path) -> Path:
    """Build the program of one C file. WorkFailed: it does not compile."""
    source = source_tree("series")
    program = LAYOUT.linux / OBJECTS / "programs" / file.stem
    log = LAYOUT.log / f"programs32-{file.stem}.log"
    log.unlink(missing_ok=True)
    env = build_environment()
    with locked(tree.lock(source)):
        program.parent.mkdir(parents=True, exist_ok=True)
        headers = make_command(OBJECTS, "headers", arch=arch_of(CONFIG))
        run_logged("make headers", headers, log, source, env)
        nolibc = ("-I", str(source / NOLIBC), "-include", "nolibc.h")
        system = ("-isystem", str(source / OBJECTS / "usr/include"))
        command = ("gcc", *FLAGS, *nolibc, *system, "-o", str(program), str(file.resolve()))
        run_logged(f"building {file.name}", command, log, source, env)
    return program
