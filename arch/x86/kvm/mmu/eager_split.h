/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_EAGER_SPLIT_H
#define __KVM_X86_MMU_EAGER_SPLIT_H

#include <linux/kvm_host.h>

/*
 * Split the huge pages of the shadow MMU before vCPUs write to them.
 *
 * Locking: the caller holds slots_lock, and mmu_lock for write.  slots_lock
 * keeps the memslot and its rmaps in place, and allows only one thread at a
 * time to use the split caches.  mmu_lock is dropped and retaken during the
 * call, so the caller must not rely on any SPTE or shadow page that it found
 * before.
 */
void kvm_eager_split_range(struct kvm *kvm, const struct kvm_memory_slot *slot,
			   gfn_t start, gfn_t end, int target_level, bool arm);

/*
 * Split one huge SPTE, with rmap descriptors that the caller has allocated.
 * The caller holds mmu_lock for write, which is not dropped.  Page faults call
 * this, so slots_lock isn't required.
 */
int kvm_eager_split_into(struct kvm *kvm, const struct kvm_memory_slot *slot,
			 struct kvm_mmu_memory_cache *descs, int nr_descs,
			 u64 *huge_sptep, u64 huge_spte, struct kvm_mmu_page *sp);

#endif /* __KVM_X86_MMU_EAGER_SPLIT_H */
