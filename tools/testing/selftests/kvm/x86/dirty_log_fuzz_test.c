// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fuzzer of dirty logging: random valid and invalid operations on a VM
 *
 * A sequence is a list of random steps: ioctls with valid and with invalid
 * arguments, reads and writes of the guest in changing modes, changes of the
 * host's parameters, and changes of the host's memory.  A model
 * (dirty_log_fuzz_model.c) says what each step must return, which pages the log
 * of each memslot must contain, and what the guest must read.  Each difference
 * fails the test.
 *
 * Steps run one after the other, so a sequence does the same each time.  With
 * -t, another thread moves, protects and collapses memory at the same time.
 *
 * Each sequence runs in its own process, with its own VM.  If a sequence fails,
 * the test removes steps and makes numbers smaller as long as the sequence
 * still fails.  It prints what is left, and -r runs that again.
 *
 * Limits: no vCPU runs during an ioctl.
 */
#include <sys/wait.h>

#include "dirty_log_fuzz.h"

#define MAX_LINE		128
/* The time limit of a sequence, which usually takes a second. */
#define LIMIT_S			300
#define MAX_SHRINK_RUNS		500
/* The steps with which each sequence begins, and one more. */
#define MIN_LENGTH		10
#define STATUS_FOUND		1

static u64 seed = 1, nr_steps = 3000, length = 50;
static const char *replay;
static bool threaded;
static struct report *report;
static struct report total;

static const u32 pages[] = { 0, 0, 0, 1, 63, 64, 511, 512, 513, 1023 };
static const u32 counts[] = { 1, 2, 63, 64, 65, 511, 512, 512, 513, 1024, 1024, 1024 };
static const u32 sizes[] = { 1024, 1024, 1024, 1023, 961, 575, 512, 65 };
static const u32 strides[] = { 1, 1, 3, 7, 61, 64, 512 };
static const u32 shifts[] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 63, 64, 511 };
static const u32 odd_slots[] = { LOW_SLOT, NR_SLOTS + 5, 0xffff, 1 << 16 | 1, 7 << 16 };
static const u32 manuals[] = { 0, 0, 1, 1, 3, 3, 3, 2, 4 };
static const u32 quotas[] = { 0, MIN_MMU_PAGES - 1, MIN_MMU_PAGES, 70, 100, 200, 1000, 5000 };
static const u32 flags[] = {
	KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_LOG_DIRTY_PAGES,
	KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_LOG_DIRTY_PAGES,
	KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_LOG_DIRTY_PAGES, 0, 0, 0, 0, KVM_MEM_READONLY,
	KVM_MEM_READONLY | KVM_MEM_LOG_DIRTY_PAGES, 1 << 5,
};

/* Drawing */

/* Return: one of the @n numbers of a table. */
static u32 pick(u64 *rng, const u32 *table, unsigned int n)
{
	return table[below(rng, n)];
}

/* Draw values at limits as often as all other values together. */
static u32 draw_arg(u64 *rng, enum arg arg)
{
	u32 page = below(rng, AREA_PAGES);

	switch (arg) {
	case ARG_VCPU:
		return below(rng, 2) ? below(rng, NR_VCPUS) : 0;
	case ARG_ANY_SLOT:
		if (!below(rng, 12))
			return pick(rng, odd_slots, ARRAY_SIZE(odd_slots));
		fallthrough;
	case ARG_SLOT:
		return below(rng, 2) ? 1 + below(rng, NR_SLOTS - 1) : 1;
	case ARG_AREA:
		/* From NR_AREAS on, the area of a memslot. */
		return below(rng, 2) ? NR_AREAS + 1 : below(rng, NR_AREAS + NR_SLOTS);
	case ARG_PAGE:
		return below(rng, 3) ? pick(rng, pages, ARRAY_SIZE(pages)) : page;
	case ARG_COUNT:
		return below(rng, 3) ? pick(rng, counts, ARRAY_SIZE(counts)) : 1 + page;
	case ARG_SIZE:
		return below(rng, 4) ? pick(rng, sizes, ARRAY_SIZE(sizes)) : 1 + page;
	case ARG_OFFSET:
		return below(rng, 2) ? 0 : pick(rng, pages, ARRAY_SIZE(pages));
	case ARG_STRIDE:
		return pick(rng, strides, ARRAY_SIZE(strides));
	case ARG_CHUNK:
		/* A memslot that begins there ends within the window. */
		return below(rng, WINDOW_CHUNKS - 2);
	case ARG_SHIFT:
		return pick(rng, shifts, ARRAY_SIZE(shifts));
	case ARG_FLAGS:
		return pick(rng, flags, ARRAY_SIZE(flags));
	case ARG_MASK:
		return below(rng, 3) ? below(rng, 4) : 4 + below(rng, 1000);
	case ARG_MANUAL:
		return pick(rng, manuals, ARRAY_SIZE(manuals));
	case ARG_SPLIT_CHUNK:
		return below(rng, 6);
	case ARG_DIRTY_BITS:
		return below(rng, 3);
	case ARG_METHOD:
		return below(rng, 3);
	case ARG_MODE:
		return below(rng, guest_nr_modes());
	case ARG_QUOTA:
		return pick(rng, quotas, ARRAY_SIZE(quotas));
	case ARG_ACCESS:
		return below(rng, ACCESS_NONE + 1);
	case ARG_WRONG:
		return below(rng, 8) ? 0 : 1 + below(rng, 2);
	default:
		return below(rng, 2);
	}
}

static unsigned int nr_args(const struct op *op)
{
	unsigned int n = 0;

	while (op->args[n] != ARG_END)
		n++;
	return n;
}

static unsigned int draw_op(u64 *rng)
{
	unsigned int sum = 0, op;
	u64 n;

	for (op = 0; op < nr_ops; op++)
		sum += ops[op].weight;
	n = below(rng, sum);
	for (op = 0; n >= ops[op].weight; op++)
		n -= ops[op].weight;
	return op;
}

static struct step draw_step(u64 *rng, unsigned int op)
{
	struct step step = { .op = op };

	for (unsigned int i = 0; i < nr_args(&ops[op]); i++)
		step.args[i] = draw_arg(rng, ops[op].args[i]);
	return step;
}

static unsigned int find_op(const char *name)
{
	for (unsigned int op = 0; op < nr_ops; op++)
		if (!strcmp(ops[op].name, name))
			return op;
	usage_error("there is no step '%s'", name);
}

/* Half of the memslots are like those of VMMs: aligned, whole huge pages. */
static struct step draw_memslot(u64 *rng, u32 id)
{
	struct step step = draw_step(rng, find_op("create"));

	step.args[0] = id;
	step.args[6] = 0;
	if (below(rng, 2)) {
		step.args[2] = 0;
		step.args[3] = AREA_PAGES;
		step.args[5] = 0;
	}
	return step;
}

/*
 * Begin with settings of the host and of the VM, and memslots, of which one is
 * written and then logged.
 */
static unsigned int draw_sequence(u64 *rng, struct step *steps)
{
	static const char * const settings[] = {
		"eager", "host-bits", "split-chunk", "dirty-bits", "manual",
	};
	unsigned int n;

	for (n = 0; n < ARRAY_SIZE(settings); n++)
		steps[n] = draw_step(rng, find_op(settings[n]));
	steps[n++] = draw_memslot(rng, 1);
	steps[n++] = draw_memslot(rng, 2);
	steps[n] = draw_step(rng, find_op("write"));
	steps[n].args[1] = 1;
	steps[n++].args[3] = MAX_LIST;
	steps[n] = draw_step(rng, find_op("flags"));
	steps[n].args[0] = 1;
	steps[n++].args[1] = KVM_MEM_LOG_DIRTY_PAGES;
	while (n < length)
		steps[n++] = draw_step(rng, draw_op(rng));
	return n;
}

/* Text */

static void print_steps(const struct step *steps, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		const struct op *op = &ops[steps[i].op];

		printf("#   %s", op->name);
		for (unsigned int arg = 0; arg < nr_args(op); arg++)
			printf(" %u", steps[i].args[arg]);
		printf("\n");
	}
}

static bool parse_step(char *line, struct step *step)
{
	char *word = strtok(line, "# \t\n");
	unsigned int n = 0;

	if (!word)
		return false;

	*step = (struct step){ .op = find_op(word) };
	while ((word = strtok(NULL, " \t\n")) && n < MAX_ARGS)
		step->args[n++] = strtoul(word, NULL, 0);
	if (word || n != nr_args(&ops[step->op]))
		usage_error("%s takes %u numbers", ops[step->op].name, nr_args(&ops[step->op]));
	return true;
}

static unsigned int read_steps(const char *path, struct step *steps)
{
	FILE *file = strcmp(path, "-") ? fopen(path, "r") : stdin;
	char line[MAX_LINE];
	unsigned int n = 0;

	if (!file)
		usage_error("can't read %s", path);
	while (n < MAX_STEPS && fgets(line, sizeof(line), file))
		n += parse_step(line, &steps[n]);
	return n;
}

/* Running */

void fuzz_fail(struct fuzz *f, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(f->report->text, sizeof(f->report->text), fmt, args);
	va_end(args);
	f->report->failed = true;
	_exit(STATUS_FOUND);
}

static void prepare(struct fuzz *f, enum stage stage)
{
	if (stage == STAGE_HOST)
		return;
	if (!f->vm)
		f->vm = vm_create_barebones();
	if (stage == STAGE_VM || f->booted)
		return;

	/*
	 * Even if the CPU has five levels: the guest's page tables have four.
	 */
	f->vm->mmu.pgtable_levels = 4;
	guest_create(f);
	f->booted = true;
	if (f->threaded)
		memory_start_thread(f, seed);
}

static void __noreturn run_child(const struct step *steps, unsigned int n)
{
	struct fuzz *f = calloc(1, sizeof(*f));

	TEST_ASSERT(f, "Out of memory");
	f->report = report;
	f->threaded = threaded;
	f->next_value = 1;
	alarm(LIMIT_S);
	memory_create(f);
	for (report->step = 0; report->step < n; report->step++) {
		const struct step *step = &steps[report->step];

		prepare(f, ops[step->op].stage);
		ops[step->op].run(f, step->args);
	}
	prepare(f, STAGE_GUEST);
	if (f->threaded)
		memory_stop_thread(f);
	fuzz_final(f);
	_exit(0);
}

static void reset_host(void)
{
	setting_reset(PARAM_EAGER);
	setting_reset(PARAM_DIRTY_BITS);
	if (setting_exists(PARAM_NX))
		setting_reset(PARAM_NX);
}

/*
 * Return: true if all results were as expected.  @report says what was not, and
 * how much was done.
 */
static bool run_steps(const struct step *steps, unsigned int n, bool quiet)
{
	int status, null;
	pid_t pid;

	memset(report, 0, sizeof(*report));
	reset_host();
	fflush(NULL);
	pid = fork();
	TEST_ASSERT(pid >= 0, "fork: errno %d", errno);
	if (!pid) {
		null = open("/dev/null", O_WRONLY);
		if (quiet && null >= 0)
			dup2(null, STDERR_FILENO);
		run_child(steps, n);
	}
	TEST_ASSERT(waitpid(pid, &status, 0) == pid, "waitpid: errno %d", errno);
	/* An assertion of the library has already printed what is wrong. */
	if (status && !report->failed)
		snprintf(report->text, sizeof(report->text), "ended by %s %d",
			 WIFSIGNALED(status) ? "signal" : "status",
			 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	reset_host();
	return !status;
}

/* Shrinking */

static unsigned int nr_runs;

/* Return: after how many steps the sequence fails, 0 if it does not fail. */
static unsigned int fails(const struct step *steps, unsigned int n)
{
	if (!n || nr_runs >= MAX_SHRINK_RUNS)
		return 0;

	nr_runs++;
	return run_steps(steps, n, true) ? 0 : min(n, report->step + 1);
}

static unsigned int leave_out(struct step *steps, unsigned int n)
{
	struct step fewer[MAX_STEPS];
	unsigned int part = n, before, left;

	do {
		before = n;
		part = max(part / 2, 1u);
		for (unsigned int i = 0; i < n;) {
			unsigned int end = min(i + part, n);

			memcpy(fewer, steps, i * sizeof(*steps));
			memcpy(&fewer[i], &steps[end], (n - end) * sizeof(*steps));
			left = fails(fewer, n - (end - i));
			if (left) {
				memcpy(steps, fewer, left * sizeof(*steps));
				n = left;
			} else {
				i = end;
			}
		}
	} while (part > 1 || n < before);
	return n;
}

static unsigned int simplify(struct step *steps, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		const struct op *op = &ops[steps[i].op];

		for (unsigned int arg = 0; arg < nr_args(op); arg++) {
			bool from_1 = op->args[arg] == ARG_COUNT || op->args[arg] == ARG_STRIDE ||
				      op->args[arg] == ARG_SLOT || op->args[arg] == ARG_ANY_SLOT;
			u32 *value = &steps[i].args[arg], old = *value;
			unsigned int left;

			if (old <= from_1)
				continue;
			*value = from_1;
			left = fails(steps, n);
			if (left)
				n = left;
			else
				*value = old;
		}
	}
	return n;
}

static void report_failure(struct step *steps, unsigned int n)
{
	struct report first = *report;
	struct step again[MAX_STEPS];

	n = min(n, report->step + 1);
	ksft_print_msg("step %u: %s\n", first.step, first.text);
	memcpy(again, steps, n * sizeof(*steps));
	if (!fails(again, n)) {
		ksft_print_msg("It does not do that again.  All of its %u steps:\n", n);
		print_steps(steps, n);
		return;
	}

	n = leave_out(again, n);
	n = simplify(again, n);
	n = leave_out(again, n);
	run_steps(again, n, true);
	ksft_print_msg("%u steps are enough, found by %u runs; step %u: %s\n", n, nr_runs,
		       report->step, report->text);
	print_steps(again, n);
}

static void add_to_total(unsigned int n)
{
	total.step += n;
	total.calls += report->calls;
	total.refused += report->refused;
	total.accesses += report->accesses;
	total.compared += report->compared;
	total.logs += report->logs;
	total.events += report->events;
}

static bool run_drawn(void)
{
	struct step steps[MAX_STEPS];
	u64 rng = seed, done;
	unsigned int n;

	for (done = 0; done < nr_steps; done += n) {
		u64 own = rng_next(&rng);

		n = draw_sequence(&own, steps);
		n = min_t(u64, n, nr_steps - done);
		if (!run_steps(steps, n, false)) {
			report_failure(steps, n);
			return false;
		}
		add_to_total(n);
	}
	return true;
}

static bool run_file(void)
{
	struct step steps[MAX_STEPS];
	unsigned int n = read_steps(replay, steps);

	if (!run_steps(steps, n, false)) {
		ksft_print_msg("step %u: %s\n", report->step, report->text);
		return false;
	}
	add_to_total(n);
	return true;
}

int main(int argc, char *argv[])
{
	const struct test_option options[] = {
		{ 's', "seed", "of what is drawn", .number = &seed, .max = ULONG_MAX },
		{ 'n', "steps", "in all sequences together", .number = &nr_steps, .min = 1,
		  .max = UINT_MAX },
		{ 'l', "length", "steps of a sequence", .number = &length, .min = MIN_LENGTH,
		  .max = MAX_STEPS },
		{ 'r', "replay", "run the steps in this file; -: in standard input",
		  .text = &replay },
		{ 't', "thread", "another thread does things to memory at the same time",
		  .flag = &threaded },
		{ }
	};
	bool passed;

	parse_test_options(argc, argv, options, NULL);
	ksft_print_header();
	TEST_REQUIRE(setting_exists(PARAM_EAGER) && setting_exists(PARAM_DIRTY_BITS));
	__TEST_REQUIRE(nr_free_2m_pages() >= AREA_SIZE / SZ_2M + 2,
		       "too few 2MiB HugeTLB pages are free");

	ksft_set_plan(1);
	report = map_memory(sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			    -1);
	passed = replay ? run_file() : run_drawn();
	ksft_print_msg("summary: seed=%lu steps=%u calls=%lu refused=%lu accesses=%lu events=%lu\n",
		       seed, total.step, total.calls, total.refused, total.accesses, total.events);
	ksft_print_msg("%lu logs of %lu pages are as expected\n", total.logs, total.compared);
	ksft_test_result(passed, "the log is as the model says\n");
	ksft_finished();
}
