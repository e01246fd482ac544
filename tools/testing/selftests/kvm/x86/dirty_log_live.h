/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of dirty_log_live_perf_test share.  Each calls only those below it:
 *
 *   dirty_log_live_perf_test.c	the host's side of a run
 *   dirty_log_live_report.c		what vCPUs have counted
 *   dirty_log_live_guest.c		the guest's side of a run
 *
 * See dirty_log_perf.h for the files that it shares with dirty_log_perf_test.
 */
#ifndef SELFTEST_KVM_DIRTY_LOG_LIVE_H
#define SELFTEST_KVM_DIRTY_LOG_LIVE_H

#include "processor.h"
#include "dirty_log_perf.h"

/* Buckets per octave, the logarithm of that, and buckets of all octaves. */
#define STEPS		8
#define STEP_BITS	3
#define NR_BUCKETS	((64 - STEP_BITS + 1) * STEPS)

/* At least this long from one fresh read to the next. */
#define FRESH_PACE_US	50

/* Set in struct control.phase while the host acts. */
#define ACTION		BIT(31)

enum kind { WRITERS, READERS, NR_KINDS };

/* Does the host do anything in this phase, which may stall vCPUs? */
static inline bool is_action(enum phase phase)
{
	return phase == PHASE_ENABLE || phase == PHASE_GET || phase == PHASE_CLEAR ||
	       phase == PHASE_DISABLE;
}

/* Accesses of one vCPU, or of several, in one phase.  Times are ticks. */
struct phase_stats {
	u64 reads;
	u64 writes;
	u64 longest;
	/* The longest access: its address, its beginning, and in a sum, its vCPU. */
	u64 longest_gva;
	u64 longest_at;
	u64 longest_vcpu;
	u64 histogram[NR_BUCKETS];
};

/* Guest memory that only one vCPU writes. */
struct vcpu_stats {
	/* All accesses; written once, at the end. */
	u64 accesses;
	/* When there was no fresh page left, or 0. */
	u64 exhausted_at;
	struct phase_stats phases[];
	/* Followed by one u32 per window. */
};

/* Guest memory that all share. */
struct control {
	/*
	 * Number of the current phase, perhaps with ACTION; the number of
	 * phases ends the vCPUs.  Written by main only.
	 */
	u32 phase;
	/* The TSC at which the timeline starts; valid after populating. */
	u64 origin;
	/* vCPUs that populated their memory; atomic. */
	u32 populated __aligned(64);
	/* When each phase began; valid up to the current one. */
	u64 begins[];
};

static inline u32 phase_number(u32 word)
{
	return word & ~ACTION;
}

/* The layout of guest memory.  Host and guest have a copy, and neither modifies it. */
extern struct layout {
	struct control *control;
	/* struct vcpu_stats of vCPU 0, and the distance to the next. */
	char *stats;
	u64 stride;
	u32 nr_phases;
	/* The last one collects all that comes later. */
	u32 nr_windows;
	u64 window_ticks;
	/* vCPUs that only read, the first ones. */
	u32 readers;
	/* Per reader; 0: they read test memory. */
	u64 fresh_pages;
	u64 fresh_gva;
	u64 fresh_ticks;
	/* From one page of the test memory that is accessed to the next one. */
	u64 page_step;
} layout;

/* Options of this program. */
extern struct live_options {
	/* Length of a window of the timeline. */
	int window_us;
	/* How long vCPUs run between two actions of the host. */
	int stretch_ms;
	/* Readers read pages that are not mapped yet. */
	bool fresh;
} live_options;

/* A phase that has begun. */
struct span {
	enum phase phase;
	/* 0 outside of iterations. */
	int iteration;
	/* TSC.  It ends where the next one begins. */
	u64 begin;
	/* As it began; only with --stats. */
	struct kvm_stats stats;
};

/* One VM that is being measured. */
struct live {
	struct test *test;
	/* Host's view of the guest memory. */
	struct control *control;
	char *stats;
	/* One more than there are phases: when the last one ended. */
	struct span *spans;
	/* Phases that began. */
	int nr_spans;
	u64 fresh_gpa;
	/* Only with -V, for each page of test memory: the first word, as it was last copied. */
	u64 *copies;
	/* Whether that had changed just before the last GET. */
	bool *changed;
};

static inline struct vcpu_stats *stats_of(char *stats, int vcpu)
{
	return (struct vcpu_stats *)(stats + vcpu * layout.stride);
}

static inline u32 *windows_of(struct vcpu_stats *stats)
{
	return (u32 *)&stats->phases[layout.nr_phases];
}

static inline enum kind kind_of(int vcpu)
{
	return vcpu < layout.readers ? READERS : WRITERS;
}

static inline u64 accesses_of(const struct phase_stats *stats)
{
	return stats->reads + stats->writes;
}

/* The largest latency in a bucket; ticks. */
u64 bucket_end(int bucket);

/* Print the results as text, and as JSON. */
void report(const struct live *live);
void json_all(const struct live *live);

#endif /* SELFTEST_KVM_DIRTY_LOG_LIVE_H */
