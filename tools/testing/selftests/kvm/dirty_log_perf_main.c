// SPDX-License-Identifier: GPL-2.0-only
/*
 * main() of dirty_log_perf_test and dirty_log_live_perf_test: parses the
 * command line, creates one VM after the other, and lets the program measure
 * each VM
 */
#include <ctype.h>
#include <limits.h>

#include "guest_modes.h"
#include "dirty_log_perf.h"

#define MAX_RUNS	1000

/*
 * Reserve the pages instead of reading how many are free: only a reservation
 * takes surplus pages and limits of the process into account.
 */
static void require_hugetlb(enum vm_mem_backing_src_type backing, u64 bytes)
{
	size_t page_size = get_backing_src_pagesz(backing);
	u32 flags = vm_mem_backing_src_alias(backing)->flag;
	void *mem;

	/* The pool for memfds is that of the default huge page size. */
	if (backing == VM_MEM_SRC_SHARED_HUGETLB)
		flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;

	mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
	__TEST_REQUIRE(mem != MAP_FAILED, "%s needs %lu free huge pages of %zu KiB",
		       vm_mem_backing_src_alias(backing)->name, bytes / page_size,
		       page_size / SZ_1K);
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

/*
 * The memory of each vCPU and of each memslot must be a multiple of the largest
 * page that the host, the guest or the backing uses.
 */
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
	/* With --tracked the log is empty at first. */
	if (perf_options.tracked)
		caps &= KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE;
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

static void run_once(enum vm_guest_mode mode, const struct options *opts, int run)
{
	struct test test;

	if (opts->runs > 1)
		pr_info("\nRun %d of %d\n", run, opts->runs);

	test_create(&test, mode, opts, run);
	perf_program.run(&test);
	print_average(&test, PHASE_GET);
	print_average(&test, PHASE_CLEAR);
	test_destroy(&test);
}

static void run_test(enum vm_guest_mode mode, void *data)
{
	for (int i = 1; i <= perf_options.runs; i++)
		run_once(mode, &perf_options, i);
}

/* Options of both programs.  Others are in struct perf_program. */

static_assert(DEFAULT_PER_VCPU_MEM_SIZE == SZ_1G, "-h says what -b is by default");

struct options perf_options = {
	.nr_vcpus = 1,
	.vcpu_bytes = DEFAULT_PER_VCPU_MEM_SIZE,
	.backing = DEFAULT_VM_MEM_SRC,
	.slots = 1,
	.iterations = 2,
	.cycles = 1,
	.runs = 1,
	.write_percent = 100,
	.partition = true,
	.manual_protect = true,
};

/* @option: its name, for messages.  @min: the least number of bytes. */
static u64 take_size(const char *option, const char *arg, u64 min)
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

	if (!isdigit(arg[0]) || !unit || *end || errno || number < min ||
	    number > (unsigned long)LONG_MAX >> shift)
		usage_error("%s takes a size such as 64M or 1G, not '%s'", option, arg);
	return number << shift;
}

static void take_bytes(const char *arg)
{
	perf_options.vcpu_bytes = take_size("-b", arg, 1);
}

static void take_backing(const char *arg)
{
	const struct vm_mem_backing_src_alias *rows = vm_mem_backing_src_alias(0);
	const struct choice backings = { rows, sizeof(*rows), NUM_SRC_TYPES };

	perf_options.backing = option_name(arg, &backings);
}

/* Check the number, as the library would only fail an assertion. */
static void take_mode(const char *arg)
{
	if (!*arg || arg[strspn(arg, "0123456789")] || strtoul(arg, NULL, 10) >= NUM_VM_MODES)
		usage_error("-m takes a number from 0 to %d, not '%s'", NUM_VM_MODES - 1, arg);
	guest_modes_cmdline(arg);
}

/*
 * The same patches add the capabilities to the headers and vm_open_hook to the
 * library, so the library has vm_open_hook if the capabilities are defined.
 */
#ifdef KVM_CAP_X86_DIRTY_BITS
static void take_chunk(const char *arg)
{
	perf_options.chunk.given = true;
	perf_options.chunk.value = take_size("--chunk", arg, 0);
}

static void take_dirty_bits(const char *arg)
{
	static const char * const values[] = { "off", "on" };
	const struct choice choice = { values, sizeof(*values), ARRAY_SIZE(values) };

	perf_options.dirty_bits.given = true;
	perf_options.dirty_bits.value = option_name(arg, &choice);
}

static void enable_setting(struct kvm_vm *vm, u32 cap, const struct vm_setting *setting,
			   const char *option)
{
	struct kvm_enable_cap enable = { .cap = cap, .args = { setting->value } };

	__TEST_REQUIRE(!setting->given || !__vm_ioctl(vm, KVM_ENABLE_CAP, &enable),
		       "KVM refuses %s %lu here: %s", option, setting->value, strerror(errno));
}

static void enable_settings(struct kvm_vm *vm)
{
	enable_setting(vm, KVM_CAP_EAGER_SPLIT_CHUNK_SIZE, &perf_options.chunk, "--chunk");
	enable_setting(vm, KVM_CAP_X86_DIRTY_BITS, &perf_options.dirty_bits, "--dirty-bits");
}
#endif

/* The value of -c.  Parsing it requires the number of vCPUs. */
static const char *pcpus;

/* The value of -p, which upstream's dirty_log_perf_test has. */
static u64 ignored;

static int max_vcpus(void)
{
	return min_t(int, kvm_check_cap(KVM_CAP_MAX_VCPUS), KVM_MAX_VCPUS);
}

/* The library itself uses memslot 0. */
static int max_slots(void)
{
	return kvm_check_cap(KVM_CAP_NR_MEMSLOTS) - 1 - perf_program.own_slots;
}

static void describe_backings(void)
{
	backing_src_help("-s");
}

static const struct test_option common_options[] = {
	{ 'a', "random", "Access pages in random order, with repetitions.",
	  .flag = &perf_options.random_access },
	{ 'b', "bytes", "Memory per vCPU, e.g. 64M or 1G, rounded up to whole pages of\n"
	  "     the backing. (default: 1G)", .take = take_bytes },
	{ 'c', .describe = kvm_print_vcpu_pinning_help, .text = &pcpus },
	{ 'g', "get-clears", "Let KVM_GET_DIRTY_LOG clear the log, i.e. use neither\n"
	  "     KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE nor KVM_DIRTY_LOG_INITIALLY_SET.",
	  .flag = &perf_options.manual_protect, .off = true },
	{ 'i', "iterations", "Number of iterations, at least 2.",
	  .count = &perf_options.iterations, .min = 2, .max = INT_MAX },
	{ 'j', "json", "Write the results to this file, too: JSON objects, one per\n"
	  "     line.  The file is complete or does not come to be.", .text = &perf_options.json },
	{ 'm', .describe = guest_modes_help, .take = take_mode },
	{ 'n', "nested", "Run the vCPUs' code in L2. (x86 with VMX only)",
	  .flag = &memstress_args.nested },
	{ 'o', "overlap", "Let every vCPU access the memory of all vCPUs.",
	  .flag = &perf_options.partition, .off = true },
	{ 'p', NULL, "Accepted, but ignored: the test memory always ends where guest\n"
	  "     physical memory does.", .number = &ignored, .max = ULONG_MAX },
	{ 'r', "seed", "Seed of the random numbers.",
	  .count = (int *)&kvm_random_seed, .min = 1, .max = INT_MAX },
	{ 'R', "readers", "Number of vCPUs, the first ones, that only read, whatever -w\n"
	  "     is. (default: 0)", .count = &perf_options.readers, .most = max_vcpus },
	{ 's', .describe = describe_backings, .take = take_backing },
	{ 'v', "vcpus", "Number of vCPUs.",
	  .count = &perf_options.nr_vcpus, .min = 1, .most = max_vcpus },
	{ 'V', "verify", "Verify that pages written are in the log, and that page sizes\n"
	  "     are those of eager or lazy page splitting.  What is wrong is named by\n"
	  "     its gfn.  Affects the times.", .flag = &perf_options.verify },
	{ 'w', "writes", "Percentage of accesses that are writes; each one is decided by\n"
	  "     chance.", .count = &perf_options.write_percent, .max = 100 },
	{ 'x', "slots", "Number of memslots to split the memory into.",
	  .count = &perf_options.slots, .min = 1, .most = max_slots },
	{ 0, "runs", "Number of VMs, one after another.",
	  .count = &perf_options.runs, .min = 1, .max = MAX_RUNS },
	{ 0, "sparse", "Access only the first page of every 2 MiB.  All of them are\n"
	  "     populated.", .flag = &perf_options.sparse },
#ifdef KVM_CAP_X86_DIRTY_BITS
	{ 0, "chunk", "Bytes of huge pages that KVM splits eagerly before it drops mmu_lock,\n"
	  "     e.g. 2M or 1G; 0: none are split eagerly. (default: KVM's; x86 only)",
	  .take = take_chunk },
	{ 0, "dirty-bits", "Have KVM log pages by Dirty bits. (off, on; default: as KVM's\n"
	  "     parameter dirty_bits says; x86 only)", .take = take_dirty_bits },
#endif
	{ 0, "stats", "Print what KVM's statistics say about each phase. (x86 only)",
	  .flag = &perf_options.stats },
};

static void check_options(const struct options *opts)
{
#ifndef __x86_64__
	if (opts->stats)
		usage_error("--stats knows the statistics of x86 only");
#endif
	if (opts->readers > opts->nr_vcpus)
		usage_error("-R %d is more than the %d vCPUs of -v", opts->readers, opts->nr_vcpus);
#ifdef KVM_CAP_X86_DIRTY_BITS
	vm_open_hook = enable_settings;
#endif
	if (perf_program.check)
		perf_program.check(opts);
}

static void parse_options(int argc, char *argv[])
{
	struct test_option options[MAX_OPTIONS] = { }, *end = &options[ARRAY_SIZE(common_options)];

	memcpy(options, common_options, sizeof(common_options));
	for (const struct test_option *own = perf_program.options; own->letter || own->name; own++)
		*end++ = *own;

	parse_test_options(argc, argv, options, perf_program.purpose);
	check_options(&perf_options);
}

int main(int argc, char *argv[])
{
	const struct options *opts = &perf_options;

	/* Use a fixed seed, so that runs can be compared. */
	kvm_random_seed = 1;
	guest_modes_append_default();

	parse_options(argc, argv);
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
