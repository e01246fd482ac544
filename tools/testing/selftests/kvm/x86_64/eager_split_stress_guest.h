/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What vCPUs do in eager_split_stress_test, and what they share with the host.
 *
 * A vCPU has a word of its own in each page of the memory under test, and knows what
 * it wrote there last.  It looks at it through all mappings, and complains about any
 * other value, unless the host has announced that it takes the page away.
 */
#ifndef SELFTEST_KVM_EAGER_SPLIT_STRESS_GUEST_H
#define SELFTEST_KVM_EAGER_SPLIT_STRESS_GUEST_H

#include <linux/sizes.h>

#include "kvm_util.h"
#include "processor.h"
#include "ucall_common.h"
#include "eager_split_util.h"

#define MAX_VCPUS		4u
#define WORDS_PER_PAGE		512ul

/* What host and guest share beside the memory under test. */
#define CONTROL_SLOT		1
#define CONTROL_GPA		0x10000000ull
#define CONTROL_SIZE		SZ_128K

/* Page tables of the windows, in one huge page that is logged. */
#define TABLES_SLOT		2
#define TABLES_GPA		0x20000000ull
#define TABLES_PER_VCPU		8ul

/* The memory under test: the slot begins and ends amid huge pages. */
#define DATA_SLOT		3
#define DATA_BASE		0x40000000ull
#define DATA_SIZE		(NR_CHUNKS * SZ_2M)
#define MOVED_BASE		0x80000000ull
#define NR_CHUNKS		6ul
#define FIRST_PAGE		451ul
#define NR_PAGES		(61 + (NR_CHUNKS - 2) * PAGES_PER_2M + 101)
#define DATA_GPA		(DATA_BASE + FIRST_PAGE * PAGE_SIZE)
#define MOVED_GPA		(MOVED_BASE + FIRST_PAGE * PAGE_SIZE)

/* All chunks but the first and the last belong to the slot as a whole. */
#define FIRST_WHOLE_CHUNK	1ul
#define LAST_WHOLE_CHUNK	(NR_CHUNKS - 2)
#define OTHER_WHOLE_CHUNK(c)	(FIRST_WHOLE_CHUNK + LAST_WHOLE_CHUNK - (c))

#define VIEW_GVA(view)		((2ull + (view)) << 39)
#define WINDOW_GVA(vcpu)	((16ull + (vcpu)) << 39)
#define NR_WINDOWS		4u

/* How many entries of a window's page table are used, in an order of their own. */
#define NR_ENTRIES		32ul
#define ENTRY_PAGE(k)		(((k) * 5 + 3) % NR_ENTRIES)

/* The uppermost byte of a word says where it comes from. */
#define TAG_SHIFT		56
#define TAG_GUEST		0x5aull
#define TAG_FRESH		0xf5ull
#define TAG_POISON		0xdeull

enum view { VIEW_4K, VIEW_2M, VIEW_1G, VIEW_ALIAS, NR_VIEWS };
#define USE_WINDOWS		BIT(NR_VIEWS)
#define USE_ALL			(BIT(NR_VIEWS + 1) - 1)

enum what_is_bad {
	BAD_NOTHING, BAD_WORD, BAD_POISON, BAD_CLEAN, BAD_DIRTY, BAD_PERMISSION, BAD_TABLE,
};

static const char * const bad_texts[] = {
	[BAD_WORD] = "a vCPU read a word that is not its last",
	[BAD_POISON] = "a vCPU read memory that was taken from it",
	[BAD_CLEAN] = "a guest entry is clean after a write",
	[BAD_DIRTY] = "a guest entry is dirty after a read",
	[BAD_PERMISSION] = "a write through a read-only entry, or none through a writable one",
	[BAD_TABLE] = "a vCPU read a word of a former page table that is not its last",
};

/* 2MiB of virtual memory of one vCPU, mapped by a huge entry or by a page table. */
struct window {
	u64 chunk;

	/* Which of the vCPU's pages is its page table, 0 if it has none. */
	u64 table;

	/* The first entry in use. */
	u64 first;
};

/* Belongs to the vCPU as long as it runs, to the host while it is parked. */
struct vcpu_state {
	u64 rng;
	u64 generation;
	u64 nr_ops;

	/* The last sweep that was asked for and done. */
	u64 swept;

	/* Accesses that the host emulated because the slot was away. */
	u64 nr_mmio;
	struct window windows[NR_WINDOWS];

	struct {
		u64 what;
		u64 page;
		u64 gva;
		u64 expected;
		u64 seen;
	} bad;

	/* The word that has to be found in each page. */
	u64 last[NR_PAGES];
};

struct control {
	u32 stop;
	u32 views;
	u32 wp;

	/* How many operations a vCPU does before it rests. */
	u32 ops_per_rest;

	/* Changed by the host when all huge pages shall be used. */
	u64 sweep;

	/* May be fresh: set before the page is taken, cleared while vCPUs are parked. */
	u8 taken[NR_PAGES];

	struct vcpu_state vcpus[MAX_VCPUS];
};

/*
 * Shared by host and guest
 */

static u64 rng_next(u64 *rng)
{
	*rng ^= *rng >> 12;
	*rng ^= *rng << 25;
	*rng ^= *rng >> 27;
	return *rng * 0x2545f4914f6cdd1dull;
}

static u64 below(u64 *rng, u64 n)
{
	return (rng_next(rng) >> 32) % n;
}

static u64 tagged(u64 tag, u64 value)
{
	return tag << TAG_SHIFT | value;
}

/* Where a vCPU's word is: different in neighbouring pages, the same in all chunks. */
static u64 word_offset(u64 page, u64 vcpu)
{
	u64 index = (FIRST_PAGE + page) % PAGES_PER_2M;

	return (index * 131 % (PAGES_PER_2M - MAX_VCPUS) + vcpu) * sizeof(u64);
}

static bool is_fresh(u64 word)
{
	return !word || word >> TAG_SHIFT == TAG_FRESH;
}

static bool may_be(struct control *ctl, u64 page, u64 seen, u64 last)
{
	return seen == last || (is_fresh(seen) && READ_ONCE(ctl->taken[page]));
}

/*
 * The guest
 */

#define CTL			((struct control *)CONTROL_GPA)

static void guest_complain(struct vcpu_state *v, enum what_is_bad what, u64 page, u64 gva,
			   u64 expected, u64 seen)
{
	v->bad.page = page;
	v->bad.gva = gva;
	v->bad.expected = expected;
	v->bad.seen = seen;
	WRITE_ONCE(v->bad.what, what);
	GUEST_UCALL_NONE();
}

static u64 guest_id(struct vcpu_state *v)
{
	return v - CTL->vcpus;
}

static u64 guest_new_word(struct vcpu_state *v)
{
	return tagged(TAG_GUEST, guest_id(v) << 48 | ++v->generation);
}

static u64 *guest_word(struct vcpu_state *v, u64 page, u64 gva)
{
	return (u64 *)(gva + word_offset(page, guest_id(v)));
}

static void guest_check(struct vcpu_state *v, u64 page, u64 gva, u64 seen)
{
	if (!may_be(CTL, page, seen, v->last[page]))
		guest_complain(v, seen >> TAG_SHIFT == TAG_POISON ? BAD_POISON : BAD_WORD,
			       page, gva, v->last[page], seen);
	v->last[page] = seen;
}

static void guest_read(struct vcpu_state *v, u64 page, u64 gva)
{
	guest_check(v, page, gva, READ_ONCE(*guest_word(v, page, gva)));
}

static void guest_write(struct vcpu_state *v, u64 page, u64 gva)
{
	u64 word = guest_new_word(v);

	WRITE_ONCE(*guest_word(v, page, gva), word);
	v->last[page] = word;
}

static void guest_use(struct vcpu_state *v, u64 page, u64 gva)
{
	if (below(&v->rng, 4))
		guest_write(v, page, gva);
	else
		guest_read(v, page, gva);
}

static u64 view_gva(enum view view, u64 page)
{
	return VIEW_GVA(view) + (FIRST_PAGE + page) * PAGE_SIZE;
}

static enum view guest_any_view(struct vcpu_state *v)
{
	enum view view = below(&v->rng, NR_VIEWS);

	while (!(CTL->views & BIT(view)))
		view = (view + 1) % NR_VIEWS;
	return view;
}

/* Use some pages in a row, or every so many of them. */
static void guest_burst(struct vcpu_state *v)
{
	u64 page = below(&v->rng, NR_PAGES), n = 1 + below(&v->rng, 24);
	u64 step = below(&v->rng, 3) ? 1 : below(&v->rng, 97);
	enum view view = guest_any_view(v);

	for (; n; n--, page = (page + step) % NR_PAGES)
		guest_use(v, page, view_gva(view, page));
}

/* Use each huge page in each view. */
static void guest_sweep(struct vcpu_state *v, u64 sweep)
{
	u64 chunk, view, page;

	for (chunk = FIRST_WHOLE_CHUNK; chunk <= LAST_WHOLE_CHUNK; chunk++)
		for (view = 0; view < NR_VIEWS; view++) {
			page = chunk * PAGES_PER_2M + below(&v->rng, PAGES_PER_2M) - FIRST_PAGE;
			if (CTL->views & BIT(view))
				guest_use(v, page, view_gva(view, page));
		}
	WRITE_ONCE(v->swept, sweep);
}

/*
 * Windows
 */

static u64 *guest_table(struct vcpu_state *v, u64 nr)
{
	return (u64 *)(TABLES_GPA + (guest_id(v) * TABLES_PER_VCPU + nr) * PAGE_SIZE);
}

static u64 window_nr(struct vcpu_state *v, struct window *w)
{
	return w - v->windows;
}

static u64 window_gva(struct vcpu_state *v, struct window *w)
{
	return WINDOW_GVA(guest_id(v)) + window_nr(v, w) * SZ_2M;
}

static u64 *window_pde(struct vcpu_state *v, struct window *w)
{
	return &guest_table(v, 0)[window_nr(v, w)];
}

static void guest_flush_all(void)
{
	asm volatile("mov %%cr3, %%rax; mov %%rax, %%cr3" ::: "rax", "memory");
}

static void guest_invlpg(u64 gva)
{
	asm volatile("invlpg (%0)" :: "r"(gva) : "memory");
}

/* A page table may be known by all of its addresses. */
static void guest_flush(struct vcpu_state *v, u64 gva, bool table)
{
	if (table || !below(&v->rng, 4))
		guest_flush_all();
	else
		guest_invlpg(gva);
}

/* The place in the chunk of the @k-th page that the window has. */
static u64 window_index(struct window *w, u64 k)
{
	return w->table ? w->first + ENTRY_PAGE(k) : k;
}

static u64 window_page_gva(struct vcpu_state *v, struct window *w, u64 k)
{
	return window_gva(v, w) + (w->table ? w->first + k : k) * PAGE_SIZE;
}

/* Wraps around to a huge number for pages that come before the slot. */
static u64 window_page(struct window *w, u64 k)
{
	return w->chunk * PAGES_PER_2M + window_index(w, k) - FIRST_PAGE;
}

/* Returns which page of the window to use; it belongs to the slot. */
static u64 window_any(struct vcpu_state *v, struct window *w)
{
	u64 k;

	do {
		k = below(&v->rng, w->table ? NR_ENTRIES : PAGES_PER_2M);
	} while (window_page(w, k) >= NR_PAGES);
	return k;
}

static u64 *window_entry(struct vcpu_state *v, struct window *w, u64 k)
{
	return w->table ? &guest_table(v, w->table)[w->first + k] : window_pde(v, w);
}

static u64 chunk_gpa(u64 chunk)
{
	return DATA_BASE + chunk * SZ_2M;
}

#define ENTRY_BITS		(PTE_PRESENT_MASK | PTE_WRITABLE_MASK)

static void window_fill_table(struct vcpu_state *v, struct window *w)
{
	u64 *entry = &guest_table(v, w->table)[w->first];
	u64 k;

	for (k = 0; k < NR_ENTRIES; k++)
		WRITE_ONCE(entry[k], (chunk_gpa(w->chunk) + window_index(w, k) * PAGE_SIZE) |
				     ENTRY_BITS);
}

static u64 window_new_pde(struct vcpu_state *v, struct window *w)
{
	if (w->table)
		return (u64)guest_table(v, w->table) | ENTRY_BITS;

	return chunk_gpa(w->chunk) | ENTRY_BITS | PTE_LARGE_MASK;
}

static bool guest_table_is_used(struct vcpu_state *v, u64 nr)
{
	unsigned int i;

	for (i = 0; i < NR_WINDOWS; i++)
		if (v->windows[i].table == nr)
			return true;
	return false;
}

/* There are more pages than windows. */
static u64 guest_spare_table(struct vcpu_state *v)
{
	u64 nr;

	do {
		nr = 1 + below(&v->rng, TABLES_PER_VCPU - 1);
	} while (guest_table_is_used(v, nr));
	return nr;
}

static void window_choose(struct vcpu_state *v, struct window *w)
{
	u64 page = FIRST_PAGE + below(&v->rng, NR_PAGES);

	w->chunk = page / PAGES_PER_2M;
	w->first = page % PAGES_PER_2M / NR_ENTRIES * NR_ENTRIES;
	w->table = below(&v->rng, 2) ? guest_spare_table(v) : 0;
}

/*
 * Nothing has to be flushed when an entry becomes present; going from one present
 * entry to another, it has.
 */
static void guest_map(struct vcpu_state *v, struct window *w)
{
	bool had_table = w->table, unmap = below(&v->rng, 2);

	if (unmap) {
		WRITE_ONCE(*window_pde(v, w), 0);
		guest_flush(v, window_gva(v, w), had_table);
	}

	window_choose(v, w);
	if (w->table)
		window_fill_table(v, w);
	WRITE_ONCE(*window_pde(v, w), window_new_pde(v, w));
	if (!unmap)
		guest_flush(v, window_gva(v, w), had_table);
}

static void guest_use_window(struct vcpu_state *v, struct window *w)
{
	u64 k, n = 1 + below(&v->rng, 8);

	for (; n; n--) {
		k = window_any(v, w);
		guest_use(v, window_page(w, k), window_page_gva(v, w, k));
	}
}

/*
 * Without a flush a write goes to where the window was or to where it is now.  It
 * must not go anywhere else, and not get lost.
 */
static void guest_check_either(struct vcpu_state *v, u64 from, u64 to, u64 word)
{
	u64 gva_from = view_gva(guest_any_view(v), from), gva_to = view_gva(VIEW_4K, to);
	u64 seen_from = READ_ONCE(*guest_word(v, from, gva_from));
	u64 seen_to = READ_ONCE(*guest_word(v, to, gva_to));

	if (seen_from == word)
		v->last[from] = word;
	else if (seen_to == word)
		v->last[to] = word;
	else if (!is_fresh(seen_from) && !is_fresh(seen_to))
		guest_complain(v, BAD_WORD, to, gva_to, word, seen_to);

	guest_check(v, from, gva_from, seen_from);
	guest_check(v, to, gva_to, seen_to);
}

static void guest_remap_unflushed(struct vcpu_state *v, struct window *w)
{
	u64 from, to, gva, word, k = window_any(v, w);

	if (w->chunk < FIRST_WHOLE_CHUNK || w->chunk > LAST_WHOLE_CHUNK)
		return;

	from = window_page(w, k);
	gva = window_page_gva(v, w, k);
	guest_use(v, from, gva);

	w->chunk = OTHER_WHOLE_CHUNK(w->chunk);
	to = window_page(w, k);
	if (w->table)
		window_fill_table(v, w);
	else
		WRITE_ONCE(*window_pde(v, w), window_new_pde(v, w));

	/* A word has the same place in both. */
	word = guest_new_word(v);
	WRITE_ONCE(*guest_word(v, from, gva), word);
	guest_flush(v, gva, w->table);
	guest_check_either(v, from, to, word);
}

static u8 guest_try_write(struct vcpu_state *v, u64 page, u64 gva)
{
	u64 word = guest_new_word(v);
	u8 vector = kvm_asm_safe("movq %%rax, (%%rdi)", "a"(word),
				 "D"(guest_word(v, page, gva)));

	if (!vector)
		v->last[page] = word;
	return vector;
}

/* An entry that allows more than before may fault once as long as it is cached. */
static void guest_toggle_writable(struct vcpu_state *v, struct window *w)
{
	u64 k = window_any(v, w), page = window_page(w, k), gva = window_page_gva(v, w, k);
	u64 *entry = window_entry(v, w, k);
	u8 vector;

	guest_use(v, page, gva);
	WRITE_ONCE(*entry, *entry & ~PTE_WRITABLE_MASK);
	guest_flush(v, gva, false);
	vector = guest_try_write(v, page, gva);
	if (vector != (CTL->wp ? PF_VECTOR : 0))
		guest_complain(v, BAD_PERMISSION, page, gva, CTL->wp ? PF_VECTOR : 0, vector);
	guest_read(v, page, gva);

	WRITE_ONCE(*entry, *entry | PTE_WRITABLE_MASK);
	if (!guest_try_write(v, page, gva))
		return;

	guest_flush(v, gva, false);
	vector = guest_try_write(v, page, gva);
	if (vector)
		guest_complain(v, BAD_PERMISSION, page, gva, 0, vector);
}

/*
 * Without CR0.WP a read-only entry is enough to write, so when KVM has to emulate a
 * write it takes the translation of the read before it, which set no Dirty bit.
 */
static void guest_toggle_dirty(struct vcpu_state *v, struct window *w)
{
	u64 k = window_any(v, w), page = window_page(w, k), gva = window_page_gva(v, w, k);
	u64 *entry = window_entry(v, w, k), nr_mmio = READ_ONCE(v->nr_mmio);

	WRITE_ONCE(*entry, *entry & ~(PTE_DIRTY_MASK | PTE_ACCESSED_MASK));
	guest_flush(v, gva, false);
	if (below(&v->rng, 2)) {
		guest_read(v, page, gva);
		if (READ_ONCE(*entry) & PTE_DIRTY_MASK)
			guest_complain(v, BAD_DIRTY, page, gva, 0, *entry);
	}

	guest_write(v, page, gva);
	if (!(READ_ONCE(*entry) & PTE_DIRTY_MASK) &&
	    (CTL->wp || READ_ONCE(v->nr_mmio) == nr_mmio))
		guest_complain(v, BAD_CLEAN, page, gva, PTE_DIRTY_MASK, *entry);
}

/* Words that may look like entries, in a page that is none any more. */
static void guest_write_table(struct vcpu_state *v, u64 nr)
{
	u64 *table = guest_table(v, nr), at, word, n = 1 + below(&v->rng, 6);

	for (; n; n--) {
		at = below(&v->rng, PAGES_PER_2M);
		word = rng_next(&v->rng);
		WRITE_ONCE(table[at], word);
		if (READ_ONCE(table[at]) != word)
			guest_complain(v, BAD_TABLE, nr, (u64)&table[at], word, table[at]);
	}
}

/* Another page becomes the page table, and the old one is data. */
static void guest_move_table(struct vcpu_state *v, struct window *w)
{
	u64 old = w->table;

	if (old) {
		w->table = guest_spare_table(v);
		window_fill_table(v, w);
		WRITE_ONCE(*window_pde(v, w), window_new_pde(v, w));
		guest_flush(v, window_gva(v, w), true);
		guest_write_table(v, old);
		guest_use_window(v, w);
	} else {
		guest_write_table(v, guest_spare_table(v));
	}
}

static void guest_do_window(struct vcpu_state *v)
{
	struct window *w = &v->windows[below(&v->rng, NR_WINDOWS)];

	switch (below(&v->rng, 10)) {
	case 0 ... 1:
		guest_map(v, w);
		guest_use_window(v, w);
		break;
	case 2:
		guest_remap_unflushed(v, w);
		break;
	case 3:
		guest_toggle_writable(v, w);
		break;
	case 4:
		guest_toggle_dirty(v, w);
		break;
	case 5:
		guest_move_table(v, w);
		break;
	default:
		guest_use_window(v, w);
	}
}

/* vCPUs that never rest would take the CPUs away from all others. */
static void guest_main(u64 id)
{
	struct vcpu_state *v = &CTL->vcpus[id];
	bool windows = CTL->views & USE_WINDOWS;
	unsigned int i;

	for (i = 0; windows && i < NR_WINDOWS; i++)
		guest_map(v, &v->windows[i]);

	for (;;) {
		if (READ_ONCE(CTL->stop) || !(v->nr_ops % CTL->ops_per_rest))
			GUEST_UCALL_NONE();
		if (v->swept != READ_ONCE(CTL->sweep))
			guest_sweep(v, CTL->sweep);
		if (windows && below(&v->rng, 2))
			guest_do_window(v);
		else
			guest_burst(v);
		v->nr_ops++;
	}
}

#endif /* SELFTEST_KVM_EAGER_SPLIT_STRESS_GUEST_H */
