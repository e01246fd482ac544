# SPDX-License-Identifier: GPL-2.0-only
"""One figure of the reference, asked for in a line of text.

    bench ept=true vcpus=8 write_percent=100 phase=dirty iteration=2 eager=false
    crossover ... phase=dirty iteration=2 / crossover ... phase=dirty iteration=1
    cost ept=true vcpus=1 mib_per_vcpu=32 value=instructions
    crossing ept=false by=cpu

The first word is a kind of results, the others are keys of its lines (docs/results-format.md)
with their values. Exactly one line may have all of them. "value" names the key that is shown,
"seconds" if it is not given, in milliseconds. A kernel that is not named is the series. With a
slash it is a ratio. "crossing" is computed: the percentage of memory written from which on Dirty
bits are cheaper, by=time or by=cpu.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.core.errors import LabError
from lab.results import tradeoff
from lab.results.sources import Line, Sources

# What is shown of a line unless "value" says otherwise, and what it is multiplied by.
SECONDS = "seconds"
SCALES = {"seconds": 1e3, "us": 1e-3, "ns": 1e-6}
CROSSING = "crossing"


@dataclass(frozen=True)
class Query:
    """wanted: keys of a line and their values. value: the key that is shown."""

    kind: str
    wanted: Mapping[str, Any]
    value: str = SECONDS

    @classmethod
    def parse(cls, text: str) -> "Query":
        """LabError: not words of the form key=value behind the kind of results."""
        kind, *words = text.split()
        pairs = [word.partition("=") for word in words]
        if bad := [name for name, equals, _ in pairs if not equals]:
            raise LabError(f"query '{text}': {bad[0]} is not key=value")
        wanted = {name: _value(value) for name, _, value in pairs}
        return cls(kind, wanted, str(wanted.pop("value", SECONDS)))

    def number(self, sources: Sources) -> float:
        """The figure; times in milliseconds. LabError: there is none, or more than one."""
        if self.kind == CROSSING:
            return _crossing(sources, self.wanted)
        found = [line for line in self._lines(sources) if self._fits(line)]
        if len(found) != 1:
            words = " ".join(f"{name}={value}" for name, value in self.wanted.items())
            raise LabError(f"the reference has {len(found)} lines of {self.kind} {words}, not one")
        number = found[0].record.get(self.value)
        if not isinstance(number, int | float):
            raise LabError(f"{self.kind}: {self.value} is {number!r}, not a number")
        return float(number) * SCALES.get(self.value.rsplit("_", 1)[-1], 1)

    def _lines(self, sources: Sources) -> tuple[Line, ...]:
        if self.kind not in sources:
            raise LabError(f"the reference has no {self.kind}.jsonl")
        return sources[self.kind].lines

    def _fits(self, line: Line) -> bool:
        record = line.record
        if "kernel" not in self.wanted and record.get("kernel", "series") != "series":
            return False
        return all(record.get(name) == value for name, value in self.wanted.items())


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _crossing(sources: Sources, wanted: Mapping[str, Any]) -> float:
    modes = {"by": "time", "tdp_mmu": False, **wanted}
    found = [
        one
        for one in tradeoff.find(sources["crossover"].times)
        if (one.like.ept, one.like.tdp_mmu) == (modes["ept"], modes["tdp_mmu"])
    ]
    vcpus = found[0].like.vcpus if modes["by"] == "cpu" and found else 1
    crossing = found[0].crossing(vcpus) if len(found) == 1 else None
    if crossing is None:
        raise LabError(f"the reference has no crossing with {dict(wanted)}")
    return crossing


def number(text: str, sources: Sources) -> float:
    """What TEXT asks for: a figure, or the ratio of two. LabError: the reference has it not."""
    over, _, under = text.partition(" / ")
    found = Query.parse(over).number(sources)
    return found / Query.parse(under).number(sources) if under else found
