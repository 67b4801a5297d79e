/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Reduction of a query: the number of values in each of several intervals. Its answer has a word
 * for each. */
#include "histogram.h"

SEC("bpfof/query_histogram")
int query_histogram(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const struct query_histogram *histogram =
		(const struct query_histogram *)(ctx->scratch + query->reduction_at);
	const struct bpfof_column *column = &query->column[histogram->column];
	const __u64 *values = bpfof_at(batch, column->values_at), *edges = histogram->edge;
	const __u16 *rows = bpfof_selection(query, batch);
	__u64 *counts = (__u64 *)(ctx->scratch + query->state_at);
	__u32 bins = histogram->bins, count = batch->selected;

	query->passed += count;
	if (column->nullable) {
		__u16 *chosen = bpfof_at(batch, query->chosen_at);
		const __u8 *valid = bpfof_at(batch, column->valid_at);
		__u32 all = count;

		count = 0;
		for (__u32 i = 0; i < all; i++) {
			if (valid[rows[i]])
				chosen[count++] = rows[i];
		}
		rows = chosen;
	}
	for (__u32 i = 0; i < count; i++) {
		__u64 value = values[rows[i]];
		__u32 low = 0, left = bins;

		if (value < edges[0] || value > edges[bins])
			continue;
		/* Finds the last edge <= value. The last interval includes both its edges. */
		while (left > 1) {
			__u32 half = left / 2;

			low += bpfof_at_most(edges[low + half], value, half, 0);
			left -= half;
		}
		counts[low]++;
	}
	return bpfof_go_on(ctx, query, batch->next, 0, bins, bins * 8);
}
