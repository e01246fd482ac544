// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eager page splitting and dirty logging on a 32-bit host, by bare ioctls.
 *
 *	pae_split_test off|on		what kvm.dirty_bits has to come to
 *
 * A guest in 32-bit protected mode, without paging and with PAE paging by 2 MiB
 * pages, writes pages of an 8 MiB memslot on HugeTLB.  Checked are the number of
 * 2 MiB SPTEs before, while and after pages are logged, that the log has
 * exactly the pages written, and that every write is where it belongs.  With
 * eager_page_split=N enabling must leave the 2 MiB SPTEs alone: a count that
 * is 0 for another reason would be seen there.
 *
 * One vCPU, and one VM at a time: the counts are those of all VMs together.
 * The selftests library is 64-bit only, so this stands alone on nolibc.
 */
#include <linux/kvm.h>
#include <stdbool.h>

#define ARRAY_SIZE(array)	(sizeof(array) / sizeof((array)[0]))

#define PAGE		4096u
#define DATA_GPA	0x800000u
#define DATA_PAGES	2048
#define DATA_SIZE	(DATA_PAGES * PAGE)
#define HUGE		0x200000u
#define NR_HUGE		(DATA_SIZE / HUGE)
#define DATA_SLOT	1

/* The other memslot: what the guest needs itself. */
#define LOW_SIZE	0x10000u
#define CODE_GPA	0x1000u
#define PDPT_GPA	0x2000u
#define PD_GPA		0x3000u
#define LIST_GPA	0x4000u

#define PTE_PRESENT	0x01u
#define PDE_HUGE	0xe3u	/* present, writable, accessed, dirty, 2 MiB */

#define CR0_PE		0x00000001u
#define CR0_ET		0x00000010u
#define CR0_PG		0x80000000u
#define CR4_PAE		0x00000020u

#define STAT		"/sys/kernel/debug/kvm/"
#define EAGER		"/sys/module/kvm/parameters/eager_page_split"

/* next: lods, mov %ebx, (%eax), inc %ebx, loop next, hlt */
static const unsigned char guest_code[] = { 0xad, 0x89, 0x18, 0x43, 0xe2, 0xfa, 0xf4 };

struct variant {
	const char *name;
	bool paging;		/* PAE paging in the guest */
	bool manual;		/* initially all set, and CLEAR */
	const char *eager;	/* value of eager_page_split */
};

struct vm {
	int kvm, fd, vcpu;
	int run_size;
	struct kvm_run *run;
	unsigned char *low;
	unsigned char *data;
	unsigned int next;			/* never written so far */
	unsigned int expected[DATA_PAGES];	/* first word of each page */
};

struct bitmap {
	unsigned int words[DATA_PAGES / 32];
};

static const char *variant_name = "";

/*
 * nolibc's exit() ends one thread.  A VM that has run adds another to the process,
 * KVM's worker that recovers huge pages, and that would wait for ever.
 */
static void quit(int status)
{
	syscall(__NR_exit_group, status);
	__builtin_unreachable();
}

#define check(condition, ...)						\
do {									\
	if (!(condition)) {						\
		printf("FAIL %s, line %d: ", variant_name, __LINE__);	\
		printf(__VA_ARGS__);					\
		printf("\n");						\
		quit(1);						\
	}								\
} while (0)

static int checked_ioctl(int fd, unsigned long request, void *argument, const char *name)
{
	int result = ioctl(fd, request, argument);

	check(result >= 0, "%s: error %d", name, errno);
	return result;
}

#define vm_ioctl(fd, request, argument) \
	checked_ioctl(fd, request, (void *)(argument), #request)

static int read_number(const char *path)
{
	char text[32];
	int fd = open(path, O_RDONLY);
	int length;

	check(fd >= 0, "%s: error %d", path, errno);
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	check(length > 0, "%s: empty", path);
	text[length] = '\0';
	return atoi(text);
}

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	check(fd >= 0, "%s: error %d", path, errno);
	check(write(fd, text, strlen(text)) > 0, "%s=%s: error %d", path, text, errno);
	close(fd);
}

static void *map(unsigned int size, int flags, int fd)
{
	void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);

	check(start != MAP_FAILED, "%u bytes: error %d", size, errno);
	return start;
}

static void set_slot(struct vm *vm, unsigned int slot, unsigned int gpa, unsigned int size,
		     void *start, unsigned int flags)
{
	struct kvm_userspace_memory_region region = {
		.slot = slot,
		.flags = flags,
		.guest_phys_addr = gpa,
		.memory_size = size,
		.userspace_addr = (unsigned long)start,
	};

	vm_ioctl(vm->fd, KVM_SET_USER_MEMORY_REGION, &region);
}

static void set_logging(struct vm *vm, bool on)
{
	set_slot(vm, DATA_SLOT, DATA_GPA, DATA_SIZE, vm->data, on ? KVM_MEM_LOG_DIRTY_PAGES : 0);
}

static void expect_huge(int nr, const char *when)
{
	int found = read_number(STAT "pages_2m");

	check(found == nr, "%d SPTEs of 2 MiB %s, not %d", found, when, nr);
}

static void fill_low(struct vm *vm)
{
	unsigned long long *pdpt = (void *)(vm->low + PDPT_GPA);
	unsigned long long *pd = (void *)(vm->low + PD_GPA);

	memcpy(vm->low + CODE_GPA, guest_code, sizeof(guest_code));
	pdpt[0] = PD_GPA | PTE_PRESENT;
	pd[0] = PDE_HUGE;
	for (unsigned int i = 0; i < NR_HUGE; i++)
		pd[DATA_GPA / HUGE + i] = (DATA_GPA + i * HUGE) | PDE_HUGE;
}

static struct kvm_segment flat_segment(unsigned char type, unsigned short selector)
{
	return (struct kvm_segment) {
		.limit = 0xffffffff, .selector = selector, .type = type,
		.present = 1, .db = 1, .s = 1, .g = 1,
	};
}

static void set_mode(struct vm *vm, bool paging)
{
	struct kvm_sregs sregs;

	vm_ioctl(vm->vcpu, KVM_GET_SREGS, &sregs);
	sregs.cs = flat_segment(0xb, 8);
	sregs.ds = flat_segment(0x3, 16);
	sregs.es = sregs.ds;
	sregs.fs = sregs.ds;
	sregs.gs = sregs.ds;
	sregs.ss = sregs.ds;
	sregs.cr0 = CR0_PE | CR0_ET;
	if (paging) {
		sregs.cr0 |= CR0_PG;
		sregs.cr3 = PDPT_GPA;
		sregs.cr4 = CR4_PAE;
	}
	vm_ioctl(vm->vcpu, KVM_SET_SREGS, &sregs);
}

static void enable_manual(struct vm *vm)
{
	struct kvm_enable_cap cap = {
		.cap = KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
		.args = { KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE | KVM_DIRTY_LOG_INITIALLY_SET },
	};

	vm_ioctl(vm->fd, KVM_ENABLE_CAP, &cap);
}

static void start(struct vm *vm, const struct variant *variant)
{
	memset(vm, 0, sizeof(*vm));
	vm->next = 1;
	vm->kvm = open("/dev/kvm", O_RDWR);
	check(vm->kvm >= 0, "/dev/kvm: error %d", errno);
	vm->fd = vm_ioctl(vm->kvm, KVM_CREATE_VM, 0);
	vm->low = map(LOW_SIZE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	vm->data = map(DATA_SIZE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
	fill_low(vm);
	set_slot(vm, 0, 0, LOW_SIZE, vm->low, 0);
	set_logging(vm, false);
	if (variant->manual)
		enable_manual(vm);
	vm->vcpu = vm_ioctl(vm->fd, KVM_CREATE_VCPU, 0);
	vm->run_size = vm_ioctl(vm->kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	vm->run = map(vm->run_size, MAP_SHARED, vm->vcpu);
	set_mode(vm, variant->paging);
}

static void end(struct vm *vm)
{
	munmap(vm->run, vm->run_size);
	close(vm->vcpu);
	close(vm->fd);
	close(vm->kvm);
	munmap(vm->data, DATA_SIZE);
	munmap(vm->low, LOW_SIZE);
}

/* Lets the guest write a new value into the first word of each page in @pages. */
static void guest_writes(struct vm *vm, const unsigned short *pages, unsigned int nr)
{
	unsigned int *list = (void *)(vm->low + LIST_GPA);
	struct kvm_regs regs = {
		.rip = CODE_GPA, .rflags = 2,
		.rsi = LIST_GPA, .rcx = nr, .rbx = vm->next,
	};

	for (unsigned int i = 0; i < nr; i++) {
		list[i] = DATA_GPA + pages[i] * PAGE;
		vm->expected[pages[i]] = vm->next++;
	}
	if (!nr)
		return;
	vm_ioctl(vm->vcpu, KVM_SET_REGS, &regs);
	vm_ioctl(vm->vcpu, KVM_RUN, 0);
	check(vm->run->exit_reason == KVM_EXIT_HLT, "exit reason %u", vm->run->exit_reason);
}

static void guest_writes_all(struct vm *vm)
{
	static unsigned short pages[DATA_PAGES];

	for (int i = 0; i < DATA_PAGES; i++)
		pages[i] = i;
	guest_writes(vm, pages, DATA_PAGES);
}

static void check_contents(const struct vm *vm)
{
	for (int i = 0; i < DATA_PAGES; i++) {
		const unsigned int *word = (const void *)(vm->data + i * PAGE);

		check(word[0] == vm->expected[i], "page %d has %u, not %u",
		      i, word[0], vm->expected[i]);
		check(!word[1] && !word[PAGE / 4 - 1], "page %d: more than one word", i);
	}
}

static struct bitmap get_log(struct vm *vm)
{
	struct bitmap found;
	struct kvm_dirty_log log = { .slot = DATA_SLOT, .dirty_bitmap = &found };

	memset(&found, 0x55, sizeof(found));
	vm_ioctl(vm->fd, KVM_GET_DIRTY_LOG, &log);
	return found;
}

static void clear_log(struct vm *vm, struct bitmap *pages)
{
	struct kvm_clear_dirty_log log = {
		.slot = DATA_SLOT, .num_pages = DATA_PAGES, .dirty_bitmap = pages,
	};

	vm_ioctl(vm->fd, KVM_CLEAR_DIRTY_LOG, &log);
}

static void check_log(const struct bitmap *found, const struct bitmap *expected)
{
	for (unsigned int i = 0; i < DATA_PAGES / 32; i++)
		check(found->words[i] == expected->words[i], "pages %u-%u: log %x, not %x",
		      32 * i, 32 * i + 31, found->words[i], expected->words[i]);
}

/* Writes to @pages: they are in the log, once, and no other page is. */
static void check_round(struct vm *vm, const struct variant *variant,
			const unsigned short *pages, unsigned int nr)
{
	struct bitmap none = {}, expected = {}, found;

	for (unsigned int i = 0; i < nr; i++)
		expected.words[pages[i] / 32] |= 1u << (pages[i] % 32);
	guest_writes(vm, pages, nr);
	found = get_log(vm);
	check_log(&found, &expected);
	if (variant->manual)
		clear_log(vm, &found);
	found = get_log(vm);
	check_log(&found, &none);
	check_contents(vm);
}

static void enable_logging(struct vm *vm, const struct variant *variant)
{
	struct bitmap all, found;

	set_logging(vm, true);
	if (!variant->manual)
		return;
	memset(&all, 0xff, sizeof(all));
	found = get_log(vm);
	check_log(&found, &all);
	clear_log(vm, &found);
}

static void run_variant(const struct variant *variant, int dirty_bits)
{
	/* Ends and neighbours: of a page, of a word of the log, of a 2 MiB page. */
	static const unsigned short some[] = {
		0, 1, 31, 32, 63, 64, 511, 512, 777, 1023, 1024, 1536, 2047,
	};
	static const unsigned short others[] = { 1, 2, 510, 513, 2046 };
	static struct vm vm;
	bool eager = variant->eager[0] == 'Y';

	variant_name = variant->name;
	write_text(EAGER, variant->eager);
	start(&vm, variant);
	check(read_number(STAT "dirty_bits") == dirty_bits, "dirty_bits is not %d", dirty_bits);
	guest_writes_all(&vm);
	check_contents(&vm);
	expect_huge(NR_HUGE, "before logging");
	enable_logging(&vm, variant);
	expect_huge(eager ? 0 : NR_HUGE, "after logging was enabled");
	check_round(&vm, variant, some, ARRAY_SIZE(some));
	check_round(&vm, variant, others, ARRAY_SIZE(others));
	check_round(&vm, variant, NULL, 0);
	set_logging(&vm, false);
	guest_writes_all(&vm);
	check_contents(&vm);
	expect_huge(NR_HUGE, "after logging was disabled");
	end(&vm);
	printf("ok %s\n", variant->name);
}

int main(int argc, char **argv)
{
	static const struct variant variants[] = {
		{ "no paging", false, false, "Y" },
		{ "no paging, initially all set", false, true, "Y" },
		{ "no paging, not eager", false, false, "N" },
		{ "PAE", true, false, "Y" },
		{ "PAE, initially all set", true, true, "Y" },
		{ "PAE, not eager", true, false, "N" },
	};

	check(argc == 2, "usage: pae_split_test off|on");
	check(sizeof(long) == 4, "not a 32-bit program");
	write_text("/proc/sys/vm/nr_hugepages", "8");
	for (unsigned int i = 0; i < ARRAY_SIZE(variants); i++)
		run_variant(&variants[i], !strcmp(argv[1], "on"));
	return 0;
}
