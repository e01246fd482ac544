// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest of eager_split_stress_test
 *
 * Each vCPU has its own word in each page of the memory under test, and knows
 * which value it has last written there.  It reads the word through all
 * mappings, and reports any other value as an error, unless the host has
 * announced that it takes the page away.
 */
#include "eager_split_stress_guest.h"

/* A window uses this many entries of its page table, in a permuted order. */
#define NR_ENTRIES		32ul
#define ENTRY_PAGE(k)		(((k) * 5 + 3) % NR_ENTRIES)

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

/* Use some consecutive pages, or some pages at equal distances. */
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
	u64 page;

	for (u64 chunk = FIRST_WHOLE_CHUNK; chunk <= LAST_WHOLE_CHUNK; chunk++)
		for (u64 view = 0; view < NR_VIEWS; view++) {
			page = chunk * PAGES_PER_2M + below(&v->rng, PAGES_PER_2M) - FIRST_PAGE;
			if (CTL->views & BIT(view))
				guest_use(v, page, view_gva(view, page));
		}
	WRITE_ONCE(v->swept, sweep);
}

/* Windows */

static u64 *guest_table(struct vcpu_state *v, u64 nr)
{
	return (u64 *)(TABLES_GPA + (guest_id(v) * TABLES_PER_VCPU + nr) * PAGE_SIZE);
}

static u64 window_gva(struct vcpu_state *v, struct window *w)
{
	return WINDOW_GVA(guest_id(v)) + (w - v->windows) * SZ_2M;
}

static u64 *window_pde(struct vcpu_state *v, struct window *w)
{
	return &guest_table(v, 0)[w - v->windows];
}

/* Translations of all addresses of a page table may be cached. */
static void guest_flush(struct vcpu_state *v, u64 gva, bool table)
{
	if (table || !below(&v->rng, 4))
		asm volatile("mov %%cr3, %%rax; mov %%rax, %%cr3" ::: "rax", "memory");
	else
		asm volatile("invlpg (%0)" :: "r"(gva) : "memory");
}

/* Return: which page of the chunk is the @k-th page of the window. */
static u64 window_index(struct window *w, u64 k)
{
	return w->table ? w->first + ENTRY_PAGE(k) : k;
}

static u64 window_page_gva(struct vcpu_state *v, struct window *w, u64 k)
{
	return window_gva(v, w) + (w->table ? w->first + k : k) * PAGE_SIZE;
}

/* Pages before the slot wrap around to a huge number. */
static u64 window_page(struct window *w, u64 k)
{
	return w->chunk * PAGES_PER_2M + window_index(w, k) - FIRST_PAGE;
}

/* Return: the number of a random page of the window that is in the slot. */
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

static void window_fill_table(struct vcpu_state *v, struct window *w)
{
	u64 *entry = &guest_table(v, w->table)[w->first];
	u64 gpa = DATA_BASE + w->chunk * SZ_2M;

	for (u64 k = 0; k < NR_ENTRIES; k++)
		WRITE_ONCE(entry[k], (gpa + window_index(w, k) * PAGE_SIZE) | ENTRY_BITS);
}

static u64 window_new_pde(struct vcpu_state *v, struct window *w)
{
	if (w->table)
		return (u64)guest_table(v, w->table) | ENTRY_BITS;

	return (DATA_BASE + w->chunk * SZ_2M) | ENTRY_BITS | PT_HUGE_MASK;
}

static bool guest_table_is_used(struct vcpu_state *v, u64 nr)
{
	for (unsigned int i = 0; i < NR_WINDOWS; i++)
		if (v->windows[i].table == nr)
			return true;
	return false;
}

/* There are more page tables than windows, so one is always unused. */
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
 * An entry that becomes present needs no flush.  An entry that was present
 * before needs one.
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
 * Before the flush, a write may go to the old or to the new page of the window.
 * It must not go anywhere else, and must not get lost.
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

	/* The word has the same offset in both pages. */
	word = guest_new_word(v);
	WRITE_ONCE(*guest_word(v, from, gva), word);
	guest_flush(v, gva, w->table);
	guest_check_either(v, from, to, word);
}

static u8 guest_try_write(struct vcpu_state *v, u64 page, u64 gva)
{
	u64 word = guest_new_word(v);
	u8 vector = kvm_asm_safe("movq %%rax, (%%rdi)", "a"(word), "D"(guest_word(v, page, gva)));

	if (!vector)
		v->last[page] = word;
	return vector;
}

/*
 * An entry that has become writable may fault once, if the old one is cached.
 */
static void guest_toggle_writable(struct vcpu_state *v, struct window *w)
{
	u64 k = window_any(v, w), page = window_page(w, k), gva = window_page_gva(v, w, k);
	u64 *entry = window_entry(v, w, k);
	u8 vector;

	guest_use(v, page, gva);
	WRITE_ONCE(*entry, *entry & ~PT_WRITABLE_MASK);
	guest_flush(v, gva, false);
	vector = guest_try_write(v, page, gva);
	if (vector != (CTL->wp ? PF_VECTOR : 0))
		guest_complain(v, BAD_PERMISSION, page, gva, CTL->wp ? PF_VECTOR : 0, vector);
	guest_read(v, page, gva);

	WRITE_ONCE(*entry, *entry | PT_WRITABLE_MASK);
	if (!guest_try_write(v, page, gva))
		return;

	guest_flush(v, gva, false);
	vector = guest_try_write(v, page, gva);
	if (vector)
		guest_complain(v, BAD_PERMISSION, page, gva, 0, vector);
}

/*
 * Without CR0.WP, a write needs no writable entry.  If KVM then has to emulate
 * the write, it uses the translation of the read before, which has not set the
 * Dirty bit.
 */
static void guest_toggle_dirty(struct vcpu_state *v, struct window *w)
{
	u64 k = window_any(v, w), page = window_page(w, k), gva = window_page_gva(v, w, k);
	u64 *entry = window_entry(v, w, k), nr_mmio = READ_ONCE(v->nr_mmio);

	WRITE_ONCE(*entry, *entry & ~(PT_DIRTY_MASK | PT_ACCESSED_MASK));
	guest_flush(v, gva, false);
	if (below(&v->rng, 2)) {
		guest_read(v, page, gva);
		if (READ_ONCE(*entry) & PT_DIRTY_MASK)
			guest_complain(v, BAD_DIRTY, page, gva, 0, *entry);
	}

	guest_write(v, page, gva);
	if (!(READ_ONCE(*entry) & PT_DIRTY_MASK) && (CTL->wp || READ_ONCE(v->nr_mmio) == nr_mmio))
		guest_complain(v, BAD_CLEAN, page, gva, PT_DIRTY_MASK, *entry);
}

/* Write random words, which may look like entries, to a former page table. */
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

/* Use another page as the page table, and the old one as data. */
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

static void guest_map_and_use(struct vcpu_state *v, struct window *w)
{
	guest_map(v, w);
	guest_use_window(v, w);
}

static void (* const window_ops[])(struct vcpu_state *v, struct window *w) = {
	guest_map_and_use, guest_map_and_use, guest_remap_unflushed, guest_toggle_writable,
	guest_toggle_dirty, guest_move_table, guest_use_window, guest_use_window,
	guest_use_window, guest_use_window,
};

static void guest_do_window(struct vcpu_state *v)
{
	struct window *w = &v->windows[below(&v->rng, NR_WINDOWS)];

	window_ops[below(&v->rng, ARRAY_SIZE(window_ops))](v, w);
}

/* A vCPU rests from time to time, so that other threads get a CPU. */
void guest_main(u64 id)
{
	struct vcpu_state *v = &CTL->vcpus[id];

	for (unsigned int i = 0; i < NR_WINDOWS; i++)
		guest_map(v, &v->windows[i]);

	for (;;) {
		if (READ_ONCE(CTL->stop) || !(v->nr_ops % CTL->ops_per_rest))
			GUEST_UCALL_NONE();
		if (v->swept != READ_ONCE(CTL->sweep))
			guest_sweep(v, CTL->sweep);
		if (below(&v->rng, 2))
			guest_do_window(v);
		else
			guest_burst(v);
		READ_ONCE(*(u64 *)(TABLES_GPA + ONLY_READ_PAGE * PAGE_SIZE));
		v->nr_ops++;
	}
}
