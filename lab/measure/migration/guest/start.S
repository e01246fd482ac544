/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From reset to C: 16-bit, 32-bit, 64-bit, the same way for every vCPU.
 *
 * The image is a BIOS of 64 KiB.  QEMU shows it twice: below 4 GiB, where the
 * first vCPU begins, and at 0xf0000, where it is linked and where everything
 * runs.  Its first byte is where the others begin, since a SIPI can name any
 * page below 1 MiB.  Nothing in the image is written, the accessed bits of the
 * GDT's entries included.
 *
 * The first 4 GiB are mapped as they are, by pages of 2 MiB; the tables lie in
 * low memory, with accessed and dirty bits set, so that they are not written.
 */
#include "load.h"

#define SEGMENT		(IMAGE >> 4)
#define PML4		0x1000
#define PDPT		0x2000
#define PD		0x3000
#define TABLE_FLAGS	0x23		/* present, writable, accessed */
#define PAGE_FLAGS	0xe3		/* and dirty, 2 MiB */

#define CODE32		0x08
#define DATA32		0x10
#define CODE64		0x18

#define MSR_APICBASE	0x1b
#define APICBASE_BSP	0x100
#define APICBASE_X2APIC	0xc00
#define MSR_EFER	0xc0000080
#define EFER_LME	0x100
#define MSR_X2APIC_ID	0x802

	.section .start, "ax"
	.code16
	.globl start
start:
	cli
	ljmp	$SEGMENT, $(1f - start)
1:	movw	%cs, %ax
	movw	%ax, %ds
	lgdtl	gdt_descriptor - start
	movl	$0x11, %eax		/* PE, ET */
	movl	%eax, %cr0
	ljmpl	$CODE32, $start32

	.code32
start32:
	movw	$DATA32, %ax
	movw	%ax, %ds
	movw	%ax, %es
	movw	%ax, %ss
	movl	$MSR_APICBASE, %ecx
	rdmsr
	testl	$APICBASE_BSP, %eax
	jz	enter64			/* the first vCPU has made the tables */

	movl	$(PDPT + TABLE_FLAGS), PML4
	movl	$PDPT, %edi
	movl	$(PD + TABLE_FLAGS), %eax
	movl	$4, %ecx
2:	movl	%eax, (%edi)
	addl	$0x1000, %eax
	addl	$8, %edi
	loop	2b
	movl	$PD, %edi
	movl	$PAGE_FLAGS, %eax
	movl	$2048, %ecx
3:	movl	%eax, (%edi)
	addl	$0x200000, %eax
	addl	$8, %edi
	loop	3b

enter64:
	movl	$0x20, %eax		/* PAE */
	movl	%eax, %cr4
	movl	$PML4, %eax
	movl	%eax, %cr3
	movl	$MSR_EFER, %ecx
	rdmsr
	orl	$EFER_LME, %eax
	wrmsr
	movl	$0x80010011, %eax	/* PG, WP, ET, PE */
	movl	%eax, %cr0
	ljmpl	$CODE64, $start64

	.code64
start64:
	movl	$MSR_APICBASE, %ecx
	rdmsr
	orl	$APICBASE_X2APIC, %eax
	wrmsr
	movl	$MSR_X2APIC_ID, %ecx
	rdmsr
	movl	%eax, %edi
	incl	%eax
	shll	$STACK_SHIFT, %eax
	leaq	stacks(%rax), %rsp
	/*
	 * Nothing interrupts this guest.  But with interrupts off those of the
	 * host do not end a guest's run under Bochs.
	 */
	sti
	call	load_main
4:	hlt
	jmp	4b

	.balign	8
gdt:
	.quad	0
	.quad	0x00cf9b000000ffff
	.quad	0x00cf93000000ffff
	.quad	0x00af9b000000ffff
gdt_descriptor:
	.word	. - gdt - 1
	.long	gdt

	.section .reset, "ax"
	.code16
	/* Relative, and so from the copy below 4 GiB to that copy's beginning. */
	jmp	start
	.balign	16

	.section .note.GNU-stack, "", @progbits
