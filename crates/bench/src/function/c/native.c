/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The same C as a native program: SOURCE and FUNCTION are set on the command
 * line. Arguments: the block, the arguments (ARGUMENT_BYTES each), rounds,
 * calls a round. Prints ns a call of each round, and a hash of scratch.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bpfof.h"
/* Where a storage function calls a helper, native C calls the library. */
#define bpfof_memcmp(a, b, length) ((__s64)memcmp(a, b, length))
#define bpfof_memmove(to, from, length) memmove(to, from, length)
#define bpfof_memset(to, value, length) memset(to, value, length)
#include SOURCE

static unsigned char block_bytes[65536], arguments[1 << 20], scratch[BPFOF_SCRATCH_SIZE];

static size_t read_file(const char *path, void *to, size_t size)
{
	FILE *file = fopen(path, "rb");
	size_t length = file ? fread(to, 1, size, file) : 0;

	if (!length)
		exit(1);
	fclose(file);
	return length;
}

int main(int argc, char **argv)
{
	int (*volatile function)(struct bpfof_ctx *) = FUNCTION;
	struct bpfof_ctx ctx = { .data = block_bytes, .scratch = scratch, .scratch_size = sizeof(scratch) };
	__u64 hash = 0;

	if (argc != 5)
		return 2;
	ctx.data_end = block_bytes + read_file(argv[1], block_bytes, sizeof(block_bytes));
	size_t count = read_file(argv[2], arguments, sizeof(arguments)) / ARGUMENT_BYTES;
	long rounds = atol(argv[3]), calls = atol(argv[4]);

	for (long round = 0; round < rounds; round++) {
		struct timespec from, to;

		clock_gettime(CLOCK_MONOTONIC, &from);
		for (long call = 0; call < calls; call++) {
			memcpy(scratch, arguments + call % count * ARGUMENT_BYTES, ARGUMENT_BYTES);
			if (function(&ctx))
				return 3;
		}
		clock_gettime(CLOCK_MONOTONIC, &to);
		printf("%f\n", ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / calls);
		fflush(stdout);
		/* The other side makes its round now, so that both see the same
		 * machine. */
		if (getchar() == EOF)
			break;
	}
	for (size_t i = 0; i < sizeof(scratch); i++)
		hash = hash * 31 + scratch[i];
	printf("%llu %llu\n", hash, (unsigned long long)ctx.next_offset[0]);
	return 0;
}
