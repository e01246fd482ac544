// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory for splitting huge pages before they are written
 *
 * Page tables for all of a guest's memory need 0.2% of its size, and are
 * charged to the memory cgroup of the thread that enables or clears dirty
 * logging.  vCPUs that split huge pages on the first write need page tables
 * only for the memory that they write.  So eager splitting can make a VM exceed
 * a limit that is sufficient without it.
 *
 * Allocations that fail instead of invoking the OOM killer (KVM_SPLIT_GFP)
 * don't prevent that: they use up the memory below the limit, and the next
 * allocation of a vCPU or of the VMM invokes the OOM killer.  Therefore, before
 * the caches for splitting (the stock) are filled, KVM checks that there is
 * room for the next allocations of the vCPUs and the VMM, and for the page
 * tables of all huge pages that are left, because vCPUs may split those next.
 * Memory that the cgroup would have to reclaim doesn't count as room.  A trial
 * allocation would find out whether it can be reclaimed, but it would take the
 * last memory from vCPUs for a moment.
 *
 * If there is not enough room, KVM frees the stock and pauses splitting, so
 * that KVM_CLEAR_DIRTY_LOG doesn't repeat the check for each word.
 *
 * Filling the cache of rmap descriptors alone requires much less room.  This is
 * done for splits that need no page table, and for the recovery of huge pages,
 * which frees page tables.
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

/* The time for which splitting pauses if there is not enough room. */
#define SPLIT_PAUSE		(10 * HZ)

/*
 * The pages that filling the caches of one vCPU needs: page tables, their
 * arrays of shadowed translations, and some for headers and rmap descriptors.
 */
#define SPLIT_ROOM_VCPU		(2 * KVM_ARCH_NR_OBJS_PER_MEMORY_CACHE + 16)

/* The needs of the stock itself, and of the VMM and its threads. */
#define SPLIT_ROOM_STOCK	64
#define SPLIT_ROOM_VMM		64

/* If a VM has more than about 40 vCPUs, not all of them need memory at once. */
#define SPLIT_ROOM_MAX		(SZ_16M / PAGE_SIZE)

/* Dirty logging may be enabled for other memslots: two bits per page. */
static unsigned long split_room_bitmaps(struct kvm *kvm)
{
	return DIV_ROUND_UP(2 * READ_ONCE(kvm->nr_memslot_pages), BITS_PER_BYTE * PAGE_SIZE);
}

/* The next needs of vCPUs, the VMM and the stock, without page tables. */
static unsigned long split_room(struct kvm *kvm)
{
	unsigned long vcpus = (unsigned long)atomic_read(&kvm->online_vcpus) * SPLIT_ROOM_VCPU;

	return SPLIT_ROOM_STOCK + SPLIT_ROOM_VMM + min(vcpus, SPLIT_ROOM_MAX) +
	       split_room_bitmaps(kvm);
}

/*
 * The pages needed to split all huge pages, eagerly or on the first write: a
 * page table and its header for each.  A header needs less than 1/16 of a page.
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
	/* Beyond memory.high, allocations succeed, but throttle the thread. */
	return min(split_below(counter, READ_ONCE(counter->max)),
		   split_below(counter, READ_ONCE(counter->high)));
}

/* The pages that can be charged to the cgroup of current without reclaim. */
static unsigned long split_cgroup_margin(void)
{
	unsigned long margin = ULONG_MAX;
	struct mem_cgroup *memcg;

	if (mem_cgroup_disabled())
		return margin;

	rcu_read_lock();
	for (memcg = mem_cgroup_from_task(current); memcg; memcg = parent_mem_cgroup(memcg)) {
		margin = min(margin, split_counter_margin(&memcg->memory));
		/* Version 1 also limits memory and swap together. */
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

/* The host as a whole: the nodes that the VM may use aren't known. */
static bool split_is_available(unsigned long nr)
{
	return split_cgroup_margin() >= nr && si_mem_available() >= (long)nr;
}

/**
 * kvm_split_has_margin - is there room for a VM's next allocations?
 * @kvm: the VM
 *
 * Page tables for splits don't count.  Nothing is allocated or reclaimed, so
 * page faults may call this, too.
 */
bool kvm_split_has_margin(struct kvm *kvm)
{
	return split_is_available(split_room(kvm));
}

static bool split_has_room(struct kvm *kvm)
{
	return split_is_available(split_room(kvm) + split_page_tables(kvm));
}

/* Is there room to fill the cache of descriptors, and for the VMM? */
static bool split_has_room_for_descs(void)
{
	return split_is_available(SPLIT_ROOM_STOCK + SPLIT_ROOM_VMM);
}

static void split_pause(struct kvm *kvm)
{
	kvm_mmu_free_memory_cache(&kvm->arch.split_desc_cache);
	kvm_mmu_free_memory_cache(&kvm->arch.split_page_header_cache);
	kvm_mmu_free_memory_cache(&kvm->arch.split_shadow_page_cache);

	/* 0 means no pause. */
	kvm->arch.split_resume = (jiffies + SPLIT_PAUSE) ?: 1;
}

/**
 * kvm_split_is_paused - was there not enough room for splitting a moment ago?
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
 * kvm_split_make_room - check that splitting leaves enough memory for the VM
 * @kvm: the VM; mmu_lock is not held
 *
 * Return: 0 if it does; -ENOMEM if it doesn't.  Then the stock is empty, and
 * further calls fail for SPLIT_PAUSE.
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
 * kvm_split_is_stocked - does the stock contain what a split needs?
 * @kvm: the VM
 * @nr_descs: how many rmap descriptors are needed
 * @page_table: are a page table and its header needed?
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
	 * Enough for the worst case of a split, and more: the first topup
	 * determines the capacity, and filling the cache costs little compared
	 * with dropping the lock.
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
 * kvm_split_topup - fill the stock that splits allocate from
 * @kvm: the VM; mmu_lock is not held
 * @nr_descs: how many rmap descriptors are needed
 * @page_table: are a page table and its header needed?
 *
 * Return: 0 if the stock contains that; -ENOMEM if not, see
 * kvm_split_make_room().  A lack of descriptors alone doesn't pause splitting.
 */
int kvm_split_topup(struct kvm *kvm, int nr_descs, bool page_table)
{
	int r;

	/* If mmu_lock was dropped for another reason, the stock may be full. */
	if (kvm_split_is_stocked(kvm, nr_descs, page_table))
		return 0;

	if (!page_table)
		return split_has_room_for_descs() ? split_topup(kvm, nr_descs, false) : -ENOMEM;

	r = kvm_split_make_room(kvm);
	if (r)
		return r;

	r = split_topup(kvm, nr_descs, true);
	/* Pause only if the room has been used up since the check. */
	if (r && !split_has_room(kvm))
		split_pause(kvm);

	return r;
}
