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
 * Why no write is missed.  See dirty_bits.h for the rule.  Three things can
 * happen to a Dirty bit:
 *
 * - KVM_GET_DIRTY_LOG finds it and sets the page's bit in the log.  The Dirty bit
 *   stays, hence a CPU that has it cached may go on writing unseen: the page is
 *   in the log.  There is nothing to flush.  Where it need not look in the TDP
 *   MMU is said in tdp_dirty_bits.c.
 *
 * - The page is taken out of the log (KVM_CLEAR_DIRTY_LOG, or KVM_GET_DIRTY_LOG
 *   without manual protection), and the Dirty bit goes along.  CPUs may have it
 *   cached until the ioctl flushes TLBs before it returns, which is before user
 *   space can rely on a copy of the page.  If user space clears a page that is not
 *   in the log, look for its Dirty bit first, as KVM_GET_DIRTY_LOG does.
 *
 * - The SPTE is zapped or replaced.  The code for that has read the SPTE before, and the
 *   CPU may set the Dirty bit up to the moment of the store.  So either the change is
 *   atomic and leaves the Dirty bit alone (aging, lockless page faults), or what the
 *   exchange returned, and nothing older, is handed to one function in each MMU:
 *   mmu_spte_record_dirty() in the shadow MMU and handle_changed_spte() in the TDP
 *   MMU.  These call kvm_dirty_bits_record() if a Dirty bit went, within
 *   the hold of mmu_lock in which it went.  Looking for Dirty bits takes mmu_lock for
 *   write, if only at the end, so by then a page has its Dirty bit or its bit in the log.
 *
 * What can't be done with Dirty bits stays write-protected, SPTE by SPTE: those
 * without Dirty bit (spte_ad_enabled()), huge pages until they are split, guest
 * page tables.  VMs with a dirty ring write-protect everything, as an entry in
 * the ring needs the vCPU that wrote.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitmap.h>
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
#include "tdp_dirty_bits.h"
#include "dirty_bits.h"

/* Page tables of the TDP MMU that may be looked at in vain before TLBs are flushed for it. */
#define COLLECT_MAX_PENDING	64

enum dirty_bits_mode {
	DIRTY_BITS_OFF,
	DIRTY_BITS_ON,
	DIRTY_BITS_AUTO,
};

static const char * const dirty_bits_modes[] = {
	[DIRTY_BITS_OFF]	= "off",
	[DIRTY_BITS_ON]		= "on",
	[DIRTY_BITS_AUTO]	= "auto",
};

static int dirty_bits_mode __read_mostly = DIRTY_BITS_AUTO;

static int dirty_bits_set_mode(const char *value, const struct kernel_param *kp)
{
	int mode = sysfs_match_string(dirty_bits_modes, value);

	if (mode < 0)
		return mode;

	WRITE_ONCE(dirty_bits_mode, mode);
	return 0;
}

static int dirty_bits_get_mode(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", dirty_bits_modes[READ_ONCE(dirty_bits_mode)]);
}

static const struct kernel_param_ops dirty_bits_ops = {
	.set = dirty_bits_set_mode,
	.get = dirty_bits_get_mode,
};

/* Read when a VM is created, and when userspace chooses for a VM. */
module_param_cb(dirty_bits, &dirty_bits_ops, NULL, 0644);
MODULE_PARM_DESC(dirty_bits, "Log dirty pages by the Dirty bits of SPTEs: off, on or auto");

/* Code isn't patched more than once a second, however often VMs come and go. */
DEFINE_STATIC_KEY_DEFERRED_FALSE(kvm_dirty_bits_vms, HZ);

/**
 * kvm_dirty_bits_is_allowed - may userspace choose to log a VM by Dirty bits?
 */
bool kvm_dirty_bits_is_allowed(void)
{
	return READ_ONCE(dirty_bits_mode) != DIRTY_BITS_OFF;
}

/**
 * kvm_dirty_bits_is_possible - can a VM log by Dirty bits?
 * @kvm: the VM, known to the vendor module, or NULL for VMs of the default type
 *
 * SPTEs must have Dirty bits that CPUs set.  KVM doesn't write the page tables of a VM whose
 * page tables are mirrored, so it can't clear Dirty bits there.
 */
bool kvm_dirty_bits_is_possible(const struct kvm *kvm)
{
	return kvm_ad_enabled && !(kvm && kvm_has_mirrored_tdp(kvm));
}

/*
 * Does a VM log by Dirty bits unless userspace chooses otherwise?
 *
 * Not if the CPU logs by itself.  Dirty bits cost the thread that reads the log time for each
 * page that is mapped.  Write protection costs vCPUs a fault for each page that is written.
 * With shadow paging each fault holds mmu_lock exclusively, and so delays all other vCPUs.
 */
static bool dirty_bits_is_default(const struct kvm *kvm)
{
	int mode = READ_ONCE(dirty_bits_mode);

	return kvm_dirty_bits_is_possible(kvm) && !kvm->arch.usual_cpu_dirty_log_size &&
	       (mode == DIRTY_BITS_ON || (mode == DIRTY_BITS_AUTO && !tdp_enabled));
}

/**
 * kvm_dirty_bits_get - before a VM is told how to log
 * @use: true if by Dirty bits
 *
 * It may patch code, so that no lock may be held that is taken with cpus_read_lock().
 */
void kvm_dirty_bits_get(bool use)
{
	if (use)
		static_branch_deferred_inc(&kvm_dirty_bits_vms);
}

/**
 * kvm_dirty_bits_put - undo kvm_dirty_bits_get()
 * @use: as there
 */
void kvm_dirty_bits_put(bool use)
{
	if (use)
		static_branch_slow_dec_deferred(&kvm_dirty_bits_vms);
}

/**
 * kvm_dirty_bits_init_vm - choose how a new VM logs dirty pages
 * @kvm: the VM, which has no vCPUs and no memslots yet, and is known to the vendor module
 */
void kvm_dirty_bits_init_vm(struct kvm *kvm)
{
	kvm->arch.usual_cpu_dirty_log_size = kvm->arch.cpu_dirty_log_size;
	kvm->arch.dirty_bits = dirty_bits_is_default(kvm);
	kvm->stat.dirty_bits = kvm->arch.dirty_bits;
	kvm->arch.nr_flushes = 1;
	kvm_dirty_bits_get(kvm->arch.dirty_bits);
}

/**
 * kvm_dirty_bits_uninit_vm - undo kvm_dirty_bits_init_vm()
 * @kvm: the VM, of which nothing is mapped any more
 */
void kvm_dirty_bits_uninit_vm(struct kvm *kvm)
{
	kvm_dirty_bits_put(kvm->arch.dirty_bits);
}

/**
 * kvm_dirty_bits_exit - end what kvm_dirty_bits_uninit_vm() put off
 *
 * KVM is about to be unloaded, or its vendor module; there are no VMs.
 */
void kvm_dirty_bits_exit(void)
{
	static_key_deferred_flush(&kvm_dirty_bits_vms);
}

/**
 * __kvm_dirty_bits_record - Dirty bits went away that are in the log only now
 * @kvm: the VM
 * @as_id: the address space of the SPTEs that had them
 * @gfn: the first of 64 pages
 * @mask: those of them that the SPTEs map, or mapped
 *
 * Unlike mark_page_dirty() it can be called for any reason and in any context, not
 * just for a write by a running vCPU.
 */
void __kvm_dirty_bits_record(struct kvm *kvm, int as_id, gfn_t gfn, unsigned long mask)
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

static bool collect_wants(struct kvm *kvm, u64 *sptep)
{
	return collect_is_dirty(READ_ONCE(*sptep));
}

/* Which of 64 gfns, mapped by one SPTE with a Dirty bit each, are dirty? */
static unsigned long collect_each(const struct kvm_rmap_head *heads)
{
	unsigned long dirty = 0;
	int i;

	for (i = BITS_PER_LONG - 1; i >= 0; i--)
		dirty = 2 * dirty +
			!!(READ_ONCE(*(u64 *)kvm_rmap_get(&heads[i])) & shadow_dirty_mask);

	return dirty;
}

static bool collect_head_is_dirty(struct kvm *kvm, struct kvm_rmap_head *head)
{
	unsigned long val = kvm_rmap_get(head);

	if (!val)
		return false;

	if (val & KVM_RMAP_MANY)
		return kvm_mmu_find_rmap_spte(kvm, head, collect_wants);

	return collect_is_dirty(READ_ONCE(*(u64 *)val));
}

/* What the look at a gfn costs: a guest decides how many SPTEs map it. */
static unsigned int collect_head_work(struct kvm_rmap_head *head)
{
	return kvm_rmap_get(head) & KVM_RMAP_MANY ? pte_list_count(head) : 1;
}

struct collector {
	struct kvm *kvm;

	/* Stable throughout, along with its rmaps and its log. */
	const struct kvm_memory_slot *slot;

	/* The first of its pages that is looked at. */
	unsigned long first;

	/* SPTEs, or gfns without any, looked at since mmu_lock was taken last. */
	unsigned long work;

	/* See kvm_prove_nr_exits_if_stopped(). */
	u64 nr_exits_before;

	/* Of these gfns, the last ones looked at, none has had an SPTE in this hold of mmu_lock. */
	gfn_t empty_start;
	gfn_t empty_end;
};

/* Let others have mmu_lock, if enough was done; pages before the @end-th were looked at. */
static void collect_cond_resched(struct collector *c, unsigned long end)
{
	if (c->work < COLLECT_MIN_WORK)
		return;

	c->work = 0;
	kvm_prove_collected_rmaps(c->kvm, c->slot, c->first, end, c->nr_exits_before);
	if (kvm_mmu_should_yield(c->kvm, KVM_FORCE_COLLECT_RMAPS)) {
		c->empty_end = 0;
		kvm_mmu_resched(c->kvm);
	}
}

/*
 * A word has no SPTE.  If it is the last one of 2MiB that have none at all, because huge pages
 * map them by now or nothing does, don't look there again before they have one.
 */
static void collect_empty(struct collector *c, unsigned long rel)
{
	gfn_t gfn = c->slot->base_gfn + rel;
	gfn_t end = gfn + BITS_PER_LONG;
	gfn_t huge_end = round_down(end, SPTE_ENT_PER_PAGE);

	if (gfn != c->empty_end)
		c->empty_start = gfn;
	c->empty_end = end;

	if (gfn < huge_end && huge_end - c->empty_start >= SPTE_ENT_PER_PAGE)
		kvm_clear_small_sptes(c->slot, gfn);
}

/*
 * Look at @nr gfns one by one, from the @rel-th of the memslot on.  Each is in the log
 * before mmu_lock may be dropped.
 */
static void collect_slow(struct collector *c, struct kvm_rmap_head *heads, unsigned long rel,
			 unsigned int nr)
{
	unsigned long *word = &c->slot->dirty_bitmap[rel / BITS_PER_LONG];
	unsigned int i;

	for (i = 0; i < nr; i++) {
		c->work += collect_head_work(&heads[i]);
		if (collect_head_is_dirty(c->kvm, &heads[i]))
			collect_log(word, BIT(i));

		collect_cond_resched(c, rel + i + 1);
	}
}

/* Look at 64 gfns, as collect_slow() does, which is left to do what is not regular. */
static __always_inline void collect_64(struct collector *c, struct kvm_rmap_head *heads,
				       unsigned long rel)
{
	bool mapped = true;
	const u64 *block = IS_ENABLED(CONFIG_X86_64) ?
			   spte_heads_block((u64 *)heads, KVM_RMAP_MANY, &mapped) : NULL;
	unsigned long *word = &c->slot->dirty_bitmap[rel / BITS_PER_LONG];
	u64 first;

	if (!block && mapped) {
		collect_slow(c, heads, rel, BITS_PER_LONG);
		return;
	}

	c->work += BITS_PER_LONG;
	if (!block) {
		collect_empty(c, rel);
		return;
	}

	/* Whether the SPTEs of a page table have Dirty bits doesn't change. */
	first = READ_ONCE(*block);
	if (!spte_ad_enabled(first))
		return;

	/*
	 * A Dirty bit, once found, stays while mmu_lock is held; one that is set too late to be
	 * found is found the next time.  Neighbours are mostly alike, so the first one says
	 * what they are to be looked at for.
	 */
	if (!(first & shadow_dirty_mask) && !(spte_any(block, SPTE_BULK) & shadow_dirty_mask))
		return;

	if ((first & shadow_dirty_mask) && (spte_all(block, SPTE_BULK) & shadow_dirty_mask))
		collect_log(word, ~0ul);
	else
		collect_log(word, collect_each(heads));
}

/* Look at what there is of a word of the log, at 64 gfns but for the end of the memslot. */
static __always_inline void collect_word(struct collector *c, struct kvm_rmap_head *heads,
					 unsigned long rel, unsigned int nr)
{
	if (nr < BITS_PER_LONG) {
		collect_slow(c, heads, rel, nr);
		return;
	}

	/* Pages leave the log under slots_lock only: a stale word costs a look. */
	if (data_race(c->slot->dirty_bitmap[rel / BITS_PER_LONG] != ~0ul))
		collect_64(c, heads, rel);
	else
		c->work++;
}

static void collect_rmaps(struct kvm *kvm, struct kvm_memory_slot *slot, unsigned long first,
			  unsigned long nr)
{
	struct kvm_rmap_head *heads = gfn_to_rmap(slot->base_gfn + first, PG_LEVEL_4K, slot);
	unsigned long end = first + nr;
	struct collector c = {
		.kvm = kvm,
		.slot = slot,
		.first = first,
		.nr_exits_before = kvm_prove_nr_exits_if_stopped(kvm),
	};
	unsigned long rel;

	write_lock(&kvm->mmu_lock);
	kvm_dirty_log_hold(kvm);

	for (rel = first; rel < end; rel += nr, heads += nr) {
		nr = kvm_rmap_peek(heads) ? 0 : kvm_rmap_nr_huge(slot, rel, end);
		if (nr) {
			c.work += kvm_rmap_skip_work(nr);
		} else {
			nr = min(end - rel, BITS_PER_LONG);
			collect_word(&c, heads, rel, nr);
		}

		collect_cond_resched(&c, rel + nr);
	}

	kvm_prove_collected_rmaps(kvm, slot, first, end, c.nr_exits_before);
	kvm_dirty_log_release(kvm);
	write_unlock(&kvm->mmu_lock);
}

/*
 * Hypercalls of Hyper-V flush a range of gfns, or the root that a vCPU uses at the time:
 * they don't tell when no CPU has a link to a page table cached any more.
 */
static bool collect_counts_flushes(void)
{
#if IS_ENABLED(CONFIG_HYPERV)
	return !kvm_x86_ops.flush_remote_tlbs && !kvm_x86_ops.flush_remote_tlbs_range;
#elif defined(__KVM_HAVE_ARCH_FLUSH_REMOTE_TLBS_RANGE)
#error "kvm_flush_remote_tlbs_memslot() is taken to flush all TLBs"
#else
	return true;
#endif
}

/**
 * kvm_arch_flush_memslot_begin - all TLBs are about to be flushed
 * @kvm: the VM
 */
void kvm_arch_flush_memslot_begin(struct kvm *kvm)
{
	lockdep_assert_held(&kvm->slots_lock);

	if (kvm_dirty_bits_enabled(kvm))
		kvm_prove_forget_links(kvm);
}

/**
 * kvm_arch_flush_memslot_end - all TLBs were flushed
 * @kvm: the VM
 *
 * Whatever was done in an earlier hold of slots_lock was done before the flush began.
 */
void kvm_arch_flush_memslot_end(struct kvm *kvm)
{
	lockdep_assert_held(&kvm->slots_lock);

	if (collect_counts_flushes())
		kvm->arch.nr_flushes++;
}

/*
 * Page tables are looked at in vain until there is a flush.  It comes when pages are taken
 * out of the log.  If there are none, and much is looked at, a flush pays: it is one for
 * all of that, in every other call at most, also while CPUs use links that they have cached.
 */
static bool collect_wants_flush(const struct kvm_memory_slot *slot, unsigned long nr_pending)
{
	if (nr_pending <= COLLECT_MAX_PENDING || !collect_counts_flushes())
		return false;

	/* Any answer will do, while faults log pages. */
	return data_race(bitmap_empty(slot->dirty_bitmap, slot->npages));
}

/*
 * Links outside of the range are judged by the flushes since this call, too, though they
 * have waited for longer.
 */
static void collect_tdp(struct kvm *kvm, struct kvm_memory_slot *slot, unsigned long first,
			unsigned long nr)
{
	u64 nr_flushes = kvm->arch.nr_flushes;
	unsigned long nr_pending;
	bool flushed;

	/* Since the last time, and after that was over. */
	flushed = slot->arch.nr_flushes && slot->arch.nr_flushes != nr_flushes;
	nr_pending = kvm_tdp_collect(kvm, slot, first, nr, flushed);
	slot->arch.nr_flushes = nr_flushes;

	if (collect_wants_flush(slot, nr_pending))
		kvm_flush_remote_tlbs_memslot(kvm, slot);
}

/* @nr pages from the @first-th on, a whole number of words or up to the memslot's end. */
static void collect_range(struct kvm *kvm, struct kvm_memory_slot *slot, unsigned long first,
			  unsigned long nr)
{
	if (kvm_memslots_have_rmaps(kvm))
		collect_rmaps(kvm, slot, first, nr);

	if (tdp_mmu_enabled)
		collect_tdp(kvm, slot, first, nr);
}

/**
 * kvm_arch_collect_dirty_log - bring a memslot's log up to date
 * @kvm: the VM
 * @slot: a memslot that is logged
 *
 * Every write that a vCPU has completed before the call is in the log after it.
 * The caller holds slots_lock, which keeps the memslot, and mmu_lock is dropped
 * on the way if others want it.
 */
void kvm_arch_collect_dirty_log(struct kvm *kvm, struct kvm_memory_slot *slot)
{
	lockdep_assert_held(&kvm->slots_lock);

	if (kvm_dirty_bits_enabled(kvm))
		collect_range(kvm, slot, 0, slot->npages);
}

/**
 * kvm_arch_collect_unlogged - bring part of a log up to date amid KVM_CLEAR_DIRTY_LOG
 * @kvm: the VM, with mmu_lock held for write, which is dropped on the way
 * @slot: a memslot that is logged
 * @first: the first page, a multiple of 64
 * @nr: pages, a multiple of 64 or up to the end of the memslot
 *
 * User space clears a page that isn't in the log.  If it was written, its Dirty bit would
 * report that write after KVM_CLEAR_DIRTY_LOG.  Put the page into the log, from where it is
 * cleared like any other: so Dirty bits are taken only from pages that user space clears,
 * and what it doesn't clear stays in the log.
 *
 * A vCPU that writes to the page after this look sets the Dirty bit, and it is as if it had
 * written after KVM_CLEAR_DIRTY_LOG.
 *
 * Return: true if pages may have come into the log.
 */
bool kvm_arch_collect_unlogged(struct kvm *kvm, struct kvm_memory_slot *slot,
			       unsigned long first, unsigned long nr)
{
	lockdep_assert_held(&kvm->slots_lock);
	lockdep_assert_held_write(&kvm->mmu_lock);

	if (!kvm_dirty_bits_enabled(kvm))
		return false;

	kvm_dirty_log_release(kvm);
	write_unlock(&kvm->mmu_lock);
	collect_range(kvm, slot, first, nr);
	write_lock(&kvm->mmu_lock);
	kvm_dirty_log_hold(kvm);

	return true;
}
