// SPDX-License-Identifier: GPL-2.0-only
/*
 * A memslot that is logged from its creation, while a vCPU runs
 *
 * The vCPU polls an address until a memslot appears there.  Then it reads three
 * pages, and writes to two of them.  If a huge page maps them, the first write
 * splits it.  With Dirty bits or PML, the second write takes no page fault, so
 * only the CPU can log it.  No other memslot is logged, so with PML, creating
 * this memslot is what enables PML in the vCPU.
 *
 * The log must contain the two written pages and no other page.  The test gets
 * the log twice, the second time when the guest has written again.
 *
 * Limits: the scheduler decides how early the vCPU finds the memslot.
 */
#include <sched.h>

#include "eager_split_util.h"

#define SLOT		10
#define DATA_GPA	0x40000000ull
#define DATA_PAGES	PAGES_PER_2M
#define FIRST_WRITTEN	7
#define LAST_WRITTEN	8

/* Content of the first page.  Reads without a memslot return another value. */
#define CONTENT		0x600dull

#define NR_ROUNDS	8

static struct kvm_vm *vm;
static struct kvm_vcpu *vcpu;
static unsigned int nr_polls;

static u64 *guest_page(unsigned int page)
{
	return (u64 *)(DATA_GPA + page * PAGE_SIZE);
}

static void write_pages(u64 value)
{
	for (unsigned int page = FIRST_WRITTEN; page <= LAST_WRITTEN; page++)
		WRITE_ONCE(*guest_page(page), value);
}

static void guest_code(void)
{
	for (;;) {
		/*
		 * KVM emulates reads that find no memslot, so only another read
		 * is certain to map the page.
		 */
		while (READ_ONCE(*guest_page(0)) != CONTENT)
			;
		READ_ONCE(*guest_page(0));
		for (unsigned int page = FIRST_WRITTEN; page <= LAST_WRITTEN; page++)
			READ_ONCE(*guest_page(page));
		write_pages(1);
		GUEST_SYNC(0);
		write_pages(2);
		GUEST_SYNC(1);
	}
}

/* While there is no memslot, each read exits to user space. */
static void *run_vcpu(void *unused)
{
	for (;;) {
		vcpu_run(vcpu);
		if (vcpu->run->exit_reason != KVM_EXIT_MMIO)
			break;
		WRITE_ONCE(nr_polls, nr_polls + 1);
	}
	TEST_ASSERT_EQ(get_ucall(vcpu, NULL), UCALL_SYNC);
	return NULL;
}

static void expect_written(unsigned int round, const char *when)
{
	unsigned long log[DATA_PAGES / BITS_PER_WORD];

	kvm_vm_get_dirty_log(vm, SLOT, log);
	for (unsigned int page = 0; page < DATA_PAGES; page++) {
		bool expected = page >= FIRST_WRITTEN && page <= LAST_WRITTEN;

		TEST_ASSERT(test_bit(page, log) == expected,
			    "round %u, %s: page %u: expected %s, seen %s", round, when, page,
			    expected ? "dirty" : "clean", test_bit(page, log) ? "dirty" : "clean");
	}
}

static void run_round(unsigned int round, void *hva)
{
	pthread_t thread;

	memset(hva, 0, DATA_PAGES * PAGE_SIZE);
	*(u64 *)hva = CONTENT;
	WRITE_ONCE(nr_polls, 0);
	start_thread(&thread, run_vcpu, NULL);
	/* Create the memslot while the vCPU runs. */
	while (!READ_ONCE(nr_polls))
		sched_yield();
	vm_set_user_memory_region(vm, SLOT, KVM_MEM_LOG_DIRTY_PAGES, DATA_GPA,
				  DATA_PAGES * PAGE_SIZE, hva);
	pthread_join(thread, NULL);
	expect_written(round, "written as it was created");

	run_vcpu(NULL);
	expect_written(round, "written again");
	vm_set_user_memory_region(vm, SLOT, 0, DATA_GPA, 0, NULL);
}

int main(void)
{
	void *hva;

	ksft_print_header();
	ksft_set_plan(1);
	hva = map_memory(DATA_PAGES * PAGE_SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1);
	vm = vm_create_with_one_vcpu(&vcpu, guest_code);
	virt_map(vm, DATA_GPA, DATA_GPA, DATA_PAGES);
	for (unsigned int round = 0; round < NR_ROUNDS; round++)
		run_round(round, hva);
	kvm_vm_free(vm);
	ksft_test_result_pass("the log has what was written\n");
	ksft_finished();
}
