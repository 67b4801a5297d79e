/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
#include "bpfof.h"

int somewhere_else(int);

SEC("bpfof/refused")
int refused(struct bpfof_ctx *ctx)
{
	return somewhere_else(ctx->hop);
}
