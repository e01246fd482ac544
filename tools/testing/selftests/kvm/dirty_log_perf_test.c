// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long each phase of dirty logging takes, as user space sees it
 *
 * Phases, in this order:
 *   populate   all vCPUs write to all of their memory, nothing is logged
 *   enable     dirty logging is enabled on all test slots
 *   dirty      all vCPUs access their memory once      \
 *   get        KVM_GET_DIRTY_LOG on all test slots      > once per iteration
 *   clear      KVM_CLEAR_DIRTY_LOG on all test slots   /
 *   disable    dirty logging is disabled on all test slots
 *
 * With --cycles, all phases from "enable" to "disable" are repeated in the same
 * VM.  The memory is populated once, before the first cycle.  If huge pages are
 * restored completely when logging is disabled, a phase takes as long in each
 * cycle.
 *
 * Method.  Each vCPU has a thread, which sleeps while the vCPU has nothing to
 * do.  The main thread sleeps while vCPUs run.  So vCPUs compete only with each
 * other, and ioctls of the main thread with nothing (but see -e).  The clock of
 * a pass starts when all vCPU threads are awake, just before the first of them
 * enters the guest, and stops with the last return from KVM_RUN.  It does not
 * include waking threads up and putting them to sleep.
 *
 * With KVM_DIRTY_LOG_INITIALLY_SET (the default), dirty logging costs nothing
 * until the first CLEAR.  So iteration 1 is a baseline without logging, and
 * iteration 2 is the first to pay for write-protection.
 *
 * With --tracked, "enable" comes before "populate", and no bit of the log is
 * set initially, as for VMMs that always track dirty pages.  With --read-first,
 * the guest writes nothing before iteration 2.  With both options, pages that
 * GET returns in iteration 1 were only read.
 *
 * "--pattern clean" implies --read-first.  The Dirty bits in the guest's page
 * tables are clear until iteration 2, so shadow paging maps the memory
 * read-only.  With "--pattern regions", the guest writes to whole regions of
 * 2MiB, to as many as -w says.  Then -j adds lines that say how much memory is
 * mapped by pages of each size before logging is disabled, and how many page
 * tables were added since the memory was populated.  With --tracked, there are
 * such lines after populating and after each iteration, and they count page
 * tables from just before populating on.
 *
 * -V checks, in each cycle, that the log contains all pages that the guest has
 * written, that the share of writes is that of -w, and that KVM's page sizes are
 * those that eager page splitting promises.  Between two cycles, it reads all
 * memory, and checks that as many huge pages map it as before the first cycle.
 * It accesses guest memory between phases, which changes their times.  --stats
 * reads statistics between phases, never during one.
 *
 * Limits:
 *  - The time of a pass is that of the slowest vCPU.  It says nothing about the
 *    other vCPUs, or about how long a single access stalls.
 *  - vCPUs do not run while logging is enabled, read and cleared.  How these
 *    phases slow down a running guest is measured by dirty_log_live_perf_test,
 *    on x86.
 *  - With more vCPUs than CPUs, the test measures the scheduler.
 *  - The guest accesses one word per page, which is the worst case for dirty
 *    logging, and not a real workload.
 */
#include "ucall_common.h"
#include "dirty_log_perf.h"

/*
 * The guest writes only the first word of a page.  In pages that it has not
 * written, this is the value of that word.
 */
#define UNWRITTEN	0ULL

/* 1 if the host maps a huge page of zeroes where nothing was written yet. */
#define USE_ZERO_PAGE	"/sys/kernel/mm/transparent_hugepage/use_zero_page"

/*
 * What a vCPU shall do in a pass, and what it has done.  This is guest memory.
 * The main thread accesses it while the vCPU does not run.
 */
struct guest_job {
	/* How many accesses a pass has. */
	u64 steps;
	/* Bytes from args->gva to the first page, and from one page to the next. */
	u64 first;
	u64 stride;
	u32 write_percent;
	/* PATTERN_REGIONS: the first region, counted from that of vCPU 0 on. */
	u32 first_region;
	bool regions;
	bool random;
	/* Accesses of all passes since the main thread reset this. */
	struct accesses done;
	/* What map_code() lets the vCPU access. */
	u64 scratch;
} __aligned(64);

static struct guest_job guest_jobs[KVM_MAX_VCPUS];

/* How many guest pages were written, and how many are in the log. */
struct tally {
	s64 written;
	s64 logged;
};

/*
 * Draw for each access whether it is a write, even if all accesses are writes
 * or none is, so that the cost of an access does not depend on -w.  All
 * variables fit into registers, so counting does not make an access more
 * expensive.
 */
static u64 guest_pass(const struct guest_job *job, struct kvm_random_state *random, u64 gva)
{
	u64 step, writes = 0, steps = job->steps;
	u64 *word;
	bool write;

	for (u64 i = 0; i < steps; i++) {
		step = job->random ? kvm_random_u32(random) % steps : i;
		write = kvm_random_u32(random) % 100 < job->write_percent;
		word = (u64 *)(gva + step * job->stride);

		if (write) {
			WRITE_ONCE(*word, ~UNWRITTEN);
			writes++;
		} else {
			READ_ONCE(*word);
		}
	}
	return writes;
}

/*
 * Return: 100 if the region shall be written, else 0.  Of any consecutive
 * regions, @percent are written, to within one region.
 */
static u32 region_percent(u64 region, u64 percent)
{
	return (region + 1) * percent / 100 > region * percent / 100 ? 100 : 0;
}

/* Access all of a vCPU's memory, at once or region by region. */
static u64 guest_passes(const struct guest_job *job, struct kvm_random_state *random, u64 gva)
{
	struct guest_job part = *job;
	u64 region = job->first_region, writes = 0;

	if (job->regions)
		part.steps = SPARSE_BYTES / job->stride;

	for (u64 done = 0; done < job->steps; done += part.steps) {
		if (job->regions)
			part.write_percent = region_percent(region++, job->write_percent);
		writes += guest_pass(&part, random, gva + done * job->stride);
	}
	return writes;
}

/* Replaces the library's weak definition.  With -n it runs in L2. */
void memstress_guest_code(u32 vcpu)
{
	struct memstress_vcpu_args *args = &memstress_args.vcpu_args[vcpu];
	struct guest_job *job = &guest_jobs[vcpu];
	struct kvm_random_state random;
	u64 writes;

	random = new_kvm_random_state(kvm_random_seed + vcpu);
	GUEST_ASSERT(args->vcpu_idx == vcpu);

	for (;;) {
		writes = guest_passes(job, &random, args->gva + job->first);
		job->done.writes += writes;
		job->done.reads += job->steps - writes;
		GUEST_SYNC(1);
	}
}

/* Return: the job of a vCPU, for the host. */
static struct guest_job *job_of(const struct test *test, int vcpu)
{
	return addr_gva2hva(test->vm, (gva_t)&guest_jobs[vcpu]);
}

/* KVM does not log these writes of the host.  vCPUs must not be running. */
static void verify_prepare(const struct test *test)
{
	char *hva;

	for (int slot = 0; slot < test->opts->slots; slot++) {
		hva = addr_gpa2hva(test->vm, slot_gpa(test, slot));
		for (u64 offset = 0; offset < slot_bytes(test);
		     offset += memstress_args.guest_page_size)
			WRITE_ONCE(*(u64 *)(hva + offset), UNWRITTEN);
	}
}

/* Let the first vCPU do a job, which is not counted. */
static void run_job(const struct test *test, const struct guest_job *other)
{
	struct guest_job *job = job_of(test, 0), old = *job;

	*job = *other;
	run_vcpu_once(&memstress_args.vcpu_args[0]);
	*job = old;
}

/*
 * KVM maps a page of the guest's code when the guest first executes it.  When
 * the guest populates memory, it only reads, or only writes, and in order.
 */
static void map_code(const struct test *test)
{
	struct guest_job job = {
		.first = (gva_t)&guest_jobs[0].scratch - memstress_args.vcpu_args[0].gva,
		.steps = 1,
		.stride = SPARSE_BYTES,
		.random = test->opts->random_access,
		.regions = test->opts->pattern == PATTERN_REGIONS,
	};

	run_job(test, &job);
	job.write_percent = 100;
	run_job(test, &job);
}

static void probe_pages(const struct test *test, u64 first, u64 nr, bool write)
{
	const struct guest_job job = {
		.first = first * memstress_args.guest_page_size,
		.steps = nr,
		.stride = memstress_args.guest_page_size,
		.write_percent = write ? 100 : 0,
	};

	run_job(test, &job);
}

/*
 * Fail if a written page is missing from the log of the last GET.  Other pages
 * may be in the log: if KVM maps a page writable when the guest reads it, it
 * may have to log the page.
 */
static void verify_slot(const struct test *test, int slot, int iteration, struct tally *sum)
{
	char *hva = addr_gpa2hva(test->vm, slot_gpa(test, slot));
	bool all_set = initially_set(test) && iteration == 1;
	bool written, logged;

	for (u64 offset = 0; offset < slot_bytes(test); offset += memstress_args.guest_page_size) {
		written = READ_ONCE(*(u64 *)(hva + offset)) != UNWRITTEN;
		logged = is_logged(test, slot, offset);
		TEST_ASSERT(logged || !(written || all_set),
			    "Iteration %d: gfn 0x%lx is not in the dirty log, although %s",
			    iteration, (slot_gpa(test, slot) + offset) >> test->vm->page_shift,
			    written ? "the guest wrote to it" : "all bits are set initially");
		sum->written += written;
		sum->logged += logged;
	}
}

static u64 nr_accesses(const struct accesses *accesses)
{
	return accesses->reads + accesses->writes;
}

/* Return: the percentage of accesses that shall be writes. */
static int percent_to_write(const struct options *opts, int iteration)
{
	return opts->read_first && iteration < 2 ? 0 : opts->write_percent;
}

/*
 * Each access is a write by chance.  If the share is right, the number of
 * writes is off by six standard deviations once in 10^9 passes.  With
 * PATTERN_REGIONS, it is off by less than one region.
 */
static void verify_share(const struct test *test, int iteration)
{
	double percent = percent_to_write(test->opts, iteration);
	double nr = nr_accesses(&test->accesses);
	double off = 100 * test->accesses.writes - percent * nr;
	double region = 100.0 * SPARSE_BYTES / memstress_args.guest_page_size;
	double most = 36 * nr * percent * (100 - percent);

	if (test->opts->pattern == PATTERN_REGIONS)
		most = region * region;

	TEST_ASSERT(test->opts->readers || off * off <= most,
		    "Iteration %d: of %.0f accesses %lu were writes instead of %.0f%%", iteration,
		    nr, test->accesses.writes, percent);
}

/* Call this between GET and CLEAR. */
static void verify_log(const struct test *test, int iteration)
{
	const struct options *opts = test->opts;
	/* The guest writes to no page twice, so it counts written pages. */
	bool once = !opts->random_access && (opts->partition || opts->nr_vcpus == 1);
	s64 expected = test->accesses.writes;
	struct tally sum = {};

	verify_share(test, iteration);
	for (int slot = 0; slot < opts->slots; slot++)
		verify_slot(test, slot, iteration, &sum);

	TEST_ASSERT(!once || sum.written == expected,
		    "Iteration %d: the guest wrote to %ld pages, but counted %ld",
		    iteration, sum.written, expected);

	pr_info("Iteration %d verified: %ld of %ld pages written, %ld in the log\n", iteration,
		sum.written, memstress_args.size / memstress_args.guest_page_size, sum.logged);
}

static void set_job(const struct test *test, int vcpu, u32 write_percent, bool random, u64 step)
{
	struct guest_job *job = job_of(test, vcpu);
	u64 pages = memstress_args.vcpu_args[vcpu].pages;

	*job = (struct guest_job) {
		.steps = DIV_ROUND_UP(pages, step),
		.stride = step * memstress_args.guest_page_size,
		.write_percent = write_percent,
		.random = random,
	};
}

static void set_access(const struct test *test, int iteration)
{
	u64 per_region = SPARSE_BYTES / memstress_args.guest_page_size;
	const struct options *opts = test->opts;
	struct guest_job *job;

	for (int i = 0; i < opts->nr_vcpus; i++) {
		set_job(test, i, i < opts->readers ? 0 : percent_to_write(opts, iteration),
			opts->random_access, page_step(opts));
		job = job_of(test, i);
		if (i >= opts->nr_vcpus - opts->idle)
			job->steps = 0;
		job->regions = opts->pattern == PATTERN_REGIONS;
		job->first_region = i * memstress_args.vcpu_args[i].pages / per_region;
	}
}

/* Return: the accesses since the last call.  vCPUs must not be running. */
static struct accesses take_accesses(const struct test *test)
{
	struct accesses sum = {}, none = {};
	struct guest_job *job;

	for (int i = 0; i < test->opts->nr_vcpus; i++) {
		job = job_of(test, i);
		sum.reads += job->done.reads;
		sum.writes += job->done.writes;
		job->done = none;
	}
	return sum;
}

static double percent_written(const struct accesses *accesses)
{
	return accesses->writes * 100.0 / nr_accesses(accesses);
}

/* JSON always contains statistics: reading them is not part of any phase. */
static bool wants_stats(const struct options *opts)
{
	return opts->stats || opts->json;
}

/*
 * Count only if needed: that runs code on all CPUs, which may change the time
 * of the next phase.
 */
static bool counts_memory(const struct options *opts)
{
	return opts->json && (opts->pattern == PATTERN_REGIONS || opts->tracked);
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

static void json_record(const struct test *test, enum phase phase, int iteration,
			struct timespec time, const struct accesses *accesses,
			const struct kvm_stats *after)
{
	json_dimensions(test, "phase");
	json_phase(phase, iteration);
	fprintf(json_out, ", \"seconds\": %.9f", timespec_to_ns(time) / 1e9);
	if (phase == PHASE_GET)
		fprintf(json_out, ", \"logged\": %lu", test->nr_logged);
	json_accesses(accesses);
	kvm_stats_json(&test->before, after);
	fprintf(json_out, "}\n");
}

/*
 * Sleep briefly before an ioctl is timed.  Without high-resolution timers, the
 * sleep ends with a timer tick, so the next tick is as far away as possible.
 * If a tick preempted the main thread while KVM queues its wait for SRCU
 * readers, this wait would take three ticks longer, because the main thread
 * would then be such a reader.
 */
static struct timespec start_clock(void)
{
	struct timespec start;

	usleep(1);
	clock_gettime(CLOCK_MONOTONIC, &start);
	return start;
}

/*
 * @accesses: those of vCPUs in this phase; none in phases of the main thread.
 */
static void end_phase(struct test *test, enum phase phase, int iteration,
		      struct timespec time, struct accesses accesses)
{
	struct kvm_stats after;

	if (wants_stats(test->opts))
		kvm_stats_read(&after);

	phase_done(test, phase, iteration, time);
	if (phase == PHASE_DIRTY)
		pr_info("Iteration %d accesses: %lu reads, %lu writes (%.2f%% writes)\n", iteration,
			accesses.reads, accesses.writes, percent_written(&accesses));
	if (test->opts->stats)
		kvm_stats_print(&test->before, &after, accesses.writes);
	if (json_out)
		json_record(test, phase, iteration, time, &accesses, &after);
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
	time = workers_run_once();
	test->accesses = take_accesses(test);
	end_phase(test, phase, iteration, time, test->accesses);
}

static void populate(struct test *test)
{
	const struct options *opts = test->opts;
	u32 write_percent = opts->read_first ? 0 : 100;

	/* Reads allocate memory only if they don't map the zero page. */
	for (int i = 0; i < opts->nr_vcpus; i++)
		set_job(test, i, write_percent, false, 1);
	if (counts_memory(opts) && opts->tracked)
		test->page_tables = count_page_tables();
	run_pass(test, PHASE_POPULATE, 0);
	if (counts_memory(opts)) {
		if (opts->tracked)
			kvm_memory_json(test, PHASE_POPULATE, 0);
		else
			test->page_tables = count_page_tables();
	}

	/* With --tracked, writes map 4KiB pages, as the memory is logged. */
	if (opts->verify && !opts->tracked)
		verify_populated(test);
}

static void enable_log(struct test *test)
{
	struct timespec start;

	begin_phase(test);
	start = start_clock();
	memstress_enable_dirty_logging(test->vm, test->opts->slots);
	end_host_phase(test, PHASE_ENABLE, 0, start);
	pr_info("\n");

	if (test->opts->verify && !test->opts->tracked && !initially_set(test))
		verify_split(test, "enabling");
}

static u64 count_logged(const struct test *test)
{
	u64 nr = 0;

	for (int slot = 0; slot < test->opts->slots; slot++)
		for (u64 page = 0; page < test->pages_per_slot; page++)
			nr += is_logged(test, slot, page * getpagesize());
	return nr;
}

static void get_log(struct test *test, int iteration)
{
	struct timespec start, time;

	begin_phase(test);
	start = start_clock();
	memstress_get_dirty_log(test->vm, test->bitmaps, test->opts->slots);
	time = timespec_elapsed(start);

	test->nr_logged = count_logged(test);
	end_phase(test, PHASE_GET, iteration, time, (struct accesses){});

	if (test->opts->verify)
		verify_log(test, iteration);
}

static void clear_log(struct test *test, int iteration)
{
	struct timespec start;

	begin_phase(test);
	start = start_clock();
	memstress_clear_dirty_log(test->vm, test->bitmaps, test->opts->slots, test->pages_per_slot);
	end_host_phase(test, PHASE_CLEAR, iteration, start);

	if (test->opts->verify && initially_set(test))
		verify_split(test, "clearing");
}

static void iterate(struct test *test, int iteration)
{
	if (test->opts->verify)
		verify_prepare(test);

	run_pass(test, PHASE_DIRTY, iteration);
	if (counts_memory(test->opts) && test->opts->tracked)
		kvm_memory_json(test, PHASE_DIRTY, iteration);
	get_log(test, iteration);
	if (test->manual_caps)
		clear_log(test, iteration);
}

static void disable_log(struct test *test)
{
	struct timespec start, time;

	begin_phase(test);
	if (test->opts->run_while_disabling)
		workers_start();

	start = start_clock();
	memstress_disable_dirty_logging(test->vm, test->opts->slots);
	time = timespec_elapsed(start);

	if (test->opts->run_while_disabling)
		workers_stop();
	end_phase(test, PHASE_DISABLE, 0, time, take_accesses(test));
}

/* Drop what populating has logged, so that iteration 1 has an empty log. */
static void discard_log(struct test *test)
{
	memstress_get_dirty_log(test->vm, test->bitmaps, test->opts->slots);
	if (test->manual_caps)
		memstress_clear_dirty_log(test->vm, test->bitmaps, test->opts->slots,
					  test->pages_per_slot);
}

static void prefault_page(struct kvm_vcpu *vcpu, gpa_t gpa)
{
	struct kvm_pre_fault_memory range = { .gpa = gpa, .size = getpagesize() };
	int ret;

	do {
		ret = __vcpu_ioctl(vcpu, KVM_PRE_FAULT_MEMORY, &range);
	} while (ret && (errno == EINTR || errno == EAGAIN));
	TEST_ASSERT(!ret, "KVM_PRE_FAULT_MEMORY failed, errno %d", errno);
}

/*
 * Map what the guest needs besides the test memory, such as its code, stacks
 * and page tables, if KVM can do that.  KVM's shadow MMU also maps the pages
 * beside a page, up to multiples of eight, if user space has mapped them.  To
 * map one of these again would clear its Dirty bit in old kernels, and PML would
 * log it.
 */
static void prefault_own_memory(const struct test *test)
{
	struct kvm_userspace_memory_region2 *own = &memslot2region(test->vm, 0)->region;
	const char *tdp_mmu = test->parameters.tdp_mmu;
	u64 step = getpagesize();

	if (!kvm_check_cap(KVM_CAP_PRE_FAULT_MEMORY))
		return;
	if (tdp_mmu && !strcmp(tdp_mmu, "false"))
		step *= 8;

	for (u64 offset = 0; offset < own->memory_size; offset += step)
		prefault_page(memstress_args.vcpu_args[0].vcpu, own->guest_phys_addr + offset);
}

/*
 * Otherwise, populating includes page faults for the guest's own memory, several
 * for the same page, and the creation of a kernel thread by the first KVM_RUN.
 * All vCPUs wait until that thread has run, which may take ticks.  In this pass,
 * vCPUs access nothing: their jobs have no steps yet.
 */
static void warm_up(const struct test *test)
{
	prefault_own_memory(test);
	workers_run_once();
}

static void run_iterations(struct test *test)
{
	const struct options *opts = test->opts;

	set_access(test, 1);
	for (int i = 1; i <= opts->iterations; i++) {
		if (i == 2 && opts->read_first)
			set_access(test, i);
		iterate(test, i);
	}

	if (counts_memory(opts) && !opts->tracked)
		kvm_memory_json(test, PHASE_CLEAR, opts->iterations);
	disable_log(test);
}

static void begin_cycle(struct test *test, int cycle)
{
	test->cycle = cycle;
	test->clears_before = test->times[PHASE_CLEAR].count;
	if (test->opts->cycles > 1)
		pr_info("\nCycle %d of %d\n", cycle, test->opts->cycles);
}

static void run_phases(struct test *test)
{
	const struct options *opts = test->opts;

	if (opts->warm_up)
		warm_up(test);

	begin_cycle(test, 1);
	if (opts->tracked) {
		enable_log(test);
		populate(test);
		if (!opts->read_first)
			discard_log(test);
	} else {
		populate(test);
		enable_log(test);
	}
	run_iterations(test);

	for (int i = 2; i <= opts->cycles; i++) {
		begin_cycle(test, i);
		if (opts->verify)
			verify_disabled(test);
		enable_log(test);
		run_iterations(test);
	}
}

static void take_pattern(const char *arg)
{
	const char *names[NR_PATTERNS];
	const struct choice patterns = { names, sizeof(*names), NR_PATTERNS };

	for (int i = 0; i < NR_PATTERNS; i++)
		names[i] = pattern_name(i);
	perf_options.pattern = option_name(arg, &patterns);
	perf_options.read_first |= perf_options.pattern == PATTERN_CLEAN;
}

static const struct test_option own_options[] = {
	{ 0, "cycles", "Number of times that logging is enabled, all iterations run, and\n"
	  "     logging is disabled, in the same VM.  Memory is populated only before\n"
	  "     the first.", .count = &perf_options.cycles, .min = 1, .max = INT_MAX },
	{ 'e', NULL, "Keep vCPUs running while dirty logging is being disabled.  Takes\n"
	  "     longer, above all if the main thread has no CPU of its own.",
	  .flag = &perf_options.run_while_disabling },
	{ 0, "idle", "Number of vCPUs, the last ones, that access nothing once all memory\n"
	  "     is populated. (default: 0)", .count = &perf_options.idle, .max = INT_MAX },
	{ 0, "pattern", "Which accesses are writes: pages: each one by chance; regions: all or\n"
	  "     none of those to 2MiB, spread evenly; clean: by chance, with\n"
	  "     --read-first. (default: pages)", .take = take_pattern },
	{ 0, "read-first", "Populate memory by reads, and write nothing before iteration 2.\n"
	  "     Needs HugeTLB, or transparent huge pages with 0 in\n"
	  "     " USE_ZERO_PAGE ".",
	  .flag = &perf_options.read_first },
	{ 0, "tracked", "Enable dirty logging before memory is populated, and without\n"
	  "     KVM_DIRTY_LOG_INITIALLY_SET.", .flag = &perf_options.tracked },
	{ 0, "warm-up", "Before all phases, run each vCPU once, without accesses to the test\n"
	  "     memory, and map other memory of the VM, if KVM can do that.",
	  .flag = &perf_options.warm_up },
	{ }
};

/* Do reads of memory that was never written map the zero page? */
static bool maps_zero_page(enum vm_mem_backing_src_type backing)
{
	FILE *file;
	bool maps;

	if (is_hugetlb(backing))
		return false;
	if (backing != VM_MEM_SRC_ANONYMOUS_THP)
		return true;

	file = fopen(USE_ZERO_PAGE, "r");
	if (!file)
		return true;
	maps = fgetc(file) != '0';
	fclose(file);
	return maps;
}

static void check_pattern(const struct options *opts)
{
	if (opts->read_first && maps_zero_page(opts->backing))
		usage_error("--read-first and --pattern clean need HugeTLB, or THP with 0 in %s",
			    USE_ZERO_PAGE);
	if (opts->pattern != PATTERN_REGIONS)
		return;
	if (opts->random_access || opts->sparse || !opts->partition)
		usage_error("--pattern regions goes with none of -a, -o and --sparse");
	if (opts->vcpu_bytes % SPARSE_BYTES)
		usage_error("--pattern regions needs whole regions of 2M, see -b");
}

static void check_own(const struct options *opts)
{
	check_pattern(opts);
	/* Only the first cycle would begin with memory that nothing has written. */
	if (opts->cycles > 1 && (opts->tracked || opts->read_first))
		usage_error("--cycles goes with none of --tracked, --read-first, --pattern clean");
	if (opts->idle >= opts->nr_vcpus)
		usage_error("--idle %d leaves none of the %d vCPUs of -v",
			    opts->idle, opts->nr_vcpus);
}

const struct perf_program perf_program = {
	.mode = "phases",
	.purpose = "Time the phases of dirty logging.\n\n",
	.options = own_options,
	.check = check_own,
	.map_code = map_code,
	.probe = probe_pages,
	.run = run_phases,
};
