/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of dirty_log_live_perf_test share: the host's side of a run in
 * dirty_log_live_perf_test.c, the guest's in dirty_log_live_guest.c, and what they
 * counted in dirty_log_live_report.c.
 */
#ifndef SELFTEST_KVM_DIRTY_LOG_LIVE_H
#define SELFTEST_KVM_DIRTY_LOG_LIVE_H

#include "dirty_log_perf.h"

/* Buckets of an octave, the logarithm of that, and buckets of all octaves. */
#define STEPS		8
#define STEP_BITS	3
#define NR_BUCKETS	((64 - STEP_BITS + 1) * STEPS)

/* At least this long from one fresh read to the next. */
#define FRESH_PACE_US	50

/* Set in struct control.phase while the host acts. */
#define ACTION		BIT(31)

enum kind {
	WRITERS,
	READERS,
	NR_KINDS,
};

enum live_phase {
	LIVE_POPULATE,
	LIVE_BASELINE,
	LIVE_ENABLE,
	LIVE_ENABLED,
	LIVE_GET,
	LIVE_CLEAR,
	LIVE_VERIFY,
	LIVE_LOGGING,
	LIVE_DISABLE,
	LIVE_DISABLED,
};

/* What the host does in it stalls vCPUs. */
static inline bool is_action(enum live_phase phase)
{
	return phase == LIVE_ENABLE || phase == LIVE_GET || phase == LIVE_CLEAR ||
	       phase == LIVE_DISABLE;
}

/* Accesses of one vCPU, or of several, in one phase.  Times are ticks. */
struct phase_stats {
	uint64_t reads;
	uint64_t writes;
	uint64_t longest;
	/* Where it was, and when it began. */
	uint64_t longest_gva;
	uint64_t longest_at;
	uint64_t histogram[NR_BUCKETS];
};

/* Guest memory of one vCPU, which alone writes it. */
struct vcpu_stats {
	/* All accesses; written once, at the end. */
	uint64_t accesses;
	/* When there was no fresh page left, or 0. */
	uint64_t exhausted_at;
	struct phase_stats phases[];
	/* Followed by one uint32_t per window. */
};

/* Guest memory that all share. */
struct control {
	/*
	 * Number of the current phase, perhaps with ACTION; the number of
	 * phases ends the vCPUs.  Written by main only.
	 */
	uint32_t phase;
	/* The TSC at which the timeline starts; valid after populating. */
	uint64_t origin;
	/* vCPUs that populated their memory; atomic. */
	uint32_t populated __aligned(64);
	/* When each phase began; valid up to the current one. */
	uint64_t begins[];
};

static inline uint32_t phase_number(uint32_t word)
{
	return word & ~ACTION;
}

/* Where everything is.  Host and guests have a copy; none is modified. */
extern struct layout {
	struct control *control;
	/* struct vcpu_stats of vCPU 0, and the distance to the next. */
	char *stats;
	uint64_t stride;
	uint32_t nr_phases;
	/* The last one collects all that comes later. */
	uint32_t nr_windows;
	uint64_t window_ticks;
	/* vCPUs that only read, the first ones. */
	uint32_t readers;
	/* Per reader; 0: they read test memory. */
	uint64_t fresh_pages;
	uint64_t fresh_gva;
	uint64_t fresh_ticks;
	/* From one page of the test memory that is accessed to the next one. */
	uint64_t page_step;
} layout;

/* The command line's. */
struct live_options {
	/* Length of a window of the timeline. */
	uint32_t window_us;
	/* How long vCPUs run between two actions of the host. */
	uint32_t stretch_ms;
	/* Readers read pages that are not mapped yet. */
	bool fresh;
	/* Print the timeline, too. */
	bool timeline;
};

/* One phase that was, or is. */
struct span {
	enum live_phase phase;
	/* 0 outside of iterations. */
	int iteration;
	/* TSC.  It ends where the next one begins. */
	uint64_t begin;
	/* As it began; only with --stats. */
	struct kvm_stats stats;
};

/* One VM that was measured, or is. */
struct live {
	struct test *test;
	const struct live_options *opts;
	/* Host's view of the guest memory. */
	struct control *control;
	char *stats;
	/* One more than there are phases: when the last one ended. */
	struct span *spans;
	/* Phases that began. */
	int nr_spans;
	uint64_t fresh_gpa;
	/* Only with -V, by page of test memory: as last harvested ... */
	uint64_t *copies;
	/* ... and whether that changed until just before the last GET. */
	bool *changed;
};

static inline struct vcpu_stats *stats_of(char *stats, int vcpu)
{
	return (struct vcpu_stats *)(stats + vcpu * layout.stride);
}

static inline uint32_t *windows_of(struct vcpu_stats *stats)
{
	return (uint32_t *)&stats->phases[layout.nr_phases];
}

static inline enum kind kind_of(int vcpu)
{
	return vcpu < layout.readers ? READERS : WRITERS;
}

static inline uint64_t accesses_of(const struct phase_stats *stats)
{
	return stats->reads + stats->writes;
}

/* The largest latency in a bucket; ticks. */
uint64_t bucket_end(int bucket);

/* For people, and for programs. */
void report(const struct live *live);
void json_all(const struct live *live);

#endif /* SELFTEST_KVM_DIRTY_LOG_LIVE_H */
