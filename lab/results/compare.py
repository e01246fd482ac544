# SPDX-License-Identifier: GPL-2.0-only
"""Two files of results side by side, and what moved between them.

What is compared, and which difference counts, is in docs/measuring.md: "Comparing two results".
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab import machines
from lab.core.errors import LabError
from lab.results import notation, sources, tables
from lab.results.jsonl import Key
from lab.results.table import Table

# Two ticks of the kernel's timer: phases that wait for grace periods, or for threads to start, vary
# by whole ticks.
TICKS_S = 2 * 0.004
# A figure has not moved if the difference is within either limit: a share of the smaller time, or
# seconds, by phase. docs/measuring.md gives the reasons for these values.
SHARE = tables.NOISE
# Seconds are a limit only as far as they are at most this share of the smaller time: what is short
# could grow several times over otherwise. PLAIN: phases that no claim is about, and that vary more.
MOST_SHARE = 1 / 3
PLAIN = ("populate",)
LIMITS_S = dict.fromkeys(("populate", "enable", "disable"), TICKS_S)
LIMITS_S |= {"dirty": 100e-6, "get": 5e-6, "clear": 100e-6}
# The same for the dirty time of an iteration without splitting: it is so short that a tick shows.
UNPAID_S = TICKS_S

Times = dict[Key, list[float]]


@dataclass(frozen=True)
class Side:
    """One set of results. times: every value that a key was measured with, in order."""

    name: str
    times: Times
    versions: frozenset[str]


@dataclass(frozen=True)
class Pair:
    """A figure that both have. before, after: medians, seconds. judged: whether MOVED is known."""

    key: Key
    before: float
    after: float
    moved: bool
    judged: bool = True

    @property
    def change(self) -> float:
        """The factor by which it grew or shrank, at least 1."""
        low, high = sorted((self.before, self.after))
        return high / low if low > 0 else float("inf") if high > 0 else 1.0


@dataclass(frozen=True)
class Comparison:
    """pairs: in the order of A. only: name of a side -> keys that it alone has."""

    pairs: list[Pair]
    only: Mapping[str, list[Key]] = field(default_factory=dict)

    @property
    def moved(self) -> list[Pair]:
        """The figures that moved, the largest change first."""
        return sorted((p for p in self.pairs if p.moved), key=lambda p: p.change, reverse=True)


def load(files: Sequence[Path]) -> Side:
    """Read one side: a file, and perhaps others that repeat it. Lines may repeat, too.

    LabError: a file that cannot be read, or a line that is no measurement.
    """
    found = [one for file in files for one, _ in sources.load(file).each()]
    sources.check_versions(found)
    times: Times = {}
    for one in found:
        times.setdefault(one.key, []).append(one.seconds)
    return Side(str(files[0]), times, frozenset(one.kernel_version for one in found))


def _pair(key: Key, before: Sequence[float], after: Sequence[float], lockstep: bool) -> Pair:
    first, second = statistics.median(before), statistics.median(after)
    if lockstep:
        paying = tables.headline(key.initially_all_set).iteration or 0
        unpaid = key.phase == "dirty" and (key.iteration or 0) < paying
        limit_s = UNPAID_S if unpaid else LIMITS_S[key.phase]
        smaller = min(first, second)
        if key.phase not in PLAIN:
            limit_s = min(limit_s, MOST_SHARE * smaller)
        allowed = max(limit_s, SHARE * smaller)
        return Pair(key, first, second, abs(second - first) > allowed)
    if min(len(before), len(after)) < 2:
        return Pair(key, first, second, moved=False, judged=False)
    spread = max(max(before) - min(before), max(after) - min(after))
    return Pair(key, first, second, abs(second - first) > spread)


def compare(a: Side, b: Side) -> Comparison:
    """Judge all figures that both have. LabError: machines differ, or there is no such figure."""
    found = sorted({key.machine for key in (*a.times, *b.times)})
    if len(found) != 1:
        raise LabError(
            f"results of {' and '.join(found)}: times of different machines cannot be compared"
        )
    # A name that is no machine of the lab is the label of a real machine.
    lockstep = found[0] in machines.NAMES and machines.get(found[0]).lockstep
    pairs = [_pair(key, a.times[key], b.times[key], lockstep) for key in a.times if key in b.times]
    if not pairs:
        raise LabError(f"{a.name} and {b.name} have no measurement in common")
    only = {
        "A": [key for key in a.times if key not in b.times],
        "B": [key for key in b.times if key not in a.times],
    }
    return Comparison(pairs, only)


def label(key: Key) -> str:
    """A measurement in a few words, without what all rows of a table have in common."""
    mode = notation.paging_of(key) + notation.dirty_bits_of(key)
    phase = key.phase if key.iteration is None else f"{key.phase} {key.iteration}"
    phase += notation.cycle_of(key)
    init = "" if key.initially_all_set else ", without initially-all-set"
    return (
        f"{key.kernel}, {mode}, {key.vcpus} vCPUs x {notation.size(key.bytes_per_vcpu)},"
        f" {key.write_percent}% writes{init}, {'Y' if key.eager else 'N'}: {phase}"
    )


def table_of(found: Comparison, a: Side, b: Side) -> Table:
    table = Table("What both measured", ("ms", "A", "B", "B - A", ""))
    for name, side in (("A", a), ("B", b)):
        table.notes.append(f"{name}: {side.name}, {', '.join(sorted(side.versions))}")
    for pair in found.pairs:
        cells = (notation.milliseconds(pair.before), notation.milliseconds(pair.after))
        change = notation.percent(pair.after, pair.before)
        mark = "moved" if pair.moved else "" if pair.judged else "?"
        table.add(label(pair.key), *cells, change, mark, strong=pair.moved)
    return table


def _move(pair: Pair) -> str:
    before, after = map(notation.milliseconds, (pair.before, pair.after))
    change = notation.percent(pair.after, pair.before)
    return f"{label(pair.key)}: {before} ms -> {after} ms ({change})"


def moves(found: Comparison) -> list[str]:
    """A line for each figure that moved, the largest change first."""
    return list(map(_move, found.moved))


def notes(found: Comparison) -> list[str]:
    """A line for everything that was not compared."""
    lines = []
    for name, keys in found.only.items():
        if keys:
            phaseless = (replace(key, phase="", iteration=None) for key in keys)
            groups = list(dict.fromkeys(label(key).removesuffix(": ") for key in phaseless))
            shown = "; ".join(groups[:3]) + ("; ..." if len(groups) > 3 else "")
            lines.append(f"only in {name}: {len(keys)} measurements ({shown})")
    unknown = sum(not pair.judged for pair in found.pairs)
    if unknown:
        lines.append(
            f"{unknown} of {len(found.pairs)} are not judged: wall-clock times need a second run"
            " on each side (--again-a, --again-b)"
        )
    return lines


def summary(found: Comparison) -> str:
    """The result in one line, which is that of the error if something moved."""
    count, total = len(found.moved), len(found.pairs)
    return f"{count} of {total} figures moved" if count else f"{total} figures, none moved"
