/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * An example of a user's reduction: counts how many values of its first column, a signed integer,
 * have 0, 1, 2, … 63 bits. Negative values count as 0 bits. Each row of the answer has two numbers:
 * bits and count.
 */
#include <bpfof/batch.h>

#define ROWS 64

struct row {
	__u64 bits;
	__u64 count;
};

static inline __u32 bits_of(__u64 value)
{
	__u32 bits = 0;

	for (__u32 step = 32; step; step >>= 1) {
		if (value >> step) {
			bits += step;
			value >>= step;
		}
	}
	return bits + (__u32)value;
}

BPFOF_OWN_REDUCTION
int powers(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const struct bpfof_column *column = bpfof_own_reduction_column(ctx, query, 0);
	const __u64 *values = bpfof_at(batch, column->values_at);
	const __u8 *valid = bpfof_at(batch, column->valid_at);
	const __u16 *selection = bpfof_selection(query, batch);
	struct row *rows = (struct row *)(ctx->scratch + query->state_at);

	for (__u32 i = 0; i < batch->selected; i++) {
		__s64 value = values[selection[i]] ^ BPFOF_SIGN;

		if (!column->nullable || valid[selection[i]])
			rows[value < 0 ? 0 : bits_of(value)].count++;
	}
	for (__u32 bits = 0; bits < ROWS; bits++)
		rows[bits].bits = bits;
	query->passed += batch->selected;
	return bpfof_go_on(ctx, query, batch->next, 0, ROWS, sizeof(struct row) * ROWS);
}
