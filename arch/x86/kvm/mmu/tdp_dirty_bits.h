/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_TDP_DIRTY_BITS_H
#define __KVM_X86_MMU_TDP_DIRTY_BITS_H

#include <linux/atomic.h>
#include <linux/kvm_host.h>

#include "spte.h"

/*
 * What has to be looked at before mmu_lock may be dropped because others want it:
 * pages, or SPTEs where a page has several.
 */
#define COLLECT_MIN_WORK	SPTE_ENT_PER_PAGE

static inline bool collect_is_dirty(u64 spte)
{
	return spte_ad_enabled(spte) && (spte & shadow_dirty_mask);
}

/* Add what was found to a word of the log. */
static inline void collect_log(unsigned long *word, unsigned long dirty)
{
	if (dirty)
		atomic_long_or(dirty, (atomic_long_t *)word);
}

/*
 * Bring the log of @nr pages of a memslot, from the @first-th on, up to date with the Dirty
 * bits of the TDP MMU, once in an ioctl.
 * @flushed: a flush of all TLBs of the VM began after the last call for this memslot had
 * returned, and has ended; false if there was none.
 *
 * Locking: the caller holds slots_lock, and not mmu_lock, which is taken for read and for
 * write, and dropped on the way if others want it.
 *
 * Return: page tables that no CPU need have used since the last call, and that were looked
 * at only as there was no such flush.
 */
#ifdef CONFIG_X86_64
unsigned long kvm_tdp_collect(struct kvm *kvm, struct kvm_memory_slot *slot,
			      unsigned long first, unsigned long nr, bool flushed);
#else
static inline unsigned long kvm_tdp_collect(struct kvm *kvm, struct kvm_memory_slot *slot,
					    unsigned long first, unsigned long nr, bool flushed)
{
	return 0;
}
#endif

#endif /* __KVM_X86_MMU_TDP_DIRTY_BITS_H */
