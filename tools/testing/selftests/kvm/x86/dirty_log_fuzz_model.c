// SPDX-License-Identifier: GPL-2.0-only
/*
 * The steps of dirty_log_fuzz_test, and the model of their results
 *
 * The model of a memslot's log has one bit for each page.  The log of KVM must
 * be equal to it, as no vCPU runs during an ioctl:
 *  - The log contains each page that the guest has written since the page was
 *    last cleared, whatever the host has done to memory since then.
 *  - It contains no other page, unless INITIALLY_SET was on when logging was
 *    enabled; then it contains all pages.  It does not contain pages that were
 *    only read, that KVM_PRE_FAULT_MEMORY has mapped, or that the host has
 *    written.
 *  - KVM_GET_DIRTY_LOG clears the pages that it returns, unless manual
 *    protection is on at that time.  If it cannot write to the buffer, it
 *    clears nothing.
 *  - KVM_CLEAR_DIRTY_LOG clears the given pages, whether or not a GET has
 *    returned them.
 *  - The log is deleted when the memslot is deleted or logging is disabled.  It
 *    is kept when the memslot moves.
 */
#include "dirty_log_fuzz.h"

#define MEM_FLAGS		(KVM_MEM_LOG_DIRTY_PAGES | KVM_MEM_READONLY)
#define INVALID_SLOT		0xffffu
#define MANUAL			KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE
#define ALL_SET			(MANUAL | KVM_DIRTY_LOG_INITIALLY_SET)
#define RING_SIZE		(1024 * sizeof(struct kvm_dirty_gfn))
#define INVALID_VCPU		BIT(30)
#define GUARD			0xa5a5a5a5a5a5a5a5ul

static const char * const methods[] = { "off", "auto", "on" };

/* Memslots */

static bool is_logged(const struct slot *s)
{
	return s->exists && s->flags & KVM_MEM_LOG_DIRTY_PAGES;
}

static bool overlaps(struct fuzz *f, unsigned int id, u64 base, u64 npages)
{
	for (unsigned int i = 1; i < NR_SLOTS; i++) {
		struct slot *s = &f->slots[i];

		if (i != id && s->exists && base < s->base + s->npages &&
		    s->base < base + npages)
			return true;
	}
	return false;
}

static int region_error(struct fuzz *f, unsigned int id, const struct slot *new)
{
	const struct slot *old = &f->slots[id];

	if (new->flags & ~MEM_FLAGS)
		return -EINVAL;
	if (!new->npages)
		return old->exists ? 0 : -EINVAL;
	if (old->exists) {
		if (new->area != old->area || new->offset != old->offset ||
		    new->npages != old->npages ||
		    (new->flags ^ old->flags) & KVM_MEM_READONLY)
			return -EINVAL;
		if (new->base == old->base)
			return 0;
	}
	return overlaps(f, id, new->base, new->npages) ? -EEXIST : 0;
}

/* @new: the new state of the memslot.  If it has no pages, delete it. */
static void set_region(struct fuzz *f, unsigned int id, const struct slot *new)
{
	struct kvm_userspace_memory_region region = {
		.slot = id,
		.flags = new->flags,
		.guest_phys_addr = WINDOW_GPA + new->base * PAGE_SIZE,
		.memory_size = new->npages * PAGE_SIZE,
		.userspace_addr = (u64)f->areas[new->area].hva + new->offset * PAGE_SIZE,
	};
	int error = region_error(f, id, new);
	struct slot *s = &f->slots[id];
	bool was_logged = is_logged(s);

	check_call(f, "KVM_SET_USER_MEMORY_REGION",
		   __vm_ioctl(f->vm, KVM_SET_USER_MEMORY_REGION, &region), error);
	if (error)
		return;

	s->exists = new->npages;
	s->flags = new->flags;
	s->area = new->area;
	s->offset = new->offset;
	s->base = new->base;
	if (s->exists)
		s->npages = new->npages;
	if (was_logged && is_logged(s))
		return;

	memset(s->dirty, 0, sizeof(s->dirty));
	memset(s->said, 0, sizeof(s->said));
	if (!is_logged(s) || f->manual != ALL_SET)
		return;

	for (u64 page = 0; page < s->npages; page++)
		__set_bit(page, s->dirty);
}

static u64 make_base(u32 chunk, u64 offset, u32 shift)
{
	return chunk * PAGES_PER_2M + (offset + shift) % PAGES_PER_2M;
}

/*
 * Arguments: slot, area, offset, number of pages, 2MiB block of the window,
 * shift against the alignment, flags
 */
static void step_create(struct fuzz *f, const u32 *args)
{
	struct slot new = {
		.area = args[1] % NR_AREAS,
		.offset = args[2] % AREA_PAGES,
		.flags = args[6],
	};

	new.npages = 1 + (args[3] - 1) % (AREA_PAGES - new.offset);
	new.base = make_base(args[4], new.offset, args[5]);
	set_region(f, args[0], &new);
}

static void step_delete(struct fuzz *f, const u32 *args)
{
	struct slot new = f->slots[args[0]];

	new.npages = 0;
	new.flags = 0;
	set_region(f, args[0], &new);
}

/* Like step_create(), but deletes the memslot first if it exists. */
static void step_replace(struct fuzz *f, const u32 *args)
{
	if (f->slots[args[0]].exists)
		step_delete(f, args);
	step_create(f, args);
}

static void step_flags(struct fuzz *f, const u32 *args)
{
	struct slot new = f->slots[args[0]];

	new.flags = args[1];
	if (new.exists)
		set_region(f, args[0], &new);
}

static void step_move(struct fuzz *f, const u32 *args)
{
	struct slot new = f->slots[args[0]];

	new.base = make_base(args[1], new.offset, args[2]);
	if (new.exists)
		set_region(f, args[0], &new);
}

/* Regions that no VM can have. */
static void step_wrong_region(struct fuzz *f, const u32 *args)
{
	struct kvm_userspace_memory_region region = {
		.slot = args[0],
		.guest_phys_addr = WINDOW_GPA + WINDOW_SIZE,
		.memory_size = SZ_2M,
		.userspace_addr = (u64)f->areas[AREA_THP].hva,
	};

	switch (args[1] % 6) {
	case 0:
		region.guest_phys_addr++;
		break;
	case 1:
		region.memory_size--;
		break;
	case 2:
		region.userspace_addr++;
		break;
	case 3:
		region.slot = INVALID_SLOT;
		break;
	case 4:
		region.slot |= kvm_check_cap(KVM_CAP_MULTI_ADDRESS_SPACE) << 16;
		break;
	default:
		region.guest_phys_addr = -PAGE_SIZE;
	}
	check_call(f, "KVM_SET_USER_MEMORY_REGION",
		   __vm_ioctl(f->vm, KVM_SET_USER_MEMORY_REGION, &region), -EINVAL);
}

/* Accesses */

/* Return: the vCPU @id, or the first one if vCPU @id does not exist yet. */
static unsigned int vcpu_or_first(struct fuzz *f, unsigned int id)
{
	return f->vcpus[id] ? id : 0;
}

/*
 * Arguments: vCPU, slot, first page, number of pages, distance.  One in @one_in
 * accesses is a read; 0: none is.
 */
static void access_pages(struct fuzz *f, const u32 *args, unsigned int one_in)
{
	unsigned int id = vcpu_or_first(f, args[0]);
	const struct slot *s = &f->slots[args[1]];
	u64 npages = s->npages ?: PAGES_PER_2M, page = args[2];

	guest_begin(f, id);
	for (u32 i = 0; i < args[3]; i++, page += args[4])
		guest_list(f, s->base + page % npages, !one_in || i % one_in);
	guest_run(f);
}

static void step_write(struct fuzz *f, const u32 *args)
{
	access_pages(f, args, 0);
}

static void step_read(struct fuzz *f, const u32 *args)
{
	access_pages(f, args, 1);
}

static void step_mix(struct fuzz *f, const u32 *args)
{
	access_pages(f, args, 3);
}

/* Logs */

static int log_error(struct fuzz *f, u32 id)
{
	u32 spaces = kvm_check_cap(KVM_CAP_MULTI_ADDRESS_SPACE) ?: 1;

	if (id >> 16 >= spaces || (u16)id == INVALID_SLOT)
		return -EINVAL;
	return id < NR_SLOTS && is_logged(&f->slots[id]) ? 0 : -ENOENT;
}

static void compare_log(struct fuzz *f, unsigned int id, const unsigned long *log)
{
	struct slot *s = &f->slots[id];
	u64 bits = round_up(s->npages, BITS_PER_WORD);

	for (u64 page = 0; page < bits; page++)
		CHECK(f, test_bit(page, log) == test_bit(page, s->dirty),
		      "memslot %u: page %lu of %lu (gfn 0x%llx) is %sin the log", id, page,
		      s->npages, WINDOW_GPA / PAGE_SIZE + s->base + page,
		      test_bit(page, log) ? "" : "not ");
	CHECK(f, log[bits / BITS_PER_WORD] == GUARD, "memslot %u: more than its log", id);
	f->report->compared += s->npages;
	f->report->logs++;
}

static void step_get(struct fuzz *f, const u32 *args)
{
	unsigned long log[LOG_WORDS + 1];
	struct kvm_dirty_log get = { .slot = args[0], .dirty_bitmap = log };
	int error = log_error(f, args[0]);
	struct slot *s;

	for (unsigned int i = 0; i < ARRAY_SIZE(log); i++)
		log[i] = GUARD;
	check_call(f, "KVM_GET_DIRTY_LOG", __vm_ioctl(f->vm, KVM_GET_DIRTY_LOG, &get), error);
	if (error)
		return;

	s = &f->slots[args[0]];
	compare_log(f, args[0], log);
	memcpy(s->said, log, sizeof(s->said));
	if (!f->manual)
		memset(s->dirty, 0, sizeof(s->dirty));
}

/* Return: the end of a buffer behind which nothing is mapped. */
static void *edge(void)
{
	static void *p;

	if (!p) {
		p = map_memory(2 * PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			       -1);
		TEST_ASSERT(!mprotect(p + PAGE_SIZE, PAGE_SIZE, PROT_NONE), "mprotect");
	}
	return p + PAGE_SIZE;
}

/*
 * Arguments: slot, number from which a too small size of the buffer is derived
 */
static void step_get_hole(struct fuzz *f, const u32 *args)
{
	int error = log_error(f, args[0]);
	struct kvm_dirty_log get = { .slot = args[0], .dirty_bitmap = edge() };

	if (!error)
		get.dirty_bitmap -= args[1] % DIV_ROUND_UP(f->slots[args[0]].npages,
							   BITS_PER_WORD) * sizeof(u64);
	check_call(f, "KVM_GET_DIRTY_LOG", __vm_ioctl(f->vm, KVM_GET_DIRTY_LOG, &get),
		   error ?: -EFAULT);
}

static int clear_error(struct fuzz *f, u32 id, u64 first, u64 nr)
{
	int error = log_error(f, id);
	u64 left;

	if (error == -EINVAL || first % BITS_PER_WORD)
		return -EINVAL;
	if (error)
		return error;

	left = f->slots[id].npages - first;
	if (first > f->slots[id].npages || nr > left || (nr < left && nr % BITS_PER_WORD))
		return -EINVAL;
	return 0;
}

/*
 * Bitmaps for KVM_CLEAR_DIRTY_LOG.  Larger numbers mean one bit of each word,
 * or random bits.
 */
enum mask { MASK_ALL, MASK_SAID, MASK_FIRST, MASK_LAST };

static void fill_mask(struct slot *s, unsigned long *mask, u32 kind, u64 first)
{
	u64 rng = kind;

	for (unsigned int i = 0; i < LOG_WORDS; i++) {
		if (kind == MASK_ALL)
			mask[i] = ~0ul;
		else if (kind == MASK_SAID)
			mask[i] = first / BITS_PER_WORD + i < LOG_WORDS ?
				  s->said[first / BITS_PER_WORD + i] : 0;
		else if (kind == MASK_FIRST)
			mask[i] = 1;
		else if (kind == MASK_LAST)
			mask[i] = 1ul << 63;
		else if (kind % 2)
			mask[i] = 1ul << kind / 2 % BITS_PER_WORD;
		else
			mask[i] = rng_next(&rng) & rng_next(&rng);
	}
}

/* Arguments: slot, first page, number of pages (at most), mask, alignment */
static void step_clear(struct fuzz *f, const u32 *args)
{
	static struct slot none;
	struct slot *s = args[0] < NR_SLOTS ? &f->slots[args[0]] : &none;
	u64 first = args[1] % (s->npages + 1), nr = args[2];
	struct kvm_clear_dirty_log clear = { .slot = args[0] };
	unsigned long mask[LOG_WORDS + 1] = {};
	int error;

	/* Most ranges are aligned, as KVM would refuse nearly all others. */
	if (!args[4]) {
		first = round_down(first, BITS_PER_WORD);
		nr = round_up(nr, BITS_PER_WORD);
		nr = min(nr, s->npages - first);
	}
	error = clear_error(f, args[0], first, nr);
	fill_mask(s, mask, args[3], first);
	clear.first_page = first;
	clear.num_pages = nr;
	clear.dirty_bitmap = mask;
	/* A bitmap that cannot be read, so that nothing is cleared. */
	if (args[4] == 2) {
		clear.dirty_bitmap = edge();
		error = error ?: nr ? -EFAULT : 0;
	}
	check_call(f, "KVM_CLEAR_DIRTY_LOG", __vm_ioctl(f->vm, KVM_CLEAR_DIRTY_LOG, &clear),
		   error);
	if (error)
		return;

	for (u64 i = 0; i < nr; i++)
		if (test_bit(i, mask))
			__clear_bit(first + i, s->dirty);
}

/* Arguments: slot.  Get its log, and clear the pages in it. */
static void step_round(struct fuzz *f, const u32 *args)
{
	step_get(f, args);
	step_clear(f, (u32[]){ args[0], 0, AREA_PAGES, MASK_SAID, 0 });
}

/* Settings */

static int enable_cap(struct fuzz *f, u32 cap, u64 arg, u32 flags)
{
	struct kvm_enable_cap args = { .cap = cap, .flags = flags, .args = { arg } };

	return __vm_ioctl(f->vm, KVM_ENABLE_CAP, &args);
}

static void step_manual(struct fuzz *f, const u32 *args)
{
	u64 value = args[0];
	bool wrong = args[1] || (value & MANUAL ? value & ~ALL_SET : value);

	check_call(f, "KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2",
		   enable_cap(f, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, value, args[1]),
		   wrong ? -EINVAL : 0);
	if (!wrong)
		f->manual = value;
}

/* Return: the parameter of the host. */
static bool is_eager(void)
{
	return get_kvm_param_bool("eager_page_split");
}

static int chunk_error(struct fuzz *f, u64 chunk)
{
	if (chunk && chunk != SZ_2M && chunk != SZ_1G)
		return -EINVAL;
	if (chunk && !is_eager())
		return -EPERM;
	return f->booted ? -EINVAL : 0;
}

static void step_split_chunk(struct fuzz *f, const u32 *args)
{
	static const u64 chunks[] = { 0, SZ_2M, SZ_1G, SZ_4K, SZ_4M, SZ_2M | SZ_1G };
	u64 chunk = chunks[args[0] % ARRAY_SIZE(chunks)];

	check_call(f, "KVM_CAP_EAGER_SPLIT_CHUNK_SIZE",
		   enable_cap(f, KVM_CAP_EAGER_SPLIT_CHUNK_SIZE, chunk, 0), chunk_error(f, chunk));
}

static int dirty_bits_error(struct fuzz *f, u64 bits)
{
	char method[SETTING_MAX] = "";

	if (bits & ~KVM_X86_DIRTY_BITS_ENABLE)
		return -EINVAL;
	if (bits && !kvm_check_cap(KVM_CAP_X86_DIRTY_BITS))
		return -EOPNOTSUPP;
	read_file(PARAM_DIRTY_BITS, method, sizeof(method));
	if (bits && !strncmp(method, "off", 3))
		return -EPERM;
	return f->booted ? -EBUSY : 0;
}

static void step_dirty_bits(struct fuzz *f, const u32 *args)
{
	check_call(f, "KVM_CAP_X86_DIRTY_BITS",
		   enable_cap(f, KVM_CAP_X86_DIRTY_BITS, args[0], 0),
		   dirty_bits_error(f, args[0]));
}

/* KVM must refuse a ring, as there is a vCPU already. */
static void step_ring(struct fuzz *f, const u32 *args)
{
	check_call(f, "KVM_CAP_DIRTY_LOG_RING_ACQ_REL",
		   enable_cap(f, KVM_CAP_DIRTY_LOG_RING_ACQ_REL, RING_SIZE, 0), -EINVAL);
	check_call(f, "KVM_RESET_DIRTY_RINGS", __vm_ioctl(f->vm, KVM_RESET_DIRTY_RINGS, NULL),
		   -EINVAL);
}

static void step_mmu_pages(struct fuzz *f, const u32 *args)
{
	unsigned long nr = args[0];

	check_call(f, "KVM_SET_NR_MMU_PAGES",
		   __vm_ioctl(f->vm, KVM_SET_NR_MMU_PAGES, (void *)nr),
		   nr < MIN_MMU_PAGES ? -EINVAL : 0);
}

static void step_eager(struct fuzz *f, const u32 *args)
{
	setting_set(PARAM_EAGER, args[0] ? "Y" : "N");
}

static void step_host_bits(struct fuzz *f, const u32 *args)
{
	setting_set(PARAM_DIRTY_BITS, methods[args[0] % ARRAY_SIZE(methods)]);
}

/* A change zaps all SPTEs of all VMs. */
static void step_nx(struct fuzz *f, const u32 *args)
{
	if (setting_exists(PARAM_NX))
		setting_set(PARAM_NX, args[0] ? "Y" : "N");
}

static void step_attributes(struct fuzz *f, const u32 *args)
{
	struct kvm_memory_attributes attributes = {
		.address = WINDOW_GPA + args[0] * PAGE_SIZE,
		.size = args[1] * PAGE_SIZE,
		.attributes = args[2] ? KVM_MEMORY_ATTRIBUTE_PRIVATE : 0,
	};
	/* The VM has no private memory. */
	int error = !kvm_check_cap(KVM_CAP_MEMORY_ATTRIBUTES) ? -ENOTTY : args[2] ? -EINVAL : 0;

	check_call(f, "KVM_SET_MEMORY_ATTRIBUTES",
		   __vm_ioctl(f->vm, KVM_SET_MEMORY_ATTRIBUTES, &attributes), error);
}

/* vCPUs */

static int prefault_error(struct fuzz *f, u64 page, bool wrong)
{
	struct slot *s = slot_of_page(f, page);

	if (wrong)
		return -EINVAL;
	if (!kvm_is_tdp_enabled())
		return -EOPNOTSUPP;
	if (!s)
		return -ENOENT;
	return f->areas[s->area].access[s->offset + page - s->base] == ACCESS_NONE ? -EFAULT : 0;
}

/* Arguments: vCPU, slot, first page, number of pages, flags */
static void step_prefault(struct fuzz *f, const u32 *args)
{
	unsigned int id = vcpu_or_first(f, args[0]);
	const struct slot *s = &f->slots[args[1]];
	u64 page = s->base + (s->npages ? args[2] % s->npages : 0);
	struct kvm_pre_fault_memory range = {
		.gpa = WINDOW_GPA + page * PAGE_SIZE,
		.size = args[3] * PAGE_SIZE,
		.flags = args[4],
	};
	int error = prefault_error(f, page, args[4]), ret;

	/*
	 * Deleting a memslot makes the root page table obsolete.  Linux 6.12
	 * replaces it only when the vCPU enters the guest, and until then
	 * KVM_PRE_FAULT_MEMORY would retry until a signal arrives.
	 */
	guest_enter(f, id);
	ret = __vcpu_ioctl(f->vcpus[id], KVM_PRE_FAULT_MEMORY, &range);
	/* The other thread may be changing the mapping. */
	if (f->threaded && ret && (errno == EFAULT || errno == EAGAIN))
		return;
	check_call(f, "KVM_PRE_FAULT_MEMORY", ret, error);
}

static void step_vcpu(struct fuzz *f, const u32 *args)
{
	unsigned long id = args[0];

	check_call(f, "KVM_CREATE_VCPU", __vm_ioctl(f->vm, KVM_CREATE_VCPU, (void *)INVALID_VCPU),
		   -EINVAL);
	if (f->vcpus[id])
		check_call(f, "KVM_CREATE_VCPU", __vm_ioctl(f->vm, KVM_CREATE_VCPU, (void *)id),
			   -EEXIST);
	else
		guest_add_vcpu(f, id);
}

static void step_mode(struct fuzz *f, const u32 *args)
{
	guest_set_mode(f, vcpu_or_first(f, args[0]), args[1] % guest_nr_modes(), args[2]);
}

/* Let the guest read all pages of a memslot. */
static void read_slot(struct fuzz *f, unsigned int id)
{
	struct slot *s = &f->slots[id];

	for (u64 first = 0; first < s->npages; first += MAX_LIST) {
		guest_begin(f, 0);
		for (u64 page = first; page < min(s->npages, first + MAX_LIST); page++)
			guest_list(f, s->base + page, false);
		guest_run(f);
	}
}

void fuzz_final(struct fuzz *f)
{
	for (u32 id = 1; id < NR_SLOTS; id++) {
		if (!f->slots[id].exists)
			continue;
		step_get(f, &id);
		step_flags(f, (u32[]){ id, f->slots[id].flags & KVM_MEM_READONLY });
		read_slot(f, id);
	}
	memory_check(f);
}

const struct op ops[] = {
	{ "write", step_write, 24, .args = { ARG_VCPU, ARG_SLOT, ARG_PAGE, ARG_COUNT,
					     ARG_STRIDE } },
	{ "read", step_read, 8, .args = { ARG_VCPU, ARG_SLOT, ARG_PAGE, ARG_COUNT, ARG_STRIDE } },
	{ "mix", step_mix, 8, .args = { ARG_VCPU, ARG_SLOT, ARG_PAGE, ARG_COUNT, ARG_STRIDE } },
	{ "get", step_get, 24, .args = { ARG_ANY_SLOT } },
	{ "round", step_round, 6, .args = { ARG_SLOT } },
	{ "get-hole", step_get_hole, 4, .args = { ARG_ANY_SLOT, ARG_PAGE } },
	{ "clear", step_clear, 20, .args = { ARG_ANY_SLOT, ARG_PAGE, ARG_COUNT, ARG_MASK,
					     ARG_WRONG } },
	{ "flags", step_flags, 16, .args = { ARG_SLOT, ARG_FLAGS } },
	{ "create", step_create, 4, .args = { ARG_SLOT, ARG_AREA, ARG_OFFSET, ARG_SIZE, ARG_CHUNK,
					      ARG_SHIFT, ARG_FLAGS } },
	{ "replace", step_replace, 4, .args = { ARG_SLOT, ARG_AREA, ARG_OFFSET, ARG_SIZE, ARG_CHUNK,
						ARG_SHIFT, ARG_FLAGS } },
	{ "delete", step_delete, 1, .args = { ARG_SLOT } },
	{ "move", step_move, 3, .args = { ARG_SLOT, ARG_CHUNK, ARG_SHIFT } },
	{ "wrong-region", step_wrong_region, 1, .args = { ARG_SLOT, ARG_PAGE } },
	{ "manual", step_manual, 8, STAGE_VM, { ARG_MANUAL, ARG_WRONG } },
	{ "split-chunk", step_split_chunk, 1, STAGE_VM, { ARG_SPLIT_CHUNK } },
	{ "dirty-bits", step_dirty_bits, 1, STAGE_VM, { ARG_DIRTY_BITS } },
	{ "eager", step_eager, 2, STAGE_HOST, { ARG_BOOL } },
	{ "host-bits", step_host_bits, 1, STAGE_HOST, { ARG_METHOD } },
	{ "ring", step_ring, 1 },
	{ "mmu-pages", step_mmu_pages, 1, .args = { ARG_QUOTA } },
	{ "nx", step_nx, 1, .args = { ARG_BOOL } },
	{ "attributes", step_attributes, 1, .args = { ARG_PAGE, ARG_COUNT, ARG_BOOL } },
	{ "prefault", step_prefault, 4, .args = { ARG_VCPU, ARG_SLOT, ARG_PAGE, ARG_COUNT,
						  ARG_WRONG } },
	{ "vcpu", step_vcpu, 1, .args = { ARG_VCPU } },
	{ "mode", step_mode, 5, .args = { ARG_VCPU, ARG_MODE, ARG_BOOL } },
	{ "dontneed", step_dontneed, 4, .args = { ARG_AREA, ARG_PAGE, ARG_COUNT } },
	{ "collapse", step_collapse, 3, .args = { ARG_BOOL } },
	{ "protect", step_protect, 3, .args = { ARG_AREA, ARG_PAGE, ARG_COUNT, ARG_ACCESS } },
	{ "remap", step_remap, 2, .args = { ARG_AREA, ARG_PAGE, ARG_COUNT } },
	{ "punch", step_punch, 2, .args = { ARG_PAGE, ARG_COUNT } },
	{ "host-write", step_host_write, 2, .args = { ARG_AREA, ARG_PAGE, ARG_COUNT } },
	{ "fork", step_fork, 1 },
};

const unsigned int nr_ops = ARRAY_SIZE(ops);
