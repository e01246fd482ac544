// SPDX-License-Identifier: GPL-2.0-only
/*
 * KVM_CAP_X86_DIRTY_LOG_CONTROL: what VMs may ask for with which parameters of the host, and
 * that they do what was asked for last, calls that failed not counting.
 */
#include "eager_split_util.h"

#define DATA_SLOT	10
#define DATA_GPA	0x40000000ull
#define NR_HUGE		16u
#define NR_PAGES	(NR_HUGE * PAGES_PER_2M)
#define STRIDE		3ul
#define UNIT		KVM_X86_EAGER_SPLIT_CHUNK_UNIT

/* The arguments. */
struct control {
	u64 eager;
	u64 chunk;
	u64 method;
	u64 rest;
};

/* Of the host: whether CPUs log by themselves, SPTEs have Dirty bits, and the parameters. */
static bool pml, dirty_bits, host_eager;
static const char *host_method;

static struct control asked;
static u64 stride = 1;

static void guest_main(void)
{
	for (;;) {
		for (u64 page = 0; page < NR_PAGES; page += stride)
			WRITE_ONCE(*(u64 *)(DATA_GPA + page * PAGE_SIZE), page);
		GUEST_SYNC(0);
	}
}

static void set_host(bool eager, const char *method)
{
	host_eager = eager;
	host_method = method;
	setting_set(PARAM_EAGER, eager ? "Y" : "N");
	setting_set(PARAM_HARVEST, method);
}

static bool is_allowed(struct control c)
{
	bool may_choose = strcmp(host_method, "off");
	bool bits = may_choose && dirty_bits;
	bool methods[] = { true, true, bits, may_choose };
	bool eagers[] = { true, true, host_eager };

	return c.eager < ARRAY_SIZE(eagers) && eagers[c.eager] &&
	       c.method < ARRAY_SIZE(methods) && methods[c.method] &&
	       !(c.chunk % UNIT) && c.chunk <= KVM_X86_EAGER_SPLIT_CHUNK_MAX && !c.rest;
}

static bool expected_harvest(u64 method)
{
	bool of_host = !strcmp(host_method, "on") ||
		       (!strcmp(host_method, "auto") && !kvm_is_tdp_enabled());
	bool harvests[] = { !pml && of_host, false, true, !pml && !kvm_is_tdp_enabled() };

	return harvests[method] && dirty_bits;
}

static void enable(struct kvm_vm *vm, struct control c, u32 flags, int expected)
{
	struct kvm_enable_cap cap = {
		.cap = KVM_CAP_X86_DIRTY_LOG_CONTROL,
		.flags = flags,
		.args = { c.eager, c.chunk, c.method, c.rest },
	};
	int err = __vm_ioctl(vm, KVM_ENABLE_CAP, &cap) ? errno : 0;

	TEST_ASSERT(err == expected, "%lu, %lu, %lu, %lu, flags %u: expected %d, seen %d", c.eager,
		    c.chunk, c.method, c.rest, flags, expected, err);
}

/* The opposite in each way that a failing call could leave behind. */
static struct control opposite(struct control c)
{
	c.eager = c.eager != KVM_X86_EAGER_SPLIT_OFF;
	c.chunk = c.chunk ? 0 : UNIT;
	c.method = c.method != KVM_X86_DIRTY_LOG_WRPROT ? KVM_X86_DIRTY_LOG_WRPROT : 0;
	return c;
}

static void enable_asked(struct kvm_vm *vm)
{
	struct control bad = opposite(asked);

	enable(vm, bad, 0, is_allowed(bad) ? 0 : EINVAL);
	enable(vm, asked, 0, 0);
	enable(vm, bad, 1, EINVAL);
	bad.rest = 1;
	enable(vm, bad, 0, EINVAL);
}

static void check_values(void)
{
	static const u64 values[] = { 0, 1, 2, 3, 4, 5, ~0ull };
	static const u64 chunks[] = { 0, 1, UNIT - 1, UNIT, UNIT + 1, UNIT * 5, UNIT * UNIT,
				      UNIT * UNIT + UNIT, 1ull << 32, ~0ull };
	u64 i, may = KVM_X86_ALLOWS_EAGER_SPLIT_CHUNK, harvests;
	struct kvm_vm *vm = vm_create_barebones();
	struct control c;

	for (i = 0; i <= KVM_X86_DIRTY_LOG_AUTO; i++) {
		may |= is_allowed((struct control){ i }) * KVM_X86_ALLOWS_EAGER_SPLIT_HOST << i;
		may |= is_allowed((struct control){ 0, 0, i }) * KVM_X86_ALLOWS_DIRTY_LOG_HOST << i;
	}
	TEST_ASSERT_EQ(kvm_check_cap(KVM_CAP_X86_DIRTY_LOG_CONTROL), may);
	TEST_ASSERT_EQ(vm_check_cap(vm, KVM_CAP_X86_DIRTY_LOG_CONTROL), may);

	harvests = vm_get_stat(vm, dirty_harvest);
	for (i = 0; i < ARRAY_SIZE(values) * ARRAY_SIZE(values) * ARRAY_SIZE(chunks); i++) {
		c = (struct control){ .eager = values[i % 7], .method = values[i / 7 % 7],
				      .chunk = chunks[i / 49] };
		enable(vm, c, 0, is_allowed(c) ? 0 : EINVAL);
		if (is_allowed(c))
			harvests = expected_harvest(c.method);
		TEST_ASSERT_EQ(vm_get_stat(vm, dirty_harvest), harvests);
	}
	kvm_vm_free(vm);
}

static void check_too_late(void)
{
	struct kvm_vm *vm = vm_create_barebones();
	struct control none = { };

	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, 1, 0);
	enable(vm, none, 0, EBUSY);
	vm_mem_region_delete(vm, DATA_SLOT);
	enable(vm, none, 0, 0);
	__vm_vcpu_add(vm, 0);
	enable(vm, none, 0, EBUSY);
	enable(vm, (struct control){ .rest = 1 }, 0, EINVAL);
	kvm_vm_free(vm);
}

/* It has room for PML's log, also where a VM asked for something else: it may ask again. */
static void check_small_ring(void)
{
	struct kvm_enable_cap cap = { .cap = KVM_CAP_DIRTY_LOG_RING, .args = { PAGE_SIZE } };
	struct kvm_vm *vm = vm_create_barebones();

	enable(vm, (struct control){ .method = KVM_X86_DIRTY_LOG_WRPROT }, 0, 0);
	TEST_ASSERT(!__vm_ioctl(vm, KVM_ENABLE_CAP, &cap) == !pml,
		    "a ring of one page%s", pml ? ", less than PML's log" : " is refused");
	kvm_vm_free(vm);
}

/* Its pages are write-protected, whatever is asked for. */
static void check_ring(void)
{
	struct control c = { .method = KVM_X86_DIRTY_LOG_DIRTY_BITS };
	struct kvm_vm *vm = vm_create_barebones();

	vm_enable_dirty_ring(vm, 16 * PAGE_SIZE);
	enable(vm, c, 0, is_allowed(c) ? 0 : EINVAL);
	TEST_ASSERT(!vm_get_stat(vm, dirty_harvest), "Dirty bits are looked for beside a ring");
	kvm_vm_free(vm);
}

/* Every @nr-th page was written. */
static void check_log(struct kvm_vm *vm, u64 nr, bool manual)
{
	unsigned long log[NR_PAGES / BITS_PER_WORD];

	kvm_vm_get_dirty_log(vm, DATA_SLOT, log);
	if (manual)
		kvm_vm_clear_dirty_log(vm, DATA_SLOT, log, 0, NR_PAGES);
	for (u64 page = 0; page < NR_PAGES; page++)
		TEST_ASSERT(test_bit(page, log) == !(page % nr), "page %lu is%s in the log", page,
			    test_bit(page, log) ? "" : " not");
}

/* Whatever other VMs ask for and are refused, Dirty bits are looked for: 2 s later, too. */
static void ask_in_another_vm(void)
{
	struct control c = { .method = KVM_X86_DIRTY_LOG_DIRTY_BITS };
	struct kvm_vm *vm = vm_create_barebones();

	for (int i = 0; i < 9; i++) {
		enable(vm, (struct control){ .method = KVM_X86_DIRTY_LOG_WRPROT }, 0, 0);
		enable(vm, c, 0, 0);
	}
	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, 1, 0);
	for (int i = 0; i < 9; i++)
		enable(vm, c, 0, EBUSY);
	kvm_vm_free(vm);
	sleep(2);
}

static struct kvm_vm *create_vm(struct control c, struct kvm_vcpu **vcpu)
{
	struct kvm_vm *vm;

	asked = c;
	vm_open_hook = enable_asked;
	vm = vm_create_with_one_vcpu(vcpu, guest_main);
	vm_open_hook = NULL;
	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS_HUGETLB_2MB, DATA_GPA, DATA_SLOT,
				    NR_PAGES, 0);
	virt_map_level(vm, DATA_GPA, DATA_GPA, NR_PAGES * PAGE_SIZE, PG_LEVEL_2M);
	return vm;
}

/* A vCPU that comes while pages are logged.  By PML it would exit once for 512 pages. */
static void check_late_vcpu(struct kvm_vm *vm, bool manual)
{
	struct kvm_vcpu *vcpu = vm_vcpu_add(vm, 1, guest_main);
	u64 exits = 0;

	write_guest_global(vm, stride, 1ull);
	for (int i = 0; i < 2; i++) {
		exits = read_vcpu_stat(vcpu, "exits");
		vcpu_run_to_sync(vcpu, NULL);
		exits = read_vcpu_stat(vcpu, "exits") - exits;
		check_log(vm, 1, manual);
	}
	TEST_ASSERT(!pml || exits < NR_PAGES / PAGES_PER_2M, "%lu exits for %lu pages", exits,
		    (u64)NR_PAGES);
}

/* @manual: splitting is left to CLEAR.  @turn_off: the host changes its mind before. */
static void check_vm(struct control c, bool manual, bool turn_off)
{
	bool splits = c.eager != KVM_X86_EAGER_SPLIT_OFF && host_eager && !turn_off;
	u64 nr_2m, holds, at_least, faults;
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm = create_vm(c, &vcpu);

	enable(vm, opposite(c), 0, EBUSY);
	if (manual)
		vm_enable_manual_protect(vm, true);
	vcpu_run_to_sync(vcpu, NULL);

	if (turn_off)
		setting_set(PARAM_EAGER, "N");
	nr_2m = vm_get_stat(vm, pages_2m);
	holds = sum_stat(&vm->stats, "dirty_log_hold_hist");
	vm_mem_region_set_flags(vm, DATA_SLOT, KVM_MEM_LOG_DIRTY_PAGES);
	if (manual)
		check_log(vm, 1, true);
	nr_2m -= vm_get_stat(vm, pages_2m);
	holds = sum_stat(&vm->stats, "dirty_log_hold_hist") - holds;
	if (turn_off)
		setting_set(PARAM_EAGER, "Y");

	TEST_ASSERT(nr_2m == (splits ? NR_HUGE : 0), "%lu, %lu, %lu, manual %d: %lu pages split",
		    c.eager, c.chunk, c.method, manual, nr_2m);
	at_least = c.chunk ? nr_2m * PAGES_PER_2M / c.chunk : 0;
	TEST_ASSERT(!splits || (holds >= at_least && holds < at_least + NR_HUGE / 2),
		    "%lu 2MiB pages were split in %lu holds of mmu_lock, with a chunk of %lu",
		    nr_2m, holds, c.chunk);
	TEST_ASSERT_EQ(vm_get_stat(vm, dirty_harvest), expected_harvest(c.method));

	/* All pages are small after the first round; the second one writes to fewer of them. */
	write_guest_global(vm, stride, STRIDE);
	vcpu_run_to_sync(vcpu, NULL);
	check_log(vm, STRIDE, manual);
	if (c.method == KVM_X86_DIRTY_LOG_DIRTY_BITS)
		ask_in_another_vm();
	write_guest_global(vm, stride, STRIDE * STRIDE);
	faults = nr_faults(vcpu);
	vcpu_run_to_sync(vcpu, NULL);
	check_log(vm, STRIDE * STRIDE, manual);
	TEST_ASSERT(c.method != KVM_X86_DIRTY_LOG_WRPROT || nr_faults(vcpu) > faults,
		    "no page was write-protected");
	if (c.method == KVM_X86_DIRTY_LOG_DIRTY_BITS)
		check_late_vcpu(vm, manual);
	kvm_vm_free(vm);
}

static void check_vms(void)
{
	struct control c;

	for (int i = 0; i < 12; i++) {
		c = (struct control){ .eager = i % 3, .chunk = i / 3 % 2 * UNIT };
		if (is_allowed(c))
			check_vm(c, i / 6, false);
	}
	for (int i = 1; i <= KVM_X86_DIRTY_LOG_AUTO; i++) {
		c = (struct control){ .method = i, .chunk = 2 * UNIT };
		if (is_allowed(c))
			check_vm(c, i % 2, false);
	}
	for (int i = 0; i < 2 && host_eager; i++)
		check_vm((struct control){ .eager = KVM_X86_EAGER_SPLIT_ON }, i, true);
}

int main(int argc, char *argv[])
{
	static const char * const methods[] = { "off", "vm", "auto", "on" };
	struct kvm_vm *vm;

	parse_test_options(argc, argv, NULL, NULL);
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_X86_DIRTY_LOG_CONTROL));
	TEST_REQUIRE(setting_exists(PARAM_EAGER) && setting_exists(PARAM_HARVEST));
	__TEST_REQUIRE(nr_free_2m_pages() >= NR_HUGE, "too few 2MiB HugeTLB pages are free");

	ksft_print_header();
	ksft_set_plan(2 * ARRAY_SIZE(methods) + 2);
	pml = host_cpu_is_intel && get_kvm_intel_param_bool("pml");
	setting_set(PARAM_HARVEST, "on");
	vm = vm_create_barebones();
	/* PML needs Dirty bits. */
	dirty_bits = pml || vm_get_stat(vm, dirty_harvest);
	kvm_vm_free(vm);

	for (int i = 0; i < ARRAY_SIZE(methods) * 2; i++) {
		set_host(i % 2, methods[i / 2]);
		check_values();
		ksft_test_result_pass("values, eager_page_split=%d, dirty_harvest=%s\n", host_eager,
				      host_method);
	}
	check_too_late();
	check_ring();
	check_small_ring();
	ksft_test_result_pass("too late, dirty ring\n");
	for (int i = 0; i < 2; i++) {
		set_host(i, i ? "vm" : "off");
		check_vms();
	}
	ksft_test_result_pass("VMs\n");
	ksft_finished();
}
