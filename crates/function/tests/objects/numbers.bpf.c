/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Numbers in text, added up. */
#include "bpfof.h"

static const char text[] = "12.5,-3,7e1,0.25";

SEC("bpfof/mean")
int mean(struct bpfof_ctx *ctx)
{
	__u64 at = 0, sum = 0, count = 0, value = 0;
	__s64 taken;

	while (at < sizeof(text) - 1) {
		taken = bpfof_parse_double(text + at, sizeof(text) - 1 - at, &value);
		if (taken < 0)
			return 1;
		sum = bpfof_double(BPFOF_DOUBLE_ADD, sum, value);
		count++;
		at += taken + 1;
	}
	value = bpfof_double(BPFOF_DOUBLE_DIV, sum, bpfof_double(BPFOF_DOUBLE_FROM_U64, count, 0));
	*(__u64 *)ctx->scratch = value;
	ctx->done = 1;
	ctx->out_len = 8;
	return 0;
}
