/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What dirty_log_perf_test and x86/dirty_log_live_perf_test share:
 *   dirty_log_perf_main.c		from the command line to VM after VM
 *   dirty_log_perf_workers.c		the vCPUs' threads
 *   dirty_log_perf_results.c		times of phases, for people and as JSON
 *   x86/dirty_log_perf_stats.c	KVM's parameters and statistics
 *   x86/dirty_log_perf_sizes.c	the verdict on the sizes of pages
 */
#ifndef SELFTEST_KVM_DIRTY_LOG_PERF_H
#define SELFTEST_KVM_DIRTY_LOG_PERF_H

#include <stdint.h>
#include <time.h>
#include <linux/sizes.h>

#include "memstress.h"
#include "test_options.h"

/* Of both programs; the first four of dirty_log_live_perf_test are its first ones in time. */
enum phase {
	PHASE_POPULATE, PHASE_BASELINE, PHASE_ENABLE, PHASE_ENABLED, PHASE_DIRTY, PHASE_GET,
	PHASE_CLEAR, PHASE_VERIFY, PHASE_LOGGING, PHASE_DISABLE, PHASE_DISABLED, NR_PHASES,
};

/* All runs of one phase so far. */
struct phase_times {
	struct timespec sum;
	int count;
};

/* Present SPTEs by size, of the whole VM. */
struct page_sizes {
	u64 nr_4k;
	u64 nr_2m;
	u64 nr_1g;
};

/* Accesses that guests counted themselves. */
struct accesses {
	u64 reads;
	u64 writes;
};

/* Which accesses are writes, if not all are. */
enum pattern {
	/* Each one by chance. */
	PATTERN_PAGES,
	/* All or none of those to 2MiB; the regions that are written are spread evenly. */
	PATTERN_REGIONS,
	/* By chance, but none before iteration 2, see options.read_first. */
	PATTERN_CLEAN,
	NR_PATTERNS,
};

/* Room for the statistics that are read, see x86/dirty_log_perf_stats.c. */
#define MAX_KVM_STATS	24

/* Of the VM and of all its vCPUs at one time; 0 for what the kernel lacks. */
struct kvm_stats {
	u64 values[MAX_KVM_STATS];
};

/* The command line.  Not modified once parsed. */
extern struct options {
	/* 1 to what both KVM and memstress support. */
	int nr_vcpus;
	/* Memory per vCPU as asked for, i.e. not yet rounded. */
	u64 vcpu_bytes;
	enum vm_mem_backing_src_type backing;
	/* Equal parts, each whole backing pages, of the test memory. */
	int slots;
	/* At least 2: with initially-all-set, the first one is free. */
	int iterations;
	/* VMs, one after another. */
	int runs;
	/* Chance of an access to be a write, 0 to 100. */
	int write_percent;
	enum pattern pattern;
	/* Memory is populated by reads, and nothing is written before iteration 2. */
	bool read_first;
	/* Log the memory before it is populated.  Without initially-all-set. */
	bool tracked;
	/* vCPUs, the first ones, that only read.  At most all of them. */
	int readers;
	/* vCPUs, the last ones, that access nothing while pages are logged.  Not all of them. */
	int idle;
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
	/* args[0] of KVM_CAP_EAGER_SPLIT_CHUNK_SIZE, and of KVM_CAP_X86_DIRTY_BITS. */
	struct vm_setting {
		bool given;
		u64 value;
	} chunk, dirty_bits;
	/* File for the results, or NULL. */
	const char *json;
} perf_options;

/* One VM, from creation to destruction. */
struct test {
	const struct options *opts;
	/* From 1 to what was asked for. */
	int run;
	struct kvm_vm *vm;
	/* KVM_DIRTY_LOG_* as enabled, 0 if GET clears the log. */
	u64 manual_caps;
	/* What the last GET returned, by slot; one bit per host page. */
	unsigned long **bitmaps;
	/* In units of host pages. */
	u64 pages_per_slot;
	struct phase_times times[NR_PHASES];
	/* What vCPUs did in the last pass. */
	struct accesses accesses;
	/* Right before the current phase; only if statistics are read. */
	struct kvm_stats before;
	/* Pages that the last GET returned. */
	u64 nr_logged;
	/*
	 * See count_page_tables(); only if the memory is counted.  Right after populating, or
	 * before that if the memory is tracked.
	 */
	s64 page_tables;
	/* Right after populating; only if verifying. */
	struct page_sizes populated;
};

#define SPARSE_BYTES	0x200000UL

/* What one of the programs has of its own. */
struct perf_program {
	/* In JSON. */
	const char *mode;
	/* The first lines of what -h prints. */
	const char *purpose;
	const struct test_option *options;
	/* memslots besides those of the test. */
	int own_slots;
	/* Refuse what does not go together; may be NULL. */
	void (*check)(const struct options *opts);
	/*
	 * Let the first vCPU access @nr pages of the test memory, of any vCPU's part.  NULL if
	 * vCPUs run on while the host acts, and mend or hide what is to be found.
	 */
	void (*probe)(const struct test *test, u64 first, u64 nr, bool write);
	void (*run)(struct test *test);
};

extern const struct perf_program perf_program;

/* The vCPUs' threads, one each. */
void workers_create(int nr_vcpus);
void workers_destroy(void);
/* Let every vCPU enter the guest, once or until workers_stop(). */
void workers_begin(bool keep_running);
/* Sleep until all of them are back. */
void workers_end(void);
/* One pass of all vCPUs, from the release of the first to the last one's end. */
struct timespec workers_run_once(void);
/* The same as workers_begin(true), and returns once all vCPUs were released. */
void workers_start(void);
void workers_stop(void);
/* Let one vCPU run until its GUEST_SYNC(), in the calling thread.  Only while none runs. */
void run_vcpu_once(struct memstress_vcpu_args *args);

/* Take note of one run of @phase.  @iteration is 0 outside of iterations. */
void phase_done(struct test *test, enum phase phase, int iteration, struct timespec time);
/* As JSON has it. */
const char *phase_name(enum phase phase);
void print_average(const struct test *test, enum phase phase);

bool initially_set(const struct test *test);
bool is_hugetlb(enum vm_mem_backing_src_type backing);
u64 slot_bytes(const struct test *test);
u64 slot_gpa(const struct test *test, int slot);

/* Whether the last GET returned the page at @offset into @slot. */
bool is_logged(const struct test *test, int slot, u64 offset);
/* The same for a page by its number in the test memory. */
bool is_page_logged(const struct test *test, u64 page);

/* As the command line and JSON have it. */
const char *pattern_name(enum pattern pattern);

/* Guest pages from one that is accessed to the next one. */
u64 page_step(const struct options *opts);

static inline const char *json_bool(bool value)
{
	return value ? "true" : "false";
}

/* Where JSON goes: memory, as a file shall be complete or not come to be. */
extern FILE *json_out;

/* Begin a line with all that tells one test from another. */
void json_dimensions(const struct test *test, const char *record);
/* The members "phase" and "iteration". */
void json_phase(enum phase phase, int iteration);

/* Refuse a file that cannot be written: better now than after the run. */
void json_open(const char *json);
void json_close(const char *json);

#ifdef __x86_64__
/* Pages of the test memory are numbered through all slots. */
u64 nr_test_pages(void);
u64 page_gfn(u64 page);

/* Page sizes as eager page splitting promises them; prints what it found. */
void verify_populated(struct test *test);
void verify_split(const struct test *test, const char *stage);

/* KVM's statistics and parameters, once there is a VM and until its end. */
void kvm_stats_open(const struct test *test);
void kvm_stats_close(void);
void kvm_stats_read(struct kvm_stats *stats);
/* Pages that are page tables of VMs, all over the host; negative if the kernel does not tell. */
s64 count_page_tables(void);
/* A line about the memory that is mapped after a phase, and its page tables. */
void kvm_memory_json(const struct test *test, enum phase phase, int iteration);
/* Page faults that a vCPU took so far. */
u64 vcpu_faults_taken(int vcpu);

/* What changed, for people, per write if there are any, and for programs. */
void kvm_stats_print(const struct kvm_stats *before, const struct kvm_stats *after, u64 writes);
void kvm_stats_json(const struct kvm_stats *before, const struct kvm_stats *after);

/* The members "asked_...", each with a comma in front of it. */
void asked_json(const struct options *opts);
/* Members for KVM's parameters, likewise. */
void kvm_parameters_json(void);
#else
/* --stats is refused; the parameters exist only on x86. */
static inline void verify_populated(struct test *test) { }
static inline void verify_split(const struct test *test, const char *stage) { }
static inline void kvm_stats_open(const struct test *test) { }
static inline void kvm_stats_close(void) { }
static inline void kvm_stats_read(struct kvm_stats *stats) { }
static inline void kvm_stats_print(const struct kvm_stats *before,
				   const struct kvm_stats *after, u64 writes) { }
static inline void kvm_stats_json(const struct kvm_stats *before,
				  const struct kvm_stats *after) { }
static inline void kvm_parameters_json(void) { }
static inline s64 count_page_tables(void) { return -1; }
static inline void kvm_memory_json(const struct test *test, enum phase phase,
				   int iteration) { }
#endif

#endif /* SELFTEST_KVM_DIRTY_LOG_PERF_H */
