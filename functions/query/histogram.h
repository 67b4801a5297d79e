/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* A histogram of a query: its parameters. */
#ifndef QUERY_HISTOGRAM_H
#define QUERY_HISTOGRAM_H

#include "bpfof/batch.h"

/* At reduction_at. */
struct query_histogram {
	__u32 column;
	/* number of intervals, at least one */
	__u32 bins;
	/* in order form, ascending: the first value of each interval, and the last value of the
	 * last */
	__u64 edge[];
};

#endif
