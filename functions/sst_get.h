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
#include "sst_abi.h"

#define SST_TRAILER_BYTES 5
/* The largest block that is read, compressed, with its trailer. */
#define SST_BLOCK_BYTES_MAX BPFOF_READ_MAX

#endif
