/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by the files of eager_split_stress_test.  Each of these files calls
 * only the files below it:
 *
 *   eager_split_stress_test.c		the threads, and the command line
 *   eager_split_stress_migration.c	a round: migrate, and compare
 *   eager_split_stress_vm.c		the VM and its memslots
 *   eager_split_stress_memory.c	take memory away from the guest
 *   eager_split_stress_report.c	counters, and what is printed
 *   eager_split_stress_gate.c		where threads wait for each other
 *   eager_split_stress_host.c		settings, and allocations that fail
 *   eager_split_stress_guest.c		what vCPUs run
 */
#ifndef SELFTEST_KVM_EAGER_SPLIT_STRESS_H
#define SELFTEST_KVM_EAGER_SPLIT_STRESS_H

#include "eager_split_stress_guest.h"

enum log_mode { LOG_GET, LOG_CLEAR, LOG_INIT_SET, LOG_RING, NR_LOG_MODES };

#define RING_BYTES		(2048 * sizeof(struct kvm_dirty_gfn))
#define NR_BANKS		2
#define NR_REGIONS		2
#define NR_HOST_THREADS		2

/* What distinguishes the generators of random numbers, see seeded(). */
#define VCPU_RNG		16
#define MEMORY_RNG		1
#define SETTING_RNG		2

/*
 * A bit per page of a region, and room for ranges of CLEAR that end behind it.
 */
#define REGION_WORDS		(NR_PAGES / BITS_PER_WORD + 2)

/* A memslot that is migrated. */
struct region {
	u32 slot;
	u64 gpa;
	u64 nr_pages;
	void *hva;
	/*
	 * How many pages, from the first on, are written, and whether only the
	 * vCPUs' own words in them are written.
	 */
	u64 nr_used;
	bool words_only;
	/* The destination of the migration. */
	void *copy;
	/* Bits for pages: what GET returned, what to CLEAR, and what to copy. */
	unsigned long log[REGION_WORDS];
	unsigned long arg[REGION_WORDS];
	unsigned long todo[REGION_WORDS];
	/* Pages that the host has changed.  Bits are set after the change. */
	unsigned long host_dirty[REGION_WORDS];
};

/*
 * Pages that can back the memslot.  For each chunk, the pages of one bank do,
 * and those of the other bank are out of use.
 */
struct bank {
	int fd;
	void *mapping;
	/* Which chunks are out of use and filled with poison. */
	bool poisoned[NR_CHUNKS];
};

/*
 * The chunk that was last taken from the guest, filled with poison.  @mapping
 * is NULL if there is none.
 */
struct jar {
	void *mapping;
	u64 chunk;
};

/* How much happens besides the migration.  Each VM has one of two paces. */
struct pace {
	const char *name;
	bool is_fast;
	/* How many rounds one VM runs. */
	unsigned int nr_rounds;
	/* How long threads sleep at most between two operations. */
	u64 memory_nap_us;
	u64 setting_nap_us;
	/* In one of so many rounds, vCPUs first use all huge pages. */
	unsigned int settle_one_in;
	/* How many operations a vCPU does before it rests, and for how long. */
	unsigned int ops_per_rest;
	u64 rest_us;
};

/* Threads wait here while the main thread compares copy and memory. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned int nr_parked;
	bool closed;
};

/* What KVM counts while a VM lives. */
enum split_stat {
	STAT_DONE, STAT_NOMEM, STAT_NOQUOTA, NR_STATS
};

struct counters {
	u64 rounds;
	u64 rounds_of[NR_LOG_MODES];
	u64 rounds_by_dirty_bits;
	u64 rounds_fast;
	u64 rounds_tracked;
	u64 rounds_merged;
	u64 guest_ops;
	u64 host_ops;
	u64 pages;
	u64 copied;
	u64 retries;
	u64 mmio;
	u64 stats[NR_STATS];
};

struct stress {
	u64 seed;
	u64 rng;
	enum log_mode log_mode;
	const struct pace *pace;
	/* HugeTLB pages of two banks, or else transparent huge pages. */
	bool shared;
	/* Memslots are logged from their creation to their deletion. */
	bool tracked;
	/* kvm.dirty_bits of this VM, and whether the VM logs by Dirty bits. */
	const char *dirty_bits;
	bool by_dirty_bits;
	/* The value of -d that draws this VM again. */
	const char *dirty_bits_option;
	/* The test injects failures of allocations in this round. */
	bool inject;

	struct kvm_vm *vm;
	struct kvm_vcpu *vcpus[NR_VCPUS];
	u32 ring_index[NR_VCPUS];
	struct control *ctl;

	struct region regions[NR_REGIONS];
	/* How many of them this round migrates.  The first is the data. */
	unsigned int nr_logged;
	void *data;
	struct bank banks[NR_BANKS];
	unsigned int current_bank[NR_CHUNKS];
	struct jar jar;
	void *reserved;
	/* Held for read by a thread that writes to the memslot's memory. */
	pthread_rwlock_t protection;

	struct gate gate;
	bool quit;
};

extern struct counters counters;

extern const char * const stat_names[NR_STATS];

/* Describe the VM and the round, with the options that draw the same operations again. */
const char *repeat_hint(struct stress *t);

/* Print all counters in one line of NAME=NUMBER, which scripts parse. */
void report(const char *what, u64 seed, u64 nr_seeds);

#define FAIL(t, fmt, ...)	TEST_FAIL(fmt "\n%s", ##__VA_ARGS__, repeat_hint(t))

/* Unlike TEST_ASSERT(), this does not format the message unless the check fails. */
#define CHECK(t, cond, fmt, ...)				\
do {								\
	if (!(cond))						\
		FAIL(t, fmt, ##__VA_ARGS__);			\
} while (0)

static inline void count(u64 *counter)
{
	__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static inline u64 seeded(u64 seed, u64 who)
{
	u64 rng = (seed * 0x9e3779b97f4a7c15ull) ^ (who + 1) * 0xd1342543de82ef95ull;

	return rng ?: 1;
}

static inline u64 data_gfn(u64 page)
{
	return (DATA_GPA >> PAGE_SHIFT) + page;
}

static inline u64 now_ms(void)
{
	return now_ns() / NSEC_PER_MSEC;
}

static inline struct region *data_region(struct stress *t)
{
	return &t->regions[0];
}

static inline struct region *tables_region(struct stress *t)
{
	return &t->regions[1];
}

/* Call this after changing the page, so that copy_todo() copies it. */
static inline void set_host_dirty(struct region *r, u64 page)
{
	__atomic_fetch_or(&r->host_dirty[page / BITS_PER_WORD], BIT(page % BITS_PER_WORD),
			  __ATOMIC_SEQ_CST);
}

/* Settings of the host, and allocations that fail */

#define NO_FD			(-1)

/* KVM may lack the parameter, and nx_huge_pages may refuse the value. */
void set_if_there(const char *path, const char *value);

enum fault_site { SITE_HEADERS, SITE_DESCS, SITE_PAGES, NR_SITES };

extern const char * const site_names[NR_SITES];

struct faults {
	/*
	 * Files of the thread that has called prepare_faults(); NO_FD if the
	 * kernel cannot inject failures.
	 */
	int fail_nth_fd;
	int make_it_fail_fd;

	enum fault_site site;
	/*
	 * Failed allocations of each site, and what the attribute "times" was
	 * when they were last counted.
	 */
	u64 failed[NR_SITES];
	u64 slab_times;
	u64 page_times;
};

extern struct faults faults;

bool can_fail(void);
/* Let allocations that may sleep fail, too, and do not log the failures. */
void prepare_faults(void);
/* @every: one of so many allocations of a slab cache fails. */
void select_faults(enum fault_site site, unsigned int every);
/* Only if can_fail().  With SITE_PAGES, the @nth page fails. */
void begin_faults(unsigned int nth);
void end_faults(void);
/* Call this before selecting another site. */
void count_faults(void);

/* The gate */

/* Wait while the gate is closed. */
void gate_pass(struct gate *g);
void gate_set(struct gate *g, bool closed);
/* Unless the gate is closed, sleep for @us, or until the gate changes. */
void gate_nap(struct gate *g, u64 us);
/* Wait briefly for @nr threads.  Return: true if that many wait at the gate. */
bool gate_wait(struct gate *g, unsigned int nr);

/* Memory */

void check_all_poison(struct stress *t);
void map_bank(struct stress *t, u64 chunk, unsigned int nr);
void one_memory_op(struct stress *t, u64 *rng);

/* A round */

void collect_log(struct stress *t, bool last);
/*
 * Close the gate and wait for all threads.  Meanwhile, empty dirty rings, as a
 * vCPU with a full ring would not get to the gate.
 */
void stop_world(struct stress *t);
void start_world(struct stress *t);
/* Migrate the memory once, and compare copy and memory. */
void one_round(struct stress *t);

/* The VM */

void create_vm(struct stress *t);
/* @there: create or change the memslot.  Otherwise delete it. */
void set_region(struct stress *t, struct region *r, u64 gpa, bool there, bool log);
void destroy_vm(struct stress *t);

#endif /* SELFTEST_KVM_EAGER_SPLIT_STRESS_H */
