/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Entry points that share some functions, and an entry point with a function in its own section. */
#include "bpfof.h"

static __u64 (*const missing)(void) = (void *)99;

static const __u64 only_for_third[30] = { [7] = 5 };

static __attribute__((noinline)) __u64 only_second(struct bpfof_ctx *ctx)
{
	return missing() + ctx->scratch[0];
}

__attribute__((noinline)) __u64 only_third(__u64 index)
{
	return only_for_third[index % 30];
}

static __attribute__((noinline)) __u64 both(struct bpfof_ctx *ctx)
{
	__u64 sum = 0;

	for (int i = 0; i < 16; i++)
		sum += ctx->data[i] + 1;
	return sum;
}

__attribute__((noinline)) __u64 far(struct bpfof_ctx *ctx)
{
	return ctx->data[4] + both(ctx);
}

SEC("bpfof/first")
__u64 first(struct bpfof_ctx *ctx)
{
	return both(ctx) + ctx->data[0];
}

SEC("bpfof/second")
__u64 second(struct bpfof_ctx *ctx)
{
	return both(ctx) + only_second(ctx);
}

SEC("bpfof/third")
__u64 third(struct bpfof_ctx *ctx)
{
	return both(ctx) + only_third(ctx->data[0] + 7);
}

SEC("bpfof/fourth")
__u64 fourth(struct bpfof_ctx *ctx)
{
	return far(ctx);
}

SEC("bpfof/fifth")
static __attribute__((noinline)) __u64 beside(struct bpfof_ctx *ctx)
{
	return both(ctx) + 4;
}

SEC("bpfof/fifth")
__u64 fifth(struct bpfof_ctx *ctx)
{
	return beside(ctx) * 2;
}
