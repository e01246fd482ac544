// SPDX-License-Identifier: GPL-2.0-only
/* The VM of eager_split_stress_test, and its memory. */
#include <linux/memfd.h>
#include <linux/mman.h>

#include "eager_split_stress.h"

void set_region(struct stress *t, struct region *r, u64 gpa, bool there, bool log)
{
	vm_set_user_memory_region(t->vm, r->slot, log ? KVM_MEM_LOG_DIRTY_PAGES : 0, gpa,
				  there ? r->nr_pages * PAGE_SIZE : 0, r->hva);
}

static void *map_anonymous(size_t size)
{
	return map_memory(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, NO_FD);
}

static int create_file(size_t size)
{
	int fd = memfd_create("stress", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);

	TEST_ASSERT(fd >= 0 && !ftruncate(fd, size), "Can't create a file, errno %d", errno);
	return fd;
}

static void *map_file(int fd, size_t size)
{
	return map_memory(size, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
}

static void map_shared_data(struct stress *t)
{
	for (unsigned int i = 0; i < NR_BANKS; i++) {
		t->banks[i].fd = create_file(DATA_SIZE);
		t->banks[i].mapping = map_file(t->banks[i].fd, DATA_SIZE);
	}
	for (u64 chunk = 0; chunk < NR_CHUNKS; chunk++)
		map_bank(t, chunk, 0);
}

static void map_private_data(struct stress *t)
{
	void *p = mmap(t->data, DATA_SIZE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, NO_FD, 0);

	TEST_ASSERT(p != MAP_FAILED, "Can't map memory, errno %d", errno);
	madvise(p, DATA_SIZE, MADV_HUGEPAGE);
	madvise(p, DATA_SIZE, MADV_MERGEABLE);
}

static void free_data(struct stress *t)
{
	munmap(t->reserved, DATA_SIZE + SZ_2M);
	if (t->jar.mapping)
		munmap(t->jar.mapping, SZ_2M);
	if (!t->shared)
		return;

	for (unsigned int i = 0; i < NR_BANKS; i++) {
		munmap(t->banks[i].mapping, DATA_SIZE);
		close(t->banks[i].fd);
	}
}

static void create_region(struct stress *t, struct region *r, u32 slot, u64 gpa,
			  u64 nr_pages, void *hva)
{
	r->slot = slot;
	r->gpa = gpa;
	r->nr_pages = nr_pages;
	r->hva = hva;
	r->copy = map_anonymous(nr_pages * PAGE_SIZE);
	set_region(t, r, gpa, true, t->tracked);
	if (!t->tracked)
		return;

	/*
	 * Have the first round copy all pages, as start_logging() never runs.
	 */
	for (u64 page = 0; page < nr_pages; page++)
		set_host_dirty(r, page);
}

static void create_regions(struct stress *t)
{
	int fd = create_file(SZ_2M);

	/* Reserve addresses for the data, so that it can be aligned to huge pages. */
	t->reserved = map_memory(DATA_SIZE + SZ_2M, PROT_NONE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, NO_FD);
	t->data = align_ptr_up(t->reserved, SZ_2M);
	if (t->shared)
		map_shared_data(t);
	else
		map_private_data(t);
	create_region(t, data_region(t), DATA_SLOT, DATA_GPA, NR_PAGES,
		      t->data + FIRST_PAGE * PAGE_SIZE);
	data_region(t)->nr_used = NR_PAGES;
	data_region(t)->words_only = true;
	create_region(t, tables_region(t), TABLES_SLOT, TABLES_GPA, PAGES_PER_2M,
		      map_file(fd, SZ_2M));
	tables_region(t)->nr_used = NR_VCPUS * TABLES_PER_VCPU;
	close(fd);
}

/*
 * Vary the permissions, so that KVM needs separate page tables for the alias.
 */
static void map_alias(struct stress *t)
{
	u64 gva = VIEW_GVA(VIEW_ALIAS);

	virt_map_level(t->vm, gva, DATA_BASE, DATA_SIZE, PG_LEVEL_2M);
	for (u64 chunk = 0; chunk < NR_CHUNKS; chunk++)
		vm_vary_entry(t->vm, gva + chunk * SZ_2M, 1 + chunk % 2 * 2);
}

/* The page directory of a vCPU's windows is in logged memory. */
static void map_windows(struct stress *t, unsigned int id)
{
	u64 gva = WINDOW_GVA(id);

	virt_map_level(t->vm, gva, 0, SZ_1G, PG_LEVEL_1G);
	*vm_get_entry(t->vm, gva, PG_LEVEL_1G) =
		(TABLES_GPA + id * TABLES_PER_VCPU * PAGE_SIZE) | ENTRY_BITS;
}

static void map_all(struct stress *t)
{
	virt_map_level(t->vm, CONTROL_GPA, CONTROL_GPA, CONTROL_SIZE, PG_LEVEL_4K);
	virt_map_level(t->vm, TABLES_GPA, TABLES_GPA, SZ_2M, PG_LEVEL_2M);
	virt_map_level(t->vm, VIEW_GVA(VIEW_4K) + FIRST_PAGE * PAGE_SIZE, DATA_GPA,
		       NR_PAGES * PAGE_SIZE, PG_LEVEL_4K);
	virt_map_level(t->vm, VIEW_GVA(VIEW_2M), DATA_BASE, DATA_SIZE, PG_LEVEL_2M);
	map_alias(t);
	if (kvm_cpu_has(X86_FEATURE_GBPAGES))
		virt_map_level(t->vm, VIEW_GVA(VIEW_1G), DATA_BASE, SZ_1G, PG_LEVEL_1G);
	for (unsigned int i = 0; i < NR_VCPUS; i++)
		map_windows(t, i);
}

static void create_control(struct stress *t)
{
	BUILD_BUG_ON(sizeof(*t->ctl) > CONTROL_SIZE);
	t->ctl = map_anonymous(CONTROL_SIZE);
	vm_set_user_memory_region(t->vm, CONTROL_SLOT, 0, CONTROL_GPA, CONTROL_SIZE, t->ctl);
	t->ctl->wp = !!below(&t->rng, 4);
	t->ctl->views = BIT(NR_VIEWS) - 1;
	t->ctl->ops_per_rest = t->pace->ops_per_rest;
	if (!kvm_cpu_has(X86_FEATURE_GBPAGES))
		t->ctl->views &= ~BIT(VIEW_1G);
	for (unsigned int i = 0; i < NR_VCPUS; i++)
		t->ctl->vcpus[i].rng = seeded(t->seed, VCPU_RNG + i);
}

static void create_vcpu(struct stress *t, unsigned int id)
{
	struct kvm_sregs sregs;

	t->vcpus[id] = vm_vcpu_add(t->vm, id, guest_main);
	vcpu_args_set(t->vcpus[id], 1, (u64)id);
	vcpu_sregs_get(t->vcpus[id], &sregs);
	if (t->ctl->wp)
		sregs.cr0 |= X86_CR0_WP;
	vcpu_sregs_set(t->vcpus[id], &sregs);
}

static void set_log_mode(struct stress *t)
{
	if (t->log_mode == LOG_RING)
		vm_enable_dirty_ring(t->vm, RING_BYTES);
	else if (t->log_mode != LOG_GET)
		vm_enable_manual_protect(t->vm, t->log_mode == LOG_INIT_SET);
}

void create_vm(struct stress *t)
{
	set_if_there(PARAM_DIRTY_BITS, t->dirty_bits);
	t->vm = __vm_create(VM_SHAPE_DEFAULT, NR_VCPUS, 0);
	t->by_dirty_bits = t->log_mode != LOG_RING && vm_get_stat_or_zero(t->vm, "dirty_bits");
	set_log_mode(t);
	create_control(t);
	create_regions(t);
	map_all(t);
	for (unsigned int i = 0; i < NR_VCPUS; i++)
		create_vcpu(t, i);
}

void destroy_vm(struct stress *t)
{
	for (unsigned int i = 0; i < NR_VCPUS; i++)
		counters.guest_ops += t->ctl->vcpus[i].nr_ops;
	for (unsigned int i = 0; i < NR_STATS; i++)
		counters.stats[i] += vm_get_stat_or_zero(t->vm, stat_names[i]);
	kvm_vm_free(t->vm);
	free_data(t);
	munmap(tables_region(t)->hva, SZ_2M);
	for (unsigned int i = 0; i < NR_REGIONS; i++)
		munmap(t->regions[i].copy, t->regions[i].nr_pages * PAGE_SIZE);
	munmap(t->ctl, CONTROL_SIZE);
}
