# SPDX-License-Identifier: GPL-2.0-only
"""What runs inside which machine, as data.

A test names a selftest and its arguments. A mode names a machine and the module parameters that it
boots with. cases() combines them; each combination is one test case with all of it in its name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from lab.build import mutants
from lab.build.mutants import Mutant
from lab.build.selftests import LIVE_TEST, OBJECTS, PERF_TEST, STRIPPED
from lab.core.paths import LAYOUT
from lab.machines.parameters import NAME


@dataclass(frozen=True)
class Selftest:
    """One selftest with its arguments.

    name: what the case is called.
    argv: the program, below the directory of built selftests, and its arguments.
    cpus, memory_mib: what the machine needs.
    huge_2m: pages in the 2 MiB HugeTLB pool.
    cmdline: words for the kernel command line.
    settings: files below /sys/module/kvm/parameters to write first.
    eager: values of eager_page_split that it makes sense with.
    dirty_bits: what dirty_bits is where there is one; empty: what it is by default.
    timeout_s: for the slowest kernel.
    """

    name: str
    argv: tuple[str, ...]
    cpus: int = 3
    memory_mib: int = 1024
    huge_2m: int = 0
    cmdline: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    eager: tuple[str, ...] = ("N", "Y")
    dirty_bits: str = "off"
    timeout_s: float = 300


@dataclass(frozen=True)
class Mode:
    """A machine, the parameters it boots with, and what to call that."""

    name: str
    machine: str
    parameters: dict[str, str] = field(hash=False)


@dataclass(frozen=True)
class Case:
    """A selftest in a mode, on one configuration of the kernel."""

    test: Selftest
    mode: Mode
    eager: str
    config: str = "kvm"

    @property
    def id(self) -> str:
        mode = f"{self.mode.machine}-{self.config}-{self.mode.name}"
        return f"{mode}-eager{self.eager}-{self.test.name}"

    @property
    def cpus(self) -> int:
        """Bochs takes half as long for a machine with one CPU, and as long for two as for three."""
        return (
            1 if self.mode.machine == "vmx-bochs" and has_one_thread(self.test) else self.test.cpus
        )

    @property
    def boot(self) -> str:
        """What has to be the same of cases that share a boot."""
        size = (f"{self.cpus}x", f"{self.test.memory_mib}M")
        words = (self.config, self.mode.name, *size, *self.test.cmdline)
        return "-".join((self.mode.machine, *words))


# Programs in which no two threads run at the same time; of some only parts, which -m names.
ONE_THREAD: Mapping[str, tuple[str, ...]] = {
    "x86/dirty_bits_param_test": (),
    "x86/dirty_bits_test": ("nothing", "readonly", "root"),
    "x86/dirty_log_caps_test": (),
    "x86/dirty_log_clear_test": (),
    "x86/dirty_log_control_test": (),
    "x86/dirty_log_idle_test": ("window", "shared", "idle", "many"),
    "x86/dirty_log_sparse_test": (),
    "x86/dirty_ring_signal_test": (),
    "x86/eager_split_clear_test": ("mmio",),
    "x86/eager_split_modes_test": (),
    "x86/fault_split_test": (),
    "x86/memslot_alias_test": (),
    "x86/huge_recover_test": (),
    "x86/nested_dirty_log_test": (),
}


def has_one_thread(test: Selftest) -> bool:
    """Does all of TEST run in one thread, so that no other CPU has anything to do?"""
    program, *words = test.argv
    if program not in ONE_THREAD:
        return False
    parts = ONE_THREAD[program]
    chosen = [value for option, value in pairwise(words) if option == "-m"]
    return not parts or (bool(chosen) and set(chosen) <= set(parts))


HUGE_2M = "anonymous_hugetlb_2mb"
HUGE_1G = "anonymous_hugetlb_1gb"
# The initramfs lies in the second GiB; enough for a whole and aligned one above the hole at 4 GiB.
MEMORY_FOR_1G = 5120

NX = {"pages": "1", "pages_recovery_ratio": "1", "pages_recovery_period_ms": "100"}


def selftest(program: str, *argv: str, name: str = "", **words: Any) -> Selftest:
    """One selftest, called as its program is, with NAME behind that. WORDS: see Selftest."""
    names = (Path(program).name, *([name] if name else []))
    return Selftest("-".join(names), (program, *argv), **words)


SPLITTING = selftest(
    *("x86/dirty_log_page_splitting_test", "-b", "4M", "-s", HUGE_2M),
    huge_2m=64,
    # The test requires the splitter; that N splits nothing early is for dirty_log_perf_test.
    eager=("Y",),
)


def dirty_log_test(mode: str) -> Selftest:
    """Upstream's test of the log itself, with less memory than its usual 1 GiB."""
    return selftest("dirty_log_test", "-M", mode, "-i", "4", "-I", "10", "-b", "32M", name=mode)


def perf_test(name: str, *argv: str, backing: str = HUGE_2M, program: str = PERF_TEST) -> Selftest:
    """One of those that measure, with its verdict on.

    Nothing that was written is missing from the log, and where KVM splits eagerly no huge page
    is left.
    """
    return selftest(
        *(program, "-V", "-s", backing, *argv),
        name=name,
        huge_2m=0 if backing == HUGE_1G else 32,
        memory_mib=MEMORY_FOR_1G if backing == HUGE_1G else 1024,
        cmdline=("hugepagesz=1G", "hugepages=1") if backing == HUGE_1G else (),
    )


def eagerly(test: Selftest) -> Selftest:
    """The same, with eager_page_split=Y only, which is where most can go wrong."""
    return replace(test, eager=("Y",))


DIRTY_LOG_MODES = tuple(dirty_log_test(m) for m in ("dirty-log", "clear-log", "dirty-ring"))

LIVE = perf_test(
    *("fresh", "-v", "2", "-b", "8M", "-W", "5000", "-D", "40", "-R", "1", "-F"), program=LIVE_TEST
)
PERF = (
    perf_test("clear", "-v", "2", "-b", "8M"),
    eagerly(perf_test("clear-half-written", "-v", "2", "-b", "8M", "-w", "50")),
    perf_test("enable", "-v", "2", "-b", "8M", "-g"),
    eagerly(perf_test("slots-overlap", "-v", "2", "-b", "8M", "-x", "2", "-o", "-e")),
    perf_test("cycles", "-v", "2", "-b", "8M", "--cycles", "3"),
    eagerly(LIVE),
)

# What changes only what the vCPUs do, not what KVM does: one mode will do.
SMALL = ("-v", "2", "-b", "8M")
SPARSE = ("--sparse", "--stats", "--runs", "2", "-j", "/results.json")
PERF_ACCESS = (
    perf_test("sparse-readers", *SMALL, *SPARSE, "-R", "1"),
    perf_test("sparse", *SMALL, *SPARSE, "-a", "-W", "5000", "-D", "20", program=LIVE_TEST),
    perf_test("shared-random", *SMALL, "-a", "-w", "50", "-g", backing="shared_hugetlb"),
)

# One page in twenty is written: a fault for each of 262,144 would take minutes. Still the
# slowest cases: lazy splitting is left to smaller ones.
PERF_1G = (
    eagerly(perf_test("clear-1g", "-v", "1", "-b", "1G", "-w", "5", backing=HUGE_1G)),
    eagerly(perf_test("enable-1g", "-v", "1", "-b", "1G", "-w", "5", "-g", backing=HUGE_1G)),
)

MEMORY = ("-v", "2", "-b", "32M", "-s", HUGE_2M)
OTHERS = (
    selftest("kvm_page_table_test", *MEMORY, huge_2m=64),
    selftest("memslot_modification_stress_test", "-v", "2", "-b", "16M", "-i", "30"),
    selftest("demand_paging_test", *MEMORY, huge_2m=64),
    selftest(
        *("x86/nx_huge_pages_test", "-t", "887563923", "-p", "100", "-r"),
        huge_2m=8,
        settings=tuple((f"nx_huge_{name}", value) for name, value in NX.items()),
    ),
)


def model_test(name: str, *parts: str) -> Selftest:
    """Splitting compared with a model step by step. PARTS: these only."""
    words = (word for part in parts for word in ("-m", part))
    return selftest(f"x86/eager_split_{name}_test", *words, huge_2m=16)


# Every way in which a guest can map its memory, what CLEAR splits, what user space sets meanwhile.
MODES = model_test("modes")
MODEL = (MODES, model_test("clear"))
# Without 1 GiB pages it needs shadow paging.
TABLES = model_test("tables")
# Executing what is back in place is another thing with the mitigation for NX huge pages.
RECOVER = selftest(
    "x86/huge_recover_test", huge_2m=16, settings=(("nx_huge_pages", "1"),), eager=("Y", "N")
)


def with_1g(test: Selftest) -> Selftest:
    """The same, with a free 1 GiB page."""
    cmdline = ("hugepagesz=1G", "hugepages=1")
    name = f"{test.name}-1g"
    return replace(test, name=name, memory_mib=MEMORY_FOR_1G, cmdline=cmdline, eager=("Y",))


MODES_1G = with_1g(model_test("modes", "1g"))
TABLES_1G = with_1g(model_test("tables", "relink", "links", "many_links", "filled"))
# The page tables below a 1 GiB page: the TDP MMU's, and those of shadow paging.
RECOVER_1G = with_1g(selftest("x86/huge_recover_test", "-m", "1g-left", "-m", "1g-unlinked"))
MODES_PSE = replace(model_test("modes", "pse"), name="eager_split_modes_test-pse", eager=("Y",))


def race_test(tries: int, *argv: str, name: str = "") -> Selftest:
    """Page sizes that change while the memory goes away; some tries come in between."""
    words = ("x86/eager_split_race_test", "-n", str(tries), *argv)
    return selftest(*words, name=name, huge_2m=16, eager=("Y",))


def fault_test(name: str, *argv: str) -> Selftest:
    """Take something from the splitter. The time limit is for sanitizers on a slow machine."""
    return selftest(f"x86/eager_split_{name}_test", *argv, huge_2m=80, eager=("Y",), timeout_s=600)


# Two failures of each kind of allocation, what else the splitter needs, and every drop of mmu_lock.
FAULT = (
    fault_test("fault", "-n", "2"),
    fault_test("quota"),
    # It tries until it has come in between.
    fault_test("cancel"),
    fault_test("yield"),
)


def by_dirty_bits(test: Selftest) -> Selftest:
    """The same, with dirty pages logged by Dirty bits instead of write protection."""
    return replace(test, name=f"{test.name}-dirty_bits", dirty_bits="on")


DIRTY_BITS = tuple(map(by_dirty_bits, (*MODEL, dirty_log_test("clear-log"), LIVE)))


def dirty_bits_test(*argv: str, name: str = "") -> Selftest:
    """The test of logging by Dirty bits, of some of the combinations of memory and log."""
    return selftest("x86/dirty_bits_test", *argv, name=name, eager=("Y",))


# Logging is enabled while a vCPU runs, which -q has only where that leaves all to CLEAR.
ENABLE_TLB = dirty_bits_test("-g", "L1", "-m", "enable", "-n", "40", name="enable")
# By write protection: the log is the same.
WRPROT = dirty_bits_test("-w", "-q", "-n", "40", name="wrprot")
DIRTY_BITS_PARAM = selftest("x86/dirty_bits_param_test", "-d", "auto", eager=("Y",), dirty_bits="")


# All ways in which a Dirty bit can go away. A page table of the debug kernel is dear to build.
NOTHING_UNSEEN = (dirty_bits_test("-q", "-n", "100"), ENABLE_TLB, DIRTY_BITS_PARAM, WRPROT)
NOTHING_UNSEEN_DEBUG = (
    dirty_bits_test("-q", "-m", "relink", "-m", "quota", "-m", "tlb", "-n", "40"),
)
# An L2 of VMX, whose EPT has Accessed and Dirty bits or not, or that has no EPT. Each event more
# is a second on Bochs.
VMX_GUESTS = ("-g", "L2", "-g", "L2-noAD", "-g", "L2-noTDP")
VMX_EVENTS = ("-m", "nothing", "-m", "readonly", "-m", "root")
VMX_RUNNING = ("-m", "tlb", "-m", "enable")
NOTHING_UNSEEN_VMX = (
    dirty_bits_test("-q", *VMX_GUESTS, *VMX_EVENTS),
    dirty_bits_test("-q", *VMX_GUESTS, *VMX_RUNNING, "-n", "40", name="running"),
    ENABLE_TLB,
)
# A ring needs the vCPU that wrote: such a VM doesn't log by Dirty bits, whatever the parameter.
DIRTY_BITS_RING = by_dirty_bits(dirty_log_test("dirty-ring"))


def window_test(name: str, *argv: str) -> Selftest:
    """Writes that come amid the update of an SPTE, logged by Dirty bits."""
    return by_dirty_bits(selftest("x86/dirty_log_window_test", *argv, name=name, eager=("Y",)))


def paused(test: Selftest) -> Selftest:
    """The same, with pauses amid some of the updates of SPTEs, and as if CPUs cached links."""
    races = {"prove_forget_links": "Y", "prove_window_every": "20", "prove_window_us": "100"}
    return replace(test, name=f"{test.name}-pauses", settings=(*test.settings, *races.items()))


# What is looked at above all where a Dirty bit may go.
PAUSED = tuple(map(paused, NOTHING_UNSEEN_DEBUG))
# Where the stress test, which copies what vCPUs write, is not fit to run.
PAUSED_TDP = (paused(by_dirty_bits(dirty_log_test("clear-log"))),)
WINDOW = window_test("chance", "-n", "25")
WINDOW_LONG = window_test("chance-long", "-n", "150")
WINDOW_VMX = window_test("chance", "-n", "5")
WINDOW_VMX_LONG = window_test("chance-long", "-n", "30")
# With pauses each round is hit, so that few show what the debug kernel says of it.
WINDOW_PAUSES = window_test("pauses", "-n", "5", "-w", "200")
WINDOW_PAUSES_LONG = window_test("pauses-long", "-n", "10", "-w", "200")
# Aging beside GET and CLEAR, which can lose pages with write protection as well.
WINDOW_WRPROT = selftest(
    *("x86/dirty_log_window_test", "-e", "log", "-n", "10", "-w", "200"),
    name="wrprot",
    eager=("Y",),
)


# Page tables that are skipped as no CPU has used them.
IDLE = by_dirty_bits(selftest("x86/dirty_log_idle_test", huge_2m=66, eager=("Y",)))
# What takes a second thread, and the others.
IDLE_VMX = tuple(
    replace(IDLE, name=f"{IDLE.name}{name}", argv=(*IDLE.argv, *words))
    for name, words in (
        ("", ("-m", "window", "-m", "shared", "-m", "idle", "-m", "many")),
        ("-link", ("-m", "link")),
    )
)
# As if CPUs had links to page tables cached, as emulated ones have not; debug kernels do that.
IDLE_CACHED = replace(
    IDLE, name=f"{IDLE.name}-cached", settings=(*IDLE.settings, ("prove_forget_links", "Y"))
)
# Where small pages and huge ones meet, and no page of either may be passed by: in memslots of 2 MiB
# and a little. The long form has larger ones, too.
EDGES = selftest(
    *("x86/dirty_log_sparse_test", "-m", "edges", "-s", "600"),
    huge_2m=4,
    name="edges",
    eager=("Y",),
)
# The debug kernel checks all page tables after each step.
EDGES_DEBUG = replace(EDGES, timeout_s=600)
EDGES_LONG = selftest(
    "x86/dirty_log_sparse_test", "-m", "edges", huge_2m=4, name="edges-long", eager=("Y",)
)
# Instructions for 2 MiB that a huge page maps: Bochs's TSC counts them.
HUGE_COST = by_dirty_bits(
    selftest(
        *("x86/dirty_log_sparse_test", "-m", "count", "-i", "20", "-a", "40", "-w", "16"),
        name="count",
        huge_2m=4,
        eager=("Y",),
    )
)
EXCESS = selftest("x86/dirty_log_window_test", "-x", "-n", "10", name="excess", eager=("Y",))
HIST = selftest("x86/dirty_log_hist_test", eager=("Y",))
# The settings of VMs, which it tries with all parameters of the host that can be set.
CONTROL = selftest("x86/dirty_log_control_test", huge_2m=16, timeout_s=600)
# What is left huge, and how the first write splits it. With Dirty bits each 2 MiB is one fault.
FIRST_WRITE = selftest("x86/fault_split_test", huge_2m=16, eager=("N",))
KEPT = selftest("x86/fault_split_test", "-m", "logged-kept", name="kept", huge_2m=16, eager=("N",))
# A vCPU finds memslots that are logged from their creation.
CREATE = selftest("x86/dirty_log_create_test", eager=("Y",))
FIRST_WRITE_1G = replace(with_1g(FIRST_WRITE), eager=("N",))
# The same by dirty_log_perf_test, whose verdict on page sizes has to know.
SETTINGS = ("--chunk", "0", "--dirty-bits", "on")
CONTROLLED = replace(
    perf_test("", *SMALL, *SETTINGS), name="controlled_perf_test-dirty", dirty_bits="auto"
)
SIGNAL = selftest("x86/dirty_ring_signal_test", eager=("Y",))
# It skips where the kernel does not have the bug.
SIGNAL_FIX = "KVM: Reset the current batch of a dirty ring if a signal is pending"
SIGNALS = () if SIGNAL_FIX in mutants.load(LAYOUT).left_out else (SIGNAL,)
NOSLOT = selftest("x86/noslot_fault_test", eager=("Y",))
# It needs shadow paging.
ALIAS = selftest("x86/memslot_alias_test", eager=("Y",))
# A page with too many SPTEs in a huge page that is split. Bochs interrupts no CPU by chance.
RECYCLE = selftest("x86/nested_recycle_test", huge_2m=4, eager=("Y",))
# Sequences of ioctls whose log is the same in every mode.
CAPS = selftest("x86/dirty_log_caps_test", huge_2m=4)
# The same for masks of KVM_CLEAR_DIRTY_LOG; the test goes through the host's parameters itself.
MASKS = selftest("x86/dirty_log_clear_test", huge_2m=4, eager=("Y",))
# Random sequences, each in a VM of its own: the test draws the host's parameters itself.
FUZZ = selftest("x86/dirty_log_fuzz_test", "-n", "1800", huge_2m=8, eager=("Y",))
FUZZ_THREAD = selftest(
    *("x86/dirty_log_fuzz_test", "-t", "-n", "200", "-s", "2"),
    name="thread",
    huge_2m=8,
    eager=("Y",),
)
FUZZ_DEBUG = selftest(
    *("x86/dirty_log_fuzz_test", "-n", "200", "-s", "3"), name="short", huge_2m=8, eager=("Y",)
)
FUZZ_LONG = selftest(
    *("x86/dirty_log_fuzz_test", "-n", "10000", "-s", "4"),
    name="long",
    huge_2m=8,
    eager=("Y",),
    timeout_s=900,
)
# Only a huge page that is left can be split meanwhile, and only the CPU's log is the worse for it.
ENABLE = selftest(
    "x86/dirty_log_enable_test", huge_2m=1, settings=(("nx_huge_pages", "1"),), eager=("N",)
)
ENABLE_LONG = replace(ENABLE, name=f"{ENABLE.name}-long", argv=(*ENABLE.argv, "-n", "32"))

# Of a base that marks folios dirty when SPTEs go: newer ones do when they map them.
FOLIO = selftest("x86/dirty_folio_test", eager=("Y",))
OF_BASE = "".join(file.read_text() for file in (LAYOUT.backport / "post").glob("*.patch"))

# Private memory is zapped by others than MMU notifiers. Only the debug kernel knows such VMs.
PRIVATE = by_dirty_bits(selftest("x86/private_mem_conversions_test", eager=("Y",)))

SVM_MODES = tuple(
    Mode(f"npt{npt}-tdp_mmu{tdp}", "svm-qemu", {"kvm_amd.npt": npt, "kvm.tdp_mmu": tdp})
    for npt, tdp in product("10", "10")
)
SHADOW_MODES = tuple(mode for mode in SVM_MODES if mode.parameters["kvm.tdp_mmu"] == "0")
# Without NPT there is no TDP MMU, whatever its parameter says: what is ours need not run twice.
TDP_MODE = SVM_MODES[0]
DISTINCT_MODES = (*SHADOW_MODES, TDP_MODE)
# Each MMU once.
DIRTY_BITS_MODES = DISTINCT_MODES[1:]


def vmx_mode(ept: str, tdp: str) -> Mode:
    return Mode(f"ept{ept}-tdp_mmu{tdp}", "vmx-bochs", {"kvm_intel.ept": ept, "kvm.tdp_mmu": tdp})


VMX_SMOKE = (perf_test("clear", "-v", "2", "-b", "2M"), MODES_PSE)
# Only here the CPU logs by itself.
VMX_MODES = (vmx_mode("1", "1"), vmx_mode("1", "0"), vmx_mode("0", "0"))

# An L2's writes, which the CPU doesn't log though it logs an L1's.
NESTED_LOG = selftest("x86/nested_dirty_log_test", eager=("Y",))
# The shadow pages of an L2 guest, below an L1 that is mapped by either MMU.
VMX_NESTED = (eagerly(perf_test("clear-nested", "-v", "1", "-b", "2M", "-n")),)
VMX_NESTED_MODES = VMX_MODES[:2]


def without(parameter: str) -> Mode:
    """Two-dimensional paging by a CPU that lacks something."""
    with_all = VMX_MODES[0]
    parameters = {**with_all.parameters, f"kvm_intel.{parameter}": "0"}
    return replace(with_all, name=f"{with_all.name}-{parameter}0", parameters=parameters)


# Where the CPU logs by itself, KVM doesn't look for Dirty bits.
VMX_DIRTY_BITS_MODE = without("pml")
# Without Accessed bits KVM takes away what an SPTE permits, to see who comes.
VMX_TRACKED_MODE = without("eptad")


def each(
    tests: Iterable[Selftest], modes: Iterable[Mode], config: str = "kvm", eager: str = "Y"
) -> Iterator[Case]:
    """Each of TESTS in each of MODES. EAGER: its value; empty: all that a test makes sense with."""
    for test, mode in product(tests, modes):
        yield from (Case(test, mode, value, config) for value in eager or test.eager)


# Without PML, and without Dirty bits; it is the test that sets eager_page_split.
CONTROL_MODES = (TDP_MODE, VMX_DIRTY_BITS_MODE, VMX_TRACKED_MODE)
# With shadow paging, and with PML: the controls of mutants run it there.
CONTROL_MODES_LONG = (SHADOW_MODES[-1], VMX_MODES[0])
CONTROL_CASES = (
    *each((CONTROL,), CONTROL_MODES),
    *each((CONTROLLED,), DIRTY_BITS_MODES),
)

# Each way is tried until it has come in between, at least so many times.
RACE = race_test(4)
RACE_LONG = race_test(20, name="long")
# The shadow MMU's splitter, which the TDP MMU does not use.
SHADOW = (TABLES_1G, RACE)
# The ways in which a split differs most from others. The plain kernel has all of them, and the long
# form, ALL_GUESTS, has more.
MODEL_DEBUG = (
    model_test("modes", "long", "alias1100", "pae", "smm"),
    model_test("clear"),
    model_test("tables", "tracked", "tracked_alias"),
)
# KVM does not look at the page tables of a guest there, and has no rmaps that could overflow.
MODEL_DEBUG_TDP = (model_test("modes", "long", "smm"), model_test("clear"))
BOTH_MMUS_DEBUG = (
    perf_test("clear", "-v", "2", "-b", "4M"),
    perf_test("enable", "-v", "2", "-b", "4M", "-g"),
    race_test(3),
)
# With pauses nearly each try comes in between. One that has come in between is enough.
PAUSED_RACE = race_test(1, "-w", "20", name="pauses")
PAUSED_RACE_LONG = race_test(6, "-w", "20", name="pauses-long")
# The locks and the memory of what is ours, which the debug kernel checks at each step. With shadow
# paging there is more to go wrong.
DEBUG_SHADOW = (
    RECOVER,
    WINDOW_PAUSES,
    *MODEL_DEBUG,
    *FAULT,
    PAUSED_RACE,
    *PAUSED,
)
# What takes something from the splitter is about the shadow MMU's.
DEBUG_TDP = (
    RECOVER,
    *PAUSED,
    WINDOW_PAUSES,
    WINDOW_WRPROT,
    IDLE_CACHED,
    fault_test("yield", "-m", "force", "-m", "steps"),
    *MODEL_DEBUG_TDP,
    PAUSED_RACE,
)
ALL_GUESTS = replace(
    model_test("modes", "long", "unaligned", "alias15", "alias1100", "pae", "pse", "smm"),
    name=f"{MODEL_DEBUG[0].name}-guests",
)
# Upstream's tests, those that measure, and what others do with pauses or in the other MMU.
DEBUG_LONG = (
    SPLITTING,
    PAUSED_RACE_LONG,
    WINDOW_PAUSES_LONG,
    *BOTH_MMUS_DEBUG,
    ALL_GUESTS,
    by_dirty_bits(EDGES_DEBUG),
)
DEBUG_TDP_LONG = (
    *DEBUG_LONG,
    PRIVATE,
    *NOTHING_UNSEEN_DEBUG,
    *PAUSED_TDP,
)

# Bounds of what a guest can cost, which are those of shadow paging.
HOSTILE = selftest("x86/eager_split_hostile_test", huge_2m=16, eager=("Y",))


def hold_test(gfns: int, name: str = "") -> Selftest:
    """For how long mmu_lock is held for a memslot of GFNS with 999 SPTEs each, in simulated time.

    What is done to the SPTEs of 64 gfns takes longer than the bound already.
    """
    words = ("-g", str(gfns), "-b", "2000")
    return selftest(
        "x86/dirty_log_hold_test", *words, name=name, huge_2m=8, eager=("Y",), timeout_s=800
    )


HOLD = hold_test(64)
HOLD_LONG = hold_test(512, name="long")


def stress_test(rounds: int, name: str = "") -> Selftest:
    """`make soak` in short: so many rounds with each of four VMs.

    The seeds draw a VM each for the four ways of logging, HugeTLB pages and transparent huge
    ones, fast and contended. With NPT the emulator itself fails now and then, see
    docs/developing.md.
    """
    words = ("-S", "5", "-r", str(rounds), "-n", str(4 * rounds), "-t", "280")
    return selftest("x86/eager_split_stress_test", *words, name=name, huge_2m=16, eager=("Y",))


STRESS = stress_test(10)
# Each round takes a sanitizer, or Bochs, seconds.
STRESS_SLOW = stress_test(1)
STRESS_DEBUG = paused(by_dirty_bits(STRESS_SLOW))
STRESS_DEBUG_LONG = paused(by_dirty_bits(stress_test(10, name="long")))


def cases() -> Iterator[Case]:
    """Yield every case of `make test`, those of the longest boot first."""
    shadow = SHADOW_MODES[-1:]
    yield from each((WINDOW_VMX, HOLD, by_dirty_bits(HOLD)), VMX_MODES[-1:])
    yield from each((STRESS_DEBUG, *DEBUG_SHADOW), shadow, "debug")
    yield from each((KEPT,), (*shadow, TDP_MODE), "debug", eager="N")
    yield from each(DEBUG_TDP, (TDP_MODE,), "debug")
    everywhere = (
        SPLITTING,
        *DIRTY_LOG_MODES,
        *OTHERS,
        *PERF,
        *map(eagerly, MODEL),
        RECOVER,
        MODES_1G,
    )
    yield from each(everywhere, DISTINCT_MODES, eager="")
    yield from each(PERF_1G, DIRTY_BITS_MODES)
    # That lazily nothing is split early is the same code for each MMU.
    yield from each((*MODEL, TABLES), shadow, eager="N")
    yield from each(MODEL, (TDP_MODE,), eager="N")
    of_dirty_bits = (STRESS_SLOW, *NOTHING_UNSEEN_VMX, WINDOW_VMX, *IDLE_VMX)
    yield from each(of_dirty_bits, (VMX_DIRTY_BITS_MODE,))
    yield Case(RECOVER, VMX_TRACKED_MODE, "Y")
    yield from each((TABLES, by_dirty_bits(TABLES), HOSTILE, STRESS), shadow)
    yield from each((NESTED_LOG,), VMX_NESTED_MODES)
    yield from each(VMX_SMOKE, VMX_MODES, eager="")
    yield from each(VMX_NESTED, VMX_NESTED_MODES, eager="")
    yield from each((*DIRTY_BITS, *NOTHING_UNSEEN, by_dirty_bits(RECOVER)), DIRTY_BITS_MODES)
    rest = (WINDOW, IDLE, EXCESS, HIST, by_dirty_bits(HIST), *SIGNALS, NOSLOT, DIRTY_BITS_RING)
    yield from each(rest, DIRTY_BITS_MODES)
    yield from CONTROL_CASES
    yield from each((ALIAS, by_dirty_bits(ALIAS)), shadow)
    yield from each((RECYCLE,), (TDP_MODE, VMX_MODES[0]))
    yield Case(RACE, TDP_MODE, "Y")
    yield from each((RECOVER_1G,), (TDP_MODE, *shadow))
    yield Case(ENABLE, VMX_MODES[0], "N")
    yield from each((FIRST_WRITE, by_dirty_bits(FIRST_WRITE)), DISTINCT_MODES, eager="N")
    yield from each((FIRST_WRITE,), (*VMX_MODES[:2], VMX_TRACKED_MODE), eager="N")
    yield from each((CREATE, by_dirty_bits(CREATE)), DISTINCT_MODES)
    yield from each((CREATE,), VMX_MODES)
    yield from each((by_dirty_bits(FIRST_WRITE_1G),), DISTINCT_MODES, eager="N")
    # Here no VM looks for Dirty bits.
    yield Case(DIRTY_BITS_PARAM, VMX_MODES[0], "Y")
    yield from each((EDGES, by_dirty_bits(EDGES)), DIRTY_BITS_MODES)
    yield from each((HUGE_COST,), (VMX_MODES[-1], VMX_DIRTY_BITS_MODE))
    yield from each((CAPS,), DISTINCT_MODES, eager="")
    yield from each((by_dirty_bits(CAPS),), DIRTY_BITS_MODES)
    # The CPU's log, and neither Dirty bits nor that.
    yield from each((CAPS,), (VMX_MODES[0], VMX_TRACKED_MODE))
    yield from each((MASKS,), (*DISTINCT_MODES, VMX_MODES[0], VMX_TRACKED_MODE))
    yield from each((FUZZ,), DISTINCT_MODES)
    yield from each((FUZZ_THREAD,), (SHADOW_MODES[-1],))
    yield from each(PERF_ACCESS, (SHADOW_MODES[0], TDP_MODE))
    if f"/{FOLIO.name}.c\n" in OF_BASE:
        yield from each((FOLIO, by_dirty_bits(FOLIO)), DIRTY_BITS_MODES)
    yield from each(SHADOW, SHADOW_MODES)


def quick_cases() -> Iterator[Case]:
    """Yield those of cases() that `make test WHAT=quick` runs: each paging mode of each machine."""
    yield from each((PERF[0], MODES), DISTINCT_MODES)
    yield from each(VMX_SMOKE[:1], VMX_MODES)


def is_for_default_base(case: Case) -> bool:
    """Is CASE left out by `make test` of another base?

    There the mutants run tests in all modes of both machines. What is left beside them is what
    splits, and logs by Dirty bits, in the shadow MMU without nested paging and in the TDP MMU.
    """
    if case.id in {one.id for one in quick_cases()}:
        return False
    return (
        case.mode not in (SHADOW_MODES[-1], TDP_MODE)
        or case.config != "kvm"
        or case.eager == "N"
        or case.test.memory_mib == MEMORY_FOR_1G
    )


def long_cases() -> Iterator[Case]:
    """Yield what `make test` has a shorter or other form of, and `make test WHAT=long` runs."""
    yield from each((HOLD_LONG, by_dirty_bits(HOLD_LONG)), VMX_MODES[-1:])
    yield from each((stress_test(50, name="long"),), SHADOW_MODES[-1:])
    yield from each((stress_test(25, name="long"),), (VMX_DIRTY_BITS_MODE,))
    yield from each((RACE_LONG,), DISTINCT_MODES)
    yield from each((WINDOW_LONG,), DIRTY_BITS_MODES)
    yield from each((EDGES_LONG, by_dirty_bits(EDGES_LONG)), DISTINCT_MODES)
    yield from each((WINDOW_VMX_LONG,), (VMX_MODES[-1], VMX_DIRTY_BITS_MODE))
    yield Case(CAPS, VMX_MODES[0], "N")
    yield from each((FUZZ_LONG,), DISTINCT_MODES)
    yield from each((FUZZ_DEBUG,), (SHADOW_MODES[-1], TDP_MODE), "debug")
    yield Case(ENABLE_LONG, VMX_MODES[0], "N")
    yield from each((CONTROL,), CONTROL_MODES_LONG)
    yield from each(PERF_1G, SHADOW_MODES[:1])
    yield Case(FIRST_WRITE, VMX_MODES[-1], "N")
    yield Case(CREATE, VMX_TRACKED_MODE, "Y")
    of_shadow = (WINDOW_WRPROT, *NOTHING_UNSEEN_DEBUG, STRESS_DEBUG_LONG)
    yield from each((*DEBUG_LONG, *of_shadow), SHADOW_MODES[-1:], "debug")
    yield from each((SPLITTING,), SHADOW_MODES[:1], "debug")
    yield from each(DEBUG_TDP_LONG, (TDP_MODE,), "debug")


# The names are those of any base; one that the base lacks is not there to be run. These hang the
# machine with the unpatched kernel, too, in every mode. The last only met the limit, and stalled
# RCU now and then on either kernel.
HANGS = {"vmx-bochs": ("hardware_disable_test", "x86/hyperv_ipi", "x86/vmx_preemption_timer_test")}
# Arguments of tests that meet the limit without, or find too little memory: less of it, fewer
# rounds, a part of the test.
LESS: Mapping[str, tuple[str, ...]] = {
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
# Of the machine's time, which Bochs takes many times as long for.
PACKAGED_S = {"svm-qemu": 40, "vmx-bochs": 5}


def packaged_cases(tree: Path) -> Iterator[Case]:
    """All selftests that were built in TREE, that of the packaged source; none if it wasn't."""
    built = tree / OBJECTS / STRIPPED
    programs = sorted(str(f.relative_to(built)) for f in built.rglob("*") if f.is_file())
    for mode, program in product((*DISTINCT_MODES, *VMX_MODES), programs):
        if program not in HANGS.get(mode.machine, ()):
            test = selftest(
                *(program, *LESS.get(program, ())),
                name="packaged",
                # As many as the host has, for a machine whose CPUs run at the same time.
                cpus=2,
                memory_mib=3072,
                huge_2m=128,
                dirty_bits="",
                timeout_s=PACKAGED_S[mode.machine],
            )
            yield Case(test, mode, "Y")


PACKAGED = tuple(packaged_cases(LAYOUT.tree_of("base")))


def mutant_cases(mutant: Mutant, shares: Sequence[Mutant] = ()) -> tuple[Case, Case]:
    """The control, in which only what lets MUTANT show is there, and MUTANT itself.

    shares: MUTANT and others that have the same control, see same_controls().
    """
    check = mutant.check
    words = dict(word.split("=", 1) for word in check.words if NAME.match(word))
    cmdline = tuple(word for word in check.words if not NAME.match(word))
    # What can be set in a running kernel needs no boot of its own.
    later = [name for name in sorted(words) if name.startswith("kvm.") and name != "kvm.tdp_mmu"]
    settings = {name.removeprefix("kvm."): words.pop(name) for name in later}
    # The check of the whole shadow MMU after each hold of mmu_lock only speaks in the kernel's log.
    if check.kernel_log is None:
        settings.setdefault("prove_walks", "N")
    eager = "N" if settings.pop("eager_page_split", "") == "0" else "Y"
    mode = Mode("-".join(f"{name}={words[name]}" for name in sorted(words)), check.machine, words)

    def case(what: str, number: int) -> Case:
        test = Selftest(
            name=what,
            argv=(check.program, *check.arguments),
            memory_mib=MEMORY_FOR_1G if "hugepagesz=1G" in cmdline else 1024,
            # Enough for every test; the pages are fresh for each run.
            huge_2m=80,
            cmdline=cmdline,
            settings=(*settings.items(), ("mutant", str(number))),
            # It only ends what hangs. With WARNINGs on a busy machine a minute was too little.
            timeout_s=180,
        )
        return Case(test, mode, eager, check.config)

    first = min(one.number for one in shares or (mutant,))
    name = f"{first:02}-control" + (f"-of-{len(shares)}" if len(shares) > 1 else "")
    return case(name, -first), case(f"{mutant.number:02}-mutant", mutant.number)


def same_controls(all_of: Iterable[Mutant]) -> dict[int, list[Mutant]]:
    """By number, the mutants whose control does the same, this one included.

    The control of most mutants is the series as it is. Where the same program runs with the same
    arguments and settings in the same machine, one run is the control of all.
    """
    alike: dict[object, list[Mutant]] = {}
    for mutant in all_of:
        control, _ = mutant_cases(mutant)
        test = replace(control.test, name="", settings=control.test.settings[:-1])
        own = mutant.number if mutant.has_own_control else None
        alike.setdefault((control.boot, test, control.eager, own), []).append(mutant)
    return {one.number: found for found in alike.values() for one in found}


def mutant_id(mutant: Mutant) -> str:
    """What its case is called."""
    return f"{mutant.number:02}-{mutant.name}"
