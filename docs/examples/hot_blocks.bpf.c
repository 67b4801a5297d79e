/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Which blocks are read most? Answers with the first 64 bytes of a block and
 * counts at the target how often each block was read. To see the counters:
 *
 *     bpfof function map dump --target URL --host-id UUID hot_blocks
 */
#include <bpfof.h>

/* Counters by file offset. Reads of blocks that do not fit are counted in totals[1]. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} hot_blocks SEC(".maps");

/* 0: all reads; 1: those of blocks that hot_blocks had no room for. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} totals SEC(".maps");

SEC("bpfof/read")
int read_block(struct bpfof_ctx *ctx)
{
	__u64 offset = ctx->offset;
	__u32 all = 0, left_out = 1;

	bpfof_map_add(&totals, &all, 0, 1);
	if (bpfof_map_add(&hot_blocks, &offset, 0, 1) < 0)
		bpfof_map_add(&totals, &left_out, 0, 1);
	bpfof_memmove(ctx->scratch, ctx->data, 64);
	ctx->out_len = 64;
	ctx->done = 1;
	return 0;
}

/* Answers how often the block that this chain reads was read: 8 bytes. */
SEC("bpfof/reads")
int reads(struct bpfof_ctx *ctx)
{
	__u64 offset = ctx->offset;

	/* Scratch begins with zeroes, which stay if there is no entry. */
	bpfof_map_get(&hot_blocks, &offset, ctx->scratch);
	ctx->out_len = 8;
	ctx->done = 1;
	return 0;
}
