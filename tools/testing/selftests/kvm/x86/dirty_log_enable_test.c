// SPDX-License-Identifier: GPL-2.0-only
/*
 * What other threads do while dirty logging is being enabled
 *
 * Each round enables logging, while another thread acts.  The thread acts a
 * little later in each round, so that all rounds together cover the whole
 * ioctl.
 *
 *  - split: a vCPU writes to a huge page of the memslot, which sets its Dirty
 *    bit again, and executes code in it.  If kvm.nx_huge_pages is on, KVM has
 *    to split the huge page for that.  All pages that another vCPU writes later
 *    must be in the log.  If KVM lost a bit while it replaced the huge page by
 *    a link, the vCPU would fault forever; an alarm then fails the test.  Each
 *    round uses another huge page, because KVM does not restore huge pages that
 *    were split before logging.  4KiB pages behind the huge pages make the
 *    ioctl take long.
 *  - create: a vCPU is created.  What it writes must be in the log.  These
 *    vCPUs run without paging and without CPUID, because KVM_SET_CPUID2 would
 *    make KVM decide again whether the CPU logs their writes.
 *  - guess: the same, but another thread guesses the file descriptor of the
 *    vCPU, and runs the vCPU before the ioctl that creates it has returned.
 *
 * "split" needs free 2MiB HugeTLB pages.
 *
 * Limits: the test hits a race only by chance.  With kvm.eager_page_split=Y,
 * KVM splits the huge page before the vCPU can make KVM split it.
 */
#include <signal.h>

#include "eager_split_util.h"

#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define MAX_ROUNDS		32
#define HUGE_SIZE		(MAX_ROUNDS * SZ_2M)
#define DATA_SIZE		(HUGE_SIZE + SZ_32M)
#define ROUND_S			2
#define CODE_OFFSET		(5 * PAGE_SIZE + 64)
#define OPCODE_RET		0xc3

#define CODE_SLOT		11
#define CODE_GPA		0x10000ull
#define NR_CREATED		32
#define NR_GUESSED		6

static struct kvm_vcpu *writer, *executor;
static pthread_barrier_t barrier, guess_barrier;
static struct kvm_vm *vm;
static void *mem;
static u64 delay_ns;
static u64 nr_rounds = 16;

/*
 * Write to the start of each page: some emulators log other addresses wrongly.
 */
static void guest_write_range(u64 gva, u64 size)
{
	for (u64 end = gva + size; gva < end; gva += PAGE_SIZE)
		WRITE_ONCE(*(u64 *)gva, gva);
}

/* Runs twice in each round: before and after logging is enabled. */
static void guest_write(void)
{
	for (unsigned int i = 0; ; i++) {
		guest_write_range(DATA_GPA + i / 2 * SZ_2M, SZ_2M);
		guest_write_range(DATA_GPA + HUGE_SIZE, SZ_32M);
		GUEST_SYNC(0);
	}
}

static void guest_execute(void)
{
	for (u64 gva = DATA_GPA; ; gva += SZ_2M) {
		WRITE_ONCE(*(u64 *)gva, 0);
		((void (*)(void))(gva + CODE_OFFSET))();
		GUEST_SYNC(0);
	}
}

/* One thread for all rounds, as KVM_RUN waits for RCU if the thread changes. */
static void *execute_later(void *arg)
{
	for (unsigned int round = 0; round < nr_rounds; round++) {
		pthread_barrier_wait(&barrier);
		spin_ns(delay_ns);
		vcpu_run_to_sync(executor, NULL);
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

static void set_flags(u32 flags)
{
	vm_set_user_memory_region(vm, DATA_SLOT, flags, DATA_GPA, DATA_SIZE, mem);
}

static void create_slot(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED | MAP_HUGETLB;

	mem = reserve_2m_aligned(DATA_SIZE);
	TEST_ASSERT(mmap(mem, HUGE_SIZE, PROT_READ | PROT_WRITE, flags, -1, 0) == mem, "mmap");
	TEST_ASSERT(!mprotect(mem + HUGE_SIZE, SZ_32M, PROT_READ | PROT_WRITE), "mprotect");
	TEST_ASSERT(!madvise(mem + HUGE_SIZE, SZ_32M, MADV_NOHUGEPAGE), "madvise");
	set_flags(0);
	virt_map_level(vm, DATA_GPA, DATA_GPA, DATA_SIZE, PG_LEVEL_2M);
}

/* Return: how many pages of this round's 2MiB are missing from the log. */
static unsigned int nr_missing(unsigned int round)
{
	unsigned long log[DATA_SIZE / PAGE_SIZE / BITS_PER_WORD];
	unsigned int i, first = round * PAGES_PER_2M, missing = 0;

	vcpu_run_to_sync(writer, NULL);
	kvm_vm_get_dirty_log(vm, DATA_SLOT, log);
	for (i = first; i < first + PAGES_PER_2M; i++)
		missing += !test_bit(i, log);
	return missing;
}

static void give_up(int sig)
{
	ksft_exit_fail_msg("A vCPU faults and doesn't get on\n");
}

static void run_split(void)
{
	unsigned int round, missing = 0;
	u64 enabling_ns = ~0ull, since;
	pthread_t thread;
	void *huge;

	vm = vm_create_with_one_vcpu(&writer, guest_write);
	executor = vm_vcpu_add(vm, 1, guest_execute);
	create_slot();
	pthread_barrier_init(&barrier, NULL, 2);
	start_thread(&thread, execute_later, NULL);
	TEST_ASSERT(signal(SIGALRM, give_up) != SIG_ERR, "signal");

	/*
	 * In the first round, the vCPU runs at once.  In about a third of the
	 * rounds, it begins within the time of the shortest ioctl so far.  In
	 * later rounds, it can only hit an ioctl that takes longer.
	 */
	for (round = 0; round < nr_rounds; round++) {
		alarm(ROUND_S);
		huge = mem + round * SZ_2M;
		*(u8 *)(huge + CODE_OFFSET) = OPCODE_RET;
		vcpu_run_to_sync(writer, NULL);
		delay_ns = enabling_ns * round * round * 8 / (nr_rounds * nr_rounds);
		pthread_barrier_wait(&barrier);
		since = now_ns();
		set_flags(KVM_MEM_LOG_DIRTY_PAGES);
		enabling_ns = min(enabling_ns, now_ns() - since);
		pthread_barrier_wait(&barrier);
		missing += nr_missing(round);
		set_flags(0);
		TEST_ASSERT(!madvise(huge, SZ_2M, MADV_DONTNEED), "madvise");
	}
	alarm(0);
	pthread_join(thread, NULL);

	ksft_test_result(!missing, "what is written is logged: %u pages are not\n", missing);
	kvm_vm_free(vm);
}

/* A vCPU is created */

/* movb $1, (%eax); out %al, $0x10 */
static const u8 write_code[] = { 0xc6, 0x00, 0x01, 0xe6, 0x10 };

/* The rounds that enable_later() shall begin, has begun, and has completed. */
static unsigned int nr_asked, nr_begun, nr_done;

/* The number of rounds, including round 0, which creates the first vCPU. */
static unsigned int nr_enabled;

static void set_page_flags(u32 flags)
{
	vm_set_user_memory_region(vm, DATA_SLOT, flags, DATA_GPA, PAGE_SIZE, mem);
}

/* Wait in a busy loop, so that both threads begin at the same moment. */
static void *enable_later(void *arg)
{
	for (unsigned int round = 1; round < nr_enabled; round++) {
		while (READ_ONCE(nr_asked) < round)
			;
		WRITE_ONCE(nr_begun, round);
		spin_ns(READ_ONCE(delay_ns));
		set_page_flags(KVM_MEM_LOG_DIRTY_PAGES);
		WRITE_ONCE(nr_done, round);
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

/* Let the vCPU write to the page, in protected mode without paging. */
static void write_page(struct kvm_vcpu *vcpu)
{
	struct kvm_regs regs = { .rip = CODE_GPA, .rax = DATA_GPA, .rflags = X86_EFLAGS_FIXED };
	struct kvm_sregs sregs;

	vcpu_sregs_get(vcpu, &sregs);
	sregs.cr0 |= X86_CR0_PE;
	set_flat_segments(&sregs, false);
	vcpu_sregs_set(vcpu, &sregs);
	vcpu_regs_set(vcpu, &regs);
	vcpu_run(vcpu);
	TEST_ASSERT_KVM_EXIT_REASON(vcpu, KVM_EXIT_IO);
}

static void create_page_vm(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	void *code = map_memory(PAGE_SIZE, PROT_READ | PROT_WRITE, flags, -1);

	memcpy(code, write_code, sizeof(write_code));
	mem = map_memory(PAGE_SIZE, PROT_READ | PROT_WRITE, flags, -1);
	vm = vm_create_barebones();
	vm_set_user_memory_region(vm, CODE_SLOT, 0, CODE_GPA, PAGE_SIZE, code);
	set_page_flags(0);
}

/* Return: how long that took. */
static u64 create_vcpu(unsigned int id, struct kvm_vcpu **vcpu)
{
	u64 since = now_ns();

	*vcpu = __vm_vcpu_add(vm, id);
	return now_ns() - since;
}

static void run_create(void)
{
	u64 creating_ns, log;
	unsigned int missing = 0;
	struct kvm_vcpu *vcpu;
	pthread_t thread;

	create_page_vm();
	creating_ns = create_vcpu(0, &vcpu);
	write_page(vcpu);
	pthread_barrier_init(&barrier, NULL, 2);
	nr_enabled = NR_CREATED;
	start_thread(&thread, enable_later, NULL);

	/*
	 * Logging is enabled later each time, in the end when the vCPU has
	 * already been created.
	 */
	for (unsigned int round = 1; round < NR_CREATED; round++) {
		WRITE_ONCE(delay_ns, 2 * creating_ns * round / NR_CREATED);
		WRITE_ONCE(nr_asked, round);
		while (READ_ONCE(nr_begun) < round)
			;
		creating_ns = min(creating_ns, create_vcpu(round, &vcpu));
		pthread_barrier_wait(&barrier);
		write_page(vcpu);
		kvm_vm_get_dirty_log(vm, DATA_SLOT, &log);
		missing += !log;
		set_page_flags(0);
	}
	pthread_join(thread, NULL);

	ksft_test_result(!missing, "what new vCPUs write is logged: of %u vCPUs it is not\n",
			 missing);
	kvm_vm_free(vm);
}

/* A vCPU runs before it is created */

/* The file descriptor that KVM_CREATE_VCPU is going to return. */
static int guessed_fd;

static int next_fd(void)
{
	int fd = dup(vm->fd);

	TEST_ASSERT(fd >= 0 && !close(fd), "dup");
	return fd;
}

/* Like write_page(), as soon as the vCPU exists and logging is enabled. */
static void *write_guessed(void *arg)
{
	struct kvm_regs regs = { .rip = CODE_GPA, .rax = DATA_GPA, .rflags = X86_EFLAGS_FIXED };
	struct kvm_sregs sregs;

	for (unsigned int round = 1; round < NR_GUESSED; round++) {
		pthread_barrier_wait(&guess_barrier);
		while (ioctl(guessed_fd, KVM_GET_SREGS, &sregs))
			;
		sregs.cr0 |= X86_CR0_PE;
		set_flat_segments(&sregs, false);
		TEST_ASSERT(!ioctl(guessed_fd, KVM_SET_SREGS, &sregs), "KVM_SET_SREGS");
		TEST_ASSERT(!ioctl(guessed_fd, KVM_SET_REGS, &regs), "KVM_SET_REGS");
		while (READ_ONCE(nr_done) < round)
			;
		TEST_ASSERT(!ioctl(guessed_fd, KVM_RUN, NULL), "KVM_RUN");
		pthread_barrier_wait(&guess_barrier);
	}
	return NULL;
}

static void run_guess(void)
{
	unsigned int missing = 0;
	pthread_t guessing, enabling;
	u64 creating_ns, log;
	struct kvm_vcpu *vcpu;

	create_page_vm();
	creating_ns = create_vcpu(0, &vcpu);
	write_page(vcpu);
	pthread_barrier_init(&barrier, NULL, 2);
	pthread_barrier_init(&guess_barrier, NULL, 2);
	nr_asked = 0;
	nr_begun = 0;
	nr_done = 0;
	nr_enabled = NR_GUESSED;
	start_thread(&enabling, enable_later, NULL);
	start_thread(&guessing, write_guessed, NULL);

	for (unsigned int round = 1; round < NR_GUESSED; round++) {
		WRITE_ONCE(delay_ns, creating_ns * round / NR_GUESSED);
		guessed_fd = next_fd();
		pthread_barrier_wait(&guess_barrier);
		WRITE_ONCE(nr_asked, round);
		while (READ_ONCE(nr_begun) < round)
			;
		create_vcpu(round, &vcpu);
		TEST_ASSERT_EQ(vcpu->fd, guessed_fd);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&guess_barrier);
		kvm_vm_get_dirty_log(vm, DATA_SLOT, &log);
		missing += !log;
		set_page_flags(0);
	}
	pthread_join(enabling, NULL);
	pthread_join(guessing, NULL);

	ksft_test_result(!missing, "what vCPUs write at once is logged: of %u vCPUs it is not\n",
			 missing);
	kvm_vm_free(vm);
}

static const struct part {
	const char *name;
	const char *what;
	void (*run)(void);
} parts[] = {
	{ "split", "a huge page is split", run_split },
	{ "create", "a vCPU is created", run_create },
	{ "guess", "a vCPU runs before it is created", run_guess },
};

static struct choice chosen = { parts, sizeof(parts[0]), ARRAY_SIZE(parts) };

int main(int argc, char *argv[])
{
	const struct test_option options[] = {
		{ 'n', "rounds", "splits, " __stringify(MAX_ROUNDS) " at most",
		  .number = &nr_rounds, .min = 1, .max = MAX_ROUNDS },
		{ 'm', "moment", "what happens while logging is enabled:", .choice = &chosen },
		{ }
	};

	parse_test_options(argc, argv, options, NULL);
	ksft_print_header();
	ksft_set_plan(choice_count(&chosen));
	if (choice_has(&chosen, 0) && !nr_free_2m_pages())
		ksft_exit_skip("There is no 2MiB HugeTLB page\n");

	for (unsigned int i = 0; i < ARRAY_SIZE(parts); i++)
		if (choice_has(&chosen, i))
			parts[i].run();
	ksft_finished();
}
