// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging by Dirty bits: no Dirty bit may be lost with its SPTE
 *
 * There is an event for each way in which an SPTE or its Dirty bit goes away,
 * see events[].  Beginning with an empty log, the guest writes to some pages.
 * KVM must take no page fault, so that only Dirty bits record the writes.  Then
 * the event happens.  The log must contain exactly the written pages, and no
 * page after KVM_CLEAR_DIRTY_LOG.  The guest that writes is an L1 or an L2 (SVM
 * or VMX), with shared and private memory, with and without manual protection.
 *
 * The EPT of an L1 may have no Accessed and Dirty bits ("L2-noAD").  Then the
 * SPTEs that KVM creates for the L2 have none either, and stay write-protected,
 * so each written page must cost a fault.  The L1 uses some of the pages, too.
 * Such a gfn has an SPTE with a Dirty bit and one without.
 *
 * After three events, the log may contain more pages.  Kernels that make an
 * SPTE writable without a write, and then log the page, do so when the guest
 * reads it ("device", "prefault"), or when its entry in the guest's page tables
 * becomes writable ("regrant").
 *
 * In the events "tlb" and "enable", a vCPU writes to a page all the time and
 * never leaves the guest.  When the page was cleared in the log, or logging was
 * enabled again, the next write must be logged, although the vCPU has the
 * translation cached.  eager_split_stress_test copies memory while vCPUs write.
 *
 * With -w, KVM logs by write protection.  Then each written page must cost a
 * fault, and the log must be the same.
 *
 * The test needs VMs that can log by Dirty bits, i.e. no PML.
 *
 * Limits:
 *  - In "tlb" and "enable", races are hit by chance, and the CPU decides
 *    whether a translation is cached.  There are many tries.
 *  - NX recovery does not zap logged memory, so there is no event for it.
 *  - Huge pages of an L1's NPT or EPT do not map logged memory.
 */
#include <sys/wait.h>
#include <linux/mman.h>

#include "dirty_bits.h"

/*
 * Where a vCPU stays in the guest, a round takes longer.  So run one round for
 * this many rounds of -n.
 */
#define ROUNDS_PER		4u

#define WRITE_TIMEOUT_NS	(10ull * NSEC_PER_SEC)

static u64 content(struct dirty_bits_test *t, u64 page)
{
	return READ_ONCE(*(u64 *)(t->hva + page * PAGE_SIZE));
}

/* Events: the host */

static void happen_dontneed(struct dirty_bits_test *t)
{
	advise(t, DATA_SIZE, MADV_DONTNEED);
}

static void happen_flags(struct dirty_bits_test *t)
{
	add_other(t, KVM_MEM_LOG_DIRTY_PAGES);
	add_other(t, 0);
}

static void happen_nx(struct dirty_bits_test *t)
{
	bool on = setting_value(PARAM_NX)[0] == 'Y';

	setting_set(PARAM_NX, on ? "N" : "Y");
	setting_set(PARAM_NX, on ? "Y" : "N");
}

static const char *no_nx(void)
{
	return is_writable(PARAM_NX) ? NULL : PARAM_NX " is read-only";
}

static void happen_reclaim(struct dirty_bits_test *t)
{
	vm_set_nr_mmu_pages(t->vm, MIN_MMU_PAGES);
	vm_set_nr_mmu_pages(t->vm, MAX_MMU_PAGES);
}

static void protect(struct dirty_bits_test *t, int prot)
{
	int r = mprotect(t->hva, DATA_SIZE, prot);

	CHECK(t, !r, "mprotect(%d) failed, errno %d", prot, errno);
}

static void happen_mprotect(struct dirty_bits_test *t)
{
	protect(t, PROT_READ);
}

static void undo_mprotect(struct dirty_bits_test *t)
{
	protect(t, PROT_READ | PROT_WRITE);
}

static void move_memory(struct dirty_bits_test *t, void *from, void *to)
{
	void *p = mremap(from, DATA_SIZE, DATA_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to);

	CHECK(t, p == to, "mremap() failed, errno %d", errno);
}

static void happen_mremap(struct dirty_bits_test *t)
{
	move_memory(t, t->hva, t->elsewhere);
}

static void undo_mremap(struct dirty_bits_test *t)
{
	move_memory(t, t->elsewhere, t->hva);
}

/* Parent and child have the memory read-only until one of them writes to it. */
static void happen_fork(struct dirty_bits_test *t)
{
	pid_t pid = fork();
	int status;

	CHECK(t, pid >= 0, "fork() failed, errno %d", errno);
	if (!pid)
		_exit(0);
	CHECK(t, waitpid(pid, &status, 0) == pid && !status, "the child failed");
}

/* A page table of the host becomes a huge page. */
static void happen_collapse(struct dirty_bits_test *t)
{
	advise(t, SZ_2M, MADV_HUGEPAGE);
	advise(t, SZ_2M, MADV_COLLAPSE);
}

static void undo_collapse(struct dirty_bits_test *t)
{
	advise(t, SZ_2M, MADV_NOHUGEPAGE);
	advise(t, SZ_2M, MADV_DONTNEED);
}

static void happen_delete(struct dirty_bits_test *t)
{
	vm_set_user_memory_region(t->vm, OTHER_SLOT, 0, OTHER_GPA, 0, NULL);
}

static void undo_delete(struct dirty_bits_test *t)
{
	add_other(t, 0);
}

static void happen_move(struct dirty_bits_test *t)
{
	set_slot(t, MOVED_GPA, KVM_MEM_LOG_DIRTY_PAGES);
}

static void undo_move(struct dirty_bits_test *t)
{
	set_slot(t, DATA_GPA, KVM_MEM_LOG_DIRTY_PAGES);
}

/* KVM reclaims the oldest shadow pages, which are those of the data. */
static void happen_quota(struct dirty_bits_test *t)
{
	for (unsigned int i = 0; i < BALLAST_PAGES; i++)
		add_op(t, OP_WRITE, BALLAST_GPA + i * SZ_2M, 0);
	run_writer(t);
	vm_set_nr_mmu_pages(t->vm, MIN_MMU_PAGES);
}

static void undo_quota(struct dirty_bits_test *t)
{
	vm_set_nr_mmu_pages(t->vm, MAX_MMU_PAGES);
}

/*
 * A root with four levels does not map addresses with bits above 47 set.  This
 * memslot is so large that it contains an address that differs from that of the
 * data only in such a bit.
 */
#define EDGE_PAGES		((SZ_2M + DATA_GPA + DATA_SIZE) / PAGE_SIZE)
#define MMIO_TIMEOUT_S		10

static void set_edge(struct dirty_bits_test *t, u64 pages, u32 flags, void *hva)
{
	vm_set_user_memory_region(t->vm, EDGE_SLOT, flags, EDGE_GPA - SZ_2M,
				  pages * PAGE_SIZE, hva);
}

/* The guest writes to the last page that a root with four levels maps. */
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

/*
 * If KVM ignored bits above 47, the second read would find the first one's
 * SPTE.
 */
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

static void happen_edge(struct dirty_bits_test *t)
{
	struct kvm_pre_fault_memory range = { .gpa = EDGE_GPA + DATA_GPA, .size = DATA_SIZE };
	u8 *hva = map_memory(EDGE_PAGES * PAGE_SIZE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	int r;

	set_edge(t, EDGE_PAGES, KVM_MEM_LOG_DIRTY_PAGES, hva);
	log_edge(t);
	read_mmio(t, MMIO_GVA, MMIO_GPA);
	read_mmio(t, MMIO_GVA + PAGE_SIZE, EDGE_GPA + MMIO_GPA);
	/* Only page tables with five levels can map this range. */
	r = __vcpu_ioctl(t->vcpu, KVM_PRE_FAULT_MEMORY, &range);
	CHECK(t, r || kvm_cpu_property(X86_PROPERTY_GUEST_MAX_PHY_ADDR) > 48,
	      "KVM has mapped other memory");
	madvise(hva + SZ_2M + DATA_GPA, DATA_SIZE, MADV_DONTNEED);
	set_edge(t, EDGE_PAGES, 0, hva);
	set_edge(t, 0, 0, NULL);
	munmap(hva, EDGE_PAGES * PAGE_SIZE);
}

/*
 * KVM zaps the SPTEs, the guest reads all pages, and then user space writes to
 * those that are not in the log, as for an emulated device.
 */
static void happen_device(struct dirty_bits_test *t)
{
	u64 page;

	protect(t, PROT_READ);
	protect(t, PROT_READ | PROT_WRITE);
	for (page = 0; page < NR_PAGES; page++)
		add_op(t, OP_EXPECT, DATA_GPA + page * PAGE_SIZE, content(t, page));
	run_writer(t);

	for (page = 0; page < NR_PAGES; page++)
		if (!test_bit(page, t->log))
			WRITE_ONCE(*(u64 *)(t->hva + page * PAGE_SIZE), ~content(t, page));
}

/*
 * KVM handles a read fault for each page, whether it is mapped or not.  Pages
 * that were written must stay writable.
 */
static void happen_prefault(struct dirty_bits_test *t)
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
 * Events: page tables of the guest
 *
 * L1 changes the entries through which the guest has written.  Whether or not
 * KVM shadows these page tables, that must not change the log.
 */

static void change_entry(struct dirty_bits_test *t, u64 page, u64 value)
{
	add_op(t, OP_WRITE, TABLE_GVA + page * sizeof(u64), value);
	add_op(t, OP_INVLPG, DATA_GPA + page * PAGE_SIZE, 0);
}

/*
 * KVM sees changes of an EPT when L1 executes INVEPT, of an NPT when L2 runs.
 */
static void run_changes(struct dirty_bits_test *t)
{
	if (t->bits == &ept_bits)
		add_op(t, OP_INVEPT, 0, 0);
	run_l1(t);
	run_writer(t);
}

/* Set all entries to their initial value, without the bits in @take. */
static void reset_entries(struct dirty_bits_test *t, u64 take)
{
	for (u64 page = 0; page < NR_PAGES; page++)
		change_entry(t, page, good_entry(t, page) & ~take);
	run_changes(t);
}

static void undo_entries(struct dirty_bits_test *t)
{
	reset_entries(t, 0);
}

/* Clear and set bits in the entries of the pages that were written. */
static void change_written(struct dirty_bits_test *t, u64 take, u64 give)
{
	for (u64 page = 0; page < NR_PAGES; page++)
		if (test_bit(page, t->log))
			change_entry(t, page, (*entry_of(t, page) & ~take) | give);
	run_changes(t);
}

static void happen_readonly(struct dirty_bits_test *t)
{
	change_written(t, PT_WRITABLE_MASK, 0);
}

static void happen_absent(struct dirty_bits_test *t)
{
	change_written(t, ~0ull, 0);
}

static void happen_other_gfn(struct dirty_bits_test *t)
{
	change_written(t, PHYSICAL_PAGE_MASK, OTHER_GPA);
}

static void happen_clean(struct dirty_bits_test *t)
{
	change_written(t, t->bits->dirty, 0);
}

static void happen_old(struct dirty_bits_test *t)
{
	change_written(t, t->bits->accessed, 0);
}

/* Take away nothing but the permission to write, and give it back. */
static void happen_regrant(struct dirty_bits_test *t)
{
	reset_entries(t, PT_WRITABLE_MASK);
	undo_entries(t);
}

/*
 * Set the links to the page tables of the data: to @value, @value + @step, ...
 */
static void change_upper(struct dirty_bits_test *t, u64 value, u64 step)
{
	u64 first = DATA_GPA / SZ_2M % PTES_PER_TABLE;

	for (unsigned int i = 0; i < NR_TABLES; i++)
		add_op(t, OP_WRITE, UPPER_GVA + (first + i) * sizeof(u64), value + i * step);
	for (unsigned int i = 0; i < NR_PAGES; i++)
		add_op(t, OP_INVLPG, DATA_GPA + i * PAGE_SIZE, 0);
	run_changes(t);
}

/* The page tables of the data are consecutive pages. */
static void undo_upper(struct dirty_bits_test *t)
{
	change_upper(t, t->linked, PAGE_SIZE);
}

static void happen_unlink(struct dirty_bits_test *t)
{
	change_upper(t, 0, 0);
}

/* All entries lead to a table that maps a page of zeroes everywhere. */
static void happen_relink(struct dirty_bits_test *t)
{
	change_upper(t, t->zeroes, 0);
	for (unsigned int i = 0; i < NR_PAGES; i++)
		add_op(t, OP_EXPECT, DATA_GPA + i * PAGE_SIZE, 0);
	run_writer(t);
}

static void use_root(struct dirty_bits_test *t, u64 root)
{
	if (t->writer->nested)
		set_l2_root(t, root);
	else
		add_op(t, OP_CR3, root, 0);
	run_writer(t);
}

static void happen_root(struct dirty_bits_test *t)
{
	use_root(t, t->other_root);
}

static void undo_root(struct dirty_bits_test *t)
{
	use_root(t, t->root);
}

/*
 * Check the number of faults that writes to @written mapped pages have cost:
 * none if their SPTEs have Dirty bits.
 */
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

/*
 * The log must be exact, the same when it is read again, and empty after CLEAR.
 */
static void one_round(struct dirty_bits_test *t, const struct event *e, bool mapped)
{
	u64 before = nr_faults(t->vcpu);
	u64 written = write_batch(t);
	u64 faults = nr_faults(t->vcpu) - before;

	if (e->happen)
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

static void run_event(struct dirty_bits_test *t, const struct event *e)
{
	if (e->run) {
		e->run(t);
		return;
	}

	write_all(t);
	start_logging(t);
	/* Enable once more when only some pages of each word were written. */
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

/* A vCPU that writes all the time */

static void await_write(struct dirty_bits_test *t, u64 page)
{
	u64 end = now_ns() + WRITE_TIMEOUT_NS;
	u64 old = content(t, page);

	while (content(t, page) == old)
		CHECK(t, now_ns() < end, "the vCPU doesn't write to page %lu", page);
}

/*
 * The vCPU writes between two ioctls for which KVM flushes TLBs.  The first may
 * have made it exit.  @cached: wait until it has cached the translation again.
 */
static void clear_while_written(struct dirty_bits_test *t, u64 page, bool cached)
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

static void enable_while_written(struct dirty_bits_test *t, u64 page, bool cached)
{
	stop_logging(t);
	if (cached)
		await_write(t, page);
	set_slot(t, DATA_GPA, KVM_MEM_LOG_DIRTY_PAGES);
	await_write(t, page);
	set_bit(page, t->log);
	/* With manual protection all pages are in the log until they are cleared. */
	expect_log(t, t->manual, "written again");
	memset(t->log, 0, LOG_BYTES);
}

static void run_while_written(struct dirty_bits_test *t,
			      void (*round)(struct dirty_bits_test *t, u64 page, bool cached))
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
		round(t, page, i % 2);

	set_stop(t, 1);
	pthread_join(thread, NULL);
	stop_logging(t);
}

static void run_tlb(struct dirty_bits_test *t)
{
	run_while_written(t, clear_while_written);
}

static void run_enable(struct dirty_bits_test *t)
{
	run_while_written(t, enable_while_written);
}

static const struct event events[] = {
	{ "nothing", "nothing happens" },
	{ "mprotect", "the host may only read", happen_mprotect, undo_mprotect },
	{ "dontneed", "the host unmaps memory of a file", happen_dontneed },
	{ "mremap", "the host moves the memory", happen_mremap, undo_mremap },
	{ "fork", "the host copies on write", happen_fork, .private = true },
	{ "collapse", "the host's pages become a huge page", happen_collapse, undo_collapse,
	  .private = true },
	{ "quota", "shadow pages are used for something else", happen_quota, undo_quota },
	{ "delete", "another memslot is deleted", happen_delete, undo_delete },
	{ "flags", "another memslot is logged, and not any more", happen_flags },
	{ "edge", "memory is logged that page tables of four levels don't map", happen_edge,
	  .skip_reason = no_edge },
	{ "move", "the memslot moves", happen_move, undo_move },
	{ "nx", "nx_huge_pages changes", happen_nx, .skip_reason = no_nx },
	{ "reclaim", "the quota of shadow pages is lowered", happen_reclaim },
	{ "device", "the guest reads, and user space writes", happen_device, .more = true },
	{ "prefault", "what is mapped is prefaulted (TDP)", happen_prefault, .more = true },
	{ "readonly", "the guest makes entries read-only", happen_readonly, undo_entries },
	{ "absent", "the guest clears entries", happen_absent, undo_entries },
	{ "other", "the guest makes entries point to another page", happen_other_gfn,
	  undo_entries },
	{ "clean", "the guest clears Dirty bits of its own", happen_clean, undo_entries },
	{ "old", "the guest clears Accessed bits of its own", happen_old, undo_entries },
	{ "regrant", "the guest makes entries read-only and writable again", happen_regrant,
	  .more = true },
	{ "unlink", "the guest unlinks page tables", happen_unlink, undo_upper },
	{ "relink", "the guest uses other page tables", happen_relink, undo_upper },
	{ "root", "the guest uses another root", happen_root, undo_root },
	{ "tlb", "a vCPU writes all the time and stays in the guest", .run = run_tlb },
	{ "enable", "the same, while logging is disabled and enabled", .run = run_enable },
};

int main(int argc, char *argv[])
{
	return dirty_bits_main(argc, argv, events, ARRAY_SIZE(events), run_event);
}
