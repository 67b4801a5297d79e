/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Keeps state in a global variable, which storage functions cannot have. */
#include "bpfof.h"

static volatile __u32 calls;

SEC("bpfof/global")
int global(struct bpfof_ctx *ctx)
{
	calls += 1;
	ctx->done = 1;
	return 0;
}
