// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging while the host moves, swaps out, merges or poisons the memory
 *
 * vCPUs write to memory that the host maps by transparent huge pages.  Another
 * thread makes the host change how it maps this memory.  The main thread does
 * what a live migration does: it enables logging, then again and again gets the
 * log, clears it, and copies the pages that were in it.  After the last copy,
 * with the vCPUs stopped, the copy must equal the memory: otherwise a page is
 * missing from the log.  Logging is then disabled while the vCPUs run, and
 * enabled once more.
 *
 * Each vCPU has a word of its own in each page, and remembers what it wrote
 * there last.  If the guest went on using memory that the host has taken away,
 * the vCPU, or the host in the end, would find another value.
 *
 * Each part is about one thing that hosts do, see @parts.  In "poison", some
 * pages become unusable, as if the hardware had reported an error.  The first
 * access to such a page raises SIGBUS, and the handler maps a fresh page, as
 * QEMU does when it resets a VM.  Such a page may lose its content.  These
 * pages of the host's memory stay unusable until it reboots, so run this part
 * on test machines only.
 *
 * The test needs transparent huge pages, and root for most parts.
 *
 * Limits: what the host does may overlap with the ioctls and with page faults
 * or not; the test counts what was done, not what has overlapped.
 */
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <linux/mempolicy.h>
#include <linux/mman.h>

#include "eager_split_util.h"

#define DATA_SLOT		1
#define DATA_GPA		0x100000000ull
#define DATA_GVA		DATA_GPA

#define NR_HUGE			8
#define NR_PAGES		(NR_HUGE * PAGES_PER_2M)
#define DATA_SIZE		(NR_HUGE * (u64)SZ_2M)

#define NR_VCPUS		2
#define NR_PASSES		6u
/* Writes of each vCPU between two passes, and between two events, at least. */
#define MIN_WRITES		500
#define MIN_WRITES_BETWEEN	20

#define NR_POISONED		16
#define CHUNK_PAGES		64ul

#define NODE1			"/sys/devices/system/node/node1"
#define BALANCING		"/proc/sys/kernel/numa_balancing"
#define COMPACT			"/proc/sys/vm/compact_memory"
#define SWAPS			"/proc/swaps"
#define KSM			"/sys/kernel/mm/ksm/"

/*
 * Set by the host.  If @guest_few_values is true, most words that the guest
 * writes are 0, so that the host finds equal pages.
 */
static bool guest_stop;
static bool guest_few_values;
static u8 guest_lost_page[NR_PAGES];
/* Set by each vCPU: how many words it has written, and its last ones. */
static u64 guest_writes[NR_VCPUS];
static u64 guest_last[NR_VCPUS][NR_PAGES];

struct host;

struct part {
	const char *name;
	const char *what;
	/* Return: NULL, or why the part can't run here. */
	const char *(*prepare)(void);
	/* Return: how much the host has done. */
	u64 (*disturb)(struct host *h);
	bool few_values;
};

struct host {
	const struct part *part;
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpus[NR_VCPUS];
	pthread_t threads[NR_VCPUS];
	u8 *hva;
	u8 *copy;
	unsigned long log[NR_PAGES / BITS_PER_WORD];
	/* What is in guest memory, for the host. */
	u8 *lost_page;
	u64 *writes;
	/* Pages whose content the host has changed since they were copied. */
	u8 changed[NR_PAGES];
	u64 nr_events;
	u64 nr_poisoned;
	u64 nr_replaced;
	u64 node;
	bool done;
};

/* For the handler of SIGBUS. */
static struct host *current_host;

static u64 nr_rounds = 2;

static u64 *word_of(void *page, u64 vcpu)
{
	return (u64 *)(page + vcpu * sizeof(u64));
}

static void guest_write(u64 vcpu, u64 page, u64 value)
{
	u64 *word = word_of((void *)(DATA_GVA + page * PAGE_SIZE), vcpu);
	u64 seen = READ_ONCE(*word), last = guest_last[vcpu][page];

	/* A page is marked as lost before it can lose its content. */
	if (seen != last)
		__GUEST_ASSERT(!seen && READ_ONCE(guest_lost_page[page]),
			       "vCPU %lu, page %lu: seen 0x%lx, written 0x%lx", vcpu, page, seen,
			       last);

	WRITE_ONCE(*word, value);
	guest_last[vcpu][page] = value;
}

static void guest_main(u64 vcpu)
{
	u64 n = 0, state = vcpu + 1;

	for (;;) {
		if (READ_ONCE(guest_stop))
			GUEST_SYNC(0);

		n++;
		state = state * 6364136223846793005ull + 1442695040888963407ull;
		guest_write(vcpu, (state >> 33) % NR_PAGES,
			    READ_ONCE(guest_few_values) && n % 8 ? 0 : n);
		WRITE_ONCE(guest_writes[vcpu], n);
	}
}

/* What the host does */

static u64 random_chunk(void)
{
	return random() % (NR_PAGES / CHUNK_PAGES) * CHUNK_PAGES;
}

static const char *prepare_move(void)
{
	if (access(NODE1, F_OK))
		return "the host has only one NUMA node";
	if (setting_exists(BALANCING))
		setting_set(BALANCING, "1");
	return NULL;
}

/* Move one huge page, or a part of one, to the other node. */
static u64 disturb_move(struct host *h)
{
	unsigned long mask = BIT(h->node++ % 2);
	u64 page = random_chunk(), nr = CHUNK_PAGES;

	if (random() % 2) {
		page &= ~(PAGES_PER_2M - 1);
		nr = PAGES_PER_2M;
	}
	TEST_ASSERT(!syscall(__NR_mbind, h->hva + page * PAGE_SIZE, nr * PAGE_SIZE, MPOL_BIND,
			     &mask, BITS_PER_WORD, MPOL_MF_MOVE) || errno == EIO || errno == ENOMEM,
		    "mbind() failed, errno %d", errno);
	return 1;
}

static const char *prepare_swap(void)
{
	char text[256];

	/* The first line is a title. */
	if (!read_file(SWAPS, text, sizeof(text)) || !strchr(text, '/'))
		return "the host has no swap space";
	return NULL;
}

static u64 disturb_swap(struct host *h)
{
	return !madvise(h->hva + random_chunk() * PAGE_SIZE, CHUNK_PAGES * PAGE_SIZE, MADV_PAGEOUT);
}

static const char *prepare_compact(void)
{
	return access(COMPACT, W_OK) ? "the host can't compact memory, or this is not root" : NULL;
}

static u64 disturb_compact(struct host *h)
{
	return write_file(COMPACT, "1");
}

static const char *prepare_merge(void)
{
	if (!setting_exists(KSM "run") || !setting_exists(KSM "pages_to_scan") ||
	    !setting_exists(KSM "sleep_millisecs"))
		return "the host can't merge pages, or this is not root";

	setting_set(KSM "sleep_millisecs", "1");
	setting_set(KSM "pages_to_scan", "2000");
	setting_set(KSM "run", "1");
	return NULL;
}

/* The host merges pages by itself.  Have it begin again with pages it knows. */
static u64 disturb_merge(struct host *h)
{
	madvise(h->hva, DATA_SIZE, MADV_MERGEABLE);
	usleep(1000);
	return 1;
}

/* Try it with a page that is not the guest's. */
static const char *prepare_poison(void)
{
	void *p = map_memory(PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	int r;

	WRITE_ONCE(*(u64 *)p, 1);
	r = madvise(p, PAGE_SIZE, MADV_HWPOISON);
	munmap(p, PAGE_SIZE);
	return r ? "the host can't poison memory, or this is not root" : NULL;
}

static void lose_page(struct host *h, u64 page)
{
	WRITE_ONCE(h->lost_page[page], 1);
	__atomic_store_n(&h->changed[page], 1, __ATOMIC_RELEASE);
}

static u64 disturb_poison(struct host *h)
{
	u64 page = random() % NR_PAGES;

	if (h->nr_poisoned == NR_POISONED)
		return 0;

	lose_page(h, page);
	if (madvise(h->hva + page * PAGE_SIZE, PAGE_SIZE, MADV_HWPOISON))
		return 0;

	h->nr_poisoned++;
	return 1;
}

static void on_sigbus(int signal, siginfo_t *info, void *context)
{
	struct host *h = current_host;
	u64 page = ((u8 *)info->si_addr - h->hva) / PAGE_SIZE;
	void *p = h->hva + page * PAGE_SIZE;

	if ((u8 *)info->si_addr < h->hva || page >= NR_PAGES ||
	    mmap(p, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0) == MAP_FAILED)
		settings_restore_and_exit(signal);

	lose_page(h, page);
	__atomic_fetch_add(&h->nr_replaced, 1, __ATOMIC_RELAXED);
}

static const struct part parts[] = {
	{ "move", "to another NUMA node", prepare_move, disturb_move },
	{ "swap", "to swap space, and back", prepare_swap, disturb_swap },
	{ "compact", "compaction of the host's memory", prepare_compact, disturb_compact },
	{ "merge", "pages with equal content", prepare_merge, disturb_merge, .few_values = true },
	{ "poison", "pages with hardware errors", prepare_poison, disturb_poison },
};

/* The VM */

static void *vcpu_thread(void *arg)
{
	struct kvm_vcpu *vcpu = arg;
	struct ucall uc;
	int r;

	do {
		r = __vcpu_run(vcpu);
	} while (r && errno == EINTR);
	TEST_ASSERT(!r, "KVM_RUN failed, errno %d", errno);

	if (get_ucall(vcpu, &uc) == UCALL_ABORT)
		REPORT_GUEST_ASSERT(uc);
	TEST_ASSERT_EQ(uc.cmd, UCALL_SYNC);
	return NULL;
}

static void start_vcpus(struct host *h)
{
	write_guest_global(h->vm, guest_stop, false);
	for (int i = 0; i < NR_VCPUS; i++)
		start_thread(&h->threads[i], vcpu_thread, h->vcpus[i]);
}

static void stop_vcpus(struct host *h)
{
	write_guest_global(h->vm, guest_stop, true);
	for (int i = 0; i < NR_VCPUS; i++)
		pthread_join(h->threads[i], NULL);
}

/* Until each vCPU has written @nr times, or until the host is done. */
static void wait_for_writes(struct host *h, u64 nr)
{
	u64 wanted;

	for (int i = 0; i < NR_VCPUS; i++) {
		wanted = READ_ONCE(h->writes[i]) + nr;
		while (READ_ONCE(h->writes[i]) < wanted && !READ_ONCE(h->done))
			sched_yield();
	}
}

static void *disturb_thread(void *arg)
{
	struct host *h = arg;

	while (!READ_ONCE(h->done)) {
		h->nr_events += h->part->disturb(h);
		wait_for_writes(h, MIN_WRITES_BETWEEN);
	}
	return NULL;
}

static void set_logging(struct host *h, bool on)
{
	vm_set_user_memory_region(h->vm, DATA_SLOT, on ? KVM_MEM_LOG_DIRTY_PAGES : 0, DATA_GPA,
				  DATA_SIZE, h->hva);
}

static void copy_page(struct host *h, u64 page)
{
	__atomic_store_n(&h->changed[page], 0, __ATOMIC_RELEASE);
	memcpy(h->copy + page * PAGE_SIZE, h->hva + page * PAGE_SIZE, PAGE_SIZE);
}

/* Return: how many pages were in the log. */
static u64 copy_pass(struct host *h, bool all)
{
	u64 nr = 0;

	kvm_vm_get_dirty_log(h->vm, DATA_SLOT, h->log);
	if (all)
		memset(h->log, 0xff, sizeof(h->log));
	kvm_vm_clear_dirty_log(h->vm, DATA_SLOT, h->log, 0, NR_PAGES);

	for (u64 page = 0; page < NR_PAGES; page++) {
		bool logged = test_bit(page, h->log);

		nr += logged;
		if (logged || __atomic_load_n(&h->changed[page], __ATOMIC_ACQUIRE))
			copy_page(h, page);
	}
	return nr;
}

/* vCPUs don't run, and the host leaves the memory alone. */
static void compare(struct host *h)
{
	u64 *last = addr_gva2hva(h->vm, (gva_t)guest_last);
	u64 seen, expected;

	for (u64 page = 0; page < NR_PAGES; page++) {
		for (u64 vcpu = 0; vcpu < NR_VCPUS; vcpu++) {
			seen = *word_of(h->hva + page * PAGE_SIZE, vcpu);
			expected = last[vcpu * NR_PAGES + page];
			TEST_ASSERT(seen == expected || (!seen && h->lost_page[page]),
				    "%s: page %lu: vCPU %lu wrote 0x%lx, the host sees 0x%lx",
				    h->part->name, page, vcpu, expected, seen);
			/* The handler of SIGBUS has changed it just now. */
			if (h->changed[page])
				copy_page(h, page);
			TEST_ASSERT(*word_of(h->copy + page * PAGE_SIZE, vcpu) == seen,
				    "%s: page %lu is missing from the log: memory 0x%lx, copy 0x%lx",
				    h->part->name, page, seen,
				    *word_of(h->copy + page * PAGE_SIZE, vcpu));
		}
	}
}

static void create(struct host *h, bool initially_set)
{
	h->hva = reserve_2m_aligned(DATA_SIZE);
	TEST_ASSERT(mmap(h->hva, DATA_SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == h->hva,
		    "mmap() failed, errno %d", errno);
	TEST_ASSERT(!madvise(h->hva, DATA_SIZE, MADV_HUGEPAGE), "No THP, errno %d", errno);
	h->copy = map_memory(DATA_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memset(h->changed, 0, sizeof(h->changed));

	h->vm = vm_create_with_vcpus(NR_VCPUS, guest_main, h->vcpus);
	vm_enable_manual_protect(h->vm, initially_set);
	set_logging(h, false);
	virt_map_level(h->vm, DATA_GVA, DATA_GPA, DATA_SIZE, PG_LEVEL_2M);
	for (u64 i = 0; i < NR_VCPUS; i++)
		vcpu_args_set(h->vcpus[i], 1, i);
	write_guest_global(h->vm, guest_few_values, h->part->few_values);
	h->lost_page = addr_gva2hva(h->vm, (gva_t)guest_lost_page);
	h->writes = addr_gva2hva(h->vm, (gva_t)guest_writes);
	h->nr_poisoned = 0;
}

static void destroy(struct host *h)
{
	kvm_vm_free(h->vm);
	munmap(h->hva, DATA_SIZE);
	munmap(h->copy, DATA_SIZE);
}

/* Enable logging, copy the memory as a migration does, and compare. */
static u64 migrate(struct host *h)
{
	pthread_t thread;
	u64 nr = 0;

	h->done = false;
	start_vcpus(h);
	start_thread(&thread, disturb_thread, h);
	wait_for_writes(h, MIN_WRITES);

	set_logging(h, true);
	for (unsigned int i = 0; i < NR_PASSES; i++) {
		nr += copy_pass(h, !i);
		wait_for_writes(h, MIN_WRITES);
	}

	WRITE_ONCE(h->done, true);
	pthread_join(thread, NULL);
	stop_vcpus(h);
	nr += copy_pass(h, false);
	compare(h);
	return nr;
}

static void disable_while_running(struct host *h)
{
	pthread_t thread;

	h->done = false;
	start_vcpus(h);
	start_thread(&thread, disturb_thread, h);
	wait_for_writes(h, MIN_WRITES);
	set_logging(h, false);
	wait_for_writes(h, MIN_WRITES);
	WRITE_ONCE(h->done, true);
	pthread_join(thread, NULL);
	stop_vcpus(h);
}

static const char *run_part(unsigned int row)
{
	static struct host h;
	u64 nr_copied = 0;
	const char *reason;

	h = (struct host) { .part = &parts[row] };
	reason = h.part->prepare();
	if (reason)
		return reason;

	current_host = &h;
	for (u64 round = 0; round < nr_rounds; round++) {
		create(&h, round % 2);
		nr_copied += migrate(&h);
		disable_while_running(&h);
		nr_copied += migrate(&h);
		destroy(&h);
	}

	ksft_print_msg("%s: %lu times, %lu pages copied, %lu pages replaced\n", h.part->name,
		       h.nr_events, nr_copied, h.nr_replaced);
	TEST_ASSERT(h.nr_events, "%s: the host did nothing", h.part->name);
	return NULL;
}

int main(int argc, char *argv[])
{
	struct choice chosen = { parts, sizeof(*parts), ARRAY_SIZE(parts) };
	const struct test_option options[] = {
		{ 'm', "part", "only this one; can be given several times", .choice = &chosen },
		{ 'n', "rounds", "how many VMs to log, one after the other", .number = &nr_rounds,
		  .min = 1, .max = UINT_MAX },
		{ }
	};
	struct sigaction action = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };

	parse_test_options(argc, argv, options, NULL);
	ksft_print_header();
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	TEST_ASSERT(!sigaction(SIGBUS, &action, NULL), "errno %d", errno);
	return finish(run_chosen(&chosen, run_part) == choice_count(&chosen));
}
