// SPDX-License-Identifier: GPL-2.0-only
/*
 * KVM_CAP_X86_DIRTY_LOG_CONTROL: user space steers dirty logging of a VM
 *
 * The parameters eager_page_split and dirty_harvest say what a VM does that doesn't ask,
 * and what VMs may ask for.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kvm_host.h>
#include <linux/mutex.h>

#include "mmu.h"
#include "spte.h"

static_assert(KVM_X86_EAGER_SPLIT_CHUNK_UNIT == SPTE_ENT_PER_PAGE);

/**
 * kvm_dirty_log_control_allows - what a VM may ask for, as KVM_CHECK_EXTENSION returns it
 * @kvm: the VM, or NULL: one of the default type
 *
 * A value is allowed if the VM would do what it says, without a dirty ring.
 */
int kvm_dirty_log_control_allows(struct kvm *kvm)
{
	bool has_dirty_bits = kvm ? kvm_dirty_harvest_is_possible(kvm) : kvm_ad_enabled;
	int r = KVM_X86_ALLOWS_EAGER_SPLIT_HOST | KVM_X86_ALLOWS_EAGER_SPLIT_OFF |
		KVM_X86_ALLOWS_EAGER_SPLIT_CHUNK | KVM_X86_ALLOWS_DIRTY_LOG_HOST |
		KVM_X86_ALLOWS_DIRTY_LOG_WRPROT;

	if (READ_ONCE(eager_page_split))
		r |= KVM_X86_ALLOWS_EAGER_SPLIT_ON;
	if (kvm_dirty_harvest_mode() != KVM_HARVEST_OFF)
		r |= KVM_X86_ALLOWS_DIRTY_LOG_AUTO |
		     (has_dirty_bits ? KVM_X86_ALLOWS_DIRTY_LOG_DIRTY_BITS : 0);
	return r;
}

static bool control_is_valid(struct kvm *kvm, const __u64 *args)
{
	int allowed = kvm_dirty_log_control_allows(kvm);

	return args[0] <= KVM_X86_EAGER_SPLIT_ON && args[2] <= KVM_X86_DIRTY_LOG_AUTO &&
	       (allowed & (KVM_X86_ALLOWS_EAGER_SPLIT_HOST << args[0])) &&
	       (allowed & (KVM_X86_ALLOWS_DIRTY_LOG_HOST << args[2])) &&
	       args[1] <= KVM_X86_EAGER_SPLIT_CHUNK_MAX &&
	       !(args[1] % KVM_X86_EAGER_SPLIT_CHUNK_UNIT) && !args[3];
}

/* Where CPUs log by themselves, that is what a VM does that doesn't ask for something else. */
static bool control_uses_pml(u64 method)
{
	return method != KVM_X86_DIRTY_LOG_WRPROT && method != KVM_X86_DIRTY_LOG_DIRTY_BITS;
}

static enum kvm_harvest_mode control_mode(u64 method)
{
	switch (method) {
	case KVM_X86_DIRTY_LOG_WRPROT:
		return KVM_HARVEST_OFF;
	case KVM_X86_DIRTY_LOG_DIRTY_BITS:
		return KVM_HARVEST_ON;
	case KVM_X86_DIRTY_LOG_AUTO:
		return KVM_HARVEST_AUTO;
	default:
		return kvm_dirty_harvest_mode();
	}
}

/**
 * kvm_dirty_log_control_enable - do as user space asks with KVM_ENABLE_CAP
 * @kvm: the VM
 * @args: of the capability
 *
 * Page faults look at what is decided here, and so do memslots that are logged: there is
 * none of either yet, or it is too late.
 *
 * Return: 0; -EINVAL or -EBUSY, and nothing has changed.
 */
int kvm_dirty_log_control_enable(struct kvm *kvm, const __u64 *args)
{
	bool harvests;
	int r = 0;

	if (!control_is_valid(kvm, args))
		return -EINVAL;

	/*
	 * It takes cpus_read_lock(), which is taken outside of kvm_lock, and that outside of
	 * slots_lock.  Hence count the VM before, and afterwards not what it was.
	 */
	harvests = args[2] == KVM_X86_DIRTY_LOG_DIRTY_BITS ||
		   kvm_dirty_harvest_is_wanted(kvm, control_mode(args[2]));
	kvm_dirty_harvest_get(harvests);

	mutex_lock(&kvm->lock);
	mutex_lock(&kvm->slots_lock);

	if (kvm->created_vcpus || !kvm_are_all_memslots_empty(kvm)) {
		r = -EBUSY;
	} else {
		kvm->arch.eager_split_off = args[0] == KVM_X86_EAGER_SPLIT_OFF;
		kvm->arch.max_splits = args[1] / KVM_X86_EAGER_SPLIT_CHUNK_UNIT;
		kvm->arch.cpu_dirty_log_size = control_uses_pml(args[2]) ?
					       kvm->arch.usual_cpu_dirty_log_size : 0;
		swap(kvm->arch.dirty_harvest, harvests);
		kvm->stat.dirty_harvest = kvm->arch.dirty_harvest && !kvm->dirty_ring_size;
	}

	mutex_unlock(&kvm->slots_lock);
	mutex_unlock(&kvm->lock);

	kvm_dirty_harvest_put(harvests);
	return r;
}
