/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Reduction of a query: the rows that pass. A row has for each column: if values may be missing, a
 * byte that is 1 if the value is present; then, if it is, the number in order form, 8 bytes, or a
 * text: its length in 2 bytes and its bytes.
 */
#include "rows.h"

/* Writes a row at `to`, before `end`. Returns its end, or 0 if there is no room. */
static inline __u8 *write_row(const struct bpfof_ctx *ctx, struct bpfof_query *query,
			      struct bpfof_batch *batch, const struct query_rows *wanted, __u32 row,
			      __u8 *to, const __u8 *end)
{
	for (__u32 i = 0; i < wanted->columns && i < BPFOF_COLUMNS_MAX; i++) {
		__u32 which = wanted->column[i];
		const struct bpfof_column *column = &query->column[which & ~QUERY_ROWS_MISSING];
		const __u64 *values = bpfof_at(batch, column->values_at);

		if (end - to < 11)
			return 0;
		if (which & QUERY_ROWS_MISSING) {
			const __u8 *valid = bpfof_at(batch, column->valid_at);

			*to = column->nullable ? valid[row] : 1;
			if (!*to++)
				continue;
		}
		if (column->kind == BPFOF_TEXT_COLUMN) {
			__u32 text = ((const __u32 *)values)[row], size = text >> 16;

			*(bpfof_any16 *)to = size;
			to += 2;
			if (size > end - to)
				return 0;
			bpfof_memmove(to, ctx->data + (__u16)text, size);
			to += size;
		} else {
			*(bpfof_any64 *)to = values[row];
			to += 8;
		}
	}
	return to;
}

SEC("bpfof/query_rows")
int query_rows(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const struct query_rows *wanted = (const struct query_rows *)(ctx->scratch + query->reduction_at);
	struct query_rows_state *state = (struct query_rows_state *)(ctx->scratch + query->state_at);
	const __u16 *selection = bpfof_selection(query, batch);
	__u8 *first = ctx->scratch + query->state_at + sizeof(*state), *to = first + state->size;
	const __u8 *end = ctx->scratch + ctx->scratch_size;
	__u64 next = batch->next;
	int stop = 0;

	for (__u32 i = 0; i < batch->selected && !stop; i++) {
		__u8 *behind = write_row(ctx, query, batch, wanted, selection[i], to, end);
		/* The first row that is not in the answer. */
		__u32 left = i;

		if (behind) {
			to = behind;
			state->rows++;
			query->passed++;
			left = i + 1;
		}
		stop = !behind || state->rows == wanted->rows_max;
		if (stop && left < batch->selected) {
			next = bpfof_row_offset(ctx, query, batch, selection[left]);
			query->rows -= batch->rows - selection[left];
		}
	}
	state->size = to - first;
	return bpfof_go_on(ctx, query, next, stop, state->rows, sizeof(*state) + state->size);
}
