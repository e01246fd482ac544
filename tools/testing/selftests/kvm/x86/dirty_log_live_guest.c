// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest of dirty_log_live_perf_test: it accesses memory all the time, and
 * measures how long each access takes.  The code must not fault otherwise, so
 * it touches in advance all memory that it uses for itself.
 */
#include "dirty_log_live.h"

struct layout layout;

/* A vCPU's own variables, on its stack. */
struct cursor {
	struct vcpu_stats *stats;
	struct kvm_random_state random;
	u32 write_percent;
	u64 accesses;
	/* The next page to access, in order, and how many there are. */
	u64 page;
	u64 steps;
	/* The last value written.  All values of a VM differ, and none is 0. */
	u64 stamp;
	u64 window;
	u64 window_end;
	/*
	 * The next fresh page, and when to read it (never, if it is U64_MAX).
	 */
	u64 fresh_next;
	u64 fresh_due;
};

static int bucket_of(u64 ticks)
{
	int shift;

	if (ticks < STEPS)
		return ticks;

	shift = 63 - __builtin_clzll(ticks) - STEP_BITS;
	return shift * STEPS + (ticks >> shift);
}

u64 bucket_end(int bucket)
{
	int shift = bucket / STEPS - 1;

	if (shift < 0)
		return bucket;

	return ((bucket - shift * STEPS + 1ULL) << shift) - 1;
}

/* Return: the phase that an access belongs to, usually the one in which it began. */
static u32 phase_to_blame(u32 began, u64 start, u64 end)
{
	u32 now = READ_ONCE(layout.control->phase);
	u32 next = phase_number(began) + 1;

	if (now == began || began & ACTION || next == layout.nr_phases ||
	    start + (end - start) / 2 < layout.control->begins[next])
		return phase_number(began);

	return next;
}

static void count_window(struct cursor *me, u64 end)
{
	if (end >= me->window_end) {
		me->window = (end - layout.control->origin) / layout.window_ticks;
		me->window_end = layout.control->origin + (me->window + 1) * layout.window_ticks;
		me->window = min_t(u64, me->window, layout.nr_windows - 1);
	}
	windows_of(me->stats)[me->window]++;
}

static void timed_access(struct cursor *me, u64 gva, bool write, u32 began)
{
	u64 start, end, ticks;
	struct phase_stats *stats;

	start = rdtsc();
	if (write)
		WRITE_ONCE(*(u64 *)gva, ++me->stamp);
	else
		READ_ONCE(*(u64 *)gva);
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
	if (began != PHASE_POPULATE)
		count_window(me, end);
}

/*
 * Write to all of the statistics, so that no fault there stalls the vCPU later.
 */
static void touch_stats(struct vcpu_stats *stats)
{
	for (u64 offset = 0; offset < layout.stride; offset += PAGE_SIZE) {
		u64 *word = (void *)stats + offset;

		WRITE_ONCE(*word, READ_ONCE(*word));
	}
}

/* Populate, and wait for the other vCPUs. */
static void guest_populate(struct cursor *me, struct memstress_vcpu_args *args)
{
	touch_stats(me->stats);
	for (u64 page = 0; page < args->pages; page++)
		timed_access(me, args->gva + page * PAGE_SIZE, true, PHASE_POPULATE);

	__atomic_add_fetch(&layout.control->populated, 1, __ATOMIC_ACQ_REL);
	while (READ_ONCE(layout.control->phase) == PHASE_POPULATE)
		;
}

static void access_test_memory(struct cursor *me, struct memstress_vcpu_args *args, u32 phase)
{
	u64 page = me->page, next = page + layout.page_step;
	bool write;

	if (memstress_args.random_access)
		page = kvm_random_u32(&me->random) % me->steps * layout.page_step;
	else
		me->page = next < args->pages ? next : 0;

	write = __kvm_random_bool(&me->random, me->write_percent);
	timed_access(me, args->gva + page * PAGE_SIZE, write, phase);
}

/*
 * Called in a loop until the read is due.  No PAUSE, as that may cause an exit.
 */
static void read_fresh(struct cursor *me, u32 vcpu, u32 phase)
{
	u64 now = rdtsc();
	u64 page = vcpu * layout.fresh_pages + me->fresh_next;

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

/* Replaces the library's weak definition.  With -n it runs in L2. */
void memstress_guest_code(u32 vcpu)
{
	struct memstress_vcpu_args *args = &memstress_args.vcpu_args[vcpu];
	bool reads_only = vcpu < layout.readers;
	struct cursor me = {
		.stats = stats_of(layout.stats, vcpu),
		.random = new_kvm_random_state(kvm_random_seed + vcpu),
		.write_percent = reads_only ? 0 : memstress_args.write_percent,
		.stamp = (u64)(vcpu + 1) << 48,
		.steps = DIV_ROUND_UP(args->pages, layout.page_step),
	};
	u32 phase;

	GUEST_ASSERT(args->vcpu_idx == vcpu);

	/*
	 * Nothing interrupts this guest.  But in Bochs, interrupts of the host
	 * do not cause exits while the guest has interrupts off.  As there is
	 * no other reason to exit here, the host would wait forever.
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
