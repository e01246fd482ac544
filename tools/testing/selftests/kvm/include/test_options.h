/* SPDX-License-Identifier: GPL-2.0-only */
/* The command line of a test: a table of its options, which -h is made of, too. */
#ifndef SELFTEST_KVM_TEST_OPTIONS_H
#define SELFTEST_KVM_TEST_OPTIONS_H

#include "kvm_util.h"

/* Of a program, -h included. */
#define MAX_OPTIONS	32

/* Rows of a table, which begin with their name and what they are. */
struct choice {
	const void *rows;
	size_t size;
	unsigned int nr;
	/* By number, those that were named; none: all of them are chosen. */
	u64 named;
};

bool choice_has(const struct choice *c, unsigned int row);
unsigned int choice_count(const struct choice *c);
/* Return: its name, and behind that what it is. */
const char * const *choice_row(const struct choice *c, unsigned int row);

/* An option of the command line; a list of them ends with an empty one, NULL is none. */
struct test_option {
	/* 0 or NULL if it has the other one only. */
	char letter;
	const char *name;
	/* For -h, which adds what a number is by default; or what says it there. */
	const char *help;
	void (*describe)(void);
	/*
	 * One of these: set, or cleared if @off; read from the value, or the value; given the
	 * value; or told what was named.  A @number with a choice is that of the row.
	 */
	bool *flag;
	bool off;
	u64 *number;
	int *count;
	const char **text;
	void (*take)(const char *arg);
	struct choice *choice;
	/* Of the number: the second one is @most() if there is such a function; 0: of one. */
	u64 min;
	u64 max;
	int (*most)(void);
	u64 multiple;
};

/* These end the test if they can't.  @more: what -h says besides, or NULL. */
void parse_test_options(int argc, char *argv[], const struct test_option *options,
			const char *more);
/* Return: the number of the row with this name. */
unsigned int option_name(const char *arg, const struct choice *c);
void __printf(1, 2) __noreturn usage_error(const char *fmt, ...);

#endif /* SELFTEST_KVM_TEST_OPTIONS_H */
