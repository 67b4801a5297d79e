/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
#include "compose.h"

SEC("bpfof/filter")
int filter(struct bpfof_ctx *ctx)
{
	struct compose *state = (struct compose *)ctx->scratch;
	const __u64 *number = (const __u64 *)ctx->data, *end = (const __u64 *)ctx->data_end;
	__u64 below = state->below;

	for (__u8 *passed = state->passed; number < end; number++)
		*passed++ = *number < below;
	bpfof_tail_call(state->reduction);
	return 1;
}
