/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Looks up the value of one key in a hash table: the blocks of its bucket, one a hop. */
#include "hash_get.h"

static inline int answer(struct bpfof_ctx *ctx, const __u8 *value, __u32 value_size)
{
	struct hash_get_answer *answer = (struct hash_get_answer *)ctx->scratch;

	if (value_size > ctx->scratch_size - sizeof(*answer))
		return DAMAGE_REQUEST;
	answer->value_size = value_size;
	bpfof_memmove(answer + 1, value, value_size);
	return bpfof_answer(ctx, sizeof(*answer) + value_size);
}

/* Ends the chain, or asks for the next block. */
static inline int search(struct bpfof_ctx *ctx, const struct hash_get_request *request,
			 const struct hash_block *block)
{
	const __u8 *entries = (const __u8 *)(block + 1);
	struct bpfof_cursor cursor = bpfof_cursor(entries, entries + block->used);

	while (bpfof_left(&cursor)) {
		__u32 hash = bpfof_take_le32(&cursor);
		__u32 key_size = bpfof_take_le16(&cursor), value_size = bpfof_take_le16(&cursor);
		const __u8 *key = bpfof_take(&cursor, key_size);
		const __u8 *value = bpfof_take(&cursor, value_size);

		if (bpfof_failed(&cursor))
			return DAMAGE_ENTRY;
		if (hash == request->hash &&
		    bpfof_equal(key, key_size, request + 1, request->key_size))
			return answer(ctx, value, value_size);
	}
	if (!block->next)
		return bpfof_answer(ctx, 0);
	if (ctx->hop + 1 >= request->blocks_max)
		return DAMAGE_TOO_MANY_BLOCKS;
	return bpfof_read(ctx, ctx->file, block->next, bpfof_data_size(ctx));
}

SEC("bpfof/hash_get")
int hash_get(struct bpfof_ctx *ctx)
{
	const struct hash_get_request *request = (const struct hash_get_request *)ctx->scratch;
	const struct hash_block *block = (const struct hash_block *)ctx->data;
	__u64 size = bpfof_data_size(ctx);

	if (ctx->scratch_size < sizeof(*request) ||
	    request->key_size > ctx->scratch_size - sizeof(*request))
		return DAMAGE_REQUEST;
	if (size < sizeof(*block))
		return DAMAGE_SIZE;
	if ((__u32)bpfof_crc32c(&block->used, 0, size - sizeof(block->checksum)) != block->checksum)
		return DAMAGE_CHECKSUM;
	if (block->bucket != request->bucket)
		return DAMAGE_WRONG_PLACE;
	if (block->used > size - sizeof(*block))
		return DAMAGE_SIZE;
	return search(ctx, request, block);
}
