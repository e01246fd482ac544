/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of dirty_log_fuzz_test share.  A sequence consists of steps, each of which
 * can be left out.  A model says what the result of each step must be.
 *
 *   dirty_log_fuzz_test.c	draws, replays and shrinks sequences
 *   dirty_log_fuzz_model.c	the steps, most of them ioctls, and the model
 *   dirty_log_fuzz_guest.c	the guest, and its modes
 *   dirty_log_fuzz_memory.c	what the host does to memory
 *
 * Each file calls only those below it, but for fuzz_fail() in dirty_log_fuzz_test.c, which
 * ends the process that runs the sequence.
 */
#ifndef SELFTEST_KVM_DIRTY_LOG_FUZZ_H
#define SELFTEST_KVM_DIRTY_LOG_FUZZ_H

#include "eager_split_util.h"

/* Code, the list and page tables of the guest; mapped at the same address, and never logged. */
#define LOW_SLOT		0
#define LOW_SIZE		SZ_4M

/* Guest memory that memslots may have, and where a guest that does so maps it again. */
#define WINDOW_GPA		0x40000000ull
#define WINDOW_CHUNKS		16ul
#define WINDOW_SIZE		(WINDOW_CHUNKS * SZ_2M)
#define WINDOW_PAGES		(WINDOW_SIZE / PAGE_SIZE)
#define ALIAS_STEP		((u64)SZ_1G)

/* The memslots 1, 2 and 3, and the host's memory that any of them may be. */
#define NR_SLOTS		4u
#define AREA_PAGES		(2 * PAGES_PER_2M)
#define AREA_SIZE		(AREA_PAGES * PAGE_SIZE)
#define LOG_WORDS		(AREA_PAGES / BITS_PER_WORD)
#define NR_VCPUS		3u
#define NO_SLOT			(-1)

enum area_id { AREA_HUGETLB, AREA_THP, AREA_SHARED, NR_AREAS };

/* What the host's mapping permits.  If that is less than the guest needs, KVM_RUN fails. */
enum access { ACCESS_ALL, ACCESS_READ, ACCESS_NONE };

#define MAX_LIST		1024u
#define MAX_ARGS		7u
#define MAX_STEPS		1024u

/* A step is an operation and its arguments, which are valid in any state of the VM. */
struct step {
	unsigned int op;
	u32 args[MAX_ARGS];
};

/* How a sequence ended.  In memory shared with the process that runs the sequence. */
struct report {
	unsigned int step;
	bool failed;
	char text[256];
	/* Ioctls and, among them, those that KVM had to refuse; pages accessed and compared. */
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
	/* Within the window, in pages. */
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

/* The guest adds 1 to the address of what it is to write. */
struct entry {
	u32 gva;
	u32 value;
};

struct fuzz {
	struct report *report;
	/* Another thread does things to memory at the same time. */
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

/* Count a call that returned @ret.  It has to fail with @expected, a negative errno, or 0. */
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
/* A vCPU is to go through a list. */
void guest_begin(struct fuzz *f, unsigned int id);
/* It accesses a page of the window, which may have no memslot. */
void guest_list(struct fuzz *f, u64 page, bool write);
void guest_run(struct fuzz *f);
/* A vCPU enters the guest, which doesn't access the window. */
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

/* What an argument is, from which its values are drawn. */
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

/* What has to be there for a step: all of it, a VM that may have no memslots yet, or neither. */
enum stage { STAGE_GUEST, STAGE_VM, STAGE_HOST };

struct op {
	const char *name;
	void (*run)(struct fuzz *f, const u32 *args);
	/* How often it is drawn, in relation to others. */
	unsigned int weight;
	enum stage stage;
	enum arg args[MAX_ARGS + 1];
};

extern const struct op ops[];
extern const unsigned int nr_ops;

/* Compare logs and memory, and have the guest read what it can. */
void fuzz_final(struct fuzz *f);

#endif /* SELFTEST_KVM_DIRTY_LOG_FUZZ_H */
