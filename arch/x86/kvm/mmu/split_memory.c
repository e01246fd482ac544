// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory for splitting huge pages ahead of writes
 *
 * Page tables for all of a guest's memory take 0.2% of it, and are charged to the memory
 * cgroup of the thread that starts dirty logging.  vCPUs that split lazily need a page
 * table for what they write, and no other.  Eager splitting can therefore push a VM over
 * a limit within which it would live with lazy splitting.
 *
 * Allocations that fail instead of invoking the OOM killer (KVM_SPLIT_GFP) aren't enough:
 * they use up all memory below the limit, and the next allocation of a vCPU or of the VMM
 * invokes the OOM killer.  So before the caches for splitting (the stock) are filled, check
 * that there is room for what these may need next, and for the page tables of all huge
 * pages that are left, as vCPUs may split those next.  Memory that would have to be
 * reclaimed in the cgroup doesn't count.  To allocate in order to find out whether it can
 * be reclaimed would take the last memory away from vCPUs for a moment.
 *
 * Without that room free the stock and pause, so that KVM_CLEAR_DIRTY_LOG doesn't repeat
 * the check for each word.
 *
 * Filling up the descriptors alone needs much less room.  It is done for splits that need no
 * page table, and to recover huge pages, which frees page tables.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cgroup.h>
#include <linux/jiffies.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/sizes.h>

#include "mmu_internal.h"
#include "split_memory.h"
#include "spte.h"

/* For how long splitting pauses when there was no room. */
#define SPLIT_PAUSE		(10 * HZ)

/*
 * The pages that filling up the caches of one vCPU takes: page tables, what they shadow, and
 * some for headers and rmap descriptors.
 */
#define SPLIT_ROOM_VCPU		(2 * KVM_ARCH_NR_OBJS_PER_MEMORY_CACHE + 16)

/* What the stock itself takes, and the VMM next for its own memory and its threads'. */
#define SPLIT_ROOM_STOCK	64
#define SPLIT_ROOM_VMM		64

/* VMs with more than some 40 vCPUs don't need memory for all of them at the same moment. */
#define SPLIT_ROOM_MAX		(SZ_16M / PAGE_SIZE)

/* Dirty logging may be about to be enabled for other memslots: two bits for each page. */
static unsigned long split_room_bitmaps(struct kvm *kvm)
{
	return DIV_ROUND_UP(2 * READ_ONCE(kvm->nr_memslot_pages), BITS_PER_BYTE * PAGE_SIZE);
}

/* What vCPUs, the VMM and the stock may take next, but for page tables. */
static unsigned long split_room(struct kvm *kvm)
{
	unsigned long vcpus = (unsigned long)atomic_read(&kvm->online_vcpus) * SPLIT_ROOM_VCPU;

	return SPLIT_ROOM_STOCK + SPLIT_ROOM_VMM + min(vcpus, SPLIT_ROOM_MAX) +
	       split_room_bitmaps(kvm);
}

/*
 * The pages that splitting all huge pages takes, be it ahead of writes or by them: a page
 * table and its header for each, and a sixteenth of a page is more than a header takes.
 */
static unsigned long split_page_tables(struct kvm *kvm)
{
	unsigned long nr = atomic64_read(&kvm->stat.pages[PG_LEVEL_2M - 1]) +
			   atomic64_read(&kvm->stat.pages[PG_LEVEL_1G - 1]) *
			   (SPTE_ENT_PER_PAGE + 1);

	return nr + nr / 16;
}

#ifdef CONFIG_MEMCG
static unsigned long split_below(struct page_counter *counter, unsigned long limit)
{
	unsigned long used = page_counter_read(counter);

	return used < limit ? limit - used : 0;
}

static unsigned long split_counter_margin(struct page_counter *counter)
{
	/* Beyond memory.high allocations succeed, but the thread is put to sleep for them. */
	return min(split_below(counter, READ_ONCE(counter->max)),
		   split_below(counter, READ_ONCE(counter->high)));
}

/* Pages that can be charged to the thread's cgroup with nothing to be reclaimed. */
static unsigned long split_cgroup_margin(void)
{
	unsigned long margin = ULONG_MAX;
	struct mem_cgroup *memcg;

	if (mem_cgroup_disabled())
		return margin;

	rcu_read_lock();
	for (memcg = mem_cgroup_from_task(current); memcg; memcg = parent_mem_cgroup(memcg)) {
		margin = min(margin, split_counter_margin(&memcg->memory));
		/* Memory and swap together have a limit in version 1. */
		if (!cgroup_subsys_on_dfl(memory_cgrp_subsys))
			margin = min(margin, split_counter_margin(&memcg->memsw));
	}
	rcu_read_unlock();

	return margin;
}
#else
static unsigned long split_cgroup_margin(void)
{
	return ULONG_MAX;
}
#endif

/* The host's memory as a whole: what there is on the nodes that the VM may use isn't known. */
static bool split_is_available(unsigned long nr)
{
	return split_cgroup_margin() >= nr && si_mem_available() >= (long)nr;
}

/**
 * kvm_split_has_margin - is there room for what a VM may need next but page tables?
 * @kvm: the VM
 *
 * Nothing is allocated or reclaimed to find out, so that page faults may ask, too.
 */
bool kvm_split_has_margin(struct kvm *kvm)
{
	return split_is_available(split_room(kvm));
}

static bool split_has_room(struct kvm *kvm)
{
	return split_is_available(split_room(kvm) + split_page_tables(kvm));
}

/* Is there room to fill up the descriptors, and for what the VMM may take next? */
static bool split_has_room_for_descs(void)
{
	return split_is_available(SPLIT_ROOM_STOCK + SPLIT_ROOM_VMM);
}

static void split_pause(struct kvm *kvm)
{
	kvm_mmu_free_memory_cache(&kvm->arch.split_desc_cache);
	kvm_mmu_free_memory_cache(&kvm->arch.split_page_header_cache);
	kvm_mmu_free_memory_cache(&kvm->arch.split_shadow_page_cache);

	/* 0 stands for no pause. */
	kvm->arch.split_resume = (jiffies + SPLIT_PAUSE) ?: 1;
}

/**
 * kvm_split_is_paused - was there no memory to split huge pages a moment ago?
 * @kvm: the VM
 */
bool kvm_split_is_paused(struct kvm *kvm)
{
	lockdep_assert_held(&kvm->slots_lock);

	if (likely(!kvm->arch.split_resume))
		return false;

	if (time_before(jiffies, kvm->arch.split_resume))
		return true;

	kvm->arch.split_resume = 0;
	return false;
}

/**
 * kvm_split_make_room - see to it that allocating for splits leaves enough for the VM
 * @kvm: the VM; mmu_lock is not held
 *
 * Return: 0 if it does; -ENOMEM if not, and for a while from then on.  The stock is empty
 * then.
 */
int kvm_split_make_room(struct kvm *kvm)
{
	if (kvm_split_is_paused(kvm))
		return -ENOMEM;

	if (split_has_room(kvm))
		return 0;

	split_pause(kvm);
	return -ENOMEM;
}

/**
 * kvm_split_is_stocked - does the stock have what a split takes?
 * @kvm: the VM
 * @nr_descs: how many rmap descriptors are needed
 * @page_table: is a page table needed, with its header?
 */
bool kvm_split_is_stocked(struct kvm *kvm, int nr_descs, bool page_table)
{
	return kvm_mmu_memory_cache_nr_free_objects(&kvm->arch.split_desc_cache) >= nr_descs &&
	       (!page_table ||
		(kvm_mmu_memory_cache_nr_free_objects(&kvm->arch.split_page_header_cache) &&
		 kvm_mmu_memory_cache_nr_free_objects(&kvm->arch.split_shadow_page_cache)));
}

static int split_topup(struct kvm *kvm, int nr_descs, bool page_table)
{
	/*
	 * Room for the worst case of a split and some more: the capacity is fixed by the
	 * first topup, and filling up costs little next to dropping the lock.
	 */
	const int capacity = SPLIT_DESC_CACHE_MIN_NR_OBJECTS +
			     KVM_ARCH_NR_OBJS_PER_MEMORY_CACHE;
	int r = 0;

	if (nr_descs)
		r = __kvm_mmu_topup_memory_cache(&kvm->arch.split_desc_cache, capacity,
						 nr_descs);
	if (!r && page_table)
		r = kvm_mmu_topup_memory_cache(&kvm->arch.split_page_header_cache, 1);
	if (!r && page_table)
		r = kvm_mmu_topup_memory_cache(&kvm->arch.split_shadow_page_cache, 1);

	return r;
}

/**
 * kvm_split_topup - fill up the stock that splits take from
 * @kvm: the VM; mmu_lock is not held
 * @nr_descs: how many rmap descriptors are needed
 * @page_table: is a page table needed, with its header?
 *
 * Return: 0 if the stock has that; -ENOMEM if not, see kvm_split_make_room().  A lack of
 * descriptors alone doesn't make splitting pause.
 */
int kvm_split_topup(struct kvm *kvm, int nr_descs, bool page_table)
{
	int r;

	/* If mmu_lock was dropped because a chunk was complete, the stock may be full. */
	if (kvm_split_is_stocked(kvm, nr_descs, page_table))
		return 0;

	if (!page_table)
		return split_has_room_for_descs() ? split_topup(kvm, nr_descs, false) : -ENOMEM;

	r = kvm_split_make_room(kvm);
	if (r)
		return r;

	r = split_topup(kvm, nr_descs, true);
	/* Others took the room meanwhile?  A single failure needs no pause. */
	if (r && !split_has_room(kvm))
		split_pause(kvm);

	return r;
}
