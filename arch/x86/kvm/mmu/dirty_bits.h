/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_DIRTY_BITS_H
#define __KVM_X86_MMU_DIRTY_BITS_H

#include <linux/jump_label_ratelimit.h>
#include <linux/kvm_host.h>

/*
 * Dirty logging without write-protection faults: the CPU sets the Dirty bit of
 * an SPTE, and KVM_GET_DIRTY_LOG collects the bits that are set.  Logging
 * clears Dirty bits and leaves SPTEs writable.
 *
 * Everything relies on this invariant: if a page of a logged memslot was
 * written, its bit is set in the log, or one of its SPTEs has the Dirty bit
 * set.  So the Dirty bit of a leaf may be cleared only to start the next round
 * of logging for this page, or together with a call of kvm_dirty_bits_record().
 *
 * A page may be reported although it was not written again.  This happens if
 * mmu_lock is dropped after the page was cleared in the log and before its
 * Dirty bit is cleared, and the SPTE is zapped in between: KVM can't know that
 * its Dirty bit is old.
 */

/* Enabled while a VM has arch.dirty_bits: other hosts don't test it. */
extern struct static_key_false_deferred kvm_dirty_bits_vms;

/* Does this VM log by Dirty bits?  Never changes once the VM has a vCPU. */
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
 * Record that a leaf SPTE lost its Dirty bit, or that an SPTE with a Dirty bit
 * is gone.
 *
 * Locking: the caller has held mmu_lock, for read or for write, since before
 * the bit went away, so that a thread that holds it for write finds either the
 * Dirty bit or the page in the log.
 *
 * Huge pages need not be recorded.  While their memslot is logged, they are
 * writable only as long as all of their pages have been in the log from the
 * start.
 */
static __always_inline void kvm_dirty_bits_record(struct kvm *kvm, int as_id, gfn_t gfn,
						  int level)
{
	if (kvm_dirty_bits_enabled(kvm) && level == PG_LEVEL_4K)
		__kvm_dirty_bits_record(kvm, as_id, gfn, 1);
}

#endif /* __KVM_X86_MMU_DIRTY_BITS_H */
