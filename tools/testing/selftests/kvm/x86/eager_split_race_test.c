// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting while the memory goes away
 *
 * When the host takes memory from a guest, KVM zaps what maps it level by level, 4KiB pages first,
 * and lets go of mmu_lock on the way if another thread needs the CPU.  A huge page that is split at
 * this moment moves to the 4KiB level, which the walk has left behind already: it is never zapped,
 * and the guest goes on to use memory that is not its own any more.  Eager page splitting has to
 * leave huge pages alone that are being invalidated.
 *
 * Make that likely: a slot of very many pages, so that the walk takes long, huge pages at its
 * start, and a thread that competes for the CPU of the one that gives all of the memory back.  KVM
 * looks whether a thread waits wherever something is mapped; here that is nowhere but at the huge
 * pages, so it lets go of the lock after the first of them.  From another CPU, KVM_CLEAR_DIRTY_LOG
 * splits the huge pages meanwhile.  When both are done the guest has to find zeroes, as the memory
 * is fresh; what it wrote before must not be there.
 *
 * Limits: a race that isn't hit proves nothing.  KVM counts the huge pages that
 * it left alone, and the test is skipped if there is none.  Page tables of the
 * TDP MMU are walked in another way and are not tested.
 */
#include <sched.h>
#include <linux/mman.h>

#include "eager_split_util.h"

#define DATA_SLOT		1
#define DATA_GPA		0x100000000ull
#define DATA_GVA		DATA_GPA

/* Nearly all of the slot is not even touched. */
#define SLOT_SIZE		(4ull * SZ_1G)

#define NR_HUGE			8
#define NR_PAGES		(NR_HUGE * PAGES_PER_2M)

#define PATTERN			0x5ca1ab1e00000000ull
#define DEFAULT_TRIES		20u

enum guest_order { GUEST_WRITE, GUEST_READ };

/* What the guest shall do, and what it saw. */
static enum guest_order guest_order;
static u64 guest_stale;
static u64 guest_strange;

struct race {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	void *hva;
	unsigned int nr;
	/* How long giving the memory back takes, and when to come in between. */
	u64 took;
	u64 delay;

	pthread_barrier_t start;
	bool done;
};

static void guest_read_page(u64 page)
{
	u64 seen = READ_ONCE(*(u64 *)(DATA_GVA + page * PAGE_SIZE));

	if (seen == PATTERN + page)
		guest_stale++;
	else if (seen)
		guest_strange++;
}

static void guest_main(void)
{
	u64 page;

	for (;;) {
		guest_stale = 0;
		guest_strange = 0;
		for (page = 0; page < NR_PAGES; page++)
			if (READ_ONCE(guest_order) == GUEST_WRITE)
				WRITE_ONCE(*(u64 *)(DATA_GVA + page * PAGE_SIZE), PATTERN + page);
			else
				guest_read_page(page);
		GUEST_SYNC2(READ_ONCE(guest_stale), READ_ONCE(guest_strange));
	}
}

static void run_guest(struct race *r, enum guest_order what, struct ucall *uc)
{
	guest_order = what;
	sync_global_to_guest(r->vm, guest_order);
	vcpu_run_to_sync(r->vcpu, uc);
}

static void set_slot(struct race *r, u64 size, u32 flags)
{
	vm_set_user_memory_region(r->vm, DATA_SLOT, flags, DATA_GPA, size, r->hva);
}

/* All of it is fresh: what the last try left behind can't be seen in this one. */
static void prepare(struct race *r)
{
	struct ucall uc;
	u64 huge;

	set_slot(r, SLOT_SIZE, 0);
	run_guest(r, GUEST_WRITE, &uc);
	huge = vm_get_stat_or_absent(r->vm, "pages_2m");
	TEST_ASSERT(huge == NR_HUGE, "Expected %u huge pages, seen %lu", NR_HUGE, huge);
	set_slot(r, SLOT_SIZE, KVM_MEM_LOG_DIRTY_PAGES);
}

/* The race */

/* Wait for the other threads on one of the CPUs that there are, the last if there are too few. */
static void start_on(struct race *r, int nth)
{
	cpu_set_t allowed;
	int cpu, last = 0;

	TEST_ASSERT(!sched_getaffinity(0, sizeof(allowed), &allowed), "errno %d", errno);
	for (cpu = 0; cpu < CPU_SETSIZE && nth >= 0; cpu++) {
		if (!CPU_ISSET(cpu, &allowed))
			continue;
		last = cpu;
		nth--;
	}
	pin_self_to_cpu(last);
	pthread_barrier_wait(&r->start);
}

/* One word of the log is enough to have its huge page split. */
static void *clear_thread(void *arg)
{
	u64 page, mask = ~0ull;
	struct race *r = arg;

	start_on(r, 1);
	spin_ns(r->delay);
	for (page = 0; page < NR_PAGES; page += PAGES_PER_2M)
		kvm_vm_clear_dirty_log(r->vm, DATA_SLOT, &mask, page, BITS_PER_WORD);
	return NULL;
}

static void *unmap_thread(void *arg)
{
	struct race *r = arg;
	u64 start;

	start_on(r, 0);
	start = now_ns();
	TEST_ASSERT(!madvise(r->hva, SLOT_SIZE, MADV_DONTNEED),
		    "Can't give the memory back, errno %d", errno);
	r->took = now_ns() - start;
	WRITE_ONCE(r->done, true);
	return NULL;
}

/* Needs the CPU as much as the thread that it shares it with. */
static void *compete_thread(void *arg)
{
	struct race *r = arg;

	start_on(r, 0);
	while (!READ_ONCE(r->done))
		;
	return NULL;
}

static void race(struct race *r)
{
	pthread_t threads[3];
	unsigned int i;

	r->done = false;
	r->delay = r->took ? random() % r->took : 0;
	pthread_barrier_init(&r->start, NULL, ARRAY_SIZE(threads));
	start_thread(&threads[0], unmap_thread, r);
	start_thread(&threads[1], compete_thread, r);
	start_thread(&threads[2], clear_thread, r);
	for (i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&r->start);
}

/* Returns how many pages the guest sees that are not its own any more. */
static u64 try_once(struct race *r)
{
	struct ucall uc;

	prepare(r);
	race(r);
	run_guest(r, GUEST_READ, &uc);
	set_slot(r, 0, 0);
	return uc.args[0] + uc.args[1];
}

/* Ends the test as skipped if the race did not happen. */
static void verdict(struct race *r, unsigned int nr_bad, u64 worst)
{
	u64 left_alone = vm_get_stat_or_absent(r->vm, "eager_split_invalidated");

	TEST_ASSERT(!nr_bad,
		    "In %u of %u tries the guest could use memory that was taken from it, up to %lu of %lu pages",
		    nr_bad, r->nr, worst, NR_PAGES);
	if (left_alone == STAT_ABSENT || !get_kvm_param_bool("eager_page_split")) {
		ksft_print_msg("%u tries, no stale page\n", r->nr);
		return;
	}

	ksft_print_msg("%u tries, no stale page, %lu times a huge page was left alone\n", r->nr,
		       left_alone);
	__TEST_REQUIRE(left_alone, "The race did not happen");
}

static void run_tries(unsigned int nr)
{
	struct race r = { .nr = nr };
	unsigned int i, nr_bad = 0;
	u64 bad, worst = 0;

	r.vm = vm_create_with_one_vcpu(&r.vcpu, guest_main);
	vm_enable_manual_protect(r.vm, true);
	virt_map_level(r.vm, DATA_GVA, DATA_GPA, NR_HUGE * SZ_2M, PG_LEVEL_2M);
	r.hva = map_memory(SLOT_SIZE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_HUGETLB |
			   MAP_HUGE_2MB, -1);
	for (i = 0; i < nr; i++) {
		bad = try_once(&r);
		nr_bad += !!bad;
		worst = max(worst, bad);
	}
	verdict(&r, nr_bad, worst);
	kvm_vm_free(r.vm);
	munmap(r.hva, SLOT_SIZE);
}

int main(int argc, char *argv[])
{
	u64 nr = DEFAULT_TRIES;
	const struct test_option options[] = {
		{ 'n', "tries", "how many times to try", .number = &nr, .min = 1, .max = UINT_MAX },
		{ }
	};

	parse_test_options(argc, argv, options,
			   "It needs " __stringify(NR_HUGE) " free 2MiB HugeTLB pages.\n\n");
	ksft_print_header();
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	__TEST_REQUIRE(!is_tdp_mmu(), "The TDP MMU is on, which has no rmaps");
	__TEST_REQUIRE(nr_free_2m_pages() >= NR_HUGE, "Too few huge pages are free, see -h");
	ksft_set_plan(1);
	run_tries(nr);
	ksft_test_result_pass("huge pages whose memory goes away\n");
	ksft_finished();
}
