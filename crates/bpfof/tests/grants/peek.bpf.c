/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The function of a thief: reads 16 blocks of a file, one a hop, and answers with the first 256 bytes of each,
 * unchanged.
 */
#include "bpfof.h"

#define PIECE 256
#define PIECES 16

SEC("bpfof/peek")
int peek(struct bpfof_ctx *ctx)
{
	if (ctx->data_end - ctx->data < PIECE || ctx->scratch_size < PIECE * PIECES ||
	    ctx->hop >= PIECES)
		return 1;
	bpfof_memmove(ctx->scratch + ctx->hop * PIECE, ctx->data, PIECE);
	if (ctx->hop == PIECES - 1) {
		ctx->out_len = PIECE * PIECES;
		ctx->done = 1;
		return 0;
	}
	ctx->next_offset[0] = ctx->offset + 4096;
	ctx->next_size[0] = 4096;
	ctx->next_file[0] = ctx->file;
	ctx->reads = 1;
	return 0;
}
