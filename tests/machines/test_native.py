# SPDX-License-Identifier: GPL-2.0-only
"""KVM's code as `lab native` compiles it does its work, and a pass that doesn't is found out."""

import time
from types import SimpleNamespace

import pytest

from lab.build.kernel import source_tree
from lab.core.errors import WorkFailed
from lab.measure.native import code, guest

# How much is lost of what changes after each instruction of a freeze, by a trap of the processor?
FREEZE = """
#include <signal.h>
static u64 sptes[SPTE_BULK], old[SPTE_BULK], nr;

static void change_all(int signal)
{
	for (int i = 0; i < SPTE_BULK && nr < 1 << 16; i++, nr++)
		sptes[i] = (sptes[i] + PAGE_SIZE) | SPTE_MMU_PRESENT_MASK;
}

EXPORT int lost(void)
{
	u64 flags = __builtin_ia32_readeflags_u64();

	spte_fill(sptes, 0, 0, SPTE_BULK);
	signal(SIGTRAP, change_all);
	__builtin_ia32_writeeflags_u64(flags | BIT(8));
	tdp_mmu_freeze_64(sptes, old);
	__builtin_ia32_writeeflags_u64(flags);
	signal(SIGTRAP, SIG_DFL);
	for (int i = 0; i < SPTE_BULK; i++)
		nr -= ((old[i] & SPTE_BASE_ADDR_MASK) + (sptes[i] & SPTE_BASE_ADDR_MASK)) / PAGE_SIZE;
	return nr;
}
"""

# How much is lost of what another thread makes of SPTEs that a bit is being taken from? Each has
# a CPU of its own: beside one other busy process the scheduler may leave both on the same for ever.
SHARED = """
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
static u64 sptes[SPTE_BULK];
static bool done;

static void run_on(unsigned long cpus)
{
	syscall(SYS_sched_setaffinity, 0, sizeof(cpus), &cpus);
}

static void *take(void *unused)
{
	run_on(2);
	while (!READ_ONCE(done))
		tdp_log_64_shared(sptes, PT_WRITABLE_MASK);
	return unused;
}

EXPORT int lost(void)
{
	u64 leaf = SPTE_MMU_PRESENT_MASK | PT_WRITABLE_MASK;
	u64 found, last = 0, next[] = { leaf, FROZEN_SPTE, leaf | PAGE_SIZE, 0 };
	int i, round, taken = 0, lost = 0;
	pthread_t thread;

	done = pthread_create(&thread, NULL, take, NULL);
	run_on(1);
	for (round = 0; last || (taken < 1 << 12 && round < 1 << 20); last = next[round++ % 4]) {
		for (i = 0; i < SPTE_BULK; i++) {
			found = xchg(&sptes[i], next[round % 4]);
			taken += found != last;
			lost += found != last && found != (last & ~PT_WRITABLE_MASK);
		}
		/* So that all of them are leaves now and then. */
		for (volatile int wait = 0; wait < 500; wait++)
			;
	}
	done = true;
	pthread_join(thread, NULL);
	run_on(~0ul);
	return lost;
}
"""
LONGEST_S = 300


def test_every_page_is_as_it_should_be() -> None:
    sides = code.build(source_tree("series"))
    assert len(list(guest.passes(sides, 1, 1))) == 2 * (5 + 4 + 3 + 3)
    for phase in ("split", "clear", "collect"):
        idle = SimpleNamespace(**{"set_up": lambda *_: None, phase: lambda _: None})
        with pytest.raises(WorkFailed, match=f"{phase} by idle: page 0 is wrong"):
            list(guest.passes({**sides, "idle": idle}, 1, 1))


def test_what_changes_amid_a_freeze_is_found() -> None:
    mmu = source_tree("series") / code.MMU
    texts = [(mmu / name).read_text() for name in ("tdp_mmu.c", "spte_bulk.h", "spte.h")]
    freeze = code.closure(["tdp_mmu_freeze_64", "spte_fill"], texts)
    torn = freeze.replace("xchg(&sptep[i], new)", "sptep[i], sptep[i] = new")
    assert code.library("freeze", freeze, *code.KERNEL_FLAGS, calls=FREEZE).lost() == 0
    assert code.library("torn", torn, *code.KERNEL_FLAGS, calls=FREEZE).lost() > 0


def test_what_changes_while_a_bit_is_taken_is_kept() -> None:
    mmu = source_tree("series") / code.MMU
    names = ("tdp_log.c", "spte_bulk.h", "rmap_log.h", "spte.h", "../mmu.h")
    roots = ["spte_take_64", "tdp_log_64_shared", "FROZEN_SPTE", "PT_WRITABLE_MASK"]
    take = code.closure(roots, [(mmu / name).read_text() for name in names])
    unlocked = take.replace("spte_take_64_atomic(sptep, bit)", "spte_take_64(sptep, bit)")
    stored = take.replace("~0ul, bit, TDP_LOG_SHARED", "~0ul, bit, 0")
    sides = {"shared": take, "unlocked": unlocked, "stored": stored}
    flags = (*code.KERNEL_FLAGS, "-pthread")
    made = [code.library(side, text, *flags, calls=SHARED) for side, text in sides.items()]

    lost, end = [0, 0, 0], time.monotonic() + LONGEST_S
    while min(lost[1:]) == 0 and time.monotonic() < end:
        lost = [count + side.lost() for count, side in zip(lost, made, strict=True)]
    assert lost[0] == 0 < min(lost[1:]), lost
