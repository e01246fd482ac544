// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging and eager page splitting under stress
 *
 * Each vCPU writes its own words in all pages of a memslot: through mappings of
 * 4KiB, 2MiB and 1GiB, through an alias, and through windows that it remaps
 * again and again, by page tables whose pages it also uses as data.
 *
 * At the same time, the host migrates the memory in rounds.  In each round, it
 * enables logging, collects the log by KVM_GET_DIRTY_LOG, by
 * KVM_CLEAR_DIRTY_LOG of random ranges, or by dirty rings, and copies the pages
 * in the log.  One VM in three is logged from the start instead.  Its log must
 * not contain a page that vCPUs only read.
 *
 * Meanwhile other threads take memory away, change its protection, and change
 * settings of KVM, and the host moves and deletes the memslot.  By default,
 * about every other VM runs with kvm.dirty_bits=on.  If the kernel can inject
 * failures, allocations of the splitter fail.
 *
 * At the end of each round, all threads stop.  Then
 *  - the copy must equal the memory.  A difference is a write that is missing
 *    from the log;
 *  - each word must be the last one that its vCPU has written, or a fresh one
 *    if the host has taken the page away in this round.  vCPUs check the same
 *    each time that they read a word;
 *  - memory that the host has taken from the guest, and filled with poison
 *    through another mapping, must still contain the poison, and no vCPU may
 *    have read it.
 * While they run, vCPUs check that their page table entries are dirty after a
 * write, are clean after a read, and do not permit writes if they are
 * read-only.
 *
 * All operations are drawn from generators that are seeded by the number that
 * the test prints (-S).  A seed is used for some rounds of one VM, and is then
 * incremented.  The scheduler decides how the threads interleave.
 *
 * One VM in four is "contended", the others are "fast".  In a contended VM, the
 * host takes memory away so often that KVM has to retry most page faults.  In a
 * fast VM, logging is enabled and disabled several times as often.
 *
 * Limits:
 *  - Memory is never protected against reads, as the host itself reads it.
 *  - Memory that contains page tables is never replaced.
 *  - vCPUs write only their own words in the data.  So most rounds compare only
 *    these, and one round in THOROUGH_ROUNDS compares whole pages.
 *  - If a TLB flush is missing while an ioctl enables or clears the log, and
 *    the ioctl flushes at its end, the test does not notice that.
 */
#include <signal.h>
#include <time.h>

#include "eager_split_stress.h"

#define COMPACT			"/proc/sys/vm/compact_memory"
#define KSM			"/sys/kernel/mm/ksm/"

/* A quota that no VM reaches. */
#define MANY_MMU_PAGES		100000ul

/* Two banks, the page tables, and the page that punch_chunk() allocates. */
#define NR_HUGE_NEEDED		(NR_BANKS * NR_CHUNKS + 2)

enum pace_name { CONTENDED, FAST, NR_PACES };

static const struct pace paces[NR_PACES] = {
	[CONTENDED] = {
		.name = "contended",
		.nr_rounds = 25,
		.memory_nap_us = 8000,
		.setting_nap_us = 16000,
		.settle_one_in = 2,
		.ops_per_rest = 16,
		.rest_us = 200,
	},
	[FAST] = {
		.name = "fast",
		.is_fast = true,
		.nr_rounds = 100,
		.memory_nap_us = 200000,
		.setting_nap_us = 200000,
		.settle_one_in = 8,
		.ops_per_rest = 2,
		.rest_us = 3000,
	},
};

struct vcpu_thread {
	struct stress *t;
	unsigned int id;
	pthread_t thread;
};

/* Values of -d.  With "any", each VM draws "off" or "on". */
static const char * const dirty_bits[] = { "any", "off", "on", "auto" };
static struct choice dirty_bits_choice = {
	.rows = dirty_bits,
	.size = sizeof(*dirty_bits),
	.nr = ARRAY_SIZE(dirty_bits),
};

static u64 option_dirty_bits;

static const char * const bad_texts[] = {
	[BAD_WORD] = "a vCPU read a word that is not its last",
	[BAD_POISON] = "a vCPU read memory that was taken from it",
	[BAD_CLEAN] = "a guest entry is clean after a write",
	[BAD_DIRTY] = "a guest entry is dirty after a read",
	[BAD_PERMISSION] = "a write through a read-only entry, or none through a writable one",
	[BAD_TABLE] = "a vCPU read a word of a former page table that is not its last",
};

/* vCPUs */

/*
 * The memslot is deleted at the moment.  Emulate the access as a VMM does for a
 * device, but on the memory itself.  Do so in one access, as the vCPU would:
 * the memory could be replaced while a copy is in progress.
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

static void check_no_event(struct stress *t, unsigned int id)
{
	struct kvm_run *run = t->vcpus[id]->run;

	CHECK(t, vcpu_saw_stale_event(t->vcpus[id]),
	      "vCPU %u ended, internal error %u, data 0x%llx 0x%llx 0x%llx", id,
	      run->internal.suberror, run->internal.data[0], run->internal.data[1],
	      run->internal.data[2]);
	count(&counters.retries);
}

/*
 * KVM_RUN fails when the guest writes to memory that is read-only at the
 * moment.  Wait on the lock until the memory is writable again.  A loop of
 * KVM_RUN would not do: where emulated CPUs take turns, it could keep the
 * thread that makes the memory writable from getting a lock of a timer.
 *
 * Return: true if the vCPU is between two operations.  Within an operation, it
 * may hold a word that it has read, or may have written a word that it has not
 * noted yet.
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

/* Each change zaps all SPTEs of all VMs, so make few of them. */
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

/* A round takes a fraction of a second, or with sanitizers some seconds. */
#define ROUND_MAX_S		120

static void draw_configuration(struct stress *t)
{
	t->rng = seeded(t->seed, 0);
	t->log_mode = below(&t->rng, NR_LOG_MODES);

	/*
	 * Most failures come with LOG_INIT_SET: CLEAR tries to split per word.
	 */
	if (can_fail() && below(&t->rng, 2))
		t->log_mode = LOG_INIT_SET;
	if (t->log_mode == LOG_RING && !kvm_has_cap(KVM_CAP_DIRTY_LOG_RING))
		t->log_mode = LOG_CLEAR;
	t->shared = below(&t->rng, 2) || !thp_configured();
	t->dirty_bits = dirty_bits[option_dirty_bits ?: 1 + below(&t->rng, 2)];
	t->dirty_bits_option = dirty_bits[option_dirty_bits];
	t->pace = &paces[below(&t->rng, 4) ? FAST : CONTENDED];
	t->tracked = !(t->seed % 3);
}

/* When to end, and the most rounds in total and with one VM; 0: no limit. */
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
		/*
		 * If threads wait for each other forever, give_up() prints
		 * this.
		 */
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
