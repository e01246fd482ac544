# SPDX-License-Identifier: GPL-2.0-only
"""Files of results, line by line, so that each figure of a report can name its line."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lab.core.errors import LabError
from lab.core.paths import numbers
from lab.results import files, jsonl
from lab.results.files import KINDS, kind_of
from lab.results.jsonl import Key, Measurement

# The kinds whose lines split-bench.sh writes.
MEASURED = ("bench", "memory", "cycles", "crossover")
# The kind of the measurements of `split-bench.sh --tracked` in files of MEASURED. No file is named
# so.
TRACKED = "tracked"
# The base of lines that are older than the key "kernel_version": there was only this one then.
OLDEST_BASE = "6.12"


@dataclass(frozen=True)
class Line:
    """A line of a file. number: counted from 1. record: its JSON object; do not change it."""

    file: str
    number: int
    text: str = field(compare=False)
    record: Mapping[str, Any] = field(compare=False)


class Measured(NamedTuple):
    """A measurement and the line that it is from."""

    measurement: Measurement
    line: Line


@dataclass(frozen=True)
class Source:
    """A file of results. name: as the pages call it, without directories and links."""

    kind: str
    name: str
    data: bytes
    lines: tuple[Line, ...]

    @property
    def base(self) -> str:
        """Which base the kernels were built on."""
        return next(iter(self.bases()), OLDEST_BASE)

    def bases(self) -> list[str]:
        """The bases that lines name, each once. load() refuses a file with more than one."""
        versions = (line.record.get("kernel_version") for line in self.lines)
        return list(dict.fromkeys(base_of(str(version)) for version in versions if version))

    def each(self) -> Iterator[Measured]:
        """For results of `make bench` and the like: every measurement and its line.

        Lines of phases that came later are left out, as docs/results-format.md promises.
        LabError: a line that is no measurement.
        """
        for line in self.lines:
            phase = line.record.get("phase")
            if not isinstance(phase, str) or phase in jsonl.PHASES:
                try:
                    one = jsonl.parse(line.text)
                except LabError as error:
                    raise LabError(f"{line.file}, line {line.number}: {error}") from error
                yield Measured(one, line)

    @cached_property
    def measured(self) -> dict[Key, Measured]:
        """All measurements and their lines, by what was measured."""
        return {found.measurement.key: found for found in self.each()}

    @property
    def times(self) -> dict[Key, float]:
        return {key: found.measurement.seconds for key, found in self.measured.items()}

    @property
    def measurements(self) -> list[Measurement]:
        return [found.measurement for found in self.measured.values()]

    def at(self, keys: Iterable[Key]) -> tuple[Line, ...]:
        """The lines of those KEYS that were measured."""
        return tuple(self.measured[key].line for key in keys if key in self.measured)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """All records. Those without a kernel are about the series."""
        return [{"kernel": "series", **line.record} for line in self.lines]

    def of(self, record: str) -> list[Line]:
        """The lines of a live file with this value of "record"."""
        return [line for line in self.lines if line.record.get("record") == record]


OfBase = TypeVar("OfBase")
# Sources: by kind. Bases: the sources of each base, the newest base first.
Sources = Mapping[str, Source]
Bases = Mapping[str, Sources]


def base_of(version: str) -> str:
    """The base of a kernel: 7.3 for 7.3.4-series."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else version


def _line(name: str, number: int, text: str) -> Line:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise LabError(f"{name}, line {number}: is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise LabError(f"{name}, line {number}: is not a JSON object")
    for old, new in jsonl.RENAMED.items():
        if old in record:
            raise LabError(
                f"{name}, line {number}: {old!r} is now {new!r}: sed -i s/{old}/{new}/ {name}"
            )
    return Line(name, number, text, record)


def check_versions(found: Iterable[Measurement]) -> None:
    """LabError: a kind of kernel occurs in two versions, for example of two bases."""
    versions: dict[str, str] = {}
    for one in found:
        other = versions.setdefault(one.key.kernel, one.kernel_version)
        if other != one.kernel_version:
            raise LabError(f"results of {other} and {one.kernel_version} are never mixed")


def load(file: Path, name: str = "") -> Source:
    """Read FILE, to be called NAME if given.

    LabError: it cannot be read, is cut short, is not JSON lines, or is of two bases.
    """
    name = name or file.resolve().name
    try:
        data = file.read_bytes()
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise LabError(f"{file}: cannot be read: {reason}") from error
    if not text.endswith("\n"):
        raise LabError(f"{name}: is empty, or its last line is incomplete")
    lines = tuple(_line(name, i, line) for i, line in enumerate(text.splitlines(), 1))
    source = Source(kind_of(file), name, data, lines)
    if source.kind in MEASURED and not source.measured:
        raise LabError(f"{name}: has no measurement of `make bench`")
    if source.kind in MEASURED:
        check_versions(one for one, _ in source.each())
    if len(bases := source.bases()) > 1:
        raise LabError(f"{name}: results of {' and '.join(bases)} are never mixed")
    return source


def _parts(source: Source) -> Iterator[Source]:
    """SOURCE as it is or, if it has lines of `split-bench.sh --tracked`, those lines apart.

    These lines are only comparable with each other. The second part is of kind TRACKED and keeps
    all lines, as tracked VMs are compared with others.
    """
    usual = tuple(
        line
        for line in source.lines
        if not (line.record.get("tracked") or line.record.get("read_first"))
    )
    has_tracked = source.kind in MEASURED and usual != source.lines
    if usual or not has_tracked:
        yield replace(source, lines=usual) if has_tracked else source
    if has_tracked:
        yield replace(source, kind=TRACKED)


def newest_first(of_base: Mapping[str, OfBase]) -> dict[str, OfBase]:
    """OF_BASE in the order in which bases are shown."""
    return {base: of_base[base] for base in sorted(of_base, key=numbers, reverse=True)}


def load_bases(files: Iterable[Path]) -> Bases:
    """Read FILES. LabError: two of a kind and a base, or what load() raises."""
    given = list(files)
    names = [file.resolve().name for file in given]
    found: dict[str, dict[str, Source]] = {}
    for file, name in zip(given, names, strict=True):
        # In docs/reference two files can have the same name, in the directories of their bases.
        twice = names.count(name) > 1
        whole = load(file, f"{file.resolve().parent.name}-{name}" if twice else name)
        mine = found.setdefault(whole.base, {})
        for source in _parts(whole):
            if source.kind in mine:
                other = mine[source.kind].name
                raise LabError(
                    f"{other} and {source.name} are both of {source.kind}: name only one"
                )
            mine[source.kind] = source
    order = (*KINDS, TRACKED)
    return newest_first({b: {k: mine[k] for k in order if k in mine} for b, mine in found.items()})


def load_all(files: Iterable[Path]) -> Sources:
    """Read FILES of one base. LabError: there are more, or what load_bases() raises."""
    found = load_bases(files)
    if len(found) > 1:
        raise LabError(f"results of {' and '.join(found)} are never mixed")
    return next(iter(found.values()), {})


def _base_in(file: Path) -> str:
    """The base of FILE by its first line; empty if it has none, so that load() will refuse it."""
    with suppress(OSError, ValueError, AttributeError), file.open() as lines:
        return base_of(json.loads(next(lines, "")).get("kernel_version", OLDEST_BASE))
    return ""


def newest(directory: Path) -> list[Path]:
    """The newest file of each kind and base that there is in a directory of results."""
    found: dict[tuple[int, tuple[int, ...], str], Path] = {}
    latest = directory / files.LATEST
    # Names begin with the time.
    for file in [*sorted(directory.glob("*-*.jsonl")), *([latest] if latest.exists() else [])]:
        base = _base_in(file)
        order = tuple(-number for number in numbers(base))
        found[KINDS.index(kind_of(file)), order, base] = file
    return [found[key] for key in sorted(found)]


def beside(found: Sequence[Measurement], candidates: Iterable[Path]) -> dict[str, Source]:
    """Other base -> the first of CANDIDATES that has something of what FOUND has measured."""
    keys = {one.key for one in found}
    mine = {base_of(one.kernel_version) for one in found}
    others: dict[str, Source] = {}
    for file in candidates:
        if _base_in(file) in mine | {"", *others} or kind_of(file) != KINDS[0]:
            continue
        with suppress(LabError):
            source = load(file)
            if not keys.isdisjoint(source.measured):
                others[source.base] = source
    return others
