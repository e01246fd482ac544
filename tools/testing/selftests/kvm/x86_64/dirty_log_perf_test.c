// SPDX-License-Identifier: GPL-2.0-only
/*
 * The live mode of dirty_log_perf_test (-l): what running vCPUs feel when dirty
 * logging comes and goes, i.e. how long single accesses stall, and how deep and
 * how long throughput dips.
 *
 * vCPUs access memory, one word per page, from the first phase to the last and
 * never leave the guest for it, while the main thread goes through
 *   populate   each vCPU writes to all of its memory once, then waits
 *   baseline   nothing
 *   enable     dirty logging is enabled on all test slots
 *   enabled    nothing
 *   get        KVM_GET_DIRTY_LOG on all test slots      \
 *   clear      KVM_CLEAR_DIRTY_LOG of all that was set   > -i times
 *   logging    nothing                                  /
 *   disable    dirty logging is disabled on all test slots
 *   disabled   nothing
 * "nothing" lasts as long as -D says, and populate until main looks up and finds
 * it done, i.e. up to some milliseconds too long.  With KVM_DIRTY_LOG_INITIALLY_SET the
 * first clear is where splitting or write-protecting happens, else enable.
 * KVM_CLEAR_DIRTY_LOG is left out if GET clears the log (-g).
 *
 * Clock.  Guests' TSCs are set to the host's, i.e. their offset to zero, so
 * that one instruction reads the clock of all without a VM exit.
 *
 * Method.  A vCPU reads the TSC before and after each access, and counts the
 * difference in a histogram of its own per phase, log2 with eight steps per
 * octave: percentiles are upper bounds, at most 12.5% too high.  The longest is
 * kept as it is, with its page.  It also counts accesses by time of completion
 * in windows.  An access belongs to the phase it began in, unless it began
 * between two actions and spent most of its time after the next one had begun:
 * then that stalled it.  All of this is in memory that was touched before.
 *
 * Readers re-read their part of the test memory.  That takes no page fault
 * unless KVM zapped something, so such a reader hardly ever sees mmu_lock.  With
 * -F they read from a slot of their own instead, never logged, whose pages are
 * not mapped by KVM yet, one page every FRESH_PACE_US: each read takes a fault,
 * needs mmu_lock, and so finds out how long it is not to be had.  The pages are
 * 4 KiB whatever -s says, and all of them are the host's zero page, already in
 * the host's page tables: so there are enough of them, and a fault is as much
 * mmu_lock and as little else as possible.
 *
 * Limits.  A stall is seen only by a vCPU that runs into it: what the vCPU's
 * thread waits for outside of memory accesses, e.g. for a CPU, between two of
 * them, shows in the timeline but in no histogram; inside of one it cannot be
 * told from a stall by KVM.  More threads than CPUs measure the scheduler.  Two
 * reads of the TSC and the accounting make accesses slower than real ones, the
 * relative dip is therefore smaller than that of a guest that does nothing but
 * access memory.  A reader with -F asks once per FRESH_PACE_US: its accesses
 * per second are that pace, and it may miss so much of a stall's length.
 *
 * The results are refused if guest and host do not agree: each vCPU's accesses,
 * counted by itself, by reads and writes, by latency, and by window, have to be
 * the same number, and a reader with -F has to have taken a fault per read.
 *
 * -V plays live migration: after each harvest it copies the pages in the log,
 * and before the next one it looks for pages that differ from their copy; each
 * of them has to be in the log then.  This runs beside the vCPUs, within the
 * stretches and in a phase "verify", and changes the figures.
 *
 * --stats reads KVM's statistics just before a phase begins, i.e. within the one
 * before it, and so adds some microseconds to that one.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>
#include <linux/sizes.h>

#include "kvm_util.h"
#include "memstress.h"
#include "processor.h"
#include "test_util.h"
#include "ucall_common.h"
#include "dirty_log_perf_test.h"

/* Buckets of an octave, the logarithm of that, and buckets of all octaves. */
#define STEPS		8
#define STEP_BITS	3
#define NR_BUCKETS	((64 - STEP_BITS + 1) * STEPS)

/* At least this long from one fresh read to the next. */
#define FRESH_PACE_US	50

/* Actions of the host last as long as they last: make room for this much more. */
#define ROOM_FACTOR	4
#define MAX_WINDOWS	SZ_256K

/* Set in struct control.phase while the host acts. */
#define ACTION		BIT(31)

enum kind {
	WRITERS,
	READERS,
	NR_KINDS,
};

static const char * const kind_names[NR_KINDS] = {
	[WRITERS]	= "writer",
	[READERS]	= "reader",
};

enum live_phase {
	LIVE_POPULATE,
	LIVE_BASELINE,
	LIVE_ENABLE,
	LIVE_ENABLED,
	LIVE_GET,
	LIVE_CLEAR,
	LIVE_VERIFY,
	LIVE_LOGGING,
	LIVE_DISABLE,
	LIVE_DISABLED,
};

/* Part of the output format. */
static const struct {
	const char *name;
	/* What the host does here stalls vCPUs. */
	bool action;
} live_phases[] = {
	[LIVE_POPULATE]	= { "populate" },
	[LIVE_BASELINE]	= { "baseline" },
	[LIVE_ENABLE]	= { "enable", true },
	[LIVE_ENABLED]	= { "enabled" },
	[LIVE_GET]	= { "get", true },
	[LIVE_CLEAR]	= { "clear", true },
	[LIVE_VERIFY]	= { "verify" },
	[LIVE_LOGGING]	= { "logging" },
	[LIVE_DISABLE]	= { "disable", true },
	[LIVE_DISABLED]	= { "disabled" },
};

/* Accesses of one vCPU, or of several, in one phase.  Times are ticks. */
struct phase_stats {
	uint64_t reads;
	uint64_t writes;
	uint64_t longest;
	/* Where it was, and when it began. */
	uint64_t longest_gva;
	uint64_t longest_at;
	uint64_t histogram[NR_BUCKETS];
};

/* Guest memory of one vCPU, which alone writes it. */
struct vcpu_stats {
	/* All accesses; written once, at the end. */
	uint64_t accesses;
	/* When there was no fresh page left, or 0. */
	uint64_t exhausted_at;
	struct phase_stats phases[];
	/* Followed by one uint32_t per window. */
};

/* Guest memory that all share. */
struct control {
	/*
	 * Number of the current phase, perhaps with ACTION; the number of
	 * phases ends the vCPUs.  Written by main only.
	 */
	uint32_t phase;
	/* The TSC at which the timeline starts; valid after populating. */
	uint64_t origin;
	/* vCPUs that populated their memory; atomic. */
	uint32_t populated __aligned(64);
	/* When each phase began; valid up to the current one. */
	uint64_t begins[];
};

/* Where everything is.  Host and guests have a copy; none is modified. */
static struct layout {
	struct control *control;
	/* struct vcpu_stats of vCPU 0, and the distance to the next. */
	char *stats;
	uint64_t stride;
	uint32_t nr_phases;
	/* The last one collects all that comes later. */
	uint32_t nr_windows;
	uint64_t window_ticks;
	/* vCPUs that only read, the first ones. */
	uint32_t readers;
	/* Per reader; 0: they read test memory. */
	uint64_t fresh_pages;
	uint64_t fresh_gva;
	uint64_t fresh_ticks;
	/* From one page of the test memory that is accessed to the next one. */
	uint64_t page_step;
} layout;

/* A vCPU's own variables, on its stack. */
struct cursor {
	struct vcpu_stats *stats;
	struct guest_random_state random;
	uint32_t write_percent;
	uint64_t accesses;
	/* The next page to access, in order, and how many there are. */
	uint64_t page;
	uint64_t steps;
	/* Written to memory: no two writes of a VM are the same, none is 0. */
	uint64_t stamp;
	uint64_t window;
	uint64_t window_end;
	/* When to read it; U64_MAX if there is none left. */
	uint64_t fresh_due;
	uint64_t fresh_next;
};

/* One phase that was, or is. */
struct span {
	enum live_phase phase;
	/* 0 outside of iterations. */
	int iteration;
	/* TSC.  It ends where the next one begins. */
	uint64_t begin;
	/* As it began; only with --stats. */
	struct kvm_stats stats;
};

/* One run of the live mode. */
struct live {
	struct test *test;
	/* Host's view of the guest memory. */
	struct control *control;
	char *stats;
	/* One more than there are phases: when the last one ended. */
	struct span *spans;
	/* Phases that began. */
	int nr_spans;
	uint64_t fresh_gpa;
	/* Only with -V, by page of test memory: as last harvested ... */
	uint64_t *copies;
	/* ... and whether that changed until just before the last GET. */
	bool *changed;
};

/*
 * Both sides.
 */

static struct vcpu_stats *stats_of(char *stats, int vcpu)
{
	return (struct vcpu_stats *)(stats + vcpu * layout.stride);
}

static uint32_t *windows_of(struct vcpu_stats *stats)
{
	return (uint32_t *)&stats->phases[layout.nr_phases];
}

static int bucket_of(uint64_t ticks)
{
	int shift;

	if (ticks < STEPS)
		return ticks;

	shift = 63 - __builtin_clzll(ticks) - STEP_BITS;
	return shift * STEPS + (ticks >> shift);
}

/* The largest value in it. */
static uint64_t bucket_end(int bucket)
{
	int shift = bucket / STEPS - 1;

	if (shift < 0)
		return bucket;

	return ((bucket - shift * STEPS + 1ULL) << shift) - 1;
}

/*
 * Guests.  Only what memory accesses need may fault in here.
 */

static uint32_t phase_number(uint32_t word)
{
	return word & ~ACTION;
}

/* Usually the one it began in. */
static uint32_t phase_to_blame(uint32_t began, uint64_t start, uint64_t end)
{
	uint32_t now = READ_ONCE(layout.control->phase);
	uint32_t next = phase_number(began) + 1;

	if (now == began || began & ACTION || next == layout.nr_phases ||
	    start + (end - start) / 2 < layout.control->begins[next])
		return phase_number(began);

	return next;
}

static void count_window(struct cursor *me, uint64_t end)
{
	if (end >= me->window_end) {
		me->window = (end - layout.control->origin) / layout.window_ticks;
		me->window_end = layout.control->origin +
				 (me->window + 1) * layout.window_ticks;
		me->window = min_t(uint64_t, me->window, layout.nr_windows - 1);
	}
	windows_of(me->stats)[me->window]++;
}

static void timed_access(struct cursor *me, uint64_t gva, bool write, uint32_t began)
{
	uint64_t start, end, ticks;
	struct phase_stats *stats;

	start = rdtsc();
	if (write)
		WRITE_ONCE(*(uint64_t *)gva, ++me->stamp);
	else
		READ_ONCE(*(uint64_t *)gva);
	end = rdtsc();

	ticks = end - start;
	stats = &me->stats->phases[phase_to_blame(began, start, end)];
	stats->histogram[bucket_of(ticks)]++;
	if (write)
		stats->writes++;
	else
		stats->reads++;
	if (ticks > stats->longest) {
		stats->longest = ticks;
		stats->longest_gva = gva;
		stats->longest_at = start;
	}

	me->accesses++;
	if (began != LIVE_POPULATE)
		count_window(me, end);
}

/* So that it does not stall anything later. */
static void touch_stats(struct vcpu_stats *stats)
{
	uint64_t offset;

	for (offset = 0; offset < layout.stride; offset += PAGE_SIZE) {
		uint64_t *word = (void *)stats + offset;

		WRITE_ONCE(*word, READ_ONCE(*word));
	}
}

/* Populate, and wait for the others. */
static void guest_populate(struct cursor *me, struct memstress_vcpu_args *args)
{
	uint64_t page;

	touch_stats(me->stats);
	for (page = 0; page < args->pages; page++)
		timed_access(me, args->gva + page * PAGE_SIZE, true, LIVE_POPULATE);

	__atomic_add_fetch(&layout.control->populated, 1, __ATOMIC_ACQ_REL);
	while (READ_ONCE(layout.control->phase) == LIVE_POPULATE)
		;
}

static uint64_t next_page(uint64_t page, uint64_t pages)
{
	page += layout.page_step;
	return page < pages ? page : 0;
}

static void access_test_memory(struct cursor *me, struct memstress_vcpu_args *args,
			       uint32_t phase)
{
	uint64_t page = me->page;
	bool write;

	if (memstress_args.random_access)
		page = guest_random_u32(&me->random) % me->steps * layout.page_step;
	else
		me->page = next_page(page, args->pages);

	write = __guest_random_bool(&me->random, me->write_percent);
	timed_access(me, args->gva + page * PAGE_SIZE, write, phase);
}

/* Not with PAUSE, which makes some processors exit. */
static void read_fresh(struct cursor *me, uint32_t vcpu, uint32_t phase)
{
	uint64_t now = rdtsc();
	uint64_t page = vcpu * layout.fresh_pages + me->fresh_next;

	if (now < me->fresh_due)
		return;

	if (me->fresh_next == layout.fresh_pages) {
		me->stats->exhausted_at = now;
		me->fresh_due = ULLONG_MAX;
		return;
	}

	me->fresh_next++;
	me->fresh_due = now + layout.fresh_ticks;
	timed_access(me, layout.fresh_gva + page * PAGE_SIZE, false, phase);
}

void live_guest_code(uint32_t vcpu)
{
	struct memstress_vcpu_args *args = &memstress_args.vcpu_args[vcpu];
	bool reads_only = vcpu < layout.readers;
	struct cursor me = {
		.stats = stats_of(layout.stats, vcpu),
		.random = new_guest_random_state(guest_random_seed + vcpu),
		.write_percent = reads_only ? 0 : memstress_args.write_percent,
		.stamp = (uint64_t)(vcpu + 1) << 48,
		.steps = DIV_ROUND_UP(args->pages, layout.page_step),
	};
	uint32_t phase;

	GUEST_ASSERT(args->vcpu_idx == vcpu);

	/*
	 * Nothing interrupts this guest.  But Bochs, if the guest disables
	 * interrupts, fails to exit for those of the host; and as there is no
	 * other reason to exit here, the host would wait forever.
	 */
	asm volatile("sti");
	guest_populate(&me, args);

	while ((phase = READ_ONCE(layout.control->phase)) != layout.nr_phases) {
		if (reads_only && layout.fresh_pages)
			read_fresh(&me, vcpu, phase);
		else
			access_test_memory(&me, args, phase);
	}

	me.stats->accesses = me.accesses;
	GUEST_SYNC(1);
}

bool guest_is_live(void)
{
	return layout.control;
}

/*
 * Setting up.
 */

static int count_phases(const struct test *test)
{
	int per_iteration = 2 + !!test->manual_caps + test->opts->verify;

	return LIVE_ENABLED + 1 + test->opts->iterations * per_iteration + 2;
}

/* Of the stretches alone, in microseconds. */
static uint64_t planned_us(const struct options *opts)
{
	return (3ULL + opts->iterations) * opts->live.stretch_ms * 1000;
}

static uint64_t us_to_ticks(uint64_t us)
{
	return us * guest_tsc_khz / 1000;
}

static uint64_t ticks_to_ns(uint64_t ticks)
{
	return ticks / guest_tsc_khz * 1000000 +
	       ticks % guest_tsc_khz * 1000000 / guest_tsc_khz;
}

static double ticks_to_us(uint64_t ticks)
{
	return ticks_to_ns(ticks) / 1000.0;
}

/* "tsc-early" is the same clock until its frequency has been refined. */
static bool host_relies_on_tsc(void)
{
	char *clock = sys_get_cur_clocksource();
	bool relies = !strcmp(clock, "tsc\n") || !strcmp(clock, "tsc-early\n");

	free(clock);
	return relies;
}

/* From here on, guests read the same clock as the host. */
static void set_up_clock(int nr_vcpus)
{
	uint64_t offset = 0;
	int i;

	__TEST_REQUIRE(host_relies_on_tsc(),
		       "The host's kernel does not rely on the TSC, so -l cannot either");

	for (i = 0; i < nr_vcpus; i++)
		vcpu_device_attr_set(memstress_args.vcpu_args[i].vcpu, KVM_VCPU_TSC_CTRL,
				     KVM_VCPU_TSC_OFFSET, &offset);
}

/* KVM changes offsets when it finds out that TSCs are not in step. */
static void check_clock(int nr_vcpus)
{
	uint64_t offset;
	int i;

	for (i = 0; i < nr_vcpus; i++) {
		vcpu_device_attr_get(memstress_args.vcpu_args[i].vcpu, KVM_VCPU_TSC_CTRL,
				     KVM_VCPU_TSC_OFFSET, &offset);
		TEST_ASSERT(!offset, "KVM moved the TSC of vCPU %d by %ld: the times are void",
			    i, (int64_t)offset);
	}
}

/* L1 maps whole GiB for L2, as far as the test memory reaches into them. */
static void check_nested(uint64_t gpa)
{
	if (memstress_args.nested && gpa < align_down(memstress_args.gpa, SZ_1G))
		usage_error("-l needs memory that L2 does not map: less of -b, -i, -D");
}

/* Below the memory that there is already, and mapped after it. */
static char *add_memory(struct live *live, int slot, uint64_t *gva, uint64_t *gpa,
			uint64_t bytes)
{
	struct kvm_vm *vm = live->test->vm;

	*gpa -= bytes;
	check_nested(*gpa);
	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS, *gpa, slot,
				    bytes / vm->page_size, 0);
	memstress_map_memory(vm, *gva, *gpa, bytes, SZ_2M);
	*gva += bytes;
	return addr_gpa2hva(vm, *gpa);
}

/* All pages become the zero page, so that KVM's faults need nothing else. */
static void map_fresh_memory(char *hva, uint64_t bytes)
{
	int ret = madvise(hva, bytes, MADV_POPULATE_READ);

	TEST_ASSERT(!ret, "madvise(MADV_POPULATE_READ) failed, errno %d", errno);
}

static void set_up_layout(const struct test *test)
{
	const struct live_options *opts = &test->opts->live;
	uint64_t room_us = ROOM_FACTOR * planned_us(test->opts);

	layout.readers = test->opts->readers;
	layout.page_step = page_step(test->opts);
	layout.nr_phases = count_phases(test);
	layout.nr_windows = min_t(uint64_t, room_us / opts->window_us + 2, MAX_WINDOWS);
	layout.window_ticks = us_to_ticks(opts->window_us);
	layout.fresh_pages = opts->fresh ? room_us / FRESH_PACE_US : 0;
	layout.fresh_ticks = us_to_ticks(FRESH_PACE_US);
	layout.stride = sizeof(struct vcpu_stats) +
			layout.nr_phases * sizeof(struct phase_stats) +
			layout.nr_windows * sizeof(uint32_t);
	layout.stride = align_up(layout.stride, PAGE_SIZE);
}

static void set_up_memory(struct live *live)
{
	const struct options *opts = live->test->opts;
	uint64_t control = align_up(sizeof(struct control) +
				    layout.nr_phases * sizeof(uint64_t), PAGE_SIZE);
	uint64_t bytes = align_up(control + opts->nr_vcpus * layout.stride, SZ_2M);
	uint64_t gva = align_up(memstress_args.vcpu_args[0].gva + memstress_args.size, SZ_1G);
	uint64_t gpa = align_down(memstress_args.gpa, SZ_2M);
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
		map_fresh_memory(hva, bytes);
	}
}

static uint64_t nr_test_pages(void)
{
	return memstress_args.size / PAGE_SIZE;
}

static void set_up(struct live *live, struct test *test)
{
	const struct options *opts = test->opts;

	memset(live, 0, sizeof(*live));
	live->test = test;

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

static void tear_down(struct live *live)
{
	free(live->spans);
	free(live->copies);
	free(live->changed);
}

/*
 * -V.  Pages are numbered through all slots.
 */

static uint64_t page_word(const struct live *live, uint64_t page)
{
	uint64_t *word = addr_gpa2hva(live->test->vm,
				      memstress_args.gpa + page * PAGE_SIZE);

	return READ_ONCE(*word);
}

/* As if all pages had been in the log. */
static void copy_all(struct live *live)
{
	uint64_t page;

	for (page = 0; page < nr_test_pages(); page++)
		live->copies[page] = page_word(live, page);
}

/* Before GET.  A page that was never copied differs from its copy, 0. */
static void note_changes(struct live *live)
{
	uint64_t page;

	for (page = 0; page < nr_test_pages(); page++)
		live->changed[page] = page_word(live, page) != live->copies[page];
}

/*
 * After GET and CLEAR.  What was written before CLEAR is in the copy; what is
 * written after it may be in the copy, too, and has to be in the next log.
 */
static void check_harvest(struct live *live, int iteration)
{
	uint64_t page, changed = 0, logged = 0;

	for (page = 0; page < nr_test_pages(); page++) {
		TEST_ASSERT(is_page_logged(live->test, page) || !live->changed[page],
			    "Iteration %d: gfn 0x%lx is not in the dirty log, although its content changed",
			    iteration, (memstress_args.gpa >> PAGE_SHIFT) + page);
		changed += live->changed[page];
		if (is_page_logged(live->test, page)) {
			logged++;
			live->copies[page] = page_word(live, page);
		}
	}
	pr_info("Iteration %d verified: %lu of %lu pages changed, %lu in the log\n",
		iteration, changed, nr_test_pages(), logged);
}

/*
 * The host's side of a run.
 */

static void read_span_stats(const struct live *live, struct span *span)
{
	if (live->test->opts->stats)
		kvm_stats_read(&span->stats);
}

static void begin_phase(struct live *live, enum live_phase phase, int iteration)
{
	uint32_t word = live->nr_spans | (live_phases[phase].action ? ACTION : 0);
	struct span *span = &live->spans[live->nr_spans++];

	read_span_stats(live, span);
	span->phase = phase;
	span->iteration = iteration;
	span->begin = rdtsc();
	live->control->begins[phase_number(word)] = span->begin;
	if (phase == LIVE_BASELINE)
		live->control->origin = span->begin;
	__atomic_store_n(&live->control->phase, word, __ATOMIC_RELEASE);
}

/* Ends the vCPUs. */
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
	usleep(live->test->opts->live.stretch_ms * 1000);
}

static void populate(struct live *live)
{
	begin_phase(live, LIVE_POPULATE, 0);
	crew_begin();
	while (__atomic_load_n(&live->control->populated, __ATOMIC_ACQUIRE) <
	       live->test->opts->nr_vcpus)
		usleep(1000);

	if (live->test->opts->verify)
		verify_populated(live->test);
}

static void enable(struct live *live)
{
	const struct test *test = live->test;

	begin_phase(live, LIVE_ENABLE, 0);
	memstress_enable_dirty_logging(test->vm, test->opts->slots);

	begin_phase(live, LIVE_ENABLED, 0);
	if (test->opts->verify && !initially_set(test)) {
		verify_split(test, "enabling");
		copy_all(live);
	}
	run_on(live);
}

static void harvest(struct live *live, int iteration)
{
	const struct test *test = live->test;

	if (test->opts->verify)
		note_changes(live);

	begin_phase(live, LIVE_GET, iteration);
	memstress_get_dirty_log(test->vm, test->bitmaps, test->opts->slots);

	if (test->manual_caps) {
		begin_phase(live, LIVE_CLEAR, iteration);
		memstress_clear_dirty_log(test->vm, test->bitmaps, test->opts->slots,
					  test->pages_per_slot);
	}

	if (test->opts->verify) {
		begin_phase(live, LIVE_VERIFY, iteration);
		check_harvest(live, iteration);
		if (initially_set(test))
			verify_split(test, "clearing");
	}
}

static void disable(struct live *live)
{
	begin_phase(live, LIVE_DISABLE, 0);
	memstress_disable_dirty_logging(live->test->vm, live->test->opts->slots);
}

static void run(struct live *live)
{
	int i;

	populate(live);
	begin_phase(live, LIVE_BASELINE, 0);
	run_on(live);
	enable(live);
	for (i = 1; i <= live->test->opts->iterations; i++) {
		harvest(live, i);
		begin_phase(live, LIVE_LOGGING, i);
		run_on(live);
	}
	disable(live);
	begin_phase(live, LIVE_DISABLED, 0);
	run_on(live);
	end_phases(live);
	crew_end();
}

/*
 * Do guest and host agree?
 */

static enum kind kind_of(int vcpu)
{
	return vcpu < layout.readers ? READERS : WRITERS;
}

static uint64_t accesses_of(const struct phase_stats *stats)
{
	return stats->reads + stats->writes;
}

static uint64_t histogram_sum(const struct phase_stats *stats)
{
	uint64_t sum = 0;
	int i;

	for (i = 0; i < NR_BUCKETS; i++)
		sum += stats->histogram[i];
	return sum;
}

static uint64_t window_sum(struct vcpu_stats *stats)
{
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < layout.nr_windows; i++)
		sum += windows_of(stats)[i];
	return sum;
}

static void check_phase(const struct live *live, int vcpu, int phase,
			const struct phase_stats *stats)
{
	uint64_t sum = histogram_sum(stats);

	TEST_ASSERT(sum == accesses_of(stats),
		    "vCPU %d, phase %d: %lu accesses by latency, but %lu reads and %lu writes",
		    vcpu, phase, sum, stats->reads, stats->writes);
	/* An access may begin after the end of the run, before the vCPU sees it. */
	TEST_ASSERT(!stats->longest ||
		    (stats->longest_at >= live->spans[0].begin &&
		     stats->longest_at < rdtsc()),
		    "vCPU %d, phase %d: the longest stall was outside of the run: the clocks differ",
		    vcpu, phase);
	TEST_ASSERT(!stats->writes || kind_of(vcpu) == WRITERS || phase == LIVE_POPULATE,
		    "vCPU %d, phase %d: %lu writes, although it only reads",
		    vcpu, phase, stats->writes);
}

static uint64_t vcpu_stat(struct kvm_vcpu *vcpu, const char *name)
{
	struct kvm_stats_header header;
	struct kvm_stats_desc *descs, *desc;
	int i, fd = vcpu_get_stats_fd(vcpu);
	uint64_t value = 0;

	read_stats_header(fd, &header);
	descs = read_stats_descriptors(fd, &header);
	for (i = 0; i < header.num_desc; i++) {
		desc = get_stats_descriptor(descs, i, &header);
		if (!strcmp(desc->name, name))
			read_stat_data(fd, &header, desc, &value, 1);
	}
	free(descs);
	close(fd);
	return value;
}

/* Otherwise KVM mapped pages ahead, and not every read needed mmu_lock. */
static void check_faults(int vcpu, uint64_t reads)
{
	uint64_t faults = vcpu_stat(memstress_args.vcpu_args[vcpu].vcpu, "pf_taken");

	TEST_ASSERT(faults >= reads, "vCPU %d: %lu fresh reads, but only %lu page faults",
		    vcpu, reads, faults);
}

static void check_vcpu(const struct live *live, int vcpu)
{
	struct vcpu_stats *stats = stats_of(live->stats, vcpu);
	uint64_t populated = accesses_of(&stats->phases[LIVE_POPULATE]);
	uint64_t pages = memstress_args.vcpu_args[vcpu].pages;
	uint64_t windows = window_sum(stats);
	uint64_t phases = 0;
	int i;

	for (i = 0; i < layout.nr_phases; i++) {
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
	if (layout.fresh_pages && kind_of(vcpu) == READERS)
		check_faults(vcpu, phases - populated);
}

static void check_results(const struct live *live)
{
	int i;

	check_clock(live->test->opts->nr_vcpus);
	for (i = 0; i < live->test->opts->nr_vcpus; i++)
		check_vcpu(live, i);
}

/*
 * Evaluation.
 */

/* Accesses of all vCPUs of a kind in one phase. */
struct sum {
	struct phase_stats stats;
	/* The vCPU that @stats.longest is of. */
	int vcpu;
};

/* Successive phases that are judged as a whole. */
struct course {
	/* Part of the output format. */
	const char *name;
	enum live_phase first;
	/* The first phase that no longer belongs to it. */
	enum live_phase end;
};

/* As dirty logging costs vCPUs something for different reasons. */
static const struct course courses[] = {
	{ "logging", LIVE_ENABLE, LIVE_DISABLE },
	{ "disabling", LIVE_DISABLE, LIVE_DISABLED },
};

/* What a kind's throughput went through in a course. */
struct dip {
	/* Mean number of accesses in a window of the baseline, 0 if unknown. */
	double baseline;
	uint64_t lowest;
	/* The first window with that many. */
	uint32_t lowest_window;
	/* Windows with less than half of the baseline. */
	uint32_t below_half;
};

static void sum_add(struct sum *sum, const struct phase_stats *one, int vcpu)
{
	int i;

	sum->stats.reads += one->reads;
	sum->stats.writes += one->writes;
	for (i = 0; i < NR_BUCKETS; i++)
		sum->stats.histogram[i] += one->histogram[i];

	if (one->longest > sum->stats.longest) {
		sum->stats.longest = one->longest;
		sum->stats.longest_gva = one->longest_gva;
		sum->stats.longest_at = one->longest_at;
		sum->vcpu = vcpu;
	}
}

static struct sum sum_up(const struct live *live, enum kind kind, int phase)
{
	struct sum sum = {};
	int i;

	for (i = 0; i < live->test->opts->nr_vcpus; i++) {
		if (kind_of(i) == kind)
			sum_add(&sum, &stats_of(live->stats, i)->phases[phase], i);
	}
	return sum;
}

static int nr_of_kind(const struct live *live, enum kind kind)
{
	return kind == READERS ? layout.readers :
				 live->test->opts->nr_vcpus - layout.readers;
}

/* The latency that @share of all accesses do not exceed; at least one access. */
static uint64_t percentile(const struct phase_stats *stats, double share)
{
	uint64_t accesses = accesses_of(stats), seen = 0;
	int i;

	for (i = 0; i < NR_BUCKETS; i++) {
		seen += stats->histogram[i];
		if (seen && seen >= accesses * share)
			return min(bucket_end(i), stats->longest);
	}
	return stats->longest;
}

static uint64_t span_ticks(const struct live *live, int phase)
{
	return live->spans[phase + 1].begin - live->spans[phase].begin;
}

static double per_second(const struct live *live, int phase, uint64_t accesses)
{
	return accesses * 1e9 / max_t(uint64_t, ticks_to_ns(span_ticks(live, phase)), 1);
}

static uint64_t gfn_of(const struct live *live, uint64_t gva)
{
	uint64_t gpa = memstress_args.gpa + gva - memstress_args.vcpu_args[0].gva;

	if (layout.fresh_pages && gva >= layout.fresh_gva)
		gpa = live->fresh_gpa + gva - layout.fresh_gva;
	return gpa / PAGE_SIZE;
}

/* Since the timeline began; negative while populating. */
static double timeline_us(const struct live *live, uint64_t tsc)
{
	uint64_t origin = live->control->origin;

	return tsc < origin ? -ticks_to_us(origin - tsc) : ticks_to_us(tsc - origin);
}

/* As long as the timeline is, i.e. vCPUs ran; more than are kept if it overflowed. */
static uint64_t windows_needed(const struct live *live)
{
	uint64_t end = live->spans[layout.nr_phases].begin;

	return (end - live->control->origin) / layout.window_ticks + 1;
}

static uint32_t windows_used(const struct live *live)
{
	return min_t(uint64_t, windows_needed(live), layout.nr_windows);
}

static uint64_t window_begin(const struct live *live, uint32_t window)
{
	return live->control->origin + window * layout.window_ticks;
}

static uint64_t window_accesses(const struct live *live, enum kind kind, uint32_t window)
{
	uint64_t sum = 0;
	int i;

	for (i = 0; i < live->test->opts->nr_vcpus; i++) {
		if (kind_of(i) == kind)
			sum += windows_of(stats_of(live->stats, i))[window];
	}
	return sum;
}

/* The phase of that moment. */
static int phase_at(const struct live *live, uint64_t tsc)
{
	int phase = 0;

	while (phase + 1 < layout.nr_phases && live->spans[phase + 1].begin <= tsc)
		phase++;
	return phase;
}

static int find_phase(const struct live *live, enum live_phase phase)
{
	int i = 0;

	while (live->spans[i].phase != phase)
		i++;
	return i;
}

static double baseline_mean(const struct live *live, enum kind kind)
{
	uint64_t end = live->spans[find_phase(live, LIVE_ENABLE)].begin;
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < windows_used(live) && window_begin(live, i + 1) <= end; i++)
		sum += window_accesses(live, kind, i);
	return i ? (double)sum / i : 0;
}

/* Windows that begin in the course, as far as vCPUs ran to their end. */
static struct dip find_dip(const struct live *live, enum kind kind,
			   const struct course *course)
{
	uint64_t begin = live->spans[find_phase(live, course->first)].begin;
	uint64_t end = live->spans[find_phase(live, course->end)].begin;
	struct dip dip = { .baseline = baseline_mean(live, kind), .lowest = ULLONG_MAX };
	uint64_t accesses;
	uint32_t i;

	for (i = 0; i + 1 < windows_used(live); i++) {
		if (window_begin(live, i) < begin || window_begin(live, i) >= end)
			continue;

		accesses = window_accesses(live, kind, i);
		if (accesses < dip.lowest) {
			dip.lowest = accesses;
			dip.lowest_window = i;
		}
		dip.below_half += accesses < dip.baseline / 2;
	}
	if (dip.lowest == ULLONG_MAX)
		dip.baseline = 0;
	return dip;
}

/* Returns its phase. */
static int find_longest(const struct live *live, enum kind kind,
			const struct course *course, uint64_t *longest)
{
	int i, phase = find_phase(live, course->first);
	struct sum sum;

	*longest = 0;
	for (i = phase; live->spans[i].phase != course->end; i++) {
		sum = sum_up(live, kind, i);
		if (sum.stats.longest > *longest) {
			*longest = sum.stats.longest;
			phase = i;
		}
	}
	return phase;
}

/*
 * Output for people.
 */

/* E.g. "clear 1".  Valid until the next call. */
static const char *span_name(const struct span *span)
{
	static char name[32];

	if (!span->iteration)
		return live_phases[span->phase].name;

	snprintf(name, sizeof(name), "%s %d", live_phases[span->phase].name, span->iteration);
	return name;
}

/* The lines that are the same without -l. */
static void report_actions(const struct live *live)
{
	static const enum phase phases[] = {
		[LIVE_POPULATE]	= PHASE_POPULATE,
		[LIVE_ENABLE]	= PHASE_ENABLE,
		[LIVE_GET]	= PHASE_GET,
		[LIVE_CLEAR]	= PHASE_CLEAR,
		[LIVE_DISABLE]	= PHASE_DISABLE,
	};
	const struct span *span;
	int i;

	for (i = 0; i < layout.nr_phases; i++) {
		span = &live->spans[i];
		if (span->phase == LIVE_POPULATE || live_phases[span->phase].action)
			phase_done(live->test, phases[span->phase], span->iteration,
				   timespec_add_ns((struct timespec){},
						   ticks_to_ns(span_ticks(live, i))));
	}
}

static void report_spans(const struct live *live)
{
	int i;

	kvm_parameters_print();
	pr_info("Timeline, by the TSC at %lu kHz, in windows of %u us:\n",
		guest_tsc_khz, live->test->opts->live.window_us);
	pr_info("%-12s %14s %14s %14s\n", "phase", "begin us", "end us", "length us");
	for (i = 0; i < layout.nr_phases; i++)
		pr_info("%-12s %14.2f %14.2f %14.2f\n", span_name(&live->spans[i]),
			timeline_us(live, live->spans[i].begin),
			timeline_us(live, live->spans[i + 1].begin),
			ticks_to_us(span_ticks(live, i)));
}

static uint64_t writes_in(const struct live *live, int phase)
{
	return sum_up(live, WRITERS, phase).stats.writes;
}

static void report_stats(const struct live *live)
{
	int i;

	pr_info("\n");
	for (i = 0; i < layout.nr_phases; i++) {
		pr_info("%s", span_name(&live->spans[i]));
		kvm_stats_print(&live->spans[i].stats, &live->spans[i + 1].stats,
				writes_in(live, i));
	}
}

static void report_latency(const struct live *live, enum kind kind, int phase)
{
	struct sum sum = sum_up(live, kind, phase);
	const struct phase_stats *stats = &sum.stats;

	pr_info("%-6s %-12s %12lu %13.0f %9.2f %9.2f %9.2f %12.2f",
		kind_names[kind], span_name(&live->spans[phase]), accesses_of(stats),
		per_second(live, phase, accesses_of(stats)),
		ticks_to_us(percentile(stats, 0.5)), ticks_to_us(percentile(stats, 0.99)),
		ticks_to_us(percentile(stats, 0.999)), ticks_to_us(stats->longest));
	if (stats->longest)
		pr_info("  vCPU %d gfn 0x%lx at %.2f us", sum.vcpu,
			gfn_of(live, stats->longest_gva), timeline_us(live, stats->longest_at));
	pr_info("\n");
}

static void report_table(const struct live *live)
{
	enum kind kind;
	int i;

	pr_info("\n%-6s %-12s %12s %13s %9s %9s %9s %12s\n", "vCPUs", "phase", "accesses",
		"accesses/s", "p50 us", "p99 us", "p99.9 us", "longest us");
	for (kind = 0; kind < NR_KINDS; kind++) {
		for (i = 0; nr_of_kind(live, kind) && i < layout.nr_phases; i++)
			report_latency(live, kind, i);
	}
}

static void report_course(const struct live *live, enum kind kind,
			  const struct course *course)
{
	struct dip dip = find_dip(live, kind, course);
	uint64_t longest;
	int phase = find_longest(live, kind, course, &longest);

	pr_info("While %s, longest stall of a %s: %.2f us in phase %s\n", course->name,
		kind_names[kind], ticks_to_us(longest), span_name(&live->spans[phase]));

	if (!dip.baseline) {
		pr_info("While %s, no dip of %ss: no window, or none of the baseline\n",
			course->name, kind_names[kind]);
		return;
	}
	pr_info("While %s, dip of %ss: %lu of %.1f accesses per window (%.1f%%) at %lu us, %u windows below half\n",
		course->name, kind_names[kind], dip.lowest, dip.baseline,
		dip.lowest * 100 / dip.baseline,
		(uint64_t)dip.lowest_window * live->test->opts->live.window_us,
		dip.below_half);
}

static void report_kind(const struct live *live, enum kind kind)
{
	int i;

	for (i = 0; nr_of_kind(live, kind) && i < ARRAY_SIZE(courses); i++)
		report_course(live, kind, &courses[i]);
}

static void report_mix(const struct live *live)
{
	uint64_t writes = 0, accesses = 0;
	struct sum sum;
	int i;

	for (i = LIVE_BASELINE; i < layout.nr_phases; i++) {
		sum = sum_up(live, WRITERS, i);
		writes += sum.stats.writes;
		accesses += accesses_of(&sum.stats);
	}
	if (accesses)
		pr_info("Writes of the writers: %lu of %lu accesses (%.2f%%)\n",
			writes, accesses, writes * 100.0 / accesses);
}

static void report_overflows(const struct live *live)
{
	uint64_t needed = windows_needed(live), at;
	int i;

	if (needed > layout.nr_windows)
		pr_info("Timeline too short: %lu windows needed, the last of %u has the rest\n",
			needed, layout.nr_windows);

	for (i = 0; i < layout.readers; i++) {
		at = stats_of(live->stats, i)->exhausted_at;
		if (at)
			pr_info("vCPU %d had read all of its %lu fresh pages at %.2f us, phase %s\n",
				i, layout.fresh_pages, timeline_us(live, at),
				span_name(&live->spans[phase_at(live, at)]));
	}
}

/* With the phase that a window begins in and those that begin in it. */
static void report_window(const struct live *live, uint32_t window)
{
	int phase = phase_at(live, window_begin(live, window));

	pr_info("Window %u at %lu us: %lu by writers, %lu by readers, %s", window,
		(uint64_t)window * live->test->opts->live.window_us,
		window_accesses(live, WRITERS, window),
		window_accesses(live, READERS, window), span_name(&live->spans[phase]));
	while (++phase < layout.nr_phases &&
	       live->spans[phase].begin < window_begin(live, window + 1))
		pr_info(", %s", span_name(&live->spans[phase]));
	pr_info("\n");
}

static void report(const struct live *live)
{
	enum kind kind;
	uint32_t i;

	report_actions(live);
	report_spans(live);
	if (live->test->opts->live.timeline) {
		for (i = 0; i < windows_used(live); i++)
			report_window(live, i);
	}
	report_table(live);
	if (live->test->opts->stats)
		report_stats(live);
	pr_info("\n");
	report_mix(live);
	for (kind = 0; kind < NR_KINDS; kind++)
		report_kind(live, kind);
	if (layout.fresh_pages)
		pr_info("Readers read a page that is not mapped every %d us at most\n",
			FRESH_PACE_US);
	report_overflows(live);
}

/*
 * Output for programs: JSON objects, one per line, each with all dimensions.
 */

static void json_live_dimensions(const struct live *live, const char *record)
{
	const struct live_options *opts = &live->test->opts->live;

	json_dimensions(live->test, record);
	fprintf(json_out, ", \"fresh\": %s, \"window_us\": %u",
		json_bool(opts->fresh), opts->window_us);
	fprintf(json_out, ", \"stretch_ms\": %u, \"tsc_khz\": %lu",
		opts->stretch_ms, guest_tsc_khz);
}

static void json_phase(const struct span *span)
{
	fprintf(json_out, ", \"phase\": \"%s\"", live_phases[span->phase].name);
	json_iteration(span->iteration);
}

static void json_histogram(const struct phase_stats *stats)
{
	const char *separator = "";
	int i;

	/* Upper bounds, in ticks. */
	fprintf(json_out, ", \"histogram\": [");
	for (i = 0; i < NR_BUCKETS; i++) {
		if (!stats->histogram[i])
			continue;
		fprintf(json_out, "%s[%lu, %lu]", separator, bucket_end(i), stats->histogram[i]);
		separator = ", ";
	}
	fprintf(json_out, "]");
}

static void json_latency(const struct live *live, int phase,
			 const struct phase_stats *stats)
{
	json_phase(&live->spans[phase]);
	fprintf(json_out, ", \"begin_us\": %.3f, \"seconds\": %.9f",
		timeline_us(live, live->spans[phase].begin),
		ticks_to_ns(span_ticks(live, phase)) / 1e9);
	fprintf(json_out, ", \"reads\": %lu, \"writes\": %lu, \"accesses_per_second\": %.1f",
		stats->reads, stats->writes, per_second(live, phase, accesses_of(stats)));
	fprintf(json_out, ", \"p50_us\": %.3f, \"p99_us\": %.3f, \"p99_9_us\": %.3f",
		ticks_to_us(percentile(stats, 0.5)), ticks_to_us(percentile(stats, 0.99)),
		ticks_to_us(percentile(stats, 0.999)));
	fprintf(json_out, ", \"longest_us\": %.3f", ticks_to_us(stats->longest));
	if (stats->longest)
		fprintf(json_out, ", \"longest_gfn\": %lu, \"longest_at_us\": %.3f",
			gfn_of(live, stats->longest_gva), timeline_us(live, stats->longest_at));
	else
		fprintf(json_out, ", \"longest_gfn\": null, \"longest_at_us\": null");
	json_histogram(stats);
	fprintf(json_out, "}\n");
}

static void json_kind(const struct live *live, enum kind kind)
{
	struct sum sum;
	int i;

	for (i = 0; i < layout.nr_phases; i++) {
		sum = sum_up(live, kind, i);
		json_live_dimensions(live, "kind");
		fprintf(json_out, ", \"kind\": \"%s\"", kind_names[kind]);
		json_latency(live, i, &sum.stats);
	}
}

static void json_dip(const struct live *live, enum kind kind,
		     const struct course *course)
{
	struct dip dip = find_dip(live, kind, course);

	if (!dip.baseline)
		return;

	json_live_dimensions(live, "dip");
	fprintf(json_out, ", \"kind\": \"%s\", \"course\": \"%s\", \"baseline_per_window\": %.3f",
		kind_names[kind], course->name, dip.baseline);
	fprintf(json_out, ", \"lowest\": %lu, \"lowest_window\": %u, \"windows_below_half\": %u}\n",
		dip.lowest, dip.lowest_window, dip.below_half);
}

static void json_vcpu(const struct live *live, int vcpu)
{
	struct vcpu_stats *stats = stats_of(live->stats, vcpu);
	int i;

	for (i = 0; i < layout.nr_phases; i++) {
		json_live_dimensions(live, "vcpu");
		fprintf(json_out, ", \"kind\": \"%s\", \"vcpu\": %d",
			kind_names[kind_of(vcpu)], vcpu);
		json_latency(live, i, &stats->phases[i]);
	}
}

static void json_window(const struct live *live, uint32_t window)
{
	int phase = phase_at(live, window_begin(live, window));

	json_live_dimensions(live, "window");
	json_phase(&live->spans[phase]);
	fprintf(json_out, ", \"window\": %u, \"begin_us\": %lu", window,
		(uint64_t)window * live->test->opts->live.window_us);
	fprintf(json_out, ", \"writer_accesses\": %lu, \"reader_accesses\": %lu}\n",
		window_accesses(live, WRITERS, window), window_accesses(live, READERS, window));
}

static void json_stats(const struct live *live, int phase)
{
	json_live_dimensions(live, "stats");
	json_phase(&live->spans[phase]);
	kvm_stats_json(&live->spans[phase].stats, &live->spans[phase + 1].stats,
		       writes_in(live, phase));
	fprintf(json_out, "}\n");
}

static void json_all(const struct live *live)
{
	enum kind kind;
	uint32_t window;
	int i;

	for (kind = 0; kind < NR_KINDS; kind++) {
		if (!nr_of_kind(live, kind))
			continue;

		json_kind(live, kind);
		for (i = 0; i < ARRAY_SIZE(courses); i++)
			json_dip(live, kind, &courses[i]);
	}
	for (i = 0; i < live->test->opts->nr_vcpus; i++)
		json_vcpu(live, i);
	for (i = 0; live->test->opts->stats && i < layout.nr_phases; i++)
		json_stats(live, i);
	for (window = 0; window < windows_used(live); window++)
		json_window(live, window);
}

void live_run(struct test *test)
{
	struct live live;

	set_up(&live, test);
	run(&live);
	check_results(&live);
	report(&live);
	if (json_out)
		json_all(&live);
	tear_down(&live);
}
