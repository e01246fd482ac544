/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The guest's memory that guest.py makes, and replacements for what KVM's code uses of the
 * rest of the kernel.  They take precedence over the kernel's definitions.  Locks, debug
 * checks and marks of folios do nothing, so that they cost no time.
 */
#include <stdbool.h>
#include <stddef.h>
#define IS_ENABLED(symbol) symbol
#define CONFIG_X86_64 1
#define CONFIG_KVM_PROVE_MMU_RACES 0
#define KBUILD_MODNAME "kvm"
#define __always_inline inline __attribute__((always_inline))
#define noinline __attribute__((noinline))
#define unlikely(x) __builtin_expect(!!(x), 0)
#define BIT(n) (1UL << (n))
#define BIT_ULL(n) (1ULL << (n))
#define BITS_PER_LONG 64
#define __ffs(x) __builtin_ctzl(x)
#define __fls(x) (BITS_PER_LONG - 1 - __builtin_clzl(x))
#define round_down(x, to) ((x) & ~((typeof(x))(to) - 1))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define barrier() asm volatile("" ::: "memory")
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
#define data_race(x) (x)
#define smp_store_release(p, value) do { barrier(); WRITE_ONCE(*(p), value); } while (0)
#define xchg(p, value) __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST)
#define cpu_relax() __builtin_ia32_pause()
#define BUILD_BUG_ON(x) _Static_assert(!(x), #x)
#define WARN_ON_ONCE(x) ({ bool failed = x; if (unlikely(failed)) __builtin_trap(); failed; })
#define WARN_ONCE(x, ...) WARN_ON_ONCE(x)
#define BUG_ON(x) WARN_ON_ONCE(x)
#define KVM_BUG_ON(x, kvm) WARN_ON_ONCE(x)
#define KVM_MMU_WARN_ON(x) ((void)sizeof(x))
#define lockdep_assert_held_write(lock) ((void)(lock))
#define lockdep_assert_preemption_disabled() ((void)0)
#define __unroll_pragma(x) _Pragma(#x)
#ifndef unrolled_count
#define unrolled_count(n) __unroll_pragma(GCC unroll n)
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64, gfn_t, hpa_t, kvm_pfn_t;
static inline u64 rol64(u64 x, unsigned int n) { return x << (n & 63) | x >> (-n & 63); }
typedef struct { long counter; } atomic_long_t, atomic64_t;
#define atomic_long_read(v) READ_ONCE((v)->counter)
#define atomic_long_set_release(v, new) smp_store_release(&(v)->counter, (long)(new))
#define atomic_long_or(bits, v) ((void)__atomic_fetch_or(&(v)->counter, bits, __ATOMIC_SEQ_CST))
#define atomic64_add(n, v) ((void)__atomic_fetch_add(&(v)->counter, n, __ATOMIC_SEQ_CST))
#define atomic64_andnot(bits, v) ((void)__atomic_fetch_and(&(v)->counter, ~(bits), __ATOMIC_SEQ_CST))
#define atomic_long_try_cmpxchg_acquire(v, old, new) \
	__atomic_compare_exchange_n(&(v)->counter, (long *)(old), new, false, \
				    __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)

#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
#define SPTE_BASE_ADDR_MASK (BIT_ULL(52) - BIT_ULL(PAGE_SHIFT))
enum { PG_LEVEL_4K = 1, PG_LEVEL_2M };
enum kvm_force_site { KVM_FORCE_LOG_PAGE };
#define PER_TABLE 512ul
#define EXPORT __attribute__((visibility("default")))

/* As large as the kernel's: sptep_to_sp() comes by. */
struct page { unsigned long private, unused[7]; };
struct kvm_memory_slot {
	gfn_t base_gfn;
	unsigned long npages, *dirty_bitmap;
	struct { struct kvm_rmap_head *rmap[3]; bool *has_small_sptes; } arch;
};
union kvm_mmu_page_role {
	u32 word;
	struct { unsigned int level:4, direct:1, access:3, passthrough:1; };
};
struct kvm_mmu_page {
	union kvm_mmu_page_role role;
	gfn_t gfn;
	u64 *spt, *shadowed_translation;
	unsigned long unused[20];
};

/* Bits of SPTEs as NPT and shadow paging have them: variables, as the kernel's. */
u64 shadow_accessed_mask = 1 << 5;
u64 shadow_dirty_mask = 1 << 6;
u64 shadow_host_writable_mask = 1 << 9;
u64 shadow_mmu_writable_mask = 1 << 10;

/* sps and huge_sptes: one for each 2 MiB.  pages: one for each page table in the arena. */
struct kvm_memory_slot slot;
struct kvm_mmu_page *sps;
u64 *huge_sptes, *arena;
struct page *pages;

EXPORT void set_up(u64 npages, void **from)
{
	slot.npages = npages;
	slot.dirty_bitmap = from[0];
	slot.arch.rmap[0] = from[1];
	sps = from[2];
	huge_sptes = from[3];
	arena = from[4];
	pages = from[5];
	slot.arch.has_small_sptes = from[6];
}

#define PASS(name, ...) \
	EXPORT void name(unsigned long nr_tables) \
	{ \
		for (unsigned long table = 0; table < nr_tables; table++) \
			__VA_ARGS__; \
	}

struct kvm_mmu_memory_cache { int unused; };
struct kvm {
	long mmu_lock;
	struct { struct kvm_mmu_memory_cache split_desc_cache; bool disable_nx_huge_pages; } arch;
	struct { atomic64_t pages[3]; unsigned long max_mmu_rmap_size; } stat;
};
static struct kvm vm;
static volatile bool tdp_mmu_enabled;
static volatile bool nx_huge_pages;
#define shadow_acc_track_mask 0ull
#define kvm_memslots_have_rmaps(kvm) true
#define is_nx_huge_page_enabled(kvm) (nx_huge_pages && !(kvm)->arch.disable_nx_huge_pages)
#define is_ept_ve_possible(spte) false
#define kvm_logs_by_dirty_bit(kvm) false
#define kvm_dirty_bits_enabled(kvm) false
#define kvm_mark_folio_dirty(known, pfn) ((void)(pfn))
#define kvm_mark_folio_dirty_64(known, first, any, all) true
#define kvm_set_pfn_dirty(pfn) ((void)(pfn))
#define kvm_set_pfn_accessed(pfn) ((void)(pfn))
#define kvm_prove_window(window) ((void)0)
#define __pa(address) ((unsigned long)(address) - (unsigned long)arena)
#define pfn_to_page(pfn) (&pages[pfn])
#define page_private(page) ((page)->private)
/* The child is there already. */
#define shadow_mmu_get_sp_for_split(kvm, huge_sptep) (&sps[(huge_sptep) - huge_sptes])
#define __link_shadow_page(kvm, cache, huge_sptep, sp, flush) ((void)(flush))

/* Not called as long as each gfn has one SPTE, but the compiler does not know that. */
#define NEVER __builtin_trap()
#define make_spte_executable(spte) ({ NEVER; spte; })
#define change_spte_executable(spte, access) ({ NEVER; spte; })
#define kvm_zap_all_rmap_sptes(kvm, head) NEVER
#define kvm_flush_remote_tlbs_gfn(kvm, gfn, level) NEVER
#define kvm_tdp_mmu_clear_dirty_pt_masked(kvm, slot, gfn, mask, wrprot) NEVER
#define kvm_mmu_memory_cache_alloc(cache) ({ NEVER; (void *)(cache); })
#define eager_split_fill_holes(es, sp, spte, step, heads) NEVER
#define eager_split_fill_blank(es, sptes, spte, step, heads) NEVER
#define eager_split_is_empty(sp) ({ NEVER; false; })
#define rmap_log_slow(log, head, mode) NEVER
#define collect_slow(h, heads, rel, nr) NEVER
