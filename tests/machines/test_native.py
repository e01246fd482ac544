# SPDX-License-Identifier: GPL-2.0-only
"""KVM's code as `lab native` compiles it does its work, and a pass that doesn't is found out."""

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


def test_every_page_is_as_it_should_be() -> None:
    sides = code.build(source_tree("series"))
    assert len(list(guest.passes(sides, 1, 1))) == 2 * (5 + 4 + 3 + 3)
    for phase in ("split", "clear", "harvest"):
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
