// SPDX-License-Identifier: GPL-2.0-only
/* Prints the times of phases, as text and as JSON with one object per line. */
#include <ctype.h>
#include <limits.h>

#include "dirty_log_perf.h"

/* For tv_sec and tv_nsec. */
#define TIME_FMT	"%ld.%.9lds"

/*
 * Scripts parse the names in JSON, so do not change them.  A phase has a text
 * if its time is printed.
 */
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

FILE *json_out;

void phase_done(struct test *test, enum phase phase, int iteration, struct timespec time)
{
	struct phase_times *times = &test->times[phase];

	times->sum = timespec_add(times->sum, time);
	times->count++;

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

const char *pattern_name(enum pattern pattern)
{
	static const char * const names[NR_PATTERNS] = {
		[PATTERN_PAGES]		= "pages",
		[PATTERN_REGIONS]	= "regions",
		[PATTERN_CLEAN]		= "clean",
	};

	return names[pattern];
}

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

static void parameters_json(const struct kvm_parameters *parameters)
{
	if (!parameters->eager)
		return;

	fprintf(json_out, ", \"eager\": %s, \"tdp_mmu\": %s, \"ept\": %s",
		parameters->eager, parameters->tdp_mmu, parameters->tdp);
}

/* The settings of the command line, as opposed to those of the host. */
static void asked_json(const struct options *opts)
{
#ifdef KVM_CAP_X86_DIRTY_BITS
	const char *dirty_bits = "null";

	if (opts->chunk.given)
		fprintf(json_out, ", \"asked_chunk_bytes\": %lu", opts->chunk.value);
	else
		fprintf(json_out, ", \"asked_chunk_bytes\": null");

	if (opts->dirty_bits.given)
		dirty_bits = json_bool(opts->dirty_bits.value);
	fprintf(json_out, ", \"asked_dirty_bits\": %s", dirty_bits);
#endif
}

void json_dimensions(const struct test *test, const char *record)
{
	const struct options *opts = test->opts;

	fprintf(json_out, "{\"record\": \"%s\", \"mode\": \"%s\"", record, perf_program.mode);
	fprintf(json_out, ", \"run\": %d, \"runs\": %d", test->run, opts->runs);
	parameters_json(&test->parameters);
	fprintf(json_out, ", \"vcpus\": %d, \"bytes_per_vcpu\": %lu, \"slots\": %d",
		opts->nr_vcpus, memstress_args.size / opts->nr_vcpus, opts->slots);
	fprintf(json_out, ", \"backing\": \"%s\"", vm_mem_backing_src_alias(opts->backing)->name);
	fprintf(json_out, ", \"pattern\": \"%s\", \"read_first\": %s, \"tracked\": %s",
		pattern_name(opts->pattern), json_bool(opts->read_first),
		json_bool(opts->tracked));
	fprintf(json_out, ", \"write_percent\": %d, \"random\": %s, \"sparse\": %s",
		opts->write_percent, json_bool(opts->random_access), json_bool(opts->sparse));
	fprintf(json_out, ", \"partition\": %s, \"seed\": %u, \"nested\": %s",
		json_bool(opts->partition), kvm_random_seed, json_bool(memstress_args.nested));
	fprintf(json_out, ", \"initially_all_set\": %s, \"manual_protect\": %s, \"iterations\": %d",
		json_bool(initially_set(test)), json_bool(test->manual_caps), opts->iterations);
	fprintf(json_out, ", \"readers\": %d, \"idle\": %d", opts->readers, opts->idle);
	fprintf(json_out, ", \"run_while_disabling\": %s, \"verify\": %s",
		json_bool(opts->run_while_disabling), json_bool(opts->verify));
	asked_json(opts);
	/* Lines without this member are about the first cycle. */
	if (test->cycle > 1)
		fprintf(json_out, ", \"cycle\": %d", test->cycle);
}

/* What was written to json_out so far. */
static char *json_text;
static size_t json_bytes;

/*
 * The file is written under this name and then renamed.  It is in the same
 * directory, because rename() does not work across file systems.
 */
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
