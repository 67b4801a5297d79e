/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Shared by block_get and sst_get: the search in a sorted block of prefix-compressed keys with
 * restart points, as LevelDB and RocksDB write them.
 */
#ifndef PREFIX_BLOCK_H
#define PREFIX_BLOCK_H

#include "bpfof/blocks.h"
#include "damage.h"

/* Types in the tags of keys; there are others, for ranges and wide columns. */
#define PREFIX_TYPE_DELETION 0
#define PREFIX_TYPE_VALUE 1
#define PREFIX_TYPE_MERGE 2
#define PREFIX_TYPE_SINGLE_DELETION 7
#define PREFIX_TYPE_BLOB_INDEX 0x11

/* Bytes behind the contents of a block: compression type and checksum. */
#define PREFIX_TRAILER_BYTES 5
/* The largest block, without its trailer, that fits into one read. */
#define PREFIX_BLOCK_BYTES_MAX (BPFOF_READ_MAX - PREFIX_TRAILER_BYTES)

struct prefix_block {
	const __u8 *entries;
	const __u8 *entries_end;
	/* offsets of the restart points */
	const __u8 *restart;
	__u32 restarts;
};

/* In a delta-encoded index, values are not preceded by their size. */
#define PREFIX_VALUES_PLAIN 0
#define PREFIX_VALUES_DELTA 1

/* The key to search for. */
struct prefix_wanted {
	const __u8 *key;
	__u32 size;
	/* bytes of the tag behind the keys in the block: 8 or 0 */
	__u32 tag_size;
	/* versions of the key with larger tags are ignored: they are newer */
	__u64 newest_tag;
	/* PREFIX_VALUES_PLAIN or PREFIX_VALUES_DELTA */
	__u32 values;
};

struct prefix_entry {
	__u32 shared;
	__u32 other_size;
	__u32 value_size;
	const __u8 *other;
	const __u8 *value;
	/* with PREFIX_VALUES_DELTA: the place of the block that the entry names */
	__u64 offset;
	__u64 size;
};

/* The key of the current entry. */
struct prefix_key {
	__u8 *key;
	__u32 size;
	/* bytes available at `key` */
	__u32 room;
};

/* Functions below return one of these, or a DAMAGE_ code. */
#define PREFIX_AT_ENTRY 0
#define PREFIX_PAST_END (-1)

/* Recovers a CRC from its masked form. CRCs are stored masked because the CRC of data that contains
 * CRCs is weak. */
static inline __u32 prefix_unmask(__u32 masked)
{
	__u32 rotated = masked - 0xa282ead8u;

	return rotated >> 17 | rotated << 15;
}

/* Opens a block whose restart points end at `restarts_end`; at least 4 bytes lie before that. */
static inline int prefix_open(struct prefix_block *block, const __u8 *contents,
			      const __u8 *restarts_end, __u32 restarts)
{
	if (restarts == 0 || restarts > (__u64)(restarts_end - contents) / 4)
		return DAMAGE_ENTRY;
	block->restarts = restarts;
	block->entries = contents;
	block->restart = restarts_end - 4 * (__u64)restarts;
	block->entries_end = block->restart;
	return 0;
}

/* Takes the place of a block, which may be delta-encoded against the previous one. */
static inline void prefix_take_place(struct bpfof_cursor *cursor, struct prefix_entry *entry)
{
	__u64 first = bpfof_take_varint64(cursor);

	if (entry->shared) {
		entry->offset += entry->size + PREFIX_TRAILER_BYTES;
		entry->size += first >> 1 ^ -(first & 1);
	} else {
		entry->offset = first;
		entry->size = bpfof_take_varint64(cursor);
	}
}

/* Takes an entry, but not a delta-encoded place; the cursor fails if the entry is damaged. */
static inline void prefix_take_entry(struct bpfof_cursor *cursor, __u32 values,
				     struct prefix_entry *entry)
{
	entry->shared = bpfof_take_varint32(cursor);
	entry->other_size = bpfof_take_varint32(cursor);
	entry->value_size = values == PREFIX_VALUES_DELTA ? 0 : bpfof_take_varint32(cursor);
	entry->other = bpfof_take(cursor, entry->other_size);
	entry->value = bpfof_take(cursor, entry->value_size);
}

static inline struct bpfof_cursor prefix_at_restart(const struct prefix_block *block, __u32 number)
{
	const __u8 *from = block->entries + bpfof_le32(block->restart + 4 * (__u64)number);

	return bpfof_cursor(from, block->entries_end);
}

/* Returns < 0, 0 or > 0 as a key of the block comes before, is, or comes after the key wanted. */
static inline __s64 prefix_order(const struct prefix_wanted *wanted, const __u8 *key, __u32 size)
{
	__u64 tag, newest = wanted->newest_tag;
	__s64 found;

	size -= wanted->tag_size;
	found = bpfof_compare(key, size, wanted->key, wanted->size);
	if (found || !wanted->tag_size)
		return found;
	tag = bpfof_le64(key + size);
	return tag > newest ? -1 : tag < newest;
}

/* Returns a cursor at the last restart point whose key is below the key wanted. */
static inline struct bpfof_cursor prefix_find_restart(const struct prefix_wanted *wanted,
						      const struct prefix_block *block)
{
	/* If none is below, begin at the first one. */
	struct bpfof_search search = { 1, block->restarts };
	struct prefix_entry entry;

	while (search.low < search.high) {
		__u32 middle = bpfof_middle(&search);
		struct bpfof_cursor cursor = prefix_at_restart(block, middle);

		prefix_take_entry(&cursor, wanted->values, &entry);
		if (bpfof_failed(&cursor) || entry.shared || entry.other_size < wanted->tag_size) {
			bpfof_fail(&cursor);
			return cursor;
		}
		bpfof_narrow(&search, middle,
			     prefix_order(wanted, entry.other, entry.other_size) < 0);
	}
	return prefix_at_restart(block, search.low - 1);
}

/* Advances the cursor to the first entry that is not before the key wanted. */
static inline int prefix_advance(const struct prefix_wanted *wanted, struct bpfof_cursor *cursor,
				 struct prefix_entry *entry, struct prefix_key *current)
{
	while (bpfof_left(cursor)) {
		prefix_take_entry(cursor, wanted->values, entry);
		if (wanted->values == PREFIX_VALUES_DELTA)
			prefix_take_place(cursor, entry);
		if (bpfof_failed(cursor) || entry->shared > current->size)
			return DAMAGE_ENTRY;
		if (entry->other_size > current->room - entry->shared)
			return DAMAGE_KEY_TOO_LONG;
		bpfof_memmove(current->key + entry->shared, entry->other, entry->other_size);
		current->size = entry->shared + entry->other_size;
		if (current->size < wanted->tag_size)
			return DAMAGE_ENTRY;
		if (prefix_order(wanted, current->key, current->size) >= 0)
			return PREFIX_AT_ENTRY;
	}
	return bpfof_failed(cursor) ? DAMAGE_ENTRY : PREFIX_PAST_END;
}

/* Finds the first entry that is not before the key wanted. */
static inline int prefix_seek(const struct prefix_wanted *wanted, const struct prefix_block *block,
			      struct prefix_entry *entry, struct prefix_key *current)
{
	struct bpfof_cursor cursor = prefix_find_restart(wanted, block);

	return prefix_advance(wanted, &cursor, entry, current);
}

/* Reads the block whose place is in `entry`, or encoded in its value. */
static inline int prefix_descend(struct bpfof_ctx *ctx, const struct prefix_wanted *wanted,
				 struct prefix_entry *entry)
{
	if (wanted->values == PREFIX_VALUES_PLAIN) {
		struct bpfof_cursor cursor =
			bpfof_cursor(entry->value, entry->value + entry->value_size);

		entry->shared = 0;
		prefix_take_place(&cursor, entry);
		if (bpfof_failed(&cursor))
			return DAMAGE_ENTRY;
	}
	if (entry->size > PREFIX_BLOCK_BYTES_MAX)
		return DAMAGE_POINTER;
	return bpfof_read(ctx, ctx->file, entry->offset, entry->size + PREFIX_TRAILER_BYTES);
}

#endif
