/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the tests share in which eager page splitting lacks something or is interrupted:
 * eager_split_cancel_test, eager_split_fault_test, eager_split_quota_test and
 * eager_split_yield_test.  Each has a table of its parts.  eager_split_fault_run.c has the
 * VM, the guest, the log and main(), which runs the parts.
 *
 * If splitting fails, huge pages stay, and nothing else may go wrong: KVM's statistics
 * must account for each huge page, and the log and memory must contain exactly what the
 * guest has written.
 *
 * With shadow paging (npt=0, ept=0) all parts are run once more with memory that the guest
 * maps a second time, by 4KiB entries, so that rmaps need descriptors.
 *
 * Limits: the TDP MMU's splitter has none of these statistics.  Only eager_split_yield_test
 * tests it.
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

/* Huge pages: with forced drops of mmu_lock, so that one comes before and one after. */
#define NR_HUGE_FORCE		2u
/* With failing allocations. */
#define NR_HUGE_FEW		3u
/* With a quota of shadow pages that is too small, and how many it must refuse at least. */
#define NR_HUGE_MANY		64u
#define NR_HUGE_SOME		32u

#define TOUCH_VALUE		0x100000000ull
#define WRITE_VALUE		0x200000000ull

/* A kind of VM, and of ioctl that splits. */
struct variant {
	const char *name;
	bool clear;
	bool aliased;
	/*
	 * kvm.dirty_bits in eager_split_yield_test.  "on" is needed to collect Dirty bits:
	 * the first variant does that after enabling, the last one with aliases.
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
	/* One huge page of the host is mapped everywhere, and the guest touches each once. */
	bool same_memory;
	/* How many of these the splitter has to leave alone. */
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

/* What the command line says. */
extern u64 max_tries;

/* The VM */

void vcpu_write(struct fault_test *t, struct kvm_vcpu *vcpu, u64 gva, u64 first,
		u64 step, u64 value);
/* Write to all pages, through the alias first, so that rmaps are in use by then. */
void touch_all(struct fault_test *t);
struct split_stats get_stats(struct kvm_vm *vm);
void fault_create_vm(struct fault_test *t, unsigned long quota);
int set_logging(struct fault_test *t, bool on);
/* CLEAR what @log has. */
int clear_log(struct fault_test *t);
/* Enable logging if it is CLEAR that splits. */
void before_split(struct fault_test *t);
/* The ioctl under test. */
int split(struct fault_test *t);
void check_sum(struct fault_test *t, const struct split_stats *s);
/* Check that the guest's writes split the huge pages that are left, and are in the log. */
void check_afterwards(struct fault_test *t);
bool applies(const struct variant *v);

/* The command line */

/* One way to take something away. */
struct part {
	const char *name;
	const char *what;
	/* Return: why it can't be done, or NULL. */
	const char *(*run)(void);
	/* How many huge pages have to be free. */
	unsigned int nr_huge;
	/* The part is for the TDP MMU, too. */
	bool any_mmu;
};

/* Defined by each test; main() runs them. */
extern const struct part parts[];
extern const unsigned int nr_parts;

#endif /* SELFTEST_KVM_EAGER_SPLIT_FAULT_H */
