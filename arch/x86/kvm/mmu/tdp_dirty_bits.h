/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_TDP_DIRTY_BITS_H
#define __KVM_X86_MMU_TDP_DIRTY_BITS_H

#include <linux/atomic.h>
#include <linux/kvm_host.h>

#include "spte.h"

/*
 * The least work between two drops of mmu_lock because it is contended: pages
 * scanned, or SPTEs where a page has several.
 */
#define COLLECT_MIN_WORK	SPTE_ENT_PER_PAGE

static inline bool collect_is_dirty(u64 spte)
{
	return spte_ad_enabled(spte) && (spte & shadow_dirty_mask);
}

/* Add the dirty pages that were found to a word of the log. */
static inline void collect_log(unsigned long *word, unsigned long dirty)
{
	if (dirty)
		atomic_long_or(dirty, (atomic_long_t *)word);
}

/*
 * Bring the log of @nr pages of a memslot, from page @first on, up to date with
 * the Dirty bits of the TDP MMU.  Called once per ioctl.
 *
 * @flushed: since the last call for this memslot returned, a flush of all TLBs
 * of the VM has begun and ended.
 *
 * Locking: the caller holds slots_lock, but not mmu_lock.  mmu_lock is taken
 * for read and for write, and dropped in between if it is contended.
 *
 * Return: the number of pending page tables.  Nothing indicates that CPUs have
 * used them since the last call, and they were scanned only because there was
 * no such flush.
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
