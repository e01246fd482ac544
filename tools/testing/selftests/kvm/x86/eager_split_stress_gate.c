// SPDX-License-Identifier: GPL-2.0-only
/*
 * The gate of eager_split_stress_test
 *
 * The threads of vCPUs and of the host pass the gate between two operations.
 * While it is closed, they wait there, and the main thread compares the copy
 * with memory.
 */
#include <time.h>

#include "eager_split_stress.h"

/*
 * How long gate_wait() waits at most: the main thread must empty dirty rings.
 */
#define GATE_WAIT_US		2000

void gate_pass(struct gate *g)
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

void gate_nap(struct gate *g, u64 us)
{
	pthread_mutex_lock(&g->lock);
	if (!g->closed)
		gate_wait_us(g, us);
	pthread_mutex_unlock(&g->lock);
}
