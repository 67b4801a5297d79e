/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Row-store B-trees as WiredTiger 3.2 to 11.3 writes them: the search for one key, from a page that is
 * not in the cache down to the leaf. Encodings of pages and cells are little-endian.
 *
 * A page is 28 bytes of page header, 12 of block header, and cells. Internal pages have a key and an
 * address for each child. Leaves have a key for each row and, unless it is empty, a value. The numbers
 * inside cells are packed: the first byte gives the number of bytes that follow.
 *
 * The answer is the value, or that there is none. If the function cannot be sure, or was asked for pages
 * only, the answer is the pages that it has read, so that the host continues the search with them.
 */
#ifndef WT_GET_H
#define WT_GET_H

/* Offsets in a page's header, in bytes. */
#define WT_PAGE_MEMORY_BYTES 16 /* u32: header and cells, uncompressed */
#define WT_PAGE_ENTRIES 20      /* u32: cells */
#define WT_PAGE_TYPE 24
#define WT_PAGE_FLAGS 25
#define WT_PAGE_VERSION 27
#define WT_PAGE_DISK_BYTES 28   /* u32: size of the block */
#define WT_PAGE_CHECKSUM 32     /* u32: CRC-32C, with this field as zero */
#define WT_PAGE_BLOCK_FLAGS 36
#define WT_PAGE_CELLS 40

#define WT_TYPE_ROW_INTERNAL 6
#define WT_TYPE_ROW_LEAF 7

#define WT_FLAG_COMPRESSED 0x01
#define WT_FLAG_ENCRYPTED 0x08
#define WT_FLAG_LOOKASIDE 0x10
#define WT_FLAG_FAST_TRUNCATE 0x20

/* The checksum covers the whole block, not only its first 64 bytes. */
#define WT_BLOCK_CHECKSUM_ALL 0x01
/* The first bytes of a block, this many, are never compressed. */
#define WT_CLEAR_BYTES 64

/* Larger blocks are not read. */
#define WT_BLOCK_BYTES_MAX 57344
#define WT_KEY_BYTES_MAX 1024

/* Maximum number of leaves that are read together. */
#define WT_LEAVES_MAX 16

/* Flag of a request: answer with the pages, whatever they contain. */
#define WT_GET_PAGES_ONLY 1

/* The argument; the key follows. The first read is a page whose subtree would contain the key. */
struct wt_get_request {
	__u32 allocation_bytes;
	__u16 key_bytes;
	__u8 flags;
	/* BPFOF_SNAPPY, BPFOF_LZ4, BPFOF_ZSTD, or 0: compressed pages are not searched */
	__u8 compressor;
	/* bytes behind this structure that the function has used; 0 in a request */
	__u32 used_bytes;
	/* checksum of the next page, from the address of the page, and whether it is known */
	__u32 checksum;
	__u8 has_checksum;
	/* maximum number of levels of the tree */
	__u8 levels_max;
	/* reads of this hop still to come, and leaves behind the first that are kept; 0 in a request */
	__u8 reads_left;
	__u8 following;
	/*
	 * With WT_GET_PAGES_ONLY: leaves behind that of the key are read with it, up to this many bytes,
	 * if they have the same parent and the parent is read on the way.
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

/* Reasons for an answer with pages. */
enum wt_get_reason {
	WT_REASON_NONE,
	WT_REASON_ASKED,
	WT_REASON_OVERFLOW_KEY,
	WT_REASON_OVERFLOW_VALUE,
	/* the value is not visible to every snapshot, or was removed */
	WT_REASON_TIME_WINDOW,
	WT_REASON_LOOKASIDE,
	/* the child page was removed as a whole */
	WT_REASON_DELETED,
	/* the address does not belong to this file, or is invalid */
	WT_REASON_ADDRESS,
	WT_REASON_COMPRESSED,
	WT_REASON_ENCRYPTED,
	/* a page, or the value, is too large */
	WT_REASON_TOO_LARGE,
	/* unexpected type of page or cell */
	WT_REASON_TYPE,
	/* the key is before or behind all keys of the leaf */
	WT_REASON_EDGE,
	WT_REASONS
};

/* The answer, in place of the request. */
struct wt_get_answer {
	__u8 status;
	__u8 reason;
	/* number of pages read */
	__u8 pages;
	/* number of pages that follow */
	__u8 kept;
	/* size of the key between this header and the pages */
	__u32 key_bytes;
	__u32 value_bytes;
	/* how many of the pages, the last ones, are leaves behind that of the key */
	__u32 following;
	__u32 reserved[2];
};

/* A page as in the file. Its bytes follow; the next page begins at a multiple of 8 bytes. */
struct wt_get_page {
	__u64 offset;
	__u32 bytes;
	__u32 reserved;
};

#endif
