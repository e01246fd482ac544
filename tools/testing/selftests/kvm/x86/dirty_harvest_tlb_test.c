// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging by Dirty bits: a vCPU that never leaves the guest
 *
 * A vCPU writes to a page all the time: once the page is taken out of the log, the
 * next write has to show, though the vCPU has the translation cached.
 *
 * Limits: whether it is cached is up to the CPU; there are many tries.
 */
#include "dirty_harvest.h"

#define ROUNDS_PER		4u

/* The vCPU may leave the guest during GET.  @cached: have it cache what is to be flushed. */
static void spin_round(struct harvest_test *t, u64 page, bool cached, bool enable)
{
	if (enable)
		stop_logging(t);
	else
		get_log(t);
	if (cached)
		await_write(t, page);
	if (enable)
		set_slot(t, DATA_GPA, KVM_MEM_LOG_DIRTY_PAGES);
	else
		clear_log(t);
	await_write(t, page);
	set_bit(page, t->log);
	/* Initially-all-set leaves what enabling does to CLEAR. */
	expect_log(t, enable && t->manual, "written again");
	memset(t->log, 0, LOG_BYTES);
}

static void run_tlb(struct harvest_test *t, const struct event *e)
{
	u64 page = NR_PAGES - 1;
	pthread_t thread;
	unsigned int i;

	write_all(t);
	start_logging(t);
	set_stop(t, 0);
	add_op(t, OP_SPIN, DATA_GPA + page * PAGE_SIZE, 0);
	send_ops(t, t->writer->nested);
	thread = start_vcpu(t->vcpu);

	await_write(t, page);
	for (i = 0; i < t->rounds / ROUNDS_PER; i++)
		spin_round(t, page, i % 2, !strcmp(e->name, "enable"));

	set_stop(t, 1);
	pthread_join(thread, NULL);
	stop_logging(t);
}

static const struct event events[] = {
	{ "tlb", "a vCPU writes all the time and stays in the guest" },
	{ "enable", "the same, while logging is disabled and enabled" },
};

int main(int argc, char *argv[])
{
	return harvest_main(argc, argv, events, ARRAY_SIZE(events), run_tlb);
}
