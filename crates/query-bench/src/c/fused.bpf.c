/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Source, filter and fold in one function, compiled from the same C. */
#include "inlined.h"
#include "../../../../functions/query/fixed.bpf.c"
#include "../../../../functions/query/filter.bpf.c"
#include "../../../../functions/query/fold.bpf.c"

__attribute__((section("bpfof/query_fused"), used))
int query_fused(struct bpfof_ctx *ctx)
{
	int result = query_fixed(ctx);

	if (!result && bpfof_query(ctx)->conditions)
		result = query_filter(ctx);
	return result ? result : query_fold(ctx);
}
