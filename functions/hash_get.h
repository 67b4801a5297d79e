/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * A hash table of buckets with chained overflow blocks. All integers are little-endian.
 *
 * Bucket number b is the block at base + b * block size. Entries that do not fit there are in
 * overflow blocks of the same size, anywhere else. The host hashes the key: the function gets those
 * bits of the hash that do not choose the bucket.
 */
#ifndef HASH_GET_H
#define HASH_GET_H

#include "bpfof/blocks.h"
#include "damage.h"

struct hash_block {
	/* CRC-32C of the rest of the block */
	__u32 checksum;
	/* bytes of entries that follow this structure; the rest of the block is unused */
	__u32 used;
	/* file offset of the next block of the bucket; 0: none */
	__u64 next;
	__u32 bucket;
	__u32 reserved;
};

/* Key and value follow; the next entry begins behind them, unaligned. */
struct hash_entry {
	__u32 hash;
	__u16 key_size;
	__u16 value_size;
};

/* The argument; the key follows. The first read is the whole block of the bucket. */
struct hash_get_request {
	__u32 hash;
	__u32 bucket;
	/* maximum number of blocks of a bucket */
	__u32 blocks_max;
	__u32 key_size;
};

/* The answer: the value follows. An empty answer: there is no such key. */
struct hash_get_answer {
	__u32 value_size;
};

#endif
