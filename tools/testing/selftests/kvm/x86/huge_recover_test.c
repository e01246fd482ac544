// SPDX-License-Identifier: GPL-2.0-only
/*
 * Huge pages that KVM restores when dirty logging is disabled
 *
 * Most cases enable logging, have the guest write, so that huge pages are
 * split, and disable logging.  Then KVM must have replaced the page tables by
 * huge pages, as the model of eager_split_model.h expects it.
 *
 *  - full: all pages are mapped.  Afterwards no access may fault.
 *  - holes: only few pages of each page table are mapped.
 *  - readonly: the host may only read the memory, so the huge pages must not
 *    become writable.
 *  - unlinked: nothing links to some of the page tables any more.
 *  - nx, nx-tracked: with the mitigation for NX huge pages, the huge pages must
 *    not be executable.
 *  - 1g-left: the TDP MMU must remove the page tables below a 1GiB page one by
 *    one.
 *  - 1g-unlinked: the shadow MMU must not look at all page tables below a 1GiB
 *    page in one step.
 *
 * eager_split_modes_test checks that huge pages are restored in each mode of
 * the guest, and with the same model.
 *
 * Limits: the TDP MMU of some kernels leaves read-only memory to page faults,
 * so the test does not check faults with the TDP MMU.  It cannot see TLB
 * flushes, but only how many flushes KVM has requested.
 */
#include "eager_split_model.h"

/* Disable logging, which removes page tables and so has to flush TLBs. */
static void stop_and_flush(struct model_test *t)
{
	u64 flushes = vm_get_stat(t->vm, remote_tlb_flush_requests);

	stop_logging(t);
	CHECK(t, vm_get_stat(t->vm, remote_tlb_flush_requests) > flushes,
	      "logging disabled: expected a flush of TLBs, seen none");
}

static void expect_4k_as_before(struct model_test *t, u64 before)
{
	u64 now = vm_get_stat(t->vm, pages_4k);

	CHECK(t, now == before, "logging disabled: expected %lu 4KiB pages as before, seen %lu",
	      before, now);
}

/* All memory must be mapped as before, so that no read and no write faults. */
static void run_full(struct model_test *t)
{
	u64 faults, pages_2m, pages_4k;

	for (int i = 0; i < NR_CYCLES; i++) {
		touch_all(t, "all touched");
		pages_2m = vm_get_stat(t->vm, pages_2m);
		pages_4k = vm_get_stat(t->vm, pages_4k);
		start_and_clear(t);
		round_of_writes(t, true);
		stop_and_flush(t);
		expect_4k_as_before(t, pages_4k);
		CHECK(t, vm_get_stat(t->vm, pages_2m) == pages_2m,
		      "logging disabled: expected %lu 2MiB pages as before, seen %lu", pages_2m,
		      vm_get_stat(t->vm, pages_2m));

		faults = nr_faults(t->vcpu);
		read_all(t);
		write_all(t);
		faults = nr_faults(t->vcpu) - faults;
		CHECK(t, is_tdp_mmu() || !faults,
		      "after logging: expected no page fault, seen %lu", faults);
		check_memory(t);
	}
}

static void write_few(struct model_test *t)
{
	static const unsigned int written[] = { 3, 64, 511 };

	for (unsigned int i = 0; i < t->c->nr_huge; i++)
		for (unsigned int j = 0; j < ARRAY_SIZE(written); j++)
			list_write(t, t->c->head + i * PAGES_PER_2M + written[j], 0);
	write_listed(t);
}

/*
 * Only few pages are mapped.  The first write fills a page table, the host has
 * KVM zap all SPTEs in it, and then the guest writes few pages again.  It reads
 * the other pages when logging is disabled and the huge page is restored.
 */
static void run_holes(struct model_test *t)
{
	start_and_clear(t);
	write_few(t);
	TEST_ASSERT(!mprotect(t->mapping, t->mapping_size, PROT_READ), "errno %d", errno);
	TEST_ASSERT(!mprotect(t->mapping, t->mapping_size, PROT_READ | PROT_WRITE), "errno %d",
		    errno);
	write_few(t);
	stop_and_flush(t);
	read_all(t);
	write_all(t);
	check_memory(t);
}

/* The host makes the memory read-only, so that KVM must not restore writable huge pages. */
static void run_readonly(struct model_test *t)
{
	struct kvm_regs regs = { .rip = WRITE_GPA, .rsi = LIST_GPA, .rcx = 1,
				 .rdx = t->seed, .rflags = X86_EFLAGS_FIXED };
	int r;

	write_all(t);
	TEST_ASSERT(!mprotect(t->mapping, t->mapping_size, PROT_READ), "errno %d", errno);
	read_all(t);
	start_and_clear(t);
	read_all(t);
	stop_logging(t);
	read_all(t);

	t->list[0] = t->gpa + t->c->head * PAGE_SIZE;
	vcpu_regs_set(t->vcpu, &regs);
	r = __vcpu_run(t->vcpu);
	CHECK(t, r == -1 && errno == EFAULT,
	      "a write to what the host may only read: expected an error of KVM_RUN, seen %d", r);
	check_memory(t);
}

/*
 * When a guest entry becomes dirty, KVM links another page table, whose SPTEs
 * may be writable.  Nothing links to the former page table any more.  KVM must
 * zap its SPTEs as well when logging is disabled.
 */
static void run_unlinked(struct model_test *t)
{
	u64 pages_4k;

	touch_all(t, "all read");
	pages_4k = vm_get_stat(t->vm, pages_4k);
	start_and_clear(t);
	read_all(t);
	for (unsigned int i = 0; i < t->c->nr_huge; i++)
		list_write(t, t->c->head + i * PAGES_PER_2M, 0);
	write_listed(t);
	stop_logging(t);
	expect_4k_as_before(t, pages_4k);
	write_all(t);
	check_memory(t);
}

/*
 * With the mitigation for NX huge pages, huge pages are not executable.  KVM
 * splits a huge page in which the guest executes code.
 */
static void execute_first(struct model_test *t)
{
	u64 offset = t->c->head * PAGE_SIZE + READ_GPA % PAGE_SIZE;

	memcpy(t->hva + offset, addr_gpa2hva(t->vm, READ_GPA), CODE_MAX);
	list_read(t, t->c->head + 1, 0);
	t->huge[0] = false;
	t->list_sum = 0;
	guest_run(t, t->gpa + offset);
	expect_huge_model(t, "executed in the first huge page");
}

static void run_nx(struct model_test *t)
{
	touch_all(t, "all touched");
	start_and_clear(t);
	stop_logging(t);
	read_all(t);
	execute_first(t);
}

/* Without Accessed bits, KVM maps a prefaulted page by an SPTE that tracks the first access. */
static void run_nx_tracked(struct model_test *t)
{
	struct kvm_pre_fault_memory first = {
		.gpa = t->gpa + t->c->head * PAGE_SIZE,
		.size = PAGE_SIZE,
	};

	set_flags(t, KVM_MEM_LOG_DIRTY_PAGES);
	vcpu_ioctl(t->vcpu, KVM_PRE_FAULT_MEMORY, &first);
	set_flags(t, 0);
	execute_first(t);
}

/*
 * A 1GiB page of the TDP MMU that is split, with a page table for each 2MiB.
 * Nearly all of these are empty, because the host has taken the memory away for
 * a moment.
 *
 * KVM must remove these page tables one by one, so that it can yield mmu_lock
 * in between.  It must not remove all of them in one step when it restores the
 * 1GiB page.  When KVM removes a page table, it freezes all SPTEs in it.  So
 * the tracepoint must not report that a link to a page table was frozen.
 */

#define SPTE_CHANGED	TRACING "events/kvmmmu/kvm_tdp_mmu_spte_changed/"
#define SPTE_PRESENT	BIT_ULL(11)
#define SPTE_LEAF	BIT_ULL(7)

struct removed {
	unsigned int tables;
	/*
	 * Those that KVM removed together with the table that linked to them.
	 */
	unsigned int within;
};

static void add_removed(struct removed *r, const char *line)
{
	const char *text = strstr(line, "level 2 old_spte ");
	unsigned long old_spte, new_spte;

	if (!text ||
	    sscanf(text, "level 2 old_spte %lx new_spte %lx", &old_spte, &new_spte) != 2 ||
	    !(old_spte & SPTE_PRESENT) || (old_spte & SPTE_LEAF))
		return;

	/* A frozen SPTE has some of the low bits set, a zapped SPTE none. */
	r->tables++;
	r->within += !(new_spte & SPTE_PRESENT) && new_spte % PAGE_SIZE;
}

static struct removed read_removed(void)
{
	FILE *f = fopen(TRACING "trace", "r");
	struct removed r = { };
	char line[512];

	TEST_ASSERT(f, "Can't read the trace");
	while (fgets(line, sizeof(line), f))
		add_removed(&r, line);
	fclose(f);
	return r;
}

static struct removed stop_and_count(struct model_test *t)
{
	struct removed r;

	clear_trace();
	setting_set(SPTE_CHANGED "enable", "1");
	stop_logging(t);
	setting_set(SPTE_CHANGED "enable", "0");
	r = read_removed();
	clear_trace();
	return r;
}

/*
 * Have KVM zap all SPTEs, which leaves empty page tables, and the guest write
 * the first page.
 */
static void leave_only_first(struct model_test *t)
{
	TEST_ASSERT(!mprotect(t->mapping, t->mapping_size, PROT_NONE) &&
		    !mprotect(t->mapping, t->mapping_size, PROT_READ | PROT_WRITE),
		    "errno %d", errno);
	list_write(t, 0, 0);
	write_listed(t);
}

static void run_1g_left(struct model_test *t)
{
	struct removed r;

	touch_all(t, "all touched");
	start_and_clear(t);
	leave_only_first(t);

	r = stop_and_count(t);
	CHECK(t, !eager || r.tables == PAGES_PER_1G / PAGES_PER_2M,
	      "logging disabled: expected %lu page tables to be removed, seen %u",
	      PAGES_PER_1G / PAGES_PER_2M, r.tables);
	CHECK(t, !r.within, "logging disabled: %u page tables were removed in one step", r.within);
	read_all(t);
	write_all(t);
	check_memory(t);
}

/*
 * The page table below a 1GiB page links to page tables that are empty, but
 * for one, and nothing links to it any more.
 *
 * When KVM empties it, it must not read 511 page tables with mmu_lock held.  So
 * the links must be left.  The next split finds them, which shows in a flush of
 * TLBs before that of CLEAR.
 */
static void run_1g_unlinked(struct model_test *t)
{
	u64 flushes, pages_4k;

	/* Have the guest's table of 1GiB entries mapped, too, before 4KiB pages are counted. */
	rewrite_guest_entry(t, 0);
	touch_all(t, "all touched");
	pages_4k = vm_get_stat(t->vm, pages_4k);
	start_and_clear(t);
	leave_only_first(t);
	rewrite_guest_entry(t, 0);

	t->unpredictable = true;
	stop_and_flush(t);
	t->unpredictable = false;
	expect_4k_as_before(t, pages_4k);
	expect_huge(t, 0, "logging disabled");

	touch_all(t, "all touched again");
	start_logging(t);
	flushes = vm_get_stat(t->vm, remote_tlb_flush_requests);
	log_fill(t, t->arg, 0, BITS_PER_WORD);
	clear_log(t, 0, BITS_PER_WORD);
	flushes = vm_get_stat(t->vm, remote_tlb_flush_requests) - flushes;
	expect_huge_first_word(t);
	CHECK(t, !eager || flushes >= 2,
	      "links were left: expected a TLB flush and that of CLEAR, seen %lu", flushes);
	stop_logging(t);
	read_all(t);
	check_memory(t);
}

static const char *no_mitigation(void)
{
	return get_kvm_param_bool("nx_huge_pages") ? NULL : "nx_huge_pages is off";
}

static const char *no_mitigation_or_tdp(void)
{
	return kvm_is_tdp_enabled() ? no_mitigation() : "the guest's page tables are shadowed";
}

static const char *cannot_trace_1g(void)
{
	if (!is_tdp_mmu())
		return "the guest isn't mapped by the TDP MMU";
	return no_1g() ?: setting_exists(SPTE_CHANGED "enable") ? NULL : "no tracepoint";
}

const struct test_case test_cases[] = {
	{ "full", "page tables that are full", enter_long, run_full, .nr_huge = 3 },
	{ "holes", "page tables with few SPTEs", enter_long, run_holes,
	  .nr_huge = 3, .untouched = true },
	{ "readonly", "memory that the host may only read", enter_long, run_readonly,
	  .nr_huge = 2 },
	{ "unlinked", "page tables that nothing links to", enter_long, run_unlinked,
	  .skip_reason = no_shadow_paging, .nr_huge = 2, .read_first = true },
	{ "nx", "pages that are executed", enter_long, run_nx,
	  .skip_reason = no_mitigation, .nr_huge = 2 },
	{ "nx-tracked", "pages that are executed and tracked", enter_long, run_nx_tracked,
	  .skip_reason = no_mitigation_or_tdp, .nr_huge = 1 },
	{ "1g-left", "a 1GiB page and empty page tables", enter_long, run_1g_left,
	  .skip_reason = cannot_trace_1g, .nr_huge = 1, .level = PG_LEVEL_1G,
	  .stride = PAGES_PER_2M },
	{ "1g-unlinked", "a 1GiB page's table that nothing links to", enter_long, run_1g_unlinked,
	  .skip_reason = no_shadow_1g, .nr_huge = 1, .level = PG_LEVEL_1G,
	  .stride = PAGES_PER_2M, .manual_only = true },
};

const unsigned int nr_cases = ARRAY_SIZE(test_cases);
