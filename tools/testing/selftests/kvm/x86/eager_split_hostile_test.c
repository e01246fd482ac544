// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting against guests that make it hard
 *
 * No mappings of a guest may make the splitter hold mmu_lock for longer, or run forever.
 * eager_split_clear_test checks that it stays within the quota of shadow pages.
 *
 *  - alias: map one huge page at very many addresses, with all permissions there
 *    are.  The time to split one of these mappings, by KVM's tracepoints, has a
 *    bound that does not depend on their number.
 *  - contended: the same while others want mmu_lock all the time.  All mappings
 *    are split nevertheless.  The test prints in how many holds.
 *  - rewrite: a vCPU clears and restores entries while logging is enabled and
 *    disabled.  Enabling must not split what comes back meanwhile again: there
 *    must be no more splits than guest entries.
 *
 * All but the last take shadow paging.
 *
 * Limits: times are those of the machine, so the best of some tries counts, in case one is
 * interrupted.  Threads need a CPU to contend for the lock, which an emulated machine may
 * not give them for milliseconds, so the number of huge pages that are split in one
 * contended hold has no bound.  The TDP MMU has neither rmaps nor a quota.
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

/* As many as KVM allows: with one more it zaps all SPTEs of the gfn. */
#define MOST_ALIASES		1000ul

/* How many times as long as splitting the only mapping splitting one of many may take. */
#define MAX_FACTOR		16
#define NR_CONTENDERS		2
#define NR_TRIES		3
#define NR_REWRITES		40

/* Entries that the vCPU clears and restores between two times that logging is enabled. */
#define NR_PUT_BACK		64

enum order { ORDER_TOUCH, ORDER_REWRITE };

/* Written by the host while the vCPU does not run, but for stop. */
static u64 nr_aliases;
static enum order order;
static u64 stop;

/* How many entries the vCPU has put back and used so far. */
static u64 nr_put_back;

struct hostile {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	u64 nr_aliases;
};

struct hold {
	/* When the first huge page was found in the present one; 0 if none was. */
	u64 begun_ns;
	/* Of all holds, nanoseconds for one huge page and for all of them. */
	u64 per_page_ns;
	u64 longest_ns;
	u64 nr_pages;
	/* Of those that split something. */
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
	/* Each child has a role, and permissions are a part of it. */
	for (u64 alias = 0; alias < nr; alias++) {
		virt_map_level(t->vm, ALIAS_GVA + alias * SZ_2M, DATA_GPA, SZ_2M, PG_LEVEL_2M);
		vm_vary_entry(t->vm, ALIAS_GVA + alias * SZ_2M, alias);
	}
	/* Let the guest have its own page tables, those with the aliases, in a row. */
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

/* Return: when a line of the trace was recorded, if it is of that event, or 0. */
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

/* Split mappings that were never split before. */
static struct hold split_and_measure(struct hostile *t)
{
	clear_trace();
	set_logging(t, true);
	return read_holds();
}

/* The best of some tries, each in a VM of its own. */
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

/* What the threads share that contend for mmu_lock. */
struct contention {
	void *page;
	bool over;
};

/* An MMU notifier takes mmu_lock, whether or not there is something to be zapped. */
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

/* Wait until some entries are restored, so that the next time finds huge pages to split. */
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
	__TEST_REQUIRE(!is_tdp_mmu(), "The TDP MMU is on, which has no rmaps");
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
