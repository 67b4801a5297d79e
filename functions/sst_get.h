/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The newest version of one key in a set of RocksDB tables (BlockBasedTable, format_version 2 to
 * 7), newest table first; with the merge operands of the key that are newer than its newest value or
 * deletion. All integers are little-endian.
 *
 * A block, as RocksDB writes it, is
 *
 *     contents   compressed or not; if so and not with Snappy, varint32 of the size before
 *     __u8       compression: 0 none, 1 Snappy, 4 LZ4, 5 LZ4HC, 7 Zstandard
 *     __u32      checksum of all before; of format_version 6 and later plus what tells blocks at other
 *                places and of other tables apart, see checksum_base
 *
 * of which the last five bytes do not count as its size. Contents are
 *
 *     entries    varint32 bytes shared with the key before, varint32 other bytes of the key,
 *                varint32 bytes of the value (not in an index with SST_INDEX_DELTA), the other
 *                bytes, the value
 *     restarts   __u32 each: offsets of entries that share nothing, the first at 0
 *     hash       if the top bit of the last field is set: a hash index, which is not used: __u8 for
 *                each bucket, __u16 how many
 *     __u32      how many restarts; bit 29, which says that keys are spread evenly, is not used
 *
 * The value in an index is where a block is: varint64 offset, varint64 size; with SST_INDEX_DELTA
 * in an entry that shares bytes only the difference of the size to that of the entry before, as a
 * zigzag varint64, and the block follows that one's trailer.
 *
 * The key there, a separator, is the last one of the block, or has a user key between that one's
 * and the one of the next block's first. So where the search in an index has found an entry, and
 * the block that it names ends before the version wanted, the next block begins with a larger user
 * key: the table has no version. A host that searches an index itself and gives the data block, of
 * the first entry that is not before the user key with newest_tag, may rely on the same.
 *
 * Not for: tables whose data blocks have values apart from keys (bit 28 of the last field), with user
 * timestamps, with a comparator other than bytewise,
 * or with the first keys of blocks in their index. Nobody would notice here: the host has to know.
 * All versions in an ingested table have one sequence number, which is not in its keys: a host that
 * reads at an older one leaves the table out.
 *
 * Range deletions are not looked at. A host that knows those of a table, and has one that covers the key,
 * ends the list of tables with that one; what is found there with a smaller sequence number, by the tag
 * of the answer, is deleted.
 *
 * The versions of a key with merge operands may go on in the data block behind the one that the search
 * begins in. A host that names data blocks names these, too, as tables of the same file; where the target
 * searches the index, a key whose operands reach the end of a block is SST_OTHER.
 *
 * What does not look like this aborts the chain with a code of damage.h: DAMAGE_CHECKSUM first of
 * all; DAMAGE_SIZE also for what cannot be decompressed, or not into SST_DECOMPRESSED_BYTES_MAX bytes;
 * DAMAGE_KEY_TOO_LONG if scratch has no room for the argument and, behind it, the longest key that
 * is passed on the way.
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
/* The largest block that is read, compressed, with its trailer: BPFOF_READ_MAX. */
#define SST_BLOCK_BYTES_MAX 57344
/* The largest that is made of a compressed one: BPFOF_WORKSPACE_SIZE. */
#define SST_DECOMPRESSED_BYTES_MAX 65536

/* Tables of a request, and files. */
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
	/* the request's file that the table is */
	__u8 file;
	/*
	 * Of format_version 6 and later the table's own number, from its footer; 0 before. To the
	 * checksum of a block is added this, XOR the sum of both halves of the block's offset.
	 */
	__u32 checksum_base;
	__u32 reserved;
};

/*
 * The argument; tables[], newest first, and the key follow. The first read is the block of table 0,
 * with its trailer. Requests for other keys may list the same files, so that a vector runs them.
 */
struct sst_get_request {
	/* versions with a larger sequence number << 8 | type are not seen */
	__u64 newest_tag;
	__u32 key_size;
	__u16 tables;
	/* the table that is searched; 0 at first */
	__u16 table;
	/* merge operands that were found, and bytes at the end of scratch that have them; 0 at first */
	__u32 operands;
	__u32 operand_bytes;
};

#define SST_NOT_FOUND 0
#define SST_FOUND 1
#define SST_DELETED 2
/* A version of a type that this function does not know (wide columns), or operands that go on in
 * another block of a table whose index the target searches. */
#define SST_OTHER 3
/* Scratch has no room for the value and the operands. */
#define SST_TOO_LONG 4
/* The value is in a blob file: instead of it there is the place, as RocksDB writes it in tables. */
#define SST_BLOB 5

/*
 * The answer. The status is that of the newest version that is no merge operand. value_size bytes of
 * value follow, if it is SST_FOUND or SST_BLOB; then, but for SST_OTHER and SST_TOO_LONG, the operands
 * that are newer, oldest first: each a __u32 of its size, at any address, and its bytes.
 */
struct sst_get_answer {
	__u32 status;
	__u32 value_size;
	/* sequence number << 8 | type of the version, 0 if there is none */
	__u64 tag;
	/* blocks that were read */
	__u32 blocks;
	/* the table it was in; the last one if it was in none */
	__u32 table;
	__u32 operands;
	__u32 operand_bytes;
};

#endif
