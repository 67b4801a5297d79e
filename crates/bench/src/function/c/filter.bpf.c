/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Counts and sums the records of a 4 KiB block that pass a filter. */
#include "bpfof.h"

struct record {
	__u64 key;
	__u32 kind;
	__u32 amount;
};

struct request {
	__u32 kind;
	__u32 at_least;
};

struct totals {
	__u64 count;
	__u64 sum;
	__u64 max_key;
};

SEC("bpfof/filter")
int filter(struct bpfof_ctx *ctx)
{
	const struct request *request = (const struct request *)ctx->scratch;
	struct totals *totals = (struct totals *)(ctx->scratch + 64);
	const struct record *record = (const struct record *)ctx->data;
	const struct record *end = (const struct record *)ctx->data_end;
	__u32 kind = request->kind, at_least = request->at_least;
	__u64 count = 0, sum = 0, max_key = 0;

	for (; record < end; record++) {
		if (record->kind != kind || record->amount < at_least)
			continue;
		count++;
		sum += record->amount;
		if (record->key > max_key)
			max_key = record->key;
	}
	totals->count += count;
	totals->sum += sum;
	if (max_key > totals->max_key)
		totals->max_key = max_key;
	ctx->done = 1;
	return 0;
}
