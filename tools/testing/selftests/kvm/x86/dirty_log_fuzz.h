/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by the files of dirty_log_fuzz_test.  A sequence consists of steps,
 * each of which can be left out.  A model says what the result of each step
 * must be.
 *
 *   dirty_log_fuzz_test.c	draws, replays and shrinks sequences
 *   dirty_log_fuzz_model.c	the steps, most of them ioctls, and the model
 *   dirty_log_fuzz_guest.c	the guest, and its modes
 *   dirty_log_fuzz_memory.c	what the host does to memory
 *
 * Each of these files calls only the files below it.  The exception is
 * fuzz_fail() in dirty_log_fuzz_test.c, which ends the process that runs the
 * sequence.
 */
#ifndef SELFTEST_KVM_DIRTY_LOG_FUZZ_H
#define SELFTEST_KVM_DIRTY_LOG_FUZZ_H

#include "eager_split_util.h"

/*
 * Code, list and page tables of the guest; GVA and GPA are equal; never logged.
 */
#define LOW_SLOT		0
#define LOW_SIZE		SZ_4M

/*
 * The window: guest addresses that memslots may occupy.  Some modes of the
 * guest map it once more, at multiples of ALIAS_STEP.
 */
#define WINDOW_GPA		0x40000000ull
#define WINDOW_CHUNKS		16ul
#define WINDOW_SIZE		(WINDOW_CHUNKS * SZ_2M)
#define WINDOW_PAGES		(WINDOW_SIZE / PAGE_SIZE)
#define ALIAS_STEP		((u64)SZ_1G)

/* Memslots 1, 2 and 3, and the size of each area of host memory behind them. */
#define NR_SLOTS		4u
#define AREA_PAGES		(2 * PAGES_PER_2M)
#define AREA_SIZE		(AREA_PAGES * PAGE_SIZE)
#define LOG_WORDS		(AREA_PAGES / BITS_PER_WORD)
#define NR_VCPUS		3u
#define NO_SLOT			(-1)

enum area_id { AREA_HUGETLB, AREA_THP, AREA_SHARED, NR_AREAS };

/* What the host's mapping permits.  KVM_RUN fails if the guest needs more. */
enum access { ACCESS_ALL, ACCESS_READ, ACCESS_NONE };

#define MAX_LIST		1024u
#define MAX_ARGS		7u
#define MAX_STEPS		1024u

/* An operation and its arguments.  A step can be run in any state of the VM. */
struct step {
	unsigned int op;
	u32 args[MAX_ARGS];
};

/* How a sequence has ended.  The process that runs the sequence writes this. */
struct report {
	unsigned int step;
	bool failed;
	char text[256];
	/*
	 * How many ioctls there were, how many of them KVM had to refuse, and
	 * how many pages were accessed and compared.
	 */
	u64 calls;
	u64 refused;
	u64 accesses;
	u64 compared;
	u64 logs;
	u64 events;
};

struct slot {
	bool exists;
	u32 flags;
	enum area_id area;
	u64 offset;
	u64 npages;
	/* The first page within the window. */
	u64 base;
	unsigned long dirty[LOG_WORDS];
	/* What the last GET returned. */
	unsigned long said[LOG_WORDS];
};

struct area {
	void *hva;
	int fd;
	u32 content[AREA_PAGES];
	u8 access[AREA_PAGES];
};

/*
 * An entry of the guest's list.  If @gva is odd, write to @gva - 1, else read.
 */
struct entry {
	u32 gva;
	u32 value;
};

struct fuzz {
	struct report *report;
	/* Another thread changes mappings at the same time (-t). */
	bool threaded;
	/* Held by each thread while it changes mappings. */
	pthread_mutex_t memory_lock;
	struct area areas[NR_AREAS];
	void *spare;
	struct slot slots[NR_SLOTS];
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpus[NR_VCPUS];
	unsigned int modes[NR_VCPUS];
	u64 roots[4];
	u64 manual;
	bool booted;
	u32 next_value;
	unsigned int running;
	struct entry *list;
	/* For each entry: the value to be read, and whether the access is MMIO. */
	u32 expected[MAX_LIST];
	bool mmio[MAX_LIST];
	unsigned int nr_listed;
	unsigned int nr_mmio;
};

void __noreturn __printf(2, 3) fuzz_fail(struct fuzz *f, const char *fmt, ...);

#define CHECK(f, cond, fmt, ...)					\
do {									\
	if (!(cond))							\
		fuzz_fail(f, fmt, ##__VA_ARGS__);			\
} while (0)

/*
 * Count a call that has returned @ret.  @expected is the negative errno with
 * which it must fail, or 0 if it must succeed.
 */
static inline void check_call(struct fuzz *f, const char *what, int ret, int expected)
{
	int error = ret < 0 ? -errno : 0;

	f->report->calls++;
	f->report->refused += !!expected;
	CHECK(f, error == expected, "%s: errno %d, expected %d", what, -error, -expected);
}

static inline u64 rng_next(u64 *rng)
{
	u64 x = *rng += 0x9e3779b97f4a7c15ul;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ul;
	x = (x ^ x >> 27) * 0x94d049bb133111ebul;
	return x ^ x >> 31;
}

static inline u64 below(u64 *rng, u64 n)
{
	return rng_next(rng) % n;
}

/* The guest */
void guest_create(struct fuzz *f);
void guest_add_vcpu(struct fuzz *f, unsigned int id);
unsigned int guest_nr_modes(void);
/* @clean: the guest's entries have no Accessed and Dirty bits. */
void guest_set_mode(struct fuzz *f, unsigned int id, unsigned int mode, bool clean);
/* Start a list for this vCPU. */
void guest_begin(struct fuzz *f, unsigned int id);
/* Add an access to a page of the window, where there may be no memslot. */
void guest_list(struct fuzz *f, u64 page, bool write);
void guest_run(struct fuzz *f);
/* Let a vCPU enter the guest without accessing the window. */
void guest_enter(struct fuzz *f, unsigned int id);

/* Memory */
void memory_create(struct fuzz *f);
/* Return: the memslot that has the page of the window, or NULL. */
struct slot *slot_of_page(struct fuzz *f, u64 page);
/* Return: the offset of the word that the guest uses in a page of an area. */
u32 word_offset(u64 page);
void memory_allow(struct fuzz *f, enum area_id id, u64 first, u64 nr);
void memory_check(struct fuzz *f);
void step_dontneed(struct fuzz *f, const u32 *args);
void step_collapse(struct fuzz *f, const u32 *args);
void step_protect(struct fuzz *f, const u32 *args);
void step_remap(struct fuzz *f, const u32 *args);
void step_punch(struct fuzz *f, const u32 *args);
void step_host_write(struct fuzz *f, const u32 *args);
void step_fork(struct fuzz *f, const u32 *args);
void memory_start_thread(struct fuzz *f, u64 seed);
void memory_stop_thread(struct fuzz *f);

/* Operations */

/* The kind of an argument, which decides how values are drawn. */
enum arg {
	ARG_END,
	ARG_VCPU,
	ARG_SLOT,
	ARG_ANY_SLOT,
	ARG_AREA,
	ARG_PAGE,
	ARG_COUNT,
	ARG_SIZE,
	ARG_OFFSET,
	ARG_STRIDE,
	ARG_CHUNK,
	ARG_SHIFT,
	ARG_FLAGS,
	ARG_BOOL,
	ARG_MASK,
	ARG_MANUAL,
	ARG_SPLIT_CHUNK,
	ARG_DIRTY_BITS,
	ARG_METHOD,
	ARG_MODE,
	ARG_QUOTA,
	ARG_ACCESS,
	ARG_WRONG,
};

/* What a step needs: a guest, a VM (which may have no memslots), or nothing. */
enum stage { STAGE_GUEST, STAGE_VM, STAGE_HOST };

struct op {
	const char *name;
	void (*run)(struct fuzz *f, const u32 *args);
	/* How often it is drawn, in relation to other operations. */
	unsigned int weight;
	enum stage stage;
	enum arg args[MAX_ARGS + 1];
};

extern const struct op ops[];
extern const unsigned int nr_ops;

/* Compare all logs and memory, and let the guest read what it can. */
void fuzz_final(struct fuzz *f);

#endif /* SELFTEST_KVM_DIRTY_LOG_FUZZ_H */
