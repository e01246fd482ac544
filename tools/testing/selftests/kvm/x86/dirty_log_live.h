/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by the files of dirty_log_live_perf_test.  Each of these files calls
 * only the files below it:
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

/* Buckets per octave, log2 of that number, and buckets of all octaves. */
#define STEPS		8
#define STEP_BITS	3
#define NR_BUCKETS	((64 - STEP_BITS + 1) * STEPS)

/* The shortest time from one fresh read to the next. */
#define FRESH_PACE_US	50

/* Set in struct control.phase while the host calls an ioctl. */
#define ACTION		BIT(31)

enum kind { WRITERS, READERS, NR_KINDS };

/* Does the host call an ioctl in this phase, which may stall vCPUs? */
static inline bool is_action(enum phase phase)
{
	return phase == PHASE_ENABLE || phase == PHASE_GET || phase == PHASE_CLEAR ||
	       phase == PHASE_DISABLE;
}

/*
 * Accesses of one vCPU or of several vCPUs in one phase.  Times are TSC ticks.
 */
struct phase_stats {
	u64 reads;
	u64 writes;
	u64 longest;
	/*
	 * The longest access: its address, when it began and, in a sum, its
	 * vCPU.
	 */
	u64 longest_gva;
	u64 longest_at;
	u64 longest_vcpu;
	u64 histogram[NR_BUCKETS];
};

/* Guest memory that only one vCPU writes. */
struct vcpu_stats {
	/* All accesses; the vCPU writes this once, at the end. */
	u64 accesses;
	/* When no fresh page was left, or 0. */
	u64 exhausted_at;
	struct phase_stats phases[];
	/* Followed by one u32 per window. */
};

/* Guest memory that all vCPUs share. */
struct control {
	/*
	 * The number of the current phase, with ACTION if it is an action.  The
	 * total number of phases ends the vCPUs.  Only main writes this.
	 */
	u32 phase;
	/* The TSC at which the timeline starts; valid after populating. */
	u64 origin;
	/* How many vCPUs have populated their memory; atomic. */
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
	/* The last window also counts everything that comes later. */
	u32 nr_windows;
	u64 window_ticks;
	/* How many vCPUs, from the first on, only read. */
	u32 readers;
	/* Fresh pages per reader; 0: readers read test memory. */
	u64 fresh_pages;
	u64 fresh_gva;
	u64 fresh_ticks;
	/* The distance between two pages of test memory that are accessed. */
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
	/* TSC.  A phase ends where the next one begins. */
	u64 begin;
	/* Statistics when it began; only with --stats. */
	struct kvm_stats stats;
};

/* One VM that is being measured. */
struct live {
	struct test *test;
	/* Host's view of the guest memory. */
	struct control *control;
	char *stats;
	/* One more than there are phases, for the end of the last phase. */
	struct span *spans;
	/* Phases that began. */
	int nr_spans;
	u64 fresh_gpa;
	/* Only with -V: the first word of each page, as it was last copied. */
	u64 *copies;
	/* Whether that word had changed just before the last GET. */
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

/* Return: the largest latency in a bucket, in ticks. */
u64 bucket_end(int bucket);

/* Print the results as text, and as JSON. */
void report(const struct live *live);
void json_all(const struct live *live);

#endif /* SELFTEST_KVM_DIRTY_LOG_LIVE_H */
