/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* A function that makes a tail call, and one to be called. */
#include "bpfof.h"

/* Makes a tail call to the function whose id is at the start of scratch. */
SEC("bpfof/onward")
int onward(struct bpfof_ctx *ctx)
{
	__u32 function = *(__u32 *)ctx->scratch;

	bpfof_tail_call(function);
	bpfof_trace("no function\t", function);
	return 7;
}

static __u32 calls = 100;

/* Answers with how often it was called since its variables were initialised. */
SEC("bpfof/landed")
int landed(struct bpfof_ctx *ctx)
{
	calls++;
	bpfof_trace("landed in hop", ctx->hop);
	if (ctx->hop < 2) {
		ctx->next_size[0] = 512;
		ctx->reads = 1;
		return 0;
	}
	*(__u32 *)ctx->scratch = calls;
	ctx->out_len = 4;
	ctx->done = 1;
	return 0;
}
