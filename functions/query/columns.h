/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Source of a query: the buffers of columns. A piece is the part of a column in one buffer. An
 * offset of 0 means that a batch does not have the piece: all its values are present.
 */
#ifndef QUERY_COLUMNS_H
#define QUERY_COLUMNS_H

#include "bpfof/batch.h"

#define COLUMNS_PIECES_MAX (3 * BPFOF_COLUMNS_MAX)

/* Contents of a piece. */
/* Nothing: one byte is read, for rows of which no column is needed. */
#define COLUMNS_NOTHING 0
/* A bit for each row: 1 if the value is present. */
#define COLUMNS_VALID 1
/* Numbers of the column's width. */
#define COLUMNS_NUMBERS 2
/* A bit for each row: the value. */
#define COLUMNS_BITS 3
/* Positions of texts, in integers of the column's width: one more than there are rows. */
#define COLUMNS_OFFSETS 4
/* The texts. */
#define COLUMNS_TEXTS 5

struct columns_piece {
	__u8 column;
	__u8 what;
};

/* Rows that are contiguous in the file. */
struct columns_batch {
	/* number of its first row, and of the row behind its last */
	__u64 start;
	__u64 end;
	/* file offset of each piece; then the size of the texts of each text column */
	__u64 piece[];
};

/* At source_at. The batches are at batches_at, in the order of their rows. */
struct columns {
	/* the current rows: number of the first, and count; the count is 0 when the chain begins */
	__u64 first;
	__u32 rows;
	/* number of rows to take at a time, adapted as the chain goes on */
	__u32 step;
	/* start of the current rows' texts, in the file, and in the current block */
	__u64 texts_from[BPFOF_COLUMNS_MAX];
	__u64 texts_in_hand;
	/* the piece of each read of the hop */
	__u8 read[BPFOF_MAX_READS];
	__u8 reads;
	/* the first piece that has not been requested */
	__u8 next;
	/* number of pieces, and of pieces before the texts */
	__u8 pieces;
	__u8 plain;
	__u16 batch;
	__u16 batches;
	__u16 batches_at;
	__u16 batch_size;
	struct columns_piece piece[COLUMNS_PIECES_MAX];
};

#endif
