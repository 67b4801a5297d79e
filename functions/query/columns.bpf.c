/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Source of a query: columns, each in its own buffers (Arrow). For a number of rows it reads the
 * pieces of all columns, up to 16 a hop, and makes vectors from each piece as it arrives. The
 * vectors stay in the workspace until all are complete. Texts come last: they are read in one hop,
 * in which the other stages run.
 *
 * Rows are identified by numbers, not by file offsets.
 */
#include "columns.h"
#include "numbers.h"

/* State that all parts need; on the stack. */
struct work {
	struct bpfof_ctx *ctx;
	struct bpfof_query *query;
	struct bpfof_batch *batch;
	struct columns *columns;
};

/* Not inlined: a loop pays for its most expensive path, and for a called function only if it calls
 * it. */
#define APART static __attribute__((noinline))

static inline struct columns_batch *batch_in_hand(const struct work *work)
{
	return (struct columns_batch *)(work->ctx->scratch + work->columns->batches_at +
					work->columns->batch * work->columns->batch_size);
}

/* Maximum bytes that a read takes of a hop, with logical blocks of up to 4096 bytes. */
static inline __u32 cost(__u64 offset, __u32 size)
{
	return ((offset + size + 4095) & ~4095ULL) - (offset & ~4095ULL);
}

static inline void read(struct work *work, __u32 piece, __u64 offset, __u32 size)
{
	__u32 at = work->columns->reads++;

	work->ctx->next_offset[at] = offset;
	work->ctx->next_size[at] = size;
	work->ctx->next_file[at] = work->ctx->file;
	work->ctx->reads = at + 1;
	work->columns->read[at] = piece;
}

/* Requests the missing pieces of the current rows, except texts, as many as one hop takes. Returns
 * whether these are all. */
static inline int read_pieces(struct work *work)
{
	struct columns *columns = work->columns;
	const struct columns_batch *from = batch_in_hand(work);
	__u64 row = columns->first - from->start;
	__u32 rows = columns->rows, used = 0, index;

	columns->reads = 0;
	for (index = columns->next; index < columns->plain && index < COLUMNS_PIECES_MAX; index++) {
		struct columns_piece piece = columns->piece[index];
		const struct bpfof_column *column = &work->query->column[piece.column];
		__u64 offset = from->piece[index];
		__u32 size;

		if (!offset)
			continue;
		if (piece.what == COLUMNS_NOTHING) {
			size = 1;
		} else if (piece.what == COLUMNS_VALID || piece.what == COLUMNS_BITS) {
			offset += row / 8;
			size = (row % 8 + rows + 7) / 8;
		} else {
			offset += row * column->width;
			size = (rows + (piece.what == COLUMNS_OFFSETS)) * column->width;
		}
		used += cost(offset, size);
		if (used > BPFOF_MAX_HOP_BYTES || columns->reads == BPFOF_MAX_READS)
			break;
		read(work, index, offset, size);
	}
	columns->next = index;
	return index == columns->plain;
}

/* Begins a batch at the row `first`, and requests its pieces. */
APART void begin(struct work *work, __u64 first)
{
	struct columns *columns = work->columns;
	__u64 left;

	while (batch_in_hand(work)->end <= first && columns->batch + 1 < columns->batches)
		columns->batch++;
	left = batch_in_hand(work)->end;
	left = (left < work->query->end ? left : work->query->end) - first;
	columns->first = first;
	columns->rows = left < columns->step ? left : columns->step;
	columns->next = 0;
	/* Slightly fewer rows may save a hop. */
	while (!read_pieces(work) && columns->rows > columns->step / 2 &&
	       columns->plain <= BPFOF_MAX_READS / 2) {
		columns->rows -= columns->rows / 8 + 1;
		columns->next = 0;
	}
}

/* Makes a byte of each bit, beginning at bit `shift` of the first byte. */
static inline void spread_bits(const __u8 *at, const __u8 *end, __u32 shift, __u8 *to, __u32 rows)
{
	/* Writes 8 rows at a time; the room behind the last row belongs to selections and the like,
	 * which are written later. */
	for (__u32 row = 0; row < rows; row += 8, at++) {
		__u64 bits = *at;

		if (shift && at + 1 < end)
			bits |= at[1] << 8;
		bits = (bits >> shift & 255) * 0x0101010101010101ULL & 0x8040201008040201ULL;
		*(bpfof_any64 *)(to + row) = (bits + 0x7f7f7f7f7f7f7f7fULL) >> 7 & 0x0101010101010101ULL;
	}
}

static inline void take_bits(const __u8 *at, __u32 shift, __u64 *to, __u32 rows)
{
	for (__u32 row = 0; row < rows; row++, shift++)
		to[row] = at[shift / 8] >> shift % 8 & 1;
}

/* The index of a column among the columns with texts. */
static inline __u32 place_of_texts(const struct columns *columns, __u32 column)
{
	__u32 place = 0;

	while (columns->plain + place < columns->pieces && place < BPFOF_COLUMNS_MAX - 1 &&
	       columns->piece[columns->plain + place].column != column)
		place++;
	return place;
}

/* Stores the position of each text of a column, counted from the first text, and its length. Keeps
 * only as many rows in the batch as have texts that fit into a block. Returns 0, or the error
 * status of the row at `*bad`. */
static inline __u32 take_offsets(struct work *work, __u32 name, const __u8 *at, __u32 *bad)
{
	struct columns *columns = work->columns;
	const struct bpfof_column *column = &work->query->column[name];
	const struct columns_batch *from = batch_in_hand(work);
	__u32 *to = bpfof_at(work->batch, column->values_at);
	__u32 wide = column->width == 8, place = place_of_texts(columns, name), row;
	__u64 first = wide ? bpfof_le64(at) : bpfof_le32(at), start = first;
	__u64 size = from->piece[columns->pieces + place];

	columns->texts_from[place] = from->piece[columns->plain + place] + first;
	for (row = 0; row < columns->rows; row++) {
		__u64 end;

		at += column->width;
		end = wide ? bpfof_le64(at) : bpfof_le32(at);
		if (end < start || end > size) {
			*bad = row;
			return BPFOF_QUERY_BAD_TEXT;
		}
		if (end - first > BPFOF_READ_MAX)
			break;
		to[row] = (start - first) | (end - start) << 16;
		start = end;
	}
	columns->rows = row;
	*bad = 0;
	return row ? 0 : BPFOF_QUERY_LONG_ROW;
}

/* Texts of a column have arrived, behind those of other columns: adjusts their positions. */
static inline void take_texts(struct work *work, __u32 index)
{
	struct columns *columns = work->columns;
	__u32 *texts = bpfof_at(work->batch,
				work->query->column[columns->piece[index].column].values_at);
	__u32 by;

	if (work->ctx->read_index == 0)
		columns->texts_in_hand = (__u64)work->ctx->data;
	by = (__u64)work->ctx->data - columns->texts_in_hand;
	for (__u32 row = 0; row < columns->rows && by; row++)
		texts[row] += by;
}

/* Converts a piece that has arrived. Returns 0, or the error status of the row at `*bad`. */
APART __u32 take(struct work *work, __u32 index, __u32 *bad)
{
	const struct columns *columns = work->columns;
	__u32 name = columns->piece[index].column, what = columns->piece[index].what;
	const struct bpfof_column *column = &work->query->column[name];
	const __u8 *at = work->ctx->data;
	__u64 *values = bpfof_at(work->batch, column->values_at);
	__u32 shift = (columns->first - batch_in_hand(work)->start) % 8;

	if (what == COLUMNS_NUMBERS)
		take_numbers(column, at, column->width, values, columns->rows);
	else if (what == COLUMNS_VALID)
		spread_bits(at, work->ctx->data_end, shift, bpfof_at(work->batch, column->valid_at),
			    columns->rows);
	else if (what == COLUMNS_BITS)
		take_bits(at, shift, values, columns->rows);
	else if (what == COLUMNS_OFFSETS)
		return take_offsets(work, name, at, bad);
	else if (what == COLUMNS_TEXTS)
		take_texts(work, index);
	return 0;
}

/* Total size of a column's texts in the current rows. */
static inline __u32 size_of_texts(const struct work *work, __u32 index)
{
	const struct columns *columns = work->columns;
	const __u32 *texts = bpfof_at(work->batch,
				      work->query->column[columns->piece[index].column].values_at);
	__u32 last;

	if (!columns->rows)
		return 0;
	last = texts[columns->rows - 1];
	return (__u16)last + (last >> 16);
}

/* Requests the texts of the current rows, or of as many rows as one hop takes. */
APART void read_texts(struct work *work)
{
	struct columns *columns = work->columns;
	__u32 all = columns->rows;

	for (;;) {
		__u32 used = 0;

		for (__u32 i = columns->plain; i < columns->pieces && i < COLUMNS_PIECES_MAX; i++)
			used += cost(columns->texts_from[i - columns->plain], size_of_texts(work, i));
		/* Less than a full hop, so that even an empty text behind all others has a valid
		 * position. */
		if (used < BPFOF_MAX_HOP_BYTES)
			break;
		columns->rows = (__u64)columns->rows * (BPFOF_MAX_HOP_BYTES - 4096) / used;
	}
	/* Begin the next batch with about as many rows. */
	if (columns->rows < all)
		columns->step = columns->rows;
	columns->step += columns->step / 8 + 1;
	if (columns->step > work->query->block)
		columns->step = work->query->block;
	columns->reads = 0;
	columns->next = columns->pieces;
	for (__u32 i = columns->plain; i < columns->pieces && i < COLUMNS_PIECES_MAX; i++) {
		__u32 size = size_of_texts(work, i);

		if (size)
			read(work, i, columns->texts_from[i - columns->plain], size);
	}
}

/* All vectors are complete. */
static inline int finish(struct work *work)
{
	struct bpfof_query *query = work->query;
	struct bpfof_batch *batch = work->batch;
	struct columns *columns = work->columns;
	struct bpfof_ctx *ctx = work->ctx;

	batch->rows = columns->rows;
	batch->selected = columns->rows;
	batch->all = 1;
	batch->next = columns->first + columns->rows;
	query->rows += columns->rows;
	/* The base of the positions of texts, and of row numbers. */
	if (columns->plain < columns->pieces)
		ctx->data = (__u8 *)columns->texts_in_hand;
	ctx->offset = columns->first;
	for (__u32 i = 0; i < columns->plain && i < COLUMNS_PIECES_MAX; i++) {
		if (!batch_in_hand(work)->piece[i])
			bpfof_memset(bpfof_at(batch, query->column[columns->piece[i].column].valid_at), 1,
				     batch->rows);
	}
	if (batch->next < query->end)
		begin(work, batch->next);
	return bpfof_end_source(query);
}

SEC("bpfof/query_columns")
int query_columns(struct bpfof_ctx *ctx)
{
	struct bpfof_query *query = bpfof_query(ctx);
	struct columns *columns = (struct columns *)(ctx->scratch + query->source_at);
	struct work work = { ctx, query, bpfof_batch(), columns };
	__u32 index, error, bad = 0;

	if (ctx->scratch_size < sizeof(*query) + sizeof(*columns) || !columns->batches ||
	    !columns->step || columns->step > query->rows_max)
		return BPFOF_QUERY_BAD_PLAN;
	if (!columns->rows) {
		begin(&work, columns->first);
		return 0;
	}
	index = columns->read[ctx->read_index % BPFOF_MAX_READS];
	error = take(&work, index, &bad);
	if (error)
		return bpfof_refuse(ctx, error, columns->first + bad, columns->piece[index].column);
	if (ctx->read_index + 1 < columns->reads)
		return 0;
	if (columns->next < columns->plain) {
		read_pieces(&work);
		return 0;
	}
	if (columns->next < columns->pieces) {
		read_texts(&work);
		if (!columns->rows)
			return bpfof_refuse(ctx, BPFOF_QUERY_LONG_ROW, columns->first, 0);
		if (columns->reads)
			return 0;
		columns->texts_in_hand = (__u64)ctx->data;
	}
	return finish(&work);
}
