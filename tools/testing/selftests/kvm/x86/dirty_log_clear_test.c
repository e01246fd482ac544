// SPDX-License-Identifier: GPL-2.0-only
/*
 * KVM_CLEAR_DIRTY_LOG, for each way in which KVM notices writes
 *
 * KVM learns of a write when it happens (write-protection fault), when a buffer
 * is full or a vCPU exits (PML), or when it reads SPTEs (Dirty bits).  The log
 * must be the same in all cases: a page that user space clears is clean,
 * whether or not KVM_GET_DIRTY_LOG has reported it, and a page that user space
 * does not clear stays dirty.
 *
 * Each case goes through the same steps.  The guest writes to every third page,
 * to every fifth page and so on, and user space gets and clears the log in
 * between.  A model says which pages are dirty.  Each GET must return exactly
 * these.  Cases differ in
 *  - how pages are logged: GET clears the log, CLEAR does, CLEAR does and all
 *    pages are dirty initially, or there is a dirty ring, which has no CLEAR;
 *  - which pages CLEAR clears: those that the last GET has returned, these and
 *    some others, all pages, no page, or all pages in the middle of the
 *    memslot;
 *  - what maps the memory: huge pages, 4KiB pages, or 4KiB pages of a memslot
 *    that begins in the middle of a page table and of a word of the log;
 *  - kvm.eager_page_split, if there are huge pages, and kvm.dirty_bits.
 *
 * The test needs dirty rings, two free 2MiB HugeTLB pages, and both parameters
 * writable.
 *
 * Limits: the vCPU does not run during an ioctl.  eager_split_stress_test, and
 * dirty_bits_test with its event "tlb", test writes that race with CLEAR.
 */
#include <asm/barrier.h>

#include "eager_split_util.h"

#define DATA_SLOT	10
#define DATA_GPA	0x40000000ull
#define DATA_PAGES	(2 * PAGES_PER_2M)
#define LOG_WORDS	DIV_ROUND_UP(DATA_PAGES, BITS_PER_WORD)
#define RING_SIZE	(SZ_8K * sizeof(struct kvm_dirty_gfn))

enum way { WAY_AUTO, WAY_MANUAL, WAY_ALL_SET, WAY_RING, NR_WAYS };

static const char * const ways[] = {
	[WAY_AUTO]	= "GET clears",
	[WAY_MANUAL]	= "manual protection",
	[WAY_ALL_SET]	= "initially all set",
	[WAY_RING]	= "dirty ring",
};

enum mask { MASK_SAID, MASK_MORE, MASK_ALL, MASK_NONE, MASK_MIDDLE, NR_MASKS };

static const char * const masks[] = {
	[MASK_SAID]	= "what GET said",
	[MASK_MORE]	= "more than GET said",
	[MASK_ALL]	= "all pages",
	[MASK_NONE]	= "no page",
	[MASK_MIDDLE]	= "all pages in the middle",
};

/* How many words MASK_MIDDLE leaves out at each end. */
#define EDGE_WORDS	1

/* MASK_MORE contains each page that GET has returned, and every 7th page. */
#define MORE_STEP	7

/*
 * What maps the memslot.  Each memslot extends over parts of two page tables.
 */
static const struct memory {
	const char *name;
	enum vm_mem_backing_src_type backing;
	/* Pages that the memslot leaves out at its beginning, and at its end. */
	u64 before;
	u64 behind;
	/* There are huge pages, so that it matters whether they are split eagerly. */
	bool huge;
} memories[] = {
	{ "2MiB pages", VM_MEM_SRC_ANONYMOUS_HUGETLB_2MB, .huge = true },
	{ "4KiB pages", VM_MEM_SRC_ANONYMOUS, .before = 384, .behind = 384 },
	{ "4KiB pages, unaligned", VM_MEM_SRC_ANONYMOUS, .before = 357, .behind = 401 },
};

/*
 * Parameters of the host.  If VMs cannot log by Dirty bits, dirty_bits changes
 * nothing, and the test leaves out the first NR_COLLECTING rows.
 */
#define NR_COLLECTING	2

static const struct host {
	const char *eager;
	const char *dirty_bits;
} hosts[] = {
	{ "N", "on" },
	{ "Y", "on" },
	{ "N", "off" },
	{ "Y", "off" },
};

struct run {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	const struct host *host;
	enum way way;
	enum mask mask;
	const struct memory *memory;
	u64 nr_pages;
	/* What the next GET is to return, and what the last one has returned. */
	unsigned long dirty[LOG_WORDS];
	unsigned long said[LOG_WORDS];
	unsigned int nr_gets;
};

static u64 first_gva, nr_pages, stride;

static void guest_main(void)
{
	for (;;) {
		for (u64 page = 0; page < nr_pages; page += stride)
			WRITE_ONCE(*(u64 *)(first_gva + page * PAGE_SIZE), stride);
		GUEST_SYNC(0);
	}
}

/* For messages. */
static const char *label(const struct run *r)
{
	static char text[160];

	snprintf(text, sizeof(text), "eager_page_split=%s, dirty_bits=%s, %s, %s, CLEAR of %s",
		 r->host->eager, r->host->dirty_bits, ways[r->way], r->memory->name,
		 masks[r->mask]);
	return text;
}

/* The guest writes to every N-th page, beginning with the first. */
static void write_each(struct run *r, u64 n)
{
	write_guest_global(r->vm, stride, n);
	vcpu_run_to_sync(r->vcpu, NULL);
	for (u64 page = 0; page < r->nr_pages; page += n)
		__set_bit(page, r->dirty);
}

/* Read all entries of the ring, and reset it. */
static void collect_ring(struct run *r)
{
	struct kvm_dirty_gfn *ring = vcpu_map_dirty_ring(r->vcpu);
	unsigned int nr = 0;

	memset(r->said, 0, sizeof(r->said));
	for (unsigned int i = 0; i < RING_SIZE / sizeof(*ring); i++) {
		/* Pairs with KVM's barrier between the entry and its flags. */
		if (smp_load_acquire(&ring[i].flags) != KVM_DIRTY_GFN_F_DIRTY)
			continue;
		TEST_ASSERT(ring[i].slot == DATA_SLOT && ring[i].offset < r->nr_pages,
			    "page %llu of memslot %u is in the ring", ring[i].offset, ring[i].slot);
		__set_bit(ring[i].offset, r->said);
		/* The entry has been read, and KVM may use it again. */
		smp_store_release(&ring[i].flags, KVM_DIRTY_GFN_F_RESET);
		nr++;
	}
	TEST_ASSERT_EQ(kvm_vm_reset_dirty_ring(r->vm), nr);
}

static void get_and_compare(struct run *r)
{
	unsigned int missing = 0, more = 0;

	if (r->way == WAY_RING)
		collect_ring(r);
	else
		kvm_vm_get_dirty_log(r->vm, DATA_SLOT, r->said);

	r->nr_gets++;
	for (u64 page = 0; page < r->nr_pages; page++) {
		missing += test_bit(page, r->dirty) && !test_bit(page, r->said);
		more += !test_bit(page, r->dirty) && test_bit(page, r->said);
	}
	TEST_ASSERT(!missing && !more,
		    "%s: log %u: %u pages were written and are missing, %u are clean",
		    label(r), r->nr_gets, missing, more);

	if (r->way == WAY_AUTO || r->way == WAY_RING)
		memset(r->dirty, 0, sizeof(r->dirty));
}

static void clear_range(struct run *r, const unsigned long *mask, u64 first, u64 nr)
{
	kvm_vm_clear_dirty_log(r->vm, DATA_SLOT, (void *)mask, first, nr);
	for (u64 page = 0; page < nr; page++)
		if (test_bit(page, mask))
			__clear_bit(first + page, r->dirty);
}

static void clear(struct run *r, enum mask mask)
{
	u64 edge = mask == MASK_MIDDLE ? EDGE_WORDS * BITS_PER_WORD : 0;
	u64 nr = mask == MASK_MIDDLE ? round_down(r->nr_pages, BITS_PER_WORD) - 2 * edge :
				       r->nr_pages;
	unsigned long log[LOG_WORDS] = {};

	if (r->way == WAY_RING)
		return;

	/* This sets bits of pages behind the memslot, too, which KVM ignores. */
	if (mask == MASK_ALL || mask == MASK_MIDDLE)
		memset(log, 0xff, sizeof(log));
	if (mask == MASK_SAID || mask == MASK_MORE)
		memcpy(log, r->said, sizeof(log));
	if (mask == MASK_MORE) {
		for (u64 page = 0; page < r->nr_pages; page += MORE_STEP)
			__set_bit(page, log);
	}

	clear_range(r, log, edge, nr);
}

/* The guest writes to all pages, so that KVM maps them, and writable. */
static void create_vm(struct run *r)
{
	const struct memory *m = r->memory;
	u64 gpa = DATA_GPA + m->before * PAGE_SIZE;

	r->nr_pages = DATA_PAGES - m->before - m->behind;
	r->vm = __vm_create(VM_SHAPE_DEFAULT, 1, 0);
	if (r->way == WAY_RING)
		vm_enable_dirty_ring(r->vm, RING_SIZE);
	if (r->way == WAY_MANUAL || r->way == WAY_ALL_SET)
		vm_enable_manual_protect(r->vm, r->way == WAY_ALL_SET);
	r->vcpu = vm_vcpu_add(r->vm, 0, guest_main);
	vm_userspace_mem_region_add(r->vm, m->backing, gpa, DATA_SLOT, r->nr_pages, 0);
	virt_map_level(r->vm, DATA_GPA, DATA_GPA, DATA_PAGES * PAGE_SIZE, PG_LEVEL_2M);
	write_guest_global(r->vm, first_gva, gpa);
	write_guest_global(r->vm, nr_pages, r->nr_pages);
	write_each(r, 1);
}

static void enable(struct run *r)
{
	vm_mem_region_set_flags(r->vm, DATA_SLOT, KVM_MEM_LOG_DIRTY_PAGES);
	memset(r->dirty, 0, sizeof(r->dirty));
	if (r->way != WAY_ALL_SET)
		return;

	for (u64 page = 0; page < r->nr_pages; page++)
		__set_bit(page, r->dirty);
	get_and_compare(r);
	clear(r, MASK_ALL);
}

static void run_round(struct run *r)
{
	r->nr_gets = 0;
	enable(r);

	/* CLEAR without a GET before it. */
	write_each(r, 3);
	clear(r, r->mask);
	get_and_compare(r);

	/* The guest writes to reported pages again, and to other pages. */
	write_each(r, 5);
	get_and_compare(r);
	write_each(r, 2);
	clear(r, r->mask);
	get_and_compare(r);

	/* CLEAR twice.  Pages that were cleared must stay clean. */
	clear(r, r->mask);
	clear(r, r->mask);
	write_each(r, 64);
	get_and_compare(r);
	clear(r, r->mask);
	get_and_compare(r);

	clear(r, MASK_ALL);
	get_and_compare(r);
	vm_mem_region_set_flags(r->vm, DATA_SLOT, 0);
	write_each(r, 1);
}

/*
 * Run all masks in one VM, and the first mask once more, so that each of them
 * begins with what another one has left.
 */
static void run_masks(struct run *r)
{
	unsigned int nr_masks = r->way == WAY_RING ? 1 : NR_MASKS;

	create_vm(r);
	for (unsigned int i = 0; i <= nr_masks; i++) {
		r->mask = i % nr_masks;
		run_round(r);
	}
	kvm_vm_free(r->vm);
}

static bool can_dirty_bits(void)
{
	setting_set(PARAM_DIRTY_BITS, "on");
	return new_vm_get_stat("dirty_bits") == 1;
}

static void run_host(const struct host *host)
{
	struct run r = { .host = host };

	setting_set(PARAM_EAGER, host->eager);
	setting_set(PARAM_DIRTY_BITS, host->dirty_bits);
	for (r.way = 0; r.way < NR_WAYS; r.way++) {
		for (unsigned int i = 0; i < ARRAY_SIZE(memories); i++) {
			r.memory = &memories[i];
			if (!r.memory->huge && !strcmp(host->eager, "N"))
				continue;
			run_masks(&r);
		}
	}
	ksft_test_result_pass("eager_page_split=%s, dirty_bits=%s\n", host->eager,
			      host->dirty_bits);
}

int main(int argc, char *argv[])
{
	unsigned int first;

	parse_test_options(argc, argv, NULL, NULL);
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_DIRTY_LOG_RING_ACQ_REL));
	TEST_REQUIRE(setting_exists(PARAM_EAGER) && setting_exists(PARAM_DIRTY_BITS));
	__TEST_REQUIRE(nr_free_2m_pages() >= DATA_PAGES / PAGES_PER_2M,
		       "too few 2MiB HugeTLB pages are free");

	ksft_print_header();
	first = can_dirty_bits() ? 0 : NR_COLLECTING;
	ksft_set_plan(ARRAY_SIZE(hosts) - first);
	for (unsigned int i = first; i < ARRAY_SIZE(hosts); i++)
		run_host(&hosts[i]);
	ksft_finished();
}
