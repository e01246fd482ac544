// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting when allocations fail
 *
 * Two ioctls split: the one that enables dirty logging, and
 * KVM_CLEAR_DIRTY_LOG.  For each of them, the test creates a VM with three huge
 * pages and lets the first allocation of the ioctl fail, by
 * /proc/thread-self/fail-nth.  It repeats that in a new VM with the second
 * allocation, and so on, until the ioctl makes no more allocations.  Where many
 * tries in a row end alike, the test leaves some out.  Then it repeats all of
 * that with each kind of allocation that the splitter makes, and lets only that
 * kind fail.
 *
 * After each failure, KVM's statistics must account for each huge page, an
 * ioctl that has failed must succeed when it is repeated, and the log and
 * memory must contain what the guest writes then.  The test also fails if the
 * splitter has not noticed any failure of some kind.
 *
 * It needs kvm.eager_page_split=Y, three free 2MiB HugeTLB pages, and a kernel
 * that can inject failures into slabs and page allocations (failslab,
 * fail_page_alloc and fail-nth).  It is skipped with the TDP MMU.
 *
 * Limits:
 *  - kvmalloc() falls back to vmalloc() for arrays of more than a page, so the
 *    splitter does not notice a single failure there.
 *  - The test may miss an allocation that KVM makes only sometimes, e.g. of a
 *    page for a slab.
 *  - Enabling allocates memory for its own purposes before it splits.  If these
 *    allocations failed, vmalloc() would complain in the kernel's log.  The
 *    test counts them, and starts a few allocations later.
 */
#include <sys/wait.h>

#include "eager_split_fault.h"

/* A memslot for which KVM needs huge arrays, see fill_kernel_tables(). */
#define VAST_SLOT		2
#define VAST_GPA		BIT_ULL(37)
#define VAST_SIZE		(48ul << 30)

/* The largest step from one failing allocation to the next. */
#define MAX_STEP		16u

/* By how much the number of enabling's own allocations may vary. */
#define OWN_MARGIN		3
#define ENOUGH_ALIKE		4
#define NR_INSIST		4
#define MAX_INSIST		60
#define NEVER			1000000u

/* A kind of allocation that the test lets fail. */
struct site {
	const char *name;
	/* Only objects of this cache fail; NULL: whole pages. */
	const char *cache;
	/* Any allocation. */
	bool all;
	/* A new VM cannot split without it. */
	bool needed;
	/* @needed is true only of memory with an alias. */
	bool aliased_only;

	unsigned int nr_injected;
	unsigned int nr_nomem;
	unsigned int nr_ioctl_failed;
};

static struct site sites[] = {
	{ .name = "all", .all = true },
	{ .name = "descs", .cache = FAIL_DESCS, .needed = true, .aliased_only = true },
	{ .name = "headers", .cache = FAIL_HEADERS, .needed = true },
	{ .name = "pages" },
};

/* What a try, which is a child process, reports to its parent. */
static struct outcome {
	bool injected;
	bool ioctl_failed;
	bool nomem;
	unsigned int nr_own;
} *outcome;

static int fail_nth_fd = -1;

static void select_site(const struct site *site)
{
	setting_set(FAILSLAB "cache-filter", site->all ? "N" : "Y");
	if (site->all)
		setting_set(FAIL_PAGE_ALLOC "min-order", "0");
	else
		fail_only(site->cache);
}

static unsigned int fail_nth_read(void)
{
	char text[SETTING_MAX] = { };

	TEST_ASSERT(pread(fail_nth_fd, text, sizeof(text) - 1, 0) > 0, "Can't read " FAIL_NTH);
	return atoi(text);
}

static bool split_injected(struct fault_test *t, unsigned int nth, int *error)
{
	unsigned int left;
	int r;

	write_number(fail_nth_fd, nth);
	r = split(t);
	*error = r ? errno : 0;
	left = fail_nth_read();
	write_number(fail_nth_fd, 0);
	return !left;
}

static void expect_stats(struct fault_test *t, const struct split_stats *s, u64 nomem)
{
	check_sum(t, s);
	CHECK(t, s->nomem == nomem && !s->noquota,
	      "expected %lu x no memory; seen %lu, %lu x no quota", nomem, s->nomem, s->noquota);
	CHECK(t, !s->huge == !nomem, "%lu x no memory: %lu huge pages are left", nomem, s->huge);

	/*
	 * CLEAR splits each huge page by itself, so one of them is left.  When
	 * logging is enabled, the first failure ends splitting.  It comes when
	 * caches are filled before the first split, so all of them are left.
	 */
	CHECK(t, !nomem || s->huge == (t->v->clear ? 1 : t->nr_huge),
	      "no memory for one huge page: %lu are left", s->huge);
}

/*
 * An ioctl that failed must have split nothing, and must succeed if repeated.
 */
static void repeat_split(struct fault_test *t)
{
	struct split_stats s = get_stats(t->vm);

	CHECK(t, s.huge == t->nr_huge && !s.done && !s.nomem,
	      "failed, but %lu of %lu huge pages are left, %lu x no memory", s.huge,
	      t->nr_huge, s.nomem);
	CHECK(t, !split(t), "repeated: errno %d", errno);
}

static void check_failure(struct fault_test *t, struct site *site, unsigned int nth,
			  bool injected, int error)
{
	bool needed = site->needed && (t->v->aliased || !site->aliased_only);
	struct split_stats s;

	CHECK(t, !error || (injected && error == ENOMEM), "failure %u of %s: %s, errno %d", nth,
	      site->name, injected ? "injected" : "not injected", error);
	if (error)
		repeat_split(t);

	s = get_stats(t->vm);
	CHECK(t, !s.nomem || injected, "no memory without a failure");
	CHECK(t, nth != 1 || s.nomem || !needed,
	      "the first of %s failed, but memory sufficed", site->name);
	expect_stats(t, &s, !!s.nomem);

	outcome->injected = injected;
	outcome->ioctl_failed = error;
	outcome->nomem = s.nomem;
}

static void open_fail_nth(void)
{
	fail_nth_fd = open(FAIL_NTH, O_RDWR | O_CLOEXEC);
}

/* Does not free the VM: the end of the process does so faster. */
static void try_failure(const struct variant *v, struct site *site, unsigned int nth)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_FEW };
	bool injected;
	int error;

	fault_create_vm(&t, 0);
	before_split(&t);
	injected = split_injected(&t, nth, &error);
	check_failure(&t, site, nth, injected, error);
	check_afterwards(&t);
}

/*
 * Enabling allocates the log by vmalloc(), which complains in the kernel's log
 * if it cannot allocate a page table of the kernel.  The kernel never frees
 * these page tables.  So have it allocate enough of them here: the rmaps of a
 * huge memslot, 8 bytes per page, need more than anything that follows.
 */
static void fill_kernel_tables(void)
{
	void *hva = map_memory(VAST_SIZE, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	struct kvm_vm *vm = vm_create_barebones();

	vm_set_user_memory_region(vm, VAST_SLOT, 0, VAST_GPA, VAST_SIZE, hva);
	kvm_vm_free(vm);
	munmap(hva, VAST_SIZE);
}

/* Count the allocations of the ioctl when it splits nothing.  Ignores @nth. */
static void try_without_split(const struct variant *v, struct site *site, unsigned int nth)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_FEW };

	setting_set(PARAM_EAGER, "N");
	fault_create_vm(&t, 0);
	before_split(&t);
	write_number(fail_nth_fd, NEVER);
	CHECK(&t, !split(&t), "errno %d", errno);
	outcome->nr_own = NEVER - fail_nth_read();
	write_number(fail_nth_fd, 0);
	setting_set(PARAM_EAGER, "Y");
}

/* Run @try in a child process, which reports to @outcome. */
static void run_try(void (*try)(const struct variant *v, struct site *site, unsigned int nth),
		    const struct variant *v, struct site *site, unsigned int nth)
{
	int status;
	pid_t pid;

	memset(outcome, 0, sizeof(*outcome));
	fflush(stdout);
	pid = fork();
	TEST_ASSERT(pid >= 0, "Can't fork, errno %d", errno);
	if (!pid) {
		open_fail_nth();
		try(v, site, nth);
		fflush(stdout);
		_exit(0);
	}

	pid = waitpid(pid, &status, 0);
	TEST_ASSERT(pid > 0 && !status, "%s, failure %u of %s: the try failed, status 0x%x",
		    v->name, nth, site->name, status);
}

/* Return: false if the ioctl made fewer than @nth allocations of this kind. */
static bool fail_one(const struct variant *v, struct site *site, unsigned int nth)
{
	run_try(try_failure, v, site, nth);
	site->nr_injected += outcome->injected;
	site->nr_nomem += outcome->nomem;
	site->nr_ioctl_failed += outcome->ioctl_failed;
	return outcome->injected;
}

/* Return: the number of the first allocation that the test lets fail. */
static unsigned int first_failure(const struct variant *v, struct site *site)
{
	run_try(try_without_split, v, site, 0);
	return outcome->nr_own ? outcome->nr_own + OWN_MARGIN + 1 : 1;
}

static void show_site(const struct variant *v, const struct site *site, const struct site *before)
{
	ksft_print_msg("%-16s %-8s %4u failures, %3u felt by the splitter, %u by the ioctl\n",
		       v->name, site->name, site->nr_injected - before->nr_injected,
		       site->nr_nomem - before->nr_nomem,
		       site->nr_ioctl_failed - before->nr_ioctl_failed);
	fflush(stdout);
}

/* Return: how many tries in a row ended like the last one. */
static unsigned int count_alike(unsigned int nr_alike)
{
	static bool last;

	nr_alike = outcome->nomem == last ? nr_alike + 1 : 0;
	last = outcome->nomem;
	return nr_alike;
}

/*
 * Return: how far to go to the next allocation.  When the splitter has noticed
 * a failure, the steps grow with the number of tries in a row that end alike.
 */
static unsigned int next_step(const struct variant *v, const struct site *site,
			      bool was_felt, unsigned int nr_alike)
{
	unsigned int max = site->all && !v->aliased ? 1 : MAX_STEP;

	return was_felt ? min(1 + nr_alike / 4, max) : 1;
}

/*
 * KVM fills a cache with more objects than it needs.  The splitter does not
 * notice failures from there on, so a few of them are enough.
 */
static bool is_enough(const struct site *site, unsigned int nr, unsigned int nr_alike)
{
	return nr >= max_tries || (site->cache && !outcome->nomem && nr_alike >= ENOUGH_ALIKE);
}

/*
 * Try the first few allocations again until the splitter notices a failure.  A
 * sweep may have missed the page that the splitter needs, because slabs
 * allocate pages before it, a different number in each VM.  Without aliases,
 * slabs allocate only few pages.
 */
static void insist(const struct variant *v, struct site *site, unsigned int nr_nomem)
{
	for (unsigned int i = 0; i < MAX_INSIST && site->nr_nomem == nr_nomem; i++)
		fail_one(v, site, 1 + i % NR_INSIST);
}

static void sweep(const struct variant *v, struct site *site)
{
	struct site before = *site;
	unsigned int nr = 0, nr_alike = 0;
	unsigned int nth;

	select_site(site);
	nth = first_failure(v, site);

	/*
	 * The ioctl's own allocations come first.  There may be no others of
	 * this kind.
	 */
	if (nth > 1 && !site->all)
		return;

	while (fail_one(v, site, nth)) {
		nr_alike = count_alike(nr_alike);
		if (is_enough(site, ++nr, nr_alike))
			break;
		nth += next_step(v, site, site->nr_nomem > before.nr_nomem, nr_alike);
	}

	if (!site->all && !site->cache && !v->aliased)
		insist(v, site, before.nr_nomem);

	show_site(v, site, &before);
}

static void expect_all_sites_hit(void)
{
	for (unsigned int i = 0; i < ARRAY_SIZE(sites); i++) {
		if (sites[i].aliased_only && kvm_is_tdp_enabled())
			continue;

		TEST_ASSERT(sites[i].nr_nomem, "%u failures of %s, none of which was felt",
			    sites[i].nr_injected, sites[i].name);
	}
}

static const char *why_no_injection(void)
{
	open_fail_nth();
	if (fail_nth_fd < 0)
		return "the kernel has no " FAIL_NTH;
	if (!setting_exists(FAIL_DESCS) || !prepare_injection())
		return "the kernel lacks " FAIL_DESCS ", " FAILSLAB " or " FAIL_PAGE_ALLOC;
	/* Save the value here, as children do not restore what they set. */
	return setting_exists(PARAM_EAGER) ? NULL : PARAM_EAGER " can't be written";
}

static const char *run_memory(void)
{
	const char *reason = why_no_injection();

	if (reason)
		return reason;

	outcome = map_memory(sizeof(*outcome), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1);
	fill_kernel_tables();
	for (unsigned int i = 0; i < NR_VARIANTS; i++) {
		if (!applies(&variants[i]))
			continue;
		for (unsigned int j = 0; j < ARRAY_SIZE(sites); j++)
			sweep(&variants[i], &sites[j]);
	}
	expect_all_sites_hit();
	return NULL;
}

const struct part parts[] = {
	{ "memory", "allocations fail", run_memory, NR_HUGE_FEW },
};

const unsigned int nr_parts = ARRAY_SIZE(parts);
