/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of dirty_log_perf_test share: the phases in
 * dirty_log_perf_test.c, and for x86 the live mode in
 * x86_64/dirty_log_perf_test.c and what KVM says about itself in
 * x86_64/dirty_log_perf_kvm.c.
 */
#ifndef SELFTEST_KVM_DIRTY_LOG_PERF_TEST_H
#define SELFTEST_KVM_DIRTY_LOG_PERF_TEST_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "kvm_util.h"
#include "test_util.h"

enum phase {
	PHASE_POPULATE,
	PHASE_ENABLE,
	PHASE_DIRTY,
	PHASE_GET,
	PHASE_CLEAR,
	PHASE_DISABLE,
	NR_PHASES,
};

/* All runs of one phase so far. */
struct phase_times {
	struct timespec sum;
	int count;
};

/* Present SPTEs by size, of the whole VM. */
struct page_sizes {
	uint64_t nr_4k;
	uint64_t nr_2m;
	uint64_t nr_1g;
};

/* Accesses that guests counted themselves. */
struct accesses {
	uint64_t reads;
	uint64_t writes;
};

/* Room for the statistics that are read, see x86_64/dirty_log_perf_kvm.c. */
#define MAX_KVM_STATS	24

/* Of the VM and of all its vCPUs at one time; 0 for what the kernel lacks. */
struct kvm_stats {
	uint64_t values[MAX_KVM_STATS];
};

/* What only the live mode takes notice of. */
struct live_options {
	/* Length of a window of the timeline; 0: not live, the rest is unused. */
	uint32_t window_us;
	/* How long vCPUs run between two actions of the host. */
	uint32_t stretch_ms;
	/* Readers read pages that are not mapped yet. */
	bool fresh;
	/* Print the timeline, too. */
	bool timeline;
	/* The last of the options above that was given; 0 if none was. */
	int flag;
};

/* The command line.  Not modified once parsed. */
struct options {
	/* 1 to what both KVM and memstress support. */
	int nr_vcpus;
	/* Memory per vCPU as asked for, i.e. not yet rounded. */
	uint64_t vcpu_bytes;
	enum vm_mem_backing_src_type backing;
	/* Equal parts, each whole backing pages, of the test memory. */
	int slots;
	/* At least 2: with initially-all-set, the first one is free. */
	int iterations;
	/* VMs, one after another. */
	int runs;
	/* Chance of an access to be a write, 0 to 100. */
	uint32_t write_percent;
	/* vCPUs, the first ones, that only read.  At most all of them. */
	int readers;
	bool random_access;
	/* Access one page out of SPARSE_BYTES. */
	bool sparse;
	/* False: each vCPU accesses the memory of all of them. */
	bool partition;
	/* False: KVM_GET_DIRTY_LOG clears the log, too. */
	bool manual_protect;
	bool run_while_disabling;
	bool verify;
	/* Print what KVM's statistics say about each phase. */
	bool stats;
	/* File for the results, or NULL. */
	const char *json;
	struct live_options live;
};

/* One VM, from creation to destruction. */
struct test {
	const struct options *opts;
	/* From 1 to what was asked for. */
	int run;
	struct kvm_vm *vm;
	/* KVM_DIRTY_LOG_* as enabled, 0 if GET clears the log. */
	uint64_t manual_caps;
	/* What the last GET returned, by slot; one bit per host page. */
	unsigned long **bitmaps;
	/* In units of host pages. */
	uint64_t pages_per_slot;
	struct phase_times times[NR_PHASES];
	/* Phases that phase_done() took note of. */
	int nr_done;
	/* What vCPUs did in the last pass. */
	struct accesses accesses;
	/* Right before the current phase; only if statistics are read. */
	struct kvm_stats before;
	/* Right after populating; only if verifying. */
	struct page_sizes populated;
	/* Negative if there is none. */
	int gic_fd;
};

#define SPARSE_BYTES	0x200000UL

void __printf(1, 2) __noreturn usage_error(const char *fmt, ...);

/* Let every vCPU enter the guest; it comes back with GUEST_SYNC(). */
void crew_begin(void);
/* Sleep until all of them are back. */
void crew_end(void);

/*
 * Let the first vCPU access @nr pages of the test memory, whoever's they are.
 * Only while no vCPU runs, and not in the live mode.
 */
void probe_pages(const struct test *test, uint64_t first, uint64_t nr, bool write);

/* Take note of one run of @phase.  @iteration is 0 outside of iterations. */
void phase_done(struct test *test, enum phase phase, int iteration,
		struct timespec time);

bool initially_set(const struct test *test);
bool is_hugetlb(enum vm_mem_backing_src_type backing);
uint64_t slot_bytes(const struct test *test);
uint64_t slot_gpa(const struct test *test, int slot);

/* Whether the last GET returned the page at @offset into @slot. */
bool is_logged(const struct test *test, int slot, uint64_t offset);
/* The same for a page by its number in the test memory. */
bool is_page_logged(const struct test *test, uint64_t page);

/* Guest pages from one that is accessed to the next one. */
uint64_t page_step(const struct options *opts);

static inline const char *json_bool(bool value)
{
	return value ? "true" : "false";
}

/* Where JSON goes: memory, as a file shall be complete or not come to be. */
extern FILE *json_out;

/* Begin a line with all that tells one test from another. */
void json_dimensions(const struct test *test, const char *record);
void json_iteration(int iteration);

/* memslots that the live mode adds after those of the test. */
#define LIVE_SLOTS	2

#ifdef __x86_64__
/* Measure running vCPUs while dirty logging comes and goes. */
void live_run(struct test *test);
/* The guest's side of it. */
bool guest_is_live(void);
void live_guest_code(uint32_t vcpu);

/* Page sizes as eager page splitting promises them; prints what it found. */
void verify_populated(struct test *test);
void verify_split(const struct test *test, const char *stage);

/* KVM's statistics and parameters, once there is a VM and until its end. */
void kvm_open(const struct test *test);
void kvm_close(void);
void kvm_stats_read(struct kvm_stats *stats);

/* What changed, for people, per write if there are any, and for programs. */
void kvm_stats_print(const struct kvm_stats *before, const struct kvm_stats *after,
		     uint64_t writes);
void kvm_stats_json(const struct kvm_stats *before, const struct kvm_stats *after,
		    uint64_t writes);

/* Members for KVM's parameters, each with a comma in front of it. */
void kvm_parameters_json(void);
void kvm_parameters_print(void);
#else
/* -l and --stats are refused; the parameters exist only on x86. */
static inline void live_run(struct test *test)
{
}

static inline bool guest_is_live(void)
{
	return false;
}

static inline void live_guest_code(uint32_t vcpu)
{
}

static inline void verify_populated(struct test *test)
{
}

static inline void verify_split(const struct test *test, const char *stage)
{
}

static inline void kvm_open(const struct test *test)
{
}

static inline void kvm_close(void)
{
}

static inline void kvm_stats_read(struct kvm_stats *stats)
{
}

static inline void kvm_stats_print(const struct kvm_stats *before,
				   const struct kvm_stats *after, uint64_t writes)
{
}

static inline void kvm_stats_json(const struct kvm_stats *before,
				  const struct kvm_stats *after, uint64_t writes)
{
}

static inline void kvm_parameters_json(void)
{
}
#endif

#endif /* SELFTEST_KVM_DIRTY_LOG_PERF_TEST_H */
