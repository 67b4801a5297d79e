/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Groups of a query. In the state: struct groups, the entries, which grow upwards, and the texts of
 * keys, which grow downwards from the end of scratch. Both are answered, texts behind the entries.
 *
 * An entry is: a word with a part of the hash and, in its low bits, which keys are missing; a word
 * for each key; the number of rows; and the measures. The word of a text is its offset in scratch and,
 * from bit 32 on, its length.
 */
#ifndef QUERY_GROUP_H
#define QUERY_GROUP_H

#include "measures.h"

#define GROUP_KEYS_MAX 4
/* Places of the table; two thirds are used. */
#define GROUP_PLACES 1024

/* At reduction_at. */
struct grouping {
	struct measures measures;
	__u32 keys;
	/* groups at most */
	__u32 groups_max;
	/* columns */
	__u16 key[GROUP_KEYS_MAX];
};

struct groups {
	__u32 groups;
	/* where texts begin, offset in scratch */
	__u32 texts_at;
	/* base of the sums of each measure; 0: not chosen yet */
	__u16 base[MEASURES_MAX];
};

#endif
