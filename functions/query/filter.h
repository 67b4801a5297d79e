/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The conditions of a query's filter, in postfix order. Each leaf makes a mask, a byte for each
 * selected row: 2 for true, 0 for false, 1 for unknown. So OR is the maximum, AND is the minimum,
 * and NOT is 2 minus the value. FILTER_KEEP takes the last mask and keeps the rows selected that
 * have 2. FILTER_RANGE_KEEP is FILTER_RANGE and FILTER_KEEP in one.
 */
#ifndef QUERY_FILTER_H
#define QUERY_FILTER_H

#include "bpfof/batch.h"

#define FILTER_RANGE_KEEP 0
#define FILTER_RANGE 1
/* The number is one of `count` numbers of 8 bytes at `at` in scratch. */
#define FILTER_IN 2
/* The text compares with the text of `count` bytes at `at` in scratch. */
#define FILTER_TEXT 3
/* The text begins with it. */
#define FILTER_PREFIX 4
#define FILTER_NULL 5
#define FILTER_AND 6
#define FILTER_OR 7
#define FILTER_NOT 8
#define FILTER_KEEP 9

struct filter_condition {
	/* a range of numbers in order form, both ends inclusive; low <= high */
	__u64 low;
	__u64 high;
	__u8 operation;
	__u8 column;
	/* range, in: 1 inverts the condition. text: bit 0 accepts less, bit 1 equal, bit 2
	 * greater */
	__u8 outcome;
	__u8 reserved;
	__u16 at;
	__u16 count;
};

#endif
