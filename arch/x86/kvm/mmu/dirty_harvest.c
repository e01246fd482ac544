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
 *   write, so a page has its Dirty bit or its bit in the log at any time.
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
#include "tdp_iter.h"
#include "dirty_harvest.h"

/*
 * What has to be looked at before mmu_lock may be dropped because others want it:
 * pages, or SPTEs where a page has several.
 */
#define HARVEST_MIN_WORK	SPTE_ENT_PER_PAGE

/* What a word of the log covers, in a page table. */
#define HARVEST_BLOCK_BYTES	(BITS_PER_LONG * sizeof(u64))

enum harvest_mode {
	HARVEST_OFF,
	HARVEST_ON,
	HARVEST_AUTO,
};

static const char * const harvest_modes[] = {
	[HARVEST_OFF]	= "off",
	[HARVEST_ON]	= "on",
	[HARVEST_AUTO]	= "auto",
};

static int harvest_mode __read_mostly = HARVEST_OFF;

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

/* Read when a VM is created. */
module_param_cb(dirty_harvest, &harvest_ops, NULL, 0644);
MODULE_PARM_DESC(dirty_harvest, "Log dirty pages by the Dirty bits of SPTEs: off, on or auto");

/* Code isn't patched more than once a second, however often VMs come and go. */
DEFINE_STATIC_KEY_DEFERRED_FALSE(kvm_dirty_harvest_vms, HZ);

/*
 * SPTEs have Dirty bits that CPUs set, and the CPU doesn't log by itself.  Page tables
 * that KVM doesn't write, but has others write, are left to those.
 */
static bool harvest_is_possible(struct kvm *kvm)
{
	return kvm_ad_enabled && !kvm->arch.cpu_dirty_log_size && !kvm_has_mirrored_tdp(kvm);
}

/*
 * Looking for Dirty bits costs time for each page there is, write protection for
 * each page that is written, but to vCPUs, and with shadow paging to all of them,
 * as each fault takes mmu_lock exclusively.
 */
static bool harvest_is_wanted(void)
{
	switch (READ_ONCE(harvest_mode)) {
	case HARVEST_ON:
		return true;
	case HARVEST_AUTO:
		return !tdp_enabled;
	default:
		return false;
	}
}

/**
 * kvm_dirty_harvest_init_vm - choose how a new VM logs dirty pages
 * @kvm: the VM, which has no vCPUs and no memslots yet, and is known to the vendor module
 */
void kvm_dirty_harvest_init_vm(struct kvm *kvm)
{
	kvm->arch.dirty_harvest = harvest_is_wanted() && harvest_is_possible(kvm);
	kvm->stat.dirty_harvest = kvm->arch.dirty_harvest;
	if (kvm->arch.dirty_harvest)
		static_branch_deferred_inc(&kvm_dirty_harvest_vms);
}

/**
 * kvm_dirty_harvest_uninit_vm - undo kvm_dirty_harvest_init_vm()
 * @kvm: the VM, of which nothing is mapped any more
 */
void kvm_dirty_harvest_uninit_vm(struct kvm *kvm)
{
	if (kvm->arch.dirty_harvest)
		static_branch_slow_dec_deferred(&kvm_dirty_harvest_vms);
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
 * __kvm_dirty_harvest_record - a Dirty bit went away that is in the log only now
 * @kvm: the VM
 * @as_id: the address space of the SPTE that had it
 * @gfn: the page that the SPTE maps, or mapped
 *
 * Unlike mark_page_dirty() it can be called for any reason and in any context, not
 * just for a write by a running vCPU.
 */
void __kvm_dirty_harvest_record(struct kvm *kvm, int as_id, gfn_t gfn)
{
	struct kvm_memory_slot *slot;
	int idx;

	lockdep_assert_held(&kvm->mmu_lock);

	/* Most callers are in a read section already, guest_memfd's invalidation is not. */
	idx = srcu_read_lock(&kvm->srcu);

	slot = __gfn_to_memslot(__kvm_memslots(kvm, as_id), gfn);
	if (slot && slot->dirty_bitmap)
		set_bit_le(gfn - slot->base_gfn, slot->dirty_bitmap);

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
 * The bits that any, and that all, of 64 words have.  Next to all of the time that
 * it takes to find out that nothing was written goes here: unrolled, and with the
 * operand in memory, it is one instruction per word.  Without the barriers the
 * compiler would load a word once to use it for both.
 */
static __always_inline u64 harvest_or_8(u64 any, const u64 *p)
{
	any |= p[0];
	any |= p[1];
	any |= p[2];
	any |= p[3];
	any |= p[4];
	any |= p[5];
	any |= p[6];
	any |= p[7];
	return any;
}

static __always_inline u64 harvest_any_of_64(const u64 *p)
{
	u64 any;

	barrier();
	any = harvest_or_8(0, p);
	any = harvest_or_8(any, p + 8);
	any = harvest_or_8(any, p + 16);
	any = harvest_or_8(any, p + 24);
	any = harvest_or_8(any, p + 32);
	any = harvest_or_8(any, p + 40);
	any = harvest_or_8(any, p + 48);
	any = harvest_or_8(any, p + 56);
	return any;
}

static __always_inline u64 harvest_and_8(u64 all, const u64 *p)
{
	all &= p[0];
	all &= p[1];
	all &= p[2];
	all &= p[3];
	all &= p[4];
	all &= p[5];
	all &= p[6];
	all &= p[7];
	return all;
}

static __always_inline u64 harvest_all_of_64(const u64 *p)
{
	u64 all;

	barrier();
	all = harvest_and_8(~0ull, p);
	all = harvest_and_8(all, p + 8);
	all = harvest_and_8(all, p + 16);
	all = harvest_and_8(all, p + 24);
	all = harvest_and_8(all, p + 32);
	all = harvest_and_8(all, p + 40);
	all = harvest_and_8(all, p + 48);
	all = harvest_and_8(all, p + 56);
	return all;
}

/*
 * Are 64 neighbouring SPTEs of one page table all leaves with the Dirty bit?  @any
 * has the bits that at least one of them has.
 */
static bool harvest_is_full(const u64 *sptep, u64 any)
{
	u64 all = harvest_all_of_64(sptep);

	return (all & shadow_dirty_mask) && is_shadow_present_pte(all) &&
	       !(any & SPTE_TDP_AD_MASK);
}

/*
 * Are 64 gfns mapped by one SPTE each, and these SPTEs neighbours?  Heads are
 * distinct, as an SPTE maps but one gfn.  If in addition all of them point into
 * the same aligned block of 64 SPTEs, then there is one for each SPTE of it, in
 * whatever order.  Heads may be locked, which is below the bits that count.  64-bit
 * hosts only, where heads have the size of SPTEs.
 *
 * Return: the block, or NULL.
 */
static const u64 *harvest_block(const struct kvm_rmap_head *heads)
{
	u64 any = data_race(harvest_any_of_64((const u64 *)heads)); /* KVM_RMAP_LOCKED */
	u64 all = data_race(harvest_all_of_64((const u64 *)heads)); /* comes and goes */

	BUILD_BUG_ON(IS_ENABLED(CONFIG_X86_64) && sizeof(*heads) != sizeof(any));
	BUILD_BUG_ON((KVM_RMAP_MANY | KVM_RMAP_LOCKED) >= HARVEST_BLOCK_BYTES);

	if ((any & KVM_RMAP_MANY) || (any ^ all) >= HARVEST_BLOCK_BYTES)
		return NULL;

	return (const u64 *)(unsigned long)round_down(all, HARVEST_BLOCK_BYTES);
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
	const u64 *block = IS_ENABLED(CONFIG_X86_64) ? harvest_block(heads) : NULL;
	unsigned long *word = &h->slot->dirty_bitmap[rel / BITS_PER_LONG];
	u64 any;

	if (!block) {
		harvest_slow(h, heads, rel, BITS_PER_LONG);
		return;
	}

	h->work += BITS_PER_LONG;
	/* A Dirty bit that is set too late to be found is found the next time. */
	any = data_race(harvest_any_of_64(block));
	if (!(any & shadow_dirty_mask))
		return;

	/* A Dirty bit, once found, stays while mmu_lock is held. */
	if (data_race(harvest_is_full(block, any)))
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
	write_unlock(&kvm->mmu_lock);
}

#ifdef CONFIG_X86_64
/*
 * The SPTE that maps @gfn with a 4KiB page, NULL if @root has none or belongs to
 * another address space than @slot.  Invalid roots count: vCPUs may run on one
 * until they are told.  Mirrors don't: no CPU walks them.
 */
static u64 *harvest_tdp_sptep(struct kvm *kvm, struct kvm_mmu_page *root,
			      const struct kvm_memory_slot *slot, gfn_t gfn)
{
	struct tdp_iter iter;
	tdp_ptep_t table;

	if (is_mirror_sp(root) || kvm_mmu_page_as_id(root) != slot->as_id)
		return NULL;

	for_each_tdp_pte_min_level(iter, kvm, root, PG_LEVEL_2M, gfn, gfn + 1) {
		if (iter.level > PG_LEVEL_2M)
			continue;

		table = spte_to_child_pt(iter.old_spte, iter.level);
		if (table)
			return rcu_dereference(table) + gfn % SPTE_ENT_PER_PAGE;
	}

	return NULL;
}

/* Which of @nr neighbouring SPTEs of a page table are leaves with the Dirty bit? */
static unsigned long harvest_sptes(const u64 *sptep, unsigned int nr)
{
	unsigned long dirty = 0;
	unsigned int i;
	u64 any;

	if (nr == BITS_PER_LONG) {
		/* What is set too late, the next time, as in harvest_64(). */
		any = data_race(harvest_any_of_64(sptep));
		if (!(any & shadow_dirty_mask))
			return 0;
		/* It stays while mmu_lock is held, as in harvest_64(). */
		if (data_race(harvest_is_full(sptep, any)))
			return ~0ul;
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

static void harvest_tdp(struct kvm *kvm, struct kvm_memory_slot *slot)
{
	u64 nr_exits_before = kvm_prove_nr_exits_if_stopped(kvm);
	struct kvm_mmu_page *root;
	unsigned long rel;
	unsigned int nr;
	u64 *sptep;

	write_lock(&kvm->mmu_lock);

	for (rel = 0; rel < slot->npages; rel += nr) {
		nr = harvest_table_size(slot->base_gfn + rel, slot->npages - rel);

		rcu_read_lock();
		list_for_each_entry(root, &kvm->arch.tdp_mmu_roots, link) {
			sptep = harvest_tdp_sptep(kvm, root, slot, slot->base_gfn + rel);
			if (sptep)
				harvest_table(slot, sptep, rel, nr);
		}
		rcu_read_unlock();

		kvm_prove_harvested_tdp(kvm, slot, rel + nr, nr_exits_before);
		kvm_mmu_cond_resched(kvm, KVM_FORCE_HARVEST_TDP);
	}

	write_unlock(&kvm->mmu_lock);
}

/* Take the Dirty bit away from those of neighbouring SPTEs that are in @mask. */
static void harvest_rearm_sptes(u64 *sptep, unsigned long mask)
{
	unsigned int i;
	u64 spte;

	for (; mask; mask &= mask - 1) {
		i = __ffs(mask);
		spte = READ_ONCE(sptep[i]);
		if (!is_shadow_present_pte(spte) || !harvest_is_dirty(spte))
			continue;

		kvm_prove_window(KVM_WINDOW_TDP_REARM);
		if (kvm_spte_may_store(spte))
			WRITE_ONCE(sptep[i], spte & ~shadow_dirty_mask);
		else
			atomic64_andnot(shadow_dirty_mask, (atomic64_t *)&sptep[i]);
	}
}

void kvm_dirty_harvest_rearm_tdp(struct kvm *kvm, const struct kvm_memory_slot *slot,
				 gfn_t gfn, unsigned long mask)
{
	unsigned int done, nr;
	struct kvm_mmu_page *root;
	u64 *sptep;

	lockdep_assert_held_write(&kvm->mmu_lock);

	rcu_read_lock();
	for (done = 0; done < BITS_PER_LONG && mask >> done; done += nr) {
		nr = harvest_table_size(gfn + done, BITS_PER_LONG - done);

		list_for_each_entry(root, &kvm->arch.tdp_mmu_roots, link) {
			sptep = harvest_tdp_sptep(kvm, root, slot, gfn + done);
			if (sptep)
				harvest_rearm_sptes(sptep, (mask >> done) & GENMASK(nr - 1, 0));
		}
	}
	rcu_read_unlock();
}

void kvm_dirty_harvest_rearm_tdp_slot(struct kvm *kvm, const struct kvm_memory_slot *slot)
{
	unsigned long rel, left;

	write_lock(&kvm->mmu_lock);

	for (rel = 0; rel < slot->npages; rel += BITS_PER_LONG) {
		left = min(slot->npages - rel, BITS_PER_LONG);
		kvm_dirty_harvest_rearm_tdp(kvm, slot, slot->base_gfn + rel,
					    BITMAP_LAST_WORD_MASK(left));

		if (!((rel + BITS_PER_LONG) % HARVEST_MIN_WORK))
			kvm_mmu_cond_resched(kvm, KVM_FORCE_REARM_TDP);
	}

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
