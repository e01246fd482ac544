// SPDX-License-Identifier: GPL-2.0-only
/*
 * Statistics of dirty logging: the histograms of how long mmu_lock is held by it, and of
 * how long page faults of vCPUs waited for it.
 *
 * Nothing is counted as long as nothing is logged.  Then each ioctl adds a hold, and a
 * vCPU whose memory is taken away again and again has to wait for one sooner or later.
 * debugfs says the same as the statistics' file descriptor.
 */
#include "eager_split_util.h"

#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define DATA_PAGES		(2 * PAGES_PER_2M)
#define PATIENCE_NS		(20000 * NSEC_PER_MSEC)

struct hist {
	u64 holds[NR_BUCKETS];
	u64 waits[NR_BUCKETS];
};

static struct kvm_vm *vm;
static struct kvm_vcpu *vcpu;
static struct kvm_binary_stats vcpu_stats;
static bool done;

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

/* What debugfs has, a line for each bucket. */
static bool read_debugfs(struct hist *h)
{
	unsigned long limit;
	char path[PATH_MAX];
	FILE *file;

	if (access("/sys/kernel/debug/kvm", X_OK))
		return false;

	snprintf(path, sizeof(path), "/sys/kernel/debug/kvm/%d-%d/dirty_log_hist", getpid(),
		 vm->fd);
	file = fopen(path, "r");
	TEST_ASSERT(file, "Can't open %s", path);
	for (int i = 0; i < NR_BUCKETS; i++) {
		TEST_ASSERT_EQ(fscanf(file, "%lu %lu %lu", &limit, &h->holds[i], &h->waits[i]), 3);
		TEST_ASSERT_EQ(limit, BIT_ULL(i) - 1);
	}
	fclose(file);
	return true;
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

/* Each of these ioctls holds mmu_lock at least once. */
static void test_holds(void)
{
	unsigned long log[DATA_PAGES / BITS_PER_WORD];
	u64 before;

	before = nr_holds();
	vm_mem_region_set_flags(vm, DATA_SLOT, KVM_MEM_LOG_DIRTY_PAGES);
	ksft_test_result(nr_holds() > before, "enabling is counted\n");

	vcpu_run_to_sync(vcpu, NULL);
	before = nr_holds();
	kvm_vm_get_dirty_log(vm, DATA_SLOT, log);
	ksft_test_result(nr_holds() > before, "getting the log is counted\n");
}

static void test_waits(void *hva)
{
	unsigned long log[DATA_PAGES / BITS_PER_WORD];
	u64 since = now_ns();
	pthread_t threads[2];

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
		ksft_test_result_skip("one CPU never meets a lock that is held\n");
		return;
	}

	start_thread(&threads[0], write_pages, NULL);
	start_thread(&threads[1], take_memory, hva);
	do
		kvm_vm_get_dirty_log(vm, DATA_SLOT, log);
	while (!nr_waits() && now_ns() - since < PATIENCE_NS);
	WRITE_ONCE(done, true);
	for (int i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
	ksft_test_result(nr_waits(), "a wait is counted\n");
}

int main(int argc, char *argv[])
{
	struct hist stats, debugfs;

	parse_test_options(argc, argv, NULL, NULL);
	ksft_print_header();
	ksft_set_plan(5);
	vm = vm_create_with_one_vcpu(&vcpu, guest_main);
	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, DATA_PAGES, 0);
	virt_map(vm, DATA_GPA, DATA_GPA, DATA_PAGES);
	vcpu_stats.fd = vcpu_get_stats_fd(vcpu);

	vcpu_run_to_sync(vcpu, NULL);
	ksft_test_result(!nr_holds() && !nr_waits(), "nothing is counted without a log\n");
	test_holds();
	test_waits(addr_gpa2hva(vm, DATA_GPA));

	stats = read_stats();
	if (read_debugfs(&debugfs))
		ksft_test_result(!memcmp(&stats, &debugfs, sizeof(stats)), "debugfs agrees\n");
	else
		ksft_test_result_skip("debugfs is not mounted\n");
	kvm_vm_free(vm);
	ksft_finished();
}
