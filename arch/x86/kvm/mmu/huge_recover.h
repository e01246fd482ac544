/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_HUGE_RECOVER_H
#define __KVM_X86_MMU_HUGE_RECOVER_H

#include <linux/kvm_host.h>

/*
 * Replace small SPTEs of the shadow MMU by huge SPTEs when dirty logging ends.
 * Zap SPTEs that are smaller than necessary, but can't be replaced.
 *
 * Locking: the caller holds slots_lock, and mmu_lock for write.  slots_lock
 * keeps the memslot and its rmaps in place, and allows only one thread at a
 * time to use the split caches.  mmu_lock is dropped and retaken during the
 * call, so the caller must not rely on any SPTE or shadow page that it found
 * before.  TLBs are flushed before each drop of mmu_lock, and at the end.
 */
void kvm_huge_recover_slot(struct kvm *kvm, const struct kvm_memory_slot *slot);

#endif /* __KVM_X86_MMU_HUGE_RECOVER_H */
