/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The scratch that a filter and a reduction share, over a file of 64-bit numbers. */
#ifndef COMPOSE_H
#define COMPOSE_H

#include "bpfof/blocks.h"

#define BLOCK_BYTES 4096

struct compose {
	/* the argument: the reduction's number, a bound, where the numbers end */
	__u64 reduction;
	__u64 below;
	__u64 end;
	/* the reduction's result; static variables would not last */
	__u64 result;
	/* 1 for each number of the block that passed */
	__u8 passed[BLOCK_BYTES / 8];
};

/* Ends a reduction: reads the next block, or answers. */
static inline int next_block(struct bpfof_ctx *ctx, const struct compose *state)
{
	__u64 next = ctx->offset + bpfof_data_size(ctx), left = state->end - next;

	if (left)
		return bpfof_read(ctx, ctx->file, next, left < BLOCK_BYTES ? left : BLOCK_BYTES);
	*(__u64 *)ctx->scratch = state->result;
	return bpfof_answer(ctx, sizeof(state->result));
}

#endif
