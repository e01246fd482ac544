// SPDX-License-Identifier: GPL-2.0-only
/*
 * The command line of the tests that take something from the eager splitter, what they
 * change of the host, and the kernel's log.
 */
#include <getopt.h>

#include "eager_split_fault.h"

#define KERNEL_LOG		"/dev/kmsg"

struct fault_options fault_options = { .max_tries = UINT_MAX };

struct setting host_settings[NR_SETTINGS] = {
	[SLAB_WAIT] = { FAILSLAB "ignore-gfp-wait" },
	[SLAB_FILTER] = { FAILSLAB "cache-filter" },
	[SLAB_VERBOSE] = { FAILSLAB "verbose" },
	[SLAB_DESCS] = { SLAB "pte_list_desc/failslab" },
	[SLAB_HEADERS] = { SLAB "kvm_mmu_page_header/failslab" },
	[PAGE_WAIT] = { FAIL_PAGE_ALLOC "ignore-gfp-wait" },
	[PAGE_ORDER] = { FAIL_PAGE_ALLOC "min-order" },
	[PAGE_VERBOSE] = { FAIL_PAGE_ALLOC "verbose" },
	[EAGER] = { PARAM_EAGER },
	[FORCE_YIELD] = { PARAM_FORCE_YIELD },
	[SKIP_SPLIT] = { PARAM_SKIP_SPLIT },
	[HARVEST] = { PARAM_HARVEST },
};

/*
 * The kernel's log
 */

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

	if (fault_options.thorough)
		return;

	for (;;) {
		n = read(kernel_log_fd, message, sizeof(message) - 1);
		if (n < 0 && errno == EPIPE)
			continue;
		if (n <= 0)
			return;

		message[n] = 0;
		TEST_ASSERT(!is_complaint(message), "%s: the kernel complains: %s", when,
			    message);
	}
}

static void open_kernel_log(void)
{
	kernel_log_fd = open(KERNEL_LOG, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	TEST_ASSERT(kernel_log_fd >= 0, "Can't open " KERNEL_LOG);
	lseek(kernel_log_fd, 0, SEEK_END);
}

/*
 * The command line
 */

static bool run_part(const struct part *part)
{
	const char *reason;
	u64 start = now_ns();

	if (!part->any_mmu && is_tdp_mmu())
		reason = "the TDP MMU is on, whose splitter has no statistics";
	else if (nr_free_2m_pages() < part->nr_huge)
		reason = "too few huge pages are free";
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

static bool is_selected(const struct part *part, const char *name)
{
	return !name || !strcmp(name, part->name);
}

static unsigned int nr_selected(const char *name)
{
	unsigned int i, nr = 0;

	for (i = 0; i < nr_parts; i++)
		nr += is_selected(&parts[i], name);
	return nr;
}

/* Returns false if one of them couldn't run. */
static bool run_parts(const char *name)
{
	bool complete = true;
	unsigned int i;

	TEST_ASSERT(nr_selected(name), "No such part: %s, see -h", name);
	ksft_set_plan(nr_selected(name));
	for (i = 0; i < nr_parts; i++)
		if (is_selected(&parts[i], name))
			complete &= run_part(&parts[i]);
	return complete;
}

static bool has_stats(void)
{
	struct kvm_vm *vm = vm_create_barebones();
	bool has = vm_get_stat_or_absent(vm, "eager_split_cancelled") != STAT_ABSENT;

	kvm_vm_free(vm);
	return has;
}

static void list_parts(void)
{
	unsigned int i;

	printf("Parts, and how many free 2MiB HugeTLB pages they need:\n");
	for (i = 0; i < nr_parts; i++)
		printf("  -m %-7s %u\n", parts[i].name, parts[i].nr_huge);
}

static const char *selected;

static void select_part(const char *name)
{
	selected = name;
}

static const struct test_option options[] = {
	{ 'a', NULL, "let each and every allocation fail, the ioctl's own too; the kernel then\n"
	  "     complains that vmalloc() failed", .flag = &fault_options.thorough },
	{ 'm', "PART", "do this part only", .take = select_part },
	{ 'n', "TRIES", "let no more than so many allocations fail of each kind, and don't try\n"
	  "     more often to come in between", .number = &fault_options.max_tries, .min = 1,
	  .max = UINT_MAX },
	{ 'v', NULL, "show each try", .flag = &fault_options.verbose },
	{ }
};

int main(int argc, char *argv[])
{
	parse_test_options(argc, argv, options, list_parts);
	ksft_print_header();
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	TEST_REQUIRE(get_kvm_param_bool("eager_page_split"));
	__TEST_REQUIRE(has_stats(), "The kernel has no statistics of eager page splitting");
	settings_save(host_settings, NR_SETTINGS);
	open_kernel_log();
	if (run_parts(selected))
		ksft_finished();

	/* Each part that could not be run has said why. */
	ksft_print_cnts();
	return KSFT_SKIP;
}
