/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Source of a query: text files, one row a line. A row that is not complete in its block becomes the first
 * row of the next block. Empty lines are not rows. Fields may be quoted; a newline within quotes ends the
 * line as well.
 */
#include "bpfof/batch.h"

/* Bytes searched at a time: a search pays for all bytes of its range, even if it finds the byte early. */
#define LINE_WINDOW 256
#define FIELD_WINDOW 48
#define QUOTE_WINDOW 1024
/* A line with quotes is parsed field by field, at 390 units a field of the million that a call has, if lines
 * have at most this many fields. Listing the ends of more fields costs less, but the ends in other lines must
 * then be listed again. */
#define WALKED_FIELDS 256

/* A field: its text, without the quotes. */
struct field {
	__u8 *at;
	__u32 size;
};

/* Rare work is not inlined: a loop pays for its most expensive path, and for a called function only if it
 * calls it. */
#define RARE static __attribute__((noinline))

/* Returns the position of `byte` from `at` on, or `end`. */
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

/* Returns the position of `byte` from `at` on, or `end`. Searches the first 8 bytes without a call: most
 * fields are shorter. `limit` is the end of the block. */
static inline __u8 *find_near(__u8 *at, __u8 *end, const __u8 *limit, __u32 byte)
{
	const __u64 ones = 0x0101010101010101ULL;

	if (at + 8 <= limit) {
		__u64 word = bpfof_le64(at) ^ byte * ones, found = (word - ones) & ~word & ones << 7;

		/* The lowest bit marks the first matching byte; this counts the bytes before it. */
		if (found)
			at += ((((found & -found) - 1) & ones) * ones >> 56) - 1;
		else
			at += 8;
		if (found || at >= end)
			return at < end ? at : end;
	}
	return find(at, end, byte, FIELD_WINDOW);
}

/* Takes the quoted field at `at`; doubled quotes inside become one. Returns its end, or 0 if it is not
 * closed. */
RARE __u8 *take_quoted(__u8 *at, __u8 *end, struct field *field)
{
	__u8 *to, *quote = find(at + 1, end, '"', FIELD_WINDOW);

	field->at = at + 1;
	for (to = quote; quote + 1 < end && quote[1] == '"';) {
		__u8 *from = quote + 1;

		/* Moves one quote and the bytes up to the next quote. */
		quote = find(from + 1, end, '"', FIELD_WINDOW);
		bpfof_memmove(to, from, quote - from);
		to += quote - from;
	}
	field->size = to - field->at;
	return quote < end ? quote + 1 : 0;
}

/* Takes the field at `at`. Returns its end, or 0 if its quotes are malformed. */
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

/* Packs up to 8 bytes into one number; the other bytes are 0. */
static inline __u64 pack(const __u8 *at, __u32 size)
{
	__u64 packed = 0;

	for (__u32 i = 0; i < size; i++)
		packed |= (__u64)at[i] << 8 * i;
	return packed;
}

/* Parses a number of the column's kind. Returns whether the whole text is one and fits. */
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

/* Parses inf and infinity, in upper or lower case, with an optional sign. */
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
	/* "infinity", or "inf" followed by zeroes, on which the OR has set 20h */
	return word == (size == 3 ? 0x2020202020666e69ULL : 0x7974696e69666e69ULL);
}

/* Parses a text that is not a plain number. Returns 0 if it is a number after all, 1 if it is missing, 2 if
 * it is invalid. */
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
	/* Packed texts are padded with 0, so a text that ends with a 0 byte never equals one. */
	if (field->size <= 8 && column->nullable && (!field->size || field->at[field->size - 1])) {
		packed = pack(field->at, field->size);
		for (__u32 i = 0; i < query->nulls; i++) {
			if (null[i] == packed)
				return 1;
		}
	}
	return column->kind == BPFOF_FLOAT_COLUMN && parse_infinity(field, bits) ? 0 : 2;
}

/* Stores the position of a column's text. */
static inline void store(struct bpfof_batch *batch, const struct bpfof_column *column, __u32 row,
			 __u32 start, __u32 size)
{
	__u32 stride = column->kind == BPFOF_TEXT_COLUMN ? 4 : 8;

	*(__u32 *)bpfof_at(batch, column->values_at + row * stride) = start | size << 16;
}

/* Takes the columns of a line: stores the positions of their texts. Returns 0, or an error status with the
 * column or the number of fields in `*bad`. If `all` is set, the line has quotes: the fields behind the last
 * column are parsed as well, because a quote may not be closed in the line. */
static inline __u32 take_row(const struct bpfof_ctx *ctx, struct bpfof_query *query,
			     struct bpfof_batch *batch, __u8 *at, __u8 *end, __u32 row,
			     __u32 all, __u32 *bad)
{
	const struct bpfof_column *column = query->column, *last = column + query->columns;
	__u32 delimiter = query->delimiter, index;
	struct field field;

	for (index = 0; column < last || all; index++) {
		__u8 *behind = take_field(at, end, ctx->data_end, delimiter, &field);

		if (!behind) {
			*bad = column - query->column;
			return BPFOF_QUERY_BAD_QUOTES;
		}
		/* Skip the delimiter; at the end of the line there is no further field. */
		at = behind + 1;
		if (column < last && index == column->place)
			store(batch, column++, row, field.at - ctx->data, field.size);
		if (behind == end)
			break;
	}
	*bad = column - query->column;
	if (column < last)
		return BPFOF_QUERY_SHORT_ROW;
	if (!all || !query->columns || index + 1 == query->fields)
		return 0;
	*bad = index + 1;
	return BPFOF_QUERY_BAD_FIELDS;
}

/* The text of a row's field, whose position is stored where the number will be. */
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

/* Parses the last `digits`, 1 to 8, of the 8 bytes at `at`, or returns ~0 if they are not all digits. Works
 * in parallel: adjacent digits become two-digit numbers, these become four-digit numbers, and these the
 * result. */
static inline __u64 digits_of(const __u8 *at, __u32 digits)
{
	const __u64 ones = 0x0101010101010101ULL;
	__u64 word = (bpfof_le64(at) ^ ones * '0') & ~0ULL << (64 - 8 * digits);

	if ((word | (word + ones * (0x7f - 9))) & ones << 7)
		return ~0ULL;
	word = word * 10 + (word >> 8);
	return ((word & 0x000000ff000000ffULL) * (100 + (1000000ULL << 32)) +
		(word >> 16 & 0x000000ff000000ffULL) * (1 + (10000ULL << 32))) >> 32;
}

/* Parses a number of 9 to 16 digits, or returns ~0. */
RARE __u64 long_number(const __u8 *at, __u32 size)
{
	__u64 upper = digits_of(at + size - 16, size - 8), lower = digits_of(at + size - 8, 8);

	return upper == ~0ULL || lower == ~0ULL ? ~0ULL : upper * 100000000 + lower;
}

/* Parses an integer that is not plain digits, or has more digits. Returns whether it is one. */
RARE int other_integer(const struct bpfof_column *column, __u32 text, const __u8 *data, __u64 *bits)
{
	struct field field = { (__u8 *)data + (__u16)text, text >> 16 };

	return parse(column, &field, bits);
}

/* Whether an integer fits into 64 - `shift` bits. For signed types `bias` is half their range, else 0. */
static inline int fits(__u64 bits, __u64 bias, __u32 shift)
{
	return (bits + bias) << shift >> shift == bits + bias;
}

/* Parses a column's texts as integers. Lists the rows whose text is not an integer, and returns their number.
 * It may load bytes before a text, which it ignores: scratch lies before the block. */
static inline __u32 parse_integers(const struct bpfof_ctx *ctx, const struct bpfof_column *column,
				   __u64 *value, __u32 rows, __u16 *others)
{
	const __u8 *data = ctx->data;
	__u16 *other = others;
	__u32 shift = 64 - 8 * column->width;
	__u32 is_signed = column->kind == BPFOF_SIGNED_COLUMN;
	__u64 flip = is_signed ? BPFOF_SIGN : 0, bias = flip >> shift;

	for (__u32 row = 0; row < rows; row++, value++) {
		__u32 text = *(const __u32 *)value, size = text >> 16;
		const __u8 *at = data + (__u16)text;
		__u64 minus = 0, bits = ~0ULL;

		/* If the text is empty, look at the byte before it: the block may end behind it. */
		if (*(at - !size) == '-')
			minus = is_signed;
		size -= minus;
		if (size - 1 < 8)
			bits = digits_of(at + minus + size - 8, size);
		else if (size - 1 < 16)
			bits = long_number(at + minus, size);
		if (bits == ~0ULL ? other_integer(column, text, data, &bits) :
				    fits(bits = (bits ^ -minus) + minus, bias, shift))
			*value = bits ^ flip;
		else
			*other++ = row;
	}
	return other - others;
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

/* Parses a column's texts as numbers. Returns the first row without a number, or the number of rows. */
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

/* Skips the rest of the line that the chain begins in. Returns where the next line begins, or 0. */
static inline __u8 *skip(struct bpfof_query *query, __u8 *at, __u8 *end)
{
	at = find(at, end, '\n', LINE_WINDOW);
	if (at == end)
		return 0;
	query->flags &= ~BPFOF_QUERY_SKIP;
	return at + 1;
}

/* No row is complete in the block: reads it again from `offset` with twice the size, up to the maximum, for
 * one row. */
static inline int read_more(struct bpfof_ctx *ctx, struct bpfof_query *query, __u64 offset)
{
	if (query->block == BPFOF_READ_MAX)
		return bpfof_refuse(ctx, BPFOF_QUERY_LONG_ROW, offset, 0);
	if (!query->usual_block)
		query->usual_block = query->block;
	query->block = query->block * 2 < BPFOF_READ_MAX ? query->block * 2 : BPFOF_READ_MAX;
	return bpfof_read_rows(ctx, query, offset);
}

/* Returns the position of the next quote from `from` on, or the end of the block. */
RARE __u32 find_quote(const struct bpfof_ctx *ctx, __u32 from)
{
	return find(ctx->data + from, ctx->data_end, '"', QUOTE_WINDOW) - ctx->data;
}

/* Lists the ends of lines, and the positions of `byte`, counted from `at`. Returns their number. */
RARE __u32 list_all(const struct bpfof_ctx *ctx, __u16 *list, __u32 at, __u32 byte)
{
	return bpfof_find_all(ctx->data + at, bpfof_data_size(ctx) - at,
			      BPFOF_ANY(byte, '\n', '\n', '\n'), list, bpfof_query(ctx)->rows_max);
}

/* How many entries of a list are not behind `end`. */
RARE __u32 count_up_to(const __u16 *list, __u32 count, __u32 end)
{
	__u32 before = 0;

	while (before < count && list[before] <= end)
		before++;
	return before;
}

/* A list of ends of fields, as many as there is room for. */
struct listed {
	const __u16 *list;
	/* base of the positions in the list; number of entries; the next entry */
	__u32 base;
	__u32 count;
	__u32 next;
	/* number of fields of a row */
	__u32 fields;
};

/* The position in the block. */
struct place {
	/* start of the next line, and its number */
	__u32 line;
	__u32 index;
	__u32 row;
	/* position of the next quote */
	__u32 quote;
};

/* Lists the ends of fields from `at` on. */
RARE void list_fields(const struct bpfof_ctx *ctx, struct listed *listed, __u32 at)
{
	struct bpfof_query *query = bpfof_query(ctx);

	listed->list = bpfof_at(bpfof_batch(), query->chosen_at);
	listed->count = list_all(ctx, (__u16 *)listed->list, at, query->delimiter);
	listed->base = at;
	listed->next = 0;
}

/* Takes rows while they have the expected number of fields and no quotes, at most `lines`. */
RARE void take_alike(const struct bpfof_ctx *ctx, struct listed *listed, struct place *place,
		     __u32 lines, __u32 start)
{
	const struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const __u16 *next = bpfof_at(batch, query->selection_at);
	__u16 *row_at = bpfof_at(batch, query->rows_at), *first = row_at + place->row;
	__u32 fields = listed->fields, line = place->line, quote = place->quote;
	__u32 most = (listed->count - listed->next) / fields, room = query->rows_max - place->row;
	/* the end of a row; one row's fields ahead is the end of the next */
	const __u16 *last = listed->list + listed->next + fields - 1;
	__u32 apart = listed->base - start;
	__u64 left = query->end - ctx->offset;

	next += place->index;
	most = most < lines ? most : lines;
	most = most < room ? most : room;
	row_at = first;
	for (const __u16 *end_of_rows = first + most; row_at < end_of_rows; row_at++, last += fields) {
		__u32 end = *next++;

		/* An empty line has one field, too. */
		if (*last + apart != end || start + end > quote || line >= left ||
		    (fields == 1 && (start + end == line || ctx->data[start + end - 1] == '\r')))
			break;
		*row_at = line;
		line = start + end + 1;
	}
	most = row_at - first;
	place->line = line;
	place->index += most;
	place->row += most;
	listed->next += most * fields;
}

/* Stores the positions of a column's texts for listed rows: the lower 16 bits of `rows` are the first row,
 * whose fields begin at `list`, the upper 16 bits the row behind the last. */
RARE void take_listed(const struct bpfof_ctx *ctx, const struct bpfof_column *column,
		      const __u16 *list, const struct listed *listed, __u32 rows)
{
	const struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const __u8 *data = ctx->data;
	const __u16 *row = bpfof_at(batch, query->rows_at), *end = row + (rows >> 16);
	__u32 place = column->place, step = column->kind == BPFOF_TEXT_COLUMN ? 4 : 8;
	__u32 base = listed->base, fields = listed->fields, is_last = place + 1 == fields;
	__u8 *to = bpfof_at(batch, column->values_at + (__u16)rows * step);

	row += (__u16)rows;
	for (list += place; row < end; row++, list += fields, to += step) {
		__u32 start = place ? base + list[-1] + 1 : *row, stop = base + list[0];

		if (is_last && stop > start && data[stop - 1] == '\r')
			stop--;
		*(__u32 *)to = start | (stop - start) << 16;
	}
}

/* Takes the columns of a line with quotes, or of a listed line that take_alike() has not taken. Returns 0, or
 * an error status. The lower 16 bits of `row` are the row, the upper ones the argument `all` of
 * take_row(). */
RARE __u32 take_other(const struct bpfof_ctx *ctx, __u32 at, __u32 end, __u32 row, __u32 *bad)
{
	return take_row(ctx, bpfof_query(ctx), bpfof_batch(), ctx->data + at, ctx->data + end,
			(__u16)row, row >> 16, bad);
}

/* The error of a row with this number of fields: a column that it does not have, or the number of fields. */
RARE __u32 bad_fields(const struct bpfof_ctx *ctx, __u32 fields, __u32 *bad)
{
	const struct bpfof_query *query = bpfof_query(ctx);

	for (__u32 i = 0; i < query->columns && i < BPFOF_COLUMNS_MAX; i++) {
		if (query->column[i].place >= fields) {
			*bad = i;
			return BPFOF_QUERY_SHORT_ROW;
		}
	}
	*bad = fields;
	return BPFOF_QUERY_BAD_FIELDS;
}

/* The position in a line whose ends of fields do not all fit into the list. */
struct wide {
	/* start of the next field, and its number */
	__u32 at;
	__u32 index;
	const struct bpfof_column *column;
};

/* Takes the fields up to the last delimiter before `end`, none of which has quotes. */
RARE void take_pieces(const struct bpfof_ctx *ctx, struct wide *wide, __u32 end, __u32 row)
{
	const struct bpfof_query *query = bpfof_query(ctx);
	const struct bpfof_column *column = wide->column, *last = query->column + query->columns;
	struct bpfof_batch *batch = bpfof_batch();
	__u16 *list = bpfof_at(batch, query->chosen_at);
	__u32 at = wide->at, index = wide->index, delimiter = query->delimiter, count;

	do {
		count = bpfof_find_all(ctx->data + at, end - at,
				       BPFOF_ANY(delimiter, delimiter, delimiter, delimiter), list,
				       query->rows_max);
		for (; column < last && column->place < index + count; column++) {
			__u32 which = column->place - index, start = which ? list[which - 1] + 1 : 0;

			store(batch, column, row, at + start, list[which] - start);
		}
		index += count;
		if (count)
			at += list[count - 1] + 1;
	} while (count == query->rows_max);
	*wide = (struct wide){ at, index, column };
}

/* Takes the columns of a line as take_other() does, with any number of fields: their ends are listed in
 * parts, which overwrite the list of other lines. The lower 16 bits of `row` are the row, the upper ones tell
 * whether the line has quotes. */
RARE __u32 take_wide(const struct bpfof_ctx *ctx, __u32 at, __u32 end, __u32 row, __u32 *bad)
{
	const struct bpfof_query *query = bpfof_query(ctx);
	const struct bpfof_column *last = query->column + query->columns;
	struct wide wide = { at, 0, query->column };
	__u32 quote = row >> 16 ? find_quote(ctx, at) : end;
	struct field field;

	row = (__u16)row;
	for (;;) {
		__u8 *behind;

		take_pieces(ctx, &wide, quote < end ? quote : end, row);
		if (quote >= end)
			break;
		if (quote != wide.at) {
			/* Within an unquoted field a quote is an ordinary byte. */
			quote = find_quote(ctx, quote + 1);
			continue;
		}
		behind = take_quoted(ctx->data + quote, ctx->data + end, &field);
		if (!behind || (behind < ctx->data + end && *behind != query->delimiter)) {
			*bad = wide.column - query->column;
			return BPFOF_QUERY_BAD_QUOTES;
		}
		if (wide.column < last && wide.column->place == wide.index)
			store(bpfof_batch(), wide.column++, row, field.at - ctx->data, field.size);
		wide.index++;
		/* Skip the delimiter; at the end of the line there is no further field. */
		wide.at = behind - ctx->data + 1;
		if (wide.at > end)
			break;
		quote = find_quote(ctx, wide.at);
	}
	if (wide.at <= end) {
		if (wide.column < last && wide.column->place == wide.index)
			store(bpfof_batch(), wide.column++, row, wide.at, end - wide.at);
		wide.index++;
	}
	if (wide.column == last && (!query->columns || wide.index == query->fields))
		return 0;
	return bad_fields(ctx, wide.index, bad);
}

/*
 * Takes the rows of the lines from `*at` on, up to the last complete line. Returns their number, or ~ an
 * error status. Lists the ends of all lines first, and then the ends of fields, as many at a time as there is
 * room for. So the positions of a column in rows without quotes are in the list, one row's number of fields
 * apart.
 */
static inline __u32 take_rows(const struct bpfof_ctx *ctx, struct bpfof_query *query,
			      struct bpfof_batch *batch, __u32 *at, int is_last, __u32 *bad)
{
	const __u8 *data = ctx->data;
	const __u16 *ends = bpfof_at(batch, query->selection_at);
	__u16 *rows_at = bpfof_at(batch, query->rows_at);
	__u32 size = bpfof_data_size(ctx), start = *at, rows_max = query->rows_max, end, text_end, error;
	/* A call may not be able to pay for all rows of a larger block. */
	__u32 most = query->usual_block ? 1 : rows_max;
	__u32 needed = query->columns ? query->column[query->columns - 1].place + 1 : 0;
	/* A row has more fields than the list has room for. */
	__u32 is_wide = query->fields > rows_max;
	__u64 left = query->end > ctx->offset ? query->end - ctx->offset : 0;
	__u32 lines = list_all(ctx, bpfof_at(batch, query->selection_at), start, '\n');
	struct listed listed = { bpfof_at(batch, query->chosen_at), start, 0, 0, query->fields };
	struct place place = { start, 0, 0, find_quote(ctx, start) };

	if (!needed) {
		/* Treat each row as a single field. */
		listed = (struct listed){ ends, start, lines, 0, 1 };
	}
	while (place.line < size && place.line < left && place.row < most) {
		__u32 line = place.line, first = place.row, ahead = lines - place.index, fields;
		const __u16 *list;

		if (place.index == lines && (!is_last || lines == rows_max))
			break;
		if (listed.next + listed.fields > listed.count && needed && !is_wide)
			list_fields(ctx, &listed, line);
		list = listed.list + listed.next;
		if (listed.fields && listed.fields >= needed && !(needed && is_wide))
			take_alike(ctx, &listed, &place, ahead < most ? ahead : most, start);
		if (place.row > first) {
			const struct bpfof_column *column = query->column, *last = column + query->columns;

			for (; column < last; column++)
				take_listed(ctx, column, list, &listed, first | place.row << 16);
			continue;
		}
		end = text_end = place.index < lines ? start + ends[place.index] : size;
		if (end > line && data[end - 1] == '\r')
			text_end--;
		fields = count_up_to(list, listed.count - listed.next, end - listed.base);
		listed.next += fields;
		if (text_end > line) {
			__u32 has_quotes = place.quote < text_end;
			/* The end of the line is in the list as well. */
			__u32 counted = !has_quotes && fields &&
					listed.list[listed.next - 1] + listed.base == end;
			__u32 walks = has_quotes && query->fields <= WALKED_FIELDS;

			error = 0;
			if (counted && fields != listed.fields) {
				error = bad_fields(ctx, fields, bad);
			} else if (walks || (counted && needed)) {
				error = take_other(ctx, line, text_end, place.row | walks << 16, bad);
			} else if (needed || has_quotes) {
				error = take_wide(ctx, line, text_end, place.row | has_quotes << 16, bad);
				if (needed)
					listed.count = listed.next = 0;
			}
			if (error) {
				*at = line;
				return ~error;
			}
			rows_at[place.row++] = line;
		}
		place.line = end + (end < size);
		place.index++;
		if (place.quote < place.line)
			place.quote = find_quote(ctx, place.line);
	}
	*at = place.line;
	return place.row;
}

SEC("bpfof/query_csv")
int query_csv(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct bpfof_batch *batch = bpfof_batch();
	const __u16 *rows_at = bpfof_at(batch, query->rows_at);
	__u8 *begin = ctx->data;
	__u64 offset = ctx->offset, size = bpfof_data_size(ctx);
	int is_last = offset + size >= query->file_end;
	__u32 at, row, bad = 0;

	if (ctx->scratch_size < sizeof(*query) || !query->block)
		return BPFOF_QUERY_BAD_PLAN;
	if (query->flags & BPFOF_QUERY_SKIP) {
		begin = skip(query, begin, ctx->data_end);
		if (!begin && !is_last && offset + size < query->end)
			return bpfof_read_rows(ctx, query, offset + size);
		if (!begin)
			begin = ctx->data_end;
	}
	at = begin - ctx->data;
	row = take_rows(ctx, query, batch, &at, is_last, &bad);
	if ((__s32)row < 0)
		return bpfof_refuse(ctx, ~row, offset + at, bad);
	if (!at && !is_last && offset < query->end)
		return read_more(ctx, query, offset);
	/* If rows of this size follow, they need the larger block as well. */
	if (query->usual_block && at <= query->usual_block) {
		query->block = query->usual_block;
		query->usual_block = 0;
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
	batch->next = offset + at;
	query->rows += row;
	return bpfof_end_source(query);
}
