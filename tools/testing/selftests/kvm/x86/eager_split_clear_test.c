// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting, mostly by KVM_CLEAR_DIRTY_LOG
 *
 * The test compares huge pages, the log and memory with the model of
 * eager_split_model.h.  Each case is about one difficulty:
 *
 *  - api: the ioctl must refuse invalid ranges, and must split only huge pages
 *    that contain a page to be cleared.
 *  - across: words of the log contain pages of two huge pages.
 *  - shadowed: the huge page contains a page table of the guest.
 *  - mmio: the guest has accessed the addresses before there was a memslot.
 *  - quota, across_q: the quota of shadow pages is too small to split all huge
 *    pages.
 *  - flip: another thread changes kvm.eager_page_split all the time.
 *  - trace: the tracepoint of the TDP MMU must report each change that logging
 *    makes to a 4KiB SPTE.
 *
 * "quota", "flip" and "trace" also run without manual protection, where huge
 * pages are split when logging is enabled.
 */
#include <signal.h>

#include "eager_split_model.h"

#define TRACE_LINE		256

/* More than enough, unless a vCPU is stuck. */
#define MMIO_TIMEOUT_S		20
#define OPCODE_HLT		0xf4

/* Memory that uses up shadow pages: one page in each 2MiB is touched. */
#define BALLAST_SLOT		2
#define BALLAST_BASE		0x10000000ull
#define BALLAST_PAGES		96u

#define MAX_MMU_PAGES		200ul

/*
 * Shadow pages that the quota leaves for page tables to be rebuilt, and for one
 * or two splits.
 */
#define QUOTA_LEFT		7

#define NR_FLIPPED_CYCLES	4
#define FLIP_PERIOD_US		50

static void expect_refused(struct model_test *t, u64 first, u64 nr)
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

static void check_refused(struct model_test *t)
{
	log_fill(t, t->arg, 0, t->npages);
	for (u64 page = 1; page < BITS_PER_WORD; page++)
		expect_refused(t, page, BITS_PER_WORD);
	expect_refused(t, 0, BITS_PER_WORD - 1);
	expect_refused(t, 0, BITS_PER_WORD + 1);
	expect_refused(t, 0, t->npages + BITS_PER_WORD);
	expect_refused(t, t->npages + BITS_PER_WORD, 0);
	expect_huge_model(t, "refused");
	compare_log(t, "refused");
}

static void check_empty(struct model_test *t)
{
	log_fill(t, t->arg, 0, t->npages);
	clear_log(t, 0, 0);
	clear_log(t, t->npages, 0);
	log_fill(t, t->arg, 0, 0);
	clear_log(t, 0, t->npages);
	expect_huge_model(t, "nothing cleared");
	compare_log(t, "nothing cleared");
}

static void check_single(struct model_test *t, u64 page)
{
	log_fill(t, t->arg, page, 1);
	clear_log(t, 0, t->npages);
	expect_huge_model(t, "one page cleared");
	compare_log(t, "one page cleared");

	list_write(t, page, 0);
	write_listed(t);
	compare_log(t, "one page written");
}

/*
 * A page that is written after GET, and is not to be cleared by the next CLEAR,
 * must be in the next log.  Try a page of the same word of the log as the
 * cleared page, and a page of the same page table.
 */
static void check_neighbours(struct model_test *t, u64 page)
{
	clear_all(t);
	list_write(t, page, 0);
	write_listed(t);
	compare_log(t, "a page written");

	list_write(t, page + 1, 0);
	list_write(t, page + BITS_PER_WORD, 0);
	write_listed(t);
	log_fill(t, t->arg, page, 1);
	clear_log(t, 0, t->npages);
	compare_log(t, "neighbours written");
}

static void check_deletion(struct model_test *t)
{
	clear_all(t);
	vm_set_user_memory_region(t->vm, t->slot, 0, t->gpa, 0, t->hva);
	t->logging = false;
	expect_huge(t, 0, "slot deleted");

	set_flags(t, 0);
	touch_all(t, "slot added");
	check_memory(t);
}

static void run_api(struct model_test *t)
{
	touch_all(t, "all touched");
	start_logging(t);
	check_refused(t);
	check_empty(t);

	/*
	 * The last page of a huge page, the first one, and one in the middle.
	 */
	check_single(t, PAGES_PER_2M - 1);
	check_single(t, 2 * PAGES_PER_2M);
	check_single(t, 3 * PAGES_PER_2M + PAGES_PER_2M / 2);
	check_neighbours(t, PAGES_PER_2M + 3);
	check_deletion(t);
}

/*
 * Clear the word that has the last pages of the first huge page and, with
 * @page, the first page of the second one.  Clear @before, a page of only one
 * of these huge pages, before that.
 */
static void clear_across_after(struct model_test *t, u64 page, u64 before)
{
	touch_all(t, "touched again");
	start_logging(t);
	log_fill(t, t->arg, before, 1);
	clear_log(t, before - before % BITS_PER_WORD, BITS_PER_WORD);
	clear_across(t, page, "written after one huge page was cleared, then across");
	stop_logging(t);
	check_memory(t);
}

static void run_across(struct model_test *t)
{
	u64 page = t->c->head + pages_per_huge(t);

	CHECK(t, t->c->head % BITS_PER_WORD, "the slot is aligned");
	touch_all(t, "all touched");
	clear_across_all(t);
	clear_across_after(t, page, page - 2 * BITS_PER_WORD);
	clear_across_after(t, page, page + 2 * BITS_PER_WORD);
}

/* Run the vCPU until it halts.  MMIO exits are completed without a device. */
static void run_to_hlt(struct model_test *t, u64 entry, const char *when)
{
	struct kvm_regs regs = {
		.rip = entry,
		.rsi = LIST_GPA,
		.rcx = BITS_PER_WORD,
		.rflags = X86_EFLAGS_FIXED,
	};
	int r;

	vcpu_regs_set(t->vcpu, &regs);
	do {
		r = __vcpu_run(t->vcpu);
	} while (!r && t->vcpu->run->exit_reason == KVM_EXIT_MMIO);
	CHECK(t, !r && t->vcpu->run->exit_reason == KVM_EXIT_HLT,
	      "%s: the vCPU didn't get to its end: %d, errno %d, exit %s", when, r, errno,
	      exit_reason_str(t->vcpu->run->exit_reason));
}

/*
 * CLEAR write-protects a huge page, and flushes TLBs only at its end.  If KVM
 * begins to shadow a page table in that huge page before CLEAR has flushed, KVM
 * must flush TLBs as well.  Otherwise a vCPU could write to the page table
 * through a stale translation.  The test does not need to hit this window,
 * because KVM also requests the flush when CLEAR has ended long ago.
 */
static void run_shadowed(struct model_test *t)
{
	u64 gva = align_up(t->gpa + t->npages * PAGE_SIZE, SZ_2M), flushes;
	u64 *table = t->hva + PAGE_SIZE;

	for (unsigned int i = 0; i < PAGE_SIZE / sizeof(*table); i++)
		table[i] = (t->gpa + 2 * PAGE_SIZE) | PT_USED_ENTRY;
	*vm_get_entry(t->vm, gva, PG_LEVEL_2M) = (t->gpa + PAGE_SIZE) | PT_USED_ENTRY;

	/* Map everything else that the guest uses, as that could flush, too. */
	for (unsigned int i = 0; i < BITS_PER_WORD; i++)
		t->list[i] = t->gpa;
	run_to_hlt(t, WRITE_GPA, "written");
	start_logging(t);
	log_fill(t, t->arg, 0, 1);
	kvm_vm_clear_dirty_log(t->vm, t->slot, t->arg, 0, t->npages);
	run_to_hlt(t, READ_GPA, "read");
	CHECK(t, eager || nr_huge_mapped(t) == 1, "the huge page was split");

	for (unsigned int i = 0; i < BITS_PER_WORD; i++)
		t->list[i] = gva + i * PAGE_SIZE;
	flushes = vm_get_stat(t->vm, remote_tlb_flush_requests);
	run_to_hlt(t, READ_GPA, "read by another page table");
	CHECK(t, vm_get_stat(t->vm, remote_tlb_flush_requests) > flushes,
	      "no flush was requested for a page table in a huge page that CLEAR write-protected");
}

/* MMIO */

/*
 * The guest reads where there is no memslot, so KVM creates MMIO SPTEs.  They
 * are still there when a logged memslot is created at these addresses.  CLEAR
 * must not treat any of their bits as a Writable or Dirty bit.  Afterwards the
 * guest executes an instruction in each page, which only works if the page is
 * mapped.
 */
static void run_mmio(struct model_test *t)
{
	interrupt_after(MMIO_TIMEOUT_S);
	vm_set_user_memory_region(t->vm, t->slot, 0, t->gpa, 0, t->hva);
	for (u64 page = 0; page < BITS_PER_WORD; page++)
		t->list[page] = t->gpa + page * PAGE_SIZE;
	run_to_hlt(t, READ_GPA, "no memory");

	set_flags(t, KVM_MEM_LOG_DIRTY_PAGES);
	for (u64 page = 0; page < BITS_PER_WORD; page++)
		*((u8 *)t->hva + page * PAGE_SIZE) = OPCODE_HLT;
	log_fill(t, t->arg, 0, t->npages);
	kvm_vm_clear_dirty_log(t->vm, t->slot, t->arg, 0, t->npages);
	for (u64 page = 0; page < BITS_PER_WORD; page++)
		run_to_hlt(t, t->gpa + page * PAGE_SIZE, "memory");
	alarm(0);
}

/* Traces */

#define TRACE_EVENT		TRACING "events/kvmmmu/kvm_tdp_mmu_spte_changed/enable"

static const char *no_trace(void)
{
	if (!is_tdp_mmu())
		return "no TDP MMU";
	return access(TRACE_EVENT, W_OK) ? "can't trace" : NULL;
}

static u64 nr_traced_4k(void)
{
	FILE *f = fopen(TRACING "trace", "r");
	char line[TRACE_LINE];
	u64 nr = 0;

	TEST_ASSERT(f, "Can't read " TRACING "trace, errno %d", errno);
	while (fgets(line, sizeof(line), f))
		nr += strstr(line, "kvm_tdp_mmu_spte_changed: ") && strstr(line, " level 1 ");
	fclose(f);
	return nr;
}

static void expect_traced(struct model_test *t, bool all, const char *when)
{
	u64 seen = nr_traced_4k(), expected = all ? t->npages : 0;

	CHECK(t, seen == expected, "%s: expected %lu changes of 4KiB SPTEs in the trace, seen %lu",
	      when, expected, seen);
	clear_trace();
}

/*
 * Enabling must not change 4KiB SPTEs that were created armed.  If they were
 * not, enabling must change all of them.
 */
static void expect_enabling_traced(struct model_test *t)
{
	u64 seen = nr_traced_4k();

	CHECK(t, !seen || (eager && !t->manual && seen == t->npages),
	      "logging enabled: expected changes of no 4KiB SPTE, or of all %lu, seen %lu",
	      t->npages, seen);
	clear_trace();
}

static void run_trace(struct model_test *t)
{
	/*
	 * With Dirty bits, CLEAR creates 4KiB SPTEs with the Dirty bit clear,
	 * and need not change them after that.
	 */
	bool dirty_bits = vm_get_stat_or_absent(t->vm, "dirty_bits") == 1;

	touch_all(t, "all touched");
	setting_set(TRACE_EVENT, "1");
	clear_trace();

	start_logging(t);
	expect_enabling_traced(t);
	if (t->manual)
		clear_all(t);
	expect_traced(t, eager && t->manual && !dirty_bits, "split by CLEAR");
	write_all(t);
	clear_trace();
	compare_log(t, "all written");
	if (t->manual)
		clear_all(t);
	expect_traced(t, true, "cleared");
	stop_logging(t);
	expect_traced(t, true, "logging disabled");
	setting_reset(TRACE_EVENT);
}

/* The parameter */

static pthread_t flip_id;
static bool flip_stop;
static bool flipping;

static void *flip_thread(void *unused)
{
	for (unsigned int i = 0; !READ_ONCE(flip_stop); i++) {
		setting_set(PARAM_EAGER, i % 2 ? "Y" : "N");
		usleep(FLIP_PERIOD_US);
	}
	return NULL;
}

/*
 * End the thread.  At exit, this has to come before the parameter is restored.
 */
static void flip_end(void)
{
	if (!flipping)
		return;

	flipping = false;
	WRITE_ONCE(flip_stop, true);
	pthread_join(flip_id, NULL);
}

static void flip_begin(void)
{
	static bool before;

	/*
	 * Exit handlers run in reverse order, so setting_exists() has to
	 * register the one that restores the parameter first.
	 */
	if (!before && setting_exists(PARAM_EAGER))
		before = !atexit(flip_end);
	flipping = true;
	WRITE_ONCE(flip_stop, false);
	start_thread(&flip_id, flip_thread, NULL);
}

/*
 * Block signals: their handlers would restore the parameter while the thread
 * still changes it.  The parameter is restored below or, after a failure, by
 * exit().
 */
static void run_flip(struct model_test *t)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	t->unpredictable = true;
	flip_begin();

	for (int i = 0; i < NR_FLIPPED_CYCLES; i++)
		log_cycle(t);

	flip_end();
	setting_reset(PARAM_EAGER);
	t->unpredictable = false;
	touch_all(t, "all touched at the end");
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static const char *cannot_flip(void)
{
	return access(PARAM_EAGER, W_OK) ? PARAM_EAGER " is read-only" : NULL;
}

/* The quota */

static void touch_ballast(struct model_test *t)
{
	u64 gpa = BALLAST_BASE;

	for (unsigned int i = 0; i < BALLAST_PAGES; i++, gpa += SZ_2M)
		list_add_gva(t, gpa, WRITE_GPA);
	guest_run(t, WRITE_GPA);
}

static void add_ballast(struct model_test *t)
{
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, BALLAST_BASE,
				    BALLAST_SLOT, BALLAST_PAGES * PAGES_PER_2M, 0);
	virt_map_level(t->vm, BALLAST_BASE, BALLAST_BASE, BALLAST_PAGES * SZ_2M, PG_LEVEL_2M);
}

static void tighten_quota(struct model_test *t)
{
	unsigned long quota = MAX_MMU_PAGES;
	u64 recycled;

	vm_set_nr_mmu_pages(t->vm, quota);
	touch_ballast(t);
	touch_all(t, "all touched");

	recycled = vm_get_stat(t->vm, mmu_recycled);
	while (vm_get_stat(t->vm, mmu_recycled) == recycled && quota > MIN_MMU_PAGES)
		vm_set_nr_mmu_pages(t->vm, --quota);
	CHECK(t, quota > MIN_MMU_PAGES, "the smallest quota isn't met by %u pages", BALLAST_PAGES);

	/*
	 * KVM has reclaimed the oldest shadow page, and with it the link to
	 * other shadow pages.  Leave room to rebuild them.
	 */
	vm_set_nr_mmu_pages(t->vm, quota + QUOTA_LEFT);
	recycled = vm_get_stat(t->vm, mmu_recycled);
	touch_all(t, "all touched again");
	CHECK(t, vm_get_stat(t->vm, mmu_recycled) == recycled, "touching reclaimed shadow pages");
}

static void start_logging_short_of_quota(struct model_test *t)
{
	u64 recycled = vm_get_stat(t->vm, mmu_recycled);
	unsigned int nr;

	start_and_clear(t);
	CHECK(t, vm_get_stat(t->vm, mmu_recycled) == recycled, "splitting reclaimed shadow pages");

	/* In later cycles, KVM reuses children, so it may split all pages. */
	if (t->cycle)
		return;

	nr = nr_huge_mapped(t);
	CHECK(t, eager ? nr && nr < t->c->nr_huge : nr == t->c->nr_huge,
	      "expected %s huge pages to stay, seen %u", eager ? "some" : "all", nr);
}

static void run_quota(struct model_test *t)
{
	add_ballast(t);
	t->unpredictable = true;
	for (int i = 0; i < NR_CYCLES; i++) {
		tighten_quota(t);
		start_logging_short_of_quota(t);
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

/* Huge pages that cannot be split must be write-protected. */
static void run_across_quota(struct model_test *t)
{
	add_ballast(t);
	t->unpredictable = true;
	tighten_quota(t);
	clear_across_all(t);
}

const struct test_case test_cases[] = {
	{ "api", "CLEAR of little, of nothing, and of a slot that goes", enter_long, run_api,
	  .nr_huge = 4, .manual_only = true },
	{ "across", "CLEAR of words that have pages of two huge pages", enter_long, run_across,
	  .nr_huge = 3, .head = 61, .tail = 101, .manual_only = true },
	{ "shadowed", "CLEAR of a huge page that contains a page table", enter_long, run_shadowed,
	  .skip_reason = no_shadow_paging, .nr_huge = 1, .manual_only = true },
	{ "mmio", "CLEAR of memory where there was none before", enter_long, run_mmio,
	  .nr_huge = 1, .manual_only = true },
	{ "quota", "too few shadow pages to split", enter_long, run_quota,
	  .skip_reason = no_quota, .nr_huge = 4 },
	{ "flip", "eager_page_split changes while pages are split", enter_long, run_flip,
	  .skip_reason = cannot_flip, .nr_huge = 4 },
	{ "across_q", "CLEAR of words that have pages of two huge pages, too few shadow pages",
	  enter_long, run_across_quota, .skip_reason = no_quota, .nr_huge = 4, .head = 61,
	  .tail = 101, .manual_only = true },
	{ "trace", "changes of SPTEs are traced", enter_long, run_trace,
	  .skip_reason = no_trace, .nr_huge = 3 },
};

const unsigned int nr_cases = ARRAY_SIZE(test_cases);
