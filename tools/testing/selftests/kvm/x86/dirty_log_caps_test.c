// SPDX-License-Identifier: GPL-2.0-only
/*
 * The dirty log while user space changes how KVM logs
 *
 * KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2 decides whether KVM_GET_DIRTY_LOG clears
 * the log, and whether all pages of a memslot are dirty when logging is
 * enabled.  User space can change the capability while memslots are logged, can
 * use a dirty ring instead of the log, and can pass unmapped memory to GET.
 *
 * Each row of sequences[] is a sequence of steps: ioctls of the host, and
 * writes of the guest.  A model says which pages are dirty after each step.
 * The test compares it with every log that KVM returns, page by page.  The log
 * must not depend on whether 4KiB or 2MiB pages map the memory, or on how KVM
 * notices writes.
 *
 * The test needs a kernel that can initially set all bits of the log, dirty
 * rings, and two 2MiB HugeTLB pages.
 *
 * Limits: the vCPU does not run while the host calls an ioctl.
 */
#include <sys/mman.h>
#include <asm/barrier.h>
#include <linux/bitmap.h>
#include <linux/sizes.h>

#include "kvm_util.h"
#include "processor.h"

#define DATA_SLOT	10
#define DATA_GPA	0x40000000ull
#define MOVED_GPA	(DATA_GPA + SZ_1G)
#define DATA_SIZE	(2 * SZ_2M)
#define NR_PAGES	(DATA_SIZE / PAGE_SIZE)
#define LOG_SIZE	(NR_PAGES / BITS_PER_BYTE)
#define RING_SIZE	(4 * NR_PAGES * sizeof(struct kvm_dirty_gfn))
#define MAX_STEPS	16

#define MANUAL		KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE
#define INIT_SET	(MANUAL | KVM_DIRTY_LOG_INITIALLY_SET)

enum op {
	OP_END,
	OP_SET_CAP,		/* KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2 becomes @arg */
	OP_ENABLE,		/* logging of the memslot */
	OP_DISABLE,
	OP_MOVE,		/* the memslot elsewhere and back */
	OP_RECREATE,		/* delete the memslot, and create it with @arg pages */
	OP_WRITE,		/* the guest writes to the first @arg pages */
	OP_GET,			/* or collect and reset the ring */
	OP_GET_FAULT,		/* GET into memory of which only the first @arg bytes exist */
	OP_CLEAR,		/* the first @arg pages, whatever GET returned */
};

struct step {
	enum op op;
	unsigned long arg;
};

#define SET_CAP(value)		{ OP_SET_CAP, value }
#define ENABLE			{ OP_ENABLE }
#define DISABLE			{ OP_DISABLE }
#define MOVE			{ OP_MOVE }
#define RECREATE(nr_pages)	{ OP_RECREATE, nr_pages }
#define WRITE(nr_pages)		{ OP_WRITE, nr_pages }
#define GET			{ OP_GET }
#define GET_FAULT(nr_bytes)	{ OP_GET_FAULT, nr_bytes }
#define CLEAR(nr_pages)		{ OP_CLEAR, nr_pages }
#define CLEAR_ALL		CLEAR(NR_PAGES)

struct sequence {
	const char *name;
	bool ring;
	struct step steps[MAX_STEPS];
};

/* Enable logging with one value of the capability, then change the value. */
#define CHANGE_CAP(before, after) {						\
	SET_CAP(before), ENABLE, SET_CAP(after), GET, CLEAR_ALL,		\
	WRITE(512), GET, CLEAR(512), WRITE(256), GET				\
}

/* The same with a ring, which GET collects and resets. */
#define RING_CAP(before, after) {						\
	SET_CAP(before), ENABLE, SET_CAP(after), WRITE(512), GET, WRITE(256), GET \
}

static const struct sequence sequences[] = {
	{ "automatic protection", .steps = CHANGE_CAP(0, 0) },
	{ "manual protection", .steps = CHANGE_CAP(MANUAL, MANUAL) },
	{ "initially all set", .steps = CHANGE_CAP(INIT_SET, INIT_SET) },

	{ "manual becomes automatic", .steps = CHANGE_CAP(MANUAL, 0) },
	{ "automatic becomes manual", .steps = CHANGE_CAP(0, MANUAL) },
	{ "all set becomes manual", .steps = CHANGE_CAP(INIT_SET, MANUAL) },
	{ "all set becomes automatic", .steps = CHANGE_CAP(INIT_SET, 0) },
	{ "manual becomes all set", .steps = CHANGE_CAP(MANUAL, INIT_SET) },
	{ "automatic becomes all set", .steps = CHANGE_CAP(0, INIT_SET) },
	{ "all set becomes manual amid CLEAR", .steps = {
		SET_CAP(INIT_SET), ENABLE, GET, CLEAR(192), SET_CAP(MANUAL), CLEAR(768),
		WRITE(768), GET, CLEAR_ALL, WRITE(NR_PAGES), GET } },
	{ "all set becomes automatic after GET", .steps = {
		SET_CAP(INIT_SET), ENABLE, GET, SET_CAP(0), GET, WRITE(512), GET } },
	{ "all set, then enabled again as automatic", .steps = {
		SET_CAP(INIT_SET), ENABLE, DISABLE, SET_CAP(0), ENABLE, WRITE(512), GET,
		WRITE(256), GET } },
	{ "automatic, then enabled again as all set", .steps = {
		SET_CAP(0), ENABLE, WRITE(512), DISABLE, SET_CAP(INIT_SET), ENABLE, SET_CAP(0),
		GET, WRITE(512), GET } },
	{ "all set becomes manual, memslot moves", .steps = {
		SET_CAP(INIT_SET), ENABLE, SET_CAP(MANUAL), MOVE, GET, CLEAR_ALL, WRITE(512), GET,
		CLEAR(512), WRITE(256), GET } },

	{ "GET without memory, automatic", .steps = {
		SET_CAP(0), ENABLE, WRITE(100), GET_FAULT(0), GET, WRITE(50), GET } },
	{ "GET without half of the memory, automatic", .steps = {
		SET_CAP(0), ENABLE, WRITE(NR_PAGES), GET_FAULT(LOG_SIZE / 2), WRITE(50), GET,
		WRITE(50), GET } },
	{ "GET without memory twice, automatic", .steps = {
		SET_CAP(0), ENABLE, WRITE(100), GET_FAULT(0), GET_FAULT(0), WRITE(200), GET } },
	{ "GET without memory, manual", .steps = {
		SET_CAP(MANUAL), ENABLE, WRITE(100), GET_FAULT(0), GET, CLEAR_ALL, WRITE(50),
		GET } },
	{ "GET without memory, all set becomes automatic", .steps = {
		SET_CAP(INIT_SET), ENABLE, SET_CAP(0), GET_FAULT(0), GET, WRITE(512), GET } },

	{ "ring, automatic", .ring = true, .steps = RING_CAP(0, 0) },
	{ "ring, manual", .ring = true, .steps = RING_CAP(MANUAL, MANUAL) },
	{ "ring, all set", .ring = true, .steps = RING_CAP(INIT_SET, INIT_SET) },
	{ "ring, all set becomes automatic", .ring = true, .steps = RING_CAP(INIT_SET, 0) },
	{ "ring, automatic becomes all set", .ring = true, .steps = RING_CAP(0, INIT_SET) },
	/*
	 * The first GET collects entries of the old and of the new memslot, and
	 * KVM resets all of them in one batch.
	 */
	{ "ring, memslot shrinks", .ring = true, .steps = {
		SET_CAP(0), ENABLE, WRITE(40), RECREATE(32), WRITE(32), GET, WRITE(32), GET } },
};

static const struct backing {
	const char *name;
	enum vm_mem_backing_src_type type;
} backings[] = {
	{ "2MiB pages", VM_MEM_SRC_ANONYMOUS_HUGETLB_2MB },
	{ "4KiB pages", VM_MEM_SRC_ANONYMOUS },
};

/* One VM and the model of its memslot. */
struct run {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	bool ring;
	bool resized;
	u64 cap;
	bool logged;
	bool dirty[NR_PAGES];	/* what the next GET must return */
};

/* How a log differs from the model. */
struct diff {
	unsigned int missing;
	unsigned int extra;
};

static u64 nr_to_write = NR_PAGES;
/* The start of a page, behind which there is a page that is not accessible. */
static void *edge;

static void guest_main(void)
{
	for (;;) {
		for (u64 i = 0; i < READ_ONCE(nr_to_write); i++)
			WRITE_ONCE(*(u64 *)(DATA_GPA + i * PAGE_SIZE), i);
		GUEST_SYNC(0);
	}
}

static void guest_write(struct run *r, u64 nr_pages)
{
	nr_to_write = nr_pages;
	sync_global_to_guest(r->vm, nr_to_write);
	vcpu_run(r->vcpu);
	TEST_ASSERT_EQ(get_ucall(r->vcpu, NULL), UCALL_SYNC);
}

static void set_dirty(struct run *r, bool dirty, unsigned int nr_pages)
{
	for (unsigned int i = 0; i < nr_pages; i++)
		r->dirty[i] = dirty;
}

/* Set the bits of @log whose pages are in the ring, and give the entries back to KVM. */
static void collect_ring(struct run *r, unsigned long *log)
{
	struct kvm_dirty_gfn *ring = vcpu_map_dirty_ring(r->vcpu);
	u32 nr = 0;

	for (u32 i = 0; i < RING_SIZE / sizeof(*ring); i++) {
		/* Pairs with KVM's barrier between the entry and its flags. */
		if (smp_load_acquire(&ring[i].flags) != KVM_DIRTY_GFN_F_DIRTY)
			continue;
		TEST_ASSERT(ring[i].slot == DATA_SLOT && ring[i].offset < NR_PAGES,
			    "Page %llu of memslot %u", ring[i].offset, ring[i].slot);
		set_bit(ring[i].offset, log);
		/* The entry has been read. */
		smp_store_release(&ring[i].flags, KVM_DIRTY_GFN_F_RESET);
		nr++;
	}
	TEST_ASSERT_EQ(kvm_vm_reset_dirty_ring(r->vm), nr);
}

static struct diff get_and_compare(struct run *r)
{
	DECLARE_BITMAP(log, NR_PAGES) = {};
	struct diff diff = {};

	if (r->ring)
		collect_ring(r, log);
	else
		kvm_vm_get_dirty_log(r->vm, DATA_SLOT, log);

	for (unsigned int i = 0; i < NR_PAGES; i++) {
		diff.missing += r->dirty[i] && !test_bit(i, log);
		diff.extra += !r->dirty[i] && test_bit(i, log);
	}
	if (r->ring || !r->cap)
		set_dirty(r, false, NR_PAGES);
	return diff;
}

static void get_into_hole(struct run *r, unsigned int nr_bytes)
{
	struct kvm_dirty_log args = {
		.slot = DATA_SLOT,
		.dirty_bitmap = edge + PAGE_SIZE - nr_bytes,
	};
	int ret = __vm_ioctl(r->vm, KVM_GET_DIRTY_LOG, &args);

	TEST_ASSERT(ret == -1 && errno == EFAULT, "KVM_GET_DIRTY_LOG: %d, errno %d", ret, errno);
}

static void clear_log(struct run *r, unsigned int nr_pages)
{
	DECLARE_BITMAP(mask, NR_PAGES);

	memset(mask, 0xff, sizeof(mask));
	kvm_vm_clear_dirty_log(r->vm, DATA_SLOT, mask, 0, nr_pages);
	set_dirty(r, false, nr_pages);
}

static void set_logging(struct run *r, bool on)
{
	vm_mem_region_set_flags(r->vm, DATA_SLOT, on ? KVM_MEM_LOG_DIRTY_PAGES : 0);
	r->logged = on;
	/* With a ring there is no bitmap whose bits could all be set. */
	set_dirty(r, on && !r->ring && r->cap == INIT_SET, NR_PAGES);
}

/* The ring keeps its entries for the old memslot. */
static void recreate_memslot(struct run *r, u64 nr_pages)
{
	struct userspace_mem_region *region = memslot2region(r->vm, DATA_SLOT);

	r->resized = true;
	region->region.memory_size = 0;
	vm_ioctl(r->vm, KVM_SET_USER_MEMORY_REGION2, &region->region);
	region->region.memory_size = nr_pages * PAGE_SIZE;
	vm_ioctl(r->vm, KVM_SET_USER_MEMORY_REGION2, &region->region);
}

static struct diff do_step(struct run *r, const struct step *step)
{
	switch (step->op) {
	case OP_SET_CAP:
		vm_enable_cap(r->vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, step->arg);
		r->cap = step->arg;
		break;
	case OP_ENABLE:
	case OP_DISABLE:
		set_logging(r, step->op == OP_ENABLE);
		break;
	case OP_MOVE:
		vm_mem_region_move(r->vm, DATA_SLOT, MOVED_GPA);
		vm_mem_region_move(r->vm, DATA_SLOT, DATA_GPA);
		break;
	case OP_RECREATE:
		recreate_memslot(r, step->arg);
		break;
	case OP_WRITE:
		guest_write(r, step->arg);
		if (r->logged)
			set_dirty(r, true, step->arg);
		break;
	case OP_GET:
		return get_and_compare(r);
	case OP_GET_FAULT:
		get_into_hole(r, step->arg);
		break;
	case OP_CLEAR:
		clear_log(r, step->arg);
		break;
	default:
		TEST_FAIL("Unknown step %u", step->op);
	}
	return (struct diff){};
}

/* The guest writes to all of the memory, so that KVM maps it, and writable. */
static void create_vm(struct run *r, const struct backing *backing)
{
	r->vm = __vm_create(VM_SHAPE_DEFAULT, 1, 0);
	if (r->ring)
		vm_enable_dirty_ring(r->vm, RING_SIZE);
	r->vcpu = vm_vcpu_add(r->vm, 0, guest_main);
	vm_userspace_mem_region_add(r->vm, backing->type, DATA_GPA, DATA_SLOT, NR_PAGES, 0);
	virt_map_level(r->vm, DATA_GPA, DATA_GPA, DATA_SIZE, PG_LEVEL_2M);
	guest_write(r, NR_PAGES);
}

/*
 * Other sequences may have run in the VM.  What they have left must not matter.
 */
static void run_sequence(struct run *r, const struct sequence *s, const struct backing *backing)
{
	unsigned int i, nr_gets = 0;
	struct diff diff = {};

	if (!r->vm)
		create_vm(r, backing);
	for (i = 0; i < MAX_STEPS && s->steps[i].op && !diff.missing && !diff.extra; i++) {
		diff = do_step(r, &s->steps[i]);
		nr_gets += s->steps[i].op == OP_GET;
	}
	if (diff.missing || diff.extra)
		ksft_test_result_fail("%s, %s: %u pages are missing in log %u, %u are not dirty\n",
				      s->name, backing->name, diff.missing, nr_gets, diff.extra);
	else
		ksft_test_result_pass("%s, %s\n", s->name, backing->name);

	if (diff.missing || diff.extra || r->resized) {
		kvm_vm_free(r->vm);
		*r = (struct run){ .ring = r->ring };
		return;
	}
	set_logging(r, false);
	guest_write(r, NR_PAGES);
}

static void run_sequences(bool ring, const struct backing *backing)
{
	struct run r = { .ring = ring };

	for (unsigned int i = 0; i < ARRAY_SIZE(sequences); i++) {
		if (sequences[i].ring == ring)
			run_sequence(&r, &sequences[i], backing);
	}
	if (r.vm)
		kvm_vm_free(r.vm);
}

static bool has_2m_pages(void)
{
	int flags = vm_mem_backing_src_alias(VM_MEM_SRC_ANONYMOUS_HUGETLB_2MB)->flag;
	void *mem = mmap(NULL, DATA_SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);

	return mem != MAP_FAILED && !munmap(mem, DATA_SIZE);
}

int main(void)
{
	TEST_REQUIRE(kvm_check_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2) == INIT_SET);
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_DIRTY_LOG_RING_ACQ_REL));
	__TEST_REQUIRE(has_2m_pages(), "No 2MiB HugeTLB pages");

	edge = mmap(NULL, 2 * PAGE_SIZE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TEST_ASSERT(edge != MAP_FAILED && !mprotect(edge + PAGE_SIZE, PAGE_SIZE, PROT_NONE),
		    "mmap, mprotect");

	ksft_print_header();
	ksft_set_plan(ARRAY_SIZE(sequences) * ARRAY_SIZE(backings));
	for (unsigned int i = 0; i < ARRAY_SIZE(backings); i++) {
		run_sequences(false, &backings[i]);
		run_sequences(true, &backings[i]);
	}
	ksft_finished();
}
