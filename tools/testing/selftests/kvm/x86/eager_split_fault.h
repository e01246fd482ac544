/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the tests share that take something from the eager splitter: VMs, a guest that
 * writes, what the log and memory have to have afterwards, and the command line.
 *
 * Whatever splitting lacks, huge pages may stay, and nothing else may go wrong: KVM's statistics
 * have to account for each huge page, and log and memory have to have exactly what the guest
 * writes.
 *
 * With shadow paging (npt=0, ept=0) all of it is done once more for memory that the
 * guest maps a second time, with 4KiB entries, so that rmaps need descriptors.
 *
 * Limits: the TDP MMU's own splitter has none of these statistics, and is tested only by
 * eager_split_yield_test, and by turning the parameter off.
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
 * For drops of mmu_lock, with something before and behind each; for failing
 * allocations; how many a small quota has to refuse; and for such a quota.
 */
#define NR_HUGE_FORCE		2u
#define NR_HUGE_FEW		3u
#define NR_HUGE_SOME		32u
#define NR_HUGE_MANY		64u

#define TOUCH_VALUE		0x100000000ull
#define WRITE_VALUE		0x200000000ull

/* A kind of VM, and of ioctl that splits. */
struct variant {
	const char *name;
	bool clear;
	bool aliased;
	/*
	 * Where mmu_lock is dropped, what kvm.dirty_bits is.  The first one meets
	 * what takes enabling and collecting, and aliases are there to be armed.
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
	/* All of these are one and the same of the host's, and the guest touches each but once. */
	bool same_memory;
	/* Of these, how many are to be left alone by the splitter. */
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
/* The alias first, so that rmaps are in use when huge pages come. */
void touch_all(struct fault_test *t);
struct split_stats get_stats(struct kvm_vm *vm);
void fault_create_vm(struct fault_test *t, unsigned long quota);
int set_logging(struct fault_test *t, bool on);
/* CLEAR what @log has. */
int clear_log(struct fault_test *t);
/* CLEAR needs a log that is enabled; that splits nothing. */
void before_split(struct fault_test *t);
/* The ioctl under test. */
int split(struct fault_test *t);
void check_sum(struct fault_test *t, const struct split_stats *s);
/* Whatever is left is split by the guest's writes, and nothing gets lost. */
void check_afterwards(struct fault_test *t);
bool applies(const struct variant *v);

/* The command line */

/* One way to take something away. */
struct part {
	const char *name;
	const char *what;
	/* Returns why it can't be done, or NULL. */
	const char *(*run)(void);
	/* How many huge pages have to be free. */
	unsigned int nr_huge;
	/* The TDP MMU can do it, too. */
	bool any_mmu;
};

/* What the test itself has; main() runs them. */
extern const struct part parts[];
extern const unsigned int nr_parts;

#endif /* SELFTEST_KVM_EAGER_SPLIT_FAULT_H */
