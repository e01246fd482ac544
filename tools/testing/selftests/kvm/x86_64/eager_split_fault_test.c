// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting that can't go on
 *
 * Eager page splitting is best effort: whatever it lacks, huge pages may stay,
 * and nothing else may go wrong.  Take something away from it in all ways there
 * are, and check that KVM's statistics account for each huge page, that the dirty
 * log has exactly what the guest writes afterwards, and that memory has it too.
 *
 *  - Memory.  Let each allocation of the ioctl fail that enables logging or that
 *    clears the log, the first, the second and so on, in a new VM each, until
 *    none is left that could fail.  /proc/thread-self/fail-nth does that.  Then
 *    do it again for one kind of the splitter's allocations at a time.  Of many
 *    in a row that end alike some are left out.
 *  - Shadow pages, by the smallest KVM_SET_NR_MMU_PAGES.  Some thousand failures
 *    must not cost any memory.
 *  - Permission, by turning kvm.eager_page_split off in the midst of it.
 *  - The process, by SIGKILL in the midst of it.
 *  - mmu_lock, in debug kernels, at each place where it may be dropped on the way:
 *    kvm.prove_force does that, and kvm.prove_forced tells that each was met.  Two
 *    vCPUs write all the time, and memory is copied by what the log has, which
 *    must come to the same, and must not have more.  The TDP MMU is in it, too.
 *  - The memory itself, in debug kernels: kvm.prove_refuse takes that of every other
 *    huge page for memory that is just being taken away.  It is left to vCPUs.
 *
 * With shadow paging (npt=0, ept=0) all of it is done once more for memory that the
 * guest maps a second time, with 4KiB entries, so that rmaps need descriptors.
 *
 * Limits: the TDP MMU's own splitter has none of these statistics and is not
 * tested.  kvmalloc() turns to vmalloc() when an array of more than a page can't
 * be had, so one failure alone doesn't show that to the splitter.  An allocation
 * that is made only sometimes, like a page for a slab, may escape.  Enabling
 * allocates for itself before it splits; vmalloc() complains in the kernel's log
 * if it has to fail, so these are counted and left out, and a few behind them for
 * safety, unless -a asks for all.  What "in the midst" is depends on the
 * scheduler; there are many tries, and not one success among them is a failure.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/bitmap.h>
#include <linux/sizes.h>

#include "kvm_util.h"
#include "processor.h"
#include "test_util.h"
#include "eager_split_util.h"

#define KERNEL_LOG		"/dev/kmsg"
#define MEMINFO			"/proc/meminfo"
#define ZONEINFO		"/proc/zoneinfo"

/* Code, stack and page tables, at the lowest addresses. */
#define LOW_PAGES		1024
#define CODE_GVA		0x10000ull
#define CODE_MAX		64

#define DATA_SLOT		1
#define DATA_GPA		0x40000000ull
#define DATA_GVA		DATA_GPA
#define ALIAS_GVA		0x80000000ull


/*
 * For drops of mmu_lock, with something before and behind each; for failing
 * allocations, for what is interrupted, and for too small a quota.
 */
#define NR_HUGE_FORCE		2u
#define NR_HUGE_FEW		3u
#define NR_HUGE_SOME		32u
#define NR_HUGE_MANY		64u

/* How often to clear all of the log, in vain for most of the huge pages. */
#define NR_LEAK_ROUNDS		10

/* Memory that was given back has arrived when so many samples see no more of it. */
#define NR_LEAK_SAMPLES		5
#define LEAK_SAMPLE_US		20000

/* Which pages the guest writes when they are logged, and which have an alias. */
#define WRITE_STEP		31u
#define WRITE_FIRST		3u
#define ALIAS_STEP		8u

#define TOUCH_VALUE		0x100000000ull
#define WRITE_VALUE		0x200000000ull

/* A slot whose arrays in KVM are larger than what vmalloc() has in use at a time. */
#define VAST_SLOT		2
#define VAST_GPA		BIT_ULL(37)
#define VAST_SIZE		(48ul << 30)

/* Allocations that enabling may need for itself now and then. */
#define OWN_MARGIN		3
#define MAX_STEP		16u
#define ENOUGH_ALIKE		4
#define NR_INSIST		4
#define MAX_INSIST		60
#define NEVER			1000000u

#define MAX_MIDST_TRIES		200u
#define NR_KILLS		6

/* Who writes while mmu_lock is dropped, each one page of so many. */
#define NR_WRITERS		2u
#define WRITER_STEP		31u
#define PASS_SHIFT		32
#define SITE_NAME_MAX		32
#define POLL_US			1000

/* A kind of VM, and of ioctl that splits. */
struct variant {
	const char *name;
	bool clear;
	bool aliased;

	/* How many failing allocations may be left out in a row, and one. */
	unsigned int max_step;

	/*
	 * Where mmu_lock is dropped, what kvm.dirty_harvest is.  The first one meets
	 * what takes enabling and harvesting, and aliases are there to be armed.
	 */
	const char *harvest;
};

static const struct variant variants[] = {
	{ .name = "enable", .max_step = 1, .harvest = "on" },
	{ .name = "clear", .clear = true, .max_step = 1, .harvest = "off" },
	{ .name = "enable, aliased", .aliased = true, .max_step = MAX_STEP, .harvest = "off" },
	{ .name = "clear, aliased", .clear = true, .aliased = true, .max_step = MAX_STEP,
	  .harvest = "on" },
};

/* Allocations that may fail. */
struct site {
	const char *name;

	/* Of this cache and no other; without it, whole pages. */
	const char *cache;

	/* Any allocation. */
	bool all;

	/* No split of a new VM can do without; only that of aliased memory. */
	bool needed;
	bool aliased_only;

	unsigned int nr_injected;
	unsigned int nr_nomem;
	unsigned int nr_ioctl_failed;
};

static struct site sites[] = {
	{ .name = "all", .all = true },
	{ .name = "descs", .cache = "pte_list_desc", .needed = true, .aliased_only = true },
	{ .name = "headers", .cache = "kvm_mmu_page_header", .needed = true },
	{ .name = "pages" },
};

struct fault_test {
	const struct variant *v;
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	u64 nr_huge;

	/* Of these, how many are to be left alone by the splitter. */
	u64 nr_refused;
	u64 npages;
	void *hva;
	unsigned long *log;
};

struct split_stats {
	u64 huge;
	u64 done;
	u64 nomem;
	u64 noquota;
	u64 cancelled;
};

/* What a try reports to the process that counts. */
static struct outcome {
	bool injected;
	bool ioctl_failed;
	bool nomem;
	unsigned int nr_own;
} *outcome;

static bool verbose;
static bool thorough;
static unsigned int max_tries = ~0u;
static int fail_nth_fd = -1;
static int kernel_log_fd = -1;

#define CHECK(t, cond, fmt, ...)	\
	TEST_ASSERT(cond, "%s: " fmt, (t)->v->name, ##__VA_ARGS__)

static void *alloc_shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		       0);

	TEST_ASSERT(p != MAP_FAILED, "Out of memory");
	return p;
}

/*
 * Settings of the kernel, which are put back at the end
 */

enum setting_id {
	SLAB_WAIT, SLAB_FILTER, SLAB_VERBOSE, SLAB_DESCS, SLAB_HEADERS,
	PAGE_WAIT, PAGE_ORDER, PAGE_VERBOSE, EAGER, FORCE_YIELD, SKIP_SPLIT, HARVEST,
	NR_SETTINGS
};

static struct setting settings[NR_SETTINGS] = {
	[SLAB_WAIT] = { FAILSLAB "ignore-gfp-wait" },
	[SLAB_FILTER] = { FAILSLAB "cache-filter" },
	[SLAB_VERBOSE] = { FAILSLAB "verbose" },
	[SLAB_DESCS] = { SLAB "pte_list_desc/failslab" },
	[SLAB_HEADERS] = { SLAB "kvm_mmu_page_header/failslab" },
	[PAGE_WAIT] = { FAIL_PAGE_ALLOC "ignore-gfp-wait" },
	[PAGE_ORDER] = { FAIL_PAGE_ALLOC "min-order" },
	[PAGE_VERBOSE] = { FAIL_PAGE_ALLOC "verbose" },
	[EAGER] = { PARAM_EAGER },
	[FORCE_YIELD] = { PARAM_FORCE_YIELD },
	[SKIP_SPLIT] = { PARAM_SKIP_SPLIT },
	[HARVEST] = { PARAM_HARVEST },
};

static bool can_tell_sites(void)
{
	return settings[SLAB_DESCS].saved && settings[SLAB_HEADERS].saved;
}

/* Let waiting allocations fail too, and say nothing about it in the log. */
static void prepare_injection(void)
{
	setting_set(&settings[SLAB_WAIT], "N");
	setting_set(&settings[SLAB_VERBOSE], "0");
	setting_set(&settings[PAGE_WAIT], "N");
	setting_set(&settings[PAGE_VERBOSE], "0");
}

static const char *is_chosen(const struct site *site, enum setting_id id)
{
	return site->cache && strstr(settings[id].path, site->cache) ? "1" : "0";
}

static void select_site(const struct site *site)
{
	setting_set(&settings[SLAB_FILTER], site->all ? "N" : "Y");
	setting_set(&settings[PAGE_ORDER], site->cache ? NO_PAGE_ORDER : "0");
	if (site->all)
		return;

	setting_set(&settings[SLAB_DESCS], is_chosen(site, SLAB_DESCS));
	setting_set(&settings[SLAB_HEADERS], is_chosen(site, SLAB_HEADERS));
}

static void fail_nth_write(unsigned int nth)
{
	char text[SETTING_MAX];
	int n = snprintf(text, sizeof(text), "%u", nth);

	TEST_ASSERT(pwrite(fail_nth_fd, text, n, 0) == n, "Can't write " FAIL_NTH);
}

static unsigned int fail_nth_read(void)
{
	char text[SETTING_MAX] = { };

	TEST_ASSERT(pread(fail_nth_fd, text, sizeof(text) - 1, 0) > 0,
		    "Can't read " FAIL_NTH);
	return atoi(text);
}

/*
 * The kernel's log
 */

static bool is_complaint(const char *message)
{
	static const char * const complaints[] = {
		"WARNING:", "BUG:", "KASAN", "Oops", "Call Trace", "INFO: ",
		"possible circular",
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(complaints); i++)
		if (strstr(message, complaints[i]))
			return true;
	return false;
}

static void expect_silence(const char *when)
{
	char message[8192];
	ssize_t n;

	if (thorough)
		return;

	for (;;) {
		n = read(kernel_log_fd, message, sizeof(message) - 1);
		if (n < 0 && errno == EPIPE)
			continue;
		if (n <= 0)
			return;

		message[n] = 0;
		TEST_ASSERT(!is_complaint(message), "%s: the kernel complains: %s", when,
			    message);
	}
}

static void open_kernel_log(void)
{
	kernel_log_fd = open(KERNEL_LOG, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	TEST_ASSERT(kernel_log_fd >= 0, "Can't open " KERNEL_LOG);
	lseek(kernel_log_fd, 0, SEEK_END);
}

/*
 * The guest
 */

/*
 * RDI: address; RSI: distance to the next; RCX: how many; RAX: what to write there;
 * RDX: what to add to it.  Loading a program into each VM would take much longer.
 */
static void __attribute__((naked)) guest_code(void)
{
	asm volatile("1: mov %rax, (%rdi)\n\t"
		     "add %rdx, %rax\n\t"
		     "add %rsi, %rdi\n\t"
		     "dec %rcx\n\t"
		     "jnz 1b\n\t"
		     "hlt");
}

static void vcpu_write(struct fault_test *t, struct kvm_vcpu *vcpu, u64 gva, u64 first,
		       u64 step, u64 value)
{
	struct kvm_regs regs = {
		.rip = CODE_GVA,
		.rdi = gva + first * PAGE_SIZE,
		.rsi = step * PAGE_SIZE,
		.rcx = DIV_ROUND_UP(t->npages - first, step),
		.rax = value + first,
		.rdx = step,
		.rflags = X86_EFLAGS_FIXED,
	};

	vcpu_regs_set(vcpu, &regs);
	vcpu_run(vcpu);
	vcpu_regs_get(vcpu, &regs);
	CHECK(t, vcpu->run->exit_reason == KVM_EXIT_HLT && !regs.rcx,
	      "the guest ended, exit reason %s, at 0x%llx",
	      exit_reason_str(vcpu->run->exit_reason), regs.rdi);
}

/* Write one page in @step, from @first on, through addresses that begin at @gva. */
static void guest_write(struct fault_test *t, u64 gva, u64 first, u64 step, u64 value)
{
	vcpu_write(t, t->vcpu, gva, first, step, value);
}

static bool is_written(u64 page)
{
	return page % WRITE_STEP == WRITE_FIRST;
}

/* Every other of these pages through the alias, as far as there is one. */
static void write_subset(struct fault_test *t)
{
	guest_write(t, DATA_GVA, WRITE_FIRST, WRITE_STEP, WRITE_VALUE);
	if (t->v->aliased)
		guest_write(t, ALIAS_GVA, WRITE_FIRST, 2 * WRITE_STEP, WRITE_VALUE);
}

/* The alias first, so that rmaps are in use when huge pages come. */
static void touch_all(struct fault_test *t)
{
	if (t->v->aliased)
		guest_write(t, ALIAS_GVA, 0, ALIAS_STEP, TOUCH_VALUE);
	guest_write(t, DATA_GVA, 0, 1, TOUCH_VALUE);
}

static void check_memory(struct fault_test *t)
{
	u64 page, seen, expected;

	for (page = 0; page < t->npages; page++) {
		expected = (is_written(page) ? WRITE_VALUE : TOUCH_VALUE) + page;
		seen = READ_ONCE(*(u64 *)(t->hva + page * PAGE_SIZE));
		CHECK(t, seen == expected, "page %lu: expected 0x%lx in memory, seen 0x%lx",
		      page, expected, seen);
	}
}

static struct split_stats get_stats(struct kvm_vm *vm)
{
	struct split_stats s = {
		.huge = vm_get_stat_or_absent(vm, "pages_2m"),
		.done = vm_get_stat_or_absent(vm, "eager_split_done"),
		.nomem = vm_get_stat_or_absent(vm, "eager_split_nomem"),
		.noquota = vm_get_stat_or_absent(vm, "eager_split_noquota"),
		.cancelled = vm_get_stat_or_absent(vm, "eager_split_cancelled"),
	};

	return s;
}

static void map_data(struct fault_test *t)
{
	size_t size = t->npages * PAGE_SIZE;

	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS_HUGETLB_2MB, DATA_GPA,
				    DATA_SLOT, t->npages, 0);
	t->hva = addr_gpa2hva(t->vm, DATA_GPA);
	virt_map_level(t->vm, DATA_GVA, DATA_GPA, size, PG_LEVEL_2M);
	if (t->v->aliased)
		virt_map_level(t->vm, ALIAS_GVA, DATA_GPA, size, PG_LEVEL_4K);
}

static void map_code(struct fault_test *t)
{
	vm_paddr_t gpa;

	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, 0, 0, LOW_PAGES, 0);
	virt_pgd_alloc(t->vm);
	gpa = vm_phy_page_alloc(t->vm, CODE_GVA, 0);
	memcpy(addr_gpa2hva(t->vm, gpa), guest_code, CODE_MAX);
	virt_map(t->vm, CODE_GVA, gpa, 1);
}

static void create_vm(struct fault_test *t, unsigned long quota)
{
	t->npages = t->nr_huge * PAGES_PER_2M;
	t->log = bitmap_zalloc(t->npages);
	t->vm = vm_create_barebones();
	if (t->v->clear)
		vm_enable_initially_set(t->vm);
	if (quota)
		vm_set_nr_mmu_pages(t->vm, quota);
	map_code(t);
	map_data(t);
	t->vcpu = vm_vcpu_add(t->vm, 0, (void *)CODE_GVA);
	touch_all(t);
	CHECK(t, vm_get_stat_or_absent(t->vm, "pages_2m") == t->nr_huge,
	      "touched: expected %lu huge pages, seen %lu", t->nr_huge,
	      vm_get_stat_or_absent(t->vm, "pages_2m"));
}

static void destroy_vm(struct fault_test *t)
{
	kvm_vm_free(t->vm);
	free(t->log);
}

/*
 * The log
 */

static int set_logging(struct fault_test *t, bool on)
{
	return __vm_set_user_memory_region(t->vm, DATA_SLOT,
					   on ? KVM_MEM_LOG_DIRTY_PAGES : 0, DATA_GPA,
					   t->npages * PAGE_SIZE, t->hva);
}

/* CLEAR splits a huge page each time it gets a word of it, so give it one only. */
static bool is_cleared(u64 page)
{
	return page % PAGES_PER_2M < BITS_PER_WORD;
}

static int clear_log(struct fault_test *t)
{
	struct kvm_clear_dirty_log args = {
		.slot = DATA_SLOT,
		.num_pages = t->npages,
		.dirty_bitmap = t->log,
	};
	u64 page;

	bitmap_zero(t->log, t->npages);
	for (page = 0; page < t->npages; page++)
		if (is_cleared(page))
			__set_bit(page, t->log);

	return __vm_ioctl(t->vm, KVM_CLEAR_DIRTY_LOG, &args);
}

static bool is_expected_dirty(struct fault_test *t, u64 page)
{
	return is_written(page) || (t->v->clear && !is_cleared(page));
}

static void check_log(struct fault_test *t)
{
	bool seen, expected;
	u64 page;

	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, t->log);
	for (page = 0; page < t->npages; page++) {
		seen = test_bit(page, t->log);
		expected = is_expected_dirty(t, page);
		CHECK(t, seen == expected, "page %lu: expected %s, seen %s", page,
		      expected ? "dirty" : "clean", seen ? "dirty" : "clean");
	}
}

/* CLEAR needs a log that is enabled; that splits nothing. */
static void before_split(struct fault_test *t)
{
	if (t->v->clear)
		CHECK(t, !set_logging(t, true), "enabling failed, errno %d", errno);
}

/* The ioctl under test. */
static int split(struct fault_test *t)
{
	return t->v->clear ? clear_log(t) : set_logging(t, true);
}

static void check_sum(struct fault_test *t, const struct split_stats *s)
{
	CHECK(t, s->done + s->huge == t->nr_huge,
	      "of %lu huge pages, %lu were split and %lu are left", t->nr_huge, s->done,
	      s->huge);
}

/* Whatever is left is split by the guest's writes, and nothing gets lost. */
static void check_afterwards(struct fault_test *t)
{
	write_subset(t);
	CHECK(t, !vm_get_stat_or_absent(t->vm, "pages_2m"),
	      "every huge page was written: expected none, seen %lu",
	      vm_get_stat_or_absent(t->vm, "pages_2m"));
	check_log(t);
	check_memory(t);
}

/*
 * Failing allocations
 */

static bool split_injected(struct fault_test *t, unsigned int nth, int *error)
{
	unsigned int left;
	int r;

	fail_nth_write(nth);
	r = split(t);
	*error = r ? errno : 0;
	left = fail_nth_read();
	fail_nth_write(0);
	return !left;
}

static void expect_stats(struct fault_test *t, const struct split_stats *s, u64 nomem)
{
	check_sum(t, s);
	CHECK(t, s->nomem == nomem && !s->noquota && !s->cancelled,
	      "expected %lu x no memory; seen %lu, %lu x no quota, %lu x cancelled", nomem,
	      s->nomem, s->noquota, s->cancelled);
	CHECK(t, !s->huge == !nomem, "%lu x no memory: %lu huge pages are left", nomem,
	      s->huge);

	/*
	 * Each huge page is an operation of its own to CLEAR.  When logging is
	 * enabled, the first shortage ends it, and as caches are filled up, that is
	 * at the first huge page.
	 */
	CHECK(t, !nomem || s->huge == (t->v->clear ? 1 : t->nr_huge),
	      "no memory for one huge page: %lu are left", s->huge);
}

/* The ioctl failed as a whole: nothing has happened, and it can be repeated. */
static void repeat_split(struct fault_test *t)
{
	struct split_stats s = get_stats(t->vm);

	CHECK(t, s.huge == t->nr_huge && !s.done && !s.nomem,
	      "failed, but %lu of %lu huge pages are left, %lu x no memory", s.huge,
	      t->nr_huge, s.nomem);
	CHECK(t, !split(t), "repeated: errno %d", errno);
}

static bool is_needed(const struct fault_test *t, const struct site *site)
{
	return site->needed && (t->v->aliased || !site->aliased_only);
}

static void check_failure(struct fault_test *t, struct site *site, unsigned int nth,
			  bool injected, int error)
{
	struct split_stats s;

	CHECK(t, !error || (injected && error == ENOMEM),
	      "failure %u of %s: %s, errno %d", nth, site->name,
	      injected ? "injected" : "not injected", error);
	if (error)
		repeat_split(t);

	s = get_stats(t->vm);
	if (verbose)
		pr_info("  %s, %s %u: injected %d, errno %d, split %lu, left %lu, no memory %lu\n",
			t->v->name, site->name, nth, injected, error, s.done, s.huge,
			s.nomem);
	CHECK(t, !s.nomem || injected, "no memory without a failure");
	CHECK(t, nth != 1 || s.nomem || !is_needed(t, site),
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

/* The end of the process takes the VM along, faster than we could. */
static void try_failure(const struct variant *v, struct site *site, unsigned int nth)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_FEW };
	bool injected;
	int error;

	create_vm(&t, 0);
	before_split(&t);
	injected = split_injected(&t, nth, &error);
	check_failure(&t, site, nth, injected, error);
	check_afterwards(&t);
}

/*
 * Enabling allocates the log with vmalloc(), which complains in the kernel's log if
 * it can't have a page for the kernel's own page tables.  Those are never given back,
 * and rmaps of 8 bytes per page need more of them than anything that follows.
 */
static void fill_kernel_tables(void)
{
	void *hva = mmap(NULL, VAST_SIZE, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct kvm_vm *vm = vm_create_barebones();

	TEST_ASSERT(hva != MAP_FAILED, "Can't reserve addresses, errno %d", errno);
	vm_set_user_memory_region(vm, VAST_SLOT, 0, VAST_GPA, VAST_SIZE, hva);
	kvm_vm_free(vm);
	munmap(hva, VAST_SIZE);
}

/* How many allocations there are if nothing is split. */
static void try_without_split(const struct variant *v)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_FEW };

	setting_set(&settings[EAGER], "N");
	create_vm(&t, 0);
	before_split(&t);
	fail_nth_write(NEVER);
	CHECK(&t, !split(&t), "errno %d", errno);
	outcome->nr_own = NEVER - fail_nth_read();
	fail_nth_write(0);
	setting_set(&settings[EAGER], "Y");
}

static void run_try(const struct variant *v, struct site *site, unsigned int nth)
{
	int status;
	pid_t pid;

	memset(outcome, 0, sizeof(*outcome));
	fflush(stdout);
	pid = fork();
	TEST_ASSERT(pid >= 0, "Can't fork, errno %d", errno);
	if (!pid) {
		open_fail_nth();
		if (nth)
			try_failure(v, site, nth);
		else
			try_without_split(v);
		fflush(stdout);
		_exit(0);
	}

	pid = waitpid(pid, &status, 0);
	TEST_ASSERT(pid > 0 && !status,
		    "%s, failure %u of %s: the try failed, status 0x%x", v->name, nth,
		    site->name, status);
}

/* Returns false if there was no such allocation. */
static bool fail_one(const struct variant *v, struct site *site, unsigned int nth)
{
	run_try(v, site, nth);
	site->nr_injected += outcome->injected;
	site->nr_nomem += outcome->nomem;
	site->nr_ioctl_failed += outcome->ioctl_failed;
	return outcome->injected;
}

/* The first that may fail. */
static unsigned int first_failure(const struct variant *v, struct site *site)
{
	if (thorough)
		return 1;

	run_try(v, site, 0);
	return outcome->nr_own ? outcome->nr_own + OWN_MARGIN + 1 : 1;
}

static void show_site(const struct variant *v, const struct site *site,
		      const struct site *before)
{
	pr_info("%-16s %-8s %4u failures, %3u of them for want of memory to split, %u of the ioctl\n",
		v->name, site->name, site->nr_injected - before->nr_injected,
		site->nr_nomem - before->nr_nomem,
		site->nr_ioctl_failed - before->nr_ioctl_failed);
	fflush(stdout);
}

/* How many in a row ended like the last one. */
static unsigned int count_alike(unsigned int nr_alike)
{
	static bool last;

	nr_alike = outcome->nomem == last ? nr_alike + 1 : 0;
	last = outcome->nomem;
	return nr_alike;
}

/* By more and more through what makes no difference, once something did. */
static unsigned int next_step(const struct variant *v, const struct site *site,
			      bool was_felt, unsigned int nr_alike)
{
	unsigned int max = site->all ? v->max_step : MAX_STEP;

	return thorough || !was_felt ? 1 : min(1 + nr_alike / 4, max);
}

/* What fills a cache up, past what is needed, is never missed. */
static bool is_enough(const struct site *site, unsigned int nr, unsigned int nr_alike)
{
	if (nr >= max_tries)
		return true;

	return !thorough && site->cache && !outcome->nomem && nr_alike >= ENOUGH_ALIKE;
}

/*
 * The page that is needed comes after those that slabs happen to be short of, a
 * different number in each VM, so that a sweep can miss it.  Without aliases there
 * are few of these.
 */
static void insist(const struct variant *v, struct site *site, unsigned int nr_nomem)
{
	unsigned int i;

	for (i = 0; i < MAX_INSIST && site->nr_nomem == nr_nomem; i++)
		fail_one(v, site, 1 + i % NR_INSIST);
}

static void sweep(const struct variant *v, struct site *site)
{
	struct site before = *site;
	unsigned int nr = 0, nr_alike = 0;
	unsigned int nth;

	select_site(site);
	nth = first_failure(v, site);

	/* Of few pages some are the ioctl's: all sites together will have to do. */
	if (nth > 1 && !site->all)
		return;

	while (fail_one(v, site, nth)) {
		nr_alike = count_alike(nr_alike);
		if (is_enough(site, ++nr, nr_alike))
			break;
		nth += next_step(v, site, site->nr_nomem > before.nr_nomem, nr_alike);
	}

	if (!thorough && !site->all && !site->cache && !v->aliased)
		insist(v, site, before.nr_nomem);

	show_site(v, site, &before);
	expect_silence(site->name);
}

static bool can_alias(void)
{
	return !kvm_is_tdp_enabled();
}

static bool applies(const struct variant *v)
{
	return !v->aliased || can_alias();
}

static void sweep_sites(const struct variant *v)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(sites); i++)
		if (sites[i].all || can_tell_sites())
			sweep(v, &sites[i]);
}

static void expect_all_sites_hit(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(sites); i++) {
		if (!sites[i].all && !can_tell_sites())
			continue;
		if (sites[i].aliased_only && !can_alias())
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
	if (!settings[SLAB_WAIT].saved)
		return "the kernel has no " FAILSLAB;
	if (!settings[PAGE_WAIT].saved)
		return "the kernel has no " FAIL_PAGE_ALLOC;
	return NULL;
}

static const char *run_memory(void)
{
	const char *reason = why_no_injection();
	unsigned int i;

	if (reason)
		return reason;

	outcome = alloc_shared(sizeof(*outcome));
	fill_kernel_tables();
	prepare_injection();
	if (!can_tell_sites())
		pr_info("The kernel has no " SLAB "*/failslab: can't tell what failed\n");
	for (i = 0; i < ARRAY_SIZE(variants); i++)
		if (applies(&variants[i]))
			sweep_sites(&variants[i]);
	expect_all_sites_hit();
	return NULL;
}

/*
 * Too few shadow pages
 */

static void run_out_of_quota(const struct variant *v)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_MANY };
	struct split_stats s;

	create_vm(&t, MIN_MMU_PAGES);
	before_split(&t);
	CHECK(&t, !split(&t), "errno %d", errno);

	s = get_stats(t.vm);
	pr_info("%-16s quota    %lu split, %lu left, %lu x no quota\n", v->name, s.done,
		s.huge, s.noquota);
	check_sum(&t, &s);
	CHECK(&t, s.done && s.huge, "%lu huge pages were split, %lu are left", s.done, s.huge);
	CHECK(&t, s.noquota == (v->clear ? s.huge : 1) && !s.nomem && !s.cancelled,
	      "seen %lu x no quota, %lu x no memory, %lu x cancelled", s.noquota, s.nomem,
	      s.cancelled);

	check_afterwards(&t);
	destroy_vm(&t);
}

static const char *run_quota(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(variants); i++)
		if (!variants[i].aliased)
			run_out_of_quota(&variants[i]);
	return NULL;
}

/*
 * Failures cost no memory
 *
 * What a page is used for is in one of the counters of MEMINFO, unless it is the
 * kernel's and has been allocated as a page.  When the VM is gone, so are those.
 */

static bool is_counted_once(const char *name)
{
	static const char * const names[] = {
		"MemFree", "Buffers", "Cached", "Slab", "AnonPages", "PageTables",
		"SecPageTables", "KernelStack", "Percpu",
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(names); i++)
		if (!strcmp(name, names[i]))
			return true;
	return false;
}

/*
 * Free pages on the lists that each CPU has for itself, some hundred: no counter of
 * MEMINFO has them.
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

/* Pages that nothing tells about, less a constant. */
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
 * The same when what was given back a moment ago has arrived: pages that wait for a
 * grace period are in no counter.  They only make the figure too large, so the least
 * of several is it.
 */
static long nr_lost(void)
{
	long seen, least = nr_unaccounted();
	unsigned int i;

	for (i = 0; i < NR_LEAK_SAMPLES; i++) {
		usleep(LEAK_SAMPLE_US);
		seen = nr_unaccounted();
		if (seen < least) {
			least = seen;
			i = 0;
		}
	}
	return least;
}

/* CLEAR tries to split for each of the words that a huge page has. */
static void clear_all_words(struct fault_test *t)
{
	struct kvm_clear_dirty_log args = {
		.slot = DATA_SLOT,
		.num_pages = t->npages,
		.dirty_bitmap = t->log,
	};

	CHECK(t, !set_logging(t, true), "enabling failed, errno %d", errno);
	memset(t->log, 0xff, t->npages / 8);
	CHECK(t, !__vm_ioctl(t->vm, KVM_CLEAR_DIRTY_LOG, &args), "errno %d", errno);
	CHECK(t, !set_logging(t, false), "disabling failed, errno %d", errno);
}

/* Returns how many attempts failed. */
static u64 fail_often(const struct variant *v, unsigned int nr_rounds)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_MANY };
	u64 nr_failed;

	create_vm(&t, MIN_MMU_PAGES);
	while (nr_rounds--)
		clear_all_words(&t);
	nr_failed = vm_get_stat_or_absent(t.vm, "eager_split_noquota");
	destroy_vm(&t);
	return nr_failed;
}

static const char *run_leak(void)
{
	const struct variant *v = &variants[1];
	u64 nr_failed;
	long lost;

	/* What the first VM needs and leaves behind isn't lost. */
	fail_often(v, 1);
	lost = nr_lost();
	nr_failed = fail_often(v, NR_LEAK_ROUNDS);
	lost = nr_lost() - lost;

	pr_info("%-16s leak     %lu attempts failed, %ld pages unaccounted for\n", v->name,
		nr_failed, lost);
	TEST_ASSERT(nr_failed > NR_LEAK_ROUNDS * NR_HUGE_SOME,
		    "expected more than %u attempts to fail, seen %lu",
		    NR_LEAK_ROUNDS * NR_HUGE_SOME, nr_failed);
	TEST_ASSERT(lost < (long)nr_failed / 2, "%lu attempts failed and leaked %ld pages",
		    nr_failed, lost);
	return NULL;
}

static unsigned int max_midst_tries(void)
{
	return min(max_tries, MAX_MIDST_TRIES);
}

/* Wait for the first huge page to go.  False if there is nothing to wait for. */
static bool wait_for_split(struct kvm_vm *vm, u64 nr_huge, bool (*go_on)(void))
{
	while (go_on())
		if (vm_get_stat_or_absent(vm, "pages_2m") < nr_huge)
			return true;
	return false;
}

static bool split_is_over;

static bool is_splitting(void)
{
	return !READ_ONCE(split_is_over);
}

static void *switch_off(void *arg)
{
	struct fault_test *t = arg;
	int fd = open(PARAM_EAGER, O_WRONLY);

	wait_for_split(t->vm, t->nr_huge, is_splitting);
	CHECK(t, write(fd, "N", 1) == 1, "Can't write " PARAM_EAGER);
	close(fd);
	return NULL;
}

static void split_and_switch_off(struct fault_test *t)
{
	pthread_t thread;

	split_is_over = false;
	pthread_create(&thread, NULL, switch_off, t);
	CHECK(t, !split(t), "errno %d", errno);
	WRITE_ONCE(split_is_over, true);
	pthread_join(thread, NULL);
	setting_set(&settings[EAGER], "Y");
}

/* Returns true if it was turned off when some were split and some were not. */
static bool cancel_once(const struct variant *v)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_MANY };
	struct split_stats s;

	create_vm(&t, 0);
	before_split(&t);
	split_and_switch_off(&t);

	s = get_stats(t.vm);
	if (verbose)
		pr_info("  %s: turned off: %lu split, %lu left, %lu x cancelled\n", v->name,
			s.done, s.huge, s.cancelled);
	check_sum(&t, &s);
	CHECK(&t, s.cancelled <= 1 && !s.nomem && !s.noquota,
	      "seen %lu x cancelled, %lu x no memory, %lu x no quota", s.cancelled, s.nomem,
	      s.noquota);
	CHECK(&t, !s.cancelled || s.huge, "cancelled, but no huge page is left");
	CHECK(&t, s.cancelled || !s.huge,
	      "%lu huge pages are left, and nobody has cancelled", s.huge);

	check_afterwards(&t);
	destroy_vm(&t);
	return s.cancelled && s.done;
}

static void run_cancel_variant(const struct variant *v)
{
	bool hit = false;
	unsigned int i;

	for (i = 0; i < max_midst_tries() && !hit; i++)
		hit = cancel_once(v);
	TEST_ASSERT(hit, "%s: turned off %u times, never in the midst", v->name, i);
	pr_info("%-16s off      in the midst at the %u. try\n", v->name, i);
	fflush(stdout);
}

/*
 * CLEAR looks at the parameter for each word, and at each word splits one huge
 * page, so it can't be interrupted between two of one operation.
 */
static const char *run_cancel(void)
{
	if (access(PARAM_EAGER, W_OK))
		return PARAM_EAGER " can't be written";

	run_cancel_variant(&variants[0]);
	return NULL;
}

/*
 * The process is killed
 */

/* The victim's file descriptor, once it has got one. */
static int *victim_stats_fd;

static pid_t victim_pid;

static void victim_cycle(struct fault_test *t)
{
	touch_all(t);
	CHECK(t, !set_logging(t, true), "enabling failed, errno %d", errno);
	CHECK(t, !set_logging(t, false), "disabling failed, errno %d", errno);
}

static void victim_main(const struct variant *v)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_SOME };

	create_vm(&t, 0);
	WRITE_ONCE(*victim_stats_fd, vm_get_stats_fd(t.vm));
	for (;;)
		victim_cycle(&t);
}

static void start_victim(const struct variant *v)
{
	*victim_stats_fd = -1;
	victim_pid = fork();
	TEST_ASSERT(victim_pid >= 0, "Can't fork, errno %d", errno);
	if (!victim_pid)
		victim_main(v);
}

static bool is_victim_alive(void)
{
	int status;

	TEST_ASSERT(!waitpid(victim_pid, &status, WNOHANG), "The victim ended by itself");
	return true;
}

static int take_stats_fd(void)
{
	int pidfd = syscall(SYS_pidfd_open, victim_pid, 0);
	int fd;

	while (READ_ONCE(*victim_stats_fd) < 0)
		is_victim_alive();
	fd = syscall(SYS_pidfd_getfd, pidfd, *victim_stats_fd, 0);
	TEST_ASSERT(fd >= 0, "Can't get the victim's statistics, errno %d", errno);
	close(pidfd);
	return fd;
}

static void open_stats(struct kvm_vm *vm, int fd)
{
	vm->stats_fd = fd;
	read_stats_header(fd, &vm->stats_header);
	vm->stats_desc = read_stats_descriptors(fd, &vm->stats_header);
}

static void close_stats(struct kvm_vm *vm)
{
	free(vm->stats_desc);
	close(vm->stats_fd);
}

static void kill_victim(void)
{
	int status;

	kill(victim_pid, SIGKILL);
	TEST_ASSERT(waitpid(victim_pid, &status, 0) == victim_pid, "Lost the victim");
	TEST_ASSERT(WIFSIGNALED(status), "The victim ended by itself");
}

/*
 * Returns true if the splitter noticed.  The VM outlives the process if its
 * statistics are watched, otherwise it goes with it.
 */
static bool kill_once(const struct variant *v, bool watch)
{
	struct kvm_vm vm = { };
	bool noticed = false;

	start_victim(v);
	open_stats(&vm, take_stats_fd());
	while (vm_get_stat_or_absent(&vm, "pages_2m") < NR_HUGE_SOME)
		is_victim_alive();
	wait_for_split(&vm, NR_HUGE_SOME, is_victim_alive);

	if (!watch)
		close_stats(&vm);
	kill_victim();
	if (watch) {
		noticed = vm_get_stat_or_absent(&vm, "eager_split_cancelled");
		close_stats(&vm);
	}
	return noticed;
}

static void run_kill_variant(const struct variant *v)
{
	unsigned int i, hits = 0;

	for (i = 0; i < NR_KILLS || (!hits && i < max_midst_tries()); i++)
		hits += kill_once(v, i % 2);
	TEST_ASSERT(hits, "%s: killed %u times, never in the midst", v->name, i);
	pr_info("%-16s killed   %u times, in the midst %u times of %u watched\n", v->name, i,
		hits, i / 2);
	fflush(stdout);
}

static const char *run_kill(void)
{
	unsigned int i;

	victim_stats_fd = alloc_shared(sizeof(*victim_stats_fd));
	for (i = 0; i < ARRAY_SIZE(variants); i++)
		if (!variants[i].clear && applies(&variants[i]))
			run_kill_variant(&variants[i]);
	return NULL;
}

/*
 * Drops of mmu_lock are forced
 */

/* Where mmu_lock is dropped, and what it takes to get there. */
static const struct forced_site {
	const char *name;
	bool shadow_mmu;
	bool tdp_mmu;
	bool enabling;
	bool harvesting;

	/* Only if a gfn has very many SPTEs, which they don't here. */
	bool aliases;
} forced_sites[] = {
	{ .name = "split_yield", .shadow_mmu = true },
	{ .name = "split_alloc", .shadow_mmu = true },
	{ .name = "log_word" },
	{ .name = "log_page", .shadow_mmu = true, .aliases = true },
	{ .name = "log_slot", .shadow_mmu = true, .enabling = true },
	{ .name = "collapse", .shadow_mmu = true },
	{ .name = "harvest_rmaps", .shadow_mmu = true, .harvesting = true },
	{ .name = "harvest_tdp", .tdp_mmu = true, .harvesting = true },
	{ .name = "rearm_tdp", .tdp_mmu = true, .harvesting = true, .enabling = true },
};

#define NR_FORCED_SITES		ARRAY_SIZE(forced_sites)

static bool is_site_on_the_way(struct fault_test *t, const struct forced_site *site)
{
	if (is_tdp_mmu() ? site->shadow_mmu : site->tdp_mmu)
		return false;
	if (site->aliases || (site->enabling && t->v->clear))
		return false;

	return !site->harvesting || vm_get_stat_or_absent(t->vm, "dirty_harvest") == 1;
}

/* Fails for a site that isn't in the list: nobody would expect it to be met. */
static unsigned int site_index(const char *name)
{
	unsigned int i;

	for (i = 0; i < NR_FORCED_SITES; i++)
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
	unsigned int i;

	read_forced(now);
	pr_info("%-16s forced  ", t->v->name);
	for (i = 0; i < NR_FORCED_SITES; i++) {
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
 * A vCPU that writes pages of its own, pass after pass: what is lost of one would
 * not show if another wrote the same page.
 */
struct writer {
	struct fault_test *t;
	struct kvm_vcpu *vcpu;
	pthread_t thread;
	u64 gva;
	unsigned int first;

	/* Complete ones; the pages have the number of the last. */
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
	unsigned int i;

	for (i = 0; i < NR_WRITERS; i++)
		writers[i] = (struct writer) {
			.t = t,
			.vcpu = i ? vm_vcpu_add(t->vm, i, (void *)CODE_GVA) : t->vcpu,
			.gva = i && t->v->aliased ? ALIAS_GVA : DATA_GVA,
			.first = i,
		};
}

static void start_writers(void)
{
	unsigned int i;

	WRITE_ONCE(writers_stop, false);
	for (i = 0; i < NR_WRITERS; i++)
		pthread_create(&writers[i].thread, NULL, write_on, &writers[i]);
}

static void stop_writers(void)
{
	unsigned int i;

	WRITE_ONCE(writers_stop, true);
	for (i = 0; i < NR_WRITERS; i++)
		pthread_join(writers[i].thread, NULL);
}

/* Everybody has written all of their pages from now on: the first pass had begun. */
static void wait_for_pass(void)
{
	u64 until[NR_WRITERS];
	unsigned int i;

	for (i = 0; i < NR_WRITERS; i++)
		until[i] = READ_ONCE(writers[i].nr_passes) + 2;
	for (i = 0; i < NR_WRITERS; i++)
		while (READ_ONCE(writers[i].nr_passes) < until[i])
			usleep(POLL_US);
}

/* Take what is dirty out of the log, then copy it. */
static void copy_dirty(struct fault_test *t, void *copy)
{
	u64 page;

	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, t->log);
	if (t->v->clear)
		kvm_vm_clear_dirty_log(t->vm, DATA_SLOT, t->log, 0, t->npages);

	for (page = 0; page < t->npages; page++)
		if (test_bit(page, t->log))
			memcpy(copy + page * PAGE_SIZE, t->hva + page * PAGE_SIZE, PAGE_SIZE);
}

/* The same, when not everything is dirty any more. */
static void copy_written(struct fault_test *t, void *copy)
{
	u64 page;

	copy_dirty(t, copy);
	for (page = 0; page < t->npages; page++)
		CHECK(t, has_writer(page) || !test_bit(page, t->log),
		      "page %lu is in the log, and nobody wrote it", page);
}

/* Where all is dirty initially, there is nothing to copy but what the log has. */
static void copy_all(struct fault_test *t, void *copy)
{
	CHECK(t, !set_logging(t, true), "enabling failed, errno %d", errno);
	if (t->v->clear)
		copy_dirty(t, copy);
	else
		memcpy(copy, t->hva, t->npages * PAGE_SIZE);
}

/* Nobody has met a huge page that was write-protected before it was split. */
static void check_all_split(struct fault_test *t)
{
	struct split_stats s = get_stats(t->vm);

	CHECK(t, !s.huge || t->nr_refused, "%lu huge pages are left", s.huge);
	CHECK(t, is_tdp_mmu() || s.done == t->nr_huge - t->nr_refused,
	      "of %lu huge pages, %lu were split eagerly", t->nr_huge, s.done);
}

static void check_copy(struct fault_test *t, const void *copy)
{
	u64 page;

	for (page = 0; page < t->npages; page++)
		CHECK(t, !memcmp(copy + page * PAGE_SIZE, t->hva + page * PAGE_SIZE, PAGE_SIZE),
		      "page %lu was written, and not in the log", page);
}

/* Each page has what was written last, so that nothing was written elsewhere. */
static void check_pages(struct fault_test *t)
{
	u64 page, seen, expected;

	for (page = 0; page < t->npages; page++) {
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
 * Any page that is written brings its huge page back.  What was overlooked below it
 * shows in the number of 4KiB pages only, which is to be what it was before.
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

static void force_variant(const struct variant *v)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_FORCE };
	unsigned long before[NR_FORCED_SITES];

	setting_set(&settings[HARVEST], v->harvest);
	create_vm(&t, 0);
	add_writers(&t);
	read_forced(before);
	force_migration(&t);
	expect_forced(&t, before);
	destroy_vm(&t);
}

/* What is left alone because it may be going has to be in the log when it is written. */
static void refuse_variant(const struct variant *v)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_FORCE };
	u64 nr_invalidated;

	setting_set(&settings[HARVEST], v->harvest);
	create_vm(&t, 0);
	add_writers(&t);
	t.nr_refused = t.nr_huge / 2;
	force_migration(&t);

	nr_invalidated = vm_get_stat_or_absent(t.vm, "eager_split_invalidated");
	pr_info("%-16s refused  %lu huge pages, %lu times\n", v->name, t.nr_refused,
		nr_invalidated);
	CHECK(&t, nr_invalidated >= t.nr_refused,
	      "of %lu huge pages %lu were to be left alone, and %lu times it was",
	      t.nr_huge, t.nr_refused, nr_invalidated);
	destroy_vm(&t);
}

/* Return: why nothing could be tried, or NULL. */
static const char *prove_variants(enum setting_id id, void (*try)(const struct variant *v))
{
	static char text[120];
	unsigned int i;

	if (!settings[id].saved) {
		snprintf(text, sizeof(text),
			 "the kernel has no %s, for want of CONFIG_KVM_PROVE_MMU",
			 settings[id].path);
		return text;
	}
	if (!settings[HARVEST].saved)
		return "the kernel has no " PARAM_HARVEST;

	setting_set(&settings[id], "Y");
	for (i = 0; i < ARRAY_SIZE(variants); i++)
		if (applies(&variants[i]))
			try(&variants[i]);
	setting_reset(&settings[HARVEST]);
	setting_reset(&settings[id]);
	return NULL;
}

static const char *run_force(void)
{
	return prove_variants(FORCE_YIELD, force_variant);
}

static const char *run_refuse(void)
{
	return prove_variants(SKIP_SPLIT, refuse_variant);
}

static const struct part {
	const char *name;
	const char *(*run)(void);
	unsigned int nr_huge;
	bool any_mmu;
} parts[] = {
	{ "memory", run_memory, NR_HUGE_FEW },
	{ "quota", run_quota, NR_HUGE_MANY },
	{ "leak", run_leak, NR_HUGE_MANY },
	{ "off", run_cancel, NR_HUGE_MANY },
	{ "kill", run_kill, NR_HUGE_SOME },
	{ "force", run_force, NR_HUGE_FORCE, true },
	{ "refuse", run_refuse, NR_HUGE_FORCE },
};

static bool run_part(const struct part *part)
{
	const char *reason;
	u64 start = now_ns();

	if (!part->any_mmu && is_tdp_mmu())
		reason = "the TDP MMU is on, whose splitter has no statistics";
	else if (nr_free_2m_pages() < part->nr_huge)
		reason = "too few huge pages are free";
	else
		reason = part->run();
	expect_silence(part->name);

	if (reason)
		pr_info("%s: SKIP: %s\n", part->name, reason);
	else
		pr_info("%s: ok, %lu ms\n", part->name, (now_ns() - start) / NSEC_PER_MSEC);
	fflush(stdout);
	return !reason;
}

/* Returns false if one of them couldn't run. */
static bool run_parts(const char *name)
{
	bool known = false, complete = true;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(parts); i++) {
		if (name && strcmp(name, parts[i].name))
			continue;

		known = true;
		complete &= run_part(&parts[i]);
	}
	TEST_ASSERT(known, "No such part: %s, see -h", name);
	return complete;
}

static bool has_stats(void)
{
	struct kvm_vm *vm = vm_create_barebones();
	bool has = vm_get_stat_or_absent(vm, "eager_split_cancelled") != STAT_ABSENT;

	kvm_vm_free(vm);
	return has;
}

static void help(const char *program)
{
	unsigned int i;

	printf("usage: %s [-h] [-v] [-a] [-m PART] [-n TRIES]\n\n"
	       " -a: let each and every allocation fail, the ioctl's own too.  The kernel\n"
	       "     then complains that vmalloc() failed.\n"
	       " -m: do this part only; it needs so many free 2MiB HugeTLB pages:\n",
	       program);
	for (i = 0; i < ARRAY_SIZE(parts); i++)
		printf("     %-7s %u\n", parts[i].name, parts[i].nr_huge);
	printf(" -n: let no more than so many allocations fail of each kind, and don't try\n"
	       "     more often to come in between.\n"
	       " -v: show each try.\n");
}

int main(int argc, char *argv[])
{
	const char *part = NULL;
	int opt;

	while ((opt = getopt(argc, argv, "ahm:n:v")) != -1) {
		switch (opt) {
		case 'a':
			thorough = true;
			break;
		case 'm':
			part = optarg;
			break;
		case 'n':
			max_tries = atoi_positive("Number of tries", optarg);
			break;
		case 'v':
			verbose = true;
			break;
		default:
			help(argv[0]);
			exit(opt == 'h' ? 0 : 1);
		}
	}

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	TEST_REQUIRE(get_kvm_param_bool("eager_page_split"));
	__TEST_REQUIRE(has_stats(), "The kernel has no statistics of eager page splitting");
	settings_save(settings, NR_SETTINGS);
	open_kernel_log();
	return run_parts(part) ? 0 : KSFT_SKIP;
}
