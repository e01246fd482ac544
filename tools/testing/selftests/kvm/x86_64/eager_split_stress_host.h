/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Settings of the host that eager_split_stress_test changes, and puts back at the
 * end, and allocations that fail.
 *
 * Allocations fail where the kernel has CONFIG_FAILSLAB and CONFIG_FAIL_PAGE_ALLOC,
 * in one thread only and while it asks for that.  A site is one kind of allocation
 * that a split needs: every so many objects of one slab cache fail; or one page.
 * Of pages it is never more than one in a row, as vmalloc() complains in the
 * kernel's log when it has to fail after kmalloc().
 *
 * How many have failed is what the kernel says: each takes one off the attribute
 * "times".
 */
#ifndef SELFTEST_KVM_EAGER_SPLIT_STRESS_HOST_H
#define SELFTEST_KVM_EAGER_SPLIT_STRESS_HOST_H

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvm_util.h"
#include "test_util.h"
#include "eager_split_util.h"

#define MAKE_IT_FAIL		"/proc/thread-self/make-it-fail"
#define NO_FD			(-1)

enum setting_id {
	EAGER, HARVEST, NX_HUGE_PAGES, KSM, KSM_PAGES,
	SLAB_WAIT, SLAB_VERBOSE, SLAB_FILTER, SLAB_TASK, SLAB_PROBABILITY, SLAB_INTERVAL,
	SLAB_TIMES, SLAB_HEADERS, SLAB_DESCS,
	PAGE_WAIT, PAGE_VERBOSE, PAGE_ORDER, PAGE_TIMES,
	NR_SETTINGS
};

static struct setting settings[NR_SETTINGS] = {
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

/* KVM may be built without one, and nx_huge_pages may say "never". */
static void set(enum setting_id id, const char *value)
{
	if (settings[id].saved)
		write_file(settings[id].path, value);
}

static u64 get_number(enum setting_id id)
{
	char text[SETTING_MAX];

	TEST_ASSERT(read_file(settings[id].path, text, sizeof(text)), "Can't read %s",
		    settings[id].path);
	return strtoul(text, NULL, 0);
}

/*
 * Allocations that fail
 */

enum fault_site { SITE_HEADERS, SITE_DESCS, SITE_PAGES, NR_SITES };

static const char * const site_names[NR_SITES] = { "headers", "descs", "pages" };

/* More than will ever fail. */
#define FAULT_TIMES		1000000000
#define STRING(x)		#x
#define STRING_OF(x)		STRING(x)

static struct {
	/* Of the thread that prepared; NO_FD if nothing can fail. */
	int fail_nth_fd;
	int make_it_fail_fd;

	enum fault_site site;

	/* How many of each site have failed, and "times" when that was counted last. */
	u64 failed[NR_SITES];
	u64 slab_times;
	u64 page_times;
} faults = { NO_FD, NO_FD };

static bool can_fail(void)
{
	return faults.fail_nth_fd >= 0;
}

static bool have_fault_settings(void)
{
	unsigned int i;

	for (i = SLAB_WAIT; i <= PAGE_TIMES; i++)
		if (!settings[i].saved)
			return false;
	return true;
}

/* Let waiting allocations fail, too, and say nothing about it in the log. */
static void prepare_faults(void)
{
	if (!have_fault_settings())
		return;

	set(SLAB_WAIT, "N");
	set(SLAB_VERBOSE, "0");
	set(SLAB_FILTER, "Y");
	set(SLAB_TASK, "Y");
	set(SLAB_PROBABILITY, "100");
	set(SLAB_TIMES, STRING_OF(FAULT_TIMES));
	set(PAGE_WAIT, "N");
	set(PAGE_VERBOSE, "0");
	set(PAGE_TIMES, STRING_OF(FAULT_TIMES));
	faults.slab_times = FAULT_TIMES;
	faults.page_times = FAULT_TIMES;
	faults.make_it_fail_fd = open(MAKE_IT_FAIL, O_WRONLY | O_CLOEXEC);
	faults.fail_nth_fd = open(FAIL_NTH, O_WRONLY | O_CLOEXEC);
	TEST_ASSERT(faults.make_it_fail_fd >= 0 && faults.fail_nth_fd >= 0,
		    "Can't open " MAKE_IT_FAIL " or " FAIL_NTH);
}

/* @every: of so many allocations one fails, or the one of this number. */
static void select_faults(enum fault_site site, unsigned int every)
{
	char text[SETTING_MAX];

	if (!can_fail())
		return;

	faults.site = site;
	snprintf(text, sizeof(text), "%u", every);
	set(SLAB_HEADERS, site == SITE_HEADERS ? "1" : "0");
	set(SLAB_DESCS, site == SITE_DESCS ? "1" : "0");
	set(SLAB_INTERVAL, text);
	set(PAGE_ORDER, site == SITE_PAGES ? "0" : NO_PAGE_ORDER);
}

static void write_fault_fd(int fd, unsigned int value)
{
	char text[SETTING_MAX];
	int n = snprintf(text, sizeof(text), "%u", value);

	TEST_ASSERT(pwrite(fd, text, n, 0) == n, "Can't inject faults, errno %d", errno);
}

/* @nth: which page fails, if it is one. */
static void begin_faults(unsigned int nth)
{
	if (!can_fail())
		return;

	if (faults.site == SITE_PAGES)
		write_fault_fd(faults.fail_nth_fd, nth);
	else
		write_fault_fd(faults.make_it_fail_fd, 1);
}

static void end_faults(void)
{
	if (!can_fail())
		return;

	write_fault_fd(faults.make_it_fail_fd, 0);
	write_fault_fd(faults.fail_nth_fd, 0);
}

/* To be called before another site is selected. */
static void count_faults(void)
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

#endif /* SELFTEST_KVM_EAGER_SPLIT_STRESS_HOST_H */
