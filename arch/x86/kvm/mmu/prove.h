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
void __kvm_prove_shadow_mmu(struct kvm *kvm);
void __kvm_prove_split_sp(struct kvm_mmu_page *sp, u64 huge_spte);

static inline void kvm_prove_shadow_mmu(struct kvm *kvm)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU))
		__kvm_prove_shadow_mmu(kvm);
}

static inline void kvm_prove_split_sp(struct kvm_mmu_page *sp, u64 huge_spte)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU))
		__kvm_prove_split_sp(sp, huge_spte);
}

#endif /* __KVM_X86_MMU_PROVE_H */
