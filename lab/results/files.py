# SPDX-License-Identifier: GPL-2.0-only
"""Files of results: their names, writing them completely or not at all, and the latest one."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from lab.core import complete
from lab.core.errors import LabError
from lab.core.paths import RESULTS

# The kinds of files. The name of a file ends in its kind and ".jsonl"; if it ends in none of these,
# the file is of kind "bench". `make bench WHAT=live ARGS=--contended` writes the kind "yield", for
# which the report has no section. Files of the kinds "memory" and "cycles" are the reference's; a
# run of `make bench` has their lines.
KINDS = (
    *("bench", "memory", "cycles", "live", "yield", "tracking"),
    *("migrate", "cost", "lock", "crossover", "native"),
)

LATEST = "latest.jsonl"
FREE_MIB = 4

# The option of every command that measures; its value is for output_file().
output_option = click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File for the results, instead of one in build/results/.",
)


def kind_of(file: Path) -> str:
    """The kind of FILE by its name: 20260131T120000Z-live.jsonl and live.jsonl are "live"."""
    last = file.resolve().stem.rsplit("-", 1)[-1]
    return last if last in KINDS else KINDS[0]


def output_file(output: Path | None, name: str, ending: str = "jsonl") -> Path:
    """The file to write results to. Call it before measuring: LabError, if it cannot be written.

    name: what is measured; it ends the file's name, which tells the kind of the results.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    usual = RESULTS / f"{stamp}-{name}.{ending}"
    file = output or usual
    if output is None:
        RESULTS.mkdir(parents=True, exist_ok=True)
    if kind_of(file) != kind_of(usual):
        raise LabError(
            f"--output: {file.name} ends like results of another kind; end it in -{name}.{ending}"
        )
    if not file.parent.is_dir():
        raise LabError(f"--output: there is no directory {file.parent}")
    if file.exists():
        raise LabError(f"--output: {file} exists; results are never overwritten")
    if shutil.disk_usage(file.parent).free < FREE_MIB << 20:
        raise LabError(f"no space left in {file.parent}: {FREE_MIB} MiB are needed")
    return file


def beside(name: str) -> Path:
    """The directory NAME beside that of the results."""
    return RESULTS.parent / name


def kept() -> list[Path]:
    """Results of earlier runs, the newest first: names begin with the time."""
    return sorted(RESULTS.glob("*-*.jsonl"), reverse=True)


def write_records(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write FILE as JSON lines, complete or not at all."""
    with complete.file(file) as stream:
        stream.writelines(f"{json.dumps(record)}\n" for record in records)


def name_latest(file: Path) -> None:
    """Make `latest.jsonl` in the directory of FILE a link to it, by replacing an older link."""
    fresh = file.with_name(f".{LATEST}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(file.name)
    fresh.replace(file.with_name(LATEST))
