# SPDX-License-Identifier: GPL-2.0-only
"""Results of scripts/split-bench.sh: one JSON object per line, see docs/results-format.md."""

import json
import math
import types
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from lab.core.errors import LabError
from lab.results.files import complete_or_absent

KERNELS = ("series", "peer", "base")
# Phase -> whether it is repeated, and so has an iteration.
PHASES = {
    "populate": False,
    "enable": False,
    "dirty": True,
    "get": True,
    "clear": True,
    "disable": False,
}
# Values of kvm.dirty_harvest, the one of older lines first.
HARVESTS = ("off", "on", "auto")
# Where a line begins; the rest has the order of the fields. As split-bench.sh writes them.
FIRST = ("machine", "kernel", "kernel_version")


class BadResultError(LabError):
    """A line that is no measurement, or a measurement that is not the one expected."""


@dataclass(frozen=True)
class Key:
    """What was measured: everything about a measurement but the time and who built the kernel.

    ept: two-dimensional paging is on (npt on AMD). tdp_mmu: it is in effect.
    iteration: from 1, None for a phase that comes once. dirty_harvest: the parameter, "off"
    for a kernel without it. pml: False only with EPT whose PML is off; True says nothing where
    there is no EPT. Both have the value of a line that is older than they are.
    """

    machine: str
    kernel: str
    ept: bool
    tdp_mmu: bool
    vcpus: int
    bytes_per_vcpu: int
    backing: str
    write_percent: int
    initially_all_set: bool
    eager: bool
    phase: str
    iteration: int | None
    dirty_harvest: str = field(default=HARVESTS[0], kw_only=True)
    pml: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Measurement(Key):
    """One time with its dimensions; the fields are the keys of a line.

    seconds: 0 or more, by the machine's clock. The others are None where the line is older
    than the key. cpus: those that the test may use. overcommitted: the vCPUs and the test's
    main thread have less than a CPU each. pinned: each was pinned to one of its own.
    """

    kernel_version: str
    seconds: float
    cpus: int | None = None
    overcommitted: bool | None = None
    pinned: bool | None = None

    @property
    def key(self) -> Key:
        return Key(**{field.name: getattr(self, field.name) for field in fields(Key)})


def _types_of(hint: Any) -> tuple[type, ...]:
    return get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


HINTS = {name: _types_of(hint) for name, hint in get_type_hints(Measurement).items()}
# Keys that came after the first results were written.
LATER = {field.name for field in fields(Measurement) if field.default is not MISSING}
NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def _has_type(value: object, wanted: tuple[type, ...]) -> bool:
    # In Python True is an int; in JSON it is not a number. A time may be a whole one.
    return type(value) in wanted or (float in wanted and type(value) is int)


def _check_types(record: dict[str, Any]) -> None:
    for name, wanted in HINTS.items():
        if name not in record:
            if name in LATER:
                continue
            raise BadResultError(f"lacks {name!r}")
        if not _has_type(record[name], wanted):
            names = " or ".join(NAMES.get(kind, "null") for kind in wanted)
            raise BadResultError(f"{name!r} is {record[name]!r} instead of {names}")


def _check_values(found: Measurement) -> None:
    checks = {
        "kernel": found.kernel in KERNELS,
        "phase": found.phase in PHASES,
        "vcpus": found.vcpus >= 1,
        "bytes_per_vcpu": found.bytes_per_vcpu >= 1,
        "write_percent": 0 <= found.write_percent <= 100,
        "seconds": found.seconds >= 0,
        "cpus": found.cpus is None or found.cpus >= 1,
        "tdp_mmu": found.ept or not found.tdp_mmu,
        "dirty_harvest": found.dirty_harvest in HARVESTS,
        "pml": found.ept or found.pml,
    }
    for name, good in checks.items():
        if not good:
            raise BadResultError(f"{name!r} cannot be {getattr(found, name)!r}")
    if PHASES[found.phase] != ((found.iteration or 0) >= 1) or found.iteration == 0:
        raise BadResultError(f"'iteration' cannot be {found.iteration!r} in phase {found.phase!r}")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise BadResultError("has a key twice")
    return record


def parse(line: str) -> Measurement:
    """Read one line. Keys that are not known are ignored: the format grows.

    BadResultError: not an object, a key that is missing or twice, or a value that cannot be.
    """
    try:
        record = json.loads(line, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise BadResultError(f"is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise BadResultError("is not a JSON object")
    _check_types(record)
    known = {field.name for field in fields(Measurement)} & record.keys()
    found = Measurement(**{name: record[name] for name in known})
    if not math.isfinite(found.seconds):
        raise BadResultError(f"'seconds' cannot be {found.seconds!r}")
    _check_values(found)
    return found


def parse_all(text: str, name: str) -> list[Measurement]:
    """Read every line of TEXT. BadResultError names NAME and the line, also for half a line
    at the end and for something measured twice."""
    if text and not text.endswith("\n"):
        raise BadResultError(f"{name}: ends in half a line")
    found: dict[Key, Measurement] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            one = parse(line)
            if one.key in found:
                raise BadResultError("measures again what an earlier line has")
        except BadResultError as error:
            raise BadResultError(f"{name}, line {number}: {error}") from error
        found[one.key] = one
    return list(found.values())


def _is_written(name: str, value: object) -> bool:
    """Keys without a value are left out, and so is "pml", which marks an exception."""
    return name not in LATER or not (value is None or (name == "pml" and value))


def to_line(found: Measurement) -> str:
    """One line with its newline; a time keeps the nanoseconds that the test printed."""
    record: dict[str, Any] = dict.fromkeys(FIRST) | asdict(found)
    seconds = record.pop("seconds")
    record = {name: value for name, value in record.items() if _is_written(name, value)}
    return f'{json.dumps(record)[:-1]}, "seconds": {seconds:.9f}}}\n'


def write(file: Path, measurements: Iterable[Measurement]) -> None:
    """Write FILE, replacing it: completely or, when an exception is raised, not at all."""
    with complete_or_absent(file) as stream:
        stream.writelines(map(to_line, measurements))
