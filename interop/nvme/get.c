/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program that uses the C library: gets of BPF-KV by NVMe commands, one at a time, with every value compared.
 *
 *     get CHARACTER-DEVICE BLOCK-DEVICE OBJECT DATABASE KEYS
 */
#include <bpfof.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what)
{
	fprintf(stderr, "get: %s: %s\n", what, bpfof_error());
	return 1;
}

int main(int argc, char **argv)
{
	struct bpfof_options options = BPFOF_OPTIONS_INIT;
	struct bpfof_read first = { 0, 512, 0 };
	struct bpfof_function *function;
	struct bpfof_reader *reader;
	struct bpfof *b;
	char url[256];
	uint64_t key;
	int fd;

	if (argc != 6 || snprintf(url, sizeof(url), "nvme:%s", argv[1]) >= (int)sizeof(url)) {
		fprintf(stderr, "get: wrong arguments\n");
		return 1;
	}
	options.flags = BPFOF_NO_FALL_BACK | BPFOF_STABLE_FDS;
	options.patience_us = 2000000;
	b = bpfof_open(url, argv[2], &options);
	if (!b)
		return fail(url);
	function = bpfof_function_load_file(b, argv[3], NULL);
	reader = bpfof_reader_open(b);
	fd = open(argv[4], O_RDONLY);
	if (!function || !reader || fd < 0 || bpfof_add(b, fd) || bpfof_wait_mapped(b, fd, 10000))
		return fail("cannot begin");
	for (key = 0; key < strtoull(argv[5], NULL, 10); key++) {
		/* The answer: whether it was found, and the value, which begins with the key. */
		uint64_t scratch[9] = { key };
		struct bpfof_result result;
		ssize_t length = bpfof_read_pushdown(reader, &fd, 1, &first, function, scratch,
						     sizeof(scratch), sizeof(key), &result);

		if (length != sizeof(scratch))
			return fail("a get");
		if (scratch[0] != 1 || scratch[1] != key || result.executor != BPFOF_HERE) {
			fprintf(stderr, "get: key %llu has a wrong value\n", (unsigned long long)key);
			return 1;
		}
	}
	bpfof_reader_close(reader);
	bpfof_function_unload(function);
	bpfof_close(b);
	return 0;
}
