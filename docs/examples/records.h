/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Definitions that find.c and find.bpf.c share: a file of records, linked into BUCKETS lists by
 * key. Record number i is at byte i * sizeof(struct record); the first BUCKETS records are the heads.
 */
#ifndef RECORDS_H
#define RECORDS_H

#define BUCKETS 16

struct record {
	unsigned long long key;
	/* file offset of the next record of the list; 0 ends it */
	unsigned long long next;
	char value[48];
};

/* The argument and, with value filled in, the answer. No answer: no such key. */
struct query {
	unsigned long long key;
	char value[48];
};

/* The function's return code if the file is damaged. */
#define BAD_RECORD 1

#endif
