// SPDX-License-Identifier: GPL-2.0-only
/*
 * The command line of the tests that take something from the eager splitter, and the
 * kernel's log.
 */

#include "eager_split_fault.h"

#define KERNEL_LOG		"/dev/kmsg"

u64 max_tries = UINT_MAX;

/* The kernel's log */

static int kernel_log_fd = -1;

static bool is_complaint(const char *message)
{
	static const char * const complaints[] = {
		"WARNING:", "BUG:", "KASAN", "Oops", "Call Trace", "INFO: ",
		"possible circular",
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(complaints); i++)
		if (strstr(message, complaints[i]))
			return true;
	return false;
}

void expect_silence(const char *when)
{
	char message[8192];
	ssize_t n;

	for (;;) {
		n = read(kernel_log_fd, message, sizeof(message) - 1);
		if (n < 0 && errno == EPIPE)
			continue;
		if (n <= 0)
			return;

		message[n] = 0;
		TEST_ASSERT(!is_complaint(message), "%s: the kernel complains: %s", when, message);
	}
}

static bool run_part(const struct part *part)
{
	char too_few[64];
	const char *reason;
	u64 start = now_ns();

	snprintf(too_few, sizeof(too_few), "fewer than %u huge pages are free", part->nr_huge);

	if (!part->any_mmu && is_tdp_mmu())
		reason = "the TDP MMU is on, whose splitter has no statistics";
	else if (nr_free_2m_pages() < part->nr_huge)
		reason = too_few;
	else
		reason = part->run();
	expect_silence(part->name);

	if (reason)
		ksft_test_result_skip("%s: %s\n", part->name, reason);
	else
		ksft_test_result_pass("%s: %lu ms\n", part->name,
				      (now_ns() - start) / NSEC_PER_MSEC);
	return !reason;
}

static bool has_stats(void)
{
	struct kvm_vm *vm = vm_create_barebones();
	bool has = vm_get_stat_or_absent(vm, "eager_split_cancelled") != STAT_ABSENT;

	kvm_vm_free(vm);
	return has;
}

int main(int argc, char *argv[])
{
	struct choice chosen = { parts, sizeof(*parts), nr_parts };
	const struct test_option options[] = {
		{ 'm', "part", "do this part only, or those of several -m", .choice = &chosen },
		{ 'n', "tries", "let no more than so many allocations fail of each kind, and\n"
		  "     don't try more often to come in between",
		  .number = &max_tries, .min = 1, .max = UINT_MAX },
		{ }
	};
	bool complete = true;
	unsigned int i;

	parse_test_options(argc, argv, options, NULL);
	ksft_print_header();
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	TEST_REQUIRE(get_kvm_param_bool("eager_page_split"));
	__TEST_REQUIRE(has_stats(), "The kernel has no statistics of eager page splitting");
	kernel_log_fd = open(KERNEL_LOG, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	TEST_ASSERT(kernel_log_fd >= 0, "Can't open " KERNEL_LOG);
	lseek(kernel_log_fd, 0, SEEK_END);
	ksft_set_plan(choice_count(&chosen));
	for (i = 0; i < nr_parts; i++)
		if (choice_has(&chosen, i))
			complete &= run_part(&parts[i]);
	return finish(complete);
}
