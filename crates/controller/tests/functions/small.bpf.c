/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Answers with the first byte of the block plus one. */
#include "bpfof.h"

SEC("bpfof/small")
int small(struct bpfof_ctx *ctx)
{
	*ctx->scratch = *(__u8 *)ctx->data + 1;
	ctx->out_len = 1;
	ctx->done = 1;
	return 0;
}
