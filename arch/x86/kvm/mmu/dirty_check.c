// SPDX-License-Identifier: GPL-2.0-only
/*
 * A check of dirty logging by Dirty bits: log by write-protection faults as well, and compare
 *
 * Logging takes away both Writable and Dirty bits of 4KiB SPTEs.  The write fault that follows
 * makes the SPTE writable, and no more than that: it is the CPU that sets the Dirty bit when it
 * tries again.  The log by faults is a state of each page, from when it leaves the memslot's log
 * until KVM_GET_DIRTY_LOG puts what has a fault back.  Before and after that a fault goes to the
 * memslot's log, as does, always, what KVM itself writes to; such a page isn't compared.
 *
 * What isn't tried is a Dirty bit that is set by way of a TLB entry of a page that was only read,
 * or of a link that was cached before GET took its Accessed bit: the fault has just removed both.
 * A lost one is logged, but not counted, if GET finds no page there (MADV_DONTNEED, swap).
 *
 * Dirty bit, but no fault: the fault is logged before the SPTE becomes writable.
 *
 * Fault, but no Dirty bit: a vCPU that faults may take an interrupt next, and never write.  That
 * is told from a lost Dirty bit by the page's hash of before the SPTE became writable: if it has
 * another one now, somebody wrote to it.  A CPU sets the Dirty bit before its write is seen, so
 * look for Dirty bits once more after that.  KVM's own writes and their marks are within one
 * section of kvm->srcu: wait for those that are under way, if a page is still suspect then.
 *
 * What is reported in vain:
 * - "no Dirty bit", if the instruction that faulted was not tried again yet, and meanwhile user
 *   space, a device, KVM by a mapping that it keeps (nested VMX, SEV-ES, Xen), a vCPU by another
 *   memslot of the same memory, or, until KVM_CLEAR_DIRTY_LOG flushes, a CPU by an old TLB entry
 *   wrote to this page, which a guest can bring about;
 * - "no write fault", by CPUs that set Dirty bits of SPTEs that have just become read-only, for
 *   a write before that flush.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jhash.h>
#include <linux/kvm_host.h>
#include <linux/mm.h>
#include <linux/srcu.h>
#include <linux/uaccess.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "spte.h"

/* What the log by write faults has of a page. */
enum {
	/* Nothing: what is dirty is in the memslot's log, and nothing is compared. */
	CHECK_NONE,
	/* No fault. */
	CHECK_ARMED,
	/* No fault, but a Dirty bit. */
	CHECK_NO_FAULT,
	/* A fault and other contents since, but no Dirty bit. */
	CHECK_NO_DIRTY_BIT,
	/* A fault: from here on it is the hash of the page before it. */
	CHECK_FAULT,
};

/* They lie behind the two bitmaps that every log has. */
static u32 *check_states(const struct kvm_memory_slot *slot)
{
	return (u32 *)(slot->dirty_bitmap + 2 * BITS_TO_LONGS(slot->npages));
}

/* Not 0, or the page can't be read without a page fault, for which mmu_lock leaves no room. */
static u32 check_hash(const struct kvm_memory_slot *slot, unsigned long rel)
{
	const char __user *page = (const char __user *)slot->userspace_addr + rel * PAGE_SIZE;
	unsigned int i, left = 0;
	u32 hash = 0, piece[64];

	pagefault_disable();
	for (i = 0; i < PAGE_SIZE && !left; i += sizeof(piece)) {
		left = __copy_from_user_inatomic(piece, page + i, sizeof(piece));
		hash = jhash2(piece, ARRAY_SIZE(piece), hash);
	}
	pagefault_enable();

	return left ? 0 : max(hash, CHECK_FAULT);
}

/**
 * kvm_dirty_check_set - begin to compare pages, or end it
 * @kvm: a VM that logs both ways, with mmu_lock held for write
 * @slot: a memslot that is logged
 * @gfn_offset: the first of 64 pages
 * @mask: those of them that have left the log
 * @begin: true if their SPTEs were armed meanwhile, which drops mmu_lock on the way
 */
void kvm_dirty_check_set(struct kvm *kvm, const struct kvm_memory_slot *slot, gfn_t gfn_offset,
			 unsigned long mask, bool begin)
{
	u32 *state;

	lockdep_assert_held(&kvm->slots_lock);
	lockdep_assert_held_write(&kvm->mmu_lock);

	for (; mask; mask &= mask - 1) {
		state = &check_states(slot)[gfn_offset + __ffs(mask)];
		xchg(state, begin ? CHECK_ARMED : CHECK_NONE);
		/* It is in the log again.  KVM's own mark comes first, and then to the state. */
		if (begin && test_bit(gfn_offset + __ffs(mask), slot->dirty_bitmap))
			xchg(state, CHECK_NONE);
	}
}

/**
 * kvm_dirty_check_fault - log a write fault
 * @kvm: a VM that logs both ways, with mmu_lock held until the SPTE is changed
 * @slot: a memslot that is logged
 * @gfn: the page
 * @spte: what its SPTE is to be, but for the Dirty bit, which it loses if compared
 *
 * Return: false if the page is not compared, and is to be put into the memslot's log.
 */
bool kvm_dirty_check_fault(struct kvm *kvm, const struct kvm_memory_slot *slot, gfn_t gfn,
			   u64 spte)
{
	u32 *state = &check_states(slot)[gfn - slot->base_gfn];
	kvm_pfn_t pfn = spte_to_pfn(spte);

	lockdep_assert_held(&kvm->mmu_lock);

	/* Memory of devices changes at any time. */
	if (!spte_ad_enabled(spte) || !pfn_valid(pfn) || PageReserved(pfn_to_page(pfn)))
		return false;

	/* Any other vCPU that makes the page writable has left its hash before. */
	if (READ_ONCE(*state) == CHECK_ARMED)
		cmpxchg(state, CHECK_ARMED, check_hash(slot, gfn - slot->base_gfn));
	if (READ_ONCE(*state) <= CHECK_ARMED)
		return false;

	return true;
}

/**
 * kvm_dirty_check_forget - KVM itself has written to a page, and put it into the log
 * @slot: a memslot of a VM that logs both ways
 * @rel: the page, counted from the memslot's first
 */
void kvm_dirty_check_forget(const struct kvm_memory_slot *slot, unsigned long rel)
{
	u32 *state = &check_states(slot)[rel], old = READ_ONCE(*state);

	do {
		/* It may have left the log since, and a vCPU written to it. */
		if (old > CHECK_ARMED)
			set_bit(rel, slot->dirty_bitmap);
	} while (!try_cmpxchg(state, &old, CHECK_NONE));
}

/* Pages that one log has, and the other lacks.  Others may forget them meanwhile. */
static bool check_find_suspects(const struct kvm_memory_slot *slot)
{
	u32 *states = check_states(slot), state, hash;
	bool found = false, dirty;
	unsigned long rel;

	for (rel = 0; rel < slot->npages; rel++) {
		if (!(rel % BITS_PER_LONG))
			cond_resched();

		state = READ_ONCE(states[rel]);
		dirty = test_bit(rel, slot->dirty_bitmap);
		hash = state > CHECK_ARMED && !dirty ? check_hash(slot, rel) : 0;
		if (state == CHECK_ARMED && dirty)
			cmpxchg(&states[rel], state, CHECK_NO_FAULT);
		else if (hash && hash != state)
			cmpxchg(&states[rel], state, CHECK_NO_DIRTY_BIT);
		else
			continue;

		found = true;
	}

	return found;
}

/* Of those that were found, are there any for which no Dirty bit or mark came since? */
static bool check_has_suspects(const struct kvm_memory_slot *slot)
{
	const u32 *states = check_states(slot);
	unsigned long rel;
	u32 state;

	for (rel = 0; rel < slot->npages; rel++) {
		if (!(rel % BITS_PER_LONG))
			cond_resched();

		state = READ_ONCE(states[rel]);
		if (state == CHECK_NO_FAULT ||
		    (state == CHECK_NO_DIRTY_BIT && !test_bit(rel, slot->dirty_bitmap)))
			return true;
	}

	return false;
}

/* Make one log of both; one line for all that differs, however much it is. */
static void check_report(struct kvm *kvm, const struct kvm_memory_slot *slot)
{
	u32 *states = check_states(slot), state, what = CHECK_NONE;
	unsigned long rel, first = 0, nr = 0;
	bool dirty;

	for (rel = 0; rel < slot->npages; rel++) {
		if (!(rel % BITS_PER_LONG))
			cond_resched();

		if (READ_ONCE(states[rel]) <= CHECK_ARMED)
			continue;

		/* In the log first, as kvm_dirty_check_fault() relies on the state. */
		dirty = test_and_set_bit(rel, slot->dirty_bitmap);
		state = xchg(&states[rel], CHECK_NONE);
		if (state == CHECK_NO_FAULT || (state == CHECK_NO_DIRTY_BIT && !dirty)) {
			if (!nr++) {
				first = rel;
				what = state;
			}
		} else if (dirty && state != CHECK_NONE) {
			kvm->stat.dirty_check_pages++;
		}
	}

	if (!nr)
		return;

	kvm->stat.dirty_check_mismatch += nr;
	pr_warn_ratelimited("process %d, memslot %u:%u: gfn 0x%llx was written, but there is no %s; %lu in all\n",
			    kvm->userspace_pid, slot->as_id, (u16)slot->id, slot->base_gfn + first,
			    what == CHECK_NO_FAULT ? "write fault" : "Dirty bit", nr);
}

/**
 * kvm_arch_check_dirty_log - compare both logs of a memslot, and bring them together
 * @kvm: the VM, of which slots_lock is held: nothing leaves the logs
 * @slot: a memslot that is logged, just after kvm_arch_harvest_dirty_log()
 */
void kvm_arch_check_dirty_log(struct kvm *kvm, struct kvm_memory_slot *slot)
{
	lockdep_assert_held(&kvm->slots_lock);

	if (!kvm_dirty_check(kvm))
		return;

	/* vCPUs may sleep in such a section: don't wait for what was just written since. */
	if (check_find_suspects(slot)) {
		kvm_arch_harvest_dirty_log(kvm, slot);
		if (check_has_suspects(slot)) {
			synchronize_srcu(&kvm->srcu);
			kvm_arch_harvest_dirty_log(kvm, slot);
		}
	}

	check_report(kvm, slot);
}
