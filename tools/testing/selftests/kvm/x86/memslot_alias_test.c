// SPDX-License-Identifier: GPL-2.0-only
/*
 * A guest changes a page table entry to another memslot with the same memory
 *
 * With shadow paging, KVM then has an SPTE whose gfn changes, while its pfn
 * stays the same.  The new entry allows instruction fetches, the old one did
 * not.  So a fetch takes a page fault, and KVM sees the new entry without a TLB
 * flush by the guest.
 *
 * The test fails if later writes are not in the log of the second memslot, or
 * if the SPTE is not zapped when that memslot is deleted.
 *
 * If KVM saw the guest's write to the entry, it would zap the SPTE.  So the
 * guest first writes to the page table once, so that KVM lets it get out of
 * sync.
 *
 * The test needs shadow paging (npt=0, ept=0).
 */
#include <sys/mman.h>

#include "kvm_util.h"
#include "processor.h"

#define FIRST_SLOT	10
#define LOGGED_SLOT	11
#define FIRST_GPA	0x40000000ull
#define LOGGED_GPA	0x50000000ull

/* Where the guest maps the page table that maps FIRST_GPA. */
#define TABLE_GVA	0x60000000ull

#define NR_WRITES	3

/* Bits of entries of page tables. */
#define PT_ACCESSED_MASK	BIT_ULL(5)
#define PT_DIRTY_MASK		BIT_ULL(6)
#define PT_NX_MASK		BIT_ULL(63)

/* Machine code of a function that only returns. */
#define RET		0xc3

/*
 * For the guest: the address of the entry that it changes, and its new value.
 */
static u64 *guest_entry;
static u64 new_entry;

static void guest_code(void)
{
	u8 *page = (u8 *)FIRST_GPA;

	WRITE_ONCE(page[0], RET);
	/* KVM lets the page table get out of sync once the guest writes to it. */
	WRITE_ONCE(*guest_entry, READ_ONCE(*guest_entry));
	WRITE_ONCE(page[0], RET);
	WRITE_ONCE(*guest_entry, new_entry);
	((void (*)(void))page)();
	GUEST_SYNC(0);

	for (u8 i = 1; i <= NR_WRITES; i++) {
		WRITE_ONCE(page[8], i);
		GUEST_SYNC(i);
	}

	/* The memslot is gone by now. */
	READ_ONCE(page[8]);
	GUEST_DONE();
}

static void run_until_sync(struct kvm_vcpu *vcpu)
{
	vcpu_run(vcpu);
	TEST_ASSERT_EQ(get_ucall(vcpu, NULL), UCALL_SYNC);
}

/* Return: was the page in the log?  KVM_GET_DIRTY_LOG clears the log. */
static bool take_log(struct kvm_vm *vm)
{
	unsigned long log = 0;

	kvm_vm_get_dirty_log(vm, LOGGED_SLOT, &log);
	return log & 1;
}

/* The first entry does not allow instruction fetches, the new one does. */
static void prepare_entries(struct kvm_vm *vm)
{
	u64 *entry;

	virt_pg_map(vm, FIRST_GPA, FIRST_GPA);
	entry = vm_get_pte(vm, FIRST_GPA);
	virt_pg_map(vm, TABLE_GVA, addr_hva2gpa(vm, entry) & PAGE_MASK);
	guest_entry = (u64 *)(TABLE_GVA + ((uintptr_t)entry & ~PAGE_MASK));
	new_entry = *entry - FIRST_GPA + LOGGED_GPA;
	new_entry |= PT_ACCESSED_MASK | PT_DIRTY_MASK;
	*entry |= PT_NX_MASK;
	sync_global_to_guest(vm, guest_entry);
	sync_global_to_guest(vm, new_entry);
}

int main(void)
{
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;
	unsigned int nr_logged = 0;
	u8 *hva;

	ksft_print_header();
	ksft_set_plan(2);
	TEST_REQUIRE(!kvm_is_tdp_enabled());
	hva = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TEST_ASSERT(hva != MAP_FAILED, "Can't map a page, errno %d", errno);
	*hva = RET;
	vm = vm_create_with_one_vcpu(&vcpu, guest_code);
	vm_set_user_memory_region(vm, FIRST_SLOT, 0, FIRST_GPA, PAGE_SIZE, hva);
	vm_set_user_memory_region(vm, LOGGED_SLOT, KVM_MEM_LOG_DIRTY_PAGES, LOGGED_GPA, PAGE_SIZE,
				  hva);
	prepare_entries(vm);

	run_until_sync(vcpu);
	/* Start with an empty log. */
	take_log(vm);
	for (u8 i = 1; i <= NR_WRITES; i++) {
		run_until_sync(vcpu);
		TEST_ASSERT_EQ(hva[8], i);
		nr_logged += take_log(vm);
	}
	ksft_test_result(nr_logged == NR_WRITES, "of %u writes %u are in the log\n", NR_WRITES,
			 nr_logged);

	vm_set_user_memory_region(vm, LOGGED_SLOT, 0, LOGGED_GPA, 0, NULL);
	vcpu_run(vcpu);
	ksft_test_result(vcpu->run->exit_reason == KVM_EXIT_MMIO,
			 "the SPTE goes with the memslot\n");
	kvm_vm_free(vm);
	ksft_finished();
}
