/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The contract between the stages of a query. Stages are functions that the host loads separately; a chain
 * runs them one after the other, by tail calls, over the same block.
 *
 *     source -> map -> filter -> reduction        on every hop
 *
 * The source makes a batch of the rows in a block: a vector for each column that the query needs. The map
 * computes vectors of further columns, by arithmetic. The filter selects rows. The reduction processes the
 * selected rows, keeps its state in scratch, requests the next read, and answers.
 *
 * A user's own filter (BPFOF_OWN_FILTER) runs after the shipped one, or in its place. It removes row numbers
 * from bpfof_selection() and ends with bpfof_end_own_filter(). A user's own reduction (BPFOF_OWN_REDUCTION)
 * adds the number of rows that it gets to query->passed, keeps its state at query->state_at, which is
 * initially zero, and ends with bpfof_go_on(). Its answer consists of rows of 8-byte numbers, plain and not
 * in order form, from which the host makes the result. bpfof_own_filter_column() and
 * bpfof_own_reduction_column() give the columns that they process.
 *
 * Scratch begins with struct bpfof_query, which the host makes. The other data of the stages and the state of
 * the reduction follow, at offsets in that structure. The workspace has struct bpfof_batch, and the vectors,
 * at offsets in the query. The host chooses all offsets: the stages only follow them, and an access out of
 * the arena by a wrong offset faults.
 *
 * The source may keep vectors in the workspace from hop to hop, until a batch is complete. The other stages
 * must not expect data of an earlier hop there. A source whose rows are not contiguous in the file requests
 * the next reads itself, before the other stages run. It uses row numbers instead of bytes wherever this
 * header says file offset of a row, and sets ctx->offset to the number of the first row, and ctx->data to the
 * base of the offsets of texts.
 *
 * Numbers in vectors are 64 bits in *order form*, which compares as an unsigned number:
 *   unsigned integers  as they are
 *   signed integers    with the sign bit inverted
 *   floats             as binary64; all bits inverted if negative, else only the sign bit; each
 *                      NaN is ~0, above infinity; -0.0 is just below 0.0
 * A vector of text has the position of each row's text: a 16-bit offset from ctx->data, and a 16-bit length.
 * Columns that may have missing values also have a byte for each row: 1 if the value is present.
 */
#ifndef BPFOF_BATCH_H
#define BPFOF_BATCH_H

#include "blocks.h"

/* Maximum number of columns in one query. */
#define BPFOF_COLUMNS_MAX 16

/* bpfof_column.kind */
#define BPFOF_UNSIGNED_COLUMN 0
#define BPFOF_SIGNED_COLUMN 1
#define BPFOF_FLOAT_COLUMN 2
#define BPFOF_TEXT_COLUMN 3

struct bpfof_column {
	/* byte offset in a record, or index of the field in a line, ascending; not used by the columns
	 * source */
	__u32 place;
	/* bytes in a record or a buffer; for text in the columns source, bytes of an offset; for an integer
	 * in a text file, bytes that its values fit into */
	__u16 width;
	__u8 kind;
	/* 1: values may be missing */
	__u8 nullable;
	/* offset in the workspace of the values: a __u64 for each row, for text a __u32 */
	__u16 values_at;
	/* if nullable: offset in the workspace of a byte for each row */
	__u16 valid_at;
	__u32 reserved;
};

/* bpfof_query.flags */
/* The range begins within a line: rows begin behind the first end of a line. */
#define BPFOF_QUERY_SKIP 1
/* The reduction has been called before. */
#define BPFOF_QUERY_BEGUN 2
/* The batch ends before a row that must not be processed: the chain ends there, too. */
#define BPFOF_QUERY_STOP 4

struct bpfof_query {
	/* rows that begin at or behind this file offset do not belong to this chain */
	__u64 end;
	/* the end of the file */
	__u64 file_end;
	/* so far: rows processed, and rows that passed */
	__u64 rows;
	__u64 passed;
	/* bytes of a read; for the columns source, maximum number of rows of a batch */
	__u32 block;
	__u32 flags;
	/* numbers of functions; a filter of 0: all rows pass; a map of 0, see below: there is none */
	__u32 filter;
	__u32 reduce;
	/* offsets in scratch */
	__u16 conditions_at;
	__u16 conditions;
	__u16 reduction_at;
	__u16 state_at;
	/* offsets in the workspace: 16 bits for each row; of masks a byte for each row */
	__u16 selection_at;
	__u16 chosen_at;
	__u16 rows_at;
	__u16 masks_at;
	/* maximum number of rows of a batch */
	__u16 rows_max;
	__u16 columns;
	/* of records: size in bytes; 1 if rows are identified by numbers */
	__u16 record_size;
	/* of text files: the separator of fields; the texts that stand for a missing number: count, and
	 * offset in scratch, 8 bytes each padded with 0 */
	__u8 delimiter;
	__u8 nulls;
	__u16 nulls_at;
	/* of the columns source: offset in scratch of its struct columns */
	__u16 source_at;
	/* of the map: offset of its steps in scratch, and their number; each makes a column behind those of
	 * the source */
	__u16 map_at;
	__u16 maps;
	__u32 map;
	/* the user's own filter after the shipped one; 0: none, or it is `filter` above */
	__u32 own_filter;
	/* offset in scratch of the own filter's struct bpfof_own; that of an own reduction is at
	 * reduction_at */
	__u16 own_filter_at;
	/* of text files: fields of a line */
	__u16 fields;
	/* of text files: the usual `block`, while it is larger for one row; otherwise 0 */
	__u16 usual_block;
	__u16 reserved;
	struct bpfof_column column[BPFOF_COLUMNS_MAX];
};

/* The columns that a user's own stage processes: indices into bpfof_query.column, in the order of the
 * user. */
struct bpfof_own {
	__u16 columns;
	__u16 column[BPFOF_COLUMNS_MAX];
};

/* The version of the interface of own stages. It is part of their names: the host refuses other versions. */
#define BPFOF_OWN_VERSION "1"
#define BPFOF_OWN_FILTER SEC("bpfof/own_filter_" BPFOF_OWN_VERSION)
#define BPFOF_OWN_REDUCTION SEC("bpfof/own_reduction_" BPFOF_OWN_VERSION)

/* At the beginning of the workspace. */
struct bpfof_batch {
	/* file offset of the row behind the last row of the batch */
	__u64 next;
	__u32 rows;
	/* number of selected rows: their row numbers, ascending, are at selection_at */
	__u32 selected;
	/* 1: all rows are selected, and the selection is not yet written */
	__u32 all;
	__u32 reserved;
};

/* bpfof_query_answer.status */
/* All rows of the range have been processed. */
#define BPFOF_QUERY_END 0
/* There was no room for more: continue at next. */
#define BPFOF_QUERY_MORE 1
/* The row at next has no number in column `count`, or a number that does not fit. */
#define BPFOF_QUERY_BAD_NUMBER 2
/* The row has no such column. */
#define BPFOF_QUERY_SHORT_ROW 3
/* The row is longer than a block. */
#define BPFOF_QUERY_LONG_ROW 4
/* The row has a quote that is not closed, or bytes between a closing quote and the end of the field. */
#define BPFOF_QUERY_BAD_QUOTES 5
/* The text of the row in column `count` lies outside the column's texts. */
#define BPFOF_QUERY_BAD_TEXT 6
/* The row has `count` fields, which is not the expected number. */
#define BPFOF_QUERY_BAD_FIELDS 7

/* The answer begins with this structure; the reduction's part follows. */
struct bpfof_query_answer {
	__u64 next;
	__u32 status;
	/* number of rows, groups or entries that follow */
	__u32 count;
	__u64 rows;
	__u64 passed;
};

/* Abort codes of stages: the function that should continue is not loaded, or scratch is too small. */
#define BPFOF_QUERY_NO_STAGE 1
#define BPFOF_QUERY_BAD_PLAN 2

/* Before a loop: unrolls this many iterations, so that they share their checks. */
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

/* Converts the bits of a binary64 to order form. */
static inline __u64 bpfof_order_double(__u64 bits)
{
	if ((bits & ~BPFOF_SIGN) > 0x7ffULL << 52)
		return BPFOF_ORDER_NAN;
	return bits ^ ((__u64)((__s64)bits >> 63) | BPFOF_SIGN);
}

/* The inverse of bpfof_order_double(). */
static inline __u64 bpfof_double_of_order(__u64 order)
{
	return order & BPFOF_SIGN ? order ^ BPFOF_SIGN : ~order;
}

/*
 * Returns `yes` if a <= b, else `no`. A branch over a single instruction becomes a select in machine code,
 * not a branch. A real branch would often be mispredicted, because it depends on the data. Clang does not
 * always leave such a branch, hence the assembly.
 */
static inline __u64 bpfof_at_most(__u64 a, __u64 b, __u64 yes, __u64 no)
{
	__asm__("if %1 <= %2 goto +1\n%0 = %3" : "+r"(yes) : "r"(a), "r"(b), "r"(no));
	return yes;
}

/* Minimum and maximum. */
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

/* The row numbers of the selected rows, ascending. */
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

/* The file offset of a row of the batch. */
static inline __u64 bpfof_row_offset(const struct bpfof_ctx *ctx, struct bpfof_query *query,
				     struct bpfof_batch *batch, __u32 row)
{
	const __u16 *rows = bpfof_at(batch, query->rows_at);

	return ctx->offset + (query->record_size ? row * query->record_size : rows[row]);
}

/* Continues in a stage: returns only if it is not loaded. */
static inline int bpfof_next_stage(__u32 function)
{
	bpfof_tail_call(function);
	return BPFOF_QUERY_NO_STAGE;
}

/* Ends a source's work on a batch: the next stage continues. */
static inline int bpfof_end_source(const struct bpfof_query *query)
{
	return bpfof_next_stage(query->map ? query->map : query->filter ? query->filter : query->reduce);
}

/* Ends the shipped filter's work on a batch: the next stage continues. */
static inline int bpfof_end_filter(const struct bpfof_query *query)
{
	return bpfof_next_stage(query->own_filter ? query->own_filter : query->reduce);
}

/* Ends the own filter's work on a batch: the first `kept` entries of the selection are the row numbers that
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

/* The column with this index, from 0, among those that the user named. Its values are at bpfof_at(batch,
 * values_at), and if it is nullable, its bytes at valid_at. */
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

/* Requests the block at `offset`, which must lie before the end, unless the source has already requested
 * reads. */
static inline int bpfof_read_rows(struct bpfof_ctx *ctx, struct bpfof_query *query, __u64 offset)
{
	__u64 end = query->record_size ? query->end : query->file_end, left = end - offset;

	if (ctx->reads)
		return 0;
	return bpfof_read(ctx, ctx->file, offset, left < query->block ? left : query->block);
}

/* Answers with the header only. */
static inline int bpfof_refuse(struct bpfof_ctx *ctx, __u32 status, __u64 row, __u32 column)
{
	struct bpfof_query_answer answer = { row, status, column, 0, 0 };

	bpfof_memmove(ctx->scratch, &answer, sizeof(answer));
	return bpfof_answer(ctx, sizeof(answer));
}

/*
 * Ends a reduction's work on a batch. If the range has ended, or `stop` is set, answers with the first `size`
 * bytes of the reduction's state; rows up to `next` are processed. Otherwise reads the next block.
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
