/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Row-store B-trees as WiredTiger writes them, 3.2 to 11.3: what a search for one key reads, from a page
 * that is not in the cache down to the leaf. Encodings of pages and cells are little-endian.
 *
 * A page is 28 bytes of page header, 12 of block header, and cells. Internal pages have a key and an
 * address for each child; leaves a key and, unless it is empty, a value for each row. The numbers inside
 * cells are packed: the first byte tells how many follow.
 *
 * The answer is the value, or that there is none; or, where the function cannot be sure of that or was
 * not asked for it, the pages themselves, so that the search goes on with them.
 */
#ifndef WT_GET_H
#define WT_GET_H

/* Of a page's header, offsets in bytes. */
#define WT_PAGE_MEMORY_BYTES 16 /* u32: header and cells, uncompressed */
#define WT_PAGE_ENTRIES 20      /* u32: cells */
#define WT_PAGE_TYPE 24
#define WT_PAGE_FLAGS 25
#define WT_PAGE_VERSION 27
#define WT_PAGE_DISK_BYTES 28   /* u32: of the block */
#define WT_PAGE_CHECKSUM 32     /* u32: CRC-32C, with this field as zero */
#define WT_PAGE_BLOCK_FLAGS 36
#define WT_PAGE_CELLS 40

#define WT_TYPE_ROW_INTERNAL 6
#define WT_TYPE_ROW_LEAF 7

#define WT_FLAG_COMPRESSED 0x01
#define WT_FLAG_ENCRYPTED 0x08
#define WT_FLAG_LOOKASIDE 0x10
#define WT_FLAG_FAST_TRUNCATE 0x20

/* The checksum is of the whole block, not of its first 64 bytes. */
#define WT_BLOCK_CHECKSUM_ALL 0x01
/* So many bytes of a block are never compressed. */
#define WT_CLEAR_BYTES 64

/* A block of more bytes is not read. */
#define WT_BLOCK_BYTES_MAX 57344
#define WT_KEY_BYTES_MAX 1024

/* Leaves that are read together. */
#define WT_LEAVES_MAX 16

/* Of a request: answer with the pages, whatever they hold. */
#define WT_GET_PAGES_ONLY 1

/* The argument; the key follows. The first read is a page of which the subtree would have the key. */
struct wt_get_request {
	__u32 allocation_bytes;
	__u16 key_bytes;
	__u8 flags;
	/* BPFOF_SNAPPY, BPFOF_LZ4, BPFOF_ZSTD, or 0: compressed pages are not looked into */
	__u8 compressor;
	/* bytes that the function has used behind this structure: 0 */
	__u32 used_bytes;
	/* checksum of the next page by the address that led there, and whether it is known */
	__u32 checksum;
	__u8 has_checksum;
	/* levels of the tree at most */
	__u8 levels_max;
	/* reads of this hop that are yet to come, and leaves behind the first that are kept: 0 */
	__u8 reads_left;
	__u8 following;
	/*
	 * With WT_GET_PAGES_ONLY: so many bytes of the leaves behind that of the key are read with it, as
	 * far as they have the same parent, and that is on the way.
	 */
	__u32 following_bytes;
};

enum wt_get_status {
	/* the value follows the answer's header */
	WT_GET_FOUND = 1,
	/* no row has this key */
	WT_GET_NOT_FOUND = 2,
	/* pages follow the answer's header and the key, see struct wt_get_page */
	WT_GET_PAGES = 3,
};

/* Why the answer is pages. */
enum wt_get_reason {
	WT_REASON_NONE,
	WT_REASON_ASKED,
	WT_REASON_OVERFLOW_KEY,
	WT_REASON_OVERFLOW_VALUE,
	/* the value is not for every snapshot, or was removed */
	WT_REASON_TIME_WINDOW,
	WT_REASON_LOOKASIDE,
	/* the child was removed as a whole */
	WT_REASON_DELETED,
	/* an address that is none of this file */
	WT_REASON_ADDRESS,
	WT_REASON_COMPRESSED,
	WT_REASON_ENCRYPTED,
	/* a page, or the value, is too large */
	WT_REASON_TOO_LARGE,
	/* another type of page or cell */
	WT_REASON_TYPE,
	/* the key is before all or after all of the leaf's */
	WT_REASON_EDGE,
	WT_REASONS
};

/* The answer, which lies where the request was. */
struct wt_get_answer {
	__u8 status;
	__u8 reason;
	/* pages that were read */
	__u8 pages;
	/* pages that follow */
	__u8 kept;
	/* of the key between this header and the pages */
	__u32 key_bytes;
	__u32 value_bytes;
	/* how many of the pages, the last ones, are leaves behind that of the key */
	__u32 following;
	__u32 reserved[2];
};

/* A page as it is in the file; its bytes follow, and the next one begins at a multiple of 8 bytes. */
struct wt_get_page {
	__u64 offset;
	__u32 bytes;
	__u32 reserved;
};

#endif
