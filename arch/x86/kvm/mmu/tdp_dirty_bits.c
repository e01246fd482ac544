// SPDX-License-Identifier: GPL-2.0-only
/*
 * Looking for Dirty bits in the TDP MMU, where CPUs have been
 *
 * Most memory of most guests is idle.  When a CPU walks through the SPTE that links to a
 * page table it sets the Accessed bit there, before it sets a Dirty bit in the page table.
 * So KVM_GET_DIRTY_LOG takes the Accessed bit from links to page tables of level 1, and
 * doesn't look at page tables whose links have not got it back.
 *
 * But CPUs cache links, and what has it cached uses a page table without a look at its
 * link.  So a link is in one of three states:
 *
 *   touched	A		CPUs may have used it.  KVM_GET_DIRTY_LOG takes A away, then
 *				looks at the page table: the link is pending.  Links are made
 *				like that, by page faults and by splits.
 *   pending	!A, PENDING	CPUs may have it cached since A was set.  The page table is
 *				looked at each time, until all TLBs were flushed, by a flush
 *				that began after A was taken away.  Then it is looked at
 *				once more: the link is idle.
 *   idle	!A, !PENDING	no CPU has it cached.  The page table is skipped.
 *
 * Why no write is missed.  All Dirty bits in the page table of an idle link are in the log:
 *
 * - When the link became idle, A was clear, in one atomic step.  No CPU had the link cached
 *   from before A was taken away, because of the flush, nor from later, as it would have
 *   set A.  What was written before is found by the look at the page table, which is after
 *   that step.
 *
 * - From then on a CPU sets A before it sets a Dirty bit.  So A is looked at first: a bit
 *   that is set too late to be found leaves the link touched.
 *
 * - Where KVM itself makes SPTEs with the Dirty bit, the page is in the log before.  Where
 *   it takes pages out of the log, it takes their Dirty bits (see dirty_bits.c), for
 *   which it doesn't matter what the link is.
 *
 * Which flushes count.  Both the walk and each flush that is counted are within a hold of
 * slots_lock.  So if there was one since the last walk of the memslot, it began after that
 * had ended, and ended before this one begins.  Walks of part of a memslot, for
 * KVM_CLEAR_DIRTY_LOG, count as walks, too: a flush that came after such a walk also came
 * after every earlier walk.  Flushes of anything less than all TLBs of the VM don't count,
 * nor do those that others make without slots_lock.  A new memslot has
 * to be walked once before any flush counts: links may be left of one that was there.
 *
 * Each link is judged but once in a walk, or A that this walk took away would pass for what
 * was clear before the flush: roots share no page tables, and are walked one after the
 * other, from the first gfn to the last.
 *
 * What is shared by two memslots is always looked at, and A stays: it tells about the
 * other's pages, too.  So is what is below invalid roots, where KVM leaves Dirty bits of
 * pages that are taken out of the log.
 *
 * All of this takes it that CPUs set A before they cache a link.  Intel's manual says so of
 * ordinary paging; for EPT and NPT it is assumed.
 *
 * Links change at any time, as mmu_lock is held for read: CPUs set A, others zap or replace
 * a link.  So it is compared and exchanged, and judged anew if that fails.  A link that is
 * gone doesn't come back, and its page table is told to the log by the thread that took it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bits.h>
#include <linux/kvm_host.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "prove.h"
#include "spte.h"
#include "spte_bulk.h"
#include "tdp_dirty_bits.h"
#include "tdp_log.h"
#include "tdp_mmu.h"

static_assert(!(KVM_PROVE_LINK_CACHED & (SPTE_LINK_PENDING | SPTE_MMU_PRESENT_MASK |
					 SPTE_TDP_AD_MASK | FROZEN_SPTE |
					 EPT_SPTE_HOST_WRITABLE | EPT_SPTE_MMU_WRITABLE |
					 GENMASK_ULL(51, 0))));

struct tdp_collector {
	struct kvm *kvm;

	/* Stable throughout, along with its log. */
	const struct kvm_memory_slot *slot;

	/* Of these gfns, all in the memslot; @end is not among them. */
	gfn_t start;
	gfn_t end;

	/* See kvm_tdp_collect(). */
	bool flushed;

	/* SPTEs, or links alone, looked at since it was last asked who wants mmu_lock. */
	unsigned long work;

	/* Links that were pending and are still, and page tables that were skipped. */
	unsigned long nr_pending;
	unsigned long nr_idle;
};

/*
 * Which of 64 neighbouring SPTEs are leaves with the Dirty bit?  In one pass over them if
 * all are, or none is.  Whether SPTEs have Dirty bits is the same in all of a page table.
 *
 * Return: false if they have to be looked at one by one.
 */
static bool collect_bulk(const u64 *sptep, unsigned long *dirty)
{
	bool first = READ_ONCE(*sptep) & shadow_dirty_mask;
	u64 all = first ? spte_all(sptep, SPTE_BULK) : 0;
	u64 any;

	if (is_shadow_present_pte(all) && collect_is_dirty(all)) {
		*dirty = ~0ul;
		return true;
	}

	any = spte_any(sptep, SPTE_BULK);
	if (!(any & shadow_dirty_mask))
		return true;

	if (!first)
		all = spte_all(sptep, SPTE_BULK);
	if (!is_shadow_present_pte(all) || (any & SPTE_TDP_AD_MASK))
		return false;

	*dirty = spte_gather_64(sptep, shadow_dirty_mask);
	return true;
}

/*
 * Which of @nr neighbouring SPTEs of a page table are leaves with the Dirty bit?  One that
 * is set too late to be found is found the next time, and one that goes meanwhile is
 * told to the log by the thread that takes it.
 */
static unsigned long collect_sptes(const u64 *sptep, unsigned int nr)
{
	unsigned long dirty = 0;
	unsigned int i;

	if (nr == BITS_PER_LONG && collect_bulk(sptep, &dirty))
		return dirty;

	for (i = 0; i < nr; i++) {
		u64 spte = READ_ONCE(sptep[i]);

		if (is_shadow_present_pte(spte) && collect_is_dirty(spte))
			dirty |= BIT(i);
	}

	return dirty;
}

/*
 * Visit @nr pages of the memslot, from the @rel-th on, all of them mapped by one
 * page table, which may begin in the middle of a word of the log.
 */
static void collect_table(const struct kvm_memory_slot *slot, const u64 *sptep,
			  unsigned long rel, unsigned int nr)
{
	unsigned int batch, shift;

	for (; nr; nr -= batch, rel += batch, sptep += batch) {
		shift = rel % BITS_PER_LONG;
		batch = min(nr, BITS_PER_LONG - shift);
		collect_log(&slot->dirty_bitmap[rel / BITS_PER_LONG],
			    collect_sptes(sptep, batch) << shift);
	}
}

/* Pages from @gfn on that one page table maps, @max at most. */
static unsigned int collect_table_size(gfn_t gfn, unsigned long max)
{
	return min(max, SPTE_ENT_PER_PAGE - (gfn % SPTE_ENT_PER_PAGE));
}

/* Does an SPTE of level 2 link to a page table? */
static bool collect_is_link(u64 spte)
{
	return (spte & (SPTE_MMU_PRESENT_MASK | PT_PAGE_SIZE_MASK)) == SPTE_MMU_PRESENT_MASK;
}

/* The page table of level 1 that an SPTE links to, or NULL. */
static u64 *collect_linked_table(u64 spte)
{
	if (!collect_is_link(spte))
		return NULL;

	return __va(spte & SPTE_BASE_ADDR_MASK);
}

/* Does the Accessed bit of a link say whether CPUs use it? */
static bool collect_may_judge(u64 spte)
{
	return shadow_accessed_mask && spte_ad_enabled(spte);
}

/* Is it a link to a page table, and idle?  For hosts that have Accessed bits. */
static bool collect_is_idle(u64 spte)
{
	const u64 mask = SPTE_MMU_PRESENT_MASK | SPTE_TDP_AD_MASK | PT_PAGE_SIZE_MASK |
			 SPTE_LINK_PENDING | shadow_accessed_mask;

	return (spte & mask) == (SPTE_MMU_PRESENT_MASK | SPTE_TDP_AD_ENABLED);
}

/* What a link that is touched or pending is to be while its page table is looked at. */
static u64 collect_next_link(const struct tdp_collector *c, u64 spte)
{
	u64 idle = spte & ~(shadow_accessed_mask | SPTE_LINK_PENDING);

	if (spte & shadow_accessed_mask)
		return idle | SPTE_LINK_PENDING | kvm_prove_link_cached();

	return c->flushed ? idle : spte;
}

/*
 * Judge what was no idle link when it was read last.  All pages behind it are the memslot's.
 *
 * Return: the page table, which has to be looked at after this, or NULL.
 */
static u64 *collect_judge_link(struct tdp_collector *c, u64 *link)
{
	u64 spte = READ_ONCE(*link);
	u64 next, *pt;

	do {
		spte = kvm_prove_forget_link(link, spte);
		pt = collect_linked_table(spte);
		if (!pt || !collect_may_judge(spte))
			return pt;

		next = collect_next_link(c, spte);
		kvm_prove_window(KVM_WINDOW_TDP_LINK);
		/* Fully ordered: what CPUs do to the page table is looked at afterwards. */
	} while (next != spte && !try_cmpxchg64(link, &spte, next));

	c->nr_pending += next == spte;
	return pt;
}

/* Visit the page table behind a link, @nr pages of which, from @gfn on, are in the range. */
static void collect_link(struct tdp_collector *c, const struct kvm_mmu_page *root, u64 *link,
			 gfn_t gfn, unsigned int nr)
{
	u64 *pt;

	if (nr == SPTE_ENT_PER_PAGE && !root->role.invalid)
		pt = collect_judge_link(c, link);
	else
		pt = collect_linked_table(READ_ONCE(*link));

	if (pt)
		collect_table(c->slot, pt + gfn % SPTE_ENT_PER_PAGE, gfn - c->slot->base_gfn, nr);
	c->work += pt ? nr : 1;
}

/*
 * Skip page tables in a row, from @gfn on and before @end, that are all in the range and that
 * idle links, from @link on, lead to; and where there is no link, because a huge page or nothing
 * is in the table's place.  Most SPTEs are one or the other.
 *
 * Return: how many pages were skipped.
 */
static unsigned int collect_skip(struct tdp_collector *c, const struct kvm_mmu_page *root,
				 u64 *link, gfn_t gfn, gfn_t end)
{
	u64 *first = link, *last = link + (end - gfn) / SPTE_ENT_PER_PAGE, *run;
	unsigned int nr_others = 0;
	unsigned long rel;
	u64 spte;

	if (gfn % SPTE_ENT_PER_PAGE || root->role.invalid || !shadow_accessed_mask)
		return 0;

	while (link < last) {
		spte = kvm_prove_forget_link(link, READ_ONCE(*link));
		if (collect_is_idle(spte)) {
			rel = gfn - c->slot->base_gfn + (link - first) * SPTE_ENT_PER_PAGE;
			kvm_prove_idle_table(c->kvm, c->slot, rel, link, spte,
					     collect_linked_table(spte));
			link++;
			continue;
		}

		if (collect_is_link(spte))
			break;

		/* Huge pages have neighbours of their kind. */
		run = link;
		do {
			link++;
		} while (link < last && !collect_is_link(READ_ONCE(*link)));
		nr_others += link - run;
	}

	c->nr_idle += link - first - nr_others;
	c->work += link - first;
	return (link - first) * SPTE_ENT_PER_PAGE;
}

/* Do others want mmu_lock, or the CPU? */
static bool collect_should_yield(struct tdp_collector *c)
{
	if (kvm_prove_force_yield(KVM_FORCE_COLLECT_TDP))
		return true;

	if (c->work < COLLECT_MIN_WORK)
		return false;

	c->work = 0;
	return kvm_mmu_lock_is_wanted(c->kvm);
}

/*
 * Visit what one page table of level 2 links to, from @gfn on, and move @gfn behind what
 * was visited, which is one link at least.
 *
 * Return: true if others are to have mmu_lock.
 */
static bool collect_links(struct tdp_collector *c, struct kvm_mmu_page *root, gfn_t *gfn)
{
	gfn_t end = min(c->end, ALIGN(*gfn + 1, KVM_PAGES_PER_HPAGE(PG_LEVEL_1G)));
	unsigned int nr;
	u64 *link, spte;

	link = kvm_tdp_log_find(root, *gfn, PG_LEVEL_2M, &spte);
	if (!link) {
		*gfn = end;
		c->work++;
		return collect_should_yield(c);
	}

	link += SPTE_INDEX(gfn_to_gpa(*gfn), PG_LEVEL_2M);
	do {
		nr = collect_skip(c, root, link, *gfn, end);
		if (!nr) {
			nr = collect_table_size(*gfn, end - *gfn);
			collect_link(c, root, link, *gfn, nr);
		}
		*gfn += nr;
		link += DIV_ROUND_UP(nr, SPTE_ENT_PER_PAGE);
		if (collect_should_yield(c))
			return true;
	} while (*gfn < end);

	return false;
}

static void collect_tdp_yield(struct kvm *kvm)
{
	kvm_dirty_log_release(kvm);
	read_unlock(&kvm->mmu_lock);
	cond_resched();
	read_lock(&kvm->mmu_lock);
	kvm_dirty_log_hold(kvm);
}

/* The caller has a reference to the root, which may become invalid meanwhile. */
static void collect_root(struct tdp_collector *c, struct kvm_mmu_page *root)
{
	gfn_t gfn = c->start;
	bool yield;

	while (gfn < c->end) {
		rcu_read_lock();
		yield = collect_links(c, root, &gfn);
		rcu_read_unlock();

		if (yield)
			collect_tdp_yield(c->kvm);
	}
}

/*
 * Under the read lock, so that page faults go on.  So do others that zap SPTEs, and a
 * page whose SPTE is gone is in the log only when they have said so, which they do
 * before they release the lock: wait for them by taking it for write, once.
 *
 * A root that comes while this goes on is empty at first: what is written by way of it is
 * found the next time.
 */
unsigned long kvm_tdp_collect(struct kvm *kvm, struct kvm_memory_slot *slot,
			      unsigned long first, unsigned long nr, bool flushed)
{
	struct tdp_collector c = {
		.kvm = kvm,
		.slot = slot,
		.start = slot->base_gfn + first,
		.end = slot->base_gfn + first + nr,
		.flushed = flushed,
	};
	u64 nr_exits_before = kvm_prove_nr_exits_if_stopped(kvm);
	struct kvm_mmu_page *root = NULL;

	lockdep_assert_held(&kvm->slots_lock);

	read_lock(&kvm->mmu_lock);
	kvm_dirty_log_hold(kvm);

	while ((root = kvm_tdp_mmu_next_root(kvm, root)))
		if (kvm_mmu_page_as_id(root) == slot->as_id)
			collect_root(&c, root);

	kvm_dirty_log_release(kvm);
	read_unlock(&kvm->mmu_lock);

	write_lock(&kvm->mmu_lock);
	kvm_dirty_log_hold(kvm);
	kvm_prove_collected_tdp(kvm, slot, first, first + nr, nr_exits_before);
	kvm_dirty_log_release(kvm);
	write_unlock(&kvm->mmu_lock);

	kvm->stat.dirty_bits_idle += c.nr_idle;
	return c.nr_pending;
}
