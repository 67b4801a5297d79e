/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Functions for calls.c. Each comment describes the words of scratch. */
#include "bpfof.h"

/*
 * Reads words[1] pieces of words[2] bytes each, all in one hop, one from each file and the first of
 * them longer by words[3]; the answer is the sum of all bytes, the number of calls, and the size of
 * the largest piece.
 */
SEC("bpfof/sum")
int sum(struct bpfof_ctx *ctx)
{
	__u64 *words = (__u64 *)ctx->scratch;
	__u64 size = ctx->data_end - ctx->data;

	if (ctx->hop == 0) {
		for (__u32 i = 0; i < words[1] && i < BPFOF_MAX_READS; i++) {
			ctx->next_offset[i] = 100 + i;
			ctx->next_size[i] = words[2] + (i ? 0 : words[3]);
			ctx->next_file[i] = i;
			ctx->reads = i + 1;
		}
		words[0] = 0;
		return 0;
	}
	for (__u64 i = 0; i < size; i++)
		words[0] += ctx->data[i];
	words[4] += 1;
	if (words[5] < size)
		words[5] = size;
	if (ctx->read_index + 1 == words[1]) {
		ctx->out_len = 48;
		ctx->done = 1;
	}
	return 0;
}

/* The answer is the bytes read. */
SEC("bpfof/fill")
int fill(struct bpfof_ctx *ctx)
{
	__u64 size = ctx->data_end - ctx->data;

	bpfof_memmove(ctx->scratch, ctx->data, size);
	ctx->out_len = size;
	ctx->done = 1;
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

/* Counts its calls; the answer is empty. */
SEC("bpfof/count")
int count(struct bpfof_ctx *ctx)
{
	__u32 key = 0;

	bpfof_map_add(&calls, &key, 0, 1);
	ctx->done = 1;
	return 0;
}

/* Ends as words[0] says. */
SEC("bpfof/fail")
int fail(struct bpfof_ctx *ctx)
{
	switch (*(__u64 *)ctx->scratch) {
	case 1:
		return 42;
	case 2:
		return *(volatile __u8 *)(ctx->data_end + 1);
	case 3: /* for ever in one call */
		for (;;)
			asm volatile("");
	case 4: /* neither done nor a read */
		return 0;
	case 5:
		ctx->next_file[0] = 9;
		ctx->next_size[0] = 8;
		ctx->reads = 1;
		return 0;
	case 6:
		ctx->next_offset[0] = 1ull << 40;
		ctx->next_size[0] = 8;
		ctx->reads = 1;
		return 0;
	}
	ctx->done = 1;
	return 0;
}
