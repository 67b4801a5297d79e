/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Opens a target, and prints the outcome. */
#include <bpfof.h>

#include <errno.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	struct bpfof_options options = BPFOF_OPTIONS_INIT;
	struct bpfof *b;

	if (argc != 3)
		return 2;
	options.flags = BPFOF_NO_FALL_BACK;
	b = bpfof_open(argv[1], argv[2], &options);
	if (!b) {
		printf("%s %s\n", errno == EACCES ? "EACCES" : "another", bpfof_error());
		return 1;
	}
	printf("%s\n", bpfof_has_target(b) ? "target" : "none");
	bpfof_close(b);
	return 0;
}
