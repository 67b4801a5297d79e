/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Reads the same range of a file again and again, until its contents change. */
#include "bpfof/blocks.h"

struct argument {
	__u64 expected;
	__u32 size;
	__u32 hops;
};

/* Answers with the last 8 bytes of the block: unexpected ones, or those of the last hop. */
SEC("bpfof/watch")
int watch(struct bpfof_ctx *ctx)
{
	struct argument *argument = (struct argument *)ctx->scratch;
	__u64 last = bpfof_le64((const __u8 *)ctx->data_end - 8);

	if (last == argument->expected && ctx->hop + 1 < argument->hops) {
		ctx->next_size[0] = argument->size;
		ctx->reads = 1;
		return 0;
	}
	argument->expected = last;
	ctx->out_len = 8;
	ctx->done = 1;
	return 0;
}
