/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Reduction of a query: measures over all rows that pass. Its answer is one entry, whose first word
 * is unused. */
#include "measures.h"

/* The values of a column that a measure takes: the first `count` values, or those of `count` listed
 * rows. */
struct taken {
	const __u64 *values;
	/* 0: the first `count` */
	const __u16 *rows;
	__u32 count;
};

/* Executes `work` for each value. */
#define EACH(taken, value, work)                                                               \
	do {                                                                                   \
		const __u64 *values = (taken)->values;                                         \
		__u32 left = (taken)->count;                                                   \
                                                                                               \
		if ((taken)->rows) {                                                           \
			const __u16 *row = (taken)->rows, *end = row + left;                   \
                                                                                               \
			UNROLL(4)                                                              \
			for (; row < end; row++) {                                             \
				__u64 value = values[*row];                                    \
                                                                                               \
				work                                                           \
			}                                                                      \
		} else {                                                                       \
			const __u64 *at = values, *end = at + left;                            \
                                                                                               \
			UNROLL(4)                                                              \
			for (; at < end; at++) {                                               \
				__u64 value = *at;                                             \
                                                                                               \
				work                                                           \
			}                                                                      \
		}                                                                              \
	} while (0)

/* NaN has the largest order form. Adding 1 makes it 0, so it is never the maximum: `more` is 1 for
 * floats, else 0. */
#define TAKE_RANGE                                                                             \
	least = bpfof_least(least, value);                                                     \
	value += more;                                                                         \
	greatest = bpfof_greatest(greatest, value);

static inline void fold_range(const struct taken *taken, __u64 more, __u64 *range)
{
	__u64 least = range[0], greatest = range[1] + more;

	EACH(taken, value, TAKE_RANGE);
	range[0] = least;
	range[1] = greatest - more;
}

/* The sum modulo 2^64, and the sum of the upper halves: no value needs a carry. */
#define TAKE_SUM                                                                               \
	sum += value;                                                                          \
	upper += value >> 32;

static inline void add_sums(__u64 *to, __u64 sum, __u64 upper)
{
	/* The sum of the lower halves is less than 2^64. */
	add_wide(to, sum - (upper << 32), 0);
	add_wide(to, upper << 32, upper >> 32);
}

static inline void fold_sum(const struct taken *taken, __u64 *to)
{
	__u64 sum = 0, upper = 0;

	EACH(taken, value, TAKE_SUM);
	add_sums(to, sum, upper);
}

/* Range and sum of integers, in one pass. */
static inline void fold_both(const struct taken *taken, __u64 *range, __u64 *to)
{
	__u64 least = range[0], greatest = range[1], sum = 0, upper = 0;
	const __u64 more = 0;

	EACH(taken, value, TAKE_SUM TAKE_RANGE);
	range[0] = least;
	range[1] = greatest;
	add_sums(to, sum, upper);
}

/* Squares of integers of at most 32 bits: each fits into 64 bits. */
static inline void fold_squares(const struct taken *taken, __u64 bias, __u64 *to)
{
	__u64 sum = 0, upper = 0;

	EACH(taken, value, value -= bias; value *= value; TAKE_SUM);
	add_sums(to, sum, upper);
}

static inline void fold(struct bpfof_query *query, struct bpfof_batch *batch,
			const struct measure *measure, __u8 *entry)
{
	const struct bpfof_column *column = &query->column[measure->column];
	__u64 *range = (__u64 *)(entry + measure->range_at), *sum = (__u64 *)(entry + measure->sum_at);
	struct taken taken = { bpfof_at(batch, column->values_at), 0, batch->selected };
	int is_float = column->kind == BPFOF_FLOAT_COLUMN;

	if (!batch->all || column->nullable)
		taken.rows = bpfof_selection(query, batch);
	if (column->nullable) {
		__u16 *chosen = bpfof_at(batch, query->chosen_at);

		taken.count = choose(batch, column, taken.rows, chosen);
		taken.rows = chosen;
	}
	if (measure->count_at)
		*(__u64 *)(entry + measure->count_at) += taken.count;
	if (measure->range_at && measure->sum_at && !is_float) {
		fold_both(&taken, range, sum);
	} else {
		if (measure->range_at)
			fold_range(&taken, is_float, range);
		if (measure->sum_at && !is_float)
			fold_sum(&taken, sum);
	}
	if (measure->sum_at && is_float)
		EACH(&taken, value, add_double(sum, value, 1, FOLD_LIMBS););
	if (measure->squares_at)
		fold_squares(&taken, column->kind == BPFOF_SIGNED_COLUMN ? BPFOF_SIGN : 0,
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
