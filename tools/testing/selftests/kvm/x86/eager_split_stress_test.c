// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting under stress
 *
 * vCPUs write their own words of all pages of a memslot, through mappings of 4KiB, 2MiB and 1GiB,
 * an alias, and windows that they map anew all the time, with page tables that they use as data,
 * too.  The host migrates the memory at the same time, again and again: it enables the log,
 * reads it by bitmap, by KVM_CLEAR_DIRTY_LOG of random ranges or by dirty ring, and copies what it
 * got.  One VM in three is logged all its life instead, and the log must not have a page that vCPUs
 * only read.  Meanwhile other threads take memory away, change its protection and turn KVM's settings,
 * and the memslot moves and goes.  Every other VM logs by Dirty bits (dirty_bits), and where the
 * kernel can inject faults the splitter runs out of memory.
 *
 * At the end of each round all threads stop.  Then
 *  - the copy has to equal the memory: a difference is a write that is missing from the log;
 *  - each word has to be the last that its vCPU wrote, or a fresh one if the page
 *    was taken away in this round; vCPUs check the same with each read;
 *  - memory that was taken from the guest was filled with poison through another
 *    mapping: it has to be intact, and no vCPU may have read it;
 *  - guest entries have to be dirty after a write, clean after a read, and must
 *    not allow writes when they are read-only.
 *
 * All operations are drawn from generators that are seeded by the number printed (-S), which is
 * good for one VM and some rounds, then it is increased.  The scheduler interleaves threads.
 *
 * A seed is contended or, three in four, fast.  In a contended one memory is taken so often that
 * most faults of vCPUs are retried; in a fast one logging comes and goes several times as often.
 *
 * Limits: protection never goes below read-only, as the host reads the memory itself.  Memory that
 * holds page tables is not taken away for good.  Nothing is written but the words of the vCPUs, so
 * in most rounds only these are compared, and all the rest in one round of THOROUGH_ROUNDS.  A TLB
 * flush that is missing while enabling or clearing the log is not seen if the ioctl flushes at its
 * end.
 */
#include <signal.h>
#include <time.h>

#include "eager_split_stress.h"

#define COMPACT			"/proc/sys/vm/compact_memory"
#define KSM			"/sys/kernel/mm/ksm/"

/* More shadow pages than ever used. */
#define MANY_MMU_PAGES		100000ul

/* For two banks, the page tables, and the page that turns up again. */
#define NR_HUGE_NEEDED		(NR_BANKS * NR_CHUNKS + 2)

const char * const log_mode_names[] = { "get", "clear", "init-set", "ring" };

const struct pace paces[NR_PACES] = {
	[CONTENDED] = { "contended", 25, 8000, 16000, 2, 16, 200 },
	[FAST] = { "fast", 100, 200000, 200000, 8, 2, 3000 },
};

const char * const stat_names[NR_STATS] = {
	"eager_split_done", "eager_split_nomem", "eager_split_noquota",
};

struct vcpu_thread {
	struct stress *t;
	unsigned int id;
	pthread_t thread;
};

struct counters counters;

/* Of dirty_bits; drawn if it is the first. */
static const char * const dirty_bits[] = { "any", "off", "on", "auto" };
static struct choice dirty_bits_choice = { dirty_bits, sizeof(*dirty_bits), ARRAY_SIZE(dirty_bits) };
static u64 option_dirty_bits;

static const char * const bad_texts[] = {
	[BAD_WORD] = "a vCPU read a word that is not its last",
	[BAD_POISON] = "a vCPU read memory that was taken from it",
	[BAD_CLEAN] = "a guest entry is clean after a write",
	[BAD_DIRTY] = "a guest entry is dirty after a read",
	[BAD_PERMISSION] = "a write through a read-only entry, or none through a writable one",
	[BAD_TABLE] = "a vCPU read a word of a former page table that is not its last",
};

const char *repeat_hint(struct stress *t)
{
	static char text[200];

	snprintf(text, sizeof(text),
		 "round %lu, log mode %s%s%s, %s, %s; to repeat: -S 0x%lx -d %s",
		 counters.rounds, log_mode_names[t->log_mode], t->by_dirty_bits ? " by Dirty bits" : "",
		 t->tracked ? " from the start" : "", t->shared ? "HugeTLB" : "THP", t->pace->name, t->seed,
		 dirty_bits[option_dirty_bits]);
	return text;
}

/* Where threads wait for the end of a round */

static void gate_pass(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	if (g->closed) {
		g->nr_parked++;
		pthread_cond_broadcast(&g->changed);
		while (g->closed)
			pthread_cond_wait(&g->changed, &g->lock);
		g->nr_parked--;
	}
	pthread_mutex_unlock(&g->lock);
}

void gate_set(struct gate *g, bool closed)
{
	pthread_mutex_lock(&g->lock);
	WRITE_ONCE(g->closed, closed);
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

static void gate_wait_us(struct gate *g, u64 us)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_nsec += us * 1000;
	end.tv_sec += end.tv_nsec / NSEC_PER_SEC;
	end.tv_nsec %= NSEC_PER_SEC;
	pthread_cond_timedwait(&g->changed, &g->lock, &end);
}

bool gate_wait(struct gate *g, unsigned int nr)
{
	bool all;

	pthread_mutex_lock(&g->lock);
	if (g->nr_parked < nr)
		gate_wait_us(g, GATE_WAIT_US);
	all = g->nr_parked >= nr;
	pthread_mutex_unlock(&g->lock);
	return all;
}

/* Rest until another thread wants something, or the time is over. */
static void gate_nap(struct gate *g, u64 us)
{
	pthread_mutex_lock(&g->lock);
	if (!g->closed)
		gate_wait_us(g, us);
	pthread_mutex_unlock(&g->lock);
}

/* vCPUs */

/*
 * The memslot is away: do what a VMM does for a device, with the memory itself.  In one
 * access, as the vCPU would: byte by byte, the memory could be replaced in between.
 */
static void emulate_access(struct stress *t, unsigned int id)
{
	struct kvm_run *run = t->vcpus[id]->run;
	struct region *r = data_region(t);
	u64 offset = run->mmio.phys_addr - r->gpa;
	u64 *memory = r->hva + offset, *data = (u64 *)run->mmio.data;

	CHECK(t, offset < r->nr_pages * PAGE_SIZE && !(offset % sizeof(*memory)) &&
	      run->mmio.len == sizeof(*memory), "MMIO at 0x%llx, %u bytes", run->mmio.phys_addr,
	      run->mmio.len);
	count(&counters.mmio);
	WRITE_ONCE(t->ctl->vcpus[id].nr_mmio, t->ctl->vcpus[id].nr_mmio + 1);
	pthread_rwlock_rdlock(&t->protection);
	if (run->mmio.is_write) {
		WRITE_ONCE(*memory, *data);
		set_host_dirty(r, offset / PAGE_SIZE);
	} else {
		*data = READ_ONCE(*memory);
	}
	pthread_rwlock_unlock(&t->protection);
}

static void check_complaint(struct stress *t, unsigned int id)
{
	struct vcpu_state *v = &t->ctl->vcpus[id];
	struct ucall uc;

	if (get_ucall(t->vcpus[id], &uc) == UCALL_ABORT)
		REPORT_GUEST_ASSERT(uc);
	CHECK(t, v->bad.what == BAD_NOTHING,
	      "%s: vCPU %u, page %lu (gfn 0x%lx), address 0x%lx: expected 0x%lx, seen 0x%lx",
	      bad_texts[v->bad.what], id, v->bad.page, data_gfn(v->bad.page),
	      v->bad.gva, v->bad.expected, v->bad.seen);
}

/*
 * KVM can't emulate an access to MMIO while an event is being delivered.  On SVM it
 * concludes that from the event's type alone, which QEMU leaves behind after the delivery.
 */
static void check_no_event(struct stress *t, unsigned int id)
{
	struct kvm_run *run = t->vcpus[id]->run;
	struct kvm_vcpu_events events;

	vcpu_events_get(t->vcpus[id], &events);
	CHECK(t, run->internal.suberror == KVM_INTERNAL_ERROR_DELIVERY_EV &&
	      !events.exception.injected && !events.interrupt.injected && !events.nmi.injected,
	      "vCPU %u ended, internal error %u, data 0x%llx 0x%llx 0x%llx", id,
	      run->internal.suberror, run->internal.data[0], run->internal.data[1],
	      run->internal.data[2]);
	count(&counters.retries);
}

/*
 * Memory that is read-only at the moment can't be written: try again when it can.  Trying
 * at once kept the thread that ends it from a timer's lock, where emulated CPUs take turns.
 *
 * Return: true if the vCPU is between two operations.  Anywhere else it may hold a
 * word that it read, or have written one without a note of it.
 */
static bool handle_exit(struct stress *t, unsigned int id, int r, int error)
{
	struct kvm_run *run = t->vcpus[id]->run;

	if (r) {
		CHECK(t, error == EFAULT || error == EAGAIN, "vCPU %u: errno %d", id, error);
		count(&counters.retries);
		pthread_rwlock_rdlock(&t->protection);
		pthread_rwlock_unlock(&t->protection);
		return false;
	}

	switch (run->exit_reason) {
	case KVM_EXIT_IO:
		check_complaint(t, id);
		if (!READ_ONCE(t->gate.closed))
			usleep(t->pace->rest_us);
		return true;
	case KVM_EXIT_MMIO:
		emulate_access(t, id);
		break;
	case KVM_EXIT_DIRTY_RING_FULL:
		usleep(100);
		break;
	case KVM_EXIT_INTERNAL_ERROR:
		check_no_event(t, id);
		break;
	default:
		FAIL(t, "vCPU %u ended, exit reason %s", id, exit_reason_str(run->exit_reason));
	}

	return false;
}

static void *vcpu_main(void *arg)
{
	struct vcpu_thread *vt = arg;
	struct stress *t = vt->t;
	int r;

	for (;;) {
		r = _vcpu_run(t->vcpus[vt->id]);
		if (!handle_exit(t, vt->id, r, errno))
			continue;

		gate_pass(&t->gate);
		if (READ_ONCE(t->quit))
			return NULL;
	}
}

/* KVM's settings, and those of memory management */

static void set_quota(struct stress *t, u64 *rng)
{
	vm_set_nr_mmu_pages(t->vm, below(rng, 3) ? MANY_MMU_PAGES : 64 + below(rng, 400));
}

static void flip_eager(struct stress *t, u64 *rng)
{
	set_if_there(PARAM_EAGER, below(rng, 3) ? "Y" : "N");
}

/* All mappings go each time. */
static void flip_nx(struct stress *t, u64 *rng)
{
	if (!below(rng, 4))
		set_if_there(PARAM_NX, below(rng, 2) ? "force" : "off");
}

static void merge_or_compact(struct stress *t, u64 *rng)
{
	if (t->shared || below(rng, 4))
		return;

	/* A pass over the memory takes a tenth of a second. */
	set_if_there(KSM "pages_to_scan", "500");
	set_if_there(KSM "run", "1");
	write_file(COMPACT, "1");
}

static void (* const setting_ops[])(struct stress *t, u64 *rng) = {
	flip_eager, flip_eager, flip_nx, set_quota, merge_or_compact,
};

static void one_setting_op(struct stress *t, u64 *rng)
{
	setting_ops[below(rng, ARRAY_SIZE(setting_ops))](t, rng);
}

struct host_thread {
	struct stress *t;
	void (*op)(struct stress *t, u64 *rng);
	u64 rng;
	u64 nap_us;
	pthread_t thread;
};

static void *host_main(void *arg)
{
	struct host_thread *h = arg;

	for (;;) {
		gate_pass(&h->t->gate);
		if (READ_ONCE(h->t->quit))
			return NULL;

		h->op(h->t, &h->rng);
		count(&counters.host_ops);
		gate_nap(&h->t->gate, below(&h->rng, h->nap_us));
	}
}

/* Rounds */

/* A round takes a fraction of a second, with sanitizers some seconds. */
#define ROUND_MAX_S		120

static void draw_configuration(struct stress *t)
{
	t->rng = seeded(t->seed, 0);
	t->log_mode = below(&t->rng, NR_LOG_MODES);

	/* CLEAR asks for a split with each word of the log, which may fail each time. */
	if (can_fail() && below(&t->rng, 2))
		t->log_mode = LOG_INIT_SET;
	if (t->log_mode == LOG_RING && !kvm_has_cap(KVM_CAP_DIRTY_LOG_RING))
		t->log_mode = LOG_CLEAR;
	t->shared = below(&t->rng, 2) || !thp_configured();
	t->dirty_bits = dirty_bits[option_dirty_bits ?: 1 + below(&t->rng, 2)];
	t->pace = &paces[below(&t->rng, 4) ? FAST : CONTENDED];
	t->tracked = !(t->seed % 3);
}

/* What to do at most, altogether and with one VM; no rounds: it does not matter. */
static u64 end_ms, max_rounds, max_vm_rounds;

static bool is_over(void)
{
	return now_ms() >= end_ms || (max_rounds && counters.rounds >= max_rounds);
}

static void run_rounds(struct stress *t)
{
	struct host_thread host[NR_HOST_THREADS] = {
		{ t, one_memory_op, seeded(t->seed, MEMORY_RNG), t->pace->memory_nap_us },
		{ t, one_setting_op, seeded(t->seed, SETTING_RNG), t->pace->setting_nap_us },
	};
	struct vcpu_thread vcpus[NR_VCPUS];

	for (unsigned int i = 0; i < NR_VCPUS; i++) {
		vcpus[i] = (struct vcpu_thread){ .t = t, .id = i };
		start_thread(&vcpus[i].thread, vcpu_main, &vcpus[i]);
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(host); i++)
		start_thread(&host[i].thread, host_main, &host[i]);

	for (unsigned int i = 0; i < t->pace->nr_rounds && !is_over(); i++) {
		if (max_vm_rounds && i >= max_vm_rounds)
			break;
		alarm(ROUND_MAX_S);
		one_round(t);
	}

	stop_world(t);
	WRITE_ONCE(t->quit, true);
	start_world(t);
	for (unsigned int i = 0; i < NR_VCPUS; i++)
		pthread_join(vcpus[i].thread, NULL);
	for (unsigned int i = 0; i < ARRAY_SIZE(host); i++)
		pthread_join(host[i].thread, NULL);
}

static void run_seed(u64 seed)
{
	struct stress t = {
		.seed = seed,
		.protection = PTHREAD_RWLOCK_INITIALIZER,
		.gate = {
			.lock = PTHREAD_MUTEX_INITIALIZER,
			.changed = PTHREAD_COND_INITIALIZER,
		},
	};

	draw_configuration(&t);
	create_vm(&t);
	run_rounds(&t);
	destroy_vm(&t);
}

/* One line of NAME=NUMBER each, which is what scripts read. */
static void report(const char *what, u64 seed, u64 nr_seeds)
{
	ksft_print_msg("%s: seed=0x%lx seeds=%lu cycles=%lu pages=%lu copied=%lu", what, seed,
		       nr_seeds, counters.rounds, counters.pages, counters.copied);
	pr_info(" operations=%lu host_operations=%lu", counters.guest_ops + counters.host_ops,
		counters.host_ops);
	for (unsigned int i = 0; i < NR_LOG_MODES; i++)
		pr_info(" %s=%lu", log_mode_names[i], counters.rounds_of[i]);
	pr_info(" by_dirty_bits=%lu fast=%lu tracked=%lu merged=%lu retries=%lu mmio=%lu",
		counters.rounds_by_dirty_bits, counters.rounds_fast, counters.rounds_tracked,
		counters.rounds_merged, counters.retries, counters.mmio);
	for (unsigned int i = 0; i < NR_STATS; i++)
		pr_info(" %s=%lu", stat_names[i], counters.stats[i]);
	pr_info(" faults=%lu", faults.failed[SITE_HEADERS] + faults.failed[SITE_DESCS] +
		faults.failed[SITE_PAGES]);
	for (unsigned int i = 0; i < NR_SITES; i++)
		pr_info(" faults_%s=%lu", site_names[i], faults.failed[i]);
	pr_info("\n");
}

#define REPORT_MS		10000

static u64 current_seed;

static void give_up(int signal)
{
	char text[80];
	int n = snprintf(text, sizeof(text), "Bail out! nothing moves; to repeat: -S 0x%lx\n",
			 current_seed);

	if (write(STDOUT_FILENO, text, n) < 0)
		_exit(1);
	settings_restore_and_exit(signal);
}

static void run(u64 seed)
{
	u64 next = now_ms() + REPORT_MS, nr = 0;

	ksft_print_msg("seed 0x%lx\n", seed);
	do {
		/* Each seed for itself: if threads wait for each other, say which. */
		current_seed = seed + nr;
		alarm(ROUND_MAX_S);
		run_seed(seed + nr++);
		count_faults();
		if (now_ms() >= next) {
			report("so far", seed, nr);
			next = now_ms() + REPORT_MS;
		}
	} while (!is_over());
	report("summary", seed, nr);
	ksft_test_result_pass("%lu seeds from 0x%lx on\n", nr, seed);
}

#define DEFAULT_SECONDS		10u
#define MAX_SECONDS		1000000u

int main(int argc, char *argv[])
{
	u64 seconds = DEFAULT_SECONDS, seed = (u64)time(NULL) << 20 ^ getpid();
	const struct test_option options[] = {
		{ 't', "seconds", "for how long", .number = &seconds, .min = 1,
		  .max = MAX_SECONDS },
		{ 'n', "rounds", "no more rounds than this (default: no limit)",
		  .number = &max_rounds, .min = 1, .max = ~0ul },
		{ 'r', "rounds", "no more rounds than this with one VM, so that there are more VMs",
		  .number = &max_vm_rounds, .min = 1, .max = ~0ul },
		{ 'S', "seed", "draw the operations that a run with this seed drew",
		  .number = &seed, .max = ~0ul },
		{ 'd', "dirty_bits", "dirty_bits: off, on, auto, any (on or off; default)",
		  .number = &option_dirty_bits, .choice = &dirty_bits_choice },
		{ }
	};

	static_assert(NR_HUGE_NEEDED == 14, "-h says what it needs");
	parse_test_options(argc, argv, options, "It needs 14 free 2MiB HugeTLB pages.\n\n");
	end_ms = now_ms() + 1000 * seconds;
	ksft_print_header();
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2));
	__TEST_REQUIRE(nr_free_2m_pages() >= NR_HUGE_NEEDED, "Too few huge pages are free, see -h");
	signal(SIGALRM, give_up);
	prepare_faults();
	ksft_set_plan(1);
	run(seed);
	ksft_finished();
}
