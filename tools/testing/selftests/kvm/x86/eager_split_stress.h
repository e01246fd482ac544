/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of eager_split_stress_test share
 *
 * eager_split_stress_guest.c has what vCPUs do, eager_split_stress_vm.c the VM and its
 * memory, eager_split_stress_memory.c how memory is taken away,
 * eager_split_stress_migration.c a round and its verdict, eager_split_stress_host.c
 * settings and allocations that fail, eager_split_stress_test.c all threads.
 */
#ifndef SELFTEST_KVM_EAGER_SPLIT_STRESS_H
#define SELFTEST_KVM_EAGER_SPLIT_STRESS_H

#include "eager_split_stress_guest.h"

enum log_mode { LOG_GET, LOG_CLEAR, LOG_INIT_SET, LOG_RING, NR_LOG_MODES };

extern const char * const log_mode_names[];

#define RING_BYTES		(2048 * sizeof(struct kvm_dirty_gfn))
#define NR_BANKS		2
#define NR_REGIONS		2
#define NR_HOST_THREADS		2
#define GATE_WAIT_US		2000

/* Generators of random numbers, by what is added to the seed. */
#define VCPU_RNG		16
#define MEMORY_RNG		1
#define SETTING_RNG		2

/* Room for a bit for each page of a region, and for what CLEAR is given too much. */
#define REGION_WORDS		(NR_PAGES / BITS_PER_WORD + 2)

/* A memslot that is migrated. */
struct region {
	u32 slot;
	u64 gpa;
	u64 nr_pages;
	void *hva;
	/* What is written: so many pages, of each of them all or vCPUs' words only. */
	u64 nr_used;
	bool words_only;
	/* The destination of the migration. */
	void *copy;
	/* What KVM says, what to CLEAR, and what to copy. */
	unsigned long log[REGION_WORDS];
	unsigned long arg[REGION_WORDS];
	unsigned long todo[REGION_WORDS];
	/* Pages that the host itself changed; bits are set once they are changed. */
	unsigned long host_dirty[REGION_WORDS];
};

/* One set of pages that can be behind the memslot. */
struct bank {
	int fd;
	void *mapping;
	/* Which chunks are out of use and full of poison. */
	bool poisoned[NR_CHUNKS];
};

/* Memory that was the guest's, poisoned; NULL if there is none. */
struct jar {
	void *mapping;
	u64 chunk;
};

/* How much happens beside the migration. */
struct pace {
	const char *name;
	/* Of the same VM. */
	unsigned int nr_rounds;
	/* How long threads sleep between two operations, at most. */
	u64 memory_nap_us;
	u64 setting_nap_us;
	/* One of so many rounds begins when all huge pages are in use. */
	unsigned int settle_one_in;
	/* vCPUs do so many operations, and then rest. */
	unsigned int ops_per_rest;
	u64 rest_us;
};

enum pace_name { CONTENDED, FAST, NR_PACES };

/* Where threads wait for the end of a round. */
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
	/* Memslots are logged from their creation to their end. */
	bool tracked;
	/* What kvm.dirty_bits is for this VM, and whether it logs that way. */
	const char *dirty_bits;
	bool by_dirty_bits;
	/* Allocations of this round fail. */
	bool inject;

	struct kvm_vm *vm;
	struct kvm_vcpu *vcpus[NR_VCPUS];
	u32 ring_index[NR_VCPUS];
	struct control *ctl;

	struct region regions[NR_REGIONS];
	/* How many of them are migrated in this round; the data is the first. */
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

extern const struct pace paces[NR_PACES];
extern struct counters counters;

extern const char * const stat_names[NR_STATS];

/* How to draw the operations of this round again. */
const char *repeat_hint(struct stress *t);

#define FAIL(t, fmt, ...)	TEST_FAIL(fmt "\n%s", ##__VA_ARGS__, repeat_hint(t))

/* Unlike TEST_ASSERT(), it costs nothing as long as all is well. */
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

/* Settings of the host, and allocations that fail */

#define NO_FD			(-1)

/* KVM may be built without one, and nx_huge_pages may say "never". */
void set_if_there(const char *path, const char *value);

enum fault_site { SITE_HEADERS, SITE_DESCS, SITE_PAGES, NR_SITES };

extern const char * const site_names[NR_SITES];

struct faults {
	/* Of the thread that prepared; NO_FD if nothing can fail. */
	int fail_nth_fd;
	int make_it_fail_fd;

	enum fault_site site;
	/* How many of each site have failed, and "times" when that was counted last. */
	u64 failed[NR_SITES];
	u64 slab_times;
	u64 page_times;
};

extern struct faults faults;

bool can_fail(void);
/* Let waiting allocations fail, too, and say nothing about it in the log. */
void prepare_faults(void);
/* @every: of so many allocations one fails, or the one of this number. */
void select_faults(enum fault_site site, unsigned int every);
/* If something can fail.  @nth: which page does, if it is one. */
void begin_faults(unsigned int nth);
void end_faults(void);
/* To be called before another site is selected. */
void count_faults(void);

/* The gate */

void gate_set(struct gate *g, bool closed);
/* Wait for a while, at most.  Returns true if so many are parked. */
bool gate_wait(struct gate *g, unsigned int nr);

/* Memory */

void check_all_poison(struct stress *t);
void map_bank(struct stress *t, u64 chunk, unsigned int nr);
void one_memory_op(struct stress *t, u64 *rng);

/* A round */

void set_host_dirty(struct region *r, u64 page);
void set_region(struct stress *t, struct region *r, u64 gpa, bool there, bool log);
void collect_log(struct stress *t, bool last);
/* A vCPU whose ring is full has to go on to the end of its operation. */
void stop_world(struct stress *t);
void start_world(struct stress *t);
/* From one migration to the next. */
void one_round(struct stress *t);

/* The VM */

void create_vm(struct stress *t);
void destroy_vm(struct stress *t);

#endif /* SELFTEST_KVM_EAGER_SPLIT_STRESS_H */
