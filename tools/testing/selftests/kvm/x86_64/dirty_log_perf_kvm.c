// SPDX-License-Identifier: GPL-2.0-only
/*
 * What KVM says about itself in dirty_log_perf_test: its statistics around each
 * phase, and the verdict (-V) on the sizes of the pages that it maps.
 *
 * Statistics are those of the binary stats file descriptors, one read for the
 * VM and one for each vCPU.  Those of vCPUs are added up.  What a kernel does
 * not have, e.g. the splitter's own if it is not patched, is left out.
 *
 * Verdict.  Page sizes come as counts, which do not tell where a wrong one is,
 * and may be wrong themselves.  So while no vCPU runs, the first one goes and looks:
 *
 *   hole		after each split it reads all pages.  None of these reads
 *			may take a page fault.  Whoever reads a hole gets a
 *			writable SPTE, as the memory is writable, and so KVM has to
 *			put the page into the log: there it is found.
 *   huge page left	if the counts say so, it writes to two pages of each 2 MiB.
 *			If a huge page vanishes, it was there and write-protected;
 *			if the second of the two is not in the log then, it was
 *			there and writable.
 *
 * Limits.  What is found is mended by that, so the message names the first page
 * only.  Memory that is not HugeTLB may lose SPTEs by reclaim, so only huge pages
 * left count there.  The live mode, where vCPUs run, knows counts only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <linux/sizes.h>

#include "kvm_util.h"
#include "memstress.h"
#include "processor.h"
#include "test_util.h"
#include "dirty_log_perf_test.h"

#define GFN_NONE	(~0ULL)

/* As VMs and vCPUs number them: present now, or happened since. */
enum kvm_stat_kind {
	VM_LEVEL,
	VM_COUNT,
	VCPU_COUNT,
};

/* Names are KVM's, and part of the output format. */
static const struct {
	const char *name;
	enum kvm_stat_kind kind;
} kvm_stat_table[] = {
	{ "pages_4k",			VM_LEVEL },
	{ "pages_2m",			VM_LEVEL },
	{ "pages_1g",			VM_LEVEL },
	{ "remote_tlb_flush",		VM_COUNT },
	{ "remote_tlb_flush_requests",	VM_COUNT },
	{ "mmu_shadow_zapped",		VM_COUNT },
	{ "eager_split_done",		VM_COUNT },
	{ "eager_split_yields",		VM_COUNT },
	{ "eager_split_nomem",		VM_COUNT },
	{ "eager_split_noquota",	VM_COUNT },
	{ "eager_split_invalidated",	VM_COUNT },
	{ "eager_split_cancelled",	VM_COUNT },
	{ "exits",			VCPU_COUNT },
	{ "pf_taken",			VCPU_COUNT },
	{ "pf_fixed",			VCPU_COUNT },
	{ "pf_fast",			VCPU_COUNT },
	{ "pf_spurious",		VCPU_COUNT },
	{ "pf_emulate",			VCPU_COUNT },
	{ "tlb_flush",			VCPU_COUNT },
	{ "insn_emulation",		VCPU_COUNT },
};

#define NR_KVM_STATS	ARRAY_SIZE(kvm_stat_table)

/* Where the data of VMs, or of vCPUs, has what. */
struct kvm_stats_layout {
	off_t begin;
	size_t bytes;
	/* Index into the data, or negative if the kernel lacks it. */
	int index[NR_KVM_STATS];
};

/* Of the current VM. */
static struct {
	int vm_fd;
	int nr_vcpus;
	int vcpu_fds[KVM_MAX_VCPUS];
	struct kvm_stats_layout vm;
	struct kvm_stats_layout vcpu;
	/* Room for the data of either. */
	uint64_t *data;
} source;

/*
 * KVM's parameters.
 */

/* A boolean parameter of a module as JSON, null if there is none. */
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

/* As of the creation of the VM. */
static struct {
	const char *eager;
	const char *tdp_mmu;
	/* ept or npt. */
	const char *tdp;
} parameters;

static void read_parameters(void)
{
	parameters.eager = read_parameter("kvm", "eager_page_split");
	parameters.tdp_mmu = read_parameter("kvm", "tdp_mmu");
	parameters.tdp = host_cpu_is_intel ? read_parameter("kvm_intel", "ept") :
					     read_parameter("kvm_amd", "npt");
}

void kvm_parameters_json(void)
{
	fprintf(json_out, ", \"eager\": %s, \"tdp_mmu\": %s, \"ept\": %s",
		parameters.eager, parameters.tdp_mmu, parameters.tdp);
}

void kvm_parameters_print(void)
{
	pr_info("\nKVM's parameters: eager_page_split %s, tdp_mmu %s, %s %s\n",
		parameters.eager, parameters.tdp_mmu,
		host_cpu_is_intel ? "ept" : "npt", parameters.tdp);
}

/*
 * KVM's statistics.
 */

static bool is_vcpu_stat(int stat)
{
	return kvm_stat_table[stat].kind == VCPU_COUNT;
}

static int find_stat(const char *name, bool is_vcpu)
{
	int i;

	for (i = 0; i < NR_KVM_STATS; i++) {
		if (is_vcpu_stat(i) == is_vcpu && !strcmp(kvm_stat_table[i].name, name))
			return i;
	}
	return -1;
}

static void read_layout(int fd, struct kvm_stats_layout *layout, bool is_vcpu)
{
	struct kvm_stats_header header;
	struct kvm_stats_desc *descs, *desc;
	size_t end;
	int i, stat;

	memset(layout->index, -1, sizeof(layout->index));
	layout->bytes = 0;
	read_stats_header(fd, &header);
	layout->begin = header.data_offset;
	descs = read_stats_descriptors(fd, &header);

	for (i = 0; i < header.num_desc; i++) {
		desc = get_stats_descriptor(descs, i, &header);
		stat = find_stat(desc->name, is_vcpu);
		if (stat >= 0)
			layout->index[stat] = desc->offset / sizeof(uint64_t);
		end = desc->offset + desc->size * sizeof(uint64_t);
		layout->bytes = max_t(size_t, layout->bytes, end);
	}
	free(descs);
}

void kvm_open(const struct test *test)
{
	int i;

	static_assert(NR_KVM_STATS <= MAX_KVM_STATS, "struct kvm_stats is too small");

	read_parameters();
	source.vm_fd = vm_get_stats_fd(test->vm);
	source.nr_vcpus = test->opts->nr_vcpus;
	for (i = 0; i < source.nr_vcpus; i++)
		source.vcpu_fds[i] = vcpu_get_stats_fd(memstress_args.vcpu_args[i].vcpu);

	read_layout(source.vm_fd, &source.vm, false);
	read_layout(source.vcpu_fds[0], &source.vcpu, true);
	source.data = malloc(max_t(size_t, source.vm.bytes, source.vcpu.bytes));
	TEST_ASSERT(source.data, "Out of memory");
}

void kvm_close(void)
{
	int i;

	for (i = 0; i < source.nr_vcpus; i++)
		close(source.vcpu_fds[i]);
	close(source.vm_fd);
	free(source.data);
}

static void add_stats(int fd, const struct kvm_stats_layout *layout,
		      struct kvm_stats *stats)
{
	ssize_t bytes = pread(fd, source.data, layout->bytes, layout->begin);
	int i;

	TEST_ASSERT(bytes == layout->bytes,
		    "Read %ld bytes of KVM's statistics instead of %lu, errno %d", bytes,
		    layout->bytes, errno);
	for (i = 0; i < NR_KVM_STATS; i++) {
		if (layout->index[i] >= 0)
			stats->values[i] += source.data[layout->index[i]];
	}
}

void kvm_stats_read(struct kvm_stats *stats)
{
	int i;

	memset(stats, 0, sizeof(*stats));
	add_stats(source.vm_fd, &source.vm, stats);
	for (i = 0; i < source.nr_vcpus; i++)
		add_stats(source.vcpu_fds[i], &source.vcpu, stats);
}

static bool kernel_has(int stat)
{
	return source.vm.index[stat] >= 0 || source.vcpu.index[stat] >= 0;
}

static int64_t stat_change(const struct kvm_stats *before, const struct kvm_stats *after,
			   int stat)
{
	return after->values[stat] - before->values[stat];
}

static double exits_per_write(const struct kvm_stats *before,
			      const struct kvm_stats *after, uint64_t writes)
{
	return (double)stat_change(before, after, find_stat("exits", true)) / writes;
}

/* Only what changed: nearly all of it is 0 in nearly all phases. */
void kvm_stats_print(const struct kvm_stats *before, const struct kvm_stats *after,
		     uint64_t writes)
{
	int64_t change;
	int i;

	pr_info("  KVM's statistics:");
	for (i = 0; i < NR_KVM_STATS; i++) {
		change = stat_change(before, after, i);
		if (change)
			pr_info(" %s %+ld", kvm_stat_table[i].name, change);
		if (change && kvm_stat_table[i].kind == VM_LEVEL)
			pr_info(" (%lu)", after->values[i]);
	}
	if (writes)
		pr_info(", %.3f exits per write", exits_per_write(before, after, writes));
	pr_info("\n");
}

void kvm_stats_json(const struct kvm_stats *before, const struct kvm_stats *after,
		    uint64_t writes)
{
	const char *separator = "";
	int i;

	fprintf(json_out, ", \"kvm_stats\": {");
	for (i = 0; i < NR_KVM_STATS; i++) {
		if (!kernel_has(i))
			continue;
		fprintf(json_out, "%s\"%s\": %ld", separator, kvm_stat_table[i].name,
			stat_change(before, after, i));
		separator = ", ";
	}
	fprintf(json_out, "}");

	for (i = 0; i < NR_KVM_STATS; i++) {
		if (kvm_stat_table[i].kind == VM_LEVEL)
			fprintf(json_out, ", \"%s\": %lu", kvm_stat_table[i].name,
				after->values[i]);
	}
	if (writes)
		fprintf(json_out, ", \"exits_per_write\": %.6f",
			exits_per_write(before, after, writes));
	else
		fprintf(json_out, ", \"exits_per_write\": null");
}

/*
 * The verdict.
 */

static struct page_sizes count_pages(const struct test *test)
{
	struct page_sizes sizes = {
		.nr_4k = vm_get_stat(test->vm, "pages_4k"),
		.nr_2m = vm_get_stat(test->vm, "pages_2m"),
		.nr_1g = vm_get_stat(test->vm, "pages_1g"),
	};

	return sizes;
}

static struct page_sizes get_page_sizes(const struct test *test, const char *stage)
{
	struct page_sizes sizes = count_pages(test);

	pr_info("Page sizes after %s: 4K: %lu 2M: %lu 1G: %lu\n",
		stage, sizes.nr_4k, sizes.nr_2m, sizes.nr_1g);
	return sizes;
}

/* Without a huge page to start with, finding none later proves nothing. */
void verify_populated(struct test *test)
{
	test->populated = get_page_sizes(test, "populating");

	TEST_ASSERT(test->populated.nr_2m || test->populated.nr_1g ||
		    !is_hugetlb(test->opts->backing),
		    "KVM mapped no huge page, although %s can be mapped huge",
		    vm_mem_backing_src_alias(test->opts->backing)->name);
}

static uint64_t nr_pages(void)
{
	return memstress_args.size / PAGE_SIZE;
}

static uint64_t page_gfn(uint64_t page)
{
	return memstress_args.gpa / PAGE_SIZE + page;
}

static uint64_t faults_taken(void)
{
	struct kvm_stats stats;

	kvm_stats_read(&stats);
	return stats.values[find_stat("pf_taken", true)];
}

/*
 * Page faults when all pages are read.  What a vCPU needs besides them is mapped
 * since it populated.
 */
static uint64_t count_holes(const struct test *test)
{
	uint64_t before = faults_taken();

	probe_pages(test, 0, nr_pages(), false);
	return faults_taken() - before;
}

/* To be called once they were read, with the log empty before that. */
static uint64_t find_hole(const struct test *test)
{
	uint64_t page;

	memstress_get_dirty_log(test->vm, test->bitmaps, test->opts->slots);
	for (page = 0; page < nr_pages(); page++) {
		if (is_page_logged(test, page))
			return page_gfn(page);
	}
	return GFN_NONE;
}

static uint64_t count_huge(const struct test *test)
{
	struct page_sizes sizes = count_pages(test);

	return sizes.nr_2m + sizes.nr_1g;
}

/* The first page whose write made a huge page vanish. */
static uint64_t find_protected(const struct test *test)
{
	const uint64_t step = SPARSE_BYTES / PAGE_SIZE;
	uint64_t page, before = count_huge(test), after;

	for (page = 0; page < nr_pages(); page += step) {
		probe_pages(test, page, 1, true);
		after = count_huge(test);
		if (after < before)
			return page_gfn(page);
		before = after;
	}
	return GFN_NONE;
}

/*
 * The first page whose write is not in the log.  With PML, the first write to a
 * huge page is logged for the one page that it hits: find_protected() did that.
 */
static uint64_t find_unlogged(const struct test *test)
{
	const uint64_t step = SPARSE_BYTES / PAGE_SIZE;
	uint64_t page;

	for (page = 1; page < nr_pages(); page += step)
		probe_pages(test, page, 1, true);

	memstress_get_dirty_log(test->vm, test->bitmaps, test->opts->slots);
	for (page = 1; page < nr_pages(); page += step) {
		if (!is_page_logged(test, page))
			return page_gfn(page);
	}
	return GFN_NONE;
}

/* In the live mode vCPUs run, and mend or hide what is to be found. */
static bool can_probe(const struct test *test)
{
	return !test->opts->live.window_us;
}

static void say_where(const struct test *test, uint64_t gfn, char *where, size_t size)
{
	if (gfn != GFN_NONE)
		snprintf(where, size, "the first at gfn 0x%lx", gfn);
	else if (can_probe(test))
		snprintf(where, size, "at a gfn that could not be found out");
	else
		snprintf(where, size, "without -l the gfn is named");
}

static void __noreturn fail_huge(const struct test *test, const struct page_sizes *now,
				 const char *stage)
{
	const char *how = ", write-protected";
	uint64_t gfn = GFN_NONE;
	char where[96];

	if (can_probe(test))
		gfn = find_protected(test);
	if (can_probe(test) && gfn == GFN_NONE) {
		how = ", writable: a write to it is not in the dirty log";
		gfn = find_unlogged(test);
	}
	say_where(test, gfn, where, sizeof(where));

	TEST_FAIL("%lu 2M and %lu 1G pages left after %s, although eager_page_split=Y: %s%s",
		  now->nr_2m, now->nr_1g, stage, where, gfn == GFN_NONE ? "" : how);
	exit(KSFT_FAIL);
}

static void __noreturn fail_holes(const struct test *test, const struct page_sizes *now,
				  uint64_t expected, uint64_t holes, const char *stage)
{
	uint64_t gfn = holes ? find_hole(test) : GFN_NONE;
	char where[96];

	say_where(test, gfn, where, sizeof(where));

	TEST_FAIL("Holes after %s: %lu 4K pages, expected %lu; reading all took %lu faults, %s",
		  stage, now->nr_4k, expected, holes, where);
	exit(KSFT_FAIL);
}

/* The 4K pages that there have to be once every huge page is split. */
static uint64_t pages_when_split(const struct page_sizes *old)
{
	return old->nr_4k + (old->nr_2m * SZ_2M + old->nr_1g * SZ_1G) / SZ_4K;
}

static void verify_eager(const struct test *test, const char *stage)
{
	uint64_t expected = pages_when_split(&test->populated);
	struct page_sizes now = get_page_sizes(test, stage);
	uint64_t holes;

	if (now.nr_2m || now.nr_1g)
		fail_huge(test, &now, stage);

	/* The host may reclaim any other memory, and zap its SPTEs. */
	if (!is_hugetlb(test->opts->backing))
		return;

	holes = can_probe(test) ? count_holes(test) : 0;
	if (now.nr_4k < expected || holes)
		fail_holes(test, &now, expected, holes, stage);
}

/* Write-protecting a huge page leaves it one; only a write later splits it. */
static void verify_lazy(const struct test *test, const char *stage)
{
	const struct page_sizes *old = &test->populated;
	struct page_sizes now;

	/* The first time, before anybody writes, and only if nobody else zaps. */
	if (!can_probe(test) || !is_hugetlb(test->opts->backing) ||
	    test->times[PHASE_CLEAR].count > 1)
		return;

	now = get_page_sizes(test, stage);
	TEST_ASSERT(now.nr_2m == old->nr_2m && now.nr_1g == old->nr_1g &&
		    now.nr_4k == old->nr_4k,
		    "4K: %lu 2M: %lu 1G: %lu after %s instead of 4K: %lu 2M: %lu 1G: %lu: pages were split although eager_page_split=N",
		    now.nr_4k, now.nr_2m, now.nr_1g, stage,
		    old->nr_4k, old->nr_2m, old->nr_1g);
}

/* Only the test slots can have huge pages, memslot 0 has none. */
void verify_split(const struct test *test, const char *stage)
{
	if (get_kvm_param_bool("eager_page_split"))
		verify_eager(test, stage);
	else
		verify_lazy(test, stage);
}
