/* SPDX-License-Identifier: GPL-2.0-only */
/* The command line of a test, as a table of options.  -h prints the table. */
#ifndef SELFTEST_KVM_TEST_OPTIONS_H
#define SELFTEST_KVM_TEST_OPTIONS_H

#include "kvm_util.h"

/* The most options of a program, including -h. */
#define MAX_OPTIONS	32

/*
 * A table from which the user chooses rows.  Each row begins with two strings:
 * its name and a description.
 */
struct choice {
	const void *rows;
	size_t size;
	unsigned int nr;
	/* A bit for each row that the user has named.  0: all are chosen. */
	u64 named;
};

bool choice_has(const struct choice *c, unsigned int row);
unsigned int choice_count(const struct choice *c);
/* Return: the name and the description of the row. */
const char * const *choice_row(const struct choice *c, unsigned int row);

/* An option.  An empty one ends a list.  A list may be NULL, i.e. empty. */
struct test_option {
	/* An option has a letter, a name, or both.  0 or NULL: it has none. */
	char letter;
	const char *name;
	/* The text for -h, to which -h adds the default of a number. */
	const char *help;
	/* Prints more for -h, after all options. */
	void (*describe)(void);
	/*
	 * What the option sets: one of these, up to @choice.  With @flag, the
	 * option has no value.
	 */
	bool *flag;
	/* Clear the flag instead. */
	bool off;
	/* The value as a number or, with @choice, the row with that name. */
	u64 *number;
	int *count;
	const char **text;
	/* Called with the value. */
	void (*take)(const char *arg);
	/* Choose the named row; the option may be given several times. */
	struct choice *choice;
	/* Limits of a number.  If @most is not NULL, it replaces @max. */
	u64 min;
	u64 max;
	int (*most)(void);
	/* If this is not 0, the number must be a multiple of it. */
	u64 multiple;
};

/*
 * These functions exit if the command line is wrong.  @more: text that -h
 * prints before the options, or NULL.
 */
void parse_test_options(int argc, char *argv[], const struct test_option *options,
			const char *more);
/* Return: the number of the row with this name. */
unsigned int option_name(const char *arg, const struct choice *c);
void __printf(1, 2) __noreturn usage_error(const char *fmt, ...);

#endif /* SELFTEST_KVM_TEST_OPTIONS_H */
