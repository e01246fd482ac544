// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the tests of eager page splitting and of dirty logging share.
 */
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include "eager_split_util.h"

#define HUGEPAGES_FREE		"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"

u64 now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return timespec_to_ns(now);
}

void spin_ns(u64 ns)
{
	u64 end = now_ns() + ns;

	while (now_ns() < end)
		;
}

u64 get_stat_or_absent(struct kvm_binary_stats *stats, const char *name)
{
	struct kvm_stats_desc *desc;
	u64 value;
	u32 i;

	if (!stats->desc) {
		read_stats_header(stats->fd, &stats->header);
		stats->desc = read_stats_descriptors(stats->fd, &stats->header);
	}

	for (i = 0; i < stats->header.num_desc; i++) {
		desc = get_stats_descriptor(stats->desc, i, &stats->header);
		if (!strcmp(desc->name, name)) {
			read_stat_data(stats->fd, &stats->header, desc, &value, 1);
			return value;
		}
	}
	return STAT_ABSENT;
}

u64 vm_get_stat_or_absent(struct kvm_vm *vm, const char *name)
{
	return get_stat_or_absent(&vm->stats, name);
}

void *alloc_shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		       0);

	TEST_ASSERT(p != MAP_FAILED, "Out of memory");
	return p;
}

/*
 * Settings
 */

bool write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n, len = strlen(text);
	int error;

	if (fd < 0)
		return false;

	n = write(fd, text, len);
	error = errno;
	close(fd);
	errno = error;
	return n == len;
}

bool read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;

	if (fd >= 0)
		close(fd);
	if (n < 0)
		return false;

	text[n] = 0;
	return true;
}

unsigned int nr_free_2m_pages(void)
{
	char text[SETTING_MAX];

	return read_file(HUGEPAGES_FREE, text, sizeof(text)) ? atoi(text) : 0;
}

/* What settings_save() was given, and by which process. */
static struct {
	struct setting *settings;
	unsigned int nr;
	pid_t pid;
} to_restore;

/* System calls only, so a signal may do it while a thread does. */
static void settings_restore(void)
{
	static const char message[] = "Can't restore a setting of the host\n";
	const struct setting *s = to_restore.settings;
	const struct setting *end = s + to_restore.nr;

	if (getpid() != to_restore.pid)
		return;

	for (; s < end; s++)
		if (s->saved && !write_file(s->path, s->value) &&
		    write(STDERR_FILENO, message, sizeof(message) - 1) < 0)
			return;
}

void __noreturn settings_restore_and_exit(int signal)
{
	settings_restore();
	_exit(128 + signal);
}

static void setting_save(struct setting *s)
{
	s->saved = !access(s->path, W_OK) && read_file(s->path, s->value, sizeof(s->value));
}

void settings_save(struct setting *settings, unsigned int nr)
{
	unsigned int i;

	TEST_ASSERT(!to_restore.nr, "Settings are saved already");
	for (i = 0; i < nr; i++)
		setting_save(&settings[i]);

	to_restore.settings = settings;
	to_restore.nr = nr;
	to_restore.pid = getpid();
	atexit(settings_restore);
	signal(SIGINT, settings_restore_and_exit);
	signal(SIGTERM, settings_restore_and_exit);
	signal(SIGHUP, settings_restore_and_exit);
}

void setting_set(const struct setting *setting, const char *value)
{
	TEST_ASSERT(write_file(setting->path, value), "Can't write %s to %s, errno %d", value,
		    setting->path, errno);
}

void setting_reset(const struct setting *setting)
{
	setting_set(setting, setting->value);
}

/*
 * Idle pages
 */

u64 pfn_of(const void *p)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	u64 entry = 0;

	TEST_ASSERT(fd >= 0 && pread(fd, &entry, sizeof(entry),
				     (u64)p / PAGE_SIZE * sizeof(entry)) == sizeof(entry),
		    "Can't read /proc/self/pagemap, errno %d", errno);
	close(fd);
	return entry & (BIT_ULL(55) - 1);
}

int open_page_idle(void)
{
	int fd = open(PAGE_IDLE, O_WRONLY);

	TEST_ASSERT(fd >= 0, "Can't open " PAGE_IDLE ", errno %d", errno);
	return fd;
}

void mark_idle(int fd, u64 pfn)
{
	u64 bit = BIT_ULL(pfn % 64);
	ssize_t n = pwrite(fd, &bit, sizeof(bit), pfn / 64 * sizeof(bit));

	TEST_ASSERT(n >= 0, "Can't write to " PAGE_IDLE ", errno %d", errno);
}

/*
 * The command line
 */

void __noreturn refuse_option(const char *text, const char *why)
{
	fprintf(stderr, "%s: %s; see -h\n", text, why);
	exit(2);
}

/* Return: what @text says, if that is what the option takes. */
static u64 option_number(const struct test_option *o, const char *text)
{
	u64 nr, multiple = o->multiple ?: 1;
	char *end, why[80];

	errno = 0;
	nr = strtoul(text, &end, 0);
	if (!errno && *text && *text != '-' && !*end && nr >= o->min &&
	    nr <= o->max && !(nr % multiple))
		return nr;

	snprintf(why, sizeof(why), "expected a multiple of %lu from %lu to %lu", multiple,
		 o->min, o->max);
	refuse_option(text, why);
}

unsigned int option_name(const char *text, const void *table, size_t size, unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++)
		if (!strcmp(text, *(const char * const *)(table + i * size)))
			return i;
	refuse_option(text, "no such name");
}

static void __noreturn print_help(const char *program, const struct test_option *options,
				  void (*more)(void))
{
	const struct test_option *o;

	printf("usage: %s [-h]", program);
	for (o = options; o->letter; o++)
		printf(" [-%c%s%s]", o->letter, o->value ? " " : "", o->value ?: "");
	printf("\n\n");
	for (o = options; o->letter; o++) {
		printf(" -%c: %s", o->letter, o->help);
		/* Nothing, and what is without limit or drawn, is none. */
		if (o->number && *o->number && *o->number < UINT_MAX)
			printf(" (default: %lu)", *o->number);
		printf("\n");
	}
	printf("\n");
	if (more)
		more();
	exit(0);
}

static void set_option(const struct test_option *o, const char *text)
{
	if (o->flag)
		*o->flag = true;
	else if (o->number)
		*o->number = option_number(o, text);
	else
		o->take(text);
}

void parse_test_options(int argc, char *argv[], const struct test_option *options,
			void (*more)(void))
{
	char letters[32] = "h", *end = letters + 1;
	const struct test_option *o;
	int opt;

	for (o = options; o->letter; o++) {
		*end++ = o->letter;
		if (o->value)
			*end++ = ':';
	}

	opterr = 0;
	while ((opt = getopt(argc, argv, letters)) != -1) {
		if (opt == 'h' || (argc == 2 && !strcmp(argv[1], "--help")))
			print_help(argv[0], options, more);
		for (o = options; o->letter && o->letter != opt; o++)
			;
		if (!o->letter)
			refuse_option((char []){ '-', optopt, 0 },
				      "no such option, or no value for it");
		set_option(o, optarg);
	}
	if (optind < argc)
		refuse_option(argv[optind], "not an option");
}

/*
 * VMs
 */

bool is_tdp_mmu(void)
{
	return kvm_is_tdp_enabled() && get_kvm_param_bool("tdp_mmu");
}

u64 *vm_get_entry(struct kvm_vm *vm, u64 gva, int level)
{
	u64 *entry, table = vm->mmu.pgd;
	int i;

	for (i = vm->mmu.pgtable_levels; ; i--) {
		entry = addr_gpa2hva(vm, PTE_GET_PA(table));
		entry += (gva >> PG_LEVEL_SHIFT(i)) % (PAGE_SIZE / sizeof(*entry));
		if (i == level)
			return entry;

		table = *entry;
		TEST_ASSERT(table & PT_PRESENT_MASK && !(table & PT_HUGE_MASK),
			    "No page table at level %d for GVA 0x%lx", i - 1, gva);
	}
}

void vm_enable_initially_set(struct kvm_vm *vm)
{
	vm_enable_cap(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
		      KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE | KVM_DIRTY_LOG_INITIALLY_SET);
}

void vm_set_nr_mmu_pages(struct kvm_vm *vm, unsigned long nr)
{
	int r = __vm_ioctl(vm, KVM_SET_NR_MMU_PAGES, (void *)nr);

	TEST_ASSERT(!r, "KVM_SET_NR_MMU_PAGES of %lu: expected 0, seen %d, errno %d", nr, r,
		    errno);
}

void vcpu_run_to_sync(struct kvm_vcpu *vcpu, struct ucall *uc)
{
	vcpu_run(vcpu);
	TEST_ASSERT(get_ucall(vcpu, uc) == UCALL_SYNC, "The guest ended, exit reason %s",
		    exit_reason_str(vcpu->run->exit_reason));
}

void start_thread(pthread_t *thread, void *(*fn)(void *), void *arg)
{
	TEST_ASSERT(!pthread_create(thread, NULL, fn, arg), "Can't create a thread");
}
