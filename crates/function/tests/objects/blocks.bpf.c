/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Each entry uses some building blocks and answers with a number that main.rs knows. */
#include "bpfof/blocks.h"

static inline int result(struct bpfof_ctx *ctx, __u64 value)
{
	*(__u64 *)ctx->scratch = value;
	return bpfof_answer(ctx, sizeof(value));
}

SEC("bpfof/loads")
int loads(struct bpfof_ctx *ctx)
{
	const __u8 *data = ctx->data;

	return result(ctx, bpfof_data_size(ctx) + bpfof_le16(data + 1) + 3 * bpfof_be16(data + 2) +
				   5ULL * bpfof_le32(data + 3) + 7ULL * bpfof_be32(data + 5) +
				   9 * bpfof_le64(data + 7) + 11 * bpfof_be64(data + 9));
}

/* Takes fields of 15 bytes, the last of which is one byte too long; later takes fail as well. */
SEC("bpfof/cursor")
int cursor(struct bpfof_ctx *ctx)
{
	struct bpfof_cursor cursor = bpfof_cursor(ctx->data, ctx->data + 15);
	struct bpfof_cursor backwards = bpfof_cursor(ctx->data + 1, ctx->data);
	__u64 sum = bpfof_take_le16(&cursor) + bpfof_take_le32(&cursor) + bpfof_take_le64(&cursor);

	if (bpfof_failed(&cursor) || bpfof_left(&cursor) != 1 || !bpfof_failed(&backwards))
		return 1;
	sum += bpfof_take_le16(&cursor);
	if (!bpfof_failed(&cursor) || bpfof_left(&cursor) || bpfof_take(&cursor, 1) ||
	    bpfof_take(&cursor, 0) || bpfof_take_le32(&cursor) || bpfof_take_varint32(&cursor))
		return 2;
	return result(ctx, sum);
}

/* 0, 127, 128, 300, 2^32 - 1, 2^32, 2^64 - 1; one of more than 64 bits; one without an end. */
static const __u8 varint[] = {
	0,    127,  128,  1,	172,  2,    255,  255,	255,  255,  15,	  128, 128, 128, 128, 16,
	255,  255,  255,  255,	255,  255,  255,  255,	255,  1,    255,  255, 255, 255, 255, 255,
	255,  255,  255,  2,	128,  128,
};

/* Takes `count` numbers behind `skip` bytes; the last one must fail if `fails` is set. */
static inline int taken(struct bpfof_ctx *ctx, __u32 skip, __u32 size, __u32 count, int is_wide,
			int fails)
{
	struct bpfof_cursor cursor = bpfof_cursor(varint + skip, varint + size);
	__u64 sum = 0;

	while (count--)
		sum = 3 * sum + (is_wide ? bpfof_take_varint64(&cursor) : bpfof_take_varint32(&cursor));
	return bpfof_failed(&cursor) == fails ? result(ctx, sum) : 1;
}

SEC("bpfof/narrow")
int narrow(struct bpfof_ctx *ctx)
{
	return taken(ctx, 0, sizeof(varint), 5, 0, 0);
}

SEC("bpfof/wide")
int wide(struct bpfof_ctx *ctx)
{
	return taken(ctx, 0, sizeof(varint), 7, 1, 0);
}

SEC("bpfof/too_wide")
int too_wide(struct bpfof_ctx *ctx)
{
	return taken(ctx, 11, sizeof(varint), 1, 0, 1);
}

SEC("bpfof/far_too_wide")
int far_too_wide(struct bpfof_ctx *ctx)
{
	return taken(ctx, 26, sizeof(varint), 1, 1, 1);
}

SEC("bpfof/endless")
int endless(struct bpfof_ctx *ctx)
{
	return taken(ctx, 36, sizeof(varint), 1, 1, 1);
}

/* Every second word is a key. */
static const __u64 table[] = { 1, 0, 3, 0, 3, 0, 3, 0, 7, 0, ~0ULL, 0 };

SEC("bpfof/search")
int search(struct bpfof_ctx *ctx)
{
	__u64 sum = 0;

	for (__u64 key = 0; key < 9; key++) {
		sum = 7 * sum + bpfof_lower_bound(table, 16, 6, key);
		sum = 7 * sum + bpfof_upper_bound(table, 16, 6, key);
	}
	sum = 7 * sum + bpfof_lower_bound(table, 16, 6, ~0ULL);
	sum = 7 * sum + bpfof_upper_bound(table, 16, 6, ~0ULL);
	return result(ctx, sum + bpfof_lower_bound(table, 16, 0, 1));
}

SEC("bpfof/compare")
int compare(struct bpfof_ctx *ctx)
{
	const __u8 *data = ctx->data;

	/* Byte values ascend from 3 in steps of 7. */
	return result(ctx, (bpfof_compare(data, 4, data, 4) == 0) | (bpfof_compare(data, 3, data, 4) < 0) << 1 |
				   (bpfof_compare(data, 4, data, 3) > 0) << 2 |
				   (bpfof_compare(data + 1, 1, data, 9) > 0) << 3 |
				   bpfof_equal(data, 4, data, 4) << 4 | bpfof_equal(data, 4, data, 3) << 5 |
				   bpfof_equal(data, 4, data + 1, 4) << 6);
}
