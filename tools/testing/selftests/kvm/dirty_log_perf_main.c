// SPDX-License-Identifier: GPL-2.0-only
/* From the command line to VM after VM: what both programs do before and after they measure. */
#include "guest_modes.h"
#include "dirty_log_perf.h"

bool initially_set(const struct test *test)
{
	return test->manual_caps & KVM_DIRTY_LOG_INITIALLY_SET;
}

bool is_hugetlb(enum vm_mem_backing_src_type backing)
{
	return is_backing_src_hugetlb(backing) ||
	       backing == VM_MEM_SRC_SHARED_HUGETLB;
}

u64 slot_bytes(const struct test *test)
{
	return memstress_args.size / test->opts->slots;
}

u64 slot_gpa(const struct test *test, int slot)
{
	return memstress_args.gpa + slot * slot_bytes(test);
}

/* By bytes, as the log is little-endian on all architectures. */
bool is_logged(const struct test *test, int slot, u64 offset)
{
	const u8 *bytes = (const u8 *)test->bitmaps[slot];
	u64 page = offset / getpagesize();

	return bytes[page / 8] & (1 << (page % 8));
}

bool is_page_logged(const struct test *test, u64 page)
{
	u64 per_slot = test->pages_per_slot;

	return is_logged(test, page / per_slot, page % per_slot * getpagesize());
}

u64 page_step(const struct options *opts)
{
	return opts->sparse ? SPARSE_BYTES / memstress_args.guest_page_size : 1;
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

/* Ask by reserving the pages, as this considers surplus pages and limits. */
static void require_hugetlb(enum vm_mem_backing_src_type backing, u64 bytes)
{
	size_t page_size = get_backing_src_pagesz(backing);
	u32 flags = vm_mem_backing_src_alias(backing)->flag;
	/* For the message only, as surplus pages are not taken into account. */
	long nr_free = read_pool(page_size, "free_hugepages") -
		       read_pool(page_size, "resv_hugepages");
	void *mem;

	/* The pool for memfds is that of the default huge page size. */
	if (backing == VM_MEM_SRC_SHARED_HUGETLB)
		flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;

	mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
	__TEST_REQUIRE(mem != MAP_FAILED,
		       "%s needs %lu huge pages of %zu KiB, but only %ld are free",
		       vm_mem_backing_src_alias(backing)->name,
		       bytes / page_size, page_size / SZ_1K, nr_free);
	munmap(mem, bytes);
}

/* Skip the test, instead of failing later, if the host lacks the memory. */
static void require_memory(const struct options *opts, u64 bytes)
{
	u64 ram = sysconf(_SC_PHYS_PAGES) * (u64)getpagesize();

	__TEST_REQUIRE(bytes < ram, "Needs %lu MiB of memory, but the host has %lu MiB",
		       bytes / SZ_1M, ram / SZ_1M);
	if (is_hugetlb(opts->backing))
		require_hugetlb(opts->backing, bytes);
}

/* The largest page that host, guest, and backing use: sizes are multiples. */
static u64 allocation_unit(enum vm_guest_mode mode, const struct options *opts)
{
	u64 guest_page = vm_guest_mode_params[mode].page_size;
	u64 backing_page;

	if (opts->backing == VM_MEM_SRC_ANONYMOUS_THP)
		__TEST_REQUIRE(thp_configured(), "The host does not support THP");

	backing_page = get_backing_src_pagesz(opts->backing);
	return max_t(u64, guest_page, max_t(u64, backing_page, getpagesize()));
}

static u64 vcpu_bytes(enum vm_guest_mode mode, const struct options *opts)
{
	u64 unit = allocation_unit(mode, opts);
	u64 bytes = align_up(opts->vcpu_bytes, unit);

	if (bytes != opts->vcpu_bytes)
		pr_info("Rounding %lu bytes per vCPU up to %lu, whole pages of %lu bytes\n",
			opts->vcpu_bytes, bytes, unit);

	if (bytes * opts->nr_vcpus % (unit * opts->slots))
		usage_error("-x %d does not divide %lu pages of %lu bytes evenly",
			    opts->slots, bytes * opts->nr_vcpus / unit, unit);
	return bytes;
}

static u64 enable_manual_protect(struct kvm_vm *vm)
{
	u64 caps = kvm_check_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2);

	caps &= KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE | KVM_DIRTY_LOG_INITIALLY_SET;
	if (caps)
		vm_enable_cap(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, caps);
	return caps;
}

static void test_create(struct test *test, enum vm_guest_mode mode,
			const struct options *opts, int run)
{
	u64 bytes = vcpu_bytes(mode, opts);

	require_memory(opts, bytes * opts->nr_vcpus);

	*test = (struct test){ .opts = opts, .run = run };
	test->vm = memstress_create_vm(mode, opts->nr_vcpus, bytes, opts->slots,
				       opts->backing, opts->partition);
	if (opts->manual_protect)
		test->manual_caps = enable_manual_protect(test->vm);

	test->pages_per_slot = slot_bytes(test) / getpagesize();
	test->bitmaps = memstress_alloc_bitmaps(opts->slots, test->pages_per_slot);
	workers_create(opts->nr_vcpus);
	kvm_stats_open(test);
}

static void test_destroy(struct test *test)
{
	kvm_stats_close();
	workers_destroy();
	memstress_free_bitmaps(test->bitmaps, test->opts->slots);
	memstress_destroy_vm(test->vm);
}

static void run_once(struct test *test, enum vm_guest_mode mode,
		     const struct options *opts, int run)
{
	if (opts->runs > 1)
		pr_info("\nRun %d of %d\n", run, opts->runs);

	test_create(test, mode, opts, run);
	perf_program.run(test);
	print_average(test, PHASE_GET);
	print_average(test, PHASE_CLEAR);
}

static void run_test(enum vm_guest_mode mode, void *data)
{
	const struct options *opts = &perf_options;
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

int main(int argc, char *argv[])
{
	const struct options *opts = &perf_options;
	const char *pcpus;

	/* Not the library's random one, so that runs can be compared. */
	kvm_random_seed = 1;
	guest_modes_append_default();

	pcpus = parse_options(argc, argv);
	if (pcpus) {
		kvm_parse_vcpu_pinning(pcpus, memstress_args.vcpu_to_pcpu, opts->nr_vcpus);
		memstress_args.pin_vcpus = true;
	}

	if (opts->json)
		json_open(opts->json);

	pr_info("Test iterations: %d\n", opts->iterations);
	for_each_guest_mode(run_test, NULL);

	if (opts->json)
		json_close(opts->json);
	return 0;
}
