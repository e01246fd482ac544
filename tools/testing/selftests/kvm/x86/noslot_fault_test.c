// SPDX-License-Identifier: GPL-2.0-only
/*
 * A write fault that found no memslot meets the SPTE of a read-only one that came since
 *
 * Another vCPU has read the page, and then the host takes it away: for that TLBs have to be
 * flushed.  Only a kernel that waits amid such faults, as mutants do, is sure to get there.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "kvm_util.h"
#include "processor.h"

#define SLOT		10
#define DATA_GPA	0x40000000ull

static struct kvm_vm *vm;
static void *hva;

static void guest_main(bool write)
{
	if (write)
		WRITE_ONCE(*(u64 *)DATA_GPA, 1);
	READ_ONCE(*(u64 *)DATA_GPA);
	GUEST_SYNC(0);
}

/* A vCPU's write, or the memslot, which is there at once, and then waits for the page fault. */
static void *run_or_add_slot(void *vcpu)
{
	if (vcpu)
		vcpu_run(vcpu);
	else
		vm_set_user_memory_region(vm, SLOT, KVM_MEM_READONLY, DATA_GPA, PAGE_SIZE, hva);
	return NULL;
}

int main(void)
{
	struct kvm_vcpu *writer, *reader;
	pthread_t threads[2];
	u64 flushes;

	ksft_print_header();
	ksft_set_plan(1);
	hva = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	vm = vm_create(2);
	writer = vm_vcpu_add(vm, 0, guest_main);
	reader = vm_vcpu_add(vm, 1, guest_main);
	vcpu_args_set(writer, 1, 1ull);
	vcpu_args_set(reader, 1, 0ull);
	virt_pg_map(vm, DATA_GPA, DATA_GPA);

	for (int i = 0; i < 2; i++) {
		pthread_create(&threads[i], NULL, run_or_add_slot, i ? NULL : writer);
		usleep(500000);
	}
	vcpu_run(reader);
	TEST_ASSERT_EQ(get_ucall(reader, NULL), UCALL_SYNC);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);

	flushes = vm_get_stat(vm, remote_tlb_flush_requests);
	madvise(hva, PAGE_SIZE, MADV_DONTNEED);
	ksft_test_result(vm_get_stat(vm, remote_tlb_flush_requests) > flushes,
			 "TLBs are flushed when the host takes a page away\n");
	kvm_vm_free(vm);
	ksft_finished();
}
