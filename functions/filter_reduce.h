/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * A scan over records of the same size. Records that pass a filter are counted, and one column of
 * them is reduced to its sum, minimum and maximum; on request the answer has the records as well.
 *
 * The filter and the reduction are the inline functions below, so that a function with its own
 * filter or its own reduction can use the other one.
 */
#ifndef FILTER_REDUCE_H
#define FILTER_REDUCE_H

#include "bpfof/blocks.h"
#include "damage.h"

/* Maximum number of conditions of a filter. */
#define FILTER_CONDITIONS_MAX 4
/* Records of one read: with four conditions on each record they cost 0.7 million units of the
 * million that a call may cost. */
#define FILTER_RECORDS_MAX 512

#define COLUMN_SIGNED 1
#define COLUMN_BIG_ENDIAN 2

/* The position of a number in each record. */
struct filter_column {
	__u16 offset;
	/* 1, 2, 4 or 8 bytes */
	__u8 width;
	__u8 flags;
};

/*
 * A condition: the column is from low to high, both inclusive; or, if `outside` is 1, it is not.
 * With COLUMN_SIGNED both bounds are signed. Any comparison with a number is one of these: "not 7"
 * is outside of 7 to 7, "never" is outside of the whole range.
 */
struct filter_condition {
	__u64 low;
	__u64 high;
	struct filter_column column;
	__u32 outside;
};

/*
 * The argument. The first read is the first FILTER_RECORDS_MAX records, or all that are wanted, or
 * as many as fit into BPFOF_READ_MAX bytes.
 */
struct filter_reduce_request {
	/* end of the records: a whole number of records from the first read */
	__u64 end;
	__u32 record_size;
	/* conditions, all of which a record must meet; 0: all records pass */
	__u32 conditions;
	/* column to sum and compare; a width of 0: records are only counted */
	struct filter_column column;
	/* maximum number of records in the answer; 0: none, and the scan goes to the end */
	__u32 records_max;
	struct filter_condition condition[FILTER_CONDITIONS_MAX];
};

/*
 * The answer, for the records before `next`; the requested records that passed follow. If more
 * records pass than are wanted, or than scratch has room for, the next chain begins at `next`.
 */
struct filter_reduce_answer {
	__u64 next;
	/* 1: the scan continues at next; 0: next is the end */
	__u32 more;
	/* number of records that follow */
	__u32 records;
	/* number of records that passed */
	__u64 count;
	/* the exact sum of the column, 128 bits */
	__u64 sum_low;
	__s64 sum_high;
	/* signed if the column is; meaningless if count is 0 */
	__u64 min;
	__u64 max;
};

/* Running totals; min and max are in the form of filter_order(). */
struct filter_totals {
	__u64 count;
	__u64 min;
	__u64 max;
	/* sums of the lower and the upper halves, so that no value needs a carry */
	__u64 low;
	__u64 high;
};

static inline int filter_column_fits(const struct filter_column *column, __u32 record_size)
{
	__u32 width = column->width;

	return (width == 1 || width == 2 || width == 4 || width == 8) &&
	       column->offset + width <= record_size &&
	       !(column->flags & ~(COLUMN_SIGNED | COLUMN_BIG_ENDIAN));
}

/* Loads the number in this column, sign-extended to 64 bits if it is signed. */
static inline __u64 filter_load(const __u8 *record, const struct filter_column *column)
{
	const __u8 *at = record + column->offset;
	__u32 width = column->width, shift = 64 - 8 * width;
	__u64 value;

	if (width == 8)
		value = bpfof_le64(at);
	else if (width == 4)
		value = bpfof_le32(at);
	else if (width == 2)
		value = bpfof_le16(at);
	else
		value = *at;
	/* Shifts the number to the top and back, which extends the sign if there is one. */
	value = column->flags & COLUMN_BIG_ENDIAN ? __builtin_bswap64(value) : value << shift;
	return column->flags & COLUMN_SIGNED ? (__u64)((__s64)value >> shift) : value >> shift;
}

/* Whether a record meets all conditions: the filter. */
static inline int filter_passes(const __u8 *record, const struct filter_reduce_request *request)
{
	const struct filter_condition *condition = request->condition;
	const struct filter_condition *end = condition + request->conditions;

	for (; condition < end; condition++) {
		__u64 distance = filter_load(record, &condition->column) - condition->low;

		if ((distance > condition->high - condition->low) != condition->outside)
			return 0;
	}
	return 1;
}

/* Converts signed numbers to numbers that compare correctly as unsigned ones, and back. */
static inline __u64 filter_order(__u64 value, const struct filter_column *column)
{
	return column->flags & COLUMN_SIGNED ? value ^ 1ULL << 63 : value;
}

/* Adds a record to the totals: the reduction. */
static inline void filter_reduce_add(struct filter_totals *totals, const __u8 *record,
				     const struct filter_column *column)
{
	__u64 value, order;

	totals->count++;
	if (!column->width)
		return;
	value = filter_load(record, column);
	order = filter_order(value, column);
	if (order < totals->min)
		totals->min = order;
	if (order > totals->max)
		totals->max = order;
	totals->low += (__u32)value;
	totals->high += column->flags & COLUMN_SIGNED ? (__u64)((__s64)value >> 32) : value >> 32;
}

#endif
