# SPDX-License-Identifier: GPL-2.0-only
"""`lab native`: compile the code, make passes over guests and reads, and write the results."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil

from lab.build.kernel import source_tree
from lab.core.errors import LabError
from lab.core.steps import duration, step
from lab.measure.native import code, guest, reads
from lab.measure.native.guest import BYTES_BESIDE, TABLES_PER_GIB, Case, Counts
from lab.measure.options import numbers
from lab.page import command as page
from lab.page import native
from lab.results import origin
from lab.results.files import output_file, output_option, write_records

# Memory for all page tables and rmap heads of a GiB; and the time of a repetition, as it was
# measured.
BYTES_PER_GIB = TABLES_PER_GIB * 8600
SECONDS, SECONDS_PER_GIB = 0.4, 0.06
CPU = re.compile(r"^model name\s*: (.*)$", re.MULTILINE)
VERSION = re.compile(r"^(?:VERSION|PATCHLEVEL|SUBLEVEL) = (\d+)$", re.MULTILINE)


def check(sizes: Sequence[int], repeats: int) -> None:
    """LabError: the options cannot be measured, or this machine has too little memory."""
    if not sizes or min(sizes) < 1 or repeats < 1:
        raise LabError("--sizes, --repeats: each number must be 1 or more")
    needed = max(sizes) * BYTES_PER_GIB + 2 * BYTES_BESIDE
    if needed > (free := psutil.virtual_memory().available):
        raise LabError(f"--sizes: {max(sizes)} GiB take {needed >> 20} MiB; {free >> 20} are free")


def record(case: Case, found: Sequence[Counts], gib: int) -> dict[str, Any]:
    """A line of the results: the figures of all passes of a case, per 2 MiB."""
    kinds = {name: [one[name] / gib / TABLES_PER_GIB for one in found] for name in found[0]}
    ns = kinds.pop("ns")
    figures = {"ns_per_2mib": median(ns), "lowest_ns": min(ns), "highest_ns": max(ns)}
    figures |= {f"{name}_per_2mib": median(counts) for name, counts in kinds.items()}
    rounded = {key: round(value, 1) for key, value in figures.items()}
    return {"gib": gib, **case._asdict(), "passes": len(found), **rounded}


def processor() -> dict[str, Any]:
    """What all records say about this machine."""
    cpu = CPU.search(Path("/proc/cpuinfo").read_text())
    return {"machine": "native", "cpu": cpu[1] if cpu else "unknown"}


def measure(sizes: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    linux = source_tree("series")
    libraries = code.build(linux)
    release = ".".join(VERSION.findall((linux / "Makefile").read_text()))
    which = processor() | {"kernel_version": release} | origin.measured("native")
    records: list[dict[str, Any]] = []
    left = [repeats * (SECONDS + gib * SECONDS_PER_GIB) for gib in sizes]
    for number, gib in enumerate(sizes):
        found: dict[Case, list[Counts]] = defaultdict(list)
        with step(f"native: {gib} GiB", f"{duration(sum(left[number:]))} for all that is left"):
            for case, counts in guest.passes(libraries, gib, repeats):
                found[case].append(counts)
        records += [which | record(case, counts, gib) for case, counts in found.items()]
    return records


@click.command()
@click.option("--sizes", callback=numbers, default="1 4 16 64 256", help="GiB of guest memory.")
@click.option(
    "--reads", "read_sizes", callback=numbers, default="1 4 16", help="GiB of memory that is read."
)
@click.option("--repeats", default=9, help="Passes over the memory for each measurement.")
@output_option
def command(
    sizes: tuple[int, ...], read_sizes: tuple[int, ...], repeats: int, output: Path | None
) -> None:
    """Measure splitting, CLEAR and the collection of Dirty bits on this machine, without a guest.

    The command runs KVM's own functions, of the series and of the unpatched kernel, in user space,
    so that times depend on this processor's caches. It also measures the benefit of huge pages, by
    reads of memory that is mapped by 2 MiB and by 4 KiB pages. Run nothing else meanwhile. Print
    tables, write JSON lines, and draw the report.
    """
    check(sizes, repeats)
    file = output_file(output, "native")
    found = measure(sizes, repeats)
    of = {name: found[0][name] for name in (origin.SOURCE, origin.COMMIT)}
    of_reads = reads.measure(read_sizes, repeats, processor() | of)
    write_records(file, [*found, *of_reads])
    shown = [native.table(found), *([native.reads_table(of_reads)] if of_reads else [])]
    page.present("native", shown, file, draw=output is None)
