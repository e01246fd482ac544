// SPDX-License-Identifier: GPL-2.0-only
/*
 * The command line: what the programs have in common.  Their own options are
 * those of struct perf_program.
 */
#include <ctype.h>
#include <limits.h>

#include "guest_modes.h"
#include "dirty_log_perf.h"

#define MAX_RUNS	1000

static_assert(DEFAULT_PER_VCPU_MEM_SIZE == SZ_1G, "-h says what -b is by default");

struct options perf_options = {
	.nr_vcpus = 1,
	.vcpu_bytes = DEFAULT_PER_VCPU_MEM_SIZE,
	.backing = DEFAULT_VM_MEM_SRC,
	.slots = 1,
	.iterations = 2,
	.runs = 1,
	.write_percent = 100,
	.partition = true,
	.manual_protect = true,
};

static void take_bytes(const char *arg)
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
		usage_error("-b takes a size such as 64M or 1G, not '%s'", arg);
	perf_options.vcpu_bytes = number << shift;
}

static void take_backing(const char *arg)
{
	const struct vm_mem_backing_src_alias *rows = vm_mem_backing_src_alias(0);
	const struct choice backings = { rows, sizeof(*rows), NUM_SRC_TYPES };

	perf_options.backing = option_name(arg, &backings);
}

static void take_mode(const char *arg)
{
	parse_number("-m", arg, 0, NUM_VM_MODES - 1);
	guest_modes_cmdline(arg);
}

static const char *pcpus;
static u64 ignored;

static int max_vcpus(void)
{
	return min_t(int, kvm_check_cap(KVM_CAP_MAX_VCPUS), KVM_MAX_VCPUS);
}

/* memslot 0 is the library's. */
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
	{ 0, "runs", "Number of VMs, one after another; more than one yields minimum,\n"
	  "     median, and maximum of each phase.",
	  .count = &perf_options.runs, .min = 1, .max = MAX_RUNS },
	{ 0, "sparse", "Access only the first page of every 2 MiB.  All of them are\n"
	  "     populated.", .flag = &perf_options.sparse },
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
	if (perf_program.check)
		perf_program.check(opts);
}

const char *parse_options(int argc, char *argv[])
{
	/* The common ones, then the program's own. */
	struct test_option options[MAX_OPTIONS] = { }, *end = &options[ARRAY_SIZE(common_options)];
	const struct test_option *own;

	memcpy(options, common_options, sizeof(common_options));
	for (own = perf_program.options; own->letter; own++)
		*end++ = *own;

	parse_test_options(argc, argv, options, perf_program.purpose);
	check_options(&perf_options);
	return pcpus;
}
