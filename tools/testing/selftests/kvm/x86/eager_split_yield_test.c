// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting that drops mmu_lock, or that must not split huge pages
 *
 * The test needs a debug kernel with CONFIG_KVM_PROVE_MMU_RACES.
 *
 *  - force: KVM drops mmu_lock at each place where it may drop it, and counts
 *    by place how often it does.  Two vCPUs write all the time, while the host
 *    copies the pages in the log, as in a live migration.  In the end, the copy
 *    must equal the memory.  The log must not contain a page that was not
 *    written, and KVM must have dropped the lock at each place that it reaches.
 *  - refuse: the same without forced drops, while KVM treats every other huge
 *    page as if its memory were being invalidated, and does not split it.  Page
 *    faults map the 4KiB pages of these huge pages one by one.
 *  - steps: nothing maps a memslot of 4GiB, and its log contains no page.  KVM
 *    skips most of it, but must check after each step whether to drop mmu_lock.
 *
 * "force" and "steps" test both MMUs, "refuse" only the shadow MMU.  All need
 * kvm.eager_page_split=Y and two free 2MiB HugeTLB pages.
 */
#include "eager_split_fault.h"

/* vCPUs that write all the time, each to one page in so many. */
#define NR_WRITERS		2u
#define WRITER_STEP		31u
#define PASS_SHIFT		32
#define SITE_NAME_MAX		32
#define POLL_US			1000

/* A memslot that nothing maps. */
#define EMPTY_SLOT		2u
#define EMPTY_GPA		0x100000000ull
#define EMPTY_SIZE		(4ull * SZ_1G)
/* The most pages that KVM skips at once: by rmaps, and by words of the log. */
#define RMAP_STEP_PAGES		(PAGES_PER_2M * PAGES_PER_2M)
#define LOG_STEP_PAGES		(512u * BITS_PER_WORD)

/*
 * Places where KVM may drop mmu_lock, and under which conditions it gets there.
 */
static const struct forced_site {
	const char *name;
	bool shadow_mmu;
	bool tdp_mmu;
	bool enabling;
	bool collecting;
	/* Only if a gfn has very many SPTEs, i.e. never in this test. */
	bool aliases;
} forced_sites[] = {
	{ .name = "split_yield", .shadow_mmu = true },
	{ .name = "split_alloc", .shadow_mmu = true },
	{ .name = "log_word" },
	{ .name = "log_page", .shadow_mmu = true, .aliases = true },
	{ .name = "log_slot", .shadow_mmu = true, .enabling = true },
	{ .name = "recover", .shadow_mmu = true },
	{ .name = "collect_rmaps", .shadow_mmu = true, .collecting = true },
	{ .name = "collect_tdp", .tdp_mmu = true, .collecting = true },
	{ .name = "tdp_walk", .tdp_mmu = true, .enabling = true },
};

#define NR_FORCED_SITES		ARRAY_SIZE(forced_sites)

static bool is_site_on_the_way(struct fault_test *t, const struct forced_site *site)
{
	if (is_tdp_mmu() ? site->shadow_mmu : site->tdp_mmu)
		return false;
	if (site->aliases || (site->enabling && t->v->clear))
		return false;

	return !site->collecting || vm_get_stat_or_absent(t->vm, "dirty_bits") == 1;
}

/* Fails for an unknown site, which the test would never require otherwise. */
static unsigned int site_index(const char *name)
{
	for (unsigned int i = 0; i < NR_FORCED_SITES; i++)
		if (!strcmp(name, forced_sites[i].name))
			return i;

	TEST_FAIL(PARAM_FORCED " has %s, which is unknown", name);
	return 0;
}

static void read_forced(unsigned long *nr_forced)
{
	FILE *f = fopen(PARAM_FORCED, "r");
	char name[SITE_NAME_MAX];
	unsigned long nr;

	TEST_ASSERT(f, "Can't open " PARAM_FORCED);
	memset(nr_forced, 0, NR_FORCED_SITES * sizeof(*nr_forced));
	while (fscanf(f, "%31s %lu", name, &nr) == 2)
		nr_forced[site_index(name)] = nr;
	fclose(f);
}

static void expect_forced(struct fault_test *t, const unsigned long *before)
{
	unsigned long nr, now[NR_FORCED_SITES];

	read_forced(now);
	ksft_print_msg("%-16s forced  ", t->v->name);
	for (unsigned int i = 0; i < NR_FORCED_SITES; i++) {
		nr = now[i] - before[i];
		if (nr)
			pr_info(" %s %lu", forced_sites[i].name, nr);
		CHECK(t, nr || !is_site_on_the_way(t, &forced_sites[i]),
		      "mmu_lock was never forced to be dropped at %s", forced_sites[i].name);
	}
	pr_info("\n");
	fflush(stdout);
}

/*
 * A vCPU that writes its own pages over and over again.  If two vCPUs wrote the
 * same page, a lost write of one could be hidden by a write of the other.
 */
struct writer {
	struct fault_test *t;
	struct kvm_vcpu *vcpu;
	pthread_t thread;
	u64 gva;
	unsigned int first;
	/* Complete passes.  A page contains the number of its last pass. */
	u64 nr_passes;
};

static struct writer writers[NR_WRITERS];
static bool writers_stop;

static bool has_writer(u64 page)
{
	return page % WRITER_STEP < NR_WRITERS;
}

static void *write_on(void *arg)
{
	struct writer *w = arg;

	while (!READ_ONCE(writers_stop)) {
		vcpu_write(w->t, w->vcpu, w->gva, w->first, WRITER_STEP,
			   (w->nr_passes + 1) << PASS_SHIFT);
		WRITE_ONCE(w->nr_passes, w->nr_passes + 1);
	}
	return NULL;
}

static void add_writers(struct fault_test *t)
{
	for (unsigned int i = 0; i < NR_WRITERS; i++)
		writers[i] = (struct writer) {
			.t = t,
			.vcpu = i ? vm_vcpu_add(t->vm, i, (void *)CODE_GVA) : t->vcpu,
			.gva = i && t->v->aliased ? ALIAS_GVA : DATA_GVA,
			.first = i,
		};
}

static void start_writers(void)
{
	WRITE_ONCE(writers_stop, false);
	for (unsigned int i = 0; i < NR_WRITERS; i++)
		start_thread(&writers[i].thread, write_on, &writers[i]);
}

static void stop_writers(void)
{
	WRITE_ONCE(writers_stop, true);
	for (unsigned int i = 0; i < NR_WRITERS; i++)
		pthread_join(writers[i].thread, NULL);
}

/*
 * Wait until each vCPU has written all of its pages.  It is in the middle of a
 * pass, so wait for the end of the next one.
 */
static void wait_for_pass(void)
{
	u64 until[NR_WRITERS];

	for (unsigned int i = 0; i < NR_WRITERS; i++)
		until[i] = READ_ONCE(writers[i].nr_passes) + 2;
	for (unsigned int i = 0; i < NR_WRITERS; i++)
		while (READ_ONCE(writers[i].nr_passes) < until[i])
			usleep(POLL_US);
}

/* Take the dirty pages out of the log, then copy them. */
static void copy_dirty(struct fault_test *t, void *copy)
{
	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, t->log);
	if (t->v->clear)
		kvm_vm_clear_dirty_log(t->vm, DATA_SLOT, t->log, 0, t->npages);

	for (u64 page = 0; page < t->npages; page++)
		if (test_bit(page, t->log))
			memcpy(copy + page * PAGE_SIZE, t->hva + page * PAGE_SIZE, PAGE_SIZE);
}

/* The same, when the log may only contain pages that vCPUs write. */
static void copy_written(struct fault_test *t, void *copy)
{
	copy_dirty(t, copy);
	for (u64 page = 0; page < t->npages; page++)
		CHECK(t, has_writer(page) || !test_bit(page, t->log),
		      "page %lu is in the log, and was not written", page);
}

/* Copy all pages.  With CLEAR, all of them are in the log initially. */
static void copy_all(struct fault_test *t, void *copy)
{
	CHECK(t, !set_logging(t, true), "enabling failed, errno %d", errno);
	if (t->v->clear)
		copy_dirty(t, copy);
	else
		memcpy(copy, t->hva, t->npages * PAGE_SIZE);
}

/* All huge pages must have been split eagerly, none of them by a fault of a vCPU. */
static void check_all_split(struct fault_test *t)
{
	struct split_stats s = get_stats(t->vm);

	CHECK(t, !s.huge || t->nr_refused, "%lu huge pages are left", s.huge);
	CHECK(t, is_tdp_mmu() || s.done == t->nr_huge - t->nr_refused,
	      "of %lu huge pages, %lu were split eagerly", t->nr_huge, s.done);
}

static void check_copy(struct fault_test *t, const void *copy)
{
	for (u64 page = 0; page < t->npages; page++)
		CHECK(t, !memcmp(copy + page * PAGE_SIZE, t->hva + page * PAGE_SIZE, PAGE_SIZE),
		      "page %lu was written, and not in the log", page);
}

/* Each page contains its own last write, so no write went to another page. */
static void check_pages(struct fault_test *t)
{
	u64 seen, expected;

	for (u64 page = 0; page < t->npages; page++) {
		expected = TOUCH_VALUE + page;
		if (has_writer(page))
			expected = (writers[page % WRITER_STEP].nr_passes << PASS_SHIFT) + page;
		seen = READ_ONCE(*(u64 *)(t->hva + page * PAGE_SIZE));
		CHECK(t, seen == expected, "page %lu: expected 0x%lx in memory, seen 0x%lx",
		      page, expected, seen);
	}
}

static void migrate(struct fault_test *t)
{
	void *copy = calloc(t->npages, PAGE_SIZE);

	TEST_ASSERT(copy, "Out of memory");
	copy_all(t, copy);
	check_all_split(t);
	wait_for_pass();
	copy_written(t, copy);
	wait_for_pass();
	stop_writers();
	copy_written(t, copy);
	check_copy(t, copy);
	check_pages(t);
	free(copy);
}

/*
 * When logging is disabled, a write to any page maps its huge page again.  If
 * KVM has overlooked a page table, only the number of 4KiB SPTEs shows that, so
 * it must be the same as before.
 */
static void disable_while_written(struct fault_test *t, u64 nr_small)
{
	struct split_stats s;

	start_writers();
	CHECK(t, !set_logging(t, false), "disabling failed, errno %d", errno);
	wait_for_pass();
	stop_writers();
	check_pages(t);

	s = get_stats(t->vm);
	CHECK(t, s.huge == t->nr_huge && vm_get_stat_or_absent(t->vm, "pages_4k") == nr_small,
	      "logging is off: expected %lu huge pages and %lu of 4KiB, seen %lu and %lu",
	      t->nr_huge, nr_small, s.huge, vm_get_stat_or_absent(t->vm, "pages_4k"));
}

static void force_migration(struct fault_test *t)
{
	u64 nr_small;

	start_writers();
	wait_for_pass();
	nr_small = vm_get_stat_or_absent(t->vm, "pages_4k");
	migrate(t);
	disable_while_written(t, nr_small);
}

static void force_variant(struct fault_test *t)
{
	unsigned long before[NR_FORCED_SITES];

	read_forced(before);
	force_migration(t);
	expect_forced(t, before);
}

/* Writes to huge pages that KVM did not split must get into the log, too. */
static void refuse_variant(struct fault_test *t)
{
	t->nr_refused = t->nr_huge / 2;
	force_migration(t);
	ksft_print_msg("%-16s refused  %lu huge pages\n", t->v->name, t->nr_refused);
}

static void set_empty_slot(struct fault_test *t, void *hva, bool log)
{
	vm_set_user_memory_region(t->vm, EMPTY_SLOT, log ? KVM_MEM_LOG_DIRTY_PAGES : 0, EMPTY_GPA,
				  EMPTY_SIZE, hva);
}

/*
 * Expect that, since @before was read, KVM was forced to drop mmu_lock at @site
 * at least once per @step_pages.
 */
static void expect_steps(struct fault_test *t, const char *site, unsigned long step_pages,
			 const unsigned long *before)
{
	unsigned long expected = EMPTY_SIZE / PAGE_SIZE / step_pages;
	unsigned long nr, now[NR_FORCED_SITES];

	read_forced(now);
	nr = now[site_index(site)] - before[site_index(site)];
	ksft_print_msg("%-16s steps  %s %lu\n", t->v->name, site, nr);
	CHECK(t, nr >= expected,
	      "%s: expected mmu_lock to be dropped at least %lu times, seen %lu", site, expected,
	      nr);
}

static void steps_variant(struct fault_test *t)
{
	const unsigned long nr_pages = EMPTY_SIZE / PAGE_SIZE;
	unsigned long *log = calloc(nr_pages / BITS_PER_WORD, sizeof(*log));
	unsigned long before[NR_FORCED_SITES];
	void *hva;

	hva = mmap(NULL, EMPTY_SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	TEST_ASSERT(log && hva != MAP_FAILED, "Out of memory");
	set_empty_slot(t, hva, false);

	read_forced(before);
	set_empty_slot(t, hva, true);
	if (!is_tdp_mmu() && !t->v->clear)
		expect_steps(t, "log_slot", RMAP_STEP_PAGES, before);

	read_forced(before);
	kvm_vm_get_dirty_log(t->vm, EMPTY_SLOT, log);
	if (!is_tdp_mmu() && vm_get_stat_or_absent(t->vm, "dirty_bits") == 1)
		expect_steps(t, "collect_rmaps", RMAP_STEP_PAGES, before);
	if (!t->v->clear)
		expect_steps(t, "log_word", LOG_STEP_PAGES, before);

	if (t->v->clear) {
		memset(log, 0, nr_pages / BITS_PER_BYTE);
		read_forced(before);
		kvm_vm_clear_dirty_log(t->vm, EMPTY_SLOT, log, 0, nr_pages);
		expect_steps(t, "log_word", LOG_STEP_PAGES, before);
	}

	vm_set_user_memory_region(t->vm, EMPTY_SLOT, 0, EMPTY_GPA, 0, NULL);
	munmap(hva, EMPTY_SIZE);
	free(log);
}

static void try_variant(const struct variant *v, void (*try)(struct fault_test *t))
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_FORCE };

	setting_set(PARAM_DIRTY_BITS, v->dirty_bits);
	fault_create_vm(&t, 0);
	add_writers(&t);
	try(&t);
	kvm_vm_free(t.vm);
}

/* Return: why nothing could be tried, or NULL. */
static const char *prove_variants(const char *param, void (*try)(struct fault_test *t))
{
	if (!setting_exists(param))
		return "the kernel has no CONFIG_KVM_PROVE_MMU_RACES";
	if (!setting_exists(PARAM_DIRTY_BITS))
		return "the kernel has no " PARAM_DIRTY_BITS;

	setting_set(param, "Y");
	for (unsigned int i = 0; i < NR_VARIANTS; i++)
		if (applies(&variants[i]))
			try_variant(&variants[i], try);
	setting_reset(PARAM_DIRTY_BITS);
	setting_reset(param);
	return NULL;
}

static const char *run_force(void)
{
	return prove_variants(PARAM_FORCE_YIELD, force_variant);
}

static const char *run_refuse(void)
{
	return prove_variants(PARAM_SKIP_SPLIT, refuse_variant);
}

static const char *run_steps(void)
{
	return prove_variants(PARAM_FORCE_YIELD, steps_variant);
}

const struct part parts[] = {
	{ "force", "mmu_lock is dropped wherever it may be", run_force, NR_HUGE_FORCE, true },
	{ "refuse", "every other huge page is left alone", run_refuse, NR_HUGE_FORCE },
	{ "steps", "mmu_lock can be dropped while memory is skipped", run_steps, NR_HUGE_FORCE,
	  true },
};

const unsigned int nr_parts = ARRAY_SIZE(parts);
