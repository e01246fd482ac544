// SPDX-License-Identifier: GPL-2.0-only
/*
 * The command line of the tests of Dirty bits, and the loop over all kinds of
 * guests
 */
#include "dirty_bits.h"

#define DEFAULT_ROUNDS		1000u

bool is_writable(const char *path)
{
	return setting_exists(path) && write_file(path, setting_value(path));
}

u64 dirty_bits_of_new_vm(const char *mode)
{
	struct kvm_vm *vm;
	u64 dirty_bits;

	setting_set(PARAM_DIRTY_BITS, mode);
	vm = vm_create_barebones();
	setting_set(PARAM_DIRTY_BITS, strcmp(mode, "off") ? "off" : "on");
	dirty_bits = vm_get_stat(vm, dirty_bits);
	kvm_vm_free(vm);
	return dirty_bits;
}

bool can_dirty_bits(void)
{
	bool can = dirty_bits_of_new_vm("on");

	TEST_ASSERT(!can || !host_cpu_is_intel || !get_kvm_intel_param_bool("pml"),
		    "The CPU logs by itself, and so does KVM");
	TEST_ASSERT(dirty_bits_of_new_vm("auto") == (can && !kvm_is_tdp_enabled()),
		    "auto isn't for shadow paging, and nothing else");
	return can;
}

void require_dirty_bits(void)
{
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	__TEST_REQUIRE(is_writable(PARAM_DIRTY_BITS), "Can't write " PARAM_DIRTY_BITS);
}

/* Guests */

static const struct event *events;
static struct choice event_choice;
static void (*run_event)(struct dirty_bits_test *t, const struct event *e);

static bool can_run(unsigned int i, bool private)
{
	const struct event *e = &events[i];

	return choice_has(&event_choice, i) && e->private == private &&
	       !(e->skip_reason && e->skip_reason());
}

/* Can any selected event run in a guest with this kind of memory? */
static bool any_selected(bool private)
{
	unsigned int nr = 0;

	for (unsigned int i = 0; i < event_choice.nr; i++)
		nr += can_run(i, private);
	return nr;
}

bool dirty_bits_wrprot;

/* Run all events that are selected, with one guest. */
static void run_with_guest(struct dirty_bits_test *t)
{
	u64 start = now_ns(), dirty_bits;

	t->name = "setting up";
	dirty_bits_create_vm(t);
	dirty_bits = vm_get_stat(t->vm, dirty_bits);
	CHECK(t, dirty_bits == !dirty_bits_wrprot,
	      "expected the statistic dirty_bits to be %d, seen %lu",
	      !dirty_bits_wrprot, dirty_bits);
	for (unsigned int i = 0; i < event_choice.nr; i++) {
		t->name = events[i].name;
		if (can_run(i, t->private))
			run_event(t, &events[i]);
	}
	dirty_bits_destroy_vm(t);

	t->name = t->private ? "private memory" : "shared memory";
	ksft_test_result_pass("%s: %lu ms\n", dirty_bits_label(t),
			      (now_ns() - start) / NSEC_PER_MSEC);
}

enum guest_kind { GUEST_PRIVATE = 1, GUEST_MANUAL = 2, NR_GUEST_KINDS = 4 };

static const char *no_l2(void)
{
	return kvm_cpu_has(X86_FEATURE_SVM) || kvm_cpu_has(X86_FEATURE_VMX) ? NULL :
	       "no nested SVM or VMX";
}

static const char *no_l2_ept(void)
{
	return kvm_cpu_has(X86_FEATURE_VMX) && kvm_cpu_has_ept() ? NULL : "no nested EPT";
}

static const char *no_l2_tdp(void)
{
	return kvm_cpu_has(X86_FEATURE_NPT) || !no_l2_ept() ? NULL : "no nested NPT or EPT";
}

static const struct writer writers[] = {
	{ "L1", "a guest", .quick = BIT(GUEST_MANUAL) | BIT(GUEST_PRIVATE | GUEST_MANUAL) },
	{ "L2", "a guest's guest", .nested = true, .skip_reason = no_l2, .quick = BIT(0) },
	{ "L2-noAD", "the same, by an EPT without Accessed and Dirty bits", .nested = true,
	  .no_ad = true, .skip_reason = no_l2_ept, .quick = BIT(GUEST_MANUAL) },
	{ "L2-noTDP", "the same, by an L1 that doesn't use EPT or NPT", .nested = true,
	  .no_tdp = true, .skip_reason = no_l2_tdp, .quick = BIT(GUEST_MANUAL) },
};

static struct choice writer_choice = { writers, sizeof(*writers), ARRAY_SIZE(writers) };

static const char *skip_reason(const struct writer *w)
{
	return w->skip_reason ? w->skip_reason() : NULL;
}

static void run_kind(const struct writer *w, unsigned int kind, unsigned int rounds)
{
	const char *reason = skip_reason(w);
	struct dirty_bits_test t = {
		.writer = w,
		.private = kind & GUEST_PRIVATE,
		.manual = kind & GUEST_MANUAL,
		.rounds = rounds,
	};

	if (reason)
		ksft_test_result_skip("%s: %s\n", w->name, reason);
	else
		run_with_guest(&t);
}

static bool is_wanted(unsigned int writer, unsigned int kind, bool quick)
{
	return choice_has(&writer_choice, writer) && any_selected(kind & GUEST_PRIVATE) &&
	       (!quick || writers[writer].quick & BIT(kind));
}

static unsigned int count_guests(bool quick)
{
	unsigned int nr = 0;

	for (unsigned int i = 0; i < ARRAY_SIZE(writers); i++)
		for (unsigned int kind = 0; kind < NR_GUEST_KINDS; kind++)
			nr += is_wanted(i, kind, quick);
	return nr;
}

static void run_guests(unsigned int rounds, bool quick)
{
	for (unsigned int i = 0; i < ARRAY_SIZE(writers); i++)
		for (unsigned int kind = 0; kind < NR_GUEST_KINDS; kind++)
			if (is_wanted(i, kind, quick))
				run_kind(&writers[i], kind, rounds);
}

/*
 * Skip the test if a guest that the command line names is not possible here.
 * Otherwise only this guest is skipped.
 */
static void require_writers(void)
{
	const char *reason;

	for (unsigned int i = 0; i < ARRAY_SIZE(writers); i++) {
		reason = skip_reason(&writers[i]);
		__TEST_REQUIRE(!reason || !(writer_choice.named & BIT_ULL(i)), "%s: %s",
			       writers[i].name, reason);
	}
}

/* The command line */

int dirty_bits_main(int argc, char *argv[], const struct event *given, unsigned int nr,
		    void (*run)(struct dirty_bits_test *t, const struct event *e))
{
	u64 rounds = DEFAULT_ROUNDS, seed = 1;
	bool quick = false;
	const struct test_option options[] = {
		{ 'g', "guest", "let only this guest write; more than one may be given",
		  .choice = &writer_choice },
		{ 'm', "event", "let only this happen; more than one may be given",
		  .choice = &event_choice },
		{ 'n', "rounds", "looks at the log, where vCPUs run meanwhile",
		  .number = &rounds, .min = 1, .max = UINT_MAX },
		{ 'q', NULL, "for each guest only some of the combinations of private and shared\n"
		  "     memory, with and without manual protection", .flag = &quick },
		{ 's', "seed", "seed of what is random", .number = &seed, .max = UINT_MAX },
		{ 'w', NULL, "log by write protection instead: the same log is expected",
		  .flag = &dirty_bits_wrprot },
		{ }
	};

	events = given;
	event_choice = (struct choice){ events, sizeof(*events), nr };
	run_event = run;
	parse_test_options(argc, argv, options,
			   "It changes kvm.dirty_bits and kvm.nx_huge_pages, and puts them back.\n\n");
	ksft_print_header();
	require_dirty_bits();
	__TEST_REQUIRE(can_dirty_bits(), NO_DIRTY_BITS);
	srandom(seed);
	setting_set(PARAM_DIRTY_BITS, dirty_bits_wrprot ? "off" : "on");
	require_writers();
	ksft_set_plan(count_guests(quick));
	run_guests(rounds, quick);
	ksft_finished();
}
