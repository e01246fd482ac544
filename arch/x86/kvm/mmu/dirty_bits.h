/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_DIRTY_BITS_H
#define __KVM_X86_MMU_DIRTY_BITS_H

#include <linux/jump_label_ratelimit.h>
#include <linux/kvm_host.h>

/*
 * Dirty logging without write-protection faults: the CPU sets the Dirty bit of an
 * SPTE, and KVM_GET_DIRTY_LOG collects what it finds set.  Logging takes away
 * Dirty bits and leaves SPTEs writable.
 *
 * The rule that all of it rests on: a page of a logged memslot that was written
 * has its bit set in the log, or an SPTE with a Dirty bit.  So the Dirty bit
 * of a leaf may only be taken away to start the next round of logging for this very
 * page, or by telling kvm_dirty_bits_record().
 *
 * A page may be reported that was not written since: one that is zapped after its bit
 * was taken out of the log and before its Dirty bit is, when mmu_lock is yielded in
 * between.  That can't be told from a write at that time.
 */

/* VMs with arch.dirty_bits.  Hosts that have none don't pay for the question. */
extern struct static_key_false_deferred kvm_dirty_bits_vms;

/* Does this VM log that way?  Never changes once the VM has a vCPU. */
static __always_inline bool kvm_dirty_bits_enabled(const struct kvm *kvm)
{
	return static_branch_unlikely(&kvm_dirty_bits_vms.key) &&
	       kvm->arch.dirty_bits && !kvm->dirty_ring_size;
}

bool kvm_dirty_bits_is_allowed(void);
bool kvm_dirty_bits_is_possible(const struct kvm *kvm);
void kvm_dirty_bits_get(bool use);
void kvm_dirty_bits_put(bool use);
void kvm_dirty_bits_init_vm(struct kvm *kvm);
void kvm_dirty_bits_uninit_vm(struct kvm *kvm);
void kvm_dirty_bits_exit(void);
void __kvm_dirty_bits_record(struct kvm *kvm, int as_id, gfn_t gfn, unsigned long mask);

/*
 * A leaf SPTE that had the Dirty bit has it no longer, or is gone.  Locking: the
 * caller holds mmu_lock, for read or for write, since before the bit went away,
 * so that no thread that holds it for write misses both the bit and the log.
 *
 * Huge pages need nothing.  While their memslot is logged they are writable only
 * as long as the log has all of their pages since the start.
 */
static __always_inline void kvm_dirty_bits_record(struct kvm *kvm, int as_id, gfn_t gfn,
						  int level)
{
	if (kvm_dirty_bits_enabled(kvm) && level == PG_LEVEL_4K)
		__kvm_dirty_bits_record(kvm, as_id, gfn, 1);
}

#endif /* __KVM_X86_MMU_DIRTY_BITS_H */
