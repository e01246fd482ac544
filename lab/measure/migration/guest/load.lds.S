/* SPDX-License-Identifier: GPL-2.0-only */
/* Linker script: a BIOS image of 64 KiB that runs at IMAGE, and what it needs of RAM. */
#include "load.h"

OUTPUT_FORMAT(elf64-x86-64)
ENTRY(start)

SECTIONS
{
	. = IMAGE;
	.text : { *(.start) *(.text .text.*) *(.rodata .rodata.*) }
	.reset IMAGE + IMAGE_SIZE - 16 : { *(.reset) }
	.results RESULTS (NOLOAD) : { *(.results) }
	.bss (NOLOAD) : { *(.bss .bss.* COMMON) }
	.data : { *(.data .data.*) }
	/DISCARD/ : { *(.note .note.* .comment .eh_frame) }

	ASSERT(SIZEOF(.data) == 0, "initialised data, which nothing copies out of the image")
	ASSERT(SIZEOF(.text) <= IMAGE_SIZE - 16, "the image is larger than 64 KiB")
	ASSERT(ADDR(.bss) + SIZEOF(.bss) <= MEMORY, "results and stacks do not fit below MEMORY")
}
