// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging: writes that come amid the update of an SPTE
 *
 * KVM reads an SPTE, decides what it shall be, and stores that.  What a CPU does
 * to the SPTE between the two, such as setting its Dirty bit, must get into the log.
 *
 * One round: with all vCPUs stopped, take every page out of the log and copy it.
 * Then a vCPU writes to each page once, while something makes KVM change the
 * SPTEs (see events[] below).  Stop everything and get the log: a page that differs
 * from its copy has to be in it.  There is only one write to a page, as a second
 * one would be logged and hide that the first one was lost.
 *
 * With -x nothing is written: what KVM reports then for the changes alone, with Dirty
 * bits, must not be more than what it reports with write protection.
 *
 * With -w, kernels with CONFIG_KVM_PROVE_MMU_RACES pause within each update, between
 * reading and storing; the test fails if they did not.
 *
 * Limits: races are met by chance, more often the longer the pauses and the more
 * rounds.  With write protection nothing can be lost here.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <linux/sizes.h>

#include "kselftest.h"
#include "kvm_util.h"
#include "processor.h"
#include "test_util.h"

#define PARAM_DIR		"/sys/module/kvm/parameters/"
#define PAGE_IDLE		"/sys/kernel/mm/page_idle/bitmap"

/* The pages that are written; some events have the guest use them as page tables. */
#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define NR_PAGES		16u
#define DATA_SIZE		((size_t)NR_PAGES * PAGE_SIZE)

/* Deleted and created again for KVM to drop all of its page tables. */
#define DUMMY_SLOT		11
#define DUMMY_GPA		0x50000000ull

/* More pages than a CPU has in hand before it puts them on the lists of what can be idle. */
#define DUMMY_SIZE		(128ul * PAGE_SIZE)

/* Where the guest sees the page table that maps the pages. */
#define ENTRIES_GVA		0x60000000ull
#define ENTRIES_PER_TABLE	512u

/* What the guest reaches by way of the pages, as level-1 and as level-2 page tables. */
#define LEVEL1_GVA		BIT_ULL(39)
#define LEVEL2_GVA		(2ull << 39)

/* The word that is written: a guest entry that is not present, whatever its value. */
#define WRITTEN_WORD		100u

#define ENTRY_BITS		(PTE_PRESENT_MASK | PTE_WRITABLE_MASK | \
				 PTE_ACCESSED_MASK | PTE_DIRTY_MASK)

#define NR_VCPUS		2u
#define HOST_REPEATS		3u
#define DEFAULT_ROUNDS		500u
#define MAX_PAUSE_US		10000u

enum guest_op {
	OP_NOTHING,
	OP_WRITE,
	OP_CR3,
	OP_TOUCH_LEVEL1,
	OP_TOUCH_LEVEL2,
	OP_PERMIT,
	OP_CLEAN,
	OP_NX,
	OP_READ_ONLY,
};

/* Written by the host while vCPUs are stopped. */
static struct guest_work {
	u64 op;

	/* TSC ticks to wait before the operation, and after each page. */
	u64 delay;
	u64 gap;

	/* The page to begin with, and the step to the next one, which is odd. */
	u64 first;
	u64 step;
} works[NR_VCPUS];

/* TSC ticks that the second vCPU's operation took. */
static u64 guest_took;

static u64 value;
static u64 nr_racers;

/* How many vCPUs have come to the start. */
static u64 nr_ready;

struct window_test {
	struct kvm_vm *vm;
	u8 *hva;
	u8 *dummy;
	u64 target_gpa;
	u64 table_gpa;
	u64 *level1_links;
	u64 *level2_links;
	u64 copy[NR_PAGES];

	/* How long what makes KVM change SPTEs took the last time, in TSC ticks. */
	u64 took;

	/* Rounds so far in which a page was lost, pages lost, and pages in the log. */
	u64 nr_bad_rounds;
	u64 nr_lost;
	u64 nr_logged;
};

/* A vCPU and the thread that runs it once for each post of @go. */
struct racer {
	struct kvm_vcpu *vcpu;
	pthread_t thread;
	sem_t go;
	sem_t done;
	bool end;
};

struct event {
	const char *name;
	const char *what;

	/* Done by the second vCPU, before each round and in it. */
	enum guest_op prepare;
	enum guest_op race;

	/* Done by the host in each round. */
	void (*host)(struct window_test *t);

	/* The pages are page tables of this level. */
	unsigned int level;

	/* KVM has no page tables when the round begins. */
	bool afresh;
};

static unsigned int pause_us;

/* Of the parameter dirty_harvest, to be restored; empty if it wasn't changed. */
static char old_harvest[16];

/*
 * The guest
 */

static void guest_delay(u64 ticks)
{
	u64 since;

	if (!ticks)
		return;

	for (since = rdtsc(); rdtsc() - since < ticks; )
		;
}

/* The write fails if the other vCPU has taken away the right to write. */
static void guest_write(u64 page)
{
	kvm_asm_safe("movq %%rax, (%%rdx)", "a"(READ_ONCE(value)),
		     "d"(DATA_GPA + page * PAGE_SIZE + WRITTEN_WORD * sizeof(u64)));
}

static void guest_reload_cr3(void)
{
	asm volatile("mov %0, %%cr3" : : "r"(get_cr3()) : "memory");
}

static u64 *guest_entry(u64 page)
{
	return (u64 *)ENTRIES_GVA + (DATA_GPA / PAGE_SIZE + page) % ENTRIES_PER_TABLE;
}

/* Change the entry that maps a page. */
static void guest_change_entry(u64 page, u64 clear, u64 set)
{
	WRITE_ONCE(*guest_entry(page), (READ_ONCE(*guest_entry(page)) & ~clear) | set);
}

static void guest_exec_op_on(u64 op, u64 page)
{
	switch (op) {
	case OP_WRITE:
		guest_write(page);
		break;
	case OP_TOUCH_LEVEL1:
		READ_ONCE(*(u64 *)(LEVEL1_GVA + page * SZ_2M));
		break;
	case OP_TOUCH_LEVEL2:
		READ_ONCE(*(u64 *)(LEVEL2_GVA + page * SZ_1G));
		break;
	case OP_PERMIT:
		guest_change_entry(page, PTE_NX_MASK, PTE_WRITABLE_MASK | PTE_DIRTY_MASK);
		break;
	case OP_CLEAN:
		guest_change_entry(page, PTE_DIRTY_MASK, 0);
		break;
	case OP_NX:
		guest_change_entry(page, 0, PTE_NX_MASK);
		break;
	case OP_READ_ONLY:
		guest_change_entry(page, PTE_WRITABLE_MASK, 0);
		break;
	}
}

static bool guest_changes_entries(u64 op)
{
	return op == OP_PERMIT || op == OP_CLEAN || op == OP_NX || op == OP_READ_ONLY;
}

static void guest_exec_op(struct guest_work *work)
{
	u64 i;

	for (i = 0; i < NR_PAGES; i++) {
		guest_exec_op_on(work->op, (work->first + i * work->step) % NR_PAGES);
		guest_delay(work->gap);
	}
	if (work->op == OP_CR3 || guest_changes_entries(work->op))
		guest_reload_cr3();
}

/* Start together with the other vCPU, if it takes part. */
static void guest_wait_for_start(void)
{
	__atomic_add_fetch(&nr_ready, 1, __ATOMIC_SEQ_CST);
	while (READ_ONCE(nr_ready) < READ_ONCE(nr_racers))
		asm volatile("pause");
}

static void guest_main(u64 id)
{
	u64 since;

	/*
	 * Bochs lets no interrupt of the host end the run of a guest that has interrupts
	 * off, so that a vCPU that waits would keep the other one off its CPU.
	 */
	asm volatile("sti" : : : "memory");

	for (;;) {
		GUEST_SYNC(0);
		guest_wait_for_start();
		guest_delay(READ_ONCE(works[id].delay));
		since = rdtsc();
		guest_exec_op(&works[id]);
		if (id)
			guest_took = rdtsc() - since;
	}
}

/*
 * The pauses of debug kernels
 */

static void write_param(const char *name, const char *text)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), PARAM_DIR "%s", name);
	fd = open(path, O_WRONLY);
	TEST_ASSERT(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text),
		    "Can't write %s to %s, errno %d", text, path, errno);
	close(fd);
}

static void set_harvest(const char *mode)
{
	FILE *f;

	if (!*old_harvest) {
		f = fopen(PARAM_DIR "dirty_harvest", "r");
		TEST_ASSERT(f && fscanf(f, "%15s", old_harvest) == 1, "Can't read dirty_harvest");
		fclose(f);
	}
	write_param("dirty_harvest", mode);
}

static void set_pauses(unsigned int us)
{
	char text[16];

	if (!pause_us)
		return;

	snprintf(text, sizeof(text), "%u", us);
	write_param("prove_window_us", text);
}

static void restore_all(void)
{
	set_pauses(0);
	if (*old_harvest)
		write_param("dirty_harvest", old_harvest);
}

static void restore_and_die(int sig)
{
	restore_all();
	signal(sig, SIG_DFL);
	raise(sig);
}

/* How often KVM has paused amid an update, at all places together. */
static u64 nr_pauses(void)
{
	FILE *f = fopen(PARAM_DIR "prove_windows", "r");
	u64 nr, sum = 0;

	while (f && fscanf(f, "%*s %lu", &nr) == 1)
		sum += nr;
	if (f)
		fclose(f);
	return sum;
}

/*
 * What the host does
 */

/* Both MMUs zap the pages when what is permitted changes, and leave the memory alone. */
static void host_mprotect(struct window_test *t)
{
	unsigned int i;

	for (i = 0; i < HOST_REPEATS; i++) {
		TEST_ASSERT(!mprotect(t->hva, DATA_SIZE, PROT_READ | PROT_WRITE | PROT_EXEC),
			    "mprotect() failed, errno %d", errno);
		TEST_ASSERT(!mprotect(t->hva, DATA_SIZE, PROT_READ | PROT_WRITE),
			    "mprotect() failed, errno %d", errno);
	}
}

static void set_dummy(struct window_test *t, size_t size)
{
	vm_set_user_memory_region(t->vm, DUMMY_SLOT, 0, DUMMY_GPA, size, t->dummy);
}

/* Have KVM drop all of its page tables. */
static void host_delete_slot(struct window_test *t)
{
	set_dummy(t, 0);
	set_dummy(t, PAGE_SIZE);
}

static u64 pfn_of(const void *p)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	u64 entry = 0;

	TEST_ASSERT(fd >= 0 && pread(fd, &entry, sizeof(entry),
				     (u64)p / PAGE_SIZE * sizeof(entry)) == sizeof(entry),
		    "Can't read /proc/self/pagemap, errno %d", errno);
	close(fd);
	return entry & (BIT_ULL(55) - 1);
}

/*
 * Tell the host that the pages are idle: it takes Accessed bits away.  The host writes
 * nothing for the very last pages of memory.
 */
static void host_age(struct window_test *t)
{
	int fd = open(PAGE_IDLE, O_WRONLY);
	unsigned int page;
	u64 pfn, bit;

	TEST_ASSERT(fd >= 0, "Can't open " PAGE_IDLE ", errno %d", errno);
	for (page = 0; page < NR_PAGES; page++) {
		pfn = pfn_of(t->hva + page * PAGE_SIZE);
		bit = BIT_ULL(pfn % 64);
		TEST_ASSERT(pwrite(fd, &bit, sizeof(bit), pfn / 64 * sizeof(bit)) >= 0,
			    "Can't write to " PAGE_IDLE ", errno %d", errno);
	}
	close(fd);
}

static const struct event events[] = {
	{
		.name = "cr3",
		.what = "pages that are unsynchronized page tables become synchronized",
		.prepare = OP_TOUCH_LEVEL1, .race = OP_CR3, .level = 1,
	},
	{
		.name = "level1",
		.what = "pages become level-1 page tables",
		.race = OP_TOUCH_LEVEL1, .level = 1, .afresh = true,
	},
	{
		.name = "level2",
		.what = "pages become level-2 page tables",
		.race = OP_TOUCH_LEVEL2, .level = 2, .afresh = true,
	},
	{
		.name = "clean",
		.what = "Dirty bits of the guest's entries are taken away",
		.prepare = OP_PERMIT, .race = OP_CLEAN,
	},
	{
		.name = "nx",
		.what = "the guest's entries become not executable",
		.prepare = OP_PERMIT, .race = OP_NX,
	},
	{
		.name = "readonly",
		.what = "the guest's entries become read-only",
		.prepare = OP_PERMIT, .race = OP_READ_ONLY,
	},
	{
		.name = "mprotect",
		.what = "an MMU notifier zaps the pages",
		.host = host_mprotect,
	},
	{
		.name = "delete",
		.what = "all page tables are zapped",
		.host = host_delete_slot,
	},
	{
		.name = "age",
		.what = "the host looks for idle pages",
		.host = host_age,
	},
};

/*
 * The VM
 */

static u64 *entry_of(struct window_test *t, u64 gva, int level)
{
	return __vm_get_page_table_entry(t->vm, gva, &level);
}

static u64 table_of(struct window_test *t, u64 gva)
{
	return addr_hva2gpa(t->vm, entry_of(t, gva, PG_LEVEL_4K)) & ~(PAGE_SIZE - 1ull);
}

/* Make the pages page tables that lead to the target. */
static void link_pages(struct window_test *t, unsigned int level)
{
	u64 next = level == 1 ? t->target_gpa : t->table_gpa;
	u64 *links = level == 1 ? t->level1_links : t->level2_links;
	u64 page;

	for (page = 0; page < NR_PAGES; page++) {
		*(u64 *)(t->hva + page * PAGE_SIZE) = next | ENTRY_BITS;
		links[page] = (DATA_GPA + page * PAGE_SIZE) | ENTRY_BITS;
	}
}

static void create_vm(struct window_test *t, struct kvm_vcpu *vcpus[], unsigned int level)
{
	u64 gva;
	unsigned int i;

	t->vm = vm_create(NR_VCPUS);
	for (i = 0; i < NR_VCPUS; i++) {
		vcpus[i] = vm_vcpu_add(t->vm, i, guest_main);
		vcpu_args_set(vcpus[i], 1, (u64)i);
	}
	vm_enable_cap(t->vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
		      KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, NR_PAGES,
				    KVM_MEM_LOG_DIRTY_PAGES);
	t->hva = addr_gpa2hva(t->vm, DATA_GPA);
	memset(t->hva, 0, DATA_SIZE);
	memset(t->dummy, 0, DUMMY_SIZE);
	set_dummy(t, PAGE_SIZE);
	virt_map(t->vm, DATA_GPA, DATA_GPA, NR_PAGES);
	virt_map(t->vm, ENTRIES_GVA, table_of(t, DATA_GPA), 1);

	gva = vm_vaddr_alloc_page(t->vm);
	t->target_gpa = addr_gva2gpa(t->vm, gva);
	virt_map(t->vm, LEVEL1_GVA, t->target_gpa, 1);
	virt_map(t->vm, LEVEL2_GVA, t->target_gpa, 1);
	t->table_gpa = table_of(t, LEVEL2_GVA);
	t->level1_links = entry_of(t, LEVEL1_GVA, PG_LEVEL_2M);
	t->level2_links = entry_of(t, LEVEL2_GVA, PG_LEVEL_1G);
	if (level)
		link_pages(t, level);
}

/*
 * Running
 */

static void *racer_main(void *arg)
{
	struct racer *r = arg;

	for (;;) {
		sem_wait(&r->go);
		if (r->end)
			return NULL;

		vcpu_run(r->vcpu);
		TEST_ASSERT(get_ucall(r->vcpu, NULL) == UCALL_SYNC,
			    "The guest ended, exit reason %s",
			    exit_reason_str(r->vcpu->run->exit_reason));
		sem_post(&r->done);
	}
}

static void start_racer(struct racer *r, struct kvm_vcpu *vcpu)
{
	r->vcpu = vcpu;
	r->end = false;
	sem_init(&r->go, 0, 0);
	sem_init(&r->done, 0, 0);
	TEST_ASSERT(!pthread_create(&r->thread, NULL, racer_main, r), "Can't create a thread");
}

static void end_racer(struct racer *r)
{
	r->end = true;
	sem_post(&r->go);
	pthread_join(r->thread, NULL);
}

static void send_works(struct window_test *t, unsigned int nr)
{
	nr_ready = 0;
	nr_racers = nr;
	sync_global_to_guest(t->vm, nr_ready);
	sync_global_to_guest(t->vm, nr_racers);
	sync_global_to_guest(t->vm, works);
	sync_global_to_guest(t->vm, value);
}

/* Have one vCPU do one thing, with nothing beside it. */
static void run_alone(struct window_test *t, struct racer *r, unsigned int id, enum guest_op op)
{
	works[id] = (struct guest_work){ .op = op, .step = 1 };
	send_works(t, 1);
	sem_post(&r->go);
	sem_wait(&r->done);
}

static u64 random_below(u64 nr)
{
	return nr ? random() % nr : 0;
}

/*
 * One vCPU writes while the other, or the host, is busy: from a random moment on, all at
 * once or with pauses.  KVM most often goes from the first page to the last.  A write to
 * a page that KVM is done with waits until all are done, so most often go backwards.
 */
static struct guest_work writes_for(u64 ticks)
{
	return (struct guest_work){
		.op = OP_WRITE,
		.delay = random_below(ticks),
		.gap = random() % 2 ? random_below(ticks / NR_PAGES) : 0,
		.first = NR_PAGES - 1 - random() % 4,
		.step = random() % 4 ? NR_PAGES - 1 : random() | 1,
	};
}

/* Do what the host does as soon as the vCPU has started. */
static void run_host(struct window_test *t, const struct event *e)
{
	u64 *ready = addr_gva2hva(t->vm, (vm_vaddr_t)&nr_ready);
	u64 since;

	while (!READ_ONCE(*ready))
		;
	since = rdtsc();
	e->host(t);
	t->took = rdtsc() - since;
}

static void run_race(struct window_test *t, struct racer *racers, const struct event *e)
{
	unsigned int nr = e->race == OP_NOTHING ? 1 : NR_VCPUS;
	unsigned int i;

	works[0] = writes_for(t->took);
	works[1] = (struct guest_work){ .op = e->race, .step = 1 };
	send_works(t, nr);
	set_pauses(pause_us);
	for (i = 0; i < nr; i++)
		sem_post(&racers[i].go);
	if (e->host)
		run_host(t, e);
	for (i = 0; i < nr; i++)
		sem_wait(&racers[i].done);
	set_pauses(0);
	if (!e->host) {
		sync_global_from_guest(t->vm, guest_took);
		t->took = guest_took;
	}
}

static u64 word_of(struct window_test *t, unsigned int page)
{
	return READ_ONCE(((u64 *)(t->hva + page * PAGE_SIZE))[WRITTEN_WORD]);
}

/* Have all pages mapped, written and in the log, then take them out of it. */
static void prepare(struct window_test *t, struct racer *racers, const struct event *e)
{
	unsigned long log = 0;
	unsigned int page;

	if (e->afresh)
		host_delete_slot(t);
	if (e->prepare != OP_NOTHING)
		run_alone(t, &racers[1], 1, e->prepare);
	value += 2;
	run_alone(t, &racers[0], 0, OP_WRITE);
	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, &log);
	kvm_vm_clear_dirty_log(t->vm, DATA_SLOT, &log, 0, NR_PAGES);
	for (page = 0; page < NR_PAGES; page++)
		t->copy[page] = word_of(t, page);
}

static void check_log(struct window_test *t, const struct event *e)
{
	unsigned int page, lost = 0;
	unsigned long log = 0;

	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, &log);
	for (page = 0; page < NR_PAGES; page++)
		lost += word_of(t, page) != t->copy[page] && !(log >> page & 1);

	t->nr_bad_rounds += !!lost;
	t->nr_lost += lost;
	t->nr_logged += __builtin_popcountl(log);
}

/* What a round is: writes beside what happens, or what happens alone. */
static void run_round(struct window_test *t, struct racer *racers, const struct event *e,
		      bool alone)
{
	prepare(t, racers, e);
	value += 2;
	if (!alone)
		run_race(t, racers, e);
	else if (e->host)
		e->host(t);
	else
		run_alone(t, &racers[1], 1, e->race);
	check_log(t, e);
}

static struct window_test run_rounds(const struct event *e, unsigned int rounds, bool alone)
{
	struct kvm_vcpu *vcpus[NR_VCPUS];
	struct racer racers[NR_VCPUS];
	struct window_test t = {};
	unsigned int i;

	t.dummy = mmap(NULL, DUMMY_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);
	TEST_ASSERT(t.dummy != MAP_FAILED, "mmap() failed, errno %d", errno);
	create_vm(&t, vcpus, e->level);
	for (i = 0; i < NR_VCPUS; i++) {
		start_racer(&racers[i], vcpus[i]);
		run_alone(&t, &racers[i], i, OP_NOTHING);
	}
	for (i = 0; i < rounds; i++)
		run_round(&t, racers, e, alone);
	for (i = 0; i < NR_VCPUS; i++)
		end_racer(&racers[i]);
	kvm_vm_free(t.vm);
	munmap(t.dummy, DUMMY_SIZE);
	return t;
}

static void run_excess(const struct event *e, unsigned int rounds)
{
	u64 wrprot, harvest;

	set_harvest("off");
	wrprot = run_rounds(e, rounds, true).nr_logged;
	set_harvest("on");
	harvest = run_rounds(e, rounds, true).nr_logged;
	ksft_print_msg("%s: %u rounds, no write: %lu in the log if protected, %lu by Dirty bits\n",
		       e->name, rounds, wrprot, harvest);
	ksft_test_result(harvest <= wrprot, "%s: %s\n", e->name, e->what);
}

static void run_event(const struct event *e, unsigned int rounds)
{
	u64 before = nr_pauses(), paused;
	struct window_test t = run_rounds(e, rounds, false);

	paused = nr_pauses() - before;
	ksft_print_msg("%s: %u rounds, %lu pauses, %lu pages lost in %lu rounds\n", e->name, rounds,
		       paused, t.nr_lost, t.nr_bad_rounds);
	if (pause_us && !paused)
		ksft_print_msg("%s: KVM never paused\n", e->name);
	ksft_test_result(!t.nr_lost && (paused || !pause_us), "%s: %s\n", e->name, e->what);
}

/* Why there is nothing to see, or NULL. */
static const char *why_not(const struct event *e)
{
	if (!e->host && kvm_is_tdp_enabled())
		return "no page tables of the guest are shadowed";
	if (e->host == host_age && access(PAGE_IDLE, W_OK))
		return "the kernel has no " PAGE_IDLE;

	return NULL;
}

static void try_event(const struct event *e, unsigned int rounds, bool excess)
{
	const char *reason = why_not(e);

	if (reason)
		ksft_test_result_skip("%s: %s\n", e->name, reason);
	else if (excess)
		run_excess(e, rounds);
	else
		run_event(e, rounds);
}

static void print_help(FILE *f, const char *name)
{
	unsigned int i;

	fprintf(f, "usage: %s [-h] [-e EVENT]... [-n ROUNDS] [-w US] [-x] [-s SEED]\n\n"
		" -e: only this event; can be given several times\n"
		" -n: rounds of each event (default: %u)\n"
		" -w: pause within each update of an SPTE, in microseconds (1 to %u)\n"
		" -x: write nothing; no more may be reported than with write protection\n"
		" -s: seed of the delays (default: 1)\n\n"
		"events:\n", name, DEFAULT_ROUNDS, MAX_PAUSE_US);
	for (i = 0; i < ARRAY_SIZE(events); i++)
		fprintf(f, "  %-10s %s\n", events[i].name, events[i].what);
}

static void __noreturn complain(const char *what, const char *text)
{
	fprintf(stderr, "%s: %s; see -h\n", text, what);
	exit(2);
}

static unsigned int parse_number(const char *text, unsigned long most, const char *what)
{
	char *end;
	unsigned long nr = strtoul(text, &end, 0);

	if (!*text || *end || !nr || nr > most)
		complain(what, text);
	return nr;
}

static unsigned int parse_event(const char *text)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(events); i++)
		if (!strcmp(events[i].name, text))
			return i;
	complain("no such event", text);
}

int main(int argc, char *argv[])
{
	unsigned int rounds = DEFAULT_ROUNDS, i;
	unsigned long chosen = 0;
	bool excess = false;
	int opt;

	srandom(1);
	while ((opt = getopt(argc, argv, "he:n:w:xs:")) != -1) {
		switch (opt) {
		case 'e':
			chosen |= BIT(parse_event(optarg));
			break;
		case 'n':
			rounds = parse_number(optarg, UINT_MAX, "not a number of rounds");
			break;
		case 'w':
			pause_us = parse_number(optarg, MAX_PAUSE_US, "not a pause");
			break;
		case 'x':
			excess = true;
			break;
		case 's':
			srandom(parse_number(optarg, UINT_MAX, "not a seed"));
			break;
		default:
			print_help(opt == 'h' ? stdout : stderr, argv[0]);
			return opt == 'h' ? 0 : 2;
		}
	}
	if (optind < argc)
		complain("not an option", argv[optind]);

	__TEST_REQUIRE(!pause_us || !access(PARAM_DIR "prove_window_us", W_OK),
		       "The kernel has no parameter kvm.prove_window_us");
	chosen = chosen ?: BIT(ARRAY_SIZE(events)) - 1;
	atexit(restore_all);
	signal(SIGINT, restore_and_die);
	signal(SIGTERM, restore_and_die);
	signal(SIGHUP, restore_and_die);

	ksft_print_header();
	ksft_set_plan(__builtin_popcountl(chosen));
	for (i = 0; i < ARRAY_SIZE(events); i++)
		if (chosen & BIT(i))
			try_event(&events[i], rounds, excess);
	ksft_finished();
}
