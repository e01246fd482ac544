/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by host and guest of eager_split_stress_test: the layout of memory,
 * and the values that a word of memory may have
 */
#ifndef SELFTEST_KVM_EAGER_SPLIT_STRESS_GUEST_H
#define SELFTEST_KVM_EAGER_SPLIT_STRESS_GUEST_H

#include "eager_split_util.h"

#define NR_VCPUS		2
#define WORDS_PER_PAGE		512ul

/* Memory in which host and guest exchange data; it is never logged. */
#define CONTROL_SLOT		1
#define CONTROL_GPA		0x10000000ull
#define CONTROL_SIZE		SZ_128K

/* Page tables of the windows, in one huge page that is logged. */
#define TABLES_SLOT		2
#define TABLES_GPA		0x20000000ull
#define TABLES_PER_VCPU		8ul
/* A page of that memslot that vCPUs only read. */
#define ONLY_READ_PAGE		(PAGES_PER_2M - 1)

/*
 * The memory under test.  The slot begins and ends in the middle of huge pages.
 */
#define DATA_SLOT		3
#define DATA_BASE		0x40000000ull
#define DATA_SIZE		(NR_CHUNKS * SZ_2M)
#define MOVED_BASE		0x80000000ull
#define NR_CHUNKS		6ul
#define FIRST_PAGE		451ul
#define NR_PAGES		(61 + (NR_CHUNKS - 2) * PAGES_PER_2M + 101)
#define DATA_GPA		(DATA_BASE + FIRST_PAGE * PAGE_SIZE)
#define MOVED_GPA		(MOVED_BASE + FIRST_PAGE * PAGE_SIZE)

/* The slot contains these chunks as a whole. */
#define FIRST_WHOLE_CHUNK	1ul
#define LAST_WHOLE_CHUNK	(NR_CHUNKS - 2)
#define OTHER_WHOLE_CHUNK(c)	(FIRST_WHOLE_CHUNK + LAST_WHOLE_CHUNK - (c))

#define VIEW_GVA(view)		((2ull + (view)) << 39)
#define WINDOW_GVA(vcpu)	((16ull + (vcpu)) << 39)
#define NR_WINDOWS		4u

/* The uppermost byte of a word tells where it comes from. */
#define TAG_SHIFT		56
#define TAG_GUEST		0x5aull
#define TAG_FRESH		0xf5ull
#define TAG_POISON		0xdeull

enum view { VIEW_4K, VIEW_2M, VIEW_1G, VIEW_ALIAS, NR_VIEWS };

enum what_is_bad {
	BAD_NOTHING, BAD_WORD, BAD_POISON, BAD_CLEAN, BAD_DIRTY, BAD_PERMISSION, BAD_TABLE,
};

#define ENTRY_BITS		(PT_PRESENT_MASK | PT_WRITABLE_MASK)

/* 2MiB of virtual memory of one vCPU, mapped by a huge entry or by a page table. */
struct window {
	u64 chunk;
	/* The number of its page table; 0: it is mapped by a huge entry. */
	u64 table;
	/* The first entry in use. */
	u64 first;
};

/* The vCPU owns this while it runs, the host while the vCPU is parked. */
struct vcpu_state {
	u64 rng;
	u64 generation;
	u64 nr_ops;
	/* The last sweep that the vCPU has completed. */
	u64 swept;
	/* Accesses that the host has emulated while the slot was deleted. */
	u64 nr_mmio;
	struct window windows[NR_WINDOWS];

	struct {
		u64 what;
		u64 page;
		u64 gva;
		u64 expected;
		u64 seen;
	} bad;
	/* The vCPU's word in each page, as it was last written or read. */
	u64 last[NR_PAGES];
};

struct control {
	u32 stop;
	/* Which views exist, a bit for each enum view. */
	u32 views;
	u32 wp;
	/* How many operations a vCPU does before it rests. */
	u32 ops_per_rest;
	/* The host changes this to make vCPUs use all huge pages. */
	u64 sweep;
	/*
	 * The page may be fresh.  Set before the host takes the page away,
	 * cleared while vCPUs are parked.
	 */
	u8 taken[NR_PAGES];

	struct vcpu_state vcpus[NR_VCPUS];
};

static inline u64 rng_next(u64 *rng)
{
	*rng ^= *rng >> 12;
	*rng ^= *rng << 25;
	*rng ^= *rng >> 27;
	return *rng * 0x2545f4914f6cdd1dull;
}

static inline u64 below(u64 *rng, u64 n)
{
	return (rng_next(rng) >> 32) % n;
}

static inline u64 tagged(u64 tag, u64 value)
{
	return tag << TAG_SHIFT | value;
}

/*
 * Return: the offset of a vCPU's word in a page.  It differs between
 * neighbouring pages, and is the same in all chunks.
 */
static inline u64 word_offset(u64 page, u64 vcpu)
{
	u64 index = (FIRST_PAGE + page) % PAGES_PER_2M;

	return (index * 131 % (PAGES_PER_2M - NR_VCPUS) + vcpu) * sizeof(u64);
}

static inline bool is_fresh(u64 word)
{
	return !word || word >> TAG_SHIFT == TAG_FRESH;
}

static inline bool may_be(struct control *ctl, u64 page, u64 seen, u64 last)
{
	return seen == last || (is_fresh(seen) && READ_ONCE(ctl->taken[page]));
}

/* The code of a vCPU. */
void guest_main(u64 id);

#endif /* SELFTEST_KVM_EAGER_SPLIT_STRESS_GUEST_H */
