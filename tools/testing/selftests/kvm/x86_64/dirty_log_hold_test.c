// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging: for how long is mmu_lock held if a guest maps its memory very often?
 *
 * A guest decides how many SPTEs a gfn has.  Map each of some gfns by many page
 * tables of the guest, which takes shadow paging.  Then enable logging, get and clear
 * the log and disable logging, while a thread asks the host whether a page is idle, again
 * and again, which takes mmu_lock once, and measures the longest that it had to wait.
 *
 * Limits: the wait includes what an idle machine needs for that, which is measured
 * first ("idle").  A bound (-b) makes sense where time is simulated, as
 * on a machine in lockstep; elsewhere the thread may not have a CPU when it wants one.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <linux/sizes.h>

#include "kselftest.h"
#include "kvm_util.h"
#include "processor.h"
#include "test_util.h"

#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define MAX_GFNS		512u

#define PAGE_IDLE		"/sys/kernel/mm/page_idle/bitmap"

/*
 * The first page is the one that the thread asks about.  The others are there because
 * a CPU has some pages in hand before it puts them on the lists of what can be idle.
 */
#define OTHER_SLOT		11
#define OTHER_GPA		0x80000000ull
#define OTHER_PAGES		128u

/* Each page table of the guest maps all gfns; the tables are neighbours. */
#define TABLES_SLOT		12
#define TABLES_GPA		0xc0000000ull
#define ALIAS_GVA		(2ull << 39)

/* One less than KVM lets be: with more it takes all of a gfn's mappings away. */
#define MAX_ALIASES		999u
#define MMU_PAGES		4000ul

#define ENTRY_BITS		(PTE_PRESENT_MASK | PTE_WRITABLE_MASK | \
				 PTE_ACCESSED_MASK | PTE_DIRTY_MASK)

#define IDLE_NS			(20 * 1000000ul)
#define LOG_WORDS		(MAX_GFNS / 64)

/* Written by the host before the vCPU runs. */
static u64 nr_gfns = MAX_GFNS;
static u64 nr_aliases = MAX_ALIASES;

struct hold_test {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	u8 *hva;
	u64 *tables;
	unsigned long log[LOG_WORDS];
};

struct phase {
	const char *name;
	void (*run)(struct hold_test *t);
};

struct waiter {
	u64 pfn;
	bool stop;
	u64 longest_ns;
	u64 nr;
	pthread_t thread;
};

static void guest_main(void)
{
	u64 alias, gfn;

	for (;;) {
		for (alias = 0; alias < READ_ONCE(nr_aliases); alias++)
			for (gfn = 0; gfn < READ_ONCE(nr_gfns); gfn++)
				WRITE_ONCE(*(u64 *)(ALIAS_GVA + alias * SZ_2M + gfn * PAGE_SIZE),
					   alias);
		GUEST_SYNC(0);
	}
}

static void run_guest(struct hold_test *t)
{
	vcpu_run(t->vcpu);
	TEST_ASSERT(get_ucall(t->vcpu, NULL) == UCALL_SYNC, "The guest ended, exit reason %s",
		    exit_reason_str(t->vcpu->run->exit_reason));
}

/* Have a table of the guest map all gfns, and link it at the address of an alias. */
static void map_alias(struct hold_test *t, u64 alias)
{
	int level = PG_LEVEL_2M;
	u64 gfn, *table = t->tables + alias * (PAGE_SIZE / sizeof(u64));

	for (gfn = 0; gfn < nr_gfns; gfn++)
		table[gfn] = (DATA_GPA + gfn * PAGE_SIZE) | ENTRY_BITS;

	virt_map_level(t->vm, ALIAS_GVA + alias * SZ_2M, DATA_GPA, SZ_2M, PG_LEVEL_2M);
	*__vm_get_page_table_entry(t->vm, ALIAS_GVA + alias * SZ_2M, &level) =
		(TABLES_GPA + alias * PAGE_SIZE) | ENTRY_BITS;
}

static void create_vm(struct hold_test *t)
{
	u64 alias;

	t->vm = vm_create_with_one_vcpu(&t->vcpu, guest_main);
	vm_enable_cap(t->vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
		      KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE);
	vm_ioctl(t->vm, KVM_SET_NR_MMU_PAGES, (void *)MMU_PAGES);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, nr_gfns, 0);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, OTHER_GPA, OTHER_SLOT,
				    OTHER_PAGES, 0);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, TABLES_GPA, TABLES_SLOT,
				    nr_aliases, 0);
	memset(addr_gpa2hva(t->vm, OTHER_GPA), 0, OTHER_PAGES * PAGE_SIZE);
	t->hva = addr_gpa2hva(t->vm, DATA_GPA);
	t->tables = addr_gpa2hva(t->vm, TABLES_GPA);
	for (alias = 0; alias < nr_aliases; alias++)
		map_alias(t, alias);
	sync_global_to_guest(t->vm, nr_gfns);
	sync_global_to_guest(t->vm, nr_aliases);
}

static void set_logging(struct hold_test *t, u32 flags)
{
	vm_set_user_memory_region(t->vm, DATA_SLOT, flags, DATA_GPA, nr_gfns * PAGE_SIZE, t->hva);
}

static void phase_idle(struct hold_test *t)
{
	struct timespec time = { .tv_nsec = IDLE_NS };

	nanosleep(&time, NULL);
}

static void phase_enable(struct hold_test *t)
{
	set_logging(t, KVM_MEM_LOG_DIRTY_PAGES);
}

static void phase_get(struct hold_test *t)
{
	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, t->log);
}

/* No page was written since the log was cleared, which takes a look at every SPTE. */
static void phase_get_clean(struct hold_test *t)
{
	phase_get(t);
}

static void phase_clear(struct hold_test *t)
{
	kvm_vm_clear_dirty_log(t->vm, DATA_SLOT, t->log, 0, nr_gfns);
}

static void phase_disable(struct hold_test *t)
{
	set_logging(t, 0);
}

static const struct phase idle = { "idle", phase_idle };

static const struct phase phases[] = {
	{ "enable", phase_enable },
	{ "get", phase_get },
	{ "clear", phase_clear },
	{ "get_clean", phase_get_clean },
	{ "disable", phase_disable },
};

static u64 now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static u64 pfn_of(const void *p)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	u64 entry = 0;

	TEST_ASSERT(fd >= 0 && pread(fd, &entry, sizeof(entry),
				     (u64)p / PAGE_SIZE * sizeof(entry)) == sizeof(entry),
		    "Can't read /proc/self/pagemap, errno %d", errno);
	close(fd);
	return entry & (BIT_ULL(55) - 1);
}

static bool ask_if_idle(int fd, u64 pfn)
{
	u64 bit = BIT_ULL(pfn % 64);

	return pwrite(fd, &bit, sizeof(bit), pfn / 64 * sizeof(bit)) == sizeof(bit);
}

/* The host doesn't tell of the very last pages of memory. */
static u64 find_pfn(struct hold_test *t)
{
	u8 *page = addr_gpa2hva(t->vm, OTHER_GPA);
	int fd = open(PAGE_IDLE, O_WRONLY);
	unsigned int i = 0;

	while (i < OTHER_PAGES && !ask_if_idle(fd, pfn_of(page + i * PAGE_SIZE)))
		i++;
	TEST_ASSERT(i < OTHER_PAGES, "Can't write to " PAGE_IDLE ", errno %d", errno);
	close(fd);
	return pfn_of(page + i * PAGE_SIZE);
}

/* The MMU notifier takes mmu_lock, whether or not the page is mapped. */
static void *waiter_main(void *arg)
{
	struct waiter *w = arg;
	int fd = open(PAGE_IDLE, O_WRONLY);
	u64 since;

	while (!READ_ONCE(w->stop)) {
		since = now_ns();
		TEST_ASSERT(ask_if_idle(fd, w->pfn), "Can't write to " PAGE_IDLE ", errno %d",
			    errno);
		w->longest_ns = max(w->longest_ns, now_ns() - since);
		WRITE_ONCE(w->nr, w->nr + 1);
	}
	close(fd);
	return NULL;
}

/* Return the longest that the thread waited, in nanoseconds. */
static u64 measure(struct hold_test *t, const struct phase *phase)
{
	struct waiter w = { .pfn = find_pfn(t) };
	u64 since;

	TEST_ASSERT(!pthread_create(&w.thread, NULL, waiter_main, &w), "Can't create a thread");
	while (!READ_ONCE(w.nr))
		;
	since = now_ns();
	phase->run(t);
	since = now_ns() - since;
	WRITE_ONCE(w.stop, true);
	pthread_join(w.thread, NULL);
	ksft_print_msg("%s: %lu us, %lu SPTEs; longest wait for mmu_lock %lu us\n", phase->name,
		       since / 1000, nr_gfns * nr_aliases, w.longest_ns / 1000);
	return w.longest_ns;
}

static void run_phase(struct hold_test *t, const struct phase *phase, u64 bound_us)
{
	u64 ns;

	/* All pages are in the log when it is to be read. */
	if (phase->run == phase_get)
		run_guest(t);
	ns = measure(t, phase);
	ksft_test_result(!bound_us || ns <= bound_us * 1000, "%s\n", phase->name);
}

static void print_help(FILE *f, const char *name)
{
	fprintf(f, "usage: %s [-h] [-g GFNS] [-a ALIASES] [-b US]\n\n"
		" -g: gfns, a multiple of 64, %u at most (default: %u)\n"
		" -a: how often each is mapped, %u at most (default: %u)\n"
		" -b: fail if the thread waits for longer, in microseconds (default: no bound)\n",
		name, MAX_GFNS, MAX_GFNS, MAX_ALIASES, MAX_ALIASES);
}

static u64 parse_number(const char *text, u64 most, u64 multiple)
{
	char *end;
	u64 nr = strtoul(text, &end, 0);

	if (*text && !*end && nr && nr <= most && !(nr % multiple))
		return nr;

	fprintf(stderr, "%s: expected a multiple of %lu from %lu to %lu; see -h\n", text, multiple,
		multiple, most);
	exit(2);
}

int main(int argc, char *argv[])
{
	struct hold_test t = {};
	u64 bound_us = 0;
	unsigned int i;
	int opt;

	while ((opt = getopt(argc, argv, "hg:a:b:")) != -1) {
		switch (opt) {
		case 'g':
			nr_gfns = parse_number(optarg, MAX_GFNS, 64);
			break;
		case 'a':
			nr_aliases = parse_number(optarg, MAX_ALIASES, 1);
			break;
		case 'b':
			bound_us = parse_number(optarg, UINT_MAX, 1);
			break;
		default:
			print_help(opt == 'h' ? stdout : stderr, argv[0]);
			return opt == 'h' ? 0 : 2;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "%s: not an option; see -h\n", argv[optind]);
		return 2;
	}

	__TEST_REQUIRE(!kvm_is_tdp_enabled(), "The guest's page tables aren't shadowed");
	__TEST_REQUIRE(!access(PAGE_IDLE, W_OK), "The kernel has no " PAGE_IDLE);
	ksft_print_header();
	ksft_set_plan(ARRAY_SIZE(phases));
	create_vm(&t);
	run_guest(&t);
	measure(&t, &idle);
	for (i = 0; i < ARRAY_SIZE(phases); i++)
		run_phase(&t, &phases[i], bound_us);
	kvm_vm_free(t.vm);
	ksft_finished();
}
