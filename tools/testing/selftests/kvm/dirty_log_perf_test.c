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
 * The guest counts its reads and writes itself, one addition per write in a
 * register, so that the share of writes is known and not just asked for.
 *
 * -V compares the log with what the guest wrote, and KVM's page sizes with
 * what eager page splitting promises.  It accesses guest memory between the
 * phases, and so changes their times.
 *
 * The statistics of --stats are read between the phases, never during one.
 */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>
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

/* Options without a letter. */
enum {
	OPT_RUNS = 256,
	OPT_SPARSE,
	OPT_STATS,
};

#define MAX_RUNS	1000
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

/* The same in JSON. */
static const char * const json_phase_names[NR_PHASES] = {
	[PHASE_POPULATE]	= "populate",
	[PHASE_ENABLE]		= "enable",
	[PHASE_DIRTY]		= "dirty",
	[PHASE_GET]		= "get",
	[PHASE_CLEAR]		= "clear",
	[PHASE_DISABLE]		= "disable",
};

/*
 * What a vCPU does in a pass, and has done.  Guest memory; main accesses it
 * while the vCPU does not run.
 */
struct guest_job {
	/* Accesses of a pass. */
	uint64_t steps;
	/* In bytes: the first page and the distance to the next, from args->gva. */
	uint64_t first;
	uint64_t stride;
	uint32_t write_percent;
	bool random;
	/* Of all passes since main reset it. */
	struct accesses done;
} __aligned(64);

static struct guest_job guest_jobs[KVM_MAX_VCPUS];

/* A phase of one guest mode, in all VMs so far. */
struct measured {
	enum phase phase;
	int iteration;
	/* By run. */
	uint64_t *ns;
};

/* In the order of the phases, which is the same for each run. */
static struct measured *measured;
static int nr_measured;

FILE *json_out;

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

/* For the summary of several runs. */
static void remember(struct test *test, enum phase phase, int iteration, uint64_t ns)
{
	struct measured *one;

	if (test->nr_done == nr_measured) {
		measured = realloc(measured, ++nr_measured * sizeof(*measured));
		TEST_ASSERT(measured, "Out of memory");
		measured[test->nr_done] = (struct measured){
			.phase = phase,
			.iteration = iteration,
			.ns = calloc(test->opts->runs, sizeof(uint64_t)),
		};
		TEST_ASSERT(measured[test->nr_done].ns, "Out of memory");
	}

	one = &measured[test->nr_done++];
	TEST_ASSERT(one->phase == phase && one->iteration == iteration,
		    "Run %d has other phases than run 1", test->run);
	one->ns[test->run - 1] = ns;
}

static void forget_all(void)
{
	while (nr_measured)
		free(measured[--nr_measured].ns);
	free(measured);
	measured = NULL;
}

void phase_done(struct test *test, enum phase phase, int iteration,
		struct timespec time)
{
	struct phase_times *times = &test->times[phase];

	times->sum = timespec_add(times->sum, time);
	times->count++;
	remember(test, phase, iteration, timespec_to_ns(time));

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
 * Guests.  Whether an access is a write is decided by chance even if all are, so
 * that the cost of an access does not depend on it.  Little is kept across calls,
 * for all of it to stay in registers: counting shall not make an access dearer.
 */
static uint64_t guest_pass(const struct guest_job *job, struct guest_random_state *random,
			   uint64_t gva)
{
	uint64_t i, step, writes = 0, steps = job->steps;
	uint64_t *word;
	bool write;

	for (i = 0; i < steps; i++) {
		step = job->random ? guest_random_u32(random) % steps : i;
		write = guest_random_u32(random) % 100 < job->write_percent;
		word = (uint64_t *)(gva + step * job->stride);

		if (write) {
			WRITE_ONCE(*word, ~UNWRITTEN);
			writes++;
		} else {
			READ_ONCE(*word);
		}
	}
	return writes;
}

/* In place of the library's, in L2 as well. */
void memstress_guest_code(uint32_t vcpu)
{
	struct memstress_vcpu_args *args = &memstress_args.vcpu_args[vcpu];
	struct guest_job *job = &guest_jobs[vcpu];
	struct guest_random_state random;
	uint64_t writes;

	if (guest_is_live())
		live_guest_code(vcpu);

	random = new_guest_random_state(guest_random_seed + vcpu);
	GUEST_ASSERT(args->vcpu_idx == vcpu);

	for (;;) {
		writes = guest_pass(job, &random, args->gva + job->first);
		job->done.writes += writes;
		job->done.reads += job->steps - writes;
		GUEST_SYNC(1);
	}
}

/* The host's view. */
static struct guest_job *job_of(const struct test *test, int vcpu)
{
	return addr_gva2hva(test->vm, (vm_vaddr_t)&guest_jobs[vcpu]);
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

bool is_hugetlb(enum vm_mem_backing_src_type backing)
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

bool is_page_logged(const struct test *test, uint64_t page)
{
	uint64_t per_slot = test->pages_per_slot;

	return is_logged(test, page / per_slot, page % per_slot * getpagesize());
}

uint64_t page_step(const struct options *opts)
{
	return opts->sparse ? SPARSE_BYTES / memstress_args.guest_page_size : 1;
}

void probe_pages(const struct test *test, uint64_t first, uint64_t nr, bool write)
{
	struct guest_job *job = job_of(test, 0), old = *job;

	*job = (struct guest_job) {
		.first = first * memstress_args.guest_page_size,
		.steps = nr,
		.stride = memstress_args.guest_page_size,
		.write_percent = write ? 100 : 0,
	};
	run_vcpu_once(&memstress_args.vcpu_args[0]);
	*job = old;
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

/*
 * Pages that the guest wrote to in the last pass, or -1 if it may have written to
 * some of them more than once.
 */
static int64_t expected_writes(const struct test *test)
{
	const struct options *opts = test->opts;

	if (opts->random_access || (!opts->partition && opts->nr_vcpus > 1))
		return -1;

	return test->accesses.writes;
}

/* To be called between GET and CLEAR. */
static void verify_log(const struct test *test, int iteration)
{
	int64_t expected = expected_writes(test);
	struct tally sum = {}, tally;
	int slot;

	for (slot = 0; slot < test->opts->slots; slot++) {
		tally = verify_slot(test, slot, iteration);
		sum.written += tally.written;
		sum.logged += tally.logged;
	}

	TEST_ASSERT(expected < 0 || sum.written == expected,
		    "Iteration %d: the guest wrote to %ld pages, but counted %ld",
		    iteration, sum.written, expected);

	pr_info("Iteration %d verified: %ld of %ld pages written, %ld in the log\n",
		iteration, sum.written,
		memstress_args.size / memstress_args.guest_page_size, sum.logged);
}

static void set_job(const struct test *test, int vcpu, uint32_t write_percent,
		    bool random, uint64_t step)
{
	struct guest_job *job = job_of(test, vcpu);
	uint64_t pages = memstress_args.vcpu_args[vcpu].pages;

	*job = (struct guest_job) {
		.steps = DIV_ROUND_UP(pages, step),
		.stride = step * memstress_args.guest_page_size,
		.write_percent = write_percent,
		.random = random,
	};
}

/* Write everywhere, in order: reads might map the zero page only. */
static void set_populating(const struct test *test)
{
	int i;

	for (i = 0; i < test->opts->nr_vcpus; i++)
		set_job(test, i, 100, false, 1);
}

static void set_access(const struct test *test)
{
	const struct options *opts = test->opts;
	int i;

	for (i = 0; i < opts->nr_vcpus; i++)
		set_job(test, i, i < opts->readers ? 0 : opts->write_percent,
			opts->random_access, page_step(opts));
}

/* Since the last time.  vCPUs must not be running. */
static struct accesses take_accesses(const struct test *test)
{
	struct accesses sum = {}, none = {};
	struct guest_job *job;
	int i;

	for (i = 0; i < test->opts->nr_vcpus; i++) {
		job = job_of(test, i);
		sum.reads += job->done.reads;
		sum.writes += job->done.writes;
		job->done = none;
	}
	return sum;
}

static uint64_t nr_accesses(const struct accesses *accesses)
{
	return accesses->reads + accesses->writes;
}

static double percent_written(const struct accesses *accesses)
{
	return accesses->writes * 100.0 / nr_accesses(accesses);
}

/* Whoever asks for JSON gets statistics with it, as they cost no phase anything. */
static bool wants_stats(const struct options *opts)
{
	return opts->stats || opts->json;
}

static void begin_phase(struct test *test)
{
	if (wants_stats(test->opts))
		kvm_stats_read(&test->before);
}

static void json_accesses(const struct accesses *accesses)
{
	fprintf(json_out, ", \"reads\": %lu, \"writes\": %lu, \"achieved_write_percent\": ",
		accesses->reads, accesses->writes);
	if (nr_accesses(accesses))
		fprintf(json_out, "%.4f", percent_written(accesses));
	else
		fprintf(json_out, "null");
}

static void json_phase(const struct test *test, enum phase phase, int iteration,
		       struct timespec time, const struct accesses *accesses,
		       const struct kvm_stats *after)
{
	json_dimensions(test, "phase");
	fprintf(json_out, ", \"phase\": \"%s\"", json_phase_names[phase]);
	json_iteration(iteration);
	fprintf(json_out, ", \"seconds\": %.9f", timespec_to_ns(time) / 1e9);
	json_accesses(accesses);
	kvm_stats_json(&test->before, after, accesses->writes);
	fprintf(json_out, "}\n");
}

/* What main did, or what vCPUs did if @accesses is not empty. */
static void end_phase(struct test *test, enum phase phase, int iteration,
		      struct timespec time, struct accesses accesses)
{
	struct kvm_stats after;

	if (wants_stats(test->opts))
		kvm_stats_read(&after);

	phase_done(test, phase, iteration, time);
	if (phase == PHASE_DIRTY)
		pr_info("Iteration %d accesses: %lu reads, %lu writes (%.2f%% writes)\n",
			iteration, accesses.reads, accesses.writes,
			percent_written(&accesses));
	if (test->opts->stats)
		kvm_stats_print(&test->before, &after, accesses.writes);
	if (json_out)
		json_phase(test, phase, iteration, time, &accesses, &after);
}

static void end_host_phase(struct test *test, enum phase phase, int iteration,
			   struct timespec start)
{
	end_phase(test, phase, iteration, timespec_elapsed(start), (struct accesses){});
}

static void run_pass(struct test *test, enum phase phase, int iteration)
{
	struct timespec time;

	begin_phase(test);
	time = crew_run_once();
	test->accesses = take_accesses(test);
	end_phase(test, phase, iteration, time, test->accesses);
}

static void populate(struct test *test)
{
	set_populating(test);
	run_pass(test, PHASE_POPULATE, 0);

	if (test->opts->verify)
		verify_populated(test);
}

static void enable_log(struct test *test)
{
	struct timespec start;

	begin_phase(test);
	clock_gettime(CLOCK_MONOTONIC, &start);
	memstress_enable_dirty_logging(test->vm, test->opts->slots);
	end_host_phase(test, PHASE_ENABLE, 0, start);
	pr_info("\n");

	if (test->opts->verify && !initially_set(test))
		verify_split(test, "enabling");
}

static void get_log(struct test *test, int iteration)
{
	struct timespec start;

	begin_phase(test);
	clock_gettime(CLOCK_MONOTONIC, &start);
	memstress_get_dirty_log(test->vm, test->bitmaps, test->opts->slots);
	end_host_phase(test, PHASE_GET, iteration, start);

	if (test->opts->verify)
		verify_log(test, iteration);
}

static void clear_log(struct test *test, int iteration)
{
	struct timespec start;

	begin_phase(test);
	clock_gettime(CLOCK_MONOTONIC, &start);
	memstress_clear_dirty_log(test->vm, test->bitmaps, test->opts->slots,
				  test->pages_per_slot);
	end_host_phase(test, PHASE_CLEAR, iteration, start);

	if (test->opts->verify && initially_set(test))
		verify_split(test, "clearing");
}

static void iterate(struct test *test, int iteration)
{
	if (test->opts->verify)
		verify_prepare(test);

	run_pass(test, PHASE_DIRTY, iteration);
	get_log(test, iteration);
	if (test->manual_caps)
		clear_log(test, iteration);
}

static void disable_log(struct test *test)
{
	struct timespec start, time;

	begin_phase(test);
	if (test->opts->run_while_disabling)
		crew_start();

	clock_gettime(CLOCK_MONOTONIC, &start);
	memstress_disable_dirty_logging(test->vm, test->opts->slots);
	time = timespec_elapsed(start);

	if (test->opts->run_while_disabling)
		crew_stop();
	end_phase(test, PHASE_DISABLE, 0, time, take_accesses(test));
}

static void run_phases(struct test *test)
{
	int i;

	populate(test);
	enable_log(test);

	set_access(test);
	for (i = 1; i <= test->opts->iterations; i++)
		iterate(test, i);

	disable_log(test);
}

/*
 * Several runs, and JSON.
 */

static int by_size(const void *a, const void *b)
{
	uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;

	return first < second ? -1 : first > second;
}

/* Of sorted values; the mean of the two in the middle if their number is even. */
static uint64_t median(const uint64_t *values, int nr)
{
	uint64_t low = values[(nr - 1) / 2], high = values[nr / 2];

	return low + (high - low) / 2;
}

static void json_summary(const struct test *test, const struct measured *one)
{
	int runs = test->opts->runs;

	json_dimensions(test, "summary");
	fprintf(json_out, ", \"phase\": \"%s\"", json_phase_names[one->phase]);
	json_iteration(one->iteration);
	fprintf(json_out, ", \"minimum_seconds\": %.9f, \"median_seconds\": %.9f",
		one->ns[0] / 1e9, median(one->ns, runs) / 1e9);
	fprintf(json_out, ", \"maximum_seconds\": %.9f}\n", one->ns[runs - 1] / 1e9);
}

static void summarize_one(const struct test *test, struct measured *one)
{
	int runs = test->opts->runs;

	qsort(one->ns, runs, sizeof(*one->ns), by_size);
	if (one->iteration)
		pr_info("Iteration %d ", one->iteration);
	pr_info("%s over %d runs: minimum %.9fs, median %.9fs, maximum %.9fs\n",
		phase_names[one->phase], runs, one->ns[0] / 1e9,
		median(one->ns, runs) / 1e9, one->ns[runs - 1] / 1e9);
	if (json_out)
		json_summary(test, one);
}

static void summarize(const struct test *test)
{
	int i;

	pr_info("\n");
	for (i = 0; i < nr_measured; i++)
		summarize_one(test, &measured[i]);
}

void json_iteration(int iteration)
{
	if (iteration)
		fprintf(json_out, ", \"iteration\": %d", iteration);
	else
		fprintf(json_out, ", \"iteration\": null");
}

void json_dimensions(const struct test *test, const char *record)
{
	const struct options *opts = test->opts;

	fprintf(json_out, "{\"record\": \"%s\", \"mode\": \"%s\"", record,
		opts->live.window_us ? "live" : "phases");
	fprintf(json_out, ", \"run\": %d, \"runs\": %d", test->run, opts->runs);
	kvm_parameters_json();
	fprintf(json_out, ", \"vcpus\": %d, \"bytes_per_vcpu\": %lu, \"slots\": %d",
		opts->nr_vcpus, memstress_args.size / opts->nr_vcpus, opts->slots);
	fprintf(json_out, ", \"backing\": \"%s\"", vm_mem_backing_src_alias(opts->backing)->name);
	fprintf(json_out, ", \"write_percent\": %u, \"random\": %s, \"sparse\": %s",
		opts->write_percent, json_bool(opts->random_access), json_bool(opts->sparse));
	fprintf(json_out, ", \"partition\": %s, \"seed\": %u, \"nested\": %s",
		json_bool(opts->partition), guest_random_seed,
		json_bool(memstress_args.nested));
	fprintf(json_out, ", \"initially_all_set\": %s, \"manual_protect\": %s, \"iterations\": %d",
		json_bool(initially_set(test)), json_bool(test->manual_caps), opts->iterations);
	fprintf(json_out, ", \"readers\": %d, \"run_while_disabling\": %s, \"verify\": %s",
		opts->readers, json_bool(opts->run_while_disabling), json_bool(opts->verify));
}

/* What json_out collects. */
static char *json_text;
static size_t json_bytes;

/* In the same directory, so that it can be renamed. */
static void json_part(const char *json, char *path, size_t size)
{
	if (snprintf(path, size, "%s.part", json) >= size)
		usage_error("-j %s: the name is too long", json);
}

/* Better now than after the run. */
static void json_open(const char *json)
{
	char part[PATH_MAX];
	FILE *file;

	json_part(json, part, sizeof(part));
	file = fopen(part, "w");
	if (!file)
		usage_error("-j %s: cannot be written: %s", json, strerror(errno));
	fclose(file);
	unlink(part);

	json_out = open_memstream(&json_text, &json_bytes);
	TEST_ASSERT(json_out, "Out of memory");
}

static void json_close(const char *json)
{
	bool written = !fclose(json_out);
	char part[PATH_MAX];
	FILE *file;

	TEST_ASSERT(written, "Out of memory");
	json_part(json, part, sizeof(part));
	file = fopen(part, "w");
	TEST_ASSERT(file, "%s: %s", part, strerror(errno));

	written = fwrite(json_text, 1, json_bytes, file) == json_bytes;
	written &= !fflush(file) && !fsync(fileno(file));
	written &= !fclose(file);
	if (!written || rename(part, json)) {
		unlink(part);
		TEST_FAIL("%s could not be written", json);
	}
	free(json_text);
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
			const struct options *opts, int run)
{
	uint64_t bytes = vcpu_bytes(mode, opts);

	require_memory(opts, bytes * opts->nr_vcpus);

	memset(test, 0, sizeof(*test));
	test->opts = opts;
	test->run = run;
	test->vm = memstress_create_vm(mode, opts->nr_vcpus, bytes, opts->slots,
				       opts->backing, opts->partition);
	test->gic_fd = arch_create_gic(test->vm, opts->nr_vcpus);
	if (opts->manual_protect)
		test->manual_caps = enable_manual_protect(test->vm);

	test->pages_per_slot = slot_bytes(test) / getpagesize();
	test->bitmaps = memstress_alloc_bitmaps(opts->slots, test->pages_per_slot);
	crew_create(opts->nr_vcpus);
	kvm_open(test);
}

static void test_destroy(struct test *test)
{
	kvm_close();
	crew_destroy();
	memstress_free_bitmaps(test->bitmaps, test->opts->slots);
	if (test->gic_fd >= 0)
		close(test->gic_fd);
	memstress_destroy_vm(test->vm);
}

static void run_once(struct test *test, enum vm_guest_mode mode,
		     const struct options *opts, int run)
{
	if (opts->runs > 1)
		pr_info("\nRun %d of %d\n", run, opts->runs);

	test_create(test, mode, opts, run);
	if (opts->live.window_us)
		live_run(test);
	else
		run_phases(test);
	print_average(test, PHASE_GET);
	print_average(test, PHASE_CLEAR);
}

static void run_test(enum vm_guest_mode mode, void *data)
{
	const struct options *opts = data;
	struct test test;
	int i;

	for (i = 1; i <= opts->runs; i++) {
		run_once(&test, mode, opts, i);
		if (opts->runs > 1 && i == opts->runs)
			summarize(&test);
		test_destroy(&test);
	}
	forget_all();
}

static const struct option long_options[] = {
	{ "bytes",		required_argument,	NULL, 'b' },
	{ "fresh",		no_argument,		NULL, 'F' },
	{ "get-clears",		no_argument,		NULL, 'g' },
	{ "help",		no_argument,		NULL, 'h' },
	{ "iterations",		required_argument,	NULL, 'i' },
	{ "json",		required_argument,	NULL, 'j' },
	{ "live",		required_argument,	NULL, 'l' },
	{ "nested",		no_argument,		NULL, 'n' },
	{ "overlap",		no_argument,		NULL, 'o' },
	{ "random",		no_argument,		NULL, 'a' },
	{ "readers",		required_argument,	NULL, 'R' },
	{ "runs",		required_argument,	NULL, OPT_RUNS },
	{ "seed",		required_argument,	NULL, 'r' },
	{ "slots",		required_argument,	NULL, 'x' },
	{ "sparse",		no_argument,		NULL, OPT_SPARSE },
	{ "stats",		no_argument,		NULL, OPT_STATS },
	{ "stretch",		required_argument,	NULL, 'D' },
	{ "timeline",		no_argument,		NULL, 'T' },
	{ "vcpus",		required_argument,	NULL, 'v' },
	{ "verify",		no_argument,		NULL, 'V' },
	{ "writes",		required_argument,	NULL, 'w' },
	{},
};

static void __noreturn print_help(const struct options *defaults)
{
	printf("usage: %s [options]\n\n"
	       "Time the phases of dirty logging.\n\n"
	       " -a, --random: Access pages in random order, with repetitions.\n"
	       " -b, --bytes: Memory per vCPU, e.g. 64M or 1G, rounded up to whole pages of\n"
	       "     the backing. (default: %luM)\n"
	       " -D, --stretch: With -l, milliseconds that vCPUs run between two actions of\n"
	       "     the host. (default: %u)\n"
	       " -e: Keep vCPUs running while dirty logging is being disabled.  Takes\n"
	       "     longer, above all if the main thread has no CPU of its own.\n"
	       " -F, --fresh: With -l and -R, let the reading vCPUs read memory that is not\n"
	       "     logged and not mapped yet, i.e. take a page fault for every read.\n"
	       " -g, --get-clears: Let KVM_GET_DIRTY_LOG clear the log, i.e. use neither\n"
	       "     KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE nor KVM_DIRTY_LOG_INITIALLY_SET.\n"
	       " -h, --help: Print this text.\n"
	       " -i, --iterations: Number of iterations, at least 2. (default: %d)\n"
	       " -j, --json: Write the results to this file, too: JSON objects, one per\n"
	       "     line.  The file is complete or does not come to be.\n"
	       " -l, --live: Measure what vCPUs feel that never stop, instead of phases.\n"
	       "     Takes the length of a window of the timeline in microseconds.\n"
	       "     (x86 only)\n"
	       " -n, --nested: Run the vCPUs' code in L2. (x86 with VMX only)\n"
	       " -o, --overlap: Let every vCPU access the memory of all vCPUs.\n"
	       " -p: Accepted, but ignored: the test memory always ends where guest\n"
	       "     physical memory does.\n"
	       " -r, --seed: Seed of the random numbers. (default: %u)\n"
	       " -R, --readers: Number of vCPUs, the first ones, that only read, whatever -w\n"
	       "     is. (default: %d)\n"
	       " -T, --timeline: With -l, print the timeline, one line per window.\n"
	       " -v, --vcpus: Number of vCPUs. (default: %d)\n"
	       " -V, --verify: Verify that pages written are in the log, and that page sizes\n"
	       "     are those of eager or lazy page splitting.  What is wrong is named by\n"
	       "     its gfn.  Affects the times.\n"
	       " -w, --writes: Percentage of accesses that are writes; each one is decided by\n"
	       "     chance. (default: %u)\n"
	       " -x, --slots: Number of memslots to split the memory into. (default: %d)\n"
	       " --runs: Number of VMs, one after another; more than one yields minimum,\n"
	       "     median, and maximum of each phase. (default: %d)\n"
	       " --sparse: Access only the first page of every 2 MiB.  All of them are\n"
	       "     populated.\n"
	       " --stats: Print what KVM's statistics say about each phase.  With -l, it\n"
	       "     adds the time to read them to the phase before. (x86 only)\n",
	       program_invocation_short_name, defaults->vcpu_bytes / SZ_1M,
	       defaults->live.stretch_ms, defaults->iterations, guest_random_seed,
	       defaults->readers, defaults->nr_vcpus, defaults->write_percent,
	       defaults->slots, defaults->runs);
	guest_modes_help();
	backing_src_help("-s");
	kvm_print_vcpu_pinning_help();
	exit(0);
}

/* As it is to be typed.  Valid until the next call. */
static const char *flag_name(int flag)
{
	const struct option *option = long_options;
	static char name[32];

	while (option->name && option->val != flag)
		option++;
	if (flag < OPT_RUNS)
		snprintf(name, sizeof(name), "-%c", flag);
	else
		snprintf(name, sizeof(name), "--%s", option->name);
	return name;
}

static unsigned long parse_number(int flag, const char *arg,
				  unsigned long min, unsigned long max)
{
	unsigned long number;
	char *end;

	errno = 0;
	number = strtoul(arg, &end, 0);
	if (!isdigit(arg[0]) || *end || errno || number < min || number > max)
		usage_error("%s takes a number from %lu to %lu, not '%s'",
			    flag_name(flag), min, max, arg);
	return number;
}

static uint64_t parse_bytes(int flag, const char *arg)
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
		usage_error("%s takes a size such as 64M or 1G, not '%s'",
			    flag_name(flag), arg);
	return number << shift;
}

static enum vm_mem_backing_src_type parse_backing(int flag, const char *arg)
{
	int i;

	for (i = 0; i < NUM_SRC_TYPES; i++) {
		if (!strcmp(arg, vm_mem_backing_src_alias(i)->name))
			return i;
	}
	usage_error("%s takes one of the backings listed by -h, not '%s'",
		    flag_name(flag), arg);
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
		opts->json = arg;
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
		opts->readers = parse_number(flag, arg, 0, max_vcpus());
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
	case OPT_RUNS:
		opts->runs = parse_number(flag, arg, 1, MAX_RUNS);
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
	case OPT_SPARSE:
		opts->sparse = true;
		return true;
	case OPT_STATS:
		opts->stats = true;
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
			usage_error("%s is for the live mode only: add -l",
				    flag_name(live->flag));
		return;
	}

#ifndef __x86_64__
	usage_error("-l reads the guest's TSC, and so works on x86 only");
#endif
	if (live->fresh && !opts->readers)
		usage_error("-F is for vCPUs that only read: add -R");
	if (opts->slots > max_slots() - LIVE_SLOTS)
		usage_error("-x %d leaves no memslots for -l, %d are the limit",
			    opts->slots, max_slots() - LIVE_SLOTS);
}

static void check_options(const struct options *opts)
{
#ifndef __x86_64__
	if (opts->stats)
		usage_error("--stats knows the statistics of x86 only");
#endif
	if (opts->readers > opts->nr_vcpus)
		usage_error("-R %d is more than the %d vCPUs of -v", opts->readers,
			    opts->nr_vcpus);
	check_live(opts);
}

/* Returns the CPUs to pin to, to be parsed once the number of vCPUs is known. */
static const char *parse_options(struct options *opts, int argc, char *argv[])
{
	static const char flags[] = "ab:c:D:eFghi:j:l:m:nop:r:R:s:Tv:Vw:x:";
	const struct options defaults = *opts;
	const char *pcpus = NULL;
	int flag;

	while ((flag = getopt_long(argc, argv, flags, long_options, NULL)) != -1) {
		if (flag == 'D' || flag == 'F' || flag == 'T')
			opts->live.flag = flag;

		if (flag == 'c')
			pcpus = optarg;
		else if (flag == 'h')
			print_help(&defaults);
		else if (!parse_switch(opts, flag))
			parse_value(opts, flag, optarg);
	}
	if (optind < argc)
		usage_error("'%s' is not an option, see -h", argv[optind]);
	check_options(opts);
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
		.runs = 1,
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

	if (opts.json)
		json_open(opts.json);

	pr_info("Test iterations: %d\n", opts.iterations);
	for_each_guest_mode(run_test, &opts);

	if (opts.json)
		json_close(opts.json);
	return 0;
}
