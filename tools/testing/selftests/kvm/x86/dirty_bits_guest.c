// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest of the tests of Dirty bits: L1 or L2 executes a list of operations.
 */
#include "dirty_bits.h"

struct guest_op {
	u64 op;
	u64 addr;
	u64 value;
};

#define MAX_GUEST_OPS		2048u

static struct guest_op guest_ops[MAX_GUEST_OPS];
static u64 nr_guest_ops;
static u64 by_l2;

/* The root for L2: nested CR3, EPT pointer, or CR3 if L1 uses no NPT or EPT. */
static u64 l2_root;

/* Ends OP_SPIN. */
static u64 stop;

/*
 * In Bochs, interrupts of the host do not cause exits while the guest has
 * interrupts off.  The guest itself never gets an interrupt.
 */
static void guest_may_be_interrupted(bool may)
{
	if (may)
		asm volatile("sti" : : : "memory");
	else
		asm volatile("cli" : : : "memory");
}

static void guest_spin(u64 addr)
{
	u64 n = 0;

	guest_may_be_interrupted(true);
	while (!READ_ONCE(stop))
		WRITE_ONCE(*(u64 *)addr, ++n);
	guest_may_be_interrupted(false);
}

static void guest_exec_op(struct guest_op *o)
{
	if (o->op == OP_WRITE)
		WRITE_ONCE(*(u64 *)o->addr, o->value);
	else if (o->op == OP_EXPECT)
		GUEST_ASSERT_EQ(READ_ONCE(*(u64 *)o->addr), o->value);
	else if (o->op == OP_INVLPG)
		asm volatile("invlpg (%0)" : : "r"(o->addr) : "memory");
	else if (o->op == OP_INVEPT)
		guest_invept();
	else if (o->op == OP_CR3)
		asm volatile("mov %0, %%cr3" : : "r"(o->addr) : "memory");
	else
		guest_spin(o->addr);
}

static void guest_exec_all(void)
{
	for (u64 i = 0; i < READ_ONCE(nr_guest_ops); i++)
		guest_exec_op(&guest_ops[i]);
}

static void l2_main(void)
{
	for (;;) {
		guest_exec_all();
		if (host_cpu_is_intel)
			vmcall();
		else
			vmmcall();
	}
}

static void guest_run_svm_l2(struct svm_test_data *svm)
{
	struct vmcb *vmcb = svm->vmcb;

	if (vmcb->control.misc_ctl & SVM_MISC_ENABLE_NP)
		vmcb->control.nested_cr3 = READ_ONCE(l2_root);
	else
		vmcb->save.cr3 = READ_ONCE(l2_root);

	run_guest(vmcb, svm->vmcb_gpa);
	GUEST_ASSERT_EQ(vmcb->control.exit_code, SVM_EXIT_VMMCALL);
	vmcb->save.rip += VMMCALL_BYTES;
}

static void guest_run_vmx_l2(struct vmx_pages *vmx)
{
	static bool launched;

	GUEST_ASSERT(!vmwrite(vmx->eptp_gpa ? EPT_POINTER : GUEST_CR3, READ_ONCE(l2_root)));
	GUEST_ASSERT(!(launched ? vmresume() : vmlaunch()));
	launched = true;
	GUEST_ASSERT_EQ(vmreadz(VM_EXIT_REASON), EXIT_REASON_VMCALL);
	vmwrite(GUEST_RIP, vmreadz(GUEST_RIP) + vmreadz(VM_EXIT_INSTRUCTION_LEN));
}

void guest_main(struct svm_test_data *svm, struct vmx_pages *vmx, u64 npt)
{
	if (svm) {
		generic_svm_setup(svm, l2_main);
		svm->vmcb->control.misc_ctl = npt ? SVM_MISC_ENABLE_NP : 0;
	}
	if (vmx) {
		GUEST_ASSERT(prepare_for_vmx_operation(vmx));
		GUEST_ASSERT(load_vmcs(vmx));
		prepare_vmcs(vmx, l2_main);
	}

	for (;;) {
		GUEST_SYNC(0);
		if (!READ_ONCE(by_l2))
			guest_exec_all();
		else if (svm)
			guest_run_svm_l2(svm);
		else
			guest_run_vmx_l2(vmx);
	}
}

/* Running the guest */

void add_op(struct dirty_bits_test *t, enum guest_opcode op, u64 addr, u64 value)
{
	CHECK(t, nr_guest_ops < MAX_GUEST_OPS, "too many operations");
	guest_ops[nr_guest_ops++] = (struct guest_op){ op, addr, value };
}

void send_ops(struct dirty_bits_test *t, bool l2)
{
	write_guest_global(t->vm, by_l2, l2);
	sync_global_to_guest(t->vm, guest_ops);
	sync_global_to_guest(t->vm, nr_guest_ops);
	nr_guest_ops = 0;
}

void run_l1(struct dirty_bits_test *t)
{
	send_ops(t, false);
	vcpu_run_to_sync(t->vcpu, NULL);
}

void run_writer(struct dirty_bits_test *t)
{
	send_ops(t, t->writer->nested);
	vcpu_run_to_sync(t->vcpu, NULL);
}

void set_l2_root(struct dirty_bits_test *t, u64 root)
{
	if (t->bits == &ept_bits)
		root |= EPTP_WRITE_BACK | EPTP_4_LEVELS | (t->writer->no_ad ? 0 : EPTP_AD);
	write_guest_global(t->vm, l2_root, root);
}

void set_stop(struct dirty_bits_test *t, u64 value)
{
	write_guest_global(t->vm, stop, value);
}
