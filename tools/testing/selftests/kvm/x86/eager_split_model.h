/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A VM whose huge pages, dirty log and memory are compared with a model after
 * each step
 *
 * eager_split_modes_test, eager_split_clear_test, eager_split_tables_test,
 * huge_recover_test, fault_split_test and dirty_log_idle_test use it.  Each of
 * them defines a table of test cases.
 *
 * The guest maps one memslot of HugeTLB pages.  By default, a case enables and
 * disables dirty logging twice, with writes of the guest in between, and checks
 * that
 *  - no huge page is left if KVM splits eagerly;
 *  - the log contains exactly the pages that the guest has written;
 *  - memory contains what the guest has written;
 *  - huge pages are restored when logging is disabled.
 *
 * The tests must also pass with kvm.eager_page_split=N, where huge pages are
 * not split before the guest writes to them.  fault_split_test is only for N.
 *
 *   eager_split_model_run.c	the VM, its modes, and the command line
 *   eager_split_model_log.c	what the guest writes, the log, and the checks
 *
 * eager_split_model_run.c calls eager_split_model_log.c and the cases of the
 * test.  The cases call both files.  eager_split_model_log.c calls neither.
 */
#ifndef SELFTEST_KVM_EAGER_SPLIT_MODEL_H
#define SELFTEST_KVM_EAGER_SPLIT_MODEL_H

#include "eager_split_util.h"

/* Code, lists of addresses and page tables; mapped at the same address. */
#define LOW_SLOT		0
#define LOW_SIZE		SZ_4M
#define WRITE_GPA		0x1000ull
#define CODE_MAX		64
#define READ_GPA		(WRITE_GPA + CODE_MAX)
#define LIST_GPA		0x10000ull

/* The memory that is logged, aligned to the largest page. */
#define DATA_SLOT		1u
#define DATA_BASE		0x40000000ull

/* With more SPTEs than this for a gfn, KVM zaps all of them. */
#define RMAP_RECYCLE_THRESHOLD	1000u

/* With more links to a page table than this, KVM zaps it instead of replacing the links. */
#define MAX_LINKS		32u

#define NR_CYCLES		2

/* The largest size of a slot. */
#define MAX_PAGES		PAGES_PER_1G
#define MAX_HUGE		4

struct model_test;

struct test_case {
	const char *name;
	const char *what;
	/* Prepare page tables and registers of the vCPU. */
	void (*enter)(struct model_test *t);
	/* Run this instead of two cycles of logging; may be NULL. */
	void (*run)(struct model_test *t);
	/* Return: why the case cannot run on this machine, or NULL. */
	const char *(*skip_reason)(void);
	/* Huge pages that fit into the slot, and 4KiB pages on either side. */
	unsigned int nr_huge;
	unsigned int head;
	unsigned int tail;
	unsigned int level;
	/* How many times the guest maps the slot, and how far apart. */
	unsigned int aliases;
	u64 alias_step;
	/* How many other page directories have links to the same tables. */
	unsigned int directories;
	/*
	 * How many page tables of the guest are in the same bucket of KVM's
	 * hash as the child of the first huge page.
	 */
	unsigned int tables;
	/* The guest uses one page in so many; 0: all of them. */
	unsigned int stride;
	/* Nothing is written before logging begins. */
	bool read_first;
	/* Nothing is accessed before logging begins: nothing is mapped then. */
	bool untouched;
	/* Run it only with initially-all-set. */
	bool manual_only;
	/* Run it only with kvm.eager_page_split=N. */
	bool lazy_only;
};

struct model_test {
	const struct test_case *c;
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	bool manual;
	bool logging;
	unsigned int cycle;
	/* The model does not know which huge pages there are, e.g. as shadow pages run out. */
	bool unpredictable;
	/* The slot under test. */
	u32 slot;
	u64 gpa;
	u64 npages;
	void *mapping;
	size_t mapping_size;
	void *hva;
	/* What should be in the log, and in memory. */
	unsigned long log[MAX_PAGES / BITS_PER_WORD];
	u32 content[MAX_PAGES];
	bool huge[MAX_HUGE];

	unsigned long seen[MAX_PAGES / BITS_PER_WORD];
	unsigned long arg[MAX_PAGES / BITS_PER_WORD];
	unsigned long pick[MAX_PAGES / BITS_PER_WORD];

	u32 *list;
	unsigned int nr_listed;
	u32 list_sum;
	unsigned int next_alias;
	u32 seed;
	/* How many huge pages, from the first on, hold a guest page table. */
	unsigned int nr_tracked;
	/* Huge mappings outside of the slot under test. */
	u64 huge_elsewhere;
};

/* The value of kvm.eager_page_split. */
extern bool eager;

/* For messages: the case, and how the log begins. */
const char *label(struct model_test *t);

#define CHECK(t, cond, fmt, ...)	\
	CHECK_CASE(label(t), cond, fmt, ##__VA_ARGS__)

/* Huge pages */

u64 pages_per_huge(struct model_test *t);
u64 nr_huge_mapped(struct model_test *t);
void expect_huge(struct model_test *t, u64 expected, const char *when);
void expect_huge_model(struct model_test *t, const char *when);
/* Have the model expect all huge pages of the slot to be mapped. */
void model_all_huge(struct model_test *t);
/*
 * Check what is huge after a CLEAR of the first word.  KVM splits a 1GiB page
 * into 2MiB pages, and only the first of them further.
 */
void expect_huge_first_word(struct model_test *t);

/* The guest: put words on a list, then have it write to, or read, all of them */

void list_add_gva(struct model_test *t, u64 gva, u64 entry);
void list_write(struct model_test *t, u64 page, unsigned int alias);
void list_read(struct model_test *t, u64 page, unsigned int alias);
void guest_run(struct model_test *t, u64 entry);
void write_listed(struct model_test *t);
/*
 * Have the guest write zeroes to its first entry for an alias, so that KVM
 * drops what the entry led to, and then restore the entry.
 */
void rewrite_guest_entry(struct model_test *t, unsigned int alias);
/* Use every page through the first mapping, and every huge page through each. */
void touch_all(struct model_test *t, const char *when);
/* Use every page through the first mapping. */
void read_all(struct model_test *t);
void write_all(struct model_test *t);
void check_memory(struct model_test *t);

/* The log */

u64 log_words(struct model_test *t);
void set_flags(struct model_test *t, u32 flags);
void start_logging(struct model_test *t);
void stop_logging(struct model_test *t);
void log_fill(struct model_test *t, unsigned long *bitmap, u64 first, u64 nr);
void compare_log(struct model_test *t, const char *when);
/* CLEAR the pages in @arg, within the range of @nr pages from @first on. */
void clear_log(struct model_test *t, u64 first, u64 nr);
void clear_all(struct model_test *t);
/* Enable logging, and CLEAR all pages that are in the log initially. */
void start_and_clear(struct model_test *t);
/*
 * CLEAR from the start of a word up to @page, the first one of a huge page.
 * Then write to both ends, and compare the log.
 */
void clear_across(struct model_test *t, u64 page, const char *when);
/* A whole cycle with CLEARs of words that contain pages of two huge pages. */
void clear_across_all(struct model_test *t);
void round_of_writes(struct model_test *t, bool all);
void log_cycle(struct model_test *t);
void run_cycles(struct model_test *t);

/* The VM */

void set_mode(struct model_test *t, u64 cr0, u64 cr3, u64 cr4, u64 efer);
/* How many huge entries the guest needs to map the slot once. */
unsigned int nr_guest_entries(struct model_test *t);
void map_low(struct model_test *t);
void map_data(struct model_test *t);
void enter_paging_4level(struct model_test *t, u64 cr0);
/* 64-bit mode; aliases differ in what they permit. */
void enter_long(struct model_test *t);
/* 64-bit mode; all aliases permit the same. */
void enter_long_alike(struct model_test *t);
const char *no_1g(void);
const char *no_shadow_paging(void);
/* Either of them. */
const char *no_shadow_1g(void);

/* Defined by each test; main() runs them. */
extern const struct test_case test_cases[];
extern const unsigned int nr_cases;

#endif /* SELFTEST_KVM_EAGER_SPLIT_MODEL_H */
