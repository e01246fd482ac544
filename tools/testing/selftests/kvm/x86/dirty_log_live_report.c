// SPDX-License-Identifier: GPL-2.0-only
/*
 * Evaluates what the vCPUs of dirty_log_live_perf_test have counted, by phase,
 * by kind of vCPU and over time, and prints the results as text and as JSON
 */
#include "dirty_log_live.h"

static const char * const kind_names[NR_KINDS] = {
	[WRITERS]	= "writer",
	[READERS]	= "reader",
};

/* Evaluation. */

/* Successive phases that are evaluated as a whole. */
struct period {
	/* The value of "course" in JSON, which scripts parse. */
	const char *name;
	enum phase first;
	/* The first phase behind it. */
	enum phase end;
};

/* Separate periods, because stalls have other reasons in each of them. */
static const struct period periods[] = {
	{ "logging", PHASE_ENABLE, PHASE_DISABLE },
	{ "disabling", PHASE_DISABLE, PHASE_DISABLED },
};

/* How far the throughput of one kind of vCPU dropped in a period. */
struct dip {
	/* Mean number of accesses in a window of the baseline, 0 if unknown. */
	double baseline;
	u64 lowest;
	/* The first window with that number of accesses. */
	u32 lowest_window;
	/* How many windows have less than half of the baseline. */
	u32 below_half;
};

static u64 ticks_to_ns(u64 ticks)
{
	return ticks / guest_tsc_khz * 1000000 + ticks % guest_tsc_khz * 1000000 / guest_tsc_khz;
}

static double ticks_to_us(u64 ticks)
{
	return ticks_to_ns(ticks) / 1000.0;
}

static void sum_add(struct phase_stats *sum, const struct phase_stats *one, int vcpu)
{
	sum->reads += one->reads;
	sum->writes += one->writes;
	for (int i = 0; i < NR_BUCKETS; i++)
		sum->histogram[i] += one->histogram[i];

	if (one->longest > sum->longest) {
		sum->longest = one->longest;
		sum->longest_gva = one->longest_gva;
		sum->longest_at = one->longest_at;
		sum->longest_vcpu = vcpu;
	}
}

/* Accesses of all vCPUs of a kind in one phase. */
static struct phase_stats sum_up(const struct live *live, enum kind kind, int phase)
{
	struct phase_stats sum = {};

	for (int i = 0; i < live->test->opts->nr_vcpus; i++) {
		if (kind_of(i) == kind)
			sum_add(&sum, &stats_of(live->stats, i)->phases[phase], i);
	}
	return sum;
}

static int nr_of_kind(const struct live *live, enum kind kind)
{
	return kind == READERS ? layout.readers :
				 live->test->opts->nr_vcpus - layout.readers;
}

/* Return: the latency that @share of all accesses do not exceed. */
static u64 percentile(const struct phase_stats *stats, double share)
{
	u64 accesses = accesses_of(stats), seen = 0;

	for (int i = 0; i < NR_BUCKETS; i++) {
		seen += stats->histogram[i];
		if (seen && seen >= accesses * share)
			return min(bucket_end(i), stats->longest);
	}
	return stats->longest;
}

static u64 span_ticks(const struct live *live, int phase)
{
	return live->spans[phase + 1].begin - live->spans[phase].begin;
}

static double per_second(const struct live *live, int phase, u64 accesses)
{
	return accesses * 1e9 / max_t(u64, ticks_to_ns(span_ticks(live, phase)), 1);
}

static u64 gfn_of(const struct live *live, u64 gva)
{
	u64 gpa = memstress_args.gpa + gva - memstress_args.vcpu_args[0].gva;

	if (layout.fresh_pages && gva >= layout.fresh_gva)
		gpa = live->fresh_gpa + gva - layout.fresh_gva;
	return gpa / PAGE_SIZE;
}

/* Return: the time since the timeline began; negative while populating. */
static double timeline_us(const struct live *live, u64 tsc)
{
	u64 origin = live->control->origin;

	return tsc < origin ? -ticks_to_us(origin - tsc) : ticks_to_us(tsc - origin);
}

/*
 * Return: how many windows the run takes.  If there are fewer
 * (layout.nr_windows), the last one also counts the rest.
 */
static u64 windows_needed(const struct live *live)
{
	u64 end = live->spans[layout.nr_phases].begin;

	return (end - live->control->origin) / layout.window_ticks + 1;
}

static u32 windows_used(const struct live *live)
{
	return min_t(u64, windows_needed(live), layout.nr_windows);
}

static u64 window_begin(const struct live *live, u32 window)
{
	return live->control->origin + window * layout.window_ticks;
}

static u64 window_accesses(const struct live *live, enum kind kind, u32 window)
{
	u64 sum = 0;

	for (int i = 0; i < live->test->opts->nr_vcpus; i++) {
		if (kind_of(i) == kind)
			sum += windows_of(stats_of(live->stats, i))[window];
	}
	return sum;
}

/* Return: the number of the phase at this time. */
static int phase_at(const struct live *live, u64 tsc)
{
	int phase = 0;

	while (phase + 1 < layout.nr_phases && live->spans[phase + 1].begin <= tsc)
		phase++;
	return phase;
}

static int find_phase(const struct live *live, enum phase phase)
{
	int i = 0;

	while (live->spans[i].phase != phase)
		i++;
	return i;
}

static double baseline_mean(const struct live *live, enum kind kind)
{
	u64 end = live->spans[find_phase(live, PHASE_ENABLE)].begin;
	u64 sum = 0;
	u32 i;

	for (i = 0; i < windows_used(live) && window_begin(live, i + 1) <= end; i++)
		sum += window_accesses(live, kind, i);
	return i ? (double)sum / i : 0;
}

/*
 * Considers windows that begin in the period.  Skips the last, incomplete one.
 */
static struct dip find_dip(const struct live *live, enum kind kind, const struct period *period)
{
	u64 begin = live->spans[find_phase(live, period->first)].begin;
	u64 end = live->spans[find_phase(live, period->end)].begin;
	struct dip dip = { .baseline = baseline_mean(live, kind), .lowest = ULLONG_MAX };
	u64 accesses;

	for (u32 i = 0; i + 1 < windows_used(live); i++) {
		if (window_begin(live, i) < begin || window_begin(live, i) >= end)
			continue;

		accesses = window_accesses(live, kind, i);
		if (accesses < dip.lowest) {
			dip.lowest = accesses;
			dip.lowest_window = i;
		}
		dip.below_half += accesses < dip.baseline / 2;
	}
	if (dip.lowest == ULLONG_MAX)
		dip.baseline = 0;
	return dip;
}

/* Output as text. */

/* E.g. "clear 1".  Valid until the next call. */
static const char *span_name(const struct span *span)
{
	static char name[32];

	if (!span->iteration)
		return phase_name(span->phase);

	snprintf(name, sizeof(name), "%s %d", phase_name(span->phase), span->iteration);
	return name;
}

/* Print the same lines as dirty_log_perf_test. */
static void report_actions(const struct live *live)
{
	const struct span *span;

	for (int i = 0; i < layout.nr_phases; i++) {
		span = &live->spans[i];
		if (span->phase == PHASE_POPULATE || is_action(span->phase))
			phase_done(live->test, span->phase, span->iteration,
				   timespec_add_ns((struct timespec){},
						   ticks_to_ns(span_ticks(live, i))));
	}
}

static void report_stats(const struct live *live)
{
	pr_info("\n");
	for (int i = 0; i < layout.nr_phases; i++) {
		pr_info("%s", span_name(&live->spans[i]));
		kvm_stats_print(&live->spans[i].stats, &live->spans[i + 1].stats,
				sum_up(live, WRITERS, i).writes);
	}
}

static void report_latency(const struct live *live, enum kind kind, int phase)
{
	struct phase_stats sum = sum_up(live, kind, phase), *stats = &sum;

	pr_info("%-6s %-12s %12lu %13.0f %9.2f %9.2f %9.2f %12.2f",
		kind_names[kind], span_name(&live->spans[phase]), accesses_of(stats),
		per_second(live, phase, accesses_of(stats)),
		ticks_to_us(percentile(stats, 0.5)), ticks_to_us(percentile(stats, 0.99)),
		ticks_to_us(percentile(stats, 0.999)), ticks_to_us(stats->longest));
	if (stats->longest)
		pr_info("  vCPU %lu gfn 0x%lx at %.2f us", stats->longest_vcpu,
			gfn_of(live, stats->longest_gva), timeline_us(live, stats->longest_at));
	pr_info("\n");
}

static void report_table(const struct live *live)
{
	pr_info("\n%-6s %-12s %12s %13s %9s %9s %9s %12s\n", "vCPUs", "phase", "accesses",
		"accesses/s", "p50 us", "p99 us", "p99.9 us", "longest us");
	for (enum kind kind = 0; kind < NR_KINDS; kind++) {
		if (!nr_of_kind(live, kind))
			continue;
		for (int i = 0; i < layout.nr_phases; i++)
			report_latency(live, kind, i);
	}
}

static void report_overflows(const struct live *live)
{
	u64 needed = windows_needed(live), at;

	if (needed > layout.nr_windows)
		pr_info("Timeline too short: %lu windows needed, the last of %u has the rest\n",
			needed, layout.nr_windows);

	for (int i = 0; i < layout.readers; i++) {
		at = stats_of(live->stats, i)->exhausted_at;
		if (at)
			pr_info("vCPU %d had read all of its %lu fresh pages at %.2f us, phase %s\n",
				i, layout.fresh_pages, timeline_us(live, at),
				span_name(&live->spans[phase_at(live, at)]));
	}
}

void report(const struct live *live)
{
	report_actions(live);
	report_table(live);
	if (live->test->opts->stats)
		report_stats(live);
	report_overflows(live);
}

/* Output as JSON: one object per line, each with all parameters of the test. */

static void json_live_dimensions(const struct live *live, const char *record)
{
	const struct live_options *opts = &live_options;

	json_dimensions(live->test, record);
	fprintf(json_out, ", \"fresh\": %s, \"window_us\": %d",
		json_bool(opts->fresh), opts->window_us);
	fprintf(json_out, ", \"stretch_ms\": %d, \"tsc_khz\": %lu",
		opts->stretch_ms, guest_tsc_khz);
}

static void json_histogram(const struct phase_stats *stats)
{
	const char *separator = "";

	/* Upper bounds, in ticks. */
	fprintf(json_out, ", \"histogram\": [");
	for (int i = 0; i < NR_BUCKETS; i++) {
		if (!stats->histogram[i])
			continue;
		fprintf(json_out, "%s[%lu, %lu]", separator, bucket_end(i), stats->histogram[i]);
		separator = ", ";
	}
	fprintf(json_out, "]");
}

static void json_latency(const struct live *live, int phase, const struct phase_stats *stats)
{
	json_phase(live->spans[phase].phase, live->spans[phase].iteration);
	fprintf(json_out, ", \"begin_us\": %.3f, \"seconds\": %.9f",
		timeline_us(live, live->spans[phase].begin),
		ticks_to_ns(span_ticks(live, phase)) / 1e9);
	fprintf(json_out, ", \"reads\": %lu, \"writes\": %lu, \"accesses_per_second\": %.1f",
		stats->reads, stats->writes, per_second(live, phase, accesses_of(stats)));
	fprintf(json_out, ", \"p50_us\": %.3f, \"p99_us\": %.3f, \"p99_9_us\": %.3f",
		ticks_to_us(percentile(stats, 0.5)), ticks_to_us(percentile(stats, 0.99)),
		ticks_to_us(percentile(stats, 0.999)));
	fprintf(json_out, ", \"longest_us\": %.3f", ticks_to_us(stats->longest));
	if (stats->longest)
		fprintf(json_out, ", \"longest_gfn\": %lu, \"longest_at_us\": %.3f",
			gfn_of(live, stats->longest_gva), timeline_us(live, stats->longest_at));
	else
		fprintf(json_out, ", \"longest_gfn\": null, \"longest_at_us\": null");
	json_histogram(stats);
	fprintf(json_out, "}\n");
}

static void json_kind(const struct live *live, enum kind kind)
{
	struct phase_stats sum;

	for (int i = 0; i < layout.nr_phases; i++) {
		sum = sum_up(live, kind, i);
		json_live_dimensions(live, "kind");
		fprintf(json_out, ", \"kind\": \"%s\"", kind_names[kind]);
		json_latency(live, i, &sum);
	}
}

static void json_dip(const struct live *live, enum kind kind, const struct period *period)
{
	struct dip dip = find_dip(live, kind, period);

	if (!dip.baseline)
		return;

	json_live_dimensions(live, "dip");
	fprintf(json_out, ", \"kind\": \"%s\", \"course\": \"%s\", \"baseline_per_window\": %.3f",
		kind_names[kind], period->name, dip.baseline);
	fprintf(json_out, ", \"lowest\": %lu, \"lowest_window\": %u, \"windows_below_half\": %u}\n",
		dip.lowest, dip.lowest_window, dip.below_half);
}

static void json_window(const struct live *live, u32 window)
{
	int phase = phase_at(live, window_begin(live, window));

	json_live_dimensions(live, "window");
	json_phase(live->spans[phase].phase, live->spans[phase].iteration);
	fprintf(json_out, ", \"window\": %u, \"begin_us\": %lu", window,
		(u64)window * live_options.window_us);
	fprintf(json_out, ", \"writer_accesses\": %lu, \"reader_accesses\": %lu}\n",
		window_accesses(live, WRITERS, window), window_accesses(live, READERS, window));
}

static void json_stats(const struct live *live, int phase)
{
	json_live_dimensions(live, "stats");
	json_phase(live->spans[phase].phase, live->spans[phase].iteration);
	kvm_stats_json(&live->spans[phase].stats, &live->spans[phase + 1].stats);
	fprintf(json_out, "}\n");
}

void json_all(const struct live *live)
{
	for (enum kind kind = 0; kind < NR_KINDS; kind++) {
		if (!nr_of_kind(live, kind))
			continue;

		json_kind(live, kind);
		for (int i = 0; i < ARRAY_SIZE(periods); i++)
			json_dip(live, kind, &periods[i]);
	}
	if (live->test->opts->stats) {
		for (int i = 0; i < layout.nr_phases; i++)
			json_stats(live, i);
	}
	for (u32 window = 0; window < windows_used(live); window++)
		json_window(live, window);
}
