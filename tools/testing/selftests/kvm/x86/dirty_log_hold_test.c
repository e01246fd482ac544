// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging: for how long is mmu_lock held if a guest maps its memory very often?
 *
 * A guest decides how many SPTEs a gfn has.  Map each of some gfns by many page
 * tables of the guest, which takes shadow paging.  Then enable logging, get and clear
 * the log and disable logging, while another vCPU executes INVLPG again and again, for
 * which KVM takes mmu_lock once, and measures the longest that it had to wait.
 *
 * Before that, enable logging for memory in many huge pages, which are split eagerly.  The
 * vCPU must not wait for more than a few of them, and has to get on meanwhile: as it comes
 * back for mmu_lock at once, it would get the lock once per huge page only, if those who
 * split did not leave it for a while.
 *
 * Limits: the wait includes what an idle machine needs for that, which is measured
 * first ("idle").  A bound (-b) makes sense where time is simulated, as
 * on a machine in lockstep; elsewhere the vCPU may not have a CPU when it wants one.  The
 * bound is also what the progress of the vCPU is judged with.
 */
#include "eager_split_util.h"

#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define MAX_GFNS		512

/* Each page table of the guest maps all gfns; the tables are neighbours. */
#define TABLES_SLOT		11
#define TABLES_GPA		0x80000000ull
#define ALIAS_GVA		(2ull << 39)

/* One less than KVM allows: beyond that it zaps all SPTEs of the gfn. */
#define NR_ALIASES		999
#define MMU_PAGES		4000ul

/* A memslot that is logged and never written, as large as user space may make it. */
#define CLEAN_SLOT		12
#define CLEAN_GPA		0x400000000ull
#define CLEAN_SIZE		(16ull * SZ_1G)
#define CLEAN_GFNS		(CLEAN_SIZE / PAGE_SIZE)

/* A memslot in huge pages, each of them mapped once. */
#define HUGE_SLOT		13
#define HUGE_GPA		0xc0000000ull
#define HUGE_GVA		BIT_ULL(39)
#define NR_HUGE			8ul
#define HUGE_SIZE		(NR_HUGE * SZ_2M)

/* While huge pages are split the vCPU gets on at this share of its speed, percent. */
#define MIN_PROGRESS		25

#define IDLE_US			20000
#define LOG_WORDS		(MAX_GFNS / BITS_PER_WORD)

/* Written by the host before the vCPU runs. */
static u64 nr_gfns = MAX_GFNS;

/* Set by the vCPU that measures once it begins, cleared by the host for it to end. */
static bool measuring;

/* How often the vCPU that measures has had mmu_lock. */
static u64 nr_locked;

struct hold_test {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct kvm_vcpu *waiter;
	u64 *tables;
	void *clean;
	unsigned long log[LOG_WORDS];
	/* Of the last phase: the longest wait, and how often the vCPU had mmu_lock per ms. */
	u64 longest_ns;
	u64 locked_per_ms;
};

struct phase {
	const char *name;
	void (*run)(struct hold_test *t, u32 flags);
	/* The new flags of the memslot, if the phase sets them. */
	u32 flags;
	/* All pages are in the log when it begins. */
	bool written;
	/* The bound is larger by this factor: memory is freed on the vCPU's CPU as well. */
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
 * Nothing is mapped at the address.  With the only root that this vCPU ever has, KVM
 * takes mmu_lock once to look for that.
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

/* Have a table of the guest map all gfns, and link it at the address of an alias. */
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

/* No page that user space asks for is in the log. */
static void clear_nothing(struct hold_test *t, u32 flags)
{
	static u8 all[CLEAN_GFNS / 8];

	memset(all, 0xff, sizeof(all));
	kvm_vm_clear_dirty_log(t->vm, CLEAN_SLOT, all, 0, CLEAN_GFNS);
}

static const struct phase idle = { "idle", rest };
static const struct phase splitting = { "split", split, .flags = KVM_MEM_LOG_DIRTY_PAGES };

/* With get_clean, KVM has to look at every SPTE to find that no page was written. */
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

/* The vCPU takes mmu_lock again and again, while huge pages are split and none is. */
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
