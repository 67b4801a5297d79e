/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Follows records from file to file, and answers with a checksum of every byte it was shown. A record says what to do
 * next, so that random records make random chains.
 */
#include "bpfof.h"

#define MAGIC 0x464c4f57
#define LINKS_MAX 6
/* Room for the reads of a hop even if each is rounded out to blocks of 4 KiB. */
#define HOP_BYTES 57344

enum { FOLLOW, END, ABORT, FAULT, LOOP, TOO_LARGE, TOO_MANY, TOO_LONG, NO_FILE };

struct link {
	__u64 offset;
	__u32 size;
	__u32 file;
};

struct record {
	__u32 magic;
	__u16 what;
	__u16 links;
	__u64 number;
	struct link link[LINKS_MAX];
};

struct state {
	/* in: which links of a record are followed */
	__u64 choice;
	/* out */
	__u64 checksum;
	__u64 calls;
};

static __u32 planned_hop, planned_bytes;

static inline void ask(struct bpfof_ctx *ctx, const struct link *link, __u32 size)
{
	__u32 at = ctx->reads;

	ctx->next_offset[at] = link->offset;
	ctx->next_size[at] = size;
	ctx->next_file[at] = link->file;
	ctx->reads = at + 1;
}

static inline void follow(struct bpfof_ctx *ctx, struct state *state, const struct record *record)
{
	__u32 links = record->links;

	if (ctx->read_index == 0 || planned_hop != ctx->hop)
		planned_bytes = 0;
	planned_hop = ctx->hop;
	for (__u32 i = 0; i < links && i < LINKS_MAX && ctx->reads < BPFOF_MAX_READS; i++) {
		__u32 rounded = (record->link[i].size + 8191) / 4096 * 4096;

		if (i && !(state->choice >> ((record->number * 5 + i) & 63) & 1))
			continue;
		if (planned_bytes + rounded > HOP_BYTES)
			continue;
		planned_bytes += rounded;
		ask(ctx, &record->link[i], record->link[i].size);
	}
}

SEC("bpfof/follow")
int follow_records(struct bpfof_ctx *ctx)
{
	struct state *state = (struct state *)ctx->scratch;
	const struct record *record = (const struct record *)ctx->data;
	__u64 size = ctx->data_end - ctx->data;
	struct link link = { 0, 0, 0 };

	state->checksum = bpfof_crc32c(ctx->data, state->checksum, size);
	state->checksum = state->checksum * 31 + ctx->offset + ctx->file * 7 + ctx->read_index + ctx->hop;
	state->calls++;
	if (size < sizeof(*record) || record->magic != MAGIC)
		return 77;
	switch (record->what) {
	case FOLLOW:
		follow(ctx, state, record);
		return 0;
	case END:
		ctx->out_len = sizeof(*state);
		ctx->done = 1;
		return 0;
	case ABORT:
		return 1000 + (int)(record->number & 0xff);
	case FAULT:
		*(volatile __u8 *)ctx->data_end = 1;
		return 0;
	case LOOP:
		for (;;)
			*(volatile __u64 *)&state->calls += 1;
	case TOO_LARGE:
		ask(ctx, &link, 40000);
		ask(ctx, &link, 40000);
		return 0;
	case TOO_MANY:
		ctx->reads = BPFOF_MAX_READS + 1;
		return 0;
	case TOO_LONG:
		ctx->out_len = 1000;
		ctx->done = 1;
		return 0;
	case NO_FILE:
		link.file = 15;
		ask(ctx, &link, 512);
		return 0;
	}
	return 78;
}

/* Tail-calls the function whose number scratch begins with; returns 7 if there is none. */
SEC("bpfof/onward")
int onward(struct bpfof_ctx *ctx)
{
	bpfof_tail_call(*(__u32 *)ctx->scratch);
	return 7;
}

/* Answers "here". */
SEC("bpfof/landed")
int landed(struct bpfof_ctx *ctx)
{
	bpfof_memmove(ctx->scratch, "here", 4);
	ctx->out_len = 4;
	ctx->done = 1;
	return 0;
}
