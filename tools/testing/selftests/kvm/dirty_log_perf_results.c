// SPDX-License-Identifier: GPL-2.0-only
/*
 * Times of phases, and what several runs of the same phase have in common; for
 * people, and as JSON objects, one per line, for programs.
 */
#include <ctype.h>
#include <limits.h>

#include "dirty_log_perf.h"

/* Takes tv_sec and tv_nsec. */
#define TIME_FMT	"%ld.%.9lds"

/* Part of the output format, which scripts parse; those whose time is taken have a text. */
static const struct {
	const char *json;
	const char *text;
} phase_names[NR_PHASES] = {
	[PHASE_POPULATE]	= { "populate", "Populate memory" },
	[PHASE_BASELINE]	= { "baseline" },
	[PHASE_ENABLE]		= { "enable", "Enabling dirty logging" },
	[PHASE_ENABLED]		= { "enabled" },
	[PHASE_DIRTY]		= { "dirty", "dirty memory" },
	[PHASE_GET]		= { "get", "get dirty log" },
	[PHASE_CLEAR]		= { "clear", "clear dirty log" },
	[PHASE_VERIFY]		= { "verify" },
	[PHASE_LOGGING]		= { "logging" },
	[PHASE_DISABLE]		= { "disable", "Disabling dirty logging" },
	[PHASE_DISABLED]	= { "disabled" },
};

/* A phase of one guest mode, in all VMs so far. */
struct measured {
	enum phase phase;
	int iteration;
	/* By run. */
	u64 *ns;
};

/* In the order of the phases, which is the same for each run. */
static struct measured *measured;
static int nr_measured;

FILE *json_out;

/* For the summary of several runs. */
static void remember(struct test *test, enum phase phase, int iteration, u64 ns)
{
	struct measured *one;

	if (test->nr_done == nr_measured) {
		measured = realloc(measured, ++nr_measured * sizeof(*measured));
		TEST_ASSERT(measured, "Out of memory");
		measured[test->nr_done] = (struct measured){
			.phase = phase,
			.iteration = iteration,
			.ns = calloc(test->opts->runs, sizeof(u64)),
		};
		TEST_ASSERT(measured[test->nr_done].ns, "Out of memory");
	}

	one = &measured[test->nr_done++];
	TEST_ASSERT(one->phase == phase && one->iteration == iteration,
		    "Run %d has other phases than run 1", test->run);
	one->ns[test->run - 1] = ns;
}

void forget_all(void)
{
	while (nr_measured)
		free(measured[--nr_measured].ns);
	free(measured);
	measured = NULL;
}

void phase_done(struct test *test, enum phase phase, int iteration, struct timespec time)
{
	struct phase_times *times = &test->times[phase];

	times->sum = timespec_add(times->sum, time);
	times->count++;
	remember(test, phase, iteration, timespec_to_ns(time));

	if (iteration)
		pr_info("Iteration %d ", iteration);
	pr_info("%s time: " TIME_FMT "\n", phase_names[phase].text, time.tv_sec, time.tv_nsec);
}

void print_average(const struct test *test, enum phase phase)
{
	const struct phase_times *times = &test->times[phase];
	const char *name = phase_names[phase].text;
	struct timespec avg;

	if (!times->count)
		return;

	avg = timespec_div(times->sum, times->count);
	pr_info("%c%s over %d iterations took " TIME_FMT ". (Avg " TIME_FMT "/iteration)\n",
		toupper(name[0]), name + 1, times->count,
		times->sum.tv_sec, times->sum.tv_nsec, avg.tv_sec, avg.tv_nsec);
}

/* JSON. */

const char *phase_name(enum phase phase)
{
	return phase_names[phase].json;
}

void json_phase(enum phase phase, int iteration)
{
	fprintf(json_out, ", \"phase\": \"%s\", \"iteration\": ", phase_name(phase));
	if (iteration)
		fprintf(json_out, "%d", iteration);
	else
		fprintf(json_out, "null");
}

void json_dimensions(const struct test *test, const char *record)
{
	const struct options *opts = test->opts;

	fprintf(json_out, "{\"record\": \"%s\", \"mode\": \"%s\"", record, perf_program.mode);
	fprintf(json_out, ", \"run\": %d, \"runs\": %d", test->run, opts->runs);
	kvm_parameters_json();
	fprintf(json_out, ", \"vcpus\": %d, \"bytes_per_vcpu\": %lu, \"slots\": %d",
		opts->nr_vcpus, memstress_args.size / opts->nr_vcpus, opts->slots);
	fprintf(json_out, ", \"backing\": \"%s\"", vm_mem_backing_src_alias(opts->backing)->name);
	fprintf(json_out, ", \"write_percent\": %d, \"random\": %s, \"sparse\": %s",
		opts->write_percent, json_bool(opts->random_access), json_bool(opts->sparse));
	fprintf(json_out, ", \"partition\": %s, \"seed\": %u, \"nested\": %s",
		json_bool(opts->partition), kvm_random_seed, json_bool(memstress_args.nested));
	fprintf(json_out, ", \"initially_all_set\": %s, \"manual_protect\": %s, \"iterations\": %d",
		json_bool(initially_set(test)), json_bool(test->manual_caps), opts->iterations);
	fprintf(json_out, ", \"readers\": %d, \"run_while_disabling\": %s, \"verify\": %s",
		opts->readers, json_bool(opts->run_while_disabling), json_bool(opts->verify));
	asked_json(opts);
}

/* What json_out collects. */
static char *json_text;
static size_t json_bytes;

/* Where it is written: in the same directory, so that it can be renamed. */
static char json_part[PATH_MAX];

void json_open(const char *json)
{
	FILE *file;

	if (snprintf(json_part, sizeof(json_part), "%s.part", json) >= sizeof(json_part))
		usage_error("-j %s: the name is too long", json);
	file = fopen(json_part, "w");
	if (!file)
		usage_error("-j %s: cannot be written: %s", json, strerror(errno));
	fclose(file);
	unlink(json_part);

	json_out = open_memstream(&json_text, &json_bytes);
	TEST_ASSERT(json_out, "Out of memory");
}

void json_close(const char *json)
{
	bool written = !fclose(json_out);
	FILE *file;

	TEST_ASSERT(written, "Out of memory");
	file = fopen(json_part, "w");
	TEST_ASSERT(file, "%s: %s", json_part, strerror(errno));

	written = fwrite(json_text, 1, json_bytes, file) == json_bytes;
	written &= !fflush(file) && !fsync(fileno(file));
	written &= !fclose(file);
	if (!written || rename(json_part, json)) {
		unlink(json_part);
		TEST_FAIL("%s could not be written", json);
	}
	free(json_text);
}

/* Several runs. */

static int by_size(const void *a, const void *b)
{
	u64 first = *(const u64 *)a, second = *(const u64 *)b;

	return first < second ? -1 : first > second;
}

/* Of sorted values; the mean of the two in the middle if their number is even. */
static u64 median(const u64 *values, int nr)
{
	u64 low = values[(nr - 1) / 2], high = values[nr / 2];

	return low + (high - low) / 2;
}

static void summarize_one(struct measured *one, int runs)
{
	qsort(one->ns, runs, sizeof(*one->ns), by_size);
	if (one->iteration)
		pr_info("Iteration %d ", one->iteration);
	pr_info("%s over %d runs: minimum %.9fs, median %.9fs, maximum %.9fs\n",
		phase_names[one->phase].text, runs, one->ns[0] / 1e9,
		median(one->ns, runs) / 1e9, one->ns[runs - 1] / 1e9);
}

void summarize(const struct test *test)
{
	pr_info("\n");
	for (int i = 0; i < nr_measured; i++)
		summarize_one(&measured[i], test->opts->runs);
}
