/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the tests of eager page splitting and of dirty logging share: a clock,
 * KVM's statistics, settings of the host that get their old values back, what every
 * other VM of theirs needs, and the headers that nearly all of them take.
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

/* Of entries in page tables of the guest, in all of its modes, and of NPT. */
#define PT_PRESENT_MASK		BIT_ULL(0)
#define PT_WRITABLE_MASK	BIT_ULL(1)
#define PT_USER_MASK		BIT_ULL(2)
#define PT_ACCESSED_MASK	BIT_ULL(5)
#define PT_DIRTY_MASK		BIT_ULL(6)
#define PT_HUGE_MASK		BIT_ULL(7)
#define PT_NX_MASK		BIT_ULL(63)

/* Of an entry that has been used for a write already. */
#define PT_USED_ENTRY		(PT_PRESENT_MASK | PT_WRITABLE_MASK | \
				 PT_ACCESSED_MASK | PT_DIRTY_MASK)

#define NSEC_PER_USEC		1000ul
#define NSEC_PER_MSEC		1000000ul

/* Of dirty_log_hold_hist and dirty_log_wait_hist. */
#define NR_BUCKETS		32

/*
 * TEST_ASSERT() for a test of many cases: the message begins with the name of the case.  To
 * name it may take long, so that is done only once the check has failed.
 */
#define CHECK_CASE(name, cond, fmt, ...)				\
do {									\
	if (!(cond))							\
		test_assert(false, #cond, __FILE__, __LINE__,		\
			    "%s: " fmt, name, ##__VA_ARGS__);		\
} while (0)

/* Of vm_get_stat_or_absent(). */
#define STAT_ABSENT		(~0ul)

/* CLOCK_MONOTONIC. */
u64 now_ns(void);
/* Busy, as sleeping takes too long. */
void spin_ns(u64 ns);
/* Return: false if the kernel lacks the statistic, of @stats->fd, with @nr values. */
bool read_stat(struct kvm_binary_stats *stats, const char *name, u64 *values, u32 nr);
/* Return: the sum of a histogram, or else the test ends. */
u64 sum_stat(struct kvm_binary_stats *stats, const char *name);
/* Return: the value of a statistic, STAT_ABSENT if the kernel lacks it. */
u64 vm_get_stat_or_absent(struct kvm_vm *vm, const char *name);
/* Have a signal, which does nothing else, end what the thread waits for. */
void interrupt_after(unsigned int seconds);
void clear_trace(void);
/* Page faults that KVM took for the vCPU. */
u64 nr_faults(struct kvm_vcpu *vcpu);
/* Return: the statistic of the vCPU, STAT_ABSENT if KVM has none of that name. */
u64 read_vcpu_stat(struct kvm_vcpu *vcpu, const char *name);
/* Return: memory, or else the test ends. */
void *map_memory(size_t size, int prot, int flags, int fd);
/* Put one huge page of the host's, over and over, where something is mapped already. */
void map_one_2m_page(void *hva, size_t size);
/* Return: how many 2MiB HugeTLB pages are free, 0 if there is no pool. */
unsigned int nr_free_2m_pages(void);
/* Return: false and errno if not all of it could be written; safe in a signal handler. */
bool write_file(const char *path, const char *text);
/* Into a file that takes one, e.g. FAIL_NTH. */
void write_number(int fd, unsigned int number);
/* Return: false if the file can't be read; @text is a string if it can. */
bool read_file(const char *path, char *text, size_t size);

/* Room for what a file of the host's with a setting in it says. */
#define SETTING_MAX		32

/*
 * Can the setting be read and written?  If so, it gets the value back that it had when it was first
 * asked for or set: when the process ends, by a failure or by SIGINT, SIGTERM or SIGHUP, too.  Only
 * the process that did that puts it back, not its children: ask before they set anything.
 */
bool setting_exists(const char *path);
/* Return: what it was, or is if nothing has set it. */
const char *setting_value(const char *path);
void setting_set(const char *path, const char *value);
void setting_reset(const char *path);
/* For handlers of other signals: put everything back, and end. */
void __noreturn settings_restore_and_exit(int signal);
/*
 * Let allocations fail that may wait, too, and have nothing said about it in the kernel's log.
 * Return: false if the kernel has no fault injection.
 */
bool prepare_injection(void);
/* Let nothing fail but objects of @cache, FAIL_HEADERS or FAIL_DESCS, or pages if it is NULL. */
void fail_only(const char *cache);
/*
 * Run the rows that were chosen.  @run: NULL, or why it can't.  Return: how many could be.
 * Not in the library: each file that includes kselftest.h has results of its own.
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

/* Return: the exit status.  @complete: false if something couldn't run, and has said why. */
static inline int finish(bool complete)
{
	if (complete)
		ksft_finished();

	ksft_print_cnts();
	return KSFT_SKIP;
}

/* Of an option: how long KVM is to pause within each update of an SPTE; 0: leave it alone. */
extern u64 pause_us;
void set_pauses(bool on);
/* How often KVM has paused amid an update, at all places together. */
u64 nr_pauses(void);
/* Is the guest mapped by the TDP MMU, which has no rmaps and no quota? */
bool is_tdp_mmu(void);
/* Return: where the guest's page tables map @gva at @level, those above it being there. */
u64 *vm_get_entry(struct kvm_vm *vm, u64 gva, int level);
/*
 * Vary what the 2MiB entry for @gva permits, all of it good for a write by the
 * supervisor: each of four kinds has shadow pages of its own.
 */
void vm_vary_entry(struct kvm_vm *vm, u64 gva, unsigned int kind);
/* Of code or data, of 32 bits and 4GiB, from address 0 on. */
void set_segment(struct kvm_segment *segment, u16 selector, u8 type);
/* Let KVM_CLEAR_DIRTY_LOG do the work.  @initially_set: from a log with all pages dirty. */
void vm_enable_manual_protect(struct kvm_vm *vm, bool initially_set);
void vm_set_nr_mmu_pages(struct kvm_vm *vm, unsigned long nr);
/* Run the guest up to its next GUEST_SYNC(); @uc: what that says, or NULL. */
void vcpu_run_to_sync(struct kvm_vcpu *vcpu, struct ucall *uc);
void start_thread(pthread_t *thread, void *(*fn)(void *), void *arg);
/* Run the guest up to its next GUEST_SYNC() in a thread of its own. */
pthread_t start_vcpu(struct kvm_vcpu *vcpu);

#endif /* SELFTEST_KVM_EAGER_SPLIT_UTIL_H */
