/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Signed division, for which clang has instructions from -mcpu=v4 on. */
#include "bpfof.h"

SEC("bpfof/divide")
int divide(struct bpfof_ctx *ctx)
{
	const __s32 *end = (const __s32 *)ctx->data_end;
	__s64 sum = 0;

	for (const __s32 *at = (const __s32 *)ctx->data; at < end; at++)
		sum += at[0] / 7 + at[0] % 1000 + (__s64)at[0] / (at[0] >> 20);
	*(__s64 *)ctx->scratch = sum;
	ctx->done = 1;
	return 0;
}
