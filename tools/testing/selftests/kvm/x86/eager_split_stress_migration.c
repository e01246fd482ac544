// SPDX-License-Identifier: GPL-2.0-only
/* A round of eager_split_stress_test: one migration, and its checks. */
#include "eager_split_stress.h"

#define MERGED			"/proc/self/ksm_merging_pages"
#define THOROUGH_ROUNDS		16

/* The longest pause before the log is collected, in microseconds. */
#define COLLECT_NAP_US		400

/*
 * How long to wait until vCPUs have used all huge pages, and how often to
 * check.
 */
#define SETTLE_MAX_US		20000
#define SETTLE_STEP_US		100

/* The migration */

static u64 nr_words(struct region *r)
{
	return DIV_ROUND_UP(r->nr_pages, BITS_PER_WORD);
}

static u64 *page_in(void *p, u64 page)
{
	return p + page * PAGE_SIZE;
}

/* The library's memcpy() and memcmp() are for guests, and go byte by byte. */
static void copy_words(u64 *to, const u64 *from, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		WRITE_ONCE(to[i], from[i]);
}

static bool are_same_words(const u64 *a, const u64 *b, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		if (a[i] != b[i])
			return false;
	return true;
}

/* Return: the first word of a page that may change. */
static u64 first_word(struct region *r, u64 page)
{
	return r->words_only ? word_offset(page, 0) / sizeof(u64) : 0;
}

static unsigned int nr_page_words(struct region *r)
{
	return r->words_only ? NR_VCPUS : WORDS_PER_PAGE;
}

static void copy_page(struct region *r, u64 page)
{
	u64 first = first_word(r, page);

	if (page >= r->nr_used)
		return;

	copy_words(page_in(r->copy, page) + first, page_in(r->hva, page) + first, nr_page_words(r));
	counters.copied++;
}

static void copy_todo(struct region *r)
{
	u64 page;

	for (u64 word = 0; word < nr_words(r); word++) {
		r->todo[word] |= __atomic_exchange_n(&r->host_dirty[word], 0, __ATOMIC_SEQ_CST);
		while (r->todo[word]) {
			page = word * BITS_PER_WORD + __builtin_ctzl(r->todo[word]);
			r->todo[word] &= r->todo[word] - 1;
			copy_page(r, page);
		}
	}
}

/* Draw whether allocations fail in this round, which, and how often. */
static void choose_faults(struct stress *t)
{
	enum fault_site site = below(&t->rng, NR_SITES);
	u64 order = below(&t->rng, site == SITE_DESCS ? 10 : 2);

	/*
	 * Without shadow paging, few gfns have two SPTEs and need descriptors.
	 */
	if (site == SITE_DESCS && kvm_is_tdp_enabled())
		site = SITE_HEADERS;
	t->inject = below(&t->rng, 8) && can_fail();
	count_faults();
	select_faults(site, BIT(order));
}

/*
 * Enable logging, and copy all pages, unless all of them are in the log
 * initially.  Do not let allocations of pages fail here, as enabling also needs
 * pages for other purposes than splitting, and would fail.
 */
static void start_logging(struct stress *t, struct region *r)
{
	bool inject = t->inject && faults.site != SITE_PAGES;

	if (inject)
		begin_faults(0);
	set_region(t, r, r->gpa, true, true);
	if (inject)
		end_faults();
	if (t->log_mode != LOG_INIT_SET) {
		bitmap_fill(r->todo, r->nr_pages);
		copy_todo(r);
	}
}

/* CLEAR allocates only to split, so allocations of pages may fail as well. */
static void clear_with_faults(struct stress *t, struct region *r, u64 first, u64 nr)
{
	u64 nth = 1 + below(&t->rng, 3);

	if (t->inject)
		begin_faults(nth);
	kvm_vm_clear_dirty_log(t->vm, r->slot, &r->arg[first / BITS_PER_WORD], first, nr);
	if (t->inject)
		end_faults();
}

/*
 * CLEAR all or some pages of a random range: any, or those that GET returned.
 */
static void clear_range(struct stress *t, struct region *r)
{
	u64 word = below(&t->rng, nr_words(r)), nr = 1 + below(&t->rng, nr_words(r) - word);
	u64 first = word * BITS_PER_WORD, end = word + nr;
	bool blind = !below(&t->rng, 8), some = below(&t->rng, 2);
	u64 valid;

	for (; word < end; word++) {
		valid = min_t(u64, BITS_PER_WORD, r->nr_pages - word * BITS_PER_WORD);
		r->arg[word] = blind ? ~0ul >> (BITS_PER_WORD - valid) : r->log[word];
		if (some)
			r->arg[word] &= rng_next(&t->rng);
		r->todo[word] |= r->arg[word];
	}
	clear_with_faults(t, r, first, min_t(u64, nr * BITS_PER_WORD, r->nr_pages - first));
}

/*
 * The page that vCPUs only read must not be in the log.  Check that only in VMs
 * that are logged from the start, and not with initially-all-set, which puts
 * all pages into the log.
 */
static void check_only_read(struct stress *t, struct region *r, bool logged)
{
	CHECK(t, !logged || !t->tracked || t->log_mode == LOG_INIT_SET,
	      "page %lu of slot %u was only read, and is in the log", ONLY_READ_PAGE, r->slot);
}

static void collect_bitmap(struct stress *t, struct region *r, bool last)
{
	kvm_vm_get_dirty_log(t->vm, r->slot, r->log);
	if (r == tables_region(t))
		check_only_read(t, r, test_bit(ONLY_READ_PAGE, r->log));
	if (t->log_mode == LOG_GET || last) {
		for (u64 word = 0; word < nr_words(r); word++)
			r->todo[word] |= r->log[word];
		return;
	}

	for (u64 nr = 1 + below(&t->rng, 3); nr; nr--)
		clear_range(t, r);
}

static void take_ring_entry(struct stress *t, struct kvm_dirty_gfn *entry)
{
	struct region *r = entry->slot == DATA_SLOT ? data_region(t) : tables_region(t);

	CHECK(t, entry->slot == r->slot && entry->offset < r->nr_pages,
	      "slot %u, offset 0x%llx in the dirty ring", entry->slot, entry->offset);
	check_only_read(t, r, r == tables_region(t) && entry->offset == ONLY_READ_PAGE);
	__set_bit(entry->offset, r->todo);
	__atomic_store_n(&entry->flags, KVM_DIRTY_GFN_F_RESET, __ATOMIC_RELEASE);
}

static void collect_rings(struct stress *t)
{
	struct kvm_dirty_gfn *ring, *entry;

	for (unsigned int i = 0; i < NR_VCPUS; i++) {
		ring = vcpu_map_dirty_ring(t->vcpus[i]);
		for (;; t->ring_index[i]++) {
			entry = &ring[t->ring_index[i] % (RING_BYTES / sizeof(*entry))];
			if (__atomic_load_n(&entry->flags, __ATOMIC_ACQUIRE) !=
			    KVM_DIRTY_GFN_F_DIRTY)
				break;
			take_ring_entry(t, entry);
		}
	}
	kvm_vm_reset_dirty_ring(t->vm);
}

void collect_log(struct stress *t, bool last)
{
	if (t->log_mode == LOG_RING)
		collect_rings(t);
	else
		for (unsigned int i = 0; i < t->nr_logged; i++)
			collect_bitmap(t, &t->regions[i], last);

	for (unsigned int i = 0; i < t->nr_logged; i++)
		copy_todo(&t->regions[i]);
}

/* The log is deleted with the memslot, so copy all pages afterwards. */
static void delete_slot(struct stress *t)
{
	struct region *r = data_region(t);

	set_region(t, r, r->gpa, false, false);
	usleep(below(&t->rng, 100));
	set_region(t, r, r->gpa, true, true);
	for (u64 page = 0; page < r->nr_pages; page++)
		set_host_dirty(r, page);
}

/* The log moves with the memslot. */
static void move_slot(struct stress *t)
{
	struct region *r = data_region(t);

	set_region(t, r, MOVED_GPA, true, true);
	usleep(below(&t->rng, 100));
	set_region(t, r, r->gpa, true, true);
}

/* The checks at the end of a round, while all threads are parked */

static void report_lost_write(struct stress *t, struct region *r, u64 page)
{
	u64 *copy = page_in(r->copy, page), *memory = page_in(r->hva, page), i;

	for (i = 0; i < WORDS_PER_PAGE - 1 && copy[i] == memory[i]; i++)
		;
	FAIL(t, "lost write: gfn 0x%lx, page %lu of slot %u: 0x%lx, now 0x%lx at 0x%lx",
	     (r->gpa >> PAGE_SHIFT) + page, page, r->slot, copy[i], memory[i], i * sizeof(u64));
}

static void check_copy(struct stress *t, struct region *r)
{
	bool thorough = !(counters.rounds % THOROUGH_ROUNDS);
	u64 first, nr = thorough ? r->nr_pages : r->nr_used;
	unsigned int nr_words = thorough ? WORDS_PER_PAGE : nr_page_words(r);

	for (u64 page = 0; page < nr; page++) {
		first = thorough ? 0 : first_word(r, page);
		if (!are_same_words(page_in(r->copy, page) + first, page_in(r->hva, page) + first,
				    nr_words))
			report_lost_write(t, r, page);
	}
	counters.pages += nr;
}

/* Print where a missing word is instead, which shows how it was written. */
static void look_for(const char *where, const void *p, size_t size, u64 word)
{
	const u64 *words = p;

	if (!p)
		return;

	for (u64 i = 0; i < size / sizeof(*words); i++)
		if (words[i] == word)
			ksft_print_msg("0x%lx is in %s, page %lu, at 0x%lx\n", word, where,
				       i / WORDS_PER_PAGE, i % WORDS_PER_PAGE * sizeof(word));
}

static void report_wrong_word(struct stress *t, struct vcpu_state *v, u64 page, u64 seen)
{
	u64 word = v->last[page], chunk = (FIRST_PAGE + page) / PAGES_PER_2M;
	char name[20];

	look_for("the memslot", data_region(t)->hva, NR_PAGES * PAGE_SIZE, word);
	look_for("the memory taken last", t->jar.mapping, SZ_2M, word);
	look_for("the page tables", tables_region(t)->hva, SZ_2M, word);
	/* Banks have a mapping only if the memory is shared. */
	for (unsigned int i = 0; i < NR_BANKS; i++) {
		snprintf(name, sizeof(name), "bank %u%s", i,
			 t->current_bank[chunk] == i ? ", in use" : "");
		look_for(name, t->banks[i].mapping, DATA_SIZE, word);
	}
	FAIL(t, "wrong memory: gfn 0x%lx (page %lu), vCPU %lu: wrote 0x%lx, seen 0x%lx%s",
	     data_gfn(page), page, v - t->ctl->vcpus, word, seen,
	     READ_ONCE(t->ctl->taken[page]) ? ", taken in this round" : "");
}

static void check_words(struct stress *t, struct vcpu_state *v)
{
	u64 seen, id = v - t->ctl->vcpus;
	void *hva = data_region(t)->hva;

	for (u64 page = 0; page < NR_PAGES; page++) {
		seen = READ_ONCE(*(u64 *)(hva + page * PAGE_SIZE + word_offset(page, id)));
		if (!may_be(t->ctl, page, seen, v->last[page]))
			report_wrong_word(t, v, page, seen);
		v->last[page] = seen;
	}
}

static void check_round(struct stress *t)
{
	collect_log(t, true);
	for (unsigned int i = 0; i < t->nr_logged; i++)
		check_copy(t, &t->regions[i]);

	/* Check this before words: it tells where a missing word has gone. */
	check_all_poison(t);
	for (unsigned int i = 0; i < NR_VCPUS; i++)
		check_words(t, &t->ctl->vcpus[i]);
	memset(t->ctl->taken, 0, sizeof(t->ctl->taken));
}

/* Has KSM merged any pages of this process? */
static bool have_merged(void)
{
	char text[SETTING_MAX];

	return read_file(MERGED, text, sizeof(text)) && atoi(text);
}

void stop_world(struct stress *t)
{
	WRITE_ONCE(t->ctl->stop, 1);
	gate_set(&t->gate, true);
	while (!gate_wait(&t->gate, NR_VCPUS + NR_HOST_THREADS))
		if (t->log_mode == LOG_RING)
			collect_rings(t);
}

void start_world(struct stress *t)
{
	WRITE_ONCE(t->ctl->stop, 0);
	gate_set(&t->gate, false);
}

static void migrate(struct stress *t)
{
	for (u64 nr = below(&t->rng, 3); nr; nr--) {
		usleep(below(&t->rng, COLLECT_NAP_US));
		collect_log(t, false);
		if (!below(&t->rng, 16))
			delete_slot(t);
		if (!below(&t->rng, 16))
			move_slot(t);
	}
	usleep(below(&t->rng, COLLECT_NAP_US));
}

static bool have_swept(struct stress *t)
{
	for (unsigned int i = 0; i < NR_VCPUS; i++)
		if (READ_ONCE(t->ctl->vcpus[i].swept) != t->ctl->sweep)
			return false;
	return true;
}

/* Let vCPUs use all huge pages, so that KVM has huge pages to split. */
static void settle(struct stress *t)
{
	WRITE_ONCE(t->ctl->sweep, t->ctl->sweep + 1);
	for (unsigned int us = 0; us < SETTLE_MAX_US && !have_swept(t); us += SETTLE_STEP_US)
		usleep(SETTLE_STEP_US);
}

static void start_all_logging(struct stress *t)
{
	choose_faults(t);
	if (t->tracked) {
		t->nr_logged = NR_REGIONS;
		return;
	}
	t->nr_logged = below(&t->rng, 4) ? 1 : NR_REGIONS;
	for (unsigned int i = 0; i < t->nr_logged; i++)
		start_logging(t, &t->regions[i]);
}

static void stop_all_logging(struct stress *t)
{
	if (t->tracked)
		return;
	for (struct region *r = t->regions; r < t->regions + t->nr_logged; r++)
		set_region(t, r, r->gpa, true, false);
}

void one_round(struct stress *t)
{
	bool early = below(&t->rng, 2);

	if (!below(&t->rng, t->pace->settle_one_in))
		settle(t);
	start_all_logging(t);
	migrate(t);
	stop_world(t);
	check_round(t);

	if (early)
		stop_all_logging(t);
	start_world(t);
	if (!early)
		stop_all_logging(t);
	counters.rounds++;
	counters.rounds_of[t->log_mode]++;
	counters.rounds_by_dirty_bits += t->by_dirty_bits;
	counters.rounds_fast += t->pace->is_fast;
	counters.rounds_tracked += t->tracked;
	counters.rounds_merged += have_merged();
}
