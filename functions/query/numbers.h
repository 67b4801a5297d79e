/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Sources of a query: converts little-endian numbers, `stride` bytes apart, to order form. */
#ifndef QUERY_NUMBERS_H
#define QUERY_NUMBERS_H

#include "bpfof/batch.h"

/* Converts a binary32 to order form. */
static inline __u64 order_float(__u32 bits)
{
	__u64 sign = (__u64)(bits >> 31) << 63, exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;

	if (exponent == 255) {
		exponent = 2047;
	} else if (exponent) {
		exponent += 1023 - 127;
	} else if (fraction) {
		/* A subnormal binary32 is a normal binary64. */
		for (exponent = 1023 - 126; !(fraction & 1 << 23); exponent--)
			fraction <<= 1;
		fraction &= 0x7fffff;
	}
	return bpfof_order_double(sign | exponent << 52 | fraction << 29);
}

/* Converts integers up to `end`. Inverting the sign bit and extending the sign takes the same two
 * constants for all of them. */
#define INTEGERS(read)                                                                                \
	do {                                                                                          \
		UNROLL(4)                                                                             \
		for (; to < end; to++, at += stride)                                                  \
			*to = (read(at) ^ flip) + add;                                                \
	} while (0)

static inline __u64 read_byte(const __u8 *at)
{
	return *at;
}

static inline void take_integers(const struct bpfof_column *column, const __u8 *at, __u32 stride,
				 __u64 *to, __u32 rows)
{
	__u64 *end = to + rows;
	__u64 flip = 0, add = 0;

	if (column->kind == BPFOF_SIGNED_COLUMN) {
		flip = 1ULL << (8 * column->width - 1);
		add = BPFOF_SIGN - flip;
	}
	if (column->width == 8 && stride == 8 && !flip)
		bpfof_memmove(to, at, 8 * rows);
	else if (column->width == 8)
		INTEGERS(bpfof_le64);
	else if (column->width == 4)
		INTEGERS(bpfof_le32);
	else if (column->width == 2)
		INTEGERS(bpfof_le16);
	else
		INTEGERS(read_byte);
}

static inline void take_numbers(const struct bpfof_column *column, const __u8 *at, __u32 stride,
				__u64 *to, __u32 rows)
{
	__u64 *end = to + rows;

	if (column->kind != BPFOF_FLOAT_COLUMN) {
		take_integers(column, at, stride, to, rows);
	} else if (column->width == 8) {
		UNROLL(4)
		for (; to < end; to++, at += stride)
			*to = bpfof_order_double(bpfof_le64(at));
	} else {
		for (; to < end; to++, at += stride)
			*to = order_float(bpfof_le32(at));
	}
}

#endif
