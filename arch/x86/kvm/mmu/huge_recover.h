/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_HUGE_RECOVER_H
#define __KVM_X86_MMU_HUGE_RECOVER_H

#include <linux/kvm_host.h>

/*
 * Put the huge pages of the shadow MMU back in place when dirty logging ends, and zap
 * what is mapped by smaller pages than need be otherwise.
 *
 * Locking: the caller holds slots_lock, which keeps the memslot and its rmaps in
 * place and the split caches to one user, and mmu_lock for write.  mmu_lock is
 * dropped and retaken on the way, with TLBs flushed before, so the caller must not
 * rely on any SPTE or shadow page that it found before the call.  TLBs are flushed
 * at the end, too.
 */
void kvm_huge_recover_slot(struct kvm *kvm, const struct kvm_memory_slot *slot);

#endif /* __KVM_X86_MMU_HUGE_RECOVER_H */
