/* SPDX-License-Identifier: GPL-2.0-only */
/* The command line of a test, described by a table of options.  -h prints that table. */
#ifndef SELFTEST_KVM_TEST_OPTIONS_H
#define SELFTEST_KVM_TEST_OPTIONS_H

#include "kvm_util.h"

/* Options of a program, including -h. */
#define MAX_OPTIONS	32

/* A table from which the user chooses rows.  Each begins with two strings: name and text. */
struct choice {
	const void *rows;
	size_t size;
	unsigned int nr;
	/* Bits of the rows that the user has named.  None: all rows are chosen. */
	u64 named;
};

bool choice_has(const struct choice *c, unsigned int row);
unsigned int choice_count(const struct choice *c);
/* Return: the two strings that the row begins with. */
const char * const *choice_row(const struct choice *c, unsigned int row);

/* An option of the command line.  An empty one ends a list; NULL is an empty list. */
struct test_option {
	/* An option has a letter or a name, or both; 0 or NULL: it has none. */
	char letter;
	const char *name;
	/* For -h, which adds the default of a number. */
	const char *help;
	/* Prints the help instead. */
	void (*describe)(void);
	/* What the option sets is one of these, up to @choice.  @flag: no value is given. */
	bool *flag;
	/* Clear the flag instead. */
	bool off;
	/* The value as a number, or with @choice, the number of the row of that name. */
	u64 *number;
	int *count;
	const char **text;
	/* Called with the value. */
	void (*take)(const char *arg);
	/* Rows that are named; the option may be given several times. */
	struct choice *choice;
	/* Limits of a number.  @most, if not NULL, is used instead of @max. */
	u64 min;
	u64 max;
	int (*most)(void);
	/* The number has to be a multiple of this, unless it is 0. */
	u64 multiple;
};

/*
 * These functions end the program if the command line is wrong.  @more: text for -h
 * that is printed before the options, or NULL.
 */
void parse_test_options(int argc, char *argv[], const struct test_option *options,
			const char *more);
/* Return: the number of the row with this name. */
unsigned int option_name(const char *arg, const struct choice *c);
void __printf(1, 2) __noreturn usage_error(const char *fmt, ...);

#endif /* SELFTEST_KVM_TEST_OPTIONS_H */
