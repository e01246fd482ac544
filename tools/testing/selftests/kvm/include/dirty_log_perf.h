/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * dirty_log_perf_test and x86/dirty_log_live_perf_test consist of their own files and
 * of these, which they share:
 *   dirty_log_perf_main.c		the command line, and one VM after the other
 *   x86/dirty_log_perf_sizes.c	the verdict on the sizes of pages
 *   x86/dirty_log_perf_stats.c	KVM's statistics and parameters
 *   dirty_log_perf_results.c		times of phases, as text and as JSON
 *   dirty_log_perf_workers.c		the vCPUs' threads
 *
 * Each file calls only those below it.  The programs' own files call any of them but
 * main.c, which calls the program by way of struct perf_program.
 */
#ifndef SELFTEST_KVM_DIRTY_LOG_PERF_H
#define SELFTEST_KVM_DIRTY_LOG_PERF_H

#include <stdint.h>
#include <time.h>
#include <linux/sizes.h>

#include "memstress.h"
#include "test_options.h"

/*
 * Phases of both programs.  dirty_log_live_perf_test numbers its phases by time, and
 * relies on the first four of these to have these numbers there, too.
 */
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

/* Values of KVM's parameters in JSON, as the VM was created.  NULL: not on x86. */
struct kvm_parameters {
	const char *eager;
	const char *tdp_mmu;
	/* ept or npt. */
	const char *tdp;
};

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
	struct kvm_parameters parameters;
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

/* How main() reaches the program that it belongs to. */
struct perf_program {
	/* The name of the program in JSON. */
	const char *mode;
	/* The first lines of what -h prints. */
	const char *purpose;
	const struct test_option *options;
	/* memslots besides those of the test. */
	int own_slots;
	/* Refuse options that exclude each other; may be NULL. */
	void (*check)(const struct options *opts);
	/*
	 * Let the first vCPU access @nr pages of the test memory, from the page with the
	 * number @first on, whichever vCPU's they are.  NULL if vCPUs run while page
	 * sizes are verified: their accesses change what a probe would find.
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
 * Did the last GET return the page at @offset into @slot?  The log is little-endian
 * on all architectures, so look at bytes, not at words.
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

/* Guest pages from one that is accessed to the next one. */
static inline u64 page_step(const struct options *opts)
{
	return opts->sparse ? SPARSE_BYTES / memstress_args.guest_page_size : 1;
}

/* As the command line and JSON have it. */
const char *pattern_name(enum pattern pattern);

static inline const char *json_bool(bool value)
{
	return value ? "true" : "false";
}

/* JSON is collected in memory, so that the file is either complete or not written. */
extern FILE *json_out;

/* Begin a line with all parameters of the test: what tells it from other tests. */
void json_dimensions(const struct test *test, const char *record);
/* The members "phase" and "iteration". */
void json_phase(enum phase phase, int iteration);

/* Find out whether the file can be written, before the test rather than after it. */
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
void kvm_stats_open(struct test *test);
void kvm_stats_close(void);
void kvm_stats_read(struct kvm_stats *stats);
/* Pages that are page tables of VMs, all over the host; negative if the kernel does not tell. */
s64 count_page_tables(void);
/* A line about the memory that is mapped after a phase, and its page tables. */
void kvm_memory_json(const struct test *test, enum phase phase, int iteration);
/* Page faults that a vCPU took so far. */
u64 vcpu_faults_taken(int vcpu);

/* What changed.  As text, also how many exits there were per write, if there are any. */
void kvm_stats_print(const struct kvm_stats *before, const struct kvm_stats *after, u64 writes);
void kvm_stats_json(const struct kvm_stats *before, const struct kvm_stats *after);
#else
/* KVM's parameters and these statistics exist only on x86, so --stats is refused. */
static inline void verify_populated(struct test *test) { }
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
