// SPDX-License-Identifier: GPL-2.0-only
/*
 * The VM, the guest, the log, and main() of the tests of eager_split_fault.h.
 */
#include "eager_split_fault.h"

/* Code, stack and page tables, at the lowest addresses. */
#define LOW_PAGES		1024
#define CODE_MAX		64

/*
 * Which pages the guest writes while they are logged, and which it touches
 * through the alias.
 */
#define WRITE_STEP		31u
#define WRITE_FIRST		3u
#define ALIAS_STEP		8u

u64 max_tries = UINT_MAX;

const struct variant variants[NR_VARIANTS] = {
	{ .name = "enable", .dirty_bits = "on" },
	{ .name = "clear", .clear = true, .dirty_bits = "off" },
	{ .name = "enable, aliased", .aliased = true, .dirty_bits = "off" },
	{ .name = "clear, aliased", .clear = true, .aliased = true, .dirty_bits = "on" },
};

bool applies(const struct variant *v)
{
	return !v->aliased || !kvm_is_tdp_enabled();
}

/*
 * In: RDI is the first address, RSI the distance to the next one, RCX the
 * number of writes, RAX the first value, and RDX the increment of the value.
 * To load a program as the library does would take much longer.
 */
static void __attribute__((naked)) guest_code(void)
{
	asm volatile("1: mov %rax, (%rdi)\n\t"
		     "add %rdx, %rax\n\t"
		     "add %rsi, %rdi\n\t"
		     "dec %rcx\n\t"
		     "jnz 1b\n\t"
		     "hlt");
}

/* Write one page in @step, from @first on, through addresses that begin at @gva. */
void vcpu_write(struct fault_test *t, struct kvm_vcpu *vcpu, u64 gva, u64 first,
		u64 step, u64 value)
{
	struct kvm_regs regs = {
		.rip = CODE_GVA,
		.rdi = gva + first * PAGE_SIZE,
		.rsi = step * PAGE_SIZE,
		.rcx = DIV_ROUND_UP(t->npages - first, step),
		.rax = value + first,
		.rdx = step,
		.rflags = X86_EFLAGS_FIXED,
	};

	vcpu_regs_set(vcpu, &regs);
	vcpu_run(vcpu);
	vcpu_regs_get(vcpu, &regs);
	CHECK(t, vcpu->run->exit_reason == KVM_EXIT_HLT && !regs.rcx,
	      "the guest ended, exit reason %s, at 0x%llx",
	      exit_reason_str(vcpu->run->exit_reason), regs.rdi);
}

static bool is_written(u64 page)
{
	return page % WRITE_STEP == WRITE_FIRST;
}

void touch_all(struct fault_test *t)
{
	u64 step = t->same_memory ? PAGES_PER_2M : 1;

	if (t->v->aliased)
		vcpu_write(t, t->vcpu, ALIAS_GVA, 0, max_t(u64, step, ALIAS_STEP), TOUCH_VALUE);
	vcpu_write(t, t->vcpu, DATA_GVA, 0, step, TOUCH_VALUE);
}

static void check_memory(struct fault_test *t)
{
	u64 seen, expected;

	for (u64 page = 0; page < t->npages; page++) {
		expected = (is_written(page) ? WRITE_VALUE : TOUCH_VALUE) + page;
		seen = READ_ONCE(*(u64 *)(t->hva + page * PAGE_SIZE));
		CHECK(t, seen == expected, "page %lu: expected 0x%lx in memory, seen 0x%lx",
		      page, expected, seen);
	}
}

struct split_stats get_stats(struct kvm_vm *vm)
{
	return (struct split_stats){
		.huge = vm_get_stat_or_absent(vm, "pages_2m"),
		.done = vm_get_stat_or_absent(vm, "eager_split_done"),
		.nomem = vm_get_stat_or_absent(vm, "eager_split_nomem"),
		.noquota = vm_get_stat_or_absent(vm, "eager_split_noquota"),
	};
}

static void map_data(struct fault_test *t)
{
	size_t size = t->npages * PAGE_SIZE;

	vm_userspace_mem_region_add(t->vm, t->same_memory ? VM_MEM_SRC_ANONYMOUS_THP :
				    VM_MEM_SRC_ANONYMOUS_HUGETLB_2MB, DATA_GPA, DATA_SLOT,
				    t->npages, 0);
	t->hva = addr_gpa2hva(t->vm, DATA_GPA);
	if (t->same_memory)
		map_one_2m_page(t->hva, size);
	virt_map_level(t->vm, DATA_GVA, DATA_GPA, size, PG_LEVEL_2M);
	if (t->v->aliased)
		virt_map_level(t->vm, ALIAS_GVA, DATA_GPA, size, PG_LEVEL_4K);
}

static void map_code(struct fault_test *t)
{
	gpa_t gpa;

	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, 0, 0, LOW_PAGES, 0);
	virt_pgd_alloc(t->vm);
	gpa = vm_phy_page_alloc(t->vm, CODE_GVA, 0);
	memcpy(addr_gpa2hva(t->vm, gpa), guest_code, CODE_MAX);
	virt_map(t->vm, CODE_GVA, gpa, 1);
}

void fault_create_vm(struct fault_test *t, unsigned long quota)
{
	t->npages = t->nr_huge * PAGES_PER_2M;
	t->vm = vm_create_barebones();
	if (t->v->clear)
		vm_enable_manual_protect(t->vm, true);
	if (quota)
		vm_set_nr_mmu_pages(t->vm, quota);
	map_code(t);
	map_data(t);
	t->vcpu = vm_vcpu_add(t->vm, 0, (void *)CODE_GVA);
	touch_all(t);
	CHECK(t, vm_get_stat(t->vm, pages_2m) == t->nr_huge,
	      "touched: expected %lu huge pages, seen %lu", t->nr_huge,
	      vm_get_stat(t->vm, pages_2m));
}

/* The log */

int set_logging(struct fault_test *t, bool on)
{
	return __vm_set_user_memory_region(t->vm, DATA_SLOT, on ? KVM_MEM_LOG_DIRTY_PAGES : 0,
					   DATA_GPA, t->npages * PAGE_SIZE, t->hva);
}

/*
 * CLEAR tries to split a huge page once per word of the log.  Clear one word of
 * each huge page, for one attempt.
 */
static bool is_cleared(u64 page)
{
	return page % PAGES_PER_2M < BITS_PER_WORD;
}

int clear_log(struct fault_test *t)
{
	struct kvm_clear_dirty_log args = {
		.slot = DATA_SLOT,
		.num_pages = t->npages,
		.dirty_bitmap = t->log,
	};

	return __vm_ioctl(t->vm, KVM_CLEAR_DIRTY_LOG, &args);
}

static void check_log(struct fault_test *t)
{
	bool seen, expected;

	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, t->log);
	for (u64 page = 0; page < t->npages; page++) {
		seen = test_bit(page, t->log);
		expected = is_written(page) || (t->v->clear && !is_cleared(page));
		CHECK(t, seen == expected, "page %lu: expected %s, seen %s", page,
		      expected ? "dirty" : "clean", seen ? "dirty" : "clean");
	}
}

void before_split(struct fault_test *t)
{
	if (t->v->clear)
		CHECK(t, !set_logging(t, true), "enabling failed, errno %d", errno);
}

int split(struct fault_test *t)
{
	if (!t->v->clear)
		return set_logging(t, true);

	bitmap_zero(t->log, t->npages);
	for (u64 page = 0; page < t->npages; page++)
		if (is_cleared(page))
			__set_bit(page, t->log);
	return clear_log(t);
}

void check_sum(struct fault_test *t, const struct split_stats *s)
{
	CHECK(t, s->done + s->huge == t->nr_huge,
	      "of %lu huge pages, %lu were split and %lu are left", t->nr_huge, s->done, s->huge);
}

void check_afterwards(struct fault_test *t)
{
	/* If there is an alias, write every other of these pages through it. */
	vcpu_write(t, t->vcpu, DATA_GVA, WRITE_FIRST, WRITE_STEP, WRITE_VALUE);
	if (t->v->aliased)
		vcpu_write(t, t->vcpu, ALIAS_GVA, WRITE_FIRST, 2 * WRITE_STEP, WRITE_VALUE);
	CHECK(t, !vm_get_stat(t->vm, pages_2m),
	      "every huge page was written: expected none, seen %lu", vm_get_stat(t->vm, pages_2m));
	check_log(t);
	check_memory(t);
}

/* The command line */

static const char *run_part(unsigned int row)
{
	const struct part *part = &parts[row];
	static char too_few[64];

	if (!part->any_mmu && is_tdp_mmu())
		return "the TDP MMU is on, whose splitter has no statistics";

	snprintf(too_few, sizeof(too_few), "fewer than %u huge pages are free", part->nr_huge);
	return nr_free_2m_pages() < part->nr_huge ? too_few : part->run();
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

	parse_test_options(argc, argv, options, NULL);
	ksft_print_header();
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	TEST_REQUIRE(get_kvm_param_bool("eager_page_split"));
	__TEST_REQUIRE(new_vm_get_stat("eager_split_noquota") != STAT_ABSENT,
		       "The kernel has no statistics of eager page splitting");
	return finish(run_chosen(&chosen, run_part) == choice_count(&chosen));
}
