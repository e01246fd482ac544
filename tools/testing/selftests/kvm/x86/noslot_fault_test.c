// SPDX-License-Identifier: GPL-2.0-only
/*
 * A write fault that found no memslot meets the SPTE of a read-only one that came since
 *
 * Another vCPU has read the page, and then the host takes it away: for that TLBs have to be
 * flushed.  Only a kernel that waits amid such faults, as mutants do, is sure to get there.
 * Such a kernel waits until the vCPU's thread gets a signal, and is seen to sleep meanwhile.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "kvm_util.h"
#include "processor.h"

#define SLOT		10
#define DATA_GPA	0x40000000ull

/* What the page has.  Where there is no memslot, a read gets something else. */
#define CONTENT		0x600dull

static struct kvm_vm *vm;
static struct kvm_vcpu *writer, *reader;
static u64 *hva;

/* Set by the guest just before its write. */
static bool writing;

/* Of the thread of the writer: its id, and whether it has left KVM. */
static pid_t writer_tid;
static bool writer_done;

static void guest_write(void)
{
	WRITE_ONCE(writing, true);
	WRITE_ONCE(*(u64 *)DATA_GPA, 1);
	GUEST_SYNC(0);
}

/*
 * KVM emulates reads where it has found no memslot.  If the memslot comes meanwhile then the
 * emulator reads the page without mapping it, so the guest reads once more.
 */
static void guest_read(void)
{
	while (READ_ONCE(*(u64 *)DATA_GPA) != CONTENT)
		;
	READ_ONCE(*(u64 *)DATA_GPA);
	GUEST_SYNC(0);
}

static void ignore(int sig)
{
}

static void *run_writer(void *unused)
{
	WRITE_ONCE(writer_tid, syscall(SYS_gettid));
	/* A write to no memory, or to read-only memory, if it isn't the signal that ends it. */
	if (!__vcpu_run(writer))
		TEST_ASSERT_KVM_EXIT_REASON(writer, KVM_EXIT_MMIO);
	WRITE_ONCE(writer_done, true);
	return NULL;
}

static bool is_writer_asleep(void)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", READ_ONCE(writer_tid));
	f = fopen(path, "r");
	if (!f)
		return false;

	/* Nothing can be read once the thread is gone. */
	if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(f);
	return state == 'S';
}

/* The fault waits, or is over where nothing waits. */
static void wait_for_fault(void)
{
	do {
		sched_yield();
		sync_global_from_guest(vm, writing);
	} while (!READ_ONCE(writer_done) && !(writing && is_writer_asleep()));
}

/* The memslot is there at once.  Then KVM waits for the page fault. */
static void *add_slot(void *unused)
{
	vm_set_user_memory_region(vm, SLOT, KVM_MEM_READONLY, DATA_GPA, PAGE_SIZE, hva);
	return NULL;
}

/* Until there is a memslot the reads end in user space. */
static void read_page(void)
{
	do {
		vcpu_run(reader);
	} while (reader->run->exit_reason == KVM_EXIT_MMIO);
	TEST_ASSERT_EQ(get_ucall(reader, NULL), UCALL_SYNC);
}

int main(void)
{
	pthread_t write_thread, slot_thread;
	u64 flushes;

	ksft_print_header();
	ksft_set_plan(1);
	hva = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TEST_ASSERT(hva != MAP_FAILED, "mmap");
	*hva = CONTENT;
	vm = vm_create(2);
	writer = vm_vcpu_add(vm, 0, guest_write);
	reader = vm_vcpu_add(vm, 1, guest_read);
	virt_pg_map(vm, DATA_GPA, DATA_GPA);
	TEST_ASSERT(signal(SIGUSR1, ignore) != SIG_ERR, "signal");

	pthread_create(&write_thread, NULL, run_writer, NULL);
	wait_for_fault();
	pthread_create(&slot_thread, NULL, add_slot, NULL);
	read_page();
	/* If the fault waited, it goes on now. */
	pthread_kill(write_thread, SIGUSR1);
	pthread_join(write_thread, NULL);
	pthread_join(slot_thread, NULL);

	flushes = vm_get_stat(vm, remote_tlb_flush_requests);
	madvise(hva, PAGE_SIZE, MADV_DONTNEED);
	ksft_test_result(vm_get_stat(vm, remote_tlb_flush_requests) > flushes,
			 "TLBs are flushed when the host takes a page away\n");
	kvm_vm_free(vm);
	ksft_finished();
}
