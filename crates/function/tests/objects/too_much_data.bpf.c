/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
#include "bpfof.h"

static volatile __u8 much[3000];
static volatile const __u8 more[100] = { 1 };

SEC("bpfof/refused")
int refused(struct bpfof_ctx *ctx)
{
	return much[ctx->hop] + more[ctx->hop];
}
