/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The argument and the answer of sst_get, for both ends: the function, and hosts in C and C++, which
 * include <linux/types.h> before. sst_get.h says what they are about.
 */
#ifndef SST_ABI_H
#define SST_ABI_H

/* Files of a request. */
#define SST_TABLES_MAX 16

/* Checksums, as in footers. */
#define SST_CHECKSUM_NONE 0
#define SST_CHECKSUM_CRC32C 1
#define SST_CHECKSUM_XXH3 4

/* The index's values are differences (format_version 4 and later). */
#define SST_INDEX_DELTA 1
/* The index's keys are those of the user, without sequence number and type. */
#define SST_INDEX_USER_KEYS 2

/* Where the search in one table begins. */
struct sst_table {
	/* the block to begin with, and its size without trailer */
	__u64 offset;
	__u32 size;
	/* levels of index above the data block: 0 if it is one, 2 if the index is partitioned */
	__u8 levels;
	__u8 flags;
	__u8 checksum;
	__u8 reserved;
};

/*
 * The argument; tables[], newest first, and the key follow. Table number n is the request's file n,
 * and the first read is its block, with trailer, in the first.
 */
struct sst_get_request {
	/* versions with a larger sequence number << 8 | type are not seen */
	__u64 newest_tag;
	__u32 key_size;
	__u32 tables;
};

#define SST_NOT_FOUND 0
#define SST_FOUND 1
#define SST_DELETED 2
/* The newest version is of a type that this function does not know: a merge, a blob. */
#define SST_OTHER 3
/* Found, but scratch has no room for the value. */
#define SST_TOO_LONG 4

/* The answer; value_size bytes of value follow, if it was found and is not too long. */
struct sst_get_answer {
	__u32 status;
	__u32 value_size;
	/* sequence number << 8 | type of the version, 0 if there is none */
	__u64 tag;
	/* blocks that were read */
	__u32 blocks;
	/* the table it was in */
	__u32 table;
};

#endif
