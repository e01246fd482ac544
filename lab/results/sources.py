# SPDX-License-Identifier: GPL-2.0-only
"""The files that a report is made of, line by line, so that each figure can name its line."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lab.core.errors import LabError
from lab.results import files, jsonl
from lab.results.jsonl import Key, Measurement

# What the names of files end in, before ".jsonl"; "bench" is what ends in none of the others.
# "yield" has no section of the report: its few figures are in docs/measuring.md.
KINDS = ("bench", "live", "yield", "migrate", "cost", "lock", "crossover")
# Those with the lines of split-bench.sh.
MEASURED = ("bench", "crossover")


@dataclass(frozen=True)
class Line:
    """One line of a file. number: from 1. record: what it says, not to be changed."""

    file: str
    number: int
    text: str = field(compare=False)
    record: Mapping[str, Any] = field(compare=False)


@dataclass(frozen=True)
class Source:
    """A file of results. name: as the pages call it, without directories and links."""

    kind: str
    name: str
    data: bytes
    lines: tuple[Line, ...]

    def each(self) -> Iterator[tuple[Measurement, Line]]:
        """For results of `make bench` and the like: every measurement and its line.

        Lines of phases that came later are left out, as docs/results-format.md promises.
        LabError: a line that is no measurement.
        """
        for line in self.lines:
            phase = line.record.get("phase")
            if not isinstance(phase, str) or phase in jsonl.PHASES:
                yield _measurement(line), line

    @cached_property
    def measured(self) -> dict[Key, tuple[Measurement, Line]]:
        """The same by what was measured."""
        return {one.key: (one, line) for one, line in self.each()}

    @property
    def times(self) -> dict[Key, float]:
        return {key: one.seconds for key, (one, _) in self.measured.items()}

    @property
    def measurements(self) -> list[Measurement]:
        return [one for one, _ in self.measured.values()]

    def at(self, keys: Iterable[Key]) -> tuple[Line, ...]:
        """The lines of those KEYS that were measured."""
        return tuple(self.measured[key][1] for key in keys if key in self.measured)

    def of(self, record: str) -> list[Line]:
        """The lines of a live file with this value of "record"."""
        return [line for line in self.lines if line.record.get("record") == record]


Sources = Mapping[str, Source]


def _measurement(line: Line) -> Measurement:
    try:
        return jsonl.parse(line.text)
    except LabError as error:
        raise LabError(f"{line.file}, line {line.number}: {error}") from error


def kind_of(file: Path) -> str:
    """What is in FILE, by its name: 20260131T120000Z-live.jsonl and live.jsonl are "live"."""
    last = file.resolve().stem.rsplit("-", 1)[-1]
    return last if last in KINDS else KINDS[0]


def _line(name: str, number: int, text: str) -> Line:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise LabError(f"{name}, line {number}: is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise LabError(f"{name}, line {number}: is not a JSON object")
    return Line(name, number, text, record)


def check_versions(found: Iterable[Measurement]) -> None:
    """LabError: a kind of kernel is there in two versions, such as that of another base."""
    versions: dict[str, str] = {}
    for one in found:
        other = versions.setdefault(one.key.kernel, one.kernel_version)
        if other != one.kernel_version:
            raise LabError(f"results of {other} and {one.kernel_version} are never mixed")


def load(file: Path) -> Source:
    """Read FILE. LabError: it cannot be read, is cut short, or is not JSON lines."""
    name = file.resolve().name
    try:
        data = file.read_bytes()
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise LabError(f"{file}: cannot be read: {reason}") from error
    if not text.endswith("\n"):
        raise LabError(f"{name}: is empty or ends in half a line")
    lines = tuple(_line(name, i, line) for i, line in enumerate(text.splitlines(), 1))
    source = Source(kind_of(file), name, data, lines)
    if source.kind in MEASURED and not source.measured:
        raise LabError(f"{name}: has no measurement of `make bench`")
    if source.kind in MEASURED:
        check_versions(one for one, _ in source.each())
    return source


def load_all(files: Iterable[Path]) -> Sources:
    """Kind -> file. LabError: two of a kind, or what load() raises."""
    found: dict[str, Source] = {}
    for file in files:
        source = load(file)
        if source.kind in found:
            other = found[source.kind].name
            raise LabError(f"{other} and {source.name} are both of {source.kind}: give one")
        found[source.kind] = source
    return {kind: found[kind] for kind in KINDS if kind in found}


def newest(directory: Path) -> list[Path]:
    """The newest file of each kind that there is in a directory of results."""
    latest = directory / files.LATEST
    found = [latest] if latest.exists() else []
    for kind in KINDS[1:]:
        # Names begin with the time.
        found += sorted(directory.glob(f"*-{kind}.jsonl"))[-1:]
    return found
