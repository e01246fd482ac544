// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting that is interrupted
 *
 * Turn kvm.eager_page_split off in the midst of it, and end the process in the midst of
 * it by SIGKILL.
 *
 * Limits: what "in the midst" is depends on the scheduler; there are many tries, and
 * not one success among them is a failure.
 */
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "eager_split_fault.h"

#define MAX_MIDST_TRIES		200u
#define NR_KILLS		6

static bool may_try_again(unsigned int nr_tries)
{
	return nr_tries < max_tries && nr_tries < MAX_MIDST_TRIES;
}

/* Wait for the first huge page to go.  False if there is nothing to wait for. */
static bool wait_for_split(struct kvm_vm *vm, u64 nr_huge, bool (*go_on)(void))
{
	while (go_on())
		if (vm_get_stat_or_absent(vm, "pages_2m") < nr_huge)
			return true;
	return false;
}

/* The parameter is turned off */

static bool split_is_over;

static bool is_splitting(void)
{
	return !READ_ONCE(split_is_over);
}

static void *switch_off(void *arg)
{
	struct fault_test *t = arg;
	int fd = open(PARAM_EAGER, O_WRONLY);

	WRITE_ONCE(split_is_over, false);
	wait_for_split(t->vm, t->nr_huge, is_splitting);
	CHECK(t, write(fd, "N", 1) == 1, "Can't write " PARAM_EAGER);
	close(fd);
	return NULL;
}

static void split_and_switch_off(struct fault_test *t)
{
	pthread_t thread;

	split_is_over = true;
	start_thread(&thread, switch_off, t);
	while (READ_ONCE(split_is_over))
		;
	CHECK(t, !split(t), "errno %d", errno);
	WRITE_ONCE(split_is_over, true);
	pthread_join(thread, NULL);
	setting_set(PARAM_EAGER, "Y");
}

static void check_cancelled(struct fault_test *t, const struct split_stats *s)
{
	check_sum(t, s);
	CHECK(t, !s->nomem && !s->noquota, "seen %lu x no memory, %lu x no quota", s->nomem,
	      s->noquota);
}

/* Returns true if it was turned off when some were split and some were not. */
static bool cancel_once(const struct variant *v)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_MANY };
	struct split_stats s;

	fault_create_vm(&t, 0);
	before_split(&t);
	split_and_switch_off(&t);
	s = get_stats(t.vm);
	if (!is_tdp_mmu() && !v->clear)
		check_cancelled(&t, &s);
	check_afterwards(&t);
	kvm_vm_free(t.vm);
	return s.huge && s.huge < t.nr_huge;
}

/*
 * CLEAR looks at the parameter for each word, and at each word splits one huge
 * page, so it can't be interrupted between two of one operation: whatever is left
 * of it has to be in the log.
 */
static const char *run_cancel(void)
{
	const struct variant *v = &variants[0];
	bool hit = false;
	unsigned int i;

	if (!setting_exists(PARAM_EAGER))
		return PARAM_EAGER " can't be written";

	for (i = 0; may_try_again(i) && !hit; i++)
		hit = cancel_once(v);
	TEST_ASSERT(hit, "%s: turned off %u times, never in the midst", v->name, i);
	for (unsigned int j = 1; j < NR_VARIANTS; j++)
		if (applies(&variants[j]))
			cancel_once(&variants[j]);
	ksft_print_msg("%-16s off      in the midst at the %u. try\n", v->name, i);
	fflush(stdout);
	return NULL;
}

/* The process is killed */

/* The victim's file descriptor, once it has got one. */
static int *victim_stats_fd;

static pid_t victim_pid;

static void victim_main(const struct variant *v)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_SOME };

	fault_create_vm(&t, 0);
	WRITE_ONCE(*victim_stats_fd, vm_get_stats_fd(t.vm));
	for (;;) {
		touch_all(&t);
		CHECK(&t, !set_logging(&t, true), "enabling failed, errno %d", errno);
		CHECK(&t, !set_logging(&t, false), "disabling failed, errno %d", errno);
	}
}

static void start_victim(const struct variant *v)
{
	*victim_stats_fd = -1;
	victim_pid = fork();
	TEST_ASSERT(victim_pid >= 0, "Can't fork, errno %d", errno);
	if (!victim_pid)
		victim_main(v);
}

static bool is_victim_alive(void)
{
	int status;

	TEST_ASSERT(!waitpid(victim_pid, &status, WNOHANG), "The victim ended by itself");
	return true;
}

static int take_stats_fd(void)
{
	int pidfd = syscall(SYS_pidfd_open, victim_pid, 0);
	int fd;

	while (READ_ONCE(*victim_stats_fd) < 0)
		is_victim_alive();
	fd = syscall(SYS_pidfd_getfd, pidfd, *victim_stats_fd, 0);
	TEST_ASSERT(fd >= 0, "Can't get the victim's statistics, errno %d", errno);
	close(pidfd);
	return fd;
}

static void close_stats(struct kvm_vm *vm)
{
	free(vm->stats.desc);
	close(vm->stats.fd);
}

static void kill_victim(void)
{
	int status;

	kill(victim_pid, SIGKILL);
	TEST_ASSERT(waitpid(victim_pid, &status, 0) == victim_pid, "Lost the victim");
	TEST_ASSERT(WIFSIGNALED(status), "The victim ended by itself");
}

/*
 * Returns true if the splitter noticed.  The VM outlives the process if its
 * statistics are watched, otherwise it goes with it.
 */
static bool kill_once(const struct variant *v, bool watch)
{
	struct kvm_vm vm = { };
	bool noticed = false;

	start_victim(v);
	vm.stats.fd = take_stats_fd();
	while (vm_get_stat_or_absent(&vm, "pages_2m") < NR_HUGE_SOME)
		is_victim_alive();
	wait_for_split(&vm, NR_HUGE_SOME, is_victim_alive);

	if (!watch)
		close_stats(&vm);
	kill_victim();
	if (watch) {
		noticed = vm_get_stat_or_absent(&vm, "eager_split_done") < NR_HUGE_SOME;
		close_stats(&vm);
	}
	return noticed;
}

static void run_kill_variant(const struct variant *v)
{
	unsigned int i, hits = 0;

	for (i = 0; i < NR_KILLS || (!hits && may_try_again(i)); i++)
		hits += kill_once(v, i % 2);
	TEST_ASSERT(hits, "%s: killed %u times, never in the midst", v->name, i);
	ksft_print_msg("%-16s killed   %u times, in the midst %u times of %u watched\n", v->name, i,
		       hits, i / 2);
	fflush(stdout);
}

static const char *run_kill(void)
{
	victim_stats_fd = map_memory(sizeof(*victim_stats_fd), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1);
	for (unsigned int i = 0; i < NR_VARIANTS; i++)
		if (!variants[i].clear && applies(&variants[i]))
			run_kill_variant(&variants[i]);
	return NULL;
}

const struct part parts[] = {
	{ "off", "eager_page_split is turned off", run_cancel, NR_HUGE_MANY, true },
	{ "kill", "the process is killed", run_kill, NR_HUGE_SOME },
};

const unsigned int nr_parts = ARRAY_SIZE(parts);
