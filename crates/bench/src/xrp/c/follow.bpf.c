/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Follows linked blocks: returns the number of the block at the end of a chain of this many reads. */
#include "bpfof.h"

struct block {
	__u64 next_offset;
	__u64 number;
};

struct follow {
	union {
		__u64 reads;	/* in: of the chain */
		__u64 number;	/* out */
	};
};

SEC("bpfof/follow")
int follow(struct bpfof_ctx *ctx)
{
	const struct block *block = (const struct block *)ctx->data;
	struct follow *follow = (struct follow *)ctx->scratch;

	if (--follow->reads) {
		ctx->next_offset[0] = block->next_offset;
		ctx->next_size[0] = 512;
		ctx->reads = 1;
		return 0;
	}
	follow->number = block->number;
	ctx->out_len = sizeof(*follow);
	ctx->done = 1;
	return 0;
}
