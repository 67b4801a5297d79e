/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Rows of a query: parameters, and the beginning of the answer. */
#ifndef QUERY_ROWS_H
#define QUERY_ROWS_H

#include "bpfof/batch.h"

/* Added to a column: the answer says whether each value is present. In this chain all may be
 * present. */
#define QUERY_ROWS_MISSING 0x8000

/* At reduction_at. */
struct query_rows {
	/* maximum number of rows in the answer, not 0 */
	__u32 rows_max;
	__u16 columns;
	__u16 column[BPFOF_COLUMNS_MAX];
};

struct query_rows_state {
	__u32 rows;
	/* number of bytes that follow */
	__u32 size;
};

#endif
