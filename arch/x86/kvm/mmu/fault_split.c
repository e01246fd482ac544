// SPDX-License-Identifier: GPL-2.0-only
/*
 * Split a whole huge page on the first write to it
 *
 * Logged memory may be mapped by huge pages: read faults create them while it
 * is logged, and the eager splitter leaves those that it could not or must not
 * split.  Their SPTEs are read-only, so that the first write faults.
 *
 * Without this file, that page fault would unmap the huge page and map 4KiB of
 * it.  Each of the other pages would then cost another fault, whether it is
 * read or written.  Instead, the page fault fills the whole page table, with
 * the code of the eager splitter, and arms its SPTEs.  If pages are logged by
 * Dirty bits, each 2MiB that is written costs one fault in total.  Memory that
 * is only read stays huge.
 *
 * This is best effort: a huge page that can't be split is unmapped, and its
 * 4KiB pages are mapped one by one.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "mmu.h"
#include "mmu_internal.h"
#include "mmutrace.h"
#include "prove.h"
#include "split_memory.h"
#include "spte.h"
#include "eager_split.h"

/*
 * The number of rmap descriptors that a split may allocate from the vCPU's
 * mmu_pte_list_desc_cache: one, as many as linking an empty page table may
 * need.  Splits that need more allocate them from fault_split_desc_cache.
 */
#define FAULT_SPLIT_NR_DESCS	1

/*
 * The state of fault_split_desc_cache, which is filled on demand, because only
 * aliases of a huge page need it.
 */
enum {
	FAULT_SPLIT_DESCS_IDLE,
	/*
	 * A split lacked descriptors.  The next page fault fills the cache and
	 * retries.
	 */
	FAULT_SPLIT_DESCS_WANTED,
	/*
	 * Filling the cache failed.  The next split that lacks descriptors
	 * fails, too.
	 */
	FAULT_SPLIT_DESCS_NOMEM,
};

/**
 * kvm_fault_split_init - initialize a vCPU's fault_split_desc_cache
 * @vcpu: the vCPU
 * @desc_cache: the kmem cache of descriptors
 */
void kvm_fault_split_init(struct kvm_vcpu *vcpu, struct kmem_cache *desc_cache)
{
	struct kvm_mmu_memory_cache *cache = &vcpu->arch.fault_split_desc_cache;

	cache->kmem_cache = desc_cache;
	cache->gfp_zero = __GFP_ZERO;

	/*
	 * The descriptors are optional: don't invoke the OOM killer to allocate
	 * them.
	 */
	cache->gfp_custom = KVM_SPLIT_GFP;
}

/**
 * __kvm_fault_split_topup - fill fault_split_desc_cache, if requested
 * @vcpu: the vCPU; mmu_lock is not held
 */
void __kvm_fault_split_topup(struct kvm_vcpu *vcpu)
{
	const int capacity = SPLIT_DESC_CACHE_MIN_NR_OBJECTS + KVM_ARCH_NR_OBJS_PER_MEMORY_CACHE;
	int r = -ENOMEM;

	if (vcpu->arch.fault_split_descs != FAULT_SPLIT_DESCS_WANTED)
		return;

	/* Leave the memory to the mandatory allocations that follow. */
	if (kvm_split_has_margin(vcpu->kvm))
		r = __kvm_mmu_topup_memory_cache(&vcpu->arch.fault_split_desc_cache, capacity,
						 SPLIT_DESC_CACHE_MIN_NR_OBJECTS);
	vcpu->arch.fault_split_descs = r ? FAULT_SPLIT_DESCS_NOMEM : FAULT_SPLIT_DESCS_IDLE;
}

/*
 * Is this a write fault that dirty logging has to handle?  Exclude:
 *
 * - prefaults, which write nothing;
 * - execution faults under the NX mitigation (huge_page_disallowed), which
 *   split and account by themselves;
 * - private memory, because the host's page tables don't show how it is mapped.
 */
static bool fault_split_is_logged_write(const struct kvm_page_fault *fault)
{
	return fault->write && !fault->prefetch && !fault->huge_page_disallowed &&
	       !fault->is_private && fault->slot && kvm_slot_dirty_track_enabled(fault->slot);
}

/*
 * Does a huge SPTE map the same memory as the fault, at the same gfn?  With
 * shadow paging it may not: user space or a device may have changed the guest's
 * page table without KVM noticing.  The new page table has the gfn of the
 * fault, and its SPTEs are added to the rmaps of that gfn.  If they had the pfn
 * of another gfn, they would remain when that memory is invalidated.
 */
static bool fault_split_is_same_memory(const struct kvm_page_fault *fault, u64 *huge_sptep,
				       u64 huge_spte, int level)
{
	struct kvm_mmu_page *huge_sp = sptep_to_sp(huge_sptep);
	gfn_t offset = fault->gfn & (KVM_PAGES_PER_HPAGE(level) - 1);
	kvm_pfn_t pfn = fault->pfn;

	/* fault->pfn is the first pfn of the page to map, of goal_level. */
	pfn |= fault->gfn & (KVM_PAGES_PER_HPAGE(fault->goal_level) - 1);

	return kvm_mmu_page_get_gfn(huge_sp, spte_index(huge_sptep)) == fault->gfn - offset &&
	       spte_to_pfn(huge_spte) + offset == pfn;
}

/*
 * May a huge SPTE that isn't MMU-writable be made MMU-writable?  It may if the
 * fault would create a writable SPTE for the huge page now, because the guest's
 * entry has become dirty, or the host's entry writable, since the huge SPTE was
 * created.
 *
 * If the host maps the whole huge page by one entry now, this is the entry that
 * the fault found to be writable: replacing it requires an invalidation of the
 * whole huge page, and the caller has checked that none is in progress.
 */
static bool fault_split_may_allow_write(struct kvm *kvm, const struct kvm_page_fault *fault,
					gfn_t gfn, int level)
{
	return fault->map_writable &&
	       kvm_mmu_max_mapping_level(kvm, NULL, fault->slot, gfn) >= level;
}

/*
 * The value that the small SPTEs are derived from.
 *
 * @sp may have gained write access since the access of the huge SPTE was
 * recorded.  Any other difference in access means that the guest has changed
 * its mapping, while the huge SPTE still has the bits of the old mapping.
 *
 * If KVM shadows or tracks a guest page table within the huge page, some of the
 * small SPTEs must not be writable, whatever the huge SPTE permits.  KVM maps
 * no huge pages there, but a huge SPTE may be left if two address spaces (SMM)
 * map the same memory.
 *
 * Return: a huge SPTE, or 0 if this one can't be split.
 */
static u64 fault_split_huge_spte(struct kvm *kvm, const struct kvm_page_fault *fault,
				 u64 *huge_sptep, u64 huge_spte, struct kvm_mmu_page *sp)
{
	u32 old_access = kvm_mmu_page_get_access(sptep_to_sp(huge_sptep), spte_index(huge_sptep));
	u32 access = sp->role.access;
	int level = sp->role.level + 1;

	if (!(access & ACC_WRITE_MASK) || ((access ^ old_access) & ~ACC_WRITE_MASK))
		return 0;

	if (!kvm_gfn_is_lpage_allowed(kvm, fault->slot, sp->gfn, level))
		return 0;

	if (!is_mmu_writable_spte(huge_spte)) {
		if (!fault_split_may_allow_write(kvm, fault, sp->gfn, level))
			return 0;

		huge_spte |= shadow_host_writable_mask | shadow_mmu_writable_mask;
	}

	/* While logged, only 4KiB SPTEs with a Dirty bit may be writable. */
	if (level == PG_LEVEL_2M && spte_logs_by_dirty_bit(kvm, huge_spte))
		huge_spte |= PT_WRITABLE_MASK;

	return huge_spte;
}

/*
 * Is @sp, a table of huge pages, linked already, i.e. does the guest map the
 * same memory by another huge page?  Then page faults have filled @sp, and the
 * page tables below it show which pages were written.  Splitting this huge SPTE
 * into @sp would replace the links to those with few SPTEs by huge SPTEs.
 */
static bool fault_split_is_filled(const struct kvm_mmu_page *sp)
{
	return sp->role.level > PG_LEVEL_4K && kvm_rmap_peek(&sp->parent_ptes);
}

/* Split if a cache contains enough descriptors, else request more, once. */
static int fault_split_one(struct kvm_vcpu *vcpu, const struct kvm_memory_slot *slot,
			   u64 *huge_sptep, u64 huge_spte, struct kvm_mmu_page *sp)
{
	struct kvm_mmu_memory_cache *many = &vcpu->arch.fault_split_desc_cache;
	int r;

	r = kvm_eager_split_into(vcpu->kvm, slot, &vcpu->arch.mmu_pte_list_desc_cache,
				 FAULT_SPLIT_NR_DESCS, huge_sptep, huge_spte, sp);
	if (r != -ENOMEM)
		return r;

	r = kvm_eager_split_into(vcpu->kvm, slot, many, kvm_mmu_memory_cache_nr_free_objects(many),
				 huge_sptep, huge_spte, sp);
	if (r != -ENOMEM)
		return r;

	if (vcpu->arch.fault_split_descs == FAULT_SPLIT_DESCS_NOMEM) {
		vcpu->arch.fault_split_descs = FAULT_SPLIT_DESCS_IDLE;
		return -ENOMEM;
	}

	vcpu->arch.fault_split_descs = FAULT_SPLIT_DESCS_WANTED;
	return -EAGAIN;
}

/**
 * kvm_fault_split - split a huge page on the first write to it
 * @vcpu: the vCPU that writes; it holds mmu_lock for write
 * @fault: the page fault, which isn't stale
 * @huge_sptep: a huge SPTE of a larger size than the fault wants to map
 * @sp: the direct shadow page that the fault is about to link in its place
 *
 * Why no write is lost, and no SPTE outlives the memory that it maps:
 *
 * - The huge SPTE isn't writable, and nothing makes it writable while the
 *   memslot is logged.  A huge SPTE is writable only while logging is being
 *   enabled, or while all of its pages are still in the log (initially-all-set,
 *   before KVM_CLEAR_DIRTY_LOG).  Such a huge SPTE must not be split here,
 *   because small SPTEs with the Dirty bit clear would claim that nothing was
 *   written.
 * - CPUs may still have writable TLB entries of the huge SPTE.  The thread that
 *   made it read-only (enabling, CLEAR, or the reset of a dirty ring) flushes
 *   TLBs before it returns to user space.  User space can't rely before then on
 *   memory that is not in the log.  Writes through such TLB entries don't set
 *   the small SPTEs' Dirty bits, and need not.
 * - No part of the huge page is being invalidated.  The fault was checked for
 *   its own gfn only.  An invalidation zaps the rmaps of 4KiB pages first, and
 *   may drop mmu_lock before it zaps those of huge pages.  If the huge page
 *   were split in between, the invalidation would find no huge SPTE, and would
 *   leave the small SPTEs.  An invalidation that has ended since the fault read
 *   the host's page tables makes the fault stale.
 * - Read-only TLB entries of the huge SPTE translate to the same memory, and
 *   permit less than the small SPTEs.  A write through one of them just faults
 *   again.  kvm_eager_split_into() flushes TLBs if it replaces entries of @sp,
 *   or keeps links.
 *
 * A split is bounded as in the eager splitter, and mmu_lock is held as for any
 * page fault.
 *
 * Return: 0; -EAGAIN if the vCPU has to retry the fault, which first allocates
 * descriptors; another error if the huge page was not split, so that the caller
 * has to zap the huge SPTE and link @sp as it is.
 */
int kvm_fault_split(struct kvm_vcpu *vcpu, struct kvm_page_fault *fault, u64 *huge_sptep,
		    struct kvm_mmu_page *sp)
{
	u64 huge_spte = READ_ONCE(*huge_sptep);
	int level = sp->role.level + 1;
	struct kvm *kvm = vcpu->kvm;
	u64 spte;
	int r;

	lockdep_assert_held_write(&kvm->mmu_lock);

	if (!fault_split_is_logged_write(fault) || is_writable_pte(huge_spte) ||
	    !fault_split_is_same_memory(fault, huge_sptep, huge_spte, level))
		return -EINVAL;

	if (kvm_mmu_invalidation_overlaps(kvm, sp->gfn, sp->gfn + KVM_PAGES_PER_HPAGE(level)) ||
	    kvm_prove_skip_split(sp->gfn, level))
		return -EBUSY;

	if (fault_split_is_filled(sp))
		return -EEXIST;

	spte = fault_split_huge_spte(kvm, fault, huge_sptep, huge_spte, sp);
	if (!spte)
		return -EPERM;

	r = fault_split_one(vcpu, fault->slot, huge_sptep, spte, sp);
	if (!r)
		vcpu->stat.eager_split_fault++;

	trace_kvm_mmu_split_huge_page(sp->gfn, huge_spte, level, r);
	return r;
}
