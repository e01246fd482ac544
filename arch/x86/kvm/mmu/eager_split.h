/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_EAGER_SPLIT_H
#define __KVM_X86_MMU_EAGER_SPLIT_H

#include <linux/kvm_host.h>

/*
 * Split the huge pages of the shadow MMU ahead of the writes that dirty logging
 * waits for.
 *
 * Locking: the caller holds slots_lock, which keeps the memslot and its rmaps in
 * place and the split caches to one user, and mmu_lock for write.  mmu_lock is
 * dropped and retaken on the way, so the caller must not rely on any SPTE or
 * shadow page that it found before the call.
 */
void kvm_eager_split_range(struct kvm *kvm, const struct kvm_memory_slot *slot,
			   gfn_t start, gfn_t end, int target_level, bool arm);

/* The same for one huge SPTE that the caller has found, by what the caller has allocated. */
int kvm_eager_split_into(struct kvm *kvm, const struct kvm_memory_slot *slot,
			 struct kvm_mmu_memory_cache *descs, int nr_descs,
			 u64 *huge_sptep, u64 huge_spte, struct kvm_mmu_page *sp);

#endif /* __KVM_X86_MMU_EAGER_SPLIT_H */
