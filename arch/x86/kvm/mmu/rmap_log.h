/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_RMAP_LOG_H
#define __KVM_X86_MMU_RMAP_LOG_H

#include <linux/align.h>
#include <linux/kvm_host.h>
#include <linux/math.h>

#include "mmu_internal.h"
#include "spte.h"

/*
 * Arm many 4KiB pages of the shadow MMU at once, i.e. make the next write to
 * them show in the dirty log: by clearing the Writable bit of their SPTEs, or
 * the Dirty bit if the CPU logs by itself (PML) and the SPTE permits it.
 *
 * Locking: the caller holds mmu_lock for write, and slots_lock, or something
 * else that keeps the memslot and its rmaps in place.  mmu_lock is dropped and
 * retaken if it is contended, so the caller must not rely on any SPTE that it
 * found before.  The work between two drops doesn't depend on the guest, except
 * for the SPTEs of a single gfn.
 *
 * TLBs are not flushed.  The caller does that before it relies on the log.
 */

/* Arm the gfns @gfn + i for each bit i in @mask, all in @slot. */
void kvm_rmap_log_wrprot(struct kvm *kvm, const struct kvm_memory_slot *slot,
			 gfn_t gfn, unsigned long mask);
void kvm_rmap_log_clear_dirty(struct kvm *kvm, const struct kvm_memory_slot *slot,
			      gfn_t gfn, unsigned long mask);

/*
 * Arm all of @slot.  Write protection handles page sizes from @start_level on.
 */
void kvm_rmap_log_wrprot_slot(struct kvm *kvm, const struct kvm_memory_slot *slot,
			      int start_level);
void kvm_rmap_log_clear_dirty_slot(struct kvm *kvm, const struct kvm_memory_slot *slot);

/* The most pages that are skipped before the next check for contention. */
#define KVM_RMAP_MAX_SKIP	(SPTE_ENT_PER_PAGE * SPTE_ENT_PER_PAGE)

/*
 * The number of pages of @slot, from page @rel on and before page @end, that
 * have no 4KiB SPTE because the flags of their 2MiB are clear
 * (kvm_has_small_sptes()): a multiple of 64, or all pages up to @end.  The
 * caller holds mmu_lock for write, and skips these pages.
 *
 * Call this only if the first page has no SPTE: for pages that have SPTEs,
 * reading the flag must not add to the cost.
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

/* The cost of skipping @nr pages, in pages scanned. */
static __always_inline unsigned long kvm_rmap_skip_work(unsigned long nr)
{
	return DIV_ROUND_UP(nr, SPTE_ENT_PER_PAGE);
}

/*
 * The bits of an SPTE that keep CPUs and lockless page faults from changing it,
 * if all of them are set.  CPUs don't change an SPTE if its Accessed and Dirty
 * bits are set, or if it has no such bits.  Lockless page faults don't change a
 * writable SPTE.
 */
static __always_inline u64 kvm_spte_stable_bits(void)
{
	return PT_WRITABLE_MASK | shadow_accessed_mask | shadow_dirty_mask;
}

/*
 * May the SPTE be changed by a plain store?  It may if neither CPUs nor
 * lockless page faults change it meanwhile.  Aging may change it without
 * mmu_lock.  The store then undoes that, and the page stays young, as if it
 * were accessed again.
 *
 * 32-bit hosts update SPTEs in two steps, so the general functions do that.
 */
static __always_inline bool kvm_spte_may_store(u64 spte)
{
	u64 set = kvm_spte_stable_bits();

	return IS_ENABLED(CONFIG_X86_64) && (spte & set) == set;
}

#endif /* __KVM_X86_MMU_RMAP_LOG_H */
