// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting where page tables exist already
 *
 *  - relink, links, many_links, filled: KVM finds the child of an earlier split,
 *    which links to page tables.
 *  - tracked, tracked_alias: the huge page contains a page table of the guest,
 *    so KVM has write-protected it.
 *  - collide, many_collide: the guest has filled the bucket of KVM's hash in
 *    which KVM looks for the child.
 *
 * The section of each case describes it.  The test compares huge pages, the log
 * and memory with the model of eager_split_model.h.
 *
 * "relink" needs the shadow MMU, all other cases need shadow paging (npt=0,
 * ept=0).  The first four need a free 1GiB HugeTLB page.
 */
#include <linux/hash.h>

#include "eager_split_model.h"

/*
 * Have the host zap all SPTEs before logging is disabled.  When nothing is
 * mapped, KVM does not restore huge pages, so page tables and the links to them
 * are left.
 */
static void stop_and_leave_links(struct model_test *t)
{
	TEST_ASSERT(!mprotect(t->mapping, t->mapping_size, PROT_NONE) &&
		    !mprotect(t->mapping, t->mapping_size, PROT_READ | PROT_WRITE),
		    "errno %d", errno);
	set_flags(t, 0);
	t->logging = false;
}

/*
 * A 1GiB page whose child has links from an earlier cycle
 *
 * Splitting replaces these links.  A vCPU may have cached them, so KVM must
 * flush TLBs before it drops mmu_lock.  The flush at the end of CLEAR would be
 * too late.
 */

static void clear_relinked(struct model_test *t)
{
	u64 flushes = vm_get_stat(t->vm, remote_tlb_flush_requests);
	u64 pages_4k = vm_get_stat(t->vm, pages_4k);

	log_fill(t, t->arg, 0, BITS_PER_WORD);
	clear_log(t, 0, BITS_PER_WORD);
	flushes = vm_get_stat(t->vm, remote_tlb_flush_requests) - flushes;
	pages_4k = vm_get_stat(t->vm, pages_4k) - pages_4k;

	expect_huge_first_word(t);
	CHECK(t, !eager || pages_4k >= PAGES_PER_2M,
	      "the first 2MiB: expected at least %lu 4KiB pages, seen %lu", PAGES_PER_2M, pages_4k);
	CHECK(t, !eager || !t->cycle || flushes >= 2,
	      "links were replaced: expected a TLB flush and that of CLEAR, seen %lu", flushes);
}

static void run_relink(struct model_test *t)
{
	for (int i = 0; i < NR_CYCLES; i++) {
		touch_all(t, "all touched");
		start_logging(t);
		clear_relinked(t);
		stop_and_leave_links(t);
		t->cycle++;
	}
	check_memory(t);
}

/*
 * A 1GiB page whose child links to page tables to which many other page directories link
 *
 * The more links to a page table there are, the longer it takes to replace one
 * of them, with mmu_lock held.  If there are too many, KVM zaps the 1GiB page
 * instead, and page faults map the memory again.
 */

#define FEW_DIRECTORIES		16
#define TOO_MANY_DIRECTORIES	33

/* The 1GiB entry at which the guest links another page directory. */
#define DIRECTORY_ENTRY		2
#define DIRECTORY_GVA		((u64)DIRECTORY_ENTRY * SZ_1G)

static void enter_cr3(struct model_test *t, u64 cr3)
{
	struct kvm_sregs sregs;

	vcpu_sregs_get(t->vcpu, &sregs);
	sregs.cr3 = cr3;
	vcpu_sregs_set(t->vcpu, &sregs);
}

/* Return: the address of a copy of a guest page table. */
static u64 copy_table(struct model_test *t, u64 gpa)
{
	u64 copy = vm_alloc_page_table(t->vm);

	memcpy(addr_gpa2hva(t->vm, copy), addr_gpa2hva(t->vm, gpa), PAGE_SIZE);
	return copy;
}

/* Return: CR3 for page tables that map the data by one more page directory. */
static u64 add_directory(struct model_test *t)
{
	u64 root = copy_table(t, t->vm->mmu.pgd);
	u64 *top = addr_gpa2hva(t->vm, root);
	u64 second = copy_table(t, PTE_GET_PA(top[0]));
	u64 directory = vm_alloc_page_table(t->vm);
	u64 flags = top[0] & ~PHYSICAL_PAGE_MASK;
	u64 *entries = addr_gpa2hva(t->vm, directory);

	for (u64 i = 0; i < PAGES_PER_1G / PAGES_PER_2M; i++)
		entries[i] = (t->gpa + i * SZ_2M) | flags | PT_ACCESSED_MASK |
			     PT_DIRTY_MASK | PT_HUGE_MASK;

	top[0] = second | flags;
	*((u64 *)addr_gpa2hva(t->vm, second) + DIRECTORY_ENTRY) = directory | flags;
	return root;
}

/*
 * Have KVM link the page table of each 2MiB from one more page directory.  The
 * guest has to write for that, as reads map huge pages.
 */
static void write_by_directory(struct model_test *t)
{
	enter_cr3(t, add_directory(t));
	for (u64 page = 0; page < t->npages; page += PAGES_PER_2M) {
		u64 gva = DIRECTORY_GVA + page * PAGE_SIZE;

		list_add_gva(t, gva, WRITE_GPA);
		t->content[page] = (u32)gva + t->seed;
		set_bit(page, t->log);
	}
	write_listed(t);
	enter_cr3(t, t->vm->mmu.pgd);
}

static void clear_word_of_each_2m(struct model_test *t)
{
	memset(t->arg, 0, log_words(t) * sizeof(*t->arg));
	for (u64 word = 0; word < log_words(t); word += PAGES_PER_2M / BITS_PER_WORD)
		t->arg[word] = ~0ul;
	clear_log(t, 0, t->npages);
}

static void leave_links(struct model_test *t, unsigned int directories)
{
	touch_all(t, "all touched");
	start_logging(t);
	clear_word_of_each_2m(t);
	for (unsigned int i = 0; i < directories; i++)
		write_by_directory(t);
	stop_and_leave_links(t);
}

static void run_links(struct model_test *t)
{
	bool many = t->c->directories >= TOO_MANY_DIRECTORIES;

	leave_links(t, t->c->directories);
	touch_all(t, "all touched again");
	start_logging(t);
	log_fill(t, t->arg, 0, BITS_PER_WORD);
	clear_log(t, 0, BITS_PER_WORD);
	if (many)
		expect_huge(t, !eager, "first word cleared");
	else
		expect_huge_first_word(t);

	list_write(t, 1, 0);
	write_listed(t);
	compare_log(t, "one page written");
	/* Huge pages that the other page directories map are restored as well. */
	t->unpredictable = true;
	stop_logging(t);
	check_memory(t);
}

/*
 * A 1GiB page whose child links to page tables that another entry of the guest uses
 *
 * Both entries map the same memory, and page tables below the child have been
 * filled.  A read through the second entry maps a 1GiB page again, read-only.
 * When KVM splits it, the page tables must stay.  If huge pages replaced them,
 * each 2MiB would have to be split again.
 *
 * The page tables may have holes, so KVM must flush TLBs before it drops
 * mmu_lock.  The flush at the end of CLEAR would be too late.
 */
static void run_filled(struct model_test *t)
{
	u64 flushes, small;

	touch_all(t, "all touched");
	start_and_clear(t);
	rewrite_guest_entry(t, 1);
	list_read(t, 0, 1);
	guest_run(t, READ_GPA);
	if (eager)
		expect_huge(t, 1, "read by the second entry");

	list_write(t, 1, 0);
	write_listed(t);
	small = vm_get_stat(t->vm, pages_4k);
	flushes = vm_get_stat(t->vm, remote_tlb_flush_requests);
	log_fill(t, t->arg, 0, BITS_PER_WORD);
	clear_log(t, 0, BITS_PER_WORD);
	flushes = vm_get_stat(t->vm, remote_tlb_flush_requests) - flushes;
	if (eager) {
		expect_huge(t, 0, "first word cleared again");
		CHECK(t, vm_get_stat(t->vm, pages_4k) == small,
		      "first word cleared again: expected %lu 4KiB pages, seen %lu", small,
		      vm_get_stat(t->vm, pages_4k));
		CHECK(t, flushes >= 2,
		      "page tables were kept: expected a TLB flush and that of CLEAR, seen %lu",
		      flushes);
	}

	for (u64 page = 0; page < t->npages; page += PAGES_PER_2M)
		list_write(t, page, page / PAGES_PER_2M % 2);
	write_listed(t);
	compare_log(t, "written by both entries");
	stop_logging(t);
	check_memory(t);
}

/*
 * A huge page that holds one of the guest's page tables
 *
 * KVM write-protects the huge page while the guest uses the page table.  Debug
 * kernels (CONFIG_KVM_PROVE_MMU) verify that the SPTEs are still
 * write-protected after the split.
 */

static void use_page_table_in_slot(struct model_test *t)
{
	memcpy(t->hva + PAGE_SIZE, addr_gpa2hva(t->vm, t->vm->mmu.pgd), PAGE_SIZE);
	enter_cr3(t, t->gpa + PAGE_SIZE);
	t->nr_tracked = 1;

	list_read(t, 0, 0);
	guest_run(t, READ_GPA);
	expect_huge_model(t, "page table in use");
}

static void run_tracked(struct model_test *t)
{
	touch_all(t, "all touched");
	use_page_table_in_slot(t);
	start_and_clear(t);
	stop_logging(t);
}

/*
 * A huge SPTE that is write-protected because of a guest page table, while the
 * child that the splitter will use already has a writable SPTE for another page
 *
 * The guest has written to that other page through another mapping with the
 * same permissions.
 */

#define OTHER_ALIAS		4
#define OTHER_PAGE		5

static void run_tracked_alias(struct model_test *t)
{
	/* The guest uses only some of the mappings. */
	t->unpredictable = true;

	list_write(t, 0, 0);
	write_listed(t);
	use_page_table_in_slot(t);
	list_write(t, OTHER_PAGE, OTHER_ALIAS);
	write_listed(t);
	start_and_clear(t);
	stop_logging(t);
}

/*
 * A huge page whose child belongs to a bucket of KVM's hash that the guest has
 * filled
 *
 * The hash has no key, so a guest can choose gfns for its page tables that are
 * all in the same bucket.  KVM searches this bucket for the child, with
 * mmu_lock held.  If the bucket is too full, KVM zaps the huge page instead,
 * and page faults map the memory again.
 */

#define FEW_TABLES		64u
#define TOO_MANY_TABLES		640u

/* As KVM defines it. */
#define KVM_MMU_HASH_SHIFT	12

/* The memslot of these page tables; its first page contains zeroes. */
#define TABLES_SLOT		2u
#define TABLES_GPA		SZ_4G
#define TABLES_SIZE		SZ_2G
#define TABLES_GVA		((u64)SZ_2G)
#define TABLE_BITS		(PT_PRESENT_MASK | PT_ACCESSED_MASK)

/*
 * In how many ways a page table is linked.  KVM needs a shadow page for each
 * set of permissions of the link.
 */
#define TABLE_KINDS		8u

static u64 table_gva(unsigned int i)
{
	return TABLES_GVA + i * SZ_2M;
}

/* Return: the first gfn from @gfn on that is in the bucket of the first huge page's child. */
static u64 next_in_bucket(struct model_test *t, u64 gfn)
{
	u64 bucket = hash_64(t->gpa >> PAGE_SHIFT, KVM_MMU_HASH_SHIFT);

	while (hash_64(gfn, KVM_MMU_HASH_SHIFT) != bucket)
		gfn++;
	TEST_ASSERT(gfn < (TABLES_GPA + TABLES_SIZE) >> PAGE_SHIFT, "The memslot is too small");
	return gfn;
}

/* Each page table maps the page of zeroes at its first address. */
static void map_tables(struct model_test *t, void *hva)
{
	u64 gfn = TABLES_GPA >> PAGE_SHIFT;

	for (unsigned int i = 0; i < t->c->tables; i++) {
		u64 gva = table_gva(i);

		if (!(i % TABLE_KINDS)) {
			gfn = next_in_bucket(t, gfn + 1);
			*(u64 *)(hva + (gfn << PAGE_SHIFT) - TABLES_GPA) = TABLES_GPA | TABLE_BITS;
		}
		virt_map_level(t->vm, gva, 0, SZ_2M, PG_LEVEL_2M);
		*vm_get_entry(t->vm, gva, PG_LEVEL_2M) =
			gfn << PAGE_SHIFT | TABLE_BITS | (i & 4 ? PT_WRITABLE_MASK : 0);
		vm_vary_entry(t->vm, gva, i);
	}
}

static void enter_colliding(struct model_test *t)
{
	void *hva = mmap(NULL, TABLES_SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	TEST_ASSERT(hva != MAP_FAILED, "errno %d", errno);
	/* The kernel may have no transparent huge pages. */
	madvise(hva, TABLES_SIZE, MADV_NOHUGEPAGE);
	vm_set_user_memory_region(t->vm, TABLES_SLOT, 0, TABLES_GPA, TABLES_SIZE, hva);
	enter_long(t);
	map_tables(t, hva);
}

static void use_tables(struct model_test *t)
{
	for (unsigned int i = 0; i < t->c->tables; i++)
		list_add_gva(t, table_gva(i), READ_GPA);
	guest_run(t, READ_GPA);
}

static void run_collide(struct model_test *t)
{
	bool many = t->c->tables >= TOO_MANY_TABLES;
	u64 expected = eager ? t->c->nr_huge - many : 0;
	u64 shadow_pages = vm_get_stat(t->vm, mmu_shadow_pages);
	u64 splits;

	touch_all(t, "all touched");
	use_tables(t);
	shadow_pages = vm_get_stat(t->vm, mmu_shadow_pages) - shadow_pages;
	CHECK(t, shadow_pages >= t->c->tables,
	      "page tables used: expected at least %u shadow pages, seen %lu", t->c->tables,
	      shadow_pages);

	splits = vm_get_stat(t->vm, eager_split_done);
	start_and_clear(t);
	splits = vm_get_stat(t->vm, eager_split_done) - splits;
	CHECK(t, splits == expected,
	      "%u page tables in the bucket: expected %lu huge pages to be split, seen %lu",
	      t->c->tables, expected, splits);

	round_of_writes(t, true);
	stop_logging(t);
	check_memory(t);
}

static const char *cannot_relink(void)
{
	return is_tdp_mmu() ? "the TDP MMU keeps no page tables" : no_1g();
}

const struct test_case test_cases[] = {
	{ "relink", "64-bit guest, 1GiB entry, split twice", enter_long, run_relink,
	  .skip_reason = cannot_relink, .nr_huge = 1, .level = PG_LEVEL_1G,
	  .stride = PAGES_PER_2M, .manual_only = true },
	{ "links", "64-bit guest, 1GiB entry, some page directories", enter_long, run_links,
	  .skip_reason = no_shadow_1g, .directories = FEW_DIRECTORIES, .nr_huge = 1,
	  .level = PG_LEVEL_1G, .stride = PAGES_PER_2M, .manual_only = true },
	{ "many_links", "64-bit guest, 1GiB entry, many page directories", enter_long,
	  run_links, .skip_reason = no_shadow_1g, .directories = TOO_MANY_DIRECTORIES,
	  .nr_huge = 1, .level = PG_LEVEL_1G, .stride = PAGES_PER_2M, .manual_only = true },
	{ "filled", "64-bit guest, 1GiB entry, and another that was split", enter_long_alike,
	  run_filled, .skip_reason = no_shadow_1g, .nr_huge = 1, .level = PG_LEVEL_1G,
	  .stride = PAGES_PER_2M, .aliases = 2, .manual_only = true },
	{ "tracked", "a page table of the guest's in a 2MiB page", enter_long, run_tracked,
	  .skip_reason = no_shadow_paging, .nr_huge = 2 },
	{ "tracked_alias", "the same, with another mapping that is not huge", enter_long,
	  run_tracked_alias, .skip_reason = no_shadow_paging, .nr_huge = 1,
	  .aliases = OTHER_ALIAS + 1, .alias_step = SZ_4M },
	{ "collide", "page tables of the guest's in a bucket of KVM's hash", enter_colliding,
	  run_collide, .skip_reason = no_shadow_paging, .tables = FEW_TABLES, .nr_huge = 2 },
	{ "many_collide", "the same, too many page tables", enter_colliding, run_collide,
	  .skip_reason = no_shadow_paging, .tables = TOO_MANY_TABLES, .nr_huge = 2 },
};

const unsigned int nr_cases = ARRAY_SIZE(test_cases);
