/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * BPF-KV as storage functions see it: the layout of its file, and the
 * arguments, answers and abort codes of bpfkv_get and bpfkv_range.
 * stores/bpfkv/src/{format,pushdown}.rs are the host's view of the same bytes.
 *
 * A database is one file of 512-byte blocks: a B+-tree of 31-way nodes, level
 * by level from the root at offset 0, then an unsorted log of 64-byte values,
 * eight a block. All integers are little-endian.
 */
#ifndef BPFKV_H
#define BPFKV_H

#include "bpfof/blocks.h"

#define BPFKV_FANOUT 31
#define BPFKV_BLOCK_BYTES 512
#define BPFKV_VALUE_BYTES 64

/* Set in pointers to children and values; not set in `next`. */
#define BPFKV_ON_DISK (1ULL << 63)
/* Fills the unused tail of a node that is not full; not a key. */
#define BPFKV_NO_KEY (~0ULL)

#define BPFKV_INTERNAL 0
#define BPFKV_LEAF 1

struct bpfkv_node {
	/* file offset of the right sibling, 0 in the last node of a level */
	__u64 next;
	__u64 type;
	/* ascending */
	__u64 key[BPFKV_FANOUT];
	/* file offset of the child or value, with BPFKV_ON_DISK */
	__u64 ptr[BPFKV_FANOUT];
};

struct bpfkv_value {
	__u64 word[BPFKV_VALUE_BYTES / 8];
};

/* Codes with which the functions abort: the defect of the database. */
#define BPFKV_BAD_NODE_TYPE 1
#define BPFKV_BAD_NODE_POINTER 2
#define BPFKV_BAD_VALUE_POINTER 3
#define BPFKV_KEYS_NOT_ASCENDING 4
#define BPFKV_EMPTY_NODE 5
/* The request, not the database, is wrong: unknown or contradictory flags, or a
 * scratch that is too small. */
#define BPFKV_BAD_REQUEST 6

/*
 * bpfkv_get: one key. The first read is a node of 512 bytes, usually the root.
 * The answer "not found" is the status alone, 8 bytes. BPFKV_NO_KEY must not be
 * requested: nodes that are not full contain it. Scratch needs room for the
 * answer only.
 */
struct bpfkv_get_request {
	__u64 key;
};

#define BPFKV_NOT_FOUND 0
#define BPFKV_FOUND 1

struct bpfkv_get_answer {
	__u64 status;
	struct bpfkv_value value;
};

/*
 * bpfkv_range: the keys of [begin, end), or as the flags change it. The first
 * read is a node of 512 bytes from which `begin` can be reached.
 */
#define BPFKV_EXCLUSIVE_BEGIN 1
#define BPFKV_INCLUSIVE_END 2
/* Answer with the number of keys; no value is read. */
#define BPFKV_COUNT 4
/* Answer with struct bpfkv_summary, without values. */
#define BPFKV_SUMMARY 8

struct bpfkv_range_request {
	__u64 begin;
	__u64 end;
	__u32 flags;
	/* the chain ends, with a resume point, before it needs more hops than
	 * this (11 let any tree of 8 levels make progress); 0 means no limit */
	__u32 hops_max;
};

/*
 * The answer: this header, then `pairs` values followed by their keys, 8 bytes
 * each; or the summary; or only its count. If the range goes on, the next
 * request reads next_leaf first and begins, inclusively, with next_key.
 */
struct bpfkv_range_answer {
	__u64 next_key;
	__u64 next_leaf;
	__u32 pairs;
	/* 1: the range goes on, 0: it is finished and next_leaf is 0 */
	__u32 more;
};

/* Aggregates over the first 8 bytes of each value, as a signed integer. */
struct bpfkv_summary {
	__u64 count;
	/* the exact sum, 128 bits; sum_low alone is the sum modulo 2^64 */
	__u64 sum_low;
	__s64 sum_high;
	/* meaningless when count is 0 */
	__s64 min;
	__s64 max;
};

/*
 * Bytes of scratch that a range needs. The state of the walk lies at the end of
 * scratch, and an answer of this many pairs ends where it begins. A range with
 * more pairs than fit takes several calls. A summary needs room for the values
 * of one leaf.
 */
#define BPFKV_WALK_BYTES 64
#define BPFKV_PAIRS_SCRATCH(pairs) \
	(sizeof(struct bpfkv_range_answer) + (pairs) * (8 + BPFKV_VALUE_BYTES) + BPFKV_WALK_BYTES)
#define BPFKV_SUMMARY_SCRATCH \
	(sizeof(struct bpfkv_range_answer) + sizeof(struct bpfkv_summary) + \
	 BPFKV_FANOUT * BPFKV_VALUE_BYTES + BPFKV_WALK_BYTES)
#define BPFKV_COUNT_SCRATCH \
	(sizeof(struct bpfkv_range_answer) + 8 + BPFKV_WALK_BYTES)

/*
 * Adds `keys` to `at` in one instruction, which a branch skips: clang would
 * turn it into a 0 or 1, a shift and an addition.
 */
static inline const __u64 *bpfkv_skip(const __u64 *at, __u32 keys)
{
	at += keys;
	__asm__ volatile("" : "+r"(at));
	return at;
}

/*
 * Returns the position behind the last of the 31 ascending keys that are <=
 * key: a binary search of five probes over the 32 possible answers.
 */
static inline const __u64 *bpfkv_upper_bound(const __u64 *keys, __u64 key)
{
	const __u64 *at = bpfkv_skip(keys, 0);

	if (at[15] <= key)
		at = bpfkv_skip(at, 16);
	if (at[7] <= key)
		at = bpfkv_skip(at, 8);
	if (at[3] <= key)
		at = bpfkv_skip(at, 4);
	if (at[1] <= key)
		at = bpfkv_skip(at, 2);
	if (at[0] <= key)
		at = bpfkv_skip(at, 1);
	return at;
}

/* If this is a pointer, its file offset is pointer ^ BPFKV_ON_DISK. */
static inline int bpfkv_is_node_pointer(__u64 pointer)
{
	return (__s64)pointer < 0 && pointer % BPFKV_BLOCK_BYTES == 0;
}

static inline int bpfkv_is_value_pointer(__u64 pointer)
{
	return (__s64)pointer < 0 && pointer % BPFKV_VALUE_BYTES == 0;
}

#endif
