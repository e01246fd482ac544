# SPDX-License-Identifier: GPL-2.0-only
"""Boots that are shared: cases that want the same machine run in it one after the other.

Booting takes longer than many cases. Each case has settings, HugeTLB pages, a time limit, a kernel
log and an exit status of its own, as if it had the machine for itself.
"""

import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lab import machines
from lab.machines import Job, Machine, MachineFailed, Result
from lab.machines.job import complaints

from .matrix import Case

BOOT_S = 120
# A second of the machine takes at most this many seconds of the host, unless it has hung.
SLOWNESS = {"svm-qemu": 5, "vmx-bochs": 40}
# Host seconds for each case in addition to its own limit, which the machine's clock measures.
SPARE_S = 60
# Time limit of a test, seconds. The first case of a boot waits for all others.
MOST_S = 7200
PARAMETERS = "/sys/module/kvm/parameters"
DIRTY_BITS = f"{PARAMETERS}/dirty_bits"
# Exit status of a case that did not run, because the machine lacks a setting or memory for it.
UNFIT = 99

# save NAME... saves the settings that cases of this boot change; run restores them for each case.
# run NAME LIMIT EAGER DIRTY_BITS HUGE [SETTING=VALUE]... -- PROGRAM [ARGUMENT]... runs a case, and
# writes NAME.status, NAME.output and NAME.log.
SCRIPT = f"""
cd /selftests

save() {{
    for name in "$@"; do echo "$name=$(cat {PARAMETERS}/$name)"; done >/saved
    [ ! -e {DIRTY_BITS} ] || echo "dirty_bits=$(cat {DIRTY_BITS})" >>/saved
}}

set_all() {{
    for word in "$@"; do
        [ "$word" != -- ] || return 0
        echo "${{word#*=}}" >"{PARAMETERS}/${{word%%=*}}" || exit {UNFIT}
    done
}}

prepare() {{
    set_all $(cat /saved)
    echo 0 >/proc/sys/vm/nr_hugepages
    echo "$3" >/proc/sys/vm/nr_hugepages
    [ "$(cat /proc/sys/vm/nr_hugepages)" -ge "$3" ] || {{ echo "no $3 huge pages"; exit {UNFIT}; }}
    set_all "eager_page_split=$1"
    [ -z "$2" ] || [ ! -e {DIRTY_BITS} ] || set_all "dirty_bits=$2"
    shift 3
    set_all "$@"
}}

# How often KVM has paused amid an update of an SPTE so far, at all places together.
pauses() {{
    sum=0
    [ ! -e {PARAMETERS}/prove_windows ] ||
        while read -r _ nr; do sum=$((sum + nr)); done <{PARAMETERS}/prove_windows
    echo $sum
}}

# check_pauses BEFORE SETTING...: fails if pauses were asked for and KVM has made none since.
check_pauses() {{
    before=$1
    shift
    case " $* " in *" prove_window_us="*) ;; *) return 0 ;; esac
    [ "$(pauses)" != "$before" ] || {{ echo "KVM never paused"; return 98; }}
}}

run() {{
    echo "$1" >>"$LAB_PROGRESS"
    out=$LAB_OUT/$1 limit=$2
    shift 2
    before=$(pauses)
    echo 1 >/sys/kernel/debug/clear_warn_once
    dmesg -c >>"$LAB_OUT/between.log"
    (
        prepare "$@"
        while [ "$1" != -- ]; do shift; done
        shift
        exec setsid sh -c 'echo $$ >/tmp/group; exec timeout -s KILL "$@"' sh "$limit" "./$@"
    ) >"$out.output" 2>&1
    status=$?
    # The limit ends a test, not its children, and these would take the CPUs from the next test.
    kill -KILL "-$(cat /tmp/group)" 2>/dev/null
    check_pauses "$before" "$@" >>"$out.output" || status=$?
    echo $status >"$out.status"
    dmesg -c >"$out.log"
}}
"""


@dataclass(frozen=True)
class Spent:
    """Time by the host's clock, and processor time of the emulator, in seconds."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.wall - other.wall, self.cpu - other.cpu)

    @staticmethod
    def so_far() -> "Spent":
        """Of this process: the time now, and the processor time of its children so far."""
        ended = os.times()
        cpu = ended.children_user + ended.children_system
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                times = child.cpu_times()
                cpu += times.user + times.system
        return Spent(time.monotonic(), cpu)


class Meter:
    """Tells what each case of a boot costs, from the lines in which the machine names it."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._at: list[Spent] = []

    def boot(self) -> None:
        """The machine is started."""
        self._at.append(Spent.so_far())

    def begin(self, name: str) -> None:
        """The case NAME begins, and the one before it has ended."""
        self.started.append(name)
        self._at.append(Spent.so_far())

    def spent(self) -> dict[str, Spent]:
        """By case, now that the boot has ended. Its first case pays for booting."""
        begun = [self._at[0], *self._at[2:]]
        ends = [*self._at[2:], Spent.so_far()]
        return {
            name: end - begin for name, begin, end in zip(self.started, begun, ends, strict=True)
        }


@dataclass(frozen=True)
class Outcome:
    """The result of a case.

    kernel_log: the kernel's messages meanwhile; and complaints from the boot, or between cases.
    spent: its share of the time of the boot.
    """

    status: int
    output: str
    kernel_log: str
    spent: Spent = Spent()

    def __str__(self) -> str:
        return "\n".join([f"exit status {self.status}", self.output, *complaints(self.kernel_log)])

    @property
    def fine(self) -> bool:
        """Whether the test passed and the kernel did not complain."""
        return self.status == 0 and not complaints(self.kernel_log)


def _call(case: Case) -> str:
    test = case.test
    limit, huge = str(int(test.timeout_s)), str(test.huge_2m)
    settings = (f"{name}={value}" for name, value in test.settings)
    words = (case.id, limit, case.eager, test.dirty_bits, huge, *settings, "--", *test.argv)
    return shlex.join(("run", *words))


def make_job(
    cases: Sequence[Case], kernel: Path, selftests: Path, on_progress: Callable[[str], None]
) -> Job:
    """One boot for cases that can share it."""
    first = cases[0]
    saved = sorted({name for case in cases for name, _ in case.test.settings})
    programs = {case.test.argv[0] for case in cases}
    lines = (SCRIPT, shlex.join(("save", *saved)), *map(_call, cases))
    return Job(
        kernel=kernel,
        command=("sh", "-c", "\n".join(lines)),
        parameters=first.mode.parameters,
        cpus=first.cpus,
        memory_mib=first.test.memory_mib,
        files={f"/selftests/{program}": selftests / program for program in programs},
        timeout_s=BOOT_S + sum(case.test.timeout_s + SPARE_S for case in cases),
        silent_s=BOOT_S + SLOWNESS[first.mode.machine] * max(c.test.timeout_s for c in cases),
        on_progress=on_progress,
        cmdline=first.test.cmdline,
    )


def outcomes(
    cases: Iterable[Case], result: Result, spent: Mapping[str, Spent]
) -> dict[str, Outcome]:
    """The outcomes of all cases, by id. spent: the time of each.

    Complaints of the kernel that are in no case's log are added to the logs of all cases.
    """
    result.check("a boot that cases share")
    text = {name: data.decode(errors="replace") for name, data in result.files.items()}
    logs = {case.id: text[f"{case.id}.log"] for case in cases}
    known = set(complaints("\n".join(logs.values())))
    # The console has messages after the last case, and repeats those of cases.
    seen = complaints(f"{text['between.log']}\n{result.kernel_log}")
    everywhere = "".join(f"{line}\n" for line in seen if line not in known)
    return {
        name: Outcome(
            status=int(text[f"{name}.status"]),
            output=text[f"{name}.output"],
            kernel_log=everywhere + log,
            spent=spent[name],
        )
        for name, log in logs.items()
    }


class Boots:
    """Runs all cases that share a boot when the outcome of the first one is requested.

    wanted: all cases that will be requested. One that is there several times runs where it is last.
        Their outcomes are remembered: repetitions of a test (--count) need Boots of their own, see
        boots_of() in conftest.py.
    """

    def __init__(
        self, wanted: Iterable[Case], job: Callable[[Sequence[Case], Callable[[str], None]], Job]
    ) -> None:
        last_first = {case.id: case for case in reversed(list(wanted))}
        self._wanted = list(reversed(last_first.values()))
        self._job = job
        self._known: dict[str, Outcome | MachineFailed] = {}

    def outcome(self, case: Case) -> Outcome:
        """The outcome of CASE. MachineFailed: the machine failed while CASE ran."""
        while (found := self._known.get(case.id)) is None:
            same = [one for one in self._wanted if one.boot == case.boot]
            left = [one for one in same if one.id not in self._known]
            self._known |= self._run(machines.get(case.mode.machine), left or [case])
        if isinstance(found, MachineFailed):
            raise found
        return found

    def _run(
        self, machine: Machine, cases: Sequence[Case]
    ) -> Mapping[str, Outcome | MachineFailed]:
        meter = Meter()
        # Builds what it boots, which is no case's time.
        job = self._job(cases, meter.begin)
        meter.boot()
        try:
            result = machine.run(job)
        except MachineFailed as failure:
            return {meter.started[-1] if meter.started else cases[0].id: failure}
        return outcomes(cases, result, meter.spent())

    def control_and(self, pair: tuple[Case, Case]) -> tuple[Outcome, Outcome]:
        """The outcomes of a control and a second case, without influence of other cases.

        If the control fails, or the machine does, both run again in a boot of their own.
        """
        control, second = pair
        with suppress(MachineFailed):
            found, other = self.outcome(control), self.outcome(second)
            if found.fine:
                return found, other
        alone = Boots(pair, self._job)
        return alone.outcome(control), alone.outcome(second)


# Types of the fixture boots_of() in conftest.py, and of its last argument.
CasesOf = Callable[[dict[str, Any]], Iterable[Case]]
BootsOf = Callable[[str, str, CasesOf], Boots]
