# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.bench with machines that are made up, split-bench.sh being the real one."""

import _thread
import io
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from tempfile import mkdtemp
from unittest.mock import Mock

import psutil
import pytest
from rich.console import Console

from lab import machines
from lab.build import kernel, mutants, selftests
from lab.build.kernel import Kernel
from lab.build.selftests import PERF_TEST
from lab.core import steps
from lab.core.errors import LabError
from lab.core.paths import LAYOUT
from lab.core.steps import duration
from lab.machines import Job, MachineFailed, Result
from lab.machines.host import here
from lab.machines.paging import TDP, Mode
from lab.measure import bench, plan
from lab.measure.plan import BOOT_S, FULL, QUICK, SCRIPT, Boot, Matrix
from lab.measure.progress import Watch
from lab.page import command as page
from lab.results import files, goals, jsonl
from lab.results.jsonl import Measurement
from tests.rows import for_each_row
from tests.unit import calls
from tests.unit.calls import Said
from tests.unit.fake_kvm_host import Host, furnish, set_cpus
from tests.unit.files import leave_free

# The least of every mode and kernel; without, it is four times as many runs.
SMALL = ["--vcpus", "2", "--writes", "100"]
# And this one of them.
ONE_BOOT = ["--kernel", "series", "--modes", "ept1"]


@dataclass
class FakeMachine:
    """Runs a job's command on this host, with a made-up / that obeys the job's parameters.

    spoil: changes the inside of a boot before the command runs. after: changes the result.
    """

    directory: Path
    # Where its commands are: busybox's, as in the machines.
    applets: Path
    name: str = "vmx-bochs"
    max_cpus: int = 15
    lockstep: bool = True
    spoil: Callable[[Host, Job], None] = lambda host, job: None
    after: Callable[[Job, Result], Result] = lambda job, result: result
    jobs: list[Job] = field(default_factory=list)

    def run(self, job: Job) -> Result:
        self.jobs.append(job)
        host = Host(Path(mkdtemp(dir=self.directory)), ["dash"])
        furnish(host)
        set_cpus(host, job.cpus)
        for name in ("kvm_intel.ept", "kvm_intel.pml", "kvm.tdp_mmu"):
            host.set(name, "Y" if job.parameters.get(name, "1") == "1" else "N")
        if job.kernel.name in ("bzImage-peer", "bzImage-base"):
            host.dirty_bits.unlink()
        self.spoil(host, job)
        out = host.root / "out"
        out.mkdir()
        lines = host.root / "progress"
        files = {inside: file for inside, file in job.files.items() if file.exists()}
        files[f"{plan.INSIDE}/{PERF_TEST}"] = host.root / "fake_test"
        done = subprocess.run(
            here(job.command, files),
            env=os.environ
            | {
                "PATH": str(self.applets),
                "SPLIT_BENCH_ROOT": str(host.root),
                "TMPDIR": f"{host.root}/tmp",
                "LAB_OUT": str(out),
                "LAB_PROGRESS": str(lines),
                "LAB_MACHINE": self.name,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        for line in lines.read_text().splitlines() if lines.exists() else []:
            assert job.on_progress
            job.on_progress(line)
        left = {path.name: path.read_bytes() for path in out.iterdir()}
        return self.after(job, Result(done.returncode, done.stdout, left, "console", 1.0))

    def describe(self, job: Job) -> str:
        return ""


@dataclass
class Lab:
    """A lab whose machines, builds and directories are made up."""

    directory: Path
    machine: FakeMachine
    built: list[str] = field(default_factory=list)
    drawn: list[Path] = field(default_factory=list)
    version: int = 1
    # What goals.missed() says.
    missed: list[goals.Missed] = field(default_factory=list)

    @property
    def results(self) -> Path:
        return self.directory / "results"

    def result_files(self) -> list[str]:
        """The files in the results' directory, hidden ones included."""
        return sorted(path.name for path in self.results.glob("*") if not path.is_dir())

    def bench(self, *words: str, status: int = 0) -> Said:
        """What is said; what does not end well leaves no results."""
        said = calls.lab("bench", *words, status=status)
        assert not (status and self.result_files())
        return said

    def latest(self) -> list[Measurement]:
        return jsonl.parse_all((self.results / files.LATEST).read_text(), "latest")


@pytest.fixture
def lab(tmp_path: Path, applets: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab(tmp_path, FakeMachine(tmp_path, applets))

    def get(name: str) -> FakeMachine:
        if name not in TDP:
            raise LabError(f"there is no machine {name!r}, only: svm-qemu")
        lab.machine.name = name
        lab.machine.lockstep = name == "vmx-bochs"
        return lab.machine

    def build_kernel(kind: str, config: str) -> Kernel:
        lab.built.append(f"{kind} {config}")
        image = tmp_path / f"bzImage-{kind}"
        image.write_text(f"{kind}{lab.version}")
        return Kernel(kind, config, image, "6.12.117")

    def build_selftests(kind: str) -> Path:
        lab.built.append(f"{kind} selftests")
        return tmp_path / "selftests"

    monkeypatch.setattr(machines, "get", get)
    monkeypatch.setattr(kernel, "build", build_kernel)
    monkeypatch.setattr(selftests, "build", build_selftests)
    monkeypatch.setattr(bench, "LOG", tmp_path / "log")
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(page, "refresh", lab.drawn.append)
    # The figures of the fake test are none that a kernel could have.
    monkeypatch.setattr(goals, "missed", lambda _: lab.missed)
    yield lab


# ---- a good run --------------------------------------------------------------


# ept, tdp_mmu, pml
EPT, SHADOW, TDP_PML = (True, False, True), (False, False, True), (True, True, True)
EPT_NOPML, TDP_NOPML = (True, False, False), (True, True, False)
BOTH = (True, False)


def test_measures_each_mode_and_beside_it_what_it_is_compared_with(lab: Lab) -> None:
    said = lab.bench("--tables")
    assert lab.built == ["series kvm", "peer kvm", "base kvm", "series selftests"]
    assert {job.cpus for job in lab.machine.jobs} == {9}
    measured: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
    for m in lab.latest():
        mode, values = (m.ept, m.tdp_mmu, m.pml), (m.vcpus, m.write_percent, m.eager)
        pattern = () if m.pattern == "pages" else (m.pattern,)
        where = (m.kernel, mode, m.initially_all_set, m.dirty_bits, *pattern)
        measured.setdefault(where, set()).add(values)
    mixes, lazy, eager = (100, 20), (False,), (True,)
    # In the TDP MMU a third one, and all in either log mode: what enabling is judged by.
    third = (*mixes, 5)
    wanted: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
    compared = product(("series", "base"), (EPT, SHADOW, TDP_PML, TDP_NOPML))
    for kind, mode in (("series", EPT_NOPML), *compared):
        scaling = mode in (EPT, SHADOW)
        eagers = lazy if kind == "base" and scaling else BOTH
        counts = (2, 8) if kind == "series" and scaling else (8,)
        wanted[kind, mode, True, "off"] = set(product(counts, third if mode[1] else mixes, eagers))
        wanted[kind, mode, False, "off"] = set(product((8,), third if mode[1] else (100,), eagers))
    for mode in (SHADOW, EPT_NOPML, TDP_NOPML):
        # N once for each of the two main mixes.
        wanted["series", mode, True, "on"] = {
            *product((8,), mixes, BOTH),
            *product((8,), third if mode[1] else mixes, eager),
        }
        wanted["series", mode, False, "on"] = set(
            product((8,), third if mode[1] else (100,), eager)
        )
    for mode in (EPT, SHADOW):
        wanted["peer", mode, True, "off"] = set(product((2, 8), mixes, eager))
    for mode in (EPT, SHADOW, TDP_PML):
        dirty_bits = "off" if mode[0] else "on"
        wanted["series", mode, True, dirty_bits, "regions"] = set(product((8,), (100, 20, 0), BOTH))
    wanted["series", SHADOW, True, "on", "clean"] = set(product((8,), (100,), BOTH))
    assert measured == wanted
    for words in ("ept=Y, tdp_mmu=N, all writes", "ept=N, tdp_mmu=N, 20% writes", "+0.00%"):
        assert words in said.out
    assert "at least 60x: reached" in said.out
    # Four tables of times; twelve with the TDP MMU.
    columns = [said.out.count(f"| {name} |") for name in ("ungated", "unpatched", "D bits")]
    assert columns == [4, 12, 12]
    assert "ept=N, tdp_mmu=N, dirty_bits=on, all writes, clean gPTEs" in said.out
    memory = re.escape("| ept=N, dirty_bits=on, 20% writes by regions of 2 MiB, 8 vCPUs x 10 MiB ")
    assert re.search(rf"{memory}.*\| +32 \| +32 \| +8 \| +8 \|", said.out)
    assert "|  U/Y |" in said.out
    assert "132 test runs in 11 boots of vmx-bochs (simulated time)" in said.err
    later = [m for m in lab.latest() if m.cycle > 1]
    assert {(m.kernel, (m.ept, m.tdp_mmu, m.pml), m.dirty_bits) for m in later} == {
        *(("series", mode, "off") for mode in (EPT, TDP_PML)),
        ("series", SHADOW, "on"),
    }
    assert {(m.cycle, m.vcpus, m.write_percent) for m in later} == {(2, 8, 100), (3, 8, 100)}
    assert "| Cycles of enabling" not in said.out
    assert re.search(r"\| cycle 1 \| cycle 2 \| +cycle 3 \| +3 / 1 \|", said.out)


def test_the_file_is_named_by_time_and_machine_and_in_the_plans_order(lab: Lab) -> None:
    lab.bench(*SMALL)
    name, latest = lab.result_files()
    assert latest == files.LATEST
    assert name.endswith("Z-vmx-bochs.jsonl")
    assert (lab.results / latest).readlink() == Path(name)
    assert lab.drawn == [lab.results]
    order = list(dict.fromkeys((one.kernel, one.ept) for one in lab.latest()))
    assert order == list(product(("series", "peer", "base"), (True, False)))


def test_what_another_base_has_stands_beside_it(lab: Lab) -> None:
    # In a mode that all kernels are measured in.
    tables = ("--tables", *SMALL, "--modes", "ept0")
    assert "7.3" not in lab.bench(*tables).out
    newer = [replace(one, kernel_version=f"7.3.4-{one.kernel}") for one in lab.latest()]
    assert {one.kernel for one in newer} == {"series", "peer", "base"}
    file = lab.directory / "docs" / "reference" / "7.3" / "bench.jsonl"
    jsonl.write(file, newer)
    # Names of results are times, to the second.
    kept = ("--output", str(lab.directory / "again.jsonl"))
    assert re.search(r"\| 7\.3 N \|.* [\d.]+ N/Y \|", lab.bench(*tables, *kept).out)
    # What was measured later is preferred.
    later = [replace(one, kernel_version=f"7.4.1-{one.kernel}") for one in newer]
    jsonl.write(lab.results / "20990101T000000Z-vmx-bochs.jsonl", later)
    jsonl.write(file, [replace(one, seconds=99.0) for one in newer])
    jsonl.write(lab.results / "20980101T000000Z-vmx-bochs.jsonl", newer)
    said = lab.bench(*tables, "--output", str(lab.directory / "third.jsonl")).out
    assert re.search(r"\| 7\.4 N \|.* 7\.3 N \|.* [\d.]+ N/Y \|", said)
    assert "99000" not in said


def test_output_goes_where_it_is_asked_for(lab: Lab) -> None:
    file = lab.directory / "mine.jsonl"
    lab.bench(*SMALL, "--kernel", "series", "--modes", "ept0", "--output", str(file))
    # N and Y.
    assert len(jsonl.parse_all(file.read_text(), "mine")) == 2 * (3 + 3 * 2)
    assert lab.result_files() == []
    assert not file.with_name(files.LATEST).is_symlink()


def test_options_reach_the_script(lab: Lab) -> None:
    options = ["--writes", "50", "--eager", "Y", "--init-set", "no", "--bytes", "2M"]
    lab.bench(*SMALL, *options, "--backing", "anonymous", "--iterations", "3")
    found = lab.latest()
    # No N: nothing beside the base, but in the TDP MMU.
    kernels = {(m.kernel, m.tdp_mmu) for m in found}
    assert kernels == {*product(("series",), BOTH), ("peer", False), ("base", True)}
    assert {(m.bytes_per_vcpu, m.backing) for m in found} == {(2 << 20, "anonymous")}
    assert {(m.write_percent, m.eager, m.initially_all_set) for m in found} == {(50, True, False)}
    assert max(m.iteration or 0 for m in found) == 3


@for_each_row("words", [], ["--full"])
def test_host_is_measured_as_it_is(lab: Lab, words: list[str]) -> None:
    lab.machine.spoil = lambda host, job: host.set("kvm.dirty_bits", "auto")
    said = lab.bench(*SMALL, *words, "--machine", "host")
    (job,) = lab.machine.jobs
    assert job.parameters == {}
    assert lab.built == ["series selftests"]
    seen = {(m.machine, m.ept, m.tdp_mmu, m.dirty_bits) for m in lab.latest()}
    assert seen == {("host", True, True, "auto")}
    assert "wall-clock time" in said.out


def test_memory_grows_with_the_guest_and_svm_has_its_own_parameter(lab: Lab) -> None:
    boot = Boot("vmx-bochs", "series", Mode(True), Matrix(bytes_per_vcpu="256M"))
    job = plan.bench_job(lab.machine, boot, Path("k"), Path("t"))
    assert job.memory_mib == 8 * 256 + plan.SPARE_MIB
    small = plan.bench_job(lab.machine, replace(boot, matrix=Matrix()), Path("k"), Path("t"))
    assert small.memory_mib == plan.MEMORY_MIB
    boot = Boot("svm-qemu", "series", Mode(False), Matrix())
    without = {"kvm.tdp_mmu": "0", "kvm_amd.npt": "0"}
    assert boot.parameters == without | {"kvm.dirty_bits": "off"}
    assert replace(boot, kernel="base").parameters == without
    assert boot.label == "series, npt=N"


def test_dry_run_builds_and_runs_nothing(lab: Lab) -> None:
    said = lab.bench("--dry-run").out
    assert (lab.built, lab.machine.jobs, lab.result_files()) == ([], [], [])
    assert "series, ept=N: vmx-bochs, 9 CPUs, 1024 MiB kvm.tdp_mmu=0 kvm_intel.ept=0" in said
    assert "--eager=N Y" in said
    assert said.count("--dirty-bits=on --output=") == 7
    assert said.count("--writes=5 ") == 5
    # In each boot whatever was measured is verified afterwards.
    scripts = [line for line in said.splitlines() if line.startswith("  sh ")]
    assert len(scripts) == 11
    for script in scripts:
        measured, *verified = script.split(" --verify=only ")
        assert measured.count("--verify=no") == measured.count("--output=") > 0
        assert not any("--output=" in call for call in verified)
        for words in (
            *("--init-set=yes", "--init-set=no", "'--eager=N Y'", "--dirty-bits=on"),
            "--cycles=3",
        ):
            assert (words in measured) == any(words in call for call in verified)


def test_a_kernel_that_loses_writes_is_found_by_what_is_verified() -> None:
    """The mutant that does so is looked for by the very call."""
    boots = plan.bench_boots("vmx-bochs", "series", QUICK, ["ept1"])
    (boot,) = plan.quick(boots)
    words = ("--dry-run", "--verify=only", "--no-pin", f"--test=/{PERF_TEST}")
    command = ("sh", str(SCRIPT), *words, *boot.verified[0].arguments())
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (mutant,) = (one for one in mutants.load(LAYOUT).mutants if one.name == "clear-nothing")
    call = " ".join((f"/{mutant.check.program}", *mutant.check.arguments))
    assert f"eager_page_split=Y {call}" in said.splitlines()
    assert (mutant.check.machine, set(mutant.check.words)) == (
        boot.machine,
        {"kvm_intel.ept=1", "kvm.tdp_mmu=0"},
    )


def test_full_is_the_larger_matrix(lab: Lab) -> None:
    said = lab.bench("--full", "--dry-run").out
    assert "15 CPUs" in said
    assert "--vcpus=2 4 8 14 16 32 64" in said
    for words in ("ept=Y, tdp_mmu=Y, without, 0% writes", "kvm.tdp_mmu=1 kvm_intel.ept=1"):
        assert words in said
    assert "peer, ept=Y, tdp_mmu=Y" not in said
    # Another kernel has no dirty_bits.
    assert "--dirty-bits" not in lab.bench("--full", "--kernel", "peer", "--dry-run").out
    said = lab.bench("--full", "--machine", "svm-qemu", "--dry-run").out
    assert "pml" not in said
    assert "'--dirty-bits=off on'" in said


def test_the_presets_are_those_of_the_script() -> None:
    # But for the second backing, and for what not every kernel has.
    full = replace(FULL, backing=(*FULL.backing, "anonymous_thp"), dirty_bits=())
    for preset, matrix in (("--quick", QUICK), ("--full", full)):
        said = [
            subprocess.run(
                ["sh", str(SCRIPT), "--dry-run", "--test=/bin/true", *words],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for words in ([preset], matrix.arguments())
        ]
        assert said[0] == said[1]


def test_a_plan_measures_every_run_of_the_matrix_once() -> None:
    boots = plan.bench_boots("vmx-bochs", "series", FULL, plan.modes_of("vmx-bochs"))
    assert len({boot.label for boot in boots}) == len(boots) == 5 * 2 * 6
    without = replace(FULL, dirty_bits=())
    for mode in plan.MODES.values():
        same = [boot for boot in boots if boot.mode == mode]
        # Where the CPU logs by itself there is nothing to choose.
        matrix = without if mode.ept and mode.pml else FULL
        assert sorted(run for boot in same for run in boot.matrix.runs) == sorted(matrix.runs)
    # Small boots are not split.
    boots = plan.bench_boots("vmx-bochs", "all", QUICK)
    assert [boot.matrix for boot in boots if boot.kernel == "series"] == [QUICK] * 5
    assert {boot.part for boot in boots} == {""}


def test_every_machine_has_estimates_and_more_cpus_in_lockstep_take_longer() -> None:
    few, many = (Boot("vmx-bochs", "series", Mode(True), Matrix(vcpus=(n,))) for n in (2, 64))
    nine = Boot("vmx-bochs", "series", Mode(True), QUICK)
    assert few.boot_s < nine.boot_s == plan.BOOT_S["vmx-bochs"]
    assert many.boot_s == pytest.approx(1.6 * plan.BOOT_S["vmx-bochs"])
    assert set(TDP) == set(plan.BOOT_S) == set(plan.VCPU_S) == set(machines.NAMES)


def test_cycles_are_asked_for_and_take_time(lab: Lab) -> None:
    once, thrice = Matrix(vcpus=(2, 8)), Matrix(vcpus=(2, 8), cycles=3)
    assert (once.weight, thrice.weight) == (4 * (4 + 10), 4 * (8 + 26))
    lab.bench(*SMALL, "--cycles", "2", "--kernel", "series")
    assert {(m.cycle, m.phase == "populate") for m in lab.latest()} == {
        *((1, True), (1, False), (2, False))
    }
    said = calls.refusal("bench", *SMALL, "--cycles", "0", "--dry-run")
    assert "--cycles: '0' is not a whole number from 1 to 1000" in said


@for_each_row(
    "words, keys, wanted",
    # There is nothing beside the ungated baseline without Y, nor beside dirty_bits alone.
    ("--eager N", "kernel", {"series", "base"}),
    ("--modes ept0,ept1 --dirty-bits auto", "kernel ept dirty_bits", {("series", False, "auto")}),
    (
        "--modes tdp,ept0",
        "kernel ept tdp_mmu",
        {(kind, both, both) for kind, both in product(("series", "base"), BOTH)}
        | {("peer", False, False)},
    ),
    # Where there is no PML.
    (
        "--modes ept0,ept1,ept1-nopml,tdp-nopml --dirty-bits off,on --eager Y",
        "kernel ept tdp_mmu pml dirty_bits",
        {("series", *mode, by) for mode in (SHADOW, EPT_NOPML, TDP_NOPML) for by in ("off", "on")}
        | {("peer", *mode, "off") for mode in (SHADOW, EPT, EPT_NOPML)}
        | {("series", *EPT, "off"), ("base", *TDP_NOPML, "off")},
    ),
)
def test_what_is_chosen_and_what_is_beside_it(
    lab: Lab, words: str, keys: str, wanted: set[object]
) -> None:
    lab.bench(*SMALL, *words.split())
    assert set(map(attrgetter(*keys.split()), lab.latest())) == wanted


def test_overcommitted_counts_are_measured_and_marked(lab: Lab) -> None:
    lab.bench("--vcpus", "2 14 16", "--kernel", "series")
    assert {job.cpus for job in lab.machine.jobs} == {15}
    seen = {(m.vcpus, m.overcommitted, m.pinned, m.cpus) for m in lab.latest()}
    assert seen == {(2, False, True, 15), (14, False, True, 15), (16, True, False, 15)}


def test_several_backings(lab: Lab) -> None:
    backings = "anonymous_hugetlb_2mb,anonymous"
    lab.bench(*SMALL, "--kernel", "series", "--backing", backings, "--modes", "ept1 ept0")
    assert len(lab.machine.jobs) == 4
    assert {m.backing for m in lab.latest()} == set(backings.split(","))


def test_a_goal_that_is_missed_is_an_error_and_the_results_are_kept(lab: Lab) -> None:
    lab.missed = [goals.Missed("ept=Y, dirty ms: at most 4 ms", ("N 9.00",))]
    said = calls.lab("bench", *SMALL, *ONE_BOOT, status=1)
    assert "goals are missed: 1" in said.err and str(lab.missed[0]) in said.out
    assert lab.latest() and lab.drawn and "| N/Y |" not in said.out
    # What another clock says is judged by nobody.
    calls.lab("bench", *SMALL, "--machine", "host", "--output", str(lab.directory / "a.jsonl"))


# ---- bad input ---------------------------------------------------------------


@for_each_row(
    "arguments, said",
    (["--machine", "pdp-11"], "there is no machine 'pdp-11', only: "),
    (["--vcpus", "2 x"], "'2 x' is not a list of whole numbers"),
    (["--vcpus", ""], "--vcpus: the list is empty"),
    (["--modes", "ept1 ept2"], "--modes: 'ept2' is not one of ept1, ept0, tdp, ept1-nopml"),
    (["--machine=svm-qemu", "--modes=tdp-nopml"], "'tdp-nopml' is not one of ept1, ept0, tdp"),
    (["--dirty-bits", "perhaps"], "--dirty-bits: 'perhaps' is not one of off, on, auto"),
    (["--dirty-bits", ""], "--dirty-bits: the list is empty"),
    (["--dirty-bits", "on", "--modes", "ept1 tdp"], "has no effect with --modes 'ept1 tdp'"),
    (["--dirty-bits", "on", "--kernel", "base"], "the kernel base has no dirty_bits"),
    (["--modes", "tdp tdp"], "--modes: the list is empty, or names a mode twice"),
    (["--machine", "host", "--modes", "tdp"], "--modes: cannot be used with host"),
    # The script refuses this, see test_split_bench.py.
    (["--writes", "101"], "--writes: '101' is not a whole number from 0 to 100"),
    (["--kernel", "both"], "'both' is not one of 'all', 'series', 'peer', 'base'"),
    (["--output", "/nowhere/x"], "--output: there is no directory /nowhere"),
    (["--speed", "9"], "--speed"),
)
def test_bad_input(lab: Lab, arguments: list[str], said: str) -> None:
    assert said in calls.refusal("bench", *arguments)
    assert (lab.built, lab.machine.jobs, lab.result_files()) == ([], [], [])


def test_results_are_never_overwritten(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    file = lab.directory / "mine.jsonl"
    file.write_text("precious")
    line = calls.refusal("bench", "--output", str(file))
    assert "mine.jsonl exists; results are never overwritten" in line
    assert file.read_text() == "precious"
    assert lab.built == []
    # Nor is anything begun that there is no space for.
    leave_free(monkeypatch, 1000)
    assert "no space left" in calls.refusal("bench")
    assert lab.built == []


def test_no_space_at_the_end_leaves_no_file(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    assert "no space left" in lab.bench(*SMALL, *ONE_BOOT, status=2).err


# ---- what goes wrong ---------------------------------------------------------


def test_a_failed_run_and_a_refusal_inside_are_told(lab: Lab) -> None:
    lab.machine.spoil = lambda host, job: host.mode("fail")
    error = lab.bench(*SMALL, status=1).err
    for words in ("Test Assertion Failure", "lab: series, ept=", "a test run failed"):
        assert words in error
    assert "Traceback" not in error
    # A refusal inside is bad input.
    lab.machine.spoil = lambda host, job: host.free(5)
    last = lab.bench(status=2).err.splitlines()[-1]
    assert "too little memory for the HugeTLB pool: wanted 34 MiB" in last
    assert last.startswith("lab: series, ept=")


@for_each_row(
    "parameter, value, said",
    (
        "kvm_intel.ept",
        "Y",
        "series, ept=N: the results are of another paging mode than requested: ept=Y",
    ),
    ("kvm.tdp_mmu", "Y", "missing or were not asked for"),
    ("kvm.dirty_bits", "on", "missing or were not asked for"),
)
def test_a_parameter_that_is_not_as_asked_for_is_noticed(
    lab: Lab, parameter: str, value: str, said: str
) -> None:
    lab.machine.spoil = lambda host, job: host.set(parameter, value)
    assert said in lab.bench(*SMALL, "--kernel", "series", status=1).err


@for_each_row(
    "change, said",
    (lambda text: b"".join(text.splitlines(keepends=True)[:-1]), "1 measurements are missing"),
    (lambda text: text[:-20], "its last line is incomplete"),
    (lambda text: text + text, "repeats the measurement"),
    (lambda text: text.replace(b'"vcpus": 2', b'"vcpus": 9'), "missing or were not asked"),
    (lambda text: b"", "no results"),
    (lambda text: b"\xff\n", "unusable results"),
    (lambda text: None, "unusable results"),
)
def test_results_that_are_not_those_asked_for(
    lab: Lab, change: Callable[[bytes], bytes | None], said: str
) -> None:
    def after(job: Job, result: Result) -> Result:
        changed = change(result.files[plan.OUTPUT])
        return replace(result, files={} if changed is None else {plan.OUTPUT: changed})

    lab.machine.after = after
    assert said in lab.bench(*SMALL, "--kernel", "series", status=1).err.splitlines()[-1]


def test_a_machine_that_fails_is_not_a_failed_run(lab: Lab) -> None:
    lost = MachineFailed("boot timed out", "did not come up within 300 s", "Booting...\n")
    lab.machine.spoil = Mock(side_effect=lost)
    last = lab.bench(*SMALL, "--kernel", "series", status=3).err.splitlines()[-1]
    assert "boot timed out: did not come up within 300 s" in last
    (log, *_) = sorted((lab.directory / "log").iterdir())
    assert log.read_text() == "Booting...\n"
    assert str(lab.directory / "log") in last


@dataclass
class Hanging(FakeMachine):
    """Its second boot starts a program that does not end; once that runs, the first one fails.

    interrupted: by then, the user has typed Ctrl-C.
    """

    interrupted: bool = False
    pid: int = 0
    running: threading.Event = field(default_factory=threading.Event)

    def run(self, job: Job) -> Result:
        if job.parameters["kvm_intel.ept"] == "1":
            assert self.running.wait(20)
            if self.interrupted:
                _thread.interrupt_main()
                subprocess.run(["sleep", "600"], check=False)
            raise MachineFailed("command timed out", "too slow", "")
        with subprocess.Popen(["sleep", "600"]) as child:
            self.pid = child.pid
            self.running.set()
        raise MachineFailed("machine crashed", "the emulator ended", "")


@pytest.mark.usefixtures("terminal_signals")
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("interrupted", "status", "said"),
    [(False, 3, "series, ept=Y: command timed out"), (True, 130, "lab: interrupted")],
)
def test_what_ends_one_machine_ends_the_other(
    lab: Lab, interrupted: bool, status: int, said: str
) -> None:
    lab.machine = machine = Hanging(lab.directory, lab.machine.applets, interrupted=interrupted)
    assert said in lab.bench(*SMALL, "--kernel", "series", status=status).err
    with pytest.raises(ProcessLookupError):
        os.kill(machine.pid, 0)


def test_machines_share_the_cpus(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda: 64)
    applets = lab.machine.applets
    wall_clock = FakeMachine(lab.directory, applets, "svm-qemu", lockstep=False)
    assert [bench.parallel_on(one) for one in (lab.machine, wall_clock)] == [2, 1]
    few = FakeMachine(lab.directory, applets, "svm-qemu", max_cpus=4, lockstep=False)
    assert [plan.cpus_for(few, (n,)) for n in (8, 2)] == [4, 3]


BOOT = Boot("vmx-bochs", "series", Mode(True), Matrix())
LINE = "4 vCPUs, 20% writes, initially-all-set, eager_page_split=N"


def watch(boots: int) -> tuple[Watch, Mock]:
    """With the clock that it looks at."""
    clock = Mock(return_value=0.0)
    return Watch([BOOT] * boots, 77, clock), clock


@for_each_row("boots, factor", (2, 1), (4, 2), (1, 1))
def test_two_boots_run_at_a_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, boots: int, factor: int
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    found = bench.estimate_s(lab.machine, [BOOT] * boots)
    assert found == pytest.approx(factor * BOOT.estimate_s)


@pytest.mark.parametrize("slowness", [1, 3])
def test_what_is_left_takes_as_long_as_what_is_done(slowness: int) -> None:
    watched, clock = watch(1)
    watched.start(0)
    # A boot that hangs does not look done.
    clock.return_value = 100 * BOOT.estimate_s
    assert watched.left_s() == 77
    clock.return_value = slowness * (BOOT_S["vmx-bochs"] + BOOT.runs_s / 2)
    watched.line(0, f"50% 6/12 {LINE}\n")
    assert watched.left_s() == pytest.approx(slowness * (BOOT.runs_s / 2 + BOOT.verified_s))


def test_nothing_is_left_at_the_end() -> None:
    watched, clock = watch(2)
    for index in range(2):
        watched.start(index)
        clock.return_value += 10
        watched.end(index)
    assert (watched.left_s(), watched.now()[0]) == (0, watched.total_s)


def state(watched: Watch) -> tuple[float, str]:
    done, text = watched.now()
    return done, text.partition("left; ")[2]


def test_lines_of_others_are_ignored() -> None:
    watched, _ = watch(1)
    watched.line(0, "hello")
    assert state(watched) == (0, "")
    watched.start(0)
    watched.line(0, f"37% 5/12 {LINE}")
    said = (BOOT.boot_s + 0.37 * BOOT.runs_s, f"series, ept=Y: 5/12 {LINE}")
    assert state(watched) == said
    # What is measured after the matrix is no way back.
    for line in ("100% 12/12 done", f"0% 1/2 {LINE}"):
        watched.line(0, line)
    assert state(watched) == (BOOT.boot_s + BOOT.runs_s, f"series, ept=Y: 1/2 {LINE}")


@for_each_row("seconds, wanted", (0.0, "5 s"), (41.0, "40 s"), (89.0, "90 s"), (200.0, "3 min"))
def test_duration(seconds: float, wanted: str) -> None:
    assert duration(seconds) == wanted


def shown_on(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120)
    monkeypatch.setattr(steps, "console", console)
    watched, clock = watch(2)
    with steps.bar("bench", watched.total_s, watched.now, clock) as tick:
        watched.start(0)
        watched.line(0, f"37% 5/12 {LINE}")
        for _ in range(45):
            clock.return_value += 1
            tick()
    return stream.getvalue()


def test_plain_lines_come_now_and_then_or_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown_on(monkeypatch, terminal=False).splitlines()
    assert len(lines) == 1
    assert all("left; series, ept=Y: 5/12 4 vCPUs, 20% writes" in line for line in lines)
    said = shown_on(monkeypatch, terminal=True)
    assert "\u2501" in said and "left; series, ept=Y: 5/12 4 vCPUs" in said
