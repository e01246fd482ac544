// SPDX-License-Identifier: GPL-2.0-only
/*
 * A guest that works and writes while it is migrated, and notices.
 *
 * Each vCPU has memory of its own and serves requests: RATE of them a second,
 * each of which reads READS pages and writes WRITES, all over its memory.  It
 * reads its TSC around each access, and notes per window of WINDOW_US
 *
 *	- accesses and requests, where they begin,
 *	- the longest stall: from one reading of the TSC to the next, whatever
 *	  the reason (a fault, the host's other work, a guest that is stopped),
 *	- the longest request, from its first access to its last.
 *
 * A request that is late is served at once, and later ones are not made up for:
 * the load does not become heavier after a stall.
 *
 * What was written is known for every page at every moment, and each access checks what it finds.
 *
 * It never stops; the host takes struct results out of its memory.  It has no device but a debug
 * console, on which it says "ready".
 */
#include "load.h"

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;

#define MAGIC			0x3174736f676d6967UL

#define DEBUG_CONSOLE		0xe9
#define PAGE_SHIFT		12
#define PAGE_SIZE		(1UL << PAGE_SHIFT)

#define MSR_X2APIC_ICR		0x830
#define ICR_INIT_OTHERS		0xc4500
#define ICR_START_OTHERS	(0xc4600 | IMAGE >> PAGE_SHIFT)

#define KVM_CPUID		0x40000000
#define KVM_SIGNATURE		0x4b4d564b	/* "KVMK" */
#define KVM_BOTH_CLOCKS		(1 << 0 | 1 << 3)
#define MSR_KVM_WALL_CLOCK	0x4b564d00
#define MSR_KVM_SYSTEM_TIME	0x4b564d01
#define MSR_KVM_SYSTEM_TIME_OLD	0x12

/* Both odd, and so each of them visits all pages of a power of two once a round. */
#define READ_STEP		0x9e3779b1u
#define WRITE_STEP		0x85ebca6bu

/* KVM's, see Documentation/virt/kvm/x86/msr.rst. */
struct wall_clock {
	u32 version, sec, nsec;
} __attribute__((packed));

struct system_time {
	u32 version, pad;
	u64 tsc, ns;
	u32 multiplier;
	signed char shift;
	u8 flags, pad2[2];
} __attribute__((packed));

/* What began in one window. */
struct window {
	u32 accesses, requests;
	u64 longest_stall;	/* ticks of the TSC, as the next one */
	u64 longest_request;
};

/*
 * @reads, @writes: made so far; both wrap around in the order of pages only.
 * @wrong: accesses that found something else than was written last.
 */
struct vcpu {
	u64 reads, writes, wrong;
	struct window windows[WINDOWS];
} __attribute__((aligned(PAGE_SIZE)));

/*
 * @start: TSC at which the first window begins; 0 until all vCPUs are ready.
 * @clock: TSC at which @time was the host's, in ns since @wall.
 */
struct results {
	u64 magic;
	u32 vcpus, pages, windows, window_us;
	u64 start, clock, tsc_khz;
	struct wall_clock wall;
	u32 pad;
	struct system_time time;
	struct vcpu vcpu[VCPUS];
};

_Static_assert(__builtin_offsetof(struct results, tsc_khz) == 40 &&
	       __builtin_offsetof(struct results, time) == 64 &&
	       __builtin_offsetof(struct results, vcpu) == PAGE_SIZE,
	       "the layout that lab/measure/migration/load.py reads");
_Static_assert((PAGES & (PAGES - 1)) == 0, "the order of pages needs a power of two");

__attribute__((section(".results")))
static volatile struct results results;
u8 stacks[VCPUS << STACK_SHIFT] __attribute__((aligned(PAGE_SIZE)));
static u32 ready;

/* What a vCPU knows besides; on its stack, which is a page. */
struct load {
	volatile struct vcpu *vcpu;
	volatile struct window *window;
	volatile u64 *memory;
	u64 window_end;		/* TSC; never in the past, but in the last window */
	u64 window_ticks;
	u64 last;		/* the latest reading of the TSC */
	u32 inverse;		/* of WRITE_STEP */
	u32 next_read;		/* in the order of reads */
	u32 next_write;		/* in the order of writes, below PAGES */
	u32 round;		/* of writes, from 1 */
};

static inline u64 rdtsc(void)
{
	u32 low, high;

	asm volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
	return low | (u64)high << 32;
}

static inline void wrmsr(u32 msr, u64 value)
{
	asm volatile("wrmsr" : : "c"(msr), "a"((u32)value), "d"((u32)(value >> 32)) : "memory");
}

static inline void cpuid(u32 leaf, u32 *eax, u32 *ebx)
{
	u32 ecx = 0, edx;

	*eax = leaf;
	asm volatile("cpuid" : "+a"(*eax), "=b"(*ebx), "+c"(ecx), "=d"(edx));
}

static void say(const char *text)
{
	for (; *text; text++)
		asm volatile("outb %%al, %%dx" : : "a"(*text), "d"(DEBUG_CONSOLE));
}

static void fail(const char *why)
{
	say(why);
	for (;;)
		asm volatile("hlt");
}

/*
 * The host's clock, so that windows can be told by the time that QEMU's events
 * have.  It is written to memory before wrmsr is over.  The old MSR gives the
 * time of that moment; the new one may give an earlier time with the TSC that
 * belongs to it, and that TSC is wrong if the host's kernel found out after KVM
 * was initialised how fast its TSC is (seen on svm-qemu).
 */
static void note_clock(void)
{
	volatile struct system_time *time = &results.time;
	u32 eax, ebx;
	u64 khz;

	cpuid(KVM_CPUID, &eax, &ebx);
	if (ebx != KVM_SIGNATURE)
		fail("not a guest of KVM\n");
	cpuid(KVM_CPUID + 1, &eax, &ebx);
	if ((eax & KVM_BOTH_CLOCKS) != KVM_BOTH_CLOCKS)
		fail("no kvm-clock\n");
	wrmsr(MSR_KVM_WALL_CLOCK, (u64)&results.wall);
	wrmsr(MSR_KVM_SYSTEM_TIME_OLD, (u64)time | 1);
	results.clock = rdtsc();
	if (!time->multiplier)
		fail("kvm-clock does not run\n");
	khz = (1000000UL << 32) / time->multiplier;
	results.tsc_khz = time->shift < 0 ? khz << -time->shift : khz >> time->shift;
	/* Off, by the new one: that undoes what the old one changes in KVM. */
	wrmsr(MSR_KVM_SYSTEM_TIME, 0);
}

/* Newton's iteration doubles the correct bits, from 3 on. */
static u32 inverse_of(u32 odd)
{
	u32 inverse = odd;

	for (int i = 0; i < 4; i++)
		inverse *= 2 - odd * inverse;
	return inverse;
}

/* Tells pages apart, so that a page in the wrong place is noticed, too. */
static inline u64 content(u32 page, u32 round)
{
	return ((u64)page << 32 | round) ^ MAGIC;
}

/* What @page holds, by its place in the order of writes. */
static inline u64 expected(const struct load *load, u32 page)
{
	u32 place = page * load->inverse & (PAGES - 1);

	return content(page, load->round - (place >= load->next_write));
}

static inline volatile u64 *word_of(const struct load *load, u32 page)
{
	return load->memory + ((u64)page << (PAGE_SHIFT - 3));
}

static inline __attribute__((always_inline)) void check(const struct load *load, u32 page)
{
	if (__builtin_expect(*word_of(load, page) != expected(load, page), 0))
		load->vcpu->wrong++;
}

/*
 * Writes to the first word of a page of this vCPU's own before others of its
 * words are written.  Where the log of PML is made by Bochs it has the address
 * that was written, although it is to have that of the page, and KVM WARNs about
 * every page whose first write since it was logged last was to another word.
 */
static inline void touch(volatile void *address)
{
	volatile u64 *word = (u64 *)((u64)address & ~(PAGE_SIZE - 1));

	*word = *word;
}

static inline void touch_all(const struct load *load)
{
	u64 stack;

	asm volatile("mov %%rsp, %0" : "=r"(stack));
	touch((void *)stack);
	touch(load->vcpu);
	touch(load->window);
}

/* The TSC was @now; whatever happened since the last time counts where it began. */
static inline void note(struct load *load, u64 now)
{
	touch_all(load);
	if (now - load->last > load->window->longest_stall)
		load->window->longest_stall = now - load->last;
	load->last = now;
	while (now >= load->window_end && load->window < load->vcpu->windows + WINDOWS - 1) {
		load->window++;
		load->window_end += load->window_ticks;
	}
}

/* Writes to nothing while it waits, see touch(); only what is longer is noted. */
static void wait(struct load *load, u64 until)
{
	u64 now, last = load->last, end = load->window_end;
	u64 longest = load->window->longest_stall;

	if (until < end)
		end = until;
	while ((now = rdtsc()) < end && now - last <= longest)
		last = now;
	touch_all(load);
	load->last = last;
	note(load, now);
}

static inline void read_page(struct load *load)
{
	u32 page = load->next_read++ * READ_STEP & (PAGES - 1);

	check(load, page);
	touch_all(load);
	load->window->accesses++;
	load->vcpu->reads++;
	note(load, rdtsc());
}

static inline void write_page(struct load *load)
{
	u32 page = load->next_write * WRITE_STEP & (PAGES - 1);

	check(load, page);
	*word_of(load, page) = content(page, load->round);
	if (++load->next_write == PAGES) {
		load->next_write = 0;
		load->round++;
	}
	touch_all(load);
	load->window->accesses++;
	load->vcpu->writes++;
	note(load, rdtsc());
}

static void serve(struct load *load)
{
	volatile struct window *window = load->window;
	u64 begin = load->last;

	touch(window);
	window->requests++;
	for (int i = 0; i < READS; i++)
		read_page(load);
	for (int i = 0; i < WRITES; i++)
		write_page(load);
	touch(window);
	if (load->last - begin > window->longest_request)
		window->longest_request = load->last - begin;
}

static __attribute__((noreturn)) void serve_forever(struct load *load)
{
	u64 period = results.tsc_khz * 1000 / RATE;
	u64 next = load->last + period;

	for (;;) {
		while (load->last < next)
			wait(load, next);
		serve(load);
		next += period;
		if (next < load->last)
			next = load->last;
	}
}

static void populate(const struct load *load)
{
	for (u32 page = 0; page < PAGES; page++)
		*word_of(load, page) = content(page, 0);
}

/* The first vCPU begins alone, and lets all begin to work at the same time. */
static void begin_together(u32 id)
{
	__atomic_fetch_add(&ready, 1, __ATOMIC_SEQ_CST);
	if (id) {
		while (!results.start)
			;
		return;
	}
	while (__atomic_load_n(&ready, __ATOMIC_SEQ_CST) != VCPUS)
		;
	say("ready\n");
	results.start = rdtsc();
}

void load_main(u32 id)
{
	struct load load = {
		.vcpu = &results.vcpu[id],
		.window = results.vcpu[id].windows,
		.memory = (u64 *)(MEMORY + ((u64)id * PAGES << PAGE_SHIFT)),
		.inverse = inverse_of(WRITE_STEP),
		.round = 1,
	};

	if (!id) {
		results.magic = MAGIC;
		results.vcpus = VCPUS;
		results.pages = PAGES;
		results.windows = WINDOWS;
		results.window_us = WINDOW_US;
		note_clock();
		wrmsr(MSR_X2APIC_ICR, ICR_INIT_OTHERS);
		wrmsr(MSR_X2APIC_ICR, ICR_START_OTHERS);
	}
	populate(&load);
	begin_together(id);
	load.window_ticks = results.tsc_khz * WINDOW_US / 1000;
	load.window_end = results.start + load.window_ticks;
	load.last = results.start;
	serve_forever(&load);
}
