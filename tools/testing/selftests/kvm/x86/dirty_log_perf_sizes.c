// SPDX-License-Identifier: GPL-2.0-only
/*
 * Verify the sizes of the pages that KVM maps (-V)
 *
 * KVM counts SPTEs by size.  The counts do not tell where a wrong page is, and
 * may be wrong themselves.  So the first vCPU probes the memory while no other
 * vCPU runs:
 *  - Holes: after each split, it reads all pages, 2MiB at a time.  No read may
 *    take a page fault.
 *  - Huge pages that are left: if the counts say that there are any, the vCPU
 *    writes to two pages of each 2MiB.  If the first write makes a huge page
 *    vanish, the huge page was write-protected.  If the second page is not in
 *    the log, the huge page was writable.
 *
 * Limits:
 *  - Probing splits the huge page, or fills the hole, that it finds.  So the
 *    message only names the first page.
 *  - If the memory is not HugeTLB, reclaim may zap SPTEs.  Then only huge pages
 *    that are left are errors.
 *  - dirty_log_live_perf_test, whose vCPUs run all the time, has only the
 *    counts.
 */
#include "processor.h"
#include "dirty_log_perf.h"

#define GFN_NONE	(~0ULL)

static struct page_sizes count_pages(const struct test *test)
{
	return (struct page_sizes){
		.nr_4k = vm_get_stat(test->vm, pages_4k),
		.nr_2m = vm_get_stat(test->vm, pages_2m),
		.nr_1g = vm_get_stat(test->vm, pages_1g),
	};
}

static struct page_sizes get_page_sizes(const struct test *test, const char *stage)
{
	struct page_sizes sizes = count_pages(test);

	pr_info("Page sizes after %s: 4K: %lu 2M: %lu 1G: %lu\n",
		stage, sizes.nr_4k, sizes.nr_2m, sizes.nr_1g);
	return sizes;
}

/* Without a huge page to start with, finding none later proves nothing. */
void verify_populated(struct test *test)
{
	if (perf_program.map_code)
		perf_program.map_code(test);
	test->populated = get_page_sizes(test, "populating");

	TEST_ASSERT(test->populated.nr_2m || test->populated.nr_1g ||
		    !is_hugetlb(test->opts->backing),
		    "KVM mapped no huge page, although %s can be mapped huge",
		    vm_mem_backing_src_alias(test->opts->backing)->name);
}

u64 nr_test_pages(void)
{
	return memstress_args.size / PAGE_SIZE;
}

u64 page_gfn(u64 page)
{
	return memstress_args.gpa / PAGE_SIZE + page;
}

static u64 faults_taken(const struct test *test)
{
	u64 sum = 0;

	for (int i = 0; i < test->opts->nr_vcpus; i++)
		sum += vcpu_faults_taken(i);
	return sum;
}

struct holes {
	u64 faults;		/* when all pages are read */
	u64 gfn;		/* start of the first 2 MiB in which a read faulted */
};

/*
 * verify_populated() has seen to it that everything else that the vCPU accesses
 * is mapped, so all faults come from these reads.
 */
static struct holes find_holes(const struct test *test)
{
	const u64 step = SPARSE_BYTES / PAGE_SIZE;
	struct holes holes = { .gfn = GFN_NONE };
	u64 before = faults_taken(test), after;

	for (u64 page = 0; page < nr_test_pages(); page += step) {
		perf_program.probe(test, page, step, false);
		after = faults_taken(test);
		if (after > before && !holes.faults)
			holes.gfn = page_gfn(page);
		holes.faults += after - before;
		before = after;
	}
	return holes;
}

/* Return: the first of every @step-th page from @page on that is not logged. */
static u64 find_clean(const struct test *test, u64 page, u64 step)
{
	memstress_get_dirty_log(test->vm, test->bitmaps, test->opts->slots);
	for (; page < nr_test_pages(); page += step)
		if (!is_page_logged(test, page))
			return page_gfn(page);
	return GFN_NONE;
}

static u64 count_huge(const struct test *test)
{
	struct page_sizes sizes = count_pages(test);

	return sizes.nr_2m + sizes.nr_1g;
}

/* Return: the first page where a write makes a huge page vanish. */
static u64 find_protected(const struct test *test)
{
	const u64 step = SPARSE_BYTES / PAGE_SIZE;
	u64 before = count_huge(test), after;

	for (u64 page = 0; page < nr_test_pages(); page += step) {
		perf_program.probe(test, page, 1, true);
		after = count_huge(test);
		if (after < before)
			return page_gfn(page);
		before = after;
	}
	return GFN_NONE;
}

/*
 * Return: the first page where a write is not logged.  With PML, the first
 * write to a huge page logs the one page that it hits.  find_protected() has
 * made the first writes, so these are the second.
 */
static u64 find_unlogged(const struct test *test)
{
	const u64 step = SPARSE_BYTES / PAGE_SIZE;

	for (u64 page = 1; page < nr_test_pages(); page += step)
		perf_program.probe(test, page, 1, true);
	return find_clean(test, 1, step);
}

static void say_where(u64 gfn, char *where, size_t size)
{
	if (gfn != GFN_NONE)
		snprintf(where, size, "the first at gfn 0x%lx", gfn);
	else if (perf_program.probe)
		snprintf(where, size, "at a gfn that could not be found out");
	else
		snprintf(where, size, "dirty_log_perf_test names the gfn");
}

static void fail_huge(const struct test *test, const struct page_sizes *now, const char *stage)
{
	const char *mode = ", write-protected";
	u64 gfn = GFN_NONE;
	char where[96];

	if (perf_program.probe)
		gfn = find_protected(test);
	if (perf_program.probe && gfn == GFN_NONE) {
		mode = ", writable: a write to it is not in the dirty log";
		gfn = find_unlogged(test);
	}
	say_where(gfn, where, sizeof(where));

	TEST_FAIL("%lu 2M and %lu 1G pages left after %s, although eager_page_split=Y: %s%s",
		  now->nr_2m, now->nr_1g, stage, where, gfn == GFN_NONE ? "" : mode);
}

static void fail_holes(const struct page_sizes *now, u64 expected, const struct holes *holes,
		       const char *stage)
{
	char where[96] = "";

	if (holes->faults)
		snprintf(where, sizeof(where), ", the first in the 2 MiB at gfn 0x%lx",
			 holes->gfn);

	TEST_FAIL("Holes after %s: %lu 4K pages, expected %lu; reading all took %lu faults%s",
		  stage, now->nr_4k, expected, holes->faults, where);
}

static void verify_eager(const struct test *test, const char *stage)
{
	const struct page_sizes *old = &test->populated;
	/* How many 4K pages there must be when every huge page is split. */
	u64 expected = old->nr_4k + (old->nr_2m * SZ_2M + old->nr_1g * SZ_1G) / SZ_4K;
	struct page_sizes now = get_page_sizes(test, stage);
	struct holes holes = { .gfn = GFN_NONE };

	if (now.nr_2m || now.nr_1g)
		fail_huge(test, &now, stage);

	/* The host may reclaim any other memory, and zap its SPTEs. */
	if (!is_hugetlb(test->opts->backing))
		return;

	if (perf_program.probe)
		holes = find_holes(test);
	if (now.nr_4k < expected || holes.faults)
		fail_holes(&now, expected, &holes, stage);
}

/*
 * If KVM zaps SPTEs when logging is disabled, page faults have to map huge
 * pages again.  So all memory is read first.
 */
void verify_disabled(struct test *test)
{
	const struct page_sizes old = test->populated;
	struct page_sizes *now = &test->populated;

	find_holes(test);
	*now = get_page_sizes(test, "disabling and reading");

	/* Reclaim may have split any other memory. */
	TEST_ASSERT(!is_hugetlb(test->opts->backing) ||
		    (now->nr_2m == old.nr_2m && now->nr_1g == old.nr_1g),
		    "2M: %lu 1G: %lu after disabling and reading instead of 2M: %lu 1G: %lu: huge pages were not restored",
		    now->nr_2m, now->nr_1g, old.nr_2m, old.nr_1g);
}

/* A write-protected huge page is still huge.  Only a later write splits it. */
static void verify_lazy(const struct test *test, const char *stage)
{
	const struct page_sizes *old = &test->populated;
	struct page_sizes now;

	/*
	 * Check only the first CLEAR of a cycle, as later writes split huge
	 * pages, and only HugeTLB memory, as reclaim may zap SPTEs of other
	 * memory.
	 */
	if (!perf_program.probe || !is_hugetlb(test->opts->backing) ||
	    test->times[PHASE_CLEAR].count > test->clears_before + 1)
		return;

	now = get_page_sizes(test, stage);
	TEST_ASSERT(now.nr_2m == old->nr_2m && now.nr_1g == old->nr_1g &&
		    now.nr_4k == old->nr_4k,
		    "4K: %lu 2M: %lu 1G: %lu after %s instead of 4K: %lu 2M: %lu 1G: %lu: pages were split although eager_page_split=N",
		    now.nr_4k, now.nr_2m, now.nr_1g, stage,
		    old->nr_4k, old->nr_2m, old->nr_1g);
}

/* The counts include memslot 0, which has no huge pages. */
void verify_split(const struct test *test, const char *stage)
{
	const struct vm_setting *chunk = &test->opts->chunk;

	if (get_kvm_param_bool("eager_page_split") && (!chunk->given || chunk->value))
		verify_eager(test, stage);
	else
		verify_lazy(test, stage);
}
