/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_RMAP_LOG_H
#define __KVM_X86_MMU_RMAP_LOG_H

#include <linux/kvm_host.h>

/*
 * Make the next write to a 4KiB page of the shadow MMU show in the dirty log, for
 * many pages at once: by taking away the Writable bit of their SPTEs, or the
 * Dirty bit where the CPU logs for itself (PML) and the SPTE allows it.
 *
 * Locking: the caller holds mmu_lock for write, and slots_lock, or something
 * else that keeps the memslot and its rmaps in place.  TLBs are not flushed: the
 * caller does that before anybody relies on the log.
 */

/* The gfns are @gfn + i for each bit i in @mask, all in @slot. */
void kvm_rmap_log_wrprot(struct kvm *kvm, const struct kvm_memory_slot *slot,
			 gfn_t gfn, unsigned long mask);
void kvm_rmap_log_clear_dirty(struct kvm *kvm, const struct kvm_memory_slot *slot,
			      gfn_t gfn, unsigned long mask);

/* All of @slot; mmu_lock is dropped and retaken on the way if others want it. */
void kvm_rmap_log_wrprot_slot(struct kvm *kvm, const struct kvm_memory_slot *slot);
void kvm_rmap_log_clear_dirty_slot(struct kvm *kvm, const struct kvm_memory_slot *slot);

#endif /* __KVM_X86_MMU_RMAP_LOG_H */
