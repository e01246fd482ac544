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
#include <linux/minmax.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "rmap_log.h"
#include "spte.h"

/*
 * What has to be visited before mmu_lock may be dropped because others want it: gfns,
 * or SPTEs where a gfn has several.  A guest decides how many SPTEs a gfn has.
 */
#define RMAP_LOG_MIN_WORK	SPTE_ENT_PER_PAGE

struct rmap_log {
	struct kvm *kvm;

	/* Stable throughout, along with its rmaps. */
	const struct kvm_memory_slot *slot;

	/* Visited since mmu_lock was taken last, see RMAP_LOG_MIN_WORK. */
	unsigned long work;

	/* Where mmu_lock is dropped, if that is to be forced. */
	enum kvm_force_site site;
};

/* Let others have mmu_lock.  No SPTE that was found before may be used afterwards. */
static void rmap_log_cond_resched(struct rmap_log *log)
{
	log->work = 0;
	kvm_mmu_cond_resched(log->kvm, log->site);
}

/* Two ways to make a write through an SPTE show.  Only ever passed as a constant. */
enum rmap_log_mode {
	RMAP_LOG_WRPROT,
	RMAP_LOG_CLEAR_DIRTY,
};

/* True if the next write shows already, or the page isn't mapped writable. */
static __always_inline bool rmap_log_is_armed(u64 spte, enum rmap_log_mode mode)
{
	return !(spte & (mode == RMAP_LOG_WRPROT ? PT_WRITABLE_MASK : shadow_dirty_mask));
}

static __always_inline u64 rmap_log_arm(u64 spte, enum rmap_log_mode mode)
{
	return spte & ~(mode == RMAP_LOG_WRPROT ? PT_WRITABLE_MASK : shadow_dirty_mask);
}

/*
 * Visit up to @max consecutive gfns from @head on, of which the first has a single
 * SPTE that was found to be @spte, as long as they continue in the way they started:
 * one SPTE for each gfn, next to the previous one, mapping the next pfn with the
 * same bits, hence armed or plain like the first.  Arm them if @arm.
 *
 * An SPTE that is being changed by a CPU or by a lockless page fault may be found
 * to be either: a look at it is enough, and only a plain one is stored to.  An rmap
 * that is locked ends the run, and starts the next.
 *
 * Return: how many, at least one.
 */
static __always_inline unsigned int rmap_log_run(struct kvm_rmap_head *head, u64 spte,
						 unsigned int max, bool arm,
						 enum rmap_log_mode mode)
{
	u64 *first = (u64 *)kvm_rmap_get(head);
	u64 *end = first + max;
	u64 *sptep = first;

	do {
		if (arm)
			WRITE_ONCE(*sptep, rmap_log_arm(spte, mode));
		spte += PAGE_SIZE;
		sptep++;
		head++;
	} while (sptep != end && kvm_rmap_peek(head) == (unsigned long)sptep &&
		 data_race(*sptep == spte)); /* either will do, see above */

	return sptep - first;
}

/* How many of @max gfns from @head on are mapped by nothing, at least one. */
static __always_inline unsigned int rmap_log_empty_run(const struct kvm_rmap_head *head,
						       unsigned int max)
{
	unsigned int nr = 1;

	while (nr < max && !kvm_rmap_peek(&head[nr]))
		nr++;

	return nr;
}

static bool rmap_log_is_single(const struct kvm_rmap_head *head)
{
	return kvm_rmap_peek(head) && !(kvm_rmap_peek(head) & KVM_RMAP_MANY);
}

/* All SPTEs of one gfn, whatever they are. */
static noinline void rmap_log_slow(struct rmap_log *log, struct kvm_rmap_head *head,
				   enum rmap_log_mode mode)
{
	unsigned int nr = pte_list_count(head);

	if (log->work && log->work + nr > RMAP_LOG_MIN_WORK)
		rmap_log_cond_resched(log);
	log->work += nr;

	if (mode == RMAP_LOG_WRPROT)
		rmap_write_protect_for_logging(head);
	else
		__rmap_clear_dirty(log->kvm, head, log->slot);
}

/*
 * Arm the only SPTE of one gfn, which was found to be @spte, and those behind it
 * that are alike.  Return how many gfns were done.
 */
static __always_inline unsigned int rmap_log_single(struct rmap_log *log,
						    struct kvm_rmap_head *head, u64 spte,
						    unsigned int max,
						    enum rmap_log_mode mode)
{
	if (rmap_log_is_armed(spte, mode))
		return rmap_log_run(head, spte, max, false, mode);

	if (unlikely(!kvm_spte_may_store(spte))) {
		rmap_log_slow(log, head, mode);
		return 1;
	}

	return rmap_log_run(head, spte, max, true, mode);
}

/* Arm one gfn, and those behind it that are alike.  Return how many were done. */
static __always_inline unsigned int rmap_log_batch(struct rmap_log *log,
						   struct kvm_rmap_head *head,
						   unsigned int max, enum rmap_log_mode mode)
{
	u64 spte;

	if (!kvm_rmap_peek(head))
		return rmap_log_empty_run(head, max);

	if (unlikely(!rmap_log_is_single(head))) {
		rmap_log_slow(log, head, mode);
		return 1;
	}

	/*
	 * Once: what a CPU or a lockless page fault adds afterwards belongs to a write
	 * that shows in the log, and must not pass for what was decided about.
	 */
	spte = READ_ONCE(*(u64 *)kvm_rmap_get(head));
	kvm_prove_window(KVM_WINDOW_LOG);

	/* Nested guests' pages have to be write-protected even with PML. */
	if (mode == RMAP_LOG_WRPROT || spte_ad_need_write_protect(spte))
		return rmap_log_single(log, head, spte, max, RMAP_LOG_WRPROT);

	return rmap_log_single(log, head, spte, max, RMAP_LOG_CLEAR_DIRTY);
}

static __always_inline void rmap_log_masked(struct rmap_log *log, gfn_t gfn,
					    unsigned long mask, enum rmap_log_mode mode)
{
	struct kvm_rmap_head *heads = gfn_to_rmap(gfn, PG_LEVEL_4K, log->slot);
	unsigned int i, end;

	for_each_set_bitrange(i, end, &mask, BITS_PER_LONG)
		while (i < end)
			i += rmap_log_batch(log, &heads[i], end - i, mode);
}

static __always_inline void rmap_log_word(struct kvm *kvm, const struct kvm_memory_slot *slot,
					  gfn_t gfn, unsigned long mask,
					  enum rmap_log_mode mode)
{
	struct rmap_log log = { .kvm = kvm, .slot = slot, .site = KVM_FORCE_LOG_PAGE };

	lockdep_assert_held_write(&kvm->mmu_lock);

	rmap_log_masked(&log, gfn, mask, mode);
}

static __always_inline void rmap_log_slot(struct rmap_log *log, enum rmap_log_mode mode)
{
	const struct kvm_memory_slot *slot = log->slot;
	unsigned long done, left;

	lockdep_assert_held_write(&log->kvm->mmu_lock);

	for (done = 0; done < slot->npages; done += BITS_PER_LONG) {
		left = min(slot->npages - done, BITS_PER_LONG);
		rmap_log_masked(log, slot->base_gfn + done, BITMAP_LAST_WORD_MASK(left), mode);

		log->work += BITS_PER_LONG;
		if (log->work >= RMAP_LOG_MIN_WORK)
			rmap_log_cond_resched(log);
	}
}

/* Write-protect what maps the memslot by huge pages of one size. */
static void rmap_log_wrprot_huge(struct rmap_log *log, int level)
{
	const struct kvm_memory_slot *slot = log->slot;
	struct kvm_rmap_head *head = gfn_to_rmap(slot->base_gfn, level, slot);
	struct kvm_rmap_head *last = gfn_to_rmap(slot->base_gfn + slot->npages - 1, level, slot);

	for (; head <= last; head++) {
		if (kvm_rmap_peek(head))
			rmap_log_slow(log, head, RMAP_LOG_WRPROT);

		if (++log->work >= RMAP_LOG_MIN_WORK)
			rmap_log_cond_resched(log);
	}
}

void kvm_rmap_log_wrprot(struct kvm *kvm, const struct kvm_memory_slot *slot,
			 gfn_t gfn, unsigned long mask)
{
	rmap_log_word(kvm, slot, gfn, mask, RMAP_LOG_WRPROT);
}

void kvm_rmap_log_clear_dirty(struct kvm *kvm, const struct kvm_memory_slot *slot,
			      gfn_t gfn, unsigned long mask)
{
	rmap_log_word(kvm, slot, gfn, mask, RMAP_LOG_CLEAR_DIRTY);
}

void kvm_rmap_log_wrprot_slot(struct kvm *kvm, const struct kvm_memory_slot *slot,
			      int start_level)
{
	struct rmap_log log = { .kvm = kvm, .slot = slot, .site = KVM_FORCE_LOG_SLOT };
	int level;

	if (start_level == PG_LEVEL_4K)
		rmap_log_slot(&log, RMAP_LOG_WRPROT);

	for (level = max(start_level, PG_LEVEL_2M); level <= KVM_MAX_HUGEPAGE_LEVEL; level++)
		rmap_log_wrprot_huge(&log, level);
}

void kvm_rmap_log_clear_dirty_slot(struct kvm *kvm, const struct kvm_memory_slot *slot)
{
	struct rmap_log log = { .kvm = kvm, .slot = slot, .site = KVM_FORCE_LOG_SLOT };

	rmap_log_slot(&log, RMAP_LOG_CLEAR_DIRTY);
}
