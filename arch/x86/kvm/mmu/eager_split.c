// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting for the shadow MMU
 *
 * Dirty logging works on 4KiB pages.  If a huge page is left when a vCPU writes
 * to it, it is split in that page fault, which holds mmu_lock exclusively.  Here
 * the thread that starts dirty logging splits it instead, before vCPUs get there.
 *
 * The walk goes along the rmaps of the memslot and not along page tables, as one
 * gfn can be mapped by any number of roots, and from the largest page size to
 * the smallest, so that what one level yields is split at the next.  Each huge
 * SPTE is replaced by a link to a direct shadow page, the same one that a page
 * fault would choose.
 *
 * All of it is best effort.  A huge page that stays, for lack of memory or of
 * quota or because its memory is being invalidated, is write-protected by the
 * caller and split by a page fault: slower, but nothing is lost.  One that would
 * take too long is zapped, and faulted in by 4KiB pages.
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
 * How much has to be done before mmu_lock may be given up because others want
 * it, in rmap heads visited: the heads that one split fills, or as many empty
 * ones.  It guarantees progress, however contended the lock is.
 */
#define EAGER_SPLIT_MIN_WORK	SPTE_ENT_PER_PAGE

/*
 * The most entries of lists of parent SPTEs that one split may go through, which takes
 * a fraction of a millisecond: 32 links to each table that is replaced, where tables
 * have one or two unless a guest makes many page directories of the same large pages.
 */
#define EAGER_SPLIT_MAX_LINKS	(32 * SPTE_ENT_PER_PAGE)

struct eager_split {
	struct kvm *kvm;

	/* Stable throughout: slots_lock is held. */
	const struct kvm_memory_slot *slot;

	/* Where descriptors of rmaps come from. */
	struct kvm_mmu_memory_cache *descs;

	/* The gfns to split are those in [start, end), not empty. */
	gfn_t start;
	gfn_t end;

	/*
	 * Dirty logging is being enabled for all of the slot: 4KiB SPTEs shall be
	 * such that the next write shows in the log.
	 */
	bool arm;

	/* Rmap heads visited since mmu_lock was taken last. */
	unsigned long work;

	/* Huge pages split since mmu_lock was taken last, and altogether. */
	unsigned int batch;
	unsigned int total;

	/* A huge page was found since mmu_lock was taken last, or ever in the range. */
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

/* @r: 0 if all is split; -EAGAIN if there is more to split; another error to give up. */
static void eager_split_end_hold(struct eager_split *es, int r)
{
	eager_split_flush(es);
	es->total += es->batch;
	if (es->batch)
		kvm_prove_shadow_mmu(es->kvm);

	if (es->found_now || (es->found && r != -EAGAIN))
		trace_kvm_eager_split_end(es->batch, r);
}

/* Let others have mmu_lock, in the order in which they came. */
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
 * Has none of the gfns from @gfn on an SPTE of a level?  Most often nothing has mapped any of
 * them by 4KiB pages since logging ended last.  Otherwise look at all heads, empty or not,
 * which costs less than to branch for each.
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
 * Upper bound for the descriptors that splitting one SPTE takes: one for each
 * rmap head of the next level that is in use, and one for the parent SPTEs of a
 * child that is linked elsewhere already.  Without aliases there is none of
 * these.
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
 * Shall caches that are stocked be taken for empty?  Not before a rmap head was
 * visited since mmu_lock was taken last, so that a huge page is put off once only.
 */
static bool eager_split_forces_alloc(const struct eager_split *es)
{
	return es->work && kvm_prove_force_yield(KVM_FORCE_SPLIT_ALLOC);
}

/*
 * Make sure that a split can't fail for lack of memory.
 *
 * Return: 0 if it can't; -EAGAIN if mmu_lock was dropped to allocate, so that
 * everything has to be looked up again; another error to give up.
 */
static int __must_check eager_split_reserve(struct eager_split *es, bool new_sp,
					    int nr_descs)
{
	struct kvm *kvm = es->kvm;
	int r;

	/* Reclaiming shadow pages for the sake of splitting would be absurd. */
	if (new_sp && kvm_mmu_available_pages(kvm) <= KVM_MIN_FREE_MMU_PAGES)
		return -ENOSPC;

	if (!eager_split_forces_alloc(es) && kvm_split_is_stocked(kvm, nr_descs, new_sp))
		return 0;

	eager_split_unlock(es);
	r = kvm_split_topup(kvm, nr_descs, new_sp);
	eager_split_lock(es);

	return r ?: -EAGAIN;
}

/* The first of the SPTEs that @huge_spte becomes; the others differ by their pfn. */
static u64 eager_split_first_spte(struct eager_split *es, u64 huge_spte,
				  union kvm_mmu_page_role role)
{
	u64 spte = make_small_spte(es->kvm, huge_spte, role, 0);

	return es->arm && role.level == PG_LEVEL_4K ? spte_arm(es->kvm, spte) : spte;
}

/*
 * The huge SPTE that the small SPTEs are derived from.
 *
 * Read faults map logged memory by read-only huge pages.  Where the dirty log works by Dirty
 * bits or PML, make their small SPTEs writable, with the Dirty bit clear, so that the first
 * writes cost no faults.  kvm_fault_split() says why that loses no write, and this holds here,
 * too: the huge SPTE isn't writable, nor will be while the memslot is logged, and whoever took
 * write access away flushes TLBs before the ioctl returns.
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
 * Unlike page faults, never recycle the SPTEs of a gfn that has too many: that
 * would tear a hole into the child, under a huge SPTE that is still live.
 */
static void eager_split_rmap_add(struct eager_split *es, u64 *sptep,
				 struct kvm_rmap_head *head)
{
	kvm_mmu_rmap_add(es->kvm, es->descs, head, sptep);
}

/* Fill a page table that has no entries, for gfns that have other SPTEs, too. */
static void eager_split_fill_blank(struct eager_split *es, u64 *sptep, u64 spte, u64 step,
				   struct kvm_rmap_head *heads)
{
	spte_fill(sptep, spte, step, SPTE_ENT_PER_PAGE);
	kvm_mmu_rmap_add_many(es->kvm, es->descs, heads, sptep, SPTE_ENT_PER_PAGE);
}

/*
 * Make an entry of a page table that may be in use present, and a leaf.  A link is
 * what an earlier cycle of dirty logging left: disabling it empties page tables
 * but keeps them.  It is replaced, as only what is mapped by a huge SPTE will be
 * filled when the next level is split.
 *
 * A leaf that isn't what it would have been made may permit less than the huge
 * SPTE does, e.g. because it is write-protected.  Aliases of a huge page share one
 * table: from the second on all entries are there and just right.
 *
 * Return: true unless it was a leaf before.
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

		drop_parent_pte(es->kvm, spte_to_child_sp(old_spte), sptep);
		es->flush = true;
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
 * Would replacing the links that @sp has take too long?  Each is looked for among all
 * links to the same table, and a guest decides how many page directories it has.
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

/* What an earlier cycle of dirty logging left is most often a table with no entries. */
static bool eager_split_is_empty(const struct kvm_mmu_page *sp)
{
	/* What changes an SPTE without mmu_lock leaves it present. */
	return !is_shadow_present_pte(spte_any_in_table(sp->spt, SPTE_ENT_PER_PAGE));
}

/*
 * Can entries be stored with no regard to what was there?  If none of the gfns has
 * an SPTE then no leaf can be there.  vCPUs may walk a table that was found, which
 * takes care to store 64 bits in a 32-bit host.
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
 * Split a huge SPTE.  A new child takes its page as it comes, not zeroed: all of
 * it is written before a vCPU can walk it.
 *
 * Return: 0; -EAGAIN to look everything up again; -E2BIG if it would take too long;
 * another error to give up.
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
	/* KVM_CLEAR_DIRTY_LOG comes for each 64 pages: don't look at 512 heads in vain. */
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
 * Unmap the huge page.  Page faults then link the existing page table, or map the huge page again,
 * read-only.  If it stayed mapped, CLEAR would spend as much time on it again for each word of the
 * bitmap.
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

/* No vCPU runs on obsolete shadow pages any more, and roles of invalid ones are. */
static bool eager_split_wants(struct kvm *kvm, u64 *sptep)
{
	if (WARN_ON_ONCE(!is_large_pte(READ_ONCE(*sptep))))
		return false;

	return !is_obsolete_sp(kvm, sptep_to_sp(sptep));
}

/*
 * Split the huge SPTEs of one size that map @gfn, at most as many as there are at first, so
 * that the loop ends: whenever mmu_lock is dropped, read faults may map further huge pages.
 * Huge SPTEs that remain are read-only, or the caller write-protects them.  The first write splits
 * them.
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
 * @end: first gfn behind the range
 * @target_level: the page size to split down to, PG_LEVEL_4K or PG_LEVEL_2M
 * @arm: let the next write to each 4KiB page that a split yields show in the
 *	dirty log.  The caller arms whatever else there is, and flushes TLBs.
 *
 * See eager_split.h for locking.  A huge page that lies in the range in part is
 * split as a whole.  The first shortage of memory or of shadow pages ends the
 * operation: what one huge page didn't get, the next won't get either.  So does a
 * fatal signal.
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
 * kvm_eager_split_into - split one huge SPTE into a page table that is there
 * @kvm: the VM
 * @slot: the memslot that the SPTE maps
 * @descs: where descriptors of rmaps come from
 * @nr_descs: how many of these may be taken
 * @huge_sptep: the huge SPTE, which maps the gfns of @sp
 * @huge_spte: what its children are made of: the same but for Writable, MMU-writable and
 *	what says that the host's mapping is writable
 * @sp: the direct shadow page that a page fault would use below it, linked elsewhere or not
 *
 * 4KiB SPTEs are armed: the next write to each shows in the dirty log.  The caller
 * holds mmu_lock for write, and knows that no CPU can write through the huge SPTE, but by
 * what a flush that is owed already takes away.
 *
 * Return: 0; -ENOMEM if it takes more descriptors; -E2BIG if it would take too long.
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
