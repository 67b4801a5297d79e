/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Finds the newest version of one key in a set of RocksDB tables: in each table from the block that the
 * host names down to a data block, newest table first, until one has a version of the key. Verifies the
 * checksum of each block before it uses anything in the block.
 *
 * The state between hops is the argument, in which the table number counts up and the levels of the
 * table count down. Behind it in scratch is the key of the current entry. Merge operands are pushed
 * downwards from the end of scratch, so that in the end the oldest comes first. The answer replaces all
 * of these.
 */
#include "sst_get.h"
#include "prefix_block.h"

_Static_assert(SST_BLOCK_BYTES_MAX == BPFOF_READ_MAX, "sst_get.h gives the number to hosts");
_Static_assert(SST_DECOMPRESSED_BYTES_MAX == BPFOF_WORKSPACE_SIZE, "sst_get.h gives the number to hosts");
_Static_assert(SST_TRAILER_BYTES == PREFIX_TRAILER_BYTES, "sst_get.h gives the number to hosts");

/* The XXH3 checksum of a block is the hash of its contents, XOR this factor times its compression
 * type. */
#define XXH3_PER_TYPE 0x6b9083d9u

#define NOT_COMPRESSED 0

/* The units that a call can pay for a block's decompression. */
#define DECOMPRESSION_UNITS_MAX 950000

/* In the last field of a block: a hash index lies behind the restarts. */
#define HAS_HASH_INDEX 0x80000000u
/* Keys are distributed so evenly that an interpolation search may be faster. */
#define IS_UNIFORM 0x20000000u

static inline struct sst_table *tables_of(struct sst_get_request *request)
{
	return (struct sst_table *)(request + 1);
}

/* The number that format_version 6 and later add to the checksum of a block at `offset`. */
static inline __u32 context_of(const struct sst_table *table, __u64 offset)
{
	return table->checksum_base ? table->checksum_base ^ ((__u32)offset + (__u32)(offset >> 32)) :
				      0;
}

static inline int check_sum(const struct sst_table *table, const struct bpfof_ctx *ctx,
			    const __u8 *trailer)
{
	const __u8 *contents = ctx->data;
	__u64 size = trailer - contents;
	__u32 wanted = bpfof_le32(trailer + 1) - context_of(table, ctx->offset), sum;

	switch (table->checksum) {
	case SST_CHECKSUM_NONE:
		return 0;
	case SST_CHECKSUM_CRC32C:
		sum = bpfof_crc32c(contents, 0, size + 1);
		wanted = prefix_unmask(wanted);
		break;
	case SST_CHECKSUM_XXH3:
		sum = (__u32)bpfof_xxh3(contents, 0, size) ^ *trailer * XXH3_PER_TYPE;
		break;
	default:
		return DAMAGE_REQUEST;
	}
	return sum == wanted ? 0 : DAMAGE_CHECKSUM;
}

/* Decompresses the bytes of the cursor into the workspace, and points the cursor at the result. */
static inline int decompress(__u8 type, struct bpfof_cursor *contents)
{
	/* Snappy data includes its length; for the other formats the length precedes the data. */
	struct bpfof_cursor from = *contents;
	__u32 size = bpfof_take_varint32(&from);
	__u8 *to = bpfof_workspace();

	if (type != BPFOF_SNAPPY && type != BPFOF_LZ4 && type != BPFOF_LZ4HC && type != BPFOF_ZSTD)
		return DAMAGE_COMPRESSED;
	if (bpfof_failed(&from) || size > SST_DECOMPRESSED_BYTES_MAX)
		return DAMAGE_SIZE;
	if (type == BPFOF_SNAPPY) {
		from = *contents;
		/* A call could not pay for it. */
		if (16 * (__u64)bpfof_left(&from) + 3 * size > DECOMPRESSION_UNITS_MAX)
			return DAMAGE_COMPRESSED;
	}
	if (bpfof_decompress(type, to, size, from.at, bpfof_left(&from)) != size)
		return DAMAGE_SIZE;
	*contents = bpfof_cursor(to, to + size);
	return 0;
}

static inline int open_contents(const struct bpfof_cursor *contents, struct prefix_block *block)
{
	const __u8 *end = contents->end - 4;
	__u32 last;

	/* One restart point, and the number of restart points. */
	if (bpfof_left(contents) < 8)
		return DAMAGE_SIZE;
	last = bpfof_le32(end);
	if (last & HAS_HASH_INDEX) {
		__u32 buckets = bpfof_le16(end - 2);

		end -= 2;
		if (buckets > end - contents->at)
			return DAMAGE_ENTRY;
		end -= buckets;
	}
	return prefix_open(block, contents->at, end, last & ~(HAS_HASH_INDEX | IS_UNIFORM));
}

static inline int open_block(const struct bpfof_ctx *ctx, const struct sst_table *table,
			     struct prefix_block *block)
{
	const __u8 *trailer = ctx->data_end - SST_TRAILER_BYTES;
	struct bpfof_cursor contents = bpfof_cursor(ctx->data, trailer);
	int error = 0;

	if (bpfof_data_size(ctx) < SST_TRAILER_BYTES)
		return DAMAGE_SIZE;
	error = check_sum(table, ctx, trailer);
	if (!error && *trailer != NOT_COMPRESSED)
		error = decompress(*trailer, &contents);
	return error ? error : open_contents(&contents, block);
}

static inline int answer(struct bpfof_ctx *ctx, __u32 status, __u64 tag,
			 const struct prefix_entry *entry)
{
	const struct sst_get_request request = *(struct sst_get_request *)ctx->scratch;
	struct sst_get_answer *answer = (struct sst_get_answer *)ctx->scratch;
	const __u8 *operands = ctx->scratch + ctx->scratch_size - request.operand_bytes;
	__u64 room = ctx->scratch_size - sizeof(*answer), size;
	__u32 value_size = entry ? entry->value_size : 0;

	answer->value_size = value_size;
	answer->tag = tag;
	/* Each hop reads one block. */
	answer->blocks = ctx->hop + 1;
	answer->table = request.table;
	answer->operands = request.operands;
	answer->operand_bytes = request.operand_bytes;
	size = (__u64)value_size + request.operand_bytes;
	if (status == SST_OTHER || status == SST_TOO_LONG || size > room) {
		answer->status = status == SST_OTHER ? SST_OTHER : SST_TOO_LONG;
		return bpfof_answer(ctx, sizeof(*answer));
	}
	answer->status = status;
	if (value_size)
		bpfof_memmove(answer + 1, entry->value, value_size);
	if (request.operand_bytes)
		bpfof_memmove((__u8 *)(answer + 1) + value_size, operands, request.operand_bytes);
	return bpfof_answer(ctx, sizeof(*answer) + size);
}

static inline int next_table(struct bpfof_ctx *ctx, struct sst_get_request *request)
{
	__u32 next = request->table + 1;
	const struct sst_table *table = tables_of(request) + next;

	if (next >= request->tables)
		return answer(ctx, SST_NOT_FOUND, 0, 0);
	if (table->size > PREFIX_BLOCK_BYTES_MAX)
		return DAMAGE_REQUEST;
	request->table = next;
	return bpfof_read(ctx, table->file, table->offset, table->size + SST_TRAILER_BYTES);
}

/* Appends the value of an entry to the operands. Returns 0 if scratch has no room. */
static inline int push_operand(struct bpfof_ctx *ctx, struct sst_get_request *request,
			       const struct prefix_entry *entry, struct prefix_key *current)
{
	__u32 left = current->room - current->size;
	__u8 *to;

	if (left < sizeof(__u32) || entry->value_size > left - sizeof(__u32))
		return 0;
	request->operands++;
	request->operand_bytes += sizeof(__u32) + entry->value_size;
	current->room -= sizeof(__u32) + entry->value_size;
	to = ctx->scratch + ctx->scratch_size - request->operand_bytes;
	*(bpfof_any32 *)to = entry->value_size;
	bpfof_memmove(to + sizeof(__u32), entry->value, entry->value_size);
	return 1;
}

/* Handles the first entry of a data block that is not before the version wanted. */
static inline int found(struct bpfof_ctx *ctx, struct sst_get_request *request,
			struct prefix_wanted *wanted, struct bpfof_cursor *cursor,
			struct prefix_entry *entry, struct prefix_key *current)
{
	const struct sst_table *table = tables_of(request) + request->table;
	int error;

	for (;;) {
		__u32 size = current->size - wanted->tag_size;
		__u64 tag = bpfof_le64(current->key + size);

		if (!bpfof_equal(current->key, size, wanted->key, wanted->size))
			return next_table(ctx, request);
		switch ((__u8)tag) {
		case PREFIX_TYPE_VALUE:
			return answer(ctx, SST_FOUND, tag, entry);
		case PREFIX_TYPE_BLOB_INDEX:
			return answer(ctx, SST_BLOB, tag, entry);
		case PREFIX_TYPE_DELETION:
		case PREFIX_TYPE_SINGLE_DELETION:
			return answer(ctx, SST_DELETED, tag, 0);
		case PREFIX_TYPE_MERGE:
			break;
		default:
			return answer(ctx, SST_OTHER, tag, 0);
		}
		if (!push_operand(ctx, request, entry, current))
			return answer(ctx, SST_TOO_LONG, tag, 0);
		/* Continue with the older versions. */
		wanted->newest_tag = tag - 1;
		error = prefix_advance(wanted, cursor, entry, current);
		/* If the host has named this block, it has named the blocks that follow, too. */
		if (error == PREFIX_PAST_END)
			return ctx->offset == table->offset ? next_table(ctx, request) :
							      answer(ctx, SST_OTHER, tag, 0);
		if (error)
			return error;
	}
}

static inline int search(struct bpfof_ctx *ctx, struct sst_get_request *request,
			 struct sst_table *table, struct prefix_wanted *wanted,
			 struct prefix_key *current)
{
	struct prefix_entry entry = { 0 };
	struct bpfof_cursor cursor;
	struct prefix_block block;
	int error = open_block(ctx, table, &block);

	if (error)
		return error;
	cursor = prefix_find_restart(wanted, &block);
	error = prefix_advance(wanted, &cursor, &entry, current);
	if (error == PREFIX_PAST_END)
		return next_table(ctx, request);
	if (error)
		return error;
	if (!table->levels)
		return found(ctx, request, wanted, &cursor, &entry, current);
	table->levels--;
	return prefix_descend(ctx, wanted, &entry);
}

SEC("bpfof/sst_get")
int sst_get(struct bpfof_ctx *ctx)
{
	struct sst_get_request *request = (struct sst_get_request *)ctx->scratch;
	__u32 room = ctx->scratch_size, tables_size;
	struct prefix_wanted wanted = { 0 };
	struct prefix_key current = { 0 };
	struct sst_table *table;
	__u8 flags;

	/* Scratch must have room for every answer and, checked below, for the argument. */
	if (room < sizeof(*request) || room < sizeof(struct sst_get_answer) ||
	    request->tables > SST_TABLES_MAX || request->table >= request->tables)
		return DAMAGE_REQUEST;
	tables_size = request->tables * sizeof(*table);
	room -= sizeof(*request);
	if (tables_size > room || request->key_size > room - tables_size)
		return DAMAGE_REQUEST;
	table = tables_of(request) + request->table;
	flags = table->flags;
	if (flags & ~(SST_INDEX_DELTA | SST_INDEX_USER_KEYS) || table->file != ctx->file ||
	    table->reserved)
		return DAMAGE_REQUEST;
	wanted.key = (const __u8 *)(request + 1) + tables_size;
	wanted.size = request->key_size;
	wanted.newest_tag = request->newest_tag;
	wanted.tag_size = table->levels && flags & SST_INDEX_USER_KEYS ? 0 : 8;
	if (table->levels && flags & SST_INDEX_DELTA)
		wanted.values = PREFIX_VALUES_DELTA;
	current.key = (__u8 *)wanted.key + wanted.size;
	current.room = room - tables_size - wanted.size;
	if (request->operand_bytes > current.room)
		return DAMAGE_REQUEST;
	current.room -= request->operand_bytes;
	return search(ctx, request, table, &wanted, &current);
}
