/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* A filter and a reduction over records of the same size, read by read until they end. */
#include "filter_reduce.h"

/* The chain's copy: the answer replaces the argument in scratch. */
static struct filter_reduce_request request;
/* Bytes of a read: a whole number of records. */
static __u32 step;

static inline int is_good(const struct bpfof_ctx *ctx)
{
	__u64 size = bpfof_data_size(ctx), record_size = request.record_size;

	if (record_size == 0 || record_size > BPFOF_READ_MAX || size % record_size ||
	    size > record_size * FILTER_RECORDS_MAX || request.conditions > FILTER_CONDITIONS_MAX)
		return 0;
	if (request.end < ctx->offset || request.end - ctx->offset < size ||
	    (request.end - ctx->offset) % record_size)
		return 0;
	if (request.column.width && !filter_column_fits(&request.column, record_size))
		return 0;
	if (request.records_max &&
	    record_size > ctx->scratch_size - sizeof(struct filter_reduce_answer))
		return 0;
	for (__u32 i = 0; i < request.conditions; i++) {
		if (!filter_column_fits(&request.condition[i].column, record_size) ||
		    request.condition[i].outside > 1)
			return 0;
	}
	return 1;
}

/* Copies the argument out of scratch, and puts an empty answer there. */
static inline int begin(const struct bpfof_ctx *ctx)
{
	struct filter_reduce_answer *answer = (struct filter_reduce_answer *)ctx->scratch;
	__u32 records;

	if (ctx->scratch_size < sizeof(request))
		return DAMAGE_REQUEST;
	bpfof_memmove(&request, ctx->scratch, sizeof(request));
	if (!is_good(ctx))
		return DAMAGE_REQUEST;
	records = BPFOF_READ_MAX / request.record_size;
	if (records > FILTER_RECORDS_MAX)
		records = FILTER_RECORDS_MAX;
	step = records * request.record_size;
	bpfof_memset(answer, 0, sizeof(*answer));
	answer->min = ~0ULL;
	return 0;
}

/* Adds the totals to the exact sum; the sums of halves are signed if the column is. */
static inline void add(struct filter_reduce_answer *answer, const struct filter_totals *totals)
{
	int is_signed = request.column.flags & COLUMN_SIGNED;
	__u64 upper = is_signed ? (__u64)((__s64)totals->high >> 32) : totals->high >> 32;
	__u64 middle = totals->high << 32, sum = answer->sum_low + totals->low;

	answer->sum_high += upper + (sum < totals->low) + (sum + middle < middle);
	answer->sum_low = sum + middle;
	answer->count += totals->count;
	answer->min = totals->min;
	answer->max = totals->max;
}

/* Appends a record to the answer. Returns 0 if enough records are there, or there is no room. */
static inline int emit(const struct bpfof_ctx *ctx, struct filter_reduce_answer *answer,
		       const __u8 *record)
{
	__u64 at = sizeof(*answer) + (__u64)answer->records * request.record_size;

	if (answer->records == request.records_max || at + request.record_size > ctx->scratch_size)
		return 0;
	bpfof_memmove((__u8 *)answer + at, record, request.record_size);
	answer->records++;
	return 1;
}

static inline int finish(struct bpfof_ctx *ctx, struct filter_reduce_answer *answer, __u64 next,
			 __u32 more)
{
	answer->next = next;
	answer->more = more;
	answer->min = filter_order(answer->min, &request.column);
	answer->max = filter_order(answer->max, &request.column);
	return bpfof_answer(ctx, sizeof(*answer) + answer->records * request.record_size);
}

SEC("bpfof/filter_reduce")
int filter_reduce(struct bpfof_ctx *ctx)
{
	struct filter_reduce_answer *answer = (struct filter_reduce_answer *)ctx->scratch;
	const __u8 *record = ctx->data, *end = ctx->data_end;
	struct filter_totals totals = { 0 };
	__u64 next, left;
	__u32 size;
	int error;

	if (ctx->hop == 0) {
		error = begin(ctx);
		if (error)
			return error;
	}
	size = request.record_size;
	totals.min = answer->min;
	totals.max = answer->max;
	for (; record < end; record += size) {
		if (!filter_passes(record, &request))
			continue;
		if (request.records_max && !emit(ctx, answer, record))
			break;
		filter_reduce_add(&totals, record, &request.column);
	}
	add(answer, &totals);
	next = ctx->offset + (record - ctx->data);
	left = request.end - next;
	if (record < end || left == 0)
		return finish(ctx, answer, next, left != 0);
	return bpfof_read(ctx, ctx->file, next, left < step ? left : step);
}
