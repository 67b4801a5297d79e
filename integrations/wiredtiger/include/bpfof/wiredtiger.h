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
 * This is for those who link it, and look at how reads were served or change that.
 */
#ifndef BPFOF_WIREDTIGER_H
#define BPFOF_WIREDTIGER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What happened so far, in all databases of the process. */
struct bpfof_wiredtiger_counters {
	/* searches of which a chain gave the value, and those of which it said that there is none */
	uint64_t values;
	uint64_t absent;
	/* chains that gave pages, and pages of those that WiredTiger then read */
	uint64_t staged;
	uint64_t staged_pages;
	/* pages that were not used because they were written meanwhile */
	uint64_t rewritten;
	/* pages that were read one by one: at the target, and from the file */
	uint64_t target_reads;
	uint64_t file_reads;
	/* chains that did not count: files had moved, or had no map yet; and those that failed */
	uint64_t stale;
	uint64_t failed;
	/* chains that were to give a value and gave pages, by the reasons of functions/wt_get.h */
	uint64_t declined[16];
	/* round trips to the target, and pages that its chains read */
	uint64_t round_trips;
	uint64_t chain_pages;
	/* times the target was lost and came back */
	uint64_t lost;
	uint64_t reconnected;
	/* pages that WiredTiger read for a cursor that went on, and that had come with an earlier one */
	uint64_t ahead_pages;
};

/* Stores as much of the counters as size says. */
void bpfof_wiredtiger_read_counters(struct bpfof_wiredtiger_counters *counters, size_t size);

/* Why the last chain failed that did, as far as there is room. Returns the length of the whole text; 0 if none. */
size_t bpfof_wiredtiger_last_error(char *text, size_t size);

/* How searches are served. */
enum bpfof_wiredtiger_mode {
	/* by WiredTiger alone, page by page */
	BPFOF_WIREDTIGER_PLAIN,
	/* pages of a search come together */
	BPFOF_WIREDTIGER_PAGES,
	/* the value comes alone; pages where that is not possible, or the cache has room */
	BPFOF_WIREDTIGER_VALUES,
};

/* For all databases of the process from now on, for comparisons; values by default. */
void bpfof_wiredtiger_set_mode(enum bpfof_wiredtiger_mode mode);

#ifdef __cplusplus
}
#endif

#endif
