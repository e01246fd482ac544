// SPDX-License-Identifier: GPL-2.0-only
/*
 * How dirty logging slows down running vCPUs: how long single memory accesses
 * stall, and how deep and how long throughput drops
 *
 * vCPUs access memory, one word per page, in all phases, and never exit for
 * that purpose.  Meanwhile the main thread goes through these phases:
 *   populate   each vCPU writes to all of its memory once, then waits
 *   baseline, enable, enabled
 *   get, clear, logging		-i times
 *   disable, disabled
 * In baseline, enabled, logging and disabled, the main thread sleeps for as
 * long as -D says.  It notices the end of populate up to some milliseconds
 * late.  With KVM_DIRTY_LOG_INITIALLY_SET, KVM splits or write-protects in the
 * first clear, otherwise in enable.  If GET clears the log (-g), there is no
 * clear.
 *
 * Clock.  The TSC offset of all vCPUs is set to zero, so that guests and host
 * read the same clock, by one instruction and without a VM exit.
 *
 * Method.  A vCPU reads the TSC before and after each access.  It counts the
 * difference in a histogram per phase, with eight buckets per octave.
 * Percentiles are upper bounds, at most 12.5% too high.  The vCPU also keeps
 * the longest access of each phase with its address, and counts accesses in
 * windows of time, by their end.  An access belongs to the phase in which it
 * began.  The exception is an access that began between two actions of the
 * host, and spent most of its time in the next action: it belongs to that
 * action, which has stalled it.  The vCPU touches all memory of these
 * statistics in advance.
 *
 * By default, readers read their part of the test memory again and again, and
 * rarely need mmu_lock.  With -F, they instead read from a slot that is never
 * logged, and every FRESH_PACE_US a page that KVM has not mapped yet.  So each
 * read takes a page fault, and shows how long mmu_lock was not available.
 * These are 4KiB pages even with another -s, and all of them are the host's
 * zero page.  So there are enough of them, and a fault does little else than
 * take mmu_lock.
 *
 * The test fails if the counts do not agree.  For each vCPU, the number of
 * accesses that it counted itself must be equal to the sum of reads and writes,
 * of the histograms, and (but for populate) of the windows.  A reader with -F
 * must have taken at least one page fault per read.
 *
 * -V imitates live migration: after each GET, it copies the pages in the log,
 * and at the next GET, each page that differs from its copy must be in the log.
 * That takes time in a phase "verify" and in other phases while vCPUs run, and
 * changes the figures.  --stats adds some microseconds to the phase before the
 * one to which the statistics belong.
 *
 * Limits:
 *  - Only a vCPU that accesses memory notices a stall.  What its thread waits
 *    for between two accesses, e.g. for a CPU, shows in the windows, but not in
 *    a histogram.  Within an access, it looks like a stall by KVM.
 *  - With more threads than CPUs, the test measures the scheduler.
 *  - Reading the TSC and counting makes accesses slower than real ones.  So the
 *    relative drop is smaller than in a guest that only accesses memory.
 *  - A reader with -F reads once per FRESH_PACE_US, so that is its throughput,
 *    and it may miss that much of the length of a stall.
 */
#include <sys/mman.h>

#include "dirty_log_live.h"

#define HOUR_MS		(3600 * 1000)
#define SECOND_US	(1000 * 1000)

/* Memslots for layout.stats and layout.control, and for fresh pages. */
#define LIVE_SLOTS	2

/* How much longer than planned a run may take, as actions of the host vary. */
#define ROOM_FACTOR	4
#define MAX_WINDOWS	SZ_256K

struct live_options live_options = {
	.window_us = 10000,
	.stretch_ms = 100,
};

static u64 us_to_ticks(u64 us)
{
	return us * guest_tsc_khz / 1000;
}

/* "tsc-early" is the same clock until its frequency has been refined. */
static bool host_relies_on_tsc(void)
{
	char *clock = sys_get_cur_clocksource();
	bool relies = !strcmp(clock, "tsc\n") || !strcmp(clock, "tsc-early\n");

	free(clock);
	return relies;
}

/* With an offset of zero, guests read the same TSC as the host. */
static void set_up_clock(int nr_vcpus)
{
	u64 offset = 0;

	__TEST_REQUIRE(host_relies_on_tsc(),
		       "The host's kernel does not rely on the TSC, so the test cannot either");

	for (int i = 0; i < nr_vcpus; i++)
		vcpu_device_attr_set(memstress_args.vcpu_args[i].vcpu, KVM_VCPU_TSC_CTRL,
				     KVM_VCPU_TSC_OFFSET, &offset);
}

/* KVM changes offsets when it finds that TSCs are not synchronized. */
static void check_clock(int nr_vcpus)
{
	u64 offset;

	for (int i = 0; i < nr_vcpus; i++) {
		vcpu_device_attr_get(memstress_args.vcpu_args[i].vcpu, KVM_VCPU_TSC_CTRL,
				     KVM_VCPU_TSC_OFFSET, &offset);
		TEST_ASSERT(!offset, "KVM moved the TSC of vCPU %d by %ld: the times are void",
			    i, (s64)offset);
	}
}

/*
 * Add a memslot.  Its guest physical addresses are below those of all memory so
 * far, its virtual addresses above.
 */
static char *add_memory(struct live *live, int slot, u64 *gva, u64 *gpa, u64 bytes)
{
	struct kvm_vm *vm = live->test->vm;

	*gpa -= bytes;
	/*
	 * L1 maps for L2 only each GiB that contains some of the test memory.
	 */
	if (memstress_args.nested && *gpa < align_down(memstress_args.gpa, SZ_1G))
		usage_error("-n leaves no memory that L2 does not map: less of -b, -i, -D");

	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS, *gpa, slot, bytes / vm->page_size, 0);
	memstress_map_memory(vm, *gva, *gpa, bytes, SZ_2M);
	*gva += bytes;
	return addr_gpa2hva(vm, *gpa);
}

static void set_up_layout(const struct test *test)
{
	const struct live_options *opts = &live_options;
	int per_iteration = 2 + !!test->manual_caps + test->opts->verify;
	/* The time that the host sleeps, without its actions. */
	u64 planned_us = (3ULL + test->opts->iterations) * opts->stretch_ms * 1000;
	u64 room_us = ROOM_FACTOR * planned_us;

	layout.readers = test->opts->readers;
	layout.page_step = page_step(test->opts);
	layout.nr_phases = PHASE_ENABLED + 1 + test->opts->iterations * per_iteration + 2;
	layout.nr_windows = min_t(u64, room_us / opts->window_us + 2, MAX_WINDOWS);
	layout.window_ticks = us_to_ticks(opts->window_us);
	layout.fresh_pages = opts->fresh ? room_us / FRESH_PACE_US : 0;
	layout.fresh_ticks = us_to_ticks(FRESH_PACE_US);
	layout.stride = sizeof(struct vcpu_stats) +
			layout.nr_phases * sizeof(struct phase_stats) +
			layout.nr_windows * sizeof(u32);
	layout.stride = align_up(layout.stride, PAGE_SIZE);
}

static void set_up_memory(struct live *live)
{
	const struct options *opts = live->test->opts;
	u64 control = align_up(sizeof(struct control) + layout.nr_phases * sizeof(u64), PAGE_SIZE);
	u64 bytes = align_up(control + opts->nr_vcpus * layout.stride, SZ_2M);
	u64 gva = align_up(memstress_args.vcpu_args[0].gva + memstress_args.size, SZ_1G);
	u64 gpa = align_down(memstress_args.gpa, SZ_2M);
	int slot = MEMSTRESS_MEM_SLOT_INDEX + opts->slots;
	char *hva;

	layout.control = (struct control *)gva;
	layout.stats = (char *)gva + control;
	hva = add_memory(live, slot, &gva, &gpa, bytes);
	memset(hva, 0, bytes);
	live->control = (struct control *)hva;
	live->stats = hva + control;

	if (layout.fresh_pages) {
		layout.fresh_gva = gva;
		bytes = align_up(layout.readers * layout.fresh_pages * PAGE_SIZE, SZ_2M);
		hva = add_memory(live, slot + 1, &gva, &gpa, bytes);
		live->fresh_gpa = gpa;
		/*
		 * Map the zero page everywhere, so that KVM's faults are short.
		 */
		TEST_ASSERT(!madvise(hva, bytes, MADV_POPULATE_READ),
			    "madvise(MADV_POPULATE_READ) failed, errno %d", errno);
	}
}

static void set_up(struct live *live, struct test *test)
{
	const struct options *opts = test->opts;

	*live = (struct live){ .test = test };
	set_up_clock(opts->nr_vcpus);
	set_up_layout(test);
	set_up_memory(live);
	sync_global_to_guest(test->vm, layout);

	memstress_set_write_percent(test->vm, opts->write_percent);
	memstress_set_random_access(test->vm, opts->random_access);

	live->spans = calloc(layout.nr_phases + 1, sizeof(*live->spans));
	live->copies = calloc(nr_test_pages(), sizeof(*live->copies));
	live->changed = calloc(nr_test_pages(), sizeof(*live->changed));
	TEST_ASSERT(live->spans && live->copies && live->changed, "Out of memory");
}

static u64 page_word(const struct live *live, u64 page)
{
	u64 *word = addr_gpa2hva(live->test->vm, memstress_args.gpa + page * PAGE_SIZE);

	return READ_ONCE(*word);
}

/* The first copy of all pages. */
static void copy_all(struct live *live)
{
	for (u64 page = 0; page < nr_test_pages(); page++)
		live->copies[page] = page_word(live, page);
}

/*
 * Call this before GET.  Guests do not write 0, so a page that was never copied
 * differs from its copy.
 */
static void note_changes(struct live *live)
{
	for (u64 page = 0; page < nr_test_pages(); page++)
		live->changed[page] = page_word(live, page) != live->copies[page];
}

/*
 * Call this after GET and CLEAR.  The copies contain all writes before CLEAR.
 * They may also contain later writes, which must be in the next log as well.
 */
static void check_collected(struct live *live, int iteration)
{
	u64 changed = 0, logged = 0;

	for (u64 page = 0; page < nr_test_pages(); page++) {
		TEST_ASSERT(is_page_logged(live->test, page) || !live->changed[page],
			    "Iteration %d: gfn 0x%lx is not in the dirty log, although its content changed",
			    iteration, page_gfn(page));
		changed += live->changed[page];
		if (is_page_logged(live->test, page)) {
			logged++;
			live->copies[page] = page_word(live, page);
		}
	}
	pr_info("Iteration %d verified: %lu of %lu pages changed, %lu in the log\n",
		iteration, changed, nr_test_pages(), logged);
}

/* The host's side of a run. */

static void read_span_stats(const struct live *live, struct span *span)
{
	if (live->test->opts->stats)
		kvm_stats_read(&span->stats);
}

static void begin_phase(struct live *live, enum phase phase, int iteration)
{
	u32 word = live->nr_spans | (is_action(phase) ? ACTION : 0);
	struct span *span = &live->spans[live->nr_spans++];

	read_span_stats(live, span);
	span->phase = phase;
	span->iteration = iteration;
	span->begin = rdtsc();
	live->control->begins[phase_number(word)] = span->begin;
	if (phase == PHASE_BASELINE)
		live->control->origin = span->begin;
	__atomic_store_n(&live->control->phase, word, __ATOMIC_RELEASE);
}

/* Have the vCPUs end. */
static void end_phases(struct live *live)
{
	TEST_ASSERT(live->nr_spans == layout.nr_phases, "%d phases instead of %u",
		    live->nr_spans, layout.nr_phases);

	read_span_stats(live, &live->spans[live->nr_spans]);
	live->spans[live->nr_spans].begin = rdtsc();
	__atomic_store_n(&live->control->phase, layout.nr_phases, __ATOMIC_RELEASE);
}

static void run_on(const struct live *live)
{
	usleep(live_options.stretch_ms * 1000u);
}

static void populate(struct live *live)
{
	begin_phase(live, PHASE_POPULATE, 0);
	workers_begin(false);
	while (__atomic_load_n(&live->control->populated, __ATOMIC_ACQUIRE) <
	       live->test->opts->nr_vcpus)
		usleep(1000);

	if (live->test->opts->verify)
		verify_populated(live->test);
}

static void enable(struct live *live)
{
	const struct test *test = live->test;

	begin_phase(live, PHASE_ENABLE, 0);
	memstress_enable_dirty_logging(test->vm, test->opts->slots);

	begin_phase(live, PHASE_ENABLED, 0);
	if (test->opts->verify && !initially_set(test)) {
		verify_split(test, "enabling");
		copy_all(live);
	}
	run_on(live);
}

static void collect_log(struct live *live, int iteration)
{
	const struct test *test = live->test;

	if (test->opts->verify)
		note_changes(live);

	begin_phase(live, PHASE_GET, iteration);
	memstress_get_dirty_log(test->vm, test->bitmaps, test->opts->slots);

	if (test->manual_caps) {
		begin_phase(live, PHASE_CLEAR, iteration);
		memstress_clear_dirty_log(test->vm, test->bitmaps, test->opts->slots,
					  test->pages_per_slot);
	}

	if (test->opts->verify) {
		begin_phase(live, PHASE_VERIFY, iteration);
		check_collected(live, iteration);
		if (initially_set(test))
			verify_split(test, "clearing");
	}
}

static void run(struct live *live)
{
	const struct options *opts = live->test->opts;

	populate(live);
	begin_phase(live, PHASE_BASELINE, 0);
	run_on(live);
	enable(live);
	for (int i = 1; i <= opts->iterations; i++) {
		collect_log(live, i);
		begin_phase(live, PHASE_LOGGING, i);
		run_on(live);
	}
	begin_phase(live, PHASE_DISABLE, 0);
	memstress_disable_dirty_logging(live->test->vm, opts->slots);
	begin_phase(live, PHASE_DISABLED, 0);
	run_on(live);
	end_phases(live);
	workers_end();
}

/* Do guest and host agree? */

static void check_phase(const struct live *live, int vcpu, int phase,
			const struct phase_stats *stats)
{
	u64 sum = 0;

	for (int i = 0; i < NR_BUCKETS; i++)
		sum += stats->histogram[i];
	TEST_ASSERT(sum == accesses_of(stats),
		    "vCPU %d, phase %d: %lu accesses by latency, but %lu reads and %lu writes",
		    vcpu, phase, sum, stats->reads, stats->writes);
	/*
	 * An access may begin at the end of the run, before the vCPU sees it.
	 */
	TEST_ASSERT(!stats->longest ||
		    (stats->longest_at >= live->spans[0].begin && stats->longest_at < rdtsc()),
		    "vCPU %d, phase %d: the longest stall was outside of the run: the clocks differ",
		    vcpu, phase);
	TEST_ASSERT(!stats->writes || kind_of(vcpu) == WRITERS || phase == PHASE_POPULATE,
		    "vCPU %d, phase %d: %lu writes, although it only reads",
		    vcpu, phase, stats->writes);
}

static void check_vcpu(const struct live *live, int vcpu)
{
	struct vcpu_stats *stats = stats_of(live->stats, vcpu);
	u64 populated = accesses_of(&stats->phases[PHASE_POPULATE]);
	u64 pages = memstress_args.vcpu_args[vcpu].pages;
	u64 windows = 0, phases = 0;

	for (int i = 0; i < layout.nr_windows; i++)
		windows += windows_of(stats)[i];

	for (int i = 0; i < layout.nr_phases; i++) {
		check_phase(live, vcpu, i, &stats->phases[i]);
		phases += accesses_of(&stats->phases[i]);
	}

	TEST_ASSERT(populated == pages, "vCPU %d populated %lu of its %lu pages",
		    vcpu, populated, pages);
	TEST_ASSERT(stats->accesses == phases,
		    "vCPU %d counted %lu accesses, but its phases have %lu",
		    vcpu, stats->accesses, phases);
	TEST_ASSERT(windows == phases - populated,
		    "vCPU %d counted %lu accesses after populating, but its windows have %lu",
		    vcpu, phases - populated, windows);
	/* Otherwise KVM mapped pages ahead, and not every read needed mmu_lock. */
	TEST_ASSERT(!layout.fresh_pages || kind_of(vcpu) != READERS ||
		    vcpu_faults_taken(vcpu) >= windows,
		    "vCPU %d: %lu fresh reads, but only %lu page faults",
		    vcpu, windows, vcpu_faults_taken(vcpu));
}

static void live_run(struct test *test)
{
	struct live live;

	set_up(&live, test);
	run(&live);
	check_clock(test->opts->nr_vcpus);
	for (int i = 0; i < test->opts->nr_vcpus; i++)
		check_vcpu(&live, i);
	report(&live);
	if (json_out)
		json_all(&live);
	free(live.spans);
	free(live.copies);
	free(live.changed);
}

static const struct test_option own_options[] = {
	{ 'D', "stretch", "Milliseconds that vCPUs run between two actions of the host.",
	  .count = &live_options.stretch_ms, .min = 1, .max = HOUR_MS },
	{ 'F', "fresh", "With -R, let the reading vCPUs read memory that is not logged\n"
	  "     and not mapped yet, i.e. take a page fault for every read.",
	  .flag = &live_options.fresh },
	{ 'W', "window", "Length of a window of the timeline in microseconds.",
	  .count = &live_options.window_us, .min = 1, .max = SECOND_US },
	{ }
};

static void check(const struct options *opts)
{
	if (live_options.fresh && !opts->readers)
		usage_error("-F is for vCPUs that only read: add -R");
}

const struct perf_program perf_program = {
	.mode = "live",
	.purpose = "Measure what vCPUs feel that never stop when dirty logging comes and goes.\n"
		   "With --stats, the time to read them is part of the phase before.\n\n",
	.options = own_options,
	.own_slots = LIVE_SLOTS,
	.check = check,
	.run = live_run,
};
