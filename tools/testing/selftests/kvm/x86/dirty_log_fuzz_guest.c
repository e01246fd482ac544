// SPDX-License-Identifier: GPL-2.0-only
/* The guest of dirty_log_fuzz_test: it executes a list of accesses. */
#include "dirty_log_fuzz.h"

#define CODE_GPA		0x1000ull
#define CODE_MAX		64
#define LIST_GPA		0x10000ull

#define ENTRIES_LEGACY		1024
#define SHIFT_PSE		22

/* What a guest reads where there is no memslot. */
#define MMIO_VALUE		0xfefefefeu

/* The most MMIO accesses in a list.  Each is a slow exit. */
#define MAX_MMIO		4

/* How often to call KVM_RUN again after errors that should go away. */
#define MAX_RETRIES		100000

/*
 * The code of the guest.  The instructions have the same encoding in 32-bit and
 * in 64-bit code.
 *
 * In: ESI is the list and ECX its length.  The guest stores each value that it
 * reads to the entry of the list.
 */
static void __attribute__((naked)) guest_code(void)
{
	asm volatile(".code32\n"
		     "1: movl (%esi), %edi\n\t"
		     "movl 4(%esi), %eax\n\t"
		     "testl $1, %edi\n\t"
		     "jz 2f\n\t"
		     "movl %eax, -1(%edi)\n\t"
		     "jmp 3f\n\t"
		     "2: movl (%edi), %eax\n\t"
		     "movl %eax, 4(%esi)\n\t"
		     "3: addl $8, %esi\n\t"
		     "subl $1, %ecx\n\t"
		     "jnz 1b\n\t"
		     "hlt\n\t"
		     ".code64");
}

/*
 * The roots of the guest's page tables.  Several modes may use the same root.
 */
enum root { ROOT_LONG, ROOT_SMALL, ROOT_PAE, ROOT_PSE, NO_ROOT };

static const struct mode {
	enum root root;
	u64 cr0;
	u64 cr4;
	u64 efer;
	/* Add this to the addresses of the window. */
	u64 offset;
} modes[] = {
	{ NO_ROOT },
	{ ROOT_LONG, X86_CR0_PG | X86_CR0_WP, X86_CR4_PAE, EFER_LME | EFER_LMA | EFER_NX },
	{ ROOT_SMALL, X86_CR0_PG | X86_CR0_WP, X86_CR4_PAE, EFER_LME | EFER_LMA | EFER_NX },
	{ ROOT_PAE, X86_CR0_PG | X86_CR0_WP, X86_CR4_PAE, 0 },
	{ ROOT_PSE, X86_CR0_PG | X86_CR0_WP, X86_CR4_PSE, 0 },
	/* Read-only entries.  The guest may write, because CR0.WP is clear. */
	{ ROOT_LONG, X86_CR0_PG, X86_CR4_PAE, EFER_LME | EFER_LMA | EFER_NX, ALIAS_STEP },
	/* The same memory once more, by user entries that are not executable. */
	{ ROOT_LONG, X86_CR0_PG | X86_CR0_WP, X86_CR4_PAE, EFER_LME | EFER_LMA | EFER_NX,
	  2 * ALIAS_STEP },
};

unsigned int guest_nr_modes(void)
{
	return ARRAY_SIZE(modes);
}

/* The other bits are reserved in PDPT entries of a 32-bit guest. */
static u64 table_bits(int levels, int level)
{
	return levels == 3 && level == 3 ? PT_PRESENT_MASK :
		PT_PRESENT_MASK | PT_WRITABLE_MASK | PT_USER_MASK;
}

static void map_entry(struct fuzz *f, u64 root, int levels, u64 gva, u64 entry, int level)
{
	u64 *p = addr_gpa2hva(f->vm, root);

	for (int i = levels; ; i--) {
		p += (gva >> PG_LEVEL_SHIFT(i)) % (PAGE_SIZE / sizeof(*p));
		if (i == level)
			break;
		if (!*p)
			*p = vm_alloc_page_table(f->vm) | table_bits(levels, i);
		p = addr_gpa2hva(f->vm, *p & PHYSICAL_PAGE_MASK);
	}
	*p = entry;
}

static void map_range(struct fuzz *f, u64 root, int levels, u64 gva, u64 gpa, u64 size, u64 bits,
		      int level)
{
	bits |= PT_PRESENT_MASK | (level > PG_LEVEL_4K ? PT_HUGE_MASK : 0);
	for (u64 i = 0; i < size; i += PG_LEVEL_SIZE(level))
		map_entry(f, root, levels, gva + i, (gpa + i) | bits, level);
}

static void map_pse(struct fuzz *f, u64 root, u64 gpa, u64 size)
{
	u32 *p = addr_gpa2hva(f->vm, root);

	for (u64 i = 0; i < size; i += SZ_4M)
		p[((gpa + i) >> SHIFT_PSE) % ENTRIES_LEGACY] =
			(gpa + i) | PT_PRESENT_MASK | PT_WRITABLE_MASK | PT_HUGE_MASK;
}

static void map_root(struct fuzz *f, enum root root)
{
	int levels = root == ROOT_PAE ? 3 : 4;
	int level = root == ROOT_SMALL ? PG_LEVEL_4K : PG_LEVEL_2M;
	u64 table = f->roots[root];

	if (root == ROOT_PSE) {
		map_pse(f, table, 0, LOW_SIZE);
		map_pse(f, table, WINDOW_GPA, WINDOW_SIZE);
		return;
	}

	map_range(f, table, levels, 0, 0, LOW_SIZE, PT_WRITABLE_MASK, PG_LEVEL_2M);
	map_range(f, table, levels, WINDOW_GPA, WINDOW_GPA, WINDOW_SIZE, PT_WRITABLE_MASK, level);
	if (root != ROOT_LONG)
		return;

	map_range(f, table, levels, WINDOW_GPA + ALIAS_STEP, WINDOW_GPA, WINDOW_SIZE, 0, level);
	map_range(f, table, levels, WINDOW_GPA + 2 * ALIAS_STEP, WINDOW_GPA, WINDOW_SIZE,
		  PT_WRITABLE_MASK | PT_USER_MASK | PT_NX_MASK, level);
}

void guest_set_mode(struct fuzz *f, unsigned int id, unsigned int mode, bool clean)
{
	const struct mode *m = &modes[mode];
	struct kvm_sregs sregs;

	if (clean && m->root != NO_ROOT)
		map_root(f, m->root);

	vcpu_sregs_get(f->vcpus[id], &sregs);
	set_flat_segments(&sregs, m->efer & EFER_LMA);
	sregs.cr0 = X86_CR0_PE | X86_CR0_NE | X86_CR0_ET | m->cr0;
	sregs.cr3 = m->root == NO_ROOT ? 0 : f->roots[m->root];
	sregs.cr4 = m->cr4;
	sregs.efer = m->efer;
	check_call(f, "KVM_SET_SREGS", __vcpu_ioctl(f->vcpus[id], KVM_SET_SREGS, &sregs), 0);
	f->modes[id] = mode;
}

void guest_add_vcpu(struct fuzz *f, unsigned int id)
{
	f->vcpus[id] = __vm_vcpu_add(f->vm, id);
	vcpu_init_cpuid(f->vcpus[id], kvm_get_supported_cpuid());
	guest_set_mode(f, id, id % guest_nr_modes(), false);
}

void guest_create(struct fuzz *f)
{
	vm_userspace_mem_region_add(f->vm, VM_MEM_SRC_ANONYMOUS, 0, LOW_SLOT,
				    LOW_SIZE / PAGE_SIZE, 0);
	memcpy(addr_gpa2hva(f->vm, CODE_GPA), guest_code, CODE_MAX);
	f->list = addr_gpa2hva(f->vm, LIST_GPA);
	for (enum root root = 0; root < NO_ROOT; root++) {
		f->roots[root] = vm_alloc_page_table(f->vm);
		map_root(f, root);
	}
	guest_add_vcpu(f, 0);
}

void guest_begin(struct fuzz *f, unsigned int id)
{
	f->running = id;
	f->nr_listed = 0;
	f->nr_mmio = 0;
}

/* Return: the difference between GVA and GPA for the vCPU that is to run. */
static u64 gva_offset(struct fuzz *f)
{
	return modes[f->modes[f->running]].offset;
}

void guest_list(struct fuzz *f, u64 page, bool write)
{
	struct slot *s = slot_of_page(f, page);
	bool mmio = !s || (write && s->flags & KVM_MEM_READONLY);
	unsigned int i = f->nr_listed;
	u64 in_slot = 0, in_area = 0;

	if (i == MAX_LIST || (mmio && f->nr_mmio == MAX_MMIO))
		return;

	f->mmio[i] = mmio;
	f->nr_mmio += mmio;
	if (s) {
		in_slot = page - s->base;
		in_area = s->offset + in_slot;
	}
	f->list[i].gva = WINDOW_GPA + page * PAGE_SIZE + word_offset(in_area) + gva_offset(f);
	f->list[i].value = 0;
	if (write) {
		f->list[i].gva++;
		f->list[i].value = f->next_value++;
	} else {
		f->expected[i] = s ? f->areas[s->area].content[in_area] : MMIO_VALUE;
	}
	if (write && !f->mmio[i]) {
		f->areas[s->area].content[in_area] = f->list[i].value;
		if (s->flags & KVM_MEM_LOG_DIRTY_PAGES)
			__set_bit(in_slot, s->dirty);
	}
	f->nr_listed++;
	f->report->accesses++;
}

static bool is_write(const struct entry *e)
{
	return e->gva & 1;
}

static u64 gpa_of(struct fuzz *f, unsigned int i)
{
	return (f->list[i].gva & ~1u) - gva_offset(f);
}

/* Find the area and the page of an entry.  Return: false if it is MMIO. */
static bool find_page(struct fuzz *f, unsigned int i, enum area_id *area, u64 *page)
{
	u64 in_window = (gpa_of(f, i) - WINDOW_GPA) / PAGE_SIZE;
	struct slot *s = slot_of_page(f, in_window);

	if (!s || f->mmio[i])
		return false;

	*area = s->area;
	*page = s->offset + in_window - s->base;
	return true;
}

/* KVM must refuse accesses that the mapping of the host does not permit. */
static bool is_refused(struct fuzz *f, unsigned int i)
{
	enum access least = is_write(&f->list[i]) ? ACCESS_ALL : ACCESS_READ;
	enum area_id area;
	u64 page;

	return find_page(f, i, &area, &page) && f->areas[area].access[page] > least;
}

/* Return: the number of the entry that the guest has reached. */
static unsigned int current_entry(struct fuzz *f, struct kvm_vcpu *vcpu)
{
	struct kvm_regs regs;
	u64 i;

	vcpu_regs_get(vcpu, &regs);
	i = (regs.rsi - LIST_GPA) / sizeof(struct entry);
	CHECK(f, i <= f->nr_listed, "RSI is 0x%llx, RIP 0x%llx", regs.rsi, regs.rip);
	return i;
}

/*
 * The guest has passed all entries up to @end, so KVM must permit all of them.
 */
static unsigned int check_done(struct fuzz *f, unsigned int i, unsigned int end)
{
	for (; i < end; i++)
		CHECK(f, !is_refused(f, i),
		      "entry %u: GVA 0x%x was accessed, and the host may not do that", i,
		      f->list[i].gva);
	return end;
}

static void handle_mmio(struct fuzz *f, struct kvm_run *run, unsigned int i)
{
	u64 gpa = i < f->nr_listed ? gpa_of(f, i) : 0;

	CHECK(f, i < f->nr_listed && f->mmio[i] && run->mmio.phys_addr == gpa &&
	      run->mmio.is_write == is_write(&f->list[i]),
	      "entry %u, GPA 0x%lx: MMIO at 0x%llx, write %u", i, gpa, run->mmio.phys_addr,
	      run->mmio.is_write);
	if (run->mmio.is_write)
		CHECK(f, *(u32 *)run->mmio.data == f->list[i].value,
		      "GPA 0x%lx: 0x%x is written to MMIO, expected 0x%x", gpa,
		      *(u32 *)run->mmio.data, f->list[i].value);
	else
		memset(run->mmio.data, MMIO_VALUE, sizeof(run->mmio.data));
}

/* KVM_RUN has failed at the access of entry @i. */
static void handle_error(struct fuzz *f, unsigned int i, int error)
{
	enum area_id area;
	u64 page;

	/* The other thread is changing the mapping.  Wait until it is done. */
	if (f->threaded && (error == EFAULT || error == EAGAIN)) {
		pthread_mutex_lock(&f->memory_lock);
		pthread_mutex_unlock(&f->memory_lock);
		return;
	}

	CHECK(f, error == EFAULT && i < f->nr_listed && is_refused(f, i),
	      "KVM_RUN: errno %d at entry %u of %u, GVA 0x%x", error, i, f->nr_listed,
	      i < f->nr_listed ? f->list[i].gva : 0);
	find_page(f, i, &area, &page);
	/*
	 * Also permit accesses to the memory around, as errors are slow exits.
	 */
	memory_allow(f, area, round_down(page, PAGES_PER_2M), PAGES_PER_2M);
	f->report->refused++;
}

static void check_read(struct fuzz *f)
{
	for (unsigned int i = 0; i < f->nr_listed; i++)
		CHECK(f, is_write(&f->list[i]) || f->list[i].value == f->expected[i],
		      "the guest reads 0x%x at GVA 0x%x, expected 0x%x", f->list[i].value,
		      f->list[i].gva, f->expected[i]);
}

static void handle_exit(struct fuzz *f, struct kvm_vcpu *vcpu, unsigned int i, int error)
{
	if (error)
		handle_error(f, i, error);
	else if (vcpu->run->exit_reason == KVM_EXIT_MMIO)
		handle_mmio(f, vcpu->run, i);
	else if (vcpu->run->exit_reason == KVM_EXIT_INTERNAL_ERROR)
		CHECK(f, vcpu_saw_stale_event(vcpu), "internal error %u",
		      vcpu->run->internal.suberror);
	else
		CHECK(f, vcpu->run->exit_reason == KVM_EXIT_HLT && i == f->nr_listed,
		      "exit %u (%s) at entry %u of %u", vcpu->run->exit_reason,
		      exit_reason_str(vcpu->run->exit_reason), i, f->nr_listed);
}

void guest_run(struct fuzz *f)
{
	struct kvm_vcpu *vcpu = f->vcpus[f->running];
	struct kvm_regs regs = {
		.rip = CODE_GPA, .rsi = LIST_GPA, .rcx = f->nr_listed, .rflags = X86_EFLAGS_FIXED,
	};
	unsigned int i, checked = 0;
	int error, tries = 0;

	if (!f->nr_listed)
		return;

	vcpu_regs_set(vcpu, &regs);
	do {
		error = __vcpu_run(vcpu) ? errno : 0;
		f->report->calls++;
		i = current_entry(f, vcpu);
		checked = check_done(f, checked, i);
		handle_exit(f, vcpu, i, error);
		CHECK(f, ++tries < MAX_RETRIES, "KVM_RUN makes no progress");
	} while (error || vcpu->run->exit_reason != KVM_EXIT_HLT);
	check_read(f);
	f->nr_listed = 0;
}

void guest_enter(struct fuzz *f, unsigned int id)
{
	/* The guest reads the second entry of the list. */
	guest_begin(f, id);
	f->list[0] = (struct entry){ .gva = LIST_GPA + sizeof(struct entry) };
	f->list[1] = (struct entry){ };
	f->mmio[0] = false;
	f->expected[0] = 0;
	f->nr_listed = 1;
	guest_run(f);
}
