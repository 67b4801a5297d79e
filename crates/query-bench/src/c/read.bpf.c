/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Reads as a query does, but processes no data: no row passes. */
#include "bpfof/batch.h"
#include "../../../../functions/query/measures.h"

SEC("bpfof/query_read")
int query_read(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	const struct measures *measures = (const struct measures *)(ctx->scratch + query->reduction_at);
	__u32 rows;

	if (!query->record_size)
		return BPFOF_QUERY_BAD_PLAN;
	rows = bpfof_data_size(ctx) / query->record_size;
	query->rows += rows;
	return bpfof_go_on(ctx, query, ctx->offset + (__u64)rows * query->record_size, 0, 1,
			   measures->entry_size);
}
