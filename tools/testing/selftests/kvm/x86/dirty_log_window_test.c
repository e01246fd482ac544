// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging: writes while KVM updates an SPTE
 *
 * KVM reads an SPTE, and then stores to it.  If a CPU changes the SPTE in
 * between, e.g. sets its Dirty bit, the write must not be missing from the log.
 *
 * In each round, all vCPUs are stopped first, and the host takes all pages out
 * of the log and copies them.  Then
 *  - for most events (see events[]), a vCPU writes to each page once, while
 *    another vCPU or the host makes KVM change the SPTEs.  There is only one
 *    write per page, as a second write would be logged and hide the loss of the
 *    first one;
 *  - for "log" and "unmap", the host gets and clears the log while another
 *    thread makes KVM change the SPTEs.  Pages that were written before must be
 *    in this log, and pages that are written afterwards in the next one.
 * In the end, everything stops, and the host gets the log.  The test fails if a
 * page differs from its copy, and is not in the log.
 *
 * With -w, kernels with CONFIG_KVM_PROVE_MMU_RACES pause within each update,
 * between reading and storing.  The test fails if they did not pause.
 *
 * With -x, the guest writes nothing.  With Dirty bits, KVM must then not report
 * more pages than with write protection.
 *
 * Events of the guest need shadow paging.  "age" and "log" need page_idle.
 *
 * Limits: the test hits races by chance, more often with longer pauses and more
 * rounds.  With write protection, only "log" can lose a write.
 */
#include <semaphore.h>

#include "eager_split_util.h"

/*
 * The pages that are written.  In some events, the guest uses them as page
 * tables.
 */
#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define NR_PAGES		16u
#define DATA_SIZE		((size_t)NR_PAGES * PAGE_SIZE)

/*
 * One word of the log, which KVM handles as a whole.  Most pages are only read.
 */
#define SLOT_PAGES		64u

#define NR_VCPUS		2u

#define PAGE_IDLE		"/sys/kernel/mm/page_idle/bitmap"

/*
 * The word that is written.  Its values are those of non-present guest entries.
 */
#define WRITTEN_WORD		100u

/* A memslot that is deleted so that KVM zaps all of its page tables. */
#define DUMMY_SLOT		11
#define DUMMY_GPA		0x50000000ull

/*
 * More pages than a CPU batches before it adds them to the LRU, see host_age().
 */
#define DUMMY_SIZE		(128ul * PAGE_SIZE)

/* Where the guest maps the page table that maps the pages. */
#define ENTRIES_GVA		0x60000000ull
#define ENTRIES_PER_TABLE	512u

/* What the pages map when they are used as level-1 or level-2 page tables. */
#define LEVEL1_GVA		BIT_ULL(39)
#define LEVEL2_GVA		(2ull << 39)

#define HOST_REPEATS		3u
#define DEFAULT_ROUNDS		500u

enum guest_op {
	OP_NOTHING, OP_WRITE, OP_CR3, OP_TOUCH_LEVEL1, OP_TOUCH_LEVEL2,
	OP_PERMIT, OP_CLEAN, OP_NX, OP_READ_ONLY, OP_CLEAN_TABLE, OP_READ_SLOT,
};

struct guest_work {
	u64 op;
	/* TSC ticks to wait before the operation, and after each page. */
	u64 delay;
	u64 gap;
	/* The first page, and the step to the next one, an odd number. */
	u64 first;
	u64 step;
};

/* A vCPU and the thread that runs it once for each post of @go. */
struct racer {
	struct kvm_vcpu *vcpu;
	pthread_t thread;
	sem_t go;
	sem_t done;
	bool end;
};

struct window_test {
	const struct event *e;
	struct kvm_vm *vm;
	struct racer racers[NR_VCPUS];
	u8 *hva;
	u8 *dummy;
	u64 target_gpa;
	u64 table_gpa;
	u64 *level1_links;
	u64 *level2_links;
	u64 copy[NR_PAGES];
	/* TSC ticks that the event took in the last round. */
	u64 took;
	/* Rounds that have lost a page, pages lost, and pages in the log. */
	u64 nr_bad_rounds;
	u64 nr_lost;
	u64 nr_logged;
};

struct event {
	const char *name;
	const char *what;
	/* What the second vCPU does before each round, and in it. */
	enum guest_op prepare;
	enum guest_op race;
	/* What the host does in each round. */
	void (*host)(struct window_test *t);
	/* The event races with GET and CLEAR, not with writes. */
	bool log;
	/* The pages are page tables of this level. */
	unsigned int level;
	/* KVM has no page tables when the round begins. */
	bool afresh;
};

/*
 * What each vCPU does, how many vCPUs take part, and the value that they write.
 * The host sets these while the vCPUs are stopped.
 */
static struct guest_work works[NR_VCPUS];
static u64 nr_racers;
static u64 value;

/*
 * TSC ticks that the second vCPU took, and how many vCPUs are ready to start.
 */
static u64 guest_took;
static u64 nr_ready;

/* The guest */

static void guest_delay(u64 ticks)
{
	if (!ticks)
		return;

	for (u64 since = rdtsc(); rdtsc() - since < ticks; )
		;
}

/* The write faults if the other vCPU has made the guest entry read-only. */
static void guest_write(u64 page)
{
	kvm_asm_safe("movq %%rax, (%%rdx)", "a"(READ_ONCE(value)),
		     "d"(DATA_GPA + page * PAGE_SIZE + WRITTEN_WORD * sizeof(u64)));
}

static u64 *guest_entry(u64 page)
{
	return (u64 *)ENTRIES_GVA + (DATA_GPA / PAGE_SIZE + page) % ENTRIES_PER_TABLE;
}

/*
 * Which bits of the guest entry of a page an operation clears, and which it
 * sets.
 */
static const struct {
	u64 clear;
	u64 set;
} changes[] = {
	[OP_PERMIT] = { PT_NX_MASK, PT_WRITABLE_MASK | PT_DIRTY_MASK },
	[OP_CLEAN] = { PT_DIRTY_MASK, 0 },
	[OP_NX] = { 0, PT_NX_MASK },
	[OP_READ_ONLY] = { PT_WRITABLE_MASK, 0 },
	[OP_CLEAN_TABLE] = { PT_DIRTY_MASK, 0 },
	[OP_READ_SLOT] = { 0, 0 },
};

static bool guest_changes_entries(u64 op)
{
	return changes[op].clear || changes[op].set;
}

/* Read @page and each NR_PAGES-th page behind it. */
static void guest_read_slot(u64 page)
{
	for (; page < SLOT_PAGES; page += NR_PAGES)
		READ_ONCE(*(u64 *)(DATA_GPA + page * PAGE_SIZE));
}

static void guest_exec_op_on(u64 op, u64 page)
{
	if (op == OP_WRITE)
		guest_write(page);
	if (op == OP_TOUCH_LEVEL1 || op == OP_CLEAN_TABLE)
		READ_ONCE(*(u64 *)(LEVEL1_GVA + page * SZ_2M));
	if (op == OP_TOUCH_LEVEL2)
		READ_ONCE(*(u64 *)(LEVEL2_GVA + page * SZ_1G));
	if (guest_changes_entries(op))
		WRITE_ONCE(*guest_entry(page),
			   (READ_ONCE(*guest_entry(page)) & ~changes[op].clear) | changes[op].set);
	if (op == OP_READ_SLOT)
		guest_read_slot(page);
}

static void guest_exec_op(struct guest_work *work)
{
	for (u64 i = 0; i < NR_PAGES; i++) {
		guest_exec_op_on(work->op, (work->first + i * work->step) % NR_PAGES);
		guest_delay(work->gap);
	}
	if (work->op == OP_CR3 || guest_changes_entries(work->op))
		asm volatile("mov %0, %%cr3" : : "r"(get_cr3()) : "memory");
}

static void guest_main(u64 id)
{
	u64 since;

	/*
	 * In Bochs, interrupts of the host do not cause exits while the guest
	 * has interrupts off.  A waiting vCPU would then never give its CPU to
	 * the other vCPU.
	 */
	asm volatile("sti" : : : "memory");

	for (;;) {
		GUEST_SYNC(0);
		/* Start together with the other vCPU, if it takes part. */
		__atomic_add_fetch(&nr_ready, 1, __ATOMIC_SEQ_CST);
		while (READ_ONCE(nr_ready) < READ_ONCE(nr_racers))
			asm volatile("pause");
		guest_delay(READ_ONCE(works[id].delay));
		since = rdtsc();
		guest_exec_op(&works[id]);
		if (id)
			guest_took = rdtsc() - since;
	}
}

/* What the host does */

/* Both MMUs zap the SPTEs when the protection changes.  The content stays. */
static void host_mprotect(struct window_test *t)
{
	for (unsigned int i = 0; i < HOST_REPEATS; i++) {
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

/* When any memslot is deleted, KVM zaps all page tables of the VM. */
static void host_delete_slot(struct window_test *t)
{
	set_dummy(t, 0);
	set_dummy(t, PAGE_SIZE);
}

/* Mark the pages idle, so that the host clears Accessed bits. */
static void host_age(struct window_test *t)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY), idle = open(PAGE_IDLE, O_WRONLY);
	u64 page = (u64)t->hva / PAGE_SIZE, end = page + NR_PAGES, pfn, bit;

	for (; page < end; page++) {
		TEST_ASSERT(pread(pagemap, &pfn, sizeof(pfn), page * sizeof(pfn)) == sizeof(pfn),
			    "Can't read /proc/self/pagemap, errno %d", errno);
		pfn &= BIT_ULL(55) - 1;
		bit = BIT_ULL(pfn % 64);
		TEST_ASSERT(pwrite(idle, &bit, sizeof(bit), pfn / 64 * sizeof(bit)) >= 0,
			    "Can't write to " PAGE_IDLE ", errno %d", errno);
	}
	close(pagemap);
	close(idle);
}

static const struct event events[] = {
	{ "cr3", "pages that are unsynchronized page tables become synchronized",
	  .prepare = OP_TOUCH_LEVEL1, .race = OP_CR3, .level = 1 },
	{ "level1", "pages become level-1 page tables", .race = OP_TOUCH_LEVEL1, .level = 1,
	  .afresh = true },
	{ "level2", "pages become level-2 page tables", .race = OP_TOUCH_LEVEL2, .level = 2,
	  .afresh = true },
	{ "table", "pages become page tables, and are mapped by clean entries",
	  .prepare = OP_PERMIT, .race = OP_CLEAN_TABLE, .level = 1, .afresh = true },
	{ "clean", "Dirty bits of the guest's entries are taken away", .prepare = OP_PERMIT,
	  .race = OP_CLEAN },
	{ "nx", "the guest's entries become not executable", .prepare = OP_PERMIT, .race = OP_NX },
	{ "readonly", "the guest's entries become read-only", .prepare = OP_PERMIT,
	  .race = OP_READ_ONLY },
	{ "mprotect", "an MMU notifier zaps the pages", .host = host_mprotect },
	{ "delete", "all page tables are zapped", .host = host_delete_slot },
	{ "age", "the host looks for idle pages", .host = host_age },
	{ "log", "the log is read and cleared while the host looks for idle pages",
	  .prepare = OP_READ_SLOT, .host = host_age, .log = true },
	{ "unmap", "the log is read and cleared while an MMU notifier zaps the pages",
	  .prepare = OP_READ_SLOT, .host = host_mprotect, .log = true },
};

/* Return: why the event would not change SPTEs here, or NULL. */
static const char *skip_reason(const struct event *e)
{
	if (!e->host && kvm_is_tdp_enabled())
		return "no page tables of the guest are shadowed";
	if (e->host == host_age && access(PAGE_IDLE, W_OK))
		return "the kernel has no " PAGE_IDLE;

	return NULL;
}

/* The VM */

static u64 table_of(struct window_test *t, u64 gva)
{
	return addr_hva2gpa(t->vm, vm_get_entry(t->vm, gva, PG_LEVEL_4K)) & ~(PAGE_SIZE - 1ull);
}

/* Make the pages page tables through which the guest reaches the target. */
static void link_pages(struct window_test *t, unsigned int level)
{
	u64 next = level == 1 ? t->target_gpa : t->table_gpa;
	u64 *links = level == 1 ? t->level1_links : t->level2_links;

	for (u64 page = 0; page < NR_PAGES; page++) {
		*(u64 *)(t->hva + page * PAGE_SIZE) = next | PT_USED_ENTRY;
		links[page] = (DATA_GPA + page * PAGE_SIZE) | PT_USED_ENTRY;
	}
}

static void create_vm(struct window_test *t)
{
	u64 gva;

	t->vm = vm_create(NR_VCPUS);
	for (unsigned int i = 0; i < NR_VCPUS; i++) {
		t->racers[i].vcpu = vm_vcpu_add(t->vm, i, guest_main);
		vcpu_args_set(t->racers[i].vcpu, 1, (u64)i);
	}
	vm_enable_manual_protect(t->vm, false);
	vm_userspace_mem_region_add(t->vm, VM_MEM_SRC_ANONYMOUS, DATA_GPA, DATA_SLOT, SLOT_PAGES,
				    KVM_MEM_LOG_DIRTY_PAGES);
	t->hva = addr_gpa2hva(t->vm, DATA_GPA);
	memset(t->hva, 0, DATA_SIZE);
	memset(t->dummy, 0, DUMMY_SIZE);
	set_dummy(t, PAGE_SIZE);
	virt_map(t->vm, DATA_GPA, DATA_GPA, SLOT_PAGES);
	virt_map(t->vm, ENTRIES_GVA, table_of(t, DATA_GPA), 1);

	gva = vm_alloc_page(t->vm);
	t->target_gpa = addr_gva2gpa(t->vm, gva);
	virt_map(t->vm, LEVEL1_GVA, t->target_gpa, 1);
	virt_map(t->vm, LEVEL2_GVA, t->target_gpa, 1);
	t->table_gpa = table_of(t, LEVEL2_GVA);
	t->level1_links = vm_get_entry(t->vm, LEVEL1_GVA, PG_LEVEL_2M);
	t->level2_links = vm_get_entry(t->vm, LEVEL2_GVA, PG_LEVEL_1G);
	if (t->e->level)
		link_pages(t, t->e->level);
}

/* Running */

static void *racer_main(void *arg)
{
	struct racer *r = arg;

	for (;;) {
		sem_wait(&r->go);
		if (r->end)
			return NULL;

		vcpu_run_to_sync(r->vcpu, NULL);
		sem_post(&r->done);
	}
}

/* Tell the vCPUs what to do.  @nr of them start together. */
static void send_works(struct window_test *t, unsigned int nr)
{
	write_guest_global(t->vm, nr_ready, 0);
	write_guest_global(t->vm, nr_racers, nr);
	sync_global_to_guest(t->vm, works);
	sync_global_to_guest(t->vm, value);
}

/* Let one vCPU execute an operation while nothing else runs. */
static void run_alone(struct window_test *t, unsigned int id, enum guest_op op)
{
	works[id] = (struct guest_work){ .op = op, .step = 1 };
	send_works(t, 1);
	sem_post(&t->racers[id].go);
	sem_wait(&t->racers[id].done);
}

static u64 word_of(struct window_test *t, unsigned int page)
{
	return READ_ONCE(((u64 *)(t->hva + page * PAGE_SIZE))[WRITTEN_WORD]);
}

/* Let the first vCPU write to all pages while nothing else runs. */
static void write_alone(struct window_test *t)
{
	value += 2;
	run_alone(t, 0, OP_WRITE);
}

static unsigned long get_log(struct window_test *t)
{
	unsigned long log = 0;

	kvm_vm_get_dirty_log(t->vm, DATA_SLOT, &log);
	return log;
}

/* Take pages out of the log, then copy all of them. */
static void clear_log(struct window_test *t, unsigned long log)
{
	kvm_vm_clear_dirty_log(t->vm, DATA_SLOT, &log, 0, SLOT_PAGES);
	for (unsigned int page = 0; page < NR_PAGES; page++)
		t->copy[page] = word_of(t, page);
}

/* Have all pages mapped, written and logged, then take them out of the log. */
static void prepare(struct window_test *t)
{
	if (t->e->afresh)
		host_delete_slot(t);
	if (t->e->prepare != OP_NOTHING)
		run_alone(t, 1, t->e->prepare);
	write_alone(t);
	clear_log(t, get_log(t));
}

/* Count the pages that are missing from the log.  Return: the log. */
static unsigned long check_log(struct window_test *t)
{
	unsigned long log = get_log(t);
	unsigned int lost = 0;

	for (unsigned int page = 0; page < NR_PAGES; page++)
		lost += word_of(t, page) != t->copy[page] && !(log >> page & 1);

	t->nr_lost += lost;
	t->nr_logged += __builtin_popcountl(log);
	return log;
}

/* Return: the counters of all rounds. */
static struct window_test run_rounds(const struct event *e, unsigned int rounds,
				     void (*act)(struct window_test *t))
{
	struct window_test t = { .e = e };
	struct racer *r;
	u64 nr_lost;

	t.dummy = map_memory(DUMMY_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	create_vm(&t);
	for (unsigned int i = 0; i < NR_VCPUS; i++) {
		r = &t.racers[i];
		sem_init(&r->go, 0, 0);
		sem_init(&r->done, 0, 0);
		start_thread(&r->thread, racer_main, r);
		run_alone(&t, i, OP_NOTHING);
	}
	for (unsigned int i = 0; i < rounds; i++) {
		prepare(&t);
		value += 2;
		nr_lost = t.nr_lost;
		act(&t);
		check_log(&t);
		t.nr_bad_rounds += t.nr_lost != nr_lost;
	}
	for (r = t.racers; r < t.racers + NR_VCPUS; r++) {
		r->end = true;
		sem_post(&r->go);
		pthread_join(r->thread, NULL);
	}
	kvm_vm_free(t.vm);
	munmap(t.dummy, DUMMY_SIZE);
	return t;
}

/* Races */

static u64 random_below(u64 nr)
{
	return nr ? random() % nr : 0;
}

/*
 * Begin to write at a random moment while the event is in progress, without or
 * with pauses between pages.  KVM usually goes from the first page to the last.
 * A write to a page that KVM has already handled waits until KVM has handled
 * all of them.  So go from the last page to the first most of the time.
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

static void *host_main(void *arg)
{
	struct window_test *t = arg;
	u64 since = rdtsc();

	t->e->host(t);
	t->took = rdtsc() - since;
	return NULL;
}

/* Begin the host's part when the vCPU has started. */
static void run_host(struct window_test *t)
{
	u64 *ready = addr_gva2hva(t->vm, (gva_t)&nr_ready);

	while (!READ_ONCE(*ready))
		;
	host_main(t);
}

static void run_race(struct window_test *t)
{
	unsigned int nr = t->e->race == OP_NOTHING ? 1 : NR_VCPUS;

	works[0] = writes_for(t->took);
	works[1] = (struct guest_work){ .op = t->e->race, .step = 1 };
	send_works(t, nr);
	set_pauses(true);
	for (unsigned int i = 0; i < nr; i++)
		sem_post(&t->racers[i].go);
	if (t->e->host)
		run_host(t);
	for (unsigned int i = 0; i < nr; i++)
		sem_wait(&t->racers[i].done);
	set_pauses(false);
	if (!t->e->host) {
		sync_global_from_guest(t->vm, guest_took);
		t->took = guest_took;
	}
}

/*
 * Write to all pages, get and clear the log at a random moment, and write
 * again.
 */
static void run_log(struct window_test *t)
{
	u64 delay = random_below(t->took / 2);
	pthread_t thread;

	write_alone(t);
	set_pauses(true);
	start_thread(&thread, host_main, t);
	for (u64 since = rdtsc(); rdtsc() - since < delay; )
		;
	clear_log(t, check_log(t));
	pthread_join(thread, NULL);
	set_pauses(false);
	write_alone(t);
}

/* Return: true if no write was lost, and KVM has paused if it was to. */
static bool is_all_logged(const struct event *e, unsigned int rounds)
{
	u64 before = nr_pauses(), paused;
	struct window_test t = run_rounds(e, rounds, e->log ? run_log : run_race);

	paused = nr_pauses() - before;
	ksft_print_msg("%s: %u rounds, %lu pauses, %lu pages lost in %lu rounds\n", e->name, rounds,
		       paused, t.nr_lost, t.nr_bad_rounds);
	if (pause_us && !paused)
		ksft_print_msg("%s: KVM never paused\n", e->name);
	return !t.nr_lost && (paused || !pause_us);
}

/* Nothing is written */

static void act_alone(struct window_test *t)
{
	if (t->e->host)
		t->e->host(t);
	else
		run_alone(t, 1, t->e->race);
}

static u64 nr_logged(const struct event *e, unsigned int rounds, const char *dirty_bits)
{
	setting_set(PARAM_DIRTY_BITS, dirty_bits);
	return run_rounds(e, rounds, act_alone).nr_logged;
}

static bool is_no_more_logged(const struct event *e, unsigned int rounds)
{
	u64 wrprot = nr_logged(e, rounds, "off"), dirty_bits = nr_logged(e, rounds, "on");

	ksft_print_msg("%s: %u rounds, no write: %lu in the log if protected, %lu by Dirty bits\n",
		       e->name, rounds, wrprot, dirty_bits);
	return dirty_bits <= wrprot;
}

static bool no_write;

static void try_event(const struct event *e, unsigned int rounds)
{
	const char *reason = skip_reason(e);

	if (reason)
		ksft_test_result_skip("%s: %s\n", e->name, reason);
	else if (no_write)
		ksft_test_result(is_no_more_logged(e, rounds), "%s: %s\n", e->name, e->what);
	else
		ksft_test_result(is_all_logged(e, rounds), "%s: %s\n", e->name, e->what);
}

/* The command line */

int main(int argc, char *argv[])
{
	struct choice chosen = { events, sizeof(*events), ARRAY_SIZE(events) };
	u64 rounds = DEFAULT_ROUNDS, seed = 1;
	const struct test_option options[] = {
		{ 'e', "event", "only this event; can be given several times", .choice = &chosen },
		{ 'n', "rounds", "rounds of each event", .number = &rounds, .min = 1,
		  .max = UINT_MAX },
		{ 's', "seed", "seed of the delays", .number = &seed, .min = 1, .max = UINT_MAX },
		{ 'w', NULL, "pause within each update of an SPTE, in microseconds",
		  .number = &pause_us, .min = 1, .max = MAX_PAUSE_US },
		{ 'x', NULL, "write nothing; is more in the log than with write protection?",
		  .flag = &no_write },
		{ }
	};

	parse_test_options(argc, argv, options, NULL);
	srandom(seed);
	ksft_print_header();
	__TEST_REQUIRE(!pause_us || setting_exists(PARAM_PAUSE_US),
		       "The kernel has no " PARAM_PAUSE_US);
	ksft_set_plan(choice_count(&chosen));
	for (unsigned int i = 0; i < ARRAY_SIZE(events); i++)
		if (choice_has(&chosen, i))
			try_event(&events[i], rounds);
	ksft_finished();
}
