/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_TDP_LOG_H
#define __KVM_X86_MMU_TDP_LOG_H

#include <linux/kvm_host.h>

struct kvm_mmu_page;
struct tdp_iter;

/*
 * Make the next write to 4KiB pages of the TDP MMU show in the dirty log, for many pages
 * at once: by taking the Writable or the Dirty bit away from neighbouring SPTEs of a page
 * table of level 1.  TLBs are not flushed.
 *
 * Mirrors of page tables that KVM cannot access, as of TDX, hold nothing to change: only
 * memslots with private memory have SPTEs there, and such memslots are never logged (see
 * check_memory_region_flags()).  Memory that such a VM shares with the host is logged.  It is
 * mapped at the memslot's gfns with an additional bit set: see kvm_gfn_root_bits().
 */

/*
 * The table of level @to_level on the way from @root to @gfn, which has the bits that
 * kvm_gfn_root_bits() tells, or NULL, in an RCU read section.  @spte is the SPTE where the
 * walk ended: the link to the table, a huge one, or one that is not present.
 */
u64 *kvm_tdp_log_find(struct kvm_mmu_page *root, gfn_t gfn, int to_level, u64 *spte);

/*
 * The gfns are @gfn + i for each bit i in @mask, all in @slot.  mmu_lock is held for write.
 *
 * Return: true if no huge page maps any of them, so that there is nothing else to do; false
 * if one does, which stays as it was.
 */
bool kvm_tdp_log_word(struct kvm *kvm, const struct kvm_memory_slot *slot, gfn_t gfn,
		      unsigned long mask, bool wrprot);

/*
 * What the table of level 1 that @iter is at the link to, if it is at one, maps of the gfns
 * from @start up to @end.  mmu_lock is held for read, and slots_lock, so that the memslot
 * stays.
 */
void kvm_tdp_log_table(const struct tdp_iter *iter, gfn_t start, gfn_t end, u64 bit);

#endif /* __KVM_X86_MMU_TDP_LOG_H */
