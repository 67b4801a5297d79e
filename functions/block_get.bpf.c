/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The value of one key of a table of sorted blocks: index blocks, one a hop, then the data block.
 * Each block is checked against its checksum before anything in it is believed.
 */
#include "block_get.h"

struct block {
	const __u8 *entries;
	const __u8 *entries_end;
	/* offsets of the restart points, also where the entries end */
	const __u8 *restart;
	__u32 restarts;
};

struct entry {
	__u32 shared;
	__u32 other_size;
	__u32 value_size;
	const __u8 *other;
	const __u8 *value;
};

/* The key of the entry in hand, behind that of the request in scratch. */
struct current {
	__u8 *key;
	__u32 size;
	__u32 room;
};

/* What follows is one of these, or the code of a damage. */
#define AT_ENTRY 0
#define PAST_END (-1)

static inline __u32 unmask(__u32 masked)
{
	__u32 rotated = masked - 0xa282ead8u;

	return rotated >> 17 | rotated << 15;
}

static inline int open_block(const struct bpfof_ctx *ctx, struct block *block)
{
	__u64 size = bpfof_data_size(ctx);
	const __u8 *trailer = ctx->data_end - BLOCK_TRAILER_BYTES;

	/* One restart point, their number, the trailer. */
	if (size < 8 + BLOCK_TRAILER_BYTES)
		return DAMAGE_SIZE;
	size -= BLOCK_TRAILER_BYTES;
	if ((__u32)bpfof_crc32c(ctx->data, 0, size + 1) != unmask(bpfof_le32(trailer + 1)))
		return DAMAGE_CHECKSUM;
	if (*trailer)
		return DAMAGE_COMPRESSED;
	block->restarts = bpfof_le32(trailer - 4);
	if (block->restarts == 0 || block->restarts > (size - 4) / 4)
		return DAMAGE_ENTRY;
	block->entries = ctx->data;
	block->restart = trailer - 4 - 4 * (__u64)block->restarts;
	block->entries_end = block->restart;
	return 0;
}

/* Takes an entry; the cursor fails at one that is damaged. */
static inline void take_entry(struct bpfof_cursor *cursor, struct entry *entry)
{
	entry->shared = bpfof_take_varint32(cursor);
	entry->other_size = bpfof_take_varint32(cursor);
	entry->value_size = bpfof_take_varint32(cursor);
	entry->other = bpfof_take(cursor, entry->other_size);
	entry->value = bpfof_take(cursor, entry->value_size);
}

static inline struct bpfof_cursor at_restart(const struct block *block, __u32 number)
{
	const __u8 *from = block->entries + bpfof_le32(block->restart + 4 * (__u64)number);

	return bpfof_cursor(from, block->entries_end);
}

/* < 0, 0, > 0 as a key of a block comes before, is, or comes after the one that is wanted. */
static inline __s64 order(const struct block_get_request *request, const __u8 *key, __u32 size)
{
	__u64 tag, newest = request->newest_tag;
	__s64 found;

	if (!(request->flags & BLOCK_TAGGED_KEYS))
		return bpfof_compare(key, size, request + 1, request->key_size);
	size -= 8;
	found = bpfof_compare(key, size, request + 1, request->key_size);
	if (found)
		return found;
	tag = bpfof_le64(key + size);
	return tag > newest ? -1 : tag < newest;
}

static inline __u32 key_min(const struct block_get_request *request)
{
	return request->flags & BLOCK_TAGGED_KEYS ? 8 : 0;
}

/* The cursor from which to go on: the last restart point whose key is below the one wanted. */
static inline struct bpfof_cursor find_restart(const struct block_get_request *request,
					       const struct block *block)
{
	/* The first one is where to begin if none is below. */
	struct bpfof_search search = { 1, block->restarts };
	struct entry entry;

	while (search.low < search.high) {
		__u32 middle = bpfof_middle(&search);
		struct bpfof_cursor cursor = at_restart(block, middle);

		take_entry(&cursor, &entry);
		if (bpfof_failed(&cursor) || entry.shared || entry.other_size < key_min(request)) {
			bpfof_fail(&cursor);
			return cursor;
		}
		bpfof_narrow(&search, middle, order(request, entry.other, entry.other_size) < 0);
	}
	return at_restart(block, search.low - 1);
}

/* Goes to the first entry that is not before the key wanted. */
static inline int seek(const struct block_get_request *request, const struct block *block,
		       struct entry *entry, struct current *current)
{
	struct bpfof_cursor cursor = find_restart(request, block);

	while (bpfof_left(&cursor)) {
		take_entry(&cursor, entry);
		if (bpfof_failed(&cursor) || entry->shared > current->size)
			return DAMAGE_ENTRY;
		if (entry->other_size > current->room - entry->shared)
			return DAMAGE_KEY_TOO_LONG;
		bpfof_memmove(current->key + entry->shared, entry->other, entry->other_size);
		current->size = entry->shared + entry->other_size;
		if (current->size < key_min(request))
			return DAMAGE_ENTRY;
		if (order(request, current->key, current->size) >= 0)
			return AT_ENTRY;
	}
	return bpfof_failed(&cursor) ? DAMAGE_ENTRY : PAST_END;
}

static inline int descend(struct bpfof_ctx *ctx, struct block_get_request *request,
			  const struct entry *entry)
{
	struct bpfof_cursor cursor = bpfof_cursor(entry->value, entry->value + entry->value_size);
	__u64 offset = bpfof_take_varint64(&cursor), size = bpfof_take_varint64(&cursor);

	if (bpfof_failed(&cursor))
		return DAMAGE_ENTRY;
	if (size > BLOCK_BYTES_MAX - BLOCK_TRAILER_BYTES)
		return DAMAGE_POINTER;
	request->index_levels--;
	return bpfof_read(ctx, ctx->file, offset, size + BLOCK_TRAILER_BYTES);
}

static inline int answer(struct bpfof_ctx *ctx, __u32 status, __u64 tag, const struct entry *entry)
{
	struct block_get_answer *answer = (struct block_get_answer *)ctx->scratch;
	__u32 value_size = entry ? entry->value_size : 0;

	answer->value_size = value_size;
	answer->value_offset = entry ? ctx->offset + (entry->value - ctx->data) : 0;
	answer->tag = tag;
	if (value_size > ctx->scratch_size - sizeof(*answer)) {
		status = BLOCK_TOO_LONG;
		value_size = 0;
	}
	answer->status = status;
	if (value_size)
		bpfof_memmove(answer + 1, entry->value, value_size);
	return bpfof_answer(ctx, sizeof(*answer) + value_size);
}

static inline int found(struct bpfof_ctx *ctx, const struct block_get_request *request,
			const struct entry *entry, const struct current *current)
{
	__u32 tag_size = key_min(request), status = BLOCK_OTHER;
	__u64 tag = 0;

	if (!bpfof_equal(current->key, current->size - tag_size, request + 1, request->key_size))
		return answer(ctx, BLOCK_NOT_FOUND, 0, 0);
	if (!tag_size)
		return answer(ctx, BLOCK_FOUND, 0, entry);
	tag = bpfof_le64(current->key + current->size - tag_size);
	if ((__u8)tag == BLOCK_TYPE_VALUE)
		status = BLOCK_FOUND;
	else if ((__u8)tag == BLOCK_TYPE_DELETION || (__u8)tag == BLOCK_TYPE_SINGLE_DELETION)
		return answer(ctx, BLOCK_DELETED, tag, 0);
	return answer(ctx, status, tag, entry);
}

SEC("bpfof/block_get")
int block_get(struct bpfof_ctx *ctx)
{
	struct block_get_request *request = (struct block_get_request *)ctx->scratch;
	struct current current = { 0 };
	struct block block;
	struct entry entry;
	int error;

	if (ctx->scratch_size < sizeof(*request) || request->reserved ||
	    request->flags & ~BLOCK_TAGGED_KEYS ||
	    request->key_size > ctx->scratch_size - sizeof(*request))
		return DAMAGE_REQUEST;
	current.key = (__u8 *)(request + 1) + request->key_size;
	current.room = ctx->scratch_size - sizeof(*request) - request->key_size;
	error = open_block(ctx, &block);
	if (error)
		return error;
	error = seek(request, &block, &entry, &current);
	if (error == PAST_END)
		return answer(ctx, BLOCK_NOT_FOUND, 0, 0);
	if (error)
		return error;
	if (request->index_levels)
		return descend(ctx, request, &entry);
	return found(ctx, request, &entry, &current);
}
