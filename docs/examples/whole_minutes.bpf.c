/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* An example of a user's filter: rows whose first column, a signed integer, is a multiple of 60. */
#include <bpfof/batch.h>

BPFOF_OWN_FILTER
int whole_minutes(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const struct bpfof_column *column = bpfof_own_filter_column(ctx, query, 0);
	const __u64 *values = bpfof_at(batch, column->values_at);
	const __u8 *valid = bpfof_at(batch, column->valid_at);
	__u16 *selection = bpfof_selection(query, batch);
	__u32 kept = 0;

	for (__u32 i = 0; i < batch->selected; i++) {
		__u32 row = selection[i];
		__s64 seconds = values[row] ^ BPFOF_SIGN;
		__u64 size = seconds < 0 ? -(__u64)seconds : (__u64)seconds;

		if (size % 60 == 0 && (!column->nullable || valid[row]))
			selection[kept++] = row;
	}
	return bpfof_end_own_filter(query, batch, kept);
}
