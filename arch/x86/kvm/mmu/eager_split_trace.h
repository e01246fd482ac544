/* SPDX-License-Identifier: GPL-2.0-only */
#if !defined(_TRACE_KVM_EAGER_SPLIT_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_KVM_EAGER_SPLIT_H

#include <linux/kvm_host.h>
#include <linux/tracepoint.h>

#undef TRACE_SYSTEM
#define TRACE_SYSTEM kvm_eager_split

#ifndef _KVM_EAGER_SPLIT_WHY
#define _KVM_EAGER_SPLIT_WHY

/* Why mmu_lock was released. */
enum eager_split_reason {
	EAGER_SPLIT_DONE,	/* nothing is left to split */
	EAGER_SPLIT_YIELD,	/* others want the lock or the CPU */
	EAGER_SPLIT_ALLOC,	/* the stock of pages or descriptors ran out */
	EAGER_SPLIT_ERROR,	/* given up, see kvm_eager_split_end */
};

#endif

TRACE_DEFINE_ENUM(EAGER_SPLIT_DONE);
TRACE_DEFINE_ENUM(EAGER_SPLIT_YIELD);
TRACE_DEFINE_ENUM(EAGER_SPLIT_ALLOC);
TRACE_DEFINE_ENUM(EAGER_SPLIT_ERROR);

#define kvm_eager_split_print_reason(why)		\
	__print_symbolic(why,			\
		{ EAGER_SPLIT_DONE, "done" },	\
		{ EAGER_SPLIT_YIELD, "yield" },	\
		{ EAGER_SPLIT_ALLOC, "alloc" },	\
		{ EAGER_SPLIT_ERROR, "error" })

/* The first huge page of a range was found. */
TRACE_EVENT(kvm_eager_split_begin,
	    TP_PROTO(const struct kvm_memory_slot *slot, gfn_t start, gfn_t end),
	    TP_ARGS(slot, start, end),

	    TP_STRUCT__entry(__field(u64, start)
			     __field(u64, end)
			     __field(u16, as_id)
			     __field(short, slot)),

	    TP_fast_assign(__entry->start = start;
			   __entry->end = end;
			   __entry->as_id = slot->as_id;
			   __entry->slot = slot->id;),

	    TP_printk("as_id %u slot %d gfns %llx-%llx", __entry->as_id, __entry->slot,
		      __entry->start, __entry->end)
);

/* mmu_lock was held for @ns and @pages huge pages were split. */
TRACE_EVENT(kvm_eager_split_hold,
	    TP_PROTO(unsigned int pages, u64 ns, enum eager_split_reason why),
	    TP_ARGS(pages, ns, why),

	    TP_STRUCT__entry(__field(u64, ns)
			     __field(unsigned int, pages)
			     __field(u8, why)),

	    TP_fast_assign(__entry->ns = ns;
			   __entry->pages = pages;
			   __entry->why = why;),

	    TP_printk("pages %u ns %llu why %s", __entry->pages, __entry->ns,
		      kvm_eager_split_print_reason(__entry->why))
);

/* The range is done, or @error says why not: -ENOMEM, -ENOSPC (quota), ... */
TRACE_EVENT(kvm_eager_split_end,
	    TP_PROTO(unsigned int pages, unsigned int yields, int error),
	    TP_ARGS(pages, yields, error),

	    TP_STRUCT__entry(__field(unsigned int, pages)
			     __field(unsigned int, yields)
			     __field(int, error)),

	    TP_fast_assign(__entry->pages = pages;
			   __entry->yields = yields;
			   __entry->error = error;),

	    TP_printk("pages %u yields %u error %d", __entry->pages, __entry->yields,
		      __entry->error)
);

#endif /* _TRACE_KVM_EAGER_SPLIT_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH mmu
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE eager_split_trace

/* This part must be outside protection */
#include <trace/define_trace.h>
