/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The value of one key of a BPF-KV database: down the tree, one node a hop,
 * then the value.
 */
#include "bpfkv.h"

struct get {
	union {
		__u64 key;
		__u64 status;
	};
	union {
		/* 0 on the way down; otherwise the block read is the value */
		__u64 value_pointer;
		struct bpfkv_value value;
	};
};

static inline int read_next(struct bpfof_ctx *ctx, __u64 pointer, __u32 size)
{
	ctx->next_offset[0] = pointer ^ BPFKV_ON_DISK;
	ctx->next_size[0] = size;
	ctx->reads = 1;
	return 0;
}

SEC("bpfof/get")
int bpfkv_get(struct bpfof_ctx *ctx)
{
	struct get *get = (struct get *)ctx->scratch;
	const struct bpfkv_node *node = (const struct bpfkv_node *)ctx->data;
	const __u64 *after;
	__u64 key, pointer = get->value_pointer;

	if (ctx->scratch_size < sizeof(struct bpfkv_get_answer))
		return BPFKV_BAD_REQUEST;
	if (pointer) {
		get->value = *(const struct bpfkv_value *)ctx->data;
		get->status = BPFKV_FOUND;
		return bpfof_answer(ctx, sizeof(struct bpfkv_get_answer));
	}

	key = get->key;
	after = bpfkv_upper_bound(node->key, key);
	/* ptr[k] is 31 words after key[k]; after[-1] is the last key <= key. */
	pointer = after[BPFKV_FANOUT - 1];
	if (node->type == BPFKV_INTERNAL) {
		if (after == node->key)
			goto not_found;
		if (!bpfkv_is_node_pointer(pointer))
			return BPFKV_BAD_NODE_POINTER;
		return read_next(ctx, pointer, BPFKV_BLOCK_BYTES);
	}
	if (node->type != BPFKV_LEAF)
		return BPFKV_BAD_NODE_TYPE;
	if (after == node->key || after[-1] != key)
		goto not_found;
	if (!bpfkv_is_value_pointer(pointer))
		return BPFKV_BAD_VALUE_POINTER;
	get->value_pointer = pointer;
	return read_next(ctx, pointer, BPFKV_VALUE_BYTES);

not_found:
	get->status = BPFKV_NOT_FOUND;
	return bpfof_answer(ctx, sizeof(get->status));
}
