// SPDX-License-Identifier: GPL-2.0-only
/*
 * KVM's statistics in the tests of dirty_log_perf.h, as text and as JSON, and
 * the values of KVM's parameters
 *
 * Statistics are read from the binary stats file descriptors, with one read for
 * the VM and one for each vCPU.  Those of all vCPUs are added up.  Statistics
 * that the kernel lacks, e.g. those of the splitter, are left out.
 */
#include "processor.h"
#include "dirty_log_perf.h"

/*
 * Statistics of the VM or of vCPUs.  The names are KVM's, and scripts parse
 * them.
 */
static const struct {
	const char *name;
	/*
	 * How many there are now, as opposed to how often something happened.
	 */
	bool level;
} kvm_stat_table[] = {
	{ "pages_4k", true },
	{ "pages_2m", true },
	{ "pages_1g", true },
	{ "remote_tlb_flush" },
	{ "remote_tlb_flush_requests" },
	{ "mmu_shadow_zapped" },
	{ "eager_split_done" },
	{ "eager_split_nomem" },
	{ "eager_split_noquota" },
	{ "exits" },
	{ "pf_taken" },
	{ "pf_fixed" },
	{ "pf_fast" },
	{ "pf_spurious" },
	{ "pf_emulate" },
	{ "tlb_flush" },
	{ "insn_emulation" },
};

#define NR_KVM_STATS	ARRAY_SIZE(kvm_stat_table)

/* More values than a file descriptor has, including histograms. */
#define MAX_WORDS	1024

/* The file descriptor of the current VM, followed by those of its vCPUs. */
static struct source {
	int fd;
	/* Where the data begins in the file. */
	off_t begin;
	/* The index of each statistic in the data, negative if it is absent. */
	int index[NR_KVM_STATS];
} sources[1 + KVM_MAX_VCPUS];

static int nr_sources;

/* KVM's parameters. */

/* Return: a boolean parameter of a module as JSON, null if there is no such parameter. */
static const char *read_parameter(const char *module, const char *name)
{
	char path[128];
	FILE *file;
	int c;

	snprintf(path, sizeof(path), "/sys/module/%s/parameters/%s", module, name);
	file = fopen(path, "r");
	if (!file)
		return "null";

	c = fgetc(file);
	fclose(file);
	return json_bool(c == 'Y' || c == '1');
}

static struct kvm_parameters read_parameters(void)
{
	return (struct kvm_parameters){
		.eager = read_parameter("kvm", "eager_page_split"),
		.tdp_mmu = read_parameter("kvm", "tdp_mmu"),
		.tdp = host_cpu_is_intel ? read_parameter("kvm_intel", "ept") :
					   read_parameter("kvm_amd", "npt"),
	};
}

/* KVM's statistics. */

static int find_stat(const char *name)
{
	for (int i = 0; i < NR_KVM_STATS; i++)
		if (!strcmp(kvm_stat_table[i].name, name))
			return i;
	return -1;
}

static void add_source(int fd)
{
	struct source *source = &sources[nr_sources++];
	struct kvm_stats_header header;
	struct kvm_stats_desc *descs, *desc;
	int stat;

	read_stats_header(fd, &header);
	*source = (struct source){ .fd = fd, .begin = header.data_offset };
	memset(source->index, -1, sizeof(source->index));
	descs = read_stats_descriptors(fd, &header);
	for (int i = 0; i < header.num_desc; i++) {
		desc = get_stats_descriptor(descs, i, &header);
		stat = find_stat(desc->name);
		if (stat >= 0)
			source->index[stat] = desc->offset / sizeof(u64);
	}
	free(descs);
}

void kvm_stats_open(struct test *test)
{
	static_assert(NR_KVM_STATS <= MAX_KVM_STATS, "struct kvm_stats is too small");

	test->parameters = read_parameters();
	add_source(test->vm->stats.fd);
	for (int i = 0; i < test->opts->nr_vcpus; i++)
		add_source(vcpu_get_stats_fd(memstress_args.vcpu_args[i].vcpu));
}

/* Close the file descriptors of vCPUs.  The library closes that of the VM. */
void kvm_stats_close(void)
{
	while (--nr_sources)
		close(sources[nr_sources].fd);
}

static void add_stats(const struct source *source, struct kvm_stats *stats)
{
	u64 data[MAX_WORDS];
	ssize_t bytes = pread(source->fd, data, sizeof(data), source->begin);

	for (int i = 0; i < NR_KVM_STATS; i++) {
		TEST_ASSERT(source->index[i] < bytes / (ssize_t)sizeof(*data),
			    "Read %ld bytes of KVM's statistics, errno %d", bytes, errno);
		if (source->index[i] >= 0)
			stats->values[i] += data[source->index[i]];
	}
}

void kvm_stats_read(struct kvm_stats *stats)
{
	memset(stats, 0, sizeof(*stats));
	for (int i = 0; i < nr_sources; i++)
		add_stats(&sources[i], stats);
}

static u64 kvm_stat(const struct kvm_stats *stats, const char *name)
{
	return stats->values[find_stat(name)];
}

s64 count_page_tables(void)
{
	FILE *file = fopen("/proc/sys/vm/stat_refresh", "w");
	char line[128];
	s64 pages = -1;

	if (!file)
		return -1;

	/* Have each CPU add its own counters to the global counters. */
	fputs("1\n", file);
	fclose(file);

	file = fopen("/proc/vmstat", "r");
	if (!file)
		return -1;
	while (pages < 0 && fgets(line, sizeof(line), file))
		sscanf(line, "nr_sec_page_table_pages %ld", &pages);
	fclose(file);
	return pages;
}

void kvm_memory_json(const struct test *test, enum phase phase, int iteration)
{
	s64 page_tables = count_page_tables();
	struct kvm_stats now;

	kvm_stats_read(&now);
	json_dimensions(test, "memory");
	json_phase(phase, iteration);
	fprintf(json_out, ", \"pages_4k\": %lu, \"pages_2m\": %lu, \"pages_1g\": %lu",
		kvm_stat(&now, "pages_4k"), kvm_stat(&now, "pages_2m"), kvm_stat(&now, "pages_1g"));
	if (page_tables < 0 || test->page_tables < 0)
		fprintf(json_out, ", \"page_tables\": null}\n");
	else
		fprintf(json_out, ", \"page_tables\": %ld}\n", page_tables - test->page_tables);
}

u64 vcpu_faults_taken(int vcpu)
{
	struct kvm_stats stats = {};

	add_stats(&sources[1 + vcpu], &stats);
	return stats.values[find_stat("pf_taken")];
}

static s64 stat_change(const struct kvm_stats *before, const struct kvm_stats *after, int stat)
{
	return after->values[stat] - before->values[stat];
}

/* Print only what has changed, as most statistics do not in most phases. */
void kvm_stats_print(const struct kvm_stats *before, const struct kvm_stats *after, u64 writes)
{
	s64 change;

	pr_info("  KVM's statistics:");
	for (int i = 0; i < NR_KVM_STATS; i++) {
		change = stat_change(before, after, i);
		if (change)
			pr_info(" %s %+ld", kvm_stat_table[i].name, change);
		if (change && kvm_stat_table[i].level)
			pr_info(" (%lu)", after->values[i]);
	}
	if (writes)
		pr_info(", %.3f exits per write",
			(double)stat_change(before, after, find_stat("exits")) / writes);
	pr_info("\n");
}

void kvm_stats_json(const struct kvm_stats *before, const struct kvm_stats *after)
{
	const char *separator = "";

	fprintf(json_out, ", \"kvm_stats\": {");
	for (int i = 0; i < NR_KVM_STATS; i++) {
		if (sources[0].index[i] < 0 && sources[1].index[i] < 0)
			continue;
		fprintf(json_out, "%s\"%s\": %ld", separator, kvm_stat_table[i].name,
			stat_change(before, after, i));
		separator = ", ";
	}
	fprintf(json_out, "}");
}
