/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers for the tests of eager page splitting and of dirty logging: a clock, KVM's
 * statistics, memory, settings of the host that get their old values back, fault
 * injection, and parts of VMs and guests.
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

/* Parameters of kvm.ko; the last four exist with CONFIG_KVM_PROVE_MMU only. */
#define KVM_PARAM(name)		"/sys/module/kvm/parameters/" name
#define PARAM_EAGER		KVM_PARAM("eager_page_split")
#define PARAM_DIRTY_BITS		KVM_PARAM("dirty_bits")
#define PARAM_NX		KVM_PARAM("nx_huge_pages")
#define PARAM_FORCE_YIELD	KVM_PARAM("prove_force_yield")
#define PARAM_FORCED		KVM_PARAM("prove_forced")
#define PARAM_SKIP_SPLIT	KVM_PARAM("prove_skip_split")
#define PARAM_PAUSE_US		KVM_PARAM("prove_window_us")

/* The most that PARAM_PAUSE_US takes. */
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

/* Bits of entries in page tables: the guest's, in all of its modes, and those of NPT. */
#define PT_PRESENT_MASK		BIT_ULL(0)
#define PT_WRITABLE_MASK	BIT_ULL(1)
#define PT_USER_MASK		BIT_ULL(2)
#define PT_ACCESSED_MASK	BIT_ULL(5)
#define PT_DIRTY_MASK		BIT_ULL(6)
#define PT_HUGE_MASK		BIT_ULL(7)
#define PT_NX_MASK		BIT_ULL(63)

/* Bits of an entry by which the guest has written already. */
#define PT_USED_ENTRY		(PT_PRESENT_MASK | PT_WRITABLE_MASK | \
				 PT_ACCESSED_MASK | PT_DIRTY_MASK)

#define NSEC_PER_USEC		1000ul
#define NSEC_PER_MSEC		1000000ul

/* Of dirty_log_hold_hist and dirty_log_wait_hist. */
#define NR_BUCKETS		32

/*
 * TEST_ASSERT() for a test of many cases: the message begins with the name of the case.
 * @name is evaluated only if the check fails, as that may take long.
 */
#define CHECK_CASE(name, cond, fmt, ...)				\
do {									\
	if (!(cond))							\
		test_assert(false, #cond, __FILE__, __LINE__,		\
			    "%s: " fmt, name, ##__VA_ARGS__);		\
} while (0)

/* What vm_get_stat_or_absent() and others return for statistics that KVM lacks. */
#define STAT_ABSENT		(~0ul)

/* CLOCK_MONOTONIC. */
u64 now_ns(void);
/* Wait in a loop: sleeping would take longer than asked for. */
void spin_ns(u64 ns);
/* Read a statistic with @nr values from @stats->fd.  Return: false if the kernel lacks it. */
bool read_stat(struct kvm_binary_stats *stats, const char *name, u64 *values, u32 nr);
/* Return: the sum of a histogram.  Fails the test if the kernel lacks it. */
u64 sum_stat(struct kvm_binary_stats *stats, const char *name);
/* Return: the value of a statistic, STAT_ABSENT if the kernel lacks it. */
u64 vm_get_stat_or_absent(struct kvm_vm *vm, const char *name);
/* Return: the value of a statistic, 0 if the kernel lacks it. */
u64 vm_get_stat_or_zero(struct kvm_vm *vm, const char *name);
/* Return: what vm_get_stat_or_absent() returns for a VM that is created now. */
u64 new_vm_get_stat(const char *name);
/* Have SIGALRM interrupt the system call that the process is in by then. */
void interrupt_after(unsigned int seconds);
void clear_trace(void);
/* Page faults that KVM took for the vCPU. */
u64 nr_faults(struct kvm_vcpu *vcpu);
/* Return: the statistic of the vCPU, STAT_ABSENT if KVM has none of that name. */
u64 read_vcpu_stat(struct kvm_vcpu *vcpu, const char *name);
/* mmap().  Fails the test if that fails. */
void *map_memory(size_t size, int prot, int flags, int fd);
/* Return: reserved addresses, aligned to 2MiB, where memory can be mapped with MAP_FIXED. */
void *reserve_2m_aligned(size_t size);
/* Replace the mapping at @hva: map one and the same huge page of the host everywhere. */
void map_one_2m_page(void *hva, size_t size);
/* Return: how many 2MiB HugeTLB pages are free, 0 if there is no pool. */
unsigned int nr_free_2m_pages(void);
/* Return: false and errno if not all of it could be written; safe in a signal handler. */
bool write_file(const char *path, const char *text);
/* Write to a file that takes a number, e.g. FAIL_NTH. */
void write_number(int fd, unsigned int number);
/* Return: false if the file can't be read; @text is a string if it can. */
bool read_file(const char *path, char *text, size_t size);

/* The longest text that a file with a setting of the host may contain. */
#define SETTING_MAX		32

/*
 * Can the setting be read and written?  If so, this saves its value, unless that has been
 * saved before, and the end of the process restores it.  Failures, SIGINT, SIGTERM and
 * SIGHUP restore it, too.  Only the process that has saved it does so, not its children:
 * a parent must save what its children set.
 */
bool setting_exists(const char *path);
/* Return: the saved value, which is the current one if nothing has set it since. */
const char *setting_value(const char *path);
void setting_set(const char *path, const char *value);
void setting_reset(const char *path);
/* For handlers of other signals: restore all settings, and end the process. */
void __noreturn settings_restore_and_exit(int signal);
/*
 * Let allocations that may sleep fail, too, and keep the kernel from logging failures.
 * Return: false if the kernel has no fault injection.
 */
bool prepare_injection(void);
/* Have only objects of @cache, FAIL_HEADERS or FAIL_DESCS, fail, or pages if it is NULL. */
void fail_only(const char *cache);
/*
 * Run the rows that were chosen.  @run returns NULL, or why the row can't be run here.
 * Return: how many rows were run.  This is not in the library because kselftest.h counts
 * results per file.
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

/* Return: the exit status.  @complete: false if something could not be run. */
static inline int finish(bool complete)
{
	if (complete)
		ksft_finished();

	ksft_print_cnts();
	return KSFT_SKIP;
}

/* Microseconds to pause within each update of an SPTE; 0: set_pauses() does nothing. */
extern u64 pause_us;
void set_pauses(bool on);
/* How often KVM has paused amid an update, at all places together. */
u64 nr_pauses(void);
/* The same for one place.  KVM counts a pause as it begins. */
u64 nr_pauses_at(const char *place);
/* Does the TDP MMU map the guest?  It has no rmaps, and no quota of page tables. */
bool is_tdp_mmu(void);
/* Return: the entry for @gva at @level.  There must be page tables down to there. */
u64 *vm_get_entry(struct kvm_vm *vm, u64 gva, int level);
/*
 * Change the permissions in the 2MiB entry for @gva.  All four kinds permit writes by
 * the supervisor, but KVM needs shadow pages of its own for each.
 */
void vm_vary_entry(struct kvm_vm *vm, u64 gva, unsigned int kind);
/* Flat segments for protected mode, or for 64-bit mode. */
void set_flat_segments(struct kvm_sregs *sregs, bool is_64bit);
/* Manual protection.  @initially_set: all pages are dirty when logging is enabled. */
void vm_enable_manual_protect(struct kvm_vm *vm, bool initially_set);
void vm_set_nr_mmu_pages(struct kvm_vm *vm, unsigned long nr);
/* Run the guest up to its next GUEST_SYNC(), and store that to @uc unless it is NULL. */
void vcpu_run_to_sync(struct kvm_vcpu *vcpu, struct ucall *uc);
void start_thread(pthread_t *thread, void *(*fn)(void *), void *arg);
/* Run the guest up to its next GUEST_SYNC() in a thread of its own. */
pthread_t start_vcpu(struct kvm_vcpu *vcpu);
/*
 * After an internal error: did KVM refuse to emulate MMIO because of an event that is not
 * being delivered any more?  On SVM, KVM looks at the type of the event alone, and QEMU
 * does not clear that after the delivery.  KVM_RUN can be called again.
 */
bool vcpu_saw_stale_event(struct kvm_vcpu *vcpu);

#endif /* SELFTEST_KVM_EAGER_SPLIT_UTIL_H */
