/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Source of a query: records of the same size, little-endian. */
#include "numbers.h"

/* Number of records to process at a time. */
#define PART 1024

/* Stores positions of texts, without the NULs that pad them. */
static inline void texts(const struct bpfof_ctx *ctx, const struct bpfof_column *column,
			 const __u8 *at, __u32 stride, __u32 *to, __u32 rows)
{
	for (__u32 row = 0; row < rows; row++, at += stride) {
		__u32 size = column->width;

		while (size && !at[size - 1])
			size--;
		to[row] = (at - ctx->data) | size << 16;
	}
}

/* Loads a column of `rows` records from `at` on, the first of which is row number `row`. */
static inline void load(const struct bpfof_ctx *ctx, const struct bpfof_column *column,
			struct bpfof_batch *batch, const __u8 *at, __u32 stride, __u32 row, __u32 rows)
{
	__u64 *to = bpfof_at(batch, column->values_at);

	at += column->place;
	if (column->kind == BPFOF_TEXT_COLUMN)
		texts(ctx, column, at, stride, (__u32 *)to + row, rows);
	else
		take_numbers(column, at, stride, to + row, rows);
}

SEC("bpfof/query_fixed")
int query_fixed(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	__u32 stride = query->record_size, rows;

	if (!stride || ctx->scratch_size < sizeof(*query))
		return BPFOF_QUERY_BAD_PLAN;
	rows = bpfof_data_size(ctx) / stride;
	if (!rows || rows > query->rows_max)
		return BPFOF_QUERY_BAD_PLAN;
	/* Processes all columns of a part of the records before the next part, so that each record
	 * enters the cache once. */
	for (__u32 row = 0; row < rows; row += PART) {
		__u32 count = rows - row < PART ? rows - row : PART;

		for (__u32 i = 0; i < query->columns && i < BPFOF_COLUMNS_MAX; i++)
			load(ctx, &query->column[i], batch, ctx->data + row * stride, stride, row, count);
	}
	batch->rows = rows;
	batch->selected = rows;
	batch->all = 1;
	batch->next = ctx->offset + (__u64)rows * stride;
	query->rows += rows;
	return bpfof_end_source(query);
}
