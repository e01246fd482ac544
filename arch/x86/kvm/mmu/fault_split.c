// SPDX-License-Identifier: GPL-2.0-only
/*
 * Split a huge page on the first write, as a whole
 *
 * Logged memory may be mapped by huge pages: read faults map them while it is logged, and the
 * eager splitter leaves those that it could not split, or was not allowed to.
 * Their SPTEs are read-only, so that the first write faults.  A page fault used to
 * unmap all of the huge page then and to map 4KiB of it, so that each of the other pages
 * cost a fault as well, be it read or written.  Here it fills the whole page table, by the
 * code of the eager splitter, and arms its SPTEs: each 2MiB that is written costs one fault
 * in all if pages are logged by Dirty bits, and memory that is only read stays huge.
 *
 * This is best effort: a huge page that can't be split is unmapped, and its 4KiB pages are
 * mapped one by one.
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
 * The number of rmap descriptors that a split may take from the vCPU's mmu_pte_list_desc_cache:
 * one, as linking an empty page table may take one, too.  Splits that need more take them from
 * fault_split_desc_cache.
 */
#define FAULT_SPLIT_NR_DESCS	1

/* The cache of descriptors is filled on demand, as only aliases of a huge page need it. */
enum {
	FAULT_SPLIT_DESCS_IDLE,
	/* A split has found too few: the next page fault fills the cache, and tries again. */
	FAULT_SPLIT_DESCS_WANTED,
	/* There was no memory for them, so the next split that needs them won't be done. */
	FAULT_SPLIT_DESCS_NOMEM,
};

/**
 * kvm_fault_split_init - prepare a vCPU's cache for splits that take many rmap descriptors
 * @vcpu: the vCPU
 * @desc_cache: the kmem cache of descriptors
 */
void kvm_fault_split_init(struct kvm_vcpu *vcpu, struct kmem_cache *desc_cache)
{
	struct kvm_mmu_memory_cache *cache = &vcpu->arch.fault_split_desc_cache;

	cache->kmem_cache = desc_cache;
	cache->gfp_zero = __GFP_ZERO;

	/* The descriptors are optional: don't invoke the OOM killer to allocate them. */
	cache->gfp_custom = KVM_SPLIT_GFP;
}

/**
 * __kvm_fault_split_topup - fill the cache of descriptors that a split has asked for
 * @vcpu: the vCPU; mmu_lock is not held
 */
void __kvm_fault_split_topup(struct kvm_vcpu *vcpu)
{
	const int capacity = SPLIT_DESC_CACHE_MIN_NR_OBJECTS + KVM_ARCH_NR_OBJS_PER_MEMORY_CACHE;
	int r = -ENOMEM;

	if (vcpu->arch.fault_split_descs != FAULT_SPLIT_DESCS_WANTED)
		return;

	/* Leave the memory to the allocations that the vCPU can't do without: they come next. */
	if (kvm_split_has_margin(vcpu->kvm))
		r = __kvm_mmu_topup_memory_cache(&vcpu->arch.fault_split_desc_cache, capacity,
						 SPLIT_DESC_CACHE_MIN_NR_OBJECTS);
	vcpu->arch.fault_split_descs = r ? FAULT_SPLIT_DESCS_NOMEM : FAULT_SPLIT_DESCS_IDLE;
}

/*
 * Is this a write fault that dirty logging has to handle?  Faults for execution split because
 * of the NX mitigation and account that.  A prefault writes nothing, so nothing has to be
 * split.  Exclude private memory: the host's page tables don't tell how it is mapped.
 */
static bool fault_split_is_logged_write(const struct kvm_page_fault *fault)
{
	return fault->write && !fault->prefetch && !fault->huge_page_disallowed &&
	       !fault->is_private && fault->slot && kvm_slot_dirty_track_enabled(fault->slot);
}

/*
 * Does a huge SPTE map the same memory as the fault, at the same gfn?  With shadow paging it
 * need not: user space, or a device, may have changed the guest's page table, which KVM
 * isn't told.  The new page table has the gfn of the fault, and its SPTEs go to that gfn's
 * rmaps: with the pfn of another gfn, they would outlive their memory.
 */
static bool fault_split_is_same_memory(const struct kvm_page_fault *fault, u64 *huge_sptep,
				       u64 huge_spte, int level)
{
	struct kvm_mmu_page *huge_sp = sptep_to_sp(huge_sptep);
	gfn_t offset = fault->gfn & (KVM_PAGES_PER_HPAGE(level) - 1);
	kvm_pfn_t pfn = fault->pfn;

	/* The fault's pfn is that of the page it wants to map, huge or not. */
	pfn |= fault->gfn & (KVM_PAGES_PER_HPAGE(fault->goal_level) - 1);

	return kvm_mmu_page_get_gfn(huge_sp, spte_index(huge_sptep)) == fault->gfn - offset &&
	       spte_to_pfn(huge_spte) + offset == pfn;
}

/*
 * May a huge SPTE that isn't MMU-writable be made so, as the fault would if it mapped the
 * huge page anew?  The fault would if the guest's entry for the huge page has become dirty,
 * or the host's writable, since the huge SPTE was made.  If the host maps the whole huge
 * page by one entry now, that entry is the one that the fault has found writable: removing
 * or splitting it would take an invalidation of the whole huge page, and none has begun.
 */
static bool fault_split_may_allow_write(struct kvm *kvm, const struct kvm_page_fault *fault,
					gfn_t gfn, int level)
{
	return fault->map_writable &&
	       kvm_mmu_max_mapping_level(kvm, NULL, fault->slot, gfn) >= level;
}

/*
 * The huge SPTE that the small SPTEs are derived from.
 *
 * The access of @sp may differ from what was recorded for the huge SPTE by write access
 * that it has gained.  Any other difference means that the guest has changed its mapping,
 * and the huge SPTE still has the bits of the old mapping.
 *
 * If KVM shadows or tracks a page table of the guest within the huge page, some of the small
 * SPTEs must not be writable, whatever the huge SPTE permits.  KVM maps nothing huge there,
 * so a huge SPTE can only be left where two address spaces (SMM) map the same memory.
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

	/* 4KiB SPTEs alone may be writable while they are logged, if Dirty bits tell of writes. */
	if (level == PG_LEVEL_2M && spte_logs_by_dirty_bit(kvm, huge_spte))
		huge_spte |= PT_WRITABLE_MASK;

	return huge_spte;
}

/*
 * Does another huge page of the guest's for the same memory lead to this page table?  Then
 * page faults have filled it, and its own page tables tell which pages were written.  To split
 * this huge SPTE into it would replace them by huge SPTEs.
 */
static bool fault_split_is_filled(const struct kvm_mmu_page *sp)
{
	return sp->role.level > PG_LEVEL_4K && kvm_rmap_peek(&sp->parent_ptes);
}

/* Split if the caches hold enough descriptors, and request more otherwise, once. */
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
 * Why no write is lost, and nothing mapped for longer than its memory is there:
 *
 * - The huge SPTE isn't writable.  While a huge SPTE is writable, either its pages are all in
 *   the log still (initially-all-set, before KVM_CLEAR_DIRTY_LOG has cleared them), or logging
 *   is being enabled; small SPTEs without Dirty bit would claim that nothing had been written.
 *   Nothing makes it writable again while the memslot is logged.
 * - CPUs may be able to write by what their TLBs have cached, as whoever took write access
 *   away owes a flush: enabling, CLEAR, or resetting a dirty ring.  Each flushes before it
 *   returns to user space, which doesn't read memory for what is out of the log before then.
 *   Such writes don't set the small SPTEs' Dirty bits, and need not.
 * - No part of the huge page is being invalidated.  The fault has been checked for its own
 *   gfn only.  An invalidation zaps the SPTEs in the rmaps of 4KiB pages first, and may drop
 *   mmu_lock before it comes to those of huge pages.  If the huge page were split at that
 *   point, the invalidation would find no huge SPTE, and leave the small SPTEs behind.  An
 *   invalidation that has ended since the fault read the host's page tables makes the fault
 *   stale.
 * - TLBs that have the huge SPTE cached translate to the same memory, with less permissions.
 *   A write by such an entry faults again, to no effect.  What was found in @sp and is
 *   replaced is flushed by kvm_eager_split_into().
 *
 * The work is bounded as the eager splitter's is, with mmu_lock held as for any page fault.
 *
 * Return: 0; -EAGAIN if the vCPU has to retry the fault, which allocates descriptors first;
 * another error if the huge page was not split, so that the caller has to zap the huge SPTE
 * and to link @sp as it is.
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
