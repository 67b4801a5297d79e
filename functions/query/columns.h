/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Source of a query: what it knows of the buffers of columns. A piece is what a column has in one
 * buffer. Offsets of 0 are pieces that a batch does not have: all its values are there.
 */
#ifndef QUERY_COLUMNS_H
#define QUERY_COLUMNS_H

#include "bpfof/batch.h"

#define COLUMNS_PIECES_MAX (3 * BPFOF_COLUMNS_MAX)

/* What a piece has. */
/* Nothing: a byte is read, for rows of which no column is needed. */
#define COLUMNS_NOTHING 0
/* A bit for each row: 1 if the value is there. */
#define COLUMNS_VALID 1
/* Numbers of the column's width. */
#define COLUMNS_NUMBERS 2
/* A bit for each row: the number. */
#define COLUMNS_BITS 3
/* Where texts begin, in integers of the column's width; one more than there are rows. */
#define COLUMNS_OFFSETS 4
/* The texts. */
#define COLUMNS_TEXTS 5

struct columns_piece {
	__u8 column;
	__u8 what;
};

/* Rows that lie together in the file. */
struct columns_batch {
	/* numbers of its first row, and behind its last one */
	__u64 start;
	__u64 end;
	/* file offset of each piece; then the size of the texts of each column that has some */
	__u64 piece[];
};

/* At source_at. The batches are at batches_at, in the order of their rows. */
struct columns {
	/* the rows in hand: number of the first one, and how many; 0 of them as the chain begins */
	__u64 first;
	__u32 rows;
	/* rows at a time, at present */
	__u32 step;
	/* where the texts of the rows in hand begin in the file, and in the block in hand */
	__u64 texts_from[BPFOF_COLUMNS_MAX];
	__u64 texts_in_hand;
	/* of the hop: which piece each read is of */
	__u8 read[BPFOF_MAX_READS];
	__u8 reads;
	/* the first piece that is not yet asked for */
	__u8 next;
	/* pieces, and those in front of the texts */
	__u8 pieces;
	__u8 plain;
	__u16 batch;
	__u16 batches;
	__u16 batches_at;
	__u16 batch_size;
	struct columns_piece piece[COLUMNS_PIECES_MAX];
};

#endif
