# SPDX-License-Identifier: GPL-2.0-only
"""Results of scripts/split-bench.sh: one JSON object per line, see docs/results-format.md.

msgspec checks the value of each field by its type. This module also refuses keys that occur twice,
and combinations of values that cannot be.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lab.core import complete
from lab.core.errors import LabError
from lab.machines.paging import Mode

KERNELS = ("series", "peer", "base")
# For each phase, whether it is repeated and so has an iteration.
PHASES = {
    "populate": False,
    "enable": False,
    "dirty": True,
    "get": True,
    "clear": True,
    "disable": False,
}
# Values of kvm.dirty_bits. Lines that are older than this key have the first one.
DIRTY_BITS = ("off", "on", "auto")
# Which accesses are writes: the values of the test's option --pattern. Lines that are older than
# this key have the first one.
PATTERNS = ("pages", "regions", "clean")
# The first keys of a line, as split-bench.sh writes it. The others have the order of the fields.
FIRST = ("machine", "kernel", "kernel_version")


def _one_of(words: Iterable[str]) -> Meta:
    return Meta(pattern=rf"^({'|'.join(words)})\Z")


Count = Annotated[int, Meta(ge=1)]
# JSON has no infinity, and no NaN.
Seconds = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


@dataclass(frozen=True)
class Key:
    """What was measured: everything about a measurement except the time and the kernel's version.

    ept: two-dimensional paging is on (npt on AMD).
    tdp_mmu: the TDP MMU is in use.
    iteration: from 1; None for a phase that occurs once.
    cycle: how often logging was enabled in this VM so far.
    dirty_bits: the parameter; "off" for a kernel that does not have it.
    pml: False if EPT is on and PML is off. True does not mean that there is PML.
    idle: the number of vCPUs that access nothing once memory is populated.
    pattern: which accesses are writes.
    tracked: dirty logging is enabled before memory is populated.
    read_first: memory is populated by reads, and nothing is written before iteration 2.

    The last seven are newer than the others. A line without them gets their defaults.
    """

    machine: str
    kernel: Annotated[str, _one_of(KERNELS)]
    ept: bool
    tdp_mmu: bool
    vcpus: Count
    bytes_per_vcpu: Count
    backing: str
    write_percent: Annotated[int, Meta(ge=0, le=100)]
    initially_all_set: bool
    eager: bool
    phase: Annotated[str, _one_of(PHASES)]
    iteration: Count | None
    cycle: Count = field(default=1, kw_only=True)
    dirty_bits: Annotated[str, _one_of(DIRTY_BITS)] = field(default=DIRTY_BITS[0], kw_only=True)
    pml: bool = field(default=True, kw_only=True)
    idle: Annotated[int, Meta(ge=0)] = field(default=0, kw_only=True)
    pattern: Annotated[str, _one_of(PATTERNS)] = field(default=PATTERNS[0], kw_only=True)
    tracked: bool = field(default=False, kw_only=True)
    read_first: bool = field(default=False, kw_only=True)

    @property
    def mode(self) -> Mode:
        """The paging mode."""
        return Mode(self.ept, self.tdp_mmu, self.pml)


KEY_NAMES = tuple(one.name for one in fields(Key))


@dataclass(frozen=True)
class Measurement(Key):
    """A time with its dimensions. The fields are the keys of a line.

    seconds: by the machine's clock.
    cpus: the number of CPUs that the test may use.
    overcommitted: the vCPUs and the test's main thread have less than a CPU each.
    pinned: each of them was pinned to a CPU of its own.
    source, commit: the code that was measured, see lab.results.origin.
    pages_2m: 2 MiB pages that the VM is mapped by before logging is disabled; if it is tracked, at
    the end of the phase.
    page_tables: pages of page tables that were added by then since the memory was populated; if the
    VM is tracked, since just before that.
    logged: pages that KVM_GET_DIRTY_LOG returned.
    pf_taken: page faults in the phase, KVM's statistic of that name.

    The last nine are None if the line is older than these keys. pages_2m and page_tables are None
    in all lines but those of phase "disable" with pattern "regions", and those of phases "populate"
    and "dirty" of a tracked VM; page_tables is None if the kernel does not count page tables.
    logged and pf_taken are None unless the VM is tracked, logged in all phases but "get". source
    and commit are None for a real machine's kernel.
    """

    kernel_version: str
    seconds: Seconds
    cpus: Count | None = None
    overcommitted: bool | None = None
    pinned: bool | None = None
    pages_2m: Annotated[int, Meta(ge=0)] | None = None
    page_tables: int | None = None
    logged: Annotated[int, Meta(ge=0)] | None = None
    pf_taken: int | None = None
    source: str | None = None
    commit: str | None = None

    @property
    def key(self) -> Key:
        return Key(**{name: getattr(self, name) for name in KEY_NAMES})


# Keys that had another name. A line that has it would be taken for one without the key.
RENAMED = {"dirty_harvest": "dirty_bits"}
NAMES = tuple(one.name for one in fields(Measurement))
# Keys that came after the first results were written.
LATER = {field.name for field in fields(Measurement) if field.default is not MISSING}


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise LabError("has a key twice")
    return record


def parse(line: str) -> Measurement:
    """Read one line. Keys that are not known are ignored: the format grows.

    LabError: not an object, a key that is missing or twice, or a value that cannot be.
    """
    try:
        found = msgspec.convert(json.loads(line, object_pairs_hook=_no_duplicates), Measurement)
    except msgspec.ValidationError as error:
        raise LabError(str(error)) from error
    except ValueError as error:
        raise LabError(f"is not JSON: {error}") from error
    if found.tdp_mmu and not found.ept:
        raise LabError("'tdp_mmu' cannot be True without 'ept'")
    if not found.pml and not found.ept:
        raise LabError("'pml' cannot be False without 'ept'")
    if found.tracked and found.initially_all_set:
        raise LabError("'tracked' cannot be True with 'initially_all_set'")
    if found.phase == "populate" and found.cycle > 1:
        raise LabError(f"'cycle' cannot be {found.cycle} in phase 'populate'")
    if PHASES[found.phase] != (found.iteration is not None):
        raise LabError(f"'iteration' cannot be {found.iteration!r} in phase {found.phase!r}")
    return found


def parse_all(text: str, name: str) -> list[Measurement]:
    """Read every line of TEXT. LabError names NAME and the line, also for half a line
    at the end and for something measured twice."""
    if text and not text.endswith("\n"):
        raise LabError(f"{name}: its last line is incomplete")
    found: dict[Key, Measurement] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            one = parse(line)
            if one.key in found:
                raise LabError("repeats the measurement of an earlier line")
        except LabError as error:
            raise LabError(f"{name}, line {number}: {error}") from error
        found[one.key] = one
    return list(found.values())


def to_line(found: Measurement) -> str:
    """One line with its newline; a time keeps the nanoseconds that the test printed."""
    record: dict[str, Any] = dict.fromkeys(FIRST) | {name: getattr(found, name) for name in NAMES}
    seconds = record.pop("seconds")
    # Leave out newer keys that have no value, or the usual one.
    usual = {"cycle": 1, "pml": True, "idle": 0, "pattern": PATTERNS[0]}
    usual |= {"tracked": False, "read_first": False}
    for name in LATER:
        if record[name] is None or record[name] == usual.get(name):
            del record[name]
    return f'{json.dumps(record)[:-1]}, "seconds": {seconds:.9f}}}\n'


def write(file: Path, measurements: Iterable[Measurement]) -> None:
    """Write FILE, replacing it: completely or, when an exception is raised, not at all."""
    with complete.file(file) as stream:
        stream.writelines(map(to_line, measurements))
