// SPDX-License-Identifier: GPL-2.0-only
/* The model of eager_split_model.h, what the guest writes, and the checks. */
#include "eager_split_model.h"

#define LIST_MAX		8192u

bool eager;

const char *label(struct model_test *t)
{
	static char text[80];

	snprintf(text, sizeof(text), "%s, initially %s", t->c->name,
		 t->manual ? "all set" : "clear");
	return text;
}

/* Return: how many huge SPTEs map each huge page of the slot. */
static unsigned int ptes_per_huge(struct model_test *t)
{
	struct kvm_sregs sregs;

	vcpu_sregs_get(t->vcpu, &sregs);
	return !kvm_is_tdp_enabled() && (sregs.cr0 & X86_CR0_PG) ? t->c->aliases : 1;
}

static bool is_recycled(struct model_test *t)
{
	return ptes_per_huge(t) > RMAP_RECYCLE_THRESHOLD;
}

u64 pages_per_huge(struct model_test *t)
{
	return t->c->level == PG_LEVEL_1G ? PAGES_PER_1G : PAGES_PER_2M;
}

static u64 gfn_of(struct model_test *t, u64 page)
{
	return (t->gpa >> PAGE_SHIFT) + page;
}

static u64 gva_of(struct model_test *t, u64 page, unsigned int alias)
{
	return t->gpa + page * PAGE_SIZE + alias * t->c->alias_step;
}

/* Return: the number of the huge page that contains @page, or -1. */
static int huge_of(struct model_test *t, u64 page)
{
	u64 i;

	if (page < t->c->head)
		return -1;

	i = (page - t->c->head) / pages_per_huge(t);
	return i < t->c->nr_huge ? i : -1;
}

u64 nr_huge_mapped(struct model_test *t)
{
	return vm_get_stat(t->vm, pages_2m) + vm_get_stat(t->vm, pages_1g) - t->huge_elsewhere;
}

void expect_huge(struct model_test *t, u64 expected, const char *when)
{
	u64 seen = nr_huge_mapped(t);

	if (t->unpredictable)
		return;

	/* KVM zaps all SPTEs of a gfn that gets too many, so only some are left. */
	if (is_recycled(t) && expected) {
		CHECK(t, seen, "%s: expected huge pages, seen none", when);
		return;
	}

	CHECK(t, seen == expected, "%s: expected %lu huge pages, seen %lu", when, expected, seen);
}

void model_all_huge(struct model_test *t)
{
	for (unsigned int i = 0; i < t->c->nr_huge; i++)
		t->huge[i] = true;
}

void expect_huge_model(struct model_test *t, const char *when)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < t->c->nr_huge; i++)
		n += t->huge[i];
	expect_huge(t, n * ptes_per_huge(t), when);
}

/* The guest */

void guest_run(struct model_test *t, u64 entry)
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
	      "the guest read a sum of 0x%x, expected 0x%x", (u32)regs.rbx, t->list_sum);

	t->nr_listed = 0;
	t->list_sum = 0;
}

void write_listed(struct model_test *t)
{
	guest_run(t, WRITE_GPA);
	t->seed++;
}

void list_add_gva(struct model_test *t, u64 gva, u64 entry)
{
	if (t->nr_listed == LIST_MAX)
		guest_run(t, entry);

	t->list[t->nr_listed++] = gva;
}

void rewrite_guest_entry(struct model_test *t, unsigned int alias)
{
	u64 *entry = vm_get_entry(t->vm, gva_of(t, 0, alias), t->c->level);
	u64 gpa = addr_hva2gpa(t->vm, entry), old = *entry;
	u32 seed = t->seed;

	/* The guest writes the sum of the address and the seed. */
	t->seed = -gpa;
	list_add_gva(t, gpa, WRITE_GPA);
	guest_run(t, WRITE_GPA);
	CHECK(t, !(*entry & PT_PRESENT_MASK), "the guest's entry is still 0x%lx", *entry);
	t->seed = seed;
	WRITE_ONCE(*entry, old);
}

void list_write(struct model_test *t, u64 page, unsigned int alias)
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

void list_read(struct model_test *t, u64 page, unsigned int alias)
{
	list_add_gva(t, gva_of(t, page, alias), READ_GPA);
	t->list_sum += t->content[page];
}

static void list_alias(struct model_test *t, unsigned int alias, bool read)
{
	u64 step = alias ? pages_per_huge(t) : t->c->stride;

	for (u64 page = alias ? t->c->head : 0; page < t->npages; page += step)
		if (read)
			list_read(t, page, alias);
		else
			list_write(t, page, alias);
}

void touch_all(struct model_test *t, const char *when)
{
	for (unsigned int i = 0; i < t->c->aliases; i++)
		list_alias(t, i, t->c->read_first);
	guest_run(t, t->c->read_first ? READ_GPA : WRITE_GPA);
	t->seed++;

	model_all_huge(t);
	expect_huge_model(t, when);
}

void read_all(struct model_test *t)
{
	list_alias(t, 0, true);
	guest_run(t, READ_GPA);
}

void write_all(struct model_test *t)
{
	list_alias(t, 0, false);
	write_listed(t);
}

/* The log */

u64 log_words(struct model_test *t)
{
	return DIV_ROUND_UP(t->npages, BITS_PER_WORD);
}

void log_fill(struct model_test *t, unsigned long *bitmap, u64 first, u64 nr)
{
	memset(bitmap, 0, log_words(t) * sizeof(*bitmap));
	for (u64 page = first; page < first + nr; page++)
		set_bit(page, bitmap);
}

void compare_log(struct model_test *t, const char *when)
{
	memset(t->seen, 0xa5, log_words(t) * sizeof(*t->seen));
	kvm_vm_get_dirty_log(t->vm, t->slot, t->seen);

	for (u64 page = 0; page < log_words(t) * BITS_PER_WORD; page++)
		CHECK(t, test_bit(page, t->seen) == test_bit(page, t->log),
		      "%s: gfn 0x%lx (page %lu of %lu): expected %s, seen %s", when,
		      gfn_of(t, page), page, t->npages, test_bit(page, t->log) ? "dirty" : "clean",
		      test_bit(page, t->seen) ? "dirty" : "clean");

	if (!t->manual)
		log_fill(t, t->log, 0, 0);
}

/*
 * In each word, KVM splits the huge pages that overlap the range from the first
 * page to be cleared to the last one.
 */
static void model_clear_word(struct model_test *t, u64 word, unsigned long mask)
{
	u64 page = word * BITS_PER_WORD;
	u64 last = page + BITS_PER_WORD - 1 - __builtin_clzl(mask);

	t->log[word] &= ~mask;
	if (!eager)
		return;

	for (page += __builtin_ctzl(mask); page <= last; page++)
		if (huge_of(t, page) >= 0)
			t->huge[huge_of(t, page)] = false;
}

void clear_log(struct model_test *t, u64 first, u64 nr)
{
	u64 word = first / BITS_PER_WORD;
	u64 end = word + DIV_ROUND_UP(nr, BITS_PER_WORD);

	kvm_vm_clear_dirty_log(t->vm, t->slot, &t->arg[word], first, nr);

	for (; word < end; word++)
		if (t->arg[word] & t->log[word])
			model_clear_word(t, word, t->arg[word] & t->log[word]);
}

void clear_all(struct model_test *t)
{
	log_fill(t, t->arg, 0, t->npages);
	clear_log(t, 0, t->npages);
}

void set_flags(struct model_test *t, u32 flags)
{
	vm_set_user_memory_region(t->vm, t->slot, flags, t->gpa, t->npages * PAGE_SIZE, t->hva);
}

void start_logging(struct model_test *t)
{
	set_flags(t, KVM_MEM_LOG_DIRTY_PAGES);
	t->logging = true;
	log_fill(t, t->log, 0, t->manual ? t->npages : 0);
	for (unsigned int i = 0; i < t->c->nr_huge; i++)
		t->huge[i] = !t->c->untouched && (t->manual || !eager);
	expect_huge_model(t, "logging enabled");
	compare_log(t, "logging enabled");
}

/*
 * Is it certain that disabling restores all huge pages?  The shadow MMU leaves
 * them to page faults if a page table has very many links.  If guest entries
 * became dirty meanwhile, it has linked other children.
 */
static bool comes_back(struct model_test *t)
{
	return is_tdp_mmu() || (ptes_per_huge(t) <= MAX_LINKS && !t->c->read_first);
}

void stop_logging(struct model_test *t)
{
	set_flags(t, 0);
	t->logging = false;
	/* KVM does not restore huge pages that hold a guest page table. */
	for (unsigned int i = t->nr_tracked; i < t->c->nr_huge; i++)
		t->huge[i] = true;
	if (comes_back(t))
		expect_huge_model(t, "logging disabled");
}

void expect_huge_first_word(struct model_test *t)
{
	static const char when[] = "first word cleared";

	if (!eager || t->c->level == PG_LEVEL_2M)
		expect_huge_model(t, when);
	else
		expect_huge(t, PAGES_PER_1G / PAGES_PER_2M - 1, when);
}

static void clear_initial(struct model_test *t)
{
	log_fill(t, t->arg, 0, BITS_PER_WORD);
	clear_log(t, 0, BITS_PER_WORD);
	expect_huge_first_word(t);
	compare_log(t, "first word cleared");
	clear_all(t);
	expect_huge_model(t, "all cleared");
	compare_log(t, "all cleared");
}

void start_and_clear(struct model_test *t)
{
	start_logging(t);
	if (t->manual)
		clear_initial(t);
}

void check_memory(struct model_test *t)
{
	u32 seen;

	for (u64 page = 0; page < t->npages; page += t->c->stride) {
		seen = READ_ONCE(*(u32 *)(t->hva + page * PAGE_SIZE));
		CHECK(t, seen == t->content[page], "gfn 0x%lx: expected 0x%x in memory, seen 0x%x",
		      gfn_of(t, page), t->content[page], seen);
	}
}

/* Check that all pages are mapped: reading all of them must not fault in any. */
static void check_split(struct model_test *t)
{
	u64 pages_4k = vm_get_stat(t->vm, pages_4k);

	if (!eager || t->unpredictable)
		return;

	CHECK(t, pages_4k >= t->npages,
	      "split: expected at least %lu 4KiB pages, seen %lu", t->npages, pages_4k);

	/* With read_first, KVM later links another child, which is empty. */
	if (t->c->read_first || is_recycled(t))
		return;

	read_all(t);
	CHECK(t, vm_get_stat(t->vm, pages_4k) == pages_4k,
	      "the guest read all pages: expected %lu 4KiB pages, seen %lu", pages_4k,
	      vm_get_stat(t->vm, pages_4k));
	compare_log(t, "read all");
}

static bool is_border(struct model_test *t, u64 page)
{
	return !page || page == t->npages - 1 || huge_of(t, page - 1) != huge_of(t, page) ||
	       huge_of(t, page + 1) != huge_of(t, page);
}

/* Pick a third of the pages, and all at borders.  Unless @all, skip every other huge page. */
static void pick_pages(struct model_test *t, bool all)
{
	log_fill(t, t->pick, 0, 0);
	for (u64 page = 0; page < t->npages; page += t->c->stride) {
		if (!all && huge_of(t, page) % 2)
			continue;
		if (is_border(t, page) || random() % 3 == 0)
			set_bit(page, t->pick);
	}
}

static void write_picked(struct model_test *t)
{
	for (u64 page = 0; page < t->npages; page++) {
		if (!test_bit(page, t->pick))
			continue;

		list_write(t, page, t->next_alias);
		t->next_alias = (t->next_alias + 1) % t->c->aliases;
	}
	write_listed(t);
}

void round_of_writes(struct model_test *t, bool all)
{
	pick_pages(t, all);
	write_picked(t);

	/*
	 * Without eager splitting, other mappings of a written page stay huge,
	 * and a 1GiB page is split into 2MiB pages first.
	 */
	if (eager || (ptes_per_huge(t) == 1 && t->c->level == PG_LEVEL_2M))
		expect_huge_model(t, "written");

	/* Every other cycle, CLEAR clears pages that no GET has returned. */
	if (!t->manual || t->cycle % 2)
		compare_log(t, "written");
	if (t->manual) {
		memcpy(t->arg, t->pick, log_words(t) * sizeof(*t->arg));
		clear_log(t, 0, t->npages);
	}
	compare_log(t, "cleared");
}

void log_cycle(struct model_test *t)
{
	unsigned int nr = 0;

	touch_all(t, "all touched");
	start_and_clear(t);
	check_split(t);

	/*
	 * Page faults must find and use the children that the splitter created.
	 */
	round_of_writes(t, false);
	check_split(t);
	do {
		round_of_writes(t, true);
		nr += t->npages / t->c->stride / 3;
	} while (nr < t->c->aliases);

	stop_logging(t);
	check_memory(t);
	t->cycle++;
}

void run_cycles(struct model_test *t)
{
	for (int i = 0; i < NR_CYCLES; i++)
		log_cycle(t);

	touch_all(t, "all touched at the end");
	check_memory(t);
}

void clear_across(struct model_test *t, u64 page, const char *when)
{
	u64 first = page - page % BITS_PER_WORD;
	u64 nr = min_t(u64, BITS_PER_WORD, t->npages - first);

	log_fill(t, t->arg, first, page - first + 1);
	clear_log(t, first, nr);
	expect_huge_model(t, "cleared across huge pages");

	list_write(t, page, 0);
	list_write(t, first, 0);
	write_listed(t);
	compare_log(t, when);
}

void clear_across_all(struct model_test *t)
{
	start_logging(t);
	for (unsigned int i = 0; i < t->c->nr_huge; i++)
		clear_across(t, t->c->head + i * pages_per_huge(t), "written across huge pages");
	stop_logging(t);
	check_memory(t);
}
