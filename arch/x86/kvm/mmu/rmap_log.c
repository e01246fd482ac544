// SPDX-License-Identifier: GPL-2.0-only
/*
 * Arming of dirty logging in bulk for the shadow MMU
 *
 * Each cycle of dirty logging visits the SPTEs of all pages that were dirty, to
 * take away the bit that lets the next write go unseen.  What there is to visit
 * is regular: the rmap heads of consecutive gfns are neighbours, and the SPTEs
 * of memory that was mapped by a huge page before are neighbours too and differ
 * in nothing but their pfn.  Where that is so, a few instructions per page will
 * do.  Where it is not (several SPTEs for one gfn, an SPTE that a CPU may be
 * changing), it is found page by page, and the general functions do the work.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bits.h>
#include <linux/mm.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "rmap_log.h"
#include "spte.h"

/* Gfns visited before mmu_lock may be dropped because others want it. */
#define RMAP_LOG_MIN_WORK	SPTE_ENT_PER_PAGE

/* Two ways to make a write through an SPTE show.  Only ever passed as a constant. */
enum rmap_log_how {
	RMAP_LOG_WRPROT,
	RMAP_LOG_CLEAR_DIRTY,
};

/* True if the next write shows already, or the page isn't mapped writable. */
static __always_inline bool rmap_log_is_armed(u64 spte, enum rmap_log_how how)
{
	return !(spte & (how == RMAP_LOG_WRPROT ? PT_WRITABLE_MASK : shadow_dirty_mask));
}

static __always_inline u64 rmap_log_arm(u64 spte, enum rmap_log_how how)
{
	return spte & ~(how == RMAP_LOG_WRPROT ? PT_WRITABLE_MASK : shadow_dirty_mask);
}

/**
 * __kvm_mark_folio_dirty - mark a page dirty that isn't known to have the mark
 * @known: the folio that was marked last, changed to the page's
 * @pfn: the page
 *
 * Return: how many pages from @pfn on have the mark now, at least one.
 */
unsigned int __kvm_mark_folio_dirty(struct kvm_dirty_folio *known, kvm_pfn_t pfn)
{
	struct folio *folio;
	struct page *page;

	kvm_set_pfn_dirty(pfn);

	known->nr = 0;
	page = kvm_pfn_to_refcounted_page(pfn);
	if (!page)
		return 1;

	folio = page_folio(page);
	known->pfn = pfn;
	/* Flags of the page, which change, may share a word with what says where it is. */
	known->nr = data_race(folio_nr_pages(folio) - folio_page_idx(folio, page));
	return known->nr;
}

/*
 * Visit up to @max consecutive gfns from @head on, of which the first has a single
 * SPTE that was found to be @spte, as long as they continue in the way they started:
 * one SPTE for each gfn, next to the previous one, mapping the next pfn with the
 * same bits, hence armed or plain like the first.  Arm them if @arm.
 *
 * An SPTE that is being changed by a CPU or by a lockless page fault may be found
 * to be either: a look at it is enough, and only a plain one is stored to.
 *
 * Return: how many, at least one.
 */
static __always_inline unsigned int rmap_log_run(struct kvm_rmap_head *head, u64 spte,
						 unsigned int max, bool arm,
						 enum rmap_log_how how)
{
	u64 *first = (u64 *)head->val;
	u64 *end = first + max;
	u64 *sptep = first;

	do {
		if (arm)
			WRITE_ONCE(*sptep, rmap_log_arm(spte, how));
		spte += PAGE_SIZE;
		sptep++;
		head++;
	} while (sptep != end && head->val == (unsigned long)sptep &&
		 data_race(*sptep == spte)); /* either will do, see above */

	return sptep - first;
}

/* How many of @max gfns from @head on are mapped by nothing, at least one. */
static __always_inline unsigned int rmap_log_empty_run(const struct kvm_rmap_head *head,
						       unsigned int max)
{
	unsigned int nr = 1;

	while (nr < max && !head[nr].val)
		nr++;

	return nr;
}

static bool rmap_log_is_single(const struct kvm_rmap_head *head)
{
	return head->val && !(head->val & KVM_RMAP_MANY);
}

static void rmap_log_slowly(struct kvm *kvm, const struct kvm_memory_slot *slot,
			    struct kvm_rmap_head *head, enum rmap_log_how how)
{
	if (how == RMAP_LOG_WRPROT)
		rmap_write_protect(head, false);
	else
		__rmap_clear_dirty(kvm, head, slot);
}

/*
 * Does arming this SPTE take away what told that the page is dirty?  Write
 * protection leaves the Dirty bit, but for SPTEs that have none.
 */
static __always_inline bool rmap_log_loses_dirty(u64 spte, enum rmap_log_how how)
{
	return how == RMAP_LOG_CLEAR_DIRTY || !spte_ad_enabled(spte);
}

/*
 * Arm the only SPTE of one gfn, which was found to be @spte, and those behind it
 * that are alike.  Return how many gfns were done.
 */
static __always_inline unsigned int rmap_log_single(struct kvm *kvm,
						    const struct kvm_memory_slot *slot,
						    struct kvm_rmap_head *head, u64 spte,
						    unsigned int max,
						    struct kvm_dirty_folio *known,
						    enum rmap_log_how how)
{
	if (rmap_log_is_armed(spte, how))
		return rmap_log_run(head, spte, max, false, how);

	if (unlikely(!kvm_spte_is_plain(spte))) {
		rmap_log_slowly(kvm, slot, head, how);
		return 1;
	}

	if (rmap_log_loses_dirty(spte, how))
		max = min(max, kvm_mark_folio_dirty(known, spte_to_pfn(spte)));

	return rmap_log_run(head, spte, max, true, how);
}

/* Arm one gfn, and those behind it that are alike.  Return how many were done. */
static __always_inline unsigned int rmap_log_some(struct kvm *kvm,
						  const struct kvm_memory_slot *slot,
						  struct kvm_rmap_head *head,
						  unsigned int max,
						  struct kvm_dirty_folio *known,
						  enum rmap_log_how how)
{
	u64 spte;

	if (!head->val)
		return rmap_log_empty_run(head, max);

	if (unlikely(!rmap_log_is_single(head))) {
		rmap_log_slowly(kvm, slot, head, how);
		return 1;
	}

	/*
	 * Once: what a CPU or a lockless page fault adds afterwards belongs to a write
	 * that shows in the log, and must not pass for what was decided about.
	 */
	spte = READ_ONCE(*(u64 *)head->val);

	/* Nested guests' pages have to be write-protected even with PML. */
	if (how == RMAP_LOG_WRPROT || spte_ad_need_write_protect(spte))
		return rmap_log_single(kvm, slot, head, spte, max, known, RMAP_LOG_WRPROT);

	return rmap_log_single(kvm, slot, head, spte, max, known, RMAP_LOG_CLEAR_DIRTY);
}

static __always_inline void rmap_log_masked(struct kvm *kvm,
					    const struct kvm_memory_slot *slot,
					    gfn_t gfn, unsigned long mask,
					    enum rmap_log_how how)
{
	struct kvm_rmap_head *heads = gfn_to_rmap(gfn, PG_LEVEL_4K, slot);
	struct kvm_dirty_folio known = {};
	unsigned int i, end;

	lockdep_assert_held_write(&kvm->mmu_lock);

	for_each_set_bitrange(i, end, &mask, BITS_PER_LONG)
		while (i < end)
			i += rmap_log_some(kvm, slot, &heads[i], end - i, &known, how);
}

static __always_inline void rmap_log_slot(struct kvm *kvm,
					  const struct kvm_memory_slot *slot,
					  enum rmap_log_how how)
{
	unsigned long done, left;

	for (done = 0; done < slot->npages; done += BITS_PER_LONG) {
		left = min(slot->npages - done, BITS_PER_LONG);
		rmap_log_masked(kvm, slot, slot->base_gfn + done,
				BITMAP_LAST_WORD_MASK(left), how);

		if (!((done + BITS_PER_LONG) % RMAP_LOG_MIN_WORK))
			kvm_mmu_give_way(kvm, KVM_FORCE_LOG_SLOT);
	}
}

void kvm_rmap_log_wrprot(struct kvm *kvm, const struct kvm_memory_slot *slot,
			 gfn_t gfn, unsigned long mask)
{
	rmap_log_masked(kvm, slot, gfn, mask, RMAP_LOG_WRPROT);
}

void kvm_rmap_log_clear_dirty(struct kvm *kvm, const struct kvm_memory_slot *slot,
			      gfn_t gfn, unsigned long mask)
{
	rmap_log_masked(kvm, slot, gfn, mask, RMAP_LOG_CLEAR_DIRTY);
}

void kvm_rmap_log_wrprot_slot(struct kvm *kvm, const struct kvm_memory_slot *slot)
{
	rmap_log_slot(kvm, slot, RMAP_LOG_WRPROT);
}

void kvm_rmap_log_clear_dirty_slot(struct kvm *kvm, const struct kvm_memory_slot *slot)
{
	rmap_log_slot(kvm, slot, RMAP_LOG_CLEAR_DIRTY);
}
