/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * dirty_log_perf_test and x86/dirty_log_live_perf_test consist of their own
 * files, and of these, which they share:
 *   dirty_log_perf_main.c		the command line, and one VM after the other
 *   x86/dirty_log_perf_sizes.c	the verdict on the sizes of pages
 *   x86/dirty_log_perf_stats.c	KVM's statistics and parameters
 *   dirty_log_perf_results.c		times of phases, as text and as JSON
 *   dirty_log_perf_workers.c		the vCPUs' threads
 *
 * Each of these files calls only the files below it.  The own files of a
 * program call all of them but dirty_log_perf_main.c, which calls the program
 * through struct perf_program.
 */
#ifndef SELFTEST_KVM_DIRTY_LOG_PERF_H
#define SELFTEST_KVM_DIRTY_LOG_PERF_H

#include <stdint.h>
#include <time.h>
#include <linux/sizes.h>

#include "memstress.h"
#include "test_options.h"

/*
 * Phases of both programs.  dirty_log_live_perf_test numbers its phases in the
 * order in which they run, and relies on the first four having these numbers.
 */
enum phase {
	PHASE_POPULATE, PHASE_BASELINE, PHASE_ENABLE, PHASE_ENABLED, PHASE_DIRTY, PHASE_GET,
	PHASE_CLEAR, PHASE_VERIFY, PHASE_LOGGING, PHASE_DISABLE, PHASE_DISABLED, NR_PHASES,
};

/* The times of all runs of one phase so far. */
struct phase_times {
	struct timespec sum;
	int count;
};

/* How many present SPTEs of each size the VM has. */
struct page_sizes {
	u64 nr_4k;
	u64 nr_2m;
	u64 nr_1g;
};

/* How many accesses there were, as counted by the guest. */
struct accesses {
	u64 reads;
	u64 writes;
};

/* Which accesses are writes, unless all of them are. */
enum pattern {
	/* By chance. */
	PATTERN_PAGES,
	/* All or none in each 2MiB.  Written regions are spread evenly. */
	PATTERN_REGIONS,
	/* By chance, but none before iteration 2, see options.read_first. */
	PATTERN_CLEAN,
	NR_PATTERNS,
};

/* The most statistics that are read, see x86/dirty_log_perf_stats.c. */
#define MAX_KVM_STATS	24

/*
 * KVM's parameters as JSON, when the VM was created.  NULL on other than x86.
 */
struct kvm_parameters {
	const char *eager;
	const char *tdp_mmu;
	/* ept or npt. */
	const char *tdp;
};

/* Statistics of the VM and all its vCPUs; 0 for those that the kernel lacks. */
struct kvm_stats {
	u64 values[MAX_KVM_STATS];
};

/* The command line.  Does not change after it was parsed. */
extern struct options {
	/* From 1 to the limits of KVM and of memstress. */
	int nr_vcpus;
	/* Memory per vCPU as given, i.e. not yet rounded. */
	u64 vcpu_bytes;
	enum vm_mem_backing_src_type backing;
	/* Memslots: equal parts of the test memory, in whole backing pages. */
	int slots;
	/* At least 2: with initially-all-set, the first costs nothing. */
	int iterations;
	/* How often to enable logging, run the iterations, and disable it. */
	int cycles;
	/* How many VMs to run, one after the other. */
	int runs;
	/* The chance of an access to be a write, from 0 to 100. */
	int write_percent;
	enum pattern pattern;
	/* Memory is populated by reads, and nothing is written before iteration 2. */
	bool read_first;
	/* Log the memory before it is populated.  Without initially-all-set. */
	bool tracked;
	/* Before all phases, let each vCPU run, and map the VM's own memory. */
	bool warm_up;
	/* How many vCPUs, from the first on, only read. */
	int readers;
	/* How many of the last vCPUs access nothing while pages are logged. */
	int idle;
	bool random_access;
	/* Access one page per SPARSE_BYTES. */
	bool sparse;
	/* False: each vCPU accesses the memory of all of them. */
	bool partition;
	/* False: KVM_GET_DIRTY_LOG clears the log, too. */
	bool manual_protect;
	bool run_while_disabling;
	bool verify;
	/* Print KVM's statistics of each phase. */
	bool stats;
	/* args[0] of KVM_CAP_EAGER_SPLIT_CHUNK_SIZE, and of KVM_CAP_X86_DIRTY_BITS. */
	struct vm_setting {
		bool given;
		u64 value;
	} chunk, dirty_bits;
	/* File for the results, or NULL. */
	const char *json;
} perf_options;

/* A VM that is measured. */
struct test {
	const struct options *opts;
	/* From 1 to options.runs. */
	int run;
	/* From 1 to options.cycles; 0 if the program has no cycles. */
	int cycle;
	struct kvm_vm *vm;
	struct kvm_parameters parameters;
	/* KVM_DIRTY_LOG_* as enabled, 0 if GET clears the log. */
	u64 manual_caps;
	/* The bitmaps of the last GET, by slot; one bit per host page. */
	unsigned long **bitmaps;
	/* In units of host pages. */
	u64 pages_per_slot;
	struct phase_times times[NR_PHASES];
	/* How many CLEARs there were before the current cycle. */
	int clears_before;
	/* The accesses of all vCPUs in the last pass. */
	struct accesses accesses;
	/* Statistics before the current phase, if statistics are read. */
	struct kvm_stats before;
	/* How many pages the last GET returned. */
	u64 nr_logged;
	/*
	 * The result of count_page_tables() after populating, or with --tracked
	 * before it; only if the memory is counted.
	 */
	s64 page_tables;
	/* Page sizes before logging was enabled; only with -V. */
	struct page_sizes populated;
};

#define SPARSE_BYTES	0x200000UL

/* What main() needs to know about the program. */
struct perf_program {
	/* The name of the program in JSON. */
	const char *mode;
	/* The first lines that -h prints. */
	const char *purpose;
	const struct test_option *options;
	/* How many more memslots the program needs. */
	int own_slots;
	/* Refuse options that exclude each other; may be NULL. */
	void (*check)(const struct options *opts);
	/*
	 * Let the first vCPU execute all that it executes in any phase, so that
	 * KVM has mapped all that it accesses besides the test memory.  NULL if
	 * probe() is.
	 */
	void (*map_code)(const struct test *test);
	/*
	 * Let the first vCPU access @nr pages of the test memory, from page
	 * @first on.  The pages may be those of any vCPU.  NULL if vCPUs run
	 * while page sizes are verified, as their accesses would change what
	 * a probe finds.
	 */
	void (*probe)(const struct test *test, u64 first, u64 nr, bool write);
	void (*run)(struct test *test);
};

extern const struct perf_program perf_program;

/* The vCPUs' threads, one each. */
void workers_create(int nr_vcpus);
void workers_destroy(void);
/* Let each vCPU enter the guest, once or until workers_stop(). */
void workers_begin(bool keep_running);
/* Sleep until all vCPUs have exited. */
void workers_end(void);
/*
 * Run a pass of all vCPUs.  Return: the time from the first start to the last
 * end.
 */
struct timespec workers_run_once(void);
/* Like workers_begin(true), but returns when all vCPUs have been released. */
void workers_start(void);
void workers_stop(void);
/*
 * Let one vCPU run up to its GUEST_SYNC(), in the calling thread.  No vCPU may
 * be running.
 */
void run_vcpu_once(struct memstress_vcpu_args *args);

/* Record one run of @phase.  @iteration is 0 outside of iterations. */
void phase_done(struct test *test, enum phase phase, int iteration, struct timespec time);
/* Return: the name in JSON. */
const char *phase_name(enum phase phase);
void print_average(const struct test *test, enum phase phase);

static inline bool initially_set(const struct test *test)
{
	return test->manual_caps & KVM_DIRTY_LOG_INITIALLY_SET;
}

static inline bool is_hugetlb(enum vm_mem_backing_src_type backing)
{
	return is_backing_src_hugetlb(backing) || backing == VM_MEM_SRC_SHARED_HUGETLB;
}

static inline u64 slot_bytes(const struct test *test)
{
	return memstress_args.size / test->opts->slots;
}

static inline u64 slot_gpa(const struct test *test, int slot)
{
	return memstress_args.gpa + slot * slot_bytes(test);
}

/*
 * Did the last GET return the page at @offset into @slot?  The log is
 * little-endian on all architectures, so access bytes, not words.
 */
static inline bool is_logged(const struct test *test, int slot, u64 offset)
{
	const u8 *bytes = (const u8 *)test->bitmaps[slot];
	u64 page = offset / getpagesize();

	return bytes[page / 8] & (1 << (page % 8));
}

/* The same for a page by its number in the test memory. */
static inline bool is_page_logged(const struct test *test, u64 page)
{
	u64 per_slot = test->pages_per_slot;

	return is_logged(test, page / per_slot, page % per_slot * getpagesize());
}

/* Return: the distance, in guest pages, between two pages that are accessed. */
static inline u64 page_step(const struct options *opts)
{
	return opts->sparse ? SPARSE_BYTES / memstress_args.guest_page_size : 1;
}

/* Return: the name on the command line and in JSON. */
const char *pattern_name(enum pattern pattern);

static inline const char *json_bool(bool value)
{
	return value ? "true" : "false";
}

/* JSON is collected in memory, so that no incomplete file is written. */
extern FILE *json_out;

/* Begin a line with all parameters that distinguish the test from others. */
void json_dimensions(const struct test *test, const char *record);
/* Add the members "phase" and "iteration". */
void json_phase(enum phase phase, int iteration);

/* Check before the test whether the file can be written. */
void json_open(const char *json);
void json_close(const char *json);

#ifdef __x86_64__
/* Pages of the test memory are numbered through all slots. */
u64 nr_test_pages(void);
u64 page_gfn(u64 page);

/*
 * Print page sizes, and check that they are as eager page splitting promises.
 */
void verify_populated(struct test *test);
/* The same before logging is enabled again. */
void verify_disabled(struct test *test);
void verify_split(const struct test *test, const char *stage);

/* KVM's statistics and parameters, while there is a VM. */
void kvm_stats_open(struct test *test);
void kvm_stats_close(void);
void kvm_stats_read(struct kvm_stats *stats);
/*
 * Return: how many pages of the host are page tables of VMs, negative if the
 * kernel does not tell.
 */
s64 count_page_tables(void);
/* Print a line about mapped memory and page tables after a phase. */
void kvm_memory_json(const struct test *test, enum phase phase, int iteration);
/* Return: how many page faults a vCPU has taken so far. */
u64 vcpu_faults_taken(int vcpu);

/* Print what has changed.  As text, print the exits per write, too. */
void kvm_stats_print(const struct kvm_stats *before, const struct kvm_stats *after, u64 writes);
void kvm_stats_json(const struct kvm_stats *before, const struct kvm_stats *after);
#else
/* KVM's parameters and these statistics exist only on x86, so --stats is refused. */
static inline void verify_populated(struct test *test) { }
static inline void verify_disabled(struct test *test) { }
static inline void verify_split(const struct test *test, const char *stage) { }
static inline void kvm_stats_open(struct test *test) { }
static inline void kvm_stats_close(void) { }
static inline void kvm_stats_read(struct kvm_stats *stats) { }
static inline void kvm_stats_print(const struct kvm_stats *before,
				   const struct kvm_stats *after, u64 writes) { }
static inline void kvm_stats_json(const struct kvm_stats *before,
				  const struct kvm_stats *after) { }
static inline s64 count_page_tables(void) { return -1; }
static inline void kvm_memory_json(const struct test *test, enum phase phase,
				   int iteration) { }
#endif

#endif /* SELFTEST_KVM_DIRTY_LOG_PERF_H */
