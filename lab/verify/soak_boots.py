# SPDX-License-Identifier: GPL-2.0-only
"""A boot of `lab soak`: its job, and the verdict on its result."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lab.core.errors import WorkFailed
from lab.core.paths import DEFAULT_BASE, LAYOUT, LOG
from lab.machines import Job, Machine, MachineFailed
from lab.machines.job import complaints
from lab.verify import races
from lab.verify.soak_kinds import ANY, DIRTY_BITS, PAUSING, RACES_CONFIG, STRESS, Kind

CPUS = 2
MEMORY_MIB = 1024
HUGE_2M = 80
INSIDE = "/soak"
SKIPPED = 4
# Counters: data races in which the series has no part, and pauses amid updates of SPTEs.
OTHERS = "races_of_others"
PAUSED = "pauses"

# A test needs at most this much longer than the time it is given, seconds.
PATIENCE_S = 240
# If instructions are counted: how many seconds of the host a second of the machine takes, and how
# many times as long as that it may take at most.
COUNTED_SLOWNESS = 10
COUNTED_LIMIT = 5

# Exits with the status of the test. Lines with its counters so far go to the host at once.
SCRIPT = """
set -e -o pipefail
echo Y > /sys/module/kvm/parameters/eager_page_split
echo "$1" > /proc/sys/vm/nr_hugepages
[ "$2" = any ] || echo "$2" > /sys/module/kvm/parameters/dirty_bits
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


class Boot(NamedTuple):
    """A boot to run. seconds: for how long, by the host's clock."""

    kind: Kind
    seed: int
    seconds: int


@dataclass(frozen=True)
class BootRecord:
    """A boot and what it has counted. finished: whether it has ended."""

    kind: str
    seed: int
    seconds: float
    counts: Mapping[str, int]
    finished: bool = True


class Broken(WorkFailed):
    """A test failed, or the kernel complained.

    lines: the number of complaints in the kernel's log.
    """

    def __init__(self, text: str, lines: int) -> None:
        super().__init__(text)
        self.lines = lines


def soak_job(boot: Boot, image: Path, tests: Path, on_progress: Callable[[str], None]) -> Job:
    kind, seed, seconds = boot
    inside = f"{INSIDE}/{Path(kind.program.path).name}"
    inner, limit = seconds, seconds + PATIENCE_S
    if kind.counted:
        inner, limit = seconds // COUNTED_SLOWNESS, seconds * COUNTED_LIMIT + PATIENCE_S
    values = {"seed": hex(seed), "seconds": inner, "dirty_bits": kind.dirty_bits}
    words = (word.format(**values) for word in kind.program.argv)
    drawn = kind.dirty_bits == ANY and kind.program is not STRESS
    dirty_bits = DIRTY_BITS[1 + seed.bit_count() % 2] if drawn else kind.dirty_bits
    return Job(
        kernel=image,
        command=("sh", "-c", SCRIPT, "sh", str(HUGE_2M), dirty_bits, inside, *words),
        parameters=kind.parameters,
        cpus=CPUS,
        memory_mib=MEMORY_MIB,
        files={inside: tests / kind.program.path},
        timeout_s=limit,
        on_progress=on_progress,
        sharing=kind.sharing,
    )


def replay(boot: Boot) -> str:
    """The command that repeats a boot."""
    kind, seed, seconds = boot
    minutes = max(1, -(-seconds // 60))
    mode = "" if kind.dirty_bits == ANY else f" --dirty-bits {kind.dirty_bits}"
    base = "" if LAYOUT.version == DEFAULT_BASE else f" BASE={LAYOUT.version}"
    return f"make soak{base} ARGS='--only {kind.name}{mode} --seed {seed:#x} --minutes {minutes}'"


def _log(boot: Boot, suffix: str, text: str) -> Path:
    log = LOG / f"soak-{boot.kind.name}-{boot.seed:#x}{suffix}"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)
    return log


def _broken(boot: Boot, why: str, text: str, lines: int = 0) -> Broken:
    """The failure of a boot, whose whole output, TEXT, it writes to a log."""
    # The test uses one seed after the other, and names the one to repeat. A repeatable boot has to
    # begin with its first seed.
    if not boot.kind.counted and (match := re.search(r"to repeat: -S (0x[0-9a-f]+)", text)):
        boot = boot._replace(seed=int(match[1], 16))
    log = _log(boot, ".log", text)
    return Broken(
        f"{boot.kind.name}, seed {boot.seed:#x}: {why}; all of it: {log}\n"
        f"lab: to repeat: {replay(boot)}",
        lines,
    )


def _watched(kind: Kind, counters: bytes, others: Sequence[races.Report]) -> dict[str, int]:
    """Counters of a kernel that reports data races. ValueError: it has not looked for any."""
    if kind.config != RACES_CONFIG:
        return {}
    match = re.search(rb"^setup_watchpoints: ([1-9]\d*)$", counters, re.MULTILINE)
    if not match:
        raise ValueError("the kernel watched no memory access")
    return {"watchpoints": int(match[1]), OTHERS: len({report.race for report in others})}


def _paused(kind: Kind, windows: bytes) -> dict[str, int]:
    """The number of pauses amid updates. ValueError: the kernel can pause, and never did."""
    if kind.config not in PAUSING:
        return {}
    pauses = sum(int(line.split()[1]) for line in windows.splitlines())
    if not pauses:
        raise ValueError("the kernel never paused amid an update of an SPTE")
    return {PAUSED: pauses}


def run_one(machine: Machine, boot: Boot, job: Job) -> BootRecord:
    """Boot once. Broken: the test failed, the kernel complained, or the machine failed."""
    broken = partial(_broken, boot)
    program = boot.kind.program
    try:
        result = machine.run(job)
    except MachineFailed as failure:
        lines = len(complaints(races.parse(failure.kernel_log)[1]))
        raise broken(str(failure), failure.kernel_log, lines) from failure
    output = result.text
    everything = f"{output}\n--- kernel log\n{result.kernel_log}"
    verdict = races.judge(result.kernel_log, job.kernel)
    if verdict.others:
        _log(boot, ".races", "\n".join(report.text for report in verdict.others))
    if mine := verdict.series:
        why = f"data race of the series: {mine[0].title}"
        everything = "\n".join([*(one.text for one in mine), "--- output", everything])
        raise broken(why, everything, len(mine))
    if found := complaints(verdict.rest):
        raise broken(f"the kernel complains: {found[0]}", everything, len(found))
    skipped = result.status == SKIPPED and program.may_skip
    if result.status != 0 and not skipped:
        why = "\n".join([f"exit status {result.status}", *output.strip().splitlines()[-6:]])
        raise broken(why, everything)
    try:
        counts = {} if skipped else program.parse(output)
        counts |= _watched(boot.kind, result.files.get("kcsan", b""), verdict.others)
        counts |= _paused(boot.kind, result.files.get("windows", b""))
        return BootRecord(boot.kind.name, boot.seed, result.seconds, counts)
    except (ValueError, KeyError) as error:
        raise broken(f"unusable output: {error}", everything) from error
