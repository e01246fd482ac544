// SPDX-License-Identifier: GPL-2.0-only
/* Helpers for the tests of eager page splitting and of dirty logging. */
#include <signal.h>
#include <time.h>
#include <linux/memfd.h>

#include "eager_split_util.h"

#define MAX_SETTINGS		32
/* The longest name of a place where KVM pauses. */
#define PLACE_MAX		32
#define SEG_CODE		0xb
#define SEG_DATA		0x3
#define SEG_TSS			0xb
#define SELECTOR_CODE		0x8
#define SELECTOR_DATA		0x10
#define SELECTOR_TSS		0x18

#define HUGEPAGES_FREE		"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"

/* The operand of INVEPT for all contexts. */
#define INVEPT_GLOBAL		2ul

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

bool read_stat(struct kvm_binary_stats *stats, const char *name, u64 *values, u32 nr)
{
	struct kvm_stats_desc *desc;

	if (!stats->desc) {
		read_stats_header(stats->fd, &stats->header);
		stats->desc = read_stats_descriptors(stats->fd, &stats->header);
	}

	for (u32 i = 0; i < stats->header.num_desc; i++) {
		desc = get_stats_descriptor(stats->desc, i, &stats->header);
		if (!strcmp(desc->name, name)) {
			read_stat_data(stats->fd, &stats->header, desc, values, nr);
			return true;
		}
	}
	return false;
}

u64 sum_stat(struct kvm_binary_stats *stats, const char *name)
{
	u64 buckets[NR_BUCKETS], all = 0;

	TEST_ASSERT(read_stat(stats, name, buckets, NR_BUCKETS), "The kernel has no %s", name);
	for (int i = 0; i < NR_BUCKETS; i++)
		all += buckets[i];
	return all;
}

u64 vm_get_stat_or_absent(struct kvm_vm *vm, const char *name)
{
	u64 value;

	return read_stat(&vm->stats, name, &value, 1) ? value : STAT_ABSENT;
}

u64 vm_get_stat_or_zero(struct kvm_vm *vm, const char *name)
{
	u64 value = vm_get_stat_or_absent(vm, name);

	return value == STAT_ABSENT ? 0 : value;
}

u64 new_vm_get_stat(const char *name)
{
	struct kvm_vm *vm = vm_create_barebones();
	u64 value = vm_get_stat_or_absent(vm, name);

	kvm_vm_free(vm);
	return value;
}

u64 read_vcpu_stat(struct kvm_vcpu *vcpu, const char *name)
{
	struct kvm_binary_stats stats = { .fd = vcpu_get_stats_fd(vcpu) };
	u64 nr = STAT_ABSENT;

	read_stat(&stats, name, &nr, 1);
	free(stats.desc);
	close(stats.fd);
	return nr;
}

u64 nr_faults(struct kvm_vcpu *vcpu)
{
	return read_vcpu_stat(vcpu, "pf_taken");
}

static void on_alarm(int signal)
{
}

void interrupt_after(unsigned int seconds)
{
	signal(SIGALRM, on_alarm);
	alarm(seconds);
}

void clear_trace(void)
{
	int fd = open(TRACING "trace", O_WRONLY | O_TRUNC);

	TEST_ASSERT(fd >= 0, "Can't empty the trace, errno %d", errno);
	close(fd);
}

void *map_memory(size_t size, int prot, int flags, int fd)
{
	void *p = mmap(NULL, size, prot, flags, fd, 0);

	TEST_ASSERT(p != MAP_FAILED, "Can't map %zu bytes, errno %d", size, errno);
	return p;
}

void *reserve_2m_aligned(size_t size)
{
	return align_ptr_up(map_memory(size + SZ_2M, PROT_NONE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1), SZ_2M);
}

void map_one_2m_page(void *hva, size_t size)
{
	int fd = memfd_create("2MiB", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);

	TEST_ASSERT(fd >= 0 && !ftruncate(fd, SZ_2M), "memfd of 2MiB, errno %d", errno);
	for (size_t i = 0; i < size; i += SZ_2M)
		TEST_ASSERT(mmap(hva + i, SZ_2M, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
				 0) == hva + i, "Can't map a huge page, errno %d", errno);
	close(fd);
}

/* Settings */

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

void write_number(int fd, unsigned int number)
{
	char text[SETTING_MAX];
	int n = snprintf(text, sizeof(text), "%u", number);

	TEST_ASSERT(pwrite(fd, text, n, 0) == n, "Can't write %u, errno %d", number, errno);
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

/*
 * A signal handler reads the settings.  Each is complete before it is counted,
 * and never changes after that.
 */
static struct setting {
	const char *path;
	char value[SETTING_MAX];
} settings[MAX_SETTINGS];

static unsigned int nr_settings;
static pid_t settings_pid;

/* Signal handlers call this, so it makes only system calls. */
static void settings_restore(void)
{
	static const char message[] = "Can't restore a setting of the host\n";
	const struct setting *s = settings, *end = s + READ_ONCE(nr_settings);

	if (getpid() != settings_pid)
		return;

	for (; s < end; s++)
		if (!write_file(s->path, s->value) &&
		    write(STDERR_FILENO, message, sizeof(message) - 1) < 0)
			return;
}

void __noreturn settings_restore_and_exit(int signal)
{
	settings_restore();
	_exit(128 + signal);
}

static void restore_at_end(void)
{
	settings_pid = getpid();
	atexit(settings_restore);
	signal(SIGINT, settings_restore_and_exit);
	signal(SIGTERM, settings_restore_and_exit);
	signal(SIGHUP, settings_restore_and_exit);
}

/* Append the setting.  Return: false if it cannot be read and written. */
static bool save_setting(struct setting *s, const char *path)
{
	TEST_ASSERT(nr_settings < MAX_SETTINGS, "Too many settings");
	if (access(path, W_OK) || !read_file(path, s->value, sizeof(s->value)))
		return false;

	s->path = path;
	if (!nr_settings)
		restore_at_end();
	__atomic_store_n(&nr_settings, nr_settings + 1, __ATOMIC_RELEASE);
	return true;
}

/* Return: the saved setting.  Saves it first if needed; NULL if that fails. */
static const struct setting *find_setting(const char *path)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct setting *s = settings;

	pthread_mutex_lock(&lock);
	while (s < settings + nr_settings && strcmp(s->path, path))
		s++;
	if (s == settings + nr_settings && !save_setting(s, path))
		s = NULL;
	pthread_mutex_unlock(&lock);
	return s;
}

bool setting_exists(const char *path)
{
	return find_setting(path);
}

const char *setting_value(const char *path)
{
	const struct setting *s = find_setting(path);

	TEST_ASSERT(s, "Can't save %s", path);
	return s->value;
}

void setting_set(const char *path, const char *value)
{
	TEST_ASSERT(setting_exists(path) && write_file(path, value),
		    "Can't write %s to %s, errno %d", value, path, errno);
}

void setting_reset(const char *path)
{
	setting_set(path, setting_value(path));
}

/* Fault injection */

bool prepare_injection(void)
{
	if (!setting_exists(FAILSLAB "verbose") || !setting_exists(FAIL_PAGE_ALLOC "verbose"))
		return false;

	setting_set(FAILSLAB "ignore-gfp-wait", "N");
	setting_set(FAILSLAB "verbose", "0");
	setting_set(FAIL_PAGE_ALLOC "ignore-gfp-wait", "N");
	setting_set(FAIL_PAGE_ALLOC "verbose", "0");
	return true;
}

void fail_only(const char *cache)
{
	setting_set(FAIL_HEADERS, cache && !strcmp(cache, FAIL_HEADERS) ? "1" : "0");
	setting_set(FAIL_DESCS, cache && !strcmp(cache, FAIL_DESCS) ? "1" : "0");
	/* Larger than any order, so that no page fails. */
	setting_set(FAIL_PAGE_ALLOC "min-order", cache ? "100" : "0");
}

/* Pauses */

u64 pause_us;

void set_pauses(bool on)
{
	char text[SETTING_MAX];

	if (!pause_us)
		return;

	snprintf(text, sizeof(text), "%lu", on ? pause_us : 0);
	setting_set(PARAM_PAUSE_US, text);
}

/* @place: the only one to count, or NULL. */
static u64 sum_pauses(const char *place)
{
	FILE *f = fopen(KVM_PARAM("prove_windows"), "r");
	char name[PLACE_MAX];
	u64 nr, sum = 0;

	if (!f)
		return 0;

	while (fscanf(f, "%31s %lu", name, &nr) == 2)
		if (!place || !strcmp(name, place))
			sum += nr;
	fclose(f);
	return sum;
}

u64 nr_pauses(void)
{
	return sum_pauses(NULL);
}

u64 nr_pauses_at(const char *place)
{
	return sum_pauses(place);
}

/* VMs */

bool is_tdp_mmu(void)
{
	return kvm_is_tdp_enabled() && get_kvm_param_bool("tdp_mmu");
}

u64 *vm_get_entry(struct kvm_vm *vm, u64 gva, int level)
{
	u64 *entry, table = vm->mmu.pgd;

	for (int i = vm->mmu.pgtable_levels; ; i--) {
		entry = addr_gpa2hva(vm, PTE_GET_PA(table));
		entry += (gva >> PG_LEVEL_SHIFT(i)) % (PAGE_SIZE / sizeof(*entry));
		if (i == level)
			return entry;

		table = *entry;
		TEST_ASSERT(table & PT_PRESENT_MASK && !(table & PT_HUGE_MASK),
			    "No page table at level %d for GVA 0x%lx", i - 1, gva);
	}
}

void vm_vary_entry(struct kvm_vm *vm, u64 gva, unsigned int kind)
{
	*vm_get_entry(vm, gva, PG_LEVEL_512G) |= PT_USER_MASK;
	*vm_get_entry(vm, gva, PG_LEVEL_1G) |= PT_USER_MASK;
	*vm_get_entry(vm, gva, PG_LEVEL_2M) |= (kind & 1 ? PT_USER_MASK : 0) |
					       (kind & 2 ? PT_NX_MASK : 0);
}

/* Code or data, from address 0 on, of 4GiB. */
static struct kvm_segment flat_segment(u16 selector, u8 type)
{
	return (struct kvm_segment){
		.limit = ~0u, .selector = selector, .type = type, .present = 1,
		.s = 1, .db = 1, .g = 1,
	};
}

void set_flat_segments(struct kvm_sregs *sregs, bool is_64bit)
{
	sregs->cs = flat_segment(SELECTOR_CODE, SEG_CODE);
	sregs->cs.l = is_64bit;
	sregs->cs.db = !is_64bit;
	sregs->ds = flat_segment(SELECTOR_DATA, SEG_DATA);
	sregs->es = sregs->ds;
	sregs->fs = sregs->ds;
	sregs->gs = sregs->ds;
	sregs->ss = sregs->ds;

	sregs->tr = (struct kvm_segment){
		.limit = 0x67, .selector = SELECTOR_TSS, .type = SEG_TSS, .present = 1,
	};
	sregs->ldt = (struct kvm_segment){ .unusable = 1 };
}

void vm_enable_manual_protect(struct kvm_vm *vm, bool initially_set)
{
	vm_enable_cap(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
		      KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE |
		      (initially_set ? KVM_DIRTY_LOG_INITIALLY_SET : 0));
}

void vm_set_nr_mmu_pages(struct kvm_vm *vm, unsigned long nr)
{
	int r = __vm_ioctl(vm, KVM_SET_NR_MMU_PAGES, (void *)nr);

	TEST_ASSERT(!r, "KVM_SET_NR_MMU_PAGES of %lu: expected 0, seen %d, errno %d", nr, r, errno);
}

void vcpu_run_to_sync(struct kvm_vcpu *vcpu, struct ucall *uc)
{
	struct ucall own;
	u64 cmd;

	uc = uc ?: &own;
	vcpu_run(vcpu);
	cmd = get_ucall(vcpu, uc);
	if (cmd == UCALL_ABORT)
		REPORT_GUEST_ASSERT(*uc);
	TEST_ASSERT(cmd == UCALL_SYNC, "The guest ended, exit reason %s",
		    exit_reason_str(vcpu->run->exit_reason));
}

void start_thread(pthread_t *thread, void *(*fn)(void *), void *arg)
{
	TEST_ASSERT(!pthread_create(thread, NULL, fn, arg), "Can't create a thread");
}

static void *vcpu_thread(void *vcpu)
{
	vcpu_run_to_sync(vcpu, NULL);
	return NULL;
}

pthread_t start_vcpu(struct kvm_vcpu *vcpu)
{
	pthread_t thread;

	start_thread(&thread, vcpu_thread, vcpu);
	return thread;
}

bool vcpu_saw_stale_event(struct kvm_vcpu *vcpu)
{
	struct kvm_vcpu_events events;

	vcpu_events_get(vcpu, &events);
	return vcpu->run->internal.suberror == KVM_INTERNAL_ERROR_DELIVERY_EV &&
	       !events.exception.injected && !events.interrupt.injected && !events.nmi.injected;
}

void guest_invept(void)
{
	u64 descriptor[2] = {};
	u8 failed;

	asm volatile("invept %1, %2; setna %0"
		     : "=qm"(failed)
		     : "m"(descriptor), "r"(INVEPT_GLOBAL)
		     : "cc", "memory");
	GUEST_ASSERT(!failed);
}
