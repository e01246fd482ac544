// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging by Dirty bits: nothing leaves unseen
 *
 * For each way in which an SPTE or its Dirty bit goes away: begin with an empty log, let the guest
 * write to some pages, check that KVM took no fault and so wasn't told, let it happen, and then the
 * log has to have exactly these pages, and after KVM_CLEAR_DIRTY_LOG none.  All of it is done by an
 * L1 guest and by an L2 guest (SVM or VMX), with and without manual protection.
 *
 * An L1 may have its EPT do without Accessed and Dirty bits.  What KVM maps for the
 * L2 of such an L1 ("L2-noAD") has none either, and stays write-protected: check
 * that there was a fault for each page that was written.  L1 uses some of the pages
 * as well, so that one gfn may have an SPTE with a Dirty bit and one without.
 *
 * The log may have more than what was written in two cases, as with write protection: what
 * KVM maps writable for a read ("device", "prefault"), and the page of a guest that turns a
 * read-only entry of its page tables into a writable one ("regrant").
 *
 * Then a vCPU writes to a page all the time and never leaves the guest ("tlb", "enable"): once the
 * page is taken out of the log, the next write has to show, though the vCPU has the translation
 * cached.  Copies that are made while vCPUs write are eager_split_stress_test's.
 *
 * With -w KVM logs by write protection, which takes a fault for each page that was written.  The
 * log has to be the same.
 *
 * Limits: of what runs beside a vCPU, races are only hit by chance, and whether a translation is
 * cached is up to the CPU; there are many tries.  NX recovery never takes away what is logged.
 * An L1's huge pages map nothing that is logged.
 */
#include <sys/wait.h>
#include <linux/mman.h>

#include "dirty_bits.h"

/* Of a vCPU that stays in the guest: how many of -n make a round. */
#define ROUNDS_PER		4u

#define WRITE_TIMEOUT_NS	(10ull * NSEC_PER_SEC)

static u64 content(struct dirty_bits_test *t, u64 page)
{
	return READ_ONCE(*(u64 *)(t->hva + page * PAGE_SIZE));
}

/* What can happen: the host */

static void happen_dontneed(struct dirty_bits_test *t, bool undo)
{
	advise(t, DATA_SIZE, MADV_DONTNEED);
}

static void happen_flags(struct dirty_bits_test *t, bool undo)
{
	add_other(t, KVM_MEM_LOG_DIRTY_PAGES);
	add_other(t, 0);
}

static void happen_nx(struct dirty_bits_test *t, bool undo)
{
	bool on = setting_value(PARAM_NX)[0] == 'Y';

	setting_set(PARAM_NX, on ? "N" : "Y");
	setting_set(PARAM_NX, on ? "Y" : "N");
}

static const char *no_nx(void)
{
	return is_writable(PARAM_NX) ? NULL : PARAM_NX " is read-only";
}

static void happen_reclaim(struct dirty_bits_test *t, bool undo)
{
	vm_set_nr_mmu_pages(t->vm, MIN_MMU_PAGES);
	vm_set_nr_mmu_pages(t->vm, MAX_MMU_PAGES);
}

static void happen_mprotect(struct dirty_bits_test *t, bool undo)
{
	int prot = undo ? PROT_READ | PROT_WRITE : PROT_READ;
	int r = mprotect(t->hva, DATA_SIZE, prot);

	CHECK(t, !r, "mprotect(%d) failed, errno %d", prot, errno);
}

static void happen_mremap(struct dirty_bits_test *t, bool undo)
{
	void *from = undo ? t->elsewhere : t->hva, *to = undo ? t->hva : t->elsewhere;
	void *p = mremap(from, DATA_SIZE, DATA_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to);

	CHECK(t, p == to, "mremap() failed, errno %d", errno);
}

/* Both processes have the memory read-only until one of them writes to it. */
static void happen_fork(struct dirty_bits_test *t, bool undo)
{
	pid_t pid = fork();
	int status;

	CHECK(t, pid >= 0, "fork() failed, errno %d", errno);
	if (!pid)
		_exit(0);
	CHECK(t, waitpid(pid, &status, 0) == pid && !status, "the child failed");
}

/* A page table of the host becomes a huge page. */
static void happen_collapse(struct dirty_bits_test *t, bool undo)
{
	advise(t, SZ_2M, undo ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
	advise(t, SZ_2M, undo ? MADV_DONTNEED : MADV_COLLAPSE);
}

static void happen_delete(struct dirty_bits_test *t, bool undo)
{
	if (undo)
		add_other(t, 0);
	else
		vm_set_user_memory_region(t->vm, OTHER_SLOT, 0, OTHER_GPA, 0, NULL);
}

static void happen_move(struct dirty_bits_test *t, bool undo)
{
	set_slot(t, undo ? DATA_GPA : MOVED_GPA, KVM_MEM_LOG_DIRTY_PAGES);
}

/* Shadow pages go that were made first, which are those of the data. */
static void happen_quota(struct dirty_bits_test *t, bool undo)
{
	for (unsigned int i = 0; !undo && i < BALLAST_PAGES; i++)
		add_op(t, OP_WRITE, BALLAST_GPA + i * SZ_2M, 0);
	if (!undo)
		run_writer(t);
	vm_set_nr_mmu_pages(t->vm, undo ? MAX_MMU_PAGES : MIN_MMU_PAGES);
}

/*
 * Without bits 48 and above, which a root of four levels has no tables for, the data is
 * in this memslot.
 */
#define EDGE_PAGES		((SZ_2M + DATA_GPA + DATA_SIZE) / PAGE_SIZE)
#define MMIO_TIMEOUT_S		10

static void set_edge(struct dirty_bits_test *t, u64 pages, u32 flags, void *hva)
{
	vm_set_user_memory_region(t->vm, EDGE_SLOT, flags, EDGE_GPA - SZ_2M,
				  pages * PAGE_SIZE, hva);
}

/* The last page that a root of four levels maps is written. */
static void log_edge(struct dirty_bits_test *t)
{
	unsigned long *log = bitmap_zalloc(EDGE_PAGES);

	kvm_vm_get_dirty_log(t->vm, EDGE_SLOT, log);
	if (t->manual)
		kvm_vm_clear_dirty_log(t->vm, EDGE_SLOT, log, 0, EDGE_PAGES);
	add_op(t, OP_WRITE, EDGE_GVA, 0);
	run_l1(t);
	kvm_vm_get_dirty_log(t->vm, EDGE_SLOT, log);
	CHECK(t, test_bit(SZ_2M / PAGE_SIZE - 1, log), "the last page is not in the log");
	free(log);
}

/* A CPU that ignores these bits finds what KVM has noted for MMIO at the gpa without them. */
static void read_mmio(struct dirty_bits_test *t, u64 gva, u64 gpa)
{
	struct kvm_run *run = t->vcpu->run;

	add_op(t, OP_EXPECT, gva, 0);
	send_ops(t, false);
	interrupt_after(MMIO_TIMEOUT_S);
	__vcpu_run(t->vcpu);
	alarm(0);
	CHECK(t, run->exit_reason == KVM_EXIT_MMIO && run->mmio.phys_addr == gpa,
	      "MMIO at 0x%lx: exit reason %s", gpa, exit_reason_str(run->exit_reason));
	memset(run->mmio.data, 0, sizeof(run->mmio.data));
	vcpu_run_to_sync(t->vcpu, NULL);
}

static void happen_edge(struct dirty_bits_test *t, bool undo)
{
	struct kvm_pre_fault_memory range = { .gpa = EDGE_GPA + DATA_GPA, .size = DATA_SIZE };
	u8 *hva = map_memory(EDGE_PAGES * PAGE_SIZE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	int r;

	set_edge(t, EDGE_PAGES, KVM_MEM_LOG_DIRTY_PAGES, hva);
	log_edge(t);
	read_mmio(t, MMIO_GVA, MMIO_GPA);
	read_mmio(t, MMIO_GVA + PAGE_SIZE, EDGE_GPA + MMIO_GPA);
	/* Only page tables of five levels can map it. */
	r = __vcpu_ioctl(t->vcpu, KVM_PRE_FAULT_MEMORY, &range);
	CHECK(t, r || kvm_cpu_property(X86_PROPERTY_GUEST_MAX_PHY_ADDR) > 48,
	      "KVM has mapped other memory");
	madvise(hva + SZ_2M + DATA_GPA, DATA_SIZE, MADV_DONTNEED);
	set_edge(t, EDGE_PAGES, 0, hva);
	set_edge(t, 0, 0, NULL);
	munmap(hva, EDGE_PAGES * PAGE_SIZE);
}

/* The guest reads what KVM has no SPTEs for any more, and then a device of user space writes. */
static void happen_device(struct dirty_bits_test *t, bool undo)
{
	u64 page;

	happen_mprotect(t, false);
	happen_mprotect(t, true);
	for (page = 0; page < NR_PAGES; page++)
		add_op(t, OP_EXPECT, DATA_GPA + page * PAGE_SIZE, content(t, page));
	run_writer(t);

	for (page = 0; page < NR_PAGES; page++)
		if (!test_bit(page, t->log))
			WRITE_ONCE(*(u64 *)(t->hva + page * PAGE_SIZE), ~content(t, page));
}

/* As if the vCPU read, also what is mapped.  What was written stays writable. */
static void happen_prefault(struct dirty_bits_test *t, bool undo)
{
	struct kvm_pre_fault_memory range = { .gpa = DATA_GPA, .size = DATA_SIZE };
	u64 faults = nr_faults(t->vcpu);

	if (kvm_is_tdp_enabled())
		vcpu_ioctl(t->vcpu, KVM_PRE_FAULT_MEMORY, &range);
	for (u64 page = 0; page < NR_PAGES; page++)
		if (test_bit(page, t->log))
			add_op(t, OP_WRITE, DATA_GPA + page * PAGE_SIZE, t->value);
	run_writer(t);
	CHECK(t, nr_faults(t->vcpu) == faults, "%lu write faults", nr_faults(t->vcpu) - faults);
}

/*
 * What can happen: tables of the guest
 *
 * L1 changes the entries of pages that were written, of those that map data for the guest that
 * wrote.  Where KVM has no shadow of them it is none of its business.
 */

static void change_entry(struct dirty_bits_test *t, u64 page, u64 value)
{
	add_op(t, OP_WRITE, TABLE_GVA + page * sizeof(u64), value);
	add_op(t, OP_INVLPG, DATA_GPA + page * PAGE_SIZE, 0);
}

/* KVM looks at an EPT that L1 changed when L1 says so, at an NPT when L2 runs. */
static void run_changes(struct dirty_bits_test *t)
{
	if (t->bits == &ept_bits)
		add_op(t, OP_INVEPT, 0, 0);
	run_l1(t);
	run_writer(t);
}

/* All of the entries, to what they were at first, or less than that. */
static void reset_entries(struct dirty_bits_test *t, u64 take)
{
	for (u64 page = 0; page < NR_PAGES; page++)
		change_entry(t, page, good_entry(t, page) & ~take);
	run_changes(t);
}

/* Undone for all of the entries. */
static void change_written(struct dirty_bits_test *t, bool undo, u64 take, u64 give)
{
	if (undo) {
		reset_entries(t, 0);
		return;
	}

	for (u64 page = 0; page < NR_PAGES; page++)
		if (test_bit(page, t->log))
			change_entry(t, page, (*entry_of(t, page) & ~take) | give);
	run_changes(t);
}

static void happen_readonly(struct dirty_bits_test *t, bool undo)
{
	change_written(t, undo, PT_WRITABLE_MASK, 0);
}

static void happen_absent(struct dirty_bits_test *t, bool undo)
{
	change_written(t, undo, ~0ull, 0);
}

static void happen_other_gfn(struct dirty_bits_test *t, bool undo)
{
	change_written(t, undo, PHYSICAL_PAGE_MASK, OTHER_GPA);
}

static void happen_clean(struct dirty_bits_test *t, bool undo)
{
	change_written(t, undo, t->bits->dirty, 0);
}

static void happen_old(struct dirty_bits_test *t, bool undo)
{
	change_written(t, undo, t->bits->accessed, 0);
}

/* To nothing but another permission, and back. */
static void happen_regrant(struct dirty_bits_test *t, bool undo)
{
	reset_entries(t, PT_WRITABLE_MASK);
	reset_entries(t, 0);
}

/* Change all entries of the table above that lead to the data; those tables are neighbours. */
static void change_upper(struct dirty_bits_test *t, bool undo, u64 value)
{
	u64 first = DATA_GPA / SZ_2M % PTES_PER_TABLE, step = undo ? PAGE_SIZE : 0;

	if (undo)
		value = t->linked;

	for (unsigned int i = 0; i < NR_TABLES; i++)
		add_op(t, OP_WRITE, UPPER_GVA + (first + i) * sizeof(u64), value + i * step);
	for (unsigned int i = 0; i < NR_PAGES; i++)
		add_op(t, OP_INVLPG, DATA_GPA + i * PAGE_SIZE, 0);
	run_changes(t);
}

static void happen_unlink(struct dirty_bits_test *t, bool undo)
{
	change_upper(t, undo, 0);
}

/* To a table that has one and the same page of zeroes everywhere. */
static void happen_relink(struct dirty_bits_test *t, bool undo)
{
	change_upper(t, undo, t->zeroes);
	if (undo)
		return;

	for (unsigned int i = 0; i < NR_PAGES; i++)
		add_op(t, OP_EXPECT, DATA_GPA + i * PAGE_SIZE, 0);
	run_writer(t);
}

static void happen_root(struct dirty_bits_test *t, bool undo)
{
	u64 root = undo ? t->root : t->other_root;

	if (t->writer->nested)
		set_l2_root(t, root);
	else
		add_op(t, OP_CR3, root, 0);
	run_writer(t);
}

/* Pages that were mapped have been written: what has a Dirty bit takes no fault. */
static void check_faults(struct dirty_bits_test *t, u64 faults, u64 written)
{
	if (t->writer->no_ad || dirty_bits_wrprot)
		CHECK(t, faults >= written,
		      "KVM took %lu faults for %lu pages: not all are write-protected",
		      faults, written);
	else
		CHECK(t, !faults, "KVM took %lu faults: the log may know of the writes", faults);
}

static void check_memory(struct dirty_bits_test *t)
{
	for (u64 page = 0; page < NR_PAGES; page++)
		CHECK(t, !test_bit(page, t->log) || content(t, page) == t->value,
		      "page %lu: expected 0x%lx in memory, seen 0x%lx", page, t->value,
		      content(t, page));
}

/* The log of one round: exact, the same if asked again, and empty afterwards. */
static void one_round(struct dirty_bits_test *t, const struct event *e, bool mapped)
{
	u64 before = nr_faults(t->vcpu);
	u64 written = write_batch(t);
	u64 faults = nr_faults(t->vcpu) - before;

	if (e->happen)
		e->happen(t, false);
	expect_log(t, e->more, "GET");
	if (mapped)
		check_faults(t, faults, written);
	if (t->manual && !e->more)
		expect_log(t, false, "GET again");
	if (e->undo)
		e->happen(t, true);

	get_log(t);
	clear_log(t);
	expect_log(t, false, "cleared");
}

static void run_event(struct dirty_bits_test *t, const struct event *e)
{
	if (e->run) {
		e->run(t, e);
		return;
	}

	write_all(t);
	start_logging(t);
	/* Again, with pages in each word of the log that were written since, and others. */
	write_batch(t);
	if (t->manual)
		expect_log(t, false, "written first");
	memset(t->log, 0, LOG_BYTES);
	stop_logging(t);
	start_logging(t);
	one_round(t, e, true);
	one_round(t, e, false);
	write_batch(t);
	check_memory(t);
	expect_log(t, false, "written at the end");
	stop_logging(t);
}

/* What a vCPU writes that runs */

static void await_write(struct dirty_bits_test *t, u64 page)
{
	u64 end = now_ns() + WRITE_TIMEOUT_NS;
	u64 old = content(t, page);

	while (content(t, page) == old)
		CHECK(t, now_ns() < end, "the vCPU doesn't write to page %lu", page);
}

/* The vCPU may leave the guest during GET.  @cached: have it cache what is to be flushed. */
static void spin_round(struct dirty_bits_test *t, u64 page, bool cached, bool enable)
{
	if (enable)
		stop_logging(t);
	else
		get_log(t);
	if (cached)
		await_write(t, page);
	if (enable)
		set_slot(t, DATA_GPA, KVM_MEM_LOG_DIRTY_PAGES);
	else
		clear_log(t);
	await_write(t, page);
	set_bit(page, t->log);
	/* Initially-all-set leaves what enabling does to CLEAR. */
	expect_log(t, enable && t->manual, "written again");
	memset(t->log, 0, LOG_BYTES);
}

static void run_tlb(struct dirty_bits_test *t, const struct event *e)
{
	u64 page = NR_PAGES - 1;
	pthread_t thread;

	write_all(t);
	start_logging(t);
	set_stop(t, 0);
	add_op(t, OP_SPIN, DATA_GPA + page * PAGE_SIZE, 0);
	send_ops(t, t->writer->nested);
	thread = start_vcpu(t->vcpu);

	await_write(t, page);
	for (unsigned int i = 0; i < t->rounds / ROUNDS_PER; i++)
		spin_round(t, page, i % 2, !strcmp(e->name, "enable"));

	set_stop(t, 1);
	pthread_join(thread, NULL);
	stop_logging(t);
}

static const struct event events[] = {
	{ "nothing", "nothing happens" },
	{ "mprotect", "the host may only read", happen_mprotect, .undo = true },
	{ "dontneed", "the host unmaps memory of a file", happen_dontneed },
	{ "mremap", "the host moves the memory", happen_mremap, .undo = true },
	{ "fork", "the host copies on write", happen_fork, .private = true },
	{ "collapse", "the host's pages become a huge page", happen_collapse, .undo = true,
	  .private = true },
	{ "quota", "shadow pages are used for something else", happen_quota, .undo = true },
	{ "delete", "another memslot is deleted", happen_delete, .undo = true },
	{ "flags", "another memslot is logged, and not any more", happen_flags },
	{ "edge", "memory is logged that page tables of four levels don't map", happen_edge,
	  .skip_reason = no_edge },
	{ "move", "the memslot moves", happen_move, .undo = true },
	{ "nx", "nx_huge_pages changes", happen_nx, .skip_reason = no_nx },
	{ "reclaim", "the quota of shadow pages is lowered", happen_reclaim },
	{ "device", "the guest reads, and user space writes", happen_device, .more = true },
	{ "prefault", "what is mapped is prefaulted (TDP)", happen_prefault, .more = true },
	{ "readonly", "the guest makes entries read-only", happen_readonly, .undo = true },
	{ "absent", "the guest clears entries", happen_absent, .undo = true },
	{ "other", "the guest makes entries point to another page", happen_other_gfn,
	  .undo = true },
	{ "clean", "the guest clears Dirty bits of its own", happen_clean, .undo = true },
	{ "old", "the guest clears Accessed bits of its own", happen_old, .undo = true },
	{ "regrant", "the guest makes entries read-only and writable again", happen_regrant,
	  .more = true },
	{ "unlink", "the guest unlinks page tables", happen_unlink, .undo = true },
	{ "relink", "the guest uses other page tables", happen_relink, .undo = true },
	{ "root", "the guest uses another root", happen_root, .undo = true },
	{ "tlb", "a vCPU writes all the time and stays in the guest", .run = run_tlb },
	{ "enable", "the same, while logging is disabled and enabled", .run = run_tlb },
};

int main(int argc, char *argv[])
{
	return dirty_bits_main(argc, argv, events, ARRAY_SIZE(events), run_event);
}
