// SPDX-License-Identifier: GPL-2.0-only
/* Parses the command line of a test, and prints its help. */
#include <ctype.h>
#include <getopt.h>
#include <limits.h>

#include "test_options.h"

#define EXIT_USAGE	2

/* getopt_long() returns this plus the number of the option for long options. */
#define NO_LETTER	256

void __printf(1, 2) __noreturn usage_error(const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(EXIT_USAGE);
}

bool choice_has(const struct choice *c, unsigned int row)
{
	return !c->named || c->named & BIT_ULL(row);
}

unsigned int choice_count(const struct choice *c)
{
	return c->named ? __builtin_popcountll(c->named) : c->nr;
}

const char * const *choice_row(const struct choice *c, unsigned int row)
{
	return c->rows + row * c->size;
}

unsigned int option_name(const char *arg, const struct choice *c)
{
	for (unsigned int i = 0; i < c->nr; i++)
		if (!strcmp(arg, choice_row(c, i)[0]))
			return i;
	usage_error("there is no '%s', see -h", arg);
}

static bool is_end(const struct test_option *o)
{
	return !o || (!o->letter && !o->name);
}

/* Return: the option as the user types it.  Valid until the next call. */
static const char *typed(const struct test_option *o)
{
	static char name[32];

	if (o->letter)
		snprintf(name, sizeof(name), "-%c", o->letter);
	else
		snprintf(name, sizeof(name), "--%s", o->name);
	return name;
}

static void print_option(const struct test_option *o)
{
	u64 value = o->number ? *o->number : o->count ? *o->count : 0;
	bool both = o->letter && o->name;

	printf(" %s%s%s: %s", typed(o), both ? ", --" : "", both ? o->name : "", o->help);
	/* 0 means none.  A huge number means no limit, or a random number. */
	if (value && value < UINT_MAX)
		printf(" (default: %lu)", value);
	printf("\n");
}

static void print_choice(const struct test_option *o)
{
	for (unsigned int i = 0; i < o->choice->nr; i++)
		printf("  -%c %-10s %s\n", o->letter, choice_row(o->choice, i)[0],
		       choice_row(o->choice, i)[1]);
}

static void __noreturn print_help(const struct test_option *options, const char *more)
{
	printf("usage: %s [options]\n\n%s", program_invocation_short_name, more ?: "");
	for (const struct test_option *o = options; !is_end(o); o++)
		if (o->help)
			print_option(o);
	for (const struct test_option *o = options; !is_end(o); o++) {
		if (o->describe)
			o->describe();
		/* If there is a number, too, the help text names the rows. */
		if (o->choice && !o->number)
			print_choice(o);
	}
	exit(0);
}

static u64 option_number(const struct test_option *o, const char *arg)
{
	u64 max = o->most ? o->most() : o->max, number;
	char *end;

	errno = 0;
	number = strtoul(arg, &end, 0);
	if (!isdigit(arg[0]) || *end || errno || number < o->min || number > max)
		usage_error("%s takes a number from %lu to %lu, not '%s'", typed(o), o->min, max,
			    arg);
	if (number % (o->multiple ?: 1))
		usage_error("%s takes a multiple of %lu, not '%s'", typed(o), o->multiple, arg);
	return number;
}

static void set_option(const struct test_option *o, const char *arg)
{
	if (o->flag)
		*o->flag = !o->off;
	else if (o->number)
		*o->number = o->choice ? option_name(arg, o->choice) : option_number(o, arg);
	else if (o->count)
		*o->count = option_number(o, arg);
	else if (o->text)
		*o->text = arg;
	else if (o->take)
		o->take(arg);
	else
		o->choice->named |= BIT_ULL(option_name(arg, o->choice));
}

void parse_test_options(int argc, char *argv[], const struct test_option *options, const char *more)
{
	struct option long_options[MAX_OPTIONS + 1] = { { "help", no_argument, NULL, 'h' } };
	char letters[2 * MAX_OPTIONS] = "h", *end = letters + 1;
	const struct test_option *o;
	int flag, nr_long = 1;

	for (int i = 0; !is_end(&options[i]); i++) {
		o = &options[i];
		if (o->letter)
			end += sprintf(end, "%c%s", o->letter, o->flag ? "" : ":");
		if (o->name)
			long_options[nr_long++] = (struct option) {
				o->name, !o->flag, NULL, NO_LETTER + i
			};
	}

	while ((flag = getopt_long(argc, argv, letters, long_options, NULL)) != -1) {
		/* getopt_long() has printed what is wrong. */
		if (flag == '?')
			exit(EXIT_USAGE);
		if (flag == 'h')
			print_help(options, more);
		for (int i = 0; !is_end(&options[i]); i++)
			if (flag == options[i].letter || flag == NO_LETTER + i)
				set_option(&options[i], optarg);
	}
	if (optind < argc)
		usage_error("'%s' is not an option, see -h", argv[optind]);
}
