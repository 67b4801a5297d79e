/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
#include "bpfof.h"

static __attribute__((noinline)) int callee(struct bpfof_ctx *ctx)
{
	return ctx->hop;
}

SEC("bpfof/refused")
int refused(struct bpfof_ctx *ctx)
{
	*(void *volatile *)ctx->scratch = (void *)callee;
	return 0;
}
