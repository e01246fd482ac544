/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_SPTE_BULK_H
#define __KVM_X86_MMU_SPTE_BULK_H

#include <linux/atomic.h>
#include <linux/bitops.h>
#include <linux/compiler.h>
#include <linux/minmax.h>
#include <linux/types.h>
#include <linux/unroll.h>

/*
 * Loops over arrays of neighbouring SPTEs, mostly the 64 of one word of the
 * dirty log, and over arrays of rmap heads, which have the size of SPTEs on
 * 64-bit hosts.  These functions take no lock: callers must ensure that plain
 * stores can't overwrite concurrent updates of SPTEs.
 *
 * Dirty logging spends nearly all of its time per page in these loops.
 */
#define SPTE_BULK	64

/*
 * The OR of @nr SPTEs.  @nr is at most 16, or a multiple of 16.  Each SPTE is
 * read once, and may change meanwhile.
 */
static __always_inline u64 spte_any(const u64 *sptep, unsigned int nr)
{
	unsigned int i, step = min(nr, 16);
	u64 any = 0;

	/* Don't keep earlier reads of the SPTEs in @nr registers. */
	barrier();
	for (; nr; nr -= step, sptep += step)
		unrolled_count(16)
		for (i = 0; i < step; i++)
			any |= data_race(sptep[i]); /* see above */

	return any;
}

/*
 * spte_any() for a whole page table, or any even @nr.  Even and odd entries are
 * combined separately, because each OR depends on the one before.
 */
static __always_inline u64 spte_any_in_table(const u64 *sptep, unsigned int nr)
{
	u64 even = 0, odd = 0;
	unsigned int i;

	unrolled_count(8)
	for (i = 0; i < nr; i += 2) {
		even |= data_race(sptep[i]); /* see above */
		odd |= data_race(sptep[i + 1]); /* likewise */
	}

	return even | odd;
}

/* The AND of @nr SPTEs, see spte_any(). */
static __always_inline u64 spte_all(const u64 *sptep, unsigned int nr)
{
	unsigned int i, step = min(nr, 16);
	u64 all = ~0ull;

	barrier();
	for (; nr; nr -= step, sptep += step)
		unrolled_count(16)
		for (i = 0; i < step; i++)
			all &= data_race(sptep[i]); /* see above */

	return all;
}

/*
 * The bits in which @nr SPTEs differ from a sequence that begins with @spte and
 * increases by @step.  @any returns the OR of the SPTEs.
 */
static __always_inline u64 spte_run_diff(const u64 *sptep, u64 spte, u64 step, unsigned int nr,
					 u64 *any)
{
	u64 seen, diff = 0, bits = 0;
	unsigned int i;

	unrolled_count(8)
	for (i = 0; i < nr; i++, spte += step) {
		seen = data_race(sptep[i]); /* it may change */
		bits |= seen;
		diff |= seen ^ spte;
	}

	*any = bits;
	return diff;
}

/*
 * Which of 64 SPTEs have the bit @bit?  Most often only few have it, so check
 * eight at a time.
 */
static __always_inline unsigned long spte_gather_64(const u64 *sptep, u64 bit)
{
	unsigned int shift = __builtin_ctzll(bit);
	unsigned int i, from;
	u64 found, mask = 0;

	for (from = 0; from < SPTE_BULK; from += 8, sptep += 8) {
		if (!(spte_any(sptep, 8) & bit))
			continue;

		found = 0;
		unrolled_count(8)
		for (i = 0; i < 8; i++) /* they may change */
			found |= rol64(data_race(sptep[i]) & bit, i);
		mask |= rol64(found, from - shift);
	}

	return mask;
}

/* Clear @bits in 64 SPTEs that no CPU changes, see kvm_spte_may_store(). */
static __always_inline void spte_take_64(u64 *sptep, u64 bits)
{
	u64 *end = sptep + SPTE_BULK;
	unsigned int i;

	for (; sptep < end; sptep += 16)
		unrolled_count(16)
		for (i = 0; i < 16; i++)
			asm volatile("andq %1, %0" : "+m" (sptep[i]) : "r" (~bits));
}

/* Clear @bits in 64 SPTEs, whatever they are or become meanwhile. */
static __always_inline void spte_take_64_atomic(u64 *sptep, u64 bits)
{
	unsigned int i;

	for (i = 0; i < SPTE_BULK; i++)
		atomic64_andnot(bits, (atomic64_t *)&sptep[i]);
}

/*
 * Clear @bits in one SPTE, whose value was @spte: by a store if all bits of
 * @stable are set, so that no CPU changes the SPTE.
 */
static __always_inline void spte_take(u64 *sptep, u64 spte, u64 bits, u64 stable)
{
	if ((spte & stable) == stable)
		WRITE_ONCE(*sptep, spte & ~bits);
	else
		atomic64_andnot(bits, (atomic64_t *)sptep);
}

/* Exchange 64 SPTEs for @new.  @old returns their last values. */
static __always_inline void spte_exchange_64(u64 *sptep, u64 new, u64 *old)
{
	unsigned int i;

	unrolled_count(8)
	for (i = 0; i < SPTE_BULK; i++)
		old[i] = xchg(&sptep[i], new);
}

/* Fill @nr SPTEs with a sequence from @spte on that increases by @step. */
static __always_inline void spte_fill(u64 *sptep, u64 spte, u64 step, unsigned int nr)
{
	unsigned int i;

	unrolled_count(8)
	for (i = 0; i < nr; i++, spte += step)
		WRITE_ONCE(sptep[i], spte);
}

/*
 * spte_fill() that also makes each SPTE the only one of its rmap, at the same
 * index in @head.  The SPTE is stored before its head.  @nr is a multiple of
 * 64: two loops that take turns are faster than one loop that stores to both
 * arrays.
 */
static __always_inline void spte_fill_heads(u64 *sptep, u64 spte, u64 step,
					    unsigned long *head, unsigned int nr)
{
	unsigned int i, from;

	for (from = 0; from < nr; from += SPTE_BULK) {
		spte_fill(&sptep[from], spte + from * step, step, SPTE_BULK);
		unrolled_count(8)
		for (i = from; i < from + SPTE_BULK; i++)
			/* Aging walks rmaps without mmu_lock. */
			smp_store_release(&head[i], (unsigned long)&sptep[i]);
	}
}

/*
 * Are 64 gfns mapped by one SPTE each, and these SPTEs an aligned block of 64?
 * Heads differ from each other, because an SPTE maps only one gfn.  So if all
 * of them point into the same aligned block, each SPTE of the block belongs to
 * one of them, in any order.  Lower bits of a head are ignored, except for
 * @many: this bit means that the head doesn't point to an SPTE.
 *
 * Return: the block, or NULL.  If NULL, @mapped returns whether anything maps
 * any of the gfns.
 */
static __always_inline u64 *spte_heads_block(const u64 *heads, u64 many, bool *mapped)
{
	u64 any = spte_any(heads, SPTE_BULK);
	u64 all;

	*mapped = any;
	if (!any)
		return NULL;

	all = spte_all(heads, SPTE_BULK);
	if ((any & many) || (any ^ all) >= SPTE_BULK * sizeof(u64))
		return NULL;

	return (u64 *)(unsigned long)(all & ~(u64)(SPTE_BULK * sizeof(u64) - 1));
}

#endif /* __KVM_X86_MMU_SPTE_BULK_H */
