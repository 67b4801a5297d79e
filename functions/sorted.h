/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Sorted tables: immutable files of key-value pairs, as log-structured stores write them. All
 * integers are little-endian.
 *
 * A table is a file of blocks of any size and at any offset. Data blocks hold entries in the order
 * of their keys; index blocks, in as many layers as there are, name the blocks below with the first
 * key of each. Who opens a table knows where its root block is.
 */
#ifndef SORTED_H
#define SORTED_H

#include "bpfof/blocks.h"

#define SORTED_INDEX 0x58444953u /* "SIDX" */
#define SORTED_DATA 0x54414453u	 /* "SDAT" */

/* A block begins with this. */
struct sorted_block {
	__u32 magic;
	__u32 count;
};

/* Behind the header of an index block: count of these, by key. */
struct sorted_child {
	__u64 first_key;
	__u64 offset;
	__u32 size;
	__u32 reserved;
};

/* Behind the header of a data block: count of these, by key. */
struct sorted_entry {
	__u64 key;
	/* from the start of the block */
	__u32 value_offset;
	/* SORTED_DELETED: the key was deleted */
	__u32 value_size;
};

#define SORTED_DELETED 0xffffffffu
/* A block has at most this many bytes, and a table this many layers. */
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
	/* layers that the table in hand may still have; 0 when a table is begun */
	__u32 layers;
	struct sorted_root root[BPFOF_MAX_READS];
};

/* The answer; value_size bytes of value follow. */
struct sorted_answer {
	__u32 status;
	/* file in which the key was found */
	__u32 table;
	__u32 value_size;
	__u32 reserved;
};

#define SORTED_NOT_FOUND 0
#define SORTED_FOUND 1
#define SORTED_WAS_DELETED 2

/* What the function returns for damaged tables. */
#define SORTED_BAD_MAGIC 1
#define SORTED_BAD_COUNT 2
#define SORTED_BAD_CHILD 3
#define SORTED_BAD_VALUE 4
#define SORTED_TOO_DEEP 5
#define SORTED_BAD_ARGUMENT 6

#endif
