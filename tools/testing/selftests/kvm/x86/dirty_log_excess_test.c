// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging: pages that are in the log without having been written
 *
 * Let something make KVM change SPTEs, and write nothing: what KVM reports then with
 * Dirty bits must not be more than what it reports with write protection.
 */
#include "dirty_log_window.h"

static void act_alone(struct window_test *t)
{
	if (t->e->host)
		t->e->host(t);
	else
		run_alone(t, 1, t->e->race);
}

static u64 nr_logged(const struct event *e, unsigned int rounds, const char *harvest)
{
	setting_set(&window_settings[HARVEST], harvest);
	return run_rounds(e, rounds, act_alone).nr_logged;
}

bool run_event(const struct event *e, unsigned int rounds)
{
	u64 wrprot, harvest;

	TEST_ASSERT(window_settings[HARVEST].saved, "Can't read dirty_harvest");
	wrprot = nr_logged(e, rounds, "off");
	harvest = nr_logged(e, rounds, "on");
	ksft_print_msg("%s: %u rounds, no write: %lu in the log if protected, %lu by Dirty bits\n",
		       e->name, rounds, wrprot, harvest);
	return harvest <= wrprot;
}

const bool can_pause;
