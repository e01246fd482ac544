// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting and what user space sets meanwhile: a quota of shadow pages
 * that is too small to split all huge pages, and a parameter that changes all the time
 */
#include <signal.h>

#include "eager_split_model.h"

/* Memory that uses up shadow pages: one page in each 2MiB is touched. */
#define BALLAST_SLOT		2
#define BALLAST_BASE		0x10000000ull
#define BALLAST_PAGES		96u

#define MAX_MMU_PAGES		200ul

/* Room for page tables that are built again, and for one or two splits. */
#define QUOTA_LEFT		7

#define NR_FLIPPED_CYCLES	4
#define FLIP_PERIOD_US		50

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

/* The thread has ended before the parameter gets its old value. */
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

	/* Exit handlers run in the opposite order. */
	if (!before && setting_exists(PARAM_EAGER))
		before = !atexit(flip_end);
	flipping = true;
	WRITE_ONCE(flip_stop, false);
	start_thread(&flip_id, flip_thread, NULL);
}

/* Failures end in exit(), and signals have to wait: the old value comes back. */
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

	/* What went was the oldest, through which others were reached. */
	vm_set_nr_mmu_pages(t->vm, quota + QUOTA_LEFT);
	recycled = vm_get_stat(t->vm, mmu_recycled);
	touch_all(t, "all touched again");
	CHECK(t, vm_get_stat(t->vm, mmu_recycled) == recycled, "touching reclaimed shadow pages");
}

static void start_logging_in_vain(struct model_test *t)
{
	u64 recycled = vm_get_stat(t->vm, mmu_recycled);
	unsigned int nr;

	start_and_clear(t);
	CHECK(t, vm_get_stat(t->vm, mmu_recycled) == recycled, "splitting reclaimed shadow pages");

	/* The children of the last cycle are still there. */
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
static void run_across_quota(struct model_test *t)
{
	add_ballast(t);
	t->unpredictable = true;
	tighten_quota(t);
	clear_across_all(t);
}

const struct test_case test_cases[] = {
	{ "quota", "too few shadow pages to split", enter_long, run_quota,
	  .skip_reason = no_quota, .nr_huge = 4 },
	{ "flip", "eager_page_split changes while pages are split", enter_long, run_flip,
	  .skip_reason = cannot_flip, .nr_huge = 4 },
	{ "across_q", "CLEAR of words that have pages of two huge pages, too few shadow pages",
	  enter_long, run_across_quota, .skip_reason = no_quota, .nr_huge = 4, .head = 61,
	  .tail = 101, .manual_only = true },
};

const unsigned int nr_cases = ARRAY_SIZE(test_cases);
