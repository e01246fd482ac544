/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What dirty_log_perf_test.c shares with its live mode, which is one file per
 * architecture: x86_64/dirty_log_perf_test.c so far.
 */
#ifndef SELFTEST_KVM_DIRTY_LOG_PERF_TEST_H
#define SELFTEST_KVM_DIRTY_LOG_PERF_TEST_H

#include <stdint.h>
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

/* What only the live mode takes notice of. */
struct live_options {
	/* Length of a window of the timeline; 0: not live, the rest is unused. */
	uint32_t window_us;
	/* How long vCPUs run between two actions of the host. */
	uint32_t stretch_ms;
	/* vCPUs, the first ones, that only read.  At most all of them. */
	int readers;
	/* Readers read pages that are not mapped yet. */
	bool fresh;
	/* Print the timeline, too. */
	bool timeline;
	/* File for the results, or NULL. */
	const char *json;
	/* The last of the options above that was given; 0 if none was. */
	char flag;
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
	/* Chance of an access to be a write, 0 to 100. */
	uint32_t write_percent;
	bool random_access;
	/* False: each vCPU accesses the memory of all of them. */
	bool partition;
	/* False: KVM_GET_DIRTY_LOG clears the log, too. */
	bool manual_protect;
	bool run_while_disabling;
	bool verify;
	struct live_options live;
};

/* One VM, from creation to destruction. */
struct test {
	const struct options *opts;
	struct kvm_vm *vm;
	/* KVM_DIRTY_LOG_* as enabled, 0 if GET clears the log. */
	uint64_t manual_caps;
	/* What the last GET returned, by slot; one bit per host page. */
	unsigned long **bitmaps;
	/* In units of host pages. */
	uint64_t pages_per_slot;
	struct phase_times times[NR_PHASES];
	/* Right after populating; only if verifying. */
	struct page_sizes populated;
	/* Negative if there is none. */
	int gic_fd;
};

void __printf(1, 2) __noreturn usage_error(const char *fmt, ...);

/* Let every vCPU enter the guest; it comes back with GUEST_SYNC(). */
void crew_begin(void);
/* Sleep until all of them are back. */
void crew_end(void);

/* Take note of one run of @phase.  @iteration is 0 outside of iterations. */
void phase_done(struct test *test, enum phase phase, int iteration,
		struct timespec time);

bool initially_set(const struct test *test);
uint64_t slot_bytes(const struct test *test);
uint64_t slot_gpa(const struct test *test, int slot);

/* Whether the last GET returned the page at @offset into @slot. */
bool is_logged(const struct test *test, int slot, uint64_t offset);

/* Page sizes as eager page splitting promises them; prints what it found. */
void verify_populated(struct test *test);
void verify_split(const struct test *test, const char *stage);

/* memslots that the live mode adds after those of the test. */
#define LIVE_SLOTS	2

#ifdef __x86_64__
/* Measure running vCPUs while dirty logging comes and goes. */
void live_run(struct test *test);
#else
/* -l is refused. */
static inline void live_run(struct test *test)
{
}
#endif

#endif /* SELFTEST_KVM_DIRTY_LOG_PERF_TEST_H */
