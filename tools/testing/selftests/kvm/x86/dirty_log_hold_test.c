// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging: for how long is mmu_lock held if a guest maps its memory very often?
 *
 * A guest decides how many SPTEs a gfn has.  Map each of some gfns by many page
 * tables of the guest, which takes shadow paging.  Then enable logging, get and clear
 * the log and disable logging, while another vCPU executes INVLPG again and again, for
 * which KVM takes mmu_lock once, and measures the longest that it had to wait.
 *
 * Limits: the wait includes what an idle machine needs for that, which is measured
 * first ("idle").  A bound (-b) makes sense where time is simulated, as
 * on a machine in lockstep; elsewhere the vCPU may not have a CPU when it wants one.
 */
#include "eager_split_util.h"

#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define MAX_GFNS		512

/* Each page table of the guest maps all gfns; the tables are neighbours. */
#define TABLES_SLOT		11
#define TABLES_GPA		0x80000000ull
#define ALIAS_GVA		(2ull << 39)

/* One less than KVM lets be: with more it takes all of a gfn's mappings away. */
#define NR_ALIASES		999
#define MMU_PAGES		4000ul

/* A memslot that is logged and never written; user space decides how large it is. */
#define CLEAN_SLOT		12
#define CLEAN_GPA		0x400000000ull
#define CLEAN_SIZE		(16ull * SZ_1G)
#define CLEAN_GFNS		(CLEAN_SIZE / PAGE_SIZE)

#define IDLE_US			20000
#define LOG_WORDS		(MAX_GFNS / BITS_PER_WORD)

/* Written by the host before the vCPU runs. */
static u64 nr_gfns = MAX_GFNS;

/* Set by the vCPU that measures once it begins, cleared by the host for it to end. */
static bool measuring;

struct hold_test {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct kvm_vcpu *waiter;
	u64 *tables;
	void *clean;
	unsigned long log[LOG_WORDS];
	/* The longest wait of the last phase. */
	u64 longest_ns;
};

struct phase {
	const char *name;
	void (*run)(struct hold_test *t, u32 flags);
	/* What the slot's flags become, if it is that which is measured. */
	u32 flags;
	/* All pages are in the log when it begins. */
	bool written;
	/* By how much its bound is larger: memory is freed on the vCPU's CPU as well. */
	unsigned int slack;
};

static void guest_main(void)
{
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
	t->tables = addr_gpa2hva(t->vm, TABLES_GPA);
	for (u64 alias = 0; alias < NR_ALIASES; alias++)
		map_alias(t, alias);
	sync_global_to_guest(t->vm, nr_gfns);
}

static void set_logging(struct hold_test *t, u32 flags)
{
	vm_mem_region_set_flags(t->vm, DATA_SLOT, flags);
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

/* To find that no page was written takes a look at every SPTE. */
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

/* Return the longest that the vCPU waited, in nanoseconds. */
static u64 measure(struct hold_test *t, const struct phase *phase)
{
	pthread_t thread;
	u64 since;

	start_thread(&thread, waiter_main, t);
	do
		sync_global_from_guest(t->vm, measuring);
	while (!measuring);
	since = now_ns();
	phase->run(t, phase->flags);
	since = now_ns() - since;
	write_guest_global(t->vm, measuring, false);
	pthread_join(thread, NULL);
	ksft_print_msg("%s: %lu us, %lu SPTEs; longest wait for mmu_lock %lu us\n", phase->name,
		       since / NSEC_PER_USEC, nr_gfns * NR_ALIASES, t->longest_ns / NSEC_PER_USEC);
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

int main(int argc, char *argv[])
{
	struct hold_test t = {};
	u64 bound_us = 0;
	const struct test_option options[] = {
		{ 'g', "gfns", "gfns, a multiple of 64, " __stringify(MAX_GFNS) " at most",
		  .number = &nr_gfns, .min = 64, .max = MAX_GFNS, .multiple = 64 },
		{ 'b', "bound", "fail if the vCPU waits for longer, us (default: no bound)",
		  .number = &bound_us, .min = 1, .max = UINT_MAX },
		{ }
	};

	parse_test_options(argc, argv, options, NULL);
	ksft_print_header();
	__TEST_REQUIRE(!kvm_is_tdp_enabled(), "The guest's page tables aren't shadowed");
	ksft_set_plan(ARRAY_SIZE(phases));
	create_vm(&t);
	vcpu_run_to_sync(t.vcpu, NULL);
	measure(&t, &idle);
	for (unsigned int i = 0; i < ARRAY_SIZE(phases); i++)
		run_phase(&t, &phases[i], bound_us);
	kvm_vm_free(t.vm);
	ksft_finished();
}
