/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where things are in the guest's memory.  lab/measure/migration/load.py gives VCPUS,
 * PAGES, RATE, READS and WRITES on the compiler's command line, and reads
 * struct results: it has the same layout there.
 *
 *	0x000000	page tables; the image at IMAGE
 *	RESULTS		struct results, then the stacks
 *	MEMORY		PAGES pages for each vCPU, which it reads and writes
 */
#ifndef LOAD_H
#define LOAD_H

#define IMAGE		0xf0000
#define IMAGE_SIZE	0x10000
#define RESULTS		0x200000
#define MEMORY		0x400000
#define STACK_SHIFT	12

#define WINDOWS		4096
#define WINDOW_US	10000

#endif
