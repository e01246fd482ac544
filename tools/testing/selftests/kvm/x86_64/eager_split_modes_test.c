// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting in every mode of the guest
 *
 * The shadow MMU maps guest memory with huge pages in different ways, depending
 * on how the guest maps it: without paging, with page tables of two, three and
 * four levels, through many addresses at once, with huge entries that are
 * read-only or clean, in SMM.  For each of them log dirty pages twice, and check
 * that no huge page is left where KVM splits eagerly, that the log has exactly
 * what was written, that memory has what was written, and that the huge pages
 * come back.
 *
 * It has to pass with kvm.eager_page_split=N as well, where huge pages stay until
 * they are written.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <linux/bitmap.h>
#include <linux/mman.h>
#include <linux/sizes.h>

#include "kvm_util.h"
#include "processor.h"
#include "test_util.h"
#include "eager_split_util.h"

/* Code, lists of addresses and page tables; mapped at the same address. */
#define LOW_SLOT		0
#define LOW_SIZE		SZ_4M
#define WRITE_GPA		0x1000ull
#define CODE_MAX		64
#define READ_GPA		(WRITE_GPA + CODE_MAX)
#define LIST_GPA		0x10000ull
#define LIST_MAX		8192u

/* The memory that is logged, aligned to the largest page. */
#define DATA_SLOT		1u
#define DATA_BASE		0x40000000ull

/* Memory that uses up shadow pages: one page in each 2MiB is touched. */
#define BALLAST_SLOT		2
#define BALLAST_BASE		0x10000000ull
#define BALLAST_PAGES		96u

#define SMM_AS_ID		1u
#define SLOT_OF(as_id, id)	((as_id) << 16 | (id))

#define PAGES_PER_1G		(512 * PAGES_PER_2M)

/* Past it, KVM takes all mappings of a gfn away when it gets another one. */
#define RMAP_RECYCLE_THRESHOLD	1000u

#define MAX_MMU_PAGES		200ul

/* Room for page tables that are built again, and for one or two splits. */
#define QUOTA_LEFT		7

#define NR_CYCLES		2
#define NR_FLIPPED_CYCLES	4
#define FLIP_PERIOD_US		50
#define NSEC_PER_TENTH		(NSEC_PER_SEC / 10)

#define PDES_PAE		512u
#define SHIFT_PAE		21
#define SHIFT_PSE		22

#define SEG_CODE		0xb
#define SEG_DATA		0x3
#define SEG_TSS			0xb
#define SELECTOR_CODE		0x8
#define SELECTOR_DATA		0x10
#define SELECTOR_TSS		0x18

struct split_test;

struct test_case {
	const char *name;
	const char *what;

	/* Prepare page tables and registers of the vCPU. */
	void (*enter)(struct split_test *t);

	/* What to do instead of two cycles of logging. */
	void (*run)(struct split_test *t);

	/* Why this machine can't, or NULL. */
	const char *(*why_not)(void);

	/* Huge pages that fit into the slot, and 4KiB pages on either side. */
	unsigned int nr_huge;
	unsigned int head;
	unsigned int tail;
	unsigned int level;

	/* How often the guest maps the slot, and the distance between them. */
	unsigned int aliases;
	u64 alias_step;

	/* Of how many pages one is used; all of them if zero. */
	unsigned int stride;

	/* Nothing is written before logging begins. */
	bool read_first;

	/* It makes no sense without initially-all-set. */
	bool manual_only;
};

struct split_test {
	const struct test_case *c;
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	bool manual;
	bool logging;
	unsigned int cycle;

	/* The parameter changes all the time: huge pages can't be predicted. */
	bool unpredictable;

	/* The slot under test. */
	u32 slot;
	u64 gpa;
	u64 npages;
	void *mapping;
	size_t mapping_size;
	void *hva;

	/* What should be in the log, and in memory. */
	unsigned long *log;
	u32 *content;
	bool *huge;

	unsigned long *seen;
	unsigned long *arg;
	unsigned long *pick;

	u32 *list;
	unsigned int nr_listed;
	u32 list_sum;
	unsigned int next_alias;
	u32 seed;

	/* Huge mappings outside of the slot under test. */
	u64 huge_elsewhere;
};

/*
 * What the guest runs: write to, or add up, the words that a list in memory
 * points to.  The instructions are such that they are the same in 32-bit and in
 * 64-bit code.
 *
 * In: ESI the list, ECX its length, EDX what is added to an address to get what
 * is written to it.  Out: EBX the sum of what was read.
 */
static void __attribute__((naked)) guest_write(void)
{
	asm volatile(".code32\n"
		     "1: lodsl\n\t"
		     "leal (%eax, %edx), %ebx\n\t"
		     "movl %ebx, (%eax)\n\t"
		     "subl $1, %ecx\n\t"
		     "jnz 1b\n\t"
		     "hlt\n\t"
		     ".code64");
}

static void __attribute__((naked)) guest_read(void)
{
	asm volatile(".code32\n"
		     "1: lodsl\n\t"
		     "addl (%eax), %ebx\n\t"
		     "subl $1, %ecx\n\t"
		     "jnz 1b\n\t"
		     "hlt\n\t"
		     ".code64");
}

static bool verbose;
static bool eager;

/* For messages: the case, and how the log begins. */
static const char *label(struct split_test *t)
{
	static char text[80];

	snprintf(text, sizeof(text), "%s, initially %s", t->c->name,
		 t->manual ? "all set" : "clear");
	return text;
}

#define CHECK(t, cond, fmt, ...)	\
	TEST_ASSERT(cond, "%s: " fmt, label(t), ##__VA_ARGS__)

static bool is_shadow_paging(struct split_test *t)
{
	struct kvm_sregs sregs;

	vcpu_sregs_get(t->vcpu, &sregs);
	return !kvm_is_tdp_enabled() && (sregs.cr0 & X86_CR0_PG);
}

/* How many huge SPTEs there are for each huge page of the slot. */
static unsigned int ptes_per_huge(struct split_test *t)
{
	return is_shadow_paging(t) ? t->c->aliases : 1;
}

static bool is_recycled(struct split_test *t)
{
	return ptes_per_huge(t) > RMAP_RECYCLE_THRESHOLD;
}

static u64 pages_per_huge(struct split_test *t)
{
	return t->c->level == PG_LEVEL_1G ? PAGES_PER_1G : PAGES_PER_2M;
}

static unsigned int stride(struct split_test *t)
{
	return t->c->stride ?: 1;
}

static u64 gfn_of(struct split_test *t, u64 page)
{
	return (t->gpa >> PAGE_SHIFT) + page;
}

static u64 gva_of(struct split_test *t, u64 page, unsigned int alias)
{
	return t->gpa + page * PAGE_SIZE + alias * t->c->alias_step;
}

/* Which of the huge pages of the slot has @page, or -1. */
static int huge_of(struct split_test *t, u64 page)
{
	u64 i;

	if (page < t->c->head)
		return -1;

	i = (page - t->c->head) / pages_per_huge(t);
	return i < t->c->nr_huge ? i : -1;
}

static u64 nr_huge_mapped(struct split_test *t)
{
	return vm_get_stat(t->vm, "pages_2m") + vm_get_stat(t->vm, "pages_1g") -
	       t->huge_elsewhere;
}

static void show_stats(struct split_test *t, const char *when)
{
	if (!verbose)
		return;

	pr_info("  %s: %s: 4K %lu, 2M %lu, 1G %lu, elsewhere %lu\n", label(t), when,
		vm_get_stat(t->vm, "pages_4k"), vm_get_stat(t->vm, "pages_2m"),
		vm_get_stat(t->vm, "pages_1g"), t->huge_elsewhere);
}

static u64 nr_huge_expected(struct split_test *t)
{
	unsigned int i, n = 0;

	for (i = 0; i < t->c->nr_huge; i++)
		n += t->huge[i];

	return n * ptes_per_huge(t);
}

static void expect_huge(struct split_test *t, u64 expected, const char *when)
{
	u64 seen = nr_huge_mapped(t);

	show_stats(t, when);
	if (t->unpredictable)
		return;

	/* Some mappings were taken away again by the last ones that came. */
	if (is_recycled(t) && expected) {
		CHECK(t, seen, "%s: expected huge pages, seen none", when);
		return;
	}

	CHECK(t, seen == expected, "%s: expected %lu huge pages, seen %lu", when,
	      expected, seen);
}

static void expect_huge_model(struct split_test *t, const char *when)
{
	expect_huge(t, nr_huge_expected(t), when);
}

/*
 * The guest
 */

static void guest_run(struct split_test *t, u64 entry)
{
	struct kvm_regs regs = {
		.rip = entry,
		.rsi = LIST_GPA,
		.rcx = t->nr_listed,
		.rdx = t->seed,
		.rflags = X86_EFLAGS_FIXED,
	};

	if (!t->nr_listed)
		return;

	vcpu_regs_set(t->vcpu, &regs);
	vcpu_run(t->vcpu);
	vcpu_regs_get(t->vcpu, &regs);
	CHECK(t, t->vcpu->run->exit_reason == KVM_EXIT_HLT,
	      "the guest ended by exit %u (%s) at RIP 0x%llx, %llu of %u to go",
	      t->vcpu->run->exit_reason, exit_reason_str(t->vcpu->run->exit_reason),
	      regs.rip, regs.rcx, t->nr_listed);
	CHECK(t, entry != READ_GPA || (u32)regs.rbx == t->list_sum,
	      "the guest read a sum of 0x%x, expected 0x%x", (u32)regs.rbx,
	      t->list_sum);

	t->nr_listed = 0;
	t->list_sum = 0;
}

static void list_add_gva(struct split_test *t, u64 gva, u64 entry)
{
	if (t->nr_listed == LIST_MAX)
		guest_run(t, entry);

	t->list[t->nr_listed++] = gva;
}

static void list_write(struct split_test *t, u64 page, unsigned int alias)
{
	u64 gva = gva_of(t, page, alias);
	int i = huge_of(t, page);

	list_add_gva(t, gva, WRITE_GPA);
	t->content[page] = (u32)gva + t->seed;
	if (!t->logging)
		return;

	set_bit(page, t->log);
	if (i >= 0)
		t->huge[i] = false;
}

static void list_read(struct split_test *t, u64 page, unsigned int alias)
{
	list_add_gva(t, gva_of(t, page, alias), READ_GPA);
	t->list_sum += t->content[page];
}

static void list_touch(struct split_test *t, u64 page, unsigned int alias)
{
	if (t->c->read_first)
		list_read(t, page, alias);
	else
		list_write(t, page, alias);
}

static void touch_alias(struct split_test *t, unsigned int alias)
{
	u64 page, step = alias ? pages_per_huge(t) : stride(t);

	for (page = alias ? t->c->head : 0; page < t->npages; page += step)
		list_touch(t, page, alias);
}

/* Use every page through the first mapping, and every huge page through each. */
static void touch_all(struct split_test *t, const char *when)
{
	unsigned int i;

	for (i = 0; i < t->c->aliases; i++)
		touch_alias(t, i);
	guest_run(t, t->c->read_first ? READ_GPA : WRITE_GPA);
	t->seed++;

	for (i = 0; i < t->c->nr_huge; i++)
		t->huge[i] = true;
	expect_huge_model(t, when);
}

static void read_all(struct split_test *t)
{
	u64 page;

	for (page = 0; page < t->npages; page += stride(t))
		list_read(t, page, 0);
	guest_run(t, READ_GPA);
}

/*
 * The log
 */

static u64 log_words(struct split_test *t)
{
	return DIV_ROUND_UP(t->npages, BITS_PER_WORD);
}

static void log_fill(struct split_test *t, unsigned long *bitmap, u64 first,
		     u64 nr)
{
	u64 page;

	memset(bitmap, 0, log_words(t) * sizeof(*bitmap));
	for (page = first; page < first + nr; page++)
		set_bit(page, bitmap);
}

static void compare_log(struct split_test *t, const char *when)
{
	u64 page;

	memset(t->seen, 0xa5, log_words(t) * sizeof(*t->seen));
	kvm_vm_get_dirty_log(t->vm, t->slot, t->seen);

	for (page = 0; page < log_words(t) * BITS_PER_WORD; page++)
		CHECK(t, test_bit(page, t->seen) == test_bit(page, t->log),
		      "%s: gfn 0x%lx (page %lu of %lu): expected %s, seen %s", when,
		      gfn_of(t, page), page, t->npages,
		      test_bit(page, t->log) ? "dirty" : "clean",
		      test_bit(page, t->seen) ? "dirty" : "clean");

	if (!t->manual)
		log_fill(t, t->log, 0, 0);
}

/* KVM splits what overlaps the range from the first bit to the last of a word. */
static void model_clear_word(struct split_test *t, u64 word, unsigned long mask)
{
	u64 page = word * BITS_PER_WORD;
	u64 last = page + BITS_PER_WORD - 1 - __builtin_clzl(mask);

	t->log[word] &= ~mask;
	for (page += __builtin_ctzl(mask); eager && page <= last; page++)
		if (huge_of(t, page) >= 0)
			t->huge[huge_of(t, page)] = false;
}

/* CLEAR what @arg has, of @nr pages from @first. */
static void clear_log(struct split_test *t, u64 first, u64 nr)
{
	u64 word = first / BITS_PER_WORD;
	u64 end = word + DIV_ROUND_UP(nr, BITS_PER_WORD);

	kvm_vm_clear_dirty_log(t->vm, t->slot, &t->arg[word], first, nr);

	for (; word < end; word++)
		if (t->arg[word] & t->log[word])
			model_clear_word(t, word, t->arg[word] & t->log[word]);
}

static void clear_all(struct split_test *t)
{
	log_fill(t, t->arg, 0, t->npages);
	clear_log(t, 0, t->npages);
}

static void set_flags(struct split_test *t, u32 flags)
{
	vm_set_user_memory_region(t->vm, t->slot, flags, t->gpa, t->npages * PAGE_SIZE,
				  t->hva);
}

static void start_logging(struct split_test *t)
{
	unsigned int i;

	set_flags(t, KVM_MEM_LOG_DIRTY_PAGES);
	t->logging = true;
	log_fill(t, t->log, 0, t->manual ? t->npages : 0);
	for (i = 0; i < t->c->nr_huge; i++)
		t->huge[i] = t->manual || !eager;
	expect_huge_model(t, "logging enabled");
	compare_log(t, "logging enabled");
}

static void stop_logging(struct split_test *t)
{
	set_flags(t, 0);
	t->logging = false;
	show_stats(t, "logging disabled");
}

/* A 1GiB page is split into 2MiB pages first, and only one of them further. */
static void expect_huge_first_word(struct split_test *t)
{
	static const char when[] = "first word cleared";

	if (!eager || t->c->level == PG_LEVEL_2M)
		expect_huge_model(t, when);
	else
		expect_huge(t, PAGES_PER_1G / PAGES_PER_2M - 1, when);
}

static void clear_first_word(struct split_test *t)
{
	log_fill(t, t->arg, 0, BITS_PER_WORD);
	clear_log(t, 0, BITS_PER_WORD);
	expect_huge_first_word(t);
	compare_log(t, "first word cleared");
}

static void clear_initial(struct split_test *t)
{
	clear_first_word(t);
	clear_all(t);
	expect_huge_model(t, "all cleared");
	compare_log(t, "all cleared");
}

/*
 * The checks
 */

static void check_memory(struct split_test *t)
{
	u64 page;
	u32 seen;

	for (page = 0; page < t->npages; page += stride(t)) {
		seen = READ_ONCE(*(u32 *)(t->hva + page * PAGE_SIZE));
		CHECK(t, seen == t->content[page],
		      "gfn 0x%lx: expected 0x%x in memory, seen 0x%x",
		      gfn_of(t, page), t->content[page], seen);
	}
}

/* Every page is mapped: nothing that the guest reads has to be faulted in. */
static void check_split(struct split_test *t)
{
	u64 pages_4k = vm_get_stat(t->vm, "pages_4k");

	if (!eager || t->unpredictable)
		return;

	CHECK(t, pages_4k >= t->npages,
	      "split: expected at least %lu 4KiB pages, seen %lu", t->npages, pages_4k);

	/* A guest's entry that changes makes KVM use another, empty, child. */
	if (t->c->read_first || is_recycled(t))
		return;

	read_all(t);
	CHECK(t, vm_get_stat(t->vm, "pages_4k") == pages_4k,
	      "the guest read all pages: expected %lu 4KiB pages, seen %lu", pages_4k,
	      vm_get_stat(t->vm, "pages_4k"));
	compare_log(t, "read all");
}

static bool is_border(struct split_test *t, u64 page)
{
	return !page || page == t->npages - 1 || huge_of(t, page - 1) != huge_of(t, page) ||
	       huge_of(t, page + 1) != huge_of(t, page);
}

/* A third of the pages and all at borders; of all huge pages, or every other. */
static void pick_pages(struct split_test *t, bool all)
{
	u64 page;

	log_fill(t, t->pick, 0, 0);
	for (page = 0; page < t->npages; page += stride(t)) {
		if (!all && huge_of(t, page) % 2)
			continue;
		if (is_border(t, page) || random() % 3 == 0)
			set_bit(page, t->pick);
	}
}

static void write_picked(struct split_test *t)
{
	u64 page;

	for (page = 0; page < t->npages; page++) {
		if (!test_bit(page, t->pick))
			continue;

		list_write(t, page, t->next_alias);
		t->next_alias = (t->next_alias + 1) % t->c->aliases;
	}
	guest_run(t, WRITE_GPA);
	t->seed++;
}

static void round_of_writes(struct split_test *t, bool all)
{
	pick_pages(t, all);
	write_picked(t);

	/* The other mappings of a page stay huge, and 2MiB pages may stay of 1GiB. */
	if (eager || (ptes_per_huge(t) == 1 && t->c->level == PG_LEVEL_2M))
		expect_huge_model(t, "written");

	compare_log(t, "written");
	if (t->manual) {
		memcpy(t->arg, t->pick, log_words(t) * sizeof(*t->arg));
		clear_log(t, 0, t->npages);
	}
	compare_log(t, "cleared");
}

static void log_cycle(struct split_test *t)
{
	unsigned int nr = 0;

	touch_all(t, "all touched");
	start_logging(t);
	if (t->manual)
		clear_initial(t);
	check_split(t);

	/* Page faults have to find the child that they would have made. */
	round_of_writes(t, false);
	check_split(t);
	do {
		round_of_writes(t, true);
		nr += t->npages / stride(t) / 3;
	} while (nr < t->c->aliases);

	stop_logging(t);
	check_memory(t);
	t->cycle++;
}

static void run_cycles(struct split_test *t)
{
	int i;

	for (i = 0; i < NR_CYCLES; i++)
		log_cycle(t);

	touch_all(t, "all touched at the end");
	check_memory(t);
}

/*
 * A word of the bitmap that has pages of two huge pages
 *
 * Clear from the start of the word up to the very first page of a huge page.
 */
static void clear_across(struct split_test *t, u64 page)
{
	u64 first = page - page % BITS_PER_WORD;
	u64 nr = min_t(u64, BITS_PER_WORD, t->npages - first);

	log_fill(t, t->arg, first, page - first + 1);
	clear_log(t, first, nr);
	expect_huge_model(t, "cleared across huge pages");

	list_write(t, page, 0);
	list_write(t, first, 0);
	guest_run(t, WRITE_GPA);
	t->seed++;
	compare_log(t, "written across huge pages");
}

static void run_across(struct split_test *t)
{
	unsigned int i;

	CHECK(t, t->c->head % BITS_PER_WORD, "the slot is aligned");
	touch_all(t, "all touched");
	start_logging(t);
	for (i = 0; i < t->c->nr_huge; i++)
		clear_across(t, t->c->head + i * pages_per_huge(t));
	stop_logging(t);
	check_memory(t);
}

/*
 * What CLEAR refuses, and how little it does when asked for little
 */

static void expect_refused(struct split_test *t, u64 first, u64 nr)
{
	struct kvm_clear_dirty_log args = {
		.dirty_bitmap = t->arg,
		.slot = t->slot,
		.first_page = first,
		.num_pages = nr,
	};
	int r = __vm_ioctl(t->vm, KVM_CLEAR_DIRTY_LOG, &args);

	CHECK(t, r == -1 && errno == EINVAL,
	      "CLEAR of %lu pages from %lu: expected EINVAL, seen %d, errno %d", nr,
	      first, r, errno);
}

static void check_refused(struct split_test *t)
{
	u64 page;

	log_fill(t, t->arg, 0, t->npages);
	for (page = 1; page < BITS_PER_WORD; page++)
		expect_refused(t, page, BITS_PER_WORD);
	expect_refused(t, 0, BITS_PER_WORD - 1);
	expect_refused(t, 0, BITS_PER_WORD + 1);
	expect_refused(t, 0, t->npages + BITS_PER_WORD);
	expect_refused(t, t->npages + BITS_PER_WORD, 0);
	expect_huge_model(t, "refused");
	compare_log(t, "refused");
}

static void check_empty(struct split_test *t)
{
	log_fill(t, t->arg, 0, t->npages);
	clear_log(t, 0, 0);
	clear_log(t, t->npages, 0);
	log_fill(t, t->arg, 0, 0);
	clear_log(t, 0, t->npages);
	expect_huge_model(t, "nothing cleared");
	compare_log(t, "nothing cleared");
}

static void check_single(struct split_test *t, u64 page)
{
	log_fill(t, t->arg, page, 1);
	clear_log(t, 0, t->npages);
	expect_huge_model(t, "one page cleared");
	compare_log(t, "one page cleared");

	list_write(t, page, 0);
	guest_run(t, WRITE_GPA);
	t->seed++;
	compare_log(t, "one page written");
}

static void check_deletion(struct split_test *t)
{
	clear_all(t);
	vm_set_user_memory_region(t->vm, t->slot, 0, t->gpa, 0, t->hva);
	t->logging = false;
	expect_huge(t, 0, "slot deleted");

	set_flags(t, 0);
	touch_all(t, "slot added");
	check_memory(t);
}

static void run_api(struct split_test *t)
{
	touch_all(t, "all touched");
	start_logging(t);
	check_refused(t);
	check_empty(t);

	/* The last page of a huge page, the first of one, and one in the midst. */
	check_single(t, PAGES_PER_2M - 1);
	check_single(t, 2 * PAGES_PER_2M);
	check_single(t, 3 * PAGES_PER_2M + PAGES_PER_2M / 2);
	check_deletion(t);
}

/*
 * The parameter changes while pages are split
 */

static pthread_t flip_id;
static bool flip_stop;
static bool flipping;

static void *flip_thread(void *unused)
{
	unsigned int i;

	for (i = 0; !READ_ONCE(flip_stop); i++) {
		TEST_ASSERT(write_file(PARAM_EAGER, i % 2 ? "Y" : "N"),
			    "Can't write " PARAM_EAGER);
		usleep(FLIP_PERIOD_US);
	}
	return NULL;
}

/* Nobody writes the parameter any more when it gets its old value. */
static void flip_end(void)
{
	if (!flipping)
		return;

	flipping = false;
	WRITE_ONCE(flip_stop, true);
	pthread_join(flip_id, NULL);
	if (!write_file(PARAM_EAGER, eager ? "Y" : "N"))
		pr_info("Can't restore %s\n", PARAM_EAGER);
}

static void flip_begin(void)
{
	flipping = true;
	WRITE_ONCE(flip_stop, false);
	atexit(flip_end);
	start_thread(&flip_id, flip_thread, NULL);
}

/* Failures end in exit(), and signals have to wait: the old value comes back. */
static void run_flip(struct split_test *t)
{
	sigset_t all, old;
	int i;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	t->unpredictable = true;
	flip_begin();

	for (i = 0; i < NR_FLIPPED_CYCLES; i++)
		log_cycle(t);

	flip_end();
	t->unpredictable = false;
	touch_all(t, "all touched at the end");
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static const char *cannot_flip(void)
{
	return access(PARAM_EAGER, W_OK) ? PARAM_EAGER " is read-only" : NULL;
}

static u64 nr_recycled(struct split_test *t)
{
	return vm_get_stat(t->vm, "mmu_recycled");
}

static void touch_ballast(struct split_test *t)
{
	u64 gpa = BALLAST_BASE;
	unsigned int i;

	for (i = 0; i < BALLAST_PAGES; i++, gpa += SZ_2M)
		list_add_gva(t, gpa, WRITE_GPA);
	guest_run(t, WRITE_GPA);
}

static void add_ballast(struct split_test *t)
{
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, BALLAST_BASE,
				    BALLAST_SLOT, BALLAST_PAGES * PAGES_PER_2M, 0);
	virt_map_level(t->vm, BALLAST_BASE, BALLAST_BASE, BALLAST_PAGES * SZ_2M,
		       PG_LEVEL_2M);
}

static void tighten_quota(struct split_test *t)
{
	unsigned long quota = MAX_MMU_PAGES;
	u64 recycled;

	vm_set_nr_mmu_pages(t->vm, quota);
	touch_ballast(t);
	touch_all(t, "all touched");

	recycled = nr_recycled(t);
	while (nr_recycled(t) == recycled && quota > MIN_MMU_PAGES)
		vm_set_nr_mmu_pages(t->vm, --quota);
	CHECK(t, quota > MIN_MMU_PAGES, "the smallest quota isn't met by %u pages",
	      BALLAST_PAGES);

	/* What went was the oldest, through which others were reached. */
	vm_set_nr_mmu_pages(t->vm, quota + QUOTA_LEFT);
	recycled = nr_recycled(t);
	touch_all(t, "all touched again");
	CHECK(t, nr_recycled(t) == recycled, "touching reclaimed shadow pages");
}

static void start_logging_in_vain(struct split_test *t)
{
	u64 recycled = nr_recycled(t);
	unsigned int nr;

	start_logging(t);
	if (t->manual)
		clear_initial(t);
	CHECK(t, nr_recycled(t) == recycled, "splitting reclaimed shadow pages");

	/* The children of the last cycle are still there. */
	if (t->cycle)
		return;

	nr = nr_huge_mapped(t);
	CHECK(t, eager ? nr && nr < t->c->nr_huge : nr == t->c->nr_huge,
	      "expected %s huge pages to stay, seen %u", eager ? "some" : "all", nr);
}

static void run_quota(struct split_test *t)
{
	int i;

	add_ballast(t);
	t->unpredictable = true;
	for (i = 0; i < NR_CYCLES; i++) {
		tighten_quota(t);
		start_logging_in_vain(t);
		round_of_writes(t, false);
		round_of_writes(t, true);
		stop_logging(t);
		check_memory(t);
		t->cycle++;
	}
	vm_set_nr_mmu_pages(t->vm, MIN_MMU_PAGES);
	log_cycle(t);
}

static const char *no_quota(void)
{
	return is_tdp_mmu() ? "the TDP MMU has no quota" : NULL;
}

/* What couldn't be split is write-protected nevertheless. */
static void run_across_quota(struct split_test *t)
{
	unsigned int i;

	add_ballast(t);
	t->unpredictable = true;
	tighten_quota(t);
	start_logging(t);
	for (i = 0; i < t->c->nr_huge; i++)
		clear_across(t, t->c->head + i * pages_per_huge(t));
	stop_logging(t);
	check_memory(t);
}

/*
 * The child of a 1GiB page that has links from an earlier cycle
 *
 * They are replaced, and a vCPU that remembers them must forget them before others
 * get mmu_lock: CLEAR's own flush comes later.
 */

static void clear_relinked(struct split_test *t)
{
	u64 flushes = vm_get_stat(t->vm, "remote_tlb_flush_requests");
	u64 pages_4k = vm_get_stat(t->vm, "pages_4k");

	log_fill(t, t->arg, 0, BITS_PER_WORD);
	clear_log(t, 0, BITS_PER_WORD);
	flushes = vm_get_stat(t->vm, "remote_tlb_flush_requests") - flushes;
	pages_4k = vm_get_stat(t->vm, "pages_4k") - pages_4k;

	expect_huge_first_word(t);
	CHECK(t, !eager || pages_4k >= PAGES_PER_2M,
	      "the first 2MiB: expected at least %lu 4KiB pages, seen %lu", PAGES_PER_2M,
	      pages_4k);
	CHECK(t, !eager || !t->cycle || flushes >= 2,
	      "links were replaced: expected a TLB flush and that of CLEAR, seen %lu", flushes);
}

static void run_relink(struct split_test *t)
{
	int i;

	for (i = 0; i < NR_CYCLES; i++) {
		touch_all(t, "all touched");
		start_logging(t);
		clear_relinked(t);
		stop_logging(t);
		t->cycle++;
	}
	check_memory(t);
}

/*
 * A huge page that holds one of the guest's page tables
 *
 * KVM write-protects it when the guest begins to use the page table, for as long as
 * it is in use.  In debug kernels KVM itself checks that what it is split into stays
 * write-protected.
 */

static void use_page_table_in_slot(struct split_test *t)
{
	struct kvm_sregs sregs;

	memcpy(t->hva + PAGE_SIZE, addr_gpa2hva(t->vm, t->vm->pgd), PAGE_SIZE);
	vcpu_sregs_get(t->vcpu, &sregs);
	sregs.cr3 = t->gpa + PAGE_SIZE;
	vcpu_sregs_set(t->vcpu, &sregs);

	list_read(t, 0, 0);
	guest_run(t, READ_GPA);
	expect_huge_model(t, "page table in use");
}

static void run_tracked(struct split_test *t)
{
	touch_all(t, "all touched");
	use_page_table_in_slot(t);
	start_logging(t);
	if (t->manual)
		clear_initial(t);
	stop_logging(t);
}

/*
 * Modes of the guest
 */

static void set_segment(struct kvm_segment *seg, u16 selector, u8 type)
{
	memset(seg, 0, sizeof(*seg));
	seg->limit = 0xffffffff;
	seg->selector = selector;
	seg->type = type;
	seg->present = 1;
	seg->s = 1;
	seg->db = 1;
	seg->g = 1;
}

static void set_segments(struct kvm_sregs *sregs)
{
	set_segment(&sregs->cs, SELECTOR_CODE, SEG_CODE);
	set_segment(&sregs->ds, SELECTOR_DATA, SEG_DATA);
	sregs->es = sregs->ds;
	sregs->fs = sregs->ds;
	sregs->gs = sregs->ds;
	sregs->ss = sregs->ds;

	set_segment(&sregs->tr, SELECTOR_TSS, SEG_TSS);
	sregs->tr.limit = 0x67;
	sregs->tr.s = 0;
	sregs->tr.db = 0;
	sregs->tr.g = 0;

	memset(&sregs->ldt, 0, sizeof(sregs->ldt));
	sregs->ldt.unusable = 1;
}

static void set_mode(struct split_test *t, u64 cr0, u64 cr3, u64 cr4,
		     u64 efer)
{
	struct kvm_sregs sregs;

	vcpu_sregs_get(t->vcpu, &sregs);
	set_segments(&sregs);
	if (efer & EFER_LMA) {
		sregs.cs.l = 1;
		sregs.cs.db = 0;
	}
	sregs.cr0 = X86_CR0_PE | X86_CR0_NE | X86_CR0_ET | cr0;
	sregs.cr3 = cr3;
	sregs.cr4 = cr4;
	sregs.efer = efer;
	vcpu_sregs_set(t->vcpu, &sregs);
}

static u64 *guest_entry(struct split_test *t, u64 gva, int level)
{
	return __vm_get_page_table_entry(t->vm, gva, &level);
}

/* How many huge entries the guest needs to map the slot once. */
static unsigned int nr_guest_entries(struct split_test *t)
{
	return t->mapping_size / PG_LEVEL_SIZE(t->c->level);
}

static void map_low(struct split_test *t)
{
	virt_pgd_alloc(t->vm);
	virt_map_level(t->vm, 0, 0, LOW_SIZE, PG_LEVEL_2M);
}

static void map_data(struct split_test *t)
{
	unsigned int i;

	for (i = 0; i < t->c->aliases; i++)
		virt_map_level(t->vm, DATA_BASE + i * t->c->alias_step, DATA_BASE,
			       t->mapping_size, t->c->level);
}

/*
 * Give the aliases different permissions, all of them good for a write by the
 * supervisor, so that they have different children.
 */
static void vary_permissions(struct split_test *t, unsigned int alias)
{
	u64 gva = DATA_BASE + alias * t->c->alias_step;
	unsigned int i;

	*guest_entry(t, gva, PG_LEVEL_512G) |= PTE_USER_MASK;
	*guest_entry(t, gva, PG_LEVEL_1G) |= PTE_USER_MASK;

	for (i = 0; i < nr_guest_entries(t); i++, gva += SZ_2M) {
		if (alias & 1)
			*guest_entry(t, gva, PG_LEVEL_2M) |= PTE_USER_MASK;
		if (alias & 2)
			*guest_entry(t, gva, PG_LEVEL_2M) |= PTE_NX_MASK;
	}
}

static void enter_paging_4level(struct split_test *t, u64 cr0)
{
	set_mode(t, X86_CR0_PG | cr0, t->vm->pgd, X86_CR4_PAE,
		 EFER_LME | EFER_LMA | EFER_NX);
}

static void enter_long(struct split_test *t)
{
	unsigned int i;

	map_low(t);
	map_data(t);
	for (i = 1; i < t->c->aliases; i++)
		vary_permissions(t, i);
	enter_paging_4level(t, X86_CR0_WP);
}

/* Read-only entries of a supervisor that may write nevertheless; some user's. */
static void enter_long_wp0(struct split_test *t)
{
	unsigned int i;
	u64 *pte;

	map_low(t);
	map_data(t);
	*guest_entry(t, DATA_BASE, PG_LEVEL_512G) |= PTE_USER_MASK;
	*guest_entry(t, DATA_BASE, PG_LEVEL_1G) |= PTE_USER_MASK;

	for (i = 0; i < nr_guest_entries(t); i++) {
		pte = guest_entry(t, DATA_BASE + i * SZ_2M, PG_LEVEL_2M);
		*pte &= ~PTE_WRITABLE_MASK;
		if (i & 2)
			*pte |= PTE_USER_MASK;
	}
	enter_paging_4level(t, 0);
}

static void map_pae(struct split_test *t, u64 *pds[], u64 gva, u64 gpa)
{
	pds[gva >> 30][(gva >> SHIFT_PAE) % PDES_PAE] =
		gpa | PTE_PRESENT_MASK | PTE_WRITABLE_MASK | PTE_LARGE_MASK;
}

static void enter_pae(struct split_test *t)
{
	u64 pdpt_gpa = vm_alloc_page_table(t->vm);
	u64 *pdpt = addr_gpa2hva(t->vm, pdpt_gpa);
	u64 pd_gpa, offset, *pds[4];
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(pds); i++) {
		pd_gpa = vm_alloc_page_table(t->vm);
		pdpt[i] = pd_gpa | PTE_PRESENT_MASK;
		pds[i] = addr_gpa2hva(t->vm, pd_gpa);
	}

	for (offset = 0; offset < LOW_SIZE; offset += SZ_2M)
		map_pae(t, pds, offset, offset);
	for (i = 0; i < t->c->aliases; i++)
		for (offset = 0; offset < t->mapping_size; offset += SZ_2M)
			map_pae(t, pds, DATA_BASE + i * t->c->alias_step + offset,
				DATA_BASE + offset);

	set_mode(t, X86_CR0_PG | X86_CR0_WP, pdpt_gpa, X86_CR4_PAE, 0);
}

static void map_pse(u32 *pd, u64 gva, u64 gpa)
{
	pd[gva >> SHIFT_PSE] =
		gpa | PTE_PRESENT_MASK | PTE_WRITABLE_MASK | PTE_LARGE_MASK;
}

static void enter_pse(struct split_test *t)
{
	u64 pd_gpa = vm_alloc_page_table(t->vm);
	u32 *pd = addr_gpa2hva(t->vm, pd_gpa);
	u64 offset;
	unsigned int i;

	for (offset = 0; offset < LOW_SIZE; offset += SZ_4M)
		map_pse(pd, offset, offset);
	for (i = 0; i < t->c->aliases; i++)
		for (offset = 0; offset < t->mapping_size; offset += SZ_4M)
			map_pse(pd, DATA_BASE + i * t->c->alias_step + offset,
				DATA_BASE + offset);

	set_mode(t, X86_CR0_PG | X86_CR0_WP, pd_gpa, X86_CR4_PSE, 0);
}

static void enter_nonpaging(struct split_test *t)
{
	set_mode(t, 0, 0, 0, 0);
}

/*
 * SMM has an address space of its own: the same memory in another slot, that is
 * logged, while that of the other address space isn't.
 */
static void enter_smm(struct split_test *t)
{
	struct kvm_vcpu_events events;
	u64 page;

	enter_nonpaging(t);
	for (page = t->c->head; page < t->npages; page += PAGES_PER_2M)
		list_read(t, page, 0);
	guest_run(t, READ_GPA);
	expect_huge(t, t->c->nr_huge, "touched outside of SMM");

	vm_set_user_memory_region(t->vm, SLOT_OF(SMM_AS_ID, LOW_SLOT), 0, 0, LOW_SIZE,
				  addr_gpa2hva(t->vm, 0));
	t->slot = SLOT_OF(SMM_AS_ID, DATA_SLOT);
	set_flags(t, 0);

	vcpu_events_get(t->vcpu, &events);
	events.flags |= KVM_VCPUEVENT_VALID_SMM;
	events.smi.smm = 1;
	vcpu_events_set(t->vcpu, &events);
	t->huge_elsewhere = nr_huge_mapped(t);
}

static const char *no_smm(void)
{
	if (!kvm_has_cap(KVM_CAP_X86_SMM))
		return "KVM has no SMM";
	if (kvm_check_cap(KVM_CAP_MULTI_ADDRESS_SPACE) <= SMM_AS_ID)
		return "KVM has one address space only";
	return NULL;
}

static const char *no_1g(void)
{
	return kvm_cpu_has(X86_FEATURE_GBPAGES) ? NULL : "KVM has no 1GiB pages for guests";
}

static const char *cannot_relink(void)
{
	return is_tdp_mmu() ? "the TDP MMU keeps no page tables" : no_1g();
}

static const char *no_shadow_paging(void)
{
	return kvm_is_tdp_enabled() ? "the guest's page tables are not shadowed" : NULL;
}

static const struct test_case test_cases[] = {
	{
		.name = "long",
		.what = "64-bit guest, 2MiB entries",
		.enter = enter_long,
		.nr_huge = 4,
	}, {
		.name = "unaligned",
		.what = "slot that is not aligned to 2MiB",
		.enter = enter_long,
		.nr_huge = 3,
		.head = 61,
		.tail = 101,
	}, {
		.name = "alias2",
		.what = "memory at 2 addresses",
		.enter = enter_long,
		.nr_huge = 3,
		.aliases = 2,
	}, {
		.name = "alias15",
		.what = "memory at 15 addresses",
		.enter = enter_long,
		.nr_huge = 3,
		.aliases = 15,
	}, {
		.name = "alias1000",
		.what = "memory at as many addresses as KVM allows for",
		.enter = enter_long,
		.nr_huge = 1,
		.aliases = RMAP_RECYCLE_THRESHOLD,
	}, {
		.name = "alias1100",
		.what = "memory at more addresses than KVM allows for",
		.enter = enter_long,
		.nr_huge = 1,
		.aliases = 1100,
	}, {
		.name = "pae",
		.what = "32-bit guest, PAE, 2MiB entries",
		.enter = enter_pae,
		.nr_huge = 4,
		.aliases = 2,
		.alias_step = SZ_1G,
	}, {
		.name = "pse",
		.what = "32-bit guest, 4MiB entries",
		.enter = enter_pse,
		.nr_huge = 4,
		.aliases = 2,
		.alias_step = SZ_1G,
	}, {
		.name = "nonpaging",
		.what = "32-bit guest without paging",
		.enter = enter_nonpaging,
		.nr_huge = 4,
	}, {
		.name = "wp0",
		.what = "CR0.WP=0, writes through read-only 2MiB entries",
		.enter = enter_long_wp0,
		.nr_huge = 4,
		.read_first = true,
	}, {
		.name = "clean",
		.what = "2MiB entries that get dirty while logging",
		.enter = enter_long,
		.nr_huge = 4,
		.read_first = true,
	}, {
		.name = "api",
		.what = "CLEAR of little, of nothing, and of a slot that goes",
		.enter = enter_long,
		.run = run_api,
		.nr_huge = 4,
		.manual_only = true,
	}, {
		.name = "quota",
		.what = "too few shadow pages to split",
		.enter = enter_long,
		.run = run_quota,
		.why_not = no_quota,
		.nr_huge = 4,
	}, {
		.name = "flip",
		.what = "eager_page_split changes while pages are split",
		.enter = enter_long,
		.run = run_flip,
		.why_not = cannot_flip,
		.nr_huge = 4,
	}, {
		.name = "1g",
		.what = "64-bit guest, 1GiB entry",
		.enter = enter_long,
		.why_not = no_1g,
		.nr_huge = 1,
		.level = PG_LEVEL_1G,
		.stride = 61,
	}, {
		.name = "smm",
		.what = "the address space of SMM",
		.enter = enter_smm,
		.why_not = no_smm,
		.nr_huge = 4,
	}, {
		.name = "across",
		.what = "CLEAR of words that have pages of two huge pages",
		.enter = enter_long,
		.run = run_across,
		.nr_huge = 3,
		.head = 61,
		.tail = 101,
		.manual_only = true,
	}, {
		.name = "across_q",
		.what = "the same as \"across\" with too few shadow pages to split",
		.enter = enter_long,
		.run = run_across_quota,
		.why_not = no_quota,
		.nr_huge = 4,
		.head = 61,
		.tail = 101,
		.manual_only = true,
	}, {
		.name = "relink",
		.what = "64-bit guest, 1GiB entry, split twice",
		.enter = enter_long,
		.run = run_relink,
		.why_not = cannot_relink,
		.nr_huge = 1,
		.level = PG_LEVEL_1G,
		.stride = PAGES_PER_2M,
		.manual_only = true,
	}, {
		.name = "tracked",
		.what = "a page table of the guest's in a 2MiB page",
		.enter = enter_long,
		.run = run_tracked,
		.why_not = no_shadow_paging,
		.nr_huge = 2,
	},
};

/*
 * Setting up, and tearing down
 */

static void *map_backing(struct split_test *t)
{
	unsigned int shift = PG_LEVEL_SHIFT(t->c->level);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | shift << MAP_HUGE_SHIFT;

	return mmap(NULL, t->mapping_size, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static void create_vm(struct split_test *t)
{
	t->vm = vm_create_barebones();
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, 0, LOW_SLOT,
				    LOW_SIZE / PAGE_SIZE, 0);
	memcpy(addr_gpa2hva(t->vm, WRITE_GPA), guest_write, CODE_MAX);
	memcpy(addr_gpa2hva(t->vm, READ_GPA), guest_read, CODE_MAX);
	t->list = addr_gpa2hva(t->vm, LIST_GPA);

	if (t->manual)
		vm_enable_initially_set(t->vm);

	t->vcpu = __vm_vcpu_add(t->vm, 0);
	vcpu_init_cpuid(t->vcpu, kvm_get_supported_cpuid());
}

static void *zalloc(size_t size)
{
	void *p = calloc(1, size);

	TEST_ASSERT(p, "Out of memory");
	return p;
}

static void create_model(struct split_test *t)
{
	t->log = zalloc(log_words(t) * sizeof(*t->log));
	t->seen = zalloc(log_words(t) * sizeof(*t->seen));
	t->arg = zalloc(log_words(t) * sizeof(*t->arg));
	t->pick = zalloc(log_words(t) * sizeof(*t->pick));
	t->content = zalloc(t->npages * sizeof(*t->content));
	t->huge = zalloc(t->c->nr_huge * sizeof(*t->huge));
	t->seed = 1;
}

static void free_all(struct split_test *t)
{
	kvm_vm_free(t->vm);
	munmap(t->mapping, t->mapping_size);
	free(t->log);
	free(t->seen);
	free(t->arg);
	free(t->pick);
	free(t->content);
	free(t->huge);
}

/* Returns false if there are not enough huge pages. */
static bool run_logged(const struct test_case *c, bool manual)
{
	struct split_test t = { .c = c, .manual = manual, .slot = DATA_SLOT };
	u64 offset = -c->head % pages_per_huge(&t);

	t.npages = c->head + c->nr_huge * pages_per_huge(&t) + c->tail;
	t.mapping_size = align_up((offset + t.npages) * PAGE_SIZE, PG_LEVEL_SIZE(c->level));
	t.mapping = map_backing(&t);
	if (t.mapping == MAP_FAILED)
		return false;

	t.hva = t.mapping + offset * PAGE_SIZE;
	t.gpa = DATA_BASE + offset * PAGE_SIZE;
	create_vm(&t);
	create_model(&t);
	set_flags(&t, 0);
	c->enter(&t);
	if (c->run)
		c->run(&t);
	else
		run_cycles(&t);
	free_all(&t);
	return true;
}

static struct test_case with_defaults(const struct test_case *given)
{
	struct test_case c = *given;

	c.level = c.level ?: PG_LEVEL_2M;
	c.aliases = c.aliases ?: 1;
	c.alias_step = c.alias_step ?: c.nr_huge * PG_LEVEL_SIZE(c.level);
	return c;
}

/* Returns why it couldn't run, or NULL. */
static const char *run_both(const struct test_case *c)
{
	const char *reason = c->why_not ? c->why_not() : NULL;

	if (reason)
		return reason;

	if (!c->manual_only && !run_logged(c, false))
		return "too few huge pages are free";

	return run_logged(c, true) ? NULL : "too few huge pages are free";
}

static bool run_case(const struct test_case *given)
{
	struct test_case c = with_defaults(given);
	struct timespec start, took;
	const char *reason;

	clock_gettime(CLOCK_MONOTONIC, &start);
	reason = run_both(&c);
	took = timespec_elapsed(start);

	if (reason)
		pr_info("%-10s SKIP: %s\n", c.name, reason);
	else
		pr_info("%-10s ok, %ld.%ld s: %s\n", c.name, took.tv_sec,
			took.tv_nsec / NSEC_PER_TENTH, c.what);
	fflush(stdout);
	return !reason;
}

/* Those that -m names; all if it names none. */
static bool selected[ARRAY_SIZE(test_cases)];

static void select_case(const char *name)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(test_cases); i++) {
		if (!strcmp(name, test_cases[i].name)) {
			selected[i] = true;
			return;
		}
	}
	TEST_FAIL("No such case: %s, see -h", name);
}

static bool run_selected(bool all)
{
	bool ran = false;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(test_cases); i++)
		if (all || selected[i])
			ran |= run_case(&test_cases[i]);
	return ran;
}

static void help(const char *program)
{
	unsigned int i;

	printf("usage: %s [-h] [-v] [-m NAME]...\n\n"
	       " -m: run this case only, or those of several -m.  They need up to 6\n"
	       "     free 2MiB HugeTLB pages, and \"1g\" and \"relink\" a free 1GiB page.\n"
	       " -v: show KVM's numbers of pages after each step.\n\n", program);
	for (i = 0; i < ARRAY_SIZE(test_cases); i++)
		printf("     %-10s %s\n", test_cases[i].name, test_cases[i].what);
}

int main(int argc, char *argv[])
{
	bool all = true;
	int opt;

	while ((opt = getopt(argc, argv, "hm:v")) != -1) {
		switch (opt) {
		case 'm':
			select_case(optarg);
			all = false;
			break;
		case 'v':
			verbose = true;
			break;
		default:
			help(argv[0]);
			exit(opt == 'h' ? 0 : 1);
		}
	}

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	eager = get_kvm_param_bool("eager_page_split");

	/* Each case that could not be run has said why. */
	return run_selected(all) ? 0 : KSFT_SKIP;
}
