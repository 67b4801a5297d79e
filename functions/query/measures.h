/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Measures of a query over a column: of all selected rows (fold), or of each group. The state of
 * all measures is an entry: its first word belongs to the reduction, and each measure has words at
 * its offsets.
 *
 * Sums are exact. A sum of integers has 128 bits; it sums the order forms, and the host corrects
 * for the sign bits. A sum of floats is a two's complement number in `limbs` words of 64 bits. Its
 * lowest bit is worth 2^(base - 1075); the lowest bit of a double with exponent field e is worth
 * 2^(e - 1075).
 */
#ifndef QUERY_MEASURES_H
#define QUERY_MEASURES_H

#include "bpfof/batch.h"

#define MEASURES_MAX 16

/* Words of 64 bits: enough for doubles of all exponents, and for 2^70 of the largest. */
#define FOLD_LIMBS 34
/* Enough for 2^32 doubles whose exponents differ by at most GROUP_SPAN. */
#define GROUP_LIMBS 4
#define GROUP_SPAN 170

struct measure {
	__u16 column;
	/* Offsets in the entry, 0 if absent. count_at: number of values. range_at: minimum and
	 * maximum in order form, without NaN, initially ~0 and 0. sum_at: of integers two words; of
	 * floats a word of MEASURE_ bits, and the limbs. squares_at: the sum of squares, of
	 * integers of at most 32 bits, two words. */
	__u16 count_at;
	__u16 range_at;
	__u16 sum_at;
	__u16 squares_at;
	__u16 reserved[3];
};

/* Bits for special values in a sum of floats. */
#define MEASURE_NAN 1
#define MEASURE_PLUS_INFINITY 2
#define MEASURE_MINUS_INFINITY 4

/* At reduction_at. */
struct measures {
	__u32 measures;
	/* size of an entry in bytes */
	__u32 entry_size;
	struct measure measure[MEASURES_MAX];
};

/* Initialises an entry without values. */
static inline void measures_begin(const struct measures *measures, __u8 *entry)
{
	bpfof_memset(entry, 0, measures->entry_size);
	for (__u32 i = 0; i < measures->measures && i < MEASURES_MAX; i++) {
		__u32 at = measures->measure[i].range_at;

		if (at)
			*(__u64 *)(entry + at) = ~0ULL;
	}
}

/* The exponent field of a finite double; 1 for subnormal ones. */
static inline __u32 double_exponent(__u64 bits)
{
	__u32 exponent = bits >> 52 & 2047;

	return exponent + !exponent;
}

/* Adds to a 128-bit number. */
static inline void add_wide(__u64 *sum, __u64 low, __u64 high)
{
	__u64 was = sum[0];

	sum[0] = was + low;
	sum[1] += high + (was + low < was);
}

/* Adds a double to a sum: to the limbs, or to the word for special values. */
static inline void add_double(__u64 *sum, __u64 order, __u32 base, __u32 limbs)
{
	__u64 bits = bpfof_double_of_order(order), fraction, low, high, was;
	__u32 exponent = bits >> 52 & 2047, shift;
	__u64 *limb, *end = sum + 1 + limbs;

	if (exponent == 2047) {
		sum[0] |= order == BPFOF_ORDER_NAN ? MEASURE_NAN :
			  bits & BPFOF_SIGN ? MEASURE_MINUS_INFINITY : MEASURE_PLUS_INFINITY;
		return;
	}
	fraction = (bits & ((1ULL << 52) - 1)) | (__u64)!!exponent << 52;
	if (!fraction)
		return;
	exponent = exponent + !exponent - base;
	shift = exponent & 63;
	limb = sum + 1 + (exponent >> 6);
	low = fraction << shift;
	/* In two steps, because a shift by 64 is undefined. */
	high = fraction >> 1 >> (63 - shift);
	was = limb[0];
	if (bits & BPFOF_SIGN) {
		limb[0] = was - low;
		high += was < low;
		was = limb[1];
		limb[1] = was - high;
		for (limb += 2; was < high && limb < end; limb++) {
			was = *limb;
			high = 1;
			*limb = was - 1;
		}
	} else {
		limb[0] = was + low;
		high += was + low < was;
		was = limb[1] + high;
		limb[1] = was;
		for (limb += 2; was < high && limb < end; limb++) {
			high = 1;
			was = *limb + 1;
			*limb = was;
		}
	}
}

/* Lists the selected rows whose value is present. */
static inline __u32 choose(struct bpfof_batch *batch, const struct bpfof_column *column,
			   const __u16 *selection, __u16 *chosen)
{
	const __u8 *valid = bpfof_at(batch, column->valid_at);
	__u32 selected = batch->selected, count = 0;

	for (__u32 i = 0; i < selected; i++) {
		__u32 row = selection[i];

		if (valid[row])
			chosen[count++] = row;
	}
	return count;
}

#endif
