# SPDX-License-Identifier: GPL-2.0-only
"""Results of boots that are done, kept until the measurement that they belong to is complete.

A boot's results go by the digest of all that decides them: the job, the bytes of everything that
goes into the machine, the emulator and the lab's own code for machines.
"""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.core.errors import LabError
from lab.core.paths import LAB
from lab.machines import Job
from lab.machines.bochs import BIOS, BOCHS
from lab.machines.initramfs import BUSYBOX
from lab.measure.plan import Boot
from lab.results import jsonl
from lab.results.jsonl import Measurement

MACHINERY = (BOCHS, BIOS, BUSYBOX)


def digest(boot: Boot, job: Job) -> str:
    """What decides a boot's results, as a file name. Two different boots never share one."""
    words: Iterable[object] = (
        boot.machine,
        boot.kernel,
        job.command,
        sorted(job.parameters.items()),
        job.cpus,
        job.memory_mib,
        sorted(job.files),
        job.cmdline,
    )
    total = hashlib.sha256(repr(words).encode())
    inside = [job.files[name] for name in sorted(job.files)]
    own = sorted(file for file in (LAB / "machines").rglob("*") if file.suffix != ".pyc")
    for file in (job.kernel, *inside, *MACHINERY, *own, LAB / "core" / "process.py"):
        there = file.is_file()
        total.update(hashlib.sha256(file.read_bytes()).digest() if there else b"absent")
    return total.hexdigest()


@dataclass(frozen=True)
class Store:
    """A directory with a file for each boot that is done: complete, or not there."""

    directory: Path

    def _file(self, boot: Boot, job: Job) -> Path:
        return self.directory / f"{digest(boot, job)}.jsonl"

    def keep(self, boot: Boot, job: Job, found: Sequence[Measurement]) -> None:
        jsonl.write(self._file(boot, job), found)

    def find(self, boot: Boot, job: Job) -> list[Measurement] | None:
        """What keep() was given for this boot; None if nothing, or if it's unreadable."""
        file = self._file(boot, job)
        with suppress(FileNotFoundError, UnicodeDecodeError, LabError):
            return jsonl.parse_all(file.read_text(), str(file))
        return None

    def drop(self, jobs: Iterable[tuple[Boot, Job]]) -> None:
        """Forget these boots, and the directory with the last of all."""
        for boot, job in jobs:
            self._file(boot, job).unlink(missing_ok=True)
        with suppress(OSError):
            self.directory.rmdir()
