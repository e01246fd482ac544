// SPDX-License-Identifier: GPL-2.0-only
/*
 * Checks of the shadow MMU's bookkeeping, for debug kernels
 *
 * SPTEs and rmaps contain the same information, and counters contain its
 * amount.  To check code that changes many of them at once, walk all SPTEs, and
 * compare them with the rmaps.  Each SPTE must be in its rmap once.  If the
 * rmaps have as many entries in total as there are SPTEs, they contain nothing
 * else.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "mmu.h"
#include "mmu_internal.h"
#include "prove.h"
#include "spte.h"
#include "tdp_iter.h"
#include "tdp_mmu.h"

/* Instead of a number of exits: a vCPU may be running. */
#define PROVE_VCPUS_RUN		(~0ull)

struct prove {
	struct kvm *kvm;

	/* Leaf SPTEs found so far, by page size. */
	unsigned long leaves[KVM_NR_PAGE_SIZES];

	/* Shadow pages found so far. */
	unsigned long pages;
};

static bool prove_is_tracked(const struct kvm_memory_slot *slot, gfn_t gfn)
{
	return slot->arch.gfn_write_track &&
	       slot->arch.gfn_write_track[gfn_to_index(gfn, slot->base_gfn, PG_LEVEL_4K)];
}

static void prove_leaf(struct prove *p, struct kvm_mmu_page *sp, int i)
{
	struct kvm_memory_slot *slot;
	gfn_t gfn = kvm_mmu_page_get_gfn(sp, i);
	int level = sp->role.level;
	u64 spte = sp->spt[i];

	slot = __gfn_to_memslot(kvm_memslots_for_spte_role(p->kvm, sp->role), gfn);
	if (WARN_ONCE(!slot, "SPTE %llx maps gfn %llx, which is in no memslot\n", spte, gfn))
		return;

	WARN_ONCE(kvm_mmu_rmap_occurrences(gfn_to_rmap(gfn, level, slot), &sp->spt[i]) != 1,
		  "SPTE %llx of gfn %llx, level %d, isn't in its rmap once\n",
		  spte, gfn, level);
	WARN_ONCE(level == PG_LEVEL_4K && is_mmu_writable_spte(spte) && prove_is_tracked(slot, gfn),
		  "SPTE %llx of gfn %llx may be writable despite write tracking\n", spte, gfn);
	WARN_ONCE(level == PG_LEVEL_4K && !kvm_may_have_small_sptes(slot, gfn),
		  "SPTE %llx of gfn %llx is in 2MiB that are said to have none\n", spte, gfn);
	check_spte_writable_invariants(spte);

	p->leaves[level - PG_LEVEL_4K]++;
}

static void prove_link(struct kvm_mmu_page *sp, int i)
{
	struct kvm_mmu_page *child = spte_to_child_sp(sp->spt[i]);

	WARN_ONCE(child->role.level + 1 != sp->role.level,
		  "level %d links to level %d\n", sp->role.level, child->role.level);
	WARN_ONCE(child->role.has_4_byte_gpte && child->role.level == PG_LEVEL_4K &&
		  child->role.quadrant != (i & 1),
		  "SPTE %d links to quadrant %d\n", i, child->role.quadrant);
	WARN_ONCE(kvm_mmu_rmap_occurrences(&child->parent_ptes, &sp->spt[i]) != 1,
		  "a link to gfn %llx, level %d, isn't in the parent SPTEs once\n",
		  child->gfn, child->role.level);
}

static void prove_page(struct prove *p, struct kvm_mmu_page *sp)
{
	int i;

	p->pages++;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		if (!is_shadow_present_pte(sp->spt[i]))
			continue;

		if (is_last_spte(sp->spt[i], sp->role.level))
			prove_leaf(p, sp, i);
		else
			prove_link(sp, i);
	}
}

static unsigned long prove_count_slot(const struct kvm_memory_slot *slot, int level)
{
	struct kvm_rmap_head *heads = slot->arch.rmap[level - PG_LEVEL_4K];
	gfn_t last = slot->base_gfn + slot->npages - 1;
	unsigned long nr = 0;
	unsigned long i;

	for (i = 0; i <= gfn_to_index(last, slot->base_gfn, level); i++)
		nr += pte_list_count(&heads[i]);

	return nr;
}

static unsigned long prove_count_rmaps(struct kvm *kvm, int level)
{
	struct kvm_memory_slot *slot;
	unsigned long nr = 0;
	int as_id, bkt;

	for (as_id = 0; as_id < kvm_arch_nr_memslot_as_ids(kvm); as_id++) {
		kvm_for_each_memslot(slot, bkt, __kvm_memslots(kvm, as_id))
			nr += prove_count_slot(slot, level);
	}

	return nr;
}

static void prove_level(struct prove *p, int level)
{
	unsigned long leaves = p->leaves[level - PG_LEVEL_4K];
	unsigned long rmaps = prove_count_rmaps(p->kvm, level);
	s64 stat = atomic64_read(&p->kvm->stat.pages[level - PG_LEVEL_4K]);

	WARN_ONCE(rmaps != leaves, "level %d: %lu SPTEs, but %lu entries in rmaps\n",
		  level, leaves, rmaps);

	/* The TDP MMU's SPTEs are included in this statistic, too. */
	WARN_ONCE(!tdp_mmu_enabled && stat != leaves,
		  "level %d: %lu SPTEs, but the statistics say %lld\n", level, leaves, stat);
}

/*
 * The number of roots that were zapped while vCPUs use them.  Until the last
 * vCPU drops such a root, it is in no list, but it is accounted for, and still
 * in the hash.
 */
static unsigned long prove_nr_zapped_roots(struct kvm *kvm)
{
	const struct hlist_head *hash = kvm->arch.mmu_page_hash;
	struct kvm_mmu_page *sp;
	unsigned long nr = 0;
	int i;

	/* With the TDP MMU, the first shadow root allocates the hash. */
	for (i = 0; hash && i < KVM_NUM_MMU_PAGES; i++)
		hlist_for_each_entry(sp, &hash[i], hash_link)
			nr += sp->role.invalid && sp->root_count;

	return nr;
}

static void prove_quota(struct prove *p)
{
	unsigned long used = p->kvm->stat.mmu_shadow_pages;

	/* Such roots are rare, and searching the large hash is slow. */
	WARN_ONCE(p->pages != used && p->pages + prove_nr_zapped_roots(p->kvm) != used,
		  "%lu shadow pages, but %lu are accounted\n", p->pages, used);
}

static bool prove_walks __read_mostly = true;
module_param(prove_walks, bool, 0644);
MODULE_PARM_DESC(prove_walks, "Check the shadow MMU after each hold of mmu_lock that changed it");

/**
 * __kvm_prove_shadow_mmu - check all shadow pages, rmaps and counters of a VM
 * @kvm: the VM
 */
void __kvm_prove_shadow_mmu(struct kvm *kvm)
{
	struct prove p = { .kvm = kvm };
	struct kvm_mmu_page *sp;
	int level;

	lockdep_assert_held(&kvm->slots_lock);
	lockdep_assert_held_write(&kvm->mmu_lock);

	/* Measurements of how long mmu_lock is held disable the walk. */
	if (!READ_ONCE(prove_walks))
		return;

	list_for_each_entry(sp, &kvm->arch.active_mmu_pages, link)
		prove_page(&p, sp);

	for (level = PG_LEVEL_4K; level <= KVM_MAX_HUGEPAGE_LEVEL; level++)
		prove_level(&p, level);

	prove_quota(&p);
}

/*
 * A huge SPTE that isn't MMU-writable contains a write-tracked page, or has
 * contained one.  A leaf for another page may be writable nevertheless, if a
 * vCPU made it writable through another link to the page table.
 */
static void prove_split_writable(const struct kvm_memory_slot *slot, struct kvm_mmu_page *sp,
				 int i, bool new, u64 huge_spte)
{
	u64 spte = sp->spt[i];

	if (!is_writable_pte(spte) || is_mmu_writable_spte(huge_spte))
		return;

	WARN_ONCE(new || prove_is_tracked(slot, kvm_mmu_page_get_gfn(sp, i)),
		  "writable %llx after a split of %llx\n", spte, huge_spte);
}

/**
 * __kvm_prove_split_sp - check the page table that a huge SPTE was split into
 * @slot: the memslot of the gfns that it maps
 * @sp: its shadow page
 * @new: no other SPTE links to it
 * @huge_spte: the value of the huge SPTE before the split
 *
 * A leaf may permit less than the huge SPTE did, but maps the same memory, and
 * there is no hole.
 */
void __kvm_prove_split_sp(const struct kvm_memory_slot *slot, struct kvm_mmu_page *sp,
			  bool new, u64 huge_spte)
{
	kvm_pfn_t pfn = spte_to_pfn(huge_spte);
	u64 spte;
	int i;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++, pfn += KVM_PAGES_PER_HPAGE(sp->role.level)) {
		spte = sp->spt[i];

		if (WARN_ONCE(!is_shadow_present_pte(spte), "hole at %d after a split\n", i))
			continue;
		if (!is_last_spte(spte, sp->role.level))
			continue;

		WARN_ONCE(spte_to_pfn(spte) != pfn, "pfn %llx at %d after a split, not %llx\n",
			  spte_to_pfn(spte), i, pfn);
		prove_split_writable(slot, sp, i, new, huge_spte);
	}
}

/**
 * __kvm_prove_nr_exits_if_stopped - get a number that changes if a vCPU runs
 * @kvm: the VM
 *
 * KVM_RUN holds the vCPU's mutex, and increments the number of exits.  So no
 * vCPU ran between two calls that return the same value, if it isn't
 * PROVE_VCPUS_RUN.
 */
u64 __kvm_prove_nr_exits_if_stopped(struct kvm *kvm)
{
	struct kvm_vcpu *vcpu;
	unsigned long i;
	u64 exits = 0;

	kvm_for_each_vcpu(i, vcpu, kvm) {
		if (mutex_is_locked(&vcpu->mutex))
			return PROVE_VCPUS_RUN;
		exits += READ_ONCE(vcpu->stat.exits);
	}

	return exits;
}

static bool prove_was_stopped(struct kvm *kvm, u64 nr_exits_before)
{
	return nr_exits_before != PROVE_VCPUS_RUN &&
	       __kvm_prove_nr_exits_if_stopped(kvm) == nr_exits_before;
}

/* Without A/D bits, an SPTE counts as dirty while it is writable. */
static bool prove_is_dirty(u64 spte)
{
	return spte & (spte_ad_enabled(spte) ? shadow_dirty_mask : PT_WRITABLE_MASK);
}

/*
 * Check the invariant of dirty_bits.h for a 4KiB SPTE, if its page is in the
 * range from @first on and before @end.  A vCPU sets Dirty bits without any
 * lock.  If it has started to run since the collection began, this is noticed
 * because the vCPUs are checked after the SPTE was read.
 */
static void prove_collected(struct kvm *kvm, const struct kvm_memory_slot *slot,
			    unsigned long first, unsigned long end, u64 nr_exits_before,
			    gfn_t gfn, u64 spte)
{
	gfn_t rel = gfn - slot->base_gfn;

	if (!is_shadow_present_pte(spte) || rel < first || rel >= end)
		return;

	if (!prove_is_dirty(spte) || test_bit_le(rel, slot->dirty_bitmap))
		return;

	/* Read the SPTE before the state of the vCPUs. */
	smp_rmb();
	WARN_ONCE(prove_was_stopped(kvm, nr_exits_before),
		  "SPTE %llx of gfn %llx is dirty, and not in the log\n", spte, gfn);
}

/* No CPU sets Dirty bits below a root for which L1 has disabled them. */
static void prove_ad_disabled(const struct kvm_mmu_page *sp, u64 spte)
{
	WARN_ONCE(is_shadow_present_pte(spte) && sp->role.ad_disabled && spte_ad_enabled(spte),
		  "SPTE %llx, below gfn %llx, has a Dirty bit that no CPU sets\n",
		  spte, sp->gfn);
}

/* Check the 4KiB SPTEs of a shadow page, below whatever root it is. */
static void prove_collected_sp(struct kvm *kvm, const struct kvm_memory_slot *slot,
			       unsigned long first, unsigned long end, u64 nr_exits_before,
			       struct kvm_mmu_page *sp)
{
	u64 spte;
	int i;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		spte = READ_ONCE(sp->spt[i]);
		prove_ad_disabled(sp, spte);
		prove_collected(kvm, slot, first, end, nr_exits_before,
				kvm_mmu_page_get_gfn(sp, i), spte);
	}
}

/**
 * __kvm_prove_collected_rmaps - check the log against all shadow pages
 * @kvm: the VM
 * @slot: the memslot
 * @first: the first of its pages whose Dirty bits were collected
 * @end: the first page after these
 * @nr_exits_before: see __kvm_prove_nr_exits_if_stopped()
 *
 * This doesn't use the rmaps, because collecting uses them.  The list of shadow
 * pages includes those of nested guests.  It lacks only roots that were zapped
 * while in use, and these have no SPTEs any more.
 */
void __kvm_prove_collected_rmaps(struct kvm *kvm, const struct kvm_memory_slot *slot,
				 unsigned long first, unsigned long end, u64 nr_exits_before)
{
	struct kvm_mmu_page *sp;

	lockdep_assert_held(&kvm->slots_lock);
	lockdep_assert_held_write(&kvm->mmu_lock);

	if (!prove_was_stopped(kvm, nr_exits_before))
		return;

	list_for_each_entry(sp, &kvm->arch.active_mmu_pages, link)
		if (sp->role.level == PG_LEVEL_4K && kvm_mmu_page_as_id(sp) == slot->as_id)
			prove_collected_sp(kvm, slot, first, end, nr_exits_before, sp);
}

#ifdef CONFIG_X86_64
/**
 * __kvm_prove_collected_tdp - check the log against all SPTEs of the TDP MMU
 * @kvm: the VM
 * @slot: the memslot
 * @first: the first of its pages whose Dirty bits were collected
 * @end: the first page after these
 * @nr_exits_before: see __kvm_prove_nr_exits_if_stopped()
 */
void __kvm_prove_collected_tdp(struct kvm *kvm, const struct kvm_memory_slot *slot,
			       unsigned long first, unsigned long end, u64 nr_exits_before)
{
	struct kvm_mmu_page *root;
	struct tdp_iter iter;

	lockdep_assert_held(&kvm->slots_lock);
	lockdep_assert_held_write(&kvm->mmu_lock);

	if (!prove_was_stopped(kvm, nr_exits_before))
		return;

	rcu_read_lock();
	list_for_each_entry(root, &kvm->arch.tdp_mmu_roots, link) {
		if (is_mirror_sp(root) || kvm_mmu_page_as_id(root) != slot->as_id)
			continue;

		for_each_tdp_pte(iter, kvm, root, slot->base_gfn + first, slot->base_gfn + end)
			if (iter.level == PG_LEVEL_4K)
				prove_collected(kvm, slot, first, end, nr_exits_before, iter.gfn,
						iter.old_spte);
	}
	rcu_read_unlock();
}

/**
 * __kvm_prove_idle_table - check the log against a page table that is skipped
 * @kvm: the VM
 * @slot: the memslot that all gfns of the page table belong to
 * @rel: the first of these gfns, relative to the memslot
 * @link: the SPTE that links to the page table
 * @link_spte: the value of @link, without the Accessed bit, that was checked to
 *	skip the page table
 * @pt: the page table
 *
 * Before a CPU sets a Dirty bit in the page table, it sets the Accessed bit of
 * the link.  Before the page table is removed, and its Dirty bits are recorded
 * in the log, the link is removed.  So a Dirty bit that isn't in the log is an
 * error only if the link hasn't changed.
 */
void __kvm_prove_idle_table(struct kvm *kvm, const struct kvm_memory_slot *slot,
			    unsigned long rel, const u64 *link, u64 link_spte, const u64 *pt)
{
	unsigned int i;
	u64 spte;

	lockdep_assert_held(&kvm->slots_lock);
	lockdep_assert_held(&kvm->mmu_lock);

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		spte = READ_ONCE(pt[i]);
		if (!is_shadow_present_pte(spte) || !prove_is_dirty(spte) ||
		    test_bit_le(rel + i, slot->dirty_bitmap))
			continue;

		/* Read the SPTE before the link. */
		smp_rmb();
		WARN_ONCE(READ_ONCE(*link) == link_spte,
			  "SPTE %llx of gfn %llx is dirty, and its page table was skipped, link %llx\n",
			  spte, slot->base_gfn + rel + i, link_spte);
	}
}
#endif
