// SPDX-License-Identifier: GPL-2.0-only
/*
 * Arming of dirty logging in bulk for the shadow MMU
 *
 * Each cycle of dirty logging visits the SPTEs of all pages that were dirty,
 * and clears the bit that lets writes go unlogged.  These SPTEs are mostly
 * regular: the rmap heads of consecutive gfns are neighbours, and so are the
 * SPTEs of memory that was mapped by a huge page before.  If this is true for
 * all pages of a word of the log, the word costs a few instructions per page.
 *
 * Otherwise, each page's SPTE is found by its rmap head.  If that isn't simple
 * either, because a gfn has several SPTEs or a CPU may be changing the SPTE,
 * the general functions are used.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bits.h>
#include <linux/minmax.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "rmap_log.h"
#include "spte.h"
#include "spte_bulk.h"

/*
 * The least work between two drops of mmu_lock because it is contended, in
 * gfns, or in SPTEs if a gfn has several.  The guest controls how many SPTEs a
 * gfn has.
 */
#define RMAP_LOG_MIN_WORK	SPTE_ENT_PER_PAGE

struct rmap_log {
	struct kvm *kvm;

	/* slots_lock, or something else, keeps it and its rmaps. */
	const struct kvm_memory_slot *slot;

	/* Work since mmu_lock was taken last, see RMAP_LOG_MIN_WORK. */
	unsigned long work;

	/* Debug only: the place, for drops of mmu_lock that are forced. */
	enum kvm_force_site site;
};

/* Drop mmu_lock if it is contended.  Don't use SPTEs found before. */
static void rmap_log_cond_resched(struct rmap_log *log)
{
	log->work = 0;
	kvm_mmu_cond_resched(log->kvm, log->site);
}

/* How to arm an SPTE.  Only ever passed as a constant. */
enum rmap_log_mode {
	RMAP_LOG_WRPROT,
	RMAP_LOG_CLEAR_DIRTY,
};

static __always_inline u64 rmap_log_bit(enum rmap_log_mode mode)
{
	return mode == RMAP_LOG_WRPROT ? PT_WRITABLE_MASK : shadow_dirty_mask;
}

/* Arm all SPTEs of one gfn, of any kind. */
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

/* Arm one gfn, here if it has only one SPTE. */
static __always_inline void rmap_log_gfn(struct rmap_log *log, struct kvm_rmap_head *head,
					 enum rmap_log_mode mode)
{
	unsigned long val = kvm_rmap_peek(head) & ~KVM_RMAP_LOCKED;
	u64 *sptep = (u64 *)val;
	u64 spte;

	if (!val)
		return;

	if (unlikely(val & KVM_RMAP_MANY)) {
		rmap_log_slow(log, head, mode);
		return;
	}

	/*
	 * Read once: a bit that a CPU or a lockless page fault sets later
	 * belongs to a write that will be logged, and must not affect the
	 * decision.
	 */
	spte = READ_ONCE(*sptep);
	kvm_prove_window(KVM_WINDOW_LOG);

	/* Nested guests' pages have to be write-protected even with PML. */
	if (spte_ad_need_write_protect(spte))
		mode = RMAP_LOG_WRPROT;

	if (!(spte & rmap_log_bit(mode)))
		return;

	if (unlikely(!kvm_spte_may_store(spte)))
		rmap_log_slow(log, head, mode);
	else
		WRITE_ONCE(*sptep, spte & ~rmap_log_bit(mode));
}

/*
 * Arm 64 gfns at once.  Return true if this is done: if nothing maps the gfns,
 * or if one block of SPTEs maps them and either none has to be changed, or CPUs
 * and lockless page faults change none of them.  Bits that are set after the
 * SPTEs were read belong to writes that will be logged.
 */
static __always_inline bool rmap_log_64(struct kvm_rmap_head *heads, enum rmap_log_mode mode)
{
	bool mapped;
	u64 *block = spte_heads_block((u64 *)heads, KVM_RMAP_MANY, &mapped);
	u64 first, all;

	BUILD_BUG_ON(IS_ENABLED(CONFIG_X86_64) && sizeof(*heads) != sizeof(all));
	BUILD_BUG_ON((KVM_RMAP_MANY | KVM_RMAP_LOCKED) >= SPTE_BULK * sizeof(all));

	if (!block)
		return !mapped;

	/* The way of arming is fixed, and the same for a whole page table. */
	first = READ_ONCE(*block);
	if (mode == RMAP_LOG_CLEAR_DIRTY && (first & SPTE_TDP_AD_MASK))
		return false;
	if (!(first & rmap_log_bit(mode)) &&
	    !(spte_any(block, SPTE_BULK) & rmap_log_bit(mode)))
		return true;

	all = spte_all(block, SPTE_BULK);
	kvm_prove_window(KVM_WINDOW_LOG);
	if (!kvm_spte_may_store(all))
		return false;

	spte_take_64(block, rmap_log_bit(mode));
	return true;
}

static __always_inline void rmap_log_masked(struct rmap_log *log, struct kvm_rmap_head *heads,
					    unsigned long mask, enum rmap_log_mode mode)
{
	if (IS_ENABLED(CONFIG_X86_64) && mask == ~0ul && rmap_log_64(heads, mode))
		return;

	for (; mask; mask &= mask - 1)
		rmap_log_gfn(log, &heads[__ffs(mask)], mode);
}

/* Is there nothing to arm, because no 4KiB SPTE maps the 2MiB of a word? */
static __always_inline bool rmap_log_is_huge(const struct kvm_memory_slot *slot, gfn_t gfn,
					     unsigned long mask)
{
	return !kvm_may_have_small_sptes(slot, gfn + __ffs(mask)) &&
	       !kvm_may_have_small_sptes(slot, gfn + __fls(mask));
}

static __always_inline void rmap_log_word(struct kvm *kvm, const struct kvm_memory_slot *slot,
					  gfn_t gfn, unsigned long mask,
					  enum rmap_log_mode mode)
{
	struct rmap_log log = { .kvm = kvm, .slot = slot, .site = KVM_FORCE_LOG_PAGE };
	struct kvm_rmap_head *heads = gfn_to_rmap(gfn, PG_LEVEL_4K, slot);

	lockdep_assert_held_write(&kvm->mmu_lock);

	/* Don't read the flags if there are SPTEs, as there are most often. */
	if (!kvm_rmap_peek(&heads[__ffs(mask)]) && rmap_log_is_huge(slot, gfn, mask))
		return;

	rmap_log_masked(&log, heads, mask, mode);
}

static __always_inline void rmap_log_slot(struct rmap_log *log, enum rmap_log_mode mode)
{
	const struct kvm_memory_slot *slot = log->slot;
	struct kvm_rmap_head *heads = gfn_to_rmap(slot->base_gfn, PG_LEVEL_4K, slot);
	unsigned long done, nr;

	lockdep_assert_held_write(&log->kvm->mmu_lock);

	for (done = 0; done < slot->npages; done += nr) {
		nr = kvm_rmap_peek(&heads[done]) ? 0 : kvm_rmap_nr_huge(slot, done, slot->npages);
		if (nr) {
			log->work += kvm_rmap_skip_work(nr);
		} else {
			nr = min(slot->npages - done, BITS_PER_LONG);
			rmap_log_masked(log, &heads[done], BITMAP_LAST_WORD_MASK(nr), mode);
			log->work += BITS_PER_LONG;
		}

		if (log->work >= RMAP_LOG_MIN_WORK)
			rmap_log_cond_resched(log);
	}
}

/* Write-protect the huge pages of one size that map the memslot. */
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
