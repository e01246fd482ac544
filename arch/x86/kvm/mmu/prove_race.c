// SPDX-License-Identifier: GPL-2.0-only
/*
 * Provoked races of KVM's MMU, for debug kernels
 *
 * These make events happen that otherwise require another thread or a CPU to
 * act at the right moment: contention of mmu_lock (enum kvm_force_site), an
 * invalidation of memory, a change of an SPTE by a CPU while KVM changes it
 * (enum kvm_window), and the use of a cached link to a page table.  All of them
 * are off by default.  They are counted by place, so that a test can verify
 * that each place was reached.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/kvm_host.h>
#include <linux/moduleparam.h>
#include <linux/sysfs.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "prove_race.h"
#include "spte.h"
#include "tdp_iter.h"
#include "tdp_mmu.h"

/* For read-only parameters: only the command line can get here. */
static int prove_read_only(const char *value, const struct kernel_param *kp)
{
	return -EPERM;
}

/* Print one line per place: its name and its count. */
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
	[KVM_FORCE_COLLECT_RMAPS]	= "collect_rmaps",
	[KVM_FORCE_COLLECT_TDP]		= "collect_tdp",
	[KVM_FORCE_TDP_WALK]		= "tdp_walk",
};

/* How often drops of mmu_lock were forced since KVM was loaded, in all VMs. */
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
 * __kvm_prove_force_yield - should mmu_lock be dropped although it isn't
 * contended?
 * @site: the place
 *
 * Return: true while kvm.prove_force_yield is on.  Then the drop is counted.
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
 * __kvm_prove_skip_split - treat a huge page as if it were being invalidated?
 * @gfn: the first gfn of the huge page
 * @level: its size
 *
 * Return: true for every other huge page while kvm.prove_skip_split is on.
 */
bool __kvm_prove_skip_split(gfn_t gfn, int level)
{
	return READ_ONCE(prove_skip_split) && gfn & KVM_PAGES_PER_HPAGE(level);
}

/* The longest pause, in microseconds.  Interrupts may be off. */
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
	[KVM_WINDOW_TDP_LINK]		= "tdp_link",
};

/* How often places were reached with pauses on, and how often they paused. */
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
 * @window: the place
 *
 * The pause gives CPUs time to change the SPTE.  Callers hold locks or have
 * interrupts off, so this must not sleep.
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

static bool prove_forget_links __read_mostly;
module_param(prove_forget_links, bool, 0644);
MODULE_PARM_DESC(prove_forget_links, "Have CPUs use links to page tables as if they were cached");

/* Marked links may be left after the parameter was turned off. */
static bool prove_links_marked __read_mostly;

/* How often an Accessed bit was cleared that a CPU would not have set. */
static atomic_long_t prove_forgotten;

static int prove_get_forgotten(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%ld\n", atomic_long_read(&prove_forgotten));
}

static const struct kernel_param_ops prove_forgotten_ops = {
	.set = prove_read_only,
	.get = prove_get_forgotten,
};

module_param_cb(prove_forgotten, &prove_forgotten_ops, NULL, 0444);
MODULE_PARM_DESC(prove_forgotten, "How often prove_forget_links had a CPU use a cached link");

/**
 * __kvm_prove_link_cached - get the mark for links that CPUs may have cached
 *
 * Return: the mark, or 0 while kvm.prove_forget_links is off.
 */
u64 __kvm_prove_link_cached(void)
{
	if (!READ_ONCE(prove_forget_links))
		return 0;

	WRITE_ONCE(prove_links_marked, true);
	return KVM_PROVE_LINK_CACHED;
}

/* Clear @bits in a link if it is marked.  Return: the link's new value. */
static u64 prove_take_from_link(u64 *link, u64 spte, u64 bits)
{
	u64 next;

	/* CPUs may use the link, and other threads may replace it. */
	do {
		next = spte & ~bits;
		if (!is_shadow_present_pte(spte) || is_last_spte(spte, PG_LEVEL_2M) ||
		    !(spte & KVM_PROVE_LINK_CACHED) || next == spte)
			return spte;
	} while (!try_cmpxchg64(link, &spte, next));

	if (spte & shadow_accessed_mask)
		atomic_long_inc(&prove_forgotten);
	return next;
}

/**
 * __kvm_prove_forget_link - pretend that CPUs used a marked link from their
 * caches
 * @link: an SPTE of level 2 in the TDP MMU, which may link to a page table
 * @spte: its value
 *
 * Return: its new value, without the Accessed bit if the link is marked.
 */
u64 __kvm_prove_forget_link(u64 *link, u64 spte)
{
	return prove_take_from_link(link, spte, shadow_accessed_mask);
}

#ifdef CONFIG_X86_64
static void prove_forget_root(struct kvm *kvm, struct kvm_mmu_page *root)
{
	struct tdp_iter iter;

	for_each_tdp_pte_min_level(iter, kvm, root, PG_LEVEL_2M, 0, kvm_mmu_max_gfn() + 1)
		if (iter.level == PG_LEVEL_2M)
			prove_take_from_link(rcu_dereference(iter.sptep), iter.old_spte,
					     shadow_accessed_mask | KVM_PROVE_LINK_CACHED);
}

/**
 * __kvm_prove_forget_links - end the pretence of cached links, before a flush
 * @kvm: the VM, of which all TLBs are about to be flushed
 *
 * This removes all marks.  From then on, Accessed bits show what CPUs do.
 * Links are changed by compare and exchange, so that mmu_lock is not required,
 * as in aging.
 */
void __kvm_prove_forget_links(struct kvm *kvm)
{
	struct kvm_mmu_page *root;

	/* Without the TDP MMU, the list of its roots is not initialized. */
	if (!tdp_mmu_enabled || !READ_ONCE(prove_links_marked))
		return;

	rcu_read_lock();
	list_for_each_entry_rcu(root, &kvm->arch.tdp_mmu_roots, link)
		if (!is_mirror_sp(root))
			prove_forget_root(kvm, root);
	rcu_read_unlock();
}
#else
void __kvm_prove_forget_links(struct kvm *kvm)
{
}
#endif
