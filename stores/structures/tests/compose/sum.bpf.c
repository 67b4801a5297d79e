/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
#include "compose.h"

SEC("bpfof/sum")
int sum(struct bpfof_ctx *ctx)
{
	struct compose *state = (struct compose *)ctx->scratch;
	const __u64 *number = (const __u64 *)ctx->data, *end = (const __u64 *)ctx->data_end;

	for (const __u8 *passed = state->passed; number < end; number++)
		if (*passed++)
			state->result += *number;
	return next_block(ctx, state);
}
