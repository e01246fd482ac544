/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __KVM_X86_MMU_SPLIT_MEMORY_H
#define __KVM_X86_MMU_SPLIT_MEMORY_H

#include <linux/gfp.h>
#include <linux/kvm_host.h>

/*
 * Splitting huge pages before they are written is optional: its allocations
 * never invoke the OOM killer, and leave reserves to threads that free memory.
 */
#define KVM_SPLIT_GFP	(GFP_KERNEL_ACCOUNT | __GFP_NORETRY | __GFP_NOWARN | __GFP_NOMEMALLOC)

bool kvm_split_has_margin(struct kvm *kvm);

/* Locking: callers of the following functions hold slots_lock. */
bool kvm_split_is_paused(struct kvm *kvm);
bool kvm_split_is_stocked(struct kvm *kvm, int nr_descs, bool page_table);
int kvm_split_make_room(struct kvm *kvm);
int kvm_split_topup(struct kvm *kvm, int nr_descs, bool page_table);

#endif /* __KVM_X86_MMU_SPLIT_MEMORY_H */
