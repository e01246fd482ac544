/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by dirty_bits_test and dirty_bits_param_test.  Each of these files
 * calls only the files below it:
 *
 *   dirty_bits_run.c		the command line, and the run over all kinds of guests
 *   dirty_bits_vm.c		the VM, its memory, its log and what should be in the log
 *   dirty_bits_guest.c		the guest, which writes to memory as told
 */
#ifndef SELFTEST_KVM_DIRTY_BITS_H
#define SELFTEST_KVM_DIRTY_BITS_H

#include "eager_split_util.h"
#include "svm_util.h"
#include "vmx.h"

/* The memory that is logged: 2MiB, and some more pages. */
#define DATA_SLOT		10
#define DATA_GPA		0x40000000ull
#define MOVED_GPA		0x60000000ull
#define NR_PAGES		589u
#define DATA_SIZE		((size_t)NR_PAGES * PAGE_SIZE)
#define LOG_WORDS		DIV_ROUND_UP(NR_PAGES, 64)
#define LOG_BYTES		(LOG_WORDS * sizeof(unsigned long))

/* Memory that a page table of the guest can map instead of the data. */
#define OTHER_SLOT		11
#define OTHER_GPA		0x50000000ull

/* Memory that uses up shadow pages: one page in each 2MiB is touched. */
#define BALLAST_SLOT		12
#define BALLAST_GPA		0x10000000ull
#define BALLAST_PAGES		96u
#define MAX_MMU_PAGES		2000ul
#define EXTRA_PAGES		512

/*
 * A memslot around EDGE_GPA, up to which page tables with four levels can map
 * memory.  EDGE_GVA maps the last page before that.
 */
#define EDGE_SLOT		13
#define EDGE_GPA		BIT_ULL(48)
#define EDGE_GVA		0x90000000ull

/*
 * No memory.  MMIO_GVA maps MMIO_GPA, and the next page maps the same address
 * with a bit above 47 set.
 */
#define MMIO_GPA		0xb0000000ull
#define MMIO_GVA		0xa0000000ull

/* Where L1 maps the page tables of the data and the table above them. */
#define TABLE_GVA		0x80000000ull
#define UPPER_GVA		0x80100000ull
#define NR_TABLES		2u
#define PTES_PER_TABLE		512u
#define TDP_GIBS		2u

#define VMMCALL_BYTES		3

/* Bits of an EPT pointer. */
#define EPTP_WRITE_BACK		X86_MEMTYPE_WB
#define EPTP_4_LEVELS		(3ull << 3)
#define EPTP_AD			BIT_ULL(6)

enum guest_opcode { OP_WRITE, OP_EXPECT, OP_INVLPG, OP_INVEPT, OP_CR3, OP_SPIN };

/*
 * Bits that differ between page tables (including NPT) and EPT.  Present,
 * Writable and User in page tables are the same bits as Read, Write and Execute
 * in EPT.
 */
struct entry_bits {
	/* Set in each entry that maps a page. */
	u64 leaf;
	u64 accessed;
	u64 dirty;
};

/* The guest that writes: an L1 or an L2. */
struct writer {
	const char *name;
	const char *what;
	bool nested;
	/* L1's EPT has no Accessed and Dirty bits. */
	bool no_ad;
	/* L1 does not use EPT or NPT for L2, although it could. */
	bool no_tdp;

	const char *(*skip_reason)(void);
	/* The combinations of enum guest_kind that -q runs, as bits. */
	unsigned long quick;
};

struct dirty_bits_test {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	/* The event, for messages. */
	const char *name;

	const struct writer *writer;
	bool manual;
	bool private;

	void *mapping;
	u8 *hva;
	/* Reserved addresses, where mremap() moves the memory. */
	u8 *elsewhere;
	/* L1's NPT or EPT, or zero. */
	u64 tdp;
	/* The entries that map the data: L1's page tables, or its NPT or EPT. */
	const struct entry_bits *bits;
	u64 *table[NR_TABLES];
	u64 *upper;
	/*
	 * Values for entries of @upper: the first one of the data, and one for
	 * a page table that maps a page of zeroes everywhere.
	 */
	u64 linked;
	u64 zeroes;

	u64 root;
	u64 other_root;
	/* What should be in the log. */
	unsigned long log[LOG_WORDS];
	unsigned long seen[LOG_WORDS];
	/* What is written next. */
	u64 value;

	unsigned int rounds;
};

struct event {
	const char *name;
	const char *what;
	/* Called between the writes and KVM_GET_DIRTY_LOG. */
	void (*happen)(struct dirty_bits_test *t);
	/* Undoes @happen after KVM_GET_DIRTY_LOG, if that is needed. */
	void (*undo)(struct dirty_bits_test *t);

	const char *(*skip_reason)(void);
	/* Private anonymous memory, not a memfd. */
	bool private;
	/* The log may contain pages that were not written. */
	bool more;
	/*
	 * Instead of @happen: a separate test, with a vCPU that keeps running.
	 */
	void (*run)(struct dirty_bits_test *t);
};

/* For messages: the event, which guest writes, and how the log is cleared. */
static inline const char *dirty_bits_label(struct dirty_bits_test *t)
{
	static char text[80];

	snprintf(text, sizeof(text), "%s, %s, %s", t->name, t->writer->name,
		 t->manual ? "manual protection" : "GET clears");
	return text;
}

#define CHECK(t, cond, fmt, ...)	\
	CHECK_CASE(dirty_bits_label(t), cond, fmt, ##__VA_ARGS__)

extern const struct entry_bits ept_bits;

/* The guest */

/* If there is an L2, one of @svm and @vmx is not NULL. */
void guest_main(struct svm_test_data *svm, struct vmx_pages *vmx, u64 npt);
void add_op(struct dirty_bits_test *t, enum guest_opcode op, u64 addr, u64 value);
void send_ops(struct dirty_bits_test *t, bool l2);
void run_l1(struct dirty_bits_test *t);
/* Run the guest whose writes should be in the log: L1 or L2. */
void run_writer(struct dirty_bits_test *t);
void set_l2_root(struct dirty_bits_test *t, u64 root);
void set_stop(struct dirty_bits_test *t, u64 value);

/* The VM, its memory and its log */

/*
 * Let the guest write to some pages: some of those at borders, a third of the
 * pages in every other block of 128 pages, and few in the other blocks.
 * Return: how many.
 */
u64 write_batch(struct dirty_bits_test *t);
void write_all(struct dirty_bits_test *t);
void set_slot(struct dirty_bits_test *t, u64 gpa, u32 flags);
void get_log(struct dirty_bits_test *t);
void expect_log(struct dirty_bits_test *t, bool more, const char *when);
void clear_log(struct dirty_bits_test *t);
void start_logging(struct dirty_bits_test *t);
void stop_logging(struct dirty_bits_test *t);
void advise(struct dirty_bits_test *t, size_t size, int advice);
void add_other(struct dirty_bits_test *t, u32 flags);
const char *no_edge(void);
u64 *entry_of(struct dirty_bits_test *t, u64 page);
u64 good_entry(struct dirty_bits_test *t, u64 page);
void dirty_bits_create_vm(struct dirty_bits_test *t);
void dirty_bits_destroy_vm(struct dirty_bits_test *t);

/* A run */

/* Can the setting be written?  Tries it with the current value. */
bool is_writable(const char *path);

/* Skip the test if kvm.dirty_bits cannot be set. */
void require_dirty_bits(void);

/* Can VMs log by Dirty bits?  With PML none does, whatever the parameter says. */
bool can_dirty_bits(void);

#define NO_DIRTY_BITS		"SPTEs have no Dirty bits, or the CPU logs by itself (PML)"

/* Pages are logged by write-protection faults instead. */
extern bool dirty_bits_wrprot;

/*
 * Return: the statistic dirty_bits of a VM created with kvm.dirty_bits=@mode.
 */
u64 dirty_bits_of_new_vm(const char *mode);

/*
 * Parse the command line, and @run each of @events with each kind of guest.
 * Return: the exit status.
 */
int dirty_bits_main(int argc, char *argv[], const struct event *events, unsigned int nr,
		    void (*run)(struct dirty_bits_test *t, const struct event *e));

#endif /* SELFTEST_KVM_DIRTY_BITS_H */
