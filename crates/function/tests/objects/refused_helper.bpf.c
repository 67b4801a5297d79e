/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
#include "bpfof.h"

static int (*const bpfof_missing)(void) = (void *)99;

SEC("bpfof/refused")
int refused(struct bpfof_ctx *ctx)
{
	(void)ctx;
	return bpfof_missing();
}
