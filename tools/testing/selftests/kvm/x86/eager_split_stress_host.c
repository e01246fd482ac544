// SPDX-License-Identifier: GPL-2.0-only
/*
 * Settings of the host that eager_split_stress_test changes, and injected
 * failures of allocations
 *
 * Failures need CONFIG_FAILSLAB and CONFIG_FAIL_PAGE_ALLOC.  They affect one
 * thread only, between begin_faults() and end_faults().  A site is one kind of
 * allocation that a split needs.  For a slab cache, one of so many allocations
 * fails.  For pages, only a single allocation fails: if kmalloc() and then
 * vmalloc() failed, vmalloc() would complain in the kernel's log.
 *
 * The kernel decrements the attribute "times" for each failure, which tells how
 * many allocations have failed.
 */
#include <linux/stringify.h>

#include "eager_split_stress.h"

#define MAKE_IT_FAIL		"/proc/thread-self/make-it-fail"
#define SLAB_TIMES		FAILSLAB "times"
#define PAGE_TIMES		FAIL_PAGE_ALLOC "times"

/* The initial value of "times", more than will ever fail. */
#define FAULT_TIMES		1000000000

void set_if_there(const char *path, const char *value)
{
	if (setting_exists(path))
		write_file(path, value);
}

static u64 get_number(const char *path)
{
	char text[SETTING_MAX];

	TEST_ASSERT(read_file(path, text, sizeof(text)), "Can't read %s", path);
	return strtoul(text, NULL, 0);
}

/* Allocations that fail */

const char * const site_names[NR_SITES] = { "headers", "descs", "pages" };
static const char * const site_caches[NR_SITES] = { FAIL_HEADERS, FAIL_DESCS };

struct faults faults = { .fail_nth_fd = NO_FD, .make_it_fail_fd = NO_FD };

bool can_fail(void)
{
	return faults.fail_nth_fd >= 0;
}

void prepare_faults(void)
{
	if (!setting_exists(FAIL_DESCS) || !prepare_injection())
		return;

	setting_set(FAILSLAB "cache-filter", "Y");
	setting_set(FAILSLAB "task-filter", "Y");
	setting_set(FAILSLAB "probability", "100");
	setting_set(SLAB_TIMES, __stringify(FAULT_TIMES));
	setting_set(PAGE_TIMES, __stringify(FAULT_TIMES));
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
	setting_set(FAILSLAB "interval", text);
	fail_only(site_caches[site]);
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
