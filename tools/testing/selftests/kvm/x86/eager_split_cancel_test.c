// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting that is interrupted by SIGKILL
 *
 * A child process (the victim) creates a VM, has the guest touch 256 huge
 * pages, and then enables and disables dirty logging in a loop.  The parent
 * polls the VM's statistics, and kills the victim when the first huge page is
 * split.  KVM must then stop splitting before it has split all of them.
 *
 * In every other try, the parent keeps the statistics open.  The VM then
 * outlives the victim, and the parent reads how many huge pages were split.  In
 * the other tries, the exit of the victim destroys the VM at once.
 *
 * The test fails if the splitter did not stop early in any try, or if the
 * victim ends by itself.
 *
 * It needs kvm.eager_page_split=Y and one free 2MiB HugeTLB page.  It is
 * skipped with the TDP MMU, which does not have the statistics.
 *
 * Limits: the scheduler decides whether the signal arrives in time.  Therefore
 * there are many huge pages, and up to 200 tries (-n: fewer).
 */
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "eager_split_fault.h"

#define MAX_MIDST_TRIES		200u
#define NR_KILLS		4

/* So many that the parent sees the first split before the last one is done. */
#define NR_HUGE_KILL		256u

static bool may_try_again(unsigned int nr_tries)
{
	return nr_tries < max_tries && nr_tries < MAX_MIDST_TRIES;
}

static struct {
	/*
	 * The victim's file descriptor of its VM's statistics; negative until
	 * the victim has created the VM.
	 */
	int stats_fd;
	/* The victim may begin.  The parent has got the descriptor. */
	bool go;
} *shared;

static pid_t victim_pid;

static void victim_main(const struct variant *v)
{
	struct fault_test t = { .v = v, .nr_huge = NR_HUGE_KILL, .same_memory = true };

	fault_create_vm(&t, 0);
	WRITE_ONCE(shared->stats_fd, vm_get_stats_fd(t.vm));
	while (!READ_ONCE(shared->go))
		sched_yield();
	for (;;) {
		touch_all(&t);
		CHECK(&t, !set_logging(&t, true), "enabling failed, errno %d", errno);
		CHECK(&t, !set_logging(&t, false), "disabling failed, errno %d", errno);
	}
}

static void start_victim(const struct variant *v)
{
	shared->stats_fd = -1;
	shared->go = false;
	victim_pid = fork();
	TEST_ASSERT(victim_pid >= 0, "Can't fork, errno %d", errno);
	if (!victim_pid)
		victim_main(v);
}

static void check_victim_is_alive(void)
{
	int status;

	TEST_ASSERT(!waitpid(victim_pid, &status, WNOHANG), "The victim ended by itself");
}

static int take_stats_fd(void)
{
	int pidfd = syscall(SYS_pidfd_open, victim_pid, 0);
	int fd;

	while (READ_ONCE(shared->stats_fd) < 0)
		check_victim_is_alive();
	fd = syscall(SYS_pidfd_getfd, pidfd, shared->stats_fd, 0);
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
 * Return: true if the splitter was seen to stop early, which takes @watch.
 *
 * With @watch, the parent keeps the statistics open, so that it can read them
 * when the victim is dead.  Otherwise the exit of the victim destroys the VM.
 */
static bool kill_once(const struct variant *v, bool watch)
{
	struct kvm_vm vm = { };
	bool noticed = false;

	start_victim(v);
	vm.stats.fd = take_stats_fd();
	WRITE_ONCE(shared->go, true);
	/* Wait until the first huge page is split. */
	while (vm_get_stat_or_absent(&vm, "pages_2m") >= NR_HUGE_KILL)
		check_victim_is_alive();

	if (!watch)
		close_stats(&vm);
	kill_victim();
	if (watch) {
		noticed = vm_get_stat_or_absent(&vm, "eager_split_done") < NR_HUGE_KILL;
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
	shared = map_memory(sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			    -1);
	for (unsigned int i = 0; i < NR_VARIANTS; i++)
		if (!variants[i].clear && applies(&variants[i]))
			run_kill_variant(&variants[i]);
	return NULL;
}

const struct part parts[] = {
	{ "kill", "the process is killed", run_kill, 1 },
};

const unsigned int nr_parts = ARRAY_SIZE(parts);
