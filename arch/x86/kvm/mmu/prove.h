/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_PROVE_H
#define __KVM_X86_MMU_PROVE_H

#include <linux/kvm_host.h>

#include "mmu_internal.h"

/*
 * Check what must be true of the shadow MMU whenever mmu_lock is free, in kernels
 * with CONFIG_KVM_PROVE_MMU; others do nothing.  What is not true ends in a
 * WARN, once for each kind.  The time taken grows with all that is mapped.
 *
 * Locking: the caller holds mmu_lock for write, and slots_lock.
 */
#ifdef CONFIG_KVM_PROVE_MMU
void kvm_prove_shadow_mmu(struct kvm *kvm);
void kvm_prove_split_sp(struct kvm_mmu_page *sp, u64 huge_spte);
#else
static inline void kvm_prove_shadow_mmu(struct kvm *kvm)
{
}

static inline void kvm_prove_split_sp(struct kvm_mmu_page *sp, u64 huge_spte)
{
}
#endif

#endif /* __KVM_X86_MMU_PROVE_H */
