// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting by KVM_CLEAR_DIRTY_LOG
 *
 * What it refuses, how little it splits when asked for little, and words of the log
 * that have pages of two huge pages.
 */
#include "eager_split_model.h"

static void expect_refused(struct model_test *t, u64 first, u64 nr)
{
	struct kvm_clear_dirty_log args = {
		.dirty_bitmap = t->arg,
		.slot = t->slot,
		.first_page = first,
		.num_pages = nr,
	};
	int r = __vm_ioctl(t->vm, KVM_CLEAR_DIRTY_LOG, &args);

	CHECK(t, r == -1 && errno == EINVAL,
	      "CLEAR of %lu pages from %lu: expected EINVAL, seen %d, errno %d", nr,
	      first, r, errno);
}

static void check_refused(struct model_test *t)
{
	u64 page;

	log_fill(t, t->arg, 0, t->npages);
	for (page = 1; page < BITS_PER_WORD; page++)
		expect_refused(t, page, BITS_PER_WORD);
	expect_refused(t, 0, BITS_PER_WORD - 1);
	expect_refused(t, 0, BITS_PER_WORD + 1);
	expect_refused(t, 0, t->npages + BITS_PER_WORD);
	expect_refused(t, t->npages + BITS_PER_WORD, 0);
	expect_huge_model(t, "refused");
	compare_log(t, "refused");
}

static void check_empty(struct model_test *t)
{
	log_fill(t, t->arg, 0, t->npages);
	clear_log(t, 0, 0);
	clear_log(t, t->npages, 0);
	log_fill(t, t->arg, 0, 0);
	clear_log(t, 0, t->npages);
	expect_huge_model(t, "nothing cleared");
	compare_log(t, "nothing cleared");
}

static void check_single(struct model_test *t, u64 page)
{
	log_fill(t, t->arg, page, 1);
	clear_log(t, 0, t->npages);
	expect_huge_model(t, "one page cleared");
	compare_log(t, "one page cleared");

	list_write(t, page, 0);
	write_listed(t);
	compare_log(t, "one page written");
}

static void check_deletion(struct model_test *t)
{
	clear_all(t);
	vm_set_user_memory_region(t->vm, t->slot, 0, t->gpa, 0, t->hva);
	t->logging = false;
	expect_huge(t, 0, "slot deleted");

	set_flags(t, 0);
	touch_all(t, "slot added");
	check_memory(t);
}

static void run_api(struct model_test *t)
{
	touch_all(t, "all touched");
	start_logging(t);
	check_refused(t);
	check_empty(t);

	/* The last page of a huge page, the first of one, and one in the midst. */
	check_single(t, PAGES_PER_2M - 1);
	check_single(t, 2 * PAGES_PER_2M);
	check_single(t, 3 * PAGES_PER_2M + PAGES_PER_2M / 2);
	check_deletion(t);
}

static void run_across(struct model_test *t)
{
	CHECK(t, t->c->head % BITS_PER_WORD, "the slot is aligned");
	touch_all(t, "all touched");
	clear_across_all(t);
}

const struct test_case test_cases[] = {
	{
		.name = "api", .what = "CLEAR of little, of nothing, and of a slot that goes",
		.enter = enter_long, .run = run_api, .nr_huge = 4, .manual_only = true,
	}, {
		.name = "across", .what = "CLEAR of words that have pages of two huge pages",
		.enter = enter_long, .run = run_across, .nr_huge = 3, .head = 61, .tail = 101,
		.manual_only = true,
	},
};

const unsigned int nr_cases = ARRAY_SIZE(test_cases);
