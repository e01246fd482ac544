// SPDX-License-Identifier: GPL-2.0-only
/*
 * Huge pages that the first write splits
 *
 * With kvm.eager_page_split=N, huge pages still map the memory after dirty
 * logging was enabled.  Reads of the guest must not split them.  The first
 * write to a huge page must split it, so that all of its 4KiB pages are mapped.
 * KVM must count one split (vCPU statistic eager_split_fault).  With Dirty bits
 * or PML, writes to the other pages must cost no page fault.  The same must
 * hold each time that logging is enabled, even if KVM finds empty page tables
 * that are left from the last time.
 *
 * Memory that is logged before the guest accesses it ("logged from the start")
 * must also be mapped by huge pages until the guest writes to it, and reads
 * must not put it into the log.  If CLEAR splits these huge pages eagerly,
 * writes must cost no page fault with Dirty bits or PML.
 *
 * The test compares huge pages, the log and memory with the model of
 * eager_split_model.h.
 *
 * The test is skipped without kvm.eager_page_split=N.  "logged-kept" needs a debug kernel with
 * CONFIG_KVM_PROVE_MMU_RACES.
 *
 * Limits: the test does not count page faults where KVM write-protects pages,
 * nor in the TDP MMU for memory that the guest has only read before, because
 * the host has mapped such memory read-only.
 */
#include "eager_split_model.h"

/*
 * Page tables may be left from the first time, but none are left from the
 * second.  So try a third time.
 */
#define NR_TIMES	3

/* The same memory once more, at other addresses. */
#define TWIN_SLOT	2u
#define TWIN_OFFSET	SZ_1G

static u64 nr_splits(struct model_test *t)
{
	return read_vcpu_stat(t->vcpu, "eager_split_fault");
}

static bool logs_by_dirty_bit(struct model_test *t)
{
	if (host_cpu_is_intel && kvm_is_tdp_enabled() && get_kvm_intel_param_bool("pml"))
		return true;

	return vm_get_stat(t->vm, dirty_bits);
}

/* Does writing all of a huge page cost just one page fault? */
static bool counts_faults(struct model_test *t)
{
	return logs_by_dirty_bit(t) && !(t->c->read_first && is_tdp_mmu());
}

/* Write all pages: one split for each huge page, and no other page fault. */
static void write_all_split(struct model_test *t, u64 nr)
{
	u64 faults = nr_faults(t->vcpu), splits = nr_splits(t);

	/* Small pages before the first huge page and behind the last one are mapped already. */
	write_all(t);
	faults = nr_faults(t->vcpu) - faults;
	splits = nr_splits(t) - splits;
	CHECK(t, splits == nr, "all written, time %u: expected %lu splits, seen %lu", t->cycle + 1,
	      nr, splits);
	CHECK(t, !counts_faults(t) || faults == nr,
	      "all written, time %u: expected %lu page faults, seen %lu", t->cycle + 1, nr, faults);
	expect_huge_model(t, "all written");
	compare_log(t, "all written");
}

/* Reads must not split. */
static void read_all_unsplit(struct model_test *t)
{
	u64 splits = nr_splits(t);

	read_all(t);
	CHECK(t, nr_splits(t) == splits, "all read: expected no split, seen %lu",
	      nr_splits(t) - splits);
	expect_huge_model(t, "all read");
}

static void run_times(struct model_test *t)
{
	for (t->cycle = 0; t->cycle < NR_TIMES; t->cycle++) {
		touch_all(t, "all touched");
		start_and_clear(t);
		read_all_unsplit(t);
		compare_log(t, "all read");
		write_all_split(t, t->c->nr_huge);
		if (t->manual)
			clear_all(t);
		write_all(t);
		compare_log(t, "all written again");
		stop_logging(t);
		check_memory(t);
	}
}

/*
 * The guest's entries of memory that it has only read are clean, so shadow
 * paging maps that memory read-only.
 */
static void run_clean(struct model_test *t)
{
	touch_all(t, "all read");
	start_and_clear(t);
	read_all_unsplit(t);
	write_all_split(t, t->c->nr_huge);
	stop_logging(t);
	check_memory(t);
}

/*
 * Until CLEAR, all pages are in the log, so huge pages stay writable and are
 * not split.
 */
static void run_initially_set(struct model_test *t)
{
	touch_all(t, "all touched");
	start_logging(t);
	for (unsigned int i = 0; i < t->c->nr_huge; i++)
		list_write(t, t->c->head + i * PAGES_PER_2M + 7, 0);
	write_listed(t);
	model_all_huge(t);
	CHECK(t, !nr_splits(t), "written before CLEAR: expected no split, seen %lu", nr_splits(t));
	expect_huge_model(t, "written before CLEAR");
	compare_log(t, "written before CLEAR");

	clear_all(t);
	write_all_split(t, t->c->nr_huge);
	stop_logging(t);
	check_memory(t);
}

/*
 * The guest maps the memory at several addresses.  With shadow paging, each of
 * them has a huge SPTE, which must be split by the first write through it.
 */
static void run_aliases(struct model_test *t)
{
	u64 splits;

	for (t->cycle = 0; t->cycle < NR_TIMES; t->cycle++) {
		touch_all(t, "all touched");
		start_and_clear(t);
		splits = nr_splits(t);
		for (unsigned int alias = 0; alias < t->c->aliases; alias++)
			for (u64 page = alias; page < t->npages; page += t->c->aliases)
				list_write(t, page, alias);
		write_listed(t);
		splits = nr_splits(t) - splits;
		CHECK(t, splits == t->c->nr_huge * (!kvm_is_tdp_enabled() ? t->c->aliases : 1),
		      "written by all addresses, time %u: seen %lu splits", t->cycle + 1, splits);
		expect_huge_model(t, "written by all addresses");
		compare_log(t, "written by all addresses");
		if (t->manual)
			clear_all(t);
		write_all(t);
		compare_log(t, "all written");
		stop_logging(t);
		check_memory(t);
	}
}

static void set_twin_flags(struct model_test *t, u32 flags)
{
	vm_set_user_memory_region(t->vm, TWIN_SLOT, flags, t->gpa + TWIN_OFFSET,
				  t->npages * PAGE_SIZE, t->hva);
}

/* Write to the first page at its address in the other memslot. */
static void write_twin(struct model_test *t)
{
	list_add_gva(t, t->gpa + TWIN_OFFSET, WRITE_GPA);
	t->content[0] = t->gpa + TWIN_OFFSET + t->seed;
	write_listed(t);
}

/* Return: how many pages are in the log of the other memslot. */
static u64 nr_dirty_twins(struct model_test *t)
{
	u64 nr = 0;

	memset(t->seen, 0, log_words(t) * sizeof(*t->seen));
	kvm_vm_get_dirty_log(t->vm, TWIN_SLOT, t->seen);
	for (u64 page = 0; page < t->npages; page++)
		nr += test_bit(page, t->seen);

	return nr;
}

/* Two memslots have the same memory.  KVM must split and log each of them separately. */
static void run_twins(struct model_test *t)
{
	u64 splits;

	set_twin_flags(t, 0);
	virt_map_level(t->vm, t->gpa + TWIN_OFFSET, t->gpa + TWIN_OFFSET, t->npages * PAGE_SIZE,
		       PG_LEVEL_2M);
	touch_all(t, "all touched");
	write_twin(t);
	t->huge_elsewhere = 1;

	start_and_clear(t);
	set_twin_flags(t, KVM_MEM_LOG_DIRTY_PAGES);
	if (t->manual) {
		log_fill(t, t->arg, 0, t->npages);
		kvm_vm_clear_dirty_log(t->vm, TWIN_SLOT, t->arg, 0, t->npages);
	}

	write_all_split(t, t->c->nr_huge);
	CHECK(t, !nr_dirty_twins(t), "written by one memslot: seen in the log of another");

	splits = nr_splits(t);
	write_twin(t);
	t->huge_elsewhere = 0;
	CHECK(t, nr_splits(t) == splits + 1, "other memslot: expected a split, seen %lu",
	      nr_splits(t) - splits);
	CHECK(t, nr_dirty_twins(t) == 1 && (t->seen[0] & 1),
	      "other memslot: expected its first page in the log, seen another log");
	compare_log(t, "written by the other memslot");
	check_memory(t);
}

/*
 * User space changes a guest entry, so that the address of the first huge page
 * leads to the second one.  KVM is not notified.  When the guest writes to this
 * address, KVM finds the huge SPTE of the first huge page, and must not split
 * it.
 */
static void run_rewritten(struct model_test *t)
{
	u64 *entry = vm_get_entry(t->vm, t->gpa, PG_LEVEL_2M);
	u64 old = *entry;

	touch_all(t, "all touched");
	start_and_clear(t);
	WRITE_ONCE(*entry, old + SZ_2M);
	for (u64 page = 0; page < PAGES_PER_2M; page++) {
		/* The address is that of the first huge page, the memory that of the second. */
		list_add_gva(t, t->gpa + page * PAGE_SIZE, WRITE_GPA);
		t->content[PAGES_PER_2M + page] = t->gpa + page * PAGE_SIZE + t->seed;
		set_bit(PAGES_PER_2M + page, t->log);
	}
	write_listed(t);
	compare_log(t, "written by another address");
	check_memory(t);

	/* When the host takes the memory away, no SPTE may still map it. */
	TEST_ASSERT(!madvise(t->hva, t->npages * PAGE_SIZE, MADV_DONTNEED), "errno %d", errno);
	CHECK(t, !nr_huge_mapped(t), "memory taken away: seen %lu huge pages", nr_huge_mapped(t));
	memset(t->content, 0, sizeof(t->content));
	if (t->manual)
		clear_all(t);
	else
		compare_log(t, "memory taken away");
	WRITE_ONCE(*entry, old);
	read_all(t);
	check_memory(t);
}

/* A 1GiB page is split into 2MiB pages, and those that are written further. */
static void run_1g(struct model_test *t)
{
	u64 splits;

	for (t->cycle = 0; t->cycle < NR_TIMES; t->cycle++) {
		touch_all(t, "all touched");
		start_and_clear(t);
		splits = nr_splits(t);
		list_write(t, 3 * PAGES_PER_2M + 5, 0);
		write_listed(t);
		CHECK(t, nr_splits(t) == splits + 2, "a page written: expected 2 splits, seen %lu",
		      nr_splits(t) - splits);
		expect_huge(t, PAGES_PER_2M - 1, "a page written");
		for (u64 page = 0; page < 4 * PAGES_PER_2M; page += t->c->stride)
			list_write(t, page, 0);
		write_listed(t);
		CHECK(t, nr_splits(t) == splits + 5, "8MiB written: expected 5 splits, seen %lu",
		      nr_splits(t) - splits);
		expect_huge(t, PAGES_PER_2M - 4, "8MiB written");
		compare_log(t, "written");
		stop_logging(t);
		check_memory(t);
	}
}

/* Have the guest write a page of each of the first four 2MiB, from @first on. */
static void write_a_page_of_each(struct model_test *t, unsigned int first, unsigned int alias)
{
	for (unsigned int i = first; i < 4; i++)
		list_write(t, i * PAGES_PER_2M + 5, alias);
	write_listed(t);
}

/*
 * The guest has two 1GiB entries for the same memory.  Writes through the first
 * entry have filled page tables, which record which pages were written.  So
 * writes through the second entry must not replace these page tables.
 */
static void run_1g_alias(struct model_test *t)
{
	u64 faults, splits;

	touch_all(t, "all touched");
	start_and_clear(t);
	write_a_page_of_each(t, 0, 0);

	splits = nr_splits(t);
	faults = nr_faults(t->vcpu);
	write_a_page_of_each(t, 0, 1);
	splits = nr_splits(t) - splits;
	faults = nr_faults(t->vcpu) - faults;
	CHECK(t, !splits, "written by the other entry: expected no split, seen %lu", splits);
	CHECK(t, faults <= 1, "written by the other entry: expected a page fault at most, seen %lu",
	      faults);
	expect_huge(t, PAGES_PER_2M - 4, "written by both entries");
	compare_log(t, "written by both entries");
	stop_logging(t);
	check_memory(t);
}

/*
 * The same, but the guest changes the first entry in between, so that nothing
 * links to the page tables any more when the guest writes through the second
 * entry.  KVM must split the 1GiB page, and keep the page tables.
 */
static void run_1g_moved(struct model_test *t)
{
	u64 faults, splits;

	touch_all(t, "all touched");
	start_and_clear(t);
	write_a_page_of_each(t, 0, 0);
	expect_huge(t, PAGES_PER_2M - 4 + 1, "written by the first entry");

	rewrite_guest_entry(t, 0);
	splits = nr_splits(t);
	/* By its change, the guest loses more translations than this one. */
	list_write(t, 5, 1);
	write_listed(t);
	faults = nr_faults(t->vcpu);
	write_a_page_of_each(t, 1, 1);
	splits = nr_splits(t) - splits;
	faults = nr_faults(t->vcpu) - faults;
	CHECK(t, splits <= 1, "written by the second entry: expected one split, seen %lu", splits);
	CHECK(t, !faults, "written by the second entry: expected no more page fault, seen %lu",
	      faults);
	expect_huge(t, PAGES_PER_2M - 4, "written by the second entry");
	compare_log(t, "written by the second entry");
	/* KVM maps nothing by the first entry. */
	t->unpredictable = true;
	stop_logging(t);
	check_memory(t);
}

/* Begin to log memory that the guest has never accessed, and clear the log. */
static void start_untouched(struct model_test *t)
{
	start_logging(t);
	if (t->manual)
		clear_all(t);
	compare_log(t, "nothing accessed");
}

/* Read all: KVM maps huge pages, and the log must not change. */
static void read_logged(struct model_test *t, const char *when)
{
	u64 faults, splits = nr_splits(t);

	read_all(t);
	expect_huge_model(t, when);
	faults = nr_faults(t->vcpu);
	read_all(t);
	CHECK(t, nr_faults(t->vcpu) == faults, "%s, again: expected no page fault, seen %lu", when,
	      nr_faults(t->vcpu) - faults);
	CHECK(t, nr_splits(t) == splits, "%s: expected no split, seen %lu", when,
	      nr_splits(t) - splits);
	compare_log(t, when);
}

/* Write to a page of each huge page, which takes one page fault and one split. */
static void write_sparse(struct model_test *t, const char *when)
{
	u64 faults = nr_faults(t->vcpu), splits = nr_splits(t);

	for (unsigned int i = 0; i < t->c->nr_huge; i++)
		list_write(t, t->c->head + i * PAGES_PER_2M + 77 + i, 0);
	write_listed(t);
	faults = nr_faults(t->vcpu) - faults;
	splits = nr_splits(t) - splits;
	CHECK(t, splits == t->c->nr_huge, "%s: expected %u splits, seen %lu", when, t->c->nr_huge,
	      splits);
	CHECK(t, faults == t->c->nr_huge, "%s: expected %u page faults, seen %lu", when,
	      t->c->nr_huge, faults);
	expect_huge_model(t, when);
	compare_log(t, when);
}

/*
 * After a split, the 4KiB SPTEs must stay, and written pages must be in the
 * log.  With Dirty bits or PML, the guest must not take any more page faults.
 */
static void use_split(struct model_test *t)
{
	u64 faults = nr_faults(t->vcpu);

	if (t->manual)
		clear_all(t);
	for (u64 page = t->c->head; page < t->npages - t->c->tail; page++)
		list_read(t, page, 0);
	guest_run(t, READ_GPA);
	CHECK(t, nr_faults(t->vcpu) == faults, "read after a split: seen %lu page faults",
	      nr_faults(t->vcpu) - faults);
	expect_huge_model(t, "read after a split");
	compare_log(t, "read after a split");

	for (u64 page = t->c->head; page < t->npages - t->c->tail; page++)
		list_write(t, page, 0);
	write_listed(t);
	CHECK(t, !logs_by_dirty_bit(t) || nr_faults(t->vcpu) == faults,
	      "written after a split: seen %lu page faults", nr_faults(t->vcpu) - faults);
	compare_log(t, "written after a split");
}

/* Have the host map the memory writable, so that KVM may do so, too. */
static void populate_host(struct model_test *t)
{
	for (u64 page = 0; page < t->npages; page++)
		WRITE_ONCE(*(u32 *)(t->hva + page * PAGE_SIZE), 0);
}

/* Logged from the start: read, and then written. */
static void run_logged_reads(struct model_test *t)
{
	populate_host(t);
	start_untouched(t);
	model_all_huge(t);
	read_logged(t, "read while logged");
	write_sparse(t, "written while logged");
	use_split(t);
	stop_logging(t);
	check_memory(t);
}

/*
 * Logged from the start, and written without being read.  The guest first
 * writes to a 4KiB page that lies ahead of the first huge page.
 */
static void run_logged_writes(struct model_test *t)
{
	start_untouched(t);
	list_write(t, 0, 0);
	write_listed(t);
	write_sparse(t, "written while logged");
	use_split(t);
	stop_logging(t);
	check_memory(t);
}

/*
 * Logged from the start and read, so KVM has mapped read-only huge pages.
 * CLEAR splits them eagerly.  With Dirty bits or PML, the first writes must
 * then cost no page fault.
 */
static void run_logged_ahead(struct model_test *t)
{
	u64 faults, splits;

	populate_host(t);
	start_logging(t);
	read_all(t);
	model_all_huge(t);
	expect_huge_model(t, "read while logged");

	setting_set(PARAM_EAGER, "Y");
	eager = true;
	clear_all(t);
	expect_huge_model(t, "split ahead");
	compare_log(t, "split ahead");
	setting_reset(PARAM_EAGER);
	eager = get_kvm_param_bool("eager_page_split");

	faults = nr_faults(t->vcpu);
	splits = nr_splits(t);
	write_all(t);
	faults = nr_faults(t->vcpu) - faults;
	CHECK(t, nr_splits(t) == splits, "written: expected no split, seen %lu",
	      nr_splits(t) - splits);
	/*
	 * With shadow paging, the guest's entries are clean, so KVM must not
	 * make SPTEs writable before the guest writes.
	 */
	CHECK(t, !logs_by_dirty_bit(t) || !kvm_is_tdp_enabled() || !faults,
	      "written after a split ahead: expected no page fault, seen %lu", faults);
	compare_log(t, "written after a split ahead");
	clear_all(t);
	compare_log(t, "cleared after a split ahead");
	stop_logging(t);
	check_memory(t);
}

/*
 * A debug kernel does not split every other huge page.  The first write to such
 * a huge page maps only one 4KiB page.  After that, no read may replace the
 * page table by a huge page.
 */
static void run_logged_kept(struct model_test *t)
{
	start_untouched(t);
	model_all_huge(t);
	read_logged(t, "read while logged");
	setting_set(PARAM_SKIP_SPLIT, "1");
	for (unsigned int i = 0; i < t->c->nr_huge; i++)
		list_write(t, i * PAGES_PER_2M + 77, 0);
	write_listed(t);
	expect_huge_model(t, "written, and not split");
	setting_reset(PARAM_SKIP_SPLIT);
	read_logged(t, "read after a write");
	write_all(t);
	compare_log(t, "written while logged");
	stop_logging(t);
	check_memory(t);
}

static const char *no_skip(void)
{
	return setting_exists(PARAM_SKIP_SPLIT) ? NULL : "the kernel splits all huge pages";
}

const struct test_case test_cases[] = {
	{ "times", "three times", enter_long, run_times, .nr_huge = 3, .lazy_only = true },
	{ "unaligned", "a memslot that is not aligned", enter_long, run_times, .nr_huge = 2,
	  .head = 61, .tail = 101, .lazy_only = true },
	{ "clean", "memory that was read before", enter_long, run_clean, .nr_huge = 3,
	  .read_first = true, .lazy_only = true },
	{ "initially-set", "written before and after CLEAR", enter_long, run_initially_set,
	  .nr_huge = 3, .manual_only = true, .lazy_only = true },
	{ "alias2", "memory at 2 addresses", enter_long, run_aliases, .nr_huge = 2, .aliases = 2,
	  .lazy_only = true },
	{ "alias15", "memory at 15 addresses", enter_long, run_aliases, .nr_huge = 2,
	  .aliases = 15, .lazy_only = true },
	{ "twins", "memory of 2 memslots", enter_long, run_twins, .nr_huge = 2, .lazy_only = true },
	{ "rewritten", "an entry that user space changes", enter_long, run_rewritten,
	  .skip_reason = no_shadow_paging, .nr_huge = 2, .lazy_only = true },
	{ "logged-reads", "logged from the start, and read first", enter_long, run_logged_reads,
	  .nr_huge = 3, .untouched = true, .lazy_only = true },
	{ "logged-writes", "logged from the start, and written", enter_long, run_logged_writes,
	  .nr_huge = 2, .head = 61, .tail = 101, .untouched = true, .lazy_only = true },
	{ "logged-unaligned", "the same, of a memslot that is not aligned", enter_long,
	  run_logged_reads, .nr_huge = 2, .head = 61, .tail = 101, .untouched = true,
	  .lazy_only = true },
	{ "logged-ahead", "logged from the start, read, and split ahead", enter_long,
	  run_logged_ahead, .nr_huge = 2, .untouched = true, .manual_only = true,
	  .lazy_only = true },
	{ "logged-kept", "a page table that is not full", enter_long, run_logged_kept,
	  .skip_reason = no_skip, .nr_huge = 2, .untouched = true, .lazy_only = true },
	{ "1g-alias", "2 entries for the same 1GiB", enter_long_alike, run_1g_alias,
	  .skip_reason = no_1g, .nr_huge = 1, .level = PG_LEVEL_1G, .stride = 61, .aliases = 2,
	  .lazy_only = true },
	{ "1g-moved", "2 entries for the same 1GiB, one of which changes", enter_long_alike,
	  run_1g_moved, .skip_reason = no_shadow_1g, .nr_huge = 1, .level = PG_LEVEL_1G,
	  .stride = 61, .aliases = 2, .lazy_only = true },
	{ "1g", "a 1GiB entry", enter_long, run_1g, .skip_reason = no_1g, .nr_huge = 1,
	  .level = PG_LEVEL_1G, .stride = 61, .lazy_only = true },
};

const unsigned int nr_cases = ARRAY_SIZE(test_cases);
