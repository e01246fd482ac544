// SPDX-License-Identifier: GPL-2.0-only
/*
 * A write fault finds no memslot, and then the SPTE of a memslot created since
 *
 * One vCPU writes to an address without memslot.  Between the moments at which
 * the page fault has looked for a memslot and at which it changes the SPTE, the
 * host creates a memslot there, and another vCPU reads the page.
 *
 * The test fails if
 *  - KVM does not flush TLBs when the host takes a page of a read-only memslot
 *    away from the reader;
 *  - the write has changed a page of a logged memslot, and the page is not in
 *    the log.
 *
 * Limits: unmodified kernels rarely hit this window.  To hit it always, modify
 * KVM to delay such faults until the vCPU's thread gets a signal.  The test
 * waits until the thread is asleep, and later sends a signal.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "kvm_util.h"
#include "processor.h"

#define SLOT		10
#define DATA_GPA	0x40000000ull
#define PAGES_PER_2M	512

/* Content of the page.  Reads without a memslot return another value. */
#define CONTENT		0x600dull
#define WRITTEN		1ull

struct test_case {
	const char *name;
	const char *label;
	u32 flags;		/* of the memslot */
	u64 nr_pages;
	void (*check)(const struct test_case *t);
};

static struct kvm_vm *vm;
static struct kvm_vcpu *writer, *reader;
static u64 *hva;

/* Set by the guest just before its write. */
static bool writing;

/* The writer's thread: its id, and whether KVM_RUN has returned. */
static pid_t writer_tid;
static bool writer_done;

static void guest_write(void)
{
	WRITE_ONCE(writing, true);
	WRITE_ONCE(*(u64 *)DATA_GPA, WRITTEN);
	GUEST_SYNC(0);
}

/*
 * KVM emulates a read that finds no memslot.  If the memslot is created
 * meanwhile, the emulator reads the page without mapping it.  So the guest
 * reads once more.
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
	/* Without a signal, it ends as MMIO: no memory, or read-only memory. */
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

	/* The read fails when the thread is gone. */
	if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(f);
	return state == 'S';
}

/* Wait until the kernel delays the fault or, if it doesn't, until KVM_RUN has returned. */
static void wait_for_fault(void)
{
	do {
		sched_yield();
		sync_global_from_guest(vm, writing);
	} while (!READ_ONCE(writer_done) && !(writing && is_writer_asleep()));
}

/*
 * The memslot becomes visible at once.  Then the ioctl waits for the delayed
 * fault, which is a reader of kvm->srcu.
 */
static void *add_slot(void *arg)
{
	const struct test_case *t = arg;

	vm_set_user_memory_region(vm, SLOT, t->flags, DATA_GPA, t->nr_pages * PAGE_SIZE, hva);
	return NULL;
}

/* While there is no memslot, each read exits to user space. */
static void read_page(void)
{
	do {
		vcpu_run(reader);
	} while (reader->run->exit_reason == KVM_EXIT_MMIO);
	TEST_ASSERT_EQ(get_ucall(reader, NULL), UCALL_SYNC);
}

/* The host takes the page of a read-only memslot away from the reader. */
static void check_flush(const struct test_case *t)
{
	u64 flushes = vm_get_stat(vm, remote_tlb_flush_requests);

	madvise(hva, PAGE_SIZE, MADV_DONTNEED);
	ksft_test_result(vm_get_stat(vm, remote_tlb_flush_requests) > flushes,
			 "%s: TLBs are flushed when the host takes a page away\n", t->label);
}

/*
 * Run the writer again, which repeats a write that the signal has interrupted.
 * A write that has exited as MMIO never reaches the page, and need not be
 * logged.
 */
static void check_log(const struct test_case *t)
{
	unsigned long log[PAGES_PER_2M / 64] = {};
	u64 written;

	vcpu_run(writer);
	TEST_ASSERT_EQ(get_ucall(writer, NULL), UCALL_SYNC);
	written = READ_ONCE(*hva) == WRITTEN;
	kvm_vm_get_dirty_log(vm, SLOT, log);
	ksft_test_result((log[0] & 1) >= written, "%s: page written: %lu, in the log: %lu\n",
			 t->label, written, log[0] & 1);
}

static const struct test_case cases[] = {
	{ "readonly", "read-only memslot", KVM_MEM_READONLY, 1, check_flush },
	{ "logged", "logged memslot", KVM_MEM_LOG_DIRTY_PAGES, 1, check_log },
	{ "logged_2m", "logged memslot of 2 MiB", KVM_MEM_LOG_DIRTY_PAGES, PAGES_PER_2M,
	  check_log },
};

static void run_case(const struct test_case *t)
{
	pthread_t write_thread, slot_thread;

	WRITE_ONCE(writer_tid, 0);
	WRITE_ONCE(writer_done, false);
	*hva = CONTENT;
	vm = vm_create(2);
	writer = vm_vcpu_add(vm, 0, guest_write);
	reader = vm_vcpu_add(vm, 1, guest_read);
	virt_pg_map(vm, DATA_GPA, DATA_GPA);

	pthread_create(&write_thread, NULL, run_writer, NULL);
	wait_for_fault();
	pthread_create(&slot_thread, NULL, add_slot, (void *)t);
	read_page();
	/* If the fault was delayed, it continues now. */
	pthread_kill(write_thread, SIGUSR1);
	pthread_join(write_thread, NULL);
	pthread_join(slot_thread, NULL);

	t->check(t);
	kvm_vm_free(vm);
}

/* 2 MiB, aligned.  If the host has no transparent huge pages then KVM maps small ones. */
static void *map_huge_page(void)
{
	const size_t size = PAGES_PER_2M * PAGE_SIZE;
	void *p = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	TEST_ASSERT(p != MAP_FAILED, "Can't map %zu bytes, errno %d", 2 * size, errno);
	p = (void *)(((uintptr_t)p + size - 1) & ~(size - 1));
	madvise(p, size, MADV_HUGEPAGE);
	return p;
}

static void help(const char *name)
{
	printf("usage: %s [-h] [-m CASE]\n\n"
	       " -m: run this case only, one of:\n", name);
	for (int i = 0; i < ARRAY_SIZE(cases); i++)
		printf("     %-10s %s\n", cases[i].name, cases[i].label);
}

int main(int argc, char *argv[])
{
	const char *only = NULL;
	int opt, nr = 0;

	while ((opt = getopt(argc, argv, "hm:")) != -1) {
		if (opt != 'm') {
			help(argv[0]);
			return opt == 'h' ? 0 : 2;
		}
		only = optarg;
	}
	for (int i = 0; i < ARRAY_SIZE(cases); i++)
		nr += !only || !strcmp(only, cases[i].name);
	if (!nr) {
		fprintf(stderr, "%s: no case '%s'; -h lists them\n", argv[0], only);
		return 2;
	}

	ksft_print_header();
	ksft_set_plan(nr);
	hva = map_huge_page();
	TEST_ASSERT(signal(SIGUSR1, ignore) != SIG_ERR, "signal");
	for (int i = 0; i < ARRAY_SIZE(cases); i++)
		if (!only || !strcmp(only, cases[i].name))
			run_case(&cases[i]);
	ksft_finished();
}
