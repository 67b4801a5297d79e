/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Sorted tables: immutable files of key-value pairs, as log-structured stores write them. All
 * integers are little-endian.
 *
 * A table is a file of blocks of any size at any offset. Data blocks hold entries ordered by key;
 * index blocks, in any number of layers, name the blocks below with the first key of each. The
 * program that opens a table must know the place of its root block.
 */
#ifndef SORTED_H
#define SORTED_H

#include "bpfof/blocks.h"

#define SORTED_INDEX 0x58444953u /* "SIDX" */
#define SORTED_DATA 0x54414453u	 /* "SDAT" */

/* Header of a block. */
struct sorted_block {
	__u32 magic;
	__u32 count;
};

/* Behind the header of an index block: `count` of these, ordered by key. */
struct sorted_child {
	__u64 first_key;
	__u64 offset;
	__u32 size;
	__u32 reserved;
};

/* Behind the header of a data block: `count` of these, ordered by key. */
struct sorted_entry {
	__u64 key;
	/* offset from the start of the block */
	__u32 value_offset;
	/* SORTED_DELETED: the key was deleted */
	__u32 value_size;
};

#define SORTED_DELETED 0xffffffffu
/* Maximum size of a block in bytes, and maximum number of layers of a table. */
#define SORTED_BLOCK_MAX 32768
#define SORTED_LAYERS_MAX 8

struct sorted_root {
	__u64 offset;
	__u32 size;
	__u32 reserved;
};

/* The argument: tables[i] is file i of the request, newest first. */
struct sorted_get {
	__u64 key;
	__u32 tables;
	/* layers of the current table passed so far; 0 when a table begins */
	__u32 layers;
	struct sorted_root root[BPFOF_MAX_READS];
};

/* The answer; value_size bytes of value follow. */
struct sorted_answer {
	__u32 status;
	/* index of the file in which the key was found */
	__u32 table;
	__u32 value_size;
	__u32 reserved;
};

#define SORTED_NOT_FOUND 0
#define SORTED_FOUND 1
#define SORTED_WAS_DELETED 2

/* Abort codes for damaged tables. */
#define SORTED_BAD_MAGIC 1
#define SORTED_BAD_COUNT 2
#define SORTED_BAD_CHILD 3
#define SORTED_BAD_VALUE 4
#define SORTED_TOO_DEEP 5
#define SORTED_BAD_ARGUMENT 6

#endif
