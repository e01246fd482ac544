// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting against guests that try to make it expensive
 *
 * However a guest maps its memory, it must not make the splitter hold mmu_lock
 * for longer, or run forever.
 *
 *  - alias: the guest maps one huge page at very many addresses, with all
 *    combinations of permissions.  KVM's tracepoints tell how long it takes to
 *    split each of these mappings.  That must be at most MAX_FACTOR times as
 *    long as splitting the mapping of a page that is mapped once.
 *  - contended: the same, while other threads take mmu_lock all the time.  KVM
 *    must split all mappings nevertheless.  The test prints in how many holds
 *    of mmu_lock KVM has done so.
 *  - rewrite: a vCPU clears and restores its huge page table entries while the
 *    host enables and disables logging.  KVM must not split a mapping again
 *    that the vCPU has restored meanwhile: each time that logging is enabled,
 *    there must be no more splits than guest entries.
 *
 * eager_split_clear_test and eager_split_quota_test check that the splitter
 * stays within the quota of shadow pages.
 *
 * The test needs shadow paging (npt=0, ept=0), kvm.eager_page_split=Y, tracefs,
 * and one free 2MiB HugeTLB page.
 *
 * Limits:
 *  - Times are those of the machine.  The best of some tries counts, in case
 *    that a try is interrupted.
 *  - A thread needs a CPU to contend for the lock, and an emulated machine may
 *    not give it one for milliseconds.  So the test sets no bound on the number
 *    of huge pages that KVM splits in one contended hold.
 */
#include "eager_split_util.h"

#define BEGIN_ENABLE		TRACING "events/kvmmmu/kvm_eager_split_begin/enable"
#define END_ENABLE		TRACING "events/kvmmmu/kvm_eager_split_end/enable"

#define DATA_SLOT		1
#define DATA_GPA		0x40000000ull
#define OTHER_SLOT		2
#define OTHER_GPA		0x80000000ull
#define ALIAS_GVA		(2ull << 39)
#define TABLES_GVA		(3ull << 39)
#define ENTRIES_PER_TABLE	512ul

#define NR_ALIASES		4096ul

/* The most that KVM allows: with one more, it zaps all SPTEs of the gfn. */
#define MOST_ALIASES		1000ul

/* Splitting one of many mappings may take this many times as long as of one. */
#define MAX_FACTOR		16
#define NR_CONTENDERS		2
#define NR_TRIES		3
#define NR_REWRITES		40

/*
 * How many entries the vCPU restores before logging is enabled the next time.
 */
#define NR_PUT_BACK		64

enum order { ORDER_TOUCH, ORDER_REWRITE };

/* Written by the host.  Only @stop is written while the vCPU runs. */
static u64 nr_aliases;
static enum order order;
static u64 stop;

/* How many entries the vCPU has restored and used so far. */
static u64 nr_put_back;

struct hostile {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	u64 nr_aliases;
};

/* What the trace says about the holds of mmu_lock in which KVM splits. */
struct hold {
	/* When KVM found the first huge page of this hold; 0 between holds. */
	u64 begun_ns;
	/* The average time for one huge page, and the longest hold. */
	u64 per_page_ns;
	u64 longest_ns;
	u64 nr_pages;
	/* Holds in which something was split. */
	u64 nr_holds;
};

/* The guest */

static u64 *guest_entry_of(u64 alias)
{
	return (u64 *)TABLES_GVA + alias;
}

static void guest_touch(u64 alias)
{
	WRITE_ONCE(*(u64 *)(ALIAS_GVA + alias * SZ_2M), alias);
}

static void guest_rewrite(u64 alias)
{
	u64 entry = READ_ONCE(*guest_entry_of(alias));

	WRITE_ONCE(*guest_entry_of(alias), 0);
	asm volatile("invlpg (%0)" :: "r"(ALIAS_GVA + alias * SZ_2M) : "memory");
	WRITE_ONCE(*guest_entry_of(alias), entry);
	guest_touch(alias);
	WRITE_ONCE(nr_put_back, nr_put_back + 1);
}

static void guest_main(void)
{
	for (;;) {
		for (u64 alias = 0; alias < READ_ONCE(nr_aliases) && !READ_ONCE(stop); alias++)
			if (order == ORDER_TOUCH)
				guest_touch(alias);
			else
				guest_rewrite(alias);
		if (order == ORDER_TOUCH || READ_ONCE(stop))
			GUEST_SYNC(0);
	}
}

static void give_order(struct hostile *t, enum order what)
{
	write_guest_global(t->vm, order, what);
	write_guest_global(t->vm, stop, 0);
	write_guest_global(t->vm, nr_aliases, t->nr_aliases);
}

static void touch_all(struct hostile *t)
{
	give_order(t, ORDER_TOUCH);
	vcpu_run_to_sync(t->vcpu, NULL);
}

/* The VM */

static void create_vm(struct hostile *t, u64 nr)
{
	u64 *entry, gva = TABLES_GVA;

	t->nr_aliases = nr;
	t->vm = vm_create_with_one_vcpu(&t->vcpu, guest_main);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS_HUGETLB_2MB, DATA_GPA,
				    DATA_SLOT, PAGES_PER_2M, 0);
	/*
	 * Permissions are part of a child's role, so KVM needs more children.
	 */
	for (u64 alias = 0; alias < nr; alias++) {
		virt_map_level(t->vm, ALIAS_GVA + alias * SZ_2M, DATA_GPA, SZ_2M, PG_LEVEL_2M);
		vm_vary_entry(t->vm, ALIAS_GVA + alias * SZ_2M, alias);
	}
	/*
	 * Map the page tables of the aliases, one after the other, for
	 * guest_rewrite().
	 */
	for (u64 alias = 0; alias < nr; alias += ENTRIES_PER_TABLE, gva += PAGE_SIZE) {
		entry = vm_get_entry(t->vm, ALIAS_GVA + alias * SZ_2M, PG_LEVEL_2M);
		virt_map(t->vm, gva, addr_hva2gpa(t->vm, entry), 1);
	}
}

static void set_logging(struct hostile *t, bool on)
{
	vm_mem_region_set_flags(t->vm, DATA_SLOT, on ? KVM_MEM_LOG_DIRTY_PAGES : 0);
}

/* The tracepoints */

/*
 * Return: the time stamp of a line of the trace, 0 if it is of another event.
 */
static u64 traced_ns(const char *line, const char *event)
{
	unsigned long seconds, usec;
	const char *text = strstr(line, event);

	while (text && text > line && text[-1] != ' ')
		text--;
	if (!text || sscanf(text, "%lu.%lu:", &seconds, &usec) != 2)
		return 0;

	return seconds * NSEC_PER_SEC + usec * NSEC_PER_USEC;
}

static void add_hold(struct hold *h, const char *line)
{
	u64 begun_ns = traced_ns(line, ": kvm_eager_split_begin: ");
	u64 ended_ns = traced_ns(line, ": kvm_eager_split_end: ");
	unsigned long pages, ns;

	if (begun_ns)
		h->begun_ns = begun_ns;
	if (!ended_ns || !h->begun_ns ||
	    sscanf(strstr(line, ": pages "), ": pages %lu", &pages) != 1)
		return;

	ns = ended_ns - h->begun_ns;
	h->begun_ns = 0;
	h->nr_pages += pages;
	h->nr_holds += !!pages;
	h->longest_ns = max(h->longest_ns, ns);
	h->per_page_ns += ns;
}

static struct hold read_holds(void)
{
	FILE *f = fopen(TRACING "trace", "r");
	struct hold h = { };
	char line[512];

	TEST_ASSERT(f, "Can't read the trace");
	while (fgets(line, sizeof(line), f))
		add_hold(&h, line);
	fclose(f);
	if (h.nr_pages)
		h.per_page_ns /= h.nr_pages;
	return h;
}

/* The mappings must not have been split before. */
static struct hold split_and_measure(struct hostile *t)
{
	clear_trace();
	set_logging(t, true);
	return read_holds();
}

/* Return: the best of some tries, each in a new VM. */
static struct hold measure(u64 nr)
{
	struct hold best = { }, h;

	for (unsigned int i = 0; i < NR_TRIES; i++) {
		struct hostile t = { };

		create_vm(&t, nr);
		touch_all(&t);
		h = split_and_measure(&t);
		kvm_vm_free(t.vm);
		if (!i || h.per_page_ns < best.per_page_ns)
			best = h;
	}
	TEST_ASSERT(best.nr_pages, "Nothing was split");
	return best;
}

static void expect_bounded(const struct hold *one, u64 nr)
{
	struct hold many = measure(nr);

	ksft_print_msg("alias: one %lu ns; of %lu, %lu split, %lu ns each; longest hold %lu ns\n",
		       one->per_page_ns, nr, many.nr_pages, many.per_page_ns, many.longest_ns);
	TEST_ASSERT(many.per_page_ns <= MAX_FACTOR * one->per_page_ns,
		    "A split takes %lu ns with %lu mappings, and %lu ns with one",
		    many.per_page_ns, nr, one->per_page_ns);
}

static void run_alias(void)
{
	struct hold one = measure(1);

	expect_bounded(&one, MOST_ALIASES);
	expect_bounded(&one, NR_ALIASES);
}

/* Shared by the threads that contend for mmu_lock. */
struct contention {
	void *page;
	bool over;
};

/* The MMU notifier takes mmu_lock, whether or not there is anything to zap. */
static void *contender_main(void *arg)
{
	struct contention *c = arg;

	while (!READ_ONCE(c->over))
		TEST_ASSERT(!madvise(c->page, PAGE_SIZE, MADV_DONTNEED), "errno %d", errno);
	return NULL;
}

static struct hold measure_contended(struct hostile *t)
{
	pthread_t threads[NR_CONTENDERS];
	struct contention c = { };
	struct hold h;

	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, OTHER_GPA, OTHER_SLOT, 1, 0);
	c.page = addr_gpa2hva(t->vm, OTHER_GPA);
	for (unsigned int i = 0; i < NR_CONTENDERS; i++)
		start_thread(&threads[i], contender_main, &c);
	h = split_and_measure(t);
	WRITE_ONCE(c.over, true);
	for (unsigned int i = 0; i < NR_CONTENDERS; i++)
		pthread_join(threads[i], NULL);
	return h;
}

static void run_contended(void)
{
	struct hostile t = { };
	struct hold h;

	create_vm(&t, MOST_ALIASES);
	touch_all(&t);
	h = measure_contended(&t);
	ksft_print_msg("contended: %lu of %lu split within %lu holds, longest hold %lu ns\n",
		       h.nr_pages, MOST_ALIASES, h.nr_holds, h.longest_ns);
	TEST_ASSERT(h.nr_pages == MOST_ALIASES, "%lu of %lu mappings were split", h.nr_pages,
		    MOST_ALIASES);
	kvm_vm_free(t.vm);
}

/*
 * Wait until the vCPU has restored some entries, so that KVM can split again.
 */
static void wait_for_vcpu(struct hostile *t)
{
	u64 until;

	sync_global_from_guest(t->vm, nr_put_back);
	until = nr_put_back + NR_PUT_BACK;
	while (nr_put_back < until) {
		usleep(100);
		sync_global_from_guest(t->vm, nr_put_back);
	}
}

static void run_rewrite(void)
{
	struct hostile t = { };
	u64 before, splits, most = 0;
	pthread_t thread;
	unsigned int i;

	create_vm(&t, ENTRIES_PER_TABLE);
	touch_all(&t);
	give_order(&t, ORDER_REWRITE);
	thread = start_vcpu(t.vcpu);
	for (i = 0; i < NR_REWRITES; i++) {
		before = vm_get_stat(t.vm, eager_split_done);
		set_logging(&t, true);
		splits = vm_get_stat(t.vm, eager_split_done) - before;
		most = max(most, splits);
		TEST_ASSERT(splits <= t.nr_aliases, "%lu splits of %lu entries", splits,
			    t.nr_aliases);
		set_logging(&t, false);
		wait_for_vcpu(&t);
	}
	write_guest_global(t.vm, stop, 1);
	pthread_join(thread, NULL);
	ksft_print_msg("rewrite: logging enabled %u times, at most %lu splits of %lu entries\n", i,
		       most, t.nr_aliases);
	kvm_vm_free(t.vm);
}

static const struct {
	const char *name;
	void (*run)(void);
} parts[] = {
	{ "rewrite", run_rewrite },
	{ "alias", run_alias },
	{ "contended", run_contended },
};

int main(int argc, char *argv[])
{
	parse_test_options(argc, argv, NULL, NULL);
	ksft_print_header();
	TEST_REQUIRE(get_kvm_param_bool("eager_page_split"));
	__TEST_REQUIRE(!kvm_is_tdp_enabled(), "KVM does not use shadow paging");
	__TEST_REQUIRE(setting_exists(BEGIN_ENABLE), "The kernel has no " BEGIN_ENABLE);
	__TEST_REQUIRE(nr_free_2m_pages(), "No huge page is free");
	setting_set(BEGIN_ENABLE, "1");
	setting_set(END_ENABLE, "1");
	ksft_set_plan(ARRAY_SIZE(parts));
	for (unsigned int i = 0; i < ARRAY_SIZE(parts); i++) {
		parts[i].run();
		ksft_test_result_pass("%s\n", parts[i].name);
	}
	ksft_finished();
}
