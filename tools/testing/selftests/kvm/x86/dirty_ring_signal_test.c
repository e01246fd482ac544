// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty ring: a signal comes while KVM_RESET_DIRTY_RINGS takes entries from it.
 *
 * The ioctl returns early, and what was taken has to be logged again when the guest writes to
 * it again.  A signal may come too late, so it is tried until the ioctl has returned early some
 * times.  Kernels that don't look for signals there never do that, which is a skip.
 */
#include <pthread.h>
#include <signal.h>
#include <asm/barrier.h>

#include "kvm_util.h"
#include "processor.h"

#define DATA_SLOT	10
#define DATA_GPA	0x40000000ull
#define NR_PAGES	4096
#define RING_SIZE	(2 * NR_PAGES * sizeof(struct kvm_dirty_gfn))
#define NR_FIRST	64
#define NR_EARLY	8
#define MAX_ROUNDS	200

static struct kvm_dirty_gfn *amid;
static pthread_t main_thread;

static void guest_main(void)
{
	for (;;) {
		for (u64 i = 0; i < NR_PAGES; i++)
			WRITE_ONCE(*(u64 *)(DATA_GPA + i * PAGE_SIZE), i);
		GUEST_SYNC(0);
	}
}

static void ignore(int sig)
{
}

/* Return: how many pages are in the ring.  All are marked as to be reset. */
static u32 collect(struct kvm_vcpu *vcpu)
{
	struct kvm_dirty_gfn *ring = vcpu_map_dirty_ring(vcpu);
	u32 nr = 0;

	for (u32 i = 0; i < RING_SIZE / sizeof(*ring); i++) {
		/* The rest of the entry is there, and is KVM's again afterwards. */
		if (smp_load_acquire(&ring[i].flags) != KVM_DIRTY_GFN_F_DIRTY)
			continue;
		smp_store_release(&ring[i].flags, KVM_DIRTY_GFN_F_RESET); /* likewise */
		if (nr++ < NR_FIRST)
			amid = &ring[i];
	}
	return nr;
}

/* Once KVM has reset the first entries. */
static void *send_signal(void *started)
{
	WRITE_ONCE(*(bool *)started, true);
	while (READ_ONCE(amid->flags))
		;
	pthread_kill(main_thread, SIGALRM);
	return NULL;
}

/* Return: did a call come back with a part of NR entries? */
static bool reset_ring(struct kvm_vm *vm, u32 nr)
{
	bool started = false, early = false;
	pthread_t thread;
	u32 some;

	if (!nr)
		return false;

	TEST_ASSERT(!pthread_create(&thread, NULL, send_signal, &started), "pthread_create");
	while (!READ_ONCE(started))
		;
	for (; nr; nr -= some) {
		some = kvm_vm_reset_dirty_ring(vm);
		TEST_ASSERT(some <= nr && some, "%u of %u entries were reset", some, nr);
		early |= some < nr;
	}
	pthread_join(thread, NULL);
	return early;
}

int main(void)
{
	u32 nr, round, early = 0, missing = 0;
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_DIRTY_LOG_RING_ACQ_REL));
	ksft_print_header();
	ksft_set_plan(1);
	vm = __vm_create(VM_SHAPE_DEFAULT, 1, NR_PAGES);
	vm_enable_dirty_ring(vm, RING_SIZE);
	vcpu = vm_vcpu_add(vm, 0, guest_main);
	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, NR_PAGES,
				    KVM_MEM_LOG_DIRTY_PAGES);
	virt_map(vm, DATA_GPA, DATA_GPA, NR_PAGES);

	main_thread = pthread_self();
	TEST_ASSERT(signal(SIGALRM, ignore) != SIG_ERR, "signal");
	for (round = 0; early < NR_EARLY && round < MAX_ROUNDS; round++) {
		vcpu_run(vcpu);
		TEST_ASSERT(get_ucall(vcpu, NULL) == UCALL_SYNC, "The guest didn't get there");
		nr = collect(vcpu);
		missing += NR_PAGES - nr;
		early += reset_ring(vm, nr);
	}
	ksft_print_msg("%u times a signal came amid a reset, in %u rounds\n", early, round);
	if (early < NR_EARLY && !missing)
		ksft_exit_skip("KVM_RESET_DIRTY_RINGS doesn't return early for a signal\n");
	ksft_test_result(!missing, "what is written is logged: %u pages are not\n", missing);
	kvm_vm_free(vm);
	ksft_finished();
}
