/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_PROVE_H
#define __KVM_X86_MMU_PROVE_H

#include <linux/kvm_host.h>

#include "prove_race.h"

struct kvm_mmu_page;

/*
 * Check what must be true of the shadow MMU whenever mmu_lock is free, in kernels
 * with CONFIG_KVM_PROVE_MMU; others do nothing.  What is not true ends in a
 * WARN, once for each kind.  The time taken grows with all that is mapped.
 *
 * Locking: the caller holds mmu_lock for write, and slots_lock.
 */
void __kvm_prove_shadow_mmu(struct kvm *kvm);
void __kvm_prove_split_sp(const struct kvm_memory_slot *slot, struct kvm_mmu_page *sp,
			  bool new, u64 huge_spte);

/*
 * Check that @slot's log has all that was written, after its pages from the @first-th on and
 * before the @end-th were collected.  That can only be said if no vCPU ran meanwhile:
 * @nr_exits_before is what kvm_prove_nr_exits_if_stopped() returned before, and if one did,
 * nothing is checked.
 *
 * Locking: the caller holds mmu_lock for write, and slots_lock since before
 * kvm_prove_nr_exits_if_stopped().
 */
u64 __kvm_prove_nr_exits_if_stopped(struct kvm *kvm);
void __kvm_prove_collected_rmaps(struct kvm *kvm, const struct kvm_memory_slot *slot,
				 unsigned long first, unsigned long end, u64 nr_exits_before);
void __kvm_prove_collected_tdp(struct kvm *kvm, const struct kvm_memory_slot *slot,
			       unsigned long first, unsigned long end, u64 nr_exits_before);

/*
 * Check that a page table of the TDP MMU in which Dirty bits are not looked for has none
 * that are not in the log, whether vCPUs run or not.
 *
 * Locking: the caller holds mmu_lock, slots_lock, and is in an RCU read section.
 */
void __kvm_prove_idle_table(struct kvm *kvm, const struct kvm_memory_slot *slot,
			    unsigned long rel, const u64 *link, u64 link_spte, const u64 *pt);

static inline void kvm_prove_shadow_mmu(struct kvm *kvm)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU))
		__kvm_prove_shadow_mmu(kvm);
}

static inline void kvm_prove_split_sp(const struct kvm_memory_slot *slot,
				      struct kvm_mmu_page *sp, bool new, u64 huge_spte)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU))
		__kvm_prove_split_sp(slot, sp, new, huge_spte);
}

static inline u64 kvm_prove_nr_exits_if_stopped(struct kvm *kvm)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU) ? __kvm_prove_nr_exits_if_stopped(kvm) : 0;
}

static inline void kvm_prove_collected_rmaps(struct kvm *kvm,
					     const struct kvm_memory_slot *slot,
					     unsigned long first, unsigned long end,
					     u64 nr_exits_before)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU))
		__kvm_prove_collected_rmaps(kvm, slot, first, end, nr_exits_before);
}

static inline void kvm_prove_collected_tdp(struct kvm *kvm,
					   const struct kvm_memory_slot *slot,
					   unsigned long first, unsigned long end,
					   u64 nr_exits_before)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU))
		__kvm_prove_collected_tdp(kvm, slot, first, end, nr_exits_before);
}

static inline void kvm_prove_idle_table(struct kvm *kvm, const struct kvm_memory_slot *slot,
					unsigned long rel, const u64 *link, u64 link_spte,
					const u64 *pt)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU))
		__kvm_prove_idle_table(kvm, slot, rel, link, link_spte, pt);
}

#endif /* __KVM_X86_MMU_PROVE_H */
