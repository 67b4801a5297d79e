/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The newest version of one key in a set of RocksDB tables (BlockBasedTable, format_version 2 to 5),
 * newest table first. All integers are little-endian.
 *
 * A block, as RocksDB writes it, is
 *
 *     contents   compressed or not; if so and not with Snappy, varint32 of the size before
 *     __u8       compression: 0 none, 1 Snappy, 4 LZ4, 5 LZ4HC, 7 Zstandard
 *     __u32      checksum of all before
 *
 * of which the last five bytes do not count as its size. Contents are
 *
 *     entries    varint32 bytes shared with the key before, varint32 other bytes of the key, varint32
 *                bytes of the value (not in an index with SST_INDEX_DELTA), the other bytes, the value
 *     restarts   __u32 each: offsets of entries that share nothing, the first at 0
 *     hash       if the top bit of the last field is set: a hash index, which is not used
 *     __u32      how many restarts
 *
 * The value in an index is where a block is: varint64 offset, varint64 size; with SST_INDEX_DELTA in
 * an entry that shares bytes only the difference of the size to that of the entry before, as a
 * zigzag varint64, and the block follows that one's trailer.
 */
#ifndef SST_GET_H
#define SST_GET_H

#include "bpfof/blocks.h"
#include "damage.h"

#define SST_TRAILER_BYTES 5
/* The largest block that is read, compressed, with its trailer. */
#define SST_BLOCK_BYTES_MAX BPFOF_READ_MAX

/* Files of a request. */
#define SST_TABLES_MAX 16

/* Checksums, as in footers. */
#define SST_CHECKSUM_NONE 0
#define SST_CHECKSUM_CRC32C 1
#define SST_CHECKSUM_XXH3 4

/* The index's values are differences (format_version 4 and later). */
#define SST_INDEX_DELTA 1
/* The index's keys are those of the user, without sequence number and type. */
#define SST_INDEX_USER_KEYS 2

/* Where the search in one table begins. */
struct sst_table {
	/* the block to begin with, and its size without trailer */
	__u64 offset;
	__u32 size;
	/* levels of index above the data block: 0 if it is one, 2 if the index is partitioned */
	__u8 levels;
	__u8 flags;
	__u8 checksum;
	__u8 reserved;
};

/*
 * The argument; tables[], newest first, and the key follow. Table number n is the request's file n,
 * and the first read is its block, with trailer, in the first.
 */
struct sst_get_request {
	/* versions with a larger sequence number << 8 | type are not seen */
	__u64 newest_tag;
	__u32 key_size;
	__u32 tables;
};

#define SST_NOT_FOUND 0
#define SST_FOUND 1
#define SST_DELETED 2
/* The newest version is of a type that this function does not know: a merge, a blob. */
#define SST_OTHER 3
/* Found, but scratch has no room for the value. */
#define SST_TOO_LONG 4

/* The answer; value_size bytes of value follow, if it was found and is not too long. */
struct sst_get_answer {
	__u32 status;
	__u32 value_size;
	/* sequence number << 8 | type of the version, 0 if there is none */
	__u64 tag;
	/* blocks that were read */
	__u32 blocks;
	/* the table it was in */
	__u32 table;
};

#endif
