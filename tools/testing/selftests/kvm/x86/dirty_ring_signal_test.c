// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty ring: a signal interrupts KVM_RESET_DIRTY_RINGS
 *
 * The guest writes to all pages of a memslot.  The host marks all entries of
 * the ring for reset, and calls KVM_RESET_DIRTY_RINGS until all of them are
 * reset.  A signal makes the ioctl return early, when it has reset a part of
 * the entries.  Then the guest writes to all pages again.  The test fails if a
 * page is missing from the ring.
 *
 * The signal is that of a timer, which interrupts the ioctl on its own CPU, so
 * no other thread has to be scheduled in time.  It may still come too early or
 * too late.  So the test tries delays from the start to the end of the ioctl,
 * until the ioctl has returned early some times.
 *
 * Kernels that do not check for signals there never return early.  The test is
 * then skipped.
 */
#include <signal.h>
#include <time.h>
#include <sys/time.h>
#include <asm/barrier.h>

#include "kvm_util.h"
#include "processor.h"

#define DATA_SLOT	10
#define DATA_GPA	0x40000000ull
#define NR_PAGES	4096
#define RING_SIZE	(2 * NR_PAGES * sizeof(struct kvm_dirty_gfn))
#define NR_EARLY	8
#define MAX_ROUNDS	200
/* The delays are eighths of the time that the ioctl takes without a signal. */
#define NR_DELAYS	8

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

/* Mark all entries of the ring for reset.  Return: how many there are. */
static u32 collect(struct kvm_vcpu *vcpu)
{
	struct kvm_dirty_gfn *ring = vcpu_map_dirty_ring(vcpu);
	u32 nr = 0;

	for (u32 i = 0; i < RING_SIZE / sizeof(*ring); i++) {
		/*
		 * Acquire: KVM has written the entry before its flags.
		 * Release: hand the entry back when it has been read.
		 */
		if (smp_load_acquire(&ring[i].flags) != KVM_DIRTY_GFN_F_DIRTY)
			continue;
		smp_store_release(&ring[i].flags, KVM_DIRTY_GFN_F_RESET); /* likewise */
		nr++;
	}
	return nr;
}

/*
 * Reset @nr entries, with a signal after @usec microseconds unless that is 0.
 * Return: has a call returned early, with a part of the entries reset?
 */
static bool reset_ring(struct kvm_vm *vm, u32 nr, u64 usec)
{
	struct itimerval once = { .it_value.tv_usec = usec };
	bool early = false;
	u32 some;

	TEST_ASSERT(!setitimer(ITIMER_REAL, &once, NULL), "setitimer");
	while (nr) {
		/*
		 * If the signal comes at once, no entry is reset.  There is only one
		 * signal, so that the next call resets some.
		 */
		some = kvm_vm_reset_dirty_ring(vm);
		TEST_ASSERT(some <= nr && (some || usec), "%u of %u entries were reset", some, nr);
		if (!some)
			usec = 0;
		nr -= some;
		early |= some && nr;
	}
	return early;
}

int main(void)
{
	u32 nr, round, early = 0, missing = 0;
	struct timespec start, whole = {};
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

	TEST_ASSERT(signal(SIGALRM, ignore) != SIG_ERR, "signal");
	/* The first round has no signal, and measures the time of the ioctl. */
	for (round = 0; early < NR_EARLY && round < MAX_ROUNDS; round++) {
		vcpu_run(vcpu);
		TEST_ASSERT(get_ucall(vcpu, NULL) == UCALL_SYNC, "The guest didn't get there");
		nr = collect(vcpu);
		missing += NR_PAGES - nr;
		clock_gettime(CLOCK_MONOTONIC, &start);
		early += reset_ring(vm, nr, timespec_to_ns(whole) / 1000 * (round % NR_DELAYS) /
					    NR_DELAYS);
		if (!round)
			whole = timespec_elapsed(start);
	}
	ksft_print_msg("%u times a signal came amid a reset, in %u rounds\n", early, round);
	if (!early && !missing)
		ksft_exit_skip("KVM_RESET_DIRTY_RINGS doesn't return early for a signal\n");
	ksft_test_result(!missing, "what is written is logged: %u pages are not\n", missing);
	kvm_vm_free(vm);
	ksft_finished();
}
