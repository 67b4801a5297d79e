/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Looks up the value of one key in a table of sorted blocks: index blocks, one a hop, then the
 * data block. Verifies the checksum of each block before it uses anything in the block.
 */
#include "block_get.h"

static inline int open_block(const struct bpfof_ctx *ctx, struct prefix_block *block)
{
	__u64 size = bpfof_data_size(ctx);
	const __u8 *trailer = ctx->data_end - PREFIX_TRAILER_BYTES;

	/* One restart point, their number, the trailer. */
	if (size < 8 + PREFIX_TRAILER_BYTES)
		return DAMAGE_SIZE;
	size -= PREFIX_TRAILER_BYTES;
	if ((__u32)bpfof_crc32c(ctx->data, 0, size + 1) != prefix_unmask(bpfof_le32(trailer + 1)))
		return DAMAGE_CHECKSUM;
	if (*trailer)
		return DAMAGE_COMPRESSED;
	return prefix_open(block, ctx->data, trailer - 4, bpfof_le32(trailer - 4));
}

static inline int answer(struct bpfof_ctx *ctx, __u32 status, __u64 tag,
			 const struct prefix_entry *entry)
{
	struct block_get_answer *answer = (struct block_get_answer *)ctx->scratch;
	__u32 value_size = entry ? entry->value_size : 0;

	answer->value_size = value_size;
	answer->value_offset = entry ? ctx->offset + (entry->value - ctx->data) : 0;
	answer->tag = tag;
	if (value_size > ctx->scratch_size - sizeof(*answer)) {
		if (status == BLOCK_FOUND)
			status = BLOCK_TOO_LONG;
		value_size = 0;
	}
	answer->status = status;
	if (value_size)
		bpfof_memmove(answer + 1, entry->value, value_size);
	return bpfof_answer(ctx, sizeof(*answer) + value_size);
}

static inline int found(struct bpfof_ctx *ctx, const struct prefix_wanted *wanted,
			const struct prefix_entry *entry, const struct prefix_key *current)
{
	__u32 tag_size = wanted->tag_size, status = BLOCK_OTHER;
	__u64 tag = 0;

	if (!bpfof_equal(current->key, current->size - tag_size, wanted->key, wanted->size))
		return answer(ctx, BLOCK_NOT_FOUND, 0, 0);
	if (!tag_size)
		return answer(ctx, BLOCK_FOUND, 0, entry);
	tag = bpfof_le64(current->key + current->size - tag_size);
	if ((__u8)tag == PREFIX_TYPE_VALUE)
		status = BLOCK_FOUND;
	else if ((__u8)tag == PREFIX_TYPE_DELETION || (__u8)tag == PREFIX_TYPE_SINGLE_DELETION)
		return answer(ctx, BLOCK_DELETED, tag, 0);
	return answer(ctx, status, tag, entry);
}

SEC("bpfof/block_get")
int block_get(struct bpfof_ctx *ctx)
{
	struct block_get_request *request = (struct block_get_request *)ctx->scratch;
	struct prefix_wanted wanted = { 0 };
	struct prefix_key current = { 0 };
	struct prefix_entry entry;
	struct prefix_block block;
	int error;

	if (ctx->scratch_size < sizeof(*request) || request->reserved ||
	    request->flags & ~BLOCK_TAGGED_KEYS ||
	    request->key_size > ctx->scratch_size - sizeof(*request))
		return DAMAGE_REQUEST;
	wanted.key = (const __u8 *)(request + 1);
	wanted.size = request->key_size;
	wanted.tag_size = request->flags & BLOCK_TAGGED_KEYS ? 8 : 0;
	wanted.newest_tag = request->newest_tag;
	current.key = (__u8 *)(request + 1) + request->key_size;
	current.room = ctx->scratch_size - sizeof(*request) - request->key_size;
	error = open_block(ctx, &block);
	if (error)
		return error;
	error = prefix_seek(&wanted, &block, &entry, &current);
	if (error == PREFIX_PAST_END)
		return answer(ctx, BLOCK_NOT_FOUND, 0, 0);
	if (error)
		return error;
	if (!request->index_levels)
		return found(ctx, &wanted, &entry, &current);
	request->index_levels--;
	return prefix_descend(ctx, &wanted, &entry);
}
