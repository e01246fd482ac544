/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_PROVE_RACE_H
#define __KVM_X86_MMU_PROVE_RACE_H

#include <linux/bits.h>
#include <linux/kvm_types.h>

/*
 * Provoke races that are rare, in kernels with CONFIG_KVM_PROVE_MMU_RACES.  The
 * functions below do nothing if the option is disabled.
 */

/*
 * Marks a link of the TDP MMU, i.e. an SPTE that links to a page table of level
 * 1, whose Accessed bit was cleared: until the next flush, KVM pretends that
 * all CPUs have cached the link.  Leaves may use the bit for something else.
 */
#define KVM_PROVE_LINK_CACHED	BIT_ULL(62)

/*
 * Places where a walk may drop mmu_lock, because it is contended or memory is
 * needed, and has to look up everything again afterwards.
 */
enum kvm_force_site {
	/* Between splits of two huge pages. */
	KVM_FORCE_SPLIT_YIELD,
	/* Before a split, to fill caches, even if these contain enough. */
	KVM_FORCE_SPLIT_ALLOC,
	/* Between words of a log, or dirty ring entries, that are cleared. */
	KVM_FORCE_LOG_WORD,
	/* While the pages of one such word are armed, in the shadow MMU. */
	KVM_FORCE_LOG_PAGE,
	/* While logging is enabled for a memslot, in the shadow MMU. */
	KVM_FORCE_LOG_SLOT,
	/* While huge pages are recovered. */
	KVM_FORCE_RECOVER,
	/* While Dirty bits are collected, in the shadow MMU and the TDP MMU. */
	KVM_FORCE_COLLECT_RMAPS,
	KVM_FORCE_COLLECT_TDP,
	/* In any walk of the TDP MMU that may drop mmu_lock and restart. */
	KVM_FORCE_TDP_WALK,
	KVM_NR_FORCE_SITES
};

/*
 * Places where KVM has read an SPTE and is about to store to it, while CPUs and
 * lockless page faults may change it, and places where it has stored, and is
 * about to record the old Dirty bit in the log.
 */
enum kvm_window {
	/* In mmu_spte_update(), and where its callers decide what to store. */
	KVM_WINDOW_UPDATE,
	KVM_WINDOW_WRPROT,
	KVM_WINDOW_SET,
	KVM_WINDOW_SYNC,
	/* Other changes of leaves of the shadow MMU. */
	KVM_WINDOW_CLEAR_DIRTY,
	KVM_WINDOW_ZAP,
	KVM_WINDOW_AGE,
	KVM_WINDOW_SPLIT,
	KVM_WINDOW_LOG,
	KVM_WINDOW_RECORD,
	/* Before a link is replaced by a huge SPTE. */
	KVM_WINDOW_RECOVER,
	/* Lockless page faults, in both MMUs. */
	KVM_WINDOW_FAST_FAULT,
	/* In the TDP MMU. */
	KVM_WINDOW_TDP_WRITE,
	KVM_WINDOW_TDP_CLEAR_BITS,
	KVM_WINDOW_TDP_CMPXCHG,
	KVM_WINDOW_TDP_REMOVE,
	KVM_WINDOW_TDP_REARM,
	KVM_WINDOW_TDP_RECORD,
	KVM_WINDOW_TDP_LINK,
	KVM_NR_WINDOWS
};

bool __kvm_prove_force_yield(enum kvm_force_site site);
bool __kvm_prove_skip_split(gfn_t gfn, int level);
void __kvm_prove_window(enum kvm_window window);
u64 __kvm_prove_link_cached(void);
u64 __kvm_prove_forget_link(u64 *link, u64 spte);
void __kvm_prove_forget_links(struct kvm *kvm);

/*
 * Should mmu_lock be dropped here although no thread waits for it?  True while
 * the module parameter kvm.prove_force_yield is on; kvm.prove_forced counts
 * these drops.  Each place still makes progress between two drops.
 */
static inline bool kvm_prove_force_yield(enum kvm_force_site site)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES) && __kvm_prove_force_yield(site);
}

/*
 * Should the memory of a huge page be treated as if it were being invalidated?
 * True for every other huge page while the module parameter
 * kvm.prove_skip_split is on.
 */
static inline bool kvm_prove_skip_split(gfn_t gfn, int level)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES) && __kvm_prove_skip_split(gfn, level);
}

/*
 * Pause during the update of an SPTE for kvm.prove_window_us microseconds, each
 * place at one of kvm.prove_window_every updates.  kvm.prove_windows counts the
 * pauses.
 */
static inline void kvm_prove_window(enum kvm_window window)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES))
		__kvm_prove_window(window);
}

/*
 * CPUs cache links to page tables, and don't set the Accessed bit when they use
 * a cached link.  Emulators have no such caches.  While kvm.prove_forget_links
 * is on, pretend that CPUs have cached each link whose Accessed bit KVM clears,
 * until the next flush that counts: clear the Accessed bit again before KVM
 * evaluates it.  Such links are marked, so that this doesn't depend on the
 * state that KVM assigns to them.
 */

/* The bit to set in a link whose Accessed bit KVM clears. */
static inline u64 kvm_prove_link_cached(void)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES) ? __kvm_prove_link_cached() : 0;
}

/*
 * Called before KVM evaluates a link, whose value was read as @spte.
 *
 * Return: the value to use instead of @spte.
 */
static inline u64 kvm_prove_forget_link(u64 *link, u64 spte)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES) ? __kvm_prove_forget_link(link, spte) : spte;
}

/* Called before all TLBs of the VM are flushed. */
static inline void kvm_prove_forget_links(struct kvm *kvm)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES))
		__kvm_prove_forget_links(kvm);
}

#endif /* __KVM_X86_MMU_PROVE_RACE_H */
