# SPDX-License-Identifier: GPL-2.0-only
"""What `lab soak` runs: selftests, and the kinds of boots that they run in."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lab.machines import Sharing

# The configuration of the kernel that reports data races.
RACES_CONFIG = "kcsan"

# Configurations of kernels that can pause amid updates of SPTEs, and the parameters for that.
# Pauses are long enough for another CPU to get in between, and rare enough for cycles to go on.
PAUSING = ("fault", "debug")
PAUSES = {"kvm.prove_window_us": "50", "kvm.prove_window_every": "64"}

# Values of kvm.dirty_bits. ANY: the stress test draws on or off for each VM; for other tests the
# seed decides.
ANY = "any"
DIRTY_BITS = (ANY, "on", "off", "auto")

# With less time left no boot is started, seconds.
LEAST_S = 10


def pairs(line: str) -> dict[str, int]:
    """The counters in a line of words NAME=NUMBER, without the seed. ValueError: no such line."""
    found = {name: int(number, 0) for name, number in (w.split("=") for w in line.split())}
    del found["seed"]
    return found


def _stress(output: str) -> dict[str, int]:
    if match := re.search(r"^# summary: (.*)$", output, re.MULTILINE):
        return pairs(match[1])
    raise ValueError("no summary")


def _sum(name: str, pattern: str) -> Callable[[str], dict[str, int]]:
    def parse(output: str) -> dict[str, int]:
        if found := re.findall(pattern, output, re.MULTILINE):
            return {name: sum(map(int, found))}
        raise ValueError(f"no line counts {name}")

    return parse


@dataclass(frozen=True)
class Program:
    """A selftest to run.

    argv: its arguments, in which {seed}, {seconds} and {dirty_bits} are filled in.
    parse: returns the counters in its output; ValueError if the output is unusable.
    may_skip: whether it may skip, because a race did not happen.
    """

    path: str
    argv: tuple[str, ...]
    parse: Callable[[str], dict[str, int]] = lambda _: {}
    may_skip: bool = False


STRESS = Program(
    "x86/eager_split_stress_test",
    ("-S", "{seed}", "-t", "{seconds}", "-d", "{dirty_bits}"),
    _stress,
)
FAILURES = _sum("faults", r" (\d+) failures, ")
FAULT = Program("x86/eager_split_fault_test", ("-m", "memory"), FAILURES)
NAMED = ("modes", "clear", "tables")
MODEL = {name: Program(f"x86/eager_split_{name}_test", ()) for name in NAMED}
DIRTY_BITS_TEST = Program("x86/dirty_bits_test", ("-q", "-n", "25"))
TRIES = _sum("tries", r"^# .+: (\d+) tries, ")
RACE = Program("x86/eager_split_race_test", ("-n", "40"), TRIES, may_skip=True)
STEPS = _sum("steps", r"^# summary: .* steps=(\d+) ")


def _fuzz(steps: int) -> Program:
    return Program("x86/dirty_log_fuzz_test", ("-s", "{seed}", "-n", str(steps)), STEPS)


@dataclass(frozen=True)
class Kind:
    """A kind of boot, which recurs.

    what: the beginning of its name.
    seconds: about how long the test runs, by the host's clock.
    dirty_bits: see DIRTY_BITS.
    """

    what: str
    program: Program
    npt: str
    tdp_mmu: str
    config: str
    seconds: int
    sharing: Sharing = Sharing.THREADS
    dirty_bits: str = ANY

    @property
    def name(self) -> str:
        mmu = ["tdp_mmu"] if self.tdp_mmu == "1" else []
        how = [self.sharing.value] if self.sharing.value else []
        return "-".join([self.what, self.config, f"npt{self.npt}", *mmu, *how])

    @property
    def counted(self) -> bool:
        """Whether it repeats exactly with the same seed."""
        return self.sharing is Sharing.COUNTED

    @property
    def parameters(self) -> dict[str, str]:
        pauses = PAUSES if self.config in PAUSING else {}
        return {"kvm_amd.npt": self.npt, "kvm.tdp_mmu": self.tdp_mmu} | pauses

    def cut(self, left: int) -> int:
        """How long it runs if LEFT seconds are left. Repeatable boots are not cut short."""
        return self.seconds if self.counted else max(LEAST_S, min(self.seconds, left))


_turns = partial(Kind, sharing=Sharing.TURNS)
_counted = partial(Kind, sharing=Sharing.COUNTED)

# The debug kernel is very slow; it is here for its sanitizers. If CPUs take turns, there are many
# cycles; if they run at the same time, there are races. With NPT all boots are repeatable, since
# failures there can be those of QEMU, see docs/developing.md.
KINDS = (
    _counted("stress", STRESS, "1", "0", "kvm", 80),
    Kind("stress", STRESS, "0", "0", "kvm", 60),
    _turns("stress", STRESS, "0", "0", "fault", 180),
    _turns("stress", STRESS, "0", "0", "kvm", 240),
    Kind("stress", STRESS, "0", "0", "debug", 60),
    _counted("stress", STRESS, "1", "1", "kvm", 80),
    Kind("fault", FAULT, "0", "0", "fault", 60),
    Kind("race", RACE, "1", "0", "kvm", 20),
    Kind("race", RACE, "0", "0", "kvm", 20),
    _counted("stress", STRESS, "1", "0", "fault", 50),
    _counted("stress", STRESS, "1", "0", "debug", 60),
    Kind("stress", STRESS, "0", "0", "fault", 30),
    _counted("stress", STRESS, "1", "1", "fault", 50),
    Kind("fault", FAULT, "1", "0", "fault", 60),
    Kind("fuzz", _fuzz(6000), "0", "0", "kvm", 60),
    Kind("fuzz", _fuzz(400), "0", "0", "debug", 60),
    _counted("fuzz", _fuzz(1000), "1", "1", "kvm", 80),
)
# Boots for --races. Their kernel is slow: it delays one memory access in some five hundred, and
# lets another CPU run meanwhile, even if CPUs take turns.
RACE_BRIEFLY = replace(RACE, argv=("-n", "3"))
_watch = partial(Kind, config=RACES_CONFIG, seconds=60)
_watch_turns = partial(_watch, sharing=Sharing.TURNS)
WATCHED = {"stress": STRESS, "dirty_bits": DIRTY_BITS_TEST, **MODEL}
RACES = (
    *(_watch(name, program, "0", "0") for name, program in WATCHED.items()),
    *(_watch("race", RACE_BRIEFLY, npt, "0") for npt in "01"),
    *(
        _watch_turns(name, program, "1", tdp_mmu)
        for tdp_mmu in "01"
        for name, program in WATCHED.items()
        # This test needs shadow paging.
        if name != "tables"
    ),
)
NAMES = tuple(dict.fromkeys(kind.name for kind in KINDS + RACES))


def chosen(only: Sequence[str], dirty_bits: str = ANY, among: Sequence[Kind] = KINDS) -> list[Kind]:
    """The kinds with the names ONLY, or if there are none, AMONG."""
    kinds = [kind for kind in KINDS + RACES if kind.name in only] or among
    return [replace(kind, dirty_bits=dirty_bits) for kind in kinds]
