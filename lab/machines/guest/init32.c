// SPDX-License-Identifier: GPL-2.0-only
/*
 * The first process of an emulated machine whose kernel is 32-bit: it cannot
 * run the host's busybox and with it the shell script beside this file.
 *
 * Runs one program and reports on the second serial port with the frames that
 * the script lists, only that there is no archive.  In its place come
 *
 *	L TEXT		a line of the program's output, as soon as it is there
 *	N COUNT		those were COUNT lines; no file and no kernel log follows
 *
 * /lab/argv is the program and its arguments, each closed by NUL;
 * /lab/parameters is as for the script.  The only libc is the kernel's nolibc,
 * so that building this needs no 32-bit library.
 */
#include <asm/ioctls.h>
#include <asm/termbits.h>
#include <linux/reboot.h>
#include <stdbool.h>

#define MOST_ARGUMENTS	15

/* The second serial port. */
static FILE *report;

/* Reads all of a small file; returns its length, or -1, and closes it with NUL. */
static int slurp(const char *path, char *text, int size)
{
	int fd = open(path, O_RDONLY);
	int length;

	if (fd < 0)
		return -1;
	length = read(fd, text, size - 1);
	close(fd);
	if (length >= 0)
		text[length] = '\0';
	return length;
}

static void mount_all(void)
{
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
}

/* As fast as the port can, and without a change to what is sent. */
static int open_report(void)
{
	struct termios port;
	int fd = open("/dev/ttyS1", O_RDWR | O_NOCTTY | O_CLOEXEC);

	if (fd < 0 || ioctl(fd, TCGETS, &port))
		return -1;
	port.c_oflag &= ~OPOST;
	port.c_lflag = 0;
	port.c_cflag = (port.c_cflag & ~CBAUD) | B115200;
	if (ioctl(fd, TCSETS, &port))
		return -1;
	report = fdopen(fd, "w");
	return report ? 0 : -1;
}

/* @name: MODULE.PARAMETER, changed on the way. */
static void report_parameter(char *name)
{
	char path[256] = "/sys/module/", value[256];
	char *dot = strchr(name, '.');
	int length;

	if (!dot || strlen(name) > 128)
		return;
	*dot = '\0';
	strlcat(path, name, sizeof(path));
	strlcat(path, "/parameters/", sizeof(path));
	strlcat(path, dot + 1, sizeof(path));
	length = slurp(path, value, sizeof(value));
	if (length > 0 && value[length - 1] == '\n')
		value[length - 1] = '\0';
	if (length >= 0)
		fprintf(report, "M %s.%s=%s\n", name, dot + 1, value);
	else
		fprintf(report, errno == ENOENT ? "M %s.%s\n" : "M %s.%s=?\n", name, dot + 1);
}

static void report_parameters(void)
{
	static char names[4096];
	char *name = names, *end;

	if (slurp("/lab/parameters", names, sizeof(names)) < 0)
		return;
	while ((end = strchr(name, '\n'))) {
		*end = '\0';
		report_parameter(name);
		name = end + 1;
	}
}

static void become_command(int output)
{
	static char text[4096];
	char *argv[MOST_ARGUMENTS + 1], *environment[] = { NULL };
	int length = slurp("/lab/argv", text, sizeof(text));
	int used = 0, nr = 0;

	while (used < length && nr < MOST_ARGUMENTS) {
		argv[nr++] = text + used;
		used += strlen(text + used) + 1;
	}
	argv[nr] = NULL;
	dup2(output, 1);
	dup2(output, 2);
	if (nr && used == length)
		execve(argv[0], argv, environment);
	printf("%s: cannot be started, error %d\n", nr ? argv[0] : "no command", errno);
	exit(127);
}

/* Sends what comes from @input line by line; returns the number of lines. */
static int report_output(int input)
{
	static char line[1024];
	size_t length = 0;
	int lines = 0;
	bool more;

	do {
		more = read(input, line + length, 1) == 1;
		if (more && line[length] != '\n' && ++length < sizeof(line) - 1)
			continue;
		/* A line, one that is too long, or the rest of the last one. */
		line[length] = '\0';
		if (more || length) {
			fprintf(report, "L %s\n", line);
			lines++;
		}
		length = 0;
	} while (more);
	return lines;
}

/* Returns the exit status as a shell has it. */
static int run_command(int *lines)
{
	int ends[2], status;
	pid_t child;

	if (pipe(ends))
		return 126;
	child = fork();
	if (child < 0)
		return 126;
	if (!child) {
		close(ends[0]);
		become_command(ends[1]);
	}
	close(ends[1]);
	*lines = report_output(ends[0]);
	if (waitpid(child, &status, 0) != child)
		return 126;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(void)
{
	int lines = 0, status;

	mount_all();
	/* Without a report the machine ends by a panic, and counts as crashed. */
	if (open_report())
		return 1;
	fprintf(report, "H 1\n");
	report_parameters();
	status = run_command(&lines);
	fprintf(report, "N %d\nE %d\n", lines, status);
	/* Closing waits until the port has sent everything. */
	fclose(report);
	reboot(LINUX_REBOOT_CMD_POWER_OFF);
	return 1;
}
