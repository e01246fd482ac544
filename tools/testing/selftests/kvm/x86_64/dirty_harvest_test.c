// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging by Dirty bits: nothing leaves unseen
 *
 * With kvm.dirty_harvest, KVM doesn't notice when a page is written: the CPU sets
 * the Dirty bit of the SPTE, and KVM_GET_DIRTY_LOG looks for it.  Whatever takes
 * an SPTE or its Dirty bit away in between has to move it into the log.
 *
 * For each way in which that happens: begin with an empty log, let the guest write
 * to some pages, check that KVM took no fault and so wasn't told, let it happen,
 * and then the log has to have exactly these pages, and after KVM_CLEAR_DIRTY_LOG
 * none.  All of it is done by an L1 guest and by an L2 guest (SVM or VMX), with and
 * without manual protection.
 *
 * An L1 may have its EPT do without Accessed and Dirty bits.  What KVM maps for the
 * L2 of such an L1 ("L2-noAD") has none either, and stays write-protected: check
 * that there was a fault for each page that was written.  L1 uses some of the pages
 * as well, so that one gfn may have an SPTE with a Dirty bit and one without.
 *
 * "tlb" has a vCPU write to a page without ever leaving the guest: once the page
 * is taken out of the log, the next write has to show, though the vCPU has the
 * translation cached.  "storm" does what live migration does: vCPUs write, while
 * pages that are in the log are copied; whenever they stop, every page that
 * differs from its copy has to be in the log.
 *
 * The log may have more than what was written in one case: a guest that turns a
 * read-only entry of its page tables into a writable one has its page logged when
 * KVM synchronizes the entry, as with write protection ("regrant").
 *
 * Limits: races are only hit by chance ("tlb", "storm").  NX recovery never takes
 * away what is logged.  An L1's huge pages map nothing that is logged.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <linux/bitmap.h>
#include <linux/mman.h>
#include <linux/sizes.h>
#include <asm/msr-index.h>

#include "kvm_util.h"
#include "processor.h"
#include "svm_util.h"
#include "test_util.h"
#include "eager_split_util.h"
#include "vmx.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE		25
#endif

/* The memory that is logged: a 2MiB page, and some more. */
#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define MOVED_GPA		0x60000000ull
#define NR_PAGES		589u
#define DATA_SIZE		((size_t)NR_PAGES * PAGE_SIZE)
#define LOG_WORDS		DIV_ROUND_UP(NR_PAGES, 64)
#define LOG_BYTES		(LOG_WORDS * sizeof(unsigned long))

/* Memory for a page table of the guest to point to, instead. */
#define OTHER_SLOT		11
#define OTHER_GPA		0x50000000ull

/* Memory that uses up shadow pages: one page in each 2MiB is touched. */
#define BALLAST_SLOT		12
#define BALLAST_GPA		0x10000000ull
#define BALLAST_PAGES		96u
#define MAX_MMU_PAGES		2000ul
#define EXTRA_PAGES		512

/* Where L1 sees the tables that map the data, and the one above. */
#define TABLE_GVA		0x80000000ull
#define UPPER_GVA		0x80100000ull
#define NR_TABLES		2u
#define PTES_PER_TABLE		512u
#define TDP_GIBS		2u

#define VMMCALL_BYTES		3

/* Of an EPT pointer, and the operand of INVEPT that says all of them. */
#define EPTP_WRITE_BACK		X86_MEMTYPE_WB
#define EPTP_4_LEVELS		(3ull << 3)
#define EPTP_AD			BIT_ULL(6)
#define INVEPT_GLOBAL		2ull

#define RING_BYTES		SZ_64K

#define DEFAULT_ROUNDS		1000u
#define TLB_ROUNDS_PER		4u
#define NOISE_EVERY		50u
#define TLB_TIMEOUT_NS		(10ull * NSEC_PER_SEC)
#define NR_STORM_VCPUS		2u
#define NR_STORM_PAGES		16u
#define STORM_ROUNDS		25u
#define STORM_WRITES		64u

/*
 * The guest
 */

enum guest_op { OP_WRITE, OP_EXPECT, OP_INVLPG, OP_INVEPT, OP_CR3, OP_SPIN };

struct guest_order {
	u64 op;
	u64 addr;
	u64 value;
};

#define MAX_ORDERS		2048u

static struct guest_order orders[MAX_ORDERS];
static u64 nr_orders;
static u64 by_l2;

/* What maps the memory of L2: nested CR3, EPT pointer, or CR3 if L1 uses neither. */
static u64 l2_root;

/* Ends OP_SPIN and storms. */
static u64 stop;

/*
 * Bochs lets no interrupt of the host end the run of a guest that has interrupts off.
 * The guest itself never gets any.
 */
static void guest_may_be_interrupted(bool may)
{
	if (may)
		asm volatile("sti" : : : "memory");
	else
		asm volatile("cli" : : : "memory");
}

static void guest_spin(u64 addr)
{
	u64 n = 0;

	guest_may_be_interrupted(true);
	while (!READ_ONCE(stop))
		WRITE_ONCE(*(u64 *)addr, ++n);
	guest_may_be_interrupted(false);
}

/* L1 has changed an EPT. */
static void guest_invept(void)
{
	u64 descriptor[2] = {};
	u8 failed;

	asm volatile("invept %1, %2; setna %0"
		     : "=qm"(failed)
		     : "m"(descriptor), "r"(INVEPT_GLOBAL)
		     : "cc", "memory");
	GUEST_ASSERT(!failed);
}

static void guest_obey(struct guest_order *o)
{
	if (o->op == OP_WRITE)
		WRITE_ONCE(*(u64 *)o->addr, o->value);
	else if (o->op == OP_EXPECT)
		GUEST_ASSERT_EQ(READ_ONCE(*(u64 *)o->addr), o->value);
	else if (o->op == OP_INVLPG)
		asm volatile("invlpg (%0)" : : "r"(o->addr) : "memory");
	else if (o->op == OP_INVEPT)
		guest_invept();
	else if (o->op == OP_CR3)
		asm volatile("mov %0, %%cr3" : : "r"(o->addr) : "memory");
	else
		guest_spin(o->addr);
}

static void guest_obey_all(void)
{
	u64 i;

	for (i = 0; i < READ_ONCE(nr_orders); i++)
		guest_obey(&orders[i]);
}

static u8 l2_stack[SZ_4K] __aligned(16);

#define L2_STACK_TOP (l2_stack + sizeof(l2_stack) - sizeof(u64))

static void l2_main(void)
{
	for (;;) {
		guest_obey_all();
		if (host_cpu_is_intel)
			vmcall();
		else
			vmmcall();
	}
}

static void guest_run_svm_l2(struct svm_test_data *svm)
{
	struct vmcb *vmcb = svm->vmcb;

	if (vmcb->control.nested_ctl & SVM_NESTED_CTL_NP_ENABLE)
		vmcb->control.nested_cr3 = READ_ONCE(l2_root);
	else
		vmcb->save.cr3 = READ_ONCE(l2_root);

	run_guest(vmcb, svm->vmcb_gpa);
	GUEST_ASSERT_EQ(vmcb->control.exit_code, SVM_EXIT_VMMCALL);
	vmcb->save.rip += VMMCALL_BYTES;
}

static void guest_run_vmx_l2(struct vmx_pages *vmx)
{
	static bool launched;

	GUEST_ASSERT(!vmwrite(vmx->eptp_gpa ? EPT_POINTER : GUEST_CR3, READ_ONCE(l2_root)));
	GUEST_ASSERT(!(launched ? vmresume() : vmlaunch()));
	launched = true;
	GUEST_ASSERT_EQ(vmreadz(VM_EXIT_REASON), EXIT_REASON_VMCALL);
	vmwrite(GUEST_RIP, vmreadz(GUEST_RIP) + vmreadz(VM_EXIT_INSTRUCTION_LEN));
}

static void guest_create_svm_l2(struct svm_test_data *svm, bool npt)
{
	generic_svm_setup(svm, l2_main, L2_STACK_TOP);
	svm->vmcb->control.nested_ctl = npt ? SVM_NESTED_CTL_NP_ENABLE : 0;
}

static void guest_create_vmx_l2(struct vmx_pages *vmx)
{
	GUEST_ASSERT(prepare_for_vmx_operation(vmx));
	GUEST_ASSERT(load_vmcs(vmx));
	prepare_vmcs(vmx, l2_main, L2_STACK_TOP);
}

/* With one of @svm and @vmx if there is an L2. */
static void guest_main(struct svm_test_data *svm, struct vmx_pages *vmx, u64 npt)
{
	if (svm)
		guest_create_svm_l2(svm, npt);
	if (vmx)
		guest_create_vmx_l2(vmx);

	for (;;) {
		GUEST_SYNC(0);
		if (!READ_ONCE(by_l2))
			guest_obey_all();
		else if (svm)
			guest_run_svm_l2(svm);
		else
			guest_run_vmx_l2(vmx);
	}
}

/* How many writes each vCPU of a storm has made. */
static u64 progress[NR_STORM_VCPUS];

/* Random pages, half of the time one of a few, whose translations stay cached. */
static u64 storm_page(u64 random)
{
	return random % 2 ? random / 2 % NR_STORM_PAGES : random / 2 % NR_PAGES;
}

/* Write to pages at random, until told to stop. */
static void guest_storm(u64 id, u64 seed)
{
	u64 n = 0;

	guest_may_be_interrupted(true);
	for (;;) {
		while (!READ_ONCE(stop)) {
			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			WRITE_ONCE(*(u64 *)(DATA_GPA + storm_page(seed >> 33) * PAGE_SIZE), ++n);
			WRITE_ONCE(progress[id], n);
		}
		GUEST_SYNC(0);
	}
}

/*
 * Parameters, which get their old values back on every way out
 */

enum setting_id { HARVEST, NX_HUGE_PAGES, NR_SETTINGS };

static struct setting settings[NR_SETTINGS] = {
	[HARVEST] = { PARAM_HARVEST },
	[NX_HUGE_PAGES] = { PARAM_NX },
};

static const struct setting *harvest_param = &settings[HARVEST];
static const struct setting *nx_param = &settings[NX_HUGE_PAGES];

static bool is_writable(const struct setting *s)
{
	return s->saved && write_file(s->path, s->value);
}

static void save_params(void)
{
	settings_save(settings, NR_SETTINGS);
	__TEST_REQUIRE(is_writable(harvest_param), "Can't write %s", harvest_param->path);
}

/*
 * A test
 */

/*
 * What differs between entries of page tables, NPT included, and of an EPT.  The bits
 * Present, Writable and User of the former are Read, Write and Execute of the latter.
 */
struct entry_bits {
	/* Of each entry that maps a page. */
	u64 leaf;
	u64 accessed;
	u64 dirty;
};

static const struct entry_bits x86_bits = {
	.accessed = PTE_ACCESSED_MASK,
	.dirty = PTE_DIRTY_MASK,
};

static const struct entry_bits ept_bits = {
	.leaf = X86_MEMTYPE_WB << 3,
	.accessed = BIT_ULL(8),
	.dirty = BIT_ULL(9),
};

/* Who writes. */
struct writer {
	const char *name;
	const char *what;
	bool nested;

	/* L1's EPT has no Accessed and Dirty bits. */
	bool no_ad;

	const char *(*why_not)(void);

	/* Of the combinations of enum guest_kind, those that do if there is little time. */
	unsigned long quick;
};

struct harvest_test {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;

	/* Of the event, for messages. */
	const char *name;

	const struct writer *writer;
	bool manual;
	bool private;

	u8 *hva;

	/* Where memory goes when it is moved away; never mapped otherwise. */
	u8 *elsewhere;

	/* Of L1, or zero: its NPT or EPT. */
	u64 tdp;

	/* The entries that map the data: L1's page tables, or its NPT or EPT. */
	const struct entry_bits *bits;
	u64 *table[NR_TABLES];
	u64 *upper;

	/* Entries of @upper: that of the first table, and one that leads to zeroes. */
	u64 linked;
	u64 zeroes;

	u64 root;
	u64 other_root;

	/* What should be in the log. */
	unsigned long log[LOG_WORDS];
	unsigned long seen[LOG_WORDS];

	/* What is written next. */
	u64 value;

	unsigned int rounds;

	struct kvm_stats_header header;
	struct kvm_stats_desc *desc;
	int stats_fd;
};

struct event {
	const char *name;
	const char *what;

	/* Happens between the writes and KVM_GET_DIRTY_LOG. */
	void (*happen)(struct harvest_test *t);

	/* Makes the guest able to go on. */
	void (*undo)(struct harvest_test *t);

	/* Instead of both, and of all that is around them. */
	void (*run)(struct harvest_test *t);

	const char *(*why_not)(void);

	/* Private anonymous memory, not a memfd. */
	bool private;

	/* The log may have pages that were not written. */
	bool more;

	/* Can be made to happen while vCPUs run. */
	bool live;
};

static bool verbose;

static const char *label(struct harvest_test *t)
{
	static char text[80];

	snprintf(text, sizeof(text), "%s, %s, %s", t->name, t->writer->name,
		 t->manual ? "manual protection" : "GET clears");
	return text;
}

#define CHECK(t, cond, fmt, ...)	\
	TEST_ASSERT(cond, "%s: " fmt, label(t), ##__VA_ARGS__)

/*
 * Running the guest
 */

static void add_order(struct harvest_test *t, enum guest_op op, u64 addr, u64 value)
{
	CHECK(t, nr_orders < MAX_ORDERS, "too many orders");
	orders[nr_orders++] = (struct guest_order){ op, addr, value };
}

static void send_orders(struct harvest_test *t, bool l2)
{
	by_l2 = l2;
	sync_global_to_guest(t->vm, by_l2);
	sync_global_to_guest(t->vm, orders);
	sync_global_to_guest(t->vm, nr_orders);
	nr_orders = 0;
}

static void run_vcpu(struct harvest_test *t)
{
	struct ucall uc;

	vcpu_run(t->vcpu);
	switch (get_ucall(t->vcpu, &uc)) {
	case UCALL_SYNC:
		return;
	case UCALL_ABORT:
		REPORT_GUEST_ASSERT(uc);
	default:
		CHECK(t, false, "the guest ended, exit reason %s",
		      exit_reason_str(t->vcpu->run->exit_reason));
	}
}

static void run_l1(struct harvest_test *t)
{
	send_orders(t, false);
	run_vcpu(t);
}

/* The guest whose writes are looked for. */
static void run_writer(struct harvest_test *t)
{
	send_orders(t, t->writer->nested);
	run_vcpu(t);
}

/* Page faults that KVM took for the vCPU. */
static u64 nr_faults(struct harvest_test *t)
{
	u64 value = 0;
	u32 i;

	for (i = 0; i < t->header.num_desc; i++) {
		struct kvm_stats_desc *desc = get_stats_descriptor(t->desc, i, &t->header);

		if (!strcmp(desc->name, "pf_taken"))
			read_stat_data(t->stats_fd, &t->header, desc, &value, 1);
	}
	return value;
}

static void write_page(struct harvest_test *t, u64 page)
{
	add_order(t, OP_WRITE, DATA_GPA + page * PAGE_SIZE, t->value);
	set_bit(page, t->log);
}

static bool is_border(u64 page)
{
	return page < 2 || page >= NR_PAGES - 2 || page == 63 || page == 64 ||
	       page == PTES_PER_TABLE - 1 || page == PTES_PER_TABLE;
}

/*
 * Some pages at borders, a third of one half, and nearly none of the other.  Return
 * how many.
 */
static u64 write_some(struct harvest_test *t)
{
	u64 page, nr;

	t->value++;
	for (page = 0; page < NR_PAGES; page++)
		if (is_border(page) ? random() % 4 : !(random() % (page & 128 ? 40 : 3)))
			write_page(t, page);
	nr = nr_orders;
	run_writer(t);
	return nr;
}

/* Of some words of the log every page is mapped for L1 as well, of some every other. */
static bool is_shared_with_l1(u64 page)
{
	return page & 64 && (page & 128 || page & 1);
}

static void write_by_l1(struct harvest_test *t)
{
	u64 page;

	for (page = 0; page < NR_PAGES; page++)
		if (is_shared_with_l1(page))
			add_order(t, OP_WRITE, DATA_GPA + page * PAGE_SIZE, 0);
	run_l1(t);
}

static void write_all(struct harvest_test *t)
{
	u64 page;

	if (t->writer->nested)
		write_by_l1(t);

	t->value++;
	for (page = 0; page < NR_PAGES; page++)
		write_page(t, page);
	run_writer(t);
	memset(t->log, 0, LOG_BYTES);
}

static void check_memory(struct harvest_test *t)
{
	u64 page, seen;

	for (page = 0; page < NR_PAGES; page++) {
		if (!test_bit(page, t->log))
			continue;

		seen = READ_ONCE(*(u64 *)(t->hva + page * PAGE_SIZE));
		CHECK(t, seen == t->value, "page %lu: expected 0x%lx in memory, seen 0x%lx",
		      page, t->value, seen);
	}
}

/*
 * The log
 */

static void set_slot(struct harvest_test *t, u64 gpa, u32 flags)
{
	vm_set_user_memory_region(t->vm, DATA_SLOT, flags, gpa, DATA_SIZE, t->hva);
}

static void get_log(struct harvest_test *t)
{
	memset(t->seen, 0xa5, LOG_BYTES);
	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, t->seen);
}

static void expect_log(struct harvest_test *t, bool more, const char *when)
{
	u64 page;

	get_log(t);
	for (page = 0; page < LOG_WORDS * 64; page++) {
		bool expected = test_bit(page, t->log), seen = test_bit(page, t->seen);

		CHECK(t, seen || !expected,
		      "%s: page %lu was written, and is not in the log", when, page);
		CHECK(t, expected || !seen || (more && page < NR_PAGES),
		      "%s: page %lu was not written, and is in the log", when, page);
	}
	if (!t->manual)
		memset(t->log, 0, LOG_BYTES);
}

static void clear_log(struct harvest_test *t)
{
	if (t->manual)
		kvm_vm_clear_dirty_log(t->vm, DATA_SLOT, t->seen, 0, NR_PAGES);
	memset(t->log, 0, LOG_BYTES);
}

static void fill_log(unsigned long *log)
{
	u64 page;

	memset(log, 0, LOG_BYTES);
	for (page = 0; page < NR_PAGES; page++)
		set_bit(page, log);
}

static void start_logging(struct harvest_test *t)
{
	set_slot(t, DATA_GPA, KVM_MEM_LOG_DIRTY_PAGES);
	if (t->manual) {
		fill_log(t->log);
		expect_log(t, false, "enabled");
		clear_log(t);
	}
	expect_log(t, false, "armed");
}

static void stop_logging(struct harvest_test *t)
{
	set_slot(t, DATA_GPA, 0);
}

/*
 * What can happen: the host
 */

static void advise(struct harvest_test *t, size_t size, int advice)
{
	int r = madvise(t->hva, size, advice);

	CHECK(t, !r, "madvise(%d) failed, errno %d", advice, errno);
}

static void protect(struct harvest_test *t, int prot)
{
	int r = mprotect(t->hva, DATA_SIZE, prot);

	CHECK(t, !r, "mprotect(%d) failed, errno %d", prot, errno);
}

static void move_memory(struct harvest_test *t, void *from, void *to)
{
	void *p = mremap(from, DATA_SIZE, DATA_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to);

	CHECK(t, p == to, "mremap() failed, errno %d", errno);
}

static void happen_nothing(struct harvest_test *t)
{
}

static void happen_mprotect(struct harvest_test *t)
{
	protect(t, PROT_READ);
}

static void undo_mprotect(struct harvest_test *t)
{
	protect(t, PROT_READ | PROT_WRITE);
}

static void happen_dontneed(struct harvest_test *t)
{
	advise(t, DATA_SIZE, MADV_DONTNEED);
}

static void happen_mremap(struct harvest_test *t)
{
	move_memory(t, t->hva, t->elsewhere);
}

static void undo_mremap(struct harvest_test *t)
{
	move_memory(t, t->elsewhere, t->hva);
}

/* Both processes have the memory read-only until one of them writes to it. */
static void happen_fork(struct harvest_test *t)
{
	pid_t pid = fork();
	int status;

	CHECK(t, pid >= 0, "fork() failed, errno %d", errno);
	if (!pid)
		_exit(0);
	CHECK(t, waitpid(pid, &status, 0) == pid && !status, "the child failed");
}

/* A page table of the host becomes a huge page. */
static void happen_collapse(struct harvest_test *t)
{
	advise(t, SZ_2M, MADV_HUGEPAGE);
	advise(t, SZ_2M, MADV_COLLAPSE);
}

static void undo_collapse(struct harvest_test *t)
{
	advise(t, SZ_2M, MADV_NOHUGEPAGE);
	advise(t, SZ_2M, MADV_DONTNEED);
}

static void add_other(struct harvest_test *t, u32 flags)
{
	static u8 memory[2 * SZ_4K] __aligned(SZ_4K);

	vm_set_user_memory_region(t->vm, OTHER_SLOT, flags, OTHER_GPA, SZ_4K,
				  memory + SZ_4K);
}

static void happen_delete(struct harvest_test *t)
{
	vm_set_user_memory_region(t->vm, OTHER_SLOT, 0, OTHER_GPA, 0, NULL);
}

static void undo_delete(struct harvest_test *t)
{
	add_other(t, 0);
}

static void happen_flags(struct harvest_test *t)
{
	add_other(t, KVM_MEM_LOG_DIRTY_PAGES);
	add_other(t, 0);
}

static void happen_move(struct harvest_test *t)
{
	set_slot(t, MOVED_GPA, KVM_MEM_LOG_DIRTY_PAGES);
}

static void undo_move(struct harvest_test *t)
{
	set_slot(t, DATA_GPA, KVM_MEM_LOG_DIRTY_PAGES);
}

static void happen_nx(struct harvest_test *t)
{
	bool on = nx_param->value[0] == 'Y';

	setting_set(nx_param, on ? "N" : "Y");
	setting_set(nx_param, on ? "Y" : "N");
}

static const char *no_nx(void)
{
	return is_writable(nx_param) ? NULL : PARAM_NX " is read-only";
}

/* Shadow pages go that were made first, which are those of the data. */
static void happen_quota(struct harvest_test *t)
{
	unsigned int i;

	for (i = 0; i < BALLAST_PAGES; i++)
		add_order(t, OP_WRITE, BALLAST_GPA + i * SZ_2M, 0);
	run_writer(t);
	vm_set_nr_mmu_pages(t->vm, MIN_MMU_PAGES);
}

static void live_quota(struct harvest_test *t)
{
	vm_set_nr_mmu_pages(t->vm, MIN_MMU_PAGES);
	vm_set_nr_mmu_pages(t->vm, MAX_MMU_PAGES);
}

static void undo_quota(struct harvest_test *t)
{
	vm_set_nr_mmu_pages(t->vm, MAX_MMU_PAGES);
}

/*
 * What can happen: tables of the guest
 *
 * L1 changes the entries of pages that were written, of those that map data for
 * the guest that wrote.  Where KVM has no shadow of them it is none of its
 * business.
 */

static u64 *entry_of(struct harvest_test *t, u64 page)
{
	return &t->table[page / PTES_PER_TABLE][page % PTES_PER_TABLE];
}

static void change_entry(struct harvest_test *t, u64 page, u64 value)
{
	add_order(t, OP_WRITE, TABLE_GVA + page * sizeof(u64), value);
	add_order(t, OP_INVLPG, DATA_GPA + page * PAGE_SIZE, 0);
}

/* KVM looks at an EPT that L1 changed when L1 says so, at an NPT when L2 runs. */
static void run_changes(struct harvest_test *t)
{
	if (t->bits == &ept_bits)
		add_order(t, OP_INVEPT, 0, 0);
	run_l1(t);
	run_writer(t);
}

static void change_written(struct harvest_test *t, u64 take, u64 give)
{
	u64 page;

	for (page = 0; page < NR_PAGES; page++)
		if (test_bit(page, t->log))
			change_entry(t, page, (*entry_of(t, page) & ~take) | give);
	run_changes(t);
}

static u64 table_entry(u64 gpa)
{
	return gpa | PTE_PRESENT_MASK | PTE_WRITABLE_MASK | PTE_USER_MASK;
}

static u64 page_entry(struct harvest_test *t, u64 gpa)
{
	return table_entry(gpa) | t->bits->leaf;
}

static u64 good_entry(struct harvest_test *t, u64 page)
{
	return page_entry(t, DATA_GPA + page * PAGE_SIZE) | t->bits->accessed | t->bits->dirty;
}

static void undo_entries(struct harvest_test *t)
{
	u64 page;

	for (page = 0; page < NR_PAGES; page++)
		change_entry(t, page, good_entry(t, page));
	run_changes(t);
}

static void happen_readonly(struct harvest_test *t)
{
	change_written(t, PTE_WRITABLE_MASK, 0);
}

static void happen_absent(struct harvest_test *t)
{
	change_written(t, ~0ull, 0);
}

static void happen_other_gfn(struct harvest_test *t)
{
	change_written(t, PHYSICAL_PAGE_MASK, OTHER_GPA);
}

static void happen_clean(struct harvest_test *t)
{
	change_written(t, t->bits->dirty, 0);
}

static void happen_old(struct harvest_test *t)
{
	change_written(t, t->bits->accessed, 0);
}

/* All of the entries, to nothing but another permission, and back. */
static void happen_regrant(struct harvest_test *t)
{
	u64 page;

	for (page = 0; page < NR_PAGES; page++)
		change_entry(t, page, good_entry(t, page) & ~PTE_WRITABLE_MASK);
	run_changes(t);
	undo_entries(t);
}

/* Change all entries of the table above that lead to the data. */
static void change_upper(struct harvest_test *t, u64 value, u64 step)
{
	u64 first = DATA_GPA / SZ_2M % PTES_PER_TABLE;
	unsigned int i;

	for (i = 0; i < NR_TABLES; i++)
		add_order(t, OP_WRITE, UPPER_GVA + (first + i) * sizeof(u64),
			  value + i * step);
	for (i = 0; i < NR_PAGES; i++)
		add_order(t, OP_INVLPG, DATA_GPA + i * PAGE_SIZE, 0);
	run_changes(t);
}

static void happen_unlink(struct harvest_test *t)
{
	change_upper(t, 0, 0);
}

/* To a table that has one and the same page of zeroes everywhere. */
static void happen_relink(struct harvest_test *t)
{
	unsigned int i;

	change_upper(t, t->zeroes, 0);
	for (i = 0; i < NR_PAGES; i++)
		add_order(t, OP_EXPECT, DATA_GPA + i * PAGE_SIZE, 0);
	run_writer(t);
}

/* The tables were allocated one after the other. */
static void undo_upper(struct harvest_test *t)
{
	change_upper(t, t->linked, PAGE_SIZE);
}

static void set_l2_root(struct harvest_test *t, u64 root)
{
	l2_root = root;
	if (t->bits == &ept_bits)
		l2_root |= EPTP_WRITE_BACK | EPTP_4_LEVELS | (t->writer->no_ad ? 0 : EPTP_AD);
	sync_global_to_guest(t->vm, l2_root);
}

static void set_root(struct harvest_test *t, u64 root)
{
	if (t->writer->nested)
		set_l2_root(t, root);
	else
		add_order(t, OP_CR3, root, 0);
	run_writer(t);
}

static void happen_root(struct harvest_test *t)
{
	set_root(t, t->other_root);
}

static void undo_root(struct harvest_test *t)
{
	set_root(t, t->root);
}

static void set_stop(struct harvest_test *t, u64 value)
{
	stop = value;
	sync_global_to_guest(t->vm, stop);
}

static void *vcpu_thread(void *vcpu)
{
	vcpu_run(vcpu);
	return NULL;
}

static pthread_t start_vcpu(struct kvm_vcpu *vcpu)
{
	pthread_t thread;

	start_thread(&thread, vcpu_thread, vcpu);
	return thread;
}

static void await_write(struct harvest_test *t, u64 page)
{
	u64 *p = (u64 *)(t->hva + page * PAGE_SIZE);
	u64 end = now_ns() + TLB_TIMEOUT_NS;
	u64 old = READ_ONCE(*p);

	while (READ_ONCE(*p) == old)
		CHECK(t, now_ns() < end, "the vCPU doesn't write to page %lu", page);
}

/* The vCPU may leave the guest during GET.  @cached: have it cache what CLEAR is to flush. */
static void spin_round(struct harvest_test *t, u64 page, bool cached)
{
	get_log(t);
	if (cached)
		await_write(t, page);
	clear_log(t);
	await_write(t, page);
	set_bit(page, t->log);
	expect_log(t, false, "written again");
	memset(t->log, 0, LOG_BYTES);
}

static void run_tlb(struct harvest_test *t)
{
	u64 page = NR_PAGES - 1;
	pthread_t thread;
	unsigned int i;

	write_all(t);
	start_logging(t);
	set_stop(t, 0);
	add_order(t, OP_SPIN, DATA_GPA + page * PAGE_SIZE, 0);
	send_orders(t, t->writer->nested);
	thread = start_vcpu(t->vcpu);

	await_write(t, page);
	for (i = 0; i < t->rounds / TLB_ROUNDS_PER; i++)
		spin_round(t, page, i % 2);

	set_stop(t, 1);
	pthread_join(thread, NULL);
	stop_logging(t);
}

/*
 * Live migration
 */

static const struct event *noise(void);

static u64 content(struct harvest_test *t, u64 page)
{
	return READ_ONCE(*(u64 *)(t->hva + page * PAGE_SIZE));
}

/* Take pages out of the log, and copy them after that. */
static void harvest_range(struct harvest_test *t, u64 *copy, u64 first, u64 nr)
{
	u64 page;

	nr = min_t(u64, nr, NR_PAGES - first);
	if (t->manual)
		kvm_vm_clear_dirty_log(t->vm, DATA_SLOT, &t->seen[first / 64], first, nr);
	for (page = first; page < first + nr; page++)
		if (test_bit(page, t->seen))
			copy[page] = content(t, page);
}

/* Without manual protection all of them are out of the log already. */
static void storm_round(struct harvest_test *t, u64 *copy)
{
	u64 first, nr;

	get_log(t);
	for (first = 0; first < NR_PAGES; first += nr) {
		nr = 64 * (1 + random() % 4);
		if (!t->manual || random() % 4)
			harvest_range(t, copy, first, nr);
	}
}

static u64 storm_lost(struct harvest_test *t, u64 *copy)
{
	unsigned long again[LOG_WORDS];
	u64 page, nr = 0;

	get_log(t);
	for (page = 0; page < NR_PAGES; page++)
		nr += content(t, page) != copy[page] && !test_bit(page, t->seen);

	memcpy(again, t->seen, LOG_BYTES);
	if (!t->manual)
		return nr;

	get_log(t);
	CHECK(t, !memcmp(again, t->seen, LOG_BYTES), "vCPUs stand still, but the log changes");
	return nr;
}

static void copy_all(struct harvest_test *t, u64 *copy)
{
	u64 page;

	for (page = 0; page < NR_PAGES; page++)
		copy[page] = content(t, page);
}

/* The log is taken at once, and has pages that are being written. */
static void arm_storm(struct harvest_test *t, u64 *copy)
{
	set_slot(t, DATA_GPA, KVM_MEM_LOG_DIRTY_PAGES);
	get_log(t);
	clear_log(t);
	copy_all(t, copy);
}

static void await_progress(struct harvest_test *t, u64 nr)
{
	u64 *p = addr_gva2hva(t->vm, (vm_vaddr_t)progress);
	u64 end = now_ns() + TLB_TIMEOUT_NS;
	u64 old[NR_STORM_VCPUS];
	unsigned int i;

	for (i = 0; i < NR_STORM_VCPUS; i++)
		old[i] = READ_ONCE(p[i]);
	for (i = 0; i < NR_STORM_VCPUS; i++)
		while (READ_ONCE(p[i]) < old[i] + nr)
			CHECK(t, now_ns() < end, "vCPU %u doesn't write", i);
}

/* A little is written before the end that only a Dirty bit can tell of. */
static void blow(struct harvest_test *t, u64 *copy, bool first)
{
	unsigned int i;

	if (first)
		arm_storm(t, copy);

	await_progress(t, STORM_WRITES);
	for (i = 0; i < STORM_ROUNDS; i++) {
		if (random() % NOISE_EVERY == 0)
			noise()->happen(t);
		storm_round(t, copy);
	}
	await_progress(t, STORM_WRITES);
}

static void one_storm(struct harvest_test *t, struct kvm_vcpu **vcpus, u64 *copy, bool first)
{
	pthread_t threads[NR_STORM_VCPUS];
	unsigned int i;
	u64 nr;

	set_stop(t, 0);
	for (i = 0; i < NR_STORM_VCPUS; i++)
		threads[i] = start_vcpu(vcpus[i]);
	blow(t, copy, first);
	set_stop(t, 1);
	for (i = 0; i < NR_STORM_VCPUS; i++)
		pthread_join(threads[i], NULL);

	nr = storm_lost(t, copy);
	CHECK(t, !nr, "%lu pages differ from their copies, and are not in the log", nr);
	clear_log(t);
	copy_all(t, copy);
}

static void run_storm(struct harvest_test *t)
{
	struct kvm_vcpu *vcpus[NR_STORM_VCPUS];
	static u64 copy[NR_PAGES];
	unsigned int i;

	/* Two of L1 do. */
	if (t->writer->nested)
		return;

	for (i = 0; i < NR_STORM_VCPUS; i++) {
		vcpus[i] = vm_vcpu_add(t->vm, 1 + i, guest_storm);
		vcpu_args_set(vcpus[i], 2, (u64)i, (u64)random());
	}
	for (i = 0; i < t->rounds; i += STORM_ROUNDS)
		one_storm(t, vcpus, copy, !i);
	stop_logging(t);
}

static const struct event events[] = {
	{
		.name = "nothing",
		.what = "nothing happens",
		.happen = happen_nothing,
	}, {
		.name = "mprotect",
		.what = "the host may only read",
		.happen = happen_mprotect,
		.undo = undo_mprotect,
	}, {
		.name = "dontneed",
		.what = "the host unmaps memory of a file",
		.happen = happen_dontneed,
		.live = true,
	}, {
		.name = "mremap",
		.what = "the host moves the memory",
		.happen = happen_mremap,
		.undo = undo_mremap,
	}, {
		.name = "fork",
		.what = "the host copies on write",
		.happen = happen_fork,
		.private = true,
	}, {
		.name = "collapse",
		.what = "the host's pages become a huge page",
		.happen = happen_collapse,
		.undo = undo_collapse,
		.private = true,
	}, {
		.name = "quota",
		.what = "shadow pages are used for something else",
		.happen = happen_quota,
		.undo = undo_quota,
	}, {
		.name = "delete",
		.what = "another memslot is deleted",
		.happen = happen_delete,
		.undo = undo_delete,
	}, {
		.name = "flags",
		.what = "another memslot is logged, and not any more",
		.happen = happen_flags,
		.live = true,
	}, {
		.name = "move",
		.what = "the memslot moves",
		.happen = happen_move,
		.undo = undo_move,
	}, {
		.name = "nx",
		.what = "nx_huge_pages changes",
		.happen = happen_nx,
		.why_not = no_nx,
		.live = true,
	}, {
		.name = "reclaim",
		.what = "the quota of shadow pages is lowered",
		.happen = live_quota,
		.live = true,
	}, {
		.name = "readonly",
		.what = "the guest makes entries read-only",
		.happen = happen_readonly,
		.undo = undo_entries,
	}, {
		.name = "absent",
		.what = "the guest clears entries",
		.happen = happen_absent,
		.undo = undo_entries,
	}, {
		.name = "other",
		.what = "the guest makes entries point to another page",
		.happen = happen_other_gfn,
		.undo = undo_entries,
	}, {
		.name = "clean",
		.what = "the guest clears Dirty bits of its own",
		.happen = happen_clean,
		.undo = undo_entries,
	}, {
		.name = "old",
		.what = "the guest clears Accessed bits of its own",
		.happen = happen_old,
		.undo = undo_entries,
	}, {
		.name = "regrant",
		.what = "the guest makes entries read-only and writable again",
		.happen = happen_regrant,
		.more = true,
	}, {
		.name = "unlink",
		.what = "the guest unlinks page tables",
		.happen = happen_unlink,
		.undo = undo_upper,
	}, {
		.name = "relink",
		.what = "the guest uses other page tables",
		.happen = happen_relink,
		.undo = undo_upper,
	}, {
		.name = "root",
		.what = "the guest uses another root",
		.happen = happen_root,
		.undo = undo_root,
	}, {
		.name = "tlb",
		.what = "a vCPU writes all the time and stays in the guest",
		.run = run_tlb,
	}, {
		.name = "storm",
		.what = "live migration",
		.run = run_storm,
	},
};

static const struct event *noise(void)
{
	const struct event *e;

	do {
		e = &events[random() % ARRAY_SIZE(events)];
	} while (!e->live || (e->why_not && e->why_not()));

	return e;
}

/* Pages that were mapped have been written: what has a Dirty bit takes no fault. */
static void check_faults(struct harvest_test *t, u64 faults, u64 written)
{
	if (t->writer->no_ad)
		CHECK(t, faults >= written,
		      "KVM took %lu faults for %lu pages: not all are write-protected",
		      faults, written);
	else
		CHECK(t, !faults, "KVM took %lu faults: the log may know of the writes",
		      faults);
}

/* The log of one round: exact, the same if asked again, and empty afterwards. */
static void one_round(struct harvest_test *t, const struct event *e, bool mapped)
{
	u64 before = nr_faults(t);
	u64 written = write_some(t);
	u64 faults = nr_faults(t) - before;

	e->happen(t);
	expect_log(t, e->more, "GET");
	if (mapped)
		check_faults(t, faults, written);
	if (t->manual && !e->more)
		expect_log(t, false, "GET again");
	if (e->undo)
		e->undo(t);

	get_log(t);
	clear_log(t);
	expect_log(t, false, "cleared");
}

static void run_event(struct harvest_test *t, const struct event *e)
{
	write_all(t);
	start_logging(t);
	one_round(t, e, true);
	one_round(t, e, false);
	write_some(t);
	check_memory(t);
	expect_log(t, false, "written at the end");
	stop_logging(t);
}

/*
 * Setting up
 */

static u64 *gpa_table(struct kvm_vm *vm, u64 entry)
{
	return addr_gpa2hva(vm, entry & PHYSICAL_PAGE_MASK);
}

/* Map the data by 4KiB entries that have been used already. */
static void fill_tables(struct harvest_test *t)
{
	u64 page;

	for (page = 0; page < NR_PAGES; page++)
		*entry_of(t, page) = good_entry(t, page);
}

/* The page tables that the guest has for the data. */
static void find_tables(struct harvest_test *t)
{
	u64 *table = gpa_table(t->vm, t->vm->pgd);
	unsigned int i;

	t->root = t->vm->pgd;
	table = gpa_table(t->vm, table[DATA_GPA / SZ_1G / PTES_PER_TABLE]);
	t->upper = gpa_table(t->vm, table[DATA_GPA / SZ_1G]);
	for (i = 0; i < NR_TABLES; i++)
		t->table[i] = gpa_table(t->vm,
					t->upper[DATA_GPA / SZ_2M % PTES_PER_TABLE + i]);
}

static u64 *new_table(struct harvest_test *t, u64 *entry)
{
	*entry = table_entry(vm_alloc_page_table(t->vm));
	return gpa_table(t->vm, *entry);
}

/* Map everything but the data by 2MiB entries, one to one. */
static void build_tdp(struct harvest_test *t)
{
	u64 first = DATA_GPA / SZ_2M, i, j, root, *pdpt, *pd;

	pdpt = new_table(t, &root);
	t->tdp = root & PHYSICAL_PAGE_MASK;
	pdpt = new_table(t, pdpt);
	for (i = 0; i < TDP_GIBS; i++) {
		pd = new_table(t, &pdpt[i]);
		for (j = 0; j < PTES_PER_TABLE; j++)
			pd[j] = page_entry(t, i * SZ_1G + j * SZ_2M) | PTE_LARGE_MASK;
	}
	t->root = t->tdp;
	t->upper = gpa_table(t->vm, pdpt[DATA_GPA / SZ_1G]);
	for (i = 0; i < NR_TABLES; i++)
		t->table[i] = new_table(t, &t->upper[first % PTES_PER_TABLE + i]);
}

/* Where L1 sees the tables that are changed. */
static void map_tables(struct harvest_test *t)
{
	unsigned int i;

	for (i = 0; i < NR_TABLES; i++)
		virt_pg_map(t->vm, TABLE_GVA + i * PAGE_SIZE,
			    addr_hva2gpa(t->vm, t->table[i]));
	virt_pg_map(t->vm, UPPER_GVA, addr_hva2gpa(t->vm, t->upper));
}

/* The tables that map the data are where @linked says. */
static void find_links(struct harvest_test *t)
{
	u64 *zeroes = new_table(t, &t->zeroes);
	unsigned int i;

	for (i = 0; i < PTES_PER_TABLE; i++)
		zeroes[i] = page_entry(t, OTHER_GPA);

	t->linked = t->upper[DATA_GPA / SZ_2M % PTES_PER_TABLE];
	for (i = 0; i < NR_TABLES; i++)
		CHECK(t, t->table[i] == gpa_table(t->vm, t->linked + i * PAGE_SIZE),
		      "the tables are not neighbours");
}

static void copy_root(struct harvest_test *t)
{
	t->other_root = vm_alloc_page_table(t->vm);
	memcpy(addr_gpa2hva(t->vm, t->other_root), addr_gpa2hva(t->vm, t->root), PAGE_SIZE);
}

static void create_svm_l2(struct harvest_test *t)
{
	vm_vaddr_t svm_gva;

	vcpu_alloc_svm(t->vm, &svm_gva);
	if (kvm_cpu_has(X86_FEATURE_NPT))
		build_tdp(t);
	vcpu_args_set(t->vcpu, 3, svm_gva, 0ull, t->tdp);
}

static void create_vmx_l2(struct harvest_test *t)
{
	vm_vaddr_t vmx_gva;
	struct vmx_pages *vmx = vcpu_alloc_vmx(t->vm, &vmx_gva);

	if (kvm_cpu_has_ept()) {
		t->bits = &ept_bits;
		build_tdp(t);
	}
	vmx->eptp_gpa = t->tdp;
	vcpu_args_set(t->vcpu, 3, 0ull, vmx_gva, 0ull);
}

static void create_l2(struct harvest_test *t)
{
	if (kvm_cpu_has(X86_FEATURE_SVM))
		create_svm_l2(t);
	else
		create_vmx_l2(t);
	set_l2_root(t, t->root);
}

static void *map_memory(struct harvest_test *t, size_t size)
{
	int fd = t->private ? -1 : kvm_memfd_alloc(size, false);
	u8 *p = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	u8 *aligned = align_ptr_up(p, SZ_2M);

	CHECK(t, p != MAP_FAILED, "mmap() failed, errno %d", errno);
	p = mmap(aligned, size, PROT_READ | PROT_WRITE,
		 MAP_FIXED | (t->private ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED), fd, 0);
	CHECK(t, p == aligned, "mmap() failed, errno %d", errno);
	if (fd >= 0)
		close(fd);
	return p;
}

static void add_memory(struct harvest_test *t)
{
	t->hva = map_memory(t, 2 * SZ_2M);
	advise(t, 2 * SZ_2M, MADV_NOHUGEPAGE);
	t->elsewhere = mmap(NULL, DATA_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	set_slot(t, DATA_GPA, 0);
	add_other(t, 0);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, BALLAST_GPA, BALLAST_SLOT,
				    BALLAST_PAGES * SZ_2M / PAGE_SIZE, 0);
}

static void map_guest(struct harvest_test *t)
{
	u64 offset;

	for (offset = 0; offset < DATA_SIZE; offset += PAGE_SIZE)
		virt_pg_map(t->vm, DATA_GPA + offset, DATA_GPA + offset);
	for (offset = 0; offset < BALLAST_PAGES * SZ_2M; offset += SZ_2M)
		virt_pg_map(t->vm, BALLAST_GPA + offset, BALLAST_GPA + offset);
}

static void open_stats(struct harvest_test *t)
{
	t->stats_fd = vcpu_get_stats_fd(t->vcpu);
	read_stats_header(t->stats_fd, &t->header);
	t->desc = read_stats_descriptors(t->stats_fd, &t->header);
}

static void create_vm(struct harvest_test *t)
{
	t->bits = &x86_bits;
	t->vm = __vm_create_with_one_vcpu(&t->vcpu, EXTRA_PAGES, guest_main);
	if (t->manual)
		vm_enable_initially_set(t->vm);
	vcpu_args_set(t->vcpu, 3, 0ull, 0ull, 0ull);
	add_memory(t);
	map_guest(t);
	find_tables(t);
	if (t->writer->nested)
		create_l2(t);
	fill_tables(t);
	map_tables(t);
	find_links(t);
	copy_root(t);
	open_stats(t);
	run_vcpu(t);
}

static void destroy_vm(struct harvest_test *t)
{
	close(t->stats_fd);
	free(t->desc);
	kvm_vm_free(t->vm);
	munmap(t->hva, 2 * SZ_2M);
	munmap(t->elsewhere, DATA_SIZE);
}

/* Of @events, by number. */
static u64 selected = ~0ull;

static bool can_run(unsigned int i, bool private)
{
	const struct event *e = &events[i];

	return selected & BIT_ULL(i) && e->private == private && !(e->why_not && e->why_not());
}

static void run_one(struct harvest_test *t, const struct event *e)
{
	u64 start = now_ns();

	t->name = e->name;
	if (e->run)
		e->run(t);
	else
		run_event(t, e);

	if (verbose)
		pr_info("  %s: ok, %lu ms\n", label(t), (now_ns() - start) / NSEC_PER_MSEC);
}

/* All that is selected, by one guest. */
static void run_guest_events(struct harvest_test *t)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(events); i++)
		if (can_run(i, t->private))
			run_one(t, &events[i]);
}

/* Is there anything to do for a guest with this kind of memory? */
static bool any_selected(bool private)
{
	unsigned int i, nr = 0;

	for (i = 0; i < ARRAY_SIZE(events); i++)
		nr += can_run(i, private);
	return nr;
}

static void run_with_guest(struct harvest_test *t)
{
	u64 start = now_ns(), harvest;

	if (!any_selected(t->private))
		return;

	t->name = "setting up";
	create_vm(t);
	harvest = vm_get_stat(t->vm, "dirty_harvest");
	CHECK(t, harvest == 1, "expected the statistic dirty_harvest to be 1, seen %lu", harvest);
	run_guest_events(t);
	destroy_vm(t);

	t->name = t->private ? "private memory" : "shared memory";
	pr_info("%s: ok, %lu ms\n", label(t), (now_ns() - start) / NSEC_PER_MSEC);
	fflush(stdout);
}

enum guest_kind { GUEST_PRIVATE = 1, GUEST_MANUAL = 2, NR_GUEST_KINDS = 4 };

static const char *no_l2(void)
{
	if (kvm_cpu_has(X86_FEATURE_SVM) || kvm_cpu_has(X86_FEATURE_VMX))
		return NULL;

	return "no nested SVM or VMX";
}

static const char *no_l2_ept(void)
{
	return kvm_cpu_has(X86_FEATURE_VMX) && kvm_cpu_has_ept() ? NULL : "no nested EPT";
}

static const struct writer writers[] = {
	{
		.name = "L1",
		.what = "a guest",
		.quick = BIT(GUEST_MANUAL) | BIT(GUEST_PRIVATE | GUEST_MANUAL),
	}, {
		.name = "L2",
		.what = "a guest's guest",
		.nested = true,
		.why_not = no_l2,
		.quick = BIT(0),
	}, {
		.name = "L2-noAD",
		.what = "the same, by an EPT without Accessed and Dirty bits",
		.nested = true,
		.no_ad = true,
		.why_not = no_l2_ept,
		.quick = BIT(GUEST_MANUAL),
	},
};

/* Of @writers, by number. */
static u64 selected_writers;

static void run_writer_events(const struct writer *w, unsigned int rounds, bool quick)
{
	unsigned int i;

	for (i = 0; i < NR_GUEST_KINDS; i++) {
		struct harvest_test t = {
			.writer = w,
			.private = i & GUEST_PRIVATE,
			.manual = i & GUEST_MANUAL,
			.rounds = rounds,
		};

		if (!quick || w->quick & BIT(i))
			run_with_guest(&t);
	}
}

/* All that are possible, or just those that were asked for, which then have to be. */
static void run_writers(unsigned int rounds, bool quick)
{
	const char *why_not;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(writers); i++) {
		if (selected_writers && !(selected_writers & BIT_ULL(i)))
			continue;

		why_not = writers[i].why_not ? writers[i].why_not() : NULL;
		__TEST_REQUIRE(!why_not || !selected_writers, "%s: %s", writers[i].name, why_not);
		if (why_not)
			pr_info("%s: SKIP: %s\n", writers[i].name, why_not);
		else
			run_writer_events(&writers[i], rounds, quick);
	}
}

/*
 * The parameter
 */

static void check_refused(const char *value)
{
	char before[SETTING_MAX], after[SETTING_MAX];
	int err;

	read_file(PARAM_HARVEST, before, sizeof(before));
	err = write_file(PARAM_HARVEST, value) ? 0 : errno;
	read_file(PARAM_HARVEST, after, sizeof(after));
	TEST_ASSERT(err == EINVAL, "dirty_harvest=%s: expected EINVAL, seen %d", value, err);
	TEST_ASSERT(!strcmp(before, after), "dirty_harvest=%s was refused, and made %s of %s",
		    value, after, before);
}

/* An entry in a ring needs the vCPU that wrote: such a VM protects pages. */
static void check_dirty_ring(void)
{
	struct kvm_vm *vm;

	if (!kvm_has_cap(KVM_CAP_DIRTY_LOG_RING) && !kvm_has_cap(KVM_CAP_DIRTY_LOG_RING_ACQ_REL))
		return;

	setting_set(harvest_param, "on");
	vm = vm_create_barebones();
	vm_enable_dirty_ring(vm, RING_BYTES);
	TEST_ASSERT(!vm_get_stat(vm, "dirty_harvest"),
		    "The VM has a dirty ring, and says that it looks for Dirty bits");
	kvm_vm_free(vm);
}

static u64 harvest_of_new_vm(const char *mode)
{
	struct kvm_vm *vm;
	u64 harvest;

	setting_set(harvest_param, mode);
	vm = vm_create_barebones();
	setting_set(harvest_param, strcmp(mode, "off") ? "off" : "on");
	harvest = vm_get_stat(vm, "dirty_harvest");
	kvm_vm_free(vm);
	return harvest;
}

/* Write protection does the same, only that KVM takes faults. */
static void run_without(void)
{
	struct harvest_test t = { .writer = &writers[0], .manual = true };
	u64 faults;

	setting_set(harvest_param, "off");
	create_vm(&t);
	t.name = "off";
	CHECK(&t, !vm_get_stat(t.vm, "dirty_harvest"), "dirty_harvest is off, and used");
	write_all(&t);
	start_logging(&t);
	faults = nr_faults(&t);
	write_some(&t);
	CHECK(&t, nr_faults(&t) > faults, "no page is write-protected");
	expect_log(&t, false, "GET");
	destroy_vm(&t);
}

static bool is_shadow_paging(void)
{
	if (host_cpu_is_intel)
		return !get_kvm_intel_param_bool("ept");

	return !get_kvm_amd_param_bool("npt");
}

/* With PML no VM does, whatever the parameter says. */
static bool can_harvest(void)
{
	bool can = harvest_of_new_vm("on");

	TEST_ASSERT(!can || !host_cpu_is_intel || !get_kvm_intel_param_bool("pml"),
		    "The CPU logs by itself, and so does KVM");
	TEST_ASSERT(harvest_of_new_vm("auto") == (can && is_shadow_paging()),
		    "auto isn't for shadow paging, and nothing else");
	return can;
}

static void check_parameter(void)
{
	TEST_ASSERT(!harvest_of_new_vm("off"), "dirty_harvest is off, and used");
	check_dirty_ring();
	check_refused("maybe");
	check_refused("1");
	check_refused("Y");
	check_refused("onoff");
}

static void help(const char *program)
{
	unsigned int i;

	printf("usage: %s [-h] [-q] [-v] [-g NAME]... [-m NAME]... [-n ROUNDS] [-s SEED]\n\n"
	       "It changes kvm.dirty_harvest and kvm.nx_huge_pages, and puts them back.\n\n"
	       " -g: let only this guest write; more than one may be given.\n"
	       " -m: let only this happen; more than one may be given.\n"
	       " -n: rounds of \"storm\", four times those of \"tlb\" (default: %u).\n"
	       " -q: for each guest only some of the combinations of private and shared memory,\n"
	       "     with and without manual protection.\n"
	       " -s: seed of what is random (default: 1).\n"
	       " -v: show each step.\n\n", program, DEFAULT_ROUNDS);
	for (i = 0; i < ARRAY_SIZE(writers); i++)
		printf("  -g %-10s %s\n", writers[i].name, writers[i].what);
	for (i = 0; i < ARRAY_SIZE(events); i++)
		printf("  -m %-10s %s\n", events[i].name, events[i].what);
}

static void select_writer(const char *name)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(writers); i++)
		if (!strcmp(name, writers[i].name))
			break;
	TEST_ASSERT(i < ARRAY_SIZE(writers), "No such guest: %s, see -h", name);
	selected_writers |= BIT_ULL(i);
}

static void select_event(const char *name)
{
	unsigned int i;

	if (selected == ~0ull)
		selected = 0;

	for (i = 0; i < ARRAY_SIZE(events); i++)
		if (!strcmp(name, events[i].name))
			break;
	TEST_ASSERT(i < ARRAY_SIZE(events), "No such thing: %s, see -h", name);
	selected |= BIT_ULL(i);
}

int main(int argc, char *argv[])
{
	unsigned int rounds = DEFAULT_ROUNDS, seed = 1;
	bool quick = false;
	int opt;

	while ((opt = getopt(argc, argv, "g:hm:n:qs:v")) != -1) {
		switch (opt) {
		case 'g':
			select_writer(optarg);
			break;
		case 'm':
			select_event(optarg);
			break;
		case 'n':
			rounds = atoi_positive("Number of rounds", optarg);
			break;
		case 'q':
			quick = true;
			break;
		case 's':
			seed = atoi_non_negative("Seed", optarg);
			break;
		case 'v':
			verbose = true;
			break;
		default:
			help(argv[0]);
			exit(opt == 'h' ? 0 : 1);
		}
	}

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	save_params();
	__TEST_REQUIRE(can_harvest(), "SPTEs have no Dirty bits, or the CPU logs by itself (PML)");
	srandom(seed);
	if (selected == ~0ull) {
		check_parameter();
		run_without();
	}

	setting_set(harvest_param, "on");
	run_writers(rounds, quick);
	return 0;
}
