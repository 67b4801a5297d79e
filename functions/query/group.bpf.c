/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Reduction of a query: measures over each group of the rows that pass. If a group, or a value,
 * does not fit, the chain ends there, and the next chain continues with that row. */
#include "group.h"

/* State that every part needs; on the stack. */
struct work {
	struct bpfof_ctx *ctx;
	struct bpfof_query *query;
	struct bpfof_batch *batch;
	const struct grouping *grouping;
	struct groups *groups;
	/* of a row: its keys as in entries, but texts by their position in the block */
	__u64 key[GROUP_KEYS_MAX];
	__u32 hash;
	/* bits of the keys that are missing */
	__u32 missing;
};

/* Not inlined: a loop pays for its most expensive path, and for a called function only if it calls
 * it. */
#define APART static __attribute__((noinline))

static inline __u64 mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

/* Takes the keys of a row; texts stay in the block. */
APART void take_keys(struct work *work, __u32 row)
{
	__u64 hash = 0;

	work->missing = 0;
	for (__u32 i = 0; i < work->grouping->keys && i < GROUP_KEYS_MAX; i++) {
		const struct bpfof_column *column = &work->query->column[work->grouping->key[i]];
		const __u64 *values = bpfof_at(work->batch, column->values_at);
		__u64 value;

		if (column->nullable && !((__u8 *)bpfof_at(work->batch, column->valid_at))[row]) {
			work->key[i] = 0;
			work->missing |= 1 << i;
			hash = mix(hash, 1);
			continue;
		}
		if (column->kind == BPFOF_TEXT_COLUMN) {
			__u32 text = ((const __u32 *)values)[row];

			work->key[i] = (__u64)(text >> 16) << 32 | (__u16)text;
			hash = mix(hash, bpfof_xxh3(work->ctx->data + (__u16)text, 0, text >> 16));
			continue;
		}
		value = values[row];
		/* -0.0 and 0.0 are equal. */
		if (column->kind == BPFOF_FLOAT_COLUMN && value == BPFOF_SIGN - 1)
			value = BPFOF_SIGN;
		work->key[i] = value;
		hash = mix(hash, value);
	}
	work->hash = hash;
}

/* Whether an entry has the current keys. */
APART int has_keys(struct work *work, const __u64 *entry)
{
	for (__u32 i = 0; i < work->grouping->keys && i < GROUP_KEYS_MAX; i++) {
		const struct bpfof_column *column = &work->query->column[work->grouping->key[i]];
		__u64 key = work->key[i], other = entry[1 + i];

		if (column->kind != BPFOF_TEXT_COLUMN) {
			if (key != other)
				return 0;
		} else if (key >> 32 != other >> 32) {
			return 0;
		} else if (key >> 32 &&
			   bpfof_memcmp(work->ctx->data + (__u32)key, work->ctx->scratch + (__u32)other,
					key >> 32)) {
			/* An empty text has no position. */
			return 0;
		}
	}
	return 1;
}

/* Makes an entry of the current keys; returns 0 if there is no room. */
APART int add_entry(struct work *work, __u8 *entry, __u64 head)
{
	__u32 size = work->grouping->measures.entry_size, texts_at = work->groups->texts_at;
	__u64 texts = 0;

	for (__u32 i = 0; i < work->grouping->keys && i < GROUP_KEYS_MAX; i++) {
		if (work->query->column[work->grouping->key[i]].kind == BPFOF_TEXT_COLUMN)
			texts += work->key[i] >> 32;
	}
	if (work->groups->groups >= work->grouping->groups_max ||
	    entry - work->ctx->scratch + size + texts > texts_at)
		return 0;
	measures_begin(&work->grouping->measures, entry);
	((__u64 *)entry)[0] = head;
	for (__u32 i = 0; i < work->grouping->keys && i < GROUP_KEYS_MAX; i++) {
		__u64 key = work->key[i];

		if (work->query->column[work->grouping->key[i]].kind == BPFOF_TEXT_COLUMN && key >> 32) {
			texts_at -= key >> 32;
			bpfof_memmove(work->ctx->scratch + texts_at, work->ctx->data + (__u32)key, key >> 32);
			key = key >> 32 << 32 | texts_at;
		}
		((__u64 *)entry)[1 + i] = key;
	}
	work->groups->texts_at = texts_at;
	work->groups->groups++;
	return 1;
}

/*
 * Finds or makes the group of each selected row, and stores the offset of its entry. Limits the
 * selection to the rows that there is room for.
 */
static inline void find_groups(struct work *work, __u16 *table, __u16 *entries_of)
{
	const __u16 *selection = bpfof_selection(work->query, work->batch);
	__u32 entries_at = work->query->state_at + sizeof(struct groups);
	__u32 size = work->grouping->measures.entry_size, i;

	for (i = 0; i < work->batch->selected; i++) {
		__u32 row = selection[i], place;
		__u64 head;

		take_keys(work, row);
		head = (__u64)work->hash << 32 | work->missing;
		for (place = work->hash & (GROUP_PLACES - 1);; place = (place + 1) & (GROUP_PLACES - 1)) {
			__u32 at = table[place];

			if (at && (*(__u64 *)(work->ctx->scratch + at) != head ||
				   !has_keys(work, (__u64 *)(work->ctx->scratch + at))))
				continue;
			if (!at) {
				at = entries_at + work->groups->groups * size;
				if (!add_entry(work, work->ctx->scratch + at, head))
					goto full;
				table[place] = at;
			}
			entries_of[row] = at;
			break;
		}
	}
full:
	work->batch->selected = i;
}

/* As find_groups(), for a single key that is a number and never missing. */
static inline void find_groups_by_number(struct work *work, __u16 *table, __u16 *entries_of)
{
	const struct bpfof_column *column = &work->query->column[work->grouping->key[0]];
	const __u64 *values = bpfof_at(work->batch, column->values_at);
	const __u16 *selection = bpfof_selection(work->query, work->batch);
	__u64 minus_zero = column->kind == BPFOF_FLOAT_COLUMN ? BPFOF_SIGN - 1 : 0;
	__u8 *scratch = work->ctx->scratch;
	__u32 selected = work->batch->selected, i;

	for (i = 0; i < selected; i++) {
		__u32 row = selection[i], place, at;
		__u64 value = values[row], hash;

		if (minus_zero && value == minus_zero)
			value++;
		hash = value * 0x9e3779b97f4a7c15ULL;
		place = (hash ^ hash >> 32) & (GROUP_PLACES - 1);
		while ((at = table[place]) && ((__u64 *)(scratch + at))[1] != value)
			place = (place + 1) & (GROUP_PLACES - 1);
		if (!at) {
			work->key[0] = value;
			at = work->query->state_at + sizeof(struct groups) +
			     work->groups->groups * work->grouping->measures.entry_size;
			if (!add_entry(work, scratch + at, 0))
				break;
			table[place] = at;
		}
		entries_of[row] = at;
	}
	work->batch->selected = i;
}

/* Whether there is a single key that is a number and never missing. */
static inline int is_by_number(const struct work *work)
{
	const struct bpfof_column *column = &work->query->column[work->grouping->key[0]];

	return work->grouping->keys == 1 && !column->nullable && column->kind != BPFOF_TEXT_COLUMN;
}

/* Limits the selection to the rows whose values of this measure fit into its sums. */
static inline void limit_to_fitting(struct work *work, const struct bpfof_column *column, __u16 *base)
{
	const __u16 *selection = bpfof_selection(work->query, work->batch);
	const __u64 *values = bpfof_at(work->batch, column->values_at);
	const __u8 *valid = bpfof_at(work->batch, column->valid_at);
	__u32 i;

	for (i = 0; i < work->batch->selected; i++) {
		__u32 row = selection[i], exponent;
		__u64 bits = bpfof_double_of_order(values[row]);

		if (!(bits << 1) || (bits >> 52 & 2047) == 2047 || (column->nullable && !valid[row]))
			continue;
		exponent = double_exponent(bits);
		if (!*base)
			*base = exponent > GROUP_SPAN / 2 ? exponent - GROUP_SPAN / 2 : 1;
		if (exponent - *base > GROUP_SPAN)
			break;
	}
	work->batch->selected = i;
}

static inline void add_rows(struct work *work, const struct measure *measure,
			    const __u16 *entries_of, __u32 base)
{
	const struct bpfof_column *column = &work->query->column[measure->column];
	const __u64 *values = bpfof_at(work->batch, column->values_at);
	const __u16 *rows = bpfof_selection(work->query, work->batch);
	__u64 bias = column->kind == BPFOF_SIGNED_COLUMN ? BPFOF_SIGN : 0;
	__u8 *scratch = work->ctx->scratch;
	__u32 count = work->batch->selected, i;

	if (column->nullable) {
		__u16 *chosen = bpfof_at(work->batch, work->query->chosen_at);

		count = choose(work->batch, column, rows, chosen);
		rows = chosen;
	}
	for (i = 0; i < count && measure->count_at; i++)
		++*(__u64 *)(scratch + entries_of[rows[i]] + measure->count_at);
	for (i = 0; i < count && measure->range_at; i++) {
		__u64 value = values[rows[i]];
		__u64 *range = (__u64 *)(scratch + entries_of[rows[i]] + measure->range_at);

		if (value < range[0])
			range[0] = value;
		if (value > range[1] && (column->kind != BPFOF_FLOAT_COLUMN || value != BPFOF_ORDER_NAN))
			range[1] = value;
	}
	for (i = 0; i < count && measure->squares_at; i++) {
		__u64 value = values[rows[i]] - bias;

		add_wide((__u64 *)(scratch + entries_of[rows[i]] + measure->squares_at), value * value, 0);
	}
	if (!measure->sum_at)
		return;
	if (column->kind == BPFOF_FLOAT_COLUMN) {
		for (i = 0; i < count; i++)
			add_double((__u64 *)(scratch + entries_of[rows[i]] + measure->sum_at),
				   values[rows[i]], base, GROUP_LIMBS);
	} else {
		for (i = 0; i < count; i++)
			add_wide((__u64 *)(scratch + entries_of[rows[i]] + measure->sum_at),
				 values[rows[i]], 0);
	}
}

/* Counts the rows, and adds them to the measures. */
static inline void add_batch(struct work *work, const __u16 *entries_of)
{
	const __u16 *selection = bpfof_selection(work->query, work->batch);
	__u32 rows_at = 8 + 8 * work->grouping->keys;

	for (__u32 i = 0; i < work->batch->selected; i++)
		++*(__u64 *)(work->ctx->scratch + entries_of[selection[i]] + rows_at);
	for (__u32 i = 0; i < work->grouping->measures.measures && i < MEASURES_MAX; i++)
		add_rows(work, &work->grouping->measures.measure[i], entries_of, work->groups->base[i]);
	work->query->passed += work->batch->selected;
}

/* Continues the chain, or ends it: the texts of keys go behind the entries of the answer. */
static inline int finish(struct work *work, __u64 next, int stop)
{
	struct groups *groups = work->groups;
	struct bpfof_query *query = work->query;
	__u32 size = sizeof(*groups) + groups->groups * work->grouping->measures.entry_size, texts;

	if (!stop && next < query->end && !(query->flags & BPFOF_QUERY_STOP))
		return bpfof_read_rows(work->ctx, query, next);
	texts = work->ctx->scratch_size - groups->texts_at;
	bpfof_memmove((__u8 *)groups + size, work->ctx->scratch + groups->texts_at, texts);
	return bpfof_go_on(work->ctx, query, next, 1, groups->groups, size + texts);
}

SEC("bpfof/query_group")
int query_group(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct work work = { .ctx = ctx, .query = query, .batch = bpfof_batch() };
	const struct measures *measures;
	/* The hash table lies before the state. */
	__u16 *table = (__u16 *)(ctx->scratch + query->state_at) - GROUP_PLACES;
	/* In place of the filter's masks, which are no longer needed. */
	__u16 *entries_of = bpfof_at(work.batch, query->masks_at);
	__u32 selected;

	work.grouping = (const struct grouping *)(ctx->scratch + query->reduction_at);
	work.groups = (struct groups *)(ctx->scratch + query->state_at);
	measures = &work.grouping->measures;
	if (!(query->flags & BPFOF_QUERY_BEGUN)) {
		query->flags |= BPFOF_QUERY_BEGUN;
		work.groups->texts_at = ctx->scratch_size;
	}
	bpfof_selection(query, work.batch);
	selected = work.batch->selected;
	for (__u32 i = 0; i < measures->measures && i < MEASURES_MAX; i++) {
		const struct bpfof_column *column = &query->column[measures->measure[i].column];

		if (measures->measure[i].sum_at && column->kind == BPFOF_FLOAT_COLUMN)
			limit_to_fitting(&work, column, &work.groups->base[i]);
	}
	if (is_by_number(&work))
		find_groups_by_number(&work, table, entries_of);
	else
		find_groups(&work, table, entries_of);
	add_batch(&work, entries_of);
	if (work.batch->selected < selected) {
		const __u16 *selection = bpfof_selection(query, work.batch);
		__u32 row = selection[work.batch->selected];

		query->rows -= work.batch->rows - row;
		return finish(&work, bpfof_row_offset(ctx, query, work.batch, row), 1);
	}
	return finish(&work, work.batch->next, 0);
}
