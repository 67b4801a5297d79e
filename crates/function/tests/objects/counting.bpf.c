/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Two functions with a variable each, at the same address, and one without variables. */
#include "bpfof.h"

static __u64 ones = 0;
static __u64 tens = 40;

SEC("bpfof/by_one")
int by_one(struct bpfof_ctx *ctx)
{
	*(__u64 *)ctx->scratch = ++ones;
	return 0;
}

SEC("bpfof/by_ten")
int by_ten(struct bpfof_ctx *ctx)
{
	*(__u64 *)ctx->scratch = tens += 10;
	return 0;
}

SEC("bpfof/without")
int without(struct bpfof_ctx *ctx)
{
	*(__u64 *)ctx->scratch = 7;
	return 0;
}
