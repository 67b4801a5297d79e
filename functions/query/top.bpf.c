/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Reduction of a query: the file offsets of the first rows in the order of a number. */
#include "top.h"

/* Whether `a` comes behind `b`. */
static inline int is_behind(const struct query_top_entry *a, const struct query_top_entry *b)
{
	return a->key > b->key || (a->key == b->key && a->offset > b->offset);
}

/* Replaces the first entry of the heap, which is the last in order, and moves the new entry down to
 * its place. */
static inline void sink(struct query_top_entry *heap, __u32 entries, struct query_top_entry entry)
{
	__u32 at = 0, below;

	for (; (below = 2 * at + 1) < entries; at = below) {
		if (below + 1 < entries && is_behind(&heap[below + 1], &heap[below]))
			below++;
		if (!is_behind(&heap[below], &entry))
			break;
		heap[at] = heap[below];
	}
	heap[at] = entry;
}

static inline void rise(struct query_top_entry *heap, __u32 at, struct query_top_entry entry)
{
	while (at) {
		__u32 above = (at - 1) / 2;

		if (!is_behind(&entry, &heap[above]))
			break;
		heap[at] = heap[above];
		at = above;
	}
	heap[at] = entry;
}

SEC("bpfof/query_top")
int query_top(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const struct query_top *top = (const struct query_top *)(ctx->scratch + query->reduction_at);
	const struct bpfof_column *column = &query->column[top->column];
	const __u64 *values = bpfof_at(batch, column->values_at);
	const __u8 *valid = bpfof_at(batch, column->valid_at);
	const __u16 *selection = bpfof_selection(query, batch);
	/* The state begins with the number of entries. */
	__u64 *count = (__u64 *)(ctx->scratch + query->state_at);
	struct query_top_entry *heap = (struct query_top_entry *)(count + 1);
	__u64 turn = top->descending ? ~0ULL : 0, worst = ~0ULL;
	__u32 entries = *count;

	if (entries == top->entries_max)
		worst = heap->key;
	query->passed += batch->selected;
	for (__u32 i = 0; i < batch->selected; i++) {
		__u32 row = selection[i];
		struct query_top_entry entry = { values[row] ^ turn, 0 };

		/* Among equal keys the first rows stay. */
		if (entries == top->entries_max && entry.key >= worst)
			continue;
		if ((column->nullable && !valid[row]) ||
		    (column->kind == BPFOF_FLOAT_COLUMN && values[row] == BPFOF_ORDER_NAN))
			continue;
		/* -0.0 and 0.0 are equal. The worst key is never that of -0.0, so the first
		 * comparison was valid. */
		if (column->kind == BPFOF_FLOAT_COLUMN && values[row] == BPFOF_SIGN - 1) {
			entry.key = BPFOF_SIGN ^ turn;
			if (entries == top->entries_max && entry.key >= worst)
				continue;
		}
		entry.offset = bpfof_row_offset(ctx, query, batch, row);
		if (entries < top->entries_max)
			rise(heap, entries++, entry);
		else
			sink(heap, entries, entry);
		worst = heap->key;
	}
	*count = entries;
	return bpfof_go_on(ctx, query, batch->next, 0, entries, sizeof(*count) + entries * sizeof(*heap));
}
