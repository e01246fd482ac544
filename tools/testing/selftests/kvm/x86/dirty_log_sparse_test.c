// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logs of memory that is mapped by huge pages
 *
 * When KVM collects Dirty bits, and when it arms pages, it skips 2MiB blocks
 * that no 4KiB SPTE maps.  It also skips words of the log that contain no page.
 * Where 4KiB pages and huge pages meet, no page may be missing from the log.
 *
 * "edges" tries memslots of various sizes and alignments.  The guest writes
 * single pages at the borders of words of the log, of 2MiB blocks and of the
 * memslot.  Each GET must return exactly the written page.  The guest writes
 *  - through a 4KiB guest entry, while a huge page maps the rest of the block;
 *  - when the first write has split the huge page, or KVM has split it eagerly;
 *  - when the huge pages were restored, and are split again;
 *  - when the host has taken all memory away.
 * It writes each page twice, as the second write only sets the Dirty bit of an
 * existing SPTE.  The first time, CLEAR clears the whole word of the log, the
 * second time only this page.  With -s, it leaves out larger memslots, which
 * take very long on kernels that check all page tables after each step.
 *
 * "count" measures in TSC cycles
 *  - the cost of GET and CLEAR per 2MiB block that a huge page maps, as the
 *    difference between two memslots of different size.  Either nothing else
 *    has ever mapped the memory, or 4KiB pages have mapped it until logging was
 *    disabled, or 4KiB pages have mapped it until the host took it away;
 *  - the cost of CLEAR per word without a page, if few of them lie between
 *    words with a page.
 * With -i, -a and -w, the test fails if a cost exceeds the bound.  That is
 * useful on machines whose TSC counts instructions.
 *
 * It needs kvm.eager_page_split writable, and four free 2MiB HugeTLB pages.
 *
 * Limits: the vCPU does not run during an ioctl.  The address space of SMM is
 * tested by "eager_split_modes_test -m smm" only.
 */
#include "eager_split_util.h"

/* The memory begins at a multiple of 2MiB, and a memslot anywhere in it. */
#define EDGE_SLOT	10u
#define EDGE_GPA	0x40000000ull
#define MAX_EDGE_PAGES	(10 * PAGES_PER_2M)
#define LOG_WORDS	DIV_ROUND_UP(MAX_EDGE_PAGES, BITS_PER_WORD)
#define MAX_EDGES	128u

/* KVM checks the words of a log from the 16th to this one in one step. */
#define LAST_TOGETHER	77u

/* The same memory, mapped by 4KiB entries of the guest. */
#define SMALL_GVA	0x80000000ull

#define COUNT_SLOT	20u
#define COUNT_GPA	0x40000000ull
#define COUNT_STEP	SZ_1G
#define NR_COUNTS	2u
#define NR_RUNS		3u
#define MAX_EVERY	12u

enum way { WAY_AUTO, WAY_MANUAL, WAY_ALL_SET, NR_WAYS };

static const char * const ways[] = {
	[WAY_AUTO]	= "GET clears",
	[WAY_MANUAL]	= "manual protection",
	[WAY_ALL_SET]	= "initially all set",
};

/* A memslot: how many pages of the first 2MiB lie before it, and its size. */
static const struct area {
	unsigned int before;
	unsigned int nr_pages;
} areas[] = {
	{ 0, 1 },
	{ 0, 511 },
	{ 0, 512 },
	{ 0, 513 },
	{ 1, 511 },
	{ 511, 2 },
	{ 448, 576 },
	{ 321, 1400 },
	{ 64, 1984 },
	{ 0, 1536 },
	/* Contains LAST_TOGETHER. */
	{ 0, 5120 },
};

struct run {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	const char *eager;
	enum way way;
	const struct area *area;
	/* From the start of the first 2MiB block to the end of the last one. */
	void *memory;
	size_t size;
	/* The pages that are written, from the last one to the first. */
	unsigned int edges[MAX_EDGES];
	unsigned int nr_edges;
	unsigned long log[LOG_WORDS];
};

static u64 max_pages, max_cycles, max_auto_cycles, max_word_cycles;

/* What the guest does. */
static u64 first_gva, nr_accesses, step, writes;

static void guest_main(void)
{
	for (;;) {
		for (u64 i = 0; i < nr_accesses; i++) {
			u64 *p = (u64 *)(first_gva + i * step);

			if (writes)
				WRITE_ONCE(*p, i);
			else
				READ_ONCE(*p);
		}
		GUEST_SYNC(0);
	}
}

static void run_guest(struct kvm_vm *vm, struct kvm_vcpu *vcpu, u64 gva, u64 nr, u64 bytes,
		      bool write)
{
	write_guest_global(vm, first_gva, gva);
	write_guest_global(vm, nr_accesses, nr);
	write_guest_global(vm, step, bytes);
	write_guest_global(vm, writes, (u64)write);
	vcpu_run_to_sync(vcpu, NULL);
}

/* Edges */

static const char *label(const struct run *r)
{
	static char text[120];

	snprintf(text, sizeof(text), "%u pages from page %u on, eager_page_split=%s, %s",
		 r->area->nr_pages, r->area->before, r->eager, ways[r->way]);
	return text;
}

static u64 gpa_of(const struct run *r, unsigned int page)
{
	return EDGE_GPA + (r->area->before + page) * PAGE_SIZE;
}

static u64 small_gva_of(const struct run *r, unsigned int page)
{
	return gpa_of(r, page) - EDGE_GPA + SMALL_GVA;
}

static unsigned long word_with(int page, unsigned int word)
{
	return page >= 0 && page / BITS_PER_WORD == word ? 1ul << page % BITS_PER_WORD : 0;
}

/* The log must contain only @page, or no page at all if @page is negative. */
static void expect_page(struct run *r, int page, const char *when)
{
	unsigned int nr_words = DIV_ROUND_UP(r->area->nr_pages, BITS_PER_WORD);

	memset(r->log, 0xa5, sizeof(r->log));
	kvm_vm_get_dirty_log(r->vm, EDGE_SLOT, r->log);
	for (unsigned int word = 0; word < nr_words; word++) {
		unsigned long wrong = r->log[word] ^ word_with(page, word);
		int first = word * BITS_PER_WORD + (wrong ? __builtin_ctzl(wrong) : 0);

		CHECK_CASE(label(r), !wrong, "%s, page %d: page %d is %s", when, page, first,
			   first == page ? "missing" : "in the log");
	}
}

/* Clear the page that is in the log.  @word: clear all pages of its word. */
static void clear_page(struct run *r, unsigned int page, bool word)
{
	unsigned int nr = r->area->nr_pages;
	unsigned int first = word ? round_down(page, BITS_PER_WORD) : page;
	unsigned int end = word ? min(first + BITS_PER_WORD, nr) : page + 1;

	if (r->way == WAY_AUTO)
		return;

	memset(r->log, 0, sizeof(r->log));
	for (unsigned int i = first; i < end; i++)
		__set_bit(i, r->log);
	kvm_vm_clear_dirty_log(r->vm, EDGE_SLOT, r->log, 0, nr);
}

static void write_page(struct run *r, unsigned int page, u64 gva, const char *when)
{
	for (unsigned int i = 0; i < 2; i++) {
		run_guest(r->vm, r->vcpu, gva, 1, 0, true);
		expect_page(r, page, when);
		clear_page(r, page, i == 0);
		expect_page(r, -1, when);
	}
}

static void write_edges(struct run *r, const char *when)
{
	for (unsigned int i = 0; i < r->nr_edges; i++)
		write_page(r, r->edges[i], gpa_of(r, r->edges[i]), when);
}

/*
 * Write to pages of every other 2MiB block.  Unless KVM splits eagerly, the
 * blocks in between stay huge, and share words of the log with the written
 * ones.
 */
static void write_small_blocks(struct run *r, const char *when)
{
	for (unsigned int i = 0; i < r->nr_edges; i++)
		if ((r->area->before + r->edges[i]) / PAGES_PER_2M % 2)
			write_page(r, r->edges[i], small_gva_of(r, r->edges[i]), when);
}

/* Write to a few pages of each 2MiB block, including partial ones. */
static void write_small_pages(struct run *r, const char *when)
{
	for (unsigned int i = 0; i < r->nr_edges; i += 3)
		write_page(r, r->edges[i], small_gva_of(r, r->edges[i]), when);
}

static void access_all(struct run *r, bool write)
{
	run_guest(r->vm, r->vcpu, gpa_of(r, 0), r->area->nr_pages, PAGE_SIZE, write);
}

static void set_logging(struct run *r, bool on)
{
	unsigned int nr = r->area->nr_pages;

	vm_set_user_memory_region(r->vm, EDGE_SLOT, on ? KVM_MEM_LOG_DIRTY_PAGES : 0, gpa_of(r, 0),
				  nr * PAGE_SIZE, r->memory + r->area->before * PAGE_SIZE);
	if (!on || r->way != WAY_ALL_SET)
		return;

	memset(r->log, 0xff, sizeof(r->log));
	kvm_vm_clear_dirty_log(r->vm, EDGE_SLOT, r->log, 0, nr);
}

static void add_edge(struct run *r, unsigned int page)
{
	if (page >= r->area->nr_pages)
		return;

	for (unsigned int i = 0; i < r->nr_edges; i++)
		if (r->edges[i] == page)
			return;

	TEST_ASSERT(r->nr_edges < MAX_EDGES, "%s: too many edges", label(r));
	r->edges[r->nr_edges++] = page;
}

/* Pages on both sides of borders of 2MiB blocks and of words close to them. */
static void find_edges(struct run *r)
{
	unsigned int nr = r->area->nr_pages;

	add_edge(r, nr - 1);
	for (int page = round_up(nr, PAGES_PER_2M); page >= 0; page -= PAGES_PER_2M) {
		unsigned int border = page - r->area->before;
		unsigned int word = round_down(border, BITS_PER_WORD);

		add_edge(r, border);
		add_edge(r, border - 1);
		add_edge(r, word);
		add_edge(r, word - 1);
		add_edge(r, word + BITS_PER_WORD);
		add_edge(r, border + 100);
	}
	add_edge(r, LAST_TOGETHER * BITS_PER_WORD);
	add_edge(r, 0);
}

static void run_area(struct run *r)
{
	r->size = align_up((r->area->before + r->area->nr_pages) * PAGE_SIZE, SZ_2M);
	r->memory = reserve_2m_aligned(r->size);
	map_one_2m_page(r->memory, r->size);
	r->nr_edges = 0;
	find_edges(r);

	r->vm = __vm_create(VM_SHAPE_DEFAULT, 1, 0);
	if (r->way != WAY_AUTO)
		vm_enable_manual_protect(r->vm, r->way == WAY_ALL_SET);
	r->vcpu = vm_vcpu_add(r->vm, 0, guest_main);
	set_logging(r, false);
	virt_map_level(r->vm, EDGE_GPA, EDGE_GPA, r->size, PG_LEVEL_2M);
	virt_map(r->vm, SMALL_GVA, EDGE_GPA, r->size / PAGE_SIZE);

	/*
	 * Earlier writes must not be in the log, and KVM must arm these pages.
	 */
	access_all(r, true);
	run_guest(r->vm, r->vcpu, small_gva_of(r, 0), 1, 0, true);
	set_logging(r, true);
	expect_page(r, -1, "logging enabled");
	write_small_blocks(r, "written by a small page");
	write_edges(r, "written");

	set_logging(r, false);
	access_all(r, false);
	set_logging(r, true);
	expect_page(r, -1, "logging enabled again");
	write_edges(r, "written again");

	/* The host replaces all of the memory by other memory. */
	map_one_2m_page(r->memory, r->size);
	expect_page(r, -1, "memory replaced");
	access_all(r, false);
	write_small_pages(r, "written by a small page of other memory");
	write_edges(r, "written to other memory");

	kvm_vm_free(r->vm);
	munmap(r->memory, r->size);
}

static const char *run_edges(void)
{
	static const char * const values[] = { "N", "Y" };
	struct run r = { };

	for (unsigned int i = 0; i < ARRAY_SIZE(values); i++) {
		r.eager = values[i];
		setting_set(PARAM_EAGER, r.eager);
		for (r.way = 0; r.way < NR_WAYS; r.way++)
			for (unsigned int j = 0; j < ARRAY_SIZE(areas); j++) {
				r.area = &areas[j];
				if (!max_pages || r.area->nr_pages <= max_pages)
					run_area(&r);
			}
	}
	return NULL;
}

/* Count */

static const unsigned int count_blocks[NR_COUNTS] = { 16, 48 };

struct count {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	bool manual;
	void *hva[NR_COUNTS];
	unsigned long *log;
};

static void count_get(struct count *c, unsigned int i)
{
	kvm_vm_get_dirty_log(c->vm, COUNT_SLOT + i, c->log);
}

static void count_clear(struct count *c, unsigned int i)
{
	kvm_vm_clear_dirty_log(c->vm, COUNT_SLOT + i, c->log, 0, count_blocks[i] * PAGES_PER_2M);
}

static u64 least_cycles(struct count *c, unsigned int i,
			void (*fn)(struct count *c, unsigned int i))
{
	u64 start, cycles, least = ~0ull;

	for (unsigned int run = 0; run < NR_RUNS; run++) {
		start = rdtsc();
		fn(c, i);
		cycles = rdtsc() - start;
		least = min(least, cycles);
	}
	return least;
}

/* How many cycles @fn takes more for many blocks than for few. */
static u64 cycles_for_more(struct count *c, void (*fn)(struct count *c, unsigned int i))
{
	u64 few = least_cycles(c, 0, fn), many = least_cycles(c, 1, fn);

	return many > few ? many - few : 0;
}

static void count_cost(struct count *c, const char *what, const char *memory, u64 most,
		       void (*fn)(struct count *c, unsigned int i))
{
	u64 cycles;

	memset(c->log, 0, count_blocks[1] * PAGES_PER_2M / 8);
	cycles = DIV_ROUND_UP(cycles_for_more(c, fn), count_blocks[1] - count_blocks[0]);
	pr_info("%s, %s, %s: %lu cycles per 2MiB\n", what, c->manual ? ways[WAY_MANUAL] :
		ways[WAY_AUTO], memory, cycles);
	TEST_ASSERT(!most || cycles <= most,
		    "%s, %s, %s: expected at most %lu cycles per 2MiB, seen %lu", what,
		    c->manual ? ways[WAY_MANUAL] : ways[WAY_AUTO], memory, most, cycles);
}

static void count_both(struct count *c, const char *memory)
{
	count_cost(c, "GET", memory, c->manual ? max_cycles : max_auto_cycles, count_get);
	if (c->manual)
		count_cost(c, "CLEAR", memory, max_cycles, count_clear);
}

/*
 * Return: how much more a CLEAR of many blocks costs than a CLEAR of few, if
 * one in @every words of the mask contains a page.
 */
static u64 scattered_cycles(struct count *c, unsigned int every)
{
	const unsigned int nr_words = count_blocks[1] * PAGES_PER_2M / BITS_PER_WORD;
	u64 cycles;

	memset(c->log, 0, nr_words * sizeof(*c->log));
	for (unsigned int i = 0; i < nr_words; i += every)
		c->log[i] = 1;

	cycles = cycles_for_more(c, count_clear);
	TEST_ASSERT(cycles,
		    "CLEAR, a page in every %u words: expected more cycles for more memory", every);
	return cycles;
}

/*
 * If a page to be cleared is not in KVM's log, CLEAR collects Dirty bits once,
 * from this page on.  Return: what that costs.  In all masks below, this is the
 * first page.
 */
static u64 look_cycles(struct count *c)
{
	u64 none, one;

	memset(c->log, 0, count_blocks[1] * PAGES_PER_2M / 8);
	none = cycles_for_more(c, count_clear);
	c->log[0] = 1;
	one = cycles_for_more(c, count_clear);
	return one > none ? one - none : 0;
}

/*
 * CLEAR checks many words without a page at once.  That must not make it
 * expensive if there are few such words in a row.
 */
static void count_scattered(struct count *c)
{
	const u64 nr_blocks = count_blocks[1] - count_blocks[0];
	const u64 nr_words = nr_blocks * PAGES_PER_2M / BITS_PER_WORD;
	const u64 look = look_cycles(c), dense = scattered_cycles(c, 1) - look;
	u64 cycles, more;

	pr_info("CLEAR, a page that isn't in the log: %lu cycles per 2MiB behind it\n",
		DIV_ROUND_UP(look, nr_blocks));
	TEST_ASSERT(!max_cycles || look <= max_cycles * nr_blocks,
		    "CLEAR, a page that isn't in the log: expected at most %lu cycles per 2MiB, seen %lu",
		    max_cycles, DIV_ROUND_UP(look, nr_blocks));

	for (unsigned int every = 2; every <= MAX_EVERY; every++) {
		cycles = (scattered_cycles(c, every) - look) * every;
		more = cycles > dense ? DIV_ROUND_UP(cycles - dense, (every - 1) * nr_words) : 0;
		pr_info("CLEAR, a page in every %u words: %lu cycles, %lu per word without a page\n",
			every, cycles / nr_words, more);
		TEST_ASSERT(!max_word_cycles || more <= max_word_cycles,
			    "CLEAR, a page in every %u words: expected at most %lu cycles per word without a page, seen %lu",
			    every, max_word_cycles, more);
	}
}

static u64 count_gpa(unsigned int i)
{
	return COUNT_GPA + i * COUNT_STEP;
}

static void count_set_logging(struct count *c, bool on)
{
	for (unsigned int i = 0; i < NR_COUNTS; i++)
		vm_set_user_memory_region(c->vm, COUNT_SLOT + i, on ? KVM_MEM_LOG_DIRTY_PAGES : 0,
					  count_gpa(i), count_blocks[i] * SZ_2M, c->hva[i]);
}

static void count_access(struct count *c, bool write)
{
	for (unsigned int i = 0; i < NR_COUNTS; i++)
		run_guest(c->vm, c->vcpu, count_gpa(i), count_blocks[i], SZ_2M, write);
}

static void count_expect_huge(struct count *c, unsigned int nr, const char *when)
{
	u64 seen = vm_get_stat(c->vm, pages_2m);

	TEST_ASSERT(nr ? seen >= nr : seen < count_blocks[0],
		    "%s: expected %s %u huge pages, seen %lu", when, nr ? "at least" : "less than",
		    nr ?: count_blocks[0], seen);
}

/*
 * Nothing maps memory that 4KiB pages have mapped.  With the TDP MMU, the cost
 * depends on which page tables CPUs have used, see dirty_log_idle_test.
 */
static void count_unmapped(struct count *c)
{
	count_access(c, true);
	count_expect_huge(c, 0, "all written again");
	for (unsigned int i = 0; i < NR_COUNTS; i++)
		map_one_2m_page(c->hva[i], count_blocks[i] * SZ_2M);

	/* KVM has logged the pages whose dirty SPTEs it has zapped. */
	for (unsigned int i = 0; i < NR_COUNTS; i++) {
		count_get(c, i);
		if (c->manual)
			count_clear(c, i);
	}
	count_both(c, "taken by the host");
}

static void run_counts(bool manual)
{
	const unsigned int nr = count_blocks[0] + count_blocks[1];
	struct count c = { .manual = manual };

	c.log = calloc(count_blocks[1], PAGES_PER_2M / 8);
	TEST_ASSERT(c.log, "Out of memory");
	c.vm = __vm_create(VM_SHAPE_DEFAULT, 1, 0);
	if (manual)
		vm_enable_manual_protect(c.vm, false);
	c.vcpu = vm_vcpu_add(c.vm, 0, guest_main);
	for (unsigned int i = 0; i < NR_COUNTS; i++) {
		c.hva[i] = reserve_2m_aligned(count_blocks[i] * SZ_2M);
		map_one_2m_page(c.hva[i], count_blocks[i] * SZ_2M);
		virt_map_level(c.vm, count_gpa(i), count_gpa(i), count_blocks[i] * SZ_2M,
			       PG_LEVEL_2M);
	}

	count_set_logging(&c, false);
	count_access(&c, true);
	count_set_logging(&c, true);
	count_expect_huge(&c, nr, "logging enabled");
	count_both(&c, "always huge");
	if (manual)
		count_scattered(&c);

	count_access(&c, true);
	count_expect_huge(&c, 0, "all written");
	count_set_logging(&c, false);
	count_access(&c, false);
	count_set_logging(&c, true);
	count_expect_huge(&c, nr, "logging enabled again");
	count_both(&c, "small before");

	if (!is_tdp_mmu())
		count_unmapped(&c);

	kvm_vm_free(c.vm);
	for (unsigned int i = 0; i < NR_COUNTS; i++)
		munmap(c.hva[i], count_blocks[i] * SZ_2M);
	free(c.log);
}

static const char *run_count(void)
{
	setting_set(PARAM_EAGER, "N");
	run_counts(true);
	run_counts(false);
	return NULL;
}

static const struct test_case {
	const char *name;
	const char *what;
	const char *(*run)(void);
} cases[] = {
	{ "edges", "nothing is lost where small pages and huge ones meet", run_edges },
	{ "count", "what GET and CLEAR cost for huge pages", run_count },
};

static const char *run_case(unsigned int row)
{
	return cases[row].run();
}

int main(int argc, char *argv[])
{
	struct choice choice = { cases, sizeof(*cases), ARRAY_SIZE(cases) };
	const struct test_option options[] = {
		{ 'm', "case", "run this case only, or those of several -m", .choice = &choice },
		{ 's', NULL, "the largest memslot of \"edges\", in pages; 0: any",
		  .number = &max_pages, .max = MAX_EDGE_PAGES },
		{ 'i', NULL,
		  "the most cycles per 2MiB of GET with manual protection, and of CLEAR; 0: any",
		  .number = &max_cycles, .max = 1000000 },
		{ 'a', NULL, "the most cycles per 2MiB of GET without manual protection; 0: any",
		  .number = &max_auto_cycles, .max = 1000000 },
		{ 'w', NULL,
		  "the most cycles of CLEAR per word without a page, between some with; 0: any",
		  .number = &max_word_cycles, .max = 1000000 },
		{ }
	};

	parse_test_options(argc, argv, options, "It needs 4 free 2MiB HugeTLB pages.\n\n");
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	TEST_REQUIRE(setting_exists(PARAM_EAGER));
	__TEST_REQUIRE(nr_free_2m_pages() >= 4, "too few 2MiB HugeTLB pages are free");

	ksft_print_header();
	return finish(run_chosen(&choice, run_case));
}
