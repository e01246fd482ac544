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

#include "eager_split_util.h"

#define NO_FD			(-1)

enum setting_id {
	EAGER, HARVEST, NX_HUGE_PAGES, KSM, KSM_PAGES,
	SLAB_WAIT, SLAB_VERBOSE, SLAB_FILTER, SLAB_TASK, SLAB_PROBABILITY, SLAB_INTERVAL,
	SLAB_TIMES, SLAB_HEADERS, SLAB_DESCS,
	PAGE_WAIT, PAGE_VERBOSE, PAGE_ORDER, PAGE_TIMES,
	NR_SETTINGS
};

extern struct setting host_settings[NR_SETTINGS];

/* KVM may be built without one, and nx_huge_pages may say "never". */
void set_if_saved(enum setting_id id, const char *value);

enum fault_site { SITE_HEADERS, SITE_DESCS, SITE_PAGES, NR_SITES };

extern const char * const site_names[NR_SITES];

struct faults {
	/* Of the thread that prepared; NO_FD if nothing can fail. */
	int fail_nth_fd;
	int make_it_fail_fd;

	enum fault_site site;

	/* How many of each site have failed, and "times" when that was counted last. */
	u64 failed[NR_SITES];
	u64 slab_times;
	u64 page_times;
};

extern struct faults faults;

bool can_fail(void);
/* Let waiting allocations fail, too, and say nothing about it in the log. */
void prepare_faults(void);
/* @every: of so many allocations one fails, or the one of this number. */
void select_faults(enum fault_site site, unsigned int every);
/* @nth: which page fails, if it is one. */
void begin_faults(unsigned int nth);
void end_faults(void);
/* To be called before another site is selected. */
void count_faults(void);

#endif /* SELFTEST_KVM_EAGER_SPLIT_STRESS_HOST_H */
