/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_RMAP_LOG_H
#define __KVM_X86_MMU_RMAP_LOG_H

#include <linux/align.h>
#include <linux/kvm_host.h>
#include <linux/math.h>

#include "mmu_internal.h"
#include "spte.h"

/*
 * Make the next write to a 4KiB page of the shadow MMU show in the dirty log, for
 * many pages at once: by taking away the Writable bit of their SPTEs, or the
 * Dirty bit where the CPU logs for itself (PML) and the SPTE allows it.
 *
 * Locking: the caller holds mmu_lock for write, and slots_lock, or something
 * else that keeps the memslot and its rmaps in place.  mmu_lock is dropped and retaken
 * on the way if others want it, so the caller must not rely on any SPTE that it found
 * before.  How much is visited in between doesn't depend on the guest, but for the
 * SPTEs of a single gfn.  TLBs are not flushed: the caller does that before the log is
 * relied on.
 */

/* The gfns are @gfn + i for each bit i in @mask, all in @slot. */
void kvm_rmap_log_wrprot(struct kvm *kvm, const struct kvm_memory_slot *slot,
			 gfn_t gfn, unsigned long mask);
void kvm_rmap_log_clear_dirty(struct kvm *kvm, const struct kvm_memory_slot *slot,
			      gfn_t gfn, unsigned long mask);

/* All of @slot; write-protection from @start_level on, huge pages included. */
void kvm_rmap_log_wrprot_slot(struct kvm *kvm, const struct kvm_memory_slot *slot,
			      int start_level);
void kvm_rmap_log_clear_dirty_slot(struct kvm *kvm, const struct kvm_memory_slot *slot);

/* The most pages that are skipped at once, before others may want mmu_lock. */
#define KVM_RMAP_MAX_SKIP	(SPTE_ENT_PER_PAGE * SPTE_ENT_PER_PAGE)

/*
 * How many pages of @slot, from the @rel-th on and before the @end-th, have no 4KiB SPTE as
 * nothing maps their 2MiB by any: a whole number of words of the log, or all up to @end.  The
 * caller holds mmu_lock for write, and passes by these pages.
 *
 * Ask if the first page has no SPTE: pages that have some are not to pay for the question.
 */
static __always_inline unsigned long kvm_rmap_nr_huge(const struct kvm_memory_slot *slot,
						      unsigned long rel, unsigned long end)
{
	gfn_t first = slot->base_gfn + rel;
	const bool *small = kvm_has_small_sptes(slot, first);
	gfn_t next, last;

	if (*small)
		return 0;

	last = slot->base_gfn + min(end, rel + KVM_RMAP_MAX_SKIP);
	next = ALIGN(first + 1, SPTE_ENT_PER_PAGE);
	while (next < last && !*++small)
		next += SPTE_ENT_PER_PAGE;

	return next < last ? round_down(next - first, BITS_PER_LONG) : last - first;
}

/* What it costs to pass by @nr pages, in pages that are looked at. */
static __always_inline unsigned long kvm_rmap_skip_work(unsigned long nr)
{
	return DIV_ROUND_UP(nr, SPTE_ENT_PER_PAGE);
}

/*
 * The bits of an SPTE that, while all of them are set, keep CPUs and lockless page
 * faults from changing it.  CPUs leave an SPTE alone that has Accessed and Dirty bits, or
 * no such bits at all, and lockless page faults a writable one.
 */
static __always_inline u64 kvm_spte_stable_bits(void)
{
	return PT_WRITABLE_MASK | shadow_accessed_mask | shadow_dirty_mask;
}

/*
 * True if the SPTE may be changed by a store: neither CPUs nor lockless page faults
 * change it meanwhile.  If aging, which may do without mmu_lock, changes it, then the
 * store undoes that and the page stays young, as if accessed again.
 *
 * SPTEs of 32-bit hosts are updated in two steps, which is left to the general
 * functions.
 */
static __always_inline bool kvm_spte_may_store(u64 spte)
{
	u64 set = kvm_spte_stable_bits();

	return IS_ENABLED(CONFIG_X86_64) && (spte & set) == set;
}

#endif /* __KVM_X86_MMU_RMAP_LOG_H */
