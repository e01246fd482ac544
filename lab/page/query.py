# SPDX-License-Identifier: GPL-2.0-only
"""One figure of the reference, asked for in a line of text.

    bench ept=true vcpus=8 write_percent=100 phase=dirty iteration=2 eager=false
    crossover ... phase=dirty iteration=2 / crossover ... phase=dirty iteration=1
    cost ept=true vcpus=1 mib_per_vcpu=32 value=instructions
    crossing ept=false by=cpu

The first word is a kind of results, the others are keys of its lines (docs/results-format.md)
with their values. Exactly one line may have all of them. "value" names the key that is shown,
"seconds" if it is not given, in milliseconds. A kernel that is not named is the series, a cycle the
first one. With a slash it is a ratio. phase=splitting is the sum of the first CLEAR and of the
first writes after it. "crossing" is computed: the percentage of memory written from which on Dirty
bits are cheaper, by=time, by=cpu, or by=idle: by time, of all memory, the rest being idle.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lab.core.errors import LabError
from lab.results import tables, tradeoff
from lab.results.sources import Sources

# Factors to multiply a figure with, by the last word of its key.
SCALES = {"seconds": 1e3, "us": 1e-3, "ns": 1e-6}
CROSSING = "crossing"
# The query phase=splitting, and the two phases that it sums up, in runs with initially-all-set.
SPLITTING = f"phase={tables.SPLITTING.phase}"
SUMMANDS = tuple(f"phase={row.phase} iteration={row.iteration}" for row in tables.SUMMANDS)


def _pairs(text: str, words: Sequence[str]) -> dict[str, Any]:
    pairs = [word.partition("=") for word in words]
    if bad := [name for name, equals, _ in pairs if not equals]:
        raise LabError(f"query '{text}': {bad[0]} is not key=value")
    return {name: _value(value) for name, _, value in pairs}


def _line(text: str, sources: Sources) -> tuple[dict[str, Any], str]:
    """The only line that TEXT fits, and the key that is shown. LabError: none, or more than one."""
    kind, *words = text.split()
    wanted = _pairs(text, words)
    if kind not in sources:
        raise LabError(f"the reference has no {kind}.jsonl")
    shown = str(wanted.pop("value", "seconds"))
    like = {"kernel": "series", "cycle": 1} | wanted
    usual = {"cycle": 1}
    found = [
        usual | record
        for record in sources[kind].records
        if all(record.get(name, usual.get(name)) == like[name] for name in like)
    ]
    if len(found) != 1:
        said = " ".join(f"{name}={value}" for name, value in wanted.items())
        raise LabError(f"the reference has {len(found)} lines of {kind} {said}, not one")
    return found[0], shown


def _summands(text: str) -> list[str]:
    """The questions whose answers are summed up for TEXT, mostly only itself."""
    if SPLITTING not in text.split():
        return [text]
    return [text.replace(SPLITTING, part) for part in SUMMANDS]


def lines(text: str, sources: Sources) -> tuple[list[Mapping[str, Any]], str]:
    """The lines that a figure is made of, and the key that it shows. text: without a slash.

    Of a crossing, which many lines make, the values of the query.
    """
    kind, *words = text.split()
    if kind == CROSSING:
        return [_modes(_pairs(text, words))], ""
    found = [_line(part, sources) for part in _summands(text)]
    return [record for record, _ in found], found[0][1]


def _figure(text: str, sources: Sources) -> float:
    """One figure; times in milliseconds. LabError: there is none, or more than one."""
    kind, *words = text.split()
    if kind == CROSSING:
        return _crossing(sources, _pairs(text, words))
    total = 0.0
    for part in _summands(text):
        record, shown = _line(part, sources)
        number = record.get(shown)
        if not isinstance(number, int | float):
            raise LabError(f"{kind}: {shown} is {number!r}, not a number")
        total += float(number) * SCALES.get(shown.rsplit("_", 1)[-1], 1)
    return total


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _modes(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What a crossing is asked for, with what the query leaves out."""
    return {"tdp_mmu": False, "pml": not wanted["ept"], **wanted}


def _crossing(sources: Sources, wanted: Mapping[str, Any]) -> float:
    modes = _modes(wanted)
    by = modes.pop("by", "time")
    found = [
        one
        for one in tradeoff.find(sources["crossover"].times)
        if all(getattr(one.like, name) == modes[name] for name in modes)
    ]
    crossing = None
    if len(found) == 1:
        vcpus = found[0].like.vcpus if by == "cpu" else 1
        crossing = found[0].crossing_idle() if by == "idle" else found[0].crossing(vcpus)
    if crossing is None:
        raise LabError(f"the reference has no crossing with {dict(wanted)}")
    return crossing


def number(text: str, sources: Sources) -> float:
    """The result of the query TEXT: a figure, or the ratio of two. LabError: there is none."""
    over, _, under = text.partition(" / ")
    found = _figure(over, sources)
    return found / _figure(under, sources) if under else found
