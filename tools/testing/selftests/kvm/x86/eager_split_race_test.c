// SPDX-License-Identifier: GPL-2.0-only
/*
 * Huge pages that KVM splits or restores while the host takes their memory away
 *
 * When the host takes memory from a guest, KVM zaps the SPTEs level by level,
 * 4KiB SPTEs first, and drops mmu_lock on the way if another thread needs the
 * CPU.  If KVM split a huge page at this moment, it would never zap the new
 * 4KiB SPTEs, and the guest could go on using the memory.  So KVM must not
 * split huge pages whose memory is being invalidated.
 *
 * "split" and "moved" make this race likely.  The memslot has very many pages,
 * so zapping takes long, and huge pages at its start.  KVM drops mmu_lock after
 * the first of them, because another thread competes for the CPU.  Meanwhile
 * KVM_CLEAR_DIRTY_LOG splits the huge pages on another CPU.  Afterwards the
 * guest must read zeroes, i.e. fresh memory, and not what it has written.
 *
 * In the other cases, KVM restores huge pages, because logging is disabled,
 * while the host takes the memory away by one system call or another.  KVM
 * waits for invalidations before it begins, so these cases disable logging
 * first.  That takes long, because the huge pages are at the end of the
 * memslot.  A thread competes for each of the two CPUs.  Afterwards nothing may
 * be mapped.  In "part", the host takes only half of the last huge page.
 *
 * With -w, kernels with CONFIG_KVM_PROVE_MMU_RACES pause within each update of
 * an SPTE, so that walks take longer.  The test fails if they did not pause.
 *
 * The test needs two CPUs and eight free 2MiB HugeTLB pages, and some cases
 * need transparent huge pages.
 *
 * Limits: a race that is not hit proves nothing.  The test is skipped if, by
 * the clock, the system call and the ioctl never overlapped.  It does not know
 * whether KVM has found a huge page that it must not split or restore.  With
 * the TDP MMU, which has no rmaps, it does not test splitting.
 */
#include <fcntl.h>
#include <sched.h>
#include <linux/falloc.h>
#include <linux/mman.h>

#include "eager_split_util.h"

#define DATA_SLOT		1
#define DATA_GPA		0x100000000ull
#define DATA_GVA		DATA_GPA

/* Nearly all of the slot is not even touched. */
#define SLOT_SIZE		(4ull * SZ_1G)

#define NR_HUGE			8
#define NR_PAGES		(NR_HUGE * PAGES_PER_2M)
#define DATA_SIZE		(NR_HUGE * (u64)SZ_2M)

/* Pages of the last huge page that "part" does not take away. */
#define NR_KEPT			(PAGES_PER_2M / 2)

#define HUGETLB			(MAP_NORESERVE | MAP_HUGETLB | MAP_HUGE_2MB)

#define PATTERN			0x5ca1ab1e00000000ull
#define DEFAULT_TRIES		20u
/* Make up to this many times as many tries, until the two calls overlap. */
#define MAX_FACTOR		10u
#define COMPETE_US		20u

enum guest_order { GUEST_WRITE, GUEST_READ };

/*
 * Set by the host: what the guest does, the address of the memory, and how many
 * pages the host has taken away.  Set by the guest: how many pages have a wrong
 * content.
 */
static enum guest_order guest_order;
static u64 guest_gva;
static u64 guest_nr_gone;
static u64 guest_bad;

struct race;

/* How the host takes memory away, and whether KVM splits or restores pages. */
struct way {
	const char *name;
	const char *what;
	int flags;
	void (*take)(struct race *r);
	/* How many pages at the end the host does not take away. */
	u64 nr_kept;
	/* KVM restores huge pages meanwhile, instead of splitting them. */
	bool recover;
};

struct race {
	const struct way *w;
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	u8 *hva;
	/* Where huge pages are in the slot. */
	u64 offset;
	int fd;
	/* How many 4KiB SPTEs map memory outside of the slot. */
	u64 pages_4k;
	/* When taking the memory began and ended, and the same of the ioctl. */
	u64 began;
	u64 ended;
	u64 other_began;
	u64 other_ended;
	/* How long to wait after the first call begins, in nanoseconds. */
	u64 delay;
	/* In how many tries the two calls overlapped. */
	unsigned int nr_between;

	pthread_barrier_t start;
	/*
	 * Competing threads so far; the next one takes the CPU of this number.
	 */
	int nr_competing;
	bool done;
};

static void guest_read_page(u64 page)
{
	u64 seen = READ_ONCE(*(u64 *)(guest_gva + page * PAGE_SIZE));

	guest_bad += seen != (page < guest_nr_gone ? 0 : PATTERN + page);
}

static void guest_main(void)
{
	for (;;) {
		guest_bad = 0;
		for (u64 page = 0; page < NR_PAGES; page++)
			if (READ_ONCE(guest_order) == GUEST_WRITE)
				WRITE_ONCE(*(u64 *)(guest_gva + page * PAGE_SIZE), PATTERN + page);
			else
				guest_read_page(page);
		GUEST_SYNC(READ_ONCE(guest_bad));
	}
}

static void run_guest(struct race *r, enum guest_order what, struct ucall *uc)
{
	write_guest_global(r->vm, guest_order, what);
	vcpu_run_to_sync(r->vcpu, uc);
}

static void set_slot(struct race *r, u64 size, u32 flags)
{
	vm_set_user_memory_region(r->vm, DATA_SLOT, flags, DATA_GPA, size, r->hva);
}

/*
 * Map fresh memory for each try.  Page tables of the host that are left from
 * the last try would keep the host from mapping huge pages.
 */
static void prepare(struct race *r)
{
	unsigned long mask[NR_PAGES / BITS_PER_WORD];
	struct ucall uc;
	u64 huge;

	r->hva = map_memory(SLOT_SIZE, PROT_READ | PROT_WRITE, r->w->flags, r->fd);
	if (!(r->w->flags & MAP_HUGETLB))
		TEST_ASSERT(!madvise(r->hva, SLOT_SIZE, MADV_HUGEPAGE), "No THP, errno %d", errno);
	set_slot(r, SLOT_SIZE, 0);
	run_guest(r, GUEST_WRITE, &uc);
	huge = vm_get_stat_or_absent(r->vm, "pages_2m");
	TEST_ASSERT(huge == NR_HUGE, "Expected %u huge pages, seen %lu", NR_HUGE, huge);
	r->pages_4k = vm_get_stat(r->vm, pages_4k);
	set_slot(r, SLOT_SIZE, KVM_MEM_LOG_DIRTY_PAGES);
	if (!r->w->recover)
		return;

	memset(mask, 0xff, sizeof(mask));
	kvm_vm_clear_dirty_log(r->vm, DATA_SLOT, mask, r->offset / PAGE_SIZE, NR_PAGES);
	if (!get_kvm_param_bool("eager_page_split"))
		run_guest(r, GUEST_WRITE, &uc);
}

/* Ways of taking memory away */

static void take_dontneed(struct race *r)
{
	TEST_ASSERT(!madvise(r->hva, SLOT_SIZE - r->w->nr_kept * PAGE_SIZE, MADV_DONTNEED),
		    "Can't give the memory back, errno %d", errno);
}

static void take_hole(struct race *r)
{
	TEST_ASSERT(!fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SLOT_SIZE),
		    "Can't punch a hole, errno %d", errno);
}

/* The memory moves away, and fresh memory takes its place. */
static void take_mremap(struct race *r)
{
	void *p = mremap(r->hva, SLOT_SIZE, SLOT_SIZE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);

	TEST_ASSERT(p != MAP_FAILED, "Can't move the memory, errno %d", errno);
	munmap(p, SLOT_SIZE);
}

/*
 * mprotect() notifies KVM only of what follows the first page table of the
 * host, so create one at the start.
 */
static void take_mprotect(struct race *r)
{
	WRITE_ONCE(*r->hva, 1);
	TEST_ASSERT(!mprotect(r->hva, SLOT_SIZE, PROT_NONE), "errno %d", errno);
}

static const struct way ways[] = {
	{ "split", "huge pages whose memory goes away", MAP_PRIVATE | MAP_ANONYMOUS | HUGETLB,
	  take_dontneed },
	{ "moved", "transparent huge pages that are moved",
	  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, take_mremap },
	{ "hugetlb", "HugeTLB pages that are to come back", MAP_PRIVATE | MAP_ANONYMOUS | HUGETLB,
	  take_dontneed, .recover = true },
	{ "hole", "the same, of a file", MAP_SHARED | HUGETLB, take_hole, .recover = true },
	{ "part", "huge pages that are to come back, one of which goes in part",
	  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, take_dontneed, .nr_kept = NR_KEPT,
	  .recover = true },
	{ "mremap", "the same, which are moved", MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
	  take_mremap, .recover = true },
	{ "mprotect", "the same, which are protected", MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
	  take_mprotect, .nr_kept = NR_PAGES, .recover = true },
};

/* The race */

/* Move to the @nth CPU, or to the last one, and wait for the other threads. */
static void start_on(struct race *r, int nth)
{
	cpu_set_t allowed;
	int last = 0;

	TEST_ASSERT(!sched_getaffinity(0, sizeof(allowed), &allowed), "errno %d", errno);
	for (int cpu = 0; cpu < CPU_SETSIZE && nth >= 0; cpu++) {
		if (!CPU_ISSET(cpu, &allowed))
			continue;
		last = cpu;
		nth--;
	}
	pin_self_to_cpu(last);
	pthread_barrier_wait(&r->start);
}

/*
 * When the memory is being taken, clear one word of each huge page to split it.
 */
static void *clear_thread(void *arg)
{
	u64 mask = ~0ull;
	struct race *r = arg;

	start_on(r, 1);
	while (!READ_ONCE(r->began))
		;
	spin_ns(r->delay);
	r->other_began = now_ns();
	for (u64 page = 0; page < NR_PAGES; page += PAGES_PER_2M)
		kvm_vm_clear_dirty_log(r->vm, DATA_SLOT, &mask, page, BITS_PER_WORD);
	r->other_ended = now_ns();
	return NULL;
}

static void *stop_thread(void *arg)
{
	struct race *r = arg;

	start_on(r, 1);
	WRITE_ONCE(r->other_began, now_ns());
	set_slot(r, SLOT_SIZE, 0);
	r->other_ended = now_ns();
	return NULL;
}

static void *unmap_thread(void *arg)
{
	struct race *r = arg;

	start_on(r, 0);
	if (r->w->recover) {
		while (!READ_ONCE(r->other_began))
			;
		spin_ns(r->delay);
	}
	WRITE_ONCE(r->began, now_ns());
	r->w->take(r);
	r->ended = now_ns();
	WRITE_ONCE(r->done, true);
	return NULL;
}

/*
 * Compete for the CPU with the thread that runs there.  Usually a busy loop is
 * enough.  Where KVM restores huge pages, wake up again and again with
 * real-time priority, if that is permitted.
 */
static void *compete_thread(void *arg)
{
	const struct sched_param priority = { .sched_priority = 1 };
	struct race *r = arg;
	bool wakes = r->w->recover && !sched_setscheduler(0, SCHED_FIFO, &priority);

	start_on(r, __atomic_fetch_add(&r->nr_competing, 1, __ATOMIC_RELAXED));
	while (!READ_ONCE(r->done))
		if (wakes)
			usleep(COMPETE_US);
	return NULL;
}

static void race(struct race *r)
{
	pthread_t threads[4];
	unsigned int nr = 3 + r->w->recover;
	/*
	 * How long the first of the two calls took in the last try.  Disabling
	 * restores huge pages in the end, so begin in the first half of it.
	 */
	u64 took = r->w->recover ? (r->other_ended - r->other_began) / 2 : r->ended - r->began;

	r->done = false;
	r->nr_competing = 0;
	r->began = 0;
	r->other_began = 0;
	r->delay = took ? random() % took : 0;
	pthread_barrier_init(&r->start, NULL, nr);
	start_thread(&threads[0], unmap_thread, r);
	start_thread(&threads[1], compete_thread, r);
	start_thread(&threads[2], r->w->recover ? stop_thread : clear_thread, r);
	if (r->w->recover)
		start_thread(&threads[3], compete_thread, r);
	for (unsigned int i = 0; i < nr; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&r->start);
}

/*
 * Did the two calls overlap?  KVM does not count the huge pages that it did not
 * split or restore, so the clock has to tell.
 */
static bool was_between(const struct race *r)
{
	return r->began < r->other_ended && r->other_began < r->ended;
}

/*
 * Return: how many pages KVM still maps, or with how many the guest has a wrong
 * content, whichever is more.
 */
static u64 try_once(struct race *r)
{
	u64 mapped;
	struct ucall uc;

	prepare(r);
	set_pauses(true);
	race(r);
	set_pauses(false);
	r->nr_between += was_between(r);

	/* The rest of a huge page is not mapped either, until it is touched. */
	mapped = vm_get_stat(r->vm, pages_2m) * PAGES_PER_2M;
	if (vm_get_stat(r->vm, pages_4k) > r->pages_4k)
		mapped += vm_get_stat(r->vm, pages_4k) - r->pages_4k;

	TEST_ASSERT(!mprotect(r->hva, SLOT_SIZE, PROT_READ | PROT_WRITE), "errno %d", errno);
	run_guest(r, GUEST_READ, &uc);
	set_slot(r, 0, 0);
	munmap(r->hva, SLOT_SIZE);
	return max(mapped, uc.args[1]);
}

static void create(struct race *r)
{
	r->offset = r->w->recover ? SLOT_SIZE - DATA_SIZE : 0;
	r->vm = vm_create_with_one_vcpu(&r->vcpu, guest_main);
	vm_enable_manual_protect(r->vm, true);
	write_guest_global(r->vm, guest_gva, DATA_GVA + r->offset);
	write_guest_global(r->vm, guest_nr_gone, NR_PAGES - r->w->nr_kept);
	virt_map_level(r->vm, DATA_GVA + r->offset, DATA_GPA + r->offset, DATA_SIZE, PG_LEVEL_2M);
	if (r->w->flags & MAP_SHARED)
		r->fd = kvm_memfd_alloc(SLOT_SIZE, true);
}

static u64 nr_tries = DEFAULT_TRIES;

static const char *run_tries(unsigned int row)
{
	const struct way *w = &ways[row];
	struct race r = { .w = w, .fd = -1 };
	unsigned int i, nr_bad = 0;
	u64 bad, worst = 0, pauses = nr_pauses();

	if (!w->recover && is_tdp_mmu())
		return "the TDP MMU is on, which has no rmaps";

	create(&r);
	for (i = 0; i < nr_tries || (!r.nr_between && !nr_bad && i < MAX_FACTOR * nr_tries); i++) {
		bad = try_once(&r);
		nr_bad += !!bad;
		worst = max(worst, bad);
	}
	pauses = nr_pauses() - pauses;
	ksft_print_msg("%s: %u tries, %u in between, %lu pauses\n", w->name, i, r.nr_between,
		       pauses);
	TEST_ASSERT(!nr_bad,
		    "In %u of %u tries the guest could use memory that was taken from it, up to %lu of %lu pages",
		    nr_bad, i, worst, NR_PAGES);
	TEST_ASSERT(pauses || !pause_us, "KVM never paused");
	kvm_vm_free(r.vm);
	if (r.fd >= 0)
		close(r.fd);

	__TEST_REQUIRE(r.nr_between, "%s: The race did not happen", w->name);
	return NULL;
}

int main(int argc, char *argv[])
{
	struct choice chosen = { ways, sizeof(*ways), ARRAY_SIZE(ways) };
	const struct test_option options[] = {
		{ 'm', "way", "only this one; can be given several times", .choice = &chosen },
		{ 'n', "tries", "how many times to try", .number = &nr_tries, .min = 1,
		  .max = UINT_MAX },
		{ 'w', NULL, "pause within each update of an SPTE, in microseconds",
		  .number = &pause_us, .min = 1, .max = MAX_PAUSE_US },
		{ }
	};

	parse_test_options(argc, argv, options,
			   "It needs " __stringify(NR_HUGE) " free 2MiB HugeTLB pages.\n\n");
	ksft_print_header();
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	__TEST_REQUIRE(nr_free_2m_pages() >= NR_HUGE, "Too few huge pages are free, see -h");
	__TEST_REQUIRE(!pause_us || setting_exists(PARAM_PAUSE_US),
		       "The kernel has no " PARAM_PAUSE_US);
	run_chosen(&chosen, run_tries);
	ksft_finished();
}
