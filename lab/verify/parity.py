# SPDX-License-Identifier: GPL-2.0-only
"""`lab parity`: the packaged KVM selftests on the unpatched kernel and on the series.

Method and limits are in docs/developing.md. One boot per kernel and paging mode runs all tests;
what differs is run again in boots of its own. Both kernels run at the same time where the machine's
time is its own; where it is the host's, vCPUs that wait for one that the host does not run would
meet the limit. The row "(kernel log)" has what the kernel complains about while no test runs.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from lab import machines
from lab.build import kernel, selftests
from lab.core.errors import LabError, WorkFailed
from lab.core.parallel import for_each
from lab.core.paths import LAYOUT
from lab.core.steps import duration, now_and_then, say, step
from lab.machines import Job, Machine, MachineFailed
from lab.machines.job import complaints
from lab.machines.paging import TDP, Mode
from lab.results import tables
from lab.results.files import output_file, output_option, write_records
from lab.results.tables import Table

KERNELS = ("base", "series")
# As many as the host has for a machine whose CPUs run at the same time.
CPUS = 2
MEMORY_MIB = 3072
HUGE_PAGES = 128
INSIDE = "/selftests"
# Of the machine's time, for one test.
LIMIT_S = 40
# Host seconds for a boot, and at most for a second of the machine's: when it has timed out.
BOOT_S = 60
SLOWNESS = {"svm-qemu": 5, "vmx-bochs": 40}
# Host seconds that a test takes, as seen, on vmx-bochs with --limit 10: for the announcement only.
USUAL_S = {"svm-qemu": 5.0, "vmx-bochs": 12.0}

# The last means that the machine crashed or timed out.
PASS, SKIP, FAIL, LIMIT, CRASHED = "pass", "skip", "FAIL", "limit", "CRASHED"
# Exit statuses of the selftests, and of a process that KILL ended.
VERDICTS = {0: PASS, 4: SKIP, 137: LIMIT}
LOG = "(kernel log)"
SILENT, COMPLAINS = "silent", "COMPLAINS"
# Numbers, addresses and times, of which no two boots have the same.
VARIES = re.compile(r"^\[[^]]*\] *|\b(?:0x)?[0-9a-f]*[0-9][0-9a-f]*\b")
# What the kernel's log has before what it says while a test runs.
MARK = "parity: "

# These two name tests of any base; one that the base lacks is not there to be run.
# Tests that hang a machine with the unpatched kernel, too, in every mode: they cannot run there.
# The last only met the limit, and stalled RCU now and then on either kernel.
HANGS: Mapping[str, Sequence[str]] = {
    "svm-qemu": (),
    "vmx-bochs": ("hardware_disable_test", "x86/hyperv_ipi", "x86/vmx_preemption_timer_test"),
}

# Arguments of tests that meet the limit without, or find too little memory: less of it, fewer
# rounds, a part of the test.
ARGUMENTS: Mapping[str, Sequence[str]] = {
    "access_tracking_perf_test": ("-b", "16M", "-v", "2"),
    "demand_paging_test": ("-b", "16M", "-v", "2"),
    "dirty_log_perf_test": ("-b", "16M", "-v", "2"),
    "dirty_log_test": ("-i", "3", "-M", "clear-log"),
    "kvm_page_table_test": ("-b", "16M", "-v", "2"),
    "max_guest_memory_test": ("-c", "2", "-m", "1", "-s", "1"),
    "memslot_modification_stress_test": ("-b", "16M", "-v", "2", "-i", "20"),
    "memslot_perf_test": ("-s", "64", "-l", "1", "-f", "3"),
    "mmu_stress_test": ("-c", "2", "-m", "1", "-s", "1"),
    "x86/dirty_log_page_splitting_test": ("-b", "16M"),
}

SCRIPT = f"""
echo {HUGE_PAGES} >/proc/sys/vm/nr_hugepages
limit=$1
shift
cd {INSIDE}
for line; do
	test=${{line%% *}}
	echo "start $test" >>"$LAB_PROGRESS"
	echo "<4>{MARK}$test" >/dev/kmsg
	setsid sh -c 'echo $$ >/tmp/group; exec timeout -s KILL "$@"' sh "$limit" ./$line \\
		>/tmp/log 2>&1 </dev/null
	status=$?
	# The limit ends a test, not its children, and these would take the CPUs from the next test.
	kill -KILL "-$(cat /tmp/group)" 2>/dev/null
	echo "<4>{MARK}{LOG}" >/dev/kmsg
	echo "end $test $status" >>"$LAB_PROGRESS"
	case $status in 0 | 4) ;; *) echo "== $test: $status"; tail -n 5 /tmp/log ;; esac
done
"""

# Without EPT or NPT there is no TDP MMU.
MODES = (Mode(True, True), Mode(True), Mode(False))


def name_of(mode: Mode, machine: str) -> str:
    """As in "npt=1 tdp_mmu=0"."""
    return f"{TDP[machine]}={mode.ept:d} tdp_mmu={mode.tdp_mmu:d}".partition(".")[2]


@dataclass(frozen=True)
class TestOutcome:
    """What became of a test. complaints: the kernel's meanwhile, without what always differs."""

    verdict: str
    complaints: tuple[str, ...] = ()

    def __str__(self) -> str:
        loud = self.complaints and self.verdict != COMPLAINS
        return f"{self.verdict}, {COMPLAINS}" if loud else self.verdict


@dataclass
class KernelProgress:
    """What the boots of a kernel say of their tests while they run.

    verdicts: test -> verdict; complained: test or LOG -> the kernel's complaints meanwhile;
    said: of each boot, the end of what failing tests said, and the complaints as they were.
    """

    verdicts: dict[str, str] = field(default_factory=dict)
    complained: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    running: str | None = None
    said: list[str] = field(default_factory=list)

    def line(self, text: str) -> None:
        words = text.split()
        if words[:1] == ["start"]:
            self.running = words[1]
        elif words[:1] == ["end"]:
            self.verdicts[words[1]] = VERDICTS.get(int(words[2]), FAIL)
            self.running = None

    def kernel_log(self, text: str) -> None:
        """Take the kernel's log of a boot.

        It has the console, then the kernel's own buffer: one may know the test of a complaint that
        the other does not.
        """
        test = LOG
        outside: set[str] = set()
        for line in text.splitlines():
            _, mark, name = line.rpartition(MARK)
            if mark:
                test = name.strip()
            elif complaints(line):
                self.said.append(f"{test}: {line}\n")
                (outside if test == LOG else self.complained[test]).add(VARIES.sub("", line))
        self.complained[LOG] |= outside.difference(*self.complained.values())

    def found(self) -> dict[str, TestOutcome]:
        """What became of each test, and LOG."""
        verdicts = self.verdicts | {LOG: COMPLAINS if self.complained[LOG] else SILENT}
        return {
            test: TestOutcome(verdict, tuple(sorted(self.complained[test])))
            for test, verdict in verdicts.items()
        }


def progress(tests: int, states: Mapping[str, KernelProgress]) -> str:
    """How far each kernel is with so many tests."""
    each = (
        f"{kind} {len(state.verdicts)} of {tests}, {state.running or 'between tests'}"
        for kind, state in states.items()
    )
    return f"parity: {'; '.join(each)}"


def programs(directory: Path, wanted: Sequence[str], machine: str) -> list[str]:
    """All selftests below DIRECTORY that MACHINE can run, or those WANTED.

    LabError names one that there is not.
    """
    found = sorted(str(f.relative_to(directory)) for f in directory.rglob("*") if f.is_file())
    unknown = [name for name in wanted if name not in found]
    if unknown:
        raise LabError(f"no selftest {unknown[0]!r}; there are: {' '.join(found)}")
    return [name for name in found if name in (wanted or set(found).difference(HANGS[machine]))]


def left_out(directory: Path, wanted: Sequence[str], machine: str) -> list[str]:
    """Those of this base's selftests that MACHINE could run only if they were WANTED."""
    return [name for name in HANGS[machine] if not wanted and (directory / name).is_file()]


def parity_job(
    machine: str, mode: Mode, image: Path, directory: Path, limit: int, tests: Sequence[str]
) -> Job:
    patience = BOOT_S + SLOWNESS[machine] * limit
    lines = (" ".join((name, *ARGUMENTS.get(name, ()))) for name in tests)
    return Job(
        kernel=image,
        command=("sh", "-c", SCRIPT, "parity", str(limit), *lines),
        parameters=mode.parameters(machine),
        cpus=CPUS,
        memory_mib=MEMORY_MIB,
        files={f"{INSIDE}/{name}": directory / name for name in tests},
        timeout_s=patience * (1 + len(tests)),
        silent_s=patience,
    )


def run(
    machine: Machine,
    make: Callable[[Sequence[str]], Job],
    tests: Sequence[str],
    state: KernelProgress,
) -> None:
    """Run TESTS; goes on behind one in which the machine crashed.

    state: empty; says meanwhile how far it is, and then what became of them. WorkFailed: it crashed
    before a test had begun.
    """
    while left := [test for test in tests if test not in state.verdicts]:
        state.running = None
        try:
            result = machine.run(replace(make(left), on_progress=state.line))
            log = result.kernel_log
            state.said.append(result.text)
        except MachineFailed as failure:
            if state.running is None:
                raise WorkFailed(f"{machine.name} failed between tests: {failure}") from failure
            state.verdicts[state.running] = CRASHED
            log = failure.kernel_log
            state.said.append(f"== {state.running}: {failure}\n")
        state.kernel_log(log)
        if not any(test in state.verdicts for test in left):
            raise WorkFailed(f"{machine.name} ran no test; the end of its log: {log[-300:]}")


@dataclass(frozen=True)
class TestOnBoth:
    """One line of the results. repeated: after a first time in which the kernels differed."""

    machine: str
    mode: str
    test: str
    base: TestOutcome
    series: TestOutcome
    repeated: bool

    @property
    def same(self) -> bool:
        return self.base == self.series

    def __str__(self) -> str:
        return str(self.base) if self.same else f"{self.base} -> {self.series}"

    def as_json(self) -> dict[str, object]:
        """As it is in the results; complaints only where there are some."""
        said = {kind: getattr(self, kind).complaints for kind in KERNELS}
        loud = {f"{kind}_complaints": lines for kind, lines in said.items() if lines}
        return asdict(self) | {kind: getattr(self, kind).verdict for kind in KERNELS} | loud


def table_of(verdicts: Iterable[TestOnBoth]) -> Table:
    """A row per test, a column per mode; a difference is "unpatched -> series"."""
    cells: dict[str, dict[str, TestOnBoth]] = {}
    for one in verdicts:
        cells.setdefault(one.test, {})[one.mode] = one
    modes = dict.fromkeys(mode for row in cells.values() for mode in row)
    table = Table("Packaged KVM selftests, unpatched and with the series", ("test", *modes))
    for test, row in cells.items():
        if not all(one.same for one in row.values()):
            table.strong.add(len(table.rows))
        table.rows.append((test, *(str(row.get(mode, "")) for mode in modes)))
    return table


@dataclass(frozen=True)
class Setup:
    """What all boots share.

    images: kernel -> bzImage; directory: of the built selftests; log: directory for what they say.
    """

    machine: Machine
    images: Mapping[str, Path]
    directory: Path
    limit: int
    log: Path

    def log_file(self, kind: str, mode: str, repeated: bool) -> Path:
        """What is said on a kernel in a mode, by its name; repeated: the second time."""
        again = "-again" if repeated else ""
        return self.log / f"parity-{self.machine.name}-{mode.replace(' ', '-')}-{kind}{again}.log"

    def both(self, mode: Mode, tests: Sequence[str], repeated: bool) -> list[TestOnBoth]:
        """Run TESTS on both kernels in MODE. repeated: with twice the limit, which one may just
        have met."""
        limit = self.limit * (1 + repeated)
        name = name_of(mode, self.machine.name)
        states = {kind: KernelProgress() for kind in self.images}

        def work(kind: str) -> None:
            where = (self.machine.name, mode, self.images[kind], self.directory)
            run(self.machine, partial(parity_job, *where, limit), tests, states[kind])

        which = f"again {', '.join(tests)}" if repeated else f"{len(tests)} selftests"
        what = f"{which}, {' and '.join(self.images)} kernel, {name}"
        with step(what, duration(USUAL_S[self.machine.name] * len(tests))):
            at_once = None if self.machine.lockstep else 1
            tick = now_and_then(lambda: progress(len(tests), states))
            try:
                for_each(self.images, work, tick, at_once)
            finally:
                self.log.mkdir(parents=True, exist_ok=True)
                for kind, state in states.items():
                    self.log_file(kind, name, repeated).write_text("".join(state.said))
        base, series = (states[kind].found() for kind in KERNELS)
        return [
            TestOnBoth(self.machine.name, name, test, base[test], series[test], repeated)
            for test in base
        ]

    def settled(self, mode: Mode, tests: Sequence[str]) -> list[TestOnBoth]:
        """Both kernels' verdicts, those that differ after a second time."""
        first = self.both(mode, tests, repeated=False)
        again = [one.test for one in first if not one.same and one.test != LOG]
        if not again:
            return first
        second = {one.test: one for one in self.both(mode, again, repeated=True) if one.test != LOG}
        return [second.get(one.test, one) for one in first]


def _account(verdicts: Sequence[TestOnBoth]) -> str:
    return f"{len(verdicts)} verdicts, {sum(not one.same for one in verdicts)} differ"


@click.command()
@click.option("--machine", "name", type=click.Choice([*SLOWNESS]), default="svm-qemu")
@click.option("--test", "wanted", multiple=True, help="This selftest only; can be repeated.")
@click.option("--limit", type=click.IntRange(1, 3600), default=LIMIT_S, help="Seconds of a test.")
@output_option
@click.option("--dry-run", is_flag=True, help="Show the boots; build and start nothing.")
def command(
    name: str, wanted: tuple[str, ...], limit: int, output: Path | None, dry_run: bool
) -> int:
    """Run the packaged KVM selftests on the unpatched kernel and on the series, and compare.

    Prints a table and writes JSON lines. Exit status: 0 the same verdicts everywhere, 1 not.
    """
    machine = machines.get(name)
    if dry_run:
        for mode in MODES:
            words = f"{name}, {name_of(mode, name)}: {' and '.join(KERNELS)}"
            click.echo(f"{words}, {limit} s per test")
        return 0
    file = output_file(output, "parity")
    kernels = {kind: kernel.build(kind, "kvm") for kind in KERNELS}
    images = {kind: built.image for kind, built in kernels.items()}
    directory = selftests.build("base")
    tests = programs(directory, wanted, name)
    for test in left_out(directory, wanted, name):
        say(f"parity: {test} is left out: it hangs {name} with the unpatched kernel, too")
    setup = Setup(machine, images, directory, limit, LAYOUT.log)
    found: list[TestOnBoth] = []
    for mode in MODES:
        these = setup.settled(mode, tests)
        say(f"parity: {name_of(mode, name)}: {_account(these)}")
        for one in these:
            if not one.same:
                logs = (setup.log_file(kind, one.mode, one.repeated) for kind in KERNELS)
                say(
                    f"parity: {one.test}: {one.base} unpatched, {one.series} with the series; "
                    f"what they said: {' '.join(map(str, logs))}"
                )
        found += these
    version = {"kernel_version": kernels["series"].release}
    write_records(file, (version | one.as_json() for one in found))
    tables.show(table_of(found), Console())
    say(f"parity: {_account(found)}; they are in {file}")
    return 0 if all(one.same for one in found) else 1
