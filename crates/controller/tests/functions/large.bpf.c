/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Follows bytes of the block, each of which is the index of the next one: a
 * function with much machine code.
 */
#include "bpfof.h"

#define STEP at = block[at];
#define STEPS_8 STEP STEP STEP STEP STEP STEP STEP STEP
#define STEPS_64 STEPS_8 STEPS_8 STEPS_8 STEPS_8 STEPS_8 STEPS_8 STEPS_8 STEPS_8
#define STEPS_512 STEPS_64 STEPS_64 STEPS_64 STEPS_64 STEPS_64 STEPS_64 STEPS_64 STEPS_64

SEC("bpfof/large")
int large(struct bpfof_ctx *ctx)
{
	__u8 *block = (__u8 *)ctx->data;
	__u64 at = 0;

	STEPS_512 STEPS_512
	*ctx->scratch = at;
	ctx->out_len = 1;
	ctx->done = 1;
	return 0;
}
