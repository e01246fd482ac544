// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging by the Dirty bits of SPTEs
 *
 * With write protection, the first write to each 4KiB page in a round of
 * logging exits to KVM, and with shadow paging the fault holds mmu_lock for
 * write.  But page tables have Dirty bits, whether they are EPT, NPT or
 * ordinary ones, and CPUs set them without an exit.  So if the CPU doesn't log
 * by itself (PML), leave pages writable, clear the Dirty bit to start a round
 * of logging, and read it when user space requests the log.
 *
 * Why no write is missed.  See dirty_bits.h for the invariant.  There are three
 * ways to handle a Dirty bit:
 *
 * - KVM_GET_DIRTY_LOG finds it and sets the page's bit in the log.  The Dirty
 *   bit stays set.  A CPU may continue to write to the page without setting the
 *   bit again, which is fine because the page is in the log.  So no flush is
 *   needed.  tdp_dirty_bits.c describes which page tables of the TDP MMU need
 *   not be scanned.
 *
 * - The page is cleared in the log (KVM_CLEAR_DIRTY_LOG, or KVM_GET_DIRTY_LOG
 *   without manual protection), together with its Dirty bit.  CPUs may have the
 *   Dirty bit cached until the ioctl flushes TLBs.  It does so before it
 *   returns, and only then can user space rely on a copy of the page.  If user
 *   space clears a page that is not in the log, its Dirty bit is collected
 *   first, as in KVM_GET_DIRTY_LOG.
 *
 * - The SPTE is zapped or replaced.  The CPU may set the Dirty bit between
 *   KVM's read of the SPTE and its store.  So either the change is atomic and
 *   keeps the Dirty bit (aging, lockless page faults), or KVM exchanges the
 *   SPTE and passes the old value that the exchange returned to one function in
 *   each MMU: mmu_spte_record_dirty() in the shadow MMU, handle_changed_spte()
 *   in the TDP MMU.  If that value had a Dirty bit that the new one lacks, they
 *   call kvm_dirty_bits_record() within the same hold of mmu_lock.  Collecting
 *   takes mmu_lock for write, in the TDP MMU only at its end, and so waits for
 *   these calls.
 *
 * SPTEs that cannot use the Dirty bit remain write-protected.  This is decided
 * per SPTE: those with A/D bits disabled (see spte_ad_enabled()), those of huge
 * pages until they are split, and those of guest page tables.  VMs with a dirty
 * ring write-protect all pages, because an entry in the ring requires the vCPU
 * that wrote.
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

/* The TDP MMU's pending page tables above which collecting flushes TLBs. */
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

/* Read when a VM is created, and when user space configures a VM. */
module_param_cb(dirty_bits, &dirty_bits_ops, NULL, 0644);
MODULE_PARM_DESC(dirty_bits, "Log dirty pages by the Dirty bits of SPTEs: off, on or auto");

/*
 * Rate-limited: the creation and destruction of VMs must not patch kernel text
 * more than once per second.
 */
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
 * @kvm: the VM, initialized by the vendor module, or NULL for VMs of the
 *	default type
 *
 * CPUs must support Dirty bits in SPTEs.  If page tables are mirrored, KVM
 * doesn't write the page tables that CPUs use, so it can't clear Dirty bits in
 * them.
 */
bool kvm_dirty_bits_is_possible(const struct kvm *kvm)
{
	return kvm_ad_enabled && !(kvm && kvm_has_mirrored_tdp(kvm));
}

/*
 * Does a VM log by Dirty bits if user space doesn't choose?
 *
 * Not if the CPU logs by itself (PML).  Otherwise it depends on the costs: with
 * Dirty bits, the thread that reads the log scans each page that is mapped.
 * With write protection, vCPUs take a fault for each page that is written, and
 * with shadow paging each such fault holds mmu_lock for write, which delays all
 * other vCPUs.
 */
static bool dirty_bits_is_default(const struct kvm *kvm)
{
	int mode = READ_ONCE(dirty_bits_mode);

	return kvm_dirty_bits_is_possible(kvm) && !kvm->arch.usual_cpu_dirty_log_size &&
	       (mode == DIRTY_BITS_ON || (mode == DIRTY_BITS_AUTO && !tdp_enabled));
}

/**
 * kvm_dirty_bits_get - enable the static key, before a VM uses Dirty bits
 * @use: will the VM log by Dirty bits?  If not, nothing is done.
 *
 * Patching code takes cpus_read_lock(), so the caller must not hold a lock that
 * is taken within cpus_read_lock() elsewhere.
 */
void kvm_dirty_bits_get(bool use)
{
	if (use)
		static_branch_deferred_inc(&kvm_dirty_bits_vms);
}

/**
 * kvm_dirty_bits_put - undo kvm_dirty_bits_get()
 * @use: the value that was passed to kvm_dirty_bits_get()
 */
void kvm_dirty_bits_put(bool use)
{
	if (use)
		static_branch_slow_dec_deferred(&kvm_dirty_bits_vms);
}

/**
 * kvm_dirty_bits_init_vm - choose how a new VM logs dirty pages
 * @kvm: the VM, initialized by the vendor module, without vCPUs and memslots
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
 * @kvm: the VM, which maps no memory any more
 */
void kvm_dirty_bits_uninit_vm(struct kvm *kvm)
{
	kvm_dirty_bits_put(kvm->arch.dirty_bits);
}

/**
 * kvm_dirty_bits_exit - complete deferred updates of the static key
 *
 * Called when KVM or its vendor module is about to be unloaded and no VM
 * exists.
 */
void kvm_dirty_bits_exit(void)
{
	static_key_deferred_flush(&kvm_dirty_bits_vms);
}

/**
 * __kvm_dirty_bits_record - log pages whose Dirty bits were removed
 * @kvm: the VM
 * @as_id: the address space of the SPTEs
 * @gfn: the first of up to 64 pages
 * @mask: the pages to log, @gfn + i for each bit i
 *
 * Unlike mark_page_dirty(), this doesn't require a running vCPU.
 */
void __kvm_dirty_bits_record(struct kvm *kvm, int as_id, gfn_t gfn, unsigned long mask)
{
	struct kvm_memory_slot *slot = NULL;
	gfn_t first = gfn;
	int idx;

	lockdep_assert_held(&kvm->mmu_lock);

	/*
	 * Most callers are in an SRCU read section already, but the
	 * invalidation of guest_memfd is not.
	 */
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

/* Which of 64 gfns are dirty?  One SPTE maps each, with A/D bits enabled. */
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

/* The cost of scanning a gfn, in SPTEs, whose number the guest controls. */
static unsigned int collect_head_work(struct kvm_rmap_head *head)
{
	return kvm_rmap_get(head) & KVM_RMAP_MANY ? pte_list_count(head) : 1;
}

struct collector {
	struct kvm *kvm;

	/* slots_lock keeps it, its rmaps and its log. */
	const struct kvm_memory_slot *slot;

	/* The first page to scan, relative to the memslot. */
	unsigned long first;

	/* SPTEs, or gfns without any, scanned since mmu_lock was taken last. */
	unsigned long work;

	/* See kvm_prove_nr_exits_if_stopped(). */
	u64 nr_exits_before;

	/*
	 * The gfns [empty_start, empty_end) were scanned last, within this hold
	 * of mmu_lock, and none of them has an SPTE.
	 */
	gfn_t empty_start;
	gfn_t empty_end;
};

/*
 * Drop mmu_lock if it is contended and enough work was done.  All pages before
 * page @end of the memslot have been scanned.
 */
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
 * No gfn of a word has an SPTE, because huge pages or nothing map them.  If
 * this word completes 2MiB without any SPTE, clear their flag, so that later
 * calls skip the 2MiB until an SPTE is added.
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
 * Scan @nr gfns one by one, from page @rel of the memslot on.  A dirty page is
 * added to the log before mmu_lock may be dropped.
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

/* Scan 64 gfns, at once if their SPTEs are one block. */
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

	/* A/D bits are enabled for all SPTEs of a page table, or for none. */
	first = READ_ONCE(*block);
	if (!spte_ad_enabled(first))
		return;

	/*
	 * A Dirty bit that was found stays set while mmu_lock is held.  A bit
	 * that is set too late is found by the next call.  Neighbouring SPTEs
	 * mostly agree, so the first one decides whether to try the OR of all
	 * SPTEs or their AND.
	 */
	if (!(first & shadow_dirty_mask) && !(spte_any(block, SPTE_BULK) & shadow_dirty_mask))
		return;

	if ((first & shadow_dirty_mask) && (spte_all(block, SPTE_BULK) & shadow_dirty_mask))
		collect_log(word, ~0ul);
	else
		collect_log(word, collect_each(heads));
}

/* Scan one word of the log, i.e. 64 gfns, or fewer at the memslot's end. */
static __always_inline void collect_word(struct collector *c, struct kvm_rmap_head *heads,
					 unsigned long rel, unsigned int nr)
{
	if (nr < BITS_PER_LONG) {
		collect_slow(c, heads, rel, nr);
		return;
	}

	/* slots_lock is held, so no bit is cleared: a stale word is safe. */
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
 * Does kvm_flush_remote_tlbs_memslot() remove all links that CPUs have cached?
 * Not if it uses hypercalls of Hyper-V, which flush a range of gfns, or the
 * root that a vCPU currently uses.
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
 * Work done in an earlier hold of slots_lock was complete before the flush
 * began.
 */
void kvm_arch_flush_memslot_end(struct kvm *kvm)
{
	lockdep_assert_held(&kvm->slots_lock);

	if (collect_counts_flushes())
		kvm->arch.nr_flushes++;
}

/*
 * Should collecting flush TLBs?  Pending page tables are scanned by each call
 * until TLBs are flushed, and that happens when pages are cleared in the log.
 * If the log is empty, there is nothing to clear.  Then flush if many page
 * tables are pending: the flush is cheaper than scanning all of them again.  If
 * CPUs continue to use links that they cache, every other call flushes, at
 * most.
 */
static bool collect_wants_flush(const struct kvm_memory_slot *slot, unsigned long nr_pending)
{
	if (nr_pending <= COLLECT_MAX_PENDING || !collect_counts_flushes())
		return false;

	/* Page faults may log pages meanwhile: either result is fine. */
	return data_race(bitmap_empty(slot->dirty_bitmap, slot->npages));
}

/*
 * This call also restarts the count of flushes for links outside of the range,
 * although flushes before this call would be sufficient for them.
 */
static void collect_tdp(struct kvm *kvm, struct kvm_memory_slot *slot, unsigned long first,
			unsigned long nr)
{
	u64 nr_flushes = kvm->arch.nr_flushes;
	unsigned long nr_pending;
	bool flushed;

	/* Has a flush begun since the previous walk ended? */
	flushed = slot->arch.nr_flushes && slot->arch.nr_flushes != nr_flushes;
	nr_pending = kvm_tdp_collect(kvm, slot, first, nr, flushed);
	slot->arch.nr_flushes = nr_flushes;

	if (collect_wants_flush(slot, nr_pending))
		kvm_flush_remote_tlbs_memslot(kvm, slot);
}

/*
 * Scan @nr pages from page @first of the memslot on: whole words of the log, or
 * up to the memslot's end.
 */
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
 * After the call, the log contains every write that vCPUs completed before it.
 * The caller holds slots_lock, which keeps the memslot.  mmu_lock is taken, and
 * dropped in between if it is contended.
 */
void kvm_arch_collect_dirty_log(struct kvm *kvm, struct kvm_memory_slot *slot)
{
	lockdep_assert_held(&kvm->slots_lock);

	if (kvm_dirty_bits_enabled(kvm))
		collect_range(kvm, slot, 0, slot->npages);
}

/**
 * kvm_arch_collect_unlogged - bring part of a log up to date for CLEAR
 * @kvm: the VM, with mmu_lock held for write, which is dropped and retaken
 * @slot: a memslot that is logged
 * @first: the first page, a multiple of 64
 * @nr: the number of pages, a multiple of 64 or up to the end of the memslot
 *
 * User space clears a page that isn't in the log.  If the page was written, its
 * Dirty bit would report that write after KVM_CLEAR_DIRTY_LOG.  So add the page
 * to the log, from which it is cleared like any other page.  Then Dirty bits
 * are cleared only for pages that user space clears, and other pages stay in
 * the log.
 *
 * If a vCPU writes to the page after it was scanned, the CPU sets the Dirty
 * bit, and the write counts as one after KVM_CLEAR_DIRTY_LOG.
 *
 * Return: true if pages may have been added to the log.
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
