/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Source of a query: text, a row a line. A row that is not whole in its block is the first one of the
 * next block. Empty lines are no rows. Fields are quoted or not; in quotes a line ends as well.
 */
#include "bpfof/batch.h"

/* Bytes that are searched at a time: what is searched must be paid whether or not it is there. */
#define LINE_WINDOW 256
#define FIELD_WINDOW 48

/* A field: its text, without the quotes. */
struct field {
	__u8 *at;
	__u32 size;
};

/* Rare work is in functions of its own: a loop pays for the dearest way through it, and for what it calls
 * only if it does. */
#define RARE static __attribute__((noinline))

/* Where `byte` is from `at` on, or `end`. */
static inline __u8 *find(__u8 *at, __u8 *end, __u32 byte, __u32 window)
{
	while (at < end) {
		__u64 left = end - at, size = left < window ? left : window;
		__u64 found = bpfof_find(at, byte, size);

		at += found;
		if (found < size)
			break;
	}
	return at;
}

/* Where `byte` is from `at` on, or `end`: the first 8 bytes, which most fields do not have, without a
 * call. `limit` is the end of the block. */
static inline __u8 *find_near(__u8 *at, __u8 *end, const __u8 *limit, __u32 byte)
{
	const __u64 ones = 0x0101010101010101ULL;

	if (at + 8 <= limit) {
		__u64 word = bpfof_le64(at) ^ byte * ones, found = (word - ones) & ~word & ones << 7;

		/* The lowest bit is in the first byte that is 0; how many bytes are up to there. */
		if (found)
			at += ((((found & -found) - 1) & ones) * ones >> 56) - 1;
		else
			at += 8;
		if (found || at >= end)
			return at < end ? at : end;
	}
	return find(at, end, byte, FIELD_WINDOW);
}

/* Takes the field in quotes at `at`; doubled ones inside become one. Where it ends, or 0. */
RARE __u8 *take_quoted(__u8 *at, __u8 *end, struct field *field)
{
	__u8 *to, *quote = find(at + 1, end, '"', FIELD_WINDOW);

	field->at = at + 1;
	for (to = quote; quote + 1 < end && quote[1] == '"';) {
		__u8 *from = quote + 1;

		/* One quote and what follows up to the next. */
		quote = find(from + 1, end, '"', FIELD_WINDOW);
		bpfof_memmove(to, from, quote - from);
		to += quote - from;
	}
	field->size = to - field->at;
	return quote < end ? quote + 1 : 0;
}

/* Takes the field at `at`. Where it ends, or 0 if it has bad quotes. */
static inline __u8 *take_field(__u8 *at, __u8 *end, const __u8 *limit, __u32 delimiter,
			       struct field *field)
{
	if (at < end && *at == '"') {
		at = take_quoted(at, end, field);
		return at && (at == end || *at == delimiter) ? at : 0;
	}
	field->at = at;
	at = find_near(at, end, limit, delimiter);
	field->size = at - field->at;
	return at;
}

/* Up to 8 bytes as one number, the rest 0. */
static inline __u64 pack(const __u8 *at, __u32 size)
{
	__u64 packed = 0;

	for (__u32 i = 0; i < size; i++)
		packed |= (__u64)at[i] << 8 * i;
	return packed;
}

/* The bits of a number of the column's kind; whether it is one, all of the text, and fits. */
static inline int parse(const struct bpfof_column *column, const struct field *field, __u64 *bits)
{
	__u32 shift = 64 - 8 * column->width;
	__s64 taken;

	if (column->kind == BPFOF_FLOAT_COLUMN) {
		taken = bpfof_parse_double(field->at, field->size, bits);
		return field->size && taken == field->size;
	}
	if (column->kind == BPFOF_UNSIGNED_COLUMN) {
		taken = bpfof_parse_int(field->at, field->size, 10 | BPFOF_UNSIGNED, bits);
		return field->size && taken == field->size && *bits << shift >> shift == *bits;
	}
	taken = bpfof_parse_int(field->at, field->size, 10, bits);
	return field->size && taken == field->size &&
	       (__s64)(*bits << shift) >> shift == (__s64)*bits;
}

/* inf and infinity in either case, with a sign. */
static inline int parse_infinity(const struct field *field, __u64 *bits)
{
	const __u8 *at = field->at;
	__u32 size = field->size;
	__u64 word;

	*bits = 0x7ffULL << 52;
	if (size && (*at == '-' || *at == '+')) {
		*bits |= (__u64)(*at == '-') << 63;
		at++;
		size--;
	}
	if (size != 3 && size != 8)
		return 0;
	word = pack(at, size) | 0x2020202020202020ULL;
	/* "infinity", and "inf" with what that or has made of zeroes */
	return word == (size == 3 ? 0x2020202020666e69ULL : 0x7974696e69666e69ULL);
}

/* What is no plain number: 0 if it is one after all, 1 if it is missing, 2 if it is neither. */
RARE __u32 parse_other(const struct bpfof_ctx *ctx, const struct bpfof_column *column,
			 struct field *field, __u64 *bits)
{
	const struct bpfof_query *query = bpfof_query(ctx);
	const __u64 *null = (const __u64 *)(ctx->scratch + query->nulls_at);
	__u64 packed;

	for (; field->size && (*field->at == ' ' || *field->at == '\t'); field->size--)
		field->at++;
	while (field->size && (field->at[field->size - 1] == ' ' || field->at[field->size - 1] == '\t'))
		field->size--;
	if (parse(column, field, bits))
		return 0;
	if (field->size <= 8 && column->nullable) {
		packed = pack(field->at, field->size);
		for (__u32 i = 0; i < query->nulls; i++) {
			if (null[i] == packed)
				return 1;
		}
	}
	return column->kind == BPFOF_FLOAT_COLUMN && parse_infinity(field, bits) ? 0 : 2;
}

/* Takes the columns of a line: where their texts are. 0, or what is wrong, with the column. */
static inline __u32 take_row(const struct bpfof_ctx *ctx, struct bpfof_query *query,
			     struct bpfof_batch *batch, __u8 *at, __u8 *end, __u32 row, __u32 *bad)
{
	const struct bpfof_column *column = query->column, *last = column + query->columns;
	__u32 delimiter = query->delimiter;
	struct field field;

	for (__u32 index = 0; column < last; index++) {
		__u8 *behind = take_field(at, end, ctx->data_end, delimiter, &field);

		if (!behind) {
			*bad = column - query->column;
			return BPFOF_QUERY_BAD_QUOTES;
		}
		/* Behind the delimiter; behind the end there is no further field. */
		at = behind + 1;
		if (index == column->place) {
			__u32 stride = column->kind == BPFOF_TEXT_COLUMN ? 4 : 8;

			*(__u32 *)bpfof_at(batch, column->values_at + row * stride) =
				(field.at - ctx->data) | field.size << 16;
			column++;
		}
		if (behind == end)
			break;
	}
	*bad = column - query->column;
	return column < last ? BPFOF_QUERY_SHORT_ROW : 0;
}

/* The field of a row, from where its number will be. */
static inline struct field field_of(const struct bpfof_ctx *ctx, const __u64 *value)
{
	__u32 text = *(const __u32 *)value;
	struct field field = { ctx->data + (__u16)text, text >> 16 };

	return field;
}

static inline __u64 order_of(const struct bpfof_column *column, __u64 bits)
{
	if (column->kind == BPFOF_FLOAT_COLUMN)
		return bpfof_order_double(bits);
	return column->kind == BPFOF_SIGNED_COLUMN ? bits ^ BPFOF_SIGN : bits;
}

/* Makes integers of a column's texts. Those that are none at once are listed; how many. */
static inline __u32 parse_integers(const struct bpfof_ctx *ctx, const struct bpfof_column *column,
				   __u64 *value, __u32 rows, __u16 *others)
{
	__u32 count = 0, shift = 64 - 8 * column->width;
	int is_signed = column->kind == BPFOF_SIGNED_COLUMN;
	__u64 base = is_signed ? 10 : 10 | BPFOF_UNSIGNED, flip = is_signed ? BPFOF_SIGN : 0, bits;

	for (__u32 row = 0; row < rows; row++, value++) {
		__u32 text = *(const __u32 *)value, size = text >> 16;
		__s64 taken = bpfof_parse_int(ctx->data + (__u16)text, size, base, &bits);
		__u64 kept = bits << shift;

		kept = is_signed ? (__u64)((__s64)kept >> shift) : kept >> shift;
		if (taken != size || !size || kept != bits)
			others[count++] = row;
		else
			*value = bits ^ flip;
	}
	return count;
}

static inline __u32 parse_doubles(const struct bpfof_ctx *ctx, __u64 *value, __u32 rows,
				  __u16 *others)
{
	__u32 count = 0;
	__u64 bits;

	for (__u32 row = 0; row < rows; row++, value++) {
		__u32 text = *(const __u32 *)value, size = text >> 16;
		__s64 taken = bpfof_parse_double(ctx->data + (__u16)text, size, &bits);

		if (taken != size || !size)
			others[count++] = row;
		else
			*value = bpfof_order_double(bits);
	}
	return count;
}

/* Makes numbers of a column's texts. Which row has none, or the number of rows. */
static inline __u32 parse_column(const struct bpfof_ctx *ctx, struct bpfof_query *query,
				 struct bpfof_batch *batch, const struct bpfof_column *column,
				 __u32 rows)
{
	__u64 *values = bpfof_at(batch, column->values_at);
	__u16 *others = bpfof_at(batch, query->chosen_at);
	__u8 *valid = bpfof_at(batch, column->valid_at);
	__u32 count;

	if (column->kind == BPFOF_FLOAT_COLUMN)
		count = parse_doubles(ctx, values, rows, others);
	else
		count = parse_integers(ctx, column, values, rows, others);
	if (column->nullable)
		bpfof_memset(valid, 1, rows);
	for (__u32 i = 0; i < count; i++) {
		__u32 row = others[i], is_missing;
		struct field field = field_of(ctx, &values[row]);
		__u64 bits = 0;

		is_missing = parse_other(ctx, column, &field, &bits);
		if (is_missing == 2)
			return row;
		if (is_missing)
			valid[row] = 0;
		values[row] = order_of(column, bits);
	}
	return rows;
}

/* Goes on behind the first end of a line; the chain begins within that line. Where, or 0. */
static inline __u8 *skip(struct bpfof_query *query, __u8 *at, __u8 *end)
{
	at = find(at, end, '\n', LINE_WINDOW);
	if (at == end)
		return 0;
	query->flags &= ~BPFOF_QUERY_SKIP;
	return at + 1;
}

/* Reads on, if there is more of the file: from `offset` and more at a time. */
static inline int read_more(struct bpfof_ctx *ctx, struct bpfof_query *query, __u64 offset)
{
	if (query->block == BPFOF_READ_MAX)
		return bpfof_refuse(ctx, BPFOF_QUERY_LONG_ROW, offset, 0);
	query->block = query->block * 2 < BPFOF_READ_MAX ? query->block * 2 : BPFOF_READ_MAX;
	return bpfof_read_rows(ctx, query, offset);
}

SEC("bpfof/query_csv")
int query_csv(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	__u16 *rows_at = bpfof_at(batch, query->rows_at);
	__u8 *at = ctx->data, *end = ctx->data_end;
	__u64 offset = ctx->offset, size = bpfof_data_size(ctx);
	int is_last = offset + size >= query->file_end;
	__u32 row = 0, error, bad = 0;

	if (ctx->scratch_size < sizeof(*query) || !query->block)
		return BPFOF_QUERY_BAD_PLAN;
	if (query->flags & BPFOF_QUERY_SKIP) {
		at = skip(query, at, end);
		if (!at && !is_last && offset + size < query->end)
			return bpfof_read_rows(ctx, query, offset + size);
		if (!at)
			at = end;
	}
	while (at < end && row < query->rows_max && offset + (at - ctx->data) < query->end) {
		__u8 *line_end = find(at, end, '\n', LINE_WINDOW), *text_end = line_end;

		if (line_end == end && !is_last) {
			if (row == 0 && at == ctx->data)
				return read_more(ctx, query, offset);
			break;
		}
		if (text_end > at && text_end[-1] == '\r')
			text_end--;
		if (text_end > at) {
			error = take_row(ctx, query, batch, at, text_end, row, &bad);
			if (error)
				return bpfof_refuse(ctx, error, offset + (at - ctx->data), bad);
			rows_at[row++] = at - ctx->data;
		}
		at = line_end + (line_end < end);
	}
	for (__u32 i = 0; i < query->columns && i < BPFOF_COLUMNS_MAX; i++) {
		if (query->column[i].kind == BPFOF_TEXT_COLUMN)
			continue;
		bad = parse_column(ctx, query, batch, &query->column[i], row);
		if (bad < row)
			return bpfof_refuse(ctx, BPFOF_QUERY_BAD_NUMBER, offset + rows_at[bad], i);
	}
	batch->rows = row;
	batch->selected = row;
	batch->all = 1;
	batch->next = offset + (at - ctx->data);
	query->rows += row;
	return bpfof_next_stage(query->filter ? query->filter : query->reduce);
}
