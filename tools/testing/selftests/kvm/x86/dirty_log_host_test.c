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
 * pages become unusable, as if the hardware had reported an error.  The next
 * access to such a page raises SIGBUS, and the handler maps a fresh page, as
 * QEMU does when it resets a VM.  The guest's page may lose its content.  The
 * host's page stays unusable until the host reboots, so run this part on test
 * machines only.
 *
 * The test needs transparent huge pages, and root for most parts.  A part fails
 * if nothing of its kind happened while memory was logged.  The counters of
 * /proc/vmstat and of KSM, which tell, are those of the whole host.  "poison"
 * counts the accesses that raised SIGBUS.
 *
 * Limits: what the host does may overlap with the ioctls and with page faults
 * or not; the test does not know.  A write that is lost in a page that was
 * poisoned is not noticed.
 */
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
/* Writes of each vCPU between two passes, at least. */
#define MIN_WRITES		500

/* How many pages to poison in each VM.  One event in so many writes. */
#define NR_POISONED		16
#define POISON_EACH		300
#define CHUNK_PAGES		64ul
/* How long threads that wait for writes of the guest leave the CPU to others. */
#define POLL_US			200
/* Wait for this many writes at most until the host has begun. */
#define MAX_WRITES		200000

#define BALANCING		"/proc/sys/kernel/numa_balancing"
#define COMPACT			"/proc/sys/vm/compact_memory"
#define SWAPS			"/proc/swaps"
#define VMSTAT			"/proc/vmstat"
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
	void (*disturb)(struct host *h);
	/* Return: how much the host has done since it has booted. */
	u64 (*count)(const struct host *h);
	/* How often each vCPU writes between two events. */
	u64 writes_between;
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
	/* What part->count() has counted while memory was logged. */
	u64 nr_events;
	/* Tries, successes, and accesses that the handler of SIGBUS has seen. */
	u64 nr_tries;
	u64 nr_poisoned;
	u64 nr_replaced;
	/* How often pages were seen that are merged. */
	u64 nr_merged;
	u64 node;
	/* KVM has mapped huge pages, which may not come back. */
	bool logged_before;
	bool done;
};

/* For the handler of SIGBUS. */
static struct host *current_host;
/* This thread poisons a page, which raises SIGBUS as well. */
static __thread bool is_poisoning;

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

/*
 * Return: a number of /proc/vmstat, STAT_ABSENT if the kernel has none of that
 * name.
 */
static u64 vmstat(const char *name)
{
	char line[128], seen[64];
	u64 value, found = STAT_ABSENT;
	FILE *file = fopen(VMSTAT, "r");

	TEST_ASSERT(file, "Can't open %s, errno %d", VMSTAT, errno);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "%63s %lu", seen, &value) == 2 && !strcmp(seen, name))
			found = value;
	fclose(file);
	return found;
}

static long move_to(void *p, size_t size, u64 node)
{
	unsigned long mask = BIT(node);

	return syscall(__NR_mbind, p, size, MPOL_BIND, &mask, BITS_PER_WORD, MPOL_MF_MOVE);
}

/* A node may have no memory, or be forbidden to this process. */
static const char *prepare_move(void)
{
	void *p = map_memory(PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	bool can = !move_to(p, PAGE_SIZE, 0) && !move_to(p, PAGE_SIZE, 1);

	munmap(p, PAGE_SIZE);
	if (!can)
		return "there are no two NUMA nodes with memory";
	if (setting_exists(BALANCING))
		setting_set(BALANCING, "1");
	return NULL;
}

/* Move one huge page, or a part of one, to the other node. */
static void disturb_move(struct host *h)
{
	u64 page = random_chunk(), nr = CHUNK_PAGES;

	if (random() % 2) {
		page &= ~(PAGES_PER_2M - 1);
		nr = PAGES_PER_2M;
	}
	TEST_ASSERT(!move_to(h->hva + page * PAGE_SIZE, nr * PAGE_SIZE, h->node++ % 2) ||
		    errno == EIO || errno == ENOMEM, "mbind() failed, errno %d", errno);
}

static u64 count_migrated(const struct host *h)
{
	return vmstat("pgmigrate_success");
}

static const char *prepare_swap(void)
{
	char text[256];

	/* The first line is a title. */
	if (!read_file(SWAPS, text, sizeof(text)) || !strchr(text, '/'))
		return "the host has no swap space";
	return NULL;
}

static void disturb_swap(struct host *h)
{
	madvise(h->hva + random_chunk() * PAGE_SIZE, CHUNK_PAGES * PAGE_SIZE, MADV_PAGEOUT);
}

static u64 count_swapped(const struct host *h)
{
	return vmstat("pswpout");
}

static const char *prepare_compact(void)
{
	return access(COMPACT, W_OK) ? "the host can't compact memory, or this is not root" : NULL;
}

static void disturb_compact(struct host *h)
{
	write_file(COMPACT, "1");
}

static const char *prepare_merge(void)
{
	if (!setting_exists(KSM "run") || !setting_exists(KSM "pages_to_scan") ||
	    !setting_exists(KSM "sleep_millisecs"))
		return "the host can't merge pages, or this is not root";

	setting_set(KSM "sleep_millisecs", "10");
	setting_set(KSM "pages_to_scan", "256");
	setting_set(KSM "run", "1");
	return NULL;
}

/* The host merges pages by itself, and writes of the guest split them again. */
static void disturb_merge(struct host *h)
{
	char text[32];

	/* Once is enough, and it waits until the host has scanned so many pages. */
	if (!h->nr_tries++)
		TEST_ASSERT(!madvise(h->hva, DATA_SIZE, MADV_MERGEABLE), "errno %d", errno);
	if (read_file(KSM "pages_sharing", text, sizeof(text)) && strtoul(text, NULL, 10))
		h->nr_merged++;
}

static u64 count_merged(const struct host *h)
{
	return READ_ONCE(h->nr_merged);
}

static int poison_page(void *p)
{
	int r;

	WRITE_ONCE(is_poisoning, true);
	r = madvise(p, PAGE_SIZE, MADV_HWPOISON);
	WRITE_ONCE(is_poisoning, false);
	return r;
}

/* Try it with a page that is not the guest's. */
static const char *prepare_poison(void)
{
	void *p = map_memory(PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	int r;

	WRITE_ONCE(*(u64 *)p, 1);
	r = poison_page(p);
	munmap(p, PAGE_SIZE);
	return r ? "the host can't poison memory, or this is not root" : NULL;
}

static void lose_page(struct host *h, u64 page)
{
	WRITE_ONCE(h->lost_page[page], 1);
	__atomic_store_n(&h->changed[page], 1, __ATOMIC_RELEASE);
}

static void disturb_poison(struct host *h)
{
	u64 page = random() % NR_PAGES;

	/* A page that failed once, or that was replaced, may fail again. */
	if (h->nr_tries == NR_POISONED || h->lost_page[page])
		return;

	h->nr_tries++;
	lose_page(h, page);
	if (!poison_page(h->hva + page * PAGE_SIZE))
		h->nr_poisoned++;
}

/* Only accesses to poisoned pages count. */
static u64 count_replaced(const struct host *h)
{
	return READ_ONCE(h->nr_replaced);
}

static void on_sigbus(int signal, siginfo_t *info, void *context)
{
	struct host *h = current_host;
	u64 page;
	void *p;

	if (READ_ONCE(is_poisoning))
		return;
	if (!h || (u8 *)info->si_addr < h->hva || (u8 *)info->si_addr >= h->hva + DATA_SIZE)
		settings_restore_and_exit(signal);

	page = ((u8 *)info->si_addr - h->hva) / PAGE_SIZE;
	p = h->hva + page * PAGE_SIZE;
	if (mmap(p, PAGE_SIZE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0) == MAP_FAILED)
		settings_restore_and_exit(signal);

	lose_page(h, page);
	__atomic_fetch_add(&h->nr_replaced, 1, __ATOMIC_RELAXED);
}

static const struct part parts[] = {
	{ "move", "to another NUMA node", prepare_move, disturb_move, count_migrated, 20 },
	{ "swap", "to swap space, and back", prepare_swap, disturb_swap, count_swapped, 20 },
	{ "compact", "compaction of the host's memory", prepare_compact, disturb_compact,
	  count_migrated, 100 },
	{ "merge", "pages with equal content", prepare_merge, disturb_merge, count_merged, 20,
	  .few_values = true },
	{ "poison", "pages with hardware errors", prepare_poison, disturb_poison, count_replaced,
	  POISON_EACH },
};

/* The VM */

static void start_vcpus(struct host *h)
{
	write_guest_global(h->vm, guest_stop, false);
	for (int i = 0; i < NR_VCPUS; i++)
		h->threads[i] = start_vcpu(h->vcpus[i]);
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
			usleep(POLL_US);
	}
}

static void *disturb_thread(void *arg)
{
	struct host *h = arg;

	while (!READ_ONCE(h->done)) {
		h->part->disturb(h);
		wait_for_writes(h, h->part->writes_between);
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
				    "%s: page %lu is not in the log: memory 0x%lx, copy 0x%lx",
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
	/* Without this, reads could map the host's page of zeroes. */
	TEST_ASSERT(!madvise(h->hva, DATA_SIZE, MADV_POPULATE_WRITE), "errno %d", errno);
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
	h->nr_tries = 0;
	h->logged_before = false;
}

static void destroy(struct host *h)
{
	kvm_vm_free(h->vm);
	munmap(h->hva, DATA_SIZE);
	munmap(h->copy, DATA_SIZE);
}

/*
 * Enable logging, copy the memory as a migration does, and compare.  Go on until
 * the host has done something meanwhile.
 *
 * Return: how many pages were copied.
 */
static u64 migrate(struct host *h)
{
	u64 nr = 0, before, most;
	pthread_t thread;

	h->done = false;
	start_vcpus(h);
	wait_for_writes(h, MIN_WRITES);
	TEST_ASSERT(vm_get_stat(h->vm, pages_2m) || h->logged_before,
		    "KVM maps no huge page: transparent huge pages are off");
	h->logged_before = true;

	start_thread(&thread, disturb_thread, h);
	set_logging(h, true);
	before = h->part->count(h);
	most = READ_ONCE(h->writes[0]) + MAX_WRITES;
	for (unsigned int i = 0; i < NR_PASSES || (h->part->count(h) == before &&
						   READ_ONCE(h->writes[0]) < most); i++) {
		nr += copy_pass(h, !i);
		wait_for_writes(h, MIN_WRITES);
	}

	WRITE_ONCE(h->done, true);
	pthread_join(thread, NULL);
	stop_vcpus(h);
	h->nr_events += h->part->count(h) - before;
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
	if (!reason && h.part->count(&h) == STAT_ABSENT)
		reason = "the kernel doesn't count it in " VMSTAT;
	if (reason)
		return reason;

	current_host = &h;
	for (u64 round = 0; round < nr_rounds; round++) {
		create(&h, round % 2);
		nr_copied += migrate(&h);
		disable_while_running(&h);
		/* Have huge pages again, as far as the host can. */
		madvise(h.hva, DATA_SIZE, MADV_COLLAPSE);
		nr_copied += migrate(&h);
		destroy(&h);
	}

	ksft_print_msg("%s: %lu times, %lu pages copied, %lu poisoned, %lu replaced\n",
		       h.part->name, h.nr_events, nr_copied, h.nr_poisoned, h.nr_replaced);
	TEST_ASSERT(h.nr_events, "%s: the host did nothing while memory was logged",
		    h.part->name);
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
