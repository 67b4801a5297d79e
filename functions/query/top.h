/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The first rows of a query by a number: what is asked for, and the entries that are answered, in no
 * order. Rows whose number is missing or NaN are none of them.
 */
#ifndef QUERY_TOP_H
#define QUERY_TOP_H

#include "bpfof/batch.h"

/* At reduction_at. */
struct query_top {
	/* entries at most, not 0 */
	__u32 entries_max;
	__u16 column;
	/* 1: the greatest come first */
	__u16 descending;
};

struct query_top_entry {
	/* order form, turned over if the greatest come first: less is better */
	__u64 key;
	/* of the row: file offset in bytes */
	__u64 offset;
};

#endif
