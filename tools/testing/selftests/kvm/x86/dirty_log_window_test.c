// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging: writes that come amid the update of an SPTE
 *
 * KVM reads an SPTE, decides what it shall be, and stores that.  What a CPU does
 * to the SPTE between the two, such as setting its Dirty bit, must get into the log.
 *
 * A vCPU writes to each page once, while something makes KVM change the SPTEs.  There is only one
 * write to a page, as a second one would be logged and hide that the first one was lost.  Or the
 * log is read and cleared while something takes SPTEs' locks: a page that was written before has to
 * be in it, and one that is written after that in the next.
 *
 * With -w, kernels with CONFIG_KVM_PROVE_MMU_RACES pause within each update, between
 * reading and storing; the test fails if they did not.
 *
 * Limits: races are met by chance, more often the longer the pauses and the more
 * rounds.  With write protection only "log" can lose anything here.
 */
#include "dirty_log_window.h"

static void set_pauses(unsigned int us)
{
	char text[16];

	if (!pause_us)
		return;

	snprintf(text, sizeof(text), "%u", us);
	setting_set(&window_settings[PAUSE_US], text);
}

/* How often KVM has paused amid an update, at all places together. */
static u64 nr_pauses(void)
{
	FILE *f = fopen(KVM_PARAM("prove_windows"), "r");
	u64 nr, sum = 0;

	while (f && fscanf(f, "%*s %lu", &nr) == 1)
		sum += nr;
	if (f)
		fclose(f);
	return sum;
}

/* Races */

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
static void run_host(struct window_test *t)
{
	u64 *ready = addr_gva2hva(t->vm, (gva_t)&nr_ready);
	u64 since;

	while (!READ_ONCE(*ready))
		;
	since = rdtsc();
	t->e->host(t);
	t->took = rdtsc() - since;
}

static void run_race(struct window_test *t)
{
	unsigned int nr = t->e->race == OP_NOTHING ? 1 : NR_VCPUS;
	unsigned int i;

	works[0] = writes_for(t->took);
	works[1] = (struct guest_work){ .op = t->e->race, .step = 1 };
	send_works(t, nr);
	set_pauses(pause_us);
	for (i = 0; i < nr; i++)
		sem_post(&t->racers[i].go);
	if (t->e->host)
		run_host(t);
	for (i = 0; i < nr; i++)
		sem_wait(&t->racers[i].done);
	set_pauses(0);
	if (!t->e->host) {
		sync_global_from_guest(t->vm, guest_took);
		t->took = guest_took;
	}
}

static void *host_main(void *arg)
{
	struct window_test *t = arg;
	u64 since = rdtsc();

	t->e->host(t);
	t->took = rdtsc() - since;
	return NULL;
}

/* Read and clear the log from a random moment on, and write to all pages before and after. */
static void run_log(struct window_test *t)
{
	u64 delay = random_below(t->took / 2), since;
	pthread_t thread;

	write_alone(t);
	set_pauses(pause_us);
	start_thread(&thread, host_main, t);
	for (since = rdtsc(); rdtsc() - since < delay; )
		;
	check_and_clear_log(t);
	pthread_join(thread, NULL);
	set_pauses(0);
	write_alone(t);
}

bool run_event(const struct event *e, unsigned int rounds)
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

const bool can_pause = true;
