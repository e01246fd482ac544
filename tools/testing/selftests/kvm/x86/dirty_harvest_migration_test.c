// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty logging by Dirty bits: live migration
 *
 * Do what live migration does: vCPUs write, while pages that are in the log are
 * copied, and while Dirty bits are taken away; whenever vCPUs stop, every page that
 * differs from its copy has to be in the log.
 *
 * Limits: races are only hit by chance.  Only L1 writes.
 */
#include "dirty_harvest.h"

/* Harvests of one migration, of how many one is disturbed, and writes before and after. */
#define ROUNDS_EACH		25u
#define DISTURB_EVERY		50u
#define WRITES_EACH		64u

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
static void harvest_round(struct harvest_test *t, u64 *copy)
{
	u64 first, nr;

	get_log(t);
	for (first = 0; first < NR_PAGES; first += nr) {
		nr = 64 * (1 + random() % 4);
		if (!t->manual || random() % 4)
			harvest_range(t, copy, first, nr);
	}
}

static u64 nr_lost(struct harvest_test *t, u64 *copy)
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

/* What may take Dirty bits away while vCPUs run. */
static void disturb(struct harvest_test *t)
{
	static void (* const what[])(struct harvest_test *t, bool undo) = {
		happen_dontneed, happen_flags, happen_reclaim, happen_nx,
	};
	unsigned int nr = ARRAY_SIZE(what) - !!no_nx();

	what[random() % nr](t, false);
}

/* A little is written before the end that only a Dirty bit can tell of. */
static void migrate_while_written(struct harvest_test *t, u64 *copy, bool first)
{
	unsigned int i;

	if (first) {
		/* The log is taken at once, and has pages that are being written. */
		set_slot(t, DATA_GPA, KVM_MEM_LOG_DIRTY_PAGES);
		get_log(t);
		clear_log(t);
		copy_all(t, copy);
	}

	await_progress(t, WRITES_EACH);
	for (i = 0; i < ROUNDS_EACH; i++) {
		if (random() % DISTURB_EVERY == 0)
			disturb(t);
		harvest_round(t, copy);
	}
	await_progress(t, WRITES_EACH);
}

static void one_migration(struct harvest_test *t, struct kvm_vcpu **vcpus, u64 *copy, bool first)
{
	pthread_t threads[NR_RANDOM_VCPUS];
	unsigned int i;
	u64 nr;

	set_stop(t, 0);
	for (i = 0; i < NR_RANDOM_VCPUS; i++)
		threads[i] = start_vcpu(vcpus[i]);
	migrate_while_written(t, copy, first);
	set_stop(t, 1);
	for (i = 0; i < NR_RANDOM_VCPUS; i++)
		pthread_join(threads[i], NULL);

	nr = nr_lost(t, copy);
	CHECK(t, !nr, "%lu pages differ from their copies, and are not in the log", nr);
	clear_log(t);
	copy_all(t, copy);
}

static void run_migration(struct harvest_test *t, const struct event *e)
{
	struct kvm_vcpu *vcpus[NR_RANDOM_VCPUS];
	static u64 copy[NR_PAGES];
	unsigned int i;

	/* Two of L1 do. */
	if (t->writer->nested)
		return;

	for (i = 0; i < NR_RANDOM_VCPUS; i++) {
		vcpus[i] = vm_vcpu_add(t->vm, 1 + i, guest_write_random);
		vcpu_args_set(vcpus[i], 2, (u64)i, (u64)random());
	}
	for (i = 0; i < t->rounds; i += ROUNDS_EACH)
		one_migration(t, vcpus, copy, !i);
	stop_logging(t);
}

static const struct event events[] = {
	{ "migration", "live migration" },
};

int main(int argc, char *argv[])
{
	return harvest_main(argc, argv, events, ARRAY_SIZE(events), run_migration);
}
