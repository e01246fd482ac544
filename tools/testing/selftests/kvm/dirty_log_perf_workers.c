// SPDX-License-Identifier: GPL-2.0-only
/* One thread per vCPU, which sleeps whenever its vCPU has nothing to do. */
#include <sched.h>
#include <semaphore.h>

#include "ucall_common.h"
#include "dirty_log_perf.h"

/*
 * The vCPU threads.  The main thread calls them for a pass, and sleeps until
 * the pass is over.  Unless stated otherwise, it writes the fields before it
 * calls.  The barrier orders these writes with the threads' reads.
 */
static struct workers {
	int nr_vcpus;
	/*
	 * All vCPU threads and main wait here for the next pass, or for exit.
	 */
	pthread_barrier_t call;
	bool quit;
	/* Access memory over and over, until main changes it to false. */
	bool keep_running;
	/* Number of the pass. */
	unsigned int pass;
	/* How many threads are ready; atomic, the last one resets it. */
	int ready;
	/* The newest pass that all threads are ready for; atomic. */
	unsigned int released;
	/* The last thread to get ready writes this before it releases all. */
	struct timespec start;
	/* Each vCPU's thread writes this when KVM_RUN returns. */
	struct timespec end[KVM_MAX_VCPUS];
	/* How many threads have not completed the pass yet; atomic. */
	int busy;
	/* Posted once per pass, by the last thread to complete it. */
	sem_t done;
	/* Posted once per pass with keep_running, when vCPUs are released. */
	sem_t running;
	pthread_t threads[KVM_MAX_VCPUS];
} workers;

/*
 * Wait until all vCPU threads are awake, so that none of them gets a head
 * start.  Yield instead of sleeping, or threads would have to wake up one after
 * the other again.  This takes no longer than the scheduler needs to run each
 * thread once, and ends before the clock of the pass starts.
 */
static void wait_for_start(void)
{
	if (__atomic_add_fetch(&workers.ready, 1, __ATOMIC_ACQ_REL) < workers.nr_vcpus) {
		while (__atomic_load_n(&workers.released, __ATOMIC_ACQUIRE) != workers.pass)
			sched_yield();
		return;
	}

	/* No thread touches ->ready again until this pass is over. */
	workers.ready = 0;
	clock_gettime(CLOCK_MONOTONIC, &workers.start);
	__atomic_store_n(&workers.released, workers.pass, __ATOMIC_RELEASE);
	if (workers.keep_running)
		sem_post(&workers.running);
}

void run_vcpu_once(struct memstress_vcpu_args *args)
{
	struct kvm_vcpu *vcpu = args->vcpu;
	int ret = _vcpu_run(vcpu);

	clock_gettime(CLOCK_MONOTONIC, &workers.end[args->vcpu_idx]);

	TEST_ASSERT(!ret, "KVM_RUN of vCPU %d failed, errno %d", args->vcpu_idx, errno);
	TEST_ASSERT(get_ucall(vcpu, NULL) == UCALL_SYNC,
		    "vCPU %d did not complete its pass, exit reason: %s",
		    args->vcpu_idx, exit_reason_str(vcpu->run->exit_reason));
}

static void *vcpu_thread(void *data)
{
	struct memstress_vcpu_args *args = data;

	if (memstress_args.pin_vcpus)
		pin_self_to_cpu(memstress_args.vcpu_to_pcpu[args->vcpu_idx]);

	for (;;) {
		pthread_barrier_wait(&workers.call);
		if (workers.quit)
			return NULL;

		wait_for_start();
		do {
			run_vcpu_once(args);
		} while (READ_ONCE(workers.keep_running));

		if (!__atomic_sub_fetch(&workers.busy, 1, __ATOMIC_ACQ_REL))
			sem_post(&workers.done);
	}
}

void workers_create(int nr_vcpus)
{
	int ret;

	memset(&workers, 0, sizeof(workers));
	workers.nr_vcpus = nr_vcpus;
	pthread_barrier_init(&workers.call, NULL, nr_vcpus + 1);
	sem_init(&workers.done, 0, 0);
	sem_init(&workers.running, 0, 0);

	for (int i = 0; i < nr_vcpus; i++) {
		ret = pthread_create(&workers.threads[i], NULL, vcpu_thread,
				     &memstress_args.vcpu_args[i]);
		TEST_ASSERT(!ret, "No thread for vCPU %d: %s", i, strerror(ret));
	}
}

void workers_destroy(void)
{
	workers.quit = true;
	pthread_barrier_wait(&workers.call);
	for (int i = 0; i < workers.nr_vcpus; i++)
		pthread_join(workers.threads[i], NULL);

	pthread_barrier_destroy(&workers.call);
	sem_destroy(&workers.done);
	sem_destroy(&workers.running);
}

/* The semaphores are posted exactly once per wait; signals may interrupt it. */
static void sleep_on(sem_t *sem)
{
	while (sem_wait(sem))
		TEST_ASSERT(errno == EINTR, "sem_wait() failed, errno %d", errno);
}

void workers_begin(bool keep_running)
{
	workers.pass++;
	workers.keep_running = keep_running;
	workers.busy = workers.nr_vcpus;
	pthread_barrier_wait(&workers.call);
}

void workers_end(void)
{
	sleep_on(&workers.done);
}

struct timespec workers_run_once(void)
{
	struct timespec end;

	workers_begin(false);
	workers_end();

	end = workers.end[0];
	for (int i = 1; i < workers.nr_vcpus; i++) {
		if (timespec_to_ns(workers.end[i]) > timespec_to_ns(end))
			end = workers.end[i];
	}
	return timespec_sub(end, workers.start);
}

void workers_start(void)
{
	workers_begin(true);
	sleep_on(&workers.running);
}

void workers_stop(void)
{
	WRITE_ONCE(workers.keep_running, false);
	sleep_on(&workers.done);
}
