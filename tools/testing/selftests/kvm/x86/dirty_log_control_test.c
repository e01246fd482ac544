// SPDX-License-Identifier: GPL-2.0-only
/*
 * Per-VM settings: KVM_CAP_EAGER_SPLIT_CHUNK_SIZE and KVM_CAP_X86_DIRTY_BITS
 *
 * The test enables both capabilities with valid and with invalid arguments, for
 * all values of kvm.eager_page_split and kvm.dirty_bits, while KVM allows it
 * and when it is too late.  The errors must be those that api.rst documents.
 * What KVM reports must be what the last successful call has set.
 *
 * Then it logs VMs with these settings.  KVM must split huge pages, hold
 * mmu_lock as often, and take page faults or VM exits as the settings say, and
 * the log must be exact.
 *
 * It needs both parameters writable, and 16 free 2MiB HugeTLB pages.
 *
 * Limits: the guest has only 32MiB, so the test never reaches the end of a
 * chunk of 1GiB.
 */
#include "eager_split_util.h"

#define DATA_SLOT	10
#define DATA_GPA	0x40000000ull
#define NR_HUGE		16u
#define NR_PAGES	(NR_HUGE * PAGES_PER_2M)
#define STRIDE		3ul
/* PML's log has 512 entries, and the vCPU exits when it is full. */
#define PML_EXITS	(NR_PAGES / 512)
#define MAX_LATE_ROUNDS	16
#define SMM_SLOT	BIT(16)
#define TSS_ADDR	0xfffbd000ul
#define IDENTITY_ADDR	0xfffbc000ull

/* The test does not enable the capability. */
#define NOT_SET		(~0ull)
#define DEFAULT_CHUNK	SZ_1G

/* args[0] of KVM_CAP_EAGER_SPLIT_CHUNK_SIZE, and of KVM_CAP_X86_DIRTY_BITS. */
struct control {
	u64 chunk;
	u64 bits;
};

static const struct control none = { NOT_SET, NOT_SET };

/* The values of kvm.dirty_bits. */
static const char * const methods[] = { "off", "auto", "on" };

/* Do the host's CPUs log writes (PML), and do SPTEs have Dirty bits? */
static bool pml, has_dirty_bits;

/* The values of the host's parameters. */
static bool host_eager;
static const char *host_method;

static u8 smm_page[SZ_4K] __aligned(SZ_4K);

/* What enable_asked() enables. */
static struct control asked;

/*
 * The guest writes to every page whose number is a multiple of this.  The host
 * sets it while the vCPU is stopped.
 */
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
	setting_set(PARAM_DIRTY_BITS, method);
}

static int chunk_error(u64 chunk)
{
	bool valid = !chunk || chunk == SZ_2M || chunk == SZ_1G;

	return !valid ? EINVAL : chunk && !host_eager ? EPERM : 0;
}

static int bits_error(u64 bits)
{
	int err = strcmp(host_method, "off") ? 0 : EPERM;

	if (!has_dirty_bits)
		err = EOPNOTSUPP;
	if (!bits)
		err = 0;
	if (bits & ~KVM_X86_DIRTY_BITS_ENABLE)
		err = EINVAL;

	return err;
}

static u64 chunk_of(struct control c)
{
	return c.chunk == NOT_SET ? DEFAULT_CHUNK : c.chunk;
}

static bool is_allowed(struct control c)
{
	return (c.chunk == NOT_SET || !chunk_error(c.chunk)) &&
	       (c.bits == NOT_SET || !bits_error(c.bits));
}

static bool expected_dirty_bits(u64 bits)
{
	bool of_host = !strcmp(host_method, "on") ||
		       (!strcmp(host_method, "auto") && !kvm_is_tdp_enabled());

	return bits == NOT_SET ? has_dirty_bits && !pml && of_host : bits;
}

/*
 * Check what KVM reports for the VM and for the host.  What it reports for the
 * host does not depend on parameters.
 */
static void check_reports(struct kvm_vm *vm, u64 chunk, bool dirty_bits)
{
	u64 flags = has_dirty_bits ? KVM_X86_DIRTY_BITS_ENABLE : 0;

	TEST_ASSERT_EQ(vm_check_cap(vm, KVM_CAP_EAGER_SPLIT_CHUNK_SIZE), chunk);
	TEST_ASSERT_EQ(kvm_check_cap(KVM_CAP_EAGER_SPLIT_CHUNK_SIZE), DEFAULT_CHUNK);
	TEST_ASSERT_EQ(vm_check_cap(vm, KVM_CAP_SUPPORTED_BLOCK_SIZES), SZ_2M | SZ_1G);
	TEST_ASSERT_EQ(kvm_check_cap(KVM_CAP_SUPPORTED_BLOCK_SIZES), SZ_2M | SZ_1G);
	TEST_ASSERT_EQ(vm_check_cap(vm, KVM_CAP_X86_DIRTY_BITS), flags);
	TEST_ASSERT_EQ(kvm_check_cap(KVM_CAP_X86_DIRTY_BITS), flags);
	TEST_ASSERT_EQ(vm_get_stat(vm, dirty_bits), dirty_bits);
}

static void enable(struct kvm_vm *vm, struct kvm_enable_cap cap, int expected)
{
	int err = __vm_ioctl(vm, KVM_ENABLE_CAP, &cap) ? errno : 0;

	TEST_ASSERT(err == expected, "%s: %llx, %llx, %llx, %llx, flags %u: expected %d, seen %d",
		    cap.cap == KVM_CAP_X86_DIRTY_BITS ? "Dirty bits" : "chunk", cap.args[0],
		    cap.args[1], cap.args[2], cap.args[3], cap.flags, expected, err);
}

static void enable_chunk(struct kvm_vm *vm, u64 chunk, int expected)
{
	struct kvm_enable_cap cap = { .cap = KVM_CAP_EAGER_SPLIT_CHUNK_SIZE, .args = { chunk } };

	enable(vm, cap, expected);
	cap.flags = 1;
	enable(vm, cap, EINVAL);
}

static void enable_bits(struct kvm_vm *vm, u64 bits, int expected)
{
	struct kvm_enable_cap cap = { .cap = KVM_CAP_X86_DIRTY_BITS, .args = { bits } };

	enable(vm, cap, expected);
	/* Each invalid call sets the opposite, which must not take effect. */
	cap.args[0] ^= KVM_X86_DIRTY_BITS_ENABLE;
	cap.flags = 1;
	enable(vm, cap, EINVAL);
	cap.flags = 0;
	for (int i = 1; i < ARRAY_SIZE(cap.args); i++) {
		cap.args[i] = 1ull << 32;
		enable(vm, cap, EINVAL);
		cap.args[i] = 0;
	}
	cap.args[0] |= KVM_X86_DIRTY_BITS_ENABLE << 1;
	enable(vm, cap, EINVAL);
}

/*
 * Enable the opposite first, as far as it is allowed.  The last successful call
 * must win.
 */
static void enable_asked(struct kvm_vm *vm)
{
	u64 chunk = asked.chunk ? 0 : SZ_2M, bits = !asked.bits;

	if (asked.chunk != NOT_SET) {
		enable_chunk(vm, chunk, chunk_error(chunk));
		enable_chunk(vm, asked.chunk, 0);
	}
	enable_chunk(vm, SZ_4M, EINVAL);
	if (asked.bits != NOT_SET) {
		enable_bits(vm, bits, bits_error(bits));
		enable_bits(vm, asked.bits, 0);
	}
}

static void check_values(void)
{
	static const u64 chunks[] = { 0, 1, SZ_4K, SZ_2M - 1, SZ_2M, SZ_2M + 1, 0, SZ_4M, SZ_1G,
				      SZ_2M | SZ_1G, SZ_2M, SZ_1G + 1, SZ_2G, 1ull << 32, 0,
				      1ull << 32 | SZ_2M, 1ull << 63, ~0ull };
	static const u64 bits[] = { 0, 1, 2, 3, 0, 1ull << 32 | 1, 1ull << 63, 1, ~0ull };
	struct kvm_vm *vm = vm_create_barebones();
	bool dirty_bits = expected_dirty_bits(NOT_SET);
	u64 chunk = DEFAULT_CHUNK;
	int i;

	check_reports(vm, chunk, dirty_bits);
	for (i = 0; i < ARRAY_SIZE(chunks); i++) {
		enable_chunk(vm, chunks[i], chunk_error(chunks[i]));
		if (!chunk_error(chunks[i]))
			chunk = chunks[i];
		check_reports(vm, chunk, dirty_bits);
	}
	for (i = 0; i < ARRAY_SIZE(bits); i++) {
		enable_bits(vm, bits[i], bits_error(bits[i]));
		if (!bits_error(bits[i]))
			dirty_bits = bits[i];
		check_reports(vm, chunk, dirty_bits);
	}
	kvm_vm_free(vm);
}

/*
 * When the parameters change, a VM keeps its settings, but new settings are
 * subject to the new parameters.
 */
static void check_later(void)
{
	struct kvm_vm *vm;

	set_host(true, "on");
	vm = vm_create_barebones();
	enable_chunk(vm, SZ_2M, 0);
	enable_bits(vm, has_dirty_bits, 0);
	set_host(false, "off");
	check_reports(vm, SZ_2M, has_dirty_bits);
	enable_chunk(vm, SZ_1G, EPERM);
	enable_bits(vm, 1, has_dirty_bits ? EPERM : EOPNOTSUPP);
	check_reports(vm, SZ_2M, has_dirty_bits);
	enable_chunk(vm, 0, 0);
	enable_bits(vm, 0, 0);
	check_reports(vm, 0, false);
	kvm_vm_free(vm);
	ksft_test_result_pass("parameters changed later\n");
}

/* KVM must refuse to change the settings. */
static void enable_too_late(struct kvm_vm *vm)
{
	int expected = bits_error(has_dirty_bits);

	enable_chunk(vm, 0, EINVAL);
	enable_bits(vm, !has_dirty_bits, has_dirty_bits ? EBUSY : EOPNOTSUPP);
	enable_bits(vm, has_dirty_bits, expected ?: EBUSY);
	check_reports(vm, SZ_2M, has_dirty_bits);
}

static void check_too_late(void)
{
	struct kvm_vm *vm;
	u64 addr = IDENTITY_ADDR;

	set_host(true, "on");
	vm = vm_create_barebones();
	/* KVM may create internal memslots for these, which must not count. */
	vm_ioctl(vm, KVM_SET_TSS_ADDR, (void *)TSS_ADDR);
	vm_ioctl(vm, KVM_SET_IDENTITY_MAP_ADDR, &addr);
	enable_chunk(vm, 0, 0);
	enable_bits(vm, 0, 0);
	enable_chunk(vm, SZ_2M, 0);
	enable_bits(vm, has_dirty_bits, 0);

	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, 1, 0);
	enable_too_late(vm);
	vm_mem_region_delete(vm, DATA_SLOT);
	enable_chunk(vm, 0, 0);
	enable_chunk(vm, SZ_2M, 0);
	enable_bits(vm, has_dirty_bits, 0);

	/* A memslot in the other address space. */
	if (vm_check_cap(vm, KVM_CAP_MULTI_ADDRESS_SPACE) > 1) {
		vm_set_user_memory_region(vm, SMM_SLOT, 0, DATA_GPA, SZ_4K, smm_page);
		enable_too_late(vm);
		vm_set_user_memory_region(vm, SMM_SLOT, 0, DATA_GPA, 0, smm_page);
	}

	/* A vCPU makes it too late for Dirty bits, but not for the chunk. */
	__vm_vcpu_add(vm, 0);
	enable_chunk(vm, 0, 0);
	enable_chunk(vm, SZ_2M, 0);
	enable_bits(vm, 0, EBUSY);
	enable_bits(vm, 1, has_dirty_bits ? EBUSY : EOPNOTSUPP);
	check_reports(vm, SZ_2M, has_dirty_bits);
	kvm_vm_free(vm);
}

/*
 * A ring must have room for PML's log, even if the VM has enabled Dirty bits
 * instead of PML, because it may disable them again.
 */
static void check_small_ring(void)
{
	struct kvm_enable_cap cap = { .cap = KVM_CAP_DIRTY_LOG_RING, .args = { PAGE_SIZE } };
	struct kvm_vm *vm = vm_create_barebones();

	enable_bits(vm, has_dirty_bits, 0);
	TEST_ASSERT(!__vm_ioctl(vm, KVM_ENABLE_CAP, &cap) == !pml,
		    "a ring of one page%s", pml ? ", less than PML's log" : " is refused");
	kvm_vm_free(vm);
}

/* The pages of a VM with a ring are write-protected, whatever its settings are. */
static void check_ring(void)
{
	struct kvm_vm *vm = vm_create_barebones();

	vm_enable_dirty_ring(vm, 16 * PAGE_SIZE);
	enable_bits(vm, has_dirty_bits, 0);
	TEST_ASSERT(!vm_get_stat(vm, dirty_bits), "Dirty bits are looked for beside a ring");
	kvm_vm_free(vm);
}

/* The log must contain every @nr-th page, and no page that was not written. */
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

/*
 * KVM has a static key that counts VMs which enable Dirty bits, and changes it
 * at most once a second.  So a wrong count takes effect a second later.  If the
 * count is right, there is no event to wait for.
 */
#define STATIC_KEY_S	2

/* This must not change how the VM under test logs. */
static void enable_in_another_vm(void)
{
	struct kvm_vm *vm = vm_create_barebones();

	for (int i = 0; i < 9; i++) {
		enable_bits(vm, 0, 0);
		enable_bits(vm, 1, 0);
	}
	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, 1, 0);
	for (int i = 0; i < 9; i++)
		enable_bits(vm, 1, EBUSY);
	kvm_vm_free(vm);
	sleep(STATIC_KEY_S);
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

/*
 * A vCPU that is created while pages are logged must log like the others.  With
 * PML, it exits at least once per 512 pages in each round.  Interrupts of the
 * host cause exits, too.  So one round with fewer exits proves that PML is off.
 */
static void check_late_vcpu(struct kvm_vm *vm, struct control c, bool manual)
{
	struct kvm_vcpu *vcpu = vm_vcpu_add(vm, 1, guest_main);
	int most = pml && c.bits ? MAX_LATE_ROUNDS : 2;
	u64 exits = NR_PAGES;

	write_guest_global(vm, stride, 1ull);
	/* In the first round it also exits for page faults. */
	for (int i = 0; i < 2 || (i < most && exits >= PML_EXITS); i++) {
		exits = read_vcpu_stat(vcpu, "exits");
		vcpu_run_to_sync(vcpu, NULL);
		exits = read_vcpu_stat(vcpu, "exits") - exits;
		check_log(vm, 1, manual);
	}
	TEST_ASSERT(!pml || (exits < PML_EXITS) == c.bits,
		    "%lu exits for %lu pages, Dirty bits %lu", exits, NR_PAGES, c.bits);
}

/* Enable logging.  With manual protection, CLEAR splits huge pages. */
static void check_split(struct kvm_vm *vm, struct control c, bool manual, bool splits)
{
	u64 chunk = chunk_of(c), nr_2m, holds, at_least;

	nr_2m = vm_get_stat(vm, pages_2m);
	holds = sum_stat(&vm->stats, "dirty_log_hold_hist");
	vm_mem_region_set_flags(vm, DATA_SLOT, KVM_MEM_LOG_DIRTY_PAGES);
	if (manual)
		check_log(vm, 1, true);
	nr_2m -= vm_get_stat(vm, pages_2m);
	holds = sum_stat(&vm->stats, "dirty_log_hold_hist") - holds;

	TEST_ASSERT(nr_2m == (splits ? NR_HUGE : 0),
		    "chunk %lx, Dirty bits %lx, manual %d: %lu pages split", c.chunk, c.bits,
		    manual, nr_2m);
	at_least = chunk ? nr_2m * SZ_2M / chunk : 0;
	TEST_ASSERT(!splits || (holds >= at_least && holds < at_least + NR_HUGE / 2),
		    "%lu 2MiB pages were split in %lu holds of mmu_lock, with a chunk of %lx",
		    nr_2m, holds, chunk);
}

/* Log two rounds of writes.  KVM write-protects pages if there are faults. */
static void check_writes(struct kvm_vm *vm, struct kvm_vcpu *vcpu, struct control c, bool manual)
{
	u64 faults;

	/* After the first round, all huge pages are split. */
	write_guest_global(vm, stride, STRIDE);
	vcpu_run_to_sync(vcpu, NULL);
	check_log(vm, STRIDE, manual);
	if (c.bits == 1)
		enable_in_another_vm();
	write_guest_global(vm, stride, STRIDE * STRIDE);
	faults = nr_faults(vcpu);
	vcpu_run_to_sync(vcpu, NULL);
	check_log(vm, STRIDE * STRIDE, manual);
	TEST_ASSERT((nr_faults(vcpu) > faults) == (!pml && !expected_dirty_bits(c.bits)),
		    "Dirty bits %lx: %lu faults", c.bits, nr_faults(vcpu) - faults);
}

/* @turn_off: set eager_page_split=N when the VM already has its settings. */
static void check_vm(struct control c, bool manual, bool turn_off)
{
	bool splits = c.chunk && host_eager && !turn_off;
	u64 chunk = chunk_of(c);
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm = create_vm(c, &vcpu);

	enable_chunk(vm, chunk ? 0 : SZ_2M, chunk || host_eager ? EINVAL : EPERM);
	enable_bits(vm, 0, EBUSY);
	check_reports(vm, chunk, expected_dirty_bits(c.bits));
	if (manual)
		vm_enable_manual_protect(vm, true);
	vcpu_run_to_sync(vcpu, NULL);

	if (turn_off)
		setting_set(PARAM_EAGER, "N");
	check_split(vm, c, manual, splits);
	if (turn_off)
		setting_set(PARAM_EAGER, "Y");

	check_writes(vm, vcpu, c, manual);
	if (c.bits != NOT_SET)
		check_late_vcpu(vm, c, manual);
	kvm_vm_free(vm);
}

static void check_bits(void)
{
	struct control c = none;

	for (c.bits = 0; c.bits < 2; c.bits++) {
		/* Once with, once without manual protection. */
		bool manual = c.bits;

		if (is_allowed(c))
			check_vm(c, manual, false);
	}
}

static void check_chunks(void)
{
	static const u64 chunks[] = { NOT_SET, 0, SZ_2M, SZ_1G };
	struct control c = none;

	for (int i = 0; i < ARRAY_SIZE(chunks); i++) {
		c.chunk = chunks[i];
		if (is_allowed(c)) {
			check_vm(c, false, false);
			check_vm(c, true, false);
		}
	}
	if (host_eager) {
		c.chunk = SZ_2M;
		check_vm(c, false, true);
		check_vm(c, true, true);
	}
}

/* All combinations of the host's parameters. */
static void check_all_values(void)
{
	for (int i = 0; i < ARRAY_SIZE(methods); i++) {
		for (int eager = 0; eager < 2; eager++) {
			set_host(eager, methods[i]);
			check_values();
			ksft_test_result_pass("values, eager_page_split=%d, dirty_bits=%s\n",
					      host_eager, host_method);
		}
	}
}

/* Chunks with each value of eager_page_split, and Dirty bits with each of dirty_bits. */
static void check_all_vms(void)
{
	for (int i = 0; i < ARRAY_SIZE(methods); i++) {
		bool eager = i;

		set_host(eager, methods[i]);
		check_bits();
		if (i < 2)
			check_chunks();
		ksft_test_result_pass("VMs, dirty_bits=%s\n", host_method);
	}
}

static void check_all_too_late(void)
{
	check_too_late();
	check_ring();
	check_small_ring();
	ksft_test_result_pass("too late, dirty ring\n");
}

static const struct part {
	const char *name;
	const char *what;
	void (*run)(void);
	unsigned int nr_results;
} parts[] = {
	{ "values", "arguments, for all values of the parameters", check_all_values,
	  2 * ARRAY_SIZE(methods) },
	{ "later", "parameters that change later", check_later, 1 },
	{ "late", "calls that come too late", check_all_too_late, 1 },
	{ "vms", "VMs that are logged", check_all_vms, ARRAY_SIZE(methods) },
};

static struct choice chosen = { parts, sizeof(parts[0]), ARRAY_SIZE(parts) };

int main(int argc, char *argv[])
{
	const struct test_option options[] = {
		{ 'm', "part", "what is checked:", .choice = &chosen },
		{ }
	};
	unsigned int nr_results = 0;

	parse_test_options(argc, argv, options, NULL);
	TEST_REQUIRE(setting_exists(PARAM_EAGER) && setting_exists(PARAM_DIRTY_BITS));
	__TEST_REQUIRE(nr_free_2m_pages() >= NR_HUGE, "too few 2MiB HugeTLB pages are free");

	ksft_print_header();
	for (unsigned int i = 0; i < ARRAY_SIZE(parts); i++)
		if (choice_has(&chosen, i))
			nr_results += parts[i].nr_results;
	ksft_set_plan(nr_results);
	pml = host_cpu_is_intel && get_kvm_intel_param_bool("pml");
	setting_set(PARAM_DIRTY_BITS, "on");
	/* PML needs Dirty bits. */
	has_dirty_bits = pml || new_vm_get_stat("dirty_bits") == 1;

	for (unsigned int i = 0; i < ARRAY_SIZE(parts); i++)
		if (choice_has(&chosen, i))
			parts[i].run();
	ksft_finished();
}
