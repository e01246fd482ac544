/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_PROVE_RACE_H
#define __KVM_X86_MMU_PROVE_RACE_H

#include <linux/bits.h>
#include <linux/kvm_types.h>

/*
 * Races that are rare otherwise, made to happen in kernels with
 * CONFIG_KVM_PROVE_MMU_RACES.  Other kernels have nothing of it.
 */

/*
 * Set in a link of the TDP MMU, i.e. an SPTE that links to a page table of level 1, whose
 * Accessed bit was taken away: until the next flush it is as if all CPUs had it cached.
 * Leaves may use the bit for something else.
 */
#define KVM_PROVE_LINK_CACHED	BIT_ULL(62)

/*
 * Places where mmu_lock may be dropped on the way, because others want it or memory
 * is needed, so that all that was found before has to be looked up again.
 */
enum kvm_force_site {
	/* Between two huge pages that are split. */
	KVM_FORCE_SPLIT_YIELD,
	/* Before a split, to fill caches.  Stocked ones are taken for empty. */
	KVM_FORCE_SPLIT_ALLOC,
	/* Between words of a log that is cleared, or entries of a dirty ring. */
	KVM_FORCE_LOG_WORD,
	/* While the pages of one such word are armed, in the shadow MMU. */
	KVM_FORCE_LOG_PAGE,
	/* While logging is enabled for a memslot, in the shadow MMU. */
	KVM_FORCE_LOG_SLOT,
	/* While huge pages are put back in place. */
	KVM_FORCE_RECOVER,
	/* While Dirty bits are looked for in the shadow MMU, and in the TDP MMU. */
	KVM_FORCE_COLLECT_RMAPS,
	KVM_FORCE_COLLECT_TDP,
	/* On any walk of the TDP MMU that may, which begins anew from there. */
	KVM_FORCE_TDP_WALK,
	KVM_NR_FORCE_SITES
};

/*
 * Places between reading an SPTE and storing to it, where CPUs and lockless page
 * faults may change it, and between storing and telling the log what went.
 */
enum kvm_window {
	/* mmu_spte_update(), and what its callers decide before. */
	KVM_WINDOW_UPDATE,
	KVM_WINDOW_WRPROT,
	KVM_WINDOW_SET,
	KVM_WINDOW_SYNC,
	/* Other changes of the shadow MMU's leaves. */
	KVM_WINDOW_CLEAR_DIRTY,
	KVM_WINDOW_ZAP,
	KVM_WINDOW_AGE,
	KVM_WINDOW_SPLIT,
	KVM_WINDOW_LOG,
	KVM_WINDOW_RECORD,
	/* A link that a huge SPTE is about to replace. */
	KVM_WINDOW_RECOVER,
	/* Lockless page faults, of both MMUs. */
	KVM_WINDOW_FAST_FAULT,
	/* The TDP MMU. */
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
 * True if mmu_lock shall be dropped here though no thread waits for it, which is counted.
 * That is so while the module parameter kvm.prove_force_yield is on; kvm.prove_forced has
 * the counts.  Each site still does its minimum of work between two drops.
 */
static inline bool kvm_prove_force_yield(enum kvm_force_site site)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES) && __kvm_prove_force_yield(site);
}

/*
 * True for every other huge page, whose memory shall be taken for memory that is being
 * invalidated, while the module parameter kvm.prove_skip_split is on.
 */
static inline bool kvm_prove_skip_split(gfn_t gfn, int level)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES) && __kvm_prove_skip_split(gfn, level);
}

/*
 * Pause amid an update for as long as the module parameter kvm.prove_window_us says,
 * at each place once in kvm.prove_window_every times.  kvm.prove_windows has the counts.
 */
static inline void kvm_prove_window(enum kvm_window window)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES))
		__kvm_prove_window(window);
}

/*
 * CPUs cache links to page tables, and don't set the Accessed bit when they use what they
 * have cached.  Emulators have no such caches.  While kvm.prove_forget_links is on, have
 * it look as if CPUs had all links cached whose Accessed bit KVM takes away, until the
 * next flush that counts: the bit is taken away again before anything is decided by it.
 * That goes by marks in the links, not by what KVM takes links for.
 */

/* What is to be set in a link whose Accessed bit is taken away. */
static inline u64 kvm_prove_link_cached(void)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES) ? __kvm_prove_link_cached() : 0;
}

/*
 * A link, of which @spte is what was read, is about to be looked at.
 *
 * Return: what is to be taken for the link.
 */
static inline u64 kvm_prove_forget_link(u64 *link, u64 spte)
{
	return IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES) ? __kvm_prove_forget_link(link, spte) : spte;
}

/* All TLBs of the VM are about to be flushed. */
static inline void kvm_prove_forget_links(struct kvm *kvm)
{
	if (IS_ENABLED(CONFIG_KVM_PROVE_MMU_RACES))
		__kvm_prove_forget_links(kvm);
}

#endif /* __KVM_X86_MMU_PROVE_RACE_H */
