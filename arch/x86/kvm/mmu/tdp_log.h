/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_TDP_LOG_H
#define __KVM_X86_MMU_TDP_LOG_H

#include <linux/kvm_host.h>

struct kvm_mmu_page;
struct tdp_iter;

/*
 * Arm many 4KiB pages of the TDP MMU at once, i.e. make the next write to them
 * show in the dirty log, by clearing the Writable or the Dirty bit of
 * neighbouring SPTEs of a page table of level 1.  TLBs are not flushed.
 *
 * Mirrors of page tables that KVM cannot access, e.g. those of TDX, contain
 * nothing to arm: only memslots with private memory have SPTEs there, and such
 * memslots are never logged (see check_memory_region_flags()).  Memory that
 * such a VM shares with the host is logged.  It is mapped at the memslot's gfns
 * with an additional bit set, see kvm_gfn_root_bits().
 */

/*
 * Find the page table of level @to_level that maps @gfn below @root, or return
 * NULL.  The caller has set the bits of kvm_gfn_root_bits() in @gfn, and is in
 * an RCU read section.  @spte returns the SPTE at which the walk ended: the
 * link to the page table, a huge SPTE, or one that is not present.
 */
u64 *kvm_tdp_log_find(struct kvm_mmu_page *root, gfn_t gfn, int to_level, u64 *spte);

/*
 * How page tables map the gfns of a word of the log.  The gfns may be mapped
 * differently, and so may a gfn below different roots: the greatest value
 * stands for all of them.
 */
enum kvm_tdp_log_map {
	/* No huge page maps any of the gfns. */
	KVM_TDP_LOG_SMALL,
	/* Huge pages map some of them, and all of these are write-protected. */
	KVM_TDP_LOG_PROTECTED,
	/* CPUs may write to one of these huge pages, or it is not known. */
	KVM_TDP_LOG_WRITABLE,
};

/*
 * Arm the gfns @gfn + i for each bit i in @mask, all in @slot, as far as small
 * pages map them.  Huge pages are left unchanged.  The caller holds mmu_lock
 * for write.
 *
 * Return: how the gfns are mapped
 */
enum kvm_tdp_log_map kvm_tdp_log_word(struct kvm *kvm, const struct kvm_memory_slot *slot,
				      gfn_t gfn, unsigned long mask, bool wrprot);

/*
 * If @iter is at the link to a page table of level 1, arm those gfns that the
 * page table maps and that are in [start, end).  The caller holds mmu_lock for
 * read, and slots_lock, so that the memslot stays.
 */
void kvm_tdp_log_table(const struct tdp_iter *iter, gfn_t start, gfn_t end, u64 bit);

#endif /* __KVM_X86_MMU_TDP_LOG_H */
