// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging by the Dirty bits of SPTEs
 *
 * Write protection makes the first write to each 4KiB page exit to KVM, once per
 * round of logging, and under shadow paging with mmu_lock held exclusively.  But
 * page tables have Dirty bits, whether they are EPT, NPT or ordinary ones, and
 * CPUs set them for nothing.  So where the CPU doesn't log by itself (PML) leave
 * pages writable, take away the Dirty bit to start a round of logging, and look
 * for it when user space asks.
 *
 * Why no write is missed.  See dirty_harvest.h for the rule.  Three things can
 * happen to a Dirty bit:
 *
 * - KVM_GET_DIRTY_LOG finds it and sets the page's bit in the log.  The Dirty bit
 *   stays, hence a CPU that has it cached may go on writing unseen: the page is
 *   in the log.  There is nothing to flush.
 *
 * - The page is taken out of the log (KVM_CLEAR_DIRTY_LOG, or KVM_GET_DIRTY_LOG
 *   without manual protection), and the Dirty bit goes along.  CPUs may have it
 *   cached until the ioctl flushes TLBs before it returns, which is before user
 *   space can rely on a copy of the page.
 *
 * - The SPTE is zapped or replaced.  The code for that has read the SPTE before, and the
 *   CPU may set the Dirty bit up to the moment of the store.  So either the change is
 *   atomic and leaves the Dirty bit alone (aging, lockless page faults), or what the
 *   exchange returned, and nothing older, is handed to one function in each MMU:
 *   mmu_spte_record_dirty() in the shadow MMU and handle_changed_spte() in the TDP
 *   MMU.  These call kvm_dirty_harvest_record() if a Dirty bit went, within
 *   the hold of mmu_lock in which it went.  Looking for Dirty bits takes mmu_lock for
 *   write, if only at the end, so by then a page has its Dirty bit or its bit in the log.
 *
 * What can't be done with Dirty bits stays write-protected, SPTE by SPTE: those
 * without Dirty bit (spte_ad_enabled()), huge pages until they are split, guest
 * page tables.  VMs with a dirty ring write-protect everything, as an entry in
 * the ring needs the vCPU that wrote.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bits.h>
#include <linux/jump_label_ratelimit.h>
#include <linux/kvm_host.h>
#include <linux/moduleparam.h>
#include <linux/string.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "prove.h"
#include "rmap_log.h"
#include "spte.h"
#include "spte_bulk.h"
#include "tdp_log.h"
#include "dirty_harvest.h"

/*
 * What has to be looked at before mmu_lock may be dropped because others want it:
 * pages, or SPTEs where a page has several.
 */
#define HARVEST_MIN_WORK	SPTE_ENT_PER_PAGE

static const char * const harvest_modes[] = {
	[KVM_HARVEST_OFF]	= "off",
	[KVM_HARVEST_ON]	= "on",
	[KVM_HARVEST_AUTO]	= "auto",
	[KVM_HARVEST_VM]	= "vm",
};

static int harvest_mode __read_mostly = KVM_HARVEST_OFF;

static int harvest_set_mode(const char *value, const struct kernel_param *kp)
{
	int mode = sysfs_match_string(harvest_modes, value);

	if (mode < 0)
		return mode;

	WRITE_ONCE(harvest_mode, mode);
	return 0;
}

static int harvest_get_mode(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", harvest_modes[READ_ONCE(harvest_mode)]);
}

static const struct kernel_param_ops harvest_ops = {
	.set = harvest_set_mode,
	.get = harvest_get_mode,
};

/* Read when a VM is created, and when it asks for what the host has. */
module_param_cb(dirty_harvest, &harvest_ops, NULL, 0644);
MODULE_PARM_DESC(dirty_harvest, "Log dirty pages by the Dirty bits of SPTEs: off, on, auto or vm");

/* Code isn't patched more than once a second, however often VMs come and go. */
DEFINE_STATIC_KEY_DEFERRED_FALSE(kvm_dirty_harvest_vms, HZ);

/**
 * kvm_dirty_harvest_mode - what the parameter is now
 */
enum kvm_harvest_mode kvm_dirty_harvest_mode(void)
{
	return READ_ONCE(harvest_mode);
}

/**
 * kvm_dirty_harvest_is_possible - can a VM log by Dirty bits?
 * @kvm: the VM, known to the vendor module
 *
 * SPTEs have Dirty bits that CPUs set, and the CPU doesn't log by itself.  Page tables
 * that KVM doesn't write, but has others write, are left to those.
 */
bool kvm_dirty_harvest_is_possible(struct kvm *kvm)
{
	return kvm_ad_enabled && !kvm->arch.cpu_dirty_log_size && !kvm_has_mirrored_tdp(kvm);
}

/**
 * kvm_dirty_harvest_is_wanted - does a VM log by Dirty bits?
 * @kvm: the VM, known to the vendor module
 * @mode: what is chosen for it
 *
 * Looking for Dirty bits costs time for each page there is, write protection for
 * each page that is written, but to vCPUs, and with shadow paging to all of them,
 * as each fault takes mmu_lock exclusively.
 */
bool kvm_dirty_harvest_is_wanted(struct kvm *kvm, enum kvm_harvest_mode mode)
{
	switch (mode) {
	case KVM_HARVEST_ON:
		return kvm_dirty_harvest_is_possible(kvm);
	case KVM_HARVEST_AUTO:
		return !tdp_enabled && kvm_dirty_harvest_is_possible(kvm);
	default:
		return false;
	}
}

/**
 * kvm_dirty_harvest_get - before a VM is told how to log
 * @use: true if by Dirty bits
 *
 * It may patch code, so that no lock may be held that is taken with cpus_read_lock().
 */
void kvm_dirty_harvest_get(bool use)
{
	if (use)
		static_branch_deferred_inc(&kvm_dirty_harvest_vms);
}

/**
 * kvm_dirty_harvest_put - undo kvm_dirty_harvest_get()
 * @use: as there
 */
void kvm_dirty_harvest_put(bool use)
{
	if (use)
		static_branch_slow_dec_deferred(&kvm_dirty_harvest_vms);
}

/**
 * kvm_dirty_harvest_init_vm - choose how a new VM logs dirty pages
 * @kvm: the VM, which has no vCPUs and no memslots yet, and is known to the vendor module
 */
void kvm_dirty_harvest_init_vm(struct kvm *kvm)
{
	kvm->arch.dirty_harvest = kvm_dirty_harvest_is_wanted(kvm, kvm_dirty_harvest_mode());
	kvm->stat.dirty_harvest = kvm->arch.dirty_harvest;
	kvm_dirty_harvest_get(kvm->arch.dirty_harvest);
}

/**
 * kvm_dirty_harvest_uninit_vm - undo kvm_dirty_harvest_init_vm()
 * @kvm: the VM, of which nothing is mapped any more
 */
void kvm_dirty_harvest_uninit_vm(struct kvm *kvm)
{
	kvm_dirty_harvest_put(kvm->arch.dirty_harvest);
}

/**
 * kvm_dirty_harvest_exit - end what kvm_dirty_harvest_uninit_vm() put off
 *
 * KVM is about to be unloaded, or its vendor module; there are no VMs.
 */
void kvm_dirty_harvest_exit(void)
{
	static_key_deferred_flush(&kvm_dirty_harvest_vms);
}

/**
 * __kvm_dirty_harvest_record - Dirty bits went away that are in the log only now
 * @kvm: the VM
 * @as_id: the address space of the SPTEs that had them
 * @gfn: the first of 64 pages
 * @mask: those of them that the SPTEs map, or mapped
 *
 * Unlike mark_page_dirty() it can be called for any reason and in any context, not
 * just for a write by a running vCPU.
 */
void __kvm_dirty_harvest_record(struct kvm *kvm, int as_id, gfn_t gfn, unsigned long mask)
{
	struct kvm_memory_slot *slot = NULL;
	gfn_t first = gfn;
	int idx;

	lockdep_assert_held(&kvm->mmu_lock);

	/* Most callers are in a read section already, guest_memfd's invalidation is not. */
	idx = srcu_read_lock(&kvm->srcu);

	for (; mask; mask &= mask - 1) {
		gfn = first + __ffs(mask);
		if (!slot || gfn - slot->base_gfn >= slot->npages)
			slot = __gfn_to_memslot(__kvm_memslots(kvm, as_id), gfn);
		if (slot && slot->dirty_bitmap)
			set_bit_le(gfn - slot->base_gfn, slot->dirty_bitmap);
	}

	srcu_read_unlock(&kvm->srcu, idx);
}

static bool harvest_is_dirty(u64 spte)
{
	return spte_ad_enabled(spte) && (spte & shadow_dirty_mask);
}

static bool harvest_wants(struct kvm *kvm, u64 *sptep)
{
	return harvest_is_dirty(READ_ONCE(*sptep));
}

/* Add what was found to a word of the log. */
static void harvest_log(unsigned long *word, unsigned long dirty)
{
	if (dirty)
		atomic_long_or(dirty, (atomic_long_t *)word);
}

/*
 * Are 64 neighbouring SPTEs of one page table all leaves with the Dirty bit?  @any
 * has the bits that at least one of them has.
 */
static bool harvest_is_full(const u64 *sptep, u64 any)
{
	u64 all = spte_all(sptep, SPTE_BULK);

	return (all & shadow_dirty_mask) && is_shadow_present_pte(all) &&
	       !(any & SPTE_TDP_AD_MASK);
}

/* Which of 64 gfns, mapped by one SPTE with a Dirty bit each, are dirty? */
static unsigned long harvest_gather(const struct kvm_rmap_head *heads)
{
	unsigned long dirty = 0;
	int i;

	for (i = BITS_PER_LONG - 1; i >= 0; i--)
		dirty = 2 * dirty +
			!!(READ_ONCE(*(u64 *)kvm_rmap_get(&heads[i])) & shadow_dirty_mask);

	return dirty;
}

static bool harvest_head_is_dirty(struct kvm *kvm, struct kvm_rmap_head *head)
{
	unsigned long val = kvm_rmap_get(head);

	if (!val)
		return false;

	if (val & KVM_RMAP_MANY)
		return kvm_mmu_find_rmap_spte(kvm, head, harvest_wants);

	return harvest_is_dirty(READ_ONCE(*(u64 *)val));
}

/* What the look at a gfn costs: a guest decides how many SPTEs map it. */
static unsigned int harvest_head_work(struct kvm_rmap_head *head)
{
	return kvm_rmap_get(head) & KVM_RMAP_MANY ? pte_list_count(head) : 1;
}

struct harvest {
	struct kvm *kvm;

	/* Stable throughout, along with its rmaps and its log. */
	const struct kvm_memory_slot *slot;

	/* SPTEs, or gfns without any, looked at since mmu_lock was taken last. */
	unsigned long work;

	/* See kvm_prove_nr_exits_if_stopped(). */
	u64 nr_exits_before;
};

/* Let others have mmu_lock, if enough was done; @nr pages of the memslot were looked at. */
static void harvest_cond_resched(struct harvest *h, unsigned long nr)
{
	if (h->work < HARVEST_MIN_WORK)
		return;

	h->work = 0;
	kvm_prove_harvested_rmaps(h->kvm, h->slot, nr, h->nr_exits_before);
	kvm_mmu_cond_resched(h->kvm, KVM_FORCE_HARVEST_RMAPS);
}

/*
 * Look at @nr gfns one by one, from the @rel-th of the memslot on.  Each is in the log
 * before mmu_lock may be dropped.
 */
static void harvest_slow(struct harvest *h, struct kvm_rmap_head *heads, unsigned long rel,
			 unsigned int nr)
{
	unsigned long *word = &h->slot->dirty_bitmap[rel / BITS_PER_LONG];
	unsigned int i;

	for (i = 0; i < nr; i++) {
		h->work += harvest_head_work(&heads[i]);
		if (harvest_head_is_dirty(h->kvm, &heads[i]))
			harvest_log(word, BIT(i));

		harvest_cond_resched(h, rel + i + 1);
	}
}

/* Look at 64 gfns, as harvest_slow() does, which is left to do what is not regular. */
static __always_inline void harvest_64(struct harvest *h, struct kvm_rmap_head *heads,
				       unsigned long rel)
{
	bool mapped = true;
	const u64 *block = IS_ENABLED(CONFIG_X86_64) ?
			   spte_heads_block((u64 *)heads, KVM_RMAP_MANY, &mapped) : NULL;
	unsigned long *word = &h->slot->dirty_bitmap[rel / BITS_PER_LONG];
	u64 any;

	if (!block && mapped) {
		harvest_slow(h, heads, rel, BITS_PER_LONG);
		return;
	}

	h->work += BITS_PER_LONG;
	if (!block)
		return;

	/* A Dirty bit that is set too late to be found is found the next time. */
	any = spte_any(block, SPTE_BULK);
	if (!(any & shadow_dirty_mask))
		return;

	/* A Dirty bit, once found, stays while mmu_lock is held. */
	if (harvest_is_full(block, any))
		harvest_log(word, ~0ul);
	/* Whether an SPTE has Dirty bits doesn't change. */
	else if (spte_ad_enabled(data_race(*block)))
		harvest_log(word, harvest_gather(heads));
}

static void harvest_rmaps(struct kvm *kvm, struct kvm_memory_slot *slot)
{
	struct kvm_rmap_head *heads = gfn_to_rmap(slot->base_gfn, PG_LEVEL_4K, slot);
	unsigned long in_words = round_down(slot->npages, BITS_PER_LONG);
	struct harvest h = {
		.kvm = kvm,
		.slot = slot,
		.nr_exits_before = kvm_prove_nr_exits_if_stopped(kvm),
	};
	unsigned long rel;

	write_lock(&kvm->mmu_lock);
	kvm_dirty_log_hold(kvm);

	for (rel = 0; rel < in_words; rel += BITS_PER_LONG, heads += BITS_PER_LONG) {
		/* Pages leave the log under slots_lock only: a stale word costs a look. */
		if (data_race(slot->dirty_bitmap[rel / BITS_PER_LONG] != ~0ul))
			harvest_64(&h, heads, rel);
		else
			h.work++;

		harvest_cond_resched(&h, rel + BITS_PER_LONG);
	}

	harvest_slow(&h, heads, in_words, slot->npages - in_words);
	kvm_prove_harvested_rmaps(kvm, slot, slot->npages, h.nr_exits_before);
	kvm_dirty_log_release(kvm);
	write_unlock(&kvm->mmu_lock);
}

#ifdef CONFIG_X86_64
/*
 * Which of @nr neighbouring SPTEs of a page table are leaves with the Dirty bit?  One that
 * is set too late to be found is found the next time, and one that goes meanwhile is
 * told to the log by the thread that takes it.
 */
static unsigned long harvest_sptes(const u64 *sptep, unsigned int nr)
{
	unsigned long dirty = 0;
	u64 any, all;
	unsigned int i;

	if (nr == BITS_PER_LONG) {
		any = spte_any(sptep, SPTE_BULK);
		if (!(any & shadow_dirty_mask))
			return 0;

		all = spte_all(sptep, SPTE_BULK);
		if (is_shadow_present_pte(all) && !(any & SPTE_TDP_AD_MASK))
			return all & shadow_dirty_mask ? ~0ul :
							 spte_gather_64(sptep, shadow_dirty_mask);
	}

	for (i = 0; i < nr; i++) {
		u64 spte = READ_ONCE(sptep[i]);

		if (is_shadow_present_pte(spte) && harvest_is_dirty(spte))
			dirty |= BIT(i);
	}

	return dirty;
}

/*
 * Visit @nr pages of the memslot, from the @rel-th on, all of them mapped by one
 * page table, which may begin in the middle of a word of the log.
 */
static void harvest_table(struct kvm_memory_slot *slot, const u64 *sptep,
			  unsigned long rel, unsigned int nr)
{
	unsigned int batch, shift;

	for (; nr; nr -= batch, rel += batch, sptep += batch) {
		shift = rel % BITS_PER_LONG;
		batch = min(nr, BITS_PER_LONG - shift);
		harvest_log(&slot->dirty_bitmap[rel / BITS_PER_LONG],
			    harvest_sptes(sptep, batch) << shift);
	}
}

/* Pages from @gfn on that one page table maps, @max at most. */
static unsigned int harvest_table_size(gfn_t gfn, unsigned long max)
{
	return min(max, SPTE_ENT_PER_PAGE - (gfn % SPTE_ENT_PER_PAGE));
}

/*
 * Invalid roots count: vCPUs may run on one until they are told.  Mirrors don't: no CPU
 * walks them.
 */
static bool harvest_wants_root(struct kvm_mmu_page *root, const struct kvm_memory_slot *slot)
{
	return !is_mirror_sp(root) && kvm_mmu_page_as_id(root) == slot->as_id;
}

/* Let others have mmu_lock, which is held for read. */
static void harvest_tdp_cond_resched(struct kvm *kvm)
{
	if (!kvm_prove_force_yield(KVM_FORCE_HARVEST_TDP) && !need_resched() &&
	    !rwlock_is_contended(&kvm->mmu_lock))
		return;

	kvm_dirty_log_release(kvm);
	read_unlock(&kvm->mmu_lock);
	cond_resched();
	read_lock(&kvm->mmu_lock);
	kvm_dirty_log_hold(kvm);
}

/* @nr pages of the memslot, from the @rel-th on, which a page table of level 1 would map. */
static void harvest_tdp_tables(struct kvm *kvm, struct kvm_memory_slot *slot,
			       unsigned long rel, unsigned int nr)
{
	gfn_t gfn = slot->base_gfn + rel;
	struct kvm_mmu_page *root;
	u64 *pt, spte;

	rcu_read_lock();
	list_for_each_entry_rcu(root, &kvm->arch.tdp_mmu_roots, link) {
		pt = harvest_wants_root(root, slot) ? kvm_tdp_log_find(root, gfn, &spte) : NULL;
		if (pt)
			harvest_table(slot, pt + gfn % SPTE_ENT_PER_PAGE, rel, nr);
	}
	rcu_read_unlock();
}

/*
 * Under the read lock, so that page faults go on.  So do others that zap SPTEs, and a
 * page whose SPTE is gone is in the log only when they have said so, which they do
 * before they release the lock: wait for them by taking it for write, once.
 */
static void harvest_tdp(struct kvm *kvm, struct kvm_memory_slot *slot)
{
	u64 nr_exits_before = kvm_prove_nr_exits_if_stopped(kvm);
	unsigned long rel;
	unsigned int nr;

	read_lock(&kvm->mmu_lock);
	kvm_dirty_log_hold(kvm);

	for (rel = 0; rel < slot->npages; rel += nr) {
		nr = harvest_table_size(slot->base_gfn + rel, slot->npages - rel);
		harvest_tdp_tables(kvm, slot, rel, nr);
		harvest_tdp_cond_resched(kvm);
	}

	kvm_dirty_log_release(kvm);
	read_unlock(&kvm->mmu_lock);

	write_lock(&kvm->mmu_lock);
	kvm_dirty_log_hold(kvm);
	kvm_prove_harvested_tdp(kvm, slot, slot->npages, nr_exits_before);
	kvm_dirty_log_release(kvm);
	write_unlock(&kvm->mmu_lock);
}
#else
static void harvest_tdp(struct kvm *kvm, struct kvm_memory_slot *slot)
{
}
#endif

/**
 * kvm_arch_harvest_dirty_log - bring a memslot's log up to date
 * @kvm: the VM
 * @slot: a memslot that is logged
 *
 * Every write that a vCPU has completed before the call is in the log after it.
 * The caller holds slots_lock, which keeps the memslot, and mmu_lock is dropped
 * on the way if others want it.
 */
void kvm_arch_harvest_dirty_log(struct kvm *kvm, struct kvm_memory_slot *slot)
{
	lockdep_assert_held(&kvm->slots_lock);

	if (!kvm_dirty_harvest(kvm))
		return;

	if (kvm_memslots_have_rmaps(kvm))
		harvest_rmaps(kvm, slot);

	if (tdp_mmu_enabled)
		harvest_tdp(kvm, slot);
}
