/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Functions that misbehave, and a few helpers for tests. */
#include "bpfof.h"

static inline int read_next(struct bpfof_ctx *ctx, __u64 offset, __u32 size)
{
	ctx->next_offset[0] = offset;
	ctx->next_size[0] = size;
	ctx->reads = 1;
	return 0;
}

static inline int answer(struct bpfof_ctx *ctx, __u32 length)
{
	ctx->out_len = length;
	ctx->done = 1;
	return 0;
}

/* Reads the address in the first word of scratch: null for an empty argument. */
SEC("bpfof/load")
int load(struct bpfof_ctx *ctx)
{
	volatile __u8 *at = *(volatile __u8 **)ctx->scratch;

	*ctx->scratch = *at;
	return answer(ctx, 1);
}

/* Writes to the address in the first word of scratch. */
SEC("bpfof/store")
int store(struct bpfof_ctx *ctx)
{
	volatile __u8 *at = *(volatile __u8 **)ctx->scratch;

	*at = 1;
	return answer(ctx, 1);
}

/* Reads the first byte behind the data. */
SEC("bpfof/beyond")
int beyond(struct bpfof_ctx *ctx)
{
	*ctx->scratch = *(volatile __u8 *)ctx->data_end;
	return answer(ctx, 1);
}

SEC("bpfof/forever")
int forever(struct bpfof_ctx *ctx)
{
	for (;;)
		*(volatile __u32 *)ctx->scratch += 1;
}

/* Asks for the same block again and again. */
SEC("bpfof/endless")
int endless(struct bpfof_ctx *ctx)
{
	return read_next(ctx, ctx->offset, 512);
}

/* Asks for a block at the offset in the first word of scratch. */
SEC("bpfof/outside")
int outside(struct bpfof_ctx *ctx)
{
	return read_next(ctx, *(__u64 *)ctx->scratch, 512);
}

SEC("bpfof/abort")
int abort_with(struct bpfof_ctx *ctx)
{
	return *(int *)ctx->scratch;
}

SEC("bpfof/nothing")
int nothing(struct bpfof_ctx *ctx)
{
	return 0;
}

SEC("bpfof/many")
int many(struct bpfof_ctx *ctx)
{
	read_next(ctx, 0, 512);
	ctx->reads = 17;
	return 0;
}

SEC("bpfof/stranger")
int stranger(struct bpfof_ctx *ctx)
{
	ctx->next_file[0] = 1;
	return read_next(ctx, 0, 512);
}

SEC("bpfof/large")
int large(struct bpfof_ctx *ctx)
{
	ctx->next_offset[1] = 0;
	ctx->next_size[1] = 512;
	read_next(ctx, 0, BPFOF_MAX_HOP_BYTES);
	ctx->reads = 2;
	return 0;
}

/* Answers with the length in the first word of scratch. */
SEC("bpfof/answer")
int answer_of(struct bpfof_ctx *ctx)
{
	return answer(ctx, *(__u32 *)ctx->scratch);
}

/* Follows the offset at the start of each block until one is 0, and counts the blocks. */
SEC("bpfof/walk")
int walk(struct bpfof_ctx *ctx)
{
	*(__u64 *)ctx->scratch += 1;
	if (*(__u64 *)ctx->data)
		return read_next(ctx, *(__u64 *)ctx->data, 512);
	return answer(ctx, 8);
}

/* Reads sixteen blocks in one hop, adds up their first words. */
SEC("bpfof/fan")
int fan(struct bpfof_ctx *ctx)
{
	__u32 i;

	if (ctx->hop == 0) {
		for (i = 0; i < BPFOF_MAX_READS; i++) {
			ctx->next_offset[i] = (i + 1) * 512;
			ctx->next_size[i] = 512;
		}
		ctx->reads = BPFOF_MAX_READS;
		return 0;
	}
	*(__u64 *)ctx->scratch += *(__u64 *)ctx->data;
	if (ctx->read_index == BPFOF_MAX_READS - 1)
		return answer(ctx, 8);
	return 0;
}
