/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Tables of sorted blocks with prefix compression and restart points, as LSM stores write them:
 * LevelDB's, and RocksDB's with format_version 2, CRC-32C and a binary-search index. All integers
 * are little-endian.
 *
 * A block is
 *
 *     entries    varint32 bytes shared with the previous key, varint32 other bytes of the key,
 *                varint32 bytes of the value, the other bytes, the value; ordered by key
 *     restarts   __u32 each: offsets of the entries that share no bytes, the first at 0
 *     __u32      number of restarts, at least 1
 *     __u8       compression; 0: none
 *     __u32      masked CRC-32C of everything before
 *
 * Its size does not include the last five bytes. In an index block the value of an entry names a
 * block (varint64 offset, varint64 size). The key of the entry is not below the last key of that
 * block, and is below the first key of the next block.
 */
#ifndef BLOCK_GET_H
#define BLOCK_GET_H

#include "prefix_block.h"

/*
 * Keys are user keys followed by a tag of 8 bytes: sequence number << 8 | type. Versions of one key
 * are ordered by tag, descending: the newest comes first.
 */
#define BLOCK_TAGGED_KEYS 1

/*
 * The argument; the key follows, without a tag. The first read is the top index block, or a data
 * block if there are no levels, with its trailer.
 */
struct block_get_request {
	/* with BLOCK_TAGGED_KEYS: versions with larger tags are ignored */
	__u64 newest_tag;
	__u32 flags;
	/* levels of index blocks above the data blocks; the function counts it down */
	__u32 index_levels;
	__u32 key_size;
	__u32 reserved;
};

#define BLOCK_NOT_FOUND 0
#define BLOCK_FOUND 1
#define BLOCK_DELETED 2
/* Found, but the tag has another type: a merge, for example. Without its bytes if scratch has no room for them. */
#define BLOCK_OTHER 3
/* Found, but scratch has no room for the value: read it at value_offset. */
#define BLOCK_TOO_LONG 4

/* The answer; value_size bytes of value follow, or none if it is too long. */
struct block_get_answer {
	__u32 status;
	__u32 value_size;
	/* 0 without BLOCK_TAGGED_KEYS */
	__u64 tag;
	/* where the value is in the file */
	__u64 value_offset;
};

#endif
