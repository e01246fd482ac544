// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long each phase of dirty logging takes, seen from user space.
 *
 * Phases, in this order:
 *   populate   all vCPUs write to all of their memory, nothing is logged
 *   enable     dirty logging is enabled on all test slots
 *   dirty      all vCPUs access their memory once      \
 *   get        KVM_GET_DIRTY_LOG on all test slots      > once per iteration
 *   clear      KVM_CLEAR_DIRTY_LOG on all test slots   /
 *   disable    dirty logging is disabled on all test slots
 *
 * Method.  One thread per vCPU.  vCPU threads sleep whenever their vCPU has
 * nothing to do, and the main thread sleeps whenever vCPUs run: vCPUs compete
 * with nothing but each other, and ioctls of the main thread with nothing at
 * all (but see -e).  The clock of a pass starts when the last vCPU thread is
 * awake, just before any of them enters the guest, and stops with the last
 * return from KVM_RUN; waking and putting to sleep is not part of it.
 *
 * With KVM_DIRTY_LOG_INITIALLY_SET (the default), dirty logging costs nothing
 * until the first CLEAR: iteration 1 is a baseline without logging, and
 * iteration 2 is the first to pay for write-protection.
 *
 * Limits.  The time of a pass is that of the slowest vCPU, and says nothing
 * about the others, or about how long a single access stalls.  As vCPUs pause
 * while logging is enabled, read, and cleared, how these phases slow down a
 * running guest cannot be measured; that is what the live mode (-l) is for, see
 * x86_64/dirty_log_perf_test.c.  With more vCPUs than CPUs to run on, the times
 * are those of the scheduler.  The access pattern, one word per page, is the
 * worst case for dirty logging, not a workload.
 *
 * -V compares the log with what the guest wrote, and KVM's page sizes with
 * what eager page splitting promises.  It accesses guest memory between the
 * phases, and so changes their times.
 */
#include <ctype.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdarg.h>
#include <time.h>
#include <linux/sizes.h>

#include "kvm_util.h"
#include "test_util.h"
#include "memstress.h"
#include "guest_modes.h"
#include "ucall_common.h"
#include "dirty_log_perf_test.h"

#ifdef __aarch64__
#include "aarch64/vgic.h"
#endif

#define EXIT_USAGE	2

#define HOUR_MS		(3600 * 1000)
#define SECOND_US	(1000 * 1000)

/* The first word of a page that the guest did not write to since. */
#define UNWRITTEN	0ULL

/* Takes tv_sec and tv_nsec. */
#define TIME_FMT	"%ld.%.9lds"

/* Part of the output format, which scripts parse. */
static const char * const phase_names[NR_PHASES] = {
	[PHASE_POPULATE]	= "Populate memory",
	[PHASE_ENABLE]		= "Enabling dirty logging",
	[PHASE_DIRTY]		= "dirty memory",
	[PHASE_GET]		= "get dirty log",
	[PHASE_CLEAR]		= "clear dirty log",
	[PHASE_DISABLE]		= "Disabling dirty logging",
};

/* Guest pages of one or more slots. */
struct tally {
	int64_t written;
	int64_t logged;
};

/*
 * The vCPU threads.  Main calls them for a pass, and sleeps until the pass is
 * over.  Plain fields are written by main, before it calls, unless stated
 * otherwise; the barrier orders these writes with the threads' reads.
 */
static struct crew {
	int nr_vcpus;
	/* All vCPU threads and main: a pass begins, or the threads exit. */
	pthread_barrier_t call;
	bool quit;
	/* Access memory over and over, until main changes it to false. */
	bool keep_running;
	/* Number of the pass. */
	unsigned int pass;
	/* Threads that are awake and ready; atomic, reset by the last one. */
	int ready;
	/* The newest pass that all threads are ready for; atomic. */
	unsigned int released;
	/* Written by the last thread to get ready, before it releases all. */
	struct timespec start;
	/* Written by each vCPU's thread at its last return from KVM_RUN. */
	struct timespec end[KVM_MAX_VCPUS];
	/* Threads that did not complete the pass yet; atomic. */
	int busy;
	/* Posted once per pass, by the last thread to complete it. */
	sem_t done;
	/* Posted once per pass with keep_running, when vCPUs are released. */
	sem_t running;
	pthread_t threads[KVM_MAX_VCPUS];
} crew;

#ifdef __aarch64__
/* Only for speed: without a vGIC, the guest merely exits more often. */
static int arch_create_gic(struct kvm_vm *vm, int nr_vcpus)
{
	return vgic_v3_setup(vm, nr_vcpus, 64);
}
#else
static int arch_create_gic(struct kvm_vm *vm __maybe_unused,
			   int nr_vcpus __maybe_unused)
{
	return -1;
}
#endif

void __printf(1, 2) __noreturn usage_error(const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(EXIT_USAGE);
}

static bool later(struct timespec a, struct timespec b)
{
	return timespec_to_ns(a) > timespec_to_ns(b);
}

void phase_done(struct test *test, enum phase phase, int iteration,
		struct timespec time)
{
	struct phase_times *times = &test->times[phase];

	times->sum = timespec_add(times->sum, time);
	times->count++;

	if (iteration)
		pr_info("Iteration %d ", iteration);
	pr_info("%s time: " TIME_FMT "\n", phase_names[phase],
		time.tv_sec, time.tv_nsec);
}

static void print_average(const struct test *test, enum phase phase)
{
	const struct phase_times *times = &test->times[phase];
	const char *name = phase_names[phase];
	struct timespec avg;

	if (!times->count)
		return;

	avg = timespec_div(times->sum, times->count);
	pr_info("%c%s over %d iterations took " TIME_FMT ". (Avg " TIME_FMT "/iteration)\n",
		toupper(name[0]), name + 1, times->count,
		times->sum.tv_sec, times->sum.tv_nsec, avg.tv_sec, avg.tv_nsec);
}

/*
 * Wait until all vCPU threads are awake, so that none of them gets a head
 * start.  Yield instead of sleeping, as waking up in turn is what this has to
 * get out of the way.  Lasts no longer than it takes the scheduler to run each
 * thread once, and ends before the clock of the pass starts.
 */
static void wait_for_start(void)
{
	if (__atomic_add_fetch(&crew.ready, 1, __ATOMIC_ACQ_REL) < crew.nr_vcpus) {
		while (__atomic_load_n(&crew.released, __ATOMIC_ACQUIRE) != crew.pass)
			sched_yield();
		return;
	}

	/* Nobody touches ->ready again until this pass is over. */
	crew.ready = 0;
	clock_gettime(CLOCK_MONOTONIC, &crew.start);
	__atomic_store_n(&crew.released, crew.pass, __ATOMIC_RELEASE);
	if (crew.keep_running)
		sem_post(&crew.running);
}

/* Let the guest access all of the vCPU's memory once. */
static void run_vcpu_once(struct memstress_vcpu_args *args)
{
	struct kvm_vcpu *vcpu = args->vcpu;
	int ret = _vcpu_run(vcpu);

	clock_gettime(CLOCK_MONOTONIC, &crew.end[args->vcpu_idx]);

	TEST_ASSERT(!ret, "KVM_RUN of vCPU %d failed, errno %d",
		    args->vcpu_idx, errno);
	TEST_ASSERT(get_ucall(vcpu, NULL) == UCALL_SYNC,
		    "vCPU %d did not complete its pass, exit reason: %s",
		    args->vcpu_idx, exit_reason_str(vcpu->run->exit_reason));
}

static void *vcpu_thread(void *data)
{
	struct memstress_vcpu_args *args = data;

	if (memstress_args.pin_vcpus)
		kvm_pin_this_task_to_pcpu(memstress_args.vcpu_to_pcpu[args->vcpu_idx]);

	for (;;) {
		pthread_barrier_wait(&crew.call);
		if (crew.quit)
			return NULL;

		wait_for_start();
		do {
			run_vcpu_once(args);
		} while (READ_ONCE(crew.keep_running));

		if (!__atomic_sub_fetch(&crew.busy, 1, __ATOMIC_ACQ_REL))
			sem_post(&crew.done);
	}
}

static void crew_create(int nr_vcpus)
{
	int i, ret;

	memset(&crew, 0, sizeof(crew));
	crew.nr_vcpus = nr_vcpus;
	pthread_barrier_init(&crew.call, NULL, nr_vcpus + 1);
	sem_init(&crew.done, 0, 0);
	sem_init(&crew.running, 0, 0);

	for (i = 0; i < nr_vcpus; i++) {
		ret = pthread_create(&crew.threads[i], NULL, vcpu_thread,
				     &memstress_args.vcpu_args[i]);
		TEST_ASSERT(!ret, "No thread for vCPU %d: %s", i, strerror(ret));
	}
}

static void crew_destroy(void)
{
	int i;

	crew.quit = true;
	pthread_barrier_wait(&crew.call);
	for (i = 0; i < crew.nr_vcpus; i++)
		pthread_join(crew.threads[i], NULL);

	pthread_barrier_destroy(&crew.call);
	sem_destroy(&crew.done);
	sem_destroy(&crew.running);
}

/* The semaphores are posted exactly once per wait; only signals interrupt. */
static void sleep_on(sem_t *sem)
{
	while (sem_wait(sem))
		TEST_ASSERT(errno == EINTR, "sem_wait() failed, errno %d", errno);
}

static void crew_call(bool keep_running)
{
	crew.pass++;
	crew.keep_running = keep_running;
	crew.busy = crew.nr_vcpus;
	pthread_barrier_wait(&crew.call);
}

void crew_begin(void)
{
	crew_call(false);
}

void crew_end(void)
{
	sleep_on(&crew.done);
}

/* One pass of all vCPUs, from the release of the first to the last one's end. */
static struct timespec crew_run_once(void)
{
	struct timespec end;
	int i;

	crew_begin();
	crew_end();

	end = crew.end[0];
	for (i = 1; i < crew.nr_vcpus; i++) {
		if (later(crew.end[i], end))
			end = crew.end[i];
	}
	return timespec_sub(end, crew.start);
}

/* Returns once all vCPUs were released.  They run until crew_stop(). */
static void crew_start(void)
{
	crew_call(true);
	sleep_on(&crew.running);
}

static void crew_stop(void)
{
	WRITE_ONCE(crew.keep_running, false);
	sleep_on(&crew.done);
}

bool initially_set(const struct test *test)
{
	return test->manual_caps & KVM_DIRTY_LOG_INITIALLY_SET;
}

static bool is_hugetlb(enum vm_mem_backing_src_type backing)
{
	return is_backing_src_hugetlb(backing) ||
	       backing == VM_MEM_SRC_SHARED_HUGETLB;
}

uint64_t slot_bytes(const struct test *test)
{
	return memstress_args.size / test->opts->slots;
}

uint64_t slot_gpa(const struct test *test, int slot)
{
	return memstress_args.gpa + slot * slot_bytes(test);
}

/* The guest writes to the first word of a page, if to the page at all. */
static uint64_t *first_word(char *slot_hva, uint64_t offset)
{
	return (uint64_t *)(slot_hva + offset);
}

/* Writes by the host do not count as dirty.  vCPUs must not be running. */
static void verify_prepare(const struct test *test)
{
	uint64_t offset;
	char *hva;
	int slot;

	for (slot = 0; slot < test->opts->slots; slot++) {
		hva = addr_gpa2hva(test->vm, slot_gpa(test, slot));
		for (offset = 0; offset < slot_bytes(test);
		     offset += memstress_args.guest_page_size)
			WRITE_ONCE(*first_word(hva, offset), UNWRITTEN);
	}
}

/* By bytes, as the log is little-endian on all architectures. */
bool is_logged(const struct test *test, int slot, uint64_t offset)
{
	const uint8_t *bytes = (const uint8_t *)test->bitmaps[slot];
	uint64_t page = offset / getpagesize();

	return bytes[page / 8] & (1 << (page % 8));
}

/*
 * Fail if a page is missing from the log of the last GET.  Do not mind pages
 * in the log that were not written to: KVM is free to map a page writable when
 * the guest reads it, and has to consider it dirty from then on.
 */
static struct tally verify_slot(const struct test *test, int slot, int iteration)
{
	char *hva = addr_gpa2hva(test->vm, slot_gpa(test, slot));
	bool all_set = initially_set(test) && iteration == 1;
	struct tally tally = {};
	bool written, logged;
	uint64_t offset;

	for (offset = 0; offset < slot_bytes(test);
	     offset += memstress_args.guest_page_size) {
		written = READ_ONCE(*first_word(hva, offset)) != UNWRITTEN;
		logged = is_logged(test, slot, offset);
		TEST_ASSERT(logged || !(written || all_set),
			    "Iteration %d: gfn 0x%lx is not in the dirty log, although %s",
			    iteration,
			    (slot_gpa(test, slot) + offset) >> test->vm->page_shift,
			    written ? "the guest wrote to it" :
				      "all bits are set initially");
		tally.written += written;
		tally.logged += logged;
	}
	return tally;
}

/* Pages that the guest writes to in one pass, or -1 if that is up to chance. */
static int64_t expected_writes(const struct options *opts)
{
	int i, nr_regions = opts->partition ? opts->nr_vcpus : 1;
	int64_t pages = 0;

	if (!opts->write_percent)
		return 0;
	if (opts->write_percent < 100 || opts->random_access)
		return -1;

	for (i = 0; i < nr_regions; i++)
		pages += memstress_args.vcpu_args[i].pages;
	return pages;
}

/* To be called between GET and CLEAR. */
static void verify_log(const struct test *test, int iteration)
{
	int64_t expected = expected_writes(test->opts);
	struct tally sum = {}, tally;
	int slot;

	for (slot = 0; slot < test->opts->slots; slot++) {
		tally = verify_slot(test, slot, iteration);
		sum.written += tally.written;
		sum.logged += tally.logged;
	}

	TEST_ASSERT(expected < 0 || sum.written == expected,
		    "Iteration %d: the guest wrote to %ld pages instead of %ld",
		    iteration, sum.written, expected);

	pr_info("Iteration %d verified: %ld of %ld pages written, %ld in the log\n",
		iteration, sum.written,
		memstress_args.size / memstress_args.guest_page_size, sum.logged);
}

#ifdef __x86_64__
static struct page_sizes get_page_sizes(const struct test *test, const char *stage)
{
	struct page_sizes sizes = {
		.nr_4k = vm_get_stat(test->vm, "pages_4k"),
		.nr_2m = vm_get_stat(test->vm, "pages_2m"),
		.nr_1g = vm_get_stat(test->vm, "pages_1g"),
	};

	pr_info("Page sizes after %s: 4K: %lu 2M: %lu 1G: %lu\n",
		stage, sizes.nr_4k, sizes.nr_2m, sizes.nr_1g);
	return sizes;
}

/* Without a huge page to start with, finding none later proves nothing. */
void verify_populated(struct test *test)
{
	test->populated = get_page_sizes(test, "populating");

	TEST_ASSERT(test->populated.nr_2m || test->populated.nr_1g ||
		    !is_hugetlb(test->opts->backing),
		    "KVM mapped no huge page, although %s can be mapped huge",
		    vm_mem_backing_src_alias(test->opts->backing)->name);
}

/* Only the test slots can have huge pages, memslot 0 has none. */
void verify_split(const struct test *test, const char *stage)
{
	const struct page_sizes *old = &test->populated;
	struct page_sizes now;
	uint64_t children;

	if (!get_kvm_param_bool("eager_page_split"))
		return;

	now = get_page_sizes(test, stage);
	TEST_ASSERT(!now.nr_2m && !now.nr_1g,
		    "%lu 2M pages and %lu 1G pages left after %s, although eager_page_split=Y",
		    now.nr_2m, now.nr_1g, stage);

	/* The host may reclaim any other memory, and zap its SPTEs. */
	if (!is_hugetlb(test->opts->backing))
		return;

	children = (old->nr_2m * SZ_2M + old->nr_1g * SZ_1G) / SZ_4K;
	TEST_ASSERT(now.nr_4k >= old->nr_4k + children,
		    "%lu 4K pages after %s: splitting left holes, at least %lu expected",
		    now.nr_4k, stage, old->nr_4k + children);
}
#else
/* The statistics and the module parameter exist only on x86. */
void verify_populated(struct test *test __maybe_unused)
{
}

void verify_split(const struct test *test __maybe_unused,
		  const char *stage __maybe_unused)
{
}
#endif

static void set_access(const struct test *test, uint32_t write_percent,
		       bool random_access)
{
	memstress_set_write_percent(test->vm, write_percent);
	memstress_set_random_access(test->vm, random_access);
}

/* Write everywhere, in order: reads might map the zero page only. */
static void populate(struct test *test)
{
	set_access(test, 100, false);
	phase_done(test, PHASE_POPULATE, 0, crew_run_once());

	if (test->opts->verify)
		verify_populated(test);
}

static void enable_log(struct test *test)
{
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	memstress_enable_dirty_logging(test->vm, test->opts->slots);
	phase_done(test, PHASE_ENABLE, 0, timespec_elapsed(start));
	pr_info("\n");

	if (test->opts->verify && !initially_set(test))
		verify_split(test, "enabling");
}

static void get_log(struct test *test, int iteration)
{
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	memstress_get_dirty_log(test->vm, test->bitmaps, test->opts->slots);
	phase_done(test, PHASE_GET, iteration, timespec_elapsed(start));

	if (test->opts->verify)
		verify_log(test, iteration);
}

static void clear_log(struct test *test, int iteration)
{
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	memstress_clear_dirty_log(test->vm, test->bitmaps, test->opts->slots,
				  test->pages_per_slot);
	phase_done(test, PHASE_CLEAR, iteration, timespec_elapsed(start));

	if (test->opts->verify && initially_set(test))
		verify_split(test, "clearing");
}

static void iterate(struct test *test, int iteration)
{
	if (test->opts->verify)
		verify_prepare(test);

	phase_done(test, PHASE_DIRTY, iteration, crew_run_once());
	get_log(test, iteration);
	if (test->manual_caps)
		clear_log(test, iteration);
}

static void disable_log(struct test *test)
{
	struct timespec start;

	if (test->opts->run_while_disabling)
		crew_start();

	clock_gettime(CLOCK_MONOTONIC, &start);
	memstress_disable_dirty_logging(test->vm, test->opts->slots);
	phase_done(test, PHASE_DISABLE, 0, timespec_elapsed(start));

	if (test->opts->run_while_disabling)
		crew_stop();
}

static void run_phases(struct test *test)
{
	int i;

	populate(test);
	enable_log(test);

	set_access(test, test->opts->write_percent, test->opts->random_access);
	for (i = 1; i <= test->opts->iterations; i++)
		iterate(test, i);

	disable_log(test);
}

/* 0 if the host has no such pool. */
static long read_pool(size_t page_size, const char *counter)
{
	char path[128];
	long value = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%zukB/%s",
		 page_size / SZ_1K, counter);
	file = fopen(path, "r");
	if (!file)
		return 0;

	if (fscanf(file, "%ld", &value) != 1)
		value = 0;
	fclose(file);
	return value;
}

/* For messages only, as surplus pages are not taken into account. */
static long free_huge_pages(size_t page_size)
{
	return read_pool(page_size, "free_hugepages") -
	       read_pool(page_size, "resv_hugepages");
}

/* Ask by reserving the pages, as this considers surplus pages and limits. */
static void require_hugetlb(enum vm_mem_backing_src_type backing, uint64_t bytes)
{
	size_t page_size = get_backing_src_pagesz(backing);
	uint32_t flags = vm_mem_backing_src_alias(backing)->flag;
	void *mem;

	/* The pool for memfds is that of the default huge page size. */
	if (backing == VM_MEM_SRC_SHARED_HUGETLB)
		flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;

	mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
	__TEST_REQUIRE(mem != MAP_FAILED,
		       "%s needs %lu huge pages of %zu KiB, but only %ld are free",
		       vm_mem_backing_src_alias(backing)->name,
		       bytes / page_size, page_size / SZ_1K, free_huge_pages(page_size));
	munmap(mem, bytes);
}

/* Skip the test, instead of failing later, if the host lacks the memory. */
static void require_memory(const struct options *opts, uint64_t bytes)
{
	uint64_t ram = sysconf(_SC_PHYS_PAGES) * (uint64_t)getpagesize();

	__TEST_REQUIRE(bytes < ram, "Needs %lu MiB of memory, but the host has %lu MiB",
		       bytes / SZ_1M, ram / SZ_1M);
	if (is_hugetlb(opts->backing))
		require_hugetlb(opts->backing, bytes);
}

/* The largest page that host, guest, and backing use: sizes are multiples. */
static uint64_t allocation_unit(enum vm_guest_mode mode, const struct options *opts)
{
	uint64_t guest_page = vm_guest_mode_params[mode].page_size;
	uint64_t backing_page;

	if (opts->backing == VM_MEM_SRC_ANONYMOUS_THP)
		__TEST_REQUIRE(thp_configured(), "The host does not support THP");

	backing_page = get_backing_src_pagesz(opts->backing);
	return max_t(uint64_t, guest_page, max_t(uint64_t, backing_page, getpagesize()));
}

static uint64_t vcpu_bytes(enum vm_guest_mode mode, const struct options *opts)
{
	uint64_t unit = allocation_unit(mode, opts);
	uint64_t bytes = align_up(opts->vcpu_bytes, unit);

	if (bytes != opts->vcpu_bytes)
		pr_info("Rounding %lu bytes per vCPU up to %lu, whole pages of %lu bytes\n",
			opts->vcpu_bytes, bytes, unit);

	if (bytes * opts->nr_vcpus % (unit * opts->slots))
		usage_error("-x %d does not divide %lu pages of %lu bytes evenly",
			    opts->slots, bytes * opts->nr_vcpus / unit, unit);
	return bytes;
}

static uint64_t enable_manual_protect(struct kvm_vm *vm)
{
	uint64_t caps = kvm_check_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2);

	caps &= KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE | KVM_DIRTY_LOG_INITIALLY_SET;
	if (caps)
		vm_enable_cap(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, caps);
	return caps;
}

static void test_create(struct test *test, enum vm_guest_mode mode,
			const struct options *opts)
{
	uint64_t bytes = vcpu_bytes(mode, opts);

	require_memory(opts, bytes * opts->nr_vcpus);

	memset(test, 0, sizeof(*test));
	test->opts = opts;
	test->vm = memstress_create_vm(mode, opts->nr_vcpus, bytes, opts->slots,
				       opts->backing, opts->partition);
	test->gic_fd = arch_create_gic(test->vm, opts->nr_vcpus);
	if (opts->manual_protect)
		test->manual_caps = enable_manual_protect(test->vm);

	test->pages_per_slot = slot_bytes(test) / getpagesize();
	test->bitmaps = memstress_alloc_bitmaps(opts->slots, test->pages_per_slot);
	crew_create(opts->nr_vcpus);
}

static void test_destroy(struct test *test)
{
	crew_destroy();
	memstress_free_bitmaps(test->bitmaps, test->opts->slots);
	if (test->gic_fd >= 0)
		close(test->gic_fd);
	memstress_destroy_vm(test->vm);
}

static void run_test(enum vm_guest_mode mode, void *opts)
{
	struct test test;

	test_create(&test, mode, opts);
	if (test.opts->live.window_us)
		live_run(&test);
	else
		run_phases(&test);
	print_average(&test, PHASE_GET);
	print_average(&test, PHASE_CLEAR);
	test_destroy(&test);
}

static void __noreturn help(const struct options *defaults)
{
	printf("usage: %s [options]\n\n"
	       "Time the phases of dirty logging.\n\n"
	       " -a: Access pages in random order, with repetitions.\n"
	       " -b: Memory per vCPU, e.g. 64M or 1G, rounded up to whole pages of the\n"
	       "     backing. (default: %luM)\n"
	       " -D, --stretch: With -l, milliseconds that vCPUs run between two actions of\n"
	       "     the host. (default: %u)\n"
	       " -e: Keep vCPUs running while dirty logging is being disabled.  Takes\n"
	       "     longer, above all if the main thread has no CPU of its own.\n"
	       " -F, --fresh: With -l and -R, let the reading vCPUs read memory that is not\n"
	       "     logged and not mapped yet, i.e. take a page fault for every read.\n"
	       " -g: Let KVM_GET_DIRTY_LOG clear the log, i.e. use neither\n"
	       "     KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE nor KVM_DIRTY_LOG_INITIALLY_SET.\n"
	       " -h: Print this text.\n"
	       " -i: Number of iterations, at least 2. (default: %d)\n"
	       " -j, --json: With -l, write the results to this file, too: JSON objects, one\n"
	       "     per line.  The file is complete or does not come to be.\n"
	       " -l, --live: Measure what vCPUs feel that never stop, instead of phases.\n"
	       "     Takes the length of a window of the timeline in microseconds.\n"
	       "     (x86 only, and without -n)\n"
	       " -n: Run the vCPUs' code in L2. (x86 with VMX only)\n"
	       " -o: Let every vCPU access the memory of all vCPUs.\n"
	       " -p: Accepted, but ignored: the test memory always ends where guest\n"
	       "     physical memory does.\n"
	       " -r: Seed of the random numbers. (default: %u)\n"
	       " -R, --readers: With -l, number of vCPUs, the first ones, that only read.\n"
	       "     (default: %d)\n"
	       " -T, --timeline: With -l, print the timeline, one line per window.\n"
	       " -v: Number of vCPUs. (default: %d)\n"
	       " -V: Verify that pages written are in the log, and that no huge page\n"
	       "     is left after eager page splitting.  Affects the times.\n"
	       " -w: Percentage of accesses that are writes; each one is decided by\n"
	       "     chance. (default: %u)\n"
	       " -x: Number of memslots to split the memory into. (default: %d)\n",
	       program_invocation_short_name, defaults->vcpu_bytes / SZ_1M,
	       defaults->live.stretch_ms, defaults->iterations, guest_random_seed,
	       defaults->live.readers, defaults->nr_vcpus,
	       defaults->write_percent, defaults->slots);
	guest_modes_help();
	backing_src_help("-s");
	kvm_print_vcpu_pinning_help();
	exit(0);
}

static unsigned long parse_number(char flag, const char *arg,
				  unsigned long min, unsigned long max)
{
	unsigned long number;
	char *end;

	errno = 0;
	number = strtoul(arg, &end, 0);
	if (!isdigit(arg[0]) || *end || errno || number < min || number > max)
		usage_error("-%c takes a number from %lu to %lu, not '%s'",
			    flag, min, max, arg);
	return number;
}

static uint64_t parse_bytes(char flag, const char *arg)
{
	static const char units[] = "bkmgt";
	const char *unit = units;
	unsigned long number;
	char *end;
	int shift;

	errno = 0;
	number = strtoul(arg, &end, 0);
	if (*end)
		unit = strchr(units, tolower(*end++));
	shift = unit ? (unit - units) * 10 : 0;

	if (!isdigit(arg[0]) || !unit || *end || errno || !number ||
	    number > (unsigned long)LONG_MAX >> shift)
		usage_error("-%c takes a size such as 64M or 1G, not '%s'", flag, arg);
	return number << shift;
}

static enum vm_mem_backing_src_type parse_backing(char flag, const char *arg)
{
	int i;

	for (i = 0; i < NUM_SRC_TYPES; i++) {
		if (!strcmp(arg, vm_mem_backing_src_alias(i)->name))
			return i;
	}
	usage_error("-%c takes one of the backings listed by -h, not '%s'", flag, arg);
}

static int max_vcpus(void)
{
	return min_t(int, kvm_check_cap(KVM_CAP_MAX_VCPUS), KVM_MAX_VCPUS);
}

/* memslot 0 is the library's. */
static int max_slots(void)
{
	return kvm_check_cap(KVM_CAP_NR_MEMSLOTS) - 1;
}

static void parse_value(struct options *opts, int flag, const char *arg)
{
	switch (flag) {
	case 'b':
		opts->vcpu_bytes = parse_bytes(flag, arg);
		break;
	case 'D':
		opts->live.stretch_ms = parse_number(flag, arg, 1, HOUR_MS);
		break;
	case 'i':
		opts->iterations = parse_number(flag, arg, 2, INT_MAX);
		break;
	case 'j':
		opts->live.json = arg;
		break;
	case 'l':
		opts->live.window_us = parse_number(flag, arg, 1, SECOND_US);
		break;
	case 'm':
		parse_number(flag, arg, 0, NUM_VM_MODES - 1);
		guest_modes_cmdline(arg);
		break;
	case 'p':
		parse_number(flag, arg, 0, ULONG_MAX);
		break;
	case 'r':
		guest_random_seed = parse_number(flag, arg, 1, INT_MAX);
		break;
	case 'R':
		opts->live.readers = parse_number(flag, arg, 0, max_vcpus());
		break;
	case 's':
		opts->backing = parse_backing(flag, arg);
		break;
	case 'v':
		opts->nr_vcpus = parse_number(flag, arg, 1, max_vcpus());
		break;
	case 'w':
		opts->write_percent = parse_number(flag, arg, 0, 100);
		break;
	case 'x':
		opts->slots = parse_number(flag, arg, 1, max_slots());
		break;
	default:
		/* getopt() told what is wrong. */
		exit(EXIT_USAGE);
	}
}

/* Returns false for options that take a value. */
static bool parse_switch(struct options *opts, int flag)
{
	switch (flag) {
	case 'a':
		opts->random_access = true;
		return true;
	case 'e':
		opts->run_while_disabling = true;
		return true;
	case 'F':
		opts->live.fresh = true;
		return true;
	case 'g':
		opts->manual_protect = false;
		return true;
	case 'n':
		memstress_args.nested = true;
		return true;
	case 'o':
		opts->partition = false;
		return true;
	case 'T':
		opts->live.timeline = true;
		return true;
	case 'V':
		opts->verify = true;
		return true;
	default:
		return false;
	}
}

static void check_live(const struct options *opts)
{
	const struct live_options *live = &opts->live;

	if (!live->window_us) {
		if (live->flag)
			usage_error("-%c is for the live mode only: add -l", live->flag);
		return;
	}

#ifndef __x86_64__
	usage_error("-l reads the guest's TSC, and so works on x86 only");
#endif
	if (memstress_args.nested)
		usage_error("-l and -n exclude each other: L2 does not map what -l needs");
	if (live->readers > opts->nr_vcpus)
		usage_error("-R %d is more than the %d vCPUs of -v", live->readers,
			    opts->nr_vcpus);
	if (live->fresh && !live->readers)
		usage_error("-F is for vCPUs that only read: add -R");
	if (opts->slots > max_slots() - LIVE_SLOTS)
		usage_error("-x %d leaves no memslots for -l, %d are the limit",
			    opts->slots, max_slots() - LIVE_SLOTS);
}

/* Returns the CPUs to pin to, to be parsed once the number of vCPUs is known. */
static const char *parse_options(struct options *opts, int argc, char *argv[])
{
	static const struct option long_options[] = {
		{ "fresh",	no_argument,		NULL, 'F' },
		{ "json",	required_argument,	NULL, 'j' },
		{ "live",	required_argument,	NULL, 'l' },
		{ "readers",	required_argument,	NULL, 'R' },
		{ "stretch",	required_argument,	NULL, 'D' },
		{ "timeline",	no_argument,		NULL, 'T' },
		{},
	};
	static const char flags[] = "ab:c:D:eFghi:j:l:m:nop:r:R:s:Tv:Vw:x:";
	const struct options defaults = *opts;
	const char *pcpus = NULL;
	int flag;

	while ((flag = getopt_long(argc, argv, flags, long_options, NULL)) != -1) {
		if (strchr("DFjRT", flag))
			opts->live.flag = flag;

		if (flag == 'c')
			pcpus = optarg;
		else if (flag == 'h')
			help(&defaults);
		else if (!parse_switch(opts, flag))
			parse_value(opts, flag, optarg);
	}
	if (optind < argc)
		usage_error("'%s' is not an option, see -h", argv[optind]);
	check_live(opts);
	return pcpus;
}

int main(int argc, char *argv[])
{
	struct options opts = {
		.nr_vcpus = 1,
		.vcpu_bytes = DEFAULT_PER_VCPU_MEM_SIZE,
		.backing = DEFAULT_VM_MEM_SRC,
		.slots = 1,
		.iterations = 2,
		.write_percent = 100,
		.partition = true,
		.manual_protect = true,
		.live.stretch_ms = 100,
	};
	const char *pcpus;

	/* Not the library's random one, so that runs can be compared. */
	guest_random_seed = 1;
	guest_modes_append_default();

	pcpus = parse_options(&opts, argc, argv);
	if (pcpus) {
		kvm_parse_vcpu_pinning(pcpus, memstress_args.vcpu_to_pcpu, opts.nr_vcpus);
		memstress_args.pin_vcpus = true;
	}

	pr_info("Test iterations: %d\n", opts.iterations);
	for_each_guest_mode(run_test, &opts);
	return 0;
}
