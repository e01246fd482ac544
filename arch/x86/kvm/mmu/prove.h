/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_PROVE_H
#define __KVM_X86_MMU_PROVE_H

#include <linux/kvm_host.h>

#include "prove_race.h"

struct kvm_mmu_page;

/*
 * Check invariants of the shadow MMU that hold whenever mmu_lock is free, in
 * kernels with CONFIG_KVM_PROVE_MMU.  Other kernels check nothing.  Each kind
 * of violation causes a WARN once.  The time of a check grows with the amount
 * of mapped memory.
 *
 * Locking: the caller holds mmu_lock for write, and slots_lock.
 */
void __kvm_prove_shadow_mmu(struct kvm *kvm);
void __kvm_prove_split_sp(const struct kvm_memory_slot *slot, struct kvm_mmu_page *sp,
			  bool new, u64 huge_spte);

/*
 * Check that @slot's log contains everything that was written, after the Dirty
 * bits of the memslot's pages from @first on and before @end were collected.
 * This is possible only if no vCPU has run meanwhile.  @nr_exits_before is the
 * value that kvm_prove_nr_exits_if_stopped() returned before the collection.
 * If a vCPU has run since, nothing is checked.
 *
 * Locking: the caller holds mmu_lock for write, and has held slots_lock since
 * before kvm_prove_nr_exits_if_stopped().
 */
u64 __kvm_prove_nr_exits_if_stopped(struct kvm *kvm);
void __kvm_prove_collected_rmaps(struct kvm *kvm, const struct kvm_memory_slot *slot,
				 unsigned long first, unsigned long end, u64 nr_exits_before);
void __kvm_prove_collected_tdp(struct kvm *kvm, const struct kvm_memory_slot *slot,
			       unsigned long first, unsigned long end, u64 nr_exits_before);

/*
 * Check a page table of the TDP MMU that is skipped when Dirty bits are
 * collected: all of its Dirty bits must be in the log, whether vCPUs run or
 * not.
 *
 * Locking: the caller holds mmu_lock and slots_lock, and is in an RCU read
 * section.
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
