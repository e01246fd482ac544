// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory for splitting huge pages ahead of writes
 *
 * Page tables for all of a guest's memory take 0.2% of it, and are charged to the memory
 * cgroup of the thread that starts dirty logging.  vCPUs that split lazily need a page
 * table for what they write, and no other.  So splitting ahead of them may be what takes a
 * VM to its limit, and then the OOM killer comes for a VM that would live without.
 *
 * Allocations that give up instead (KVM_SPLIT_GFP) aren't enough: they take all that there
 * is below the limit, and whoever comes next is killed, be it a vCPU or the VMM.  So each
 * time the stock is filled up, room has to be left for what these may need next.  Most
 * often a look at the limits tells that there is.  Close to a limit, where memory may have
 * to be reclaimed first, the room is allocated and given back.
 *
 * Without that room splitting gives its stock back and pauses: whoever asks for it next
 * would have memory reclaimed once more, for each word of a KVM_CLEAR_DIRTY_LOG.
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
#define SPLIT_PAUSE		HZ

/*
 * The pages that filling up the caches of one vCPU takes: page tables, what they shadow, and
 * some for headers and rmap descriptors.
 */
#define SPLIT_ROOM_VCPU		(2 * KVM_ARCH_NR_OBJS_PER_MEMORY_CACHE + 16)

/*
 * What the stock itself takes, and the VMM next: logs of memslots, its own memory, and
 * that of its threads.
 */
#define SPLIT_ROOM_STOCK	64
#define SPLIT_ROOM_VMM		64

/* VMs with more than some 40 vCPUs don't need memory for all of them at the same moment. */
#define SPLIT_ROOM_MAX		(SZ_16M / PAGE_SIZE)

static unsigned long split_room(struct kvm *kvm)
{
	unsigned long vcpus = (unsigned long)atomic_read(&kvm->online_vcpus) * SPLIT_ROOM_VCPU;

	return SPLIT_ROOM_STOCK + SPLIT_ROOM_VMM + min(vcpus, SPLIT_ROOM_MAX);
}

#ifdef CONFIG_MEMCG
static unsigned long split_margin(struct page_counter *counter)
{
	unsigned long used = page_counter_read(counter);
	unsigned long max = READ_ONCE(counter->max);

	return used < max ? max - used : 0;
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
		margin = min(margin, split_margin(&memcg->memory));
		/* Memory and swap together have a limit in version 1. */
		if (!cgroup_subsys_on_dfl(memory_cgrp_subsys))
			margin = min(margin, split_margin(&memcg->memsw));
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

/*
 * Can so many pages be had, if need be by reclaim?  vCPUs may want them just now, and try
 * for much longer than this does before they invoke the OOM killer.  Have twice as many, if
 * possible, so that for some time a look at the limits tells that there is room.
 */
static bool split_can_have(unsigned long nr)
{
	void *pages = NULL, *page;
	unsigned long had;

	for (had = 0; had < 2 * nr; had++) {
		page = (void *)__get_free_page(KVM_SPLIT_GFP);
		if (!page)
			break;
		*(void **)page = pages;
		pages = page;
	}

	while ((page = pages)) {
		pages = *(void **)page;
		free_page((unsigned long)page);
	}

	return had >= nr;
}

/**
 * kvm_split_has_margin - is there room for what a VM may need next, as it is?
 * @kvm: the VM
 *
 * Nothing is allocated or reclaimed to find out, so that page faults may ask, too.
 */
bool kvm_split_has_margin(struct kvm *kvm)
{
	unsigned long nr = split_room(kvm);

	return split_cgroup_margin() >= nr && si_mem_available() >= (long)nr;
}

static bool split_has_room(struct kvm *kvm)
{
	return kvm_split_has_margin(kvm) || split_can_have(split_room(kvm));
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

static bool split_is_stocked(struct kvm *kvm, int nr_descs, bool page_table)
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
 * Return: 0 if the stock has that; -ENOMEM if not, see kvm_split_make_room().
 */
int kvm_split_topup(struct kvm *kvm, int nr_descs, bool page_table)
{
	int r;

	/* Whoever may not split more at a time comes with the stock as it is. */
	if (split_is_stocked(kvm, nr_descs, page_table))
		return 0;

	r = kvm_split_make_room(kvm);
	if (r)
		return r;

	r = split_topup(kvm, nr_descs, page_table);
	/* Others took the room meanwhile?  A single failure needs no pause. */
	if (r && !split_has_room(kvm))
		split_pause(kvm);

	return r;
}
