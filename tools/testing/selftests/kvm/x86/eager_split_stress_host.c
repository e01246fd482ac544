// SPDX-License-Identifier: GPL-2.0-only
/*
 * Settings of the host that eager_split_stress_test changes, and puts back at the
 * end, and allocations that fail.
 *
 * Allocations fail where the kernel has CONFIG_FAILSLAB and CONFIG_FAIL_PAGE_ALLOC, in one thread
 * only and while it asks for that.  A site is one kind of allocation that a split needs: every so
 * many objects of one slab cache fail; or one page.  Of pages it is never more than one in a row,
 * as vmalloc() complains in the kernel's log when it has to fail after kmalloc().
 *
 * How many have failed is what the kernel says: each takes one off the attribute "times".
 */
#include <linux/stringify.h>

#include "eager_split_stress.h"

#define MAKE_IT_FAIL		"/proc/thread-self/make-it-fail"

struct setting host_settings[NR_SETTINGS] = {
	[EAGER] = { PARAM_EAGER },
	[HARVEST] = { PARAM_HARVEST },
	[NX_HUGE_PAGES] = { PARAM_NX },
	[KSM] = { "/sys/kernel/mm/ksm/run" },
	[KSM_PAGES] = { "/sys/kernel/mm/ksm/pages_to_scan" },
	[SLAB_WAIT] = { FAILSLAB "ignore-gfp-wait" },
	[SLAB_VERBOSE] = { FAILSLAB "verbose" },
	[SLAB_FILTER] = { FAILSLAB "cache-filter" },
	[SLAB_TASK] = { FAILSLAB "task-filter" },
	[SLAB_PROBABILITY] = { FAILSLAB "probability" },
	[SLAB_INTERVAL] = { FAILSLAB "interval" },
	[SLAB_TIMES] = { FAILSLAB "times" },
	[SLAB_HEADERS] = { SLAB "kvm_mmu_page_header/failslab" },
	[SLAB_DESCS] = { SLAB "pte_list_desc/failslab" },
	[PAGE_WAIT] = { FAIL_PAGE_ALLOC "ignore-gfp-wait" },
	[PAGE_VERBOSE] = { FAIL_PAGE_ALLOC "verbose" },
	[PAGE_ORDER] = { FAIL_PAGE_ALLOC "min-order" },
	[PAGE_TIMES] = { FAIL_PAGE_ALLOC "times" },
};

void set_if_saved(enum setting_id id, const char *value)
{
	if (host_settings[id].saved)
		write_file(host_settings[id].path, value);
}

static u64 get_number(enum setting_id id)
{
	char text[SETTING_MAX];

	TEST_ASSERT(read_file(host_settings[id].path, text, sizeof(text)), "Can't read %s",
		    host_settings[id].path);
	return strtoul(text, NULL, 0);
}

/* Allocations that fail */

const char * const site_names[NR_SITES] = { "headers", "descs", "pages" };

/* More than will ever fail. */
#define FAULT_TIMES		1000000000

struct faults faults = { NO_FD, NO_FD };

bool can_fail(void)
{
	return faults.fail_nth_fd >= 0;
}

static bool have_fault_settings(void)
{
	unsigned int i;

	for (i = SLAB_WAIT; i <= PAGE_TIMES; i++)
		if (!host_settings[i].saved)
			return false;
	return true;
}

void prepare_faults(void)
{
	if (!have_fault_settings())
		return;

	set_if_saved(SLAB_WAIT, "N");
	set_if_saved(SLAB_VERBOSE, "0");
	set_if_saved(SLAB_FILTER, "Y");
	set_if_saved(SLAB_TASK, "Y");
	set_if_saved(SLAB_PROBABILITY, "100");
	set_if_saved(SLAB_TIMES, __stringify(FAULT_TIMES));
	set_if_saved(PAGE_WAIT, "N");
	set_if_saved(PAGE_VERBOSE, "0");
	set_if_saved(PAGE_TIMES, __stringify(FAULT_TIMES));
	faults.slab_times = FAULT_TIMES;
	faults.page_times = FAULT_TIMES;
	faults.make_it_fail_fd = open(MAKE_IT_FAIL, O_WRONLY | O_CLOEXEC);
	faults.fail_nth_fd = open(FAIL_NTH, O_WRONLY | O_CLOEXEC);
	TEST_ASSERT(faults.make_it_fail_fd >= 0 && faults.fail_nth_fd >= 0,
		    "Can't open " MAKE_IT_FAIL " or " FAIL_NTH);
}

void select_faults(enum fault_site site, unsigned int every)
{
	char text[SETTING_MAX];

	if (!can_fail())
		return;

	faults.site = site;
	snprintf(text, sizeof(text), "%u", every);
	set_if_saved(SLAB_HEADERS, site == SITE_HEADERS ? "1" : "0");
	set_if_saved(SLAB_DESCS, site == SITE_DESCS ? "1" : "0");
	set_if_saved(SLAB_INTERVAL, text);
	set_if_saved(PAGE_ORDER, site == SITE_PAGES ? "0" : NO_PAGE_ORDER);
}

void begin_faults(unsigned int nth)
{
	if (faults.site == SITE_PAGES)
		write_number(faults.fail_nth_fd, nth);
	else
		write_number(faults.make_it_fail_fd, 1);
}

void end_faults(void)
{
	write_number(faults.make_it_fail_fd, 0);
	write_number(faults.fail_nth_fd, 0);
}

void count_faults(void)
{
	u64 slab, page;

	if (!can_fail())
		return;

	slab = get_number(SLAB_TIMES);
	page = get_number(PAGE_TIMES);
	faults.failed[faults.site] += faults.slab_times - slab + faults.page_times - page;
	faults.slab_times = slab;
	faults.page_times = page;
}
