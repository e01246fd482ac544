// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting in every mode of the guest
 *
 * How the shadow MMU maps guest memory by huge pages depends on how the guest
 * maps it: without paging, by page tables with two, three or four levels, at
 * many addresses, by huge entries that are read-only or clean, or in SMM.  For
 * each of these, a case enables dirty logging, lets the guest write, disables
 * logging, and compares huge pages, the log and memory with the model of
 * eager_split_model.h.
 *
 * The cases also run with the TDP MMU, and with kvm.eager_page_split=N.
 */
#include "eager_split_model.h"

#define SMM_AS_ID		1u
#define SLOT_OF(as_id, id)	((as_id) << 16 | (id))

#define PDES_PAE		512u
#define SHIFT_PAE		21
#define SHIFT_PSE		22

/*
 * Read-only entries, some of them for user mode.  The guest may write through
 * them because CR0.WP is clear.
 */
static void enter_long_wp0(struct model_test *t)
{
	map_low(t);
	map_data(t);
	for (unsigned int i = 0; i < nr_guest_entries(t); i++) {
		vm_vary_entry(t->vm, DATA_BASE + i * SZ_2M, i / 2 % 2);
		*vm_get_entry(t->vm, DATA_BASE + i * SZ_2M, PG_LEVEL_2M) &= ~PT_WRITABLE_MASK;
	}
	enter_paging_4level(t, 0);
}

static void map_pae(struct model_test *t, u64 *pds[], u64 gva, u64 gpa)
{
	pds[gva >> 30][(gva >> SHIFT_PAE) % PDES_PAE] =
		gpa | PT_PRESENT_MASK | PT_WRITABLE_MASK | PT_HUGE_MASK;
}

static void enter_pae(struct model_test *t)
{
	u64 pdpt_gpa = vm_alloc_page_table(t->vm);
	u64 *pdpt = addr_gpa2hva(t->vm, pdpt_gpa);
	u64 pd_gpa, *pds[4];

	for (unsigned int i = 0; i < ARRAY_SIZE(pds); i++) {
		pd_gpa = vm_alloc_page_table(t->vm);
		pdpt[i] = pd_gpa | PT_PRESENT_MASK;
		pds[i] = addr_gpa2hva(t->vm, pd_gpa);
	}

	for (u64 offset = 0; offset < LOW_SIZE; offset += SZ_2M)
		map_pae(t, pds, offset, offset);
	for (unsigned int i = 0; i < t->c->aliases; i++)
		for (u64 offset = 0; offset < t->mapping_size; offset += SZ_2M)
			map_pae(t, pds, DATA_BASE + i * t->c->alias_step + offset,
				DATA_BASE + offset);

	set_mode(t, X86_CR0_PG | X86_CR0_WP, pdpt_gpa, X86_CR4_PAE, 0);
}

static void map_pse(u32 *pd, u64 gva, u64 gpa)
{
	pd[gva >> SHIFT_PSE] = gpa | PT_PRESENT_MASK | PT_WRITABLE_MASK | PT_HUGE_MASK;
}

static void enter_pse(struct model_test *t)
{
	u64 pd_gpa = vm_alloc_page_table(t->vm);
	u32 *pd = addr_gpa2hva(t->vm, pd_gpa);

	for (u64 offset = 0; offset < LOW_SIZE; offset += SZ_4M)
		map_pse(pd, offset, offset);
	for (unsigned int i = 0; i < t->c->aliases; i++)
		for (u64 offset = 0; offset < t->mapping_size; offset += SZ_4M)
			map_pse(pd, DATA_BASE + i * t->c->alias_step + offset, DATA_BASE + offset);

	set_mode(t, X86_CR0_PG | X86_CR0_WP, pd_gpa, X86_CR4_PSE, 0);
}

static void enter_nonpaging(struct model_test *t)
{
	set_mode(t, 0, 0, 0, 0);
}

/*
 * SMM has its own address space.  Add a memslot with the same memory to it, and
 * log that memslot.  The memslot of the other address space is not logged.
 */
static void enter_smm(struct model_test *t)
{
	struct kvm_vcpu_events events;

	enter_nonpaging(t);
	for (u64 page = t->c->head; page < t->npages; page += PAGES_PER_2M)
		list_read(t, page, 0);
	guest_run(t, READ_GPA);
	expect_huge(t, t->c->nr_huge, "touched outside of SMM");

	vm_set_user_memory_region(t->vm, SLOT_OF(SMM_AS_ID, LOW_SLOT), 0, 0, LOW_SIZE,
				  addr_gpa2hva(t->vm, 0));
	t->slot = SLOT_OF(SMM_AS_ID, DATA_SLOT);
	set_flags(t, 0);

	vcpu_events_get(t->vcpu, &events);
	events.flags |= KVM_VCPUEVENT_VALID_SMM;
	events.smi.smm = 1;
	vcpu_events_set(t->vcpu, &events);
	t->huge_elsewhere = nr_huge_mapped(t);
}

static const char *no_smm(void)
{
	if (!kvm_has_cap(KVM_CAP_X86_SMM))
		return "KVM has no SMM";
	if (kvm_check_cap(KVM_CAP_MULTI_ADDRESS_SPACE) <= SMM_AS_ID)
		return "KVM has one address space only";
	return NULL;
}

const struct test_case test_cases[] = {
	{ "long", "64-bit guest, 2MiB entries", enter_long, .nr_huge = 4 },
	{ "unaligned", "slot that is not aligned to 2MiB", enter_long, .nr_huge = 3, .head = 61,
	  .tail = 101 },
	{ "alias2", "memory at 2 addresses", enter_long, .nr_huge = 3, .aliases = 2 },
	{ "alias15", "memory at 15 addresses", enter_long, .nr_huge = 3, .aliases = 15 },
	{ "alias1000", "memory at as many addresses as KVM allows for", enter_long,
	  .nr_huge = 1, .aliases = RMAP_RECYCLE_THRESHOLD },
	{ "alias1100", "memory at more addresses than KVM allows for", enter_long, .nr_huge = 1,
	  .aliases = 1100 },
	{ "pae", "32-bit guest, PAE, 2MiB entries", enter_pae, .nr_huge = 4, .aliases = 2,
	  .alias_step = SZ_1G },
	{ "pse", "32-bit guest, 4MiB entries", enter_pse, .nr_huge = 4, .aliases = 2,
	  .alias_step = SZ_1G },
	{ "nonpaging", "32-bit guest without paging", enter_nonpaging, .nr_huge = 4 },
	{ "wp0", "CR0.WP=0, writes through read-only 2MiB entries", enter_long_wp0,
	  .nr_huge = 4, .read_first = true },
	{ "clean", "2MiB entries that get dirty while logging", enter_long, .nr_huge = 4,
	  .read_first = true },
	{ "1g", "64-bit guest, 1GiB entry", enter_long, .skip_reason = no_1g, .nr_huge = 1,
	  .level = PG_LEVEL_1G, .stride = 61 },
	{ "smm", "the address space of SMM", enter_smm, .skip_reason = no_smm, .nr_huge = 4 },
};

const unsigned int nr_cases = ARRAY_SIZE(test_cases);
