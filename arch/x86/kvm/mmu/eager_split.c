// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting for the shadow MMU
 *
 * Dirty logging works on 4KiB pages.  If a vCPU writes to memory that is still
 * mapped by a huge page, the page fault splits the huge page, with mmu_lock
 * held for write.  Here, the thread that enables or clears dirty logging splits
 * huge pages before vCPUs write to them.
 *
 * The splitter walks the rmaps of the memslot instead of page tables, because
 * any number of roots can map a gfn.  It handles the largest page size first,
 * so that the huge pages that result from one level are split at the next.
 * Each huge SPTE is replaced by a link to a direct shadow page, the same one
 * that a page fault would use.
 *
 * Splitting is best effort.  A huge page is not split if memory or the quota of
 * shadow pages is exhausted, or if its memory is being invalidated.  The caller
 * write-protects such a huge page, and the first write splits it: that is
 * slower, but no write is lost.  A huge page that would take too long to split
 * is zapped, see eager_split_zap().
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/sched.h>
#include <linux/sched/signal.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "mmutrace.h"
#include "prove.h"
#include "spte.h"
#include "spte_bulk.h"
#include "split_memory.h"
#include "x86.h"
#include "eager_split.h"

/*
 * The least work between two voluntary drops of mmu_lock, in rmap heads
 * visited: as many as one split fills.  It guarantees progress, however
 * contended the lock is.
 */
#define EAGER_SPLIT_MIN_WORK	SPTE_ENT_PER_PAGE

/*
 * The most entries of parent SPTE lists that one split may search, which takes
 * a fraction of a millisecond: 32 links to each table that the split replaces.
 * A table has one or two links, unless the guest creates many page directories
 * for the same large pages.
 */
#define EAGER_SPLIT_MAX_LINKS	(32 * SPTE_ENT_PER_PAGE)

struct eager_split {
	struct kvm *kvm;

	/* slots_lock keeps it and its rmaps, or SRCU in a page fault. */
	const struct kvm_memory_slot *slot;

	/* The cache that rmap descriptors are allocated from. */
	struct kvm_mmu_memory_cache *descs;

	/* The range of gfns, [start, end).  A page fault has no range. */
	gfn_t start;
	gfn_t end;

	/*
	 * Arm the new 4KiB SPTEs, so that the next write shows in the log.  Set
	 * if dirty logging is being enabled for the whole memslot, and in page
	 * faults.
	 */
	bool arm;

	/* Rmap heads visited since mmu_lock was taken last. */
	unsigned long work;

	/* Huge pages split since mmu_lock was taken last, and altogether. */
	unsigned int batch;
	unsigned int total;

	/* Was a huge page found since mmu_lock was taken last, or at all? */
	bool found_now;
	bool found;

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

static void eager_split_start_hold(struct eager_split *es)
{
	es->work = 0;
	es->batch = 0;
	es->found_now = false;
}

/*
 * @r: 0 if the range is done; -EAGAIN if splitting continues after mmu_lock was
 * dropped; another error if splitting stops.
 */
static void eager_split_end_hold(struct eager_split *es, int r)
{
	eager_split_flush(es);
	es->total += es->batch;
	if (es->batch)
		kvm_prove_shadow_mmu(es->kvm);

	if (es->found_now || (es->found && r != -EAGAIN))
		trace_kvm_eager_split_end(es->batch, r);
}

/* Drop mmu_lock.  TLBs are flushed before, if necessary. */
static void eager_split_unlock(struct eager_split *es)
	__releases(&es->kvm->mmu_lock)
{
	eager_split_end_hold(es, -EAGAIN);
	kvm_dirty_log_release(es->kvm);
	write_unlock(&es->kvm->mmu_lock);
}

static void eager_split_lock(struct eager_split *es)
	__acquires(&es->kvm->mmu_lock)
{
	cond_resched();
	write_lock(&es->kvm->mmu_lock);
	kvm_dirty_log_hold(es->kvm);
	eager_split_start_hold(es);
}

static bool eager_split_should_yield(struct eager_split *es)
{
	return es->work >= EAGER_SPLIT_MIN_WORK &&
	       kvm_mmu_should_yield(es->kvm, KVM_FORCE_SPLIT_YIELD);
}

static void eager_split_yield(struct eager_split *es)
{
	if (!eager_split_should_yield(es))
		return;

	eager_split_unlock(es);
	eager_split_lock(es);
}

/*
 * Are the 512 rmap heads at @level, from that of @gfn on, empty?  In the common
 * case no 4KiB SPTE has been added since logging was disabled, and the flag
 * says so.  Otherwise read all heads: this costs less than a branch per head.
 */
static bool eager_split_heads_are_empty(const struct kvm_memory_slot *slot, gfn_t gfn, int level,
					const struct kvm_rmap_head *heads)
{
	if (level == PG_LEVEL_4K && !kvm_may_have_small_sptes(slot, gfn))
		return true;

	return !spte_any_in_table((const u64 *)heads,
				  SPTE_ENT_PER_PAGE * sizeof(*heads) / sizeof(u64));
}

/*
 * Upper bound for the rmap descriptors that splitting one SPTE needs: one for
 * each rmap head of the next level that is in use, and one if the child already
 * has parent SPTEs.  Without aliases it is 0.
 */
static int eager_split_nr_descs(const struct kvm_rmap_head *heads, bool empty,
				struct kvm_mmu_page *child)
{
	int nr = child && kvm_rmap_peek(&child->parent_ptes);
	int i;

	if (empty)
		return nr;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++)
		nr += !!kvm_rmap_peek(&heads[i]);

	return nr;
}

/*
 * Debug only: pretend that the caches are empty, to force the allocation path.
 * Do so only after some work since mmu_lock was taken, so that each huge page
 * is delayed only once.
 */
static bool eager_split_forces_alloc(const struct eager_split *es)
{
	return es->work && kvm_prove_force_yield(KVM_FORCE_SPLIT_ALLOC);
}

/*
 * Make sure that a split can't fail for lack of memory.
 *
 * Return: 0 if the caches contain enough; -EAGAIN if mmu_lock was dropped to
 * fill them, so that the caller has to look up everything again; another error
 * if splitting has to stop.
 */
static int __must_check eager_split_reserve(struct eager_split *es, bool new_sp,
					    int nr_descs)
{
	struct kvm *kvm = es->kvm;
	int r;

	/* Don't reclaim shadow pages that vCPUs use, in order to split. */
	if (new_sp && kvm_mmu_available_pages(kvm) <= KVM_MIN_FREE_MMU_PAGES)
		return -ENOSPC;

	if (!eager_split_forces_alloc(es) && kvm_split_is_stocked(kvm, nr_descs, new_sp))
		return 0;

	eager_split_unlock(es);
	r = kvm_split_topup(kvm, nr_descs, new_sp);
	eager_split_lock(es);

	return r ?: -EAGAIN;
}

/* The first small SPTE.  The others differ from it in the pfn only. */
static u64 eager_split_first_spte(struct eager_split *es, u64 huge_spte,
				  union kvm_mmu_page_role role)
{
	u64 spte = make_small_spte(es->kvm, huge_spte, role, 0);

	return es->arm && role.level == PG_LEVEL_4K ? spte_arm(es->kvm, spte) : spte;
}

/*
 * The value that the small SPTEs are derived from.
 *
 * Read faults map logged memory by read-only huge pages.  If such a huge SPTE
 * can log by PML or Dirty bits, make the small SPTEs writable, with the Dirty
 * bit clear, so that the first writes don't fault.
 *
 * See kvm_fault_split() for why no write is lost.  The same conditions hold
 * here.  The huge SPTE isn't writable, and doesn't become writable while the
 * memslot is logged.  The ioctl that made it read-only flushes TLBs before it
 * returns.
 */
static u64 eager_split_source(struct eager_split *es, u64 huge_spte, gfn_t gfn, int level)
{
	if (!kvm_slot_dirty_track_enabled(es->slot) ||
	    !spte_may_split_writable(es->kvm, es->slot, gfn, level, huge_spte))
		return huge_spte;

	return spte_arm(es->kvm, huge_spte | PT_WRITABLE_MASK);
}

static u64 eager_split_step(int level)
{
	return (u64)KVM_PAGES_PER_HPAGE(level) << PAGE_SHIFT;
}

/* Fill a page table that has no entries, for gfns that have no other SPTEs. */
static void eager_split_fill_fast(u64 *sptep, u64 spte, u64 step, struct kvm_rmap_head *heads)
{
	BUILD_BUG_ON(sizeof(*heads) != sizeof(unsigned long));

	spte_fill_heads(sptep, spte, step, (unsigned long *)heads, SPTE_ENT_PER_PAGE);
}

/*
 * Don't zap the SPTEs of a gfn that has too many, as page faults do: that would
 * make a hole in the child while the huge SPTE is still present.
 */
static void eager_split_rmap_add(struct eager_split *es, u64 *sptep,
				 struct kvm_rmap_head *head)
{
	kvm_mmu_rmap_add(es->kvm, es->descs, head, sptep);
}

/* Fill an empty page table, for gfns that also have other SPTEs. */
static void eager_split_fill_blank(struct eager_split *es, u64 *sptep, u64 spte, u64 step,
				   struct kvm_rmap_head *heads)
{
	spte_fill(sptep, spte, step, SPTE_ENT_PER_PAGE);
	kvm_mmu_rmap_add_many(es->kvm, es->descs, heads, sptep, SPTE_ENT_PER_PAGE);
}

/*
 * Has the page table behind a link been filled?  This depends on its first and
 * its last SPTE: reading all of them, for 512 links, would take too long.
 */
static bool eager_split_is_filled_link(u64 spte)
{
	const u64 *spt = spte_to_child_sp(spte)->spt;

	return is_shadow_present_pte(READ_ONCE(spt[0])) &&
	       is_shadow_present_pte(READ_ONCE(spt[SPTE_ENT_PER_PAGE - 1]));
}

/*
 * Set an entry of a page table that may be in use, unless it is a leaf already.
 *
 * The entry may be a link that dates from an earlier cycle of dirty logging:
 * disabling logging empties page tables, but keeps the links to them.  Replace
 * the link by a huge SPTE, because splitting the next level fills only page
 * tables that replace huge SPTEs.
 *
 * The entry may also be a link to a page table that was filled because an alias
 * was split and written.  Keep it, or all of its pages would have to be split
 * again.  Pages that it doesn't map are left to page faults, as for the alias.
 *
 * A leaf that differs from @spte may permit less than the huge SPTE does, e.g.
 * because it is write-protected.  Then TLBs have to be flushed.  Aliases of a
 * huge page share one page table: when the second alias is split, all entries
 * exist and none differs.
 *
 * Return: true if a leaf was added.
 */
static bool eager_split_fill_hole(struct eager_split *es, u64 *sptep, u64 spte, int level,
				  struct kvm_rmap_head *head)
{
	u64 old_spte = READ_ONCE(*sptep);

	if (is_shadow_present_pte(old_spte)) {
		if (is_last_spte(old_spte, level)) {
			es->flush |= !!((old_spte ^ spte) & ~shadow_accessed_mask);
			return false;
		}

		/*
		 * The page table may permit less than the huge SPTE, or lack
		 * entries.
		 */
		es->flush = true;
		if (eager_split_is_filled_link(old_spte))
			return false;

		drop_parent_pte(es->kvm, spte_to_child_sp(old_spte), sptep);
	}

	mmu_spte_set(sptep, spte);
	eager_split_rmap_add(es, sptep, head);
	return true;
}

static void eager_split_fill_holes(struct eager_split *es, struct kvm_mmu_page *sp,
				   u64 spte, u64 step, struct kvm_rmap_head *heads)
{
	int level = sp->role.level;
	int nr = 0;
	int i;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++, spte += step)
		nr += eager_split_fill_hole(es, &sp->spt[i], spte, level, &heads[i]);

	kvm_update_page_stats(es->kvm, level, nr);
}

/*
 * Is the number of links below @sp too large to replace them under one hold of
 * mmu_lock?  To remove a link, KVM searches all links to the same table, and
 * the guest controls how many page directories link to it.
 */
static bool eager_split_has_many_links(const struct kvm_mmu_page *sp)
{
	unsigned long nr = 0;
	u64 spte;
	int i;

	if (sp->role.level == PG_LEVEL_4K)
		return false;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		spte = READ_ONCE(sp->spt[i]);
		if (is_shadow_present_pte(spte) && !is_last_spte(spte, sp->role.level))
			nr += pte_list_count(&spte_to_child_sp(spte)->parent_ptes);
	}

	return nr > EAGER_SPLIT_MAX_LINKS;
}

/*
 * Does the page table have no entries?  This is common: disabling dirty logging
 * empties page tables, and keeps them.
 */
static bool eager_split_is_empty(const struct kvm_mmu_page *sp)
{
	/* Code that changes SPTEs without mmu_lock leaves them present. */
	return !is_shadow_present_pte(spte_any_in_table(sp->spt, SPTE_ENT_PER_PAGE));
}

/*
 * Can all entries be stored without reading the old ones?  If no gfn has an
 * SPTE, the page table contains no leaf.  vCPUs may walk a page table that
 * existed before, and a 32-bit host can't store 64 bits at once.
 */
static bool eager_split_is_blank(const struct kvm_mmu_page *sp, bool new, bool empty)
{
	if (new)
		return true;

	return IS_ENABLED(CONFIG_X86_64) &&
	       ((empty && sp->role.level == PG_LEVEL_4K) || eager_split_is_empty(sp));
}

static void eager_split_fill(struct eager_split *es, struct kvm_mmu_page *sp, bool new,
			     u64 huge_spte, struct kvm_rmap_head *heads, bool empty)
{
	u64 spte = eager_split_first_spte(es, huge_spte, sp->role);
	u64 step = eager_split_step(sp->role.level);

	if (sp->role.level == PG_LEVEL_4K)
		kvm_set_small_sptes(es->slot, sp->gfn);

	if (!eager_split_is_blank(sp, new, empty)) {
		eager_split_fill_holes(es, sp, spte, step, heads);
		return;
	}

	if (empty)
		eager_split_fill_fast(sp->spt, spte, step, heads);
	else
		eager_split_fill_blank(es, sp->spt, spte, step, heads);

	kvm_update_page_stats(es->kvm, sp->role.level, SPTE_ENT_PER_PAGE);
}

/*
 * Split a huge SPTE.  The page of a new child isn't zeroed, because all entries
 * are written before a vCPU can walk it.
 *
 * Return: 0; -EAGAIN if everything has to be looked up again; -E2BIG if the
 * split would take too long; another error if splitting has to stop.
 */
static int eager_split_one(struct eager_split *es, u64 *huge_sptep, gfn_t gfn, int level)
{
	struct kvm_rmap_head *heads = gfn_to_rmap(gfn, level - 1, es->slot);
	u64 huge_spte = READ_ONCE(*huge_sptep);
	struct kvm *kvm = es->kvm;
	struct kvm_mmu_page *sp;
	bool new, empty;
	int r;

	sp = kvm_mmu_find_split_sp(kvm, huge_sptep);
	if (IS_ERR(sp))
		return PTR_ERR(sp);

	new = !sp;
	/* Don't read 512 heads: CLEAR gets here once per 64 pages. */
	if (new && kvm_split_is_paused(kvm))
		return -ENOMEM;
	if (!new && eager_split_has_many_links(sp))
		return -E2BIG;

	empty = eager_split_heads_are_empty(es->slot, gfn, level - 1, heads);
	r = eager_split_reserve(es, new, eager_split_nr_descs(heads, empty, sp));
	if (r)
		return r;

	if (new)
		sp = kvm_mmu_alloc_split_sp(kvm, huge_sptep);

	eager_split_fill(es, sp, new, eager_split_source(es, huge_spte, gfn, level), heads, empty);
	kvm_mmu_link_split_sp(kvm, es->descs, gfn_to_rmap(gfn, level, es->slot), huge_sptep, sp);
	kvm_prove_split_sp(es->slot, sp, new, huge_spte);
	return 0;
}

/*
 * Unmap the huge page.  Page faults then link the existing page table, or map
 * the huge page again, read-only.  If it stayed mapped, CLEAR would spend the
 * same time on it again for each word of the bitmap.
 */
static void eager_split_zap(struct eager_split *es, u64 *huge_sptep)
{
	kvm_mmu_drop_spte(es->kvm, huge_sptep);
	es->flush = true;
	es->work += SPTE_ENT_PER_PAGE;
}

static int eager_split_try(struct eager_split *es, u64 *huge_sptep, gfn_t gfn, int level)
{
	u64 huge_spte = READ_ONCE(*huge_sptep);
	int r;

	if (!es->found_now)
		trace_kvm_eager_split_begin(es->slot, es->start, es->end);
	es->found_now = true;
	es->found = true;

	r = fatal_signal_pending(current) ? -EINTR : eager_split_one(es, huge_sptep, gfn, level);
	if (!r) {
		es->batch++;
		es->work += SPTE_ENT_PER_PAGE;
	}

	trace_kvm_mmu_split_huge_page(gfn, huge_spte, level, r);
	return r;
}

/*
 * Skip obsolete shadow pages, which no vCPU uses any more, and invalid ones,
 * whose role must not determine the role of a child.
 */
static bool eager_split_wants(struct kvm *kvm, u64 *sptep)
{
	if (WARN_ON_ONCE(!is_large_pte(READ_ONCE(*sptep))))
		return false;

	return !is_obsolete_sp(kvm, sptep_to_sp(sptep));
}

/*
 * Split the huge SPTEs of one size that map @gfn, but not more than there are
 * at the start: whenever mmu_lock is dropped, read faults may add huge SPTEs,
 * and the loop might never end.  The remaining huge SPTEs are read-only, or the
 * caller write-protects them.  The first write splits them.
 */
static int eager_split_gfn(struct eager_split *es, gfn_t gfn, int level)
{
	struct kvm_rmap_head *head = gfn_to_rmap(gfn, level, es->slot);
	gfn_t end = gfn + KVM_PAGES_PER_HPAGE(level);
	unsigned int left = pte_list_count(head);
	u64 *sptep;
	int r;

	while (left) {
		sptep = kvm_mmu_find_rmap_spte(es->kvm, head, eager_split_wants);
		if (!sptep)
			return 0;

		if (kvm_mmu_invalidation_overlaps(es->kvm, gfn, end) ||
		    kvm_prove_skip_split(gfn, level))
			return 0;

		r = eager_split_try(es, sptep, gfn, level);
		if (r == -E2BIG)
			eager_split_zap(es, sptep);
		else if (r && r != -EAGAIN)
			return r;

		left -= r != -EAGAIN;
		eager_split_yield(es);
	}

	return 0;
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

static int eager_split_levels(struct eager_split *es, int target_level)
{
	int level, r;

	for (level = KVM_MAX_HUGEPAGE_LEVEL; level > target_level; level--) {
		r = eager_split_level(es, level);
		if (r)
			return r;
	}

	return 0;
}

static void eager_split_account(struct eager_split *es, int r)
{
	struct kvm_vm_stat *stat = &es->kvm->stat;

	stat->eager_split_done += es->total;
	stat->eager_split_nomem += r == -ENOMEM;
	stat->eager_split_noquota += r == -ENOSPC;
}

/**
 * kvm_eager_split_range - split the huge pages of the shadow MMU in a range
 * @kvm: the VM
 * @slot: the memslot
 * @start: first gfn of the range, in @slot
 * @end: first gfn after the range
 * @target_level: the page size to split down to, PG_LEVEL_4K or PG_LEVEL_2M
 * @arm: arm the 4KiB SPTEs that splits create, so that the next write shows in
 *	the dirty log.  The caller arms all other SPTEs, and flushes TLBs.
 *
 * See eager_split.h for locking.  A huge page that is only partly in the range
 * is split completely.  Splitting stops when memory or the quota of shadow
 * pages is exhausted, because splitting the next huge page would fail, too.  It
 * also stops at a fatal signal.
 */
void kvm_eager_split_range(struct kvm *kvm, const struct kvm_memory_slot *slot,
			   gfn_t start, gfn_t end, int target_level, bool arm)
{
	struct eager_split es = {
		.kvm = kvm,
		.slot = slot,
		.descs = &kvm->arch.split_desc_cache,
		.start = start,
		.end = end,
		.arm = arm,
	};
	int r;

	lockdep_assert_held(&kvm->slots_lock);
	lockdep_assert_held_write(&kvm->mmu_lock);

	eager_split_start_hold(&es);
	r = eager_split_levels(&es, target_level);
	eager_split_end_hold(&es, r);
	eager_split_account(&es, r);
}

/**
 * kvm_eager_split_into - split one huge SPTE into an existing page table
 * @kvm: the VM
 * @slot: the memslot that the SPTE maps
 * @descs: the cache that rmap descriptors are allocated from
 * @nr_descs: the most descriptors that the split may allocate
 * @huge_sptep: the huge SPTE, which maps the gfns of @sp
 * @huge_spte: the value that the small SPTEs are derived from.  It may differ
 *	from the huge SPTE in the Writable, MMU-writable and Host-writable bits.
 * @sp: the direct shadow page that a page fault would link; other SPTEs may
 *	link to it already
 *
 * The 4KiB SPTEs are armed, so that the next write to each shows in the dirty
 * log.
 *
 * The caller holds mmu_lock for write.  The huge SPTE must not be writable.
 * CPUs may write through TLB entries from the time when it was, if the thread
 * that made it read-only flushes TLBs before it relies on the log.
 *
 * Return: 0; -ENOMEM if more than @nr_descs descriptors are needed; -E2BIG if
 * the split would take too long.
 */
int kvm_eager_split_into(struct kvm *kvm, const struct kvm_memory_slot *slot,
			 struct kvm_mmu_memory_cache *descs, int nr_descs,
			 u64 *huge_sptep, u64 huge_spte, struct kvm_mmu_page *sp)
{
	struct kvm_rmap_head *heads = gfn_to_rmap(sp->gfn, sp->role.level, slot);
	bool empty = eager_split_heads_are_empty(slot, sp->gfn, sp->role.level, heads);
	int level = sp->role.level + 1;
	struct eager_split es = {
		.kvm = kvm,
		.slot = slot,
		.descs = descs,
		.arm = true,
	};

	lockdep_assert_held_write(&kvm->mmu_lock);

	if (eager_split_has_many_links(sp))
		return -E2BIG;

	if (eager_split_nr_descs(heads, empty, sp) > nr_descs)
		return -ENOMEM;

	eager_split_fill(&es, sp, false, huge_spte, heads, empty);
	kvm_mmu_link_split_sp(kvm, descs, gfn_to_rmap(sp->gfn, level, slot), huge_sptep, sp);
	if (es.flush)
		kvm_flush_remote_tlbs_gfn(kvm, sp->gfn, level);

	kvm_prove_split_sp(slot, sp, false, huge_spte);
	return 0;
}
