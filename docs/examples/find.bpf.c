/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Follows a list of records until one has the key. Each call sees one record. */
#include "bpfof.h"
#include "records.h"

SEC("bpfof/find")
int find(struct bpfof_ctx *ctx)
{
	const struct record *record = (const struct record *)ctx->data;
	struct query *query = (struct query *)ctx->scratch;

	if (ctx->data_end - ctx->data != sizeof(*record))
		return BAD_RECORD;
	if (record->key == query->key) {
		bpfof_memmove(query->value, record->value, sizeof(query->value));
		ctx->out_len = sizeof(*query);
		ctx->done = 1;
	} else if (record->next) {
		/* Lists go up, so none is a cycle. */
		if (record->next <= ctx->offset)
			return BAD_RECORD;
		ctx->next_offset[0] = record->next;
		ctx->next_size[0] = sizeof(*record);
		ctx->next_file[0] = ctx->file;
		ctx->reads = 1;
	} else {
		ctx->done = 1;
	}
	return 0;
}
