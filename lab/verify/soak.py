# SPDX-License-Identifier: GPL-2.0-only
"""`lab soak`: the stress, fault injection and race tests with new seeds, for as long as asked for.

Method and limits, those of `--races` as well, are in docs/developing.md: "Soaking". What a boot has
counted so far arrives while it runs, so that progress and the summary after Ctrl-C have it, too.
"""

import json
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path

import click

from lab import machines
from lab.build import kernel, selftests
from lab.core import complete
from lab.core.errors import LabError, WorkFailed
from lab.core.parallel import for_each
from lab.core.paths import DEFAULT_BASE, LAYOUT, LOG
from lab.core.steps import bar, duration, say
from lab.machines import Job, Machine, MachineFailed, Sharing
from lab.machines.job import complaints
from lab.results import notation
from lab.results.files import output_file
from lab.results.table import Table
from lab.verify import races

MACHINE = "svm-qemu"
CPUS = 2
MEMORY_MIB = 1024
HUGE_2M = 80
INSIDE = "/soak"
INTERRUPTED = 130
SKIPPED = 4
# The kernel that reports data races, and what those are counted as in which only others take part.
RACES_CONFIG = "kcsan"
OTHERS = "races_of_others"

# Kernels that can pause amid updates of SPTEs, how they are told to, and what that is counted as:
# pauses long enough for another CPU to get in, and rare enough for cycles to go on.
PAUSING = ("fault", "debug")
PAUSES = {"kvm.prove_window_us": "50", "kvm.prove_window_every": "64"}
PAUSED = "pauses"

# What kvm.dirty_harvest is; any: what the stress test draws, or else the seed decides.
ANY = "any"
HARVEST = (ANY, "on", "off", "auto")

SEED_BITS = 40
MOST_MINUTES = 100_000
# With less time left no run is started, seconds.
LEAST_S = 10
# The test needs no longer than this beside the time it is given.
PATIENCE_S = 240
# How many seconds of the host one takes where instructions are counted, and at the very most.
COUNTED_SLOWNESS = 10
COUNTED_LIMIT = 5
# Far enough apart: a test counts its seeds up.
SEED_STEP = 1 << 20

# The status is the test's; what it counts so far goes to the host at once.
SCRIPT = """
set -e -o pipefail
echo Y > /sys/module/kvm/parameters/eager_page_split
echo "$1" > /proc/sys/vm/nr_hugepages
[ "$2" = any ] || echo "$2" > /sys/module/kvm/parameters/dirty_harvest
shift 2
kcsan=/sys/kernel/debug/kcsan
[ ! -e $kcsan ] || echo on > $kcsan
status=0
"$@" 2>&1 | awk '{ print } /^# so far: / { print >>ENVIRON["LAB_PROGRESS"]; fflush() }' || status=$?
[ ! -e $kcsan ] || cat $kcsan > "$LAB_OUT/kcsan"
windows=/sys/module/kvm/parameters/prove_windows
[ ! -e $windows ] || cat $windows > "$LAB_OUT/windows"
exit $status
"""

# What an hour on two cores has to come to.
GOALS = {"pages": 10_000_000, "cycles": 100_000, "faults": 10_000}
COUNTERS = ("cycles", "pages", "operations", "faults", "tries")
# Each has to be met with by what counts any of them.
ALL_OF = (
    ("get", "clear", "init-set", "ring", "harvested", "merged"),
    ("faults_headers", "faults_descs", "faults_pages"),
    ("tries",),
    (PAUSED,),
)


def _pairs(line: str) -> dict[str, int]:
    """NAME=NUMBER each. ValueError: there is something else."""
    found = {name: int(number, 0) for name, number in (w.split("=") for w in line.split())}
    del found["seed"]
    return found


def _stress(output: str) -> dict[str, int]:
    if match := re.search(r"^# summary: (.*)$", output, re.MULTILINE):
        return _pairs(match[1])
    raise ValueError("no summary")


def _sum(name: str, pattern: str) -> Callable[[str], dict[str, int]]:
    def parse(output: str) -> dict[str, int]:
        if found := re.findall(pattern, output, re.MULTILINE):
            return {name: sum(map(int, found))}
        raise ValueError(f"no line counts {name}")

    return parse


@dataclass(frozen=True)
class Program:
    """A test that is run. parse: what its output counts; ValueError if it is unusable.

    argv: its words; {seed}, {seconds} and {harvest} are filled in. may_skip: a race may not
    happen.
    """

    path: str
    argv: tuple[str, ...]
    parse: Callable[[str], dict[str, int]] = lambda _: {}
    may_skip: bool = False


STRESS = Program(
    "x86/eager_split_stress_test", ("-S", "{seed}", "-t", "{seconds}", "-d", "{harvest}"), _stress
)
FAILURES = _sum("faults", r" (\d+) failures, ")
FAULT = Program("x86/eager_split_fault_test", ("-m", "memory"), FAILURES)
NAMED = ("modes", "clear", "tables")
MODEL = {name: Program(f"x86/eager_split_{name}_test", ()) for name in NAMED}
DIRTY_BITS = Program("x86/dirty_harvest_test", ("-q", "-n", "25"))
TRIES = _sum("tries", r"^# .+: (\d+) tries, ")
RACE = Program("x86/eager_split_race_test", ("-n", "40"), TRIES, may_skip=True)


@dataclass(frozen=True)
class Kind:
    """A boot that recurs.

    what: of its name. seconds: how long the test runs, about, by the host's clock. harvest: see
    HARVEST.
    """

    what: str
    program: Program
    npt: str
    tdp_mmu: str
    config: str
    seconds: int
    sharing: Sharing = Sharing.THREADS
    harvest: str = ANY

    @property
    def name(self) -> str:
        mmu = ["tdp_mmu"] if self.tdp_mmu == "1" else []
        how = [self.sharing.value] if self.sharing.value else []
        return "-".join([self.what, self.config, f"npt{self.npt}", *mmu, *how])

    @property
    def counted(self) -> bool:
        """With the same seed it does the same."""
        return self.sharing is Sharing.COUNTED

    @property
    def parameters(self) -> dict[str, str]:
        pauses = PAUSES if self.config in PAUSING else {}
        return {"kvm_amd.npt": self.npt, "kvm.tdp_mmu": self.tdp_mmu} | pauses

    def cut(self, left: int) -> int:
        """How long it runs if so many seconds are left: what is repeatable stays as it is."""
        return self.seconds if self.counted else max(LEAST_S, min(self.seconds, left))


_turns = partial(Kind, sharing=Sharing.TURNS)
_counted = partial(Kind, sharing=Sharing.COUNTED)

# The debug kernel is very slow: it is there for its sanitizers. Where CPUs take turns there are
# many cycles; where they run at the same time there are races. QEMU's NPT is fit for neither, see
# docs/developing.md: what fails there has to be repeatable.
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
)
# With --races. The kernel is slow: it waits at one memory access in some five hundred, and lets
# another CPU run meanwhile even where they take turns.
RACE_BRIEFLY = replace(RACE, argv=("-n", "3"))
_watch = partial(Kind, config=RACES_CONFIG, seconds=60)
_watch_turns = partial(_watch, sharing=Sharing.TURNS)
WATCHED = {"stress": STRESS, "harvest": DIRTY_BITS, **MODEL}
RACES = (
    *(_watch(name, program, "0", "0") for name, program in WATCHED.items()),
    *(_watch("race", RACE_BRIEFLY, npt, "0") for npt in "01"),
    *(
        _watch_turns(name, program, "1", tdp_mmu)
        for tdp_mmu in "01"
        for name, program in WATCHED.items()
        # Has nothing to do with NPT.
        if name != "tables"
    ),
)
NAMES = tuple(dict.fromkeys(kind.name for kind in KINDS + RACES))
SOME = f"Of {', '.join(NAMES)}."


@dataclass(frozen=True)
class BootRecord:
    """One boot that was done, and what it counted. finished: it came to its end."""

    kind: str
    seed: int
    seconds: float
    counts: Mapping[str, int]
    finished: bool = True


class Broken(WorkFailed):
    """A test failed, or the kernel complained.

    lines: how many lines of the kernel's log are complaints.
    """

    def __init__(self, text: str, lines: int = 0) -> None:
        super().__init__(text)
        self.lines = lines


@dataclass
class Soak:
    """What is done, and what comes next; the machines' threads share it.

    end: when nothing is started any more, by time.monotonic(). kernel_version: what is soaked.
    runs: all boots, by their seeds; of those that are not over, what they have counted so far.
    """

    kinds: Sequence[Kind]
    seed: int
    end: float
    kernel_version: str
    # Thousands, and every job refers to all of them: to show that would take gigabytes.
    runs: dict[int, BootRecord] = field(default_factory=dict, repr=False)

    def left_s(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def boots(self) -> Iterator[tuple[Kind, int, int]]:
        """Each next boot, its seed, and its seconds, until the time is over."""
        for nr, kind in enumerate(cycle(self.kinds)):
            left = self.left_s()
            if nr and (left < LEAST_S or left == 0):
                return
            seed = self.seed + nr * SEED_STEP
            self.runs[seed] = BootRecord(kind.name, seed, 0.0, {}, finished=False)
            yield kind, seed, kind.cut(int(left))

    def so_far(self, seed: int, line: str) -> None:
        """Take what a boot that is running says of itself."""
        with suppress(ValueError, KeyError):
            counts = _pairs(line.removeprefix("# so far: "))
            self.runs[seed] = replace(self.runs[seed], counts=counts)

    def has_all(self) -> bool:
        """Whether each of KINDS, as it is, had a boot that came to its end."""
        done = {run.kind for run in tuple(self.runs.values()) if run.finished}
        return tuple(self.kinds) == KINDS and done == {kind.name for kind in KINDS}

    def totals(self) -> dict[str, int]:
        """Everything that was counted, boots that are running included."""
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


def soak_job(
    kind: Kind,
    seed: int,
    seconds: int,
    image: Path,
    tests: Path,
    on_progress: Callable[[str], None],
) -> Job:
    inside = f"{INSIDE}/{Path(kind.program.path).name}"
    inner, limit = seconds, seconds + PATIENCE_S
    if kind.counted:
        inner, limit = seconds // COUNTED_SLOWNESS, seconds * COUNTED_LIMIT + PATIENCE_S
    values = {"seed": hex(seed), "seconds": inner, "harvest": kind.harvest}
    words = (word.format(**values) for word in kind.program.argv)
    drawn = kind.harvest == ANY and kind.program is not STRESS
    harvest = HARVEST[1 + seed.bit_count() % 2] if drawn else kind.harvest
    return Job(
        kernel=image,
        command=("sh", "-c", SCRIPT, "sh", str(HUGE_2M), harvest, inside, *words),
        parameters=kind.parameters,
        cpus=CPUS,
        memory_mib=MEMORY_MIB,
        files={inside: tests / kind.program.path},
        timeout_s=limit,
        on_progress=on_progress,
        sharing=kind.sharing,
    )


def replay(kind: Kind, seed: int, seconds: int) -> str:
    minutes = max(1, -(-seconds // 60))
    mode = "" if kind.harvest == ANY else f" --dirty-harvest {kind.harvest}"
    base = "" if LAYOUT.version == DEFAULT_BASE else f" BASE={LAYOUT.version}"
    return f"make soak{base} ARGS='--only {kind.name}{mode} --seed {seed:#x} --minutes {minutes}'"


def _log(kind: Kind, seed: int, suffix: str, text: str) -> Path:
    log = LOG / f"soak-{kind.name}-{seed:#x}{suffix}"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)
    return log


def _broken(kind: Kind, seed: int, seconds: int, why: str, text: str, lines: int = 0) -> Broken:
    # The test counts its seeds up, and names the one that matters. What is repeatable is so from
    # its first seed on.
    if not kind.counted and (match := re.search(r"to repeat: -S (0x[0-9a-f]+)", text)):
        seed = int(match[1], 16)
    log = _log(kind, seed, ".log", text)
    return Broken(
        f"{kind.name}, seed {seed:#x}: {why}; all of it: {log}\n"
        f"lab: to repeat: {replay(kind, seed, seconds)}",
        lines,
    )


def _watched(kind: Kind, counters: bytes, others: Sequence[races.Report]) -> dict[str, int]:
    """What a kernel that reports data races counts. ValueError: it didn't look for any."""
    if kind.config != RACES_CONFIG:
        return {}
    match = re.search(rb"^setup_watchpoints: ([1-9]\d*)$", counters, re.MULTILINE)
    if not match:
        raise ValueError("the kernel watched no memory access")
    return {"watchpoints": int(match[1]), OTHERS: len({report.race for report in others})}


def _paused(kind: Kind, windows: bytes) -> dict[str, int]:
    """How often the kernel paused amid updates. ValueError: it was to, and never did."""
    if kind.config not in PAUSING:
        return {}
    pauses = sum(int(line.split()[1]) for line in windows.splitlines())
    if not pauses:
        raise ValueError("the kernel never paused amid an update of an SPTE")
    return {PAUSED: pauses}


def run_one(machine: Machine, kind: Kind, seed: int, seconds: int, job: Job) -> BootRecord:
    """Boot once. Broken: the test failed, the kernel complained, or the machine failed."""
    broken = partial(_broken, kind, seed, seconds)
    try:
        result = machine.run(job)
    except MachineFailed as failure:
        lines = len(complaints(races.parse(failure.kernel_log)[1]))
        raise broken(str(failure), failure.kernel_log, lines) from failure
    output = result.text
    everything = f"{output}\n--- kernel log\n{result.kernel_log}"
    verdict = races.judge(result.kernel_log, job.kernel)
    if verdict.others:
        _log(kind, seed, ".races", "\n".join(report.text for report in verdict.others))
    if mine := verdict.series:
        why = f"data race of the series: {mine[0].title}"
        everything = "\n".join([*(one.text for one in mine), "--- output", everything])
        raise broken(why, everything, len(mine))
    if found := complaints(verdict.rest):
        raise broken(f"the kernel complains: {found[0]}", everything, len(found))
    skipped = result.status == SKIPPED and kind.program.may_skip
    if result.status != 0 and not skipped:
        why = "\n".join([f"exit status {result.status}", *output.strip().splitlines()[-6:]])
        raise broken(why, everything)
    try:
        counts = {} if skipped else kind.program.parse(output)
        counts |= _watched(kind, result.files.get("kcsan", b""), verdict.others)
        counts |= _paused(kind, result.files.get("windows", b""))
        return BootRecord(kind.name, seed, result.seconds, counts)
    except (ValueError, KeyError) as error:
        raise broken(f"unusable output: {error}", everything) from error


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
    """The goals, and what has to be met with at all."""
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
    """What was watched, and what is not the series' fault."""
    watched, others = totals.get("watchpoints", 0), totals.get(OTHERS, 0)
    yield f"{watched:,} memory accesses were watched for data races in {minutes:.1f} min"
    yield f"{others} data races, each counted once per boot, without the series: {LOG}/soak-*.races"


def summarise(soak: Soak, file: Path, minutes: float, ended: str, lines: int) -> list[str]:
    """Print the table, judge the goals and keep everything in FILE. Returns the goals missed.

    The goals are those of a soak of all kinds, so nothing is missed by one that chose among them,
    or that ended before each kind had a boot.
    """
    content = {
        "machine": MACHINE,
        "kernel_version": soak.kernel_version,
        "minutes": round(minutes, 2),
        "seed": soak.seed,
        "dirty_harvest": soak.kinds[0].harvest,
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
            say("soak: not each kind of boot took part, so goals do not count")
    say(f"soak: {lines} lines of kernels' logs are complaints")
    say(f"soak: {ended}; every run is in {file}")
    return missed


def chosen(only: Sequence[str], harvest: str = ANY, among: Sequence[Kind] = KINDS) -> list[Kind]:
    """The kinds of these names, or those AMONG them all."""
    kinds = [kind for kind in KINDS + RACES if kind.name in only] or among
    return [replace(kind, harvest=harvest) for kind in kinds]


def _seed(text: str) -> int:
    with suppress(ValueError):
        if 0 <= (value := int(text, 0)) < 1 << 63:
            return value
    raise click.BadParameter(f"{text!r} is not a whole number from 0 to 2^63-1")


def _run(kinds: Sequence[Kind], seed: int, minutes: float, file: Path) -> int:
    machine = machines.get(MACHINE)
    kernels = {c: kernel.build("series", c) for c in dict.fromkeys(kind.config for kind in kinds)}
    images = {config: built.image for config, built in kernels.items()}
    tests = selftests.build("series")
    say(f"soak: {minutes:g} min on {MACHINE}, first seed {seed:#x}")
    started = time.monotonic()
    state = Soak(kinds, seed, started + minutes * 60, kernels[kinds[0].config].release)
    status, ended, lines = 1, "failed", 0
    missed: list[str] = []

    def work(boot: tuple[Kind, int, int]) -> None:
        kind, seed, seconds = boot
        job = soak_job(kind, seed, seconds, images[kind.config], tests, partial(state.so_far, seed))
        state.runs[seed] = run_one(machine, kind, seed, seconds, job)

    try:
        # Until the time is over. The first failure, or Ctrl-C, ends what is running.
        with bar(
            "soak", minutes * 60, lambda: (minutes * 60 - state.left_s(), state.text())
        ) as tick:
            for_each(state.boots(), work, tick)
        status, ended = 0, "nothing was found"
    except KeyboardInterrupt:
        status, ended = INTERRUPTED, "interrupted"
    except SystemExit:
        # Told to end by a signal: where Ctrl-C is ignored, as under nohup, that is how.
        ended = "interrupted"
        raise
    except Broken as broken:
        lines = broken.lines
        raise
    finally:
        missed = summarise(state, file, (time.monotonic() - started) / 60, ended, lines)
    if status == 0 and missed:
        raise WorkFailed(f"the soak found nothing, but did too little: {'; '.join(missed)}")
    return status


@click.command()
@click.option(
    "--minutes",
    type=click.FloatRange(0, MOST_MINUTES, min_open=True),
    default=60,
    help="For how long, after what has changed was built.",
)
@click.option("--seed", type=_seed, metavar="NUMBER", help="Of the first run, not a random one.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), metavar="NAME", help=SOME)
@click.option(
    "--dirty-harvest",
    "harvest",
    type=click.Choice(HARVEST),
    default=ANY,
    help="Value of kvm.dirty_harvest; any: on or off, drawn, VM by VM by the stress test.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Instead of build/results/.")
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
@click.option("--races", "look_for_races", is_flag=True, help="On a kernel with KCSAN: data races.")
def command(
    minutes: float,
    seed: int | None,
    only: tuple[str, ...],
    harvest: str,
    output: Path | None,
    dry_run: bool,
    look_for_races: bool,
) -> int:
    """Stress the series with new seeds, two machines at a time, until the time is over.

    Exit status: 0 nothing was found, 1 something was, or a soak of all kinds of boots missed one of
    its goals, 2 bad input, 130 interrupted; the last with the summary of what was done so far.
    """
    if math.isnan(minutes):
        raise LabError("--minutes: not a number")
    kinds = chosen(only, harvest, RACES if look_for_races else KINDS)
    if dry_run:
        for kind in kinds:
            click.echo(f"{kind.name}: {kind.seconds} s of {kind.program.path}")
        return 0
    seed = secrets.randbits(SEED_BITS) if seed is None else seed
    return _run(kinds, seed, minutes, output_file(output, "soak", "json"))
