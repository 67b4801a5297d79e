/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Long reads, whose checksum is compared with that of the written data. */
#include "bpfof.h"

struct argument {
	__u64 offset[2];
	__u32 size;
	__u32 sum;
};

/* The CRC-32C of the first read, and then of two more reads in one hop. */
SEC("bpfof/checksum")
int checksum(struct bpfof_ctx *ctx)
{
	struct argument *argument = (struct argument *)ctx->scratch;

	argument->sum = bpfof_crc32c(ctx->data, argument->sum, ctx->data_end - ctx->data);
	if (ctx->hop == 0) {
		ctx->next_offset[0] = argument->offset[0];
		ctx->next_offset[1] = argument->offset[1];
		ctx->next_size[0] = argument->size;
		ctx->next_size[1] = argument->size;
		ctx->reads = 2;
	} else if (ctx->read_index == 1) {
		ctx->out_len = sizeof(*argument);
		ctx->done = 1;
	}
	return 0;
}
