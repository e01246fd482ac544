// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting for the shadow MMU
 *
 * Dirty logging works on 4KiB pages.  Whatever is mapped by a huge page when it
 * starts is split by the first write, in the page fault of a vCPU that holds
 * mmu_lock exclusively, one 4KiB page at a time.  Here the thread that starts
 * dirty logging splits instead, before vCPUs get there.
 *
 * The walk goes along the rmaps of the memslot and not along page tables, as one
 * gfn can be mapped by any number of roots, and from the largest page size to
 * the smallest, so that what one level yields is split at the next.  Each huge
 * SPTE is replaced by a link to a direct shadow page, the same one that a page
 * fault would choose.
 *
 * All of it is best effort.  A huge page that stays, for lack of memory or of
 * quota or because its memory is being invalidated, is write-protected by the
 * caller and split by a page fault: slower, but nothing is lost.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/sched.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "mmutrace.h"
#include "spte.h"
#include "eager_split.h"

/*
 * How much has to be done before mmu_lock may be given up because others want
 * it, in rmap heads visited: the heads that one split fills, or as many empty
 * ones.  It guarantees progress, however contended the lock is.
 */
#define EAGER_SPLIT_MIN_WORK	SPTE_ENT_PER_PAGE

struct eager_split {
	struct kvm *kvm;

	/* Stable throughout: slots_lock is held. */
	const struct kvm_memory_slot *slot;

	/* The gfns to split are those in [start, end), not empty. */
	gfn_t start;
	gfn_t end;

	/* Rmap heads visited since mmu_lock was taken last. */
	unsigned long work;

	/*
	 * A vCPU lost a translation, or part of its permissions, and may still
	 * have it in its TLB.  Never true while mmu_lock is not held.
	 */
	bool flush;
};

static void eager_split_flush(struct eager_split *es)
{
	if (es->flush)
		kvm_flush_remote_tlbs_memslot(es->kvm, es->slot);
	es->flush = false;
}

static void eager_split_unlock(struct eager_split *es)
	__releases(&es->kvm->mmu_lock)
{
	eager_split_flush(es);
	write_unlock(&es->kvm->mmu_lock);
}

static void eager_split_lock(struct eager_split *es)
	__acquires(&es->kvm->mmu_lock)
{
	write_lock(&es->kvm->mmu_lock);
	es->work = 0;
}

/*
 * rwlock_needbreak() is constant false unless the kernel is fully preemptible,
 * but vCPUs wait for the lock in every kernel.
 */
static bool eager_split_should_yield(struct eager_split *es)
{
	return es->work >= EAGER_SPLIT_MIN_WORK &&
	       (need_resched() || rwlock_is_contended(&es->kvm->mmu_lock));
}

static void eager_split_yield(struct eager_split *es)
{
	if (!eager_split_should_yield(es))
		return;

	eager_split_unlock(es);
	cond_resched();
	eager_split_lock(es);
}

static bool eager_split_cache_has(struct kvm_mmu_memory_cache *cache, int nr)
{
	return kvm_mmu_memory_cache_nr_free_objects(cache) >= nr;
}

static bool eager_split_is_stocked(struct kvm *kvm, int nr_descs)
{
	return eager_split_cache_has(&kvm->arch.split_desc_cache, nr_descs) &&
	       eager_split_cache_has(&kvm->arch.split_page_header_cache, 1) &&
	       eager_split_cache_has(&kvm->arch.split_shadow_page_cache, 1);
}

static int eager_split_topup_descs(struct kvm *kvm, int nr_descs)
{
	/*
	 * Room for the worst case and some more: the capacity is fixed by the
	 * first topup, and filling up costs little next to dropping the lock.
	 */
	const int capacity = SPLIT_DESC_CACHE_MIN_NR_OBJECTS +
			     KVM_ARCH_NR_OBJS_PER_MEMORY_CACHE;

	if (!nr_descs)
		return 0;

	return __kvm_mmu_topup_memory_cache(&kvm->arch.split_desc_cache,
					    capacity, nr_descs);
}

static int eager_split_topup(struct kvm *kvm, int nr_descs)
{
	int r;

	lockdep_assert_held(&kvm->slots_lock);

	r = eager_split_topup_descs(kvm, nr_descs);
	if (r)
		return r;

	r = kvm_mmu_topup_memory_cache(&kvm->arch.split_page_header_cache, 1);
	if (r)
		return r;

	return kvm_mmu_topup_memory_cache(&kvm->arch.split_shadow_page_cache, 1);
}

/*
 * Upper bound for the descriptors that splitting one SPTE takes: one for each
 * rmap head of the next level that is in use, and one for the parent SPTEs of a
 * child that is linked elsewhere already.  Without aliases no head is in use, so
 * asking for the worst case of 513 would waste 64KiB.
 */
static int eager_split_nr_descs(struct eager_split *es, gfn_t gfn, int level)
{
	struct kvm_rmap_head *head = gfn_to_rmap(gfn, level - 1, es->slot);
	int nr = 1;
	int i;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++)
		nr += !!head[i].val;

	return nr;
}

/*
 * Make sure that a split can't fail for lack of memory.
 *
 * Return: 0 if it can't; -EAGAIN if mmu_lock was dropped to allocate, so that
 * the huge SPTE has to be looked up again; another error to give up.
 */
static int __must_check eager_split_reserve(struct eager_split *es, gfn_t gfn, int level)
{
	struct kvm *kvm = es->kvm;
	int nr_descs, r;

	/* Reclaiming shadow pages for the sake of splitting would be absurd. */
	if (kvm_mmu_available_pages(kvm) <= KVM_MIN_FREE_MMU_PAGES)
		return -ENOSPC;

	nr_descs = eager_split_nr_descs(es, gfn, level);
	if (eager_split_is_stocked(kvm, nr_descs))
		return 0;

	eager_split_unlock(es);
	cond_resched();
	r = eager_split_topup(kvm, nr_descs);
	eager_split_lock(es);

	return r ?: -EAGAIN;
}

/*
 * Fill the holes of @sp.  Return true if there was an entry before, which may
 * permit less than @huge_spte does, e.g. because it is write-protected, or may
 * link to a page table that is not full.
 *
 * Unlike page faults, never recycle the SPTEs of a gfn that has too many: that
 * would tear a hole into the child, under a huge SPTE that is still live.
 */
static bool eager_split_fill(struct eager_split *es, struct kvm_mmu_page *sp,
			     u64 huge_spte)
{
	struct kvm_mmu_memory_cache *descs = &es->kvm->arch.split_desc_cache;
	int nr = 0;
	int i;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		u64 *sptep = &sp->spt[i];

		if (is_shadow_present_pte(*sptep))
			continue;

		mmu_spte_set(sptep, make_huge_page_split_spte(es->kvm, huge_spte, sp->role, i));
		kvm_mmu_rmap_add(es->kvm, descs, es->slot, sptep,
				 kvm_mmu_page_get_gfn(sp, i), sp->role.level);
		nr++;
	}

	kvm_update_page_stats(es->kvm, sp->role.level, nr);
	es->work += SPTE_ENT_PER_PAGE;

	return nr != SPTE_ENT_PER_PAGE;
}

static void eager_split_one(struct eager_split *es, u64 *huge_sptep)
{
	struct kvm *kvm = es->kvm;
	struct kvm_mmu_page *sp;

	sp = kvm_mmu_get_sp_for_split(kvm, huge_sptep);
	es->flush |= eager_split_fill(es, sp, READ_ONCE(*huge_sptep));
	kvm_mmu_link_split_sp(kvm, &kvm->arch.split_desc_cache, huge_sptep, sp);
}

static int eager_split_try(struct eager_split *es, u64 *huge_sptep, gfn_t gfn, int level)
{
	u64 huge_spte = READ_ONCE(*huge_sptep);
	int r;

	r = eager_split_reserve(es, gfn, level);
	if (!r)
		eager_split_one(es, huge_sptep);

	trace_kvm_mmu_split_huge_page(gfn, huge_spte, level, r);
	return r;
}

/* Nobody runs on obsolete shadow pages any more, and roles of invalid ones are. */
static bool eager_split_wants(struct kvm *kvm, u64 *sptep)
{
	if (WARN_ON_ONCE(!is_large_pte(*sptep)))
		return false;

	return !is_obsolete_sp(kvm, sptep_to_sp(sptep));
}

/*
 * Split all huge SPTEs of one size that map @gfn.  Each split takes one entry
 * away from the rmap, and dirty logging lets no vCPU add another.
 */
static int eager_split_gfn(struct eager_split *es, gfn_t gfn, int level)
{
	struct kvm_rmap_head *head = gfn_to_rmap(gfn, level, es->slot);
	gfn_t end = gfn + KVM_PAGES_PER_HPAGE(level);
	u64 *sptep;
	int r;

	for (;;) {
		sptep = kvm_mmu_find_rmap_spte(es->kvm, head, eager_split_wants);
		if (!sptep)
			return 0;

		if (kvm_mmu_invalidation_overlaps(es->kvm, gfn, end))
			return 0;

		r = eager_split_try(es, sptep, gfn, level);
		if (r && r != -EAGAIN)
			return r;

		eager_split_yield(es);
	}
}

static int eager_split_level(struct eager_split *es, int level)
{
	gfn_t gfn = gfn_round_for_level(es->start, level);
	int r;

	for (; gfn < es->end; gfn += KVM_PAGES_PER_HPAGE(level)) {
		r = eager_split_gfn(es, gfn, level);
		if (r)
			return r;

		es->work++;
		eager_split_yield(es);
	}

	return 0;
}

/**
 * kvm_eager_split_range - split the huge pages of the shadow MMU in a range
 * @kvm: the VM
 * @slot: the memslot
 * @start: first gfn of the range, in @slot
 * @end: first gfn behind the range
 * @target_level: the page size to split down to, PG_LEVEL_4K or PG_LEVEL_2M
 *
 * See eager_split.h for locking.  A huge page that lies in the range in part is
 * split as a whole.  The first shortage of memory or of shadow pages ends the
 * operation: what one huge page didn't get, the next won't get either.
 */
void kvm_eager_split_range(struct kvm *kvm, const struct kvm_memory_slot *slot,
			   gfn_t start, gfn_t end, int target_level)
{
	struct eager_split es = {
		.kvm = kvm,
		.slot = slot,
		.start = start,
		.end = end,
	};
	int level;

	lockdep_assert_held(&kvm->slots_lock);
	lockdep_assert_held_write(&kvm->mmu_lock);

	for (level = KVM_MAX_HUGEPAGE_LEVEL; level > target_level; level--)
		if (eager_split_level(&es, level))
			break;

	eager_split_flush(&es);
}
