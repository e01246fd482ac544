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
 * Neighbouring SPTEs of a page table as the array that they are, mostly the 64 that
 * a word of the dirty log stands for, and rmap heads, which have the size of SPTEs
 * on 64-bit hosts.  Nothing here knows of KVM, or of any lock: what may change an
 * SPTE meanwhile, and why a store is safe nevertheless, is the callers' to know.
 *
 * Next to all of the time that dirty logging takes per page goes to these loops.
 */
#define SPTE_BULK	64

/* The bits that any of @nr SPTEs has, up to 16 or a multiple; each is read once, and may change. */
static __always_inline u64 spte_any(const u64 *sptep, unsigned int nr)
{
	unsigned int i, step = min(nr, 16);
	u64 any = 0;

	/* What was read before, to look at all bits, isn't kept in @nr registers. */
	barrier();
	for (; nr; nr -= step, sptep += step)
		unrolled_count(16)
		for (i = 0; i < step; i++)
			any |= data_race(sptep[i]); /* see above */

	return any;
}

/*
 * The same as spte_any() for an even number that is a page table's: in two halves, as
 * each OR has to wait for the one before.
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

/* The bits that all of @nr SPTEs have, likewise. */
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
 * By which bits do @nr SPTEs differ from a run that begins with @spte, each a constant step
 * from the one before?  @any is told the bits that any of them has.
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

/* Which of 64 SPTEs have the bit @bit?  Most often few have, so that most of eight have none. */
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

/* Take @bits away from 64 SPTEs that no CPU changes: see kvm_spte_may_store(). */
static __always_inline void spte_take_64(u64 *sptep, u64 bits)
{
	u64 *end = sptep + SPTE_BULK;
	unsigned int i;

	for (; sptep < end; sptep += 16)
		unrolled_count(16)
		for (i = 0; i < 16; i++)
			asm volatile("andq %1, %0" : "+m" (sptep[i]) : "r" (~bits));
}

/* Take @bits away from 64 SPTEs, whatever they are or become meanwhile. */
static __always_inline void spte_take_64_atomic(u64 *sptep, u64 bits)
{
	unsigned int i;

	for (i = 0; i < SPTE_BULK; i++)
		atomic64_andnot(bits, (atomic64_t *)&sptep[i]);
}

/*
 * Take @bits away from one SPTE, which was found to be @spte: by a store if it has all
 * of @stable, so that no CPU changes it.
 */
static __always_inline void spte_take(u64 *sptep, u64 spte, u64 bits, u64 stable)
{
	if ((spte & stable) == stable)
		WRITE_ONCE(*sptep, spte & ~bits);
	else
		atomic64_andnot(bits, (atomic64_t *)sptep);
}

/* Exchange 64 SPTEs for @new, and have in @old what each was at that moment. */
static __always_inline void spte_exchange_64(u64 *sptep, u64 new, u64 *old)
{
	unsigned int i;

	unrolled_count(8)
	for (i = 0; i < SPTE_BULK; i++)
		old[i] = xchg(&sptep[i], new);
}

/* Fill @nr SPTEs, each a constant step from the one before. */
static __always_inline void spte_fill(u64 *sptep, u64 spte, u64 step, unsigned int nr)
{
	unsigned int i;

	unrolled_count(8)
	for (i = 0; i < nr; i++, spte += step)
		WRITE_ONCE(sptep[i], spte);
}

/*
 * The same, and make each the only one of its rmap, which it may be from then on.  @nr is
 * a multiple of 64: two loops by turns take less time than one that stores to both arrays.
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
 * Are 64 gfns mapped by one SPTE each, and these SPTEs neighbours?  Heads are
 * distinct, as an SPTE maps but one gfn.  If in addition all of them point into
 * the same aligned block of 64 SPTEs, then there is one for each SPTE of it, in
 * whatever order.  What a head says by bits below that, is left out, but for @many:
 * that it doesn't point to an SPTE.
 *
 * Return: the block, or NULL; then @mapped says whether anything maps any of the gfns.
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
