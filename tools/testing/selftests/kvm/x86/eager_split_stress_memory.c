// SPDX-License-Identifier: GPL-2.0-only
/*
 * How eager_split_stress_test takes memory away from the guest
 *
 * From begin_taking() to the end of the round, the guest may find a page fresh,
 * i.e. without its words.  end_taking() has the page copied again.  The test
 * fills memory that it has taken away with poison, through another mapping.
 * The poison must not change, because the guest must not write there any more.
 */
#include <linux/falloc.h>
#include <linux/mman.h>

#include "eager_split_stress.h"

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

/*
 * Return: the address of a vCPU's word, if the chunk of @page is mapped at @p.
 */
static u64 *word_in(void *p, u64 page, u64 vcpu)
{
	return p + (FIRST_PAGE + page) % PAGES_PER_2M * PAGE_SIZE + word_offset(page, vcpu);
}

static void fill_words(void *p, u64 chunk, u64 word)
{
	for (u64 page = chunk_first(chunk); page < chunk_end(chunk); page++)
		for (u64 vcpu = 0; vcpu < NR_VCPUS; vcpu++)
			WRITE_ONCE(*word_in(p, page, vcpu), word);
}

static void poison(struct stress *t, void *p, u64 chunk)
{
	fill_words(p, chunk, tagged(TAG_POISON, chunk));
}

static void check_poison(struct stress *t, void *p, u64 chunk)
{
	u64 seen, expected = tagged(TAG_POISON, chunk);

	for (u64 page = chunk_first(chunk); page < chunk_end(chunk); page++) {
		for (u64 vcpu = 0; vcpu < NR_VCPUS; vcpu++) {
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

void map_bank(struct stress *t, u64 chunk, unsigned int nr)
{
	void *p = mmap(t->data + chunk * SZ_2M, SZ_2M, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_FIXED, t->banks[nr].fd, chunk * SZ_2M);

	CHECK(t, p != MAP_FAILED, "Can't map bank %u, errno %d", nr, errno);
	t->current_bank[chunk] = nr;
}

/* Replace the memory of a chunk, and poison the old memory. */
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
	if (t->jar.mapping)
		check_poison(t, t->jar.mapping, t->jar.chunk);
}

static void empty_jar(struct stress *t)
{
	check_jar_poison(t);
	if (t->jar.mapping)
		munmap(t->jar.mapping, SZ_2M);
	t->jar.mapping = NULL;
}

static void fill_jar(struct stress *t, void *mapping, u64 chunk)
{
	if (mapping == MAP_FAILED)
		return;

	poison(t, mapping, chunk);
	t->jar = (struct jar){ mapping, chunk };
}

/*
 * Free a huge page, and allocate one for the jar.  HugeTLB first reuses the
 * page that was freed last, so the jar gets the page that was the guest's.
 */
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
	fill_jar(t, p, chunk);
	end_taking(t, chunk_first(chunk), chunk_end(chunk));
}

/* Move the pages to the jar.  The guest gets fresh pages. */
static void remap_chunk(struct stress *t, u64 *rng, u64 chunk)
{
	void *p;

	empty_jar(t);
	begin_taking(t, chunk_first(chunk), chunk_end(chunk));
	p = mremap(t->data + chunk * SZ_2M, SZ_2M, SZ_2M, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	CHECK(t, p != MAP_FAILED, "Can't move memory, errno %d", errno);
	fill_jar(t, p, chunk);
	end_taking(t, chunk_first(chunk), chunk_end(chunk));
}

/* Make 4KiB pages a huge page again, if one can be allocated. */
static void collapse_chunk(struct stress *t, u64 *rng, u64 chunk)
{
	madvise(t->data + chunk * SZ_2M, SZ_2M, MADV_COLLAPSE);
}

/* Drop some pages of a chunk.  They are freed, so they cannot be poisoned. */
static void drop_pages(struct stress *t, u64 *rng, u64 chunk)
{
	u64 first = chunk_first(chunk), n = chunk_end(chunk) - first;
	u64 page = first + below(rng, n), end = min(page + 1 + below(rng, n), first + n);

	begin_taking(t, page, end);
	CHECK(t, !madvise(data_region(t)->hva + page * PAGE_SIZE, (end - page) * PAGE_SIZE,
			  MADV_DONTNEED), "MADV_DONTNEED: errno %d", errno);
	end_taking(t, page, end);
}

/* Have KVM map the chunk again.  The file keeps the content. */
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

/*
 * Protect private memory as a whole, as parts of a mapping may not merge again.
 */
static void protect_memory(struct stress *t, u64 *rng, u64 chunk)
{
	void *p = t->shared ? t->data + chunk * SZ_2M : t->data;
	size_t size = t->shared ? SZ_2M : DATA_SIZE;

	pthread_rwlock_wrlock(&t->protection);
	CHECK(t, !mprotect(p, size, PROT_READ), "mprotect: errno %d", errno);
	usleep(below(rng, 300));
	CHECK(t, !mprotect(p, size, PROT_READ | PROT_WRITE), "mprotect: errno %d", errno);
	pthread_rwlock_unlock(&t->protection);
}

static void (* const shared_ops[])(struct stress *t, u64 *rng, u64 chunk) = {
	replace_chunk, replace_chunk, punch_chunk, unmap_chunk, unmap_tables, protect_memory,
};

static void (* const private_ops[])(struct stress *t, u64 *rng, u64 chunk) = {
	remap_chunk, drop_pages, drop_pages, collapse_chunk, protect_memory, unmap_tables,
};

void one_memory_op(struct stress *t, u64 *rng)
{
	u64 chunk = below(rng, NR_CHUNKS);

	if (t->shared)
		shared_ops[below(rng, ARRAY_SIZE(shared_ops))](t, rng, chunk);
	else
		private_ops[below(rng, ARRAY_SIZE(private_ops))](t, rng, chunk);
}

void check_all_poison(struct stress *t)
{
	for (unsigned int i = 0; i < NR_BANKS; i++)
		for (u64 chunk = 0; chunk < NR_CHUNKS; chunk++)
			if (t->banks[i].poisoned[chunk])
				check_poison(t, bank_chunk(&t->banks[i], chunk), chunk);
	check_jar_poison(t);
}
