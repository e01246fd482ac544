// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting where there are page tables already: KVM's of an earlier split,
 * and the guest's within the huge page
 */
#include <string.h>

#include "eager_split_model.h"

/*
 * The child of a 1GiB page that has links from an earlier cycle
 *
 * They are replaced, and a vCPU that remembers them must forget them before others
 * get mmu_lock: CLEAR's own flush comes later.
 */

static void clear_relinked(struct model_test *t)
{
	u64 flushes = vm_get_stat(t->vm, "remote_tlb_flush_requests");
	u64 pages_4k = vm_get_stat(t->vm, "pages_4k");

	log_fill(t, t->arg, 0, BITS_PER_WORD);
	clear_log(t, 0, BITS_PER_WORD);
	flushes = vm_get_stat(t->vm, "remote_tlb_flush_requests") - flushes;
	pages_4k = vm_get_stat(t->vm, "pages_4k") - pages_4k;

	expect_huge_first_word(t);
	CHECK(t, !eager || pages_4k >= PAGES_PER_2M,
	      "the first 2MiB: expected at least %lu 4KiB pages, seen %lu", PAGES_PER_2M,
	      pages_4k);
	CHECK(t, !eager || !t->cycle || flushes >= 2,
	      "links were replaced: expected a TLB flush and that of CLEAR, seen %lu", flushes);
}

static void run_relink(struct model_test *t)
{
	int i;

	for (i = 0; i < NR_CYCLES; i++) {
		touch_all(t, "all touched");
		start_logging(t);
		clear_relinked(t);
		stop_logging(t);
		t->cycle++;
	}
	check_memory(t);
}

/*
 * A huge page that holds one of the guest's page tables
 *
 * KVM write-protects it when the guest begins to use the page table, for as long as
 * it is in use.  In debug kernels KVM itself checks that what it is split into stays
 * write-protected.
 */

static void use_page_table_in_slot(struct model_test *t)
{
	struct kvm_sregs sregs;

	memcpy(t->hva + PAGE_SIZE, addr_gpa2hva(t->vm, t->vm->pgd), PAGE_SIZE);
	vcpu_sregs_get(t->vcpu, &sregs);
	sregs.cr3 = t->gpa + PAGE_SIZE;
	vcpu_sregs_set(t->vcpu, &sregs);

	list_read(t, 0, 0);
	guest_run(t, READ_GPA);
	expect_huge_model(t, "page table in use");
}

static void run_tracked(struct model_test *t)
{
	touch_all(t, "all touched");
	use_page_table_in_slot(t);
	start_logging(t);
	if (t->manual)
		clear_initial(t);
	stop_logging(t);
}

static const char *cannot_relink(void)
{
	return is_tdp_mmu() ? "the TDP MMU keeps no page tables" : no_1g();
}

static const char *no_shadow_paging(void)
{
	return kvm_is_tdp_enabled() ? "the guest's page tables are not shadowed" : NULL;
}

static const struct test_case test_cases[] = {
	{
		.name = "relink", .what = "64-bit guest, 1GiB entry, split twice",
		.enter = enter_long, .run = run_relink, .skip_reason = cannot_relink,
		.nr_huge = 1, .level = PG_LEVEL_1G, .stride = PAGES_PER_2M, .manual_only = true,
	}, {
		.name = "tracked", .what = "a page table of the guest's in a 2MiB page",
		.enter = enter_long, .run = run_tracked, .skip_reason = no_shadow_paging,
		.nr_huge = 2,
	},
};

int main(int argc, char *argv[])
{
	return model_main(argc, argv, test_cases, ARRAY_SIZE(test_cases));
}
