# SPDX-License-Identifier: GPL-2.0-only
"""What a soak has done: its state while it runs, and the summary at its end."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from pathlib import Path

from lab.core import complete
from lab.core.paths import LOG
from lab.core.steps import duration, say
from lab.results import notation
from lab.results.table import Table
from lab.verify import soak_kinds
from lab.verify.soak_boots import OTHERS, PAUSED, Boot, BootRecord
from lab.verify.soak_kinds import KINDS, RACES_CONFIG, Kind

MACHINE = "svm-qemu"
# The distance between the seeds of boots: a test uses one seed after the other.
SEED_STEP = 1 << 20

# What an hour on two cores has to reach.
GOALS = {"pages": 10_000_000, "cycles": 100_000, "faults": 10_000}
COUNTERS = ("cycles", "pages", "operations", "faults", "tries")
# Counters that should not be 0 at the end. The summary has a line for each group.
ALL_OF = (
    ("get", "clear", "init-set", "ring", "by_dirty_bits", "merged"),
    ("faults_headers", "faults_descs", "faults_pages"),
    ("tries",),
    ("steps",),
    (PAUSED,),
)


@dataclass
class Soak:
    """The state of a soak, which the threads of all machines share.

    end: the time at which no further boot is started, by time.monotonic().
    kernel_version: of the kernel that is soaked.
    runs: all boots by their seeds. Those that are running have the counters so far.
    """

    kinds: Sequence[Kind]
    seed: int
    end: float
    kernel_version: str
    # No part of repr(): every job refers to the state, and there are thousands of boots.
    runs: dict[int, BootRecord] = field(default_factory=dict, repr=False)

    def left_s(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def boots(self) -> Iterator[Boot]:
        """The next boots to run, until the time is over. The first one always runs."""
        for nr, kind in enumerate(cycle(self.kinds)):
            left = self.left_s()
            if nr and (left < soak_kinds.LEAST_S or left == 0):
                return
            seed = self.seed + nr * SEED_STEP
            self.runs[seed] = BootRecord(kind.name, seed, 0.0, {}, finished=False)
            yield Boot(kind, seed, kind.cut(int(left)))

    def so_far(self, seed: int, line: str) -> None:
        """Read a line with the counters so far of a boot that is running."""
        with suppress(ValueError, KeyError):
            counts = soak_kinds.pairs(line.removeprefix("# so far: "))
            self.runs[seed] = replace(self.runs[seed], counts=counts)

    def has_all(self) -> bool:
        """Whether each of KINDS, as it is, had a boot that came to its end."""
        done = {run.kind for run in tuple(self.runs.values()) if run.finished}
        return tuple(self.kinds) == KINDS and done == {kind.name for kind in KINDS}

    def totals(self) -> dict[str, int]:
        """The sums of all counters, including those of boots that are running."""
        total = Counter(dict.fromkeys(COUNTERS, 0))
        for run in tuple(self.runs.values()):
            total.update(run.counts)
        return dict(total)

    def text(self) -> str:
        """How far it is, in one line."""
        running = ", ".join(run.kind for run in tuple(self.runs.values()) if not run.finished)
        totals = self.totals()
        sums = ", ".join(f"{totals[name]:,} {name}" for name in COUNTERS[:4])
        return f"about {duration(self.left_s())} left; {sums}; now {running}"


def table_of(soak: Soak) -> Table:
    columns = ("boot", "boots", "s", *COUNTERS)
    table = Table("What the soak did", columns, notes=[notation.WALL_CLOCK])
    runs = list(soak.runs.values())
    for name in (*dict.fromkeys(run.kind for run in runs), "all"):
        found = [run for run in runs if name in (run.kind, "all")]
        sums = [sum(run.counts.get(counter, 0) for run in found) for counter in COUNTERS]
        seconds = f"{sum(run.seconds for run in found):.0f}"
        table.add(name, str(len(found)), seconds, *(f"{n:,}" for n in sums), strong=name == "all")
    return table


@dataclass(frozen=True)
class Verdict:
    """A goal, or kinds of events each of which has to occur, and whether the soak reached it."""

    text: str
    reached: bool


def _verdicts(totals: Mapping[str, int], minutes: float) -> Iterator[Verdict]:
    """A verdict for each goal, and for each group of ALL_OF."""
    for name, goal in GOALS.items():
        seen, wanted = totals[name], goal * minutes / 60
        reached = seen >= wanted
        text = f"{seen:,} {name} in {minutes:.1f} min, goal {wanted:,.0f}"
        yield Verdict(f"{text}: {'met' if reached else 'missed'}", reached)
    for names in ALL_OF:
        text = ", ".join(f"{totals.get(name, 0):,} {name}" for name in names)
        missing = [name for name in names if not totals.get(name)]
        end = f"never: {', '.join(missing)}" if missing else "each was met with"
        yield Verdict(f"{text}; {end}", not missing)


def _races_found(totals: Mapping[str, int], minutes: float) -> Iterator[str]:
    """The number of watched memory accesses, and of data races without the series."""
    watched, others = totals.get("watchpoints", 0), totals.get(OTHERS, 0)
    yield f"{watched:,} memory accesses were watched for data races in {minutes:.1f} min"
    yield f"{others} data races, each counted once per boot, without the series: {LOG}/soak-*.races"


def summarise(soak: Soak, file: Path, minutes: float, ended: str, lines: int) -> list[str]:
    """Print a table and the verdicts, and write everything to FILE. Returns the goals missed.

    The goals are those of a soak of all kinds, so nothing is missed by one that chose among them,
    or that ended before each kind had a boot.
    """
    content = {
        "machine": MACHINE,
        "kernel_version": soak.kernel_version,
        "minutes": round(minutes, 2),
        "seed": soak.seed,
        "dirty_bits": soak.kinds[0].dirty_bits,
        "ended": ended,
        "complaints": lines,
        "totals": soak.totals(),
        "goals_per_hour": GOALS,
        "runs": [asdict(run) for run in soak.runs.values()],
    }
    with complete.file(file) as stream:
        json.dump(content, stream, indent=1)
        stream.write("\n")
    table_of(soak).show()
    missed: list[str] = []
    if soak.kinds[0].config == RACES_CONFIG:
        for line in _races_found(soak.totals(), minutes):
            say(f"soak: {line}")
    else:
        verdicts = list(_verdicts(soak.totals(), minutes))
        for verdict in verdicts:
            say(f"soak: {verdict.text}")
        if soak.has_all():
            missed = [verdict.text for verdict in verdicts if not verdict.reached]
        else:
            say("soak: not every kind of boot ran, so goals are not checked")
    say(f"soak: {lines} complaints in the kernels' logs")
    say(f"soak: {ended}; every run is in {file}")
    return missed
