/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Arithmetic of a query on columns, step by step. Each step makes one more column, behind those of
 * the source, which later steps may use. Integers are signed and have 64 bits; all other numbers
 * are doubles. If a result does not fit, the batch ends before its row.
 */
#ifndef QUERY_MAP_H
#define QUERY_MAP_H

#include "bpfof/batch.h"

/* The same numbers as for bpfof_double(). */
#define MAP_ADD BPFOF_DOUBLE_ADD
#define MAP_SUBTRACT BPFOF_DOUBLE_SUB
#define MAP_MULTIPLY BPFOF_DOUBLE_MUL
#define MAP_DIVIDE BPFOF_DOUBLE_DIV

/* An operand that is a literal, not a column. */
#define MAP_LITERAL 255

struct map_step {
	/* MAP_DIVIDE gives a double */
	__u8 operation;
	/* indices of columns, or MAP_LITERAL */
	__u8 left;
	__u8 right;
	/* BPFOF_SIGNED_COLUMN or BPFOF_FLOAT_COLUMN */
	__u8 literal_kind;
	__u32 reserved;
	/* in order form */
	__u64 literal;
};

#endif
