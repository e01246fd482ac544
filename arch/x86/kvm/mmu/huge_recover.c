// SPDX-License-Identifier: GPL-2.0-only
/*
 * Recovery of huge pages in the shadow MMU
 *
 * Memory that was split for dirty logging can be mapped by huge pages again
 * when logging ends.  If the small SPTEs were just zapped, vCPUs would have to
 * fault in all of the memory again, with mmu_lock held for write.  Instead,
 * each link to a page table is replaced by the huge SPTE that such a page fault
 * would create, and the page table is emptied afterwards.  So memory that was
 * mapped stays mapped throughout.
 *
 * This mirrors the splitter.  The smallest page size comes first, so that the
 * huge pages that result from one level can be merged at the next.  The walk
 * follows the rmaps, and handles the whole page table of each SPTE that it
 * finds.
 *
 * A page table is replaced if its present SPTEs agree in everything that the
 * huge SPTE expresses.  It need not be full: the host maps all of the memory by
 * one entry, and no part of it is being invalidated, so the missing SPTEs would
 * map the rest of the same huge page.  A page table that doesn't qualify is
 * emptied without a replacement, and vCPUs fault its memory in.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "mmu.h"
#include "mmu_internal.h"
#include "huge_recover.h"
#include "prove.h"
#include "split_memory.h"
#include "spte.h"
#include "spte_bulk.h"

/*
 * The least work between two voluntary drops of mmu_lock, in rmap heads and
 * SPTEs visited; see EAGER_SPLIT_MIN_WORK.
 */
#define HUGE_RECOVER_MIN_WORK	SPTE_ENT_PER_PAGE

/*
 * The most links to one page table that are replaced, and the most rmap entries
 * that are searched to empty a page table without dropping mmu_lock.  A page
 * table has one or two links, and a gfn one or two SPTEs, unless the guest
 * creates more.
 */
#define HUGE_RECOVER_MAX_LINKS	32
#define HUGE_RECOVER_MAX_RMAPS	(8 * SPTE_ENT_PER_PAGE)

/*
 * The most tries for one huge page, i.e. page tables handled and drops of
 * mmu_lock.  vCPUs that execute code for which NX huge pages require small
 * pages may create page tables as fast as they are zapped.
 */
#define HUGE_RECOVER_MAX_TRIES	256

struct huge_recover {
	struct kvm *kvm;

	/* slots_lock keeps it and its rmaps. */
	const struct kvm_memory_slot *slot;

	/*
	 * The page size to recover.  SPTEs of the next smaller size are
	 * visited.
	 */
	int level;

	/* Work since mmu_lock was taken last, see HUGE_RECOVER_MIN_WORK. */
	unsigned long work;

	/*
	 * vCPUs may have TLB entries of zapped SPTEs, or of SPTEs that were
	 * replaced by a larger page size.  Never true while mmu_lock is not
	 * held.
	 */
	bool flush;

	/* Allocating descriptors has failed, and is not tried again. */
	bool nomem;
};

/* What the SPTEs of one page table have in common. */
struct huge_recover_scan {
	/* The SPTE of the first page, or what it would be except W, A, D. */
	u64 first;

	/* The OR of all present leaf SPTEs. */
	u64 any;

	/* All SPTEs are present. */
	bool full;

	/* Huge SPTEs have replaced the page table. */
	bool replaced;
};

static void huge_recover_end_hold(struct huge_recover *hr)
{
	if (!hr->flush)
		return;

	kvm_flush_remote_tlbs_memslot(hr->kvm, hr->slot);
	kvm_prove_shadow_mmu(hr->kvm);
	hr->flush = false;
}

/*
 * Drop mmu_lock if it is contended, and flush TLBs before.  True if it was
 * dropped.
 */
static bool huge_recover_cond_resched(struct huge_recover *hr)
{
	if (hr->work < HUGE_RECOVER_MIN_WORK ||
	    !kvm_mmu_should_yield(hr->kvm, KVM_FORCE_RECOVER))
		return false;

	huge_recover_end_hold(hr);
	kvm_mmu_resched(hr->kvm);
	hr->work = 0;
	return true;
}

static u64 huge_recover_step(const struct huge_recover *hr)
{
	return (u64)KVM_PAGES_PER_HPAGE(hr->level - 1) << PAGE_SHIFT;
}

/* The bits in which SPTEs of one huge page may differ, other than the pfn. */
static u64 huge_recover_own_bits(void)
{
	return PT_WRITABLE_MASK | shadow_accessed_mask | shadow_dirty_mask;
}

/*
 * Does the link lead to a page table without entries, which can be treated as a
 * hole?  Not if the guest created so many links to that page table that
 * removing one takes long, or if the page table exists because of NX huge
 * pages.
 */
static bool huge_recover_is_empty_link(u64 spte)
{
	struct kvm_mmu_page *child = spte_to_child_sp(spte);

	return !child->nx_huge_page_disallowed &&
	       pte_list_count(&child->parent_ptes) <= HUGE_RECOVER_MAX_LINKS &&
	       !is_shadow_present_pte(spte_any_in_table(child->spt, SPTE_ENT_PER_PAGE));
}

/*
 * huge_recover_scan() for a page table that isn't full, or has links.  The
 * number of links is bounded, because for each of them another page table has
 * to be read.
 */
static bool huge_recover_scan_some(const struct huge_recover *hr, const struct kvm_mmu_page *sp,
				   struct huge_recover_scan *scan)
{
	u64 step = huge_recover_step(hr);
	unsigned int nr_links = 0;
	u64 spte, offset = 0;
	int i;

	scan->first = 0;
	scan->any = 0;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++, offset += step) {
		spte = READ_ONCE(sp->spt[i]);
		if (!is_shadow_present_pte(spte))
			continue;

		if (!is_last_spte(spte, sp->role.level)) {
			if (++nr_links > HUGE_RECOVER_MAX_LINKS ||
			    !huge_recover_is_empty_link(spte))
				return false;
			continue;
		}

		if (!scan->first)
			scan->first = spte - offset;
		if (((spte - offset) ^ scan->first) & ~huge_recover_own_bits())
			return false;
		scan->any |= spte;
	}

	return scan->first;
}

/*
 * Do all SPTEs of a page table map the same huge page of the host, in the same
 * way?
 */
static bool huge_recover_scan(const struct huge_recover *hr, const struct kvm_mmu_page *sp,
			      struct huge_recover_scan *scan)
{
	u64 diff;

	scan->first = READ_ONCE(sp->spt[0]);
	diff = spte_run_diff(sp->spt, scan->first, huge_recover_step(hr), SPTE_ENT_PER_PAGE,
			     &scan->any);
	scan->full = is_shadow_present_pte(scan->first) &&
		     is_last_spte(scan->first, sp->role.level) &&
		     !(diff & ~huge_recover_own_bits());

	if (!scan->full && !huge_recover_scan_some(hr, sp, scan))
		return false;

	/*
	 * SPTEs that track accesses without an Accessed bit have lost other
	 * bits, too.  A 32-bit host may read such an SPTE half-written.
	 */
	if (!IS_ENABLED(CONFIG_X86_64) && !spte_ad_enabled(scan->first))
		return false;

	return !is_access_track_spte(scan->first) &&
	       !(spte_to_pfn(scan->first) & (KVM_PAGES_PER_HPAGE(hr->level) - 1));
}

/*
 * The huge SPTE that a page fault would create, except that Accessed is set
 * only if any of the small SPTEs has it.  Either all of the small SPTEs are
 * MMU-writable, or none.  If they are, only dirty logging has cleared their
 * Writable and Dirty bits, so set both.
 */
static u64 huge_recover_spte(struct kvm *kvm, const struct huge_recover_scan *scan, int level)
{
	u64 own = huge_recover_own_bits();
	u64 spte = scan->first & ~own;

	spte |= scan->any & own & ~PT_WRITABLE_MASK;
	if (is_mmu_writable_spte(spte))
		spte |= PT_WRITABLE_MASK | shadow_dirty_mask;

	return make_huge_spte(kvm, spte, level);
}

/* Is this a link that no huge SPTE may replace? */
static bool huge_recover_keeps_link(struct kvm *kvm, u64 *sptep)
{
	struct kvm_mmu_page *child = spte_to_child_sp(READ_ONCE(*sptep));
	struct kvm_mmu_page *parent = sptep_to_sp(sptep);

	return parent->role.level != child->role.level + 1 || parent->role.passthrough ||
	       (parent->role.direct && parent->role.access != child->role.access) ||
	       is_obsolete_sp(kvm, parent);
}

/* May the links to a page table be replaced by huge SPTEs? */
static bool huge_recover_wants(const struct huge_recover *hr, struct kvm_mmu_page *sp, gfn_t gfn)
{
	struct kvm *kvm = hr->kvm;

	if (sp->gfn != gfn || sp->role.passthrough || sp->nx_huge_page_disallowed ||
	    is_obsolete_sp(kvm, sp))
		return false;

	/*
	 * No gfn may have a shadow page, in either address space (SMM).  In the
	 * other one, only the memslot of the first gfn is looked at, as when
	 * page faults map huge pages.
	 */
	if (!kvm_gfn_is_lpage_allowed(kvm, hr->slot, gfn, hr->level))
		return false;

	if (kvm_mmu_invalidation_overlaps(kvm, gfn, gfn + KVM_PAGES_PER_HPAGE(hr->level)) ||
	    kvm_prove_skip_split(gfn, hr->level))
		return false;

	return !kvm_mmu_find_rmap_spte(kvm, &sp->parent_ptes, huge_recover_keeps_link);
}

/*
 * Make sure that the cache contains the descriptors to add @nr SPTEs to the
 * rmap.  The first SPTE of an rmap needs none.
 *
 * Return: 0; -EAGAIN if mmu_lock was dropped to allocate, successfully or not;
 * -ENOMEM if there are too few and mmu_lock was not dropped.
 */
static int __must_check huge_recover_reserve(struct huge_recover *hr, struct kvm_rmap_head *head,
					     int nr)
{
	struct kvm *kvm = hr->kvm;

	if (nr == 1 && !kvm_rmap_peek(head))
		return 0;
	if (kvm_mmu_memory_cache_nr_free_objects(&kvm->arch.split_desc_cache) >= nr)
		return 0;
	if (hr->nomem)
		return -ENOMEM;

	huge_recover_end_hold(hr);
	kvm_dirty_log_release(kvm);
	write_unlock(&kvm->mmu_lock);
	cond_resched();
	hr->nomem = !!kvm_split_topup(kvm, nr, false);
	write_lock(&kvm->mmu_lock);
	kvm_dirty_log_hold(kvm);
	hr->work = 0;

	return -EAGAIN;
}

/*
 * Replace all links to a page table by huge SPTEs, if it qualifies.
 *
 * Return: 0 if no link is left; -EAGAIN if everything has to be looked up
 * again; -EPERM if vCPUs use the page table as a root, so that it can't be
 * replaced; another error if it doesn't qualify.
 */
static int huge_recover_links(struct huge_recover *hr, struct kvm_mmu_page *sp, gfn_t gfn,
			      struct huge_recover_scan *scan)
{
	struct kvm_rmap_head *head = gfn_to_rmap(gfn, hr->level, hr->slot);
	int nr = pte_list_count(&sp->parent_ptes);
	struct kvm *kvm = hr->kvm;
	int r;

	if (sp->root_count)
		return -EPERM;

	/* A page fault has replaced it by a huge page or another page table. */
	if (!nr) {
		huge_recover_scan(hr, sp, scan);
		return 0;
	}

	if (nr > HUGE_RECOVER_MAX_LINKS || !huge_recover_wants(hr, sp, gfn) ||
	    !huge_recover_scan(hr, sp, scan))
		return -EBUSY;

	r = huge_recover_reserve(hr, head, nr);
	if (r)
		return r;

	kvm_prove_window(KVM_WINDOW_RECOVER);
	kvm_mmu_link_huge(kvm, &kvm->arch.split_desc_cache, head, sp,
			  huge_recover_spte(kvm, scan, hr->level));
	scan->replaced = true;
	return 0;
}

/*
 * Empty a page table that has an SPTE for each gfn, each the only one of its
 * rmap.  Bits that CPUs and lockless page faults set meanwhile may be lost: the
 * memslot isn't logged, and pages are marked dirty when they are mapped.
 */
static void huge_recover_empty_full(struct kvm *kvm, struct kvm_mmu_page *sp,
				    struct kvm_rmap_head *heads)
{
	u64 *sptep = sp->spt;
	int i;

	spte_fill(sptep, SHADOW_NONPRESENT_VALUE, 0, SPTE_ENT_PER_PAGE);

	/* Aging needs no mmu_lock, and skips SPTEs that aren't present. */
	unrolled_count(8)
	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		if (unlikely(!kvm_rmap_clear_only(&heads[i], &sptep[i])))
			kvm_mmu_rmap_remove(kvm, &sptep[i], &heads[i]);
	}

	kvm_update_page_stats(kvm, sp->role.level, -SPTE_ENT_PER_PAGE);
}

/*
 * The 512 rmaps are empty now, so that splitting and logging can skip reading
 * them.
 */
static void huge_recover_note_empty(const struct huge_recover *hr, gfn_t gfn)
{
	if (hr->level == PG_LEVEL_2M)
		kvm_clear_small_sptes(hr->slot, gfn);
}

/* Would dropping the SPTEs one by one hold mmu_lock for too long? */
static bool huge_recover_is_long(const struct kvm_mmu_page *sp, struct kvm_rmap_head *heads)
{
	unsigned long nr = 0;
	int i;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++)
		nr += pte_list_count(&heads[i]);

	return nr > HUGE_RECOVER_MAX_RMAPS;
}

/*
 * Empty a page table one SPTE at a time.  Links are kept, except for those that
 * were treated as holes when huge SPTEs replaced the page table: there are at
 * most HUGE_RECOVER_MAX_LINKS of these, and for each link another page table is
 * read.  Return early if mmu_lock was dropped.
 */
static void huge_recover_empty_some(struct huge_recover *hr, struct kvm_mmu_page *sp,
				    struct kvm_rmap_head *heads, bool replaced)
{
	bool may_yield = huge_recover_is_long(sp, heads);
	struct kvm *kvm = hr->kvm;
	u64 spte;
	int i;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		spte = READ_ONCE(sp->spt[i]);
		if (!is_shadow_present_pte(spte))
			continue;

		if (is_last_spte(spte, sp->role.level)) {
			hr->work += pte_list_count(&heads[i]);
			kvm_mmu_drop_spte(kvm, &sp->spt[i]);
		} else if (replaced && huge_recover_is_empty_link(spte)) {
			drop_parent_pte(kvm, spte_to_child_sp(spte), &sp->spt[i]);
		}

		if (may_yield && huge_recover_cond_resched(hr))
			return;
	}
}

/*
 * Replace a page table by huge SPTEs, or zap its SPTEs.
 *
 * @many: at least one gfn of the huge page has several SPTEs.
 *
 * Return: true if nothing is left to do for the huge page.
 */
static bool huge_recover_table(struct huge_recover *hr, struct kvm_mmu_page *sp, gfn_t gfn,
			       struct kvm_rmap_head *heads, bool many)
{
	struct huge_recover_scan scan = {};
	struct kvm *kvm = hr->kvm;
	int r;

	r = huge_recover_links(hr, sp, gfn, &scan);
	if (r == -EAGAIN)
		return false;
	if (r == -EPERM)
		return true;

	hr->flush = true;
	hr->work += SPTE_ENT_PER_PAGE;

	if (IS_ENABLED(CONFIG_X86_64) && !r && scan.full && !many) {
		huge_recover_empty_full(kvm, sp, heads);
		huge_recover_note_empty(hr, gfn);
		return true;
	}

	huge_recover_empty_some(hr, sp, heads, scan.replaced);
	return false;
}

/*
 * A page table that isn't direct shadows one of the guest's: the guest maps the
 * memory by small pages, so that it can't become huge.
 */
static bool huge_recover_is_direct(struct kvm *kvm, u64 *sptep)
{
	return sptep_to_sp(sptep)->role.direct;
}

/*
 * Continue with the gfns of a huge page at index @i.  True if the huge page is
 * done.
 */
static bool huge_recover_next(struct huge_recover *hr, gfn_t gfn, struct kvm_rmap_head *heads,
			      unsigned int *i)
{
	u64 any = spte_any_in_table((const u64 *)heads,
				    SPTE_ENT_PER_PAGE * sizeof(*heads) / sizeof(u64));
	struct kvm *kvm = hr->kvm;
	u64 *sptep;

	if (!any) {
		huge_recover_note_empty(hr, gfn);
		return true;
	}

	for (; *i < SPTE_ENT_PER_PAGE; ++*i) {
		if (!kvm_rmap_peek(&heads[*i]))
			continue;

		if (hr->work && huge_recover_cond_resched(hr))
			return false;

		hr->work += pte_list_count(&heads[*i]);
		sptep = kvm_mmu_find_rmap_spte(kvm, &heads[*i], huge_recover_is_direct);
		if (!sptep)
			continue;

		if (kvm_mem_is_private(kvm, gfn) ||
		    kvm_mmu_max_mapping_level(kvm, NULL, hr->slot, gfn) < hr->level)
			return true;

		return huge_recover_table(hr, sptep_to_sp(sptep), gfn, heads, any & KVM_RMAP_MANY);
	}

	return true;
}

static void huge_recover_block(struct huge_recover *hr, gfn_t gfn)
{
	struct kvm_rmap_head *heads = gfn_to_rmap(gfn, hr->level - 1, hr->slot);
	unsigned int tries = 0, i = 0;

	if (hr->level == PG_LEVEL_2M && !kvm_may_have_small_sptes(hr->slot, gfn)) {
		hr->work++;
		huge_recover_cond_resched(hr);
		return;
	}

	while (!huge_recover_next(hr, gfn, heads, &i) && ++tries < HUGE_RECOVER_MAX_TRIES)
		huge_recover_cond_resched(hr);

	hr->work += SPTE_ENT_PER_PAGE;
	huge_recover_cond_resched(hr);
}

/* Skip huge pages that are only partly in the memslot. */
static void huge_recover_level(struct huge_recover *hr)
{
	const struct kvm_memory_slot *slot = hr->slot;
	gfn_t nr = KVM_PAGES_PER_HPAGE(hr->level);
	gfn_t gfn = ALIGN(slot->base_gfn, nr);

	for (; gfn + nr <= slot->base_gfn + slot->npages; gfn += nr)
		huge_recover_block(hr, gfn);
}

/**
 * kvm_huge_recover_slot - recover a memslot's huge pages after dirty logging
 * @kvm: the VM
 * @slot: the memslot, which isn't logged
 *
 * See huge_recover.h for locking.
 */
void kvm_huge_recover_slot(struct kvm *kvm, const struct kvm_memory_slot *slot)
{
	struct huge_recover hr = { .kvm = kvm, .slot = slot };

	lockdep_assert_held(&kvm->slots_lock);
	lockdep_assert_held_write(&kvm->mmu_lock);

	if (WARN_ON_ONCE(kvm_slot_dirty_track_enabled(slot)))
		return;

	for (hr.level = PG_LEVEL_2M; hr.level <= KVM_MAX_HUGEPAGE_LEVEL; hr.level++)
		huge_recover_level(&hr);

	huge_recover_end_hold(&hr);
}
