/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Writes to pages beside something that makes KVM change their SPTEs
 *
 * One round: with all vCPUs stopped, take every page out of the log and copy it.  Then the test has
 * a vCPU write, or something make KVM change the SPTEs (see events[]), or both at the same time.
 * Stop everything and get the log: a page that differs from its copy has to be in it.
 *
 * dirty_log_window_run.c has all of it but what the test does in each round.
 */
#ifndef SELFTEST_KVM_DIRTY_LOG_WINDOW_H
#define SELFTEST_KVM_DIRTY_LOG_WINDOW_H

#include <semaphore.h>

#include "eager_split_util.h"

/* The pages that are written; some events have the guest use them as page tables. */
#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define NR_PAGES		16u
#define DATA_SIZE		((size_t)NR_PAGES * PAGE_SIZE)

/* A word of the log, as KVM looks at all pages of one at once; most are only read. */
#define SLOT_PAGES		64u

#define NR_VCPUS		2u

enum guest_op {
	OP_NOTHING, OP_WRITE, OP_CR3, OP_TOUCH_LEVEL1, OP_TOUCH_LEVEL2,
	OP_PERMIT, OP_CLEAN, OP_NX, OP_READ_ONLY, OP_CLEAN_TABLE, OP_READ_SLOT,
};

struct guest_work {
	u64 op;
	/* TSC ticks to wait before the operation, and after each page. */
	u64 delay;
	u64 gap;
	/* The page to begin with, and the step to the next one, which is odd. */
	u64 first;
	u64 step;
};

/* Written by the host while vCPUs are stopped. */
extern struct guest_work works[NR_VCPUS];

/* TSC ticks that the second vCPU's operation took. */
extern u64 guest_took;

/* How many vCPUs have come to the start. */
extern u64 nr_ready;

/* A vCPU and the thread that runs it once for each post of @go. */
struct racer {
	struct kvm_vcpu *vcpu;
	pthread_t thread;
	sem_t go;
	sem_t done;
	bool end;
};

struct window_test {
	const struct event *e;
	struct kvm_vm *vm;
	struct racer racers[NR_VCPUS];
	u8 *hva;
	u8 *dummy;
	u64 target_gpa;
	u64 table_gpa;
	u64 *level1_links;
	u64 *level2_links;
	u64 copy[NR_PAGES];
	/* How long what makes KVM change SPTEs took the last time, in TSC ticks. */
	u64 took;
	/* Rounds so far in which a page was lost, pages lost, and pages in the log. */
	u64 nr_bad_rounds;
	u64 nr_lost;
	u64 nr_logged;
};

struct event {
	const char *name;
	const char *what;
	/* Done by the second vCPU, before each round and in it. */
	enum guest_op prepare;
	enum guest_op race;
	/* Done by the host in each round. */
	void (*host)(struct window_test *t);
	/* Beside the log's being read and cleared, not beside writes. */
	bool log;
	/* The pages are page tables of this level. */
	unsigned int level;
	/* KVM has no page tables when the round begins. */
	bool afresh;
};

/* Tell the vCPUs what to do, of which so many take part. */
void send_works(struct window_test *t, unsigned int nr);
/* Have one vCPU do one thing, with nothing beside it. */
void run_alone(struct window_test *t, unsigned int id, enum guest_op op);
/* Count what is missing from the log, take all that is in it out, and copy the pages. */
void check_and_clear_log(struct window_test *t);
/* Have the first vCPU write to all pages, with nothing beside it. */
void write_alone(struct window_test *t);
/* Return: what all rounds counted. */
struct window_test run_rounds(const struct event *e, unsigned int rounds,
			      void (*act)(struct window_test *t));

/* Of the parameter dirty_harvest, and of what debug kernels have. */
enum setting_id { HARVEST, PAUSE_US, NR_SETTINGS };

extern struct setting window_settings[NR_SETTINGS];

/* Of -w: how long KVM is to pause within each update of an SPTE; 0 for no pauses. */
extern u64 pause_us;

/* What the test itself has; main() runs it. */

/* There is -w, too. */
extern const bool can_pause;
/* Return: whether the event was as it should be. */
bool run_event(const struct event *e, unsigned int rounds);

#endif /* SELFTEST_KVM_DIRTY_LOG_WINDOW_H */
