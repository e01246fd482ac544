# SPDX-License-Identifier: GPL-2.0-only
"""The root file system of an emulated machine: busybox, the job's files, our init.

The same job gives the same bytes: names are sorted, and there are no times, owners or inode numbers
of the host. Keep it so: simulated time depends on every byte.
"""

import re
import shlex
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from lab.core.errors import LabError
from lab.machines.job import Job
from lab.machines.parameters import sysfs_name

BUSYBOX = Path("/bin/busybox")
INIT = Path(__file__).parent / "guest" / "init"
DIRECTORIES = ("bin", "dev", "etc", "lab", "proc", "root", "sys", "tmp")
# Where init and the report live; a job's file must not replace them.
RESERVED = ("/init", "/lab", "/dev", "/proc", "/sys", "/bin/busybox")

OUT = "/lab/back/out"
PROGRESS = "/lab/progress"

# A library that the C library loads by itself when a program calls one of these functions, and
# without which it aborts. So ldd does not list it.
UNWINDER = "libgcc_s.so.1"
UNWINDING = re.compile(rb"\0pthread_(cancel|exit)\0")


@dataclass(frozen=True)
class ArchiveEntry:
    """One name in the archive. path has no leading slash; data is a symlink's target too."""

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def _directory(path: str) -> ArchiveEntry:
    return ArchiveEntry(path, stat.S_IFDIR | 0o755)


def _program(path: str, data: bytes) -> ArchiveEntry:
    return ArchiveEntry(path, stat.S_IFREG | 0o755, data)


def _text(path: str, text: str) -> ArchiveEntry:
    return ArchiveEntry(path, stat.S_IFREG | 0o644, text.encode())


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _record(entry: ArchiveEntry, inode: int) -> bytes:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    size = len(entry.data)
    # Owner and time are 0; the device that a file lies on, and a checksum, are not used.
    numbers = (inode, entry.mode, 0, 0, links, 0, size, 0, 0, *entry.device, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % number for number in numbers)
    return _padded(header + name) + _padded(entry.data)


def cpio(entries: Iterable[ArchiveEntry]) -> bytes:
    """Return entries as an archive in the "newc" format, parents before what they hold.

    Of two entries for one path the later one counts.
    """
    unique = {entry.path: entry for entry in entries}
    ordered = [unique[path] for path in sorted(unique, key=lambda path: path.split("/"))]
    records = [_record(entry, inode) for inode, entry in enumerate(ordered, start=1)]
    return b"".join(records) + _record(ArchiveEntry("TRAILER!!!", 0), 0)


def _with_parents(entries: Sequence[ArchiveEntry]) -> Iterator[ArchiveEntry]:
    for entry in entries:
        for parent in PurePosixPath(entry.path).parents:
            if str(parent) != ".":
                yield _directory(str(parent))
    yield from entries


@cache
def _common(busybox: Path) -> bytes:
    entries = [_directory(path) for path in DIRECTORIES]
    entries.append(ArchiveEntry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)))
    entries.append(_program("bin/busybox", busybox.read_bytes()))
    link = stat.S_IFLNK | 0o777
    listing = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True)
    applets = (name for name in listing.stdout.split() if name != "busybox")
    entries += [ArchiveEntry(f"bin/{name}", link, b"busybox") for name in applets]
    entries.append(_program("init", INIT.read_bytes()))
    return cpio(entries)


def _inside(path: str) -> str:
    """Return the name in the archive of a path that a job gives. LabError: it cannot be used."""
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or pure == PurePosixPath("/"):
        raise LabError(f"{path}: a path inside the machine must be absolute, as in /test/run")
    if any(pure.is_relative_to(reserved) for reserved in RESERVED):
        raise LabError(f"{path}: reserved inside the machine; choose another directory")
    return str(pure).lstrip("/")


def _host_files(files: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Yield (path in the archive, host file) for every regular file of a job.

    Symlinks to files become the file; symlinks to directories are not followed.
    """
    for path, source in files.items():
        inside = _inside(path)
        if source.is_dir():
            found = (item for item in source.rglob("*") if item.is_file())
            yield from ((f"{inside}/{item.relative_to(source)}", item) for item in found)
        elif source.is_file():
            yield inside, source
        else:
            raise LabError(f"{source}: no such file (wanted as {path} inside the machine)")


def check_files(files: Mapping[str, Path]) -> None:
    """Raise LabError if a job's file is missing or must not be where it is wanted."""
    list(_host_files(files))


def _is_elf(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def libraries(programs: Iterable[Path]) -> list[Path]:
    """Return the loader and the libraries that the dynamic ones among PROGRAMS load, found by ldd.

    Includes UNWINDER, from the directory of the C library, if one of them may need it.
    Raises LabError when a library is missing on this host.
    """
    programs = list(programs)
    words = [str(program) for program in programs]
    if not words:
        return []
    listing = subprocess.run(["ldd", *words], capture_output=True, text=True, check=False).stdout
    missing = re.search(r"^\s*(\S+) => not found", listing, re.MULTILINE)
    if missing:
        raise LabError(f"{words[0]}: needs {missing[1]}, which this host does not have")
    found = {Path(path) for path in re.findall(r"(/\S+) \(0x[0-9a-f]+\)$", listing, re.M)}
    if any(UNWINDING.search(program.read_bytes()) for program in programs):
        found |= {file.with_name(UNWINDER) for file in found if file.name == "libc.so.6"}
    return sorted(found)


def _entries(chosen: Iterable[tuple[str, Path]]) -> list[ArchiveEntry]:
    entries = []
    for path, source in chosen:
        executable = source.stat().st_mode & stat.S_IXUSR
        mode = stat.S_IFREG | (0o755 if executable else 0o644)
        entries.append(ArchiveEntry(path, mode, source.read_bytes()))
    return entries


def _instructions(job: Job, machine: str, levels: str) -> list[ArchiveEntry]:
    variables = {
        "LAB_MACHINE": machine,
        "LAB_OUT": OUT,
        "LAB_PROGRESS": PROGRESS,
        "LAB_LEVELS": levels,
        "HOME": "/root",
        "PATH": "/bin",
    }
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    names = "".join(f"{sysfs_name(name)}\n" for name in sorted(job.parameters))
    return [
        _text("lab/environment", exports),
        _text("lab/parameters", names),
        _text("lab/command", f"exec {shlex.join(job.command)}\n"),
    ]


def payload(job: Job, machine: str, levels: str = "0-7") -> bytes:
    """Return an archive of the job's files and instructions, to add to a root file system."""
    entries = _entries(_host_files(job.files)) + _instructions(job, machine, levels)
    return cpio(_with_parents(entries))


def build(job: Job, machine: str, levels: str = "0-7") -> bytes:
    """Return the initramfs that runs job in a machine of this name.

    levels: of the kernel's messages to bring back, as a range: "0-4" is warnings and worse.

    Not compressed: on vmx-bochs unpacking takes the time that reading less saves.
    Raises LabError when one of the job's files is missing or must not be where it is wanted.
    """
    chosen = list(_host_files(job.files))
    loaded = libraries(source for _, source in chosen if _is_elf(source))
    files = _entries([(str(library).lstrip("/"), library) for library in loaded] + chosen)
    entries = files + _instructions(job, machine, levels)
    return _common(job.busybox or BUSYBOX) + cpio(_with_parents(entries))
