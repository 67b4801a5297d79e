/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Source and filter in one function, which continues in the reduction. */
#include "inlined.h"
#include "../../../../functions/query/fixed.bpf.c"
#include "../../../../functions/query/filter.bpf.c"

__attribute__((section("bpfof/query_selected"), used))
int query_selected(struct bpfof_ctx *ctx)
{
	int result = query_fixed(ctx);

	if (!result && bpfof_query(ctx)->conditions)
		result = query_filter(ctx);
	if (result)
		return result;
	bpfof_tail_call(bpfof_query(ctx)->reduce);
	return BPFOF_QUERY_NO_STAGE;
}
