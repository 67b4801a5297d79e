/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Filter of a query: selects the rows that meet the conditions, in three-valued logic. */
#include "filter.h"

/* Keeps the selected rows whose byte is at least `least`. `by_row`: bytes are indexed by row
 * number, else by position in the selection. */
static inline void keep(struct bpfof_batch *batch, __u16 *selection, const __u8 *bytes, int by_row,
			__u32 least)
{
	__u32 kept = 0;

	for (__u32 i = 0; i < batch->selected; i++) {
		__u32 row = selection[i];

		if (bytes[by_row ? row : i] >= least)
			selection[kept++] = row;
	}
	batch->selected = kept;
}

/* A range of numbers as one comparison: numbers whose distance from `low` is at most `span`. */
struct range {
	const __u64 *values;
	__u64 low;
	__u64 span;
};

/* Sets the range that a condition accepts. Returns 0 if it accepts nothing. The outside of a range
 * is a range that wraps around zero. */
static inline int range_of(struct bpfof_query *query, struct bpfof_batch *batch,
			   const struct filter_condition *condition, struct range *range)
{
	__u64 low = condition->low, high = condition->high;

	range->values = bpfof_at(batch, query->column[condition->column].values_at);
	range->low = condition->outcome ? high + 1 : low;
	range->span = condition->outcome ? low - high - 2 : high - low;
	return !condition->outcome || high - low != ~0ULL;
}

/* Sets the number of selected rows after `kept` rows have been written. */
static inline void selected(struct bpfof_batch *batch, __u32 kept)
{
	batch->all = batch->all && kept == batch->rows;
	batch->selected = kept;
}

/* Returns where to write the next row: behind this one if this one passes, else in its place. */
static inline __u16 *next_within(const struct range *range, __u32 row, __u16 *to)
{
	__u64 distance = range->values[row] - range->low;

	return (__u16 *)bpfof_at_most(distance, range->span, (__u64)(to + 1), (__u64)to);
}

/* Writes every row to the selection; the next row overwrites it if it does not pass. So no branch
 * depends on a value. */
static inline void keep_range(struct bpfof_query *query, struct bpfof_batch *batch,
			      const struct filter_condition *condition)
{
	const struct bpfof_column *column = &query->column[condition->column];
	__u16 *selection = bpfof_at(batch, query->selection_at), *to = selection;
	struct range range;

	if (column->nullable)
		keep(batch, bpfof_selection(query, batch), bpfof_at(batch, column->valid_at), 1, 1);
	if (!range_of(query, batch, condition, &range)) {
		selected(batch, 0);
		return;
	}
	if (batch->all) {
		__u32 rows = batch->rows;

		UNROLL(8)
		for (__u32 row = 0; row < rows; row++) {
			*to = row;
			to = next_within(&range, row, to);
		}
	} else {
		const __u16 *from = selection, *end = selection + batch->selected;

		UNROLL(8)
		for (; from < end; from++) {
			__u32 row = *from;

			*to = row;
			to = next_within(&range, row, to);
		}
	}
	selected(batch, to - selection);
}

/* Evaluates two range conditions over all rows in one pass. */
static inline void keep_both(struct bpfof_query *query, struct bpfof_batch *batch,
			     const struct filter_condition *condition)
{
	__u16 *selection = bpfof_at(batch, query->selection_at), *to = selection;
	__u32 rows = batch->rows;
	struct range a, b;

	if (!range_of(query, batch, condition, &a) || !range_of(query, batch, condition + 1, &b)) {
		selected(batch, 0);
		return;
	}
	UNROLL(8)
	for (__u32 row = 0; row < rows; row++) {
		__u16 *next;

		*to = row;
		next = next_within(&a, row, to);
		to = (__u16 *)bpfof_at_most(b.values[row] - b.low, b.span, (__u64)next, (__u64)to);
	}
	selected(batch, to - selection);
}

/* Whether keep_both() can evaluate this condition and the next. */
static inline int are_two_ranges(struct bpfof_query *query, struct bpfof_batch *batch,
				 const struct filter_condition *condition,
				 const struct filter_condition *end)
{
	return batch->all && condition + 1 < end && condition[1].operation == FILTER_RANGE_KEEP &&
	       !query->column[condition[0].column].nullable &&
	       !query->column[condition[1].column].nullable;
}

static inline __u32 is_in(const __u64 *set, __u32 count, __u64 value)
{
	for (const __u64 *end = set + count; set < end; set++) {
		if (*set == value)
			return 1;
	}
	return 0;
}

/* Whether a text meets a condition. */
static inline __u32 text_meets(const struct bpfof_ctx *ctx, const struct filter_condition *condition,
			       __u32 text)
{
	const __u8 *at = ctx->data + (__u16)text, *other = ctx->scratch + condition->at;
	__u32 size = text >> 16;
	__s64 order;

	if (condition->operation == FILTER_PREFIX)
		return size >= condition->count && !bpfof_memcmp(at, other, condition->count);
	/* The condition is equality or inequality. */
	if ((condition->outcome == 2 || condition->outcome == 5) && size != condition->count)
		return condition->outcome == 5;
	order = bpfof_compare(at, size, other, condition->count);
	return condition->outcome >> (order < 0 ? 0 : order ? 2 : 1) & 1;
}

/* Evaluates a leaf into a mask. */
static inline void leaf(const struct bpfof_ctx *ctx, struct bpfof_query *query,
			struct bpfof_batch *batch, const struct filter_condition *condition, __u8 *mask)
{
	const struct bpfof_column *column = &query->column[condition->column];
	const __u16 *selection = bpfof_at(batch, query->selection_at);
	const __u8 *valid = bpfof_at(batch, column->valid_at);
	const __u64 *values = bpfof_at(batch, column->values_at);
	const __u64 *set = (const __u64 *)(ctx->scratch + condition->at);
	__u32 selected = batch->selected, outside = condition->outcome;
	__u64 low = condition->low, span = condition->high - low;

	if (condition->operation == FILTER_RANGE) {
		for (__u32 i = 0; i < selected; i++)
			mask[i] = (values[selection[i]] - low > span) == outside ? 2 : 0;
	} else if (condition->operation == FILTER_IN) {
		for (__u32 i = 0; i < selected; i++)
			mask[i] = is_in(set, condition->count, values[selection[i]]) != outside ? 2 : 0;
	} else if (condition->operation == FILTER_NULL) {
		for (__u32 i = 0; i < selected; i++)
			mask[i] = column->nullable && !valid[selection[i]] ? 2 : 0;
		return;
	} else {
		for (__u32 i = 0; i < selected; i++)
			mask[i] = text_meets(ctx, condition, ((const __u32 *)values)[selection[i]]) * 2;
	}
	if (!column->nullable)
		return;
	for (__u32 i = 0; i < selected; i++) {
		if (!valid[selection[i]])
			mask[i] = 1;
	}
}

/* Combines the last two masks into one, or negates the last one. */
static inline void combine(__u32 operation, __u8 *mask, const __u8 *other, __u32 selected)
{
	for (__u32 i = 0; i < selected; i++) {
		__u32 a = mask[i], b;

		if (operation == FILTER_NOT) {
			mask[i] = 2 - a;
			continue;
		}
		b = other[i];
		if ((operation == FILTER_AND) == (b < a))
			mask[i] = b;
	}
}

SEC("bpfof/query_filter")
int query_filter(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const struct filter_condition *condition =
		(const struct filter_condition *)(ctx->scratch + query->conditions_at);
	const struct filter_condition *end = condition + query->conditions;
	__u32 stride = query->rows_max;
	/* Where the next mask goes. */
	__u8 *top = bpfof_at(batch, query->masks_at);

	for (; condition < end && batch->selected; condition++) {
		__u32 operation = condition->operation;

		if (operation == FILTER_RANGE_KEEP) {
			if (are_two_ranges(query, batch, condition, end))
				keep_both(query, batch, condition++);
			else
				keep_range(query, batch, condition);
		} else if (operation == FILTER_KEEP) {
			top -= stride;
			keep(batch, bpfof_at(batch, query->selection_at), top, 0, 2);
		} else if (operation == FILTER_NOT) {
			combine(operation, top - stride, 0, batch->selected);
		} else if (operation == FILTER_AND || operation == FILTER_OR) {
			top -= stride;
			combine(operation, top - stride, top, batch->selected);
		} else {
			bpfof_selection(query, batch);
			leaf(ctx, query, batch, condition, top);
			top += stride;
		}
	}
	return bpfof_end_filter(query);
}
