// SPDX-License-Identifier: GPL-2.0-only
/*
 * What running vCPUs feel when dirty logging comes and goes, i.e. how long single
 * accesses stall, and how deep and how long throughput dips.
 *
 * vCPUs access memory, one word per page, from the first phase to the last and never leave the
 * guest for it, while the main thread goes through the phases
 *   populate   each vCPU writes to all of its memory once, then waits
 *   baseline, enable, enabled
 *   get, clear, logging		-i times
 *   disable, disabled
 * Nothing is done in baseline, enabled, logging and disabled, for as long as -D says.  Populate
 * lasts until main finds it done, up to some milliseconds too long.  With
 * KVM_DIRTY_LOG_INITIALLY_SET the first clear is where splitting or write-protecting happens, else
 * enable.  There is no clear if GET clears the log (-g).
 *
 * Clock.  Guests' TSCs are set to the host's, i.e. their offset to zero, so
 * that one instruction reads the clock of all without a VM exit.
 *
 * Method.  A vCPU reads the TSC before and after each access, and counts the difference in a
 * histogram of its own per phase, log2 with eight steps per octave: percentiles are upper bounds,
 * at most 12.5% too high.  The longest is kept as it is, with its page.  It also counts accesses by
 * time of completion in windows.  An access belongs to the phase it began in, unless it began
 * between two actions and spent most of its time after the next one had begun: then that stalled
 * it.  All of this is in memory that was touched before.
 *
 * Readers re-read their part of the test memory, and hardly ever see mmu_lock.  With -F they read
 * from a slot of their own instead, never logged, one page every FRESH_PACE_US that KVM has not
 * mapped yet: each read takes a fault, and so finds out how long mmu_lock is not to be had.  The
 * pages are 4 KiB whatever -s says, and all of them are the host's zero page, so that there are
 * enough of them, and a fault is little else than mmu_lock.
 *
 * Limits.  A stall is seen only by a vCPU that runs into it: what the vCPU's thread waits for
 * outside of memory accesses, e.g. for a CPU, between two of them, shows in the timeline but in no
 * histogram; inside of one it cannot be told from a stall by KVM.  More threads than CPUs measure
 * the scheduler.  Two reads of the TSC and the accounting make accesses slower than real ones, the
 * relative dip is therefore smaller than that of a guest that does nothing but access memory.  A
 * reader with -F asks once per FRESH_PACE_US: its accesses per second are that pace, and it may
 * miss so much of a stall's length.
 *
 * The results are refused if guest and host do not agree: each vCPU's accesses,
 * counted by itself, by reads and writes, by latency, and by window, have to be
 * the same number, and a reader with -F has to have taken a fault per read.
 *
 * -V plays live migration: after each GET it copies the pages in the log, and before the next
 * one each page that differs from its copy has to be in the log.  This runs beside the vCPUs,
 * within the stretches and in a phase "verify", and changes the figures.  --stats adds some
 * microseconds to the phase before the one that it is for.
 */
#include <sys/mman.h>

#include "dirty_log_live.h"

#define HOUR_MS		(3600 * 1000)
#define SECOND_US	(1000 * 1000)

/* For layout.stats and layout.control, and for fresh pages. */
#define LIVE_SLOTS	2

/* Actions of the host last as long as they last: make room for this much more. */
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

/* KVM changes offsets when it finds out that TSCs are not in step. */
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

/* Add a memslot below the guest's memory so far, and map it behind that. */
static char *add_memory(struct live *live, int slot, u64 *gva, u64 *gpa, u64 bytes)
{
	struct kvm_vm *vm = live->test->vm;

	*gpa -= bytes;
	/* L1 maps whole GiB for L2, as far as the test memory reaches into them. */
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
	/* The time that the host sleeps; what its actions take is not known yet. */
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
		/* All pages become the zero page, so that KVM's faults need nothing else. */
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

/* To be called before GET.  Guests write no 0, so a page that was never copied differs. */
static void note_changes(struct live *live)
{
	for (u64 page = 0; page < nr_test_pages(); page++)
		live->changed[page] = page_word(live, page) != live->copies[page];
}

/*
 * To be called after GET and CLEAR.  The copies have what was written before CLEAR.
 * They may have later writes, too, which must then be in the next log nevertheless.
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
	/* An access may begin after the end of the run, before the vCPU sees it. */
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
