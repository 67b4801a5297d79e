/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* A variable that lives for one chain. */
#include "bpfof.h"

static volatile __u32 calls;

SEC("bpfof/count")
int count(struct bpfof_ctx *ctx)
{
	calls += 1;
	if (ctx->hop < 4) {
		ctx->next_size[0] = 512;
		ctx->reads = 1;
		return 0;
	}
	*(__u32 *)ctx->scratch = calls;
	ctx->out_len = 4;
	ctx->done = 1;
	return 0;
}
