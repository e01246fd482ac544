// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging by Dirty bits: page tables that KVM skips as idle
 *
 * When KVM collects Dirty bits, the TDP MMU skips a page table if no CPU has
 * set the Accessed bit of the link to it.  But a CPU that has cached the link
 * does not set the bit when it writes to a page, until its TLB is flushed.
 * Such writes must not be missing from the log.
 *
 * The guest reads and writes single pages between calls of KVM_GET_DIRTY_LOG
 * and KVM_CLEAR_DIRTY_LOG.  Each GET must return exactly the pages that the
 * model of eager_split_model.h expects, and the statistic dirty_bits_idle must
 * count the page tables that KVM is expected to skip.
 *
 * It needs VMs that log by Dirty bits, see kvm.dirty_bits, i.e. no PML.
 *
 * Limits:
 *  - Emulators do not cache links.  With kvm.prove_forget_links, kernels with
 *    CONFIG_KVM_PROVE_MMU_RACES behave as if CPUs had cached all links.  The
 *    test then fails if that has never made a difference.
 *  - Real CPUs may use links speculatively, so KVM may skip fewer page tables
 *    than the test expects.
 *  - Without the TDP MMU, KVM skips nothing, and the test only compares the
 *    log.
 */
#include "eager_split_model.h"

#define PARAM_FORGET		KVM_PARAM("prove_forget_links")
#define PARAM_FORGOTTEN		KVM_PARAM("prove_forgotten")

/* The place where KVM pauses within the update of a link. */
#define LINK_PLACE		"tdp_link"

#define NR_ROUNDS		40u
#define NR_TABLES		8u

/*
 * KVM_GET_DIRTY_LOG itself flushes TLBs only if more page tables than this wait
 * for a flush.
 */
#define MAX_PENDING		64u

static bool links_are_cached(void)
{
	return setting_exists(PARAM_FORGET) && setting_value(PARAM_FORGET)[0] == 'Y';
}

static u64 nr_forgotten(void)
{
	char text[SETTING_MAX];

	return read_file(PARAM_FORGOTTEN, text, sizeof(text)) ? strtoull(text, NULL, 10) : 0;
}

static void read_page(struct model_test *t, u64 page)
{
	list_read(t, page, 0);
	guest_run(t, READ_GPA);
}

static void write_page(struct model_test *t, u64 page)
{
	list_write(t, page, 0);
	write_listed(t);
}

/* Write to the first page of each of the first @nr page tables. */
static void write_tables(struct model_test *t, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		list_write(t, i * PAGES_PER_2M, 0);
	write_listed(t);
}

static void read_tables(struct model_test *t, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		list_read(t, i * PAGES_PER_2M, 0);
	guest_run(t, READ_GPA);
}

/* Clear only what the last GET returned.  Other pages may be dirty by now. */
static void clear_seen(struct model_test *t)
{
	memcpy(t->arg, t->seen, log_words(t) * sizeof(*t->arg));
	clear_log(t, 0, t->npages);
}

static void look_and_clear(struct model_test *t, unsigned int times)
{
	while (times--) {
		compare_log(t, "nothing happens");
		clear_seen(t);
	}
}

static void expect_skipped(struct model_test *t, u64 expected, const char *when)
{
	u64 before = vm_get_stat_or_absent(t->vm, "dirty_bits_idle"), seen;

	compare_log(t, when);
	seen = vm_get_stat_or_absent(t->vm, "dirty_bits_idle") - before;
	if (!is_tdp_mmu())
		expected = 0;
	CHECK(t, seen == expected, "%s: expected %lu page tables to be skipped, seen %lu", when,
	      expected, seen);
}

/* Map each page by an SPTE, so that only its Dirty bit shows a later write. */
static void populate(struct model_test *t)
{
	start_and_clear(t);
	write_all(t);
	look_and_clear(t, 1);
}

/*
 * KVM_CLEAR_DIRTY_LOG of a page that is not in the log collects Dirty bits, and
 * clears the Accessed bit of a link that a CPU may have cached.  KVM must not
 * rely on a flush that came before that.
 */
static void window_of_clear(struct model_test *t, u64 page, u64 other)
{
	write_page(t, page);
	look_and_clear(t, 1);
	read_page(t, other);
	log_fill(t, t->arg, 0, 1);
	clear_log(t, 0, t->npages);
	compare_log(t, "KVM_CLEAR_DIRTY_LOG has looked");
	write_page(t, other);
	compare_log(t, "written by a link that was cached then");
	clear_seen(t);
}

/*
 * The guest reads a page, so that the CPU may cache the link.  It writes to the
 * page when KVM has cleared the Accessed bit of the link: before the flush,
 * after it, and between further calls.
 */
static void window_round(struct model_test *t, unsigned int i)
{
	u64 page = 10 * i, next = page + 50, other = PAGES_PER_2M + page;
	u64 pages[] = { other, page, next, page + 100 };

	read_page(t, page);
	read_page(t, next);
	write_page(t, other);
	compare_log(t, "the link may be cached");
	write_page(t, page);
	/* This flushes TLBs, because of @other. */
	clear_seen(t);
	compare_log(t, "written before the flush");
	clear_seen(t);
	/* After some calls, KVM treats the page table as idle. */
	for (unsigned int j = 0; j < i % 4; j++)
		compare_log(t, "nothing was written");
	write_page(t, next);
	compare_log(t, "written after the flush");
	clear_seen(t);

	for (unsigned int j = 0; j < ARRAY_SIZE(pages); j++) {
		write_page(t, pages[j]);
		compare_log(t, "one more is written");
	}
	clear_seen(t);
	write_page(t, page);
	compare_log(t, "written after all was cleared");
	clear_seen(t);
	look_and_clear(t, i % 3);
	window_of_clear(t, page, other);
}

static void run_window(struct model_test *t)
{
	u64 forgotten = nr_forgotten();

	populate(t);
	for (unsigned int i = 0; i < NR_ROUNDS; i++)
		window_round(t, i);
	CHECK(t, !links_are_cached() || !is_tdp_mmu() || nr_forgotten() > forgotten,
	      "no CPU has used a cached link");
}

/* Return: a new memslot with the second half of the memory. */
static struct model_test *cut(struct model_test *t)
{
	struct model_test *second = calloc(1, sizeof(*second));

	TEST_ASSERT(second, "Out of memory");
	vm_set_user_memory_region(t->vm, t->slot, 0, t->gpa, 0, t->hva);
	t->npages /= 2;
	*second = *t;
	second->slot++;
	second->gpa += t->npages * PAGE_SIZE;
	second->hva += t->npages * PAGE_SIZE;
	set_flags(t, 0);
	set_flags(second, 0);
	return second;
}

/*
 * Two memslots share a page table and its link.  Collecting the Dirty bits of
 * one memslot must not lose those of the other.
 */
static void shared_round(struct model_test *first, struct model_test *second, unsigned int i)
{
	u64 page = first->npages - 1 - i, next = i;

	read_page(first, page);
	read_page(second, next);
	compare_log(first, "the link may be cached");
	write_page(second, next);
	/* Collect the other half twice, with a flush in between. */
	write_page(first, i);
	compare_log(first, "beside what the other has");
	clear_seen(first);
	compare_log(first, "after the flush");
	compare_log(second, "written by a cached link");
	write_page(first, page);
	clear_seen(second);
	for (unsigned int j = 0; j < i % 4; j++)
		compare_log(second, "nothing was written");
	compare_log(first, "written beside the other");
	clear_seen(first);
	look_and_clear(first, i % 3);
	look_and_clear(second, i % 3);
}

static void run_shared(struct model_test *first)
{
	struct model_test *second = cut(first);

	populate(first);
	populate(second);
	for (unsigned int i = 0; i < NR_ROUNDS; i++)
		shared_round(first, second, i);

	/*
	 * Page tables first wait for a flush, and are idle after it.  KVM must
	 * skip all but the one that the memslots share.
	 */
	write_tables(first, 2);
	write_tables(second, 2);
	look_and_clear(first, 1);
	look_and_clear(second, 1);
	compare_log(first, "flushed");
	compare_log(second, "flushed");
	expect_skipped(first, first->npages / PAGES_PER_2M, "first memslot");
	expect_skipped(second, second->npages / PAGES_PER_2M, "second memslot");
	free(second);
}

/* KVM skips page tables until CPUs use them again. */
static void run_idle(struct model_test *t)
{
	start_and_clear(t);
	write_tables(t, NR_TABLES);
	expect_skipped(t, 0, "touched");
	expect_skipped(t, 0, "no flush yet");
	clear_seen(t);
	expect_skipped(t, 0, "flushed");
	expect_skipped(t, NR_TABLES, "idle");

	for (unsigned int i = 0; i < NR_ROUNDS; i++) {
		write_page(t, i % NR_TABLES * PAGES_PER_2M + i);
		expect_skipped(t, NR_TABLES - 1, "one touched");
		clear_seen(t);
		expect_skipped(t, NR_TABLES - 1, "one flushed");
		expect_skipped(t, NR_TABLES, "all idle");
	}
}

/*
 * If the guest reads all the time, at most every other call may flush TLBs:
 * until a flush, CPUs that have cached links leave the Accessed bits clear.
 */
static void read_many(struct model_test *t)
{
	u64 before = vm_get_stat(t->vm, remote_tlb_flush_requests), seen;

	for (unsigned int i = 0; i < 6; i++) {
		read_tables(t, MAX_PENDING + 1);
		compare_log(t, "read");
	}
	seen = vm_get_stat(t->vm, remote_tlb_flush_requests) - before;
	CHECK(t, seen <= 3, "TLBs were flushed %lu times for what is being read", seen);
}

/*
 * Nothing is dirty, so CLEAR has nothing to flush for, and only
 * KVM_GET_DIRTY_LOG flushes.  There are page tables because the guest has
 * written to a page of each before.
 */
static void run_many(struct model_test *t)
{
	start_and_clear(t);
	write_tables(t, MAX_PENDING + 1);
	look_and_clear(t, 3);
	expect_skipped(t, MAX_PENDING + 1, "idle after CLEAR");

	read_tables(t, MAX_PENDING);
	for (unsigned int i = 0; i < 3; i++)
		expect_skipped(t, 1, "no flush pays");

	read_page(t, MAX_PENDING * PAGES_PER_2M);
	expect_skipped(t, 0, "one is touched");
	expect_skipped(t, 0, "a flush pays");
	expect_skipped(t, 0, "flushed");
	expect_skipped(t, MAX_PENDING + 1, "idle");

	for (unsigned int i = 0; i < NR_ROUNDS; i++) {
		u64 page = i % (MAX_PENDING + 1) * PAGES_PER_2M + i;

		write_page(t, page);
		look_and_clear(t, 1);
		read_tables(t, MAX_PENDING + 1);
		compare_log(t, "all touched");
		compare_log(t, "flushed by this call");
		write_page(t, page);
		look_and_clear(t, 1);
	}
	read_many(t);
}

/* The thread has got the log. */
static bool got_log;

static void *get_log(void *arg)
{
	struct model_test *t = arg;

	kvm_vm_get_dirty_log(t->vm, t->slot, t->seen);
	WRITE_ONCE(got_log, true);
	return NULL;
}

/*
 * Wait until KVM pauses within the update of a link, or GET ends without one.
 */
static void wait_for_pause(u64 before)
{
	while (nr_pauses_at(LINK_PLACE) == before && !READ_ONCE(got_log))
		;
}

/*
 * KVM finds a link idle, and pauses between reading and changing it.  Meanwhile
 * the guest uses the link.  On kernels that cannot pause, the same steps may
 * run one after the other.
 */
static void run_link(struct model_test *t)
{
	pthread_t thread;
	u64 pauses;

	pause_us = setting_exists(PARAM_PAUSE_US) ? MAX_PAUSE_US : 0;
	start_and_clear(t);
	for (unsigned int i = 0; i < NR_ROUNDS; i++) {
		write_page(t, i);
		look_and_clear(t, 1);
		pauses = nr_pauses_at(LINK_PLACE);
		WRITE_ONCE(got_log, false);
		set_pauses(true);
		start_thread(&thread, get_log, t);
		wait_for_pause(pauses);
		read_page(t, i);
		pthread_join(thread, NULL);
		set_pauses(false);
		expect_skipped(t, 0, "used while it was looked at");
	}
}

static const char *no_dirty_bits(void)
{
	return new_vm_get_stat("dirty_bits") == 1 ? NULL : "VMs do not log by Dirty bits";
}

/* Only the TDP MMU skips page tables, and flushes for that. */
static const char *no_tdp_mmu(void)
{
	return is_tdp_mmu() ? no_dirty_bits() : "the guest isn't mapped by the TDP MMU";
}

const struct test_case test_cases[] = {
	{ "window", "writes by way of a cached link before and after the flush", enter_long,
	  run_window, no_dirty_bits, .tail = 2 * PAGES_PER_2M, .manual_only = true },
	{ "shared", "a page table that two memslots share", enter_long,
	  run_shared, no_dirty_bits, .tail = 3 * PAGES_PER_2M, .manual_only = true },
	{ "idle", "page tables are skipped while no CPU uses them", enter_long,
	  run_idle, no_dirty_bits, .tail = NR_TABLES * PAGES_PER_2M, .manual_only = true },
	{ "link", "a link is used while it is looked at", enter_long,
	  run_link, no_dirty_bits, .tail = PAGES_PER_2M, .manual_only = true },
	{ "many", "many page tables that are only read", enter_long,
	  run_many, no_tdp_mmu, .tail = (MAX_PENDING + 1) * PAGES_PER_2M, .manual_only = true },
};

const unsigned int nr_cases = ARRAY_SIZE(test_cases);
