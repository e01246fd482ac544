// SPDX-License-Identifier: GPL-2.0-only
/*
 * Collecting Dirty bits from page tables of the TDP MMU that CPUs have used
 *
 * Most memory of most guests is idle.  When a CPU walks through the SPTE that
 * links to a page table, it sets the Accessed bit (A) there before it sets a
 * Dirty bit in the page table.  So KVM_GET_DIRTY_LOG clears A in links to page
 * tables of level 1, and skips page tables in whose links A is still clear the
 * next time.
 *
 * But CPUs cache links, and use a page table through a cached link without
 * setting A.  So a link is in one of three states:
 *
 *   touched	A		CPUs may have used it.  KVM_GET_DIRTY_LOG
 *				clears A, so that the link is pending, and then
 *				scans the page table.  Page faults and splits
 *				create links in this state.
 *   pending	!A, PENDING	CPUs may have cached it while A was set.  The
 *				page table is scanned each time, until all TLBs
 *				were flushed by a flush that began after A was
 *				cleared.  Then the link becomes idle, and the
 *				page table is scanned once more.
 *   idle		!A, !PENDING	No CPU has it cached.  The page table is
 *				skipped.
 *
 * Why no write is missed.  All Dirty bits in the page table of an idle link are
 * in the log:
 *
 * - A link becomes idle in one atomic step, which also verifies that A is
 *   clear.  At this point no CPU has the link cached: entries from before A was
 *   cleared were flushed, and a CPU that cached it later would have set A.  The
 *   page table is scanned after that step, so earlier writes are found.
 *
 * - From then on, a CPU sets A before it sets a Dirty bit.  KVM reads A first,
 *   so if a Dirty bit is set too late to be found, the link is touched, and the
 *   next scan finds it.
 *
 * - If KVM itself creates an SPTE with the Dirty bit set, it has added the page
 *   to the log before.  If KVM clears pages in the log, it clears their Dirty
 *   bits as well (see dirty_bits.c), in whatever state the link is.
 *
 * Which flushes count.  Both a walk and each flush that is counted hold
 * slots_lock throughout.  So a flush that was counted since the last walk of
 * the memslot began after that walk had ended, and ended before this walk
 * begins.  Walks of a part of the memslot, for KVM_CLEAR_DIRTY_LOG, count as
 * walks, too: a flush after such a walk is also a flush after every earlier
 * walk.  Flushes of less than all TLBs of the VM don't count, nor do flushes
 * without slots_lock.  A new memslot has to be walked once before any flush
 * counts, because links of an earlier memslot may be left.
 *
 * A walk visits each link only once.  If it visited a link twice, it would take
 * the A that it has cleared itself for one that was clear before the flush.
 * Roots share no page tables, and are walked one after the other, in the order
 * of gfns.
 *
 * A page table that maps gfns of two memslots is always scanned, and its link
 * keeps A, which applies to the pages of the other memslot, too.  Page tables
 * below invalid roots are always scanned as well: KVM doesn't clear their Dirty
 * bits when it clears pages in the log.
 *
 * All of this assumes that CPUs set A before they cache a link.  Intel's manual
 * guarantees that for ordinary paging, but not for EPT and NPT.
 *
 * mmu_lock is held for read, so links may change at any time: CPUs set A, and
 * other threads zap or replace links.  Therefore a link is changed by compare
 * and exchange, and evaluated again if that fails.  A link that was zapped
 * doesn't come back, and the thread that zapped it records the Dirty bits of
 * its page table in the log.
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

	/* slots_lock keeps it and its log. */
	const struct kvm_memory_slot *slot;

	/* The gfns to scan, [start, end), all in the memslot. */
	gfn_t start;
	gfn_t end;

	/* See kvm_tdp_collect(). */
	bool flushed;

	/*
	 * SPTEs, or links whose page table was not scanned, visited since the
	 * last check whether mmu_lock is contended.
	 */
	unsigned long work;

	/*
	 * Links that were pending and still are, and page tables that were
	 * skipped.
	 */
	unsigned long nr_pending;
	unsigned long nr_idle;
};

/*
 * Which of 64 neighbouring SPTEs are leaves with the Dirty bit?  One pass is
 * enough if all of them are, or none.  A/D bits are enabled for all SPTEs of a
 * page table, or for none.
 *
 * Return: false if the SPTEs have to be checked one by one.
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
 * Which of @nr neighbouring SPTEs of a page table are leaves with the Dirty
 * bit?  A Dirty bit that is set too late is found by the next call.  If another
 * thread removes a Dirty bit, it records that in the log.
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
 * Scan @nr pages of the memslot, from page @rel on, all of them mapped by one
 * page table.  The first one may be in the middle of a word of the log.
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

/* The number of pages from @gfn on, up to @max, that one page table maps. */
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

/* Does the Accessed bit of a link show whether CPUs use it? */
static bool collect_may_judge(u64 spte)
{
	return shadow_accessed_mask && spte_ad_enabled(spte);
}

/* Is it an idle link to a page table?  Only for hosts with Accessed bits. */
static bool collect_is_idle(u64 spte)
{
	const u64 mask = SPTE_MMU_PRESENT_MASK | SPTE_TDP_AD_MASK | PT_PAGE_SIZE_MASK |
			 SPTE_LINK_PENDING | shadow_accessed_mask;

	return (spte & mask) == (SPTE_MMU_PRESENT_MASK | SPTE_TDP_AD_ENABLED);
}

/* The state of a touched or pending link while its page table is scanned. */
static u64 collect_next_link(const struct tdp_collector *c, u64 spte)
{
	u64 idle = spte & ~(shadow_accessed_mask | SPTE_LINK_PENDING);

	if (spte & shadow_accessed_mask)
		return idle | SPTE_LINK_PENDING | kvm_prove_link_cached();

	return c->flushed ? idle : spte;
}

/*
 * Update the state of a link that wasn't idle when it was read last.  All pages
 * of its page table are in the memslot.
 *
 * Return: the page table, which has to be scanned afterwards, or NULL.
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
		/* Fully ordered: the page table is read after this. */
	} while (next != spte && !try_cmpxchg64(link, &spte, next));

	c->nr_pending += next == spte;
	return pt;
}

/* Scan @nr pages, from @gfn on, in the page table behind a link. */
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
 * Skip page tables of idle links, beginning at @link, i.e. at @gfn, and ending
 * before @end at the first link that isn't idle.  All pages of a page table
 * that is skipped are in the range.  Also skip SPTEs that are no links, i.e.
 * huge pages and SPTEs that are not present.  Most SPTEs of level 2 are one of
 * these.
 *
 * Return: the number of pages that were skipped.
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

		/* Most neighbours of a huge page are huge pages, too. */
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

/* Is mmu_lock contended, or should this thread be rescheduled? */
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
 * Visit the links of one page table of level 2, from @gfn on, at least one.
 * Move @gfn past the pages that were visited.
 *
 * Return: true if mmu_lock should be dropped.
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

/* The caller has a reference to the root, which may become invalid. */
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
 * Walk with mmu_lock held for read, so that page faults can continue.  Other
 * threads can zap SPTEs meanwhile, and they record the Dirty bits in the log
 * before they drop mmu_lock.  To wait for them, take mmu_lock for write once at
 * the end.
 *
 * A root that is created meanwhile is empty at first.  Writes through it are
 * found by the next call.
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
