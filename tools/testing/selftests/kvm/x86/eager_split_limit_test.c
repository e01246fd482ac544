// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting near the limit of a memory cgroup
 *
 * A VM that survives dirty logging with kvm.eager_page_split=N must survive it
 * with Y, too.  The splitter allocates page tables that no vCPU is waiting for.
 * They must not use up the memory that vCPUs and the VMM need next, or the OOM
 * killer kills the VM.
 *
 * Each try is a child process with a cgroup of its own.  The child creates a
 * guest that is mapped by huge pages, sets the limit of the cgroup so that only
 * some KiB (the room) are left, and runs some rounds of dirty logging.  In each
 * round, the guest writes to the last quarter of its huge pages, which the
 * splitter reaches last.  The test tries several sizes of the room, with huge
 * pages that are split by enabling and with huge pages that are split by CLEAR.
 * It skips a room if the VM is killed with N.
 *
 * The test fails if
 *  - the VM is killed with Y, but not with N;
 *  - a page that the guest has written is missing from the log;
 *  - the room is too small to split all huge pages, but KVM does not stop
 *    splitting early (statistic eager_split_nomem).  Memory that could be
 *    reclaimed does not count as room;
 *  - the room is large enough, but KVM stops early.
 *
 * All huge pages of the guest are one and the same page of the host, for which
 * no cgroup is charged.
 *
 * It needs root, cgroup2 with the memory controller, and one free 2MiB HugeTLB
 * page.
 */
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "eager_split_util.h"

#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define NR_HUGE			2048ul
#define DATA_SIZE		(NR_HUGE * SZ_2M)
#define NR_PAGES		(NR_HUGE * PAGES_PER_2M)

/*
 * The guest writes some pages of each huge page in the last quarter.  The page
 * tables for these pages need more memory than KVM leaves free for the VMM and
 * for the caches of vCPUs.
 */
#define NR_WRITTEN		(NR_HUGE / 4)
#define FIRST_WRITTEN		(NR_HUGE - NR_WRITTEN)
#define PAGE_STEP		64

#define NR_VCPUS		2
#define NR_ROUNDS		3

/* What the VMM allocates in each round. */
#define VMM_SIZE		(4 * PAGE_SIZE)

#define CGROUP			"/tmp/eager_split_limit"
#define CGROUP_CHILD		CGROUP "/eager_split_limit_test"

/* KiB that are left below the limit, and KiB in use that can be reclaimed. */
struct room {
	unsigned long free;
	unsigned long reclaimable;
};

static const struct room rooms[] = {
	{ 2500 }, { 3500 }, { 5000 }, { 8000 }, { 24576 }, { 3500, 24576 },
};

#define NR_ROOMS		ARRAY_SIZE(rooms)

/* Enough to split all huge pages. */
#define ROOM_FOR_ALL		24576ul

/* What a try, which is a child process, reports to its parent. */
static struct report {
	bool done;
	u64 nr_missing;
	u64 nr_split;
	u64 nr_nomem;
	/* The longest of its rounds. */
	u64 enable_ns;
	u64 clear_ns;
} *report;

/* Tries with eager splitting in which the VM survived. */
static unsigned int nr_judged;

static struct kvm_vcpu *vcpus[NR_VCPUS];
static struct kvm_vm *vm;
static void *mem;
static unsigned long log[NR_PAGES / BITS_PER_WORD];

static void guest_main(u64 id)
{
	for (u64 i = id; i < NR_HUGE; i += NR_VCPUS)
		WRITE_ONCE(*(u64 *)(DATA_GPA + i * SZ_2M), i);
	GUEST_SYNC(0);

	for (;;) {
		for (u64 i = FIRST_WRITTEN + id; i < NR_HUGE; i += NR_VCPUS)
			for (u64 page = 0; page < PAGES_PER_2M; page += PAGE_STEP)
				WRITE_ONCE(*(u64 *)(DATA_GPA + i * SZ_2M + page * PAGE_SIZE), i);
		GUEST_SYNC(1);
	}
}

static void run_vcpus(void)
{
	for (int i = 0; i < NR_VCPUS; i++)
		vcpu_run_to_sync(vcpus[i], NULL);
}

static void set_logging(bool on)
{
	vm_set_user_memory_region(vm, DATA_SLOT, on ? KVM_MEM_LOG_DIRTY_PAGES : 0, DATA_GPA,
				  DATA_SIZE, mem);
}

/* One huge page of the host for all of the guest's. */
static void map_data(void)
{
	mem = reserve_2m_aligned(DATA_SIZE);
	map_one_2m_page(mem, DATA_SIZE);
}

static void create_vm(bool clear)
{
	vm = vm_create(NR_VCPUS);
	if (clear)
		vm_enable_manual_protect(vm, true);
	for (int i = 0; i < NR_VCPUS; i++) {
		vcpus[i] = vm_vcpu_add(vm, i, guest_main);
		vcpu_args_set(vcpus[i], 1, (u64)i);
	}
	map_data();
	set_logging(false);
	virt_map_level(vm, DATA_GPA, DATA_GPA, DATA_SIZE, PG_LEVEL_2M);
	memset(log, 0xff, sizeof(log));
	run_vcpus();
	TEST_ASSERT(vm_get_stat(vm, pages_2m) >= NR_HUGE, "The guest isn't mapped by huge pages");
}

static u64 nr_missing(void)
{
	unsigned long i, missing = 0;

	for (i = FIRST_WRITTEN * PAGES_PER_2M; i < NR_PAGES; i += PAGE_STEP)
		missing += !test_bit(i, log);
	return missing;
}

static void allocate_some(void)
{
	void *p = map_memory(VMM_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	memset(p, 1, VMM_SIZE);
	munmap(p, VMM_SIZE);
}

/* Allocate memory that the kernel reclaims only when it needs memory. */
static void allocate_reclaimable(unsigned long kib)
{
	size_t size = kib * SZ_1K;
	void *p;

	if (!kib)
		return;

	p = map_memory(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memset(p, 1, size);
	TEST_ASSERT(!madvise(p, size, MADV_FREE), "MADV_FREE, errno %d", errno);
}

static void run_round(bool clear)
{
	u64 since = now_ns(), ns;

	set_logging(true);
	ns = now_ns() - since;
	report->enable_ns = max(report->enable_ns, ns);

	if (clear) {
		kvm_vm_get_dirty_log(vm, DATA_SLOT, log);
		since = now_ns();
		kvm_vm_clear_dirty_log(vm, DATA_SLOT, log, 0, NR_PAGES);
		ns = now_ns() - since;
		report->clear_ns = max(report->clear_ns, ns);
	}
	allocate_some();
	run_vcpus();
	kvm_vm_get_dirty_log(vm, DATA_SLOT, log);
	report->nr_missing += nr_missing();
	set_logging(false);
}

/* Cgroups */

static unsigned long cgroup_read(const char *path)
{
	char text[SETTING_MAX] = { };

	TEST_ASSERT(read_file(path, text, sizeof(text)), "Can't read %s, errno %d", path, errno);
	return strtoul(text, NULL, 10);
}

static void cgroup_write(const char *path, unsigned long value)
{
	char text[SETTING_MAX];

	snprintf(text, sizeof(text), "%lu", value);
	TEST_ASSERT(write_file(path, text), "Can't write %s, errno %d", path, errno);
}

static const char *cgroup_prepare(void)
{
	mkdir(CGROUP, 0700);
	if (mount("none", CGROUP, "cgroup2", 0, NULL))
		return "no cgroup2 can be mounted";
	if (!write_file(CGROUP "/cgroup.subtree_control", "+memory")) {
		umount(CGROUP);
		return "the kernel has no memory controller for cgroup2";
	}
	return NULL;
}

static void try_logging(bool clear, const struct room *room)
{
	cgroup_write(CGROUP_CHILD "/cgroup.procs", 0);
	create_vm(clear);
	allocate_reclaimable(room->reclaimable);
	cgroup_write(CGROUP_CHILD "/memory.max",
		     cgroup_read(CGROUP_CHILD "/memory.current") + room->free * SZ_1K);
	for (int i = 0; i < NR_ROUNDS; i++)
		run_round(clear);
	report->nr_split = vm_get_stat_or_zero(vm, "eager_split_done");
	report->nr_nomem = vm_get_stat_or_zero(vm, "eager_split_nomem");
	report->done = true;
}

/* Return: true if the VM survived. */
static bool run_try(bool clear, const struct room *room, bool eager)
{
	int status;
	pid_t pid;

	memset(report, 0, sizeof(*report));
	setting_set(PARAM_EAGER, eager ? "Y" : "N");
	TEST_ASSERT(!mkdir(CGROUP_CHILD, 0700), "Can't create a cgroup, errno %d", errno);
	fflush(stdout);
	pid = fork();
	TEST_ASSERT(pid >= 0, "Can't fork, errno %d", errno);
	if (!pid) {
		try_logging(clear, room);
		fflush(stdout);
		_exit(0);
	}

	pid = waitpid(pid, &status, 0);
	TEST_ASSERT(pid > 0, "waitpid, errno %d", errno);
	/* The cgroup is busy until the VM is gone. */
	while (rmdir(CGROUP_CHILD))
		usleep(1000);

	ksft_print_msg("%s, room %lu + %lu KiB, eager_page_split=%c: %s\n",
		       clear ? "clear" : "enable", room->free, room->reclaimable,
		       eager ? 'Y' : 'N',
		       report->done ? "lives" : WIFSIGNALED(status) ? "KILLED" : "FAILED");
	ksft_print_msg("    %lu split, %lu x no memory; enabling %lu us, CLEAR %lu us\n",
		       report->nr_split, report->nr_nomem, report->enable_ns / NSEC_PER_USEC,
		       report->clear_ns / NSEC_PER_USEC);
	TEST_ASSERT(report->done || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL),
		    "The try failed, status 0x%x", status);
	TEST_ASSERT(!report->nr_missing, "%lu pages were written and aren't in the log",
		    report->nr_missing);
	return report->done;
}

static void run_room(bool clear, const struct room *room)
{
	bool for_all = room->free >= ROOM_FOR_ALL;
	const char *how = clear ? "clear" : "enable";

	/* If the VM is killed even with N, the room is too small to judge Y. */
	if (!run_try(clear, room, false)) {
		ksft_test_result_skip("%s, %lu + %lu KiB of room: too little without as well\n",
				      how, room->free, room->reclaimable);
		return;
	}

	if (run_try(clear, room, true)) {
		nr_judged++;
		TEST_ASSERT(!report->nr_nomem == for_all, "%lu + %lu KiB of room: %lu x no memory",
			    room->free, room->reclaimable, report->nr_nomem);
		/* What the TDP MMU splits isn't counted. */
		TEST_ASSERT(!for_all || is_tdp_mmu() || report->nr_split >= NR_HUGE,
			    "With enough memory %lu of %lu were split", report->nr_split, NR_HUGE);
	}
	ksft_test_result(report->done,
			 "%s, %lu + %lu KiB of room: lives as without eager splitting\n", how,
			 room->free, room->reclaimable);
}

int main(int argc, char *argv[])
{
	unsigned int i;
	const char *reason;
	u64 kib = 0;
	const struct test_option options[] = {
		{ 'r', "room", "KiB of room in the cgroup (default: several)",
		  .number = &kib, .min = 4, .max = UINT_MAX },
		{ }
	};

	parse_test_options(argc, argv, options, NULL);
	ksft_print_header();
	if (!nr_free_2m_pages())
		ksft_exit_skip("There is no 2MiB HugeTLB page\n");
	if (!setting_exists(PARAM_EAGER))
		ksft_exit_skip(PARAM_EAGER " can't be written\n");
	reason = cgroup_prepare();
	if (reason)
		ksft_exit_skip("%s\n", reason);

	ksft_set_plan(2 * (kib ? 1 : NR_ROOMS));
	report = map_memory(sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			    -1);
	for (int clear = 0; clear < 2; clear++) {
		for (i = 0; i < (kib ? 1 : NR_ROOMS); i++) {
			struct room asked = { kib };

			run_room(clear, kib ? &asked : &rooms[i]);
		}
	}
	umount(CGROUP);
	/*
	 * At least half of the tries must say something, with -r each of them.
	 */
	TEST_ASSERT(nr_judged >= (kib ? 2 : 6) || ksft_get_fail_cnt(),
		    "%u rooms say nothing about eager splitting", nr_judged);
	ksft_finished();
}
