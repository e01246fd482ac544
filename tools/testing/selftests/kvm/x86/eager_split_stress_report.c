// SPDX-License-Identifier: GPL-2.0-only
/* What eager_split_stress_test prints about its counters and about a VM. */
#include "eager_split_stress.h"

struct counters counters;

static const char * const log_mode_names[NR_LOG_MODES] = {
	[LOG_GET]	= "get",
	[LOG_CLEAR]	= "clear",
	[LOG_INIT_SET]	= "init-set",
	[LOG_RING]	= "ring",
};

const char * const stat_names[NR_STATS] = {
	[STAT_DONE]	= "eager_split_done",
	[STAT_NOMEM]	= "eager_split_nomem",
	[STAT_NOQUOTA]	= "eager_split_noquota",
};

const char *repeat_hint(struct stress *t)
{
	static char text[200];

	snprintf(text, sizeof(text),
		 "round %lu, log mode %s%s%s, %s, %s; to repeat: -S 0x%lx -d %s",
		 counters.rounds, log_mode_names[t->log_mode],
		 t->by_dirty_bits ? " by Dirty bits" : "",
		 t->tracked ? " from the start" : "", t->shared ? "HugeTLB" : "THP",
		 t->pace->name, t->seed, t->dirty_bits_option);
	return text;
}

void report(const char *what, u64 seed, u64 nr_seeds)
{
	u64 nr_failed = 0;

	ksft_print_msg("%s: seed=0x%lx seeds=%lu cycles=%lu pages=%lu copied=%lu", what, seed,
		       nr_seeds, counters.rounds, counters.pages, counters.copied);
	pr_info(" operations=%lu host_operations=%lu", counters.guest_ops + counters.host_ops,
		counters.host_ops);
	for (unsigned int i = 0; i < NR_LOG_MODES; i++)
		pr_info(" %s=%lu", log_mode_names[i], counters.rounds_of[i]);
	pr_info(" by_dirty_bits=%lu fast=%lu tracked=%lu merged=%lu retries=%lu mmio=%lu",
		counters.rounds_by_dirty_bits, counters.rounds_fast, counters.rounds_tracked,
		counters.rounds_merged, counters.retries, counters.mmio);
	for (unsigned int i = 0; i < NR_STATS; i++)
		pr_info(" %s=%lu", stat_names[i], counters.stats[i]);
	for (unsigned int i = 0; i < NR_SITES; i++)
		nr_failed += faults.failed[i];
	pr_info(" faults=%lu", nr_failed);
	for (unsigned int i = 0; i < NR_SITES; i++)
		pr_info(" faults_%s=%lu", site_names[i], faults.failed[i]);
	pr_info("\n");
}
