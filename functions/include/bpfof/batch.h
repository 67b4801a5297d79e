/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The contract between the stages of a query: functions that the host loads one by one and that a
 * chain runs one behind the other, by tail calls, over the same block.
 *
 *     source -> map -> filter -> reduction        on every hop
 *
 * The source makes a batch of the rows in a block: a vector for each column that the query needs. The map
 * makes vectors of further columns, by arithmetic. The filter selects rows. The reduction takes what is
 * selected, keeps its state in scratch, asks for the next read, and answers.
 *
 * A filter of one's own (BPFOF_OWN_FILTER) comes behind the shipped one, or in its place: it takes numbers of
 * rows out of bpfof_selection() and ends with bpfof_end_own_filter(). A reduction of one's own
 * (BPFOF_OWN_REDUCTION) counts the rows that it gets in query->passed, has its state at
 * query->state_at, which is zero at first, and ends with bpfof_go_on(): its answer are rows of numbers of 8 bytes,
 * plain and not in order form, of which the host makes what was asked. Which columns they look at they are told:
 * bpfof_own_filter_column(), bpfof_own_reduction_column().
 *
 * In scratch, from its beginning: struct bpfof_query, which the host makes; what the stages need
 * besides, at offsets that it names; and the state of the reduction. In the workspace: struct
 * bpfof_batch, and the vectors, at offsets that the query names. The host places them all: stages
 * only follow its offsets, and what these lead astray faults.
 *
 * The source may keep vectors in the workspace from hop to hop, until it has all of a batch. The other
 * stages expect nothing to be there of an earlier hop. A source whose rows are not one behind the other
 * in the file asks for the next reads itself, before the others run; it counts rows in place of bytes
 * wherever file offsets of rows are named here, and sets ctx->offset to the number of the first one,
 * and ctx->data to where texts are counted from.
 *
 * Numbers in vectors are 64 bits in *order form*, which compares as an unsigned number:
 *   unsigned integers  as they are
 *   signed integers    with the sign bit turned over
 *   floats             as binary64; all bits turned over if it is negative, else the sign bit; each
 *                      NaN is ~0, behind infinity; -0.0 is just below 0.0
 * A vector of text has, for each row, where the text is: 16 bits from ctx->data on, and 16 bits of
 * length. Columns that may have missing values have a byte for each row besides: 1 if it is there.
 */
#ifndef BPFOF_BATCH_H
#define BPFOF_BATCH_H

#include "blocks.h"

/* Columns that one query can look at. */
#define BPFOF_COLUMNS_MAX 16

/* bpfof_column.kind */
#define BPFOF_UNSIGNED_COLUMN 0
#define BPFOF_SIGNED_COLUMN 1
#define BPFOF_FLOAT_COLUMN 2
#define BPFOF_TEXT_COLUMN 3

struct bpfof_column {
	/* where it is in a record in bytes, or which field of a line it is, ascending; not of columns */
	__u32 place;
	/* bytes in a record or a buffer, of a column's text those of an offset; of an integer in text: those
	 * that its values fit into */
	__u16 width;
	__u8 kind;
	/* 1: values may be missing */
	__u8 nullable;
	/* offsets in the workspace: a __u64 for each row, for text a __u32 */
	__u16 values_at;
	/* a byte for each row, if nullable */
	__u16 valid_at;
	__u32 reserved;
};

/* bpfof_query.flags */
/* Rows begin behind the first end of a line: the range begins within one. */
#define BPFOF_QUERY_SKIP 1
/* The reduction has been called. */
#define BPFOF_QUERY_BEGUN 2
/* The batch ends before a row that is not to be looked at: the chain ends there, too. */
#define BPFOF_QUERY_STOP 4

struct bpfof_query {
	/* rows that begin here or behind are not of this chain: file offset in bytes */
	__u64 end;
	/* the end of the file */
	__u64 file_end;
	/* so far: rows that were looked at, and that passed */
	__u64 rows;
	__u64 passed;
	/* bytes of a read */
	__u32 block;
	__u32 flags;
	/* functions by their numbers; a filter of 0: all rows pass; a map of 0, see below: there is none */
	__u32 filter;
	__u32 reduce;
	/* offsets in scratch */
	__u16 conditions_at;
	__u16 conditions;
	__u16 reduction_at;
	__u16 state_at;
	/* offsets in the workspace: 16 bits for each row, of masks a byte */
	__u16 selection_at;
	__u16 chosen_at;
	__u16 rows_at;
	__u16 masks_at;
	/* rows of a batch at most */
	__u16 rows_max;
	__u16 columns;
	/* of records: size in bytes; 1 where rows have numbers */
	__u16 record_size;
	/* of text: between fields; texts for a missing number, offset in scratch and count, 8 bytes
	 * each padded with 0 */
	__u8 delimiter;
	__u8 nulls;
	__u16 nulls_at;
	/* of columns: offset in scratch of what is known of their buffers */
	__u16 source_at;
	/* of the map: offset of its steps in scratch; how many, each of which makes a column behind those of
	 * the source */
	__u16 map_at;
	__u16 maps;
	__u32 map;
	/* a filter of one's own that is behind the shipped one; 0: none, or it is named above */
	__u32 own_filter;
	/* offset in scratch of struct bpfof_own; that of a reduction is at reduction_at */
	__u16 own_filter_at;
	/* of text: fields of a line */
	__u16 fields;
	__u16 reserved[2];
	struct bpfof_column column[BPFOF_COLUMNS_MAX];
};

/* Which columns a stage of one's own looks at: places in bpfof_query.column, in its order. */
struct bpfof_own {
	__u16 columns;
	__u16 column[BPFOF_COLUMNS_MAX];
};

/* The version of what a stage of one's own sees, which is in its name: the host refuses others. */
#define BPFOF_OWN_VERSION "1"
#define BPFOF_OWN_FILTER SEC("bpfof/own_filter_" BPFOF_OWN_VERSION)
#define BPFOF_OWN_REDUCTION SEC("bpfof/own_reduction_" BPFOF_OWN_VERSION)

/* At the beginning of the workspace. */
struct bpfof_batch {
	/* file offset of the row behind the last one of the batch */
	__u64 next;
	__u32 rows;
	/* how many are selected: their numbers, ascending, are at selection_at */
	__u32 selected;
	/* 1: all of them, and the selection is not yet written */
	__u32 all;
	__u32 reserved;
};

/* bpfof_query_answer.status */
/* All rows of the range. */
#define BPFOF_QUERY_END 0
/* There was no room for more: go on at next. */
#define BPFOF_QUERY_MORE 1
/* The row at next has no number in column `count`, or one that does not fit. */
#define BPFOF_QUERY_BAD_NUMBER 2
/* It has no such column. */
#define BPFOF_QUERY_SHORT_ROW 3
/* It is longer than a block. */
#define BPFOF_QUERY_LONG_ROW 4
/* It has a quote that does not end, or something between a quote and the end of the field. */
#define BPFOF_QUERY_BAD_QUOTES 5
/* Its text in column `count` is not where texts are. */
#define BPFOF_QUERY_BAD_TEXT 6
/* It has `count` fields, and should have another number. */
#define BPFOF_QUERY_BAD_FIELDS 7

/* The answer begins with this; the reduction's follows. */
struct bpfof_query_answer {
	__u64 next;
	__u32 status;
	/* what follows: rows, groups, entries */
	__u32 count;
	__u64 rows;
	__u64 passed;
};

/* With what stages abort: the function that should go on is not there, or scratch is too small. */
#define BPFOF_QUERY_NO_STAGE 1
#define BPFOF_QUERY_BAD_PLAN 2

/* Before a loop: so many turns at once, whose checks are then shared. */
#define UNROLL(turns) _Pragma(UNROLL_TEXT(clang loop unroll_count(turns)))
#define UNROLL_TEXT(text) #text

#define BPFOF_SIGN (1ULL << 63)
#define BPFOF_ORDER_NAN (~0ULL)

static inline struct bpfof_query *bpfof_query(const struct bpfof_ctx *ctx)
{
	return (struct bpfof_query *)ctx->scratch;
}

static inline struct bpfof_batch *bpfof_batch(void)
{
	return (struct bpfof_batch *)bpfof_workspace();
}

static inline void *bpfof_at(struct bpfof_batch *batch, __u32 offset)
{
	return (__u8 *)batch + offset;
}

/* The order form of the bits of a binary64. */
static inline __u64 bpfof_order_double(__u64 bits)
{
	if ((bits & ~BPFOF_SIGN) > 0x7ffULL << 52)
		return BPFOF_ORDER_NAN;
	return bits ^ ((__u64)((__s64)bits >> 63) | BPFOF_SIGN);
}

/* And back. */
static inline __u64 bpfof_double_of_order(__u64 order)
{
	return order & BPFOF_SIGN ? order ^ BPFOF_SIGN : ~order;
}

/*
 * If a <= b then `yes`, else `no`. A branch over one instruction is none in machine code, but a select: which
 * way it goes depends on the data, so it would often be predicted wrong. Clang does not always leave one.
 */
static inline __u64 bpfof_at_most(__u64 a, __u64 b, __u64 yes, __u64 no)
{
	__asm__("if %1 <= %2 goto +1\n%0 = %3" : "+r"(yes) : "r"(a), "r"(b), "r"(no));
	return yes;
}

/* The less, and the greater. */
static inline __u64 bpfof_least(__u64 a, __u64 b)
{
	__asm__("if %0 <= %1 goto +1\n%0 = %1" : "+r"(a) : "r"(b));
	return a;
}

static inline __u64 bpfof_greatest(__u64 a, __u64 b)
{
	__asm__("if %0 >= %1 goto +1\n%0 = %1" : "+r"(a) : "r"(b));
	return a;
}

/* The numbers of the selected rows, ascending. */
static inline __u16 *bpfof_selection(struct bpfof_query *query, struct bpfof_batch *batch)
{
	__u16 *selection = bpfof_at(batch, query->selection_at);

	if (batch->all) {
		for (__u32 row = 0; row < batch->rows; row++)
			selection[row] = row;
		batch->all = 0;
	}
	return selection;
}

/* File offset of a row of the batch. */
static inline __u64 bpfof_row_offset(const struct bpfof_ctx *ctx, struct bpfof_query *query,
				     struct bpfof_batch *batch, __u32 row)
{
	const __u16 *rows = bpfof_at(batch, query->rows_at);

	return ctx->offset + (query->record_size ? row * query->record_size : rows[row]);
}

/* Lets a stage go on: returns only if it is not there. */
static inline int bpfof_next_stage(__u32 function)
{
	bpfof_tail_call(function);
	return BPFOF_QUERY_NO_STAGE;
}

/* Ends a source's work on a batch. */
static inline int bpfof_end_source(const struct bpfof_query *query)
{
	return bpfof_next_stage(query->map ? query->map : query->filter ? query->filter : query->reduce);
}

/* Ends the shipped filter's work on a batch. */
static inline int bpfof_end_filter(const struct bpfof_query *query)
{
	return bpfof_next_stage(query->own_filter ? query->own_filter : query->reduce);
}

/* Ends the work of a filter of one's own: the first `kept` numbers of the selection are those of the rows that
 * pass, ascending. */
static inline int bpfof_end_own_filter(const struct bpfof_query *query, struct bpfof_batch *batch, __u32 kept)
{
	batch->selected = kept;
	return bpfof_next_stage(query->reduce);
}

static inline const struct bpfof_column *bpfof_own_column(const struct bpfof_ctx *ctx,
							  struct bpfof_query *query, __u32 own_at,
							  __u32 index)
{
	const struct bpfof_own *own = (const struct bpfof_own *)(ctx->scratch + own_at);

	return &query->column[own->column[index]];
}

/* The column that the user has named so many others before, from 0 on: its bpfof_at(batch, values_at), and
 * valid_at if it is nullable. */
static inline const struct bpfof_column *bpfof_own_filter_column(const struct bpfof_ctx *ctx,
								 struct bpfof_query *query,
								 __u32 index)
{
	return bpfof_own_column(ctx, query, query->own_filter_at, index);
}

static inline const struct bpfof_column *bpfof_own_reduction_column(const struct bpfof_ctx *ctx,
								    struct bpfof_query *query,
								    __u32 index)
{
	return bpfof_own_column(ctx, query, query->reduction_at, index);
}

/* Asks for the block at `offset`, of which something is left, unless the source has already asked. */
static inline int bpfof_read_rows(struct bpfof_ctx *ctx, struct bpfof_query *query, __u64 offset)
{
	__u64 end = query->record_size ? query->end : query->file_end, left = end - offset;

	if (ctx->reads)
		return 0;
	return bpfof_read(ctx, ctx->file, offset, left < query->block ? left : query->block);
}

/* An answer that is nothing but its header. */
static inline int bpfof_refuse(struct bpfof_ctx *ctx, __u32 status, __u64 row, __u32 column)
{
	struct bpfof_query_answer answer = { row, status, column, 0, 0 };

	bpfof_memmove(ctx->scratch, &answer, sizeof(answer));
	return bpfof_answer(ctx, sizeof(answer));
}

/*
 * Ends a reduction's work on a batch. If the range has ended, or `stop` is set, the first `size` bytes
 * of its state are the answer, up to the row at `next`; else the next block is read.
 */
static inline int bpfof_go_on(struct bpfof_ctx *ctx, struct bpfof_query *query, __u64 next,
			      int stop, __u32 count, __u32 size)
{
	struct bpfof_query_answer answer = { next, BPFOF_QUERY_END, count, query->rows,
					     query->passed };

	if (next < query->end) {
		if (!stop && !(query->flags & BPFOF_QUERY_STOP))
			return bpfof_read_rows(ctx, query, next);
		answer.status = BPFOF_QUERY_MORE;
	}
	bpfof_memmove(ctx->scratch + sizeof(answer), ctx->scratch + query->state_at, size);
	bpfof_memmove(ctx->scratch, &answer, sizeof(answer));
	return bpfof_answer(ctx, sizeof(answer) + size);
}

#endif
