/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Source of a query: records of the same size, little-endian. */
#include "bpfof/batch.h"

/* Records at a time. */
#define PART 1024

/* The order form of a binary32. */
static inline __u64 order_float(__u32 bits)
{
	__u64 sign = (__u64)(bits >> 31) << 63, exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;

	if (exponent == 255) {
		exponent = 2047;
	} else if (exponent) {
		exponent += 1023 - 127;
	} else if (fraction) {
		/* What is subnormal there is not here. */
		for (exponent = 1023 - 126; !(fraction & 1 << 23); exponent--)
			fraction <<= 1;
		fraction &= 0x7fffff;
	}
	return bpfof_order_double(sign | exponent << 52 | fraction << 29);
}

/* One integer of each of `rows` records: what turns the sign over and extends it at once is the same for
 * all. */
#define INTEGERS(read)                                                                                \
	do {                                                                                          \
		UNROLL(4)                                                                             \
		for (; to < end; to++, at += stride)                                                  \
			*to = (read(at) ^ flip) + add;                                                \
	} while (0)

static inline __u64 read_byte(const __u8 *at)
{
	return *at;
}

static inline void integers(const struct bpfof_column *column, const __u8 *at, __u32 stride,
			    __u64 *to, __u32 rows)
{
	__u64 *end = to + rows;
	__u64 flip = 0, add = 0;

	if (column->kind == BPFOF_SIGNED_COLUMN) {
		flip = 1ULL << (8 * column->width - 1);
		add = BPFOF_SIGN - flip;
	}
	if (column->width == 8)
		INTEGERS(bpfof_le64);
	else if (column->width == 4)
		INTEGERS(bpfof_le32);
	else if (column->width == 2)
		INTEGERS(bpfof_le16);
	else
		INTEGERS(read_byte);
}

/* Texts, without the NULs that pad them. */
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

/* Of `rows` records from `at` on, whose first is number `row`. */
static inline void load(const struct bpfof_ctx *ctx, const struct bpfof_column *column,
			struct bpfof_batch *batch, const __u8 *at, __u32 stride, __u32 row, __u32 rows)
{
	__u64 *to = bpfof_at(batch, column->values_at), *end;

	at += column->place;
	if (column->kind == BPFOF_TEXT_COLUMN) {
		texts(ctx, column, at, stride, (__u32 *)to + row, rows);
		return;
	}
	to += row;
	end = to + rows;
	if (column->kind != BPFOF_FLOAT_COLUMN) {
		integers(column, at, stride, to, rows);
	} else if (column->width == 8) {
		UNROLL(4)
		for (; to < end; to++, at += stride)
			*to = bpfof_order_double(bpfof_le64(at));
	} else {
		for (; to < end; to++, at += stride)
			*to = order_float(bpfof_le32(at));
	}
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
	/* All columns of a few records, and then of the next, which come into the cache once. */
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
	return bpfof_next_stage(query->filter ? query->filter : query->reduce);
}
