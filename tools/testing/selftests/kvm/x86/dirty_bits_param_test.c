// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging by Dirty bits: the parameter kvm.dirty_bits
 *
 * Check which values the parameter accepts, which VMs then log by Dirty bits
 * (none with PML or a dirty ring), and that KVM write-protects the pages of a
 * VM that is created with "off".
 *
 * With -d, also check the value that the parameter has in the beginning.
 */
#include "dirty_bits.h"

#define RING_BYTES		SZ_64K

static void check_refused(const char *value)
{
	char before[SETTING_MAX], after[SETTING_MAX];
	int err;

	read_file(PARAM_DIRTY_BITS, before, sizeof(before));
	err = write_file(PARAM_DIRTY_BITS, value) ? 0 : errno;
	read_file(PARAM_DIRTY_BITS, after, sizeof(after));
	TEST_ASSERT(err == EINVAL, "dirty_bits=%s: expected EINVAL, seen %d", value, err);
	TEST_ASSERT(!strcmp(before, after), "dirty_bits=%s was refused, and made %s of %s",
		    value, after, before);
}

/*
 * An entry in a ring belongs to the vCPU that has written.  Dirty bits do not
 * tell which one that was, so KVM must write-protect the pages.
 */
static void check_dirty_ring(void)
{
	struct kvm_vm *vm;

	if (!kvm_has_cap(KVM_CAP_DIRTY_LOG_RING) && !kvm_has_cap(KVM_CAP_DIRTY_LOG_RING_ACQ_REL))
		return;

	setting_set(PARAM_DIRTY_BITS, "on");
	vm = vm_create_barebones();
	vm_enable_dirty_ring(vm, RING_BYTES);
	/* A ring can be enabled until the first vCPU, so KVM decides then. */
	__vm_vcpu_add(vm, 0);
	TEST_ASSERT(!vm_get_stat(vm, dirty_bits),
		    "The VM has a dirty ring, and says that it looks for Dirty bits");
	kvm_vm_free(vm);
}

/* With write protection, the log must be the same, but KVM takes faults. */
static void run_without(void)
{
	static const struct writer writer = { .name = "L1" };
	struct dirty_bits_test t = { .writer = &writer, .manual = true };
	u64 faults;

	setting_set(PARAM_DIRTY_BITS, "off");
	dirty_bits_create_vm(&t);
	t.name = "off";
	CHECK(&t, !vm_get_stat(t.vm, dirty_bits), "dirty_bits is off, and used");
	write_all(&t);
	start_logging(&t);
	faults = nr_faults(t.vcpu);
	write_batch(&t);
	CHECK(&t, nr_faults(t.vcpu) > faults, "no page is write-protected");
	expect_log(&t, false, "GET");
	dirty_bits_destroy_vm(&t);
}

static void check_parameter(void)
{
	TEST_ASSERT(!dirty_bits_of_new_vm("off"), "dirty_bits is off, and used");
	check_dirty_ring();
	check_refused("maybe");
	check_refused("1");
	check_refused("Y");
	check_refused("onoff");
}

int main(int argc, char *argv[])
{
	const char *at_first = NULL;
	char value[SETTING_MAX];
	const struct test_option options[] = {
		{ 'd', "value", "What the parameter has to be at first.", .text = &at_first },
		{ }
	};

	parse_test_options(argc, argv, options, NULL);
	ksft_print_header();
	require_dirty_bits();
	read_file(PARAM_DIRTY_BITS, value, sizeof(value));
	value[strcspn(value, "\n")] = 0;
	TEST_ASSERT(!at_first || !strcmp(value, at_first), "dirty_bits is %s at first", value);
	ksft_set_plan(2);
	check_parameter();
	ksft_test_result_pass("values\n");
	if (can_dirty_bits()) {
		run_without();
		ksft_test_result_pass("off\n");
	} else {
		ksft_test_result_skip("off: " NO_DIRTY_BITS "\n");
	}
	ksft_finished();
}
