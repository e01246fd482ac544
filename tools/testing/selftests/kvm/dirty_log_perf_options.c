// SPDX-License-Identifier: GPL-2.0-only
/*
 * The command line: what the programs have in common.  Their own options are
 * those of struct perf_program.
 */
#include <ctype.h>
#include <limits.h>
#include <linux/sizes.h>

#include "guest_modes.h"
#include "dirty_log_perf.h"

#define EXIT_USAGE	2

/* Options without a letter. */
enum {
	OPT_RUNS = 256,
	OPT_SPARSE,
	OPT_STATS,
};

#define MAX_RUNS	1000

void __printf(1, 2) __noreturn usage_error(const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(EXIT_USAGE);
}

/* The common ones, and room for the program's own and an empty one. */
static struct option long_options[24] = {
	{ "bytes",		required_argument,	NULL, 'b' },
	{ "get-clears",		no_argument,		NULL, 'g' },
	{ "help",		no_argument,		NULL, 'h' },
	{ "iterations",		required_argument,	NULL, 'i' },
	{ "json",		required_argument,	NULL, 'j' },
	{ "nested",		no_argument,		NULL, 'n' },
	{ "overlap",		no_argument,		NULL, 'o' },
	{ "random",		no_argument,		NULL, 'a' },
	{ "readers",		required_argument,	NULL, 'R' },
	{ "runs",		required_argument,	NULL, OPT_RUNS },
	{ "seed",		required_argument,	NULL, 'r' },
	{ "slots",		required_argument,	NULL, 'x' },
	{ "sparse",		no_argument,		NULL, OPT_SPARSE },
	{ "stats",		no_argument,		NULL, OPT_STATS },
	{ "vcpus",		required_argument,	NULL, 'v' },
	{ "verify",		no_argument,		NULL, 'V' },
	{ "writes",		required_argument,	NULL, 'w' },
};

static void add_own_options(void)
{
	struct option *end = long_options;

	while (end->name)
		end++;
	memcpy(end, perf_program.long_options, sizeof(perf_program.long_options));
}

static void __noreturn print_help(const struct options *defaults)
{
	printf("usage: %s [options]\n\n"
	       "%s\n\n"
	       " -a, --random: Access pages in random order, with repetitions.\n"
	       " -b, --bytes: Memory per vCPU, e.g. 64M or 1G, rounded up to whole pages of\n"
	       "     the backing. (default: %luM)\n"
	       " -g, --get-clears: Let KVM_GET_DIRTY_LOG clear the log, i.e. use neither\n"
	       "     KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE nor KVM_DIRTY_LOG_INITIALLY_SET.\n"
	       " -h, --help: Print this text.\n"
	       " -i, --iterations: Number of iterations, at least 2. (default: %d)\n"
	       " -j, --json: Write the results to this file, too: JSON objects, one per\n"
	       "     line.  The file is complete or does not come to be.\n"
	       " -n, --nested: Run the vCPUs' code in L2. (x86 with VMX only)\n"
	       " -o, --overlap: Let every vCPU access the memory of all vCPUs.\n"
	       " -p: Accepted, but ignored: the test memory always ends where guest\n"
	       "     physical memory does.\n"
	       " -r, --seed: Seed of the random numbers. (default: %u)\n"
	       " -R, --readers: Number of vCPUs, the first ones, that only read, whatever -w\n"
	       "     is. (default: %d)\n"
	       " -v, --vcpus: Number of vCPUs. (default: %d)\n"
	       " -V, --verify: Verify that pages written are in the log, and that page sizes\n"
	       "     are those of eager or lazy page splitting.  What is wrong is named by\n"
	       "     its gfn.  Affects the times.\n"
	       " -w, --writes: Percentage of accesses that are writes; each one is decided by\n"
	       "     chance. (default: %u)\n"
	       " -x, --slots: Number of memslots to split the memory into. (default: %d)\n"
	       " --runs: Number of VMs, one after another; more than one yields minimum,\n"
	       "     median, and maximum of each phase. (default: %d)\n"
	       " --sparse: Access only the first page of every 2 MiB.  All of them are\n"
	       "     populated.\n"
	       " --stats: Print what KVM's statistics say about each phase. (x86 only)\n"
	       "%s",
	       program_invocation_short_name, perf_program.purpose,
	       defaults->vcpu_bytes / SZ_1M, defaults->iterations, kvm_random_seed,
	       defaults->readers, defaults->nr_vcpus, defaults->write_percent,
	       defaults->slots, defaults->runs, perf_program.help);
	guest_modes_help();
	backing_src_help("-s");
	kvm_print_vcpu_pinning_help();
	exit(0);
}

/* As it is to be typed.  Valid until the next call. */
static const char *flag_name(int flag)
{
	const struct option *option = long_options;
	static char name[32];

	while (option->name && option->val != flag)
		option++;
	if (flag < OPT_RUNS)
		snprintf(name, sizeof(name), "-%c", flag);
	else
		snprintf(name, sizeof(name), "--%s", option->name);
	return name;
}

unsigned long parse_number(int flag, const char *arg, unsigned long min,
			   unsigned long max)
{
	unsigned long number;
	char *end;

	errno = 0;
	number = strtoul(arg, &end, 0);
	if (!isdigit(arg[0]) || *end || errno || number < min || number > max)
		usage_error("%s takes a number from %lu to %lu, not '%s'",
			    flag_name(flag), min, max, arg);
	return number;
}

static u64 parse_bytes(int flag, const char *arg)
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
		usage_error("%s takes a size such as 64M or 1G, not '%s'",
			    flag_name(flag), arg);
	return number << shift;
}

static enum vm_mem_backing_src_type parse_backing(int flag, const char *arg)
{
	int i;

	for (i = 0; i < NUM_SRC_TYPES; i++) {
		if (!strcmp(arg, vm_mem_backing_src_alias(i)->name))
			return i;
	}
	usage_error("%s takes one of the backings listed by -h, not '%s'",
		    flag_name(flag), arg);
}

static int max_vcpus(void)
{
	return min_t(int, kvm_check_cap(KVM_CAP_MAX_VCPUS), KVM_MAX_VCPUS);
}

/* memslot 0 is the library's. */
static int max_slots(void)
{
	return kvm_check_cap(KVM_CAP_NR_MEMSLOTS) - 1 - perf_program.own_slots;
}

static void parse_value(struct options *opts, int flag, const char *arg)
{
	switch (flag) {
	case 'b':
		opts->vcpu_bytes = parse_bytes(flag, arg);
		break;
	case 'i':
		opts->iterations = parse_number(flag, arg, 2, INT_MAX);
		break;
	case 'j':
		opts->json = arg;
		break;
	case 'm':
		parse_number(flag, arg, 0, NUM_VM_MODES - 1);
		guest_modes_cmdline(arg);
		break;
	case 'p':
		parse_number(flag, arg, 0, ULONG_MAX);
		break;
	case 'r':
		kvm_random_seed = parse_number(flag, arg, 1, INT_MAX);
		break;
	case 'R':
		opts->readers = parse_number(flag, arg, 0, max_vcpus());
		break;
	case 's':
		opts->backing = parse_backing(flag, arg);
		break;
	case 'v':
		opts->nr_vcpus = parse_number(flag, arg, 1, max_vcpus());
		break;
	case 'w':
		opts->write_percent = parse_number(flag, arg, 0, 100);
		break;
	case 'x':
		opts->slots = parse_number(flag, arg, 1, max_slots());
		break;
	case OPT_RUNS:
		opts->runs = parse_number(flag, arg, 1, MAX_RUNS);
		break;
	default:
		/* getopt() told what is wrong. */
		exit(EXIT_USAGE);
	}
}

/* Returns false for options that take a value. */
static bool parse_switch(struct options *opts, int flag)
{
	switch (flag) {
	case 'a':
		opts->random_access = true;
		return true;
	case 'g':
		opts->manual_protect = false;
		return true;
	case 'n':
		memstress_args.nested = true;
		return true;
	case 'o':
		opts->partition = false;
		return true;
	case 'V':
		opts->verify = true;
		return true;
	case OPT_SPARSE:
		opts->sparse = true;
		return true;
	case OPT_STATS:
		opts->stats = true;
		return true;
	default:
		return false;
	}
}

static void check_options(const struct options *opts)
{
#ifndef __x86_64__
	if (opts->stats)
		usage_error("--stats knows the statistics of x86 only");
#endif
	if (opts->readers > opts->nr_vcpus)
		usage_error("-R %d is more than the %d vCPUs of -v", opts->readers,
			    opts->nr_vcpus);
	if (perf_program.check)
		perf_program.check(opts);
}

const char *parse_options(struct options *opts, int argc, char *argv[])
{
	const struct options defaults = *opts;
	const char *pcpus = NULL;
	char flags[64];
	int flag;

	add_own_options();
	snprintf(flags, sizeof(flags), "ab:c:ghi:j:m:nop:r:R:s:v:Vw:x:%s", perf_program.flags);
	while ((flag = getopt_long(argc, argv, flags, long_options, NULL)) != -1) {
		if (flag == 'c')
			pcpus = optarg;
		else if (flag == 'h')
			print_help(&defaults);
		else if (!perf_program.parse(opts, flag, optarg) && !parse_switch(opts, flag))
			parse_value(opts, flag, optarg);
	}
	if (optind < argc)
		usage_error("'%s' is not an option, see -h", argv[optind]);
	check_options(opts);
	return pcpus;
}
