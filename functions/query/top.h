/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The first rows of a query in the order of a number: parameters, and the entries of the answer,
 * which are not sorted. Rows whose number is missing or NaN are not among them.
 */
#ifndef QUERY_TOP_H
#define QUERY_TOP_H

#include "bpfof/batch.h"

/* At reduction_at. */
struct query_top {
	/* maximum number of entries, not 0 */
	__u32 entries_max;
	__u16 column;
	/* 1: largest number first */
	__u16 descending;
};

struct query_top_entry {
	/* in order form, inverted if the largest comes first: smaller is better */
	__u64 key;
	/* file offset of the row in bytes */
	__u64 offset;
};

#endif
