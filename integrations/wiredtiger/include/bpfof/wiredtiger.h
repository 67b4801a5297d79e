/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * WiredTiger with searches pushed down to the storage target.
 *
 * A program needs no header: libbpfof_wiredtiger.so is an extension, which is named where the database is
 * opened, or in the environment (docs/wiredtiger.md):
 *
 *     wiredtiger_open(home, NULL, "extensions=[libbpfof_wiredtiger.so={early_load=true,"
 *                     "config={url=\"nvme-tcp://10.0.0.2/NQN\",device=\"/dev/nvme1n1\"}}]", &connection);
 *
 * This header is for programs that link the library to observe or change how reads are served.
 */
#ifndef BPFOF_WIREDTIGER_H
#define BPFOF_WIREDTIGER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts since the start of the process, over all its databases. */
struct bpfof_wiredtiger_counters {
	/* searches that a chain settled: with a value, and with the answer that the key does not
	 * exist */
	uint64_t values;
	uint64_t absent;
	/* chains that returned pages, and those pages that WiredTiger then read */
	uint64_t staged;
	uint64_t staged_pages;
	/* pages that were not used because they had been rewritten meanwhile */
	uint64_t rewritten;
	/* pages that were read one by one: at the target, and from the file */
	uint64_t target_reads;
	uint64_t file_reads;
	/* chains whose answer was discarded because files had moved or had no map yet, and chains that
	 * failed */
	uint64_t stale;
	uint64_t failed;
	/* chains that should return a value but returned pages, by the reasons of functions/wt_get.h */
	uint64_t declined[16];
	/* round trips to the target, and pages that its chains read */
	uint64_t round_trips;
	uint64_t chain_pages;
	/* times the target was lost and came back */
	uint64_t lost;
	uint64_t reconnected;
	/* pages that WiredTiger read for an advancing cursor, and that had arrived with an earlier
	 * page */
	uint64_t ahead_pages;
};

/* Stores the first `size` bytes of the counters. */
void bpfof_wiredtiger_read_counters(struct bpfof_wiredtiger_counters *counters, size_t size);

/* Why the last failed chain failed, cut to `size`. Returns the length of the whole text; 0 if none. */
size_t bpfof_wiredtiger_last_error(char *text, size_t size);

/* How searches are served. */
enum bpfof_wiredtiger_mode {
	/* WiredTiger alone, page by page */
	BPFOF_WIREDTIGER_PLAIN,
	/* pages of a search are fetched together */
	BPFOF_WIREDTIGER_PAGES,
	/* only the value is fetched; pages where that is not possible, or while the cache has room */
	BPFOF_WIREDTIGER_VALUES,
};

/* Sets the mode of all databases of the process from now on, for comparisons; the default is values. */
void bpfof_wiredtiger_set_mode(enum bpfof_wiredtiger_mode mode);

#ifdef __cplusplus
}
#endif

#endif
