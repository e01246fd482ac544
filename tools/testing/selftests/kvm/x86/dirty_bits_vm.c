// SPDX-License-Identifier: GPL-2.0-only
/* The VM of the tests of Dirty bits, its log, and the expected log. */
#include "dirty_bits.h"

/* Contains two aligned huge pages, wherever it begins. */
#define MAPPING_SIZE		(3 * SZ_2M)

static const struct entry_bits x86_bits = {
	.accessed = PT_ACCESSED_MASK,
	.dirty = PT_DIRTY_MASK,
};

const struct entry_bits ept_bits = {
	.leaf = X86_MEMTYPE_WB << 3,
	.accessed = BIT_ULL(8),
	.dirty = BIT_ULL(9),
};

static void write_page(struct dirty_bits_test *t, u64 page)
{
	add_op(t, OP_WRITE, DATA_GPA + page * PAGE_SIZE, t->value);
	set_bit(page, t->log);
}

static bool is_border(u64 page)
{
	return page < 2 || page >= NR_PAGES - 2 || page == 63 || page == 64 ||
	       page == PTES_PER_TABLE - 1 || page == PTES_PER_TABLE;
}

u64 write_batch(struct dirty_bits_test *t)
{
	u64 nr = 0;

	t->value++;
	for (u64 page = 0; page < NR_PAGES; page++) {
		if (is_border(page) ? random() % 4 : !(random() % (page & 128 ? 40 : 3))) {
			write_page(t, page);
			nr++;
		}
	}
	run_writer(t);
	return nr;
}

/*
 * Have KVM map pages for L1 as well: all pages of some words of the log, every
 * other page of some, and no page of the rest.
 */
static void write_by_l1(struct dirty_bits_test *t)
{
	for (u64 page = 0; page < NR_PAGES; page++)
		if (page & 64 && (page & 128 || page & 1))
			add_op(t, OP_WRITE, DATA_GPA + page * PAGE_SIZE, 0);
	run_l1(t);
}

void write_all(struct dirty_bits_test *t)
{
	if (t->writer->nested)
		write_by_l1(t);

	t->value++;
	for (u64 page = 0; page < NR_PAGES; page++)
		write_page(t, page);
	run_writer(t);
	memset(t->log, 0, LOG_BYTES);
}

/* The log */

void set_slot(struct dirty_bits_test *t, u64 gpa, u32 flags)
{
	vm_set_user_memory_region(t->vm, DATA_SLOT, flags, gpa, DATA_SIZE, t->hva);
}

void get_log(struct dirty_bits_test *t)
{
	memset(t->seen, 0xa5, LOG_BYTES);
	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, t->seen);
}

void expect_log(struct dirty_bits_test *t, bool more, const char *when)
{
	get_log(t);
	for (u64 page = 0; page < LOG_WORDS * 64; page++) {
		bool expected = test_bit(page, t->log), seen = test_bit(page, t->seen);

		CHECK(t, seen || !expected,
		      "%s: page %lu was written, and is not in the log", when, page);
		CHECK(t, expected || !seen || (more && page < NR_PAGES),
		      "%s: page %lu was not written, and is in the log", when, page);
	}
	if (!t->manual)
		memset(t->log, 0, LOG_BYTES);
}

void clear_log(struct dirty_bits_test *t)
{
	if (t->manual)
		kvm_vm_clear_dirty_log(t->vm, DATA_SLOT, t->seen, 0, NR_PAGES);
	memset(t->log, 0, LOG_BYTES);
}

void start_logging(struct dirty_bits_test *t)
{
	set_slot(t, DATA_GPA, KVM_MEM_LOG_DIRTY_PAGES);
	if (t->manual) {
		bitmap_fill(t->log, NR_PAGES);
		expect_log(t, false, "enabled");
		clear_log(t);
	}
	expect_log(t, false, "armed");
}

void stop_logging(struct dirty_bits_test *t)
{
	set_slot(t, DATA_GPA, 0);
}

void advise(struct dirty_bits_test *t, size_t size, int advice)
{
	int r = madvise(t->hva, size, advice);

	CHECK(t, !r, "madvise(%d) failed, errno %d", advice, errno);
}

void add_other(struct dirty_bits_test *t, u32 flags)
{
	static u8 memory[2 * SZ_4K] __aligned(SZ_4K);

	vm_set_user_memory_region(t->vm, OTHER_SLOT, flags, OTHER_GPA, SZ_4K, memory + SZ_4K);
}

const char *no_edge(void)
{
	return kvm_cpu_property(X86_PROPERTY_MAX_PHY_ADDR) > 48 ? NULL :
	       "no memory beyond page tables of four levels";
}

/* Setting up */

u64 *entry_of(struct dirty_bits_test *t, u64 page)
{
	return &t->table[page / PTES_PER_TABLE][page % PTES_PER_TABLE];
}

static u64 table_entry(u64 gpa)
{
	return gpa | PT_PRESENT_MASK | PT_WRITABLE_MASK | PT_USER_MASK;
}

static u64 page_entry(struct dirty_bits_test *t, u64 gpa)
{
	return table_entry(gpa) | t->bits->leaf;
}

u64 good_entry(struct dirty_bits_test *t, u64 page)
{
	return page_entry(t, DATA_GPA + page * PAGE_SIZE) | t->bits->accessed | t->bits->dirty;
}

static u64 *gpa_table(struct kvm_vm *vm, u64 entry)
{
	return addr_gpa2hva(vm, entry & PHYSICAL_PAGE_MASK);
}

/* Find the guest page tables that map the data. */
static void find_tables(struct dirty_bits_test *t)
{
	t->root = t->vm->mmu.pgd;
	t->upper = vm_get_entry(t->vm, DATA_GPA / SZ_1G * SZ_1G, PG_LEVEL_2M);
	for (unsigned int i = 0; i < NR_TABLES; i++)
		t->table[i] = vm_get_entry(t->vm, DATA_GPA + i * SZ_2M, PG_LEVEL_4K);
}

static u64 *new_table(struct dirty_bits_test *t, u64 *entry)
{
	*entry = table_entry(vm_alloc_page_table(t->vm));
	return gpa_table(t->vm, *entry);
}

/* Map everything but the data by 2MiB entries, one to one. */
static void build_tdp(struct dirty_bits_test *t)
{
	u64 first = DATA_GPA / SZ_2M, root, *pdpt, *pd;
	int levels = t->bits == &ept_bits ? 4 : t->vm->mmu.pgtable_levels;

	for (pdpt = &root; levels >= PG_LEVEL_1G; levels--)
		pdpt = new_table(t, pdpt);
	t->tdp = root & PHYSICAL_PAGE_MASK;
	for (u64 i = 0; i < TDP_GIBS; i++) {
		pd = new_table(t, &pdpt[i]);
		for (u64 j = 0; j < PTES_PER_TABLE; j++)
			pd[j] = page_entry(t, i * SZ_1G + j * SZ_2M) | PT_HUGE_MASK;
	}
	t->root = t->tdp;
	t->upper = gpa_table(t->vm, pdpt[DATA_GPA / SZ_1G]);
	for (u64 i = 0; i < NR_TABLES; i++)
		t->table[i] = new_table(t, &t->upper[first % PTES_PER_TABLE + i]);
}

/* Map the tables that L1 changes. */
static void map_tables(struct dirty_bits_test *t)
{
	for (unsigned int i = 0; i < NR_TABLES; i++)
		virt_pg_map(t->vm, TABLE_GVA + i * PAGE_SIZE, addr_hva2gpa(t->vm, t->table[i]));
	virt_pg_map(t->vm, UPPER_GVA, addr_hva2gpa(t->vm, t->upper));
}

/* Note the link to the tables of the data, which must be consecutive pages. */
static void find_links(struct dirty_bits_test *t)
{
	u64 *zeroes = new_table(t, &t->zeroes);

	for (unsigned int i = 0; i < PTES_PER_TABLE; i++)
		zeroes[i] = page_entry(t, OTHER_GPA);

	t->linked = t->upper[DATA_GPA / SZ_2M % PTES_PER_TABLE];
	for (unsigned int i = 0; i < NR_TABLES; i++)
		CHECK(t, t->table[i] == gpa_table(t->vm, t->linked + i * PAGE_SIZE),
		      "the tables are not neighbours");
}

static void create_svm_l2(struct dirty_bits_test *t)
{
	gva_t svm_gva;

	vcpu_alloc_svm(t->vm, &svm_gva);
	if (kvm_cpu_has(X86_FEATURE_NPT) && !t->writer->no_tdp)
		build_tdp(t);
	vcpu_args_set(t->vcpu, 3, svm_gva, 0ull, t->tdp);
}

static void create_vmx_l2(struct dirty_bits_test *t)
{
	gva_t vmx_gva;
	struct vmx_pages *vmx = vcpu_alloc_vmx(t->vm, &vmx_gva);

	if (kvm_cpu_has_ept() && !t->writer->no_tdp) {
		t->bits = &ept_bits;
		build_tdp(t);
	}
	vmx->eptp_gpa = t->tdp;
	vcpu_args_set(t->vcpu, 3, 0ull, vmx_gva, 0ull);
}

static void create_l2(struct dirty_bits_test *t)
{
	if (kvm_cpu_has(X86_FEATURE_SVM))
		create_svm_l2(t);
	else
		create_vmx_l2(t);
	set_l2_root(t, t->root);
}

static void map_data(struct dirty_bits_test *t)
{
	int fd = t->private ? -1 : kvm_memfd_alloc(MAPPING_SIZE, false);

	t->mapping = map_memory(MAPPING_SIZE, PROT_READ | PROT_WRITE,
				t->private ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd);
	if (fd >= 0)
		close(fd);
	t->hva = align_ptr_up(t->mapping, SZ_2M);
	advise(t, 2 * SZ_2M, MADV_NOHUGEPAGE);
}

static void add_memory(struct dirty_bits_test *t)
{
	map_data(t);
	t->elsewhere = map_memory(DATA_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	set_slot(t, DATA_GPA, 0);
	add_other(t, 0);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, BALLAST_GPA, BALLAST_SLOT,
				    BALLAST_PAGES * SZ_2M / PAGE_SIZE, 0);
}

static void map_guest(struct dirty_bits_test *t)
{
	for (u64 offset = 0; offset < DATA_SIZE; offset += PAGE_SIZE)
		virt_pg_map(t->vm, DATA_GPA + offset, DATA_GPA + offset);
	for (u64 offset = 0; offset < BALLAST_PAGES * SZ_2M; offset += SZ_2M)
		virt_pg_map(t->vm, BALLAST_GPA + offset, BALLAST_GPA + offset);
	if (no_edge())
		return;

	virt_pg_map(t->vm, EDGE_GVA, EDGE_GPA - PAGE_SIZE);
	virt_map(t->vm, MMIO_GVA, MMIO_GPA, 2);
	*vm_get_entry(t->vm, MMIO_GVA + PAGE_SIZE, PG_LEVEL_4K) = table_entry(EDGE_GPA + MMIO_GPA);
}

void dirty_bits_create_vm(struct dirty_bits_test *t)
{
	t->bits = &x86_bits;
	t->vm = __vm_create_with_one_vcpu(&t->vcpu, EXTRA_PAGES, guest_main);
	if (t->manual)
		vm_enable_manual_protect(t->vm, true);
	vcpu_args_set(t->vcpu, 3, 0ull, 0ull, 0ull);
	add_memory(t);
	map_guest(t);
	find_tables(t);
	if (t->writer->nested)
		create_l2(t);
	/* The entries of the data are Accessed and Dirty from the start. */
	for (u64 page = 0; page < NR_PAGES; page++)
		*entry_of(t, page) = good_entry(t, page);
	map_tables(t);
	find_links(t);
	t->other_root = vm_alloc_page_table(t->vm);
	memcpy(addr_gpa2hva(t->vm, t->other_root), addr_gpa2hva(t->vm, t->root), PAGE_SIZE);
	vcpu_run_to_sync(t->vcpu, NULL);
}

void dirty_bits_destroy_vm(struct dirty_bits_test *t)
{
	kvm_vm_free(t->vm);
	munmap(t->mapping, MAPPING_SIZE);
	munmap(t->elsewhere, DATA_SIZE);
}
