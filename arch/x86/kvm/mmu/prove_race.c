// SPDX-License-Identifier: GPL-2.0-only
/*
 * Races of KVM's MMU made to happen, for debug kernels
 *
 * What a thread meets only if others come at the right moment: mmu_lock that is
 * wanted (enum kvm_force_site), memory that is being invalidated, an SPTE that a
 * CPU changes while KVM does (enum kvm_window).  All of it is off by default, and
 * counted by place, so that a test can tell that each was met.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/kvm_host.h>
#include <linux/moduleparam.h>
#include <linux/sysfs.h>

#include "prove_race.h"

/* Only ever reached from the kernel's command line. */
static int prove_read_only(const char *value, const struct kernel_param *kp)
{
	return -EPERM;
}

/* One line for each place: its name and how often it was met. */
static int prove_show_counts(char *buffer, const char * const *names,
			     const atomic_long_t *counts, int nr)
{
	int i, n = 0;

	for (i = 0; i < nr; i++)
		n += sysfs_emit_at(buffer, n, "%s %ld\n", names[i], atomic_long_read(&counts[i]));

	return n;
}

static bool prove_force_yield __read_mostly;
module_param(prove_force_yield, bool, 0644);
MODULE_PARM_DESC(prove_force_yield, "Drop mmu_lock wherever it may be dropped on the way");

static const char * const prove_force_sites[] = {
	[KVM_FORCE_SPLIT_YIELD]		= "split_yield",
	[KVM_FORCE_SPLIT_ALLOC]		= "split_alloc",
	[KVM_FORCE_LOG_WORD]		= "log_word",
	[KVM_FORCE_LOG_PAGE]		= "log_page",
	[KVM_FORCE_LOG_SLOT]		= "log_slot",
	[KVM_FORCE_RECOVER]		= "recover",
	[KVM_FORCE_HARVEST_RMAPS]	= "harvest_rmaps",
	[KVM_FORCE_HARVEST_TDP]		= "harvest_tdp",
	[KVM_FORCE_TDP_WALK]		= "tdp_walk",
};

/* How often mmu_lock was forced to be dropped since KVM was loaded, by all VMs. */
static atomic_long_t prove_forced[KVM_NR_FORCE_SITES];

static int prove_get_forced(char *buffer, const struct kernel_param *kp)
{
	BUILD_BUG_ON(ARRAY_SIZE(prove_force_sites) != KVM_NR_FORCE_SITES);

	return prove_show_counts(buffer, prove_force_sites, prove_forced, KVM_NR_FORCE_SITES);
}

static const struct kernel_param_ops prove_forced_ops = {
	.set = prove_read_only,
	.get = prove_get_forced,
};

module_param_cb(prove_forced, &prove_forced_ops, NULL, 0444);
MODULE_PARM_DESC(prove_forced, "How often prove_force_yield had mmu_lock dropped, by place");

/**
 * __kvm_prove_force_yield - shall mmu_lock be dropped here, whether others want it or not?
 * @site: where that is
 *
 * Return: true, and it is counted, while kvm.prove_force_yield is on.
 */
bool __kvm_prove_force_yield(enum kvm_force_site site)
{
	if (!READ_ONCE(prove_force_yield))
		return false;

	atomic_long_inc(&prove_forced[site]);
	return true;
}

static bool prove_skip_split __read_mostly;
module_param(prove_skip_split, bool, 0644);
MODULE_PARM_DESC(prove_skip_split, "Take the memory of every other huge page for invalidated");

/**
 * __kvm_prove_skip_split - shall a huge page not be split, as if its memory was going?
 * @gfn: the first one of the huge page
 * @level: its size
 *
 * Return: true for every other one while kvm.prove_skip_split is on.
 */
bool __kvm_prove_skip_split(gfn_t gfn, int level)
{
	return READ_ONCE(prove_skip_split) && gfn & KVM_PAGES_PER_HPAGE(level);
}

/* The most that a pause may take, in microseconds: interrupts may be off. */
#define PROVE_MAX_WINDOW_US	10000

static unsigned int prove_window_us __read_mostly;

static int prove_set_window_us(const char *value, const struct kernel_param *kp)
{
	return param_set_uint_minmax(value, kp, 0, PROVE_MAX_WINDOW_US);
}

static const struct kernel_param_ops prove_window_us_ops = {
	.set = prove_set_window_us,
	.get = param_get_uint,
};

module_param_cb(prove_window_us, &prove_window_us_ops, &prove_window_us, 0644);
MODULE_PARM_DESC(prove_window_us, "Microseconds to pause amid updates of SPTEs, 0 to 10000");

static unsigned int prove_window_every __read_mostly = 1;

static int prove_set_window_every(const char *value, const struct kernel_param *kp)
{
	return param_set_uint_minmax(value, kp, 1, UINT_MAX);
}

static const struct kernel_param_ops prove_window_every_ops = {
	.set = prove_set_window_every,
	.get = param_get_uint,
};

module_param_cb(prove_window_every, &prove_window_every_ops, &prove_window_every, 0644);
MODULE_PARM_DESC(prove_window_every, "Pause once in so many updates at each place");

static const char * const prove_window_names[] = {
	[KVM_WINDOW_UPDATE]		= "update",
	[KVM_WINDOW_WRPROT]		= "wrprot",
	[KVM_WINDOW_SET]		= "set",
	[KVM_WINDOW_SYNC]		= "sync",
	[KVM_WINDOW_CLEAR_DIRTY]	= "clear_dirty",
	[KVM_WINDOW_ZAP]		= "zap",
	[KVM_WINDOW_AGE]		= "age",
	[KVM_WINDOW_SPLIT]		= "split",
	[KVM_WINDOW_LOG]		= "log",
	[KVM_WINDOW_RECORD]		= "record",
	[KVM_WINDOW_RECOVER]		= "recover",
	[KVM_WINDOW_FAST_FAULT]		= "fast_fault",
	[KVM_WINDOW_TDP_WRITE]		= "tdp_write",
	[KVM_WINDOW_TDP_CLEAR_BITS]	= "tdp_clear_bits",
	[KVM_WINDOW_TDP_CMPXCHG]	= "tdp_cmpxchg",
	[KVM_WINDOW_TDP_REMOVE]		= "tdp_remove",
	[KVM_WINDOW_TDP_REARM]		= "tdp_rearm",
	[KVM_WINDOW_TDP_RECORD]		= "tdp_record",
};

/* How often each place was met while pauses were on, and how often it paused. */
static atomic_long_t prove_window_met[KVM_NR_WINDOWS];
static atomic_long_t prove_windows[KVM_NR_WINDOWS];

static int prove_get_windows(char *buffer, const struct kernel_param *kp)
{
	BUILD_BUG_ON(ARRAY_SIZE(prove_window_names) != KVM_NR_WINDOWS);

	return prove_show_counts(buffer, prove_window_names, prove_windows, KVM_NR_WINDOWS);
}

static const struct kernel_param_ops prove_windows_ops = {
	.set = prove_read_only,
	.get = prove_get_windows,
};

module_param_cb(prove_windows, &prove_windows_ops, NULL, 0444);
MODULE_PARM_DESC(prove_windows, "How often KVM paused amid updates of SPTEs, by place");

/**
 * __kvm_prove_window - pause between reading an SPTE and storing to it
 * @window: where that is
 *
 * Whatever a CPU may do to the SPTE in between has time to happen.  Callers hold
 * locks, or have interrupts off, so the CPU is not given away.
 */
void __kvm_prove_window(enum kvm_window window)
{
	unsigned int us = READ_ONCE(prove_window_us);

	if (!us)
		return;

	if (atomic_long_inc_return(&prove_window_met[window]) % READ_ONCE(prove_window_every))
		return;

	atomic_long_inc(&prove_windows[window]);
	udelay(us);
}
