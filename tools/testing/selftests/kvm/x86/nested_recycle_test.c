// SPDX-License-Identifier: GPL-2.0-only
/*
 * Split a huge page that contains a page with too many SPTEs
 *
 * If a gfn has more than 1000 SPTEs, KVM zaps all of them when it adds another
 * one, and flushes TLBs.  If it does so while it splits a huge page, vCPUs can
 * load the translation again from the huge page, until that is replaced.  Then
 * a vCPU has a translation of a gfn that has no SPTE.  KVM doesn't flush such a
 * translation when it has to write-protect the gfn.
 *
 * L1 maps four huge pages for L2, by 2MiB entries and by 4KiB entries.  It maps
 * one of the pages, the table, by a thousand more entries.  While the host
 * splits the huge pages by KVM_CLEAR_DIRTY_LOG,
 *
 *  - the L2 of one vCPU, the writer, writes to the table all the time, through
 *    the huge page.  It often exits to user space, which looks at the number of
 *    TLB flushes, until KVM has flushed.
 *  - From then on, the L2 of another vCPU, the user, uses an address that the
 *    table translates, so that KVM begins to shadow the table.
 *  - Then the writer changes the table.
 *  - L1 of the user flushes TLBs.  The L2 has to see what the table maps now.
 *
 * The user is on the same CPU as the ioctl, and runs when the ioctl drops
 * mmu_lock between two huge pages.
 *
 * Limits: the writer loses the translation if its CPU is interrupted meanwhile,
 * so there are some tries.  On a machine whose CPUs are threads that compete
 * with others, it may lose it in all of them.
 */
#include <sched.h>
#include <semaphore.h>

#include "eager_split_util.h"
#include "svm_util.h"
#include "vmx.h"

#define NR_TRIES		4

#define DATA_SLOT		10
#define DATA_GPA		SZ_1G
#define NR_HUGE			4ul
#define NR_PAGES		(NR_HUGE * PAGES_PER_2M)

/*
 * The page that becomes a page table.  KVM adds the SPTEs of the pages behind
 * it after it has zapped the SPTEs of this page.
 */
#define TABLE_GPA		(DATA_GPA + 320 * PAGE_SIZE)
#define USED_ENTRY		0
#define EMPTY_ENTRY		511

/* Each page once, and the table another thousand times. */
#define ALIAS_GPA		(2ul * SZ_1G)
#define NR_ALIASES		(NR_PAGES + 1000)
/* What the table translates. */
#define USED_GPA		(ALIAS_GPA + align_up(NR_ALIASES * PAGE_SIZE, SZ_2M))

#define PTES_PER_TABLE		512ul
#define EXTRA_PAGES		64

#define OLD_CONTENT		0x01dul
#define NEW_CONTENT		0x7e3ul

#define WRITES_PER_POLL		1000

enum stage { STAGE_SETUP, STAGE_WRITING, STAGE_SHADOWED, STAGE_CHANGED };

/* What a GUEST_SYNC() says. */
enum message { IS_READY, IS_WRITING, IS_DONE };

/* The guest */

static u64 stage;
static u64 new_entry;
static u64 polling;
static u64 first_seen;
static u64 last_seen;

struct l1 {
	struct svm_test_data *svm;
	struct vmx_pages *vmx;
	bool launched;
};

static void leave_l2(void)
{
	if (host_cpu_is_intel)
		vmcall();
	else
		vmmcall();
}

static void l2_touch(void)
{
	for (u64 i = 0; i < NR_HUGE; i++)
		WRITE_ONCE(*(u64 *)(DATA_GPA + i * SZ_2M), 0);
	for (u64 i = 0; i < NR_ALIASES; i++)
		READ_ONCE(*(u64 *)(ALIAS_GPA + i * PAGE_SIZE));
	leave_l2();
}

static void l2_write(void)
{
	u64 *table = (u64 *)TABLE_GPA;

	/*
	 * In Bochs, interrupts of the host do not cause exits while the guest
	 * has interrupts off.
	 */
	asm volatile("sti" : : : "memory");
	WRITE_ONCE(stage, STAGE_WRITING);
	for (u64 i = 1; READ_ONCE(stage) != STAGE_SHADOWED; i++) {
		WRITE_ONCE(table[EMPTY_ENTRY], 0);
		if (READ_ONCE(polling) && !(i % WRITES_PER_POLL))
			GUEST_SYNC(IS_WRITING);
	}
	WRITE_ONCE(table[USED_ENTRY], new_entry);
	WRITE_ONCE(stage, STAGE_CHANGED);
	leave_l2();
}

static void l2_use(void)
{
	/* Be in L2 already when the use begins. */
	GUEST_SYNC(IS_READY);
	WRITE_ONCE(first_seen, READ_ONCE(*(u64 *)USED_GPA));
	WRITE_ONCE(stage, STAGE_SHADOWED);
	while (READ_ONCE(stage) != STAGE_CHANGED)
		;
	leave_l2();
}

static void l2_use_again(void)
{
	WRITE_ONCE(last_seen, READ_ONCE(*(u64 *)USED_GPA));
	leave_l2();
}

/*
 * The library's run_guest(), vmlaunch() and vmresume() are for one vCPU only, as
 * they keep registers in global variables.  The code that L2 runs does not
 * depend on registers.
 */
static void run_svm_l2(struct svm_test_data *svm, void (*code)(void))
{
	svm->vmcb->save.rip = (u64)code;
	svm->vmcb->save.rsp = (u64)svm->stack;
	svm->vmcb->control.tlb_ctl = TLB_CONTROL_FLUSH_ALL_ASID;
	asm volatile("sub $128, %%rsp\n\t"
		     "push %%rbp\n\t"
		     "vmload %%rax\n\t"
		     "vmrun %%rax\n\t"
		     "vmsave %%rax\n\t"
		     "pop %%rbp\n\t"
		     "add $128, %%rsp"
		     : : "a"(svm->vmcb_gpa)
		     : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10",
		       "r11", "r12", "r13", "r14", "r15", "memory", "cc");
	GUEST_ASSERT_EQ(svm->vmcb->control.exit_code, SVM_EXIT_VMMCALL);
}

/*
 * Return: whether L2 could not be entered.  An exit clears the flags, a failure
 * sets one.
 */
static bool enter_vmx_l2(bool launched)
{
	u64 value = launched;

	asm volatile("sub $128, %%rsp\n\t"
		     "push %%rbp\n\t"
		     "mov %[host_rsp], %%ecx\n\t"
		     "vmwrite %%rsp, %%rcx\n\t"
		     "mov %[host_rip], %%ecx\n\t"
		     "lea 2f(%%rip), %%rdx\n\t"
		     "vmwrite %%rdx, %%rcx\n\t"
		     "test %%eax, %%eax\n\t"
		     "jnz 1f\n\t"
		     "vmlaunch\n\t"
		     "jmp 2f\n"
		     "1:\tvmresume\n"
		     "2:\tpop %%rbp\n\t"
		     "lea 128(%%rsp), %%rsp\n\t"
		     "setna %%al\n\t"
		     "movzbl %%al, %%eax"
		     : "+a"(value)
		     : [host_rsp]"i"(HOST_RSP), [host_rip]"i"(HOST_RIP)
		     : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10",
		       "r11", "r12", "r13", "r14", "r15", "memory", "cc");
	return value;
}

static void run_vmx_l2(struct l1 *l1, void (*code)(void))
{
	guest_invept();
	GUEST_ASSERT(!vmwrite(GUEST_RIP, (u64)code));
	GUEST_ASSERT(!vmwrite(GUEST_RSP, (u64)l1->vmx->stack));
	GUEST_ASSERT(!enter_vmx_l2(l1->launched));
	l1->launched = true;
	GUEST_ASSERT_EQ(vmreadz(VM_EXIT_REASON), EXIT_REASON_VMCALL);
}

/* Flush TLBs, and run the L2 until it leaves. */
static void run_l2(struct l1 *l1, void (*code)(void))
{
	if (l1->svm)
		run_svm_l2(l1->svm, code);
	else
		run_vmx_l2(l1, code);
}

static void prepare_l2(struct l1 *l1, u64 root)
{
	if (l1->svm) {
		generic_svm_setup(l1->svm, leave_l2);
		l1->svm->vmcb->control.misc_ctl = SVM_MISC_ENABLE_NP;
		l1->svm->vmcb->control.nested_cr3 = root;
	} else {
		GUEST_ASSERT(prepare_for_vmx_operation(l1->vmx));
		GUEST_ASSERT(load_vmcs(l1->vmx));
		prepare_vmcs(l1->vmx, leave_l2);
	}
}

static void writer_main(struct svm_test_data *svm, struct vmx_pages *vmx, u64 root)
{
	struct l1 l1 = { svm, vmx };

	prepare_l2(&l1, root);
	run_l2(&l1, l2_touch);
	GUEST_SYNC(IS_READY);
	run_l2(&l1, l2_write);
	GUEST_SYNC(IS_DONE);
}

static void user_main(struct svm_test_data *svm, struct vmx_pages *vmx, u64 root)
{
	struct l1 l1 = { svm, vmx };

	prepare_l2(&l1, root);
	run_l2(&l1, l2_use);
	run_l2(&l1, l2_use_again);
	GUEST_SYNC(IS_DONE);
}

/* The VM */

struct recycle_test {
	struct kvm_vm *vm;
	struct kvm_vcpu *writer;
	struct kvm_vcpu *user;
	/* The page table of L2 in L1: nested CR3, or EPT. */
	u64 root;
	sem_t ready;
	sem_t use;
	u64 nr_flushes;
	bool clearing;
	bool cleared;
};

static u64 table_entry(u64 gpa)
{
	/* Without the bits for Accessed and Dirty, KVM maps less ahead. */
	return gpa | (host_cpu_is_intel ? 7 | BIT_ULL(8) | BIT_ULL(9) :
					  PT_USED_ENTRY | PT_USER_MASK);
}

static u64 page_entry(u64 gpa)
{
	return table_entry(gpa) | (host_cpu_is_intel ? X86_MEMTYPE_WB << 3 : 0);
}

static u64 *new_table(struct recycle_test *t, u64 *entry)
{
	u64 gpa = vm_alloc_page_table(t->vm);

	*entry = table_entry(gpa);
	return addr_gpa2hva(t->vm, gpa);
}

/* Map the first 2GiB one to one, and after that the aliases. */
static void build_tdp(struct recycle_test *t)
{
	int levels = host_cpu_is_intel ? 4 : t->vm->mmu.pgtable_levels;
	u64 root, *pdpt = &root, *pd = NULL, *pt = NULL;

	for (; levels >= PG_LEVEL_1G; levels--)
		pdpt = new_table(t, pdpt);
	t->root = root & PHYSICAL_PAGE_MASK;

	for (u64 gpa = 0; gpa < ALIAS_GPA; gpa += SZ_2M) {
		if (!(gpa % SZ_1G))
			pd = new_table(t, &pdpt[gpa / SZ_1G]);
		pd[gpa % SZ_1G / SZ_2M] = page_entry(gpa) | PT_HUGE_MASK;
	}

	pd = new_table(t, &pdpt[ALIAS_GPA / SZ_1G]);
	for (u64 i = 0; i < NR_ALIASES; i++) {
		if (!(i % PTES_PER_TABLE))
			pt = new_table(t, &pd[i / PTES_PER_TABLE]);
		pt[i % PTES_PER_TABLE] = page_entry(i < NR_PAGES ? DATA_GPA + i * PAGE_SIZE :
								   TABLE_GPA);
	}
	pd[(USED_GPA - ALIAS_GPA) / SZ_2M] = table_entry(TABLE_GPA);
}

static struct kvm_vcpu *add_vcpu(struct recycle_test *t, unsigned int id, void *code)
{
	struct kvm_vcpu *vcpu = vm_vcpu_add(t->vm, id, code);
	gva_t state;

	if (host_cpu_is_intel) {
		vcpu_alloc_vmx(t->vm, &state)->eptp_gpa = t->root;
		vcpu_args_set(vcpu, 3, 0ul, state, t->root);
	} else {
		vcpu_alloc_svm(t->vm, &state);
		vcpu_args_set(vcpu, 3, state, 0ul, t->root);
	}
	return vcpu;
}

static u64 new_page_entry(struct recycle_test *t, u64 content)
{
	gva_t gva = vm_alloc_page(t->vm);

	*(u64 *)addr_gva2hva(t->vm, gva) = content;
	return page_entry(addr_gva2gpa(t->vm, gva));
}

static void create_vm(struct recycle_test *t)
{
	u64 *table;

	t->vm = __vm_create(VM_SHAPE_DEFAULT, 2, EXTRA_PAGES);
	vm_enable_manual_protect(t->vm, true);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS_HUGETLB_2MB, DATA_GPA,
				    DATA_SLOT, NR_PAGES, 0);
	virt_map_level(t->vm, DATA_GPA, DATA_GPA, NR_HUGE * SZ_2M, PG_LEVEL_2M);
	virt_map_level(t->vm, ALIAS_GPA, ALIAS_GPA, USED_GPA + SZ_2M - ALIAS_GPA, PG_LEVEL_2M);
	build_tdp(t);
	t->writer = add_vcpu(t, 0, writer_main);
	t->user = add_vcpu(t, 1, user_main);

	table = addr_gpa2hva(t->vm, TABLE_GPA);
	memset(table, 0, PAGE_SIZE);
	table[USED_ENTRY] = new_page_entry(t, OLD_CONTENT);
	write_guest_global(t->vm, new_entry, new_page_entry(t, NEW_CONTENT));
	write_guest_global(t->vm, stage, STAGE_SETUP);
	write_guest_global(t->vm, polling, 1);
}

/* The host */

static void run_on(int cpu, int policy)
{
	struct sched_param param = {};
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	TEST_ASSERT(!sched_setaffinity(0, sizeof(cpus), &cpus), "CPU %d: errno %d", cpu, errno);
	TEST_ASSERT(!sched_setscheduler(0, policy, &param), "policy %d: errno %d", policy, errno);
}

/*
 * Each vCPU runs in one thread from the start, because KVM_RUN waits for RCU
 * after a change of the thread.
 */
static void *run_user(void *arg)
{
	struct recycle_test *t = arg;

	run_on(0, SCHED_OTHER);
	vcpu_run_to_sync(t->user, NULL);
	sem_post(&t->ready);
	sem_wait(&t->use);
	vcpu_run_to_sync(t->user, NULL);
	return NULL;
}

static bool may_use(struct recycle_test *t)
{
	return READ_ONCE(t->cleared) ||
	       (READ_ONCE(t->clearing) &&
		vm_get_stat(t->vm, remote_tlb_flush_requests) != t->nr_flushes);
}

static void *run_writer(void *arg)
{
	struct recycle_test *t = arg;
	bool used = false;
	struct ucall uc;

	run_on(1, SCHED_OTHER);
	vcpu_run_to_sync(t->writer, NULL);
	sem_post(&t->ready);
	do {
		vcpu_run_to_sync(t->writer, &uc);
		if (!used && may_use(t)) {
			used = true;
			write_guest_global(t->vm, polling, 0);
			sem_post(&t->use);
		}
	} while (uc.args[1] != IS_DONE);
	return NULL;
}

/* Split one huge page after the other, by a CLEAR of one page in each. */
static void clear_log(struct recycle_test *t)
{
	unsigned long log[NR_PAGES / BITS_PER_WORD] = {};

	for (u64 page = 0; page < NR_PAGES; page += PAGES_PER_2M)
		set_bit(page, log);
	vm_mem_region_set_flags(t->vm, DATA_SLOT, KVM_MEM_LOG_DIRTY_PAGES);
	t->nr_flushes = vm_get_stat(t->vm, remote_tlb_flush_requests);
	WRITE_ONCE(t->clearing, true);
	kvm_vm_clear_dirty_log(t->vm, DATA_SLOT, log, 0, NR_PAGES);
	WRITE_ONCE(t->cleared, true);
}

static void run_try(unsigned int try)
{
	struct recycle_test t = {};
	pthread_t writer, user;
	u64 *guest_stage;

	sem_init(&t.ready, 0, 0);
	sem_init(&t.use, 0, 0);
	create_vm(&t);
	guest_stage = addr_gva2hva(t.vm, (u64)&stage);
	start_thread(&user, run_user, &t);
	sem_wait(&t.ready);
	start_thread(&writer, run_writer, &t);
	sem_wait(&t.ready);
	TEST_ASSERT(vm_get_stat(t.vm, pages_2m) >= NR_HUGE &&
		    vm_get_stat(t.vm, pages_4k) >= NR_ALIASES, "too few pages are mapped");
	while (READ_ONCE(*guest_stage) != STAGE_WRITING)
		sched_yield();
	clear_log(&t);
	pthread_join(user, NULL);
	pthread_join(writer, NULL);
	sync_global_from_guest(t.vm, first_seen);
	sync_global_from_guest(t.vm, last_seen);
	TEST_ASSERT_EQ(first_seen, OLD_CONTENT);
	TEST_ASSERT(last_seen == NEW_CONTENT,
		    "try %u: KVM has missed a write to a page table that it shadows", try);
	kvm_vm_free(t.vm);
	sem_destroy(&t.ready);
	sem_destroy(&t.use);
}

static bool has_nested_tdp(void)
{
	return kvm_cpu_has(X86_FEATURE_SVM) ? kvm_cpu_has(X86_FEATURE_NPT) :
	       kvm_cpu_has(X86_FEATURE_VMX) && kvm_cpu_has_ept();
}

int main(void)
{
	ksft_print_header();
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	__TEST_REQUIRE(has_nested_tdp(), "no nested NPT or EPT");
	__TEST_REQUIRE(nr_free_2m_pages() >= NR_HUGE, "Too few huge pages are free");
	__TEST_REQUIRE(sysconf(_SC_NPROCESSORS_ONLN) > 1, "There is only one CPU");
	ksft_set_plan(1);
	/* The thread of the user preempts this one. */
	run_on(0, SCHED_IDLE);
	for (unsigned int try = 0; try < NR_TRIES; try++)
		run_try(try);
	ksft_test_result_pass("all writes to the page table were seen\n");
	ksft_finished();
}
