/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Looks up the value of one key in a set of sorted tables: each table from its root block to a data
 * block, newest table first, until one has the key or a deletion of it.
 */
#include "sorted.h"

static inline int answer(struct bpfof_ctx *ctx, __u32 status, __u32 value_size)
{
	struct sorted_answer *to = (struct sorted_answer *)ctx->scratch;

	to->status = status;
	to->table = ctx->file;
	to->value_size = value_size;
	to->reserved = 0;
	return bpfof_answer(ctx, sizeof(*to) + value_size);
}

static inline int next_table(struct bpfof_ctx *ctx, struct sorted_get *get)
{
	__u32 next = ctx->file + 1;

	if (next >= get->tables)
		return answer(ctx, SORTED_NOT_FOUND, 0);
	get->layers = 0;
	return bpfof_read(ctx, next, get->root[next].offset, get->root[next].size);
}

static inline int descend(struct bpfof_ctx *ctx, struct sorted_get *get, __u32 count)
{
	const struct sorted_child *child = (const void *)(ctx->data + sizeof(struct sorted_block));
	/* The number of children whose first key is <= key: the last of them may have the key. */
	__u32 found = bpfof_upper_bound(&child->first_key, sizeof(*child), count, get->key);

	if (!found)
		return next_table(ctx, get);
	child += found - 1;
	if (child->size < sizeof(struct sorted_block) || child->size > SORTED_BLOCK_MAX)
		return SORTED_BAD_CHILD;
	if (++get->layers >= SORTED_LAYERS_MAX)
		return SORTED_TOO_DEEP;
	return bpfof_read(ctx, ctx->file, child->offset, child->size);
}

static inline int search(struct bpfof_ctx *ctx, struct sorted_get *get, __u32 count)
{
	const struct sorted_entry *entry = (const void *)(ctx->data + sizeof(struct sorted_block));
	__u64 size = bpfof_data_size(ctx), key = get->key;
	__u32 found = bpfof_lower_bound(&entry->key, sizeof(*entry), count, key);

	if (found == count || entry[found].key != key)
		return next_table(ctx, get);
	entry += found;
	if (entry->value_size == SORTED_DELETED)
		return answer(ctx, SORTED_WAS_DELETED, 0);
	if ((__u64)entry->value_offset + entry->value_size > size ||
	    sizeof(struct sorted_answer) + (__u64)entry->value_size > ctx->scratch_size)
		return SORTED_BAD_VALUE;
	bpfof_memmove(ctx->scratch + sizeof(struct sorted_answer), ctx->data + entry->value_offset,
		      entry->value_size);
	return answer(ctx, SORTED_FOUND, entry->value_size);
}

SEC("bpfof/sorted_get")
int sorted_get(struct bpfof_ctx *ctx)
{
	struct sorted_get *get = (struct sorted_get *)ctx->scratch;
	const struct sorted_block *block = (const struct sorted_block *)ctx->data;
	__u64 size = bpfof_data_size(ctx);

	if (get->tables == 0 || get->tables > BPFOF_MAX_READS)
		return SORTED_BAD_ARGUMENT;
	if (size < sizeof(*block))
		return SORTED_BAD_COUNT;
	size -= sizeof(*block);
	if (block->magic == SORTED_INDEX) {
		if (block->count > size / sizeof(struct sorted_child))
			return SORTED_BAD_COUNT;
		return descend(ctx, get, block->count);
	}
	if (block->magic == SORTED_DATA) {
		if (block->count > size / sizeof(struct sorted_entry))
			return SORTED_BAD_COUNT;
		return search(ctx, get, block->count);
	}
	return SORTED_BAD_MAGIC;
}
