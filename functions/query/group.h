/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Groups of a query. The state has struct groups, the entries, which grow upwards, and the texts of
 * keys, which grow downwards from the end of scratch. The answer has both, texts behind the
 * entries.
 *
 * An entry has a word with 32 bits of the hash of the keys (0 if the only key is a number that is
 * never missing) and, in its low bits, which keys are missing; a word for each key; the number of
 * rows; and the measures. The word of a text key is its offset in scratch and, from bit 32 on, its
 * length.
 */
#ifndef QUERY_GROUP_H
#define QUERY_GROUP_H

#include "measures.h"

#define GROUP_KEYS_MAX 4
/* Slots of the hash table; at most two thirds are used. */
#define GROUP_PLACES 1024

/* At reduction_at. */
struct grouping {
	struct measures measures;
	__u32 keys;
	/* maximum number of groups */
	__u32 groups_max;
	/* indices of columns */
	__u16 key[GROUP_KEYS_MAX];
};

struct groups {
	__u32 groups;
	/* offset in scratch where texts begin */
	__u32 texts_at;
	/* base of the sums of each measure; 0: not chosen yet */
	__u16 base[MEASURES_MAX];
};

#endif
