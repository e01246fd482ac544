// SPDX-License-Identifier: GPL-2.0-only
/*
 * The histograms of dirty logging: dirty_log_hold_hist of the VM (how long
 * dirty logging holds mmu_lock) and dirty_log_wait_hist of vCPUs (how long
 * their page faults wait for mmu_lock)
 *
 *  - Without dirty logging, KVM must not count anything.
 *  - Each ioctl of dirty logging must add holds to the histogram.  Together
 *    they must not be longer than the ioctl, and if the ioctl does little else
 *    than hold mmu_lock, not much shorter.
 *  - A vCPU writes to memory that the host takes away again and again, while
 *    another thread gets the log.  Sooner or later, a page fault must have
 *    waited for a good part of a hold.
 *
 * Limits: buckets are powers of two, so sums are known only within a factor of
 * two.  The wait depends on the scheduler, and needs two CPUs.
 */
#include "eager_split_util.h"

#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define DATA_PAGES		(2 * PAGES_PER_2M)
#define NR_CYCLES		20

/*
 * Give up after so many faults, of which one in a thousand has to wait on
 * average, and so many calls of GET.  If this thread rarely gets a CPU, there
 * are many faults for each call.
 */
#define MIN_FAULTS		20000
#define MIN_GETS		5000

/* Taking a lock, reading a clock and dropping the lock takes at least 16 ns. */
#define SHORTEST_BUCKET		5

/* Percent, see struct action. */
#define MIN_SHARE		25

/*
 * A wait must be at least an eighth of the hold of GET, i.e. three buckets
 * less.
 */
#define WAIT_BUCKETS		3

struct hist {
	u64 holds[NR_BUCKETS];
	u64 waits[NR_BUCKETS];
};

static struct kvm_vm *vm;
static struct kvm_vcpu *vcpu;
static struct kvm_binary_stats vcpu_stats;
static bool done;
static unsigned long dirty_log[DATA_PAGES / BITS_PER_WORD];

static void guest_main(void)
{
	for (;;) {
		for (u64 page = 0; page < DATA_PAGES; page++)
			WRITE_ONCE(*(u64 *)(DATA_GPA + page * PAGE_SIZE), page);
		GUEST_SYNC(0);
	}
}

static struct hist read_stats(void)
{
	struct hist h;

	TEST_ASSERT(read_stat(&vm->stats, "dirty_log_hold_hist", h.holds, NR_BUCKETS) &&
		    read_stat(&vcpu_stats, "dirty_log_wait_hist", h.waits, NR_BUCKETS),
		    "The kernel has no histograms");
	return h;
}

static u64 nr_holds(void)
{
	return sum_stat(&vm->stats, "dirty_log_hold_hist");
}

static u64 nr_waits(void)
{
	return sum_stat(&vcpu_stats, "dirty_log_wait_hist");
}

static u64 nr_fixed(void)
{
	u64 nr;

	TEST_ASSERT(read_stat(&vcpu_stats, "pf_fixed", &nr, 1), "The kernel has no pf_fixed");
	return nr;
}

static void *write_pages(void *arg)
{
	while (!READ_ONCE(done))
		vcpu_run_to_sync(vcpu, NULL);
	return NULL;
}

static void *take_memory(void *arg)
{
	while (!READ_ONCE(done))
		TEST_ASSERT(!madvise(arg, DATA_PAGES * PAGE_SIZE, MADV_DONTNEED), "madvise");
	return NULL;
}

static void enable(void)
{
	vm_mem_region_set_flags(vm, DATA_SLOT, KVM_MEM_LOG_DIRTY_PAGES);
}

static void get(void)
{
	kvm_vm_get_dirty_log(vm, DATA_SLOT, dirty_log);
}

static void clear(void)
{
	kvm_vm_clear_dirty_log(vm, DATA_SLOT, dirty_log, 0, DATA_PAGES);
}

static void disable(void)
{
	vm_mem_region_set_flags(vm, DATA_SLOT, 0);
}

/*
 * An ioctl that holds mmu_lock at least once, for at most as long as it takes.
 */
struct action {
	const char *name;
	void (*run)(void);
	/*
	 * For ioctls that do little but hold mmu_lock: for how much of the time
	 * they must hold it at least, in percent.  The thread may lose its CPU,
	 * so one call that reaches this share is enough.
	 */
	u64 min_share;
	/* A call has added nothing to the histogram. */
	bool uncounted;
	/* A hold is shorter than any can be, or longer than the ioctl took. */
	bool too_short;
	bool too_long;
	/* The largest share of all calls, at most, by the histogram. */
	u64 share;
};

static struct action enabling = { "enabling", enable };
static struct action getting = { "getting the log", get, MIN_SHARE };
static struct action clearing = { "clearing the log", clear, MIN_SHARE };
static struct action disabling = { "disabling", disable };

/*
 * Return: the longest time that all holds together can have lasted.  Bucket i
 * is for times from half of 1 << i to 1 << i.
 */
static u64 at_most(const u64 *hist)
{
	u64 sum = 0;

	for (int i = 0; i < NR_BUCKETS; i++)
		sum += hist[i] << i;
	return sum;
}

static u64 nr_too_short(const u64 *hist)
{
	u64 sum = 0;

	for (int i = 0; i < SHORTEST_BUCKET; i++)
		sum += hist[i];
	return sum;
}

static void act(struct action *a)
{
	struct hist before = read_stats(), after;
	u64 since = now_ns(), took;

	a->run();
	took = now_ns() - since;
	after = read_stats();
	for (int i = 0; i < NR_BUCKETS; i++)
		after.holds[i] -= before.holds[i];
	a->uncounted |= !at_most(after.holds);
	a->too_short |= !!nr_too_short(after.holds);
	a->too_long |= at_most(after.holds) / 2 > took;
	a->share = max(a->share, at_most(after.holds) * 100 / took);
}

static void act_result(const struct action *a)
{
	ksft_print_msg("%s: mmu_lock held for at most %lu%% of the time\n", a->name, a->share);
	ksft_test_result(!a->uncounted && !a->too_short && !a->too_long && a->share >= a->min_share,
			 "%s is counted%s%s%s%s\n", a->name,
			 a->uncounted ? ": not each time" : "",
			 a->too_short ? ": as shorter than any hold is" : "",
			 a->too_long ? ": as longer than it took" : "",
			 a->share < a->min_share ? ": as shorter than it was" : "");
}

/* A VM lives on while its statistics are open. */
static void free_vm(void)
{
	TEST_ASSERT(!close(vcpu_stats.fd), "close");
	kvm_vm_free(vm);
}

static void create_vm(bool manual)
{
	vm = vm_create_with_one_vcpu(&vcpu, guest_main);
	if (manual)
		vm_enable_manual_protect(vm, false);
	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, DATA_PAGES, 0);
	virt_map(vm, DATA_GPA, DATA_GPA, DATA_PAGES);
	vcpu_stats = (struct kvm_binary_stats){ .fd = vcpu_get_stats_fd(vcpu) };
	vcpu_run_to_sync(vcpu, NULL);
}

/* With manual protection, CLEAR must hold the lock, otherwise GET. */
static void test_holds(bool manual)
{
	for (int i = 0; i < NR_CYCLES; i++) {
		act(&enabling);
		vcpu_run_to_sync(vcpu, NULL);
		if (manual)
			get();
		act(manual ? &clearing : &getting);
		act(&disabling);
	}
}

static int longest_bucket(const u64 *hist)
{
	int i = NR_BUCKETS - 1;

	while (i && !hist[i])
		i--;
	return i;
}

static struct hist hist_since(const struct hist *before)
{
	struct hist h = read_stats();

	for (int i = 0; i < NR_BUCKETS; i++) {
		h.holds[i] -= before->holds[i];
		h.waits[i] -= before->waits[i];
	}
	return h;
}

/*
 * Return: has a fault waited since @before for about as long as the lock was
 * held?  If GET collects Dirty bits, it takes mmu_lock for read, so that faults
 * need not wait long; then any wait is enough.
 */
static bool has_waited(const struct hist *before)
{
	struct hist h = hist_since(before);
	int bucket = longest_bucket(h.waits);

	if (vm_get_stat_or_absent(vm, "dirty_bits") == 1)
		return bucket;

	return bucket && bucket + WAIT_BUCKETS >= longest_bucket(h.holds);
}

static void test_waits(void *hva)
{
	u64 since = now_ns();
	pthread_t threads[2];
	struct hist h;
	u64 faults, gets = 0;
	bool waited;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
		ksft_test_result_skip("one CPU never meets a lock that is held\n");
		return;
	}

	start_thread(&threads[0], write_pages, NULL);
	start_thread(&threads[1], take_memory, hva);
	faults = nr_fixed();
	do {
		h = read_stats();
		get();
		gets++;
		waited = has_waited(&h);
	} while (!waited && (gets < MIN_GETS || nr_fixed() - faults < MIN_FAULTS));
	faults = nr_fixed() - faults;
	WRITE_ONCE(done, true);
	for (int i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
	since = now_ns() - since;
	h = read_stats();
	ksft_print_msg("longest hold below 2^%d ns, wait below 2^%d ns, %lu faults, %lu calls\n",
		       longest_bucket(h.holds), longest_bucket(h.waits), faults, gets);
	ksft_test_result(waited && !nr_too_short(h.waits) &&
			 BIT_ULL(longest_bucket(h.waits)) / 2 <= since, "a wait is counted\n");
}

int main(int argc, char *argv[])
{
	parse_test_options(argc, argv, NULL, NULL);
	ksft_print_header();
	ksft_set_plan(6);
	create_vm(true);
	ksft_test_result(!nr_holds() && !nr_waits(), "nothing is counted without a log\n");
	test_holds(true);
	free_vm();
	create_vm(false);
	test_holds(false);
	act_result(&enabling);
	act_result(&getting);
	act_result(&clearing);
	act_result(&disabling);
	enable();
	test_waits(addr_gpa2hva(vm, DATA_GPA));
	free_vm();
	ksft_finished();
}
