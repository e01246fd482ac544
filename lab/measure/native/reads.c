// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a huge page is worth: the time of a read anywhere in much memory, mapped by 2 MiB or by
 * 4 KiB pages.  "dependent" reads wait for each other, as in a list; "random" ones do not.
 *
 * Which address comes next is computed, and not stored in the memory: a store of each would take
 * longer than what is measured.  All of the memory holds zeroes.  The processor does not know that,
 * so adding what was read to the next address makes reads depend on each other.
 */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

/* Since Linux 6.1; headers of user space may be older. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define EXPORT __attribute__((visibility("default")))
#define HUGE_BYTES (2UL << 20)
#define SMALL_BYTES 4096UL
#define LINE_BYTES 64UL

/* The memory, and the mapping that it is in, which begins at any page. */
static char *memory, *mapping;
static unsigned long bytes, mapped;
static volatile uint64_t sink;

/* Return: 0, or -1 if there is no such memory. */
EXPORT int set_up_reads(unsigned long size, int huge)
{
	bytes = size;
	mapped = size + HUGE_BYTES;
	mapping = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mapping == MAP_FAILED)
		return -1;
	memory = (char *)(((uintptr_t)mapping + HUGE_BYTES - 1) & -HUGE_BYTES);
	if (madvise(mapping, mapped, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE))
		return -1;
	/* A write: what is only read could all be the page of zeroes. */
	for (unsigned long at = 0; at < bytes; at += SMALL_BYTES)
		*(volatile char *)(memory + at) = 0;
	/* Where there was no huge page free, make room for one; huge_bytes() tells how much is huge. */
	for (unsigned long at = 0; huge && at < bytes; at += HUGE_BYTES)
		madvise(memory + at, HUGE_BYTES, MADV_COLLAPSE);
	return 0;
}

EXPORT void tear_down_reads(void)
{
	munmap(mapping, mapped);
}

/* Bytes of the memory that are mapped by huge pages; -1 if the kernel does not tell. */
EXPORT long huge_bytes(void)
{
	FILE *file = fopen("/proc/self/smaps", "r");
	unsigned long start, end, kib;
	long sum = 0;
	int mine = 0;
	char line[512];

	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			mine = start < (uintptr_t)mapping + mapped && end > (uintptr_t)mapping;
		else if (mine && sscanf(line, "AnonHugePages: %lu kB", &kib) == 1)
			sum += kib << 10;
	}
	fclose(file);
	return sum;
}

static uint64_t next(uint64_t at)
{
	return at * 6364136223846793005UL + 1442695040888963407UL;
}

/* High bits are the random ones. */
static const uint64_t *line_of(uint64_t at)
{
	unsigned long lines = bytes / LINE_BYTES;

	return (const uint64_t *)(memory + (unsigned long)((unsigned __int128)at * lines >> 64) *
				  LINE_BYTES);
}

/* Nanoseconds that @count reads take. */
EXPORT double read_all(unsigned long count, int dependent, uint64_t seed)
{
	struct timespec start, end;
	uint64_t at = seed, sum = 0;

	clock_gettime(CLOCK_MONOTONIC, &start);
	if (dependent) {
		for (unsigned long i = 0; i < count; i++)
			at = next(at + *line_of(at));
	} else {
		for (unsigned long i = 0; i < count; i++) {
			sum += *line_of(at);
			at = next(at);
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	sink = at + sum;
	return (end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec);
}
