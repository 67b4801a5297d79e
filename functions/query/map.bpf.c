/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Map of a query: computes columns by arithmetic, before the filter. */
#include "map.h"

/* An operand: a number for each row, or one number for all rows. */
struct operand {
	const __u64 *values;
	/* of values: 1 for a column, 0 for a literal */
	__u32 step;
	__u32 kind;
	/* 0: all values are present */
	const __u8 *valid;
};

static inline void operand_of(struct bpfof_query *query, struct bpfof_batch *batch,
			      const struct map_step *step, __u32 index, struct operand *operand)
{
	const struct bpfof_column *column = &query->column[index];

	operand->valid = 0;
	if (index == MAP_LITERAL) {
		operand->values = &step->literal;
		operand->step = 0;
		operand->kind = step->literal_kind;
		return;
	}
	operand->values = bpfof_at(batch, column->values_at);
	operand->step = 1;
	operand->kind = column->kind;
	if (column->nullable)
		operand->valid = bpfof_at(batch, column->valid_at);
}

/* Converts a number in order form to the bits of a double. */
static inline __u64 double_of(__u32 kind, __u64 order)
{
	if (kind == BPFOF_FLOAT_COLUMN)
		return bpfof_double_of_order(order);
	if (kind == BPFOF_SIGNED_COLUMN)
		return bpfof_double(BPFOF_DOUBLE_FROM_S64, order ^ BPFOF_SIGN, 0);
	return bpfof_double(BPFOF_DOUBLE_FROM_U64, order, 0);
}

static inline void compute_doubles(__u32 operation, const struct operand *left,
				   const struct operand *right, __u64 *to, __u32 rows)
{
	const __u64 *a = left->values, *b = right->values;

	for (__u64 *end = to + rows; to < end; to++, a += left->step, b += right->step)
		*to = bpfof_order_double(bpfof_double(operation, double_of(left->kind, *a),
						      double_of(right->kind, *b)));
}

/* Whether the product of two signed numbers overflows 64 bits. */
static inline int product_leaves(__u64 a, __u64 b)
{
	__u64 most = (a ^ b) >> 63 ? BPFOF_SIGN : BPFOF_SIGN - 1;

	if (a + (1ULL << 31) < 1ULL << 32 && b + (1ULL << 31) < 1ULL << 32)
		return 0;
	a = a >> 63 ? -a : a;
	b = b >> 63 ? -b : b;
	return a && b > most / a;
}

/* Returns how many rows, from the first on, have results that fit. */
static inline __u32 compute_integers(__u32 operation, const struct operand *left,
				     const struct operand *right, __u64 *to, const __u8 *valid,
				     __u32 rows)
{
	const __u64 *a_at = left->values, *b_at = right->values;
	__u64 a_flip = left->kind == BPFOF_SIGNED_COLUMN ? BPFOF_SIGN : 0;
	__u64 b_flip = right->kind == BPFOF_SIGNED_COLUMN ? BPFOF_SIGN : 0;

	for (__u32 row = 0; row < rows; row++, a_at += left->step, b_at += right->step) {
		__u64 a = *a_at ^ a_flip, b = *b_at ^ b_flip, result, leaves;

		/* Unsigned operands with the top bit set are too large. */
		leaves = (a & ~a_flip) | (b & ~b_flip);
		if (operation == MAP_ADD) {
			result = a + b;
			leaves |= (a ^ result) & (b ^ result);
		} else if (operation == MAP_SUBTRACT) {
			result = a - b;
			leaves |= (a ^ b) & (a ^ result);
		} else {
			result = a * b;
			leaves |= (__u64)product_leaves(a, b) << 63;
		}
		to[row] = result ^ BPFOF_SIGN;
		if (leaves >> 63 && (!valid || valid[row]))
			return row;
	}
	return rows;
}

/* Computes the column of a step. Returns how many of its rows are valid. */
static inline __u32 compute(struct bpfof_query *query, struct bpfof_batch *batch,
			    const struct map_step *step, const struct bpfof_column *column, __u32 rows)
{
	__u64 *to = bpfof_at(batch, column->values_at);
	__u8 *valid = 0;
	struct operand left, right;

	operand_of(query, batch, step, step->left, &left);
	operand_of(query, batch, step, step->right, &right);
	if (column->nullable) {
		valid = bpfof_at(batch, column->valid_at);
		for (__u32 row = 0; row < rows; row++)
			valid[row] = (!left.valid || left.valid[row]) &&
				     (!right.valid || right.valid[row]);
	}
	if (column->kind != BPFOF_FLOAT_COLUMN)
		return compute_integers(step->operation, &left, &right, to, valid, rows);
	compute_doubles(step->operation, &left, &right, to, rows);
	return rows;
}

SEC("bpfof/query_map")
int query_map(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const struct map_step *step = (const struct map_step *)(ctx->scratch + query->map_at);
	__u32 rows = batch->rows;

	for (__u32 i = 0; i < query->maps && i < BPFOF_COLUMNS_MAX; i++)
		rows = compute(query, batch, &step[i], &query->column[query->columns + i], rows);
	if (rows < batch->rows) {
		query->flags |= BPFOF_QUERY_STOP;
		query->rows -= batch->rows - rows;
		batch->next = bpfof_row_offset(ctx, query, batch, rows);
		batch->rows = rows;
		batch->selected = rows;
	}
	return bpfof_next_stage(query->filter ? query->filter : query->reduce);
}
