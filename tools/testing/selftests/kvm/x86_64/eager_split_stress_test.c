// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting under stress
 *
 * vCPUs write their own words of all pages of a memslot, through mappings of
 * 4KiB, 2MiB and 1GiB, an alias, and windows that they map anew all the time, with
 * page tables that they use as data, too.  The host migrates the memory at the
 * same time, again and again: it enables dirty logging, harvests by bitmap, by
 * KVM_CLEAR_DIRTY_LOG of random ranges or by dirty ring, and copies what it got.
 * Meanwhile other threads take memory away, change its protection and turn KVM's
 * settings, and the memslot moves and goes.  Every other VM logs by Dirty bits
 * (dirty_harvest), and where the kernel can inject faults the splitter runs out of
 * memory.
 *
 * At the end of each round everybody stops.  Then
 *  - the copy has to equal the memory: a difference is a write that is missing
 *    from the log;
 *  - each word has to be the last that its vCPU wrote, or a fresh one if the page
 *    was taken away in this round; vCPUs check the same with each read;
 *  - memory that was taken from the guest was filled with poison through another
 *    mapping: it has to be intact, and no vCPU may have read it;
 *  - guest entries have to be dirty after a write, clean after a read, and must
 *    not allow writes when they are read-only.
 *
 * All operations are drawn from generators that are seeded by the number printed:
 * -S draws the same ones again.  How threads interleave is up to the scheduler.
 * A seed is good for one VM and some rounds, then it is increased.
 *
 * A seed is rough or brisk.  In a rough one memory is taken so often that most faults
 * of vCPUs meet somebody who takes the page, and so they are retried; in a brisk one
 * logging comes and goes several times as often.
 *
 * Limits: protection never goes below read-only, as the host reads the memory
 * itself.  Memory that holds page tables is not taken away for good.  Nobody
 * writes anything but the words of the vCPUs, so in most rounds only these are
 * compared, and all the rest in one round of THOROUGH_ROUNDS.  A TLB flush that is
 * missing while enabling or clearing the log is not seen if the ioctl flushes at
 * its end.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <linux/bitmap.h>
#include <linux/falloc.h>
#include <linux/memfd.h>
#include <linux/mman.h>
#include <linux/sizes.h>

#include "kvm_util.h"
#include "processor.h"
#include "test_util.h"
#include "eager_split_util.h"
#include "eager_split_stress_guest.h"
#include "eager_split_stress_host.h"

#define COMPACT			"/proc/sys/vm/compact_memory"
#define MERGED			"/proc/self/ksm_merging_pages"
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE		25
#endif

/*
 * The host
 */

enum log_mode { LOG_GET, LOG_CLEAR, LOG_INIT_SET, LOG_RING, NR_LOG_MODES };

static const char * const log_mode_names[] = { "get", "clear", "init-set", "ring" };

#define RING_BYTES		(2048 * sizeof(struct kvm_dirty_gfn))
#define NR_BANKS		2
#define NR_REGIONS		2
#define NR_HOST_THREADS		2
#define GATE_WAIT_US		2000
#define THOROUGH_ROUNDS		16

/* Between two harvests. */
#define HARVEST_NAP_US		400

/* How long vCPUs may take to use all huge pages, and a step of the wait. */
#define SETTLE_MAX_US		20000
#define SETTLE_STEP_US		100

/* Memory is taken at most so long before its huge pages are split. */
#define AMBUSH_MAX_NS		100000
#define AMBUSH_WAITS		5
#define TICK_US			50
#define MAX_TICKS		40
#define MEMORY_CPU		0

/* More shadow pages than ever used. */
#define MANY_MMU_PAGES		100000ul

/* For two banks, the page tables, and the page that turns up again. */
#define NR_HUGE_NEEDED		(NR_BANKS * NR_CHUNKS + 2)

/* A memslot that is migrated. */
struct region {
	u32 slot;
	u64 gpa;
	u64 nr_pages;
	void *hva;

	/* What is written: so many pages, of each of them all or vCPUs' words only. */
	u64 nr_used;
	bool words_only;

	/* The destination of the migration. */
	void *copy;

	/* What KVM says, what to CLEAR, and what to copy. */
	unsigned long *log;
	unsigned long *arg;
	unsigned long *todo;

	/* Pages that the host itself changed; bits are set once they are changed. */
	unsigned long *host_dirty;
};

/* One set of pages that can be behind the memslot. */
struct bank {
	int fd;
	void *mapping;

	/* Which chunks are out of use and full of poison. */
	bool poisoned[NR_CHUNKS];
};

/* Memory that was the guest's, poisoned; NULL if there is none. */
struct jar {
	void *mapping;
	u64 chunk;
	u64 nr_chunks;
};

/* How much happens beside the migration. */
struct pace {
	const char *name;

	/* Of the same VM. */
	unsigned int nr_rounds;

	/* How long threads sleep between two operations, at most. */
	u64 memory_nap_us;
	u64 setting_nap_us;

	/* One of so many rounds begins when all huge pages are in use. */
	unsigned int settle_one_in;

	/* At one of so many chances all memory is taken at once. */
	unsigned int ambush_one_in;

	/* vCPUs do so many operations, and then rest. */
	unsigned int ops_per_rest;
	u64 rest_us;
};

enum pace_name { ROUGH, BRISK, NR_PACES };

static const struct pace paces[NR_PACES] = {
	[ROUGH] = { "rough", 25, 8000, 16000, 2, 3, 16, 200 },
	[BRISK] = { "brisk", 100, 200000, 200000, 8, 64, 2, 3000 },
};

/* Where threads wait for the end of a round. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned int nr_parked;
	bool closed;
};

/* What KVM counts while a VM lives. */
enum split_stat {
	STAT_DONE, STAT_NOMEM, STAT_NOQUOTA, STAT_CANCELLED, STAT_INVALIDATED, NR_STATS
};

static const char * const stat_names[NR_STATS] = {
	"eager_split_done", "eager_split_nomem", "eager_split_noquota",
	"eager_split_cancelled", "eager_split_invalidated",
};

struct counters {
	u64 rounds;
	u64 rounds_of[NR_LOG_MODES];
	u64 rounds_harvested;
	u64 rounds_brisk;
	u64 rounds_merged;
	u64 guest_ops;
	u64 host_ops;
	u64 pages;
	u64 copied;
	u64 retries;
	u64 mmio;
	u64 stats[NR_STATS];
};

/* That all memory is taken at once is wanted, and is about to happen. */
enum ambush { AMBUSH_NONE, AMBUSH_WANTED, AMBUSH_READY };

struct stress {
	u64 seed;
	u64 rng;
	enum log_mode log_mode;
	const struct pace *pace;

	/* HugeTLB pages of two banks, or else transparent huge pages. */
	bool shared;

	/* What kvm.dirty_harvest is for this VM, and whether it logs that way. */
	bool harvest;
	bool harvested;

	/* Allocations of this round fail. */
	bool inject;

	struct kvm_vm *vm;
	struct kvm_vcpu *vcpus[MAX_VCPUS];
	u32 ring_index[MAX_VCPUS];
	unsigned int nr_vcpus;
	struct control *ctl;

	struct region regions[NR_REGIONS];

	/* How many of them are migrated in this round; the data is the first. */
	unsigned int nr_logged;
	void *data;
	struct bank banks[NR_BANKS];
	unsigned int current_bank[NR_CHUNKS];
	struct jar jar;
	void *reserved;

	/* Held for read by whoever writes to the memslot's memory. */
	pthread_rwlock_t protection;

	struct gate gate;

	/*
	 * Under the gate's lock: to take all memory at once, to have the ticker start,
	 * and while it goes on.
	 */
	enum ambush ambush;
	bool ticking;
	bool taking;
	bool quit;
};

struct vcpu_thread {
	struct stress *t;
	unsigned int id;
	pthread_t thread;
};

static struct counters counters;
static const char *mode_name = "all";
static u32 mode_views = USE_ALL;
static unsigned int option_vcpus = 2;

/* Of dirty_harvest; drawn if none was chosen. */
static const char *option_harvest = "any";

/* Drawn if none was chosen. */
static const struct pace *option_pace;

static const char *how_to_repeat(struct stress *t)
{
	static char text[200];

	snprintf(text, sizeof(text),
		 "round %lu, log mode %s%s, %s; to repeat: -S 0x%lx -m %s -v %u -d %s -p %s",
		 counters.rounds, log_mode_names[t->log_mode],
		 t->harvested ? " by Dirty bits" : "", t->shared ? "HugeTLB" : "THP",
		 t->seed, mode_name, t->nr_vcpus, option_harvest,
		 option_pace ? option_pace->name : "any");
	return text;
}

#define FAIL(t, fmt, ...)	TEST_FAIL(fmt "\n%s", ##__VA_ARGS__, how_to_repeat(t))

/* Unlike TEST_ASSERT(), it costs nothing as long as all is well. */
#define CHECK(t, cond, fmt, ...)				\
do {								\
	if (!(cond))						\
		FAIL(t, fmt, ##__VA_ARGS__);			\
} while (0)

static void count(u64 *counter)
{
	__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static u64 seeded(u64 seed, u64 who)
{
	u64 rng = (seed * 0x9e3779b97f4a7c15ull) ^ (who + 1) * 0xd1342543de82ef95ull;

	return rng ?: 1;
}

static u64 data_gfn(u64 page)
{
	return (DATA_GPA >> PAGE_SHIFT) + page;
}

static u64 now_ms(void)
{
	return now_ns() / NSEC_PER_MSEC;
}

static void nap(u64 *rng, u64 max_us)
{
	usleep(below(rng, max_us));
}

static struct region *data_region(struct stress *t)
{
	return &t->regions[0];
}

static struct region *tables_region(struct stress *t)
{
	return &t->regions[1];
}

/*
 * The gate
 */

static void gate_pass(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	if (g->closed) {
		g->nr_parked++;
		pthread_cond_broadcast(&g->changed);
		while (g->closed)
			pthread_cond_wait(&g->changed, &g->lock);
		g->nr_parked--;
	}
	pthread_mutex_unlock(&g->lock);
}

static void gate_close(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	WRITE_ONCE(g->closed, true);
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

/* Wait for a change, but not for ever; to be called with the lock held. */
static void gate_wait_us(struct gate *g, u64 us)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_nsec += us * 1000;
	end.tv_sec += end.tv_nsec / NSEC_PER_SEC;
	end.tv_nsec %= NSEC_PER_SEC;
	pthread_cond_timedwait(&g->changed, &g->lock, &end);
}

/* Wait for a while, at most.  Returns true if so many are parked. */
static bool gate_wait(struct gate *g, unsigned int nr)
{
	bool all;

	pthread_mutex_lock(&g->lock);
	if (g->nr_parked < nr)
		gate_wait_us(g, GATE_WAIT_US);
	all = g->nr_parked >= nr;
	pthread_mutex_unlock(&g->lock);
	return all;
}

/* Rest until somebody wants something, or the time is over. */
static void gate_nap(struct gate *g, u64 us)
{
	pthread_mutex_lock(&g->lock);
	if (!g->closed)
		gate_wait_us(g, us);
	pthread_mutex_unlock(&g->lock);
}

static void gate_open(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	WRITE_ONCE(g->closed, false);
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

/*
 * vCPUs
 */

static void set_host_dirty(struct region *r, u64 page)
{
	__atomic_fetch_or(&r->host_dirty[page / BITS_PER_WORD], BIT(page % BITS_PER_WORD),
			  __ATOMIC_SEQ_CST);
}

/* The memslot is away: do what a VMM does for a device, with the memory itself. */
static void emulate_access(struct stress *t, unsigned int id)
{
	struct kvm_run *run = t->vcpus[id]->run;
	struct region *r = data_region(t);
	u64 offset = run->mmio.phys_addr - r->gpa;

	CHECK(t, offset < r->nr_pages * PAGE_SIZE, "MMIO at 0x%llx", run->mmio.phys_addr);
	count(&counters.mmio);
	WRITE_ONCE(t->ctl->vcpus[id].nr_mmio, t->ctl->vcpus[id].nr_mmio + 1);
	pthread_rwlock_rdlock(&t->protection);
	if (run->mmio.is_write) {
		memcpy(r->hva + offset, run->mmio.data, run->mmio.len);
		set_host_dirty(r, offset / PAGE_SIZE);
	} else {
		memcpy(run->mmio.data, r->hva + offset, run->mmio.len);
	}
	pthread_rwlock_unlock(&t->protection);
}

static void check_complaint(struct stress *t, unsigned int id)
{
	struct vcpu_state *v = &t->ctl->vcpus[id];
	struct ucall uc;

	if (get_ucall(t->vcpus[id], &uc) == UCALL_ABORT)
		REPORT_GUEST_ASSERT(uc);
	CHECK(t, v->bad.what == BAD_NOTHING,
	      "%s: vCPU %u, page %lu (gfn 0x%lx), address 0x%lx: expected 0x%lx, seen 0x%lx",
	      bad_texts[v->bad.what], id, v->bad.page, data_gfn(v->bad.page),
	      v->bad.gva, v->bad.expected, v->bad.seen);
}

/*
 * Memory that is read-only at the moment can't be written: try again.
 *
 * Return: true if the vCPU is between two operations.  Anywhere else it may hold a
 * word that it read, or have written one without a note of it.
 */
static bool handle_exit(struct stress *t, unsigned int id, int r, int error)
{
	struct kvm_run *run = t->vcpus[id]->run;

	if (r) {
		CHECK(t, error == EFAULT || error == EAGAIN, "KVM_RUN of vCPU %u: errno %d", id,
		      error);
		count(&counters.retries);
		sched_yield();
		return false;
	}

	switch (run->exit_reason) {
	case KVM_EXIT_IO:
		check_complaint(t, id);
		if (!READ_ONCE(t->gate.closed))
			usleep(t->pace->rest_us);
		return true;
	case KVM_EXIT_MMIO:
		emulate_access(t, id);
		break;
	case KVM_EXIT_DIRTY_RING_FULL:
		usleep(100);
		break;
	default:
		FAIL(t, "vCPU %u ended, exit reason %s", id, exit_reason_str(run->exit_reason));
	}

	return false;
}

static void *vcpu_main(void *arg)
{
	struct vcpu_thread *vt = arg;
	struct stress *t = vt->t;
	int r;

	for (;;) {
		r = _vcpu_run(t->vcpus[vt->id]);
		if (!handle_exit(t, vt->id, r, errno))
			continue;

		gate_pass(&t->gate);
		if (READ_ONCE(t->quit))
			return NULL;
	}
}

/*
 * Memory comes and goes
 */

static void *bank_chunk(struct bank *b, u64 chunk)
{
	return b->mapping + chunk * SZ_2M;
}

static u64 chunk_first(u64 chunk)
{
	return chunk ? chunk * PAGES_PER_2M - FIRST_PAGE : 0;
}

static u64 chunk_end(u64 chunk)
{
	return min_t(u64, NR_PAGES, (chunk + 1) * PAGES_PER_2M - FIRST_PAGE);
}

/* @p: where the chunk begins. */
static u64 *word_in(void *p, u64 page, u64 vcpu)
{
	return p + (FIRST_PAGE + page) % PAGES_PER_2M * PAGE_SIZE + word_offset(page, vcpu);
}

static void fill_words(void *p, u64 chunk, u64 word)
{
	u64 page, vcpu;

	for (page = chunk_first(chunk); page < chunk_end(chunk); page++)
		for (vcpu = 0; vcpu < MAX_VCPUS; vcpu++)
			WRITE_ONCE(*word_in(p, page, vcpu), word);
}

static void poison(struct stress *t, void *p, u64 chunk)
{
	fill_words(p, chunk, tagged(TAG_POISON, chunk));
}

static void check_poison(struct stress *t, void *p, u64 chunk)
{
	u64 page, vcpu, seen, expected = tagged(TAG_POISON, chunk);

	for (page = chunk_first(chunk); page < chunk_end(chunk); page++) {
		for (vcpu = 0; vcpu < MAX_VCPUS; vcpu++) {
			seen = READ_ONCE(*word_in(p, page, vcpu));
			CHECK(t, seen == expected,
			      "gfn 0x%lx (page %lu) was written after it was taken: seen 0x%lx",
			      data_gfn(page), page, seen);
		}
	}
}

static void begin_taking(struct stress *t, u64 first, u64 end)
{
	for (; first < end; first++)
		WRITE_ONCE(t->ctl->taken[first], 1);
}

static void end_taking(struct stress *t, u64 first, u64 end)
{
	for (; first < end; first++)
		set_host_dirty(data_region(t), first);
}

static void map_bank(struct stress *t, u64 chunk, unsigned int nr)
{
	void *p = mmap(t->data + chunk * SZ_2M, SZ_2M, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_FIXED, t->banks[nr].fd, chunk * SZ_2M);

	CHECK(t, p != MAP_FAILED, "Can't map bank %u, errno %d", nr, errno);
	t->current_bank[chunk] = nr;
}

/* Put other memory behind a chunk, and poison what was there. */
static void replace_chunk(struct stress *t, u64 *rng, u64 chunk)
{
	unsigned int old = t->current_bank[chunk], new = !old;
	struct bank *from = &t->banks[old], *to = &t->banks[new];

	if (to->poisoned[chunk])
		check_poison(t, bank_chunk(to, chunk), chunk);
	to->poisoned[chunk] = false;
	fill_words(bank_chunk(to, chunk), chunk,
		   tagged(TAG_FRESH, rng_next(rng) >> (BITS_PER_WORD - TAG_SHIFT)));

	begin_taking(t, chunk_first(chunk), chunk_end(chunk));
	map_bank(t, chunk, new);
	poison(t, bank_chunk(from, chunk), chunk);
	from->poisoned[chunk] = true;
	end_taking(t, chunk_first(chunk), chunk_end(chunk));
}

static void check_jar_poison(struct stress *t)
{
	u64 i;

	for (i = 0; t->jar.mapping && i < t->jar.nr_chunks; i++)
		check_poison(t, t->jar.mapping + i * SZ_2M, t->jar.chunk + i);
}

static void empty_jar(struct stress *t)
{
	check_jar_poison(t);
	if (t->jar.mapping)
		munmap(t->jar.mapping, t->jar.nr_chunks * SZ_2M);
	t->jar.mapping = NULL;
}

static void fill_jar(struct stress *t, void *mapping, u64 chunk, u64 nr_chunks)
{
	u64 i;

	if (mapping == MAP_FAILED)
		return;

	for (i = 0; i < nr_chunks; i++)
		poison(t, mapping + i * SZ_2M, chunk + i);
	t->jar = (struct jar){ mapping, chunk, nr_chunks };
}

/* The page that HugeTLB gives away next is the one that it got back last. */
static void punch_chunk(struct stress *t, u64 *rng, u64 chunk)
{
	struct bank *b = &t->banks[t->current_bank[chunk]];
	void *p;

	empty_jar(t);
	begin_taking(t, chunk_first(chunk), chunk_end(chunk));
	CHECK(t, !fallocate(b->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, chunk * SZ_2M,
			    SZ_2M), "Can't punch a hole, errno %d", errno);
	p = mmap(NULL, SZ_2M, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, NO_FD, 0);
	fill_jar(t, p, chunk, 1);
	end_taking(t, chunk_first(chunk), chunk_end(chunk));
}

static void *move_chunks(struct stress *t, u64 chunk, u64 nr)
{
	void *p = mremap(t->data + chunk * SZ_2M, nr * SZ_2M, nr * SZ_2M,
			 MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);

	CHECK(t, p != MAP_FAILED, "Can't move memory, errno %d", errno);
	return p;
}

/* The pages move to where they can be poisoned; the guest gets zeroes. */
static void remap_chunk(struct stress *t, u64 *rng, u64 chunk)
{
	empty_jar(t);
	begin_taking(t, chunk_first(chunk), chunk_end(chunk));
	fill_jar(t, move_chunks(t, chunk, 1), chunk, 1);
	end_taking(t, chunk_first(chunk), chunk_end(chunk));
}

static void set_ambush(struct stress *t, enum ambush what, bool taking)
{
	pthread_mutex_lock(&t->gate.lock);
	t->ambush = what;
	t->ticking = taking;
	t->taking = taking;
	pthread_cond_broadcast(&t->gate.changed);
	pthread_mutex_unlock(&t->gate.lock);
}

/*
 * Take everything at once, while a thread that this one has to make way for is
 * ready again and again: KVM gives up mmu_lock on the way, and somebody who splits
 * huge pages meanwhile has to leave those alone that are being taken.
 */
static void remap_all(struct stress *t)
{
	void *p;

	empty_jar(t);
	begin_taking(t, 0, NR_PAGES);
	set_ambush(t, AMBUSH_READY, true);
	p = move_chunks(t, 0, NR_CHUNKS);
	set_ambush(t, AMBUSH_NONE, false);
	fill_jar(t, p, 0, NR_CHUNKS);
	end_taking(t, 0, NR_PAGES);
}

/* Returns false at the end. */
static bool wait_for_ticking(struct stress *t)
{
	struct gate *g = &t->gate;
	bool quit;

	pthread_mutex_lock(&g->lock);
	while (!t->ticking && !t->quit)
		pthread_cond_wait(&g->changed, &g->lock);
	t->ticking = false;
	quit = t->quit;
	pthread_mutex_unlock(&g->lock);
	return !quit;
}

/* A few times only: on a slow machine it might need the CPU all the time. */
static void *ticker_main(void *arg)
{
	struct stress *t = arg;
	unsigned int i;

	while (wait_for_ticking(t))
		for (i = 0; i < MAX_TICKS && READ_ONCE(t->taking); i++)
			usleep(TICK_US);
	return NULL;
}

/* Small pages become a huge page again, if it can be had. */
static void collapse_chunk(struct stress *t, u64 *rng, u64 chunk)
{
	madvise(t->data + chunk * SZ_2M, SZ_2M, MADV_COLLAPSE);
}

/* Some pages of a chunk, none of which is kept. */
static void drop_pages(struct stress *t, u64 *rng, u64 chunk)
{
	u64 first = chunk_first(chunk), n = chunk_end(chunk) - first;
	u64 page = first + below(rng, n), end = min(page + 1 + below(rng, n), first + n);

	begin_taking(t, page, end);
	CHECK(t, !madvise(data_region(t)->hva + page * PAGE_SIZE, (end - page) * PAGE_SIZE,
			  MADV_DONTNEED), "MADV_DONTNEED: errno %d", errno);
	end_taking(t, page, end);
}

/* KVM has to map it again; the file keeps the content. */
static void unmap_chunk(struct stress *t, u64 *rng, u64 chunk)
{
	CHECK(t, !madvise(t->data + chunk * SZ_2M, SZ_2M, MADV_DONTNEED),
	      "MADV_DONTNEED: errno %d", errno);
}

static void unmap_tables(struct stress *t, u64 *rng, u64 chunk)
{
	CHECK(t, !madvise(tables_region(t)->hva, SZ_2M, MADV_DONTNEED),
	      "MADV_DONTNEED: errno %d", errno);
}

/* Private memory as a whole: in parts it might never be one mapping again. */
static void protect_memory(struct stress *t, u64 *rng, u64 chunk)
{
	void *p = t->shared ? t->data + chunk * SZ_2M : t->data;
	size_t size = t->shared ? SZ_2M : DATA_SIZE;

	pthread_rwlock_wrlock(&t->protection);
	CHECK(t, !mprotect(p, size, PROT_READ), "mprotect: errno %d", errno);
	nap(rng, 300);
	CHECK(t, !mprotect(p, size, PROT_READ | PROT_WRITE), "mprotect: errno %d", errno);
	pthread_rwlock_unlock(&t->protection);
}

typedef void (*memory_op)(struct stress *t, u64 *rng, u64 chunk);

static const memory_op shared_ops[] = {
	replace_chunk, replace_chunk, punch_chunk, unmap_chunk, unmap_tables, protect_memory,
};

static const memory_op private_ops[] = {
	remap_chunk, drop_pages, drop_pages, collapse_chunk, protect_memory, unmap_tables,
};

static void one_memory_op(struct stress *t, u64 *rng)
{
	u64 chunk = below(rng, NR_CHUNKS);

	if (t->shared)
		shared_ops[below(rng, ARRAY_SIZE(shared_ops))](t, rng, chunk);
	else
		private_ops[below(rng, ARRAY_SIZE(private_ops))](t, rng, chunk);
}

/*
 * KVM's settings, and those of memory management
 */

static void set_quota(struct stress *t, u64 *rng)
{
	unsigned long quota = below(rng, 3) ? MANY_MMU_PAGES : 64 + below(rng, 400);

	vm_set_nr_mmu_pages(t->vm, quota);
}

static void flip_eager(struct stress *t, u64 *rng)
{
	set(EAGER, below(rng, 3) ? "Y" : "N");
}

/* All mappings go each time. */
static void flip_nx(struct stress *t, u64 *rng)
{
	if (!below(rng, 4))
		set(NX_HUGE_PAGES, below(rng, 2) ? "force" : "off");
}

static void merge_or_compact(struct stress *t, u64 *rng)
{
	if (t->shared || below(rng, 4))
		return;

	/* A pass over the memory takes a tenth of a second. */
	set(KSM_PAGES, "500");
	set(KSM, "1");
	write_file(COMPACT, "1");
}

/* Does one page stand for several of this process, as they are the same? */
static bool have_merged(void)
{
	char text[SETTING_MAX];

	return read_file(MERGED, text, sizeof(text)) && atoi(text);
}

typedef void (*setting_op)(struct stress *t, u64 *rng);

static const setting_op setting_ops[] = {
	flip_eager, flip_eager, flip_nx, set_quota, merge_or_compact,
};

static void one_setting_op(struct stress *t, u64 *rng)
{
	setting_ops[below(rng, ARRAY_SIZE(setting_ops))](t, rng);
}

struct host_thread {
	struct stress *t;
	void (*op)(struct stress *t, u64 *rng);
	u64 rng;
	u64 nap_us;

	/* It takes the memory when somebody asks for it. */
	bool ambushes;
	pthread_t thread;
};

static void *host_main(void *arg)
{
	struct host_thread *h = arg;

	for (;;) {
		gate_pass(&h->t->gate);
		if (READ_ONCE(h->t->quit))
			return NULL;

		if (h->ambushes && READ_ONCE(h->t->ambush) == AMBUSH_WANTED)
			remap_all(h->t);
		else
			h->op(h->t, &h->rng);
		count(&counters.host_ops);
		gate_nap(&h->t->gate, below(&h->rng, h->nap_us));
	}
}

/* Have all memory taken while the caller goes on to split its huge pages. */
static void ambush(struct stress *t)
{
	unsigned int i;

	if (t->shared || below(&t->rng, t->pace->ambush_one_in))
		return;

	pthread_mutex_lock(&t->gate.lock);
	t->ambush = AMBUSH_WANTED;
	pthread_cond_broadcast(&t->gate.changed);
	for (i = 0; i < AMBUSH_WAITS && t->ambush == AMBUSH_WANTED; i++)
		gate_wait_us(&t->gate, GATE_WAIT_US);
	pthread_mutex_unlock(&t->gate.lock);
	spin_ns(below(&t->rng, AMBUSH_MAX_NS));
}

/*
 * The migration
 */

static u64 nr_words(struct region *r)
{
	return DIV_ROUND_UP(r->nr_pages, BITS_PER_WORD);
}

static u64 *page_in(void *p, u64 page)
{
	return p + page * PAGE_SIZE;
}

/* The library's memcpy() and memcmp() go byte by byte, as guests need them. */
static void copy_words(u64 *to, const u64 *from, unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i += 4) {
		WRITE_ONCE(to[i], from[i]);
		WRITE_ONCE(to[i + 1], from[i + 1]);
		WRITE_ONCE(to[i + 2], from[i + 2]);
		WRITE_ONCE(to[i + 3], from[i + 3]);
	}
}

static bool are_same_words(const u64 *a, const u64 *b, unsigned int nr)
{
	u64 different = 0;
	unsigned int i;

	for (i = 0; i < nr; i += 4)
		different |= (a[i] ^ b[i]) | (a[i + 1] ^ b[i + 1]) |
			     (a[i + 2] ^ b[i + 2]) | (a[i + 3] ^ b[i + 3]);
	return !different;
}

/* The first of the words of a page that may change, and how many there are. */
static u64 first_word(struct region *r, u64 page)
{
	return r->words_only ? word_offset(page, 0) / sizeof(u64) : 0;
}

static unsigned int nr_page_words(struct region *r)
{
	BUILD_BUG_ON(MAX_VCPUS % 4 || WORDS_PER_PAGE % 4);

	return r->words_only ? MAX_VCPUS : WORDS_PER_PAGE;
}

static void copy_page(struct region *r, u64 page)
{
	u64 first = first_word(r, page);

	if (page >= r->nr_used)
		return;

	copy_words(page_in(r->copy, page) + first, page_in(r->hva, page) + first,
		   nr_page_words(r));
	counters.copied++;
}

static bool is_same_page(struct region *r, u64 page, bool thorough)
{
	u64 first = thorough ? 0 : first_word(r, page);

	return are_same_words(page_in(r->copy, page) + first, page_in(r->hva, page) + first,
			      thorough ? WORDS_PER_PAGE : nr_page_words(r));
}

static void copy_todo(struct region *r)
{
	u64 word, page;

	for (word = 0; word < nr_words(r); word++) {
		r->todo[word] |= __atomic_exchange_n(&r->host_dirty[word], 0, __ATOMIC_SEQ_CST);
		while (r->todo[word]) {
			page = word * BITS_PER_WORD + __builtin_ctzl(r->todo[word]);
			r->todo[word] &= r->todo[word] - 1;
			copy_page(r, page);
		}
	}
}

static void copy_all(struct region *r)
{
	memset(r->todo, 0xff, r->nr_pages / BITS_PER_WORD * sizeof(*r->todo));
	if (r->nr_pages % BITS_PER_WORD)
		r->todo[r->nr_pages / BITS_PER_WORD] = BIT(r->nr_pages % BITS_PER_WORD) - 1;
	copy_todo(r);
}

static void set_region(struct stress *t, struct region *r, u64 gpa, bool there, bool log)
{
	vm_set_user_memory_region(t->vm, r->slot, log ? KVM_MEM_LOG_DIRTY_PAGES : 0, gpa,
				  there ? r->nr_pages * PAGE_SIZE : 0, r->hva);
}

/* What of this round fails, and how often. */
static void choose_faults(struct stress *t)
{
	enum fault_site site = below(&t->rng, NR_SITES);
	u64 order = below(&t->rng, site == SITE_DESCS ? 10 : 2);

	/* Without shadow paging next to no descriptor is needed. */
	if (site == SITE_DESCS && kvm_is_tdp_enabled())
		site = SITE_HEADERS;
	t->inject = below(&t->rng, 8);
	count_faults();
	select_faults(site, BIT(order));
}

/*
 * What was written until the slot is logged is in the log, or is copied now.  Pages
 * don't fail here: KVM needs some for other things than splitting.
 */
static void start_logging(struct stress *t, struct region *r)
{
	bool inject = t->inject && faults.site != SITE_PAGES;

	if (inject)
		begin_faults(0);
	set_region(t, r, r->gpa, true, true);
	if (inject)
		end_faults();
	if (t->log_mode != LOG_INIT_SET)
		copy_all(r);
}

static void stop_logging(struct stress *t, struct region *r)
{
	set_region(t, r, r->gpa, true, false);
}

/* Splitting has nothing else to fail by: CLEAR itself doesn't allocate. */
static void clear_with_faults(struct stress *t, struct region *r, u64 first, u64 nr)
{
	u64 nth = 1 + below(&t->rng, 3);

	if (t->inject)
		begin_faults(nth);
	kvm_vm_clear_dirty_log(t->vm, r->slot, &r->arg[first / BITS_PER_WORD], first, nr);
	if (t->inject)
		end_faults();
}

/* All pages of a range, or some that GET found. */
static void clear_range(struct stress *t, struct region *r)
{
	u64 word = below(&t->rng, nr_words(r)), nr = 1 + below(&t->rng, nr_words(r) - word);
	u64 first = word * BITS_PER_WORD, end = word + nr;
	bool blind = !below(&t->rng, 8), some = below(&t->rng, 2);
	u64 valid;

	for (; word < end; word++) {
		valid = min_t(u64, BITS_PER_WORD, r->nr_pages - word * BITS_PER_WORD);
		r->arg[word] = blind ? ~0ul >> (BITS_PER_WORD - valid) : r->log[word];
		if (some)
			r->arg[word] &= rng_next(&t->rng);
		r->todo[word] |= r->arg[word];
	}
	clear_with_faults(t, r, first, min_t(u64, nr * BITS_PER_WORD, r->nr_pages - first));
}

static void harvest_bitmap(struct stress *t, struct region *r, bool last)
{
	u64 word, nr;

	kvm_vm_get_dirty_log(t->vm, r->slot, r->log);
	if (t->log_mode == LOG_GET || last) {
		for (word = 0; word < nr_words(r); word++)
			r->todo[word] |= r->log[word];
		return;
	}

	for (nr = 1 + below(&t->rng, 3); nr; nr--)
		clear_range(t, r);
}

static void take_ring_entry(struct stress *t, struct kvm_dirty_gfn *entry)
{
	struct region *r = entry->slot == DATA_SLOT ? data_region(t) : tables_region(t);

	CHECK(t, entry->slot == r->slot && entry->offset < r->nr_pages,
	      "slot %u, offset 0x%llx in the dirty ring", entry->slot, entry->offset);
	__set_bit(entry->offset, r->todo);
	__atomic_store_n(&entry->flags, KVM_DIRTY_GFN_F_RESET, __ATOMIC_RELEASE);
}

static void harvest_rings(struct stress *t)
{
	struct kvm_dirty_gfn *ring, *entry;
	unsigned int i;

	for (i = 0; i < t->nr_vcpus; i++) {
		ring = vcpu_map_dirty_ring(t->vcpus[i]);
		for (;; t->ring_index[i]++) {
			entry = &ring[t->ring_index[i] % (RING_BYTES / sizeof(*entry))];
			if (__atomic_load_n(&entry->flags, __ATOMIC_ACQUIRE) !=
			    KVM_DIRTY_GFN_F_DIRTY)
				break;
			take_ring_entry(t, entry);
		}
	}
	kvm_vm_reset_dirty_ring(t->vm);
}

static void harvest(struct stress *t, bool last)
{
	unsigned int i;

	if (t->log_mode == LOG_RING)
		harvest_rings(t);
	else
		for (i = 0; i < t->nr_logged; i++)
			harvest_bitmap(t, &t->regions[i], last);

	for (i = 0; i < t->nr_logged; i++)
		copy_todo(&t->regions[i]);
}

/* With the slot goes its log, so all of it counts as changed. */
static void delete_slot(struct stress *t)
{
	struct region *r = data_region(t);
	u64 page;

	set_region(t, r, r->gpa, false, false);
	nap(&t->rng, 100);
	set_region(t, r, r->gpa, true, true);
	for (page = 0; page < r->nr_pages; page++)
		set_host_dirty(r, page);
}

/* The log comes along. */
static void move_slot(struct stress *t)
{
	struct region *r = data_region(t);

	set_region(t, r, MOVED_GPA, true, true);
	nap(&t->rng, 100);
	set_region(t, r, r->gpa, true, true);
}

/*
 * The verdict, while everybody is parked
 */

static void report_lost_write(struct stress *t, struct region *r, u64 page)
{
	u64 *copy = page_in(r->copy, page), *memory = page_in(r->hva, page), i;

	for (i = 0; i < WORDS_PER_PAGE - 1 && copy[i] == memory[i]; i++)
		;
	FAIL(t, "lost write: gfn 0x%lx, page %lu of slot %u: 0x%lx, now 0x%lx at 0x%lx",
	     (r->gpa >> PAGE_SHIFT) + page, page, r->slot, copy[i], memory[i],
	     i * sizeof(u64));
}

static void check_copy(struct stress *t, struct region *r)
{
	bool thorough = !(counters.rounds % THOROUGH_ROUNDS);
	u64 page, nr = thorough ? r->nr_pages : r->nr_used;

	for (page = 0; page < nr; page++)
		if (!is_same_page(r, page, thorough))
			report_lost_write(t, r, page);
	counters.pages += nr;
}

/* Where a word is that is not where it belongs: this is what tells about its way. */
static void look_for(const char *where, const void *p, size_t size, u64 word)
{
	const u64 *words = p;
	u64 i;

	for (i = 0; p && i < size / sizeof(*words); i++)
		if (words[i] == word)
			pr_info("0x%lx is in %s, page %lu, at 0x%lx\n", word, where,
				i / WORDS_PER_PAGE, i % WORDS_PER_PAGE * sizeof(word));
}

static void report_wrong_word(struct stress *t, struct vcpu_state *v, u64 page, u64 seen)
{
	u64 word = v->last[page], chunk = (FIRST_PAGE + page) / PAGES_PER_2M;
	char name[20];
	unsigned int i;

	look_for("the memslot", data_region(t)->hva, NR_PAGES * PAGE_SIZE, word);
	look_for("the memory taken last", t->jar.mapping, t->jar.nr_chunks * SZ_2M, word);
	look_for("the page tables", tables_region(t)->hva, SZ_2M, word);
	for (i = 0; t->shared && i < NR_BANKS; i++) {
		snprintf(name, sizeof(name), "bank %u%s", i,
			 t->current_bank[chunk] == i ? ", in use" : "");
		look_for(name, t->banks[i].mapping, DATA_SIZE, word);
	}
	FAIL(t, "wrong memory: gfn 0x%lx (page %lu), vCPU %lu: wrote 0x%lx, seen 0x%lx%s",
	     data_gfn(page), page, v - t->ctl->vcpus, word, seen,
	     READ_ONCE(t->ctl->taken[page]) ? ", taken in this round" : "");
}

static void check_words(struct stress *t, struct vcpu_state *v)
{
	u64 page, seen, id = v - t->ctl->vcpus;
	void *hva = data_region(t)->hva;

	for (page = 0; page < NR_PAGES; page++) {
		seen = READ_ONCE(*(u64 *)(hva + page * PAGE_SIZE + word_offset(page, id)));
		if (!may_be(t->ctl, page, seen, v->last[page]))
			report_wrong_word(t, v, page, seen);
		v->last[page] = seen;
	}
}

static void check_all_poison(struct stress *t)
{
	unsigned int i;
	u64 chunk;

	for (i = 0; i < NR_BANKS; i++)
		for (chunk = 0; chunk < NR_CHUNKS; chunk++)
			if (t->banks[i].poisoned[chunk])
				check_poison(t, bank_chunk(&t->banks[i], chunk), chunk);
	check_jar_poison(t);
}

static void check_round(struct stress *t)
{
	unsigned int i;

	harvest(t, true);
	for (i = 0; i < t->nr_logged; i++)
		check_copy(t, &t->regions[i]);

	/* Where a word went to tells more than that it is missing. */
	check_all_poison(t);
	for (i = 0; i < t->nr_vcpus; i++)
		check_words(t, &t->ctl->vcpus[i]);
	memset(t->ctl->taken, 0, sizeof(t->ctl->taken));
}

/* A vCPU whose ring is full has to go on to the end of its operation. */
static void stop_world(struct stress *t)
{
	WRITE_ONCE(t->ctl->stop, 1);
	gate_close(&t->gate);
	while (!gate_wait(&t->gate, t->nr_vcpus + NR_HOST_THREADS))
		if (t->log_mode == LOG_RING)
			harvest_rings(t);
}

static void start_world(struct stress *t)
{
	WRITE_ONCE(t->ctl->stop, 0);
	gate_open(&t->gate);
}

static void migrate(struct stress *t)
{
	u64 nr;

	for (nr = below(&t->rng, 3); nr; nr--) {
		nap(&t->rng, HARVEST_NAP_US);
		if (t->log_mode == LOG_INIT_SET)
			ambush(t);
		harvest(t, false);
		if (!below(&t->rng, 16))
			delete_slot(t);
		if (!below(&t->rng, 16))
			move_slot(t);
	}
	nap(&t->rng, HARVEST_NAP_US);
}

static bool have_swept(struct stress *t)
{
	unsigned int i;

	for (i = 0; i < t->nr_vcpus; i++)
		if (READ_ONCE(t->ctl->vcpus[i].swept) != t->ctl->sweep)
			return false;
	return true;
}

/* Let vCPUs use all huge pages, so that there are some to be split. */
static void settle(struct stress *t)
{
	unsigned int us;

	WRITE_ONCE(t->ctl->sweep, t->ctl->sweep + 1);
	for (us = 0; us < SETTLE_MAX_US && !have_swept(t); us += SETTLE_STEP_US)
		usleep(SETTLE_STEP_US);
}

static void start_all_logging(struct stress *t)
{
	unsigned int i;

	choose_faults(t);
	if (t->log_mode != LOG_INIT_SET)
		ambush(t);
	t->nr_logged = below(&t->rng, 4) ? 1 : NR_REGIONS;
	for (i = 0; i < t->nr_logged; i++)
		start_logging(t, &t->regions[i]);
}

static void stop_all_logging(struct stress *t)
{
	unsigned int i;

	for (i = 0; i < t->nr_logged; i++)
		stop_logging(t, &t->regions[i]);
}

/* From one migration to the next. */
static void one_round(struct stress *t)
{
	bool early = below(&t->rng, 2);

	if (!below(&t->rng, t->pace->settle_one_in))
		settle(t);
	start_all_logging(t);
	migrate(t);
	stop_world(t);
	check_round(t);

	if (early)
		stop_all_logging(t);
	start_world(t);
	if (!early)
		stop_all_logging(t);
	counters.rounds++;
	counters.rounds_of[t->log_mode]++;
	counters.rounds_harvested += t->harvested;
	counters.rounds_brisk += t->pace == &paces[BRISK];
	counters.rounds_merged += have_merged();
}

/*
 * Setting up, and tearing down
 */

/* A round takes a fraction of a second, with sanitizers some seconds. */
#define ROUND_MAX_S		120

#define VCPU_RNG		16
#define MEMORY_RNG		1
#define SETTING_RNG		2

static void *map_memory(size_t size, int prot, int flags, int fd)
{
	void *p = mmap(NULL, size, prot, flags, fd, 0);

	TEST_ASSERT(p != MAP_FAILED, "Can't map %zu bytes, errno %d", size, errno);
	return p;
}

static void *map_anonymous(size_t size)
{
	return map_memory(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, NO_FD);
}

static int create_file(size_t size)
{
	int fd = memfd_create("stress", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);

	TEST_ASSERT(fd >= 0 && !ftruncate(fd, size), "Can't create a file, errno %d", errno);
	return fd;
}

static void *map_file(int fd, size_t size)
{
	return map_memory(size, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
}

/* A place for the memory, aligned to huge pages. */
static void reserve_data(struct stress *t)
{
	t->reserved = map_memory(DATA_SIZE + SZ_2M, PROT_NONE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, NO_FD);
	t->data = align_ptr_up(t->reserved, SZ_2M);
}

static void map_shared_data(struct stress *t)
{
	unsigned int i;
	u64 chunk;

	for (i = 0; i < NR_BANKS; i++) {
		t->banks[i].fd = create_file(DATA_SIZE);
		t->banks[i].mapping = map_file(t->banks[i].fd, DATA_SIZE);
	}
	for (chunk = 0; chunk < NR_CHUNKS; chunk++)
		map_bank(t, chunk, 0);
}

static void map_private_data(struct stress *t)
{
	void *p = mmap(t->data, DATA_SIZE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, NO_FD, 0);

	TEST_ASSERT(p != MAP_FAILED, "Can't map memory, errno %d", errno);
	madvise(p, DATA_SIZE, MADV_HUGEPAGE);
	madvise(p, DATA_SIZE, MADV_MERGEABLE);
}

static void free_data(struct stress *t)
{
	unsigned int i;

	munmap(t->reserved, DATA_SIZE + SZ_2M);
	if (t->jar.mapping)
		munmap(t->jar.mapping, t->jar.nr_chunks * SZ_2M);
	for (i = 0; t->shared && i < NR_BANKS; i++) {
		munmap(t->banks[i].mapping, DATA_SIZE);
		close(t->banks[i].fd);
	}
}

static void create_region(struct stress *t, struct region *r, u32 slot, u64 gpa,
			  u64 nr_pages, void *hva)
{
	r->slot = slot;
	r->gpa = gpa;
	r->nr_pages = nr_pages;
	r->hva = hva;
	r->copy = map_anonymous(nr_pages * PAGE_SIZE);
	r->log = bitmap_zalloc(nr_pages + BITS_PER_WORD);
	r->arg = bitmap_zalloc(nr_pages + BITS_PER_WORD);
	r->todo = bitmap_zalloc(nr_pages + BITS_PER_WORD);
	r->host_dirty = bitmap_zalloc(nr_pages + BITS_PER_WORD);
	set_region(t, r, gpa, true, false);
}

static void free_region(struct region *r)
{
	munmap(r->copy, r->nr_pages * PAGE_SIZE);
	free(r->log);
	free(r->arg);
	free(r->todo);
	free(r->host_dirty);
}

static void create_regions(struct stress *t)
{
	int fd = create_file(SZ_2M);

	reserve_data(t);
	if (t->shared)
		map_shared_data(t);
	else
		map_private_data(t);
	create_region(t, data_region(t), DATA_SLOT, DATA_GPA, NR_PAGES,
		      t->data + FIRST_PAGE * PAGE_SIZE);
	data_region(t)->nr_used = NR_PAGES;
	data_region(t)->words_only = true;
	create_region(t, tables_region(t), TABLES_SLOT, TABLES_GPA, PAGES_PER_2M,
		      map_file(fd, SZ_2M));
	tables_region(t)->nr_used = t->nr_vcpus * TABLES_PER_VCPU;
	close(fd);
}

static u64 *guest_entry(struct stress *t, u64 gva, int level)
{
	return __vm_get_page_table_entry(t->vm, gva, &level);
}

/* Entries of other permissions, so that KVM uses other page tables. */
static void map_alias(struct stress *t)
{
	u64 gva = VIEW_GVA(VIEW_ALIAS), chunk;

	virt_map_level(t->vm, gva, DATA_BASE, DATA_SIZE, PG_LEVEL_2M);
	*guest_entry(t, gva, PG_LEVEL_512G) |= PTE_USER_MASK;
	*guest_entry(t, gva, PG_LEVEL_1G) |= PTE_USER_MASK;
	for (chunk = 0; chunk < NR_CHUNKS; chunk++)
		*guest_entry(t, gva + chunk * SZ_2M, PG_LEVEL_2M) |=
			PTE_USER_MASK | (chunk % 2 ? PTE_NX_MASK : 0);
}

/* The page directory of a vCPU's windows is in memory that is logged. */
static void map_windows(struct stress *t, unsigned int id)
{
	u64 gva = WINDOW_GVA(id);

	virt_map_level(t->vm, gva, 0, SZ_1G, PG_LEVEL_1G);
	*guest_entry(t, gva, PG_LEVEL_1G) =
		(TABLES_GPA + id * TABLES_PER_VCPU * PAGE_SIZE) | ENTRY_BITS;
}

static void map_all(struct stress *t)
{
	unsigned int i;

	virt_map_level(t->vm, CONTROL_GPA, CONTROL_GPA, CONTROL_SIZE, PG_LEVEL_4K);
	virt_map_level(t->vm, TABLES_GPA, TABLES_GPA, SZ_2M, PG_LEVEL_2M);
	virt_map_level(t->vm, VIEW_GVA(VIEW_4K) + FIRST_PAGE * PAGE_SIZE, DATA_GPA,
		       NR_PAGES * PAGE_SIZE, PG_LEVEL_4K);
	virt_map_level(t->vm, VIEW_GVA(VIEW_2M), DATA_BASE, DATA_SIZE, PG_LEVEL_2M);
	map_alias(t);
	if (kvm_cpu_has(X86_FEATURE_GBPAGES))
		virt_map_level(t->vm, VIEW_GVA(VIEW_1G), DATA_BASE, SZ_1G, PG_LEVEL_1G);
	for (i = 0; i < t->nr_vcpus; i++)
		map_windows(t, i);
}

static void create_control(struct stress *t)
{
	unsigned int i;

	BUILD_BUG_ON(sizeof(*t->ctl) > CONTROL_SIZE);
	t->ctl = map_anonymous(CONTROL_SIZE);
	vm_set_user_memory_region(t->vm, CONTROL_SLOT, 0, CONTROL_GPA, CONTROL_SIZE, t->ctl);
	t->ctl->wp = !!below(&t->rng, 4);
	t->ctl->views = mode_views;
	t->ctl->ops_per_rest = t->pace->ops_per_rest;
	if (!kvm_cpu_has(X86_FEATURE_GBPAGES))
		t->ctl->views &= ~BIT(VIEW_1G);
	for (i = 0; i < t->nr_vcpus; i++)
		t->ctl->vcpus[i].rng = seeded(t->seed, VCPU_RNG + i);
}

static void create_vcpu(struct stress *t, unsigned int id)
{
	struct kvm_sregs sregs;

	t->vcpus[id] = vm_vcpu_add(t->vm, id, guest_main);
	vcpu_args_set(t->vcpus[id], 1, (u64)id);
	vcpu_sregs_get(t->vcpus[id], &sregs);
	if (t->ctl->wp)
		sregs.cr0 |= X86_CR0_WP;
	vcpu_sregs_set(t->vcpus[id], &sregs);
}

static void set_log_mode(struct stress *t)
{
	u64 manual = KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE;

	if (t->log_mode == LOG_RING)
		vm_enable_dirty_ring(t->vm, RING_BYTES);
	else if (t->log_mode != LOG_GET)
		vm_enable_cap(t->vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
			      manual | (t->log_mode == LOG_INIT_SET ?
					KVM_DIRTY_LOG_INITIALLY_SET : 0));
}

static u64 get_stat(struct stress *t, const char *name)
{
	u64 value = vm_get_stat_or_absent(t->vm, name);

	return value == STAT_ABSENT ? 0 : value;
}

static void create_vm(struct stress *t)
{
	unsigned int i;

	set(HARVEST, t->harvest ? "on" : "off");
	t->vm = __vm_create(VM_SHAPE_DEFAULT, t->nr_vcpus, 0);
	t->harvested = t->log_mode != LOG_RING && get_stat(t, "dirty_harvest");
	set_log_mode(t);
	create_control(t);
	create_regions(t);
	map_all(t);
	for (i = 0; i < t->nr_vcpus; i++)
		create_vcpu(t, i);
}

static void destroy_vm(struct stress *t)
{
	unsigned int i;

	for (i = 0; i < t->nr_vcpus; i++)
		counters.guest_ops += t->ctl->vcpus[i].nr_ops;
	for (i = 0; i < NR_STATS; i++)
		counters.stats[i] += get_stat(t, stat_names[i]);
	kvm_vm_free(t->vm);
	free_data(t);
	munmap(tables_region(t)->hva, SZ_2M);
	for (i = 0; i < NR_REGIONS; i++)
		free_region(&t->regions[i]);
	munmap(t->ctl, CONTROL_SIZE);
}

static void draw_configuration(struct stress *t)
{
	t->rng = seeded(t->seed, 0);
	t->log_mode = below(&t->rng, NR_LOG_MODES);

	/* CLEAR asks for a split with each word of the log, which may fail each time. */
	if (can_fail() && below(&t->rng, 2))
		t->log_mode = LOG_INIT_SET;
	if (t->log_mode == LOG_RING && !kvm_has_cap(KVM_CAP_DIRTY_LOG_RING))
		t->log_mode = LOG_CLEAR;
	t->shared = below(&t->rng, 2) || !thp_configured();
	t->harvest = below(&t->rng, 2);
	if (strcmp(option_harvest, "any"))
		t->harvest = !strcmp(option_harvest, "on");
	t->pace = option_pace ?: &paces[below(&t->rng, 4) ? BRISK : ROUGH];
}

/* What to do at most; 0 if it does not matter. */
struct bounds {
	u64 end_ms;
	u64 rounds;
};

static bool is_over(const struct bounds *b)
{
	return now_ms() >= b->end_ms || (b->rounds && counters.rounds >= b->rounds);
}

/* The thread that takes memory, and the one that it has to make way for. */
static void share_cpu(pthread_t memory, pthread_t ticker)
{
	struct sched_param param = { .sched_priority = 1 };
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(MEMORY_CPU, &cpus);
	pthread_setaffinity_np(memory, sizeof(cpus), &cpus);
	pthread_setaffinity_np(ticker, sizeof(cpus), &cpus);
	pthread_setschedparam(ticker, SCHED_FIFO, &param);
}

static void run_rounds(struct stress *t, const struct bounds *b)
{
	struct host_thread host[NR_HOST_THREADS] = {
		{ t, one_memory_op, seeded(t->seed, MEMORY_RNG),
		  t->pace->memory_nap_us, true },
		{ t, one_setting_op, seeded(t->seed, SETTING_RNG),
		  t->pace->setting_nap_us, false },
	};
	struct vcpu_thread vcpus[MAX_VCPUS];
	pthread_t ticker;
	unsigned int i;

	for (i = 0; i < t->nr_vcpus; i++) {
		vcpus[i] = (struct vcpu_thread){ .t = t, .id = i };
		start_thread(&vcpus[i].thread, vcpu_main, &vcpus[i]);
	}
	for (i = 0; i < ARRAY_SIZE(host); i++)
		start_thread(&host[i].thread, host_main, &host[i]);
	start_thread(&ticker, ticker_main, t);
	share_cpu(host[0].thread, ticker);

	for (i = 0; i < t->pace->nr_rounds && !is_over(b); i++) {
		alarm(ROUND_MAX_S);
		one_round(t);
	}

	stop_world(t);
	WRITE_ONCE(t->quit, true);
	start_world(t);
	for (i = 0; i < t->nr_vcpus; i++)
		pthread_join(vcpus[i].thread, NULL);
	for (i = 0; i < ARRAY_SIZE(host); i++)
		pthread_join(host[i].thread, NULL);
	pthread_join(ticker, NULL);
}

static void run_seed(u64 seed, const struct bounds *b)
{
	struct stress t = {
		.seed = seed,
		.nr_vcpus = option_vcpus,
		.protection = PTHREAD_RWLOCK_INITIALIZER,
		.gate = {
			.lock = PTHREAD_MUTEX_INITIALIZER,
			.changed = PTHREAD_COND_INITIALIZER,
		},
	};

	draw_configuration(&t);
	create_vm(&t);
	run_rounds(&t, b);
	destroy_vm(&t);
}

static u64 sum(const u64 *values, unsigned int nr)
{
	u64 result = 0;

	while (nr--)
		result += values[nr];
	return result;
}

/* NAME=NUMBER each, which is what others read. */
static void report(const char *what, u64 seed, u64 nr_seeds)
{
	unsigned int i;

	pr_info("%s: seed=0x%lx seeds=%lu cycles=%lu pages=%lu copied=%lu operations=%lu host_operations=%lu",
		what, seed, nr_seeds, counters.rounds, counters.pages, counters.copied,
		counters.guest_ops + counters.host_ops, counters.host_ops);
	for (i = 0; i < NR_LOG_MODES; i++)
		pr_info(" %s=%lu", log_mode_names[i], counters.rounds_of[i]);
	pr_info(" harvested=%lu brisk=%lu merged=%lu retries=%lu mmio=%lu",
		counters.rounds_harvested, counters.rounds_brisk, counters.rounds_merged,
		counters.retries, counters.mmio);
	for (i = 0; i < NR_STATS; i++)
		pr_info(" %s=%lu", stat_names[i], counters.stats[i]);
	pr_info(" faults=%lu", sum(faults.failed, NR_SITES));
	for (i = 0; i < NR_SITES; i++)
		pr_info(" faults_%s=%lu", site_names[i], faults.failed[i]);
	pr_info("\n");
	fflush(stdout);
}

#define REPORT_MS		10000

static u64 current_seed;

static void give_up(int signal)
{
	char text[80];
	int n = snprintf(text, sizeof(text), "nothing moves; to repeat: -S 0x%lx\n",
			 current_seed);

	if (write(STDOUT_FILENO, text, n) < 0)
		_exit(1);
	settings_restore_and_exit(signal);
}

static void run(u64 seed, const struct bounds *b)
{
	u64 next = now_ms() + REPORT_MS, nr = 0;

	pr_info("seed 0x%lx\n", seed);
	fflush(stdout);
	do {
		/* Each seed for itself: if threads wait for each other, say which. */
		current_seed = seed + nr;
		alarm(ROUND_MAX_S);
		run_seed(seed + nr++, b);
		count_faults();
		if (now_ms() >= next) {
			report("so far", seed, nr);
			next = now_ms() + REPORT_MS;
		}
	} while (!is_over(b));
	report("summary", seed, nr);
}

/*
 * The command line
 */

#define DEFAULT_SECONDS		10u
#define MAX_SECONDS		1000000u

static const struct {
	const char *name;
	u32 views;
	const char *what;
} modes[] = {
	{ "all", USE_ALL, "all of these" },
	{ "4k", BIT(VIEW_4K), "4KiB entries" },
	{ "2m", BIT(VIEW_2M), "2MiB entries" },
	{ "1g", BIT(VIEW_1G), "1GiB entries" },
	{ "alias", BIT(VIEW_2M) | BIT(VIEW_ALIAS), "2MiB entries twice" },
	{ "window", BIT(VIEW_4K) | USE_WINDOWS, "4KiB entries, and windows that change" },
};

static void __noreturn __printf(1, 2) refuse(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "; see --help\n");
	exit(2);
}

static u64 parse_number(const char *option, const char *text, u64 min, u64 max)
{
	char *end;
	u64 value;

	errno = 0;
	value = strtoull(text, &end, 0);
	if (errno || end == text || *end || *text == '-' || value < min || value > max)
		refuse("%s %s: not a number from %lu to %lu", option, text, min, max);
	return value;
}

static void set_mode(const char *name)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(modes); i++) {
		if (strcmp(modes[i].name, name))
			continue;

		mode_name = modes[i].name;
		mode_views = modes[i].views;
		return;
	}
	refuse("-m %s: no such mode", name);
}

static void set_harvest(const char *name)
{
	if (strcmp(name, "on") && strcmp(name, "off") && strcmp(name, "any"))
		refuse("-d %s: it is on, off or any", name);
	option_harvest = name;
}

static void set_pace(const char *name)
{
	unsigned int i;

	option_pace = NULL;
	for (i = 0; i < NR_PACES; i++)
		if (!strcmp(paces[i].name, name))
			option_pace = &paces[i];
	if (!option_pace && strcmp(name, "any"))
		refuse("-p %s: it is rough, brisk or any", name);
}

static void help(const char *program)
{
	unsigned int i;

	printf("usage: %s [-h] [-t SECONDS] [-n ROUNDS] [-S SEED] [-v VCPUS] [-m MODE]\n"
	       "       [-d on|off|any] [-p rough|brisk|any]\n\n"
	       "It needs %lu free 2MiB HugeTLB pages.\n\n"
	       " -t: for how long (default: %u).\n"
	       " -n: no more rounds than this (default: no limit).\n"
	       " -S: draw the operations that a run with this seed drew.\n"
	       " -v: how many vCPUs, up to %u (default: %u).\n"
	       " -d: whether VMs log by Dirty bits, if they can (default: any).\n"
	       " -p: whether memory is taken all the time, or logging comes and goes\n"
	       "     more often (default: any, brisk in three of four seeds).\n"
	       " -m: how the guest maps its memory (default: all):\n",
	       program, NR_HUGE_NEEDED, DEFAULT_SECONDS, MAX_VCPUS, option_vcpus);
	for (i = 0; i < ARRAY_SIZE(modes); i++)
		printf("     %-7s %s\n", modes[i].name, modes[i].what);
	exit(0);
}

static void parse_option(int opt, const char *program, u64 *seed, struct bounds *b)
{
	switch (opt) {
	case 'd':
		set_harvest(optarg);
		break;
	case 'h':
		help(program);
	case 'm':
		set_mode(optarg);
		break;
	case 'n':
		b->rounds = parse_number("-n", optarg, 1, ~0ul);
		break;
	case 'p':
		set_pace(optarg);
		break;
	case 'S':
		*seed = parse_number("-S", optarg, 0, ~0ul);
		break;
	case 't':
		b->end_ms = now_ms() + 1000 * parse_number("-t", optarg, 1, MAX_SECONDS);
		break;
	case 'v':
		option_vcpus = parse_number("-v", optarg, 1, MAX_VCPUS);
		break;
	default:
		refuse("-%c: no such option, or no value for it", optopt);
	}
}

int main(int argc, char *argv[])
{
	struct bounds b = { .end_ms = now_ms() + 1000 * DEFAULT_SECONDS };
	u64 seed = (u64)time(NULL) << 20 ^ getpid();
	int opt;

	if (argc == 2 && !strcmp(argv[1], "--help"))
		help(argv[0]);

	opterr = 0;
	while ((opt = getopt(argc, argv, "d:hm:n:p:S:t:v:")) != -1)
		parse_option(opt, argv[0], &seed, &b);
	if (optind < argc)
		refuse("%s: unknown argument", argv[optind]);

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	__TEST_REQUIRE(nr_free_2m_pages() >= NR_HUGE_NEEDED, "Too few huge pages are free, see -h");
	settings_save(settings, NR_SETTINGS);
	signal(SIGALRM, give_up);
	prepare_faults();
	run(seed, &b);
	return 0;
}
