/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_PROVE_H
#define __KVM_X86_MMU_PROVE_H

#include <linux/kvm_host.h>

struct kvm_mmu_page;

/*
 * Check what must be true of the shadow MMU whenever mmu_lock is free, in kernels
 * with CONFIG_KVM_PROVE_MMU; others do nothing.  What is not true ends in a
 * WARN, once for each kind.  The time taken grows with all that is mapped.
 *
 * Locking: the caller holds mmu_lock for write, and slots_lock.
 */
void __kvm_prove_shadow_mmu(struct kvm *kvm);
void __kvm_prove_split_sp(struct kvm_mmu_page *sp, u64 huge_spte);

/*
 * Check that @slot's log has all that was written, after its first @nr pages were
 * harvested.  That can only be said if no vCPU ran meanwhile: @still is what
 * kvm_prove_vcpus_still() returned before, and if one did, nothing is checked.
 *
 * Locking: the caller holds mmu_lock for write, and slots_lock since before
 * kvm_prove_vcpus_still().
 */
u64 __kvm_prove_vcpus_still(struct kvm *kvm);
void __kvm_prove_harvested_rmaps(struct kvm *kvm, const struct kvm_memory_slot *slot,
				 unsigned long nr, u64 still);
void __kvm_prove_harvested_tdp(struct kvm *kvm, const struct kvm_memory_slot *slot,
			       unsigned long nr, u64 still);

/*
 * Places where mmu_lock may be dropped on the way, because others want it or memory
 * is needed, so that all that was found before has to be looked up again.
 */
enum kvm_force_site {
	/* Between two huge pages that are split. */
	KVM_FORCE_SPLIT_YIELD,
	/* Before a split, to fill caches.  Stocked ones are taken for empty. */
	KVM_FORCE_SPLIT_ALLOC,
	/* Between words of a log that is cleared, or entries of a dirty ring. */
	KVM_FORCE_LOG_WORD,
	/* While logging is enabled for a memslot with 4KiB SPTEs, in the shadow MMU. */
	KVM_FORCE_LOG_SLOT,
	/* While it is disabled; each drop counts twice, as it is asked for twice. */
	KVM_FORCE_COLLAPSE,
	/* While Dirty bits are looked for in the shadow MMU, and in the TDP MMU. */
	KVM_FORCE_HARVEST_RMAPS,
	KVM_FORCE_HARVEST_TDP,
	/* While they are taken away in the TDP MMU. */
	KVM_FORCE_REARM_TDP,
	KVM_NR_FORCE_SITES
};

/*
 * True if mmu_lock shall be dropped here though nobody wants it, which is counted.
 * That is so while the module parameter kvm.prove_force is on; kvm.prove_forced has
 * the counts.  Each site still does its minimum of work between two drops.
 */
bool __kvm_prove_force(enum kvm_force_site site);

static inline bool kvm_prove_force(enum kvm_force_site site)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU) && __kvm_prove_force(site);
}

/*
 * True for every other huge page, whose memory shall be taken for memory that is being
 * invalidated, while the module parameter kvm.prove_refuse is on.
 */
bool __kvm_prove_refuse(gfn_t gfn, int level);

static inline bool kvm_prove_refuse(gfn_t gfn, int level)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU) && __kvm_prove_refuse(gfn, level);
}

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

static inline u64 kvm_prove_vcpus_still(struct kvm *kvm)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU) ? __kvm_prove_vcpus_still(kvm) : 0;
}

static inline void kvm_prove_harvested_rmaps(struct kvm *kvm,
					     const struct kvm_memory_slot *slot,
					     unsigned long nr, u64 still)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU))
		__kvm_prove_harvested_rmaps(kvm, slot, nr, still);
}

static inline void kvm_prove_harvested_tdp(struct kvm *kvm,
					   const struct kvm_memory_slot *slot,
					   unsigned long nr, u64 still)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU))
		__kvm_prove_harvested_tdp(kvm, slot, nr, still);
}

#endif /* __KVM_X86_MMU_PROVE_H */
