/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * A log whose records are linked backwards: each record names the previous record of the same list
 * (a hash bucket, a tenant, the whole log). All integers are little-endian.
 *
 * A log only grows, so a record lies before all records that point to it, and no list has a cycle.
 */
#ifndef LOG_WALK_H
#define LOG_WALK_H

#include "bpfof/blocks.h"
#include "damage.h"

#define LOG_RECORD_BYTES_MAX BPFOF_READ_MAX

/* Key and value follow, up to the end of the record. */
struct log_record {
	/* CRC-32C of the rest of the record */
	__u32 checksum;
	/* size in bytes of the whole previous record; 0: this is the first one */
	__u32 previous_size;
	__u64 previous_offset;
	/* LOG_DELETION or 0 */
	__u32 flags;
	__u32 key_size;
};

/* The key was deleted; there is no value. */
#define LOG_DELETION 1

/* The argument; the key follows. The first read is the whole newest record of the list. */
struct log_walk_request {
	/* maximum number of records that the chain reads; 0: no limit */
	__u32 records_max;
	__u32 key_size;
};

#define LOG_NOT_FOUND 0
#define LOG_FOUND 1
#define LOG_WAS_DELETED 2
/* The key is not in the first records_max records: the next chain begins with this record. */
#define LOG_MORE 3

/* The answer; the value follows. */
struct log_walk_answer {
	__u32 status;
	/* size in bytes of the record at offset; 0 if not found */
	__u32 size;
	/* file offset of the record found, or of the record to continue with */
	__u64 offset;
};

#endif
