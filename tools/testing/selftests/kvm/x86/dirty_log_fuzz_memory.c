// SPDX-License-Identifier: GPL-2.0-only
/* How dirty_log_fuzz_test changes the host's memory. */
#include <sys/wait.h>
#include <linux/falloc.h>
#include <linux/mman.h>

#include "dirty_log_fuzz.h"

#define MAP_ANON_PRIVATE	(MAP_PRIVATE | MAP_ANONYMOUS)

struct range {
	struct area *area;
	u64 first;
	u64 nr;
};

struct slot *slot_of_page(struct fuzz *f, u64 page)
{
	for (unsigned int i = 1; i < NR_SLOTS; i++) {
		struct slot *s = &f->slots[i];

		if (s->exists && page >= s->base && page < s->base + s->npages)
			return s;
	}
	return NULL;
}

u32 word_offset(u64 page)
{
	return page % PAGES_PER_2M * sizeof(u64);
}

static u32 *word_at(struct area *a, u64 page)
{
	return a->hva + page * PAGE_SIZE + word_offset(page);
}

/* Round to whole pages of the host, as the host cannot take away less. */
static struct range range_of(struct fuzz *f, enum area_id id, u64 first, u64 nr)
{
	u64 unit = id == AREA_HUGETLB ? PAGES_PER_2M : 1;
	u64 end;

	first %= AREA_PAGES;
	end = round_up(min_t(u64, first + nr, AREA_PAGES), unit);
	first = round_down(first, unit);
	return (struct range){ &f->areas[id], first, end - first };
}

/*
 * @number is that of an area or, minus NR_AREAS, that of a memslot in an area.
 */
static enum area_id area_of(struct fuzz *f, u32 number)
{
	return number < NR_AREAS ? number : f->slots[(number - NR_AREAS) % NR_SLOTS].area;
}

static struct range arg_range(struct fuzz *f, const u32 *args)
{
	return range_of(f, area_of(f, args[0]), args[1], args[2]);
}

static void *range_hva(struct range r)
{
	return r.area->hva + r.first * PAGE_SIZE;
}

static size_t range_size(struct range r)
{
	return r.nr * PAGE_SIZE;
}

static void set_access(struct fuzz *f, struct range r, enum access access)
{
	static const int prots[] = {
		[ACCESS_ALL]	= PROT_READ | PROT_WRITE,
		[ACCESS_READ]	= PROT_READ,
		[ACCESS_NONE]	= PROT_NONE,
	};

	CHECK(f, !mprotect(range_hva(r), range_size(r), prots[access]), "mprotect: errno %d",
	      errno);
	memset(&r.area->access[r.first], access, r.nr);
	f->report->events++;
}

static void allow(struct fuzz *f, struct range r)
{
	for (u64 i = 0; i < r.nr; i++) {
		if (r.area->access[r.first + i] == ACCESS_ALL)
			continue;
		set_access(f, r, ACCESS_ALL);
		return;
	}
}

void memory_allow(struct fuzz *f, enum area_id id, u64 first, u64 nr)
{
	allow(f, range_of(f, id, first, nr));
}

static void forget(struct range r)
{
	memset(&r.area->content[r.first], 0, r.nr * sizeof(*r.area->content));
}

/* Private memory loses its content, a file does not. */
void step_dontneed(struct fuzz *f, const u32 *args)
{
	struct range r = arg_range(f, args);

	pthread_mutex_lock(&f->memory_lock);
	CHECK(f, !madvise(range_hva(r), range_size(r), MADV_DONTNEED),
	      "MADV_DONTNEED: errno %d", errno);
	pthread_mutex_unlock(&f->memory_lock);
	f->report->events++;
	if (r.area->fd < 0)
		forget(r);
}

/* If this fails, nothing has changed. */
static void collapse(struct fuzz *f, u64 chunk)
{
	madvise(f->areas[AREA_THP].hva + chunk * SZ_2M, SZ_2M, MADV_COLLAPSE);
	f->report->events++;
}

void step_collapse(struct fuzz *f, const u32 *args)
{
	pthread_mutex_lock(&f->memory_lock);
	collapse(f, args[0] % (AREA_SIZE / SZ_2M));
	pthread_mutex_unlock(&f->memory_lock);
}

/*
 * With -t, only the other thread protects memory, so that vCPUs can wait for
 * it.
 */
void step_protect(struct fuzz *f, const u32 *args)
{
	if (!f->threaded)
		set_access(f, arg_range(f, args), args[3] % (ACCESS_NONE + 1));
}

static void remap_part(struct fuzz *f, void *p, size_t size)
{
	if (mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, f->spare) == MAP_FAILED)
		fuzz_fail(f, "mremap there: errno %d", errno);
	if (mremap(f->spare, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, p) != p)
		fuzz_fail(f, "mremap back: errno %d", errno);
	if (mmap(f->spare, size, PROT_NONE, MAP_ANON_PRIVATE | MAP_FIXED, -1, 0) != f->spare)
		fuzz_fail(f, "mmap: errno %d", errno);
	f->report->events++;
}

/* Move page by page: parts of a HugeTLB mapping do not merge again. */
static void remap(struct fuzz *f, struct range r)
{
	size_t size = range_size(r);

	if (r.area != &f->areas[AREA_HUGETLB])
		return remap_part(f, range_hva(r), size);

	for (size_t i = 0; i < size; i += SZ_2M)
		remap_part(f, range_hva(r) + i, SZ_2M);
}

/*
 * Move memory elsewhere and back.  That works only within one mapping, i.e.
 * with the same permissions everywhere.
 */
void step_remap(struct fuzz *f, const u32 *args)
{
	struct range r = arg_range(f, args);

	pthread_mutex_lock(&f->memory_lock);
	allow(f, r);
	remap(f, r);
	pthread_mutex_unlock(&f->memory_lock);
}

void step_punch(struct fuzz *f, const u32 *args)
{
	struct range r = range_of(f, AREA_SHARED, args[0], args[1]);

	CHECK(f, !fallocate(r.area->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			    r.first * PAGE_SIZE, range_size(r)), "fallocate: errno %d", errno);
	f->report->events++;
	forget(r);
}

/* The host writes to the memory, which KVM does not log. */
void step_host_write(struct fuzz *f, const u32 *args)
{
	struct range r = range_of(f, area_of(f, args[0]), args[1], min(args[2], 64u));

	pthread_mutex_lock(&f->memory_lock);
	allow(f, r);
	for (u64 page = r.first; page < r.first + r.nr; page++) {
		r.area->content[page] = f->next_value;
		WRITE_ONCE(*word_at(r.area, page), f->next_value++);
	}
	pthread_mutex_unlock(&f->memory_lock);
}

/* While the child exists, private memory is copied on writes. */
void step_fork(struct fuzz *f, const u32 *args)
{
	pid_t pid = fork();

	CHECK(f, pid >= 0, "fork: errno %d", errno);
	if (!pid)
		_exit(0);
	CHECK(f, waitpid(pid, NULL, 0) == pid, "waitpid: errno %d", errno);
	f->report->events++;
}

void memory_check(struct fuzz *f)
{
	u32 seen;

	for (enum area_id id = 0; id < NR_AREAS; id++) {
		memory_allow(f, id, 0, AREA_PAGES);
		for (u64 page = 0; page < AREA_PAGES; page++) {
			seen = READ_ONCE(*word_at(&f->areas[id], page));
			CHECK(f, seen == f->areas[id].content[page],
			      "page %lu of area %u has 0x%x, expected 0x%x", page, id, seen,
			      f->areas[id].content[page]);
		}
	}
}

/* Aligned, so that it can be mapped by huge pages. */
static void *map_aligned(int prot, int flags, int fd)
{
	void *aligned = reserve_2m_aligned(AREA_SIZE);
	void *p = mmap(aligned, AREA_SIZE, prot, flags | MAP_FIXED, fd, 0);

	TEST_ASSERT(p == aligned, "mmap: errno %d", errno);
	return p;
}

void memory_create(struct fuzz *f)
{
	struct area *a = f->areas;
	int rw = PROT_READ | PROT_WRITE, fd = memfd_create("fuzz", 0);

	TEST_ASSERT(fd >= 0 && !ftruncate(fd, AREA_SIZE), "memfd: errno %d", errno);
	a[AREA_HUGETLB].fd = -1;
	/* Without reservations, as the host loses them when memory moves. */
	a[AREA_HUGETLB].hva = map_aligned(rw, MAP_ANON_PRIVATE | MAP_NORESERVE | MAP_HUGETLB |
					  MAP_HUGE_2MB, -1);
	a[AREA_THP].fd = -1;
	a[AREA_THP].hva = map_aligned(rw, MAP_ANON_PRIVATE, -1);
	madvise(a[AREA_THP].hva, AREA_SIZE, MADV_HUGEPAGE);
	/*
	 * Parts of a mapping merge only if they share an anon_vma.  Create it.
	 */
	WRITE_ONCE(*(u32 *)a[AREA_THP].hva, 0);
	a[AREA_SHARED].fd = fd;
	a[AREA_SHARED].hva = map_aligned(rw, MAP_SHARED, fd);
	f->spare = map_aligned(PROT_NONE, MAP_ANON_PRIVATE, -1);
	pthread_mutex_init(&f->memory_lock, NULL);
}

/* The other thread.  It must not change the content of memory. */

static pthread_t thread;
static bool stop;
static u64 thread_rng;

static void random_event(struct fuzz *f)
{
	u64 *rng = &thread_rng;
	struct range r = range_of(f, below(rng, NR_AREAS), below(rng, AREA_PAGES),
				  1 + below(rng, PAGES_PER_2M));

	switch (below(rng, 4)) {
	case 0:
		collapse(f, below(rng, AREA_SIZE / SZ_2M));
		break;
	case 1:
		if (mprotect(range_hva(r), range_size(r), PROT_READ) ||
		    mprotect(range_hva(r), range_size(r), PROT_READ | PROT_WRITE))
			fuzz_fail(f, "mprotect: errno %d", errno);
		f->report->events++;
		break;
	case 2:
		if (r.area->fd >= 0 && madvise(range_hva(r), range_size(r), MADV_DONTNEED))
			fuzz_fail(f, "MADV_DONTNEED: errno %d", errno);
		f->report->events++;
		break;
	default:
		remap(f, r);
	}
}

static void *thread_main(void *arg)
{
	struct fuzz *f = arg;

	while (!READ_ONCE(stop)) {
		pthread_mutex_lock(&f->memory_lock);
		random_event(f);
		pthread_mutex_unlock(&f->memory_lock);
		sched_yield();
	}
	return NULL;
}

void memory_start_thread(struct fuzz *f, u64 seed)
{
	thread_rng = seed;
	stop = false;
	start_thread(&thread, thread_main, f);
}

void memory_stop_thread(struct fuzz *f)
{
	WRITE_ONCE(stop, true);
	pthread_join(thread, NULL);
}
