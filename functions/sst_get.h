/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Finds the newest version of one key in a set of RocksDB tables (BlockBasedTable, format_version 2 to
 * 7), newest table first, with the merge operands of the key that are newer than its newest value or
 * deletion. All integers are little-endian.
 *
 * A block, as RocksDB writes it, is
 *
 *     contents   compressed or not; if compressed, but not by Snappy, a varint32 with the
 *                uncompressed size precedes them
 *     __u8       compression: 0 none, 1 Snappy, 4 LZ4, 5 LZ4HC, 7 Zstandard
 *     __u32      checksum of everything before; in format_version 6 and later plus a number that
 *                depends on the table and the block's offset, see checksum_base
 *
 * Its size does not include the last five bytes. Contents are
 *
 *     entries    varint32 bytes shared with the previous key, varint32 other bytes of the key,
 *                varint32 bytes of the value (absent in an index with SST_INDEX_DELTA), the other
 *                bytes, the value
 *     restarts   __u32 each: offsets of entries that share no bytes, the first at 0
 *     hash       if the top bit of the last field is set: a hash index, which is ignored: __u8 for
 *                each bucket, __u16 with the number of buckets
 *     __u32      number of restarts; bit 29, which says that keys are spread evenly, is ignored
 *
 * The value in an index is the place of a block: varint64 offset, varint64 size. With SST_INDEX_DELTA,
 * an entry that shares bytes has only the difference between its size and the size of the previous
 * entry's block, as a zigzag varint64; its block follows the trailer of that block.
 *
 * The key in an index, a separator, is the last key of the block, or has a user key between that one and
 * the first user key of the next block. So if the search in an index has found an entry, and the block
 * that it names ends before the version wanted, the next block begins with a larger user key: the table
 * has no version of the key. A host that searches an index itself, and names the data block of the first
 * entry that is not before the user key with newest_tag, may rely on this as well.
 *
 * Not supported: tables whose data blocks store values separately from keys (bit 28 of the last field),
 * with user timestamps, with a comparator other than bytewise, or with the first keys of blocks in their
 * index. This function does not detect them: the host must. In an ingested table all versions have one
 * sequence number, which is not stored in the keys: a host that reads at an older sequence number must
 * leave the table out.
 *
 * Range deletions are ignored. A host that knows the range deletions of a table, and finds one that
 * covers the key, must end the list of tables with that table. A version found there with a smaller
 * sequence number, as the tag of the answer shows, is deleted.
 *
 * The versions of a key with merge operands may continue in the next data block. A host that names data
 * blocks must name these, too, as tables of the same file. If the target searches the index, a key whose
 * operands reach the end of a block is answered with SST_OTHER.
 *
 * Malformed data aborts the chain with a code of damage.h. DAMAGE_CHECKSUM is checked first. DAMAGE_SIZE
 * also means that a block cannot be decompressed, or not into SST_DECOMPRESSED_BYTES_MAX bytes.
 * DAMAGE_KEY_TOO_LONG means that scratch has no room for the argument and, behind it, the longest key
 * passed during the search.
 */
#ifndef SST_GET_H
#define SST_GET_H

#ifdef __bpf__
#include "bpfof/blocks.h"
#else
#include <linux/types.h>
#endif
#include "damage.h"

#define SST_TRAILER_BYTES 5
/* The largest block that is read, as stored, with its trailer: BPFOF_READ_MAX. */
#define SST_BLOCK_BYTES_MAX 57344
/* The largest decompressed block: BPFOF_WORKSPACE_SIZE. */
#define SST_DECOMPRESSED_BYTES_MAX 65536

/* Maximum number of tables, and of files, of a request. */
#define SST_TABLES_MAX 16

/* Checksum types, as in footers. */
#define SST_CHECKSUM_NONE 0
#define SST_CHECKSUM_CRC32C 1
#define SST_CHECKSUM_XXH3 4

/* The index's values are delta-encoded (format_version 4 and later). */
#define SST_INDEX_DELTA 1
/* The index's keys are user keys, without sequence number and type. */
#define SST_INDEX_USER_KEYS 2

/* The place where the search in one table begins. */
struct sst_table {
	/* the first block to read, and its size without trailer */
	__u64 offset;
	__u32 size;
	/* levels of index above the data block: 0 for a data block, 2 if the index is partitioned */
	__u8 levels;
	__u8 flags;
	__u8 checksum;
	/* index of the table's file in the request */
	__u8 file;
	/*
	 * In format_version 6 and later a number of the table, from its footer; 0 before. The checksum
	 * of a block is increased by this number XOR the sum of both halves of the block's offset.
	 */
	__u32 checksum_base;
	__u32 reserved;
};

/*
 * The argument; tables[], newest first, and the key follow. The first read is the block of table 0, with
 * its trailer. Requests for other keys may list the same files, so that they can share a vector.
 */
struct sst_get_request {
	/* versions with a larger sequence number << 8 | type are ignored */
	__u64 newest_tag;
	__u32 key_size;
	__u16 tables;
	/* index of the table being searched; 0 in a request */
	__u16 table;
	/* number of merge operands found, and bytes that they take at the end of scratch; 0 in a
	 * request */
	__u32 operands;
	__u32 operand_bytes;
};

#define SST_NOT_FOUND 0
#define SST_FOUND 1
#define SST_DELETED 2
/* A version of a type that this function does not support (wide columns), or operands that continue in
 * another block of a table whose index the target searches. */
#define SST_OTHER 3
/* Scratch has no room for the value and the operands. */
#define SST_TOO_LONG 4
/* The value is in a blob file: the answer has its place, as RocksDB stores it in tables. */
#define SST_BLOB 5

/*
 * The answer. The status is that of the newest version that is not a merge operand. If it is SST_FOUND
 * or SST_BLOB, value_size bytes of value follow. Then, except for SST_OTHER and SST_TOO_LONG, the newer
 * operands follow, oldest first: each a __u32 with its size, unaligned, and its bytes.
 */
struct sst_get_answer {
	__u32 status;
	__u32 value_size;
	/* sequence number << 8 | type of the version, 0 if there is none */
	__u64 tag;
	/* number of blocks read */
	__u32 blocks;
	/* index of the table that has the version; of the last table if there is none */
	__u32 table;
	__u32 operands;
	__u32 operand_bytes;
};

#endif
