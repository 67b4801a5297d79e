/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * C as programmers write it. Each function leaves 64-bit results in scratch;
 * data is 512 bytes, byte i of which is (7 * i + 3) % 256.
 */
#include "bpfof.h"

#define noinline __attribute__((noinline))

static inline int answer(struct bpfof_ctx *ctx, __u64 value)
{
	*(__u64 *)ctx->scratch = value;
	ctx->out_len = 8;
	ctx->done = 1;
	return 0;
}

SEC("bpfof/indexed")
int indexed(struct bpfof_ctx *ctx)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < ctx->data_end - ctx->data; i++)
		sum += ctx->data[i] * i;
	return answer(ctx, sum);
}

SEC("bpfof/walk")
int walk(struct bpfof_ctx *ctx)
{
	__u64 sum = 0;

	for (const __u8 *at = ctx->data; at != ctx->data_end; at++)
		sum = sum * 31 + *at;
	return answer(ctx, sum);
}

/* From the end to the start, in pairs, signed. */
SEC("bpfof/backwards")
int backwards(struct bpfof_ctx *ctx)
{
	const __s16 *at = (const __s16 *)ctx->data_end;
	__s64 sum = 0;

	while ((const __u8 *)--at >= ctx->data)
		sum += *at * 3;
	return answer(ctx, sum);
}

struct record {
	__u32 key;
	__u8 tag;
	__u8 name[3];
};

/* A search that returns early, through pointers to structures. */
SEC("bpfof/early")
int early(struct bpfof_ctx *ctx)
{
	const struct record *record = (const struct record *)ctx->data;
	const struct record *end = (const struct record *)ctx->data_end;

	for (; record < end; record++)
		if (record->tag > 250 && record->name[1] < 100)
			return answer(ctx, record->key);
	return 77;
}

static const char greeting[] = "storage";
static const char *const words[] = { "none", "one", "several", "a storage function" };

SEC("bpfof/strings")
int strings(struct bpfof_ctx *ctx)
{
	const char *word = words[ctx->data[1] % 4]; /* 10 % 4 = 2 */
	__u64 length = 0;

	while (word[length])
		length++;
	bpfof_memmove(ctx->scratch + 8, word, length);
	bpfof_memmove(ctx->scratch + 16, greeting, sizeof(greeting));
	return answer(ctx, length * 10 + (bpfof_memcmp(ctx->scratch + 16, words[3] + 2, 7) == 0));
}

static const __u16 table[256] = {
	[0] = 1, [3] = 500, [10] = 40, [17] = 3, [24] = 2000, [255] = 65535,
};

SEC("bpfof/tables")
int tables(struct bpfof_ctx *ctx)
{
	__u64 sum = 0;

	for (const __u8 *at = ctx->data; at < ctx->data_end; at++)
		sum += table[*at];
	return answer(ctx, sum);
}

static noinline __u64 classify(__u32 value)
{
	switch (value % 12) {
	case 0: return 5;
	case 1: return 81;
	case 2: return 7;
	case 3: return 1024;
	case 4: return 3;
	case 5: return 99;
	case 6: return 12;
	case 8: return 64;
	case 9: return 1;
	case 11: return 17;
	default: return 0;
	}
}

SEC("bpfof/switch")
int switched(struct bpfof_ctx *ctx)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < 512; i++)
		sum += classify(ctx->data[i]);
	return answer(ctx, sum);
}

static __u64 calls;
static __u32 limit = 3;
static __u64 history[16];

/* Variables persist from call to call of a chain. */
SEC("bpfof/variables")
int variables(struct bpfof_ctx *ctx)
{
	history[calls % 16] = ctx->hop * 100 + ctx->read_index;
	calls++;
	if (calls < limit) {
		ctx->next_size[0] = 512;
		ctx->reads = 1;
		return 0;
	}
	limit += 1;
	return answer(ctx, calls * 1000000 + history[1] * 1000 + history[2]);
}

struct node {
	const struct node *next;
	__u64 value;
};

static const struct node third = { 0, 300 };
static const struct node second = { &third, 20 };
static const struct node first = { &second, 1 };
static const struct node *volatile head = &first;

SEC("bpfof/pointers")
int pointers(struct bpfof_ctx *ctx)
{
	__u64 sum = 0;

	for (const struct node *node = head; node; node = node->next)
		sum += node->value;
	return answer(ctx, sum);
}

static noinline __u64 weigh(const __u8 *data, __u32 first, __u32 step, __u32 depth)
{
	__u64 frame[8] = { 0 };

	for (__u32 i = 0; i < 8; i++)
		frame[i % 8] += data[(first + i * step) % 512];
	if (depth)
		frame[3] += weigh(data, first + 1, step + 2, depth - 1);
	return frame[0] + 2 * frame[3] + frame[7];
}

/* Recursion, with a frame of its own for each call. */
SEC("bpfof/recursive")
int recursive(struct bpfof_ctx *ctx)
{
	return answer(ctx, weigh(ctx->data, 0, 1, 5));
}

/* Signed and narrow arithmetic. */
SEC("bpfof/signed")
int narrow(struct bpfof_ctx *ctx)
{
	__s64 sum = 0;

	for (__u32 i = 0; i + 8 <= 512; i += 8) {
		__s64 wide = *(const __s64 *)(ctx->data + i);
		__s32 middle = *(const __s32 *)(ctx->data + i);
		__s16 half = *(const __s16 *)(ctx->data + i);
		__s8 byte = (__s8)ctx->data[i];

		sum += wide >> 40;
		sum ^= middle;
		sum += half * byte;
		sum -= (__s8)(middle >> 4);
	}
	return answer(ctx, sum);
}

SEC("bpfof/write_constant")
int write_constant(struct bpfof_ctx *ctx)
{
	volatile __u16 *at = (volatile __u16 *)&table[ctx->hop];

	*at = 9;
	return answer(ctx, 0);
}

SEC("bpfof/fill_constant")
int fill_constant(struct bpfof_ctx *ctx)
{
	bpfof_memset((void *)&table[1], 0, ctx->data[0]);
	return answer(ctx, 0);
}
