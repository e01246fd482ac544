// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long dirty logging holds mmu_lock if a guest maps its memory many times
 *
 * The guest controls how many SPTEs a gfn has.  In this test, 999 page tables
 * of the guest map the same gfns.  The host enables dirty logging, gets and
 * clears the log, and disables logging.  Meanwhile another vCPU executes INVLPG
 * in a loop, for which KVM takes mmu_lock once, and measures its longest wait.
 * If KVM counted gfns instead of SPTEs when it decides whether to drop
 * mmu_lock, this wait would be very long.
 *
 * Before that, the host enables logging for eight huge pages, which KVM splits
 * eagerly.  The waiting vCPU must not wait for more than a few splits, and must
 * take mmu_lock at least a quarter as often as on the idle machine
 * (MIN_PROGRESS).
 *
 * With -b, the test fails if a wait is longer than the bound, or if there is
 * too little progress.  Without -b, it prints the figures.
 *
 * It needs shadow paging (npt=0, ept=0), kvm.eager_page_split=Y, and eight free
 * 2MiB HugeTLB pages.
 *
 * Limits: the waits include the time of INVLPG itself, which the test measures
 * first ("idle").  A bound is useful only where time is simulated and each vCPU
 * has a CPU.  Elsewhere a wait may be one for a CPU.
 */
#include "eager_split_util.h"

#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define MAX_GFNS		512

/* The page tables of the guest.  Each of them maps all gfns. */
#define TABLES_SLOT		11
#define TABLES_GPA		0x80000000ull
#define ALIAS_GVA		(2ull << 39)

/* One less than KVM allows: with more, it zaps all SPTEs of the gfn. */
#define NR_ALIASES		999
#define MMU_PAGES		4000ul

/* A large memslot that is logged and never written. */
#define CLEAN_SLOT		12
#define CLEAN_GPA		0x400000000ull
#define CLEAN_SIZE		(16ull * SZ_1G)
#define CLEAN_GFNS		(CLEAN_SIZE / PAGE_SIZE)

/* A memslot of huge pages, each of which the guest maps once. */
#define HUGE_SLOT		13
#define HUGE_GPA		0xc0000000ull
#define HUGE_GVA		BIT_ULL(39)
#define NR_HUGE			8ul
#define HUGE_SIZE		(NR_HUGE * SZ_2M)

/* How fast the vCPU must go on while KVM splits, percent of its idle speed. */
#define MIN_PROGRESS		25

#define IDLE_US			20000
#define LOG_WORDS		(MAX_GFNS / BITS_PER_WORD)

/* Written by the host before the vCPU runs. */
static u64 nr_gfns = MAX_GFNS;

/*
 * The measuring vCPU sets this when it begins.  The host clears it to end it.
 */
static bool measuring;

/* How often the measuring vCPU has had mmu_lock. */
static u64 nr_locked;

struct hold_test {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct kvm_vcpu *waiter;
	u64 *tables;
	void *clean;
	unsigned long log[LOG_WORDS];
	/* The longest wait of the last phase, and locks taken per ms in it. */
	u64 longest_ns;
	u64 locked_per_ms;
};

struct phase {
	const char *name;
	void (*run)(struct hold_test *t, u32 flags);
	/* The new flags of the memslot, if the phase sets them. */
	u32 flags;
	/* The guest writes to all pages before the phase begins. */
	bool written;
	/*
	 * Add the bound this many times.  Memory may be freed on the vCPU's
	 * CPU, which adds to the wait.
	 */
	unsigned int slack;
};

static void guest_main(void)
{
	for (u64 gva = HUGE_GVA; gva < HUGE_GVA + HUGE_SIZE; gva += SZ_2M)
		WRITE_ONCE(*(u64 *)gva, gva);
	GUEST_SYNC(0);

	for (;;) {
		for (u64 alias = 0; alias < NR_ALIASES; alias++)
			for (u64 gfn = 0; gfn < READ_ONCE(nr_gfns); gfn++)
				WRITE_ONCE(*(u64 *)(ALIAS_GVA + alias * SZ_2M + gfn * PAGE_SIZE),
					   alias);
		GUEST_SYNC(0);
	}
}

/*
 * Nothing is mapped at the address.  This vCPU only ever has one root, so KVM
 * takes mmu_lock once per INVLPG to find that out.
 */
static void guest_wait(void)
{
	u64 since, longest;

	for (;;) {
		longest = 0;
		WRITE_ONCE(measuring, true);
		while (READ_ONCE(measuring)) {
			since = rdtsc();
			asm volatile("invlpg (%0)" :: "r"(0ul) : "memory");
			longest = max(longest, rdtsc() - since);
			WRITE_ONCE(nr_locked, nr_locked + 1);
		}
		GUEST_SYNC(longest);
	}
}

/* Fill a guest page table that maps all gfns, and link it for an alias. */
static void map_alias(struct hold_test *t, u64 alias)
{
	u64 *table = t->tables + alias * (PAGE_SIZE / sizeof(u64));

	for (u64 gfn = 0; gfn < nr_gfns; gfn++)
		table[gfn] = (DATA_GPA + gfn * PAGE_SIZE) | PT_USED_ENTRY;

	virt_map_level(t->vm, ALIAS_GVA + alias * SZ_2M, DATA_GPA, SZ_2M, PG_LEVEL_2M);
	*vm_get_entry(t->vm, ALIAS_GVA + alias * SZ_2M, PG_LEVEL_2M) =
		(TABLES_GPA + alias * PAGE_SIZE) | PT_USED_ENTRY;
}

static void set_clean_slot(struct hold_test *t, u32 flags)
{
	vm_set_user_memory_region(t->vm, CLEAN_SLOT, flags, CLEAN_GPA, CLEAN_SIZE, t->clean);
}

static void create_vm(struct hold_test *t)
{
	t->vm = vm_create_with_one_vcpu(&t->vcpu, guest_main);
	t->waiter = vm_vcpu_add(t->vm, 1, guest_wait);
	vm_enable_manual_protect(t->vm, false);
	vm_set_nr_mmu_pages(t->vm, MMU_PAGES);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, nr_gfns, 0);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, TABLES_GPA, TABLES_SLOT,
				    NR_ALIASES, 0);
	t->clean = map_memory(CLEAN_SIZE, PROT_READ, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1);
	set_clean_slot(t, KVM_MEM_LOG_DIRTY_PAGES);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS_HUGETLB_2MB, HUGE_GPA, HUGE_SLOT,
				    HUGE_SIZE / PAGE_SIZE, 0);
	virt_map_level(t->vm, HUGE_GVA, HUGE_GPA, HUGE_SIZE, PG_LEVEL_2M);
	t->tables = addr_gpa2hva(t->vm, TABLES_GPA);
	for (u64 alias = 0; alias < NR_ALIASES; alias++)
		map_alias(t, alias);
	sync_global_to_guest(t->vm, nr_gfns);
}

static void set_logging(struct hold_test *t, u32 flags)
{
	vm_mem_region_set_flags(t->vm, DATA_SLOT, flags);
}

static void split(struct hold_test *t, u32 flags)
{
	vm_mem_region_set_flags(t->vm, HUGE_SLOT, flags);
}

static void rest(struct hold_test *t, u32 flags)
{
	usleep(IDLE_US);
}

static void get_log(struct hold_test *t, u32 flags)
{
	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, t->log);
}

static void clear_log(struct hold_test *t, u32 flags)
{
	kvm_vm_clear_dirty_log(t->vm, DATA_SLOT, t->log, 0, nr_gfns);
}

/* CLEAR of pages none of which is in the log. */
static void clear_nothing(struct hold_test *t, u32 flags)
{
	static u8 all[CLEAN_GFNS / 8];

	memset(all, 0xff, sizeof(all));
	kvm_vm_clear_dirty_log(t->vm, CLEAN_SLOT, all, 0, CLEAN_GFNS);
}

static const struct phase idle = { "idle", rest };
static const struct phase splitting = { "split", split, .flags = KVM_MEM_LOG_DIRTY_PAGES };

/* In get_clean, KVM must read every SPTE to find that no page was written. */
static const struct phase phases[] = {
	{ "enable", set_logging, .flags = KVM_MEM_LOG_DIRTY_PAGES },
	{ "get", get_log, .written = true },
	{ "clear", clear_log },
	{ "get_clean", get_log },
	{ "disable", set_logging },
	{ "clear_nothing", clear_nothing },
	{ "disable_nothing", set_clean_slot, .slack = 9 },
};

static void *waiter_main(void *arg)
{
	struct hold_test *t = arg;
	struct ucall uc;

	vcpu_run_to_sync(t->waiter, &uc);
	t->longest_ns = uc.args[1] * NSEC_PER_MSEC / guest_tsc_khz;
	return NULL;
}

/* Return: the longest time that the vCPU waited, in nanoseconds. */
static u64 measure(struct hold_test *t, const struct phase *phase)
{
	pthread_t thread;
	u64 since, before;

	start_thread(&thread, waiter_main, t);
	do
		sync_global_from_guest(t->vm, measuring);
	while (!measuring);
	sync_global_from_guest(t->vm, nr_locked);
	before = nr_locked;
	since = now_ns();
	phase->run(t, phase->flags);
	since = now_ns() - since;
	sync_global_from_guest(t->vm, nr_locked);
	t->locked_per_ms = (nr_locked - before) * NSEC_PER_MSEC / since;
	write_guest_global(t->vm, measuring, false);
	pthread_join(thread, NULL);
	ksft_print_msg("%s: %lu us; longest wait for mmu_lock %lu us, taken %lu times per ms\n",
		       phase->name, since / NSEC_PER_USEC, t->longest_ns / NSEC_PER_USEC,
		       t->locked_per_ms);
	return t->longest_ns;
}

static void run_phase(struct hold_test *t, const struct phase *phase, u64 bound_us)
{
	u64 ns;

	if (phase->written)
		vcpu_run_to_sync(t->vcpu, NULL);
	ns = measure(t, phase);
	bound_us *= 1 + phase->slack;
	ksft_test_result(!bound_us || ns <= bound_us * NSEC_PER_USEC, "%s\n", phase->name);
}

/* Compare how often the vCPU takes mmu_lock while KVM splits, and when idle. */
static void run_split(struct hold_test *t, u64 bound_us)
{
	u64 idle_per_ms = t->locked_per_ms, huge = vm_get_stat(t->vm, pages_2m);

	TEST_ASSERT(huge >= NR_HUGE, "%lu huge pages are mapped, instead of %lu", huge, NR_HUGE);
	run_phase(t, &splitting, bound_us);
	huge -= vm_get_stat(t->vm, pages_2m);
	ksft_test_result(huge == NR_HUGE, "%lu of %lu huge pages are split\n", huge, NR_HUGE);
	ksft_test_result(!bound_us || t->locked_per_ms * 100 >= idle_per_ms * MIN_PROGRESS,
			 "the vCPU gets on: mmu_lock %lu times per ms, %lu if nothing is split\n",
			 t->locked_per_ms, idle_per_ms);
}

static void run_phases(struct hold_test *t, u64 bound_us)
{
	/* Map all pages at all addresses. */
	vcpu_run_to_sync(t->vcpu, NULL);
	for (unsigned int i = 0; i < ARRAY_SIZE(phases); i++)
		run_phase(t, &phases[i], bound_us);
}

int main(int argc, char *argv[])
{
	struct hold_test t = {};
	bool split_only = false;
	u64 bound_us = 0;
	const struct test_option options[] = {
		{ 'g', "gfns", "gfns, a multiple of 64, " __stringify(MAX_GFNS) " at most",
		  .number = &nr_gfns, .min = 64, .max = MAX_GFNS, .multiple = 64 },
		{ 'b', "bound", "fail if the vCPU waits for longer, us (default: no bound)",
		  .number = &bound_us, .min = 1, .max = UINT_MAX },
		{ 's', "split", "only split huge pages", .flag = &split_only },
		{ }
	};

	parse_test_options(argc, argv, options, NULL);
	ksft_print_header();
	__TEST_REQUIRE(!kvm_is_tdp_enabled(), "The guest's page tables aren't shadowed");
	__TEST_REQUIRE(get_kvm_param_bool("eager_page_split"), "Huge pages aren't split eagerly");
	__TEST_REQUIRE(nr_free_2m_pages() >= NR_HUGE, "There are too few 2MiB HugeTLB pages");
	ksft_set_plan(3 + (split_only ? 0 : ARRAY_SIZE(phases)));
	create_vm(&t);
	vcpu_run_to_sync(t.vcpu, NULL);
	measure(&t, &idle);
	run_split(&t, bound_us);
	if (!split_only)
		run_phases(&t, bound_us);
	kvm_vm_free(t.vm);
	ksft_finished();
}
