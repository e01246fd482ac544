// SPDX-License-Identifier: GPL-2.0-only
/*
 * The passes that are timed, each over all page tables.  They call KVM's functions, which
 * precede this in the file that is compiled.  With LIMIT they only read or write the same
 * memory, which no implementation can do faster.
 */
#define HEADS(table) (&slot.arch.rmap[0][(table) * PER_TABLE])
#define EACH_WORD(table, page) \
	for (unsigned long page = table * PER_TABLE; page < (table + 1) * PER_TABLE; page += 64)

#ifdef LIMIT
#include <string.h>
struct kvm_rmap_head { u64 val; };

static inline void store_all(volatile u64 *words)
{
	for (unsigned long i = 0; i < PER_TABLE; i++)
		words[i] = i;
}

static inline void read_all(const u64 *words)
{
	u64 sum = 0;

	for (unsigned long i = 0; i < PER_TABLE; i++)
		sum += words[i];
	asm volatile("" : : "r" (sum));
}

#ifdef STORES
PASS(split, store_all(sps[table].spt), store_all(&HEADS(table)->val))
#else
PASS(split, memset(sps[table].spt, 1, PAGE_SIZE), memset(HEADS(table), 1, PAGE_SIZE))
PASS(clear, read_all(sps[table].spt), read_all(&HEADS(table)->val))
PASS(collect, read_all(sps[table].spt), read_all(&HEADS(table)->val))
#endif
#elif defined(UNPATCHED)
PASS(split, shadow_mmu_split_huge_page(&vm, &slot, &huge_sptes[table]))
PASS(clear, EACH_WORD(table, page) kvm_mmu_write_protect_pt_masked(&vm, &slot, page, ~0ul))
#else
static struct eager_split es = { .kvm = &vm, .slot = &slot };
static struct collector c = { .kvm = &vm, .slot = &slot };

PASS(split, eager_split_fill(&es, &sps[table], true, READ_ONCE(huge_sptes[table]), HEADS(table),
			     eager_split_heads_are_empty(&slot, sps[table].gfn, PG_LEVEL_4K,
							 HEADS(table))))
PASS(clear, EACH_WORD(table, page) kvm_rmap_log_wrprot(&vm, &slot, page, ~0ul))
PASS(collect, EACH_WORD(table, page) collect_64(&c, &slot.arch.rmap[0][page], page))
#endif
