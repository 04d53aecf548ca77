/* Compiles seccomp profiles with libseccomp, for libseccomp_tests.rs.
 *
 * Reads lines from standard input and writes the filter in the kernel's form to standard output:
 *
 *   name NAME                    prints NAME if libseccomp knows the system call; no other lines then
 *   arch AUDIT                   an ABI of the filter, by its AUDIT_ARCH_ number
 *   default ACTION               before all rules
 *   rule ACTION NAME [ARG OP A B]...
 *
 * Numbers are in any base of strtoull; OP is a value of enum scmp_compare.
 */
#include <seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int result, const char *line)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", line, strerror(-result));
		exit(1);
	}
}

static uint64_t number(void)
{
	char *word = strtok(NULL, " \n");

	return word ? strtoull(word, NULL, 0) : 0;
}

static void add_rule(scmp_filter_ctx filter, const char *line)
{
	uint32_t action = number();
	char *name = strtok(NULL, " \n"), *word;
	struct scmp_arg_cmp arguments[6];
	unsigned count = 0;

	while (count < 6 && (word = strtok(NULL, " \n"))) {
		arguments[count].arg = strtoul(word, NULL, 0);
		arguments[count].op = number();
		arguments[count].datum_a = number();
		arguments[count++].datum_b = number();
	}
	check(seccomp_rule_add_array(filter, action, seccomp_syscall_resolve_name(name), count, arguments), line);
}

int main(void)
{
	scmp_filter_ctx filter = NULL;
	static char line[4096], copy[4096];
	int native = 0;

	while (fgets(line, sizeof(line), stdin)) {
		strcpy(copy, line);
		char *word = strtok(line, " \n");

		if (!word)
			continue;
		if (!strcmp(word, "name")) {
			char *name = strtok(NULL, " \n");

			if (seccomp_syscall_resolve_name(name) != __NR_SCMP_ERROR)
				puts(name);
		} else if (!strcmp(word, "default")) {
			filter = seccomp_init(number());
			check(seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS), copy);
		} else if (!strcmp(word, "arch")) {
			uint32_t arch = number();

			/* A new filter has the native ABI. */
			if (arch == seccomp_arch_native())
				native = 1;
			else
				check(seccomp_arch_add(filter, arch), copy);
		} else if (!strcmp(word, "rule")) {
			add_rule(filter, copy);
		} else {
			check(-1, copy);
		}
	}
	if (filter && !native)
		check(seccomp_arch_remove(filter, SCMP_ARCH_NATIVE), "removing the native ABI");
	if (filter)
		check(seccomp_export_bpf(filter, STDOUT_FILENO), "exporting the filter");
	return 0;
}
