/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Building blocks of storage functions: numbers in blocks, a cursor that stays within its block,
 * binary search, and ways to end a call. docs/writing-functions.md shows how to use them.
 *
 * Everything is inlined, so a function pays only for the parts that it uses. Nothing here is needed
 * for safety: an access outside of the arena ends the chain anyway. These parts help a function to
 * report a damaged block with an error code of its own, and never to read beyond a field.
 */
#ifndef BPFOF_BLOCKS_H
#define BPFOF_BLOCKS_H

#include "../bpfof.h"

/*
 * A read of up to this many bytes stays within BPFOF_MAX_HOP_BYTES at any offset, on devices with
 * logical blocks of up to 4096 bytes.
 */
#define BPFOF_READ_MAX (BPFOF_MAX_HOP_BYTES - 2 * 4096)

/* ---- Numbers, unaligned and in either byte order ---- */

typedef __u16 __attribute__((may_alias)) bpfof_any16;
typedef __u32 __attribute__((may_alias)) bpfof_any32;
typedef __u64 __attribute__((may_alias)) bpfof_any64;

static inline __u16 bpfof_le16(const void *at)
{
	return *(const bpfof_any16 *)at;
}

static inline __u32 bpfof_le32(const void *at)
{
	return *(const bpfof_any32 *)at;
}

static inline __u64 bpfof_le64(const void *at)
{
	return *(const bpfof_any64 *)at;
}

static inline __u16 bpfof_be16(const void *at)
{
	return __builtin_bswap16(bpfof_le16(at));
}

static inline __u32 bpfof_be32(const void *at)
{
	return __builtin_bswap32(bpfof_le32(at));
}

static inline __u64 bpfof_be64(const void *at)
{
	return __builtin_bswap64(bpfof_le64(at));
}

/* ---- Bytes ---- */

/* Size of the current block in bytes. */
static inline __u64 bpfof_data_size(const struct bpfof_ctx *ctx)
{
	return ctx->data_end - ctx->data;
}

/* Returns < 0, 0 or > 0 as a comes before, is, or comes after b. A prefix of a string comes before
 * it. */
static inline __s64 bpfof_compare(const void *a, __u64 a_size, const void *b, __u64 b_size)
{
	__s64 order = bpfof_memcmp(a, b, a_size < b_size ? a_size : b_size);

	return order ? order : (__s64)a_size - (__s64)b_size;
}

static inline int bpfof_equal(const void *a, __u64 a_size, const void *b, __u64 b_size)
{
	return a_size == b_size && bpfof_memcmp(a, b, a_size) == 0;
}

/* ---- A cursor: takes fields one after the other, up to an end ---- */

/*
 * Taking more bytes than there are fails, and so does every later take. So a function may take all
 * fields of an entry and check for failure once. A failed take returns 0.
 */
struct bpfof_cursor {
	/* the next byte; 0 after a failure */
	const __u8 *at;
	const __u8 *end;
};

/* A cursor over the bytes from `from` up to `end`; it has failed if `from` is behind `end`. */
static inline struct bpfof_cursor bpfof_cursor(const void *from, const void *end)
{
	struct bpfof_cursor cursor = { from, end };

	if (cursor.at > cursor.end)
		cursor.at = cursor.end = 0;
	return cursor;
}

static inline int bpfof_failed(const struct bpfof_cursor *cursor)
{
	return !cursor->at;
}

static inline void bpfof_fail(struct bpfof_cursor *cursor)
{
	cursor->at = cursor->end = 0;
}

/* Number of bytes left. */
static inline __u64 bpfof_left(const struct bpfof_cursor *cursor)
{
	return cursor->end - cursor->at;
}

/* The next `size` bytes. */
static inline const __u8 *bpfof_take(struct bpfof_cursor *cursor, __u64 size)
{
	const __u8 *at = cursor->at;

	if (size > bpfof_left(cursor)) {
		bpfof_fail(cursor);
		return 0;
	}
	cursor->at = at + size;
	return at;
}

static inline __u16 bpfof_take_le16(struct bpfof_cursor *cursor)
{
	const __u8 *at = bpfof_take(cursor, 2);

	return at ? bpfof_le16(at) : 0;
}

static inline __u32 bpfof_take_le32(struct bpfof_cursor *cursor)
{
	const __u8 *at = bpfof_take(cursor, 4);

	return at ? bpfof_le32(at) : 0;
}

static inline __u64 bpfof_take_le64(struct bpfof_cursor *cursor)
{
	const __u8 *at = bpfof_take(cursor, 8);

	return at ? bpfof_le64(at) : 0;
}

/*
 * Takes a number of at most `bits` bits in groups of seven, the lowest first; all bytes but the
 * last have their top bit set. A longer number, or one without an end, fails.
 */
static inline __u64 bpfof_take_varint(struct bpfof_cursor *cursor, __u32 bits)
{
	const __u8 *at = cursor->at, *end = cursor->end;
	__u64 value = 0;

	for (__u32 shift = 0; at < end && shift < bits; shift += 7) {
		__u64 byte = *at++;

		if (shift + 7 > bits && byte >> (bits - shift))
			break;
		value |= (byte & 127) << shift;
		if (byte < 128) {
			cursor->at = at;
			return value;
		}
	}
	bpfof_fail(cursor);
	return 0;
}

/* Takes a varint as in LSM tables and protocol buffers. Most have one byte, which is the fastest
 * case. */
static inline __u32 bpfof_take_varint32(struct bpfof_cursor *cursor)
{
	const __u8 *at = cursor->at;

	if (at < cursor->end && *at < 128) {
		cursor->at = at + 1;
		return *at;
	}
	return bpfof_take_varint(cursor, 32);
}

static inline __u64 bpfof_take_varint64(struct bpfof_cursor *cursor)
{
	return bpfof_take_varint(cursor, 64);
}

/* ---- Binary search ---- */

/*
 * Search over items of which the first ones are "below" and the others are not:
 *
 *     struct bpfof_search search = { 0, count };
 *
 *     while (search.low < search.high) {
 *         __u32 middle = bpfof_middle(&search);
 *
 *         bpfof_narrow(&search, middle, item[middle] < wanted);
 *     }
 *
 * Afterwards `low` is the number of items below.
 */
struct bpfof_search {
	__u32 low;
	__u32 high;
};

static inline __u32 bpfof_middle(const struct bpfof_search *search)
{
	return (search->low + search->high) / 2;
}

static inline void bpfof_narrow(struct bpfof_search *search, __u32 middle, int is_below)
{
	if (is_below)
		search->low = middle + 1;
	else
		search->high = middle;
}

/* Returns how many of `count` ascending numbers, `stride` bytes apart, are below `key`. */
static inline __u32 bpfof_lower_bound(const void *first, __u64 stride, __u32 count, __u64 key)
{
	struct bpfof_search search = { 0, count };

	while (search.low < search.high) {
		__u32 middle = bpfof_middle(&search);

		bpfof_narrow(&search, middle, bpfof_le64((const __u8 *)first + middle * stride) < key);
	}
	return search.low;
}

/* Returns how many of them are less than or equal to `key`. */
static inline __u32 bpfof_upper_bound(const void *first, __u64 stride, __u32 count, __u64 key)
{
	struct bpfof_search search = { 0, count };

	while (search.low < search.high) {
		__u32 middle = bpfof_middle(&search);

		bpfof_narrow(&search, middle, bpfof_le64((const __u8 *)first + middle * stride) <= key);
	}
	return search.low;
}

/* ---- Ends of a call; all return 0, so that a function can return their result ---- */

/* Makes this read the next hop. */
static inline int bpfof_read(struct bpfof_ctx *ctx, __u32 file, __u64 offset, __u32 size)
{
	ctx->next_offset[0] = offset;
	ctx->next_size[0] = size;
	ctx->next_file[0] = file;
	ctx->reads = 1;
	return 0;
}

/* Ends the chain: the first `size` bytes of scratch are the answer. */
static inline int bpfof_answer(struct bpfof_ctx *ctx, __u32 size)
{
	ctx->out_len = size;
	ctx->done = 1;
	return 0;
}

#endif
