/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Functions that fault, each on a line that the test names. */
#include "bpfof.h"

SEC("bpfof/past")
int past(struct bpfof_ctx *ctx)
{
	return ctx->data_end[2];
}

static __attribute__((noinline)) int deref(const volatile int *pointer)
{
	return *pointer;
}

SEC("bpfof/null")
int null(struct bpfof_ctx *ctx)
{
	return deref((const int *)(ctx->offset));
}

SEC("bpfof/before")
int before(struct bpfof_ctx *ctx)
{
	*(volatile __u64 *)(ctx->scratch - 8192 - 8) = 1;
	return 0;
}

SEC("bpfof/endless")
int endless(struct bpfof_ctx *ctx)
{
	volatile __u32 *reads = &ctx->reads;

	for (;;)
		*reads += 1;
}
