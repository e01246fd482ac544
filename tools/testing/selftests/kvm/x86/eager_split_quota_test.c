// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting with too small a quota of shadow pages
 *
 *  - quota: KVM_SET_NR_MMU_PAGES sets the smallest quota that KVM accepts,
 *    which suffices to split some of 64 huge pages.  KVM must leave the others
 *    alone, statistics must account for each of them, and the log and memory
 *    must contain exactly what the guest writes.
 *  - leak: with the same quota, let KVM fail to split thousands of times.  When
 *    the VM is gone, all memory must have been freed.
 *
 * The test needs kvm.eager_page_split=Y and 64 free 2MiB HugeTLB pages.  It is
 * skipped with the TDP MMU, which has no quota.
 *
 * Limits: "leak" compares counters of the whole host, so the host must be idle.
 * It finds only leaks of at least half a page per failure.
 */
#include "eager_split_fault.h"

#define MEMINFO			"/proc/meminfo"
#define ZONEINFO		"/proc/zoneinfo"

/* How often to clear all of the log, which fails to split most of the huge pages. */
#define NR_LEAK_ROUNDS		10

/* How many samples in a row must find no more free memory. */
#define NR_LEAK_SAMPLES		5
#define LEAK_SAMPLE_US		20000

static void run_out_of_quota(const struct variant *v)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_MANY };
	struct split_stats s;

	fault_create_vm(&t, MIN_MMU_PAGES);
	before_split(&t);
	CHECK(&t, !split(&t), "errno %d", errno);

	s = get_stats(t.vm);
	ksft_print_msg("%-16s quota    %lu split, %lu left, %lu x no quota\n", v->name, s.done,
		       s.huge, s.noquota);
	check_sum(&t, &s);
	CHECK(&t, s.done && s.huge, "%lu huge pages were split, %lu are left", s.done, s.huge);
	CHECK(&t, s.noquota == (v->clear ? s.huge : 1) && !s.nomem,
	      "seen %lu x no quota, %lu x no memory", s.noquota, s.nomem);

	check_afterwards(&t);
	kvm_vm_free(t.vm);
}

static const char *run_quota(void)
{
	for (unsigned int i = 0; i < NR_VARIANTS; i++)
		if (!variants[i].aliased)
			run_out_of_quota(&variants[i]);
	return NULL;
}

/*
 * Failures leak no memory
 *
 * One of the counters of /proc/meminfo includes each page of the host, unless
 * the kernel has allocated it as a page for itself.  When the VM is gone, KVM
 * must have freed its pages of that kind.
 */

static bool is_counted_once(const char *name)
{
	static const char * const names[] = {
		"MemFree", "Buffers", "Cached", "Slab", "AnonPages", "PageTables",
		"SecPageTables", "KernelStack", "Percpu",
	};

	for (unsigned int i = 0; i < ARRAY_SIZE(names); i++)
		if (!strcmp(name, names[i]))
			return true;
	return false;
}

/*
 * Return: the number of free pages on the per-CPU lists, some hundred.  No
 * counter of /proc/meminfo includes them.
 */
static long nr_set_aside(void)
{
	FILE *f = fopen(ZONEINFO, "r");
	long count, sum = 0;
	char line[256];

	TEST_ASSERT(f, "Can't open " ZONEINFO);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, " count: %ld", &count) == 1)
			sum += count;
	fclose(f);
	return sum;
}

/* Return: how many pages no counter includes, less a constant. */
static long nr_unaccounted(void)
{
	FILE *f = fopen(MEMINFO, "r");
	char name[32];
	long kib, sum = 0;

	TEST_ASSERT(f, "Can't open " MEMINFO);
	while (fscanf(f, "%31[^:]: %ld%*[^\n]\n", name, &kib) == 2)
		sum -= is_counted_once(name) ? kib : 0;
	fclose(f);
	TEST_ASSERT(sum, "Can't read " MEMINFO);
	return sum * 1024 / (long)PAGE_SIZE - nr_set_aside();
}

/*
 * The same, when all freed pages are counted as free.  While a page waits for
 * an RCU grace period, no counter includes it, and nr_unaccounted() is too
 * large.  So take the smallest of several samples.
 */
static long nr_lost(void)
{
	long seen, least = nr_unaccounted();

	for (unsigned int i = 0; i < NR_LEAK_SAMPLES; i++) {
		usleep(LEAK_SAMPLE_US);
		seen = nr_unaccounted();
		if (seen < least) {
			least = seen;
			i = 0;
		}
	}
	return least;
}

/* CLEAR tries to split a huge page once for each of its eight words. */
static void clear_all_words(struct fault_test *t)
{
	CHECK(t, !set_logging(t, true), "enabling failed, errno %d", errno);
	bitmap_fill(t->log, t->npages);
	CHECK(t, !clear_log(t), "errno %d", errno);
	CHECK(t, !set_logging(t, false), "disabling failed, errno %d", errno);
}

/* Return: how many attempts failed. */
static u64 fail_often(const struct variant *v, unsigned int nr_rounds)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_MANY };
	u64 nr_failed;

	fault_create_vm(&t, MIN_MMU_PAGES);
	while (nr_rounds--)
		clear_all_words(&t);
	nr_failed = vm_get_stat_or_absent(t.vm, "eager_split_noquota");
	kvm_vm_free(t.vm);
	return nr_failed;
}

static const char *run_leak(void)
{
	const struct variant *v = &variants[1];
	u64 nr_failed;
	long lost;

	/* Memory that KVM allocates once, with the first VM, is not leaked. */
	fail_often(v, 1);
	lost = nr_lost();
	nr_failed = fail_often(v, NR_LEAK_ROUNDS);
	lost = nr_lost() - lost;

	ksft_print_msg("%-16s leak     %lu attempts failed, %ld pages unaccounted for\n", v->name,
		       nr_failed, lost);
	TEST_ASSERT(nr_failed > NR_LEAK_ROUNDS * NR_HUGE_SOME,
		    "expected more than %u attempts to fail, seen %lu",
		    NR_LEAK_ROUNDS * NR_HUGE_SOME, nr_failed);
	TEST_ASSERT(lost < (long)nr_failed / 2, "%lu attempts failed and leaked %ld pages",
		    nr_failed, lost);
	return NULL;
}

const struct part parts[] = {
	{ "quota", "the quota of shadow pages is too low", run_quota, NR_HUGE_MANY },
	{ "leak", "splits that fail leak no pages", run_leak, NR_HUGE_MANY },
};

const unsigned int nr_parts = ARRAY_SIZE(parts);
