/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers for the tests of eager page splitting and of dirty logging: a clock,
 * KVM's statistics, memory, settings of the host that are restored at exit,
 * fault injection, and parts of VMs and guests.
 */
#ifndef SELFTEST_KVM_EAGER_SPLIT_UTIL_H
#define SELFTEST_KVM_EAGER_SPLIT_UTIL_H

#include <pthread.h>
#include <sys/mman.h>
#include <linux/bitmap.h>
#include <linux/sizes.h>

#include "kvm_util.h"
#include "processor.h"
#include "test_options.h"

/* Parameters of kvm.ko; the last four need CONFIG_KVM_PROVE_MMU_RACES. */
#define KVM_PARAM(name)		"/sys/module/kvm/parameters/" name
#define PARAM_EAGER		KVM_PARAM("eager_page_split")
#define PARAM_DIRTY_BITS		KVM_PARAM("dirty_bits")
#define PARAM_NX		KVM_PARAM("nx_huge_pages")
#define PARAM_FORCE_YIELD	KVM_PARAM("prove_force_yield")
#define PARAM_FORCED		KVM_PARAM("prove_forced")
#define PARAM_SKIP_SPLIT	KVM_PARAM("prove_skip_split")
#define PARAM_PAUSE_US		KVM_PARAM("prove_window_us")

/* The largest value of PARAM_PAUSE_US. */
#define MAX_PAUSE_US		10000u

#define TRACING			"/sys/kernel/tracing/"

/* Fault injection. */
#define FAILSLAB		"/sys/kernel/debug/failslab/"
#define FAIL_PAGE_ALLOC		"/sys/kernel/debug/fail_page_alloc/"
#define FAIL_HEADERS		"/sys/kernel/slab/kvm_mmu_page_header/failslab"
#define FAIL_DESCS		"/sys/kernel/slab/pte_list_desc/failslab"
#define FAIL_NTH		"/proc/thread-self/fail-nth"

#define PAGES_PER_2M		512ul
#define PAGES_PER_1G		(512 * PAGES_PER_2M)
#define BITS_PER_WORD		64ul

/* The smallest quota of shadow pages that KVM accepts. */
#define MIN_MMU_PAGES		64ul

/* Bits of page table entries, of guests in all modes and of NPT. */
#define PT_PRESENT_MASK		BIT_ULL(0)
#define PT_WRITABLE_MASK	BIT_ULL(1)
#define PT_USER_MASK		BIT_ULL(2)
#define PT_ACCESSED_MASK	BIT_ULL(5)
#define PT_DIRTY_MASK		BIT_ULL(6)
#define PT_HUGE_MASK		BIT_ULL(7)
#define PT_NX_MASK		BIT_ULL(63)

/* Bits of an entry through which the guest has already written. */
#define PT_USED_ENTRY		(PT_PRESENT_MASK | PT_WRITABLE_MASK | \
				 PT_ACCESSED_MASK | PT_DIRTY_MASK)

#define NSEC_PER_USEC		1000ul
#define NSEC_PER_MSEC		1000000ul

/* Buckets of dirty_log_hold_hist and dirty_log_wait_hist. */
#define NR_BUCKETS		32

/*
 * TEST_ASSERT() for tests with many cases: the message begins with the name of
 * the case.  @name is evaluated only if the check fails, as that may take long.
 */
#define CHECK_CASE(name, cond, fmt, ...)				\
do {									\
	if (!(cond))							\
		test_assert(false, #cond, __FILE__, __LINE__,		\
			    "%s: " fmt, name, ##__VA_ARGS__);		\
} while (0)

/* vm_get_stat_or_absent() and others return this if KVM lacks the statistic. */
#define STAT_ABSENT		(~0ul)

/* Return: CLOCK_MONOTONIC in nanoseconds. */
u64 now_ns(void);
/* Wait in a busy loop, as a sleep could take longer than @ns. */
void spin_ns(u64 ns);
/*
 * Read a statistic with @nr values from @stats->fd.  Return: false if the
 * kernel lacks it.
 */
bool read_stat(struct kvm_binary_stats *stats, const char *name, u64 *values, u32 nr);
/* Return: the sum of a histogram.  Fails the test if the kernel lacks it. */
u64 sum_stat(struct kvm_binary_stats *stats, const char *name);
/* Return: the value of a statistic, STAT_ABSENT if the kernel lacks it. */
u64 vm_get_stat_or_absent(struct kvm_vm *vm, const char *name);
/* Return: the value of a statistic, 0 if the kernel lacks it. */
u64 vm_get_stat_or_zero(struct kvm_vm *vm, const char *name);
/* Like vm_get_stat_or_absent(), for a VM that is created just for that. */
u64 new_vm_get_stat(const char *name);
/* Have SIGALRM interrupt the system call that is then in progress. */
void interrupt_after(unsigned int seconds);
void clear_trace(void);
/* Return: how many page faults KVM has taken for the vCPU. */
u64 nr_faults(struct kvm_vcpu *vcpu);
/* Return: the statistic of the vCPU, STAT_ABSENT if KVM has none of that name. */
u64 read_vcpu_stat(struct kvm_vcpu *vcpu, const char *name);
/* Like mmap(), but fails the test on errors. */
void *map_memory(size_t size, int prot, int flags, int fd);
/* Reserve addresses for MAP_FIXED.  Return: the first, aligned to 2MiB. */
void *reserve_2m_aligned(size_t size);
/*
 * Replace what @hva maps: map the same huge page of the host again and again.
 */
void map_one_2m_page(void *hva, size_t size);
/* Return: how many 2MiB HugeTLB pages are free, 0 if there is no pool. */
unsigned int nr_free_2m_pages(void);
/*
 * Return: false, and sets errno, if not all of the text could be written.  May
 * be called by signal handlers.
 */
bool write_file(const char *path, const char *text);
/* Write to a file that takes a number, e.g. FAIL_NTH. */
void write_number(int fd, unsigned int number);
/* Return: false if the file cannot be read.  Otherwise @text is a string. */
bool read_file(const char *path, char *text, size_t size);

/* The size of the buffer for the value of a setting. */
#define SETTING_MAX		32

/*
 * Can the setting be read and written?  If so, this saves its value, unless it
 * is saved already, and the exit of the process restores it.  So do failures of
 * the test, SIGINT, SIGTERM and SIGHUP.  Only the process that has saved a
 * value restores it, not its children.  So a parent must save what its children
 * set.
 */
bool setting_exists(const char *path);
/* Return: the value of the setting before the test changed it. */
const char *setting_value(const char *path);
void setting_set(const char *path, const char *value);
void setting_reset(const char *path);
/* For handlers of other signals: restore all settings, and exit. */
void __noreturn settings_restore_and_exit(int signal);
/*
 * Let allocations that may sleep fail, too, and do not log injected failures.
 * Return: false if the kernel has no fault injection.
 */
bool prepare_injection(void);
/*
 * Let only allocations of one kind fail: objects of @cache (FAIL_HEADERS or
 * FAIL_DESCS), or pages if @cache is NULL.
 */
void fail_only(const char *cache);
/*
 * Run the rows that were chosen.  @run returns NULL, or why the row cannot run
 * here.  Return: how many rows were run.
 *
 * This is not in the library, because kselftest.h counts results per file.
 */
static inline unsigned int run_chosen(const struct choice *c, const char *(*run)(unsigned int row))
{
	unsigned int nr = 0;

	ksft_set_plan(choice_count(c));
	for (unsigned int i = 0; i < c->nr; i++) {
		u64 start = now_ns();
		const char *reason;

		if (!choice_has(c, i))
			continue;
		reason = run(i);
		nr += !reason;
		if (reason)
			ksft_test_result_skip("%s: %s\n", choice_row(c, i)[0], reason);
		else
			ksft_test_result_pass("%s: %s, %lu ms\n", choice_row(c, i)[0],
					      choice_row(c, i)[1],
					      (now_ns() - start) / NSEC_PER_MSEC);
	}
	return nr;
}

/* Return: the exit status.  @complete: false if some rows could not be run. */
static inline int finish(bool complete)
{
	if (complete)
		ksft_finished();

	ksft_print_cnts();
	return KSFT_SKIP;
}

/*
 * Microseconds that KVM pauses within each update of an SPTE.  If it is 0,
 * set_pauses() does nothing.
 */
extern u64 pause_us;
void set_pauses(bool on);
/* Return: how often KVM has paused within an update, at all places together. */
u64 nr_pauses(void);
/* The same for one place.  KVM counts a pause when it begins. */
u64 nr_pauses_at(const char *place);
/* Does the TDP MMU map the guest?  It has no rmaps, and no quota of page tables. */
bool is_tdp_mmu(void);
/* Return: the guest entry for @gva at @level.  Its page table must exist. */
u64 *vm_get_entry(struct kvm_vm *vm, u64 gva, int level);
/*
 * Change the permissions in the 2MiB entry for @gva.  All four kinds permit
 * writes by the supervisor, but KVM needs separate shadow pages for each.
 */
void vm_vary_entry(struct kvm_vm *vm, u64 gva, unsigned int kind);
/* Set flat segments for protected mode, or for 64-bit mode. */
void set_flat_segments(struct kvm_sregs *sregs, bool is_64bit);
/*
 * Enable manual protection.  @initially_set: all pages are dirty when logging
 * is enabled.
 */
void vm_enable_manual_protect(struct kvm_vm *vm, bool initially_set);
void vm_set_nr_mmu_pages(struct kvm_vm *vm, unsigned long nr);
/*
 * Run the guest up to its next GUEST_SYNC(), and store it to @uc if not NULL.
 */
void vcpu_run_to_sync(struct kvm_vcpu *vcpu, struct ucall *uc);
void start_thread(pthread_t *thread, void *(*fn)(void *), void *arg);
/* Start a thread that runs the guest up to its next GUEST_SYNC(). */
pthread_t start_vcpu(struct kvm_vcpu *vcpu);
/*
 * After an internal error: has KVM refused to emulate MMIO because of an event
 * that is not being delivered any more?  On SVM, KVM checks only the type of
 * the event, which QEMU does not clear after the delivery.  If so, KVM_RUN can
 * be called again.
 */
bool vcpu_saw_stale_event(struct kvm_vcpu *vcpu);
/* To be executed by L1 on VMX: flush the translations of all EPTs. */
void guest_invept(void);

#endif /* SELFTEST_KVM_EAGER_SPLIT_UTIL_H */
