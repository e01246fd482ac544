// SPDX-License-Identifier: GPL-2.0-only
/*
 * Arming of dirty logging in bulk for the TDP MMU
 *
 * What rmap_log.c does along rmaps is done along page tables here: only tables of level 1
 * are touched, where SPTEs are leaves, or not present: 0, frozen, or for MMIO.
 *
 * Under the read lock an SPTE can become anything of that between the look at it and the
 * change.  So the change is an atomic and-not, which no exchange of others can undo, and
 * which changes nothing in an SPTE that is 0 or frozen.  One for MMIO would be
 * spoilt, as EPT's have the Writable bit set: but there is a memslot, which slots_lock
 * keeps, so that page faults make none, and what is left of the time before it is not
 * taken for a leaf.  A leaf that a page fault has just made is in the log already, or armed.
 * At higher levels, where links have the same bits, nothing of this would hold.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bits.h>
#include <linux/kvm_host.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "mmutrace.h"
#include "prove.h"
#include "rmap_log.h"
#include "spte.h"
#include "spte_bulk.h"
#include "tdp_iter.h"
#include "tdp_log.h"
#include "tdp_mmu.h"

static_assert(!(FROZEN_SPTE & (PT_WRITABLE_MASK | PT_DIRTY_MASK | VMX_EPT_DIRTY_BIT)));

/* No SPTE that another thread may exchange has this: take bits away by atomic and-not. */
#define TDP_LOG_SHARED	(~0ull)

/* For a constant level: CLEAR walks for each word of the log. */
static __always_inline u64 *tdp_log_walk(struct kvm_mmu_page *root, gfn_t gfn, int to_level,
					 u64 *spte)
{
	u64 *pt = root->spt;
	int level;

	*spte = SHADOW_NONPRESENT_VALUE;
	/* Tables have no index for the bits above: the walk would come upon another gfn. */
	if ((gfn ^ root->gfn) >> (root->role.level * SPTE_LEVEL_BITS))
		return NULL;

	for (level = root->role.level; level > to_level; level--) {
		*spte = READ_ONCE(pt[SPTE_INDEX(gfn_to_gpa(gfn), level)]);
		if (!is_shadow_present_pte(*spte) || is_last_spte(*spte, level))
			return NULL;

		pt = __va(*spte & SPTE_BASE_ADDR_MASK);
	}

	return pt;
}

u64 *kvm_tdp_log_find(struct kvm_mmu_page *root, gfn_t gfn, int to_level, u64 *spte)
{
	return tdp_log_walk(root, gfn, to_level, spte);
}

/*
 * Trace what is about to happen to those SPTEs of @mask that have @bit, as any other change
 * of an SPTE is traced.  CPUs, and with mmu_lock held for read other threads, may still change
 * an SPTE, so that the old value in the trace is a snapshot.
 */
static noinline void tdp_log_trace(u64 *sptep, unsigned long mask, u64 bit)
{
	struct kvm_mmu_page *sp = sptep_to_sp(sptep);
	u64 want = SPTE_MMU_PRESENT_MASK | bit;
	unsigned int i;
	u64 spte;

	for (; mask; mask &= mask - 1) {
		i = __ffs(mask);
		spte = READ_ONCE(sptep[i]);
		if ((spte & want) == want)
			trace_kvm_tdp_mmu_spte_changed(kvm_mmu_page_as_id(sp),
						       sp->gfn + spte_index(&sptep[i]),
						       PG_LEVEL_4K, spte, spte & ~bit);
	}
}

/* One SPTE after the other. */
static __always_inline void tdp_log_each(u64 *sptep, unsigned long mask, u64 bit, u64 stable)
{
	u64 want = SPTE_MMU_PRESENT_MASK | bit;
	unsigned int i;
	u64 spte;

	for (; mask; mask &= mask - 1) {
		i = __ffs(mask);
		/*
		 * Once: what is set afterwards belongs to a write that shows in the log, and
		 * must not pass for what was decided about.
		 */
		spte = READ_ONCE(sptep[i]);
		if ((spte & want) != want)
			continue;

		kvm_prove_window(KVM_WINDOW_TDP_REARM);
		spte_take(&sptep[i], spte, bit, stable);
	}
}

/*
 * 64 SPTEs, which no other thread changes, but CPUs may.  Most often they are alike, so that
 * one look at all of them will do: which one, the first tells.
 */
static __always_inline void tdp_log_64(u64 *sptep, u64 bit)
{
	u64 all;

	if (!(READ_ONCE(*sptep) & bit)) {
		if (spte_any(sptep, SPTE_BULK) & bit)
			tdp_log_each(sptep, ~0ul, bit, kvm_spte_stable_bits());
		return;
	}

	all = spte_all(sptep, SPTE_BULK);
	kvm_prove_window(KVM_WINDOW_TDP_REARM);
	if (is_shadow_present_pte(all) && kvm_spte_may_store(all))
		spte_take_64(sptep, bit);
	else
		tdp_log_each(sptep, ~0ul, bit, kvm_spte_stable_bits());
}

/* The same, with mmu_lock held for read.  Most often they are armed since a split. */
static __always_inline void tdp_log_64_shared(u64 *sptep, u64 bit)
{
	u64 all;

	if (!(spte_any(sptep, SPTE_BULK) & bit))
		return;

	all = spte_all(sptep, SPTE_BULK);
	kvm_prove_window(KVM_WINDOW_TDP_REARM);
	if (is_shadow_present_pte(all) && (all & bit))
		spte_take_64_atomic(sptep, bit);
	else
		tdp_log_each(sptep, ~0ul, bit, TDP_LOG_SHARED);
}

/* Those SPTEs of the table of @gfn that are in @mask. */
static __always_inline bool tdp_log_table(struct kvm_mmu_page *root, gfn_t gfn,
					  unsigned long mask, u64 bit)
{
	u64 *sptep, spte;

	sptep = tdp_log_walk(root, gfn, PG_LEVEL_4K, &spte);
	if (!sptep)
		return !is_shadow_present_pte(spte);

	sptep += gfn % SPTE_ENT_PER_PAGE;
	if (trace_kvm_tdp_mmu_spte_changed_enabled())
		tdp_log_trace(sptep, mask, bit);

	if (mask == ~0ul)
		tdp_log_64(sptep, bit);
	else
		tdp_log_each(sptep, mask, bit, kvm_spte_stable_bits());

	return true;
}

static bool tdp_log_root(struct kvm_mmu_page *root, gfn_t gfn, unsigned long mask, u64 bit)
{
	unsigned int left = SPTE_ENT_PER_PAGE - gfn % SPTE_ENT_PER_PAGE;
	bool small = true;

	if (likely(left >= BITS_PER_LONG))
		return tdp_log_table(root, gfn, mask, bit);

	/* The memslot isn't aligned, and the word begins in one table and ends in the next. */
	if (mask & GENMASK(left - 1, 0))
		small = tdp_log_table(root, gfn, mask & GENMASK(left - 1, 0), bit);
	if (mask >> left)
		small &= tdp_log_table(root, gfn + left, mask >> left, bit);

	return small;
}

bool kvm_tdp_log_word(struct kvm *kvm, const struct kvm_memory_slot *slot, gfn_t gfn,
		      unsigned long mask, bool wrprot)
{
	struct kvm_mmu_page *root;
	bool small = true;

	lockdep_assert_held_write(&kvm->mmu_lock);

	rcu_read_lock();
	list_for_each_entry(root, &kvm->arch.tdp_mmu_roots, link)
		if (!root->role.invalid && kvm_mmu_page_as_id(root) == slot->as_id)
			small &= tdp_log_root(root, gfn | kvm_gfn_root_bits(kvm, root), mask,
					      kvm_tdp_mmu_log_bit(kvm, root, wrprot));
	rcu_read_unlock();

	return small;
}

void kvm_tdp_log_table(const struct tdp_iter *iter, gfn_t start, gfn_t end, u64 bit)
{
	tdp_ptep_t pt = NULL;
	unsigned int nr;
	u64 *sptep;

	if (iter->level == PG_LEVEL_2M)
		pt = spte_to_child_pt(iter->old_spte, iter->level);
	if (!pt)
		return;

	start = max(start, iter->gfn);
	nr = min(end, iter->gfn + SPTE_ENT_PER_PAGE) - start;
	sptep = rcu_dereference(pt) + start % SPTE_ENT_PER_PAGE;

	for (; nr >= SPTE_BULK; nr -= SPTE_BULK, sptep += SPTE_BULK) {
		if (trace_kvm_tdp_mmu_spte_changed_enabled())
			tdp_log_trace(sptep, ~0ul, bit);

		tdp_log_64_shared(sptep, bit);
	}

	if (!nr)
		return;

	if (trace_kvm_tdp_mmu_spte_changed_enabled())
		tdp_log_trace(sptep, GENMASK(nr - 1, 0), bit);

	tdp_log_each(sptep, GENMASK(nr - 1, 0), bit, TDP_LOG_SHARED);
}
