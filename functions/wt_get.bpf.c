/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Looks up one key in a B-tree of WiredTiger: from the page that the host names down to the leaf. Each
 * block is verified against its checksum, and the checksum against that in the address of the block. On
 * request, leaves behind that of the key are returned with it.
 *
 * Scratch has the request, the key, and behind it the pages in the order in which they were read. In an
 * answer the pages stay in place; a value replaces the key.
 */
#include "bpfof/blocks.h"
#include "damage.h"
#include "wt_get.h"

_Static_assert(sizeof(struct wt_get_request) == sizeof(struct wt_get_answer),
	       "the key stays where it is");
_Static_assert(WT_BLOCK_BYTES_MAX == BPFOF_READ_MAX, "wt_get.h gives the number to hosts");
_Static_assert(WT_LEAVES_MAX == BPFOF_MAX_READS, "wt_get.h gives the number to hosts");

/* Planted bugs, which tests must detect. */
#ifndef IGNORES_WINDOWS
#define IGNORES_WINDOWS 0
#endif
#ifndef ANY_LEAF
#define ANY_LEAF 0
#endif

/* Types of cells: the upper four bits of the first byte of a long cell. Short cells are given the same
 * types. */
#define CELL_ADDRESS_DELETED 0
#define CELL_ADDRESS_LEAF 2
#define CELL_ADDRESS_LEAF_LAST 3
#define CELL_KEY 5
#define CELL_KEY_OVERFLOW 6
#define CELL_KEY_PREFIX 7
#define CELL_VALUE 8
#define CELL_VALUE_COPY 9
#define CELL_VALUE_OVERFLOW 10
#define CELL_VALUE_OVERFLOW_REMOVED 11
#define CELL_KEY_OVERFLOW_REMOVED 12

/* Flags of long cells: a second byte of flags follows, a record number follows. */
#define CELL_HAS_WINDOW 0x08
#define CELL_HAS_NUMBER 0x04
/* Bits of the second byte, each of which stands for a packed number. */
#define WINDOW_NUMBERS 0x7e

/* Added to the lengths in long cells, because shorter data takes a short cell. */
#define SHORT_BYTES_MAX 64

/* The state of a search. */
struct search {
	struct bpfof_ctx *ctx;
	struct wt_get_request *request;
	const __u8 *key;
	__u32 key_bytes;
	/* the key's first eight bytes as a number */
	__u64 key_head;
	/* the page's flags and version */
	__u8 flags;
	__u8 version;
	/* where its cells begin and how many there are */
	const __u8 *cells;
	const __u8 *end;
	__u32 entries;
};

struct cell {
	__u8 type;
	__u8 has_window;
	__u8 prefix;
	const __u8 *data;
	__u32 bytes;
};

static __attribute__((noinline)) int pages(struct search *search, __u8 reason)
{
	struct bpfof_ctx *ctx = search->ctx;
	struct wt_get_request *request = search->request;
	struct wt_get_answer *answer = (struct wt_get_answer *)ctx->scratch;
	__u32 used = request->used_bytes, key_bytes = search->key_bytes, at = (key_bytes + 7) & ~7u;
	__u32 following = request->following;
	__u8 kept = 0;

	/* A bound for the loop: there are fewer pages. */
	while (at + sizeof(struct wt_get_page) <= used && kept < 64) {
		at += sizeof(struct wt_get_page);
		at += (((struct wt_get_page *)((__u8 *)(request + 1) + at))[-1].bytes + 7) & ~7u;
		kept++;
	}
	answer->status = WT_GET_PAGES;
	answer->reason = reason;
	answer->pages = ctx->hop + 1;
	answer->kept = kept;
	answer->key_bytes = key_bytes;
	answer->value_bytes = 0;
	answer->following = following;
	bpfof_memset(answer->reserved, 0, sizeof(answer->reserved));
	return bpfof_answer(ctx, sizeof(*answer) + used);
}

static __attribute__((noinline)) int answer(struct search *search, __u8 status, const __u8 *value, __u32 bytes)
{
	struct bpfof_ctx *ctx = search->ctx;
	struct wt_get_answer *answer = (struct wt_get_answer *)ctx->scratch;

	if (bytes > ctx->scratch_size - sizeof(*answer))
		return pages(search, WT_REASON_TOO_LARGE);
	bpfof_memset(answer, 0, sizeof(*answer));
	answer->status = status;
	answer->pages = ctx->hop + 1;
	answer->value_bytes = bytes;
	if (bytes)
		bpfof_memmove(answer + 1, value, bytes);
	return bpfof_answer(ctx, sizeof(*answer) + bytes);
}

/* ---- Pages ---- */

static inline int check_sum(const struct bpfof_ctx *ctx, const struct wt_get_request *request)
{
	const __u8 *page = ctx->data;
	__u64 size = bpfof_data_size(ctx), covered = WT_CLEAR_BYTES;
	__u32 wanted = bpfof_le32(page + WT_PAGE_CHECKSUM), zero = 0;
	__u64 sum;

	if (page[WT_PAGE_BLOCK_FLAGS] & WT_BLOCK_CHECKSUM_ALL)
		covered = size;
	if (request->has_checksum && request->checksum != wanted)
		return DAMAGE_CHECKSUM;
	sum = bpfof_crc32c(page, 0, WT_PAGE_CHECKSUM);
	sum = bpfof_crc32c(&zero, sum, sizeof(zero));
	sum = bpfof_crc32c(page + WT_PAGE_CHECKSUM + 4, sum, covered - WT_PAGE_CHECKSUM - 4);
	return sum == wanted ? 0 : DAMAGE_CHECKSUM;
}

/* Appends the current page to the kept pages, if there is room. */
static inline void keep(struct search *search)
{
	struct bpfof_ctx *ctx = search->ctx;
	struct wt_get_request *request = search->request;
	__u32 used = request->used_bytes, size = bpfof_data_size(ctx), room;
	struct wt_get_page *page;

	if (!used)
		used = (search->key_bytes + 7) & ~7u;
	room = ctx->scratch_size - sizeof(*request);
	/* The page goes behind the used bytes, aligned. */
	if (used > room || room - used < sizeof(*page) + ((size + 7) & ~7u))
		return;
	page = (struct wt_get_page *)((__u8 *)(request + 1) + used);
	page->offset = ctx->offset;
	page->bytes = size;
	page->reserved = 0;
	bpfof_memmove(page + 1, ctx->data, size);
	request->used_bytes = used + sizeof(*page) + ((size + 7) & ~7u);
	if (ctx->read_index)
		request->following++;
}

/* Decompresses the page into the workspace. Returns a reason if that fails. */
static inline __u8 uncompress(struct search *search, __u32 memory_bytes)
{
	const struct bpfof_ctx *ctx = search->ctx;
	const __u8 *from = ctx->data + WT_CLEAR_BYTES, *end = ctx->data_end;
	__u32 size = memory_bytes - WT_CLEAR_BYTES;
	__u8 *to = bpfof_workspace();
	__u64 length;

	switch (search->request->compressor) {
	case BPFOF_SNAPPY:
	case BPFOF_ZSTD:
		if (end - from < 8)
			return WT_REASON_COMPRESSED;
		length = bpfof_le64(from);
		from += 8;
		break;
	case BPFOF_LZ4:
		if (end - from < 16)
			return WT_REASON_COMPRESSED;
		length = bpfof_le32(from);
		from += 16;
		break;
	default:
		return WT_REASON_COMPRESSED;
	}
	if (length > (__u64)(end - from))
		return WT_REASON_COMPRESSED;
	if (memory_bytes < WT_CLEAR_BYTES || memory_bytes > BPFOF_WORKSPACE_SIZE)
		return WT_REASON_TOO_LARGE;
	if (bpfof_decompress(search->request->compressor, to + WT_CLEAR_BYTES, size, from, length) !=
	    size)
		return WT_REASON_COMPRESSED;
	bpfof_memmove(to, ctx->data, WT_CLEAR_BYTES);
	search->cells = to + WT_PAGE_CELLS;
	search->end = to + memory_bytes;
	return WT_REASON_NONE;
}

/* Reads the page's header. Returns a reason if its cells cannot be read. */
static inline __u8 open_page(struct search *search)
{
	const __u8 *page = search->ctx->data;
	__u32 memory_bytes = bpfof_le32(page + WT_PAGE_MEMORY_BYTES);
	__u8 flags = page[WT_PAGE_FLAGS];

	search->flags = flags;
	search->version = page[WT_PAGE_VERSION];
	search->entries = bpfof_le32(page + WT_PAGE_ENTRIES);
	if (flags & WT_FLAG_ENCRYPTED)
		return WT_REASON_ENCRYPTED;
	if (flags & WT_FLAG_COMPRESSED)
		return uncompress(search, memory_bytes);
	if (memory_bytes < WT_PAGE_CELLS || memory_bytes > bpfof_data_size(search->ctx))
		return WT_REASON_TYPE;
	search->cells = page + WT_PAGE_CELLS;
	search->end = page + memory_bytes;
	return WT_REASON_NONE;
}

/* ---- Cells ---- */

static inline __u64 take_packed(struct bpfof_cursor *cursor)
{
	const __u8 *at = bpfof_take(cursor, 1);
	__u64 value = 0;
	__u32 first;

	if (!at)
		return 0;
	first = *at;
	if ((first & 0xc0) == 0x80)
		return first & 0x3f;
	if ((first & 0xe0) == 0xc0) {
		at = bpfof_take(cursor, 1);
		return at ? (((first & 0x1f) << 8) | *at) + 64 : 0;
	}
	/* A 64-bit number has at most 8 bytes. */
	if ((first & 0xf0) != 0xe0 || (first & 0xf) > 8) {
		bpfof_fail(cursor);
		return 0;
	}
	first &= 0xf;
	at = bpfof_take(cursor, first);
	for (__u32 i = 0; at && i < first; i++)
		value = value << 8 | at[i];
	return at ? value + 8256 : 0;
}

/* Takes a long cell: the two lowest bits of its first byte are 0. */
static __attribute__((noinline)) int take_long_cell(struct bpfof_cursor *cursor, struct cell *cell,
						     __u32 version)
{
	const __u8 *at = bpfof_take(cursor, 1);
	__u32 first = at ? *at : 0, window = 0;
	__u64 bytes;

	cell->type = first >> 4;
	cell->prefix = 0;
	cell->has_window = 0;
	if (cell->type == CELL_KEY_PREFIX) {
		at = bpfof_take(cursor, 1);
		cell->prefix = at ? *at : 0;
	}
	if (first & CELL_HAS_WINDOW && (cell->type < CELL_KEY || cell->type >= CELL_VALUE)) {
		/* The format of older versions with this flag is unknown. */
		if (!version)
			bpfof_fail(cursor);
		at = bpfof_take(cursor, 1);
		window = at ? *at & WINDOW_NUMBERS : 0;
		cell->has_window = 1;
		for (; window; window &= window - 1)
			take_packed(cursor);
	}
	if (first & CELL_HAS_NUMBER) {
		take_packed(cursor);
		cell->has_window = 1;
	}
	bytes = take_packed(cursor);
	if (cell->type == CELL_VALUE_COPY) {
		/* The number is a distance backwards; no data follows. */
		cell->data = 0;
		cell->bytes = bytes;
		return !bpfof_failed(cursor);
	}
	if (cell->type == CELL_KEY || cell->type == CELL_KEY_PREFIX ||
	    (cell->type == CELL_VALUE && !cell->has_window))
		bytes += SHORT_BYTES_MAX;
	cell->data = bpfof_take(cursor, bytes);
	cell->bytes = bytes;
	return !bpfof_failed(cursor);
}

/* Takes the next cell. Returns 0 if there is none. */
static inline int take_cell(struct bpfof_cursor *cursor, struct cell *cell, __u32 version)
{
	const __u8 *at = cursor->at;
	__u32 first, bytes, kind;

	if (at >= cursor->end)
		return 0;
	first = *at;
	kind = first & 3;
	if (!kind)
		return take_long_cell(cursor, cell, version);
	bytes = first >> 2;
	at++;
	cell->prefix = 0;
	if (kind == 2) {
		if (at >= cursor->end)
			return 0;
		cell->prefix = *at++;
	}
	if (bytes > cursor->end - at)
		return 0;
	cell->type = kind == 3 ? CELL_VALUE : kind == 2 ? CELL_KEY_PREFIX : CELL_KEY;
	cell->has_window = 0;
	cell->data = at;
	cell->bytes = bytes;
	cursor->at = at + bytes;
	return 1;
}

/* Returns < 0, 0 or > 0 as the key sought comes before, is, or comes after this key, comparing from byte
 * `from` of the key sought. */
static inline __s64 compare(const struct search *search, __u32 from, const __u8 *key, __u32 bytes)
{
	if (!from && search->key_bytes >= 8 && bytes >= 8) {
		__u64 head = bpfof_be64(key);

		if (head != search->key_head)
			return search->key_head < head ? -1 : 1;
	}
	return bpfof_compare(search->key + from, search->key_bytes - from, key, bytes);
}

/* ---- Internal pages ---- */

/* The place of a page, in bytes. */
struct place {
	__u64 offset;
	__u32 bytes;
	__u32 checksum;
};

/* Returns a reason if the page of this address cannot be read. */
static __attribute__((noinline)) __u8 locate(const struct search *search, const struct cell *address,
					      struct place *place)
{
	struct bpfof_cursor cursor = bpfof_cursor(address->data, address->data + address->bytes);
	__u64 unit = search->request->allocation_bytes, offset, size;

	if (!address->type)
		return WT_REASON_DELETED;
	offset = take_packed(&cursor) + 1;
	size = take_packed(&cursor);
	place->checksum = take_packed(&cursor);
	/* More bytes would be the number of another object. */
	if (bpfof_failed(&cursor) || bpfof_left(&cursor) || !size || offset >> 48)
		return WT_REASON_ADDRESS;
	if (size > WT_BLOCK_BYTES_MAX / unit)
		return WT_REASON_TOO_LARGE;
	place->offset = offset * unit;
	place->bytes = size * unit;
	return WT_REASON_NONE;
}

/* Reads the child at this address. */
static inline int descend(struct search *search, const struct cell *address)
{
	struct wt_get_request *request = search->request;
	struct place place;
	__u8 reason = locate(search, address, &place);

	if (reason)
		return pages(search, reason);
	if (search->ctx->hop + 1 >= request->levels_max)
		return DAMAGE_TOO_MANY_BLOCKS;
	request->checksum = place.checksum;
	request->has_checksum = 1;
	request->reads_left = 1;
	return bpfof_read(search->ctx, search->ctx->file, place.offset, place.bytes);
}

static inline int is_deleted_address(const struct bpfof_cursor *cursor)
{
	/* A long cell of type 0: no bits but the flags are set. */
	return cursor->at < cursor->end && !(*cursor->at & ~(CELL_HAS_WINDOW | CELL_HAS_NUMBER));
}

static inline int is_leaf(const struct cell *address)
{
	return address->type == CELL_ADDRESS_LEAF || address->type == CELL_ADDRESS_LEAF_LAST;
}

/* Bytes that a read takes on a device with logical blocks of 4096 bytes. */
static inline __u32 rounded(__u64 offset, __u32 bytes)
{
	__u64 mask = 4095;

	return ((offset + bytes + mask) & ~mask) - (offset & ~mask);
}

/* Appends the leaf at this address, and the leaves behind it that are requested, to the next reads. */
static inline void follow(struct search *search, struct bpfof_cursor cursor, struct cell address, __u32 left)
{
	struct wt_get_request *request = search->request;
	struct bpfof_ctx *ctx = search->ctx;
	struct cell key;
	struct place place;
	__u32 reads = 1, bytes = request->following_bytes;
	__u32 room = BPFOF_MAX_HOP_BYTES - rounded(ctx->next_offset[0], ctx->next_size[0]);

	while (reads < BPFOF_MAX_READS) {
		__u32 taken;

		if (!is_leaf(&address) || locate(search, &address, &place) || place.bytes > bytes)
			break;
		taken = rounded(place.offset, place.bytes);
		if (taken > room)
			break;
		room -= taken;
		ctx->next_offset[reads] = place.offset;
		ctx->next_size[reads] = place.bytes;
		ctx->next_file[reads] = ctx->file;
		reads++;
		bytes -= place.bytes;
		if (!left-- || !take_cell(&cursor, &key, search->version) ||
		    is_deleted_address(&cursor) || !take_cell(&cursor, &address, search->version))
			break;
	}
	ctx->reads = reads;
	request->reads_left = reads;
}

static inline int search_internal(struct search *search)
{
	struct bpfof_cursor cursor = bpfof_cursor(search->cells, search->end);
	struct cell key, address = { 0 }, child = { 0 };
	__u32 version = search->version, left = search->entries / 2, i;
	int error;

	for (i = 0; i < left; i++) {
		if (!take_cell(&cursor, &key, version))
			return DAMAGE_ENTRY;
		/* The address of a deleted child has fields that this function cannot parse. */
		if (search->flags & WT_FLAG_FAST_TRUNCATE && is_deleted_address(&cursor))
			return pages(search, WT_REASON_DELETED);
		if (!take_cell(&cursor, &address, version))
			return DAMAGE_ENTRY;
		if (address.type > CELL_ADDRESS_LEAF_LAST)
			return pages(search, WT_REASON_TYPE);
		/* The first key of an internal page counts as the smallest, whatever it is. */
		if (i) {
			if (key.type != CELL_KEY)
				return pages(search, key.type == CELL_KEY_OVERFLOW ?
							     WT_REASON_OVERFLOW_KEY :
							     WT_REASON_TYPE);
			if (compare(search, 0, key.data, key.bytes) < 0)
				break;
		}
		child = address;
	}
	if (!child.data)
		return pages(search, WT_REASON_TYPE);
	error = descend(search, &child);
	if (i < left && search->request->following_bytes && search->ctx->reads && is_leaf(&child))
		follow(search, cursor, address, left - i - 1);
	return error;
}

/* ---- Leaves ---- */

/* The row has been found; its value is the next cell, or empty if that is a key. */
static inline int found(struct search *search, struct bpfof_cursor cursor, __u32 is_last)
{
	const __u8 *start = cursor.at;
	struct cell value;

	if (is_last)
		return answer(search, WT_GET_FOUND, 0, 0);
	if (!take_cell(&cursor, &value, search->version))
		return DAMAGE_ENTRY;
	switch (value.type) {
	case CELL_KEY:
	case CELL_KEY_OVERFLOW:
	case CELL_KEY_PREFIX:
		return answer(search, WT_GET_FOUND, 0, 0);
	case CELL_VALUE:
		break;
	case CELL_VALUE_COPY:
		if (value.has_window)
			return pages(search, WT_REASON_TIME_WINDOW);
		if (value.bytes > start - search->cells)
			return DAMAGE_ENTRY;
		cursor = bpfof_cursor(start - value.bytes, search->end);
		if (!take_cell(&cursor, &value, search->version))
			return DAMAGE_ENTRY;
		if (value.type != CELL_VALUE)
			return pages(search, WT_REASON_TYPE);
		break;
	case CELL_VALUE_OVERFLOW:
	case CELL_VALUE_OVERFLOW_REMOVED:
		return pages(search, WT_REASON_OVERFLOW_VALUE);
	default:
		return pages(search, WT_REASON_TYPE);
	}
	if (value.has_window && !IGNORES_WINDOWS)
		return pages(search, WT_REASON_TIME_WINDOW);
	return answer(search, WT_GET_FOUND, value.data, value.bytes);
}

/* Returns how many bytes the key sought, from `from` on, and this key have in common. */
static inline __u32 common(const struct search *search, __u32 from, const struct cell *key)
{
	__u32 most = search->key_bytes - from, i = 0;

	if (most > key->bytes)
		most = key->bytes;
	while (i < most && search->key[from + i] == key->data[i])
		i++;
	return i;
}

static inline int search_leaf(struct search *search)
{
	struct bpfof_cursor cursor = bpfof_cursor(search->cells, search->end);
	struct cell key, last = { 0 };
	__u32 version = search->version, entries = search->entries, rows = 0;
	/* Bytes that the previous row's key and the key sought have in common; computed only when
	 * needed. */
	__u32 match = 0, is_known = 1;

	for (__u32 i = 0; i < entries; i++) {
		__s64 order;

		if (!take_cell(&cursor, &key, version))
			return DAMAGE_ENTRY;
		if (key.type >= CELL_VALUE && key.type <= CELL_VALUE_OVERFLOW)
			continue;
		if (key.type == CELL_VALUE_OVERFLOW_REMOVED)
			continue;
		if (key.type != CELL_KEY && key.type != CELL_KEY_PREFIX)
			return pages(search, key.type == CELL_KEY_OVERFLOW ? WT_REASON_OVERFLOW_KEY :
									       WT_REASON_TYPE);
		rows++;
		if (key.prefix) {
			if (!is_known)
				match = last.prefix + common(search, last.prefix, &last);
			is_known = 1;
			/* This key shares the byte that made the previous key too small, so it is too
			 * small as well. */
			if (key.prefix > match)
				continue;
		}
		order = compare(search, key.prefix, key.data, key.bytes);
		if (!order)
			return found(search, cursor, i + 1 == entries);
		if (order < 0) {
			/* Only a leaf with keys on both sides of the key sought is certainly the right
			 * one. */
			return rows > 1 || ANY_LEAF ? answer(search, WT_GET_NOT_FOUND, 0, 0) :
					  pages(search, WT_REASON_EDGE);
		}
		last = key;
		is_known = 0;
	}
	if (ANY_LEAF)
		return answer(search, WT_GET_NOT_FOUND, 0, 0);
	return pages(search, WT_REASON_EDGE);
}

SEC("bpfof/wt_get")
int wt_get(struct bpfof_ctx *ctx)
{
	struct wt_get_request *request = (struct wt_get_request *)ctx->scratch;
	struct search search = { .ctx = ctx, .request = request };
	__u64 size = bpfof_data_size(ctx);
	__u8 type, reason;
	int error;

	if (ctx->scratch_size < sizeof(*request) + WT_KEY_BYTES_MAX ||
	    request->key_bytes > WT_KEY_BYTES_MAX || !request->allocation_bytes ||
	    request->allocation_bytes > WT_BLOCK_BYTES_MAX)
		return DAMAGE_REQUEST;
	if (size < WT_CLEAR_BYTES || bpfof_le32(ctx->data + WT_PAGE_DISK_BYTES) != size)
		return DAMAGE_SIZE;
	search.key = (const __u8 *)(request + 1);
	search.key_bytes = request->key_bytes;
	if (search.key_bytes >= 8)
		search.key_head = bpfof_be64(search.key);
	error = check_sum(ctx, request);
	if (error)
		return error;
	/* The checksum is that of the first read of the hop only. */
	request->has_checksum = 0;
	keep(&search);
	type = ctx->data[WT_PAGE_TYPE];
	if (type == WT_TYPE_ROW_LEAF && request->flags & WT_GET_PAGES_ONLY) {
		if (request->reads_left > 1) {
			request->reads_left--;
			return 0;
		}
		return pages(&search, WT_REASON_ASKED);
	}
	if (type != WT_TYPE_ROW_INTERNAL && type != WT_TYPE_ROW_LEAF)
		return pages(&search, WT_REASON_TYPE);
	reason = open_page(&search);
	if (reason)
		return pages(&search, reason);
	if (type == WT_TYPE_ROW_INTERNAL)
		return search_internal(&search);
	if (search.flags & WT_FLAG_LOOKASIDE && !IGNORES_WINDOWS)
		return pages(&search, WT_REASON_LOOKASIDE);
	return search_leaf(&search);
}
