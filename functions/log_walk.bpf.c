/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Finds the newest record with a key in a linked log: walks back along its list, one record a
 * hop. */
#include "log_walk.h"

static inline int answer(struct bpfof_ctx *ctx, __u32 status, __u64 offset, __u32 size)
{
	struct log_walk_answer *answer = (struct log_walk_answer *)ctx->scratch;

	answer->status = status;
	answer->size = size;
	answer->offset = offset;
	return bpfof_answer(ctx, sizeof(*answer));
}

static inline int found(struct bpfof_ctx *ctx, const struct log_record *record)
{
	__u64 size = bpfof_data_size(ctx);
	__u64 value_size = size - sizeof(*record) - record->key_size;

	if (record->flags & LOG_DELETION)
		return answer(ctx, LOG_WAS_DELETED, ctx->offset, size);
	if (value_size > ctx->scratch_size - sizeof(struct log_walk_answer))
		return DAMAGE_REQUEST;
	answer(ctx, LOG_FOUND, ctx->offset, size);
	bpfof_memmove(ctx->scratch + sizeof(struct log_walk_answer), ctx->data_end - value_size,
		      value_size);
	return bpfof_answer(ctx, sizeof(struct log_walk_answer) + value_size);
}

static inline int previous(struct bpfof_ctx *ctx, const struct log_walk_request *request,
			   const struct log_record *record)
{
	__u64 offset = record->previous_offset;
	__u32 size = record->previous_size;

	if (!size)
		return answer(ctx, LOG_NOT_FOUND, 0, 0);
	if (size > LOG_RECORD_BYTES_MAX || offset >= ctx->offset || ctx->offset - offset < size)
		return DAMAGE_POINTER;
	if (request->records_max && ctx->hop + 1 >= request->records_max)
		return answer(ctx, LOG_MORE, offset, size);
	return bpfof_read(ctx, ctx->file, offset, size);
}

SEC("bpfof/log_walk")
int log_walk(struct bpfof_ctx *ctx)
{
	const struct log_walk_request *request = (const struct log_walk_request *)ctx->scratch;
	const struct log_record *record = (const struct log_record *)ctx->data;
	__u64 size = bpfof_data_size(ctx);

	if (ctx->scratch_size < sizeof(struct log_walk_answer) ||
	    request->key_size > ctx->scratch_size - sizeof(*request))
		return DAMAGE_REQUEST;
	if (size < sizeof(*record))
		return DAMAGE_SIZE;
	if ((__u32)bpfof_crc32c(&record->previous_size, 0, size - sizeof(record->checksum)) !=
	    record->checksum)
		return DAMAGE_CHECKSUM;
	if (record->flags & ~LOG_DELETION)
		return DAMAGE_ENTRY;
	if (record->key_size > size - sizeof(*record))
		return DAMAGE_SIZE;
	if (bpfof_equal(record + 1, record->key_size, request + 1, request->key_size))
		return found(ctx, record);
	return previous(ctx, request, record);
}
