/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Reduction of a query: measures of all rows that pass. Its answer is one entry, whose first word
 * means nothing. */
#include "measures.h"

static inline void fold_range(const __u64 *values, const __u16 *rows, __u32 count, __u64 *range)
{
	__u64 least = range[0], greatest = range[1];

	for (__u32 i = 0; i < count; i++) {
		__u64 value = values[rows[i]];

		if (value < least)
			least = value;
		if (value > greatest)
			greatest = value;
	}
	range[0] = least;
	range[1] = greatest;
}

/* The same for floats, without NaN. */
static inline void fold_float_range(const __u64 *values, const __u16 *rows, __u32 count, __u64 *range)
{
	__u64 least = range[0], greatest = range[1];

	for (__u32 i = 0; i < count; i++) {
		__u64 value = values[rows[i]];

		if (value < least)
			least = value;
		if (value > greatest && value != BPFOF_ORDER_NAN)
			greatest = value;
	}
	range[0] = least;
	range[1] = greatest;
}

static inline void fold_sum(const __u64 *values, const __u16 *rows, __u32 count, __u64 *sum)
{
	/* The halves, so that no value needs a carry. */
	__u64 low = 0, high = 0;

	for (__u32 i = 0; i < count; i++) {
		__u64 value = values[rows[i]];

		low += (__u32)value;
		high += value >> 32;
	}
	add_wide(sum, low, 0);
	add_wide(sum, high << 32, high >> 32);
}

/* Of integers of at most 32 bits: none has a square of more than 64. */
static inline void fold_squares(const __u64 *values, __u64 bias, const __u16 *rows, __u32 count,
				__u64 *sum)
{
	__u64 low = 0, high = 0;

	for (__u32 i = 0; i < count; i++) {
		__u64 value = values[rows[i]] - bias, square = value * value;

		low += (__u32)square;
		high += square >> 32;
	}
	add_wide(sum, low, 0);
	add_wide(sum, high << 32, high >> 32);
}

static inline void fold(struct bpfof_query *query, struct bpfof_batch *batch,
			const struct measure *measure, __u8 *entry)
{
	const struct bpfof_column *column = &query->column[measure->column];
	const __u64 *values = bpfof_at(batch, column->values_at);
	const __u16 *rows = bpfof_selection(query, batch);
	__u32 count = batch->selected;

	if (column->nullable) {
		__u16 *chosen = bpfof_at(batch, query->chosen_at);

		count = choose(batch, column, rows, chosen);
		rows = chosen;
	}
	if (measure->count_at)
		*(__u64 *)(entry + measure->count_at) += count;
	if (measure->range_at && column->kind == BPFOF_FLOAT_COLUMN)
		fold_float_range(values, rows, count, (__u64 *)(entry + measure->range_at));
	else if (measure->range_at)
		fold_range(values, rows, count, (__u64 *)(entry + measure->range_at));
	if (measure->sum_at && column->kind == BPFOF_FLOAT_COLUMN) {
		__u64 *sum = (__u64 *)(entry + measure->sum_at);

		for (__u32 i = 0; i < count; i++)
			add_double(sum, values[rows[i]], 1, FOLD_LIMBS);
	} else if (measure->sum_at) {
		fold_sum(values, rows, count, (__u64 *)(entry + measure->sum_at));
	}
	if (measure->squares_at)
		fold_squares(values, column->kind == BPFOF_SIGNED_COLUMN ? BPFOF_SIGN : 0, rows, count,
			     (__u64 *)(entry + measure->squares_at));
}

SEC("bpfof/query_fold")
int query_fold(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const struct measures *measures = (const struct measures *)(ctx->scratch + query->reduction_at);
	__u8 *entry = ctx->scratch + query->state_at;

	if (!(query->flags & BPFOF_QUERY_BEGUN)) {
		query->flags |= BPFOF_QUERY_BEGUN;
		measures_begin(measures, entry);
	}
	query->passed += batch->selected;
	for (__u32 i = 0; i < measures->measures && i < MEASURES_MAX; i++)
		fold(query, batch, &measures->measure[i], entry);
	return bpfof_go_on(ctx, query, batch->next, 0, 1, measures->entry_size);
}
