/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
#include "bpfof.h"

/* Together the maximum size, without the padding that alignment puts between them. */
static volatile const __u8 one = 1;
static volatile __u8 many[3071] __attribute__((aligned(8)));

SEC("bpfof/refused")
int refused(struct bpfof_ctx *ctx)
{
	return one + many[ctx->hop];
}
