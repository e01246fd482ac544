// SPDX-License-Identifier: GPL-2.0-only
/*
 * Arming of dirty logging in bulk for the TDP MMU
 *
 * This walks page tables where rmap_log.c walks rmaps.  Only page tables of
 * level 1 are changed, in which each SPTE is a leaf, 0, frozen, or for MMIO.
 *
 * With mmu_lock held for read, an SPTE can become any of these between the read
 * and the change.  Therefore the change is an atomic and-not, which is safe for
 * each of them:
 *
 * - It can't undo the exchange of another thread.
 * - An SPTE that is 0 or frozen doesn't have the bit, so it stays as it is.
 * - An SPTE for MMIO would be corrupted, because EPT's have the Writable bit
 *   set.  But the gfns have a memslot, which slots_lock keeps, so page faults
 *   don't create SPTEs for MMIO.  One from before the memslot was created isn't
 *   shadow-present, and is skipped.
 * - A leaf that a page fault has just created is armed, or its page is in the
 *   log already.
 *
 * None of this holds at higher levels, where links have the same bits.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bits.h>
#include <linux/kvm_host.h>
#include <linux/minmax.h>

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

/*
 * For SPTEs that other threads may exchange.  No SPTE has all bits set, so
 * spte_take() always uses an atomic and-not.
 */
#define TDP_LOG_SHARED	(~0ull)

/* Inlined with a constant level, because CLEAR walks for each word. */
static __always_inline u64 *tdp_log_walk(struct kvm_mmu_page *root, gfn_t gfn, int to_level,
					 u64 *spte)
{
	u64 *pt = root->spt;
	int level;

	*spte = SHADOW_NONPRESENT_VALUE;
	/* Higher bits index no table: the walk would find another gfn. */
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
 * Trace the SPTEs in @mask from which @bit is about to be cleared, like any
 * other change of an SPTE.  The old value in the trace is a snapshot: CPUs may
 * still change the SPTE, and so may other threads if mmu_lock is held for read.
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
		 * Read once: a bit that is set later belongs to a write that
		 * will be logged, and must not affect the decision.
		 */
		spte = READ_ONCE(sptep[i]);
		if ((spte & want) != want)
			continue;

		kvm_prove_window(KVM_WINDOW_TDP_REARM);
		spte_take(&sptep[i], spte, bit, stable);
	}
}

/*
 * Arm 64 SPTEs that only CPUs may change meanwhile.  Most often they agree, so
 * that one pass over them is enough.  The first SPTE decides whether that pass
 * computes their OR or their AND.
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

/* tdp_log_64() with mmu_lock held for read.  Splits have armed most SPTEs. */
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

/* Arm the SPTEs in @mask, from that of @gfn on, all in one page table. */
static __always_inline enum kvm_tdp_log_map tdp_log_table(struct kvm_mmu_page *root, gfn_t gfn,
							  unsigned long mask, u64 bit)
{
	u64 *sptep, spte;

	sptep = tdp_log_walk(root, gfn, PG_LEVEL_4K, &spte);
	if (!sptep) {
		if (!is_shadow_present_pte(spte))
			return KVM_TDP_LOG_SMALL;

		return is_writable_pte(spte) ? KVM_TDP_LOG_WRITABLE : KVM_TDP_LOG_PROTECTED;
	}

	sptep += gfn % SPTE_ENT_PER_PAGE;
	if (trace_kvm_tdp_mmu_spte_changed_enabled())
		tdp_log_trace(sptep, mask, bit);

	if (mask == ~0ul)
		tdp_log_64(sptep, bit);
	else
		tdp_log_each(sptep, mask, bit, kvm_spte_stable_bits());

	return KVM_TDP_LOG_SMALL;
}

static enum kvm_tdp_log_map tdp_log_root(struct kvm_mmu_page *root, gfn_t gfn,
					 unsigned long mask, u64 bit)
{
	unsigned int left = SPTE_ENT_PER_PAGE - gfn % SPTE_ENT_PER_PAGE;
	enum kvm_tdp_log_map map = KVM_TDP_LOG_SMALL;

	if (likely(left >= BITS_PER_LONG))
		return tdp_log_table(root, gfn, mask, bit);

	/* The memslot isn't aligned, so the word spans two page tables. */
	if (mask & GENMASK(left - 1, 0))
		map = tdp_log_table(root, gfn, mask & GENMASK(left - 1, 0), bit);
	if (mask >> left)
		map = max(map, tdp_log_table(root, gfn + left, mask >> left, bit));

	return map;
}

enum kvm_tdp_log_map kvm_tdp_log_word(struct kvm *kvm, const struct kvm_memory_slot *slot,
				      gfn_t gfn, unsigned long mask, bool wrprot)
{
	enum kvm_tdp_log_map map = KVM_TDP_LOG_SMALL;
	struct kvm_mmu_page *root;

	lockdep_assert_held_write(&kvm->mmu_lock);

	rcu_read_lock();
	list_for_each_entry(root, &kvm->arch.tdp_mmu_roots, link)
		if (!root->role.invalid && kvm_mmu_page_as_id(root) == slot->as_id)
			map = max(map, tdp_log_root(root, gfn | kvm_gfn_root_bits(kvm, root), mask,
						    kvm_tdp_mmu_log_bit(kvm, root, wrprot)));
	rcu_read_unlock();

	return map;
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
