/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by the tests in which eager page splitting fails or is interrupted:
 * eager_split_cancel_test, eager_split_fault_test, eager_split_quota_test and
 * eager_split_yield_test.
 *
 * Each test defines a table of its parts.  eager_split_fault_run.c contains the
 * VM, the guest, the log, and main(), which runs the parts.
 *
 * If KVM cannot split a huge page, the page stays huge, and nothing else may go
 * wrong: KVM's statistics must account for each huge page, and the log and
 * memory must contain exactly what the guest has written.
 *
 * With shadow paging (npt=0, ept=0), all parts but those about the quota also
 * run with memory that the guest maps a second time, by 4KiB entries.  Then
 * rmaps need descriptors.
 *
 * Limits: the TDP MMU's splitter does not have these statistics.  Only
 * eager_split_yield_test tests it.
 */
#ifndef SELFTEST_KVM_EAGER_SPLIT_FAULT_H
#define SELFTEST_KVM_EAGER_SPLIT_FAULT_H

#include "eager_split_util.h"

/* Where the guest's code is. */
#define CODE_GVA		0x10000ull

#define DATA_SLOT		1
#define DATA_GPA		0x40000000ull
#define DATA_GVA		DATA_GPA
#define ALIAS_GVA		0x80000000ull

/*
 * How many huge pages the guest has: one before a forced drop, and one after.
 */
#define NR_HUGE_FORCE		2u
/* With failing allocations. */
#define NR_HUGE_FEW		3u
/*
 * With a quota of shadow pages that is too small, and how many of these KVM
 * must at least fail to split.
 */
#define NR_HUGE_MANY		64u
#define NR_HUGE_SOME		32u

#define TOUCH_VALUE		0x100000000ull
#define WRITE_VALUE		0x200000000ull

/* How a test runs: which ioctl splits, and how the guest maps its memory. */
struct variant {
	const char *name;
	bool clear;
	bool aliased;
	/*
	 * The value of kvm.dirty_bits in eager_split_yield_test.  With "on",
	 * GET collects Dirty bits: in the first variant without aliases, in the
	 * last one with aliases.
	 */
	const char *dirty_bits;
};

#define NR_VARIANTS		4u

extern const struct variant variants[NR_VARIANTS];

struct fault_test {
	const struct variant *v;
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	u64 nr_huge;
	/*
	 * All huge pages of the guest are one and the same page of the host,
	 * and the guest touches one 4KiB page of each.
	 */
	bool same_memory;
	/* How many of these KVM must not split, see PARAM_SKIP_SPLIT. */
	u64 nr_refused;
	u64 npages;
	void *hva;
	unsigned long log[NR_HUGE_MANY * PAGES_PER_2M / BITS_PER_WORD];
};

struct split_stats {
	u64 huge;
	u64 done;
	u64 nomem;
	u64 noquota;
};

#define CHECK(t, cond, fmt, ...)	\
	CHECK_CASE((t)->v->name, cond, fmt, ##__VA_ARGS__)

/* The option -n. */
extern u64 max_tries;

/* The VM */

void vcpu_write(struct fault_test *t, struct kvm_vcpu *vcpu, u64 gva, u64 first,
		u64 step, u64 value);
/*
 * Write to all pages.  If there is an alias, first write to some of them
 * through it, so that their rmaps are in use when huge pages are mapped.
 */
void touch_all(struct fault_test *t);
struct split_stats get_stats(struct kvm_vm *vm);
void fault_create_vm(struct fault_test *t, unsigned long quota);
int set_logging(struct fault_test *t, bool on);
/* KVM_CLEAR_DIRTY_LOG of the pages in @log. */
int clear_log(struct fault_test *t);
/* Enable logging if it is CLEAR that splits. */
void before_split(struct fault_test *t);
/* The ioctl under test. */
int split(struct fault_test *t);
void check_sum(struct fault_test *t, const struct split_stats *s);
/*
 * Have the guest write to each huge page.  Check that no huge page is left, and
 * that the log and memory contain these writes and no others.
 */
void check_afterwards(struct fault_test *t);
bool applies(const struct variant *v);

/* The command line */

/* A part of a test, which -m selects. */
struct part {
	const char *name;
	const char *what;
	/* Return: why it cannot run here, or NULL. */
	const char *(*run)(void);
	/* How many huge pages have to be free. */
	unsigned int nr_huge;
	/* The part runs with the TDP MMU, too. */
	bool any_mmu;
};

/* Defined by each test; main() runs them. */
extern const struct part parts[];
extern const unsigned int nr_parts;

#endif /* SELFTEST_KVM_EAGER_SPLIT_FAULT_H */
