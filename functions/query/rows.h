/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Rows of a query: what is asked for, and what the answer begins with. */
#ifndef QUERY_ROWS_H
#define QUERY_ROWS_H

#include "bpfof/batch.h"

/* Added to a column: answer whether the value is there. In this chain all may be there. */
#define QUERY_ROWS_MISSING 0x8000

/* At reduction_at. */
struct query_rows {
	/* rows answered at most, not 0 */
	__u32 rows_max;
	__u16 columns;
	__u16 column[BPFOF_COLUMNS_MAX];
};

struct query_rows_state {
	__u32 rows;
	/* bytes that follow */
	__u32 size;
};

#endif
