/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Functions that use as much of a target as they can get. */
#include "bpfof/blocks.h"

/* The hops left, in the first word of scratch. */
static inline int onward(struct bpfof_ctx *ctx, __u64 offset, __u32 size)
{
	__u64 *left = (__u64 *)ctx->scratch;

	if (*left == 0)
		return bpfof_answer(ctx, 16);
	*left -= 1;
	return bpfof_read(ctx, ctx->file, offset, size);
}

/* An analytic scan: adds up all words of a large block, and continues with the next one. */
SEC("bpfof/scan")
int scan(struct bpfof_ctx *ctx)
{
	__u64 *sum = (__u64 *)ctx->scratch + 1;
	const __u64 *word = (const __u64 *)ctx->data;
	const __u64 *end = (const __u64 *)ctx->data_end;
	__u64 total = 0;

	for (; word < end; word++)
		total += *word;
	*sum += total;
	return onward(ctx, (ctx->offset + bpfof_data_size(ctx)) % (32 << 20), bpfof_data_size(ctx));
}

/* As much arithmetic as one call may do, on a small block. */
SEC("bpfof/multiply")
int multiply(struct bpfof_ctx *ctx)
{
	__u64 *product = (__u64 *)ctx->scratch + 1;
	__u64 value = *product | 1;
	__u32 i;

	for (i = 0; i < 60000; i++)
		value = value * 0x5851f42d4c957f2dULL ^ value >> 33;
	*product = value;
	return onward(ctx, ctx->offset, 512);
}

/* Helpers in loops: short calls, and long ones. */
SEC("bpfof/helpers")
int helpers(struct bpfof_ctx *ctx)
{
	volatile __u64 *sum = (__u64 *)ctx->scratch + 1;
	__u32 i;

	for (i = 0; i < 12000; i++)
		*sum += (__u64)bpfof_workspace();
	for (i = 0; i < 20; i++)
		*sum += bpfof_crc32c(bpfof_workspace(), *sum, 4096);
	for (i = 0; i < 200; i++)
		*sum += bpfof_double(BPFOF_DOUBLE_DIV, *sum, 3);
	return onward(ctx, ctx->offset, 512);
}

/* Loads that wait for each other, one from each line of the workspace, in an order that no processor foresees: in
 * hundreds of chains from no cache. */
SEC("bpfof/misses")
int misses(struct bpfof_ctx *ctx)
{
	volatile __u8 *workspace = bpfof_workspace();
	__u64 *sum = (__u64 *)ctx->scratch + 1;
	__u64 line = *sum & 1023;
	__u32 i;

	/* Pages that were never written are all one page. */
	if (ctx->hop == 0) {
		for (i = 0; i < 1024; i++)
			workspace[64 * i + 8] = 1;
	}
	for (i = 0; i < 1024; i++)
		line = (line * 1029 + 7 + *(volatile __u64 *)(workspace + 64 * line)) & 1023;
	*sum = line;
	return onward(ctx, ctx->offset, 512);
}

/* Next to no work. */
SEC("bpfof/cheap")
int cheap(struct bpfof_ctx *ctx)
{
	return onward(ctx, ctx->offset, 512);
}
