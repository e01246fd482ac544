// SPDX-License-Identifier: GPL-2.0-only
/* The VM and the command line of the tests of eager_split_model.h. */
#include <linux/mman.h>

#include "eager_split_model.h"

/*
 * The code of the guest.  A list in memory contains addresses.  guest_write
 * writes to the words there, and guest_read adds them up.  The instructions
 * have the same encoding in 32-bit and in 64-bit code.
 *
 * In: ESI is the list and ECX its length.  guest_write writes the sum of the
 * address and EDX.  Out: EBX is the sum of the words that guest_read has read.
 */
static void __attribute__((naked)) guest_write(void)
{
	asm volatile(".code32\n"
		     "1: lodsl\n\t"
		     "leal (%eax, %edx), %ebx\n\t"
		     "movl %ebx, (%eax)\n\t"
		     "subl $1, %ecx\n\t"
		     "jnz 1b\n\t"
		     "hlt\n\t"
		     ".code64");
}

static void __attribute__((naked)) guest_read(void)
{
	asm volatile(".code32\n"
		     "1: lodsl\n\t"
		     "addl (%eax), %ebx\n\t"
		     "subl $1, %ecx\n\t"
		     "jnz 1b\n\t"
		     "hlt\n\t"
		     ".code64");
}

/* Modes of the guest */

void set_mode(struct model_test *t, u64 cr0, u64 cr3, u64 cr4, u64 efer)
{
	struct kvm_sregs sregs;

	vcpu_sregs_get(t->vcpu, &sregs);
	set_flat_segments(&sregs, efer & EFER_LMA);
	sregs.cr0 = X86_CR0_PE | X86_CR0_NE | X86_CR0_ET | cr0;
	sregs.cr3 = cr3;
	sregs.cr4 = cr4;
	sregs.efer = efer;
	vcpu_sregs_set(t->vcpu, &sregs);
}

unsigned int nr_guest_entries(struct model_test *t)
{
	return t->mapping_size / PG_LEVEL_SIZE(t->c->level);
}

void map_low(struct model_test *t)
{
	virt_pgd_alloc(t->vm);
	virt_map_level(t->vm, 0, 0, LOW_SIZE, PG_LEVEL_2M);
}

void map_data(struct model_test *t)
{
	for (unsigned int i = 0; i < t->c->aliases; i++)
		virt_map_level(t->vm, DATA_BASE + i * t->c->alias_step, DATA_BASE,
			       t->mapping_size, t->c->level);
}

void enter_paging_4level(struct model_test *t, u64 cr0)
{
	set_mode(t, X86_CR0_PG | cr0, t->vm->mmu.pgd, X86_CR4_PAE, EFER_LME | EFER_LMA | EFER_NX);
}

void enter_long(struct model_test *t)
{
	map_low(t);
	map_data(t);
	for (unsigned int i = 1; i < t->c->aliases; i++)
		for (unsigned int j = 0; j < nr_guest_entries(t); j++)
			vm_vary_entry(t->vm, DATA_BASE + i * t->c->alias_step + j * SZ_2M, i);
	enter_paging_4level(t, X86_CR0_WP);
}

void enter_long_alike(struct model_test *t)
{
	map_low(t);
	map_data(t);
	enter_paging_4level(t, X86_CR0_WP);
}

const char *no_1g(void)
{
	return kvm_cpu_has(X86_FEATURE_GBPAGES) ? NULL : "KVM has no 1GiB pages for guests";
}

const char *no_shadow_paging(void)
{
	return kvm_is_tdp_enabled() ? "the guest's page tables are not shadowed" : NULL;
}

const char *no_shadow_1g(void)
{
	return no_shadow_paging() ?: no_1g();
}

/* Setting up, and tearing down */

static void create_vm(struct model_test *t)
{
	t->vm = vm_create_barebones();
	/* Even if the CPU has five levels, see enter_paging_4level(). */
	t->vm->mmu.pgtable_levels = 4;
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, 0, LOW_SLOT,
				    LOW_SIZE / PAGE_SIZE, 0);
	memcpy(addr_gpa2hva(t->vm, WRITE_GPA), guest_write, CODE_MAX);
	memcpy(addr_gpa2hva(t->vm, READ_GPA), guest_read, CODE_MAX);
	t->list = addr_gpa2hva(t->vm, LIST_GPA);

	if (t->manual)
		vm_enable_manual_protect(t->vm, true);

	t->vcpu = __vm_vcpu_add(t->vm, 0);
	vcpu_init_cpuid(t->vcpu, kvm_get_supported_cpuid());
}

/* Returns false if there are not enough huge pages. */
static bool run_logged(const struct test_case *c, bool manual)
{
	u64 offset = -c->head % (PG_LEVEL_SIZE(c->level) / PAGE_SIZE);
	struct model_test *t = calloc(1, sizeof(*t));
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB |
		    PG_LEVEL_SHIFT(c->level) << MAP_HUGE_SHIFT;
	bool can_map;

	TEST_ASSERT(t, "Out of memory");
	t->c = c;
	t->manual = manual;
	t->slot = DATA_SLOT;
	t->seed = 1;
	t->npages = c->head + c->nr_huge * pages_per_huge(t) + c->tail;
	TEST_ASSERT(t->npages <= MAX_PAGES && c->nr_huge <= MAX_HUGE, "%s is too large", c->name);
	t->mapping_size = align_up((offset + t->npages) * PAGE_SIZE, PG_LEVEL_SIZE(c->level));
	t->mapping = mmap(NULL, t->mapping_size, PROT_READ | PROT_WRITE, flags, -1, 0);
	can_map = t->mapping != MAP_FAILED;
	if (can_map) {
		t->hva = t->mapping + offset * PAGE_SIZE;
		t->gpa = DATA_BASE + offset * PAGE_SIZE;
		create_vm(t);
		set_flags(t, 0);
		c->enter(t);
		(c->run ?: run_cycles)(t);
		kvm_vm_free(t->vm);
		munmap(t->mapping, t->mapping_size);
	}
	free(t);
	return can_map;
}

static const char *run_case(unsigned int row)
{
	struct test_case c = test_cases[row];
	const char *reason = c.skip_reason ? c.skip_reason() : NULL;

	if (!reason && c.lazy_only && eager)
		reason = "kvm.eager_page_split is Y, and the test needs N";

	c.level = c.level ?: PG_LEVEL_2M;
	c.aliases = c.aliases ?: 1;
	c.stride = c.stride ?: 1;
	c.alias_step = c.alias_step ?: c.nr_huge * PG_LEVEL_SIZE(c.level);
	if (!reason && !((c.manual_only || run_logged(&c, false)) && run_logged(&c, true)))
		reason = "too few huge pages are free";
	return reason;
}

/* The command line */

int main(int argc, char *argv[])
{
	struct choice cases = { test_cases, sizeof(*test_cases), nr_cases };
	const struct test_option options[] = {
		{ 'm', "case", "run this case only, or those of several -m", .choice = &cases },
		{ }
	};

	parse_test_options(argc, argv, options,
			   "It needs 6 free 2MiB HugeTLB pages, dirty_log_idle_test 65, a 1GiB entry a 1GiB page.\n\n");
	ksft_print_header();
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	eager = get_kvm_param_bool("eager_page_split");
	return finish(run_chosen(&cases, run_case));
}
