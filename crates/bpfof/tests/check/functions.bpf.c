/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* C as people write it: functions that can be proved, and functions that cannot. */
#include "bpfof.h"

#define noinline __attribute__((noinline))

struct record {
	__u64 key;
	__u32 kind;
	__u32 amount;
};

static const __u32 primes[16] = { 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53 };
static __u32 calls;

static inline int answer(struct bpfof_ctx *ctx, __u64 value)
{
	*(__u64 *)ctx->scratch = value;
	ctx->out_len = 8;
	ctx->done = 1;
	return 0;
}

SEC("bpfof/sum")
int sum(struct bpfof_ctx *ctx)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < ctx->data_end - ctx->data; i++)
		sum += ctx->data[i];
	return answer(ctx, sum);
}

SEC("bpfof/records")
int records(struct bpfof_ctx *ctx)
{
	const struct record *record = (const struct record *)ctx->data;
	__u64 sum = 0;

	for (; (const __u8 *)(record + 1) <= ctx->data_end; record++)
		if (record->kind == 3)
			sum += record->amount;
	return answer(ctx, sum);
}

SEC("bpfof/copy")
int copy(struct bpfof_ctx *ctx)
{
	__u64 length = ctx->data_end - ctx->data;

	if (length > 4096)
		length = 4096;
	bpfof_memmove(ctx->scratch, ctx->data, length);
	ctx->out_len = length;
	ctx->done = 1;
	return 0;
}

SEC("bpfof/table")
int table(struct bpfof_ctx *ctx)
{
	return answer(ctx, primes[ctx->hop % 16]);
}

/* A variable of an object whose function has no constants. */
SEC("bpfof/count")
int count(struct bpfof_ctx *ctx)
{
	calls++;
	return answer(ctx, calls);
}

static noinline __u64 weigh(__u32 kind)
{
	switch (kind % 5) {
	case 0: return 10;
	case 2: return 700;
	case 3: return 1;
	default: return kind;
	}
}

SEC("bpfof/switch")
int switched(struct bpfof_ctx *ctx)
{
	return answer(ctx, weigh(ctx->scratch[0]) + weigh(ctx->hop));
}

/* The budget ends this function; no access faults. */
SEC("bpfof/endless")
int endless(struct bpfof_ctx *ctx)
{
	for (;;)
		*(volatile __u64 *)ctx->scratch += 1;
}

SEC("bpfof/unchecked")
int unchecked(struct bpfof_ctx *ctx)
{
	return ctx->data[3];
}

SEC("bpfof/before")
int before(struct bpfof_ctx *ctx)
{
	return ctx->scratch[-100000];
}

SEC("bpfof/constant")
int constant(struct bpfof_ctx *ctx)
{
	*(volatile __u32 *)&primes[2] = ctx->hop;
	return answer(ctx, 0);
}

SEC("bpfof/loaded")
int loaded(struct bpfof_ctx *ctx)
{
	return **(__u8 **)ctx->scratch;
}

static noinline __u64 depth(__u64 left)
{
	return left ? depth(left - 1) * 3 + 1 : 0;
}

SEC("bpfof/recursive")
int recursive(struct bpfof_ctx *ctx)
{
	return answer(ctx, depth(ctx->hop % 4));
}

SEC("bpfof/words")
int words(struct bpfof_ctx *ctx)
{
	__u64 sum = 0;

	for (const __u64 *at = (const __u64 *)ctx->data; (const __u8 *)at < ctx->data_end; at++)
		sum += *at;
	return answer(ctx, sum);
}

SEC("bpfof/ratio")
int ratio(struct bpfof_ctx *ctx)
{
	return answer(ctx, 7 / *(const __u64 *)ctx->data);
}

SEC("bpfof/idle")
int idle(struct bpfof_ctx *ctx)
{
	return ctx->hop == 1000;
}
