/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The splitter's locking against MMU notifier, page fault, collection of Dirty bits and slot deletion.
 *
 * A guest of SMALL 4 KiB pages in HUGE 2 MiB pages in one GiB, which is mapped by 2 MiB SPTEs or
 * (-DGIB) by one of 1 GiB at first.  A gfn is mapped at one level at most, as there is one page
 * table.  Actors:
 *
 *   vcpu      writes through a TLB that keeps what it saw until a flush; takes page faults, with
 *             the lock or (4 KiB, only W missing) without
 *   notifier  the host moves the first huge page: zaps by level, smallest first, and may drop
 *             the lock in between; then the old frame is freed
 *   collector GET, CLEAR, copy of what was dirty (initially-all-set); with -DENABLE it enables
 *             logging, copies everything, and GET clears.  At the end the vCPUs are stopped, and
 *             what is still dirty is copied
 *   deleter   (-DDELETE) deletes the memslot at any time, and then unmaps its memory
 *
 * Properties: no SPTE and no TLB entry for a frame when it is freed, and no write to it later;
 * in the end the copy equals the guest's memory; no actor waits forever.
 *
 * What the kernel does in one instruction is one step here.  So is what it does under mmu_lock
 * for several 4 KiB pages: both properties are those of a single page.  Lockless are the vCPU's
 * walk, its lockless page fault and its TLB.  The lock is dropped where the kernel may drop it,
 * except between two SPTEs of one level in the notifier.
 *
 * 4 KiB is what page faults map once the slot is logged; what maps a gfn otherwise is dropped.
 *
 * BUG_* takes a safeguard out, for a counterexample; tests/unit/test_model.py tries them all.
 * -DWRITES=n and -DVCPUS=n make it larger, at several times the memory each.
 *
 * Not here: the reuse of children, aliases, several address spaces, A and D bits and PML, dirty
 * rings, page tables of the guest, weak memory order.
 */

#define HUGE	2
#define PER	2		/* 4 KiB pages in a huge page; the kernel's 512 */
#define SMALL	(HUGE * PER)
#define FIRST	1		/* the pages that CLEAR is called for: a part of each huge page */
#define LAST	2

#ifndef USED
#ifdef ENABLE
#define USED	PER		/* pages that vCPUs access: all of the huge page that moves */
#else
#define USED	(LAST + 1)	/* and one that CLEAR is called for in the other huge page */
#endif
#endif
#ifndef WRITES
#define WRITES	1		/* of each vCPU; it may fault and fill its TLB without end */
#endif
#ifndef VCPUS
#define VCPUS	1
#endif

/* An SPTE, or what a TLB has of one: 0, or the frame and W. */
#define OLD	1
#define NEW	2
#define FRAME	3
#define W	4

/* Locks are bits; who takes one waits for 0. */
#define LOCK(l)		atomic { l == 0 -> l = 1 }
#define UNLOCK(l)	l = 0

bit slots_lock, mmu_lock;

/* The page table: leaf SPTEs of each level. */
byte gib, huge[HUGE], small[SMALL];

/* What vCPUs may use without looking at the page table. */
byte tlb[VCPUS * SMALL];

/* vCPUs in a lockless page fault, for which a flush waits, and in any, for which SRCU does. */
byte walking, faulting;

/* The memslot exists; it is logged. */
bit slot = 1, logged;

/* The bitmap. */
bit dirty[SMALL];

/* Guest memory differs from its copy. */
bit ahead[SMALL];

/* The frame behind the first huge page, 0 while it moves; the other's is OLD always. */
byte frame = OLD;

/* Each frame of each huge page: it may have another owner. */
bit freed[HUGE * 4];
#define FREED(s, spte)	freed[(s) / PER * 4 + ((spte) & FRAME)]

/* mmu_invalidate_in_progress and _seq; the range is the first huge page. */
byte invalidating, seq;
/* mn_active_invalidate_count */
byte in_notifier;

byte running = VCPUS;

byte i, j;	/* for loops in d_step only: no state of their own */

/* One step: DO for each i below NR. */
#define EACH(nr, do)	d_step { for (i : 0 .. (nr) - 1) { do } i = 0 }

#define SPTE(s)		(small[s] | huge[(s) / PER] | gib)
#define GOOD(h)		((h) == 0 -> frame : OLD)

inline flush()
{
	d_step {
		walking == 0 ->
		for (i : 0 .. VCPUS * SMALL - 1) { tlb[i] = 0 }
		i = 0
	}
}

inline maybe_yield()
{
	if
	:: true -> UNLOCK(mmu_lock); LOCK(mmu_lock)
	:: true
	fi
}

/* Nothing maps the frame of the first huge page. */
inline assert_unmapped(f)
{
	d_step {
		assert(gib == 0);
		assert((huge[0] & FRAME) != f);
		for (i : 0 .. PER - 1) {
			assert((small[i] & FRAME) != f);
			for (j : 0 .. VCPUS - 1) { assert((tlb[j * SMALL + i] & FRAME) != f) }
			j = 0
		}
		i = 0
	}
}

/* ---- vCPU --------------------------------------------------------------- */

/* W first, then the bit, as the kernel does: who takes W away flushes, and that waits. */
inline fast_fault(s)
{
	bit changed;

	walking++;
	d_step {
		changed = small[s] != 0 && !(small[s] & W);
		if
		:: changed -> small[s] = small[s] | W
		:: else
		fi
	}
	d_step {
		dirty[s] = dirty[s] | changed;
		changed = 0;
		walking--
	}
}

/* Under the lock.  What maps the gfn at a higher level is dropped, at once in every TLB. */
inline map(s, pfn, log)
{
	if
	:: log && (gib || huge[s / PER]) ->
		d_step { gib = 0; huge[s / PER] = 0 }
		flush()
	:: else
	fi;
	d_step {
		if
		:: log ->
			dirty[s] = 1;
			small[s] = pfn | W
		:: !log && gib == 0 ->
			huge[s / PER] = pfn | W
		:: else
		fi
	}
}

inline slow_fault(s, log)
{
	byte was, pfn;

	was = seq;
	/* A fault on memory that is being moved waits for it. */
	atomic { GOOD(s / PER) != 0 -> pfn = GOOD(s / PER) }
	LOCK(mmu_lock);
	if
#ifndef BUG_NO_RETRY
	:: s / PER == 0 && (invalidating || was != seq)
#endif
	:: else -> map(s, pfn, log)
	fi;
	atomic { UNLOCK(mmu_lock); was = 0; pfn = 0 }
}

inline fault(s)
{
	bit log;

	if
	:: atomic { slot -> faulting++; log = logged };
		if
		:: log && small[s] != 0 -> fast_fault(s)
		:: else -> slow_fault(s, log)
		fi;
		atomic { faulting--; log = 0 }
	:: atomic { !slot -> left = 0 }		/* an exit to user space */
	fi
}

proctype vcpu(byte base)
{
	byte left = WRITES, s;

	do
	:: left > 0 ->
		atomic { select(s : 0 .. USED - 1) };
		if
		:: atomic { tlb[base + s] & W ->
			assert(!FREED(s, tlb[base + s]));
			ahead[s] = 1;
			left-- }
		/* Also without need, as CPUs do. */
		:: atomic { SPTE(s) != 0 -> tlb[base + s] = SPTE(s) }
		:: !(tlb[base + s] & W) && !(SPTE(s) & W) -> fault(s)
		fi
	:: break
	od;
	atomic { s = 0; left = 0; running-- }
}

/* ---- MMU notifier ------------------------------------------------------- */

/* What was zapped is flushed before the lock is dropped. */
inline yield_zap()
{
	if
	:: true ->
		if
		:: owed -> flush(); owed = 0
		:: else
		fi;
		UNLOCK(mmu_lock);
		LOCK(mmu_lock)
	:: true
	fi
}

proctype notifier()
{
	bit owed;

	in_notifier++;
	LOCK(mmu_lock);
	invalidating++;
	EACH(PER, owed = owed || small[i]; small[i] = 0)
	yield_zap();
	d_step { owed = owed || huge[0]; huge[0] = 0 }
	yield_zap();
	d_step { owed = owed || gib; gib = 0 }
	if
	:: owed -> flush(); owed = 0
	:: else
	fi;
	UNLOCK(mmu_lock);

	frame = 0;
	FREED(0, OLD) = 1;
	assert_unmapped(OLD);
	frame = NEW;

	LOCK(mmu_lock);
	d_step { seq++; invalidating-- }
	UNLOCK(mmu_lock);
	in_notifier--
}

/* ---- splitter ----------------------------------------------------------- */

#ifdef BUG_NO_CHECK
#define INVALIDATED(h)	false
#else
#define INVALIDATED(h)	(invalidating && (h) == 0)
#endif

/* A child is filled before it is linked, so no other thread sees a half of it. */
inline split_huge(h)
{
	d_step {
		for (i : 0 .. PER - 1) {
#ifdef ENABLE
			small[(h) * PER + i] = seen & ~W;
#else
			small[(h) * PER + i] = seen;
#endif
		}
		i = 0;
		huge[h] = 0
	}
}

/* Memory may be short, which makes it drop the lock; or very short, which makes it give up. */
inline split_level_2m()
{
	h = 0;
	do
	:: h < HUGE ->
		seen = huge[h];
#ifdef BUG_WAIT
		!invalidating;
#endif
		if
		:: seen != 0 && !INVALIDATED(h) ->
			maybe_yield();
#ifndef BUG_STALE
			seen = huge[h];
#endif
			if
			:: seen != 0 && !INVALIDATED(h) -> split_huge(h)
			:: true		/* no memory */
			fi;
			maybe_yield()
		:: else
		fi;
		h++
	:: else -> break
	od;
	atomic { seen = 0; h = 0 }
}

inline split_level_1g()
{
	if
	:: gib != 0 && !INVALIDATED(0) ->
		d_step {
			for (i : 0 .. HUGE - 1) { huge[i] = gib }
			i = 0;
			gib = 0
		}
		maybe_yield()
	:: true
	fi
}

inline split()
{
	split_level_1g();
	split_level_2m()
}

/* ---- collector ---------------------------------------------------------- */

inline protect_huge(h)
{
	d_step { gib = gib & ~W; huge[h] = huge[h] & ~W }
}

/* All that is in the mask. */
inline protect_small()
{
	EACH(SMALL, small[i] = (mask[i] -> small[i] & ~W : small[i]))
}

inline copy()
{
	EACH(SMALL, ahead[i] = ahead[i] && !mask[i])
}

/* GET of user space: bits are copied, not cleared. */
inline get()
{
	EACH(SMALL, mask[i] = dirty[i])
}

inline flush_log()
{
#ifndef BUG_NO_FLUSH
	flush()
#else
	skip
#endif
}

inline clear()
{
	EACH(SMALL, mask[i] = mask[i] && i >= FIRST && i <= LAST;
		    dirty[i] = dirty[i] && !mask[i])
	split();
	protect_huge(FIRST / PER);
#ifndef BUG_ONE_HUGE
	protect_huge(LAST / PER);
#endif
	protect_small()
}

/* Without initially-all-set GET clears. */
inline get_and_clear()
{
	LOCK(mmu_lock);
	EACH(SMALL, mask[i] = dirty[i]; dirty[i] = 0)
	protect_small();
	UNLOCK(mmu_lock);
	flush_log()
}

inline enable()
{
	logged = 1;
	faulting == 0;		/* synchronize_srcu() */
	LOCK(mmu_lock);
	EACH(SMALL, mask[i] = 1)
	split();
	protect_huge(0);
	protect_huge(1);
	protect_small();
	UNLOCK(mmu_lock);
	flush_log()
}

#ifdef ENABLE
inline collect_log()
{
	enable();
	copy();
	get_and_clear();
	copy()
}
#else
inline collect_log()
{
	get();
#ifdef BUG_COPY_FIRST
	copy();
#endif
	LOCK(mmu_lock);
	clear();
	UNLOCK(mmu_lock);
	flush_log();
#ifndef BUG_COPY_FIRST
	copy()
#endif
}
#endif

/* The slot cannot go away meanwhile: its deletion takes turns with the collector. */
proctype collector()
{
	byte h, seen;
	bit mask[SMALL];

	LOCK(slots_lock);
	if
	:: slot ->
		collect_log();
		UNLOCK(slots_lock);
		running == 0;
		LOCK(slots_lock);
		if
		:: slot ->
			get();
			copy();
			EACH(SMALL, assert(!ahead[i]))
		:: else
		fi
	:: else
	fi;
	UNLOCK(slots_lock)
}

/* ---- deletion of the memslot -------------------------------------------- */

proctype deleter()
{
	LOCK(slots_lock);
	atomic { in_notifier == 0 -> slot = 0 };
	faulting == 0;		/* synchronize_srcu() */
	LOCK(mmu_lock);
	d_step {
		gib = 0;
		for (i : 0 .. HUGE - 1) { huge[i] = 0 }
		for (i : 0 .. SMALL - 1) { small[i] = 0 }
		i = 0
	}
	flush();
	UNLOCK(mmu_lock);
	EACH(HUGE * 4, freed[i] = 1)
	UNLOCK(slots_lock)
}

init {
	atomic {
#ifdef GIB
		gib = OLD | W;
#else
		for (i : 0 .. HUGE - 1) { huge[i] = OLD | W }
#endif
#ifndef ENABLE
		logged = 1;
		for (i : 0 .. SMALL - 1) { dirty[i] = 1 }
#endif
		for (i : 0 .. SMALL - 1) { ahead[i] = 1 }
		for (i : 0 .. VCPUS - 1) { run vcpu(i * SMALL) }
		i = 0;
		run collector();
		run notifier();
#ifdef DELETE
		run deleter()
#endif
	}
}
