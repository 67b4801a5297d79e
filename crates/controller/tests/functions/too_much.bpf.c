/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* More static data than there is room for. */
#include "bpfof.h"

static volatile __u8 much[4096];

SEC("bpfof/too_much")
int too_much(struct bpfof_ctx *ctx)
{
	return much[ctx->hop];
}
